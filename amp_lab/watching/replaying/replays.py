"""Run a batch again, without looking into it: is the loss finite, and are the gradients, at this loss scale?"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from amp_lab.autocast.recording.training_steps import TrainingStepError
from amp_lab.watching.replaying.autocast_off import autocast_off
from amp_lab.watching.replaying.batches import Batch, fresh
from amp_lab.watching.replaying.records import Replay

_TWICE = "backward through the graph a second time"
# In what PyTorch says where only backward() will do.
_REFUSED = ("torch.autograd.grad", ".grad()", "`inputs`")


def replay(batch: Batch, scale: float, fp32: bool = False) -> Replay:
    """Run a batch forward and backward once, inside `kept`.

    Args:
        batch: what is run. Its parameters get no `.grad`, and no hook that waits for one is called.
        scale: what the loss is multiplied by, as a GradScaler does it: in FP32.
        fp32: whether autocast is kept off. What the code itself casts stays as it is.

    Raises:
        TypeError, ValueError: if what is called returns no loss, or does more than compute one.
        Exception: what the model itself raises.
    """
    try:
        return _run(batch, scale, fp32, _asked)
    except _RefusedError:
        return _run(batch, scale, fp32, _stored)


class _RefusedError(Exception):
    """A backward pass that wants to store gradients in `.grad`."""


_Taking = Callable[[torch.Tensor, Sequence[torch.Tensor]], Sequence[torch.Tensor | None]]


def _run(batch: Batch, scale: float, fp32: bool, taking: _Taking) -> Replay:
    with fresh(batch):
        loss = checked(_forward(batch, fp32))
        value, found = float(loss.detach()), {}
        if loss.requires_grad:
            parameters = batch.parameters()
            # What a checkpoint computes again must be cast as it was the first time.
            with autocast_off() if fp32 else batch.policy():
                scaled = loss * torch.full((), scale, dtype=torch.float32, device=loss.device)
                gradients = taking(scaled, list(parameters.values()))
            found = {name: each for name, each in zip(parameters, gradients, strict=True) if each is not None}
        bad = tuple(name for name, each in found.items() if not _finite(each))
        return Replay(float(scale), value, bad, len(found), fp32)


def _forward(batch: Batch, fp32: bool) -> Any:
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        if fp32:
            stack.enter_context(autocast_off())
        else:
            stack.enter_context(batch.policy())
            if batch.region:
                stack.enter_context(torch.autocast(batch.runs_on, batch.dtype))
        with _steps_explained():
            return batch.call(*batch.inputs, **batch.keywords)


def checked(loss: Any) -> torch.Tensor:
    """Make sure that this is a loss: a tensor, of one real floating-point number."""
    if not isinstance(loss, torch.Tensor):
        raise TypeError(
            f"the loss is a {type(loss).__name__}: return a tensor of one number, the unscaled loss"
        )
    if loss.numel() != 1:
        raise ValueError(
            f"the loss has {loss.numel():,} numbers, {tuple(loss.shape)}: return one, such as its mean()"
        )
    if not loss.is_floating_point():
        raise TypeError(f"the loss is of {loss.dtype}: return a real floating-point number")
    return loss


@contextlib.contextmanager
def _steps_explained() -> Iterator[None]:
    try:
        yield
    except TrainingStepError as error:
        call = str(error).split(" was called")[0]
        raise ValueError(
            f"the code that is to be run again calls {call}: let it return the unscaled loss, "
            "and leave backward and the optimizer's step to the loop"
        ) from error


def _asked(scaled: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
    """Return the gradients without storing them anywhere.

    Raises:
        _RefusedError: where the backward pass refuses that, as that of a reentrant checkpoint does.
    """
    if not parameters:
        return ()
    try:
        return torch.autograd.grad(scaled, parameters, allow_unused=True)
    except RuntimeError as error:
        if _TWICE in str(error):
            raise ValueError(
                "the code that is to be run again calls backward itself: let it only return the unscaled loss"
            ) from error
        if any(each in str(error) for each in _REFUSED):
            raise _RefusedError from error
        raise


def _stored(scaled: torch.Tensor, parameters: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
    """Return the gradients from `.grad`, which `fresh` empties again; `kept` has put hooks aside that wait for them."""
    scaled.backward()  # type: ignore[no-untyped-call]
    return [each.grad for each in parameters]


def _finite(gradient: torch.Tensor) -> bool:
    if gradient.layout is not torch.strided:
        gradient = (
            gradient.coalesce().values() if gradient.layout is torch.sparse_coo else gradient.to_dense()
        )
    return math.isfinite(float(gradient.detach().abs().amax())) if gradient.numel() else True
