"""What the rules about autocast ask a run: which forward passes ran in 16 bits, in which regions, and until when."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import torch

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.watching.recording.events import (
    CacheCleared,
    Event,
    Forward,
    Raised,
    RegionEntered,
    RegionLeft,
    Scaled,
    Stepped,
    Unscaled,
)
from amp_lab.watching.recording.run import E, Run
from amp_lab.watching.words import line_in_words

HALVES: Final = (torch.float16, torch.bfloat16)
_ABOUT_DTYPES: Final = re.compile(
    r"same dtype|scalar type|Unexpected floating ScalarType|expected dtype|same type", re.IGNORECASE
)


def half_or_none(dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype if it is one of 16 bits: autocast to FP32 is no autocast."""
    return dtype if dtype in HALVES else None


def ran_in(forward: Forward) -> torch.dtype | None:
    """Return the 16-bit dtype of autocast that a forward pass ran in, all of it or a region inside of it."""
    return half_or_none(forward.inside) or half_or_none(forward.autocast)


def trained(run: Run) -> list[Forward]:
    """Return the forward passes of which gradients were to be made, without recomputed ones."""
    return [each for each in run.of(Forward) if each.grad and not each.recomputed and not each.raised]


def entered(run: Run) -> dict[int, RegionEntered]:
    """Return the regions that were entered, by their number."""
    return {each.region: each for each in run.of(RegionEntered)}


def is_on(region: RegionEntered, device_type: str | None = None) -> bool:
    """Whether a region casts to 16 bits (on this kind of device)."""
    return (
        region.enabled
        and region.dtype in HALVES
        and (device_type is None or region.device_type == device_type)
    )


def is_island(region: RegionEntered, regions: dict[int, RegionEntered]) -> bool:
    """Whether a region switches off autocast inside of one that casts, for something that is trained."""
    outer = [regions[each] for each in region.regions if each in regions]
    off = not region.enabled or region.dtype == torch.float32
    return region.grad and off and any(is_on(each, region.device_type) for each in outer)


def device_types(run: Run) -> set[str]:
    """Return the kinds of device on which models are."""
    return {each.device_type for each in run.models} | {each.device_type for each in run.of(Forward)}


def scaler_used(run: Run) -> Scaled | None:
    """Return the first loss that a scaler which is enabled has scaled."""
    return next((each for each in run.of(Scaled) if _enabled(run, each.scaler)), None)


def scaler_asked(run: Run) -> bool:
    """Whether an optimizer was to be stepped by a scaler that is enabled, or unscaled by it."""
    asked = (each.scaler for each in run.of(Stepped))
    return any(_enabled(run, each) for each in asked if each is not None) or any(
        _enabled(run, each.scaler) for each in run.of(Unscaled)
    )


def _enabled(run: Run, scaler: int) -> bool:
    return scaler >= len(run.scalers) or run.scalers[scaler].enabled


def with_caches(run: Run) -> Iterator[tuple[int, Event]]:
    """Yield the events of the main thread, each with the number of the cache of 16-bit weights that was in force.

    Autocast forgets its copies when the outermost region ends, whether that was enabled or not, or when it is told to.
    Where events are missing we suppose that it did.
    """
    cache, before = 0, 0
    for event in run.events:
        if before and event.number > before + 1:
            cache += 1
        before = event.number
        if not event.main:
            continue
        yield cache, event
        if isinstance(event, CacheCleared) or (isinstance(event, RegionLeft) and not event.regions):
            cache += 1


def about_dtypes(run: Run) -> Raised | None:
    """Return the exception with which the loop ended, if it complains about two dtypes that do not go together."""
    last = next(iter(run.of(Raised)), None)
    return last if last and _ABOUT_DTYPES.search(last.message) else None


def dtypes_of(values: Iterable[tuple[torch.dtype, tuple[int, ...]]]) -> set[torch.dtype]:
    """Return the dtypes of tensors as a `Forward` lists them."""
    return {dtype for dtype, _ in values}


def place(event: Event) -> str:
    """Write where an event happened, short: "train.py:41"; in a notebook "Cell In[3], line 5"."""
    if event.where is None:
        return "an unknown line"
    return line_in_words(event.where).rsplit("/", 1)[-1]


def an(dtype: torch.dtype | None) -> str:
    """Write a dtype with its article: "an FP16", "a BF16"."""
    word = dtype_in_words(dtype)
    return f"an {word}" if word.startswith("F") else f"a {word}"


def half_in_words(dtypes: Iterable[torch.dtype]) -> str:
    """Write the 16-bit dtypes among these: "FP16", "BF16", "FP16 and BF16"."""
    return " and ".join(dtype_in_words(each) for each in HALVES if each in set(dtypes))


def one_a_step(events: Sequence[E]) -> tuple[E, ...]:
    """Return the first of each step."""
    found: dict[int, E] = {}
    for event in events:
        found.setdefault(event.step, event)
    return tuple(found.values())


def last_before(run: Run, kind: type[E], raised: Raised) -> E | None:
    """Return the last event of this kind in the step of an exception."""
    found = [each for each in run.of(kind) if each.step == raised.step and each.number < raised.number]
    return found[-1] if found else None


def left_by(run: Run, raised: Raised) -> list[RegionEntered]:
    """Return the regions that the exception left, innermost first."""
    regions = entered(run)
    left = [each for each in run.of(RegionLeft) if each.raised and each.step == raised.step]
    return [regions[each.region] for each in left if each.region in regions]


def first_line(raised: Raised) -> str:
    return raised.message.strip().splitlines()[0] if raised.message.strip() else raised.kind
