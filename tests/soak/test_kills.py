"""Runs that are killed (kill -9) at random moments end in the same bits as one that was left alone.

Each run is killed at a moment drawn from the time that the undisturbed one took, and again while it resumes, until
`AMP_LAB_SOAK_KILLS` kills (50) have hit a run that was going on. After each, every checkpoint in the folder is read.
What ran is kept in a dated JSON file under benchmarks/results/, but only for the full number.
"""

import os
import random
import time
from collections import Counter

import pytest

from amp_lab.train.checkpoint import CheckpointError, Checkpoints, load_checkpoint
from benchmarks.finding import Finding
from benchmarks.results import FOLDER, keep
from tests.train.killed import Forks

FULL = 50
KILLS = int(os.environ.get("AMP_LAB_SOAK_KILLS", FULL))
# A run is killed at most so often: each resume gets through some of its steps, but not through a fixed number.
TIMES = 3


@pytest.mark.soak
def test_the_same_in_every_bit(tmp_path):
    forks, start, chance = Forks(), time.monotonic(), random.Random(0)
    undisturbed = forks(tmp_path / "undisturbed")
    seen: Counter[str] = Counter(kills=0, runs=0)
    differing: list[str] = []
    while seen["kills"] < KILLS:
        folder = tmp_path / f"run-{seen['runs']}"
        ended = killed_and_resumed(forks, folder, undisturbed["seconds"], chance, seen)
        seen["runs"] += 1
        differing += [key for key in ended if key != "seconds" and ended[key] != undisturbed[key]]
    assert differing == []
    assert seen["unreadable"] == 0
    assert seen["checkpoints read"] > seen["kills"] / 2, (
        "most kills came before the first checkpoint: they show little"
    )
    keep(
        "kills",
        "make soak",
        [
            Finding(
                "parts of the state that differed in any bit after kills", len(differing), bar=0, unit="parts"
            ),
            Finding("unreadable checkpoints after kills", seen["unreadable"], bar=0, unit="files"),
        ],
        folder=FOLDER if KILLS >= FULL else tmp_path,
        seconds=round(time.monotonic() - start),
        seen=dict(sorted(seen.items())),
    )


def killed_and_resumed(forks, folder, seconds, chance, seen):
    """Return what a run ends with that was killed up to `TIMES` times; count what was seen."""
    for _ in range(TIMES):
        ended = forks(folder, after=chance.uniform(0, seconds))
        if ended is not None:
            seen["ended before the kill"] += 1
            return ended
        seen["kills"] += 1
        look(folder, seen)
    return forks(folder)


def look(folder, seen):
    """Count the readable and unreadable checkpoints that a kill has left, and its half-written file."""
    for path in Checkpoints(folder).paths:
        try:
            load_checkpoint(path)
            seen["checkpoints read"] += 1
        except CheckpointError:
            seen["unreadable"] += 1
    if folder.is_dir():
        seen["half-written files left"] += len(list(folder.glob(".*.amp-lab-tmp")))
