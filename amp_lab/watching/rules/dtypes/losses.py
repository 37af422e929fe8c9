"""Losses in FP16 or BF16."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from amp_lab.autocast.report.words import dtype_in_words, shape_in_words
from amp_lab.watching.recording.events import (
    Backward,
    Event,
    Noticed,
    Scaled,
    Stepped,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.regions.autocasting import (
    HALVES,
    one_a_step,
    ran_in,
    trained,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import steps_of, was_skipped
from amp_lab.watching.words import counted, in_words, read

LARGEST: Final = torch.finfo(torch.float16).max
# The last operation of a loss function, by its name in the graph: MseLossBackward0, NllLoss2DBackward0, KlDivBackward0.
_LOSS: Final = re.compile(r"Loss\d?D?Backward|CrossEntropy|KlDiv")


@rule(
    "loss-in-16-bits",
    Severity.RISK,
    title="the loss is computed in 16 bits, behind the region",
    explains=("fp16-loss-at-65536", "probabilities-in-16-bits", "gradients-underflow"),
)
def loss_in_16_bits(run: Run) -> Iterator[Finding]:
    """A loss function was called on 16-bit outputs behind the region.

    Inside the region autocast computes loss functions in FP32. Behind it they compute in the dtype of what they are
    given: squares above 65,504 are infinite in FP16, logarithms of small probabilities lose their digits, and so do
    gradients, down to 0.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            out = model(x)
        loss = loss_fn(out, y.half())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, cast afterwards:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y).half()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            out = model(x)
            loss = loss_fn(out, y.half())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, cast before:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            out = model(x)
        loss = loss_fn(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    regional = set(steps_of(each for each in trained(run) if ran_in(each)))
    losses = [each for each in _halves(run) if each.step in regional]
    if losses:
        first, dtype = losses[0], _dtype(losses[0])
        bad = [
            each for each in run.of(Scaled, Backward) if each.step in set(steps_of(losses)) and _is_bad(each)
        ]
        yield Finding(
            f"The loss was {_how(first, dtype)} in {_when(losses)}"
            + (f", and it was not finite in {counted(len(steps_of(bad)), 'step')}" if bad else "")
            + f": {_what_it_loses(dtype)}.",
            one_a_step(losses),
            {"dtype of the loss": dtype, "last operation": _operation(first)},
            Fix(
                first,
                say="Leave the cast of the loss out: it is one number, and autocast has computed it in FP32."
                if _cast(first)
                else "Compute the loss inside the region, or call .float() on the outputs first.",
            ),
            Severity.WRONG if bad else None,
        )


def _how(loss: Event, dtype: torch.dtype | None) -> str:
    name = dtype_in_words(dtype)
    return f"cast to {name} by hand" if _cast(loss) else f"computed in {name}, behind the region,"


def _cast(loss: Event) -> bool:
    return isinstance(loss, Scaled | Backward) and loss.cast


def _halves(run: Run) -> list[Event]:
    """Return the losses in 16 bits that a loss function made, and those that a closer look has noticed.

    In a region autocast makes the result of a loss function FP32.
    """
    halves = [each for each in run.of(Scaled, Backward) if _dtype(each) in HALVES]
    steps = set(steps_of(halves))
    noticed = [each for each in run.of(Noticed) if each.what == "half loss" and each.step in steps]
    return [each for each in halves if _is_loss(each)] or list(noticed)


def _is_loss(event: Event) -> bool:
    return isinstance(event, Scaled | Backward) and bool(_LOSS.search(event.made_by))


def _is_bad(event: Event) -> bool:
    return isinstance(event, Scaled | Backward) and read(event.finite) is False


def _when(losses: Sequence[Event]) -> str:
    steps = counted(len(steps_of(losses)), "step")
    return f"the {steps} that were looked at" if isinstance(losses[0], Noticed) else steps


def _operation(loss: Event) -> object:
    if isinstance(loss, Noticed):
        return loss.values.get("call")
    return (
        loss.made_by.removesuffix("0").removesuffix("Backward")
        if isinstance(loss, Scaled | Backward)
        else None
    )


def _dtype(loss: Event) -> torch.dtype | None:
    if isinstance(loss, Noticed):
        dtype = loss.values.get("dtype")
        return dtype if isinstance(dtype, torch.dtype) else None
    if isinstance(loss, Scaled):
        return loss.dtype
    return loss.loss_dtype if isinstance(loss, Backward) else None


def _what_it_loses(dtype: torch.dtype | None) -> str:
    if dtype == torch.float16:
        return "what is above 65,504 is infinite there, where autocast would have taken FP32"
    return "it has 3 digits there, where autocast would have taken FP32"


@rule("fp16-loss-at-65536", Severity.NOTE, title="an FP16 loss, and a scale that FP16 does not hold")
def fp16_loss_at_65536(run: Run) -> Iterator[Finding]:
    """The loss is FP16, and the scale is above 65,504: each such step is skipped.

    The gradient of a scaled loss is the scale, in the dtype of the loss: 65,536 is infinite in FP16. Every step at
    that scale is lost, the first one (65,536 is where a scaler begins) and each one after the scale has grown.

    Wrong:
        scaler = GradScaler(device_type)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = model(x).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        scaler = GradScaler(device_type, init_scale=1024.0)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = model(x).float().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    skipped = {each.step for each in run.of(Stepped) if was_skipped(each)}
    beyond = [
        each
        for each in run.of(Scaled)
        if each.dtype == torch.float16
        and each.step in skipped
        and read(each.finite) is True
        and (read(each.scale) or 0.0) > LARGEST
    ]
    if beyond:
        first = beyond[0]
        yield Finding(
            f"The loss is FP16 ({shape_in_words(first.shape)}), where a scale of {in_words(first.scale)} is infinite: "
            f"{counted(len(steps_of(beyond)), 'step')} at such a scale {_were(beyond)} skipped.",
            one_a_step(beyond),
            {"loss scale": first.scale, "largest FP16 number": LARGEST},
            Fix(first, say="Make the loss FP32, before its mean or sum: .float()."),
        )


def _were(events: Sequence[Scaled]) -> str:
    return "was" if len(steps_of(events)) == 1 else "were"
