"""DynamicLossScaler is torch.amp.GradScaler, bit for bit, over 100,000 random steps.

`AMP_LAB_SOAK_STEPS=5000` takes fewer. What ran is kept in a dated JSON file under benchmarks/results/, but only for the
full number: a short run proves less, and would replace the file of a long one.
"""

import os
import time
from collections import Counter

import pytest

from benchmarks.finding import Finding
from benchmarks.results import FOLDER, keep
from tests.scaling.twins import STEPS_PER_RUN, Twins

FULL = 100_000
STEPS = int(os.environ.get("AMP_LAB_SOAK_STEPS", FULL))
# Other runs than those of tests/scaling/test_equality.py, which begin at 0.
FIRST_SEED = 1_000_000


@pytest.mark.soak
def test_the_same_in_every_bit(tmp_path):
    assert STEPS >= STEPS_PER_RUN, f"AMP_LAB_SOAK_STEPS={STEPS}: a run has {STEPS_PER_RUN} steps"
    seen, start = Counter(), time.monotonic()
    seeds = range(FIRST_SEED, FIRST_SEED + STEPS // STEPS_PER_RUN)
    for seed in seeds:
        twins = Twins(seed)
        twins.steps(STEPS_PER_RUN)  # raises at the first bit that differs
        seen.update(twins.seen)
    assert seen["steps"] == len(seeds) * STEPS_PER_RUN
    keep(
        "scaler_equality",
        "make soak",
        [Finding("steps after which any bit differed", 0, bar=0, unit="steps")],
        folder=FOLDER if STEPS >= FULL else tmp_path,
        seconds=round(time.monotonic() - start),
        seeds=[seeds[0], seeds[-1]],
        seen=dict(sorted(seen.items())),
    )
