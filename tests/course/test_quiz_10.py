"""What the quiz of lesson 10 says of ranks, tried."""

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from amp_lab.course.lessons.l10.quiz import QUIZ
from amp_lab.train.distributed.workers import run_ranks


def right(question):
    return next(option.text for option in question.options if option.right)


def line(width=4):
    torch.manual_seed(0)
    return DistributedDataParallel(nn.Linear(width, 1))


def values(function, ranks=2):
    outcomes = run_ranks(function, ranks)
    assert [each.error for each in outcomes] == [""] * ranks
    return [each.value for each in outcomes]


def test_an_overflow_on_rank_3_of_8_is_skipped_by_all_eight():
    def step(rank, make=line):
        model, scaler = make(), torch.amp.GradScaler("cpu")
        opt, made = torch.optim.SGD(model.parameters(), lr=0.1), []
        opt.register_step_post_hook(lambda *_: made.append(1))
        inputs = torch.full((2, 4), 1e38 if rank == 3 else 1.0)
        scaler.scale(model(inputs).sum()).backward()
        scaler.step(opt)
        scaler.update()
        return made, scaler.get_scale()

    assert right(QUIZ[0]).startswith("All eight: what DDP has averaged")
    assert values(step, 8) == [([], 2.0**15)] * 8


def test_a_step_that_one_rank_leaves_out_gives_the_other_its_next_gradient_or_a_long_wait():
    def loop(rank, make=line):
        model, seen = make(), []
        for step in range(3):
            loss = model(torch.full((1, 4), 10.0**step)).sum()
            if (rank, step) == (1, 1):
                continue
            model.zero_grad()
            loss.backward()
            seen.append(model.module.weight.grad[0, 0].item())
            print(*seen, flush=True)
        time.sleep(30)  # rank 1 has come to its end; rank 0 waits for it in its last step

    assert right(QUIZ[1]) == "Rank 0 gets gradients of another step, or waits."
    zero, one = run_ranks(loop, 2, collective_timeout=1.0, grace=0.5)
    assert zero.ended == "raised"
    assert (
        zero.output.splitlines()[-1] == "1.0 55.0"
    )  # the mean of 10, its own, and 100, of rank 1's next step
    assert one.output.splitlines()[-1] == "1.0 55.0"


def exchanges(rank, *, inside, without, make=line, hook=allreduce_hook):
    """Return how many buckets a step of four micro-batches exchanges: the first `without` under no_sync."""
    model, seen = make(), []

    def counted(state, bucket):
        seen.append(bucket.buffer().nbytes)
        return hook(state, bucket)

    model.register_comm_hook(None, counted)
    for number in range(4):
        silent = model.no_sync() if number < without else torch.enable_grad()
        if inside:
            with silent:
                model(torch.ones(1, 4)).sum().backward()
        else:
            loss = model(torch.ones(1, 4)).sum()
            with silent:
                loss.backward()
    return len(seen)


@pytest.mark.parametrize(("inside", "without", "times"), [(False, 3, 4), (True, 3, 1), (True, 4, 0)])
def test_no_sync_is_decided_in_the_forward_pass(inside, without, times):
    count, hook, make = exchanges, allreduce_hook, line
    found = values(lambda rank: count(rank, inside=inside, without=without, make=make, hook=hook))
    assert right(QUIZ[2]).startswith("Four times: DDP has decided in the forward pass")
    assert found == [times, times]


def test_a_weight_takes_four_bytes_of_gradient_under_autocast():
    def payload(rank, make=line, hook=allreduce_hook):
        model, seen = make(1000), []

        def counted(state, bucket):
            seen.append((bucket.buffer().nbytes, bucket.buffer().dtype))
            return hook(state, bucket)

        model.register_comm_hook(None, counted)
        with torch.autocast("cpu", torch.float16):
            output = model(torch.ones(2, 1000))
        output.sum().backward()
        return output.dtype, seen

    assert right(QUIZ[3]).startswith("40 MB")
    assert values(payload) == [(torch.float16, [(4 * 1001, torch.float32)])] * 2


def test_without_set_epoch_each_rank_sees_the_same_samples_in_the_same_order():
    hands = [DistributedSampler(range(10), num_replicas=2, rank=rank) for rank in range(2)]
    epochs = [[list(each) for each in hands] for _ in range(10)]
    assert right(QUIZ[4]) == "Each rank sees the same samples in the same order."
    assert all(epoch == epochs[0] for epoch in epochs)
    assert sorted(epochs[0][0] + epochs[0][1]) == list(range(10))
    for each in hands:
        each.set_epoch(1)
    assert [list(each) for each in hands] != epochs[0]


def test_a_rank_cannot_go_on_when_its_partner_is_dead():
    """Why torchrun starts all ranks anew; tests/train/test_ddp.py holds that it does, and that the script resumes."""

    def loop(rank):
        import os

        dist.barrier()
        if rank == 1:
            os._exit(1)
        dist.all_reduce(torch.ones(1))

    assert right(QUIZ[5]).startswith("It starts both ranks anew")
    assert [each.ended for each in run_ranks(loop, 2)] == ["raised", "died"]
