"""Run one batch forward and backward, and count what memory it takes, and for what."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.train.measuring.account import MemoryAccount, Moments
from amp_lab.train.measuring.batches import casts_of, dtype_or_none, region, scalar
from amp_lab.train.measuring.ledger import Birth, Ledger
from amp_lab.train.measuring.module_names import ModuleNames
from amp_lab.train.measuring.states import state_sizes
from amp_lab.train.measuring.storages import sizes, tensors_of
from amp_lab.watching.overflow import batch_of
from amp_lab.watching.replaying.batches import Batch, fresh, kept


def memory_account(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    dtype: torch.dtype | None = None,
    device_type: str | None = None,
) -> MemoryAccount:
    """Count what one training step keeps in memory, and for what: each storage once.

        print(memory_account(model, loss_fn, (images, labels), optimizer=optimizer, dtype=torch.float16))

    The batch is run forward and backward once, on the model itself. All is put back afterwards: weights, `.grad`,
    buffers, random number generators, train and eval mode. No optimizer steps.

    Exact, to the byte, are all categories and moments, on every device, as far as tensors go. Estimates are: the
    optimizer's state before its first step (each parameter is stepped on a copy, so it is exact for optimizers that
    treat parameters one by one), and `peak`, which is taken between operators. Not counted: what a kernel takes and
    gives back (workspace), what the device itself takes (a CUDA context: some hundred MB), and what PyTorch's
    allocator rounds up (CUDA: each storage to 512 bytes) or holds in reserve, and the states of random number
    generators that `torch.utils.checkpoint` keeps, 5 KB a call. A compiled model is counted as it was written.

    "cuda" on CPU tensors means CUDA's casts, but the CPU's kernels: dropout on a CPU keeps its mask in the dtype of its
    input, and on a GPU in one byte per number; fused attention may be chosen in other cases.

    Args:
        model, loss_fn, batch: as for `amp_lab.find_overflow`: the last of a tuple is the target.
        optimizer: the model's; None: its state is not counted.
        dtype: `torch.float16` or `torch.bfloat16`: forward and loss run under autocast. None or `torch.float32`:
            without autocast.
        device_type: whose autocast: None for that of the device that the model is on; "cuda" on CPU tensors is
            emulated.

    Raises:
        TypeError, ValueError: for arguments that cannot be, and a loss that cannot be trained on.
    """
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"optimizer is one of torch.optim, not a {type(optimizer).__name__}")
    run = batch_of(model, loss_fn, batch, device_type=device_type, dtype=dtype_or_none(dtype))
    if optimizer is not None:
        _check_optimizer(optimizer, run)
    with torch.inference_mode(False), torch.enable_grad(), kept(run), fresh(run), casts_of(run):
        counted = _Counted.of(run)
    state, made = state_sizes(optimizer, counted.gradients) if optimizer is not None else ({}, 0)
    return counted.account(run, sum(state.values()) + made)


def _check_optimizer(optimizer: torch.optim.Optimizer, run: Batch) -> None:
    known = {id(each) for part in run.parts() for each in part.parameters(recurse=False)}
    if not any(id(each) in known for group in optimizer.param_groups for each in group["params"]):
        raise ValueError(
            f"optimizer: this {type(optimizer).__name__} has none of the model's parameters; make it of "
            "model.parameters()"
        )


@dataclass
class _Counted:
    """What one run has shown. All sizes are in bytes; storages go by address."""

    weights: int
    buffers: int
    replaced: int
    inputs: int
    kept: list[Birth]
    outputs: list[Birth]
    casts_freed: int
    after_backward: int
    peak: int
    peak_operator: str
    gradients: dict[torch.Tensor, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, run: Batch) -> _Counted:
        there = _There(run)
        names = ModuleNames(dict(run.modules))
        ledger = Ledger(run.runs_on, there.known, there.weights, names)
        hooks = torch.autograd.graph.saved_tensors_hooks(ledger.save, lambda tensor: tensor)
        with ledger, names, _results(run) as results:
            with region(run), hooks:
                loss = run.call(*run.inputs, **run.keywords)
                casts = _casts(ledger)
            freed = casts - _casts(ledger)  # the region is over, and with it autocast's cache
            after = _After(dict(ledger.alive), dict(ledger.saved), sizes((results, loss)), _buffers(run))
            scalar(loss).backward()  # type: ignore[no-untyped-call]
            after_backward = ledger.bytes
        replaced, new_buffers = after.replaced(there), sum(each.bytes for each in after.new_buffers())
        return cls(
            weights=sum(there.weights.values()),
            buffers=sum(after.old_buffers(there).values()) + new_buffers,
            replaced=sum(replaced.values()),
            inputs=sum(there.inputs.values()),
            kept=after.kept(),
            outputs=after.outputs(),
            casts_freed=freed,
            after_backward=after_backward - new_buffers,
            peak=ledger.peak - new_buffers,
            peak_operator=ledger.peak_operator,
            gradients={each: each.grad for each in there.leaves if each.grad is not None},
        )

    def account(self, run: Batch, optimizer_state: int) -> MemoryAccount:
        there = self.weights + self.buffers + self.inputs + optimizer_state
        activations = [each for each in self.kept if not each.of_weight]
        outputs = sum(each.bytes for each in self.outputs)
        kept = sum(each.bytes for each in self.kept)
        return MemoryAccount(
            what=_in_words(run),
            weights=self.weights,
            gradients=sum(sizes(list(self.gradients.values())).values()),
            optimizer_state=optimizer_state,
            activations=sum(each.bytes for each in activations),
            cached_casts=kept - sum(each.bytes for each in activations),
            buffers=self.buffers,
            inputs=self.inputs,
            outputs=outputs,
            casts_freed=self.casts_freed,
            moments=Moments(
                after_forward=there + kept + outputs,
                after_backward=there + self.after_backward,
                peak=there + self.replaced + self.peak,
                peak_operator=self.peak_operator,
            ),
            activation_rows=tuple(sorted(activations, key=lambda each: -each.bytes)),
        )


class _There:
    """The storages before the run: of parameters, of buffers and other tensors of modules, of inputs."""

    def __init__(self, run: Batch) -> None:
        parts = run.parts()
        parameters = [each for part in parts for each in part.parameters(recurse=False)]
        self.weights = sizes(parameters)
        self.buffers = _without(_buffers(run), self.weights)
        self.inputs = _without(sizes((run.inputs, dict(run.keywords))), self.weights | self.buffers)
        self.known = self.weights | self.buffers | self.inputs
        inputs = [each for each in tensors_of((run.inputs, dict(run.keywords))) if each.requires_grad]
        self.leaves = [each for each in dict.fromkeys([*parameters, *inputs]) if each.is_leaf]


def _buffers(run: Batch) -> dict[int, int]:
    """Return the storages of what modules hold now, parameters among them."""
    return sizes([[part._buffers, vars(part)] for part in run.parts()])


@dataclass(frozen=True)
class _After:
    """The storages after forward, by address: those that it made, and those that backward, results, modules hold."""

    alive: dict[int, Birth]
    saved: dict[int, int]
    results: dict[int, int]
    modules: dict[int, int]

    def _is_output(self, address: int) -> bool:
        return address in self.results and address not in self.saved

    def _is_buffer(self, address: int) -> bool:
        return address in self.modules and address not in self.saved and not self._is_output(address)

    def outputs(self) -> list[Birth]:
        return [birth for address, birth in self.alive.items() if self._is_output(address)]

    def new_buffers(self) -> list[Birth]:
        """Return what a module has put in a buffer's place, or keeps in an attribute for later."""
        return [birth for address, birth in self.alive.items() if self._is_buffer(address)]

    def kept(self) -> list[Birth]:
        return [
            birth
            for address, birth in self.alive.items()
            if not self._is_output(address) and not self._is_buffer(address)
        ]

    def replaced(self, there: _There) -> dict[int, int]:
        """Return the buffers from before that no module has now. (They live here, to be put back.)"""
        return _without(_without(there.buffers, self.modules), self.saved)

    def old_buffers(self, there: _There) -> dict[int, int]:
        """Return the other buffers from before, and what else backward needs, such as a tensor of a closure."""
        others = _without(_without(self.saved, self.alive), there.known)
        return _without(there.buffers, self.replaced(there)) | others


