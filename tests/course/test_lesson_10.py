"""What the page of lesson 10 says beyond what its cells show."""

import gc
import inspect
import math
import os
import re
import subprocess
import sys
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import constants
from torch.nn.parallel import DistributedDataParallel

from amp_lab.course.lessons.l09.reviewed import LAUNCH
from amp_lab.course.lessons.l10.text import LESSON
from amp_lab.train import ddp
from amp_lab.train.data import digits
from amp_lab.train.ddp_simulator import (
    Backward,
    Barrier,
    Forward,
    Load,
    NoSync,
    SetGradient,
    Step,
    Update,
    simulate,
)
from amp_lab.train.distributed.joining import joined
from amp_lab.train.distributed.workers import run_ranks
from amp_lab.train.models import digit_classifier


def values(function, ranks=2):
    outcomes = run_ranks(function, ranks)
    assert [each.error for each in outcomes] == [""] * ranks
    return [each.value for each in outcomes]


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_an_infinity_made_after_the_averaging_drives_real_ranks_apart_and_the_simulated_ones():
    def late(rank):
        model = DistributedDataParallel(nn.Linear(4, 1))
        opt, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
        for step in range(3):
            opt.zero_grad()
            scaler.scale(model(torch.ones(2, 4)).mean()).backward()
            if (rank, step) == (1, 1):
                model.module.bias.grad[0] = math.inf
            scaler.step(opt)
            scaler.update()
        return scaler.get_scale(), model.module.bias.item()

    def simulated(rank):
        for step in range(3):
            yield Forward()
            yield Backward(gradients=0.1)
            if (rank, step) == (1, 1):
                yield SetGradient(math.inf)
            yield Step()
            yield Update()

    (scale, bias), (other_scale, other_bias) = values(late)
    assert (scale, other_scale) == (2.0**16, 2.0**15)
    assert bias != other_bias
    assert [each[-1] for each in simulate(simulated, ranks=2).scales] == [scale, other_scale]


def test_clipping_leaves_gradients_equal_on_all_ranks_and_buckets_are_of_25_mb():
    """Same gradients, same norm."""

    def clipped(rank):
        model = DistributedDataParallel(nn.Linear(4, 4))
        model(torch.full((2, 4), 1.0 + rank)).square().sum().backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        return norm.item(), model.module.weight.grad, model.bucket_bytes_cap

    (norm, gradient, cap), (other_norm, other, _) = values(clipped)
    assert cap == 25 * 2**20
    assert norm == other_norm > 0.1
    assert torch.equal(gradient, other)


def test_same_seeds_drop_the_same_units_on_all_ranks_and_different_weights_are_rank_0s():
    def masks(rank):
        torch.manual_seed(0)
        model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5)))
        same = model(torch.ones(1, 64)) == 0
        torch.manual_seed(rank)
        return same, model(torch.ones(1, 64)) == 0

    (same, own), (other_same, other_own) = values(masks)
    assert torch.equal(same, other_same)
    assert not torch.equal(own, other_own)


def test_accumulation_without_no_sync_is_right_and_only_dear(one_thread):
    """What is averaged early is added up all the same."""

    def gradients(rank):
        found = []
        for quiet in (False, True):
            torch.manual_seed(0)
            model = DistributedDataParallel(nn.Linear(3, 1))
            for number in range(4):
                inputs = torch.full((2, 3), 1.0 + rank + number)
                with model.no_sync() if quiet and number < 3 else torch.enable_grad():
                    model(inputs).square().mean().backward()
            found.append(model.module.weight.grad)
        return found

    for loud, quiet in values(gradients):
        assert torch.allclose(loud, quiet, rtol=1e-6)


def test_with_all_micro_batches_inside_of_no_sync_nothing_travels_and_ranks_drift_apart():
    def program(rank):
        yield NoSync(Forward(), Backward(gradients=math.inf if rank else 0.1))
        yield Step()
        yield Update()

    timeline = simulate(program, ranks=2)
    assert timeline.all_reduces == 0
    assert not timeline.scales_equal
    assert not timeline.weights_equal


