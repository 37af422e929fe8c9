"""A loss that is NaN or infinite, which no loss scale cures: raise with a diagnosis, leave the batch out, or stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn

from amp_lab.autocast.emulate import CudaAutocast
from amp_lab.train.training.batches import to_device
from amp_lab.train.training.errors import NonFiniteLoss
from amp_lab.train.training.history import StepRecord
from amp_lab.train.training.precision import DTYPES
from amp_lab.watching.overflow import OverflowReport, find_overflow

if TYPE_CHECKING:
    from amp_lab.train.trainer import Trainer

POLICIES: Final = ("raise", "skip", "stop")
_SMALLEST: Final = (
    2.0**-24
)  # the smallest number above 0 that FP16 has; `amp_lab.watch` ends a run there, too


def refused(
    trainer: Trainer, window: Sequence[Any], losses: Sequence[torch.Tensor], record: StepRecord
) -> StepRecord:
    """Do without the step, in the way that `on_nonfinite` asks for. Nothing has been written to the weights.

    Raises:
        NonFiniteLoss: for "raise"; for "skip" if to go on makes no sense, as weights or buffers are not finite either.
    """
    trainer.optimizer.zero_grad(set_to_none=True)
    if trainer.on_nonfinite == "raise" or (trainer.on_nonfinite == "skip" and _not_finite(trainer.model)):
        raise _error(trainer, window, losses, record, _what(record))
    if trainer.on_nonfinite == "stop":
        trainer.stop(because=_what(record))
    return record._replace(skipped="loss")


def overflowed(
    trainer: Trainer, window: Sequence[Any], losses: Sequence[torch.Tensor], record: StepRecord
) -> StepRecord:
    """Note a step that the scaler has skipped. That is its everyday business, until no scale is left to try.

    Raises:
        NonFiniteLoss: if the scale has sunk below 2^-24, unless `on_nonfinite` is "stop".
    """
    record = record._replace(skipped="overflow")
    scale = trainer.scaler.get_scale()
    if scale >= _SMALLEST:
        return record
    what = f"the loss scale has sunk to {scale:g} at step {record.step:,}, and gradients are still not finite"
    if trainer.on_nonfinite != "stop":
        raise _error(trainer, window, losses, record, what)
    trainer.stop(because=what)
    return record


def _error(
    trainer: Trainer, window: Sequence[Any], losses: Sequence[torch.Tensor], record: StepRecord, what: str
) -> NonFiniteLoss:
    bad = next(
        (place for place, loss in enumerate(losses) if not math.isfinite(loss.item())), len(window) - 1
    )
    batch = to_device(window[bad], trainer.device)
    where = f" (micro-batch {bad + 1} of {len(window)})" if len(window) > 1 else ""
    sentences = [f"{what}{where}; the optimizer has not stepped."]
    report = None
    if harmed := _not_finite(trainer.model):
        sentences.append(f"{harmed} is not finite: an earlier batch spoilt it. Go back to a checkpoint.")
    else:
        report = _report(trainer, batch)
        sentences += [] if report is None else [_said(trainer, report)]
        if trainer.on_nonfinite == "raise" and not record.skipped:
            sentences.append('To go on without such batches: Trainer(..., on_nonfinite="skip").')
    return NonFiniteLoss(
        "\n".join(sentences),
        loss=record.loss,
        batch=batch,
        step=record.step,
        epoch=record.epoch,
        report=report,
    )


def _what(record: StepRecord) -> str:
    where = f"of step {record.step:,}, epoch {record.epoch}"
    if math.isfinite(record.loss):
        return f"the gradient norm {where}, is {record.grad_norm:g} (the loss is {record.loss:g})"
    return f"the loss {where}, is {record.loss:g}"


def _said(trainer: Trainer, report: OverflowReport) -> str:
    if trainer.precision in DTYPES:
        return str(report)
    return f"(Looked at in BF16, which reaches as far as FP32.)\n{report}"


def _report(trainer: Trainer, batch: Any) -> OverflowReport | None:
    """Ask `find_overflow`. None where it cannot run the batch again: then the first error is enough."""
    emulated = trainer.device.type == "cpu" and CudaAutocast.switch.in_force
    dtype = DTYPES.get(trainer.precision, torch.bfloat16)  # BF16 has the range of FP32
    try:
        return find_overflow(
            trainer.model, trainer.loss_fn, batch, device_type="cuda" if emulated else None, dtype=dtype
        )
    except Exception:
        return None


def _not_finite(model: nn.Module) -> str:
    """Name a weight or buffer that is not finite; "" if there is none."""
    for kind, tensors in (("the weight", model.named_parameters()), ("the buffer", model.named_buffers())):
        for name, tensor in tensors:
            if tensor.is_floating_point() and not tensor.detach().isfinite().all():
                return f"{kind} {name!r}"
    return ""
