"""A loss that is NaN or infinite, which no loss scale cures: raise with a diagnosis, leave the batch out, or stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from amp_lab.autocast.emulate import CudaAutocast
from amp_lab.train.precision import DTYPES
from amp_lab.train.training.alike import check_weights
from amp_lab.train.training.batches import to_device
from amp_lab.train.training.errors import NonFiniteLoss
from amp_lab.train.training.history import StepRecord
from amp_lab.train.training.spoilt import spoilt_anywhere, spoilt_buffer, spoilt_weight
from amp_lab.watching.overflow import OverflowReport, find_overflow

if TYPE_CHECKING:
    from amp_lab.train.trainer import Trainer

POLICIES: Final = ("raise", "skip", "stop")
# The smallest number above 0 that FP16 has; `amp_lab.watch` ends a run there, too.
_SMALLEST: Final = 2.0**-24


def refused(
    trainer: Trainer, window: Sequence[Any], losses: Sequence[torch.Tensor], record: StepRecord
) -> StepRecord:
    """Do without the step, in the way that `on_nonfinite` asks for. Nothing has been written to the weights.

    Of several ranks, all come here in the same step, and do the same.

    Raises:
        NonFiniteLoss: for "raise"; for "skip" if to go on makes no sense, as weights or buffers are not finite either.
    """
    trainer.optimizer.zero_grad(set_to_none=True)
    harmed = spoilt_anywhere(trainer)
    if trainer.on_nonfinite == "raise" or (trainer.on_nonfinite == "skip" and harmed):
        raise _error(trainer, window, losses, record, _what(record))
    if trainer.on_nonfinite == "stop":
        trainer.together.stop(trainer, f"{_what(record)}. {harmed}" if harmed else _what(record))
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
    trainer.together.stop(trainer, what)
    return record


def worth_saving(trainer: Trainer) -> bool:
    """Tell whether weights are finite. A checkpoint of others would be no good, and push out a good one.

    Raises:
        NonFiniteLoss: if they are not, unless `on_nonfinite` is "stop".
        RanksDiffer: if ranks have other weights than rank 0.
    """
    check_weights(trainer)
    harmed = spoilt_anywhere(trainer)
    if not harmed:
        return True
    trainer.together.stop(trainer, harmed)
    if trainer.on_nonfinite == "stop":
        return False
    last = trainer.history.steps[-1]
    message = f"{harmed}\nNo checkpoint was saved of this."
    raise NonFiniteLoss(message, loss=last.loss, batch=None, step=last.step, epoch=last.epoch)


def _error(
    trainer: Trainer, window: Sequence[Any], losses: Sequence[torch.Tensor], record: StepRecord, what: str
) -> NonFiniteLoss:
    """Return the error to raise: with the diagnosis of this rank's batch or, where that is in order, of another's."""
    bad = [place for place, loss in enumerate(losses) if not math.isfinite(loss.item())]
    suspects = trainer.ranks.gather(bool(bad))
    # If all losses were finite and the gradients not, any batch can be the cause.
    mine = bool(bad) or not any(suspects)
    error = _diagnosed(trainer, window, bad[0] if bad else len(window) - 1, record, what) if mine else None
    told = _told(trainer, "" if error is None else str(error), suspects)
    if error is None:
        error = NonFiniteLoss(told, loss=record.loss, batch=None, step=record.step, epoch=record.epoch)
    return error


def _told(trainer: Trainer, diagnosis: str, suspects: Sequence[bool]) -> str:
    """Return the first rank's diagnosis. To find it takes some steps' time, for which the other ranks wait."""
    try:
        return trainer.together.first_said(diagnosis)
    except RuntimeError:  # too long for the group's timeout, or a rank has ended meanwhile
        ranks = ", ".join(str(rank) for rank, bad in enumerate(suspects) if bad)
        return f"the loss is not finite on rank {ranks}: its own message says why"


def _diagnosed(
    trainer: Trainer, window: Sequence[Any], bad: int, record: StepRecord, what: str
) -> NonFiniteLoss:
    batch = to_device(window[bad], trainer.device)
    where = f" (micro-batch {bad + 1} of {len(window)})" if len(window) > 1 else ""
    sentences = [f"{what}{where}; the optimizer has not stepped."]
    report = None
    if harmed := spoilt_weight(trainer):
        sentences.append(harmed)
    else:
        # A running average that is spoilt has no part in a forward pass of training: look for the cause all the same.
        harmed = spoilt_buffer(trainer)
        report = _report(trainer, batch)
        sentences += [] if report is None else [_said(trainer, report)]
        sentences += [harmed] if harmed else []
        if trainer.on_nonfinite == "raise" and not record.skipped and not harmed:
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
            trainer.ranks.model_inside(trainer.model),
            trainer.loss_fn,
            batch,
            device_type="cuda" if emulated else None,
            dtype=dtype,
        )
    except Exception:
        return None