def test_an_infinity_of_an_early_micro_batch_travels_with_the_last():
    def step(rank):
        model = DistributedDataParallel(nn.Linear(3, 1))
        for number in range(4):
            factor = math.inf if (rank, number) == (1, 1) else 1.0
            with model.no_sync() if number < 3 else torch.enable_grad():
                (factor * model(torch.ones(1, 3))).sum().backward()
        return bool(model.module.weight.grad.isfinite().all())

    assert values(step) == [False, False]


def test_the_launch_code_of_lesson_09_has_what_the_table_says_of_it():
    assert "tcp://localhost:12345" in LAUNCH
    assert "model = DistributedDataParallel(model" in LAUNCH
    assert not re.search(r"DataLoader|Sampler\(|set_epoch|destroy_process_group", LAUNCH)


def test_numbers_on_the_page():
    assert sum(each.numel() for each in digit_classifier().parameters()) == 4810
    assert 4 * 4810 == 19_240
    assert round(100_000 / 2**16, 1) == 1.5
    assert torch.finfo(torch.float16).max < 100_000
    assert torch.tensor(100_000.0).bfloat16() == 99_840
    assert torch.tensor(1e-8).half() == 0
    assert (10 + 100) / 2 == 55
    assert pytest.approx(20.4) == 10 + 4 * (0.1 + 25e6 / 10e9 * 1e3)
    assert simulate([Forward(), Backward(), Step(), Update()], ranks=2).payload == 100e6
    assert sum(each.minutes for each in LESSON.exercises) < LESSON.minutes


def test_the_timeouts_that_the_page_names_are_pytorchs():
    assert constants.default_pg_timeout.total_seconds() == 30 * 60  # gloo's
    nccl = constants.default_pg_nccl_timeout
    assert nccl is None or nccl.total_seconds() == 10 * 60  # a build without NCCL has none


def test_the_second_run_finds_a_fixed_port_taken_and_a_free_one_with_port_0():
    first = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(RuntimeError, match=r"EADDRINUSE|in use"):
        dist.TCPStore("127.0.0.1", first.port, is_master=True, wait_for_workers=False)
    second = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    assert second.port != first.port


def test_one_batch_of_64_differs_from_two_halves_in_the_last_digits_only(one_thread):
    images, labels = digits()

    def gradients(rank):
        model = DistributedDataParallel(digit_classifier())
        loss = nn.functional.cross_entropy(model(images[rank:64:2]), labels[rank:64:2])
        loss.backward()
        return [each.grad for each in model.parameters()]

    model = digit_classifier()
    nn.functional.cross_entropy(model(images[:64]), labels[:64]).backward()
    for found, each in zip(values(gradients)[0], model.parameters(), strict=True):
        assert torch.allclose(found, each.grad, rtol=0, atol=1e-6)
        assert each.grad.abs().max() > 1e-3


def test_the_wrappers_names_are_refused_by_the_plain_model_and_not_strictly_nothing_is_loaded():
    def states(rank):
        model = DistributedDataParallel(digit_classifier(seed=1))
        return model.state_dict(), model.module.state_dict()

    wrapped, inside = values(states, 1)[0]
    assert list(wrapped) == ["module." + name for name in inside]
    plain = digit_classifier(seed=0)
    before = {name: each.clone() for name, each in plain.state_dict().items()}
    with pytest.raises(RuntimeError, match=r"module\.first\.weight"):
        plain.load_state_dict(wrapped)
    assert len(plain.load_state_dict(wrapped, strict=False).missing_keys) == len(inside) == 4
    assert all(torch.equal(each, before[name]) for name, each in plain.state_dict().items())
    plain.load_state_dict(inside)
    assert not torch.equal(plain.state_dict()["first.weight"], before["first.weight"])


def test_ddps_first_bucket_is_of_1_mb_and_the_next_ones_are_larger():
    def buckets(rank):
        model = DistributedDataParallel(nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8))))
        sizes = []

        def hook(state, bucket):
            sizes.append(bucket.buffer().nbytes)
            done = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        model.register_comm_hook(None, hook)
        model(torch.ones(1, 512)).sum().backward()  # DDP learns the order of the gradients
        sizes.clear()
        model(torch.ones(1, 512)).sum().backward()
        return sizes

    assert values(buckets, 1) == [[2**20, 7 * 2**20]]  # eight gradients of 1 MiB each


