"""What a simulation says of itself, in numbers and in words."""

import math

import pytest

from amp_lab.train.ddp_simulator import (
    AllReduce,
    Backward,
    Barrier,
    Broadcast,
    Forward,
    Load,
    SetGradient,
    Skip,
    Step,
    Update,
    simulate,
)

ONE = [Forward(), Backward(), Step(), Update()]
SMALL = {"buckets": [3.0, 1.0], "latency_ms": 0.0}


def test_payload_is_the_most_of_all_ranks_and_of_all_reduces_only():
    uneven = simulate([ONE, ONE * 3, ONE], **SMALL)
    assert uneven.payload == 8_000_000  # rank 1 gives two steps' buckets, and waits in the second
    assert uneven.all_reduces == 2
    other = simulate([Broadcast(1.0), AllReduce(1.0), Barrier(), AllReduce(2.0)], 2)
    assert (other.payload, other.all_reduces) == (8, 2)
    assert simulate([Load()], 2).payload == 0


def leaves_out_alone(rank):
    for step in range(2):
        yield Forward()
        if (rank, step) == (1, 0):
            yield Skip()
            continue
        yield from ONE[1:]


def test_wrong_pairings_are_all_reduces_that_happened():
    timeline = simulate(leaves_out_alone, 2, **SMALL)
    assert [pair.means for pair in timeline.mispaired] == [
        tuple(f"all-reduce of bucket {bucket} of step {step}" for step in (0, 1)) for bucket in (0, 1)
    ]
    assert timeline.all_reduces == 2
    kinds = [event.kind for event in timeline.events if event.end > event.start]
    assert (kinds.count("wrong pairing"), kinds.count("all-reduce")) == (4, 0)
    starts = [event.start for event in timeline.events if event.kind == "wrong pairing" and event.rank == 0]
    assert [pair.start for pair in timeline.mispaired] == starts == sorted(starts)


def test_broadcasts_that_meet_by_mistake_are_no_all_reduces():
    timeline = simulate([[Broadcast(float(rank), 0, what)] for rank, what in enumerate(("a seed", "a loss"))])
    assert timeline.all_reduces == timeline.payload == 0
    assert str(timeline.mispaired[0]) == (
        "Wrong pairing: rank 0 means broadcast of a seed; rank 1 means broadcast of a loss. They fit in kind and size, "
        "so they were taken for one, and no error tells of it"
    )


def test_diverged_weights_are_equal_and_one_diverged_rank_is_not():
    bad = [Forward(), Backward(gradients=math.nan), Step()]
    assert simulate(bad, 3, init_scale=None).weights_equal
    alone = simulate(lambda rank: [*bad[:2], Step()] if rank else [*ONE[:2], Step()], 2, init_scale=None)
    assert alone.weights_equal  # NaN goes round
    different = simulate([[Load()], [Load()]])
    assert different.weights_equal
    assert different.scales_equal


def test_scales_that_were_apart_and_meet_again_are_not_equal():
    def loop(rank):
        for step in range(2):
            yield from ONE[:2]
            if step == rank:
                yield SetGradient(math.inf)
            yield from ONE[2:]

    timeline = simulate(loop, 2, **SMALL)
    assert [each[-1] for each in timeline.scales] == [32768] * 2
    assert not timeline.scales_equal


def test_calls_from_other_sources_do_not_meet():
    timeline = simulate(lambda rank: [Broadcast(1.0, source=rank, what="a seed")], 2)
    assert timeline.deadlock.waits == ("broadcast of a seed",) * 2
    assert timeline.mispaired == ()
    assert timeline.deadlock.mismatch


def test_calls_of_other_sizes_do_not_meet():
    """A number has 4 bytes, and a bucket many."""
    timeline = simulate([[AllReduce(1.0, "a loss")], ONE[:2]], buckets=1)
    assert timeline.deadlock.waits == ("all-reduce of a loss", "all-reduce of bucket 0 of step 0")
    assert timeline.mispaired == ()
    assert timeline.all_reduces == 0


def test_values_of_the_collectives():
    given = {}

    def loop(rank):
        mine = float(10**rank)
        given[rank] = [(yield AllReduce(mine)), (yield Broadcast(mine, source=2)), (yield Broadcast(mine))]

    simulate(loop, 3)
    assert given == {rank: [111.0, 100.0, 1.0] for rank in range(3)}


