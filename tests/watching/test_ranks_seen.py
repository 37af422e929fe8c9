"""What records of ranks tell when they are laid beside each other, and how they are made: in one process."""

from types import SimpleNamespace

import pytest
import torch

from amp_lab.watching.recording.ranks import groups, replicas
from amp_lab.watching.recording.ranks.checksums import checksum
from amp_lab.watching.recording.ranks.numbers import Numbers
from amp_lab.watching.recording.ranks.records import FIRST, LAST, MOST, Meeting, RankRecord
from amp_lab.watching.recording.ranks.seen import RanksSeen


def record(rank, **fields):
    return RankRecord(rank, replicas=True, scales_until=9, skips_until=9, **fields)


def seen(*records):
    return RanksSeen(0, records)


def meetings(*kinds, forwards=None):
    return [
        Meeting(n, kind, n, (forwards or {}).get(n, n), f"train.py:{n}: f()")
        for n, kind in enumerate(kinds, 1)
    ]


def test_nothing_is_apart_where_all_is_equal():
    same = {
        "scales": [(1, 2.0), (4, 1.0)],
        "skips": [4],
        "weights": [(1, 7), (2, 8)],
        "meetings": meetings("backward"),
    }
    both = seen(record(0, **same), record(1, **same))
    assert (both.skips_apart(), both.scales_apart(), both.weights_apart()) == (None, None, None)
    assert (both.decided_apart(), both.stuck()) == (None, None)


def test_the_first_step_apart_is_named_with_all_ranks():
    three = seen(
        *(record(rank, skips=[2, 5, 7] if rank == 1 else [2], scales=[(1, 4.0)]) for rank in range(3))
    )
    apart = three.skips_apart()
    assert apart is not None
    assert (apart.step, apart.words) == (5, "taken on ranks 0 and 2, skipped on rank 1")


def test_only_steps_that_all_have_told_of_are_compared():
    one, other = record(0, skips=[8]), record(1)
    other.skips_until = 7
    assert seen(one, other).skips_apart() is None
    other.skips_until = 8
    assert seen(one, other).skips_apart().step == 8
    one, other = record(0, scales=[(1, 4.0), (8, 2.0)]), record(1, scales=[(1, 4.0)])
    other.scales_until = 7
    assert seen(one, other).scales_apart() is None
    other.scales_until = 8
    assert seen(one, other).scales_apart().of_each == ((0, 2.0), (1, 4.0))


def test_a_scale_is_compared_between_its_changes():
    apart = seen(
        record(0, scales=[(1, 4.0), (3, 8.0)]), record(1, scales=[(1, 4.0), (5, 8.0)])
    ).scales_apart()
    assert apart is not None
    assert (apart.step, apart.of_each) == (3, ((0, 8.0), (1, 4.0)))


def test_weights_that_come_together_again_have_not_drifted():
    """Local SGD averages the weights every few steps."""
    one = record(0, weights=[(1, 1), (2, 2), (3, 3)])
    assert seen(one, record(1, weights=[(1, 1), (2, 9), (3, 3)])).weights_apart() is None
    apart = seen(one, record(1, weights=[(1, 1), (2, 9), (3, 9)])).weights_apart()
    assert apart is not None
    assert apart.step == 2
    one.weights.append((4, 4))
    apart = seen(one, record(1, weights=[(1, 1), (2, 9), (3, 3), (4, 9)])).weights_apart()
    assert apart is not None
    assert apart.step == 4


def test_weights_that_need_not_be_equal_are_not_compared():
    one, other = record(0, weights=[(1, 1)]), record(1, weights=[(1, 2)])
    other.replicas = False
    assert seen(one, other).weights_apart() is None


@pytest.mark.parametrize("change", [{"joined": True}, None])
def test_nothing_is_compared_with_join_or_without_another_rank(change):
    one = record(0, skips=[1], scales=[(1, 1.0)], weights=[(1, 1)], inputs=[(1, 1), (2, 2)])
    other = record(1, scales=[(1, 2.0)], weights=[(1, 2)], inputs=[(1, 1), (2, 2)], **(change or {}))
    both = seen(one, other) if change else seen(one)
    assert (both.skips_apart(), both.scales_apart(), both.weights_apart()) == (None, None, None)
    assert both.same(lambda each: each.inputs) == []


