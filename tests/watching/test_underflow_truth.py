"""What `Watch.underflow()` says, held against gradients in FP64 of the same weights and batches; its advice, tried."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

from amp_lab.watching.underflow.judging import WORTH
from amp_lab.watching.watch import watch

STEPS = 97  # sampled: 1, 2, 3, 32, 64, 96


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Setting:
    """A model, its batch, the loss scale, and how many powers of two the loss shrinks by in a run."""

    make: Callable[[], tuple[nn.Module, torch.Tensor]]
    scale: float
    shrinks: float


def _tanh():
    hidden = [each for _ in range(3) for each in (nn.Linear(48, 48), nn.Tanh())]
    return nn.Sequential(*hidden, nn.Linear(48, 1)), torch.randn(32, 48)


def _relu():
    hidden = [each for _ in range(4) for each in (nn.Linear(48, 48), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(48, 1)), torch.randn(32, 48)


def _words():
    net = nn.Sequential(nn.Embedding(300, 32), nn.Flatten(), nn.Linear(256, 48), nn.GELU(), nn.Linear(48, 1))
    return net, torch.randint(0, 100, (16, 8))


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True)
        self.last = nn.Linear(32, 1)

    def forward(self, x):
        return self.last(self.layer(x))


def _attention():
    return _Attention(), torch.randn(8, 10, 32)


SETTINGS = {
    "tanh": Setting(_tanh, 4.0, 18),
    "relu": Setting(_relu, 2.0, 16),
    "words": Setting(_words, 1.0, 18),
    "attention": Setting(_attention, 0.25, 18),
}


def _factor(setting, step):
    return 2.0 ** (-setting.shrinks * step / STEPS)


def _gradients(net, x, factor):
    """Return the gradients of each module in the dtype of the model, with autocast where that is FP32."""
    net.zero_grad()
    half = next(net.parameters()).dtype == torch.float32
    with torch.autocast("cpu", torch.float16, enabled=half):
        y = net(x).float() if half else net(x.double() if x.is_floating_point() else x)
        loss = y.square().mean()
    (loss * factor).backward()
    return {
        name: torch.cat([each.grad.flatten() for each in own])
        for name, module in net.named_modules()
        for own in [list(module.parameters(recurse=False))]
        if own
    }


def _run(setting, seed=0):
    """Train, and return the watch, and the net and batch (lr = 0: the weights stay)."""
    torch.manual_seed(seed)
    net, x = setting.make()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=setting.scale, growth_interval=10**9)
    with watch(net, optimizer, scaler) as seen:
        for step in range(1, STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = net(x).float().square().mean()
            scaler.scale(loss * _factor(setting, step)).backward()
            scaler.step(optimizer)
            scaler.update()
    return seen, net, x


def _lost(setting, net, x, steps):
    """Return per (module, step) which share of what is not 0 in FP64 is 0 in FP16: on its way, and cast at the end."""
    found = {}
    exact_net = copy.deepcopy(net).double()
    for step in steps:
        factor = _factor(setting, step) * setting.scale
        half, exact = _gradients(net, x, factor), _gradients(exact_net, x, factor)
        for name, true in exact.items():
            there = true != 0
            found[name, step] = tuple(
                ((each == 0) & there).sum().item() / there.sum().item() for each in (half[name], true.half())
            )
    return found


@pytest.mark.parametrize("name", SETTINGS)
def test_shares_and_beginnings_are_those_of_fp64(name):
    setting = SETTINGS[name]
    seen, net, x = _run(setting)
    table = seen.underflow()
    assert table.steps == [1, 2, 3, 32, 64, 96]
    truth = _lost(setting, net, x, table.steps)
    close = 0
    rows = [row for row in table.rows if row.entries >= 256]  # of fewer, a pile is hardly seen
    for row in rows:
        on_its_way, cast = truth[row.module, row.step]
        # As `pile.py` says: never above the zeros, at worst a sixth of the truth, and hardly too high.
        assert row.share_lost <= row.share_zero
        assert on_its_way / 6 - 0.05 <= row.share_lost <= on_its_way + 0.2, (row.module, row.step)
        assert on_its_way >= cast - 0.12  # what is lost on the way is lost beside what the cast would lose
        close += row.share_lost >= 0.45 * on_its_way - 0.01
    assert close >= 0.9 * len(rows)
    began = {}
    large = {row.module for row in rows}
    for (module, step), (share, _) in truth.items():
        if module in large and share >= WORTH:
            began.setdefault(module, step)
    assert len(began) >= 2
    for module, step in began.items():
        found = table.began.get(module, math.inf)
        steps = [*table.steps, math.inf]
        assert abs(steps.index(found) - steps.index(step)) <= 1, module


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("powers", [16, 12])
def test_the_advised_scale_keeps_them_and_does_not_overflow(name, powers):
    """At a scale at which much is lost, and at one at which everything seems to be."""
    setting = SETTINGS[name]
    small = Setting(setting.make, setting.scale * 2.0**-powers, 0.0)
    table = _run(small)[0].underflow()
    assert table.began
    assert table.scale is not None
    assert table.scale > small.scale
    seen, net, x = _run(Setting(setting.make, table.scale, 0.0))
    again = seen.underflow()
    assert not any(row.overflowed for row in again.rows)
    truth = _lost(Setting(setting.make, table.scale, 0.0), net, x, [1])
    worst = max(share for share, _ in truth.values())
    if table.sure:
        assert worst <= 0.03
    else:
        # It is worth a try, says the table: then it must be better, and the next look must not be worse informed.
        assert worst < max(row.share_lost for row in table.rows)
        assert not again.began or again.scale is None or again.scale > table.scale
