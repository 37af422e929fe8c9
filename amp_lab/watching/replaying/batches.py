"""A batch that can be run again, and what a run of it changes: kept, and put back."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from amp_lab.autocast.emulate import cuda_autocast, tensor_cores
from amp_lab.autocast.policy import policy
from amp_lab.autocast.recording.borrowing import Attributes
from amp_lab.autocast.recording.settings_kept import random_states_kept, settings_kept
from amp_lab.autocast.recording.training_steps import training_steps_refused
from amp_lab.watching.replaying.copies import Copies
from amp_lab.watching.replaying.processes import by_itself


@dataclass(frozen=True)
class Batch:
    """Forward and loss of one batch: `call(*inputs, **keywords)` returns the unscaled loss.

    `modules` are the roots, by name ("" for a model alone). `region`: whether the call is to be run in an autocast
    region of `dtype`; if not, it has its own. `runs_on` is the device type of the tensors, `device_type` that of the
    policy: "cuda" on CPU tensors is emulated. `targets` says how many of `inputs`, at the end, are targets.
    `copies` are the numbers of all tensors that a run may write to, as `kept` found them.
    """

    call: Callable[..., Any]
    modules: Mapping[str, nn.Module]
    runs_on: str
    device_type: str
    dtype: torch.dtype = torch.float16
    region: bool = False
    inputs: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    targets: int = 0
    copies: list[Copies] = field(default_factory=list, compare=False, repr=False)

    @property
    def emulated(self) -> bool:
        return self.runs_on == "cpu" and self.device_type == "cuda"

    def parameters(self) -> dict[str, nn.Parameter]:
        """Return the parameters that are trained, each once, by name."""
        return {
            name: each
            for root, module in self.modules.items()
            for name, each in module.named_parameters(prefix=root)
            if each.requires_grad
        }

    def parts(self) -> list[nn.Module]:
        return list(dict.fromkeys(part for each in self.modules.values() for part in each.modules()))

    @contextlib.contextmanager
    def policy(self) -> Iterator[None]:
        """Let autocast, on the tensors there are, cast as on the device that is asked about."""
        if not self.emulated:
            yield
            return
        policy("cpu")  # asked before any kernel is replaced
        with cuda_autocast(), tensor_cores():
            yield


@contextlib.contextmanager
def kept(batch: Batch) -> Iterator[list[str]]:
    """Run a batch in here as often as you like, each run in `fresh`: afterwards all is as it was before.

    That is: numbers of parameters, buffers, plain tensors of modules and of the batch; `.grad`; attributes of modules
    (`training` among them), random number generators, autocast regions. Optimizers and scalers do not step, compiled
    code runs as it was written, and no other process is waited for; yields notes of what that has changed.
    """
    batch.copies[:] = [Copies(_tensors(batch), _weights(batch))]
    attributes = [Attributes(part) for part in batch.parts()]
    with settings_kept(), training_steps_refused(), contextlib.ExitStack() as stack:
        _regions_left()
        for part in batch.parts():
            if callable(
                wrapped := getattr(part, "no_sync", None)
            ):  # several processes: they need not take part
                stack.enter_context(wrapped())
        stack.enter_context(_gradients_kept([each for each in _leaves(batch) if each.is_leaf]))
        notes = stack.enter_context(by_itself())
        stack.enter_context(_uncompiled())
        try:
            yield notes
        finally:
            for each in attributes:
                each.restore()
            batch.copies.pop().put_back()


@contextlib.contextmanager
def fresh(batch: Batch) -> Iterator[None]:
    """One run, inside `kept`: it begins with the same random numbers, buffers and attributes as every other one."""
    attributes = [Attributes(part) for part in batch.parts()]
    leaves = _leaves(batch)
    devices = list(range(torch.cuda.device_count())) if batch.runs_on == "cuda" else []
    generators = [
        each
        for each in tree_leaves((batch.inputs, dict(batch.keywords), [vars(part) for part in batch.parts()]))
        if isinstance(each, torch.Generator)
    ]
    with settings_kept(), random_states_kept(devices, generators):
        try:
            yield
        finally:
            for each in attributes:
                each.restore()
            for leaf in leaves:
                if leaf.is_leaf and leaf.grad is not None:
                    leaf.grad = None
            for copies in batch.copies:
                copies.put_back()


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """Let compiled code run as it was written: its settings differ here, for each of which it would be compiled anew.

    (And then, after the eighth time, never again: the loop would be slower from there on.)
    """
    if "torch._dynamo" not in sys.modules:  # nothing can be compiled; to import it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        # Of the traced run's hooks, which it means no one else to see.
        warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
        yield


def _weights(batch: Batch) -> list[torch.Tensor]:
    """Return all parameters. (A forward pass may write to one, as an embedding with `max_norm` does.)"""
    held = [each for part in batch.parts() for each in part._parameters.values() if each is not None]
    return [each for each in {id(each): each for each in held}.values() if not each.is_meta]


def _tensors(batch: Batch) -> list[torch.Tensor]:
    """Return what else a forward pass may write to: buffers, plain tensors of modules, and the batch."""
    found: dict[int, torch.Tensor] = {}
    for part in batch.parts():
        held = [*part._buffers.values(), *vars(part).values()]
        found.update((id(each), each) for each in held if isinstance(each, torch.Tensor))
    found.update(
        (id(each), each)
        for each in tree_leaves((batch.inputs, dict(batch.keywords)))
        if isinstance(each, torch.Tensor)
    )
    weights = {id(each) for each in _weights(batch)}
    return [each for key, each in found.items() if key not in weights and not each.is_meta]


def _leaves(batch: Batch) -> list[torch.Tensor]:
    return [*batch.parameters().values(), *(each for each in _tensors(batch) if each.requires_grad)]


@contextlib.contextmanager
def _gradients_kept(leaves: Sequence[torch.Tensor]) -> Iterator[None]:
    """Take gradients away for a while, and the hooks that are called when one has been added up."""
    kept = [(leaf, leaf.grad) for leaf in leaves]
    found = [leaf._post_accumulate_grad_hooks for leaf in leaves]
    hooks = [
        (each, dict(each)) for each in found if each
    ]  # emptied: to set it to None does not unregister them
    try:
        for leaf in leaves:
            leaf.grad = None
        for each, _ in hooks:
            each.clear()
        yield
    finally:
        for leaf, gradient in kept:
            leaf.grad = gradient
        for each, before in hooks:
            each.update(before)


def _regions_left() -> None:
    """Leave autocast regions around, which `settings_kept` brings back."""
    for device in ("cpu", "cuda"):
        torch.set_autocast_enabled(device, False)
    torch.clear_autocast_cache()