def _without(some: dict[int, int], others: Collection[int]) -> dict[int, int]:
    return {address: size for address, size in some.items() if address not in others}


def _casts(ledger: Ledger) -> int:
    return sum(each.bytes for each in ledger.alive.values() if each.of_weight)


@contextmanager
def _results(run: Batch) -> Iterator[list[Any]]:
    """Keep what the model returns, as the variable of a training loop does, while the batch is run."""
    found: list[Any] = []
    model = run.modules[""]

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        if module is model:
            found.append(output)

    handle = register_module_forward_hook(note)  # a ScriptModule takes none of its own
    try:
        yield found
    finally:
        handle.remove()


def _in_words(run: Batch) -> str:
    if not run.region:
        return f"{_of_weights(run)}, without autocast"
    name = {torch.float16: "FP16", torch.bfloat16: "BF16"}[run.dtype]
    whose = {"cuda": "CUDA", "cpu": "the CPU"}[run.device_type]
    return f"{name} autocast of {whose}{', emulated on the CPU' if run.emulated else ''}"


def _of_weights(run: Batch) -> str:
    """Return the formats of the parameters, which are those of products without autocast."""
    dtypes = dict.fromkeys(each.dtype for part in run.parts() for each in part.parameters(recurse=False))
    return " and ".join(dtype_in_words(each) for each in dtypes) or "FP32"
