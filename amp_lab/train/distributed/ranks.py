"""The processes that train one model together, as one of them sees them.

    ranks = Ranks.of(model, device)
    ranks.rank, ranks.size, ranks.first       # 0, 1, True where the process is alone
    total, = ranks.add([0.5])                 # the sum over all of them

Alone, every question has its answer at once, and nothing is sent. Together, all ranks must ask the same questions in
the same order: what one of them asks alone, nobody answers.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amp_lab.train.distributed import failures
from amp_lab.train.distributed.failures import RankFailed, RanksDiffer

T = TypeVar("T")
_NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()


class Ranks:
    """One process alone; `Ranks.of` gives the kind that there is.

    Attributes:
        rank: the number of this process, from 0.
        size: how many there are.
    """

    rank, size = 0, 1

    @staticmethod
    def of(model: nn.Module, device: torch.device) -> Ranks:
        """Return the ranks that train a model: those of its DistributedDataParallel (inside `torch.compile`, too).

        A model without one trains alone. In a group of several processes, that is warned of.
        """
        wrapped = ddp_of(model)
        if wrapped is not None:
            return _Several(wrapped, device) if wrapped.process_group.size() > 1 else Ranks()
        dist = torch.distributed
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            warnings.warn(
                f"{dist.get_world_size()} processes are here, and each trains a model of its own: for one model, "
                "Trainer(DistributedDataParallel(model), ...) of torch.nn.parallel, before torch.compile",
                stacklevel=3,
            )
        return Ranks()

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and draws a progress bar."""
        return self.rank == 0

    def rows(self, values: Sequence[float]) -> list[list[float]]:
        """Return the values of every rank, in order of ranks, as FP64 numbers (FP32 where a device has no FP64)."""
        return [[float(value) for value in values]]

    def add(self, values: Sequence[float]) -> list[float]:
        """Return the sums over all ranks, the same in every bit on each."""
        return [sum(column) for column in zip(*self.rows(values), strict=True)]

    def any(self, flag: bool) -> bool:
        """Tell whether a flag is up on any rank."""
        return any(row[0] for row in self.rows([flag]))

    def gather(self, value: T) -> list[T]:
        """Return a plain value (numbers, text, tensors, containers of them) of every rank, in order of ranks."""
        return [value]

    def share(self, value: T) -> T:
        """Return the value that rank 0 has."""
        return value

    def agree(self, what: str, value: Any) -> None:
        """Make sure that a value is the same everywhere.

        Raises:
            RanksDiffer: on every rank, with the ranks and their values.
        """
        values = self.gather(value)
        if any(each != values[0] for each in values):
            raise differ(what, values)

    def each(self, function: Callable[[], T]) -> list[T]:
        """Call a function on every rank, and return what it gave on each of them.

        Raises:
            RankFailed: where it went well, if it has raised on another rank; there, its own error.
        """
        return [function()]

    def first_does(self, function: Callable[[], T]) -> T:
        """Call a function on rank 0 only, and return there and everywhere what it gave.

        Raises:
            RankFailed: if it has raised; on rank 0, its own error.
        """
        return function()

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Return a context for forward and backward of a micro-batch: gradients are averaged in the last one only."""
        return _NOTHING

    def model_inside(self, model: nn.Module) -> nn.Module:
        """Return the model as it can be run on one rank without the others."""
        return model

    def same_buffers(self) -> None:
        """Give every rank the buffers of rank 0 (the running averages of BatchNorm), as DDP's next step would."""

    def own_buffers(self) -> dict[str, Any]:
        """Return, for a checkpoint, the buffers that are not those of rank 0: DDP(..., broadcast_buffers=False)."""
        return {}

    def load_own_buffers(self, state: Mapping[str, Any]) -> None:
        """Take what `own_buffers` gave."""

    def begin(self) -> None:
        """Begin a run: what was left in an earlier one is forgotten."""

    def leaving(self, error: BaseException) -> None:
        """Leave a note for the others: this rank does not go on, and why."""

    def explain(self, error: BaseException) -> None:
        """Raise RankFailed in place of an error that says only that another rank does not answer."""


class _Several(Ranks):
    """Several processes, each with one of these."""

    def __init__(self, model: DistributedDataParallel, device: torch.device) -> None:
        self._model = model
        self.rank, self.size = self._group.rank(), self._group.size()
        self._device = _for_messages(self._group, device)
        self._dtype = torch.float64 if self._device.type in ("cpu", "cuda") else torch.float32

    @property
    def _group(self) -> Any:
        """Asked of the model each time: a process group cannot be copied, and DDP knows how to do without."""
        return self._model.process_group

    def rows(self, values: Sequence[float]) -> list[list[float]]:
        # A sum in which each rank has a row of its own and zeros elsewhere: every backend knows that, and it is exact.
        table = torch.zeros(self.size, len(values), dtype=self._dtype)
        table[self.rank] = torch.tensor(values, dtype=self._dtype)
        table = table.to(self._device)
        torch.distributed.all_reduce(table, group=self._group)
        rows: list[list[float]] = table.tolist()
        return rows

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(values, value, group=self._group)
        return values

    def share(self, value: T) -> T:
        box = [value]
        source = torch.distributed.get_global_rank(self._group, 0)
        torch.distributed.broadcast_object_list(box, source, group=self._group)
        return box[0]

    def each(self, function: Callable[[], T]) -> list[T]:
        value, error = _tried(function)
        answers: list[Any] = self.gather((value, _line(error)))
        self._raise_alike(error, [said for _, said in answers])
        return [answer for answer, _ in answers]

    def first_does(self, function: Callable[[], T]) -> T:
        value, error = _tried(function) if self.first else (None, None)
        answer: Any = self.share((value, _line(error)))
        self._raise_alike(error, [answer[1]])
        return answer[0]  # type: ignore[no-any-return]

    def _raise_alike(self, error: Exception | None, said: Sequence[str]) -> None:
        if error is not None:
            raise error
        for rank, line in enumerate(said):
            if line:
                raise RankFailed(f"rank {rank} cannot go on, so this one ends, too: {line}")

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        return _NOTHING if last else self._model.no_sync()

    def model_inside(self, model: nn.Module) -> nn.Module:
        inside: nn.Module = self._model.module
        return inside

    def same_buffers(self) -> None:
        if self._model.broadcast_buffers:
            source = torch.distributed.get_global_rank(self._group, 0)
            for buffer in self._model.module.buffers():
                torch.distributed.broadcast(buffer.detach(), source, group=self._group)

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
            failures.leave_note(self._group, self.rank, _line(error))

    def explain(self, error: BaseException) -> None:
        if failures.is_about_others(error):
            raise RankFailed(failures.who_left(self._group, self.rank, self.size)) from error


def differ(what: str, values: Sequence[Any]) -> RanksDiffer:
    """Return the error for what is not the same on all ranks; `values` are theirs, in order of ranks."""
    listed = ", ".join(f"{each!r} on rank {rank}" for rank, each in enumerate(values))
    return RanksDiffer(
        f"{what} must be the same on all ranks, and is {listed}: start all with the same script, data and arguments"
    )


def ddp_of(model: nn.Module) -> DistributedDataParallel | None:
    """Return the DistributedDataParallel that a model is, or that `torch.compile` was given; None if there is none."""
    inside = getattr(model, "_orig_mod", model)
    return inside if isinstance(inside, DistributedDataParallel) else None


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


def _line(error: BaseException | None) -> str:
    return "" if error is None else f"{type(error).__name__}: {error}".strip(": \n").splitlines()[0]
