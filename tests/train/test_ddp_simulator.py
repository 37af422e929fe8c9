"""The simulator of DDP: its rules, times and words. `test_ddp_simulator_really.py` holds it against real processes."""

import itertools
import math
import random
import re

import numpy
import pytest
import torch

from amp_lab.train import ddp_simulator
from amp_lab.train.ddp_simulator import (
    AllReduce,
    Backward,
    Barrier,
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

ONE = [Forward(ms=5), Backward(ms=10), Step(ms=1), Update(ms=0.5)]


def of(timeline, rank, kind):
    return [event for event in timeline.events if event.rank == rank and event.kind == kind]


# Time.


def test_all_reduces_overlap_with_backward():
    timeline = simulate(ONE, 2, buckets=4, bucket_mb=25, latency_ms=0.1, gb_per_s=10)
    sent = of(timeline, 1, "all-reduce")
    # A bucket is full every 2.5 ms from 5 ms on, and takes 0.1 ms + 25 MB / (10 GB/s) = 2.6 ms.
    assert [event.start for event in sent] == pytest.approx([7.5, 10.1, 12.7, 15.3])
    assert sent[-1].end == pytest.approx(17.9)
    assert timeline.waited == pytest.approx([0.0029] * 2)
    assert timeline.seconds == pytest.approx(0.0194)
    assert (timeline.payload, timeline.all_reduces) == (100_000_000, 4)


@pytest.mark.parametrize(("ranks", "ms"), [(1, 0.0), (2, 10.1), (4, 15.1), (8, 17.6)])
def test_the_ring(ranks, ms):
    """2(n-1)/n times the bytes pass between two ranks."""
    timeline = simulate(ONE, ranks, buckets=1, bucket_mb=100)
    (sent,) = of(timeline, 0, "all-reduce")
    assert sent.end - sent.start == pytest.approx(ms)


def test_buckets_of_different_sizes_fill_in_proportion():
    first, second = of(simulate(ONE, 2, buckets=[30, 10], latency_ms=0), 0, "all-reduce")
    assert (first.start, second.start) == pytest.approx((12.5, 15.5))


def test_all_wait_for_a_straggler_and_a_barrier_adds_nothing():
    def loop(rank, *more):
        return [Load(ms=8 if rank == 1 else 1), *more, *ONE] * 2

    plain = simulate(loop, 3, latency_ms=0)
    barrier = simulate(lambda rank: loop(rank, Barrier()), 3, latency_ms=0)
    assert plain.waited[0] == pytest.approx(plain.waited[1] + 2 * 0.007)
    assert barrier.seconds == pytest.approx(plain.seconds)
    assert barrier.weights == plain.weights


def test_compression_halves_bytes_and_time():
    plain = simulate(ONE, 2, latency_ms=0)
    for compress in ("fp16", "bf16"):
        small = simulate(ONE, 2, latency_ms=0, compress=compress)
        assert 2 * small.payload == plain.payload
        both = [sum(each.end - each.start for each in of(run, 0, "all-reduce")) for run in (plain, small)]
        assert both[0] == pytest.approx(2 * both[1])


def test_no_sync_saves_all_but_one_exchange():
    micro = (Forward(), Backward(gradients=0.025))
    plain = simulate([*micro * 4, Step(), Update()])
    saving = simulate([*[NoSync(*micro)] * 3, *micro, Step(), Update()])
    assert plain.payload == 4 * saving.payload
    assert saving.seconds < plain.seconds
    for mine, theirs in zip(saving.weights, plain.weights, strict=True):
        assert mine == pytest.approx(theirs)


def test_eight_ranks_and_ten_buckets():
    timeline = simulate(ONE, 8, buckets=10)
    assert timeline.all_reduces == 10
    assert len(timeline.events) == 8 * (10 + 5)
    assert timeline == simulate(ONE, 8, buckets=10)


# Values.


def test_an_overflow_on_one_rank_is_one_on_all():
    def loop(rank):
        for step in range(3):
            yield Forward()
            yield Backward(gradients=math.inf if (rank, step) == (1, 1) else 0.1)
            yield Step()
            yield Update()

    timeline = simulate(loop, 3)
    assert timeline.skipped == ((False, True, False),) * 3
    assert timeline.scales == ((65536, 65536, 32768, 32768),) * 3
    assert timeline.scales_equal
    assert timeline.weights_equal
    assert [event.what for event in of(timeline, 1, "backward")] == ["", "∞", ""]
    assert [event.what for event in of(timeline, 0, "backward")] == ["", "", ""]
    assert [event.what for event in of(timeline, 0, "all-reduce")][4:8] == ["0∞", "1∞", "2∞", "3∞"]
    assert [event.what for event in of(timeline, 0, "update")] == ["", "scale 32,768", ""]


def test_infinities_of_both_signs_make_nan():
    timeline = simulate([[Forward(), Backward(gradients=sign * math.inf)] for sign in (1, -1)])
    assert of(timeline, 0, "all-reduce")[0].what == "0NaN"


def test_without_a_scaler_nobody_looks():
    loop = [Forward(), Backward(gradients=math.inf), Unscale(), Step(), Update()]
    timeline = simulate(loop, 2, init_scale=None)
    assert timeline.skipped == ((False,),) * 2
    assert timeline.weights[0] == (-math.inf,) * 4


def test_1000_steps_have_the_scales_of_gradscaler():
    """With overflows on random ranks; a GradScaler alone sees an infinity at the same steps."""
    chance = random.Random(0)
    bad = {step: chance.randrange(3) for step in chance.sample(range(1000), 60)}

    def loop(rank):
        for step in range(1000):
            yield Forward()
            yield Backward(gradients=math.inf if bad.get(step) == rank else 2.0**-20)
            yield Step()
            yield Update()

    timeline = simulate(loop, 3, buckets=1, growth_interval=20)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer, scaler = torch.optim.SGD([weight]), torch.amp.GradScaler("cpu", growth_interval=20)
    scales = [scaler.get_scale()]
    for step in range(1000):
        weight.grad = torch.tensor([math.inf if step in bad else 1.0])
        scaler.scale(torch.zeros(1))  # makes the scale
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert [list(each) for each in timeline.scales] == [scales] * 3
    assert len(set(scales)) > 5


def test_what_tokens_give():
    given = []

    def loop(rank):
        given.append((yield Forward(loss=2.0)))
        given.append((yield Backward(gradients=3.0)))
        given.append((yield Unscale()))
        given.append((yield Clip(1.0)))
        given.append((yield Step()))
        given.append((yield Update()))
        given.append((yield AllReduce(rank + 1.0, "a sum")))
        given.append((yield Broadcast(rank + 5.0, source=1)))
        given.append((yield NoSync(Evaluate(), Save())))
        yield from [Load(), Load()]  # a list inside a program

    simulate(
        [loop, [*ONE[:2], Step(), Update(), AllReduce(2.0, "a sum"), Broadcast(6.0, source=1)]],
        init_scale=4.0,
    )
    assert given == [2.0, None, False, pytest.approx(2 * 1.55, rel=1e-4), True, 4.0, 3.0, 6.0, None]


# What goes wrong between ranks.


def test_a_rank_that_leaves_out_a_step_alone():
    def loop(rank):
        for step in range(3):
            loss = yield Forward(loss=math.nan if (rank, step) == (1, 1) else 1.0)
            if math.isnan(loss):
                yield Skip()
                continue
            yield Backward()
            yield Step()
            yield Update()

    timeline = simulate(loop, 2)
    assert timeline.mispaired[0].means == (
        "all-reduce of bucket 0 of step 1",
        "all-reduce of bucket 0 of step 2",
    )
    assert len(timeline.mispaired) == 4
    assert timeline.deadlock.waits == ("all-reduce of bucket 0 of step 2", None)
    assert timeline.deadlock.ranks == [0]
    text = str(timeline)
    assert "Wrong pairing: rank 0 means all-reduce of bucket 0 of step 1; rank 1 means" in text
    assert "(and 3 more such pairs)" in text
    assert "Deadlock: rank 0 waits in all-reduce of bucket 0 of step 2; rank 1 has ended." in text
    assert "by an all-reduce of the flag" in text


def test_three_ranks_in_three_places():
    timeline = simulate([[*ONE, *ONE], [*ONE, Barrier()], ONE], latency_ms=0, buckets=1, bucket_mb=75)
    assert str(timeline.deadlock).startswith(
        "Deadlock: rank 0 waits in all-reduce of bucket 0 of step 1; rank 1 waits in barrier; rank 2 has ended.\n"
    )
    assert timeline.deadlock.since == pytest.approx((41.5, 26.5, 26.5))  # the exchange takes 10 ms


def test_no_sync_on_one_rank_only():
    timeline = simulate([[NoSync(*ONE[:2]), *ONE[2:]], ONE])
    assert timeline.deadlock.waits == (None, "all-reduce of bucket 0 of step 0")


def test_a_later_micro_batch_is_named():
    timeline = simulate([[*ONE[:2] * 2, *ONE[2:]], ONE])
    assert timeline.deadlock.waits == ("all-reduce of bucket 0 of step 0, micro-batch 1", None)


def test_a_late_infinity_drives_ranks_apart():
    late = [*ONE[:2], SetGradient(math.inf), *ONE[2:]]
    timeline = simulate([late, ONE])
    assert timeline.scales == ((65536, 32768), (65536, 65536))
    assert not timeline.scales_equal
    assert not timeline.weights_equal
    assert "drifted apart" in str(timeline)
    assert "train several models" in str(timeline)


# Wrong programs.


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ([Backward()], "rank 0, step 0: Backward comes before Forward"),
        ([Forward(), Step()], "rank 0, step 0: Step comes before Backward"),
        ([Forward(), Unscale()], "Unscale comes before Backward"),
        ([Forward(), Clip()], "Clip comes before Backward"),
        ([Update()], "Update comes before Step"),
        ([*ONE[:2], Unscale(), Unscale()], "Unscale comes twice"),
        ([*ONE[:3], *ONE[:3]], "rank 0, step 1: Step comes twice: call Update"),
        ([*ONE[:3], *ONE[:2], Unscale()], "Unscale comes after Step"),
        ([Forward(), Backward(gradients=[1.0, 2.0])], "2 gradients for 4 buckets"),
        ([*ONE[:2], SetGradient(1.0, bucket=4)], "the buckets are 0 to 3"),
        ([Broadcast(1.0, source=2)], "there is no such rank"),
    ],
)
def test_calls_in_a_wrong_order(program, message):
    with pytest.raises(ProgramError, match=message):
        simulate(program, 2)