def test_the_same_batch_must_be_the_same_in_every_step():
    one = record(0, inputs=[(1, 1), (2, 2), (3, 3)])
    assert seen(one, record(1, inputs=[(1, 1), (2, 2), (3, 3)])).same(lambda each: each.inputs) == [1, 2, 3]
    assert seen(one, record(1, inputs=[(1, 1), (2, 9), (3, 3)])).same(lambda each: each.inputs) == []


def test_calls_are_compared_by_kind_and_backward_passes_by_what_was_before():
    one = record(0, meetings=meetings("backward", "backward", "barrier"))
    met = seen(one, record(1, meetings=meetings("backward", "barrier", "backward"))).decided_apart()
    assert met is not None
    assert (met[0].kind, met[1].kind, met[0].number) == ("backward", "barrier", 2)
    left_out = record(1, meetings=meetings("backward", "backward", forwards={2: 3}))
    assert seen(one, left_out).decided_apart()[1].forwards == 3
    evaluates = record(1, meetings=meetings("backward", "backward", "barrier", forwards={3: 9}))
    assert seen(one, evaluates).decided_apart() is None


@pytest.mark.parametrize(
    ("other", "is_certain", "left"),
    [
        ({"ended": "raised", "error": "ValueError: no"}, True, True),
        ({"ended": "left"}, False, True),  # it may come back: a function that is watched is left in each step
        ({"ended": "left", "talking": "dist.barrier()", "still": 2.0}, True, True),
        ({"ended": "silent"}, True, True),
        ({}, False, False),
        ({"talking": "dist.barrier()", "still": 2.0}, True, False),
        ({"talking": "dist.barrier()", "still": 0.5}, False, False),
        ({"talking": "dist.barrier()", "still": 2.0, "elsewhere": True}, False, False),
        ({"talking": "dist.barrier()", "still": 2.0, "inside": "barrier"}, False, False),
        ({"ended": "raised", "broken": True}, True, False),
        ({"ended": "raised", "begun": 3, "unfinished": True}, True, True),  # in the call itself: no memory
        ({"begun": 3, "inside": "backward", "ended": "silent"}, True, True),
    ],
)
def test_who_is_awaited_in_vain(other, is_certain, left):
    waits = record(
        0, begun=3, inside="backward", still=2.0, meetings=meetings("backward", "backward", "backward")
    )
    stuck = seen(waits, record(1, **{"begun": 2, "step": 2} | other)).stuck()
    assert stuck is not None
    assert (stuck.is_certain, stuck.left) == (is_certain, left)
    assert stuck.words.startswith("rank 0 waits in backward of step 3 (train.py:3: f()); rank 1 ")


def test_nothing_is_certain_while_one_of_those_that_are_awaited_may_come():
    waits = record(0, begun=3, inside="backward", still=2.0, meetings=meetings(*["backward"] * 3))
    gone, comes = (
        record(1, begun=2, ended="raised", error="ValueError: no"),
        record(2, begun=2, where="a.py:5"),
    )
    stuck = seen(waits, gone, comes).stuck()
    assert (stuck.is_certain, stuck.left) == (False, False)
    assert stuck.words.endswith("; rank 1 ended in step 0 with ValueError: no; rank 2 is in step 0 (a.py:5)")
    assert not seen(waits, gone, comes).all_wait
    gone.where, gone.broken = "a.py:7", True
    assert "rank 1 ended in step 0 (a.py:7) with" in seen(waits, gone, comes).stuck().words
    gone.broken = False  # the error names its line
    assert "a.py:7" not in seen(waits, gone, comes).stuck().words


def test_nobody_is_awaited_who_has_come_as_far():
    waits = record(0, begun=3, inside="backward", still=9.0, meetings=meetings(*["backward"] * 3))
    assert seen(waits, record(1, begun=3, inside="backward")).stuck() is None  # it still computes
    assert seen(waits, record(1, begun=3, ended="left")).stuck() is None
    waits.still = 0.5
    assert seen(waits, record(1, begun=2, ended="raised")).stuck() is None  # not for long


