"""Several processes that train one model: each asks the others through the process group of its model."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amp_lab.train.distributed import failures, lone_calls
from amp_lab.train.distributed.failures import RankFailed, RanksDiffer
from amp_lab.train.distributed.ranks import NOTHING, Ranks, T

_SETTINGS: Final = ("broadcast_buffers", "find_unused_parameters", "static_graph", "bucket_bytes_cap")


def ranks_of(model: nn.Module, device: torch.device) -> Ranks:
    """Return the ranks that train a model: those of its DistributedDataParallel (inside `torch.compile`, too).

    A model without one trains alone. In a group of several processes, that is warned of.
    """
    wrapped = ddp_of(model)
    if wrapped is not None:
        return SeveralRanks(wrapped, device) if wrapped.process_group.size() > 1 else Ranks()
    dist = torch.distributed
    if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
        warnings.warn(
            f"{dist.get_world_size()} processes are here, and each trains a model of its own: for one model, "
            "Trainer(DistributedDataParallel(model), ...) of torch.nn.parallel, before torch.compile",
            stacklevel=3,
        )
    return Ranks()


class SeveralRanks(Ranks):
    """Several processes, each with one of these."""

    def __init__(self, model: DistributedDataParallel, device: torch.device) -> None:
        self._model = model
        self.rank, self.size = self._group.rank(), self._group.size()
        self._device = _for_messages(self._group, device)
        self._dtype = torch.float64 if self._device.type in ("cpu", "cuda") else torch.float32
        self._awaited = [] if model.find_unused_parameters or model.static_graph else _trained(model)

    @property
    def _group(self) -> Any:
        """Asked of the model each time: a process group cannot be copied, and DDP knows how to do without."""
        return self._model.process_group

    def rows(self, values: Sequence[float]) -> list[list[float]]:
        # On gloo half as long as an all-reduce of the same numbers, which goes to and fro.
        mine = torch.tensor(values, dtype=self._dtype, device=self._device)
        rows = [torch.empty_like(mine) for _ in range(self.size)]
        with self._answered():
            torch.distributed.all_gather(rows, mine, group=self._group)
        told: list[list[float]] = torch.stack(rows).tolist()
        return told

    def gather(self, value: T) -> list[T]:
        return self._gathered(self._noted(), value)

    def share(self, value: T) -> T:
        self._noted()
        return self._shared(value)

    def each(self, function: Callable[[], T]) -> list[T]:
        call = self._noted()  # before: the others may be waiting while it runs
        value, error = _tried(function)
        answers: list[Any] = self._gathered(call, (value, _said(error)))
        _raise_alike(error, [said for _, said in answers])
        return [answer for answer, _ in answers]

    def first_does(self, function: Callable[[], T]) -> T:
        self._noted()
        value, error = _tried(function) if self.first else (None, None)
        answer: Any = self._shared((value, _said(error)))
        _raise_alike(error, [answer[1]])
        return answer[0]  # type: ignore[no-any-return]

    def _gathered(self, call: str, value: T) -> list[T]:
        told: list[Any] = [None] * self.size
        with self._answered(), self._waiting(), self._on_device():
            torch.distributed.all_gather_object(told, (call, value), group=self._group)
        calls, values = zip(*told, strict=True)
        if len(set(calls)) > 1:
            raise RanksDiffer(lone_calls.differ(calls))
        return list(values)

    def _shared(self, value: T) -> T:
        box = [value]
        source = torch.distributed.get_global_rank(self._group, 0)
        with self._answered(), self._waiting(), self._on_device():
            torch.distributed.broadcast_object_list(box, source, group=self._group)
        return box[0]

    def _noted(self) -> str:
        return lone_calls.note(self._group, self.rank)

    def _waiting(self) -> contextlib.AbstractContextManager[Any]:
        return lone_calls.waiting(self._group, self.rank, self.size)

    @contextlib.contextmanager
    def _answered(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            self.explain(error)
            raise

    def _on_device(self) -> contextlib.AbstractContextManager[Any]:
        """NCCL sends objects from the current GPU, which need not be that of the model."""
        return torch.cuda.device(self._device) if self._device.type == "cuda" else NOTHING

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        return NOTHING if last else self._model.no_sync()

    def check_gradients(self, step: int) -> None:
        missing = [name for name, each in self._awaited if each.grad is None and each.requires_grad]
        if missing:
            more = f" and {len(missing) - 3:,} more" if len(missing) > 3 else ""
            raise RuntimeError(
                f"rank {self.rank} has no gradient of {', '.join(missing[:3])}{more} after the backward pass of step "
                f"{step:,}, and DistributedDataParallel waits for every parameter on every rank: let the loss depend "
                "on all of them in each step, or wrap with DistributedDataParallel(model, "
                "find_unused_parameters=True), which looks in every forward pass for those that are not used"
            )

    def settings(self) -> dict[str, Any]:
        return {name: getattr(self._model, name, None) for name in _SETTINGS}

    def model_inside(self, model: nn.Module) -> nn.Module:
        inside: nn.Module = self._model.module
        return inside

    def same_buffers(self) -> None:
        if self._model.broadcast_buffers:
            self._noted()
            source = torch.distributed.get_global_rank(self._group, 0)
            with self._answered(), self._waiting():
                for buffer in self._model.module.buffers():
                    held = buffer.detach()
                    sent = held.contiguous()  # NCCL takes nothing else
                    torch.distributed.broadcast(sent, source, group=self._group)
                    if sent is not held:
                        held.copy_(sent)

    def own_buffers(self) -> dict[str, Any]:
        if self._model.broadcast_buffers:
            return {}
        return {"buffers": {name: each.cpu() for name, each in self._model.module.named_buffers()}}

    def load_own_buffers(self, state: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, each in self._model.module.named_buffers():
                if name in state.get("buffers", {}):
                    each.copy_(state["buffers"][name])

    def begin(self) -> None:
        failures.remove_note(self._group, self.rank)

    def leaving(self, error: BaseException) -> None:
        if not isinstance(error, RankFailed | RanksDiffer):
            failures.leave_note(self._group, self.rank, failures.line(error))

    def explain(self, error: BaseException) -> None:
        if failures.is_about_others(error):
            raise failures.who_left(self._group, self.rank, self.size) from error


def ddp_of(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that a model is, or that `torch.compile` was given; None if there is none."""
    inside = getattr(model, "_orig_mod", model)
    return inside if isinstance(inside, DistributedDataParallel) else None


def _trained(model: DistributedDataParallel) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters whose gradients DDP averages, with their names."""
    ignored = model.parameters_to_ignore
    return [
        (name, each)
        for name, each in model.module.named_parameters()
        if each.requires_grad and name not in ignored
    ]


def _for_messages(group: Any, device: torch.device) -> torch.device:
    """A message of a few numbers goes by the CPU if its group can do that, and does not wait for a GPU."""
    return torch.device("cpu") if "cpu" in _backends(group) else device


def _backends(group: Any) -> str:
    """Return "cpu:gloo,cuda:nccl", as it may be; "cuda:nccl" serves no CPU."""
    said: str = torch.distributed.get_backend_config(group)
    return said


def _tried(function: Callable[[], T]) -> tuple[T | None, Exception | None]:
    try:
        return function(), None
    except Exception as error:
        return None, error


def _raise_alike(error: Exception | None, said: Sequence[str]) -> None:
    if error is not None:
        raise error
    for rank, line in enumerate(said):
        if line:
            raise RankFailed(f"rank {rank} cannot go on, so this one ends, too: {line}")


def _said(error: BaseException | None) -> str:
    return "" if error is None else failures.line(error)