def test_a_generator_is_followed_once():
    def loop():
        yield from ONE

    programs = [loop(), loop()]
    simulate(programs)
    with pytest.raises(ValueError, match="rank 0 has been followed before: call its function again"):
        simulate(programs)
    with pytest.raises(ValueError, match="two ranks were given the same generator"):
        simulate([loop()] * 2)


def test_a_program_that_does_not_end():
    def loop(rank):
        while True:
            yield Evaluate()

    with pytest.raises(ProgramError, match="rank 0: its program has not ended after 20,000 tokens"):
        simulate(loop)


def test_a_token_without_brackets():
    def loop(rank):
        yield Forward

    with pytest.raises(ProgramError, match=r"<class .*Forward'> is no token: .* made with \(\)"):
        simulate(loop)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((3,), TypeError, "simulate takes a program"),
        (("Forward",), TypeError, "simulate takes a program"),
        (([],), ValueError, r"was given an empty list: write \[Forward\(\)"),
        (([ONE], 2), ValueError, r"simulate\(ranks=2\) was given programs for 1: give one for each"),
        (
            (lambda: ONE,),
            TypeError,
            r"simulate calls .*<lambda> with the number of a rank: write `def program\(rank\)`",
        ),
        ((lambda rank, step: ONE,), TypeError, "with the number of a rank"),
        (((token for token in ONE),), ValueError, r"give the function itself, without \(\)"),
        ((lambda rank: None,), TypeError, "the program of rank 0 is None"),
        ((lambda rank: Forward(),), TypeError, "the program of rank 0 is a Forward"),
        ((ONE, 0), ValueError, "ranks"),
        (([Forward(), [Backward()]],), TypeError, r"a list stands among tokens: .* \*micro_batch"),
        (
            ([Forward(), Backward, Step()],),
            TypeError,
            r"<class .*Backward'> stands .* write Forward\(\) with",
        ),
        ((itertools.cycle(ONE),), ValueError, "was given a cycle, which only one rank could follow"),
        (([ONE, "Forward"],), TypeError, "the program of rank 1 is"),
        (([ONE, ONE], 3), ValueError, r"simulate\(ranks=3\) was given programs for 2"),
    ],
)
def test_what_is_no_program(arguments, error, message):
    with pytest.raises(error, match=message):
        simulate(*arguments)


