"""The watch over several processes: silent where all is right, and in time where ranks wait for each other."""

import time
import warnings

import pytest
import torch

import amp_lab
from amp_lab.train.distributed.workers import run_ranks
from tests.watching import ranks

TIMEOUT = 5.0  # seconds that PyTorch waits in a collective


def report_of(rank, train, watch=amp_lab.watch):
    """Train; return the root causes, all findings, the report, and when it was there."""
    watches = []

    def remembered(*args, **kwargs):
        watches.append(watch(*args, **kwargs))
        return watches[-1]

    error, notes = "", []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            train(rank, remembered)
        except Exception as raised:
            error, notes = f"{type(raised).__name__}: {raised}", getattr(raised, "__notes__", [])
    report = watches[0].report() if watches else pytest.fail(error)
    roots, every = [each.id for each in report.diagnoses], [each.id for each in report.all]
    return roots, every, " ".join(str(report).split()), error, "\n".join(notes)


def both(train, timeout=TIMEOUT):
    return run_ranks(report_of, 2, train, timeout=180.0, collective_timeout=timeout, grace=2 * timeout)


def all_right(rank):
    return [report_of(rank, train) for train in ranks.RIGHT]


def test_right_loops_get_nothing():
    outcomes = run_ranks(all_right, 2, timeout=180.0, collective_timeout=30.0)
    assert [each.ended for each in outcomes] == ["returned"] * 2, outcomes
    for outcome in outcomes:
        for train, (_, every, report, error, _) in zip(ranks.RIGHT, outcome.value, strict=True):
            assert not error, (train.__name__, error)
            assert every == [], (train.__name__, report)
            assert "Not watched" not in report, (train.__name__, report)
        assert "amp_lab.watch" not in outcome.output


def test_an_error_on_one_rank_is_told_by_the_other():
    first, second = both(ranks.raises)
    roots, _, report, error, note = first.value
    assert roots == ["rank-left-early"], report
    assert "ValueError: no such file: batch 2" in report
    assert "rank-left-early" in note
    assert error
    assert second.value[3].startswith("ValueError")
    assert second.value[0] == ["rank-left-early"], second.value[2]


def test_an_error_inside_of_the_backward_pass_is_told_by_the_other():
    first, second = both(ranks.raises_in_the_backward_pass)
    for outcome in (first, second):
        assert outcome.value[0] == ["rank-left-early"], outcome.value[2]
    assert "rank 1 ended in step 3 with RuntimeError: no memory is left" in first.value[2]
    assert second.value[3] == "RuntimeError: no memory is left"


def test_a_process_that_died_is_told():
    first, second = both(ranks.dies)
    assert second.ended == "died"
    roots, _, report, _, _ = first.value
    assert roots == ["rank-left-early"], report
    assert "Rank 0 waits in backward of step 3" in report
    assert "rank 1 has given no sign of life since step" in report


@pytest.mark.long
@pytest.mark.parametrize(
    ("train", "cause", "words"),
    [
        (ranks.fewer_batches_then_a_barrier, "rank-left-early", "rank 1 left the loop after step 5"),
        (ranks.waits_unseen_on_rank_1_only, "one-rank-decides", "rank 0 waits in backward of step 4"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_who_waits_for_whom_is_said_while_they_wait(train, cause, words):
    outcomes = both(train)
    first = outcomes[0]
    assert first.ended == "returned", outcomes
    assert first.value[0] == [cause], first.value[2]
    assert [
        each for each in first.output.splitlines() if each.startswith("amp_lab.watch:") and words in each
    ], first.output
    assert "amp_lab.watch:" not in outcomes[1].output  # once


@pytest.mark.long
def test_a_rank_that_comes_late_is_no_finding():
    outcomes = both(ranks.comes_late, timeout=8.0)
    assert [each.value[1] for each in outcomes] == [[], []], outcomes
    (said,) = (each for each in outcomes[0].output.splitlines() if each.startswith("amp_lab.watch:"))
    assert "If that one comes late on purpose, nothing is wrong" in said


def says_when(rank):
    """Rank 1 never comes; return how long it took until rank 0 said so."""
    from amp_lab.watching.recording.ranks import attendant

    said = []
    attendant._say = lambda words: said.append((time.monotonic(), words))
    model, optimizer, scaler = ranks.parts(rank)
    start = time.monotonic()
    try:
        with amp_lab.watch(model, optimizer, scaler):
            ranks.step(model, optimizer, scaler, *ranks.batch())
            if rank == 0:
                start = time.monotonic()
                torch.distributed.barrier()
            else:
                ranks.step(model, optimizer, scaler, *ranks.batch())
    except RuntimeError:
        pass
    return [(when - start, time.monotonic() - start, words) for when, words in said]


def test_it_is_said_before_the_timeout():
    first, second = run_ranks(says_when, 2, timeout=60.0, collective_timeout=TIMEOUT, grace=2 * TIMEOUT)
    ((said, ended, words),) = first.value
    assert said < ended - 1.0
    assert "rank 0 is in barrier" in words
    assert "rank 1 is in forward" in words  # of the second step: DDP orders its buckets anew
    assert second.value == []


def alone(rank):
    """What one process of a group of one has more than one without a group: nothing."""
    from amp_lab.watching.recording.recorder import Recorder

    model = torch.nn.Linear(2, 1)
    recorder = Recorder([model], [torch.optim.SGD(model.parameters())], [], [])
    recorder.start()
    there = recorder.this_rank, recorder._attendant, torch.distributed.barrier.__module__
    recorder.stop()
    return [str(each) for each in there]


def test_a_group_of_one_is_watched_as_no_group_is():
    (only,) = run_ranks(alone, 1)
    assert only.value == ["None", "None", "torch.distributed.distributed_c10d"]
