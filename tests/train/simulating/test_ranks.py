"""How a simulated rank goes through its program: what is sent, to which step it belongs, and what is refused."""

import pytest

from amp_lab.train.ddp_simulator import (
    AllReduce,
    Backward,
    Broadcast,
    Clip,
    Evaluate,
    Forward,
    Load,
    NoSync,
    ProgramError,
    Save,
    SetGradient,
    Skip,
    Step,
    Unscale,
    Update,
    simulate,
)

MICRO = (Forward(), Backward(gradients=1.0))
END = (Step(), Update())
SMALL = {"buckets": 1, "init_scale": 4.0}


@pytest.mark.parametrize(
    ("program", "all_reduces"),
    [
        ([NoSync(*MICRO), *MICRO], 1),
        ([NoSync(NoSync(*MICRO), *MICRO)], 0),
        ([NoSync(NoSync(*MICRO)), *MICRO], 1),
        ([NoSync(Forward()), Backward()], 0),
        ([Forward(), NoSync(Backward())], 1),
        ([Forward(), Forward(), Backward(), Backward()], 1),
        ([Forward(), Backward(), Forward(), Backward()], 2),
        ([Forward(), NoSync(Forward()), Backward(), Backward()], 1),
        ([NoSync(Forward()), Forward(), Backward(), Backward()], 1),
        ([Forward(), Skip(), NoSync(*MICRO, *MICRO)], 1),
        ([NoSync(Forward()), Skip(), NoSync(*MICRO), *MICRO], 1),
        ([Forward(), *MICRO, *END, NoSync(*MICRO)], 1),
    ],
)
def test_which_backwards_send(program, all_reduces):
    """One of DDP's rules: forwards outside no_sync prepare one all-reduce, and the next backward takes it."""
    timeline = simulate(program, 2, **SMALL)
    assert timeline.all_reduces == all_reduces
    assert timeline.payload == 25_000_000 * all_reduces


def test_the_backward_that_sends_comes_first():
    program = [NoSync(Forward()), Forward(), Backward(ms=10), Load(ms=30), Backward(ms=10)]
    sent = [event for event in simulate(program, 2, **SMALL).events if event.kind == "all-reduce"]
    assert [event.start for event in sent] == [20, 20]


def test_what_a_second_backward_adds_stays_with_its_rank():
    program = [[Forward(), Forward(), *[Backward(gradients=each)] * 2, *END] for each in (1.0, 3.0)]
    timeline = simulate(program, **SMALL)
    assert timeline.weights == ((-3.0,), (-5.0,))  # the mean, 2, and each rank's own
    assert not timeline.weights_equal


def test_skip_throws_the_gradients_away():
    timeline = simulate([*MICRO, Skip(), *MICRO, *END], 2, **SMALL)
    assert timeline.weights == ((-1.0,),) * 2
    assert timeline.skipped == ((True, False),) * 2


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ([Forward(), Forward(), Backward(), *END, Backward()], "step 1: Backward comes before Forward"),
        ([Forward(), Skip(), Backward()], "step 1: Backward comes before Forward"),
        ([*MICRO, Backward()], "step 0: Backward comes before Forward"),
        ([*MICRO, Skip(), Step()], "step 1: Step comes before Backward"),
        ([*MICRO, SetGradient(1.0, bucket=1)], "the buckets are 0 to 0"),
        ([Broadcast(1.0, source=1)], "there is no such rank; ranks are counted from 0"),
        ([NoSync(NoSync(Backward()))], "rank 0, step 0: Backward comes before Forward"),
    ],
)
def test_what_is_refused(program, message):
    with pytest.raises(ProgramError, match=message):
        simulate(program, 1, **SMALL)


def test_events_belong_to_their_steps():
    """Update comes after Step, and belongs to the step before it is counted."""
    loop = [Load(ms=1), Forward(ms=2), Backward(ms=3), Unscale(ms=1), Clip(ms=1), Step(ms=2), Update(ms=1)]
    events = simulate([*loop, Evaluate(ms=4), *loop, Save(ms=5)], 1, **SMALL).events
    seen = [
        (event.kind, event.start, event.end, event.step) for event in events if event.kind != "all-reduce"
    ]
    assert seen == [
        ("load", 0, 1, 0),
        ("forward", 1, 3, 0),
        ("backward", 3, 6, 0),
        ("unscale", 6, 7, 0),
        ("clip", 7, 8, 0),
        ("step", 8, 10, 0),
        ("update", 10, 11, 0),
        ("evaluate", 11, 15, 1),
        ("load", 15, 16, 1),
        ("forward", 16, 18, 1),
        ("backward", 18, 21, 1),
        ("unscale", 21, 22, 1),
        ("clip", 22, 23, 1),
        ("step", 23, 25, 1),
        ("update", 25, 26, 1),
        ("save", 26, 31, 2),
    ]
    sent = [(event.start, event.step, event.rank) for event in events if event.kind == "all-reduce"]
    assert sent == [(6, 0, 0), (21, 1, 0)]


def test_an_update_before_any_step_is_of_step_0():
    (event,) = simulate([Update(ms=1)], 1, init_scale=None).events
    assert (event.kind, event.step) == ("update", 0)


def test_micro_batches_are_counted_from_each_step_on():
    """Rank 0 sends once more than rank 1 in step 1: the call's name says which micro-batch has no partner."""
    timeline = simulate([[*MICRO * 2, *END, *MICRO * 2, *END], [*MICRO * 2, *END, *MICRO, *END]], **SMALL)
    assert timeline.deadlock.waits == ("all-reduce of bucket 0 of step 1, micro-batch 1", None)
    timeline = simulate([[NoSync(*MICRO * 2), *MICRO], [Load()]], **SMALL)
    assert timeline.deadlock.waits[0] == "all-reduce of bucket 0 of step 0, micro-batch 2"
    timeline = simulate([[*MICRO, Skip(), *MICRO * 2], [*MICRO, Skip(), *MICRO]], **SMALL)
    assert timeline.deadlock.waits[0] == "all-reduce of bucket 0 of step 1, micro-batch 1"


def test_a_rank_waits_only_for_what_takes_longer_than_itself():
    """One number of 4 bytes at 0.5 ms; rank 1 comes 3 ms later."""
    programs = [[Load(ms=1), AllReduce(1.0), Load(ms=1)], [Load(ms=4), AllReduce(2.0), Load(ms=1)]]
    timeline = simulate(programs, latency_ms=0.5, gb_per_s=1e6)
    waits = [(event.rank, event.start, event.end) for event in timeline.events if event.kind == "wait"]
    assert waits == [(0, 1, pytest.approx(4.5)), (1, 4, pytest.approx(4.5))]
    assert timeline.waited == pytest.approx([0.0035, 0.0005])
    alone = simulate([AllReduce(1.0), Load(ms=1)], 1)
    assert [event.kind for event in alone.events] == ["load", "all-reduce"]  # of 0 ms
    assert alone.waited == [0]