def test_of_several_that_wait_the_foremost_are_awaited_by_nobody():
    """Rank 0 waits in an earlier call: rank 1, which left it out, waits for both others."""
    first = record(0, begun=2, inside="backward", still=2.0, meetings=meetings(*["backward"] * 2))
    second = record(1, begun=3, inside="backward", still=2.0, meetings=meetings(*["backward"] * 3))
    stuck = seen(first, second, record(2, begun=1)).stuck()
    assert [each.rank for each in stuck.waiting] == [1]
    assert [each.rank for each in stuck.behind] == [0, 2]


def test_an_error_of_the_connection_makes_it_certain_that_a_rank_waited_in_vain():
    failed = record(
        0, begun=3, unfinished=True, failed=True, ended="raised", meetings=meetings(*["backward"] * 3)
    )
    stuck = seen(failed, record(1, begun=2)).stuck()
    assert (len(stuck.waiting), stuck.is_certain) == (1, True)
    failed.failed = False  # an error of its own: then it waits for nobody
    assert seen(failed, record(1, begun=2)).stuck() is None


def test_a_host_that_runs_ahead_of_its_gpu_waits_behind_the_call():
    waits = record(0, begun=3, still=2.0, queues=True, meetings=meetings(*["backward"] * 3))
    assert seen(waits, record(1, begun=2, ended="raised")).stuck().is_certain
    before_the_first = record(0, still=2.0, queues=True)
    assert not before_the_first.waits


def test_a_rank_without_a_sign_of_life_is_marked():
    def ranks(beat):
        ended = ["", "", "", "left", "exited"]
        beats = [1, 4, beat, 4, 4]
        return seen(*(record(rank, ended=ended[rank], beat=beats[rank]) for rank in range(5)))

    after = ranks(5).without_those_silent_since(ranks(4))
    assert [each.ended for each in after.records] == ["", "silent", "", "silent", "exited"]


def test_a_record_comes_out_of_the_store_as_it_went_in():
    full = record(
        1, meetings=meetings("backward"), scales=[(1, 2.0)], weights=[(1, 7)], skips=[3], where="a.py:1"
    )
    assert RankRecord.unpacked(full.packed()) == full
    assert len(full.meetings) <= FIRST


def numbers():
    model = torch.nn.Linear(2, 1)
    told = Numbers(RankRecord(0))
    told.parameters = list(model.parameters())
    return told, told._record, model


def test_only_changes_of_the_scale_are_told_and_each_skipped_step_once():
    told, record, _ = numbers()
    for step, (skipped, scale) in enumerate([(0, 4.0), (1, 2.0), (0, 2.0), (1, 1.0)], 1):
        told.skipped(step, float(skipped))
        told.skipped(step, torch.tensor(float(skipped)))  # a second optimizer
        told.scale(step, scale)
    told.read()
    assert (record.skips, record.skips_until) == ([2, 4], 4)
    assert (record.scales, record.scales_until) == ([(1, 4.0), (2, 2.0), (4, 1.0)], 4)


def test_of_too_many_changes_the_later_ones_are_not_compared():
    told, record, _ = numbers()
    for step in range(1, MOST + 10):
        told.skipped(step, 1.0)
        told.scale(step, float(step))
    assert len(record.skips) == len(record.scales) == MOST
    assert (record.skips_until, record.scales_until) == (MOST, MOST)


def test_weights_are_told_of_the_first_steps_and_then_now_and_then():
    told, record, model = numbers()
    for step in range(1, 50):
        told.weights(step)
        torch.nn.init.constant_(model.weight, step)
        told.weights(step)  # a second backward pass in the same step
    assert [step for step, _ in record.weights] == [*range(1, 17), 17, 33, 49]
    assert len({value for _, value in record.weights}) == len(record.weights)
    for step in range(65, 65 + 16 * 100, 16):
        told.weights(step)
    steps = [step for step, _ in record.weights]
    assert len(steps) == FIRST + LAST
    assert (steps[:17], steps[-1]) == ([*range(1, 18)], 65 + 16 * 99)


