"""What became of a batch that was run again, told: the cause, where it begins, and what to do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from amp_lab.autocast.records import Source
from amp_lab.watching.replaying.records import Replay, Traced


@dataclass(frozen=True, repr=False)
class OverflowReport:
    """Why a batch's loss or gradients are not finite. Print it.

    Attributes:
        cause: one of the ids in `CAUSES`: "forward-overflow", "scale-too-large", "nan-in-data", "none".
        sentence: what happens, with the numbers seen.
        advice: what to do.
        phase: "forward" or "backward", where it begins; None where nothing does.
        op: the operator where it begins, as a user calls it: "linear".
        module: the path of the module that it runs in: "layers.2.attn"; "" for the model itself.
        module_type: the class of that module.
        source: the line of your code; None if none was seen.
        first: what the operator read and gave, with the true result in FP64.
        limit: the largest number of the format of its result: 65504 for FP16.
        true_size: how large the result should have been; infinite where it is so in FP64, too.
        cures: whether a smaller loss scale, of at least 2^-24, makes this batch finite.
        scale: the largest loss scale tried at which it is finite: a power of two, if one had to be searched; None if
            there is none.
        replays: the runs, in order, with the one in FP32.
        others: further operators that overflow by themselves.
        notes: what else is to be known.
        seconds: what all this took.
    """

    cause: str
    sentence: str
    advice: str
    phase: Literal["forward", "backward"] | None
    op: str | None
    module: str | None
    module_type: str | None
    source: Source | None
    first: Traced | None
    limit: float | None
    true_size: float | None
    cures: bool
    scale: float | None
    replays: tuple[Replay, ...]
    others: tuple[Traced, ...] = ()
    notes: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether nothing overflows."""
        return self.cause == "none"

    def to_dict(self) -> dict[str, Any]:
        """Return the report as dicts, lists, texts, numbers, truth values and None."""
        from amp_lab.watching.replaying.as_json import as_dict

        return as_dict(self)

    def to_json(self, indent: int | None = 2) -> str:
        """Return the report as JSON."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def __str__(self) -> str:
        from amp_lab.watching.replaying.text import as_text

        return as_text(self)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        from amp_lab.watching.replaying.html import as_html

        return as_html(self)

    def __rich__(self) -> object:
        from amp_lab.watching.replaying.with_rich import as_rich

        return as_rich(self)
