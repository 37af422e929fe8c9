"""What a known error looks like, and how its explanation is filled in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import torch

from amp_lab.autocast.messages.dtype_spellings import SPELLING, dtype_of
from amp_lab.autocast.report.words import dtype_in_words

Dtypes = tuple[tuple[str, torch.dtype], ...]

_HALVES: Final = {torch.float16, torch.bfloat16}


@dataclass(frozen=True)
class Known:
    """An error, and what there is to say about it.

    Attributes:
        id: its name, for code that wants to tell errors apart. Several entries may have the same.
        pattern: a regular expression that is searched for in the message. `%T` stands for a dtype's name.
        happened: what happened, in a sentence. {name} is a named group of the pattern, {0} the dtype
            that its first %T names, {dtypes} says which is which.
        advice: what to do. {cure} is the advice that fits the dtypes seen.
        roles: what each %T of the pattern is, in order. A role that is "name" takes its name from that group.
        mismatch: whether the error is that two dtypes met.
        in_linear: a sentence more on what happened, where it may have happened in a Linear layer.
    """

    id: str
    pattern: str
    happened: str
    advice: str
    roles: tuple[str, ...] = ()
    mismatch: bool = False
    in_linear: str = ""

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern, compiled. A message may be broken into lines anywhere."""
        return re.compile(self.pattern.replace("%T", SPELLING).replace(" ", r"\s+"))


class Filled(NamedTuple):
    """A known error with what this message says."""

    known: Known
    happened: str
    advice: str
    dtypes: Dtypes


def find(message: str, among: Iterable[Known]) -> Filled | None:
    """Return the first error that a message is, None if it is none of these."""
    for known in among:
        if found := known.regex.search(message):
            return _filled(known, found)
    return None


def _filled(known: Known, found: re.Match[str]) -> Filled:
    words = {name: text or "" for name, text in found.groupdict().items()}
    named = set(known.regex.groupindex.values())
    spellings = [found[number] for number in range(1, known.regex.groups + 1) if number not in named]
    seen = [
        (role.format(**words), dtype_of(text), text)
        for role, text in zip(known.roles, spellings, strict=True)
        if text
    ]
    dtypes = tuple((role, dtype) for role, dtype, _ in seen if dtype is not None)
    names = [text if dtype is None else dtype_in_words(dtype) for _, dtype, text in seen]
    words |= {"dtypes": _listed(dtypes), "cure": cure(dtypes)}
    return Filled(known, known.happened.format(*names, **words), known.advice.format(*names, **words), dtypes)


def _listed(dtypes: Dtypes) -> str:
    """Say which is which: "mat1 is FP16 and mat2 is FP32"."""
    return _joined([f"{role} is {dtype_in_words(dtype)}" for role, dtype in dtypes]) or "their dtypes differ"


def _joined(parts: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def cure(dtypes: Dtypes) -> str:
    """Return what to do when these dtypes meet in an operator that autocast has a rule for."""
    seen = {dtype for _, dtype in dtypes}
    if any(not dtype.is_floating_point for dtype in seen):
        return (
            "Autocast casts floating-point tensors only: turn whole numbers into floating-point ones yourself, with "
            ".float() (images often with .float() / 255)."
        )
    if torch.float64 in seen:
        return (
            "Autocast leaves FP64 alone. It mostly comes from NumPy or from a Python list of its numbers: use "
            ".float() where the tensor is made, or the model's own dtype."
        )
    if seen >= _HALVES:
        return (
            "Autocast uses one of the two 16-bit types, and casts the other only where it has a rule for it. "
            "Remove the .half() or .bfloat16() that was written by hand, or give the region that dtype."
        )
    return _CURE.format(low=_joined_names(seen & _HALVES) or "16-bit")


def _joined_names(dtypes: set[torch.dtype]) -> str:
    return " or ".join(map(dtype_in_words, dtypes))


_CURE: Final = (
    "Autocast brings operands to one dtype only inside its region. Is this line outside of it? Move it in, or write "
    ".float() on the {low} tensor. Is it inside? Then something keeps autocast from casting: autocast(enabled=False) "
    "around it (write .float() on what comes into that block), or an in-place or out= form, which it leaves alone "
    "(write it out of place). And leave out .half() and .bfloat16() on the model: parameters stay FP32 under autocast."
)
