"""DynamicLossScaler is torch.amp.GradScaler, bit for bit, over random runs of all that a training loop may do."""

from collections import Counter

from tests.scaling.twins import STEPS_PER_RUN, Twins

RUNS = 50
# Whatever a run may meet has to be met, or the comparison says less than it seems to.
OFTEN = {
    "steps": 5_000,
    "overflow": 500,
    "growth": 300,
    "on the device": 500,
    "no gradient": 300,
    "names": 30,
    "update(new_scale)": 30,
    "setters": 20,
    "save and load": 100,
}


def test_the_same_in_every_bit():
    seen = Counter()
    for seed in range(RUNS):
        twins = Twins(seed)
        twins.steps(STEPS_PER_RUN)
        seen.update(twins.seen)
    assert {what: seen[what] for what in OFTEN if seen[what] < OFTEN[what]} == {}, seen
