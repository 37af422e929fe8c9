"""A ladder that was measured on a GPU and kept, for machines that have none."""

from __future__ import annotations

import json
from pathlib import Path

from amp_lab.train import measure

RESULTS = Path(__file__).parents[4] / "benchmarks" / "results"


def stored_ladder(folder: Path = RESULTS) -> measure.Ladder | None:
    """Return the newest ladder in `folder` that was measured on a CUDA device; None if there is none.

    `python -m benchmarks ladder` keeps one, as `<date>_ladder_<machine>.json`. An amp_lab that was installed without
    its benchmarks has no such folder, and so no ladder.
    """
    for path in sorted(folder.glob("*_ladder_*.json"), reverse=True):
        ladder = json.loads(path.read_text(encoding="utf-8")).get("ladder")
        if ladder and ladder["device_type"] == "cuda":
            return measure.Ladder.from_dict(ladder)
    return None
