"""What a region does not reach: another kind of device, the forward pass itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.watching.recording.events import (
    Backward,
    Event,
    Forward,
    RegionEntered,
    RegionLeft,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.layout import lone_call
from amp_lab.watching.rules.regions.autocasting import (
    HALVES,
    device_types,
    dtypes_of,
    entered,
    is_on,
    one_a_step,
    place,
    ran_in,
    scaler_used,
    trained,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import steps_of
from amp_lab.watching.words import counted, in_words


@rule(
    "wrong-device-type",
    Severity.WRONG,
    title="the region is for another kind of device",
    explains=("scaler-without-autocast", "forward-outside-region"),
)
def wrong_device_type(run: Run) -> Iterator[Finding]:
    """A region for one kind of device around a model on another.

    `autocast("cuda")` casts what is on a GPU, and nothing else. Around a model on the CPU everything stays FP32, and
    PyTorch says nothing if the machine has a GPU (and warns once if it has none).

    Wrong:
        optimizer.zero_grad()
        with autocast("cuda", torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()

    Right:
        optimizer.zero_grad()
        with autocast(x.device.type, torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()

    Right, FP32 on purpose where there is no GPU:
        optimizer.zero_grad()
        with autocast("cuda", torch.bfloat16, enabled=x.is_cuda):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
    """
    missed = [each for each in trained(run) if ran_in(each) is None]
    around = [(each, region) for each in missed if (region := _for_another(each, run))]
    if around:
        forward, region = around[0]
        steps = steps_of(each for each, _ in around)
        yield Finding(
            f'autocast("{region.device_type}") does nothing for a model that is on "{forward.device_type}": the '
            f"forward pass ran in FP32, in {counted(len(steps), 'step')}.",
            (region, *one_a_step([each for each, _ in around])),
            {"region for": region.device_type, "the model is on": forward.device_type},
            Fix(
                region,
                remove=(f'"{region.device_type}"',),
                insert=(f'"{forward.device_type}"',),
                say=_for_its_device(region),
            ),
        )


def _for_its_device(region: RegionEntered) -> str:
    call = re.search(r"[\w.]*\bcuda\.amp\.autocast", region.where.text if region.where else "")
    if call:
        return f"{call[0]} is for CUDA only: enter torch.autocast(x.device.type, dtype=torch.float16) in its place."
    return "Give autocast the kind of device that the tensors are on: x.device.type."


def _for_another(forward: Forward, run: Run) -> RegionEntered | None:
    """Return the region around (or in) a forward pass that was meant to cast, on another kind of device."""
    regions = entered(run)
    opened = [regions[each] for each in forward.regions if each in regions]
    opened += _inside(forward, run)
    if any(is_on(each, forward.device_type) for each in opened):
        return None
    meant = (each for each in opened if (each.enabled or each.asked) and each.dtype in HALVES)
    return next((each for each in meant if each.device_type != forward.device_type), None)


def _inside(forward: Forward, run: Run) -> list[RegionEntered]:
    """Return the regions that the model's own code entered: just before its call was noted, in another function."""
    found: list[RegionEntered] = []
    for event in run.events:
        if event is forward:
            break
        if isinstance(event, RegionEntered):
            found.append(event)
        elif not isinstance(event, RegionLeft):
            found = []
    return [
        each
        for each in found
        if each.where and forward.where and each.where.function != forward.where.function
    ]


@rule("scaler-without-autocast", Severity.NOTE, title="a loss scaler, and nothing in 16 bits")
def scaler_without_autocast(run: Run) -> Iterator[Finding]:
    """Losses are scaled, though nothing runs in FP16.

    A loss scale keeps small gradients from becoming zero in FP16. In FP32 there is nothing to keep: the scaler costs
    a little and changes nothing. Mostly the region was forgotten.

    Wrong:
        optimizer.zero_grad()
        loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, switched off:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16, enabled=False):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, made and not entered:
        optimizer.zero_grad()
        autocast(device_type, torch.float16)
        loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, with a scaler that is switched off, too:
        scaler = GradScaler(device_type, enabled=False)
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    scaled, forwards = scaler_used(run), trained(run)
    types = device_types(run)
    if scaled is None or not forwards or _anything_in_half(run, forwards):
        return
    if any(is_on(each) and each.device_type in types for each in entered(run).values()):
        return
    where, why, cure = _why_not(run, forwards)
    yield Finding(
        f"The scaler multiplied losses by {in_words(scaled.scale)}, but nothing ran in FP16: the weights are FP32, and "
        f"{why}.",
        (where, scaled, *one_a_step(forwards)),
        {"forward passes": len(forwards), "of them with autocast": 0},
        Fix(where, say=f"{cure}, or leave the scaler out: FP32 needs none."),
    )


def _why_not(run: Run, forwards: Sequence[Forward]) -> tuple[Event, str, str]:
    """Return where autocast was to be switched on, why it was not, and what to do."""
    first, passes = forwards[0], counted(len(forwards), "forward pass", "es")
    regions = entered(run)
    off = [regions[each] for each in first.regions if each in regions and not regions[each].enabled]
    if off and off[-1].dtype in HALVES:
        return (
            off[-1],
            f"the region of {place(off[-1])} was entered with enabled=False for {passes}",
            "Enter the region with enabled=True",
        )
    made = lone_call(first, "autocast")
    if made is not None:
        return (
            made,
            f"the autocast of {place(made)} was made, but never entered, in {passes}",
            "Put `with` before it, and forward pass and loss into its block",
        )
    return (
        first,
        f"autocast was on in none of {passes}",
        f'Put forward pass and loss into `with torch.autocast("{first.device_type}", dtype=torch.float16):`',
    )


def _anything_in_half(run: Run, forwards: Sequence[Forward]) -> bool:
    """Whether something ran in 16 bits, or may have: what is compiled cannot be looked into."""
    return (
        any(each.compiled or each.dtypes & set(HALVES) for each in run.models)
        or any(each.dtypes & set(HALVES) for each in run.optimizers)
        or any(ran_in(each) for each in forwards)
        or any(dtypes_of(each.inputs + each.outputs) & set(HALVES) for each in forwards)
    )


@rule(
    "forward-outside-region",
    Severity.WRONG,
    title="the region covers the loss, and not the forward pass",
    explains=("scaler-without-autocast",),
)
def forward_outside_region(run: Run) -> Iterator[Finding]:
    """There is a region in each step, but the model is not called in it.

    Autocast acts on the operators that run while it is on. If only the loss is computed in the region, the model runs
    in FP32, and nothing becomes faster or smaller.

    Wrong:
        optimizer.zero_grad()
        out = model(x)
        with autocast(device_type, torch.float16):
            loss = loss_fn(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            out = model(x)
            loss = loss_fn(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    forwards = [each for each in trained(run) if each.main]
    if scaler_used(run) is None or not forwards or _anything_in_half(run, trained(run)):
        return
    pairs = [pair for step in steps_of(forwards) if (pair := _region_behind(run, forwards, step))]
    if not pairs:
        return
    forward, region = pairs[0]
    yield Finding(
        f"No forward pass ran in a region: in step {forward.step:,} the model was called at "
        f"{place(forward)}, in FP32, and the {dtype_in_words(region.dtype)} region of {place(region)} began behind it.",
        tuple(each for pair in pairs for each in pair),
        {"forward passes in a region": 0, "forward passes": len(forwards)},
        _in_the_region(forward, region),
    )


def _in_the_region(forward: Forward, region: RegionEntered) -> Fix:
    """Give the forward pass a region like that of the loss."""
    here, there = forward.where, region.where
    block = here and there and here.function == there.function and there.text.lstrip().startswith("with ")
    return Fix(
        forward,
        remove=("{line}",) if block else (),
        insert=(there.text.strip(), "    {line}") if block and there else (),
        say="Call the model in a region, too: best in the one of the loss.",
    )


def _region_behind(run: Run, forwards: Sequence[Forward], step: int) -> tuple[Forward, RegionEntered] | None:
    """Return a forward pass and the region that was entered between it and the backward pass of the step."""
    last = max((each for each in forwards if each.step == step), key=lambda each: each.number)
    ends = [each.number for each in run.of(Backward) if each.step == step and each.number > last.number]
    for region in run.of(RegionEntered):
        if ends and last.number < region.number < ends[0] and region.grad and is_on(region, last.device_type):
            return last, region
    return None


@rule(
    "region-disabled-itself",
    Severity.WRONG,
    title="autocast does not know this dtype, and switched itself off",
)
def region_disabled_itself(run: Run) -> Iterator[Finding]:
    """A region for a dtype that autocast has no rules for: PyTorch warns, and everything stays FP32.

    Autocast knows FP16 and BF16. FP32 as a way to say "off" is fine, and nothing is said about it.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float8_e4m3fn):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()
    """
    types = device_types(run)
    off = [
        each
        for each in run.of(RegionEntered)
        if each.asked
        and not each.enabled
        and each.device_type in types
        and each.dtype not in (*HALVES, torch.float32)
    ]
    if off:
        yield Finding(
            f"autocast was asked for {dtype_in_words(off[0].dtype)}, which it does not know: it switched itself off, "
            f"and everything ran in FP32, in {counted(len(steps_of(off)), 'step')}.",
            one_a_step(off),
            {"dtype asked for": off[0].dtype},
            Fix(off[0], say="Use torch.bfloat16, or torch.float16 with a GradScaler."),
        )
