"""The simulator against reality: the same programs, simulated and done by two processes with DDP and GradScaler."""

import math
import re

import pytest

from amp_lab.train.ddp_simulator import (
    AllReduce,
    Backward,
    Barrier,
    Broadcast,
    Clip,
    Evaluate,
    Forward,
    NoSync,
    SetGradient,
    Skip,
    Step,
    Unscale,
    Update,
    simulate,
)
from amp_lab.train.distributed.workers import run_ranks
from amp_lab.train.simulating.programs import next_token
from tests.train.simulating.really import SETTINGS, follow_all, follow_in_pairs

MICRO = (Forward(), Backward(gradients=0.125))
END = (Step(), Update())
ONE = [*MICRO, *END]


def overflow(rank):
    """Rank 1 overflows at step 1; its gradients differ from rank 0's."""
    for step in range(4):
        yield Forward()
        yield Backward(gradients=100.0 if (rank, step) == (1, 1) else [0.5, 0.25, 0.125 * (rank + 1)])
        yield Unscale()
        yield Clip(0.5)
        yield Step()
        yield Update()


def late_infinity(rank):
    """The infinity comes after the averaging, on rank 1 alone."""
    for step in range(3):
        yield from MICRO
        if (rank, step) == (1, 0):
            yield SetGradient(math.inf, bucket=1)
        yield from END


def all_in_no_sync(rank):
    return [NoSync(Forward(), Backward(gradients=100.0 if rank else 0.125)), *END, *ONE]


def two_forwards(rank):
    """DDP prepares no second all-reduce: what the second backward adds is each rank's own."""
    return [Forward(), Forward(), *[Backward(gradients=0.125 * (rank + 1))] * 2, *END]


def asks_all(rank):
    """Both leave out step 1, for which only rank 1 has a reason."""
    for step in range(3):
        loss = yield Forward(loss=math.nan if (rank, step) == (1, 1) else 1.0)
        if (yield AllReduce(float(math.isnan(loss)), "flag")):
            yield Skip()
            continue
        yield Backward(gradients=0.125 * (step + 1))
        yield from END


def takes_the_first(rank):
    """Rank 1 trains with the number of rank 0."""
    gradient = yield Broadcast(0.25 * (rank + 1), source=0)
    yield from [Forward(), Backward(gradients=gradient), Barrier(), *END]


SUMMED = [*[NoSync(Forward(), Backward(gradients=60.0))] * 7, Forward(), Backward(gradients=60.0), *END]

# name: program, compression, calls of DDP's hook
SOUND = {
    "one step": (ONE, "none", 3),
    "overflow": (overflow, "none", 12),
    "late infinity": (late_infinity, "none", 9),
    "accumulation": ([*MICRO * 4, *END], "none", 12),
    "no_sync": ([*[NoSync(*MICRO)] * 3, *ONE], "none", 3),
    "no_sync around backward": ([Forward(), NoSync(Backward(gradients=0.125)), *END], "none", 3),
    "no_sync around forward": ([NoSync(Forward()), Backward(gradients=0.125), *END], "none", 0),
    "no_sync in no_sync": ([NoSync(NoSync(*MICRO), *MICRO), *END], "none", 0),
    "two forwards": (two_forwards, "none", 3),
    "two forwards, one in no_sync": ([Forward(), NoSync(Forward()), *MICRO[1:] * 2, *END], "none", 3),
    "two forwards, the first in no_sync": ([NoSync(Forward()), Forward(), *MICRO[1:] * 2, *END], "none", 3),
    "prepared, then skipped": ([Forward(), Skip(), NoSync(*MICRO, *MICRO), *END, *ONE], "none", 6),
    "all in no_sync": (all_in_no_sync, "none", 3),
    "asks all": (asks_all, "none", 6),
    "takes the first": (takes_the_first, "none", 3),
    "summed": (SUMMED, "none", 3),
    "summed, FP16": (SUMMED, "fp16", 3),
    "summed, BF16": (SUMMED, "bf16", 3),
}


def leaves_out_alone(rank):
    for step in range(3):
        loss = yield Forward(loss=math.nan if (rank, step) == (1, 1) else 1.0)
        if math.isnan(loss):
            yield Skip()
            continue
        yield Backward(gradients=0.125 * (step + 1))
        yield from END


def if_first(rank, *tokens):
    return tokens if rank == 0 else ()


# Name: program, and whether calls meet by mistake before.
HANGS = {
    "leaves out alone": (leaves_out_alone, True),
    "uneven batches": ([ONE * 2, ONE], False),
    "metrics of one rank": (lambda rank: [*ONE, Evaluate(), *if_first(rank, AllReduce(1.0, "loss"))], False),
    "sources differ": (lambda rank: [Broadcast(1.0, source=rank), *ONE], False),
    "prepared alone": (lambda rank: [*if_first(rank, Forward(), Skip()), NoSync(*MICRO), *END], False),
}


@pytest.fixture(scope="module")
def real():
    """What two processes have done: the facts of both ranks by the name of the program, sound ones and hanging ones."""
    sound = [(program, compress) for program, compress, _ in SOUND.values()]
    outcomes = run_ranks(follow_all, 2, sound, [program for program, _ in HANGS.values()], 2.0)
    assert [outcome.ended for outcome in outcomes] == ["returned"] * 2, outcomes
    return [
        {name: [outcome.value[part][place] for outcome in outcomes] for place, name in enumerate(names)}
        for part, names in enumerate((SOUND, HANGS))
    ]


