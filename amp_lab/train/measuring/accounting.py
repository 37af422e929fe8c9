"""Run one batch forward and backward, and count what memory it takes, and for what."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from amp_lab.train.measuring.account import MemoryAccount, Moments
from amp_lab.train.measuring.batches import casts_of, dtype_or_none, region, scalar
from amp_lab.train.measuring.ledger import Birth, Ledger, sizes
from amp_lab.train.measuring.module_names import ModuleNames
from amp_lab.train.measuring.states import state_sizes
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
    with kept(run), fresh(run), casts_of(run), torch.enable_grad():
        counted = _Counted.of(run)
    state, made = state_sizes(optimizer, counted.gradients) if optimizer is not None else ({}, 0)
    return counted.account(run, sum(state.values()) + made)


@dataclass
class _Counted:
    """What one run has shown. All sizes are in bytes; storages go by address."""

    weights: int
    buffers: int
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
        saved: dict[int, int] = {}
        with ledger, names, _results(run) as results:
            with region(run), _saved(saved):
                loss = run.call(*run.inputs, **run.keywords)
                casts = _casts(ledger)
            alive = dict(ledger.alive)  # the region is over, and with it autocast's cache
            freed = casts - _casts(ledger)
            scalar(loss).backward()  # type: ignore[no-untyped-call]
            after_backward = ledger.bytes
        held = sizes((results, loss))
        outputs = {address for address in alive if address in held and address not in saved}
        known_before = {address: size for address, size in saved.items() if address not in alive}
        return cls(
            weights=sum(there.weights.values()),
            buffers=sum((there.buffers | _without(known_before, there.known)).values()),
            inputs=sum(there.inputs.values()),
            kept=[birth for address, birth in alive.items() if address not in outputs],
            outputs=[alive[address] for address in outputs],
            casts_freed=freed,
            after_backward=after_backward,
            peak=ledger.peak,
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
                peak=there + self.peak,
                peak_operator=self.peak_operator,
            ),
            activation_rows=tuple(sorted(activations, key=lambda each: -each.bytes)),
        )


class _There:
    """The storages before the run: of parameters, of buffers and other tensors of modules, of inputs."""

    def __init__(self, run: Batch) -> None:
        parts = run.parts()
        parameters = [each for part in parts for each in part._parameters.values() if each is not None]
        self.weights = sizes(parameters)
        self.buffers = _without(sizes([[part._buffers, vars(part)] for part in parts]), self.weights)
        self.inputs = _without(sizes((run.inputs, dict(run.keywords))), self.weights | self.buffers)
        self.known = self.weights | self.buffers | self.inputs
        self.leaves = list(dict.fromkeys(parameters))


def _without(some: dict[int, int], others: dict[int, int]) -> dict[int, int]:
    return {address: size for address, size in some.items() if address not in others}


def _casts(ledger: Ledger) -> int:
    return sum(each.bytes for each in ledger.alive.values() if each.of_weight)


@contextmanager
def _saved(found: dict[int, int]) -> Iterator[None]:
    """Note the storages of all tensors that autograd saves for backward."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        found.update(sizes(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


@contextmanager
def _results(run: Batch) -> Iterator[list[Any]]:
    """Keep what the model returns, as the variable of a training loop does, while the batch is run."""
    found: list[Any] = []
    model = run.modules[""]
    handle = model.register_forward_hook(lambda module, inputs, output: found.append(output))
    try:
        yield found
    finally:
        handle.remove()


def _in_words(run: Batch) -> str:
    if not run.region:
        return "FP32, without autocast"
    name = {torch.float16: "FP16", torch.bfloat16: "BF16"}[run.dtype]
    whose = {"cuda": "CUDA", "cpu": "the CPU"}[run.device_type]
    return f"{name} autocast of {whose}{', emulated on the CPU' if run.emulated else ''}"
