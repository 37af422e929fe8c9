"""What the model or an operator was given in a dtype that does not fit."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.watching.recording.events import (
    Forward,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.regions.autocasting import (
    HALVES,
    about_dtypes,
    dtypes_of,
    first_line,
    half_or_none,
    last_before,
    left_by,
    place,
    ran_in,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule


@rule("input-dtype", Severity.WRONG, title="inputs and weights have different dtypes")
def input_dtype(run: Run) -> Iterator[Finding]:
    """The model was given inputs in a dtype that its weights do not have, and that autocast does not change.

    Autocast leaves FP64 alone (arrays from NumPy are FP64), and outside of a region nothing is cast at all.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x.double()), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x.double().float()), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, FP16 inputs without a region:
        optimizer.zero_grad()
        loss = loss_fn(model(x.half()), y)
        loss.backward()
        optimizer.step()
    """
    raised = about_dtypes(run)
    last = last_before(run, Forward, raised) if raised else None
    if raised is None or last is None or not last.raised or last.model >= len(run.models):
        return
    weights, inputs = run.models[last.model].dtypes, dtypes_of(last.inputs)
    wrong = {each for each in inputs if each.is_floating_point} - set(weights)
    if half_or_none(last.autocast):
        wrong &= {torch.float64}
    if not wrong or _came_from_region(run, last):
        return
    given, has = sorted(wrong, key=str)[0], sorted(weights, key=str)[0]
    why = (
        "autocast leaves FP64 alone" if half_or_none(last.autocast) else "no region was open that would cast"
    )
    yield Finding(
        f"The model was given {dtype_in_words(given)} inputs, its weights are {dtype_in_words(has)}, and {why}: "
        f"{first_line(raised)}.",
        (last, raised),
        {"inputs": given, "weights": has, "autocast": last.autocast or "off"},
        Fix(last, say=_cure(given, has)),
    )


def _cure(given: torch.dtype, has: torch.dtype) -> str:
    if given == torch.float64:
        return "Make the inputs FP32 where they are made: torch.from_numpy(array).float()."
    if has in HALVES:
        return "Keep the weights in FP32, without .half() or .bfloat16(), and call the model in a region."
    return "Call the model in a region, which casts by itself, and leave the inputs in FP32."


def _came_from_region(run: Run, last: Forward) -> bool:
    """Whether another forward pass of the step made 16-bit outputs in a region: another rule tells of that."""
    before = [each for each in run.of(Forward) if each.step == last.step and each.number < last.number]
    return any(
        ran_in(each) and dtypes_of(each.outputs) & dtypes_of(last.inputs) & set(HALVES) for each in before
    )


@rule("other-half-in-region", Severity.WRONG, title="FP16 in a BF16 region", explains=("other-half-by-hand",))
def other_half_in_region(run: Run) -> Iterator[Finding]:
    """A tensor that was made 16-bit by hand, in a region of the other 16-bit dtype.

    Matrix products are cast, and nothing happens. Operators that take the widest of their dtypes (cat, dot,
    grid_sample) know FP32 and the dtype of the region only, and raise an error.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.bfloat16):
            both = torch.cat([x.half(), model(x)], dim=1)
            loss = loss_fn(both.mean(1, keepdim=True), y)
        loss.backward()
        optimizer.step()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.bfloat16):
            both = torch.cat([x, model(x)], dim=1)
            loss = loss_fn(both.mean(1, keepdim=True), y)
        loss.backward()
        optimizer.step()
    """
    raised = about_dtypes(run)
    if raised is None or "autocast::prioritize" not in raised.message:
        return
    region = next(iter(left_by(run, raised)), None)
    name = dtype_in_words(region.dtype) if region else "16-bit"
    other = {torch.float16: "BF16", torch.bfloat16: "FP16"}.get(region.dtype) if region else None
    at = place(raised) if raised.where else "an operator that takes the widest dtype"
    yield Finding(
        f"In the {name} region, {at} was given a tensor of a dtype that such a region does not know"
        f"{f' ({other}, or FP64)' if other else ''}: {first_line(raised)}.",
        (region, raised) if region else (raised,),
        {"dtype of the region": region.dtype} if region else {},
        Fix(raised, say="Leave out .half() and .bfloat16() in a region: give it FP32, and autocast casts."),
    )
