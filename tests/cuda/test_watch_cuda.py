"""The watcher on a CUDA device: it never waits for the GPU, sees fused skips, and reads numbers when a report asks."""

import contextlib

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import amp_lab
from amp_lab.watching.recording.events import Clipped, Forward, Scaled, Stepped

DEVICE = "cuda"

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype"),
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="no CUDA device: the watcher is not tried on a GPU's loop",
    ),
]


@contextlib.contextmanager
def waiting_is_an_error():
    """Inside, whatever makes the host wait for the GPU raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Training:
    """A small model on the GPU, with a fused optimizer and a scaler: none of its calls waits for the GPU."""

    def __init__(self, scale=1024.0, dtype=torch.float16, **settings):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1)).to(DEVICE)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), **{"lr": 1e-3, "fused": True, **settings})
        self.scaler = torch.amp.GradScaler(DEVICE, init_scale=scale)
        self.dtype = dtype
        self.x, self.y = torch.randn(16, 8).to(DEVICE), torch.randn(16, 1).to(DEVICE)

    def watch(self):
        return amp_lab.watch(self.model, self.optimizer, self.scaler)

    def forward(self, factor=1.0):
        with torch.autocast(DEVICE, self.dtype):
            return F.mse_loss(self.model(self.x), self.y) * factor

    def step(self, factor=1.0):
        self.optimizer.zero_grad()
        self.scaler.scale(self.forward(factor)).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


@pytest.fixture
def warm():
    """A training whose kernels, optimizer state and scale are there already."""
    training = Training()
    training.step()
    return training


def test_a_right_loop_waits_for_nothing_and_nothing_is_said(warm):
    seen = warm.watch()
    with waiting_is_an_error(), seen:
        for _ in range(40):  # more than the closer looks of the first steps and of the 32nd
            warm.step()
    report = seen.report()
    assert report.run.steps == 40
    assert report.run.notes == ()
    assert not report.all, str(report)


def test_unscaled_and_clipped(warm):
    with waiting_is_an_error(), warm.watch() as seen:
        for _ in range(4):
            warm.optimizer.zero_grad()
            warm.scaler.scale(warm.forward()).backward()
            warm.scaler.unscale_(warm.optimizer)
            nn.utils.clip_grad_norm_(warm.model.parameters(), 1.0)
            warm.scaler.step(warm.optimizer)
            warm.scaler.update()
    assert not seen.report().all, str(seen.report())


def test_clipped_too_early(warm):
    """The number in the sentence is read when the report is made; it is the one that clip returned."""
    norms = []
    with waiting_is_an_error(), warm.watch() as seen:
        for _ in range(4):
            warm.optimizer.zero_grad()
            warm.scaler.scale(warm.forward()).backward()
            norms.append(nn.utils.clip_grad_norm_(warm.model.parameters(), 1.0))
            warm.scaler.step(warm.optimizer)
            warm.scaler.update()
    report = seen.report()
    assert [each.id for each in report.diagnoses] == ["clip-before-unscale"]
    assert [each.norm.value for each in report.run.of(Clipped)] == pytest.approx(
        [each.item() for each in norms]
    )


def test_a_fused_optimizer_that_is_skipped(warm):
    """Its step is called, and its kernel does nothing: found_inf tells, and is read later."""
    before = [each.detach().clone() for each in warm.model.parameters()]
    infinite = torch.tensor(float("inf"), device=DEVICE)
    with waiting_is_an_error(), warm.watch() as seen:
        warm.step(infinite)
        after = [each.detach().clone() for each in warm.model.parameters()]
        warm.step()
    steps = list(seen.run.of(Stepped))
    assert [each.skipped.value for each in steps] == [True, False]
    assert [each.ran for each in steps] == [True, True]
    assert all(each.fused for each in steps)
    assert list(seen.run.skips) == [1]
    assert [each.finite.value for each in seen.run.of(Scaled)] == [False, True]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_an_optimizer_that_waits_by_itself():
    """Not fused, PyTorch's scaler reads found_inf on the host, once in each step: the watcher adds nothing to that."""
    training = Training(scale=2.0**40, fused=False)
    with training.watch() as seen:
        for _ in range(40):
            training.step()
    steps = list(seen.run.of(Stepped))
    skipped = [each.step for each in steps if each.skipped.value]
    assert skipped
    assert skipped == [each.step for each in steps if not each.ran]
    assert list(seen.run.skips) == skipped
    assert not [each for each in seen.report().all if each.severity > 1], str(seen.report())


def test_the_scale_is_that_of_the_moment(warm):
    """PyTorch writes to the scale in place; what was noted stays."""
    with warm.watch() as seen:
        warm.step()
        warm.step(torch.tensor(float("inf"), device=DEVICE))
        warm.step()
    assert [each.scale.value for each in seen.run.of(Scaled)] == [1024.0, 1024.0, 512.0]


def test_one_region_over_several_steps(warm):
    """A fused optimizer does not count up the versions of what it writes to; the rule knows that it stepped."""
    with warm.watch() as seen, torch.autocast(DEVICE, torch.float16):
        for _ in range(3):
            warm.optimizer.zero_grad()
            loss = F.mse_loss(warm.model(warm.x), warm.y)
            warm.scaler.scale(loss).backward()
            warm.scaler.step(warm.optimizer)
            warm.scaler.update()
    report = seen.report()
    assert [each.id for each in report.diagnoses] == ["region-over-steps"]


def test_a_region_for_the_other_device(warm):
    other = "cpu" if DEVICE == "cuda" else "cuda"
    with warm.watch() as seen:
        for _ in range(3):
            warm.optimizer.zero_grad()
            with torch.autocast(other, torch.bfloat16):
                loss = F.mse_loss(warm.model(warm.x), warm.y)
            warm.scaler.scale(loss).backward()
            warm.scaler.step(warm.optimizer)
            warm.scaler.update()
    assert [each.id for each in seen.report().diagnoses] == ["wrong-device-type"]


def test_bf16_without_a_scaler():
    training = Training(dtype=torch.bfloat16)
    with amp_lab.watch(training.model, training.optimizer) as seen:
        for _ in range(3):
            training.optimizer.zero_grad()
            training.forward().backward()
            training.optimizer.step()
    assert not seen.report().all, str(seen.report())
    assert [each.autocast for each in seen.run.of(Forward)] == [torch.bfloat16] * 3


def test_half_statistics_and_weights():
    """On a GPU, too: the scaler refuses FP16 gradients."""
    training = Training()
    training.model.half()
    with contextlib.suppress(ValueError), training.watch() as seen:
        training.step()
    assert [each.id for each in seen.report().diagnoses] == ["fp16-weights"]
