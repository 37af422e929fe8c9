"""A watched loop makes the host wait for the device no more often than an unwatched one.

On a GPU, `.item()` and everything like it (`float(tensor)`, `if tensor:`, `tolist`) makes the host wait. Most of
them call `aten._local_scalar_dense`, also on a CPU, where it can be counted: over 200 healthy steps in which the scale
grows.

What is on the CPU the watcher may read by `tolist`, which is no operator. So a second test lets the watcher believe
that all tensors are on a GPU, and allows it no reading at all. `tests/cuda` asks CUDA itself.
"""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
from torch.utils._python_dispatch import TorchDispatchMode

import amp_lab
from amp_lab.watching.watch import watch

STEPS = 200
WATCHING = Path(amp_lab.__file__).parent / "watching"
# What makes the host wait for the device, and what copies to it.
WAITS = ("aten._local_scalar_dense", "aten.nonzero", "aten.equal", "aten.is_nonzero", "aten.masked_select")


class Waits(TorchDispatchMode):
    """Counts the operators that make the host wait."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removesuffix(".default")
        if name.startswith(WAITS):
            self.counted[name] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _fp16(net, opt, scaler):
    """Return one step of a loop with a scaler, clipping, a scheduler and accumulated loss; nothing in it is wrong."""
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, STEPS)
    total = torch.zeros(())

    def step(x, y):
        opt.zero_grad()
        with autocast("cpu", dtype=torch.float16):
            loss = F.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        scheduler.step()
        total.add_(loss.detach())

    return step


def _bf16(net, opt, scaler):
    def step(x, y):
        opt.zero_grad()
        with autocast("cpu", dtype=torch.bfloat16):
            loss = F.mse_loss(net(x), y)
        loss.backward()
        opt.step()

    return step


def _waits(make_step, watched: bool, fused: bool, replayed: bool = False) -> tuple[Counter[str], float]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=fused)
    scaler = GradScaler("cpu", init_scale=64.0, growth_interval=50) if make_step is _fp16 else None
    data = [(torch.randn(8, 6), torch.randn(8, 1)) for _ in range(8)]
    step = make_step(net, opt, scaler)
    replay = (lambda: pytest.fail("nothing overflows")) if replayed else None
    with watch(net, opt, scaler, replay=replay) if watched else nullcontext(), Waits() as waits:
        for number in range(STEPS):
            step(*data[number % 8])
    return waits.counted, scaler.get_scale() if scaler else 0.0


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
@pytest.mark.parametrize("make_step", [_fp16, _bf16], ids=["FP16", "BF16"])
def test_no_synchronisation_is_added(make_step, fused):
    alone, scale = _waits(make_step, watched=False, fused=fused)
    seen, same_scale = _waits(make_step, watched=True, fused=fused)
    assert seen == alone
    assert scale == same_scale
    if make_step is _fp16:
        assert scale == 64.0 * 2**4  # it grew four times
        assert fused or alone["aten._local_scalar_dense"] >= STEPS  # found_inf: the counting counts


READINGS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")


def _from_watching() -> str | None:
    """Return the line of amp_lab that called the function which asks, if it was one."""
    frame = sys._getframe(2)
    file, function = Path(frame.f_code.co_filename), frame.f_code.co_name
    if not file.is_relative_to(WATCHING) or function == "__torch_function__":  # passes on what others call
        return None
    return f"{file.name}:{frame.f_lineno}"


@pytest.fixture
def seems_elsewhere(monkeypatch):
    """All tensors are on another device than the host, if amp_lab asks; return the lines of it that read one."""
    read: list[str] = []
    real = torch.Tensor.device

    def device(tensor):
        return torch.device("xpu:0") if _from_watching() else real.__get__(tensor)

    def noted(name):
        original = getattr(torch.Tensor, name)

        def reading(tensor, *args, **kwargs):
            if line := _from_watching():
                read.append(f"{line} {name}")
            return original(tensor, *args, **kwargs)

        return reading

    monkeypatch.setattr(torch.Tensor, "device", property(device), raising=False)
    for name in READINGS:
        monkeypatch.setattr(torch.Tensor, name, noted(name))
    return read


def test_a_replay_adds_no_synchronisation_while_nothing_overflows():
    assert _waits(_fp16, True, False, replayed=True) == _waits(_fp16, False, False)


@pytest.mark.parametrize("fused", [False, True], ids=["foreach", "fused"])
@pytest.mark.parametrize("make_step", [_fp16, _bf16], ids=["FP16", "BF16"])
def test_nothing_is_read_from_a_tensor_on_another_device(make_step, fused, seems_elsewhere):
    _waits(make_step, watched=True, fused=fused)
    assert Counter(seems_elsewhere) == {}


@pytest.mark.parametrize(
    ("make_step", "fused", "each_step"),
    [(_fp16, False, 0), (_fp16, True, 1), (_bf16, False, 1)],
    ids=["FP16", "FP16 fused", "BF16"],
)
def test_with_a_replay_one_flag_a_step_is_read_where_no_scaler_has_read_it(
    make_step, fused, each_step, seems_elsewhere
):
    _waits(make_step, watched=True, fused=fused, replayed=True)
    assert len(seems_elsewhere) == STEPS * each_step


def test_a_reading_from_another_device_is_seen(seems_elsewhere):
    from amp_lab.watching.recording.later import Later

    assert Later(float, torch.ones(())).value == 1.0
    assert len(seems_elsewhere) == 1


def test_the_counting_sees_what_it_should_count():
    with Waits() as waits:
        tensor = torch.ones(2)
        float(tensor[0])
        tensor.tolist()
        bool(tensor[1] > 0)
    assert waits.counted["aten._local_scalar_dense"] >= 2
