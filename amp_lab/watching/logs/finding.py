"""What a log shows: a probable or possible fault."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Sure = Literal["probable", "possible"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault that would leave such a log.

    `sentence` says what it is, `evidence` which rows and numbers show it, `todo` what to do next. `covers` are the ids
    of findings that follow from this one and need not be told as well.
    """

    id: str
    sure: Sure
    sentence: str
    evidence: tuple[str, ...]
    todo: str
    covers: frozenset[str] = frozenset()
