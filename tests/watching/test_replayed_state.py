"""What a loop leaves behind, or is made of, when its batch runs again: averages, compiled code, threads."""

import _thread
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import amp_lab
from amp_lab.watching.overflow import find_overflow
from amp_lab.watching.replaying import copies, truth
from amp_lab.watching.replaying.autocast_off import autocast_off
from amp_lab.watching.replaying.copies import Copies

HUGE = 1e5  # FP16 ends at 65504


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 1))


def batch(size=1.0):
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(1)) * size, torch.zeros(8, 1)


# -- running averages that the overflow itself has spoiled


def test_averages_that_the_batch_has_spoiled_are_not_its_cause():
    model = build()
    x, y = batch(HUGE)
    with torch.autocast("cpu", torch.float16):
        model(x)
    assert not model[1].running_mean.isfinite().all()
    report = find_overflow(model, F.mse_loss, (x, y), device_type="cuda")
    assert (report.cause, report.module) == ("cast-overflow", "0")
    assert [note for note in report.notes if "1.running_mean" in note and "reset_running_stats()" in note]


def test_in_evaluation_mode_they_are():
    model = build()
    model[1].running_mean.fill_(torch.nan)
    report = find_overflow(model.eval(), F.mse_loss, batch(), device_type="cuda")
    assert (report.cause, report.module) == ("nan-in-weights", "1")
    assert not [note for note in report.notes if "reset_running_stats" in note]


# -- compiled code


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_is_answered_and_not_compiled_again(backend):
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    compiled = torch.compile(model, backend=backend)
    x, y = batch()
    F.mse_loss(compiled(x), y).backward()
    before = counters["stats"]["unique_graphs"]
    report = find_overflow(compiled, F.mse_loss, (x * HUGE, y), device_type="cuda")
    assert (report.cause, report.op, report.module) == ("cast-overflow", "linear", "_orig_mod.0")
    F.mse_loss(compiled(x), y).backward()
    assert counters["stats"]["unique_graphs"] == before


def test_a_watched_loop_of_a_compiled_model():
    torch._dynamo.reset()
    model = torch.compile(build(), backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    at_hand = {}

    def loss():
        with torch.autocast("cpu", torch.float16):
            return F.mse_loss(model(at_hand["x"]).float(), at_hand["y"])

    with amp_lab.watch(model, optimizer, scaler, replay=loss) as seen:
        for step in range(8):
            at_hand["x"], at_hand["y"] = batch(HUGE if step == 5 else 1.0)
            optimizer.zero_grad()
            scaler.scale(loss()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [(each.cause, each.module) for each in seen.overflows] == [("cast-overflow", "_orig_mod.0")]


# -- threads: on a GPU, a backward pass runs in one of PyTorch's own


def in_thread(start, node, monkeypatch):
    """Return whether a region is on that is entered in another thread, as if autograd's engine ran `node` there."""
    found, done = [], threading.Event()

    def enter():
        with torch.autocast("cpu", torch.float16):
            found.append(torch.is_autocast_enabled("cpu"))
        done.set()

    with monkeypatch.context() as patched, autocast_off():
        patched.setattr(torch._C, "_current_autograd_node", lambda: node)
        start(enter)
        assert done.wait(10)
    return found[0]


def test_a_checkpoint_in_a_backward_pass_on_a_gpu_is_without_autocast_too(monkeypatch):
    def by_python(function):
        threading.Thread(target=function).start()

    def by_others(function):
        _thread.start_new_thread(function, ())

    assert not in_thread(by_others, object(), monkeypatch)
    assert in_thread(by_others, None, monkeypatch), "some thread of somebody else"
    assert in_thread(by_python, object(), monkeypatch), "another loop, in a thread of its own"


# -- copies


@pytest.mark.parametrize("far", [False, True], ids=["here", "on the host"])
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.int64],
    ids=str,
)
def test_copies_come_back_bit_by_bit(dtype, far, monkeypatch):
    # The host's memory stands for the GPU's: what differs is where a copy lies, and that only changes are written back.
    monkeypatch.setattr(copies, "_is_far", lambda tensor: far)
    values = [torch.nan, torch.inf, -0.0, 1.0, 2.0, 3.0] if dtype.is_floating_point else [1, 2, 3, 4, 5, 6]
    weights = [torch.tensor(values).to(dtype), torch.ones(3, 2).to(dtype).t(), torch.zeros(0).to(dtype)]
    before = [each.clone().contiguous().view(torch.uint8) for each in weights]
    kept = Copies(weights=weights)
    for change in (lambda: weights[0][3:4].copy_(weights[0][4:5]), lambda: weights[1].zero_(), lambda: None):
        change()
        kept.put_back()
        now = [each.contiguous().view(torch.uint8) for each in weights]
        assert all(map(torch.equal, now, before))


def test_weights_are_copied_once_and_written_only_where_they_changed(monkeypatch):
    monkeypatch.setattr(copies, "_is_far", lambda tensor: isinstance(tensor, nn.Parameter))
    frozen = nn.Linear(4, 4).requires_grad_(False)
    table = nn.Embedding(10, 4, max_norm=0.1)
    model = nn.Sequential(table, frozen, nn.Linear(4, 1))
    before = [each.clone() for each in model.parameters()]
    versions = [each._version for each in frozen.parameters()]
    made = []
    kept = Copies.__init__
    monkeypatch.setattr(Copies, "__init__", lambda self, *args: made.append(1) or kept(self, *args))
    find_overflow(model, F.mse_loss, (torch.arange(10), torch.zeros(10, 1)), device_type="cuda")
    assert len(made) == 1
    assert all(map(torch.equal, model.parameters(), before))
    assert [each._version for each in frozen.parameters()] == versions


# -- the truth about large operators


@pytest.mark.parametrize(
    ("most", "dtype"), [(800, torch.float64), (400, torch.float32), (399, None)], ids=str
)
def test_the_truth_takes_no_more_memory_than_it_may(most, dtype, monkeypatch):
    monkeypatch.setattr(truth, "MOST", most)
    x = torch.full((10, 5), 300.0, dtype=torch.float16)
    found = truth.true_range(torch.ops.aten.mul.Tensor, (x, x.clone()), {})
    assert (found and found.dtype) == dtype
    assert found is None or found.largest == 90_000.0
