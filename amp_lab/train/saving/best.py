"""Which of several checkpoints is the best: `best="loss"`, `"max accuracy"`, `"min perplexity"`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

from amp_lab.train.saving.errors import CheckpointError


class Best(NamedTuple):
    """A value that is recorded at the end of each epoch, and whether more of it is better."""

    name: str
    sign: int  # 1: more is better; -1: less is better

    def value(self, values: Mapping[str, float] | None) -> float | None:
        """Return the value if there is one, and it is a number to compare by."""
        found = (values or {}).get(self.name)
        return found if isinstance(found, int | float) and math.isfinite(found) else None

    def check(self, names: Collection[str]) -> None:
        """Raise an error if this is none of the values that are measured: no checkpoint would ever be the best."""
        if self.name not in names:
            raise CheckpointError(
                f"best={str(self)!r}: no value of this name is measured, only {', '.join(names) or 'nothing'}. "
                "Give fit a dev_loader and Trainer a metric of this name, or leave best out",
                "mismatch",
            )

    def __str__(self) -> str:
        return f"{'max' if self.sign > 0 else 'min'} {self.name}"


def parse(best: str | None) -> Best | None:
    """Return what `best` asks for.

    Raises:
        ValueError: for anything but "loss", "min NAME" and "max NAME".
    """
    if best is None:
        return None
    if best == "loss":
        return Best("loss", -1)
    way, _, name = best.strip().partition(" ") if isinstance(best, str) else ("", "", "")
    if way not in ("min", "max") or not name.strip():
        raise ValueError(
            f"Checkpoints(best={best!r}): say which way is better, as in 'max accuracy' or 'min loss' ('loss' is short "
            "for 'min loss')"
        )
    return Best(name.strip(), 1 if way == "max" else -1)
