"""Losses that are computed in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from amp_lab.autocast.hurts.flow import HALVES, Flow, base
from amp_lab.autocast.hurts.remarks import Remark, alike, several
from amp_lab.autocast.records import Op
from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.formats import BF16, FP16

if TYPE_CHECKING:
    from amp_lab.autocast.report.xrayed import XRay


def coarse_losses(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """A cross-entropy whose logarithms are rounded to 16 bits, since its logits are in 16 bits.

        loss = F.cross_entropy(logits, target)          # passes on the dtype of the logits: log_softmax runs in FP16
        loss = F.cross_entropy(logits.float(), target)  # better

    `F.log_softmax(logits, -1)` alone runs in FP32 under CUDA's autocast, and is not reported.
    """
    for ops in alike([op for op in flow.ops if _coarse(op, flow)]):
        dtype = ops[0].outputs[0].dtype
        step = float((BF16 if dtype == torch.bfloat16 else FP16).ulp(10.0))
        yield Remark(
            "loss-in-16-bits",
            f"{several(ops)} gave the loss its logarithms in {dtype_in_words(dtype)}: cross_entropy passes on the "
            f"dtype of the logits. At a loss of 10, such numbers are {step:.2g} apart.",
            tuple(sorted({number for op in ops for number in (op.number, *_losses(op, flow))})),
            "Give it FP32 logits: F.cross_entropy(logits.float(), target).",
        )


def _coarse(op: Op, flow: Flow) -> bool:
    if base(op) != "log_softmax" or not op.outputs or op.outputs[0].dtype not in HALVES:
        return False
    return any(_losses(op, flow))


def _losses(op: Op, flow: Flow) -> Iterator[int]:
    """Yield the numbers of the losses that read logarithms."""
    yield from (each.number for each in flow.readers(op) if base(each).startswith("nll_loss"))