def test_the_network_does_one_call_after_the_other():
    """Rank 1 is late by 7 ms; 3 MB and 1 MB take 0.3 and 0.1 ms between two ranks."""
    programs = [[Load(ms=1), *ONE], [Load(ms=8), *ONE]]
    timeline = simulate(programs, **SMALL)
    sent = [
        (event.start, event.end) for event in timeline.events if event.kind == "all-reduce" and not event.rank
    ]
    # 5 ms of forward; bucket 0 is full after 3/4 of 10 ms of backward, bucket 1 after all.
    assert sent == [pytest.approx((20.5, 20.8)), pytest.approx((23.0, 23.1))]
    assert timeline.waited == pytest.approx([0.0071, 0.0001])
    assert timeline.seconds == pytest.approx(0.0246)
    order = [(event.start, event.rank) for event in timeline.events]
    assert order == sorted(order)


def test_what_is_printed():
    def loop(rank):
        for step in range(2):
            yield Forward()
            yield Backward(gradients=math.inf if (rank, step) == (1, 1) else 0.1)
            yield Step()
            yield Update()

    assert str(simulate(loop, 2, **SMALL)).splitlines() == [
        "2 ranks, 2 steps, 33.2 ms, 4 all-reduces, 8 MB from each rank",
        "rank 0: steps done skipped; loss scale 65,536 → 32,768; waited 0.2 ms",
        "rank 1: steps done skipped; loss scale 65,536 → 32,768; waited 0.2 ms",
    ]
    assert str(simulate([Load(ms=1)], 1)).splitlines() == [
        "1 rank, 0 steps, 1 ms, 0 all-reduces, 0 bytes from each rank",
        "rank 0: steps none; loss scale 65,536; waited 0 ms",
    ]
    assert str(simulate([[*ONE], [Load(ms=1)]], buckets=1)).splitlines()[0] == (
        "2 ranks, 0 steps, 15 ms, 0 all-reduces, up to 25 MB each, then a deadlock"
    )


@pytest.mark.parametrize(
    ("megabytes", "steps", "words"),
    [
        (12e-6, 1, "15 ms, 1 all-reduce, 12 bytes"),
        (0.01, 1, "15 ms, 1 all-reduce, 0.01 MB"),
        (1.25, 1, "15 ms, 1 all-reduce, 1.25 MB"),
        (1234.4, 1, "15 ms, 1 all-reduce, 1,234 MB"),
        (250.0, 1000, "15,000 ms, 1,000 all-reduces, 250,000 MB"),
    ],
)
def test_large_and_small_numbers_are_written_for_people(megabytes, steps, words):
    text = str(simulate(ONE[:2] * steps, 1, buckets=[megabytes]))
    assert text.splitlines()[0].endswith(f", {words} from each rank")


def test_the_words_of_wrong_pairings():
    text = str(simulate(leaves_out_alone, 2, **SMALL))
    assert "(and 1 more such pairs)." in text
    one = str(simulate([[AllReduce(1.0, "a")], [AllReduce(1.0, "b")]]))
    assert one.endswith(
        "Wrong pairing: rank 0 means all-reduce of a; rank 1 means all-reduce of b. They fit in kind and "
        "size, so they were taken for one, and no error tells of it."
    )


def test_what_a_deadlock_advises():
    """Ranks that all wait in calls that do not fit need another cure than ranks that ran out of batches."""
    apart = str(simulate([[Barrier()], [AllReduce(1.0)]]).deadlock)
    assert apart.startswith(
        "Deadlock: rank 0 waits in barrier; rank 1 waits in all-reduce of a number.\nIn real life the"
    )
    assert "Received data size doesn't match expected size" in apart
    assert apart.endswith("stands in an `if` that only they enter: take it out, or take all in.")
    ended = str(simulate([[Load()], [Barrier()], [Load()]]).deadlock)
    assert "stands still until the process group's timeout (30 minutes for gloo, 10 for NCCL" in ended
    assert ended.endswith("leave something out together, by an all-reduce of the flag.")
    deadlock = simulate([[Load(ms=3)], [Load(ms=2), Barrier()], [Load(ms=1)]]).deadlock
    assert (deadlock.ranks, deadlock.since, deadlock.mismatch) == ([1], (3, 2, 1), False)