@pytest.mark.parametrize(
    "settings",
    [
        {"buckets": 0},
        {"buckets": []},
        {"buckets": "two"},
        {"buckets": [1, -1]},
        {"bucket_mb": 0},
        {"bucket_mb": 1e9},
        {"buckets": [1.0, "25"]},
        {"buckets": [True]},
        {"bucket_mb": math.nan},
        {"latency_ms": -1},
        {"gb_per_s": 0},
        {"gb_per_s": math.nan},
        {"compress": "fp8"},
        {"init_scale": -1.0},
        {"growth_interval": 0},
    ],
)
def test_settings_that_make_no_sense(settings):
    with pytest.raises(ValueError, match=r"give|must|whole number"):
        simulate(ONE, **settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Forward(ms=-1), r"Forward(ms=-1): give a time in milliseconds, 0 or more"),
        (lambda: Load(ms=math.nan), "Load(ms=nan): give a time"),
        (lambda: Load(ms=math.inf), "Load(ms=inf): give a time"),
        (lambda: Load(ms=True), "Load(ms=True): give a time"),
        (lambda: Backward(ms="long"), "Backward(ms='long'): give a time"),
        (lambda: Backward(gradients="inf"), "Backward(gradients='inf'): give a number"),
        (lambda: Backward(gradients=[1.0, None]), "a list with one for each bucket"),
        (lambda: Forward(loss="nan"), "Forward(loss='nan'): give a number, such as 1.0"),
        (lambda: AllReduce("flag"), "AllReduce(value='flag'): give a number"),
        (lambda: AllReduce(1.0, 2), "AllReduce(what=2): give words that name it"),
        (lambda: Broadcast(1.0, source=-1), "Broadcast(source=-1): give the number of a rank, 0 or more"),
        (lambda: Broadcast(1.0, source=0.0), "Broadcast(source=0.0): give the number of a rank"),
        (lambda: SetGradient(None), "SetGradient(value=None): give a number"),
        (
            lambda: SetGradient(1.0, bucket=-1),
            "SetGradient(bucket=-1): give the number of a bucket, 0 or more",
        ),
        (lambda: SetGradient(1.0, bucket=0.5), "SetGradient(bucket=0.5): give the number of a bucket"),
        (lambda: Clip(0), "Clip(max_norm=0): give a norm above 0"),
        (lambda: NoSync([Forward()]), "NoSync takes tokens, as in NoSync(Forward(), Backward()), not a list"),
    ],
)
def test_tokens_that_make_no_sense(make, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        make()


def test_what_takes_no_time():
    timeline = simulate([Load(ms=0), Forward(ms=0), Backward(ms=0), Step(ms=0), Update(ms=0)], 1)
    assert timeline.seconds == 0


def test_tokens_take_numpy_s_numbers():
    given = []

    def loop(rank):
        yield Forward(ms=numpy.float32(2))
        yield Backward(ms=numpy.int64(2), gradients=[numpy.float32(0.5)])
        yield SetGradient(numpy.float64(0.25), bucket=numpy.int32(0))
        yield Step()
        given.append((yield Broadcast(numpy.float32(rank + 1), source=numpy.int64(1))))

    timeline = simulate(
        loop, numpy.int64(2), buckets=[numpy.float32(1)], latency_ms=numpy.float32(0.5), init_scale=None
    )
    assert timeline.weights == ((-0.25,),) * 2
    assert given == [2.0, 2.0]


def test_all_lists_what_there_is():
    assert sorted(ddp_simulator.__all__) == ddp_simulator.__all__
    assert all(hasattr(ddp_simulator, name) for name in ddp_simulator.__all__)
