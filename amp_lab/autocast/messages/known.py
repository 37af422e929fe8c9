"""What a known error looks like, and how its explanation is filled in."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from amp_lab.autocast.messages.cures import (
    Condition,
    Dtypes,
    Seen,
    also_apart,
    cure,
    devices,
    dtypes_of,
    limits,
    listed,
)
from amp_lab.autocast.messages.dtype_spellings import SPELLING
from amp_lab.autocast.records import Source

# Of a longer message, so many letters at its beginning and at its end are looked at.
_LOOKED_AT: Final = 10_000


@dataclass(frozen=True)
class Known:
    """An error, and what there is to say about it.

    Attributes:
        id: its name, for code that wants to tell errors apart. Several entries may have the same.
        pattern: a regular expression that is searched for in the message. `%T` stands for a dtype's name.
        happened: what happened, in a sentence. {name} is a named group of the pattern, {0} the dtype
            that its first %T names, {dtypes} says which is which, {limits} what they hold, {devices} which lies where,
            {apart} that they lie on different devices, if they do.
        advice: what to do. {cure} is the advice that fits the dtypes seen.
        roles: what each %T of the pattern is, in order. A role that is "name" takes its name from that group.
        mismatch: whether the error is that two dtypes met.
        in_linear: a sentence more on what happened, where it may have happened in a Linear layer.
        when: for which dtypes the entry is, if not for all.
        in_line: a regular expression for the line that raised it, written "folder/file.py: code".
    """

    id: str
    pattern: str
    happened: str
    advice: str
    roles: tuple[str, ...] = ()
    mismatch: bool = False
    in_linear: str = ""
    when: Condition | None = None
    in_line: str = ""

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The pattern, compiled. A message may be broken into lines anywhere."""
        return re.compile(self.pattern.replace("%T", SPELLING).replace(" ", r"\s+"))

    def search(self, message: str, passed: Sequence[Source] = ()) -> re.Match[str] | None:
        """Look whether a message, and the lines that the error passed, are those of this entry."""
        found = self.regex.search(message)
        if found is None or (self.when and not self.when(self.seen(found))):
            return None
        return found if not self.in_line or any(map(self._is_line, passed[-1:])) else None

    def seen(self, found: re.Match[str]) -> list[Seen]:
        """Return what the message says of dtypes."""
        words = {name: text or "" for name, text in found.groupdict().items()}
        named = set(self.regex.groupindex.values())
        spellings = [found[number] for number in range(1, self.regex.groups + 1) if number not in named]
        return [
            Seen(role.format(**words), text) for role, text in zip(self.roles, spellings, strict=True) if text
        ]

    def _is_line(self, line: Source) -> bool:
        return re.search(self.in_line, f"{line.file.replace(chr(92), '/')}: {line.text}") is not None


class Filled(NamedTuple):
    """A known error with what this message says."""

    known: Known
    happened: str
    advice: str
    dtypes: Dtypes


def find(message: str, among: Iterable[Known], passed: Sequence[Source] = ()) -> Filled | None:
    """Return the first error that a message is, None if it is none of these.

    Args:
        message: the text of the error.
        among: the errors to choose from.
        passed: the lines of code that the error has passed, if they are known.
    """
    if len(message) > 2 * _LOOKED_AT:
        message = f"{message[:_LOOKED_AT]}\n{message[-_LOOKED_AT:]}"
    for known in among:
        if found := known.search(message, passed):
            return _filled(known, found)
    return None


def _filled(known: Known, found: re.Match[str]) -> Filled:
    seen = known.seen(found)
    words = {name: text or "" for name, text in found.groupdict().items()}
    words |= {
        "dtypes": listed(seen),
        "cure": cure(seen),
        "limits": limits(seen),
        "devices": devices(seen),
        "apart": also_apart(seen),
    }
    names = [each.words for each in seen]
    return Filled(
        known, known.happened.format(*names, **words), known.advice.format(*names, **words), dtypes_of(seen)
    )
