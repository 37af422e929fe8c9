"""What is wrong with the order of calls in one step, told from the calls alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from amp_lab.course.lessons.l07.nets import Call

# What exercise 7.1 has a sentence of its own for, in the words of a later exercise, and of the symptom tree.
SAYS = {
    "forward-twice": "The model was called more often than there are batches.",
    "no-forward": "The model was not called.",
    "no-autocast": "The forward pass ran without autocast for the device of the inputs, in FP32.",
    "bf16-region": "The forward pass ran in BF16; FP16 was asked for.",
    "no-backward": "No backward pass was made.",
    "not-scaled": "The loss was not scaled before the backward pass.",
    "never-skips": "`optimizer.step()` was called directly. Nobody looks for an overflow there: that is `scaler.step`.",
    "not-unscaled": "`optimizer.step()` was called directly, with gradients that are multiplied by the scale.",
    "stepped-twice": "An optimizer was asked to step more than once.",
    "other-scaler": "A scaler other than the one that was passed asked the optimizer to step.",
    "no-step": "No optimizer was asked to step.",
    "update-first": "`scaler.update()` came before any `scaler.step`.",
    "scale-given": "`scaler.update` was given a scale: it takes that one, and neither lowers nor counts by itself.",
    "no-update": "`scaler.update()` was not called.",
    "update-twice": "`scaler.update()` was called more than once in one step.",
    "step-first": "`scaler.step` came before the backward pass: what it used were gradients of an earlier step.",
    "unscales-early": "`unscale_` was called before the backward pass, when there was nothing to divide yet.",
    "cleared-too-early": "The gradients were cleared between the backward pass and the step.",
    "stale-counts": "The gradients that were there from before were not cleared, and count as well.",
    "backward-inside": "The backward pass ran inside of the autocast region.",
}
# These are wrong even if the weights do not show it.
CERTAIN = ("other-scaler", "forward-twice", "no-autocast", "bf16-region", "backward-inside")
# The calls tell these so plainly that nothing else needs to be asked.
PLAIN = ("other-scaler", "step-first", "update-first", "unscales-early")


def fault(calls: Sequence[Call], passes: int = 1, optimizers: int = 1, *, ended: bool = True) -> str | None:
    """Return the first thing that is wrong with the calls of one step, as a key of `SAYS`.

    `passes` is how many times each network should be called, `optimizers` how many should step. `ended`: no error cut
    the step short.
    """
    names = [each.name for each in calls]
    return (
        _other(names)
        or _forward(calls, passes * optimizers)
        or _backward(names)
        or _step(calls, names)
        or (_update(names) if ended else None)
        or _cleared(names)
        or _inside(calls)
    )


def certain_fault(calls: Sequence[Call], *, passes: int = 1, optimizers: int = 1) -> str | None:
    """Return what is wrong whatever the weights show, or None."""
    found = _other([each.name for each in calls]) or _forward(calls, passes * optimizers) or _inside(calls)
    return found if found in CERTAIN else None


def _other(names: Sequence[str]) -> str | None:
    return "other-scaler" if "other" in names else None


def _forward(calls: Sequence[Call], times: int) -> str | None:
    forwards = [each for each in calls if each.name == "forward"]
    if not forwards:
        names = [each.name for each in calls]
        return "step-first" if "step" in names and "scale" not in names else "no-forward"
    if any(each.autocast is None for each in forwards):
        return "no-autocast"
    if any(each.autocast != torch.float16 for each in forwards):
        return "bf16-region"
    return "forward-twice" if len(forwards) > times else None


def _backward(names: Sequence[str]) -> str | None:
    if "backward" not in names:
        return "no-backward"
    if "scale" not in names[: names.index("backward")]:
        return "not-scaled"
    if "unscale" in names[: names.index("backward")]:
        return "unscales-early"
    return None


def _step(calls: Sequence[Call], names: Sequence[str]) -> str | None:
    direct, inside = set(), False
    for each in calls:
        inside = each.name == "step" or (inside and each.name != "stepped")
        if each.name == "runs" and not inside:
            direct.add(each.of)
    steps = [each.of for each in calls if each.name == "step"]
    if direct & set(steps) or len(steps) > len(set(steps)):
        return "stepped-twice"
    if direct:
        unscaled = {each.of for each in calls if each.name == "unscale"}
        return "never-skips" if direct <= unscaled else "not-unscaled"
    if not steps:
        return "no-step"
    return "step-first" if names.index("step") < names.index("backward") else None


def _update(names: Sequence[str]) -> str | None:
    if "update" not in names:
        return "no-update"
    if names.count("update") > 1:
        return "update-twice"
    if names.index("update") < names.index("step"):
        return "update-first"
    return "scale-given" if "set" in names else None


def _cleared(names: Sequence[str]) -> str | None:
    first, step = names.index("backward"), names.index("step")
    if "zero" in names[first:step]:
        return "cleared-too-early"
    return None if "zero" in names[:first] else "stale-counts"


def _inside(calls: Sequence[Call]) -> str | None:
    # A pass that builds a graph of its own, as a gradient penalty needs it, may belong to the forward pass.
    passes = [each for each in calls if each.name == "backward" and not each.keeps]
    return "backward-inside" if any(each.autocast for each in passes) else None
