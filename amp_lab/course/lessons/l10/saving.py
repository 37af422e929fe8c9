"""The end of the script of exercise 10.1: its file, its process group, and what it returns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l10.comparing import difference
from amp_lab.course.lessons.l10.noting import Seen
from amp_lab.course.lessons.l10.rehearsal import make_model


def judge_file(call: str, seen: Sequence[Seen], file: Path) -> None:
    """Raise `Mistake` unless one rank has written the weights, for a plain model."""
    savers = [rank for rank, each in enumerate(seen) if each.saved or each.opened]
    if len(savers) > 1:
        raise Mistake("all-save", call=call, got=f"{len(savers)} ranks wrote a file", want="rank 0 alone")
    if savers not in ([], [0]):
        raise Mistake("other-saves", call=call, got=f"rank {savers[0]} wrote the file", want="rank 0")
    if not file.is_file():
        raise Mistake("not-saved", call=call, got="there is no file at `path`", want="the weights")
    try:
        saved = torch.load(file, weights_only=True, map_location="cpu")
    except Exception as error:  # whatever a file can hold
        seen_type = f"the file does not load with `weights_only=True` ({type(error).__name__})"
        raise Mistake("not-plain", call=call, got=seen_type, want="a state dict") from None
    names = list(make_model().state_dict())
    found = list(saved) if isinstance(saved, dict) else []
    if found and all(str(name).startswith("module.") for name in found):
        raise Mistake("wrapped-names", call=call, got=f"the file names `{found[0]}`", want=f"`{names[0]}`")
    if found != names:
        got = f"the file holds {describe(found) if found else kind(saved)}"
        raise Mistake("not-plain", call=call, got=got, want=describe(names))
    other = next((name for name in names if saved[name].dtype != seen[0].weights[name].dtype), None)
    if other:
        got, want = (f"`{each[other].dtype}`" for each in (saved, seen[0].weights))
        raise Mistake("not-plain", call=call, got=f"`{other}` is {got} in the file", want=want)
    place = difference(saved, seen[0].weights, 0.0)
    if place:
        got = f"`{place[0]}` is {place[1]} in the file"
        raise Mistake("saved-early", call=call, got=got, want=f"{place[2]}, as in the model")


def judge_end(call: str, seen: Sequence[Seen]) -> None:
    """Raise `Mistake` unless all ranks have closed their group and returned the scales."""
    for rank, each in enumerate(seen):
        if each.group_left:
            got = f"the process group of rank {rank} is still open at the end"
            raise Mistake("group-left", call=call, got=got, want="closed")
        judge_type(call, rank, each.returned)
        if each.returned is None:
            raise Mistake("returned-none", call=_of(call, rank), got=None, want="a list of scales")
        if each.returned != each.scales:
            got, want = listed(each.returned), listed(each.scales)
            raise Mistake("wrong-scales", call=_of(call, rank), got=got, want=want)


def judge_type(call: str, rank: int, got: Any) -> None:
    """Raise `Mistake` for a result that is no list of floats."""
    if isinstance(got, tuple):
        shown = {
            "got": got[0],
            "kind": got[1],
            "want": "a list of floats",
            "advice": "`get_scale()` gives a float.",
        }
        raise Mistake("wrong-type", call=_of(call, rank), **shown)


def _of(call: str, rank: int) -> str:
    return f"Rank {rank} of {call}"


def listed(numbers: Sequence[float]) -> str:
    """Return numbers in words."""
    return ", ".join(f"{each:g}" for each in numbers) or "none"
