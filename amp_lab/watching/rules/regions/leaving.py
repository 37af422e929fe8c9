"""Autocast that is on where it should not be: regions that are never left, optimizer steps inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.watching.recording.events import (
    Event,
    Forward,
    RegionEntered,
    Stepped,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.regions.autocasting import (
    entered,
    half_or_none,
    one_a_step,
    place,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import steps_of, was_skipped
from amp_lab.watching.words import counted

# Optimizers whose step multiplies matrices, and the regions that change the result: Muon casts to BF16 by itself.
MULTIPLIES: Final = {"Adafactor": (torch.float16, torch.bfloat16), "Muon": (torch.float16,)}


@rule(
    "region-not-left",
    Severity.WRONG,
    title="regions are entered by hand and never left",
    explains=(
        "region-over-steps",
        "backward-in-region",
        "step-in-region",
        "autocast-left-on",
        "forward-in-no-region",
    ),
)
def region_not_left(run: Run) -> Iterator[Finding]:
    """Each step opens one more region, and none is closed.

    `autocast(...).__enter__()` by hand needs its `__exit__`, also after an exception. Without it autocast stays on
    for everything that follows, and the 16-bit copies of the weights, which are kept until the outermost region
    ends, are never made anew.

    Wrong:
        optimizer.zero_grad()
        region = autocast(device_type, torch.float16)
        region.__enter__()
        loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        region = autocast(device_type, torch.float16)
        region.__enter__()
        loss = loss_fn(model(x), y)
        region.__exit__(None, None, None)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    regions = entered(run)
    for event in run.of(Forward):
        opened = _opened_again(event, regions)
        if opened:
            deepest = max(run.of(Forward), key=lambda each: len(each.regions))
            yield Finding(
                f"{place(opened[0])} enters a region in each step that is never left: "
                f"{counted(len(deepest.regions), 'region')} were open at once in step {deepest.step:,}.",
                tuple(opened),
                {"regions open at once": len(deepest.regions)},
                Fix(
                    opened[0],
                    say="Write it as a block, `with torch.autocast(...):`, which is left by itself, also when "
                    "something raises.",
                ),
            )
            return


def _opened_again(event: Event, regions: dict[int, RegionEntered]) -> list[RegionEntered]:
    """Return open regions that the same line entered in different steps."""
    found: dict[object, list[RegionEntered]] = {}
    for region in (regions[each] for each in event.regions if each in regions):
        if region.where:
            found.setdefault((region.where.file, region.where.line), []).append(region)
    return next((each for each in found.values() if len(steps_of(each)) > 1), [])


@rule(
    "autocast-left-on",
    Severity.WRONG,
    title="autocast is still on after all regions have ended",
    explains=("region-over-steps", "backward-in-region", "step-in-region"),
)
def autocast_left_on(run: Run) -> Iterator[Finding]:
    """All regions have ended, and autocast is on.

    An autocast object remembers what was before it was entered, once. If the same object is entered again inside of
    its own block (kept in `self.amp`, used by a module and by the module around it), it forgets, and puts back what
    it finds: autocast that is on. From then on everything in this thread is cast: backward, the optimizer, validation.

    Wrong:
        optimizer.zero_grad()
        amp = autocast(device_type, torch.float16)
        with amp:
            with amp:
                out = model(x)
            loss = loss_fn(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            with autocast(device_type, torch.float16):
                out = model(x)
            loss = loss_fn(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    again = next((each for each in run.of(RegionEntered) if each.again and each.main), None)
    on = [each for each in run.of(Event) if again and _on_outside(each) and each.number > again.number]
    if again and on:
        yield Finding(
            f"Autocast was still on ({dtype_in_words(on[0].autocast)}) after all regions had ended, from step "
            f"{on[0].step:,} on: {place(again)} entered an autocast object again inside of its own block, and at the "
            "end it switched autocast back to what it had found then, on.",
            (again, *one_a_step(on)),
            {"autocast outside of all regions": on[0].autocast},
            Fix(
                again,
                say="Make a new autocast object for each block, `with torch.autocast(...):`, in place of one that is "
                "kept.",
            ),
        )


def _on_outside(event: Event) -> bool:
    """Whether autocast is on in the first thread, and no region is open. An entry is noted when it is on already."""
    outside = event.main and not event.regions and not isinstance(event, RegionEntered)
    return outside and half_or_none(event.autocast) is not None


@rule("step-in-region", Severity.RISK, title="a step that multiplies matrices runs in the autocast region")
def step_in_region(run: Run) -> Iterator[Finding]:
    """An optimizer whose step multiplies matrices steps while autocast is on.

    For most optimizers that is harmless: their arithmetic is not autocast. Adafactor (an outer product of two
    averages) and Muon (five matrix products in a row) multiply matrices, and autocast does that in 16 bits.

    Wrong:
        optimizer = torch.optim.Adafactor(model.parameters())
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            with autocast(device_type, torch.bfloat16):
                optimizer.step()

    Right:
        optimizer = torch.optim.Adafactor(model.parameters())
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
    """
    inside = [each for each in run.of(Stepped) if _multiplied(each, run)]
    if inside:
        first, kind = inside[0], run.optimizers[inside[0].optimizer].kind
        yield Finding(
            f"{kind}.step() ran inside the {dtype_in_words(first.autocast)} region in "
            f"{counted(len(steps_of(inside)), 'step')}: it multiplies matrices, and autocast did that in 16 bits.",
            one_a_step(inside),
            {"autocast in the step": first.autocast},
            Fix(first, say="Let the region end before the optimizer steps."),
        )


def _multiplied(event: Stepped, run: Run) -> bool:
    if event.optimizer >= len(run.optimizers) or was_skipped(event):
        return False
    return half_or_none(event.autocast) in MULTIPLIES.get(run.optimizers[event.optimizer].kind, ())
