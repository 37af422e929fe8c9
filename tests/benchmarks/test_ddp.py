"""The comparisons of several ranks: they run, and notice a way that does other work."""

import pytest

from amp_lab.train.distributed.workers import Outcome
from benchmarks import ddp_payload, ddp_step


def test_the_script_s_step_runs_and_trains_as_the_loop_by_hand():
    """The run itself compares the losses."""
    found = ddp_step.measure(quick=True)
    assert [(each.what, each.bar) for each in found] == [
        ("a step of the DDP script ÷ a bare DDP loop's, FP16", 1.05),
        ("a step of the DDP script ÷ a bare DDP loop's, BF16", 1.05),
    ]
    assert all(each.number > 0 for each in found)


@pytest.mark.parametrize("mine", [[], [0.5, 0.25, 0.1], [0.5, 0.25, 0.125, 0.0]])
def test_other_training_is_found(mine):
    with pytest.raises(AssertionError, match=f"{len(mine)} steps of ours, 3 by hand"):
        ddp_step.same_training([0.5, 0.25, 0.125], mine)


def test_a_rank_that_fails_ends_the_comparison():
    lost = Outcome(1, "raised", None, "ValueError: no", "Traceback", "", 1.0)
    with pytest.raises(SystemExit, match="rank 1 raised: ValueError: no"):
        ddp_step._slower([lost])


def test_payload_is_half_of_fp32_s_and_four_bytes_a_bucket():
    found = {each.what: each for each in ddp_payload.measure(quick=True)}
    assert all(each.met for each in found.values())
    script, wide = 4 * (64 * 64 + 64 + 64 * 10 + 10), 4 * 8 * (1024 * 1024 + 1024)
    numbers = [each.number for each in found.values()]
    assert numbers == [script, 0.5 + 4 / script, 0.5, wide, 0.5 + 8 / wide, 0.5]
