"""Forward passes without gradients where gradients are wanted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from amp_lab.watching.recording.events import (
    Backward,
    Forward,
    Raised,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.regions.autocasting import (
    entered,
    last_before,
    one_a_step,
    place,
    ran_in,
    with_caches,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import steps_of
from amp_lab.watching.words import counted

FIXED_IN: Final = (2, 11)  # the version of torch since which copies made without gradients are not reused


@rule(
    "forward-without-grad",
    Severity.WRONG,
    title="the forward pass recorded nothing to go back on",
    explains=("loss-without-graph", "no-gradients"),
)
def forward_without_grad(run: Run) -> Iterator[Finding]:
    """The forward pass that backward() is to go back on ran under `no_grad` or `inference_mode`.

    Wrong:
        optimizer.zero_grad()
        with torch.inference_mode(), autocast(device_type, torch.float16):
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
        with torch.inference_mode(), autocast(device_type, torch.float16):
            model(x)
    """
    raised = next(iter(run.of(Raised)), None)
    if raised is None or "does not require grad" not in raised.message:
        return
    forwards = [each for each in run.of(Forward) if each.step == raised.step and each.number < raised.number]
    backward = last_before(run, Backward, raised)
    if forwards and backward and backward.raised and not any(each.grad for each in forwards):
        yield Finding(
            f"No gradients were recorded in the forward pass of {place(forwards[-1])} (it ran under no_grad or "
            "inference_mode), so that backward() had nothing to go back on.",
            (forwards[-1], backward, raised),
            {},
            Fix(
                forwards[-1],
                say="Call the model outside of torch.no_grad() and torch.inference_mode() in training.",
            ),
        )


def cached_without_grad(run: Run) -> Iterator[Finding]:
    """A forward pass without gradients, and then one with them, in the same region, on a version with that fault.

    Autocast keeps the 16-bit copies of weights until the region ends. Before torch 2.11 copies that were made under
    `no_grad` were used for the forward pass that is trained, too: they have no way back to the weights, which get no
    gradients. backward() raises if all weights were copied so; otherwise some layers silently do not learn.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.bfloat16):
            with torch.no_grad():
                target = model(x)
            loss = loss_fn(model(x), target.float() + y)
        loss.backward()
        optimizer.step()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.bfloat16), torch.no_grad():
            target = model(x)
        with autocast(device_type, torch.bfloat16):
            loss = loss_fn(model(x), target.float() + y)
        loss.backward()
        optimizer.step()
    """
    regions = entered(run)
    made: dict[tuple[int, int], Forward] = {}
    found: list[tuple[Forward, Forward]] = []
    for cache, event in with_caches(run):
        if not isinstance(event, Forward) or not event.regions or ran_in(event) is None or event.recomputed:
            continue
        innermost = regions.get(event.regions[-1])
        if innermost is None or not innermost.cache_enabled:
            continue
        known = made.setdefault((cache, event.model), event)
        if not known.grad and event.grad:
            found.append((known, event))
    if found:
        first, trained = found[0]
        yield Finding(
            f"In step {trained.step:,} the model ran without gradients and then with them in one region: torch "
            f"{torch.__version__} uses the 16-bit copies of the weights from the first for the second, so that the "
            f"weights get no gradients (in {counted(len(steps_of(each for _, each in found)), 'step')}).",
            (first, *one_a_step([each for _, each in found])),
            {"version of torch": str(torch.__version__)},
            Fix(
                first,
                say="Give the forward pass without gradients a region of its own, or update torch to 2.11.",
            ),
        )


def version_of_torch() -> tuple[int, ...]:
    """Return the version as numbers: (2, 13)."""
    return tuple(int(each) for each in torch.__version__.split("+")[0].split(".")[:2])


if version_of_torch() < FIXED_IN:
    rule(
        "cached-without-grad",
        Severity.WRONG,
        title="16-bit copies of weights without a way back to them",
        explains=("no-gradients", "loss-without-graph", "forward-without-grad"),
    )(cached_without_grad)