@pytest.fixture(scope="module")
def sound(real):
    return real[0]


@pytest.fixture(scope="module")
def hung(real):
    return real[1]


@pytest.mark.parametrize("name", SOUND)
def test_a_simulation_is_what_two_processes_do(sound, name):
    program, compress, calls = SOUND[name]
    timeline = simulate(program, 2, compress=compress, **SETTINGS)
    assert timeline.deadlock is None
    assert timeline.mispaired == ()
    for rank, real in enumerate(sound[name]):
        assert list(timeline.scales[rank]) == real["scales"]
        assert list(timeline.skipped[rank]) == real["skipped"]
        assert timeline.weights[rank] == pytest.approx(real["weights"], rel=1e-5, nan_ok=True)
        sent = [event for event in timeline.events if event.rank == rank and event.kind == "all-reduce"]
        buckets = [event.what[0] for event in sent if event.what[0] in "012"]
        assert buckets == [each[-1] for each in real["log"] if each.startswith("bucket")]
        assert len(buckets) == calls


def test_what_the_cases_are_there_for(sound):
    """Reality, without the simulator: otherwise two wrong models of it could agree."""
    assert [real["found"] for real in sound["overflow"]] == [[False, True, False, False]] * 2
    assert [real["scales"] for real in sound["late infinity"]] == [
        [1024, 1024, 2048, 2048],
        [1024, 512, 512, 1024],
    ]
    assert sound["late infinity"][0]["weights"] != sound["late infinity"][1]["weights"]
    assert sound["all in no_sync"][0]["skipped"] == [False, False]
    assert sound["all in no_sync"][1]["skipped"] == [True, False]
    assert [sound[name][0]["skipped"] for name in ("summed", "summed, FP16", "summed, BF16")] == [
        [False],
        [True],
        [False],
    ]


def test_buckets_are_sent_while_backward_goes_on(sound):
    log = sound["one step"][0]["log"]
    assert log.index("bucket 0") < log.index("gradient 2")
    events = [event for event in simulate(ONE, 2, **SETTINGS).events if event.rank == 0]
    (backward,) = [event for event in events if event.kind == "backward"]
    (first,) = [event for event in events if event.kind == "all-reduce" and event.what == "0"]
    assert first.start < backward.end


def test_found_inf_and_norms(sound):
    for rank, real in enumerate(sound["overflow"]):
        found, norms = [], []

        def noting(rank, found=found, norms=norms, mine=rank):
            program = overflow(rank)
            given = None
            while True:
                try:
                    token = next_token(program, given)
                except StopIteration:
                    return
                given = yield token
                if rank == mine and isinstance(token, Unscale):
                    found.append(given)
                if rank == mine and isinstance(token, Clip):
                    norms.append(given)

        simulate(noting, 2, **SETTINGS)
        assert found == real["found"]
        assert norms == pytest.approx(real["norms"], rel=1e-5)


@pytest.mark.parametrize("name", HANGS)
def test_a_deadlock_is_one_in_reality(hung, name):
    program, mispaired = HANGS[name]
    timeline = simulate(program, 2, **SETTINGS)
    assert bool(timeline.mispaired) == mispaired
    assert timeline.deadlock is not None
    for rank, (error, real) in enumerate(hung[name]):
        assert bool(error) == (rank in timeline.deadlock.ranks)
        # What was done until then; an average with another step's gradients is in the weights, too.
        assert list(timeline.skipped[rank]) == real["skipped"]
        assert list(timeline.scales[rank]) == real["scales"]
        assert timeline.weights[rank] == pytest.approx(real["weights"], rel=1e-5)
    assert any(re.search("timed out|timeout", error, re.IGNORECASE) for error, _ in hung[name])


EXTRA = {
    "barrier on one rank": (Barrier(), "barrier"),
    "collective inside a save": (AllReduce(1.0, "weights"), "all-reduce of weights"),
}


@pytest.fixture(scope="module")
def ends():
    """gloo hangs, or aborts a process: so each program has its own two."""
    outcomes = run_ranks(follow_in_pairs, 2 * len(EXTRA), list(map(with_extra, EXTRA)), 2.0, grace=20.0)
    return {name: outcomes[2 * place : 2 * place + 2] for place, name in enumerate(EXTRA)}


def with_extra(name):
    return lambda rank: [*ONE, *if_first(rank, EXTRA[name][0]), *ONE]


@pytest.mark.parametrize("name", EXTRA)
def test_calls_of_other_sizes_end_badly(ends, name):
    """They meet the other rank's next bucket."""
    deadlock = simulate(with_extra(name), 2, **SETTINGS).deadlock
    assert deadlock.waits == (EXTRA[name][1], "all-reduce of bucket 0 of step 1")
    assert deadlock.mismatch
    for outcome in ends[name]:
        assert outcome.ended == "died" or outcome.value[0]
    if any(outcome.ended == "died" for outcome in ends[name]):
        output = "".join(each.output for each in ends[name])
        assert "Received data size doesn't match expected size" in output
