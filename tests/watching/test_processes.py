"""One process of several runs a batch again alone: it never waits for the others, and the loop goes on as before."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import amp_lab
from amp_lab.watching.overflow import find_overflow
from amp_lab.watching.replaying import processes
from amp_lab.watching.replaying.processes import OtherProcessesError

pytestmark = pytest.mark.skipif(
    not dist.is_available() or sys.platform == "win32", reason="this PyTorch has no torch.distributed"
)
HUGE = 1e5  # FP16 ends at 65504


class Collectives(TorchDispatchMode):
    """Lists the operators that would have to wait for other processes."""

    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "c10d" in func.namespace:
            self.called.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def one_process(tmp_path):
    """A process group with all that belongs to it, of one process, for which nobody waits."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def as_of_several(one_process, monkeypatch):
    """The same, taken for one of several processes."""
    monkeypatch.setattr(processes, "_several_processes", lambda: True)


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def batch(size=1.0):
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1)) * size, torch.zeros(8, 1)


def train(model, x, y):
    F.mse_loss(model(x), y).backward()


@pytest.mark.usefixtures("as_of_several")
@pytest.mark.parametrize("given", ["wrapper", "closure", "closure, and the model inside"])
@pytest.mark.parametrize("settings", [{}, {"find_unused_parameters": True}, {"static_graph": True}], ids=str)
@pytest.mark.parametrize("steps", [0, 1])
def test_no_other_process_is_waited_for_and_training_goes_on(given, settings, steps):
    model = build()
    wrapped = DistributedDataParallel(model, **settings)
    for _ in range(steps):
        train(wrapped, *batch())
    x, y = batch(HUGE)

    def closure():
        with torch.autocast("cpu", torch.float16):
            return F.mse_loss(wrapped(x), y)

    with Collectives() as collectives:
        if given == "wrapper":
            report = find_overflow(wrapped, F.mse_loss, (x, y), device_type="cuda")
        else:
            root = wrapped if given == "closure" else model
            report = find_overflow(root, closure, device_type="cuda")
    assert not collectives.called
    assert (report.cause, report.op) == ("cast-overflow", "linear")
    assert report.module == ("0" if "inside" in given else "module.0")
    with Collectives() as collectives:
        for _ in range(2):
            train(wrapped, *batch())
    assert collectives.called, "the processes exchange their gradients as before"


@pytest.mark.usefixtures("as_of_several")
def test_a_watched_loop():
    model = build()
    wrapped = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    at_hand = {}

    def loss():
        with torch.autocast("cpu", torch.float16):
            return F.mse_loss(wrapped(at_hand["x"]).float(), at_hand["y"])

    called = []
    with amp_lab.watch(wrapped, optimizer, scaler, replay=loss) as seen:
        for step in range(8):
            at_hand["x"], at_hand["y"] = batch(HUGE if step == 5 else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss()).backward()
            with Collectives() as collectives:
                scaler.step(optimizer)  # where a skipped batch runs again
            called += collectives.called
            scaler.update()
    assert not called
    assert [(each.cause, each.module) for each in seen.overflows] == [("cast-overflow", "module.0")]
    assert list(seen.run.notes) == []


@pytest.mark.usefixtures("as_of_several")
def test_batch_normalisation_over_processes():
    """On a GPU it would wait; here its own forward pass refuses the CPU, which shows that it was not called."""
    model = nn.SyncBatchNorm.convert_sync_batchnorm(build())
    report = find_overflow(model, F.mse_loss, batch(HUGE), device_type="cuda")
    assert (report.cause, report.module) == ("cast-overflow", "0")
    assert [note for note in report.notes if "SyncBatchNorm averages over all processes" in note]
    quiet = find_overflow(model.eval(), F.mse_loss, batch(), device_type="cuda")
    assert quiet.ok
    assert not quiet.notes


@pytest.mark.usefixtures("as_of_several")
@pytest.mark.parametrize("where", ["model", "loss"])
def test_what_would_wait_is_refused_with_a_sentence(where):
    def averaged(x):
        dist.all_reduce(x.detach().clone())
        return x

    model = build()
    if where == "model":
        model[0].register_forward_hook(lambda _, __, out: averaged(out))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(
        OtherProcessesError, match=r"calls c10d\.allreduce, which waits .* whole in this process"
    ):
        find_overflow(model, lambda out, y: F.mse_loss(averaged(out), y), batch(), device_type="cuda")
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())


@pytest.mark.usefixtures("one_process")
def test_one_process_may_call_what_it_likes():
    model = build()
    model[0].register_forward_hook(lambda _, __, out: dist.barrier())
    assert find_overflow(model, F.mse_loss, batch(), device_type="cuda").ok


def test_data_parallel():
    report = find_overflow(DataParallel(build()), F.mse_loss, batch(HUGE), device_type="cuda")
    assert (report.cause, report.module) == ("cast-overflow", "module.0")


def test_wrappers_are_as_before():
    kinds = (DistributedDataParallel, DataParallel, nn.SyncBatchNorm)
    before = [each.forward for each in kinds]
    find_overflow(build(), F.mse_loss, batch(HUGE), device_type="cuda")
    assert [each.forward for each in kinds] == before


PROGRAM = """
import os, sys, torch, torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
import amp_lab
torch.set_num_threads(1)
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))
wrapped = DistributedDataParallel(model)
optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
x, y = torch.randn(8, 4), torch.zeros(8, 1)
size = 1.0
def loss():
    with torch.autocast("cpu", torch.float16):
        return F.mse_loss(wrapped(x * size).float(), y)
with amp_lab.watch(wrapped, optimizer, scaler, replay=loss) as seen:
    for step in range(8):
        size = 1e5 if step == 5 and rank == 0 else 1.0  # only here: the other process finds its batch finite
        optimizer.zero_grad()
        scaler.scale(loss()).backward()
        scaler.step(optimizer)
        scaler.update()
if rank == 0:  # alone
    size = 1.0
    assert amp_lab.find_overflow(wrapped, F.mse_loss, (x * 1e5, y), device_type="cuda").cause == "cast-overflow"
sums = torch.stack([each.detach().sum() for each in model.parameters()])
both = [torch.zeros_like(sums), torch.zeros_like(sums)]
dist.all_gather(both, sums)
assert torch.equal(*both), both
print([each.cause for each in seen.overflows], flush=True)
"""


@pytest.mark.long
def test_two_real_processes(tmp_path):
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": str(root), "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    both = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        said = [each.communicate(timeout=120) for each in both]
    finally:
        for each in both:
            each.kill()
    assert [each.returncode for each in both] == [0, 0], "\n".join(err[-2000:] for _, err in said)
    # Gloo of PyTorch 2.9 says first whom it is connected to.
    assert [out.splitlines()[-1] for out, _ in said] == ["['cast-overflow']", "[]"]