def test_with_four_exchanges_a_step_of_four_micro_batches_takes_8_7_ms_longer():
    micro = [Forward(), Backward()]
    quiet = simulate([NoSync(*micro)] * 3 + [*micro, Step(), Update()])
    loud = simulate([*micro * 4, Step(), Update()])
    assert loud.seconds - quiet.seconds == pytest.approx(8.7e-3, abs=5e-5)


def test_a_wrapped_model_may_outlive_joined_which_keeps_the_group():
    """Why the script needs no `del`: the model is never the last to let go of the group."""

    def ends(rank):
        dist.destroy_process_group()  # that of `run_ranks`: here is a group of one
        for name in {"RANK", "WORLD_SIZE"} & os.environ.keys():
            del os.environ[name]
        with joined(device="cpu"):
            model = DistributedDataParallel(nn.Linear(2, 1))
            group = weakref.ref(dist.group.WORLD)
        del model
        gc.collect()
        return dist.is_initialized(), group() is not None

    assert values(ends, 1) == [(False, True)]


THREADS = """
import atexit, pathlib

def gloos():
    names = [each.read_text() for each in pathlib.Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in each for each in names)

atexit.register(lambda: print(gloos()))  # after what is registered later
{first}
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def train():
    {opens}
        ddp = DistributedDataParallel(nn.Linear(2, 1))
        print(gloos(), end=" ")
        {then}

train()
print(gloos(), end=" ")
"""
PLAINLY = 'dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)\n    if True:'
JOINED = 'from amp_lab.train.distributed.joining import joined\n    with joined(device="cpu"):'
FIRST = "import torch.distributed.nn.functional"


def gloos_threads(first, opens, then):
    """Return how many threads of gloo there are with the group, after it, and when Python ends."""
    script = THREADS.format(first=first, opens=opens, then=then)
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    during, after, end = map(int, ran.stdout.split()[-3:])
    if not during:
        pytest.skip("this PyTorch, or this system, does not tell the names of threads")
    return after, end


def test_gloos_threads_end_with_the_group_if_nobody_holds_on_to_it():
    """Why the script imports `torch.distributed.nn.functional` first, and has a `del`."""
    closes = "dist.destroy_process_group()"
    assert gloos_threads(FIRST, PLAINLY, f"del ddp; {closes}") == (0, 0)
    after, end = gloos_threads("", PLAINLY, f"del ddp; {closes}")
    assert after > 0
    assert end > 0, "nobody waits for them: one that Python's end overtakes aborts the process"


def test_gloos_threads_end_before_python_does_after_joined():
    after, end = gloos_threads("", JOINED, "")
    assert after > 0, "the group is kept, so that a model is never the last to let go of it"
    assert end == 0


def test_a_barrier_adds_nothing_but_its_own_time():
    def straggler(barrier):
        def program(rank):
            yield Load(ms=20 if rank else 1)
            yield Forward()
            if barrier:
                yield Barrier()
            yield Backward()
            yield Step()
            yield Update()

        return simulate(program, ranks=2)

    without, with_one = straggler(False), straggler(True)
    assert 0 <= with_one.seconds - without.seconds < 1e-3


def test_the_scripts_step_count_is_what_the_data_gives():
    """87 steps on the page: three epochs of 1,797 images in batches of 32 on each of two ranks."""
    assert 3 * math.ceil(math.ceil(len(digits()[0]) / 2) / 32) == 87


def test_spawned_ranks_can_meet_at_a_store_on_a_free_port():
    """What the page says of mp.spawn: the parent opens the store and hands the number on."""
    stores = [dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) for _ in range(3)]
    assert len({each.port for each in stores}) == 3
    guest = dist.TCPStore("127.0.0.1", stores[0].port, is_master=False)
    stores[0].set("word", "hello")
    assert guest.get("word") == b"hello"


def test_the_code_that_the_page_prints_fits_into_a_notebooks_line():
    assert max(map(len, inspect.getsource(ddp.train).splitlines())) <= 104


def test_the_run_that_is_killed_has_46_steps_and_dies_between_two_checkpoints_of_its_first_epoch():
    """Each epoch ends with a checkpoint, too: in its 18th step, the newest is that of step 10."""
    samples = math.ceil(round(0.8 * len(digits()[0])) / 2)
    steps = math.ceil(samples / ddp.Options().batch_size)
    assert 2 * steps == 46
    assert 10 < 18 < min(20, steps)