def test_batches_are_told_by_all_their_tensors_in_the_first_steps():
    told, record, _ = numbers()
    positions, x = torch.arange(3), torch.arange(3.0)
    for step in (1, 2, 3, 4):
        told.batch(step, ["a text", positions, x + step])
        told.batch(step, [x])  # a second micro-batch
    assert record.inputs == [(step, checksum([positions, x + step]).item()) for step in (1, 2, 3)]
    assert len({value for _, value in record.inputs}) == 3
    assert [step for step, _ in record.random] == [1, 2, 3]
    torch.manual_seed(0)
    same = []
    for _ in range(2):
        told, record, _ = numbers()
        torch.manual_seed(3)
        told.batch(1, [x])
        same += [value for _, value in record.random]
    assert same[0] == same[1]


def test_gradients_are_known_in_the_first_steps():
    told, _, model = numbers()
    model(torch.ones(1, 2)).sum().backward()
    assert told.is_gradient(3, model.weight.grad)
    assert not told.is_gradient(4, model.weight.grad)
    assert not told.is_gradient(1, model.weight)
    assert not told.is_gradient(1, "no tensor")


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.bool]
)
def test_checksums_tell_bits_apart(dtype):
    numbers = (torch.arange(24.0).reshape(4, 6) % 2).to(dtype)
    other = numbers.clone()
    other[3, 5] = 0
    assert checksum([numbers]).item() == checksum([numbers.clone()]).item()
    assert checksum([numbers.t()]).item() == checksum([numbers.t().contiguous()]).item()
    assert checksum([numbers]).item() != checksum([other]).item()
    assert 0 <= checksum([numbers, other]).item() < 2**24


def test_checksums_tell_weights_apart_that_were_exchanged_and_nan_from_zero():
    one, other = torch.tensor([1.0]), torch.tensor([2.0])
    assert checksum([one, other]).item() != checksum([other, one]).item()
    assert checksum([torch.tensor([torch.nan])]).item() != checksum([torch.tensor([0.0])]).item()
    assert checksum([torch.empty(0), torch.empty(3, device="meta"), "no tensor"]) is None


def test_a_large_tensor_is_thinned_out_in_the_same_way_each_time():
    large = torch.arange(2.0**18)
    assert checksum([large]).item() == checksum([large.clone()]).item()
    assert checksum([large]).item() != checksum([large + 1]).item()
    other = large.clone()
    other[-4] = 0.0  # of every fourth element, the last
    assert checksum([large]).item() != checksum([other]).item()


def raised_from(error, cause):
    error.__cause__ = cause
    return error


GLOO = RuntimeError(
    "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:4711"
)


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (GLOO, True),
        (RuntimeError("[Rank 0]: Rank 1 failed to pass monitoredBarrier in 1000 ms"), True),
        (torch.distributed.DistNetworkError("The client socket has timed out after 1000ms"), True),
        (raised_from(RuntimeError("rank 1 does not answer"), GLOO), True),
        (RuntimeError("DataLoader timed out after 5 seconds"), False),
        (RuntimeError("the backend gloo adds no such numbers"), False),
        (RuntimeError(f"nothing was saved: {GLOO}"), False),
        (NotImplementedError(str(GLOO)), False),
        (TimeoutError("the host of the data does not answer"), False),
        (ConnectionResetError("connection reset by peer"), False),
    ],
)
def test_only_errors_between_ranks_are_of_their_connection(error, is_it):
    assert groups.is_about_talk(error) is is_it


def test_a_rank_is_no_member_of_a_group_that_is_none():
    assert groups.group_of((torch.ones(1),), {"group": torch.distributed.GroupMember.NON_GROUP_MEMBER}) == ()


def test_what_ddp_leaves_alone_need_not_be_equal():
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Linear(1, 1))
    model[1].bias.requires_grad_(False)
    wrapper = SimpleNamespace(module=model, parameters_to_ignore={"0.weight"})
    compared = replicas.compared_parameters([wrapper], [])
    assert [id(each) for each in compared] == [id(model[0].bias), id(model[1].weight)]
    assert len(replicas.compared_parameters([], [model])) == 3


def test_backend_is_asked_for_the_device_that_trains(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_backend_config", lambda: "cpu:gloo,cuda:nccl")
    assert not groups.queues(torch.device("cpu"))
    assert groups.queues(torch.device("cuda", 0))
