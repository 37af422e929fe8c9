"""What FP16 made zero over time: held against the same step in FP32, and silent about zeros of other kinds."""

from __future__ import annotations

import io
import math

import pytest
import torch
import torch.nn.functional as F
from rich.console import Console
from torch import nn

from amp_lab.watching.recording.later import Later
from amp_lab.watching.underflow.judging import judge
from amp_lab.watching.underflow.pile import from_pile
from amp_lab.watching.underflow.sample import EDGE, MOST, Samples, take
from amp_lab.watching.underflow.table import Underflow
from amp_lab.watching.watch import watch


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def _deep(act=nn.Tanh, layers=7, width=60):
    hidden = [each for _ in range(layers) for each in (nn.Linear(width, width), act())]
    return nn.Sequential(*hidden, nn.Linear(width, 1))


def _step(net, x, size, scaler=None, opt=None):
    """Make one step whose loss is as small as `size`."""
    if opt is not None:
        opt.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = net(x).float().square().mean() * size
    (loss if scaler is None else scaler.scale(loss)).backward()
    if scaler is not None:
        scaler.step(opt)
        scaler.update()
    elif opt is not None:
        opt.step()


def _watched(net, sizes, scaler=None, width=60):
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    x = torch.randn(32, width)
    with watch(net, opt, scaler) as seen:
        for size in sizes:
            _step(net, x, size, scaler, opt)
    return seen, x


def _truth(net, x, size):
    """Return for each module which numbers are zero in FP16, and which are in FP32."""
    found = []
    for half in (True, False):
        net.zero_grad()
        with torch.autocast("cpu", torch.float16, enabled=half):
            loss = net(x).float().square().mean() * size
        loss.backward()
        found.append(
            {
                name: torch.cat([each.grad.flatten() for each in module.parameters()])
                for name, module in net.named_modules()
                if name and list(module.parameters())
            }
        )
    return {name: (found[0][name], found[1][name]) for name in found[0]}


@pytest.mark.parametrize("size", [1.0, 1e-2, 1e-3, 1e-4, 1e-5])
def test_counts_are_those_of_a_replay(size):
    net = _deep()
    seen, x = _watched(net, [size])
    rows = {row.module: row for row in seen.underflow().rows}
    truth = _truth(net, x, size)  # lr is so small that the weights are the same
    assert list(rows) == list(truth)
    for name, (half, full) in truth.items():
        row, sizes = rows[name], half.abs()
        assert row.entries == row.total == half.numel()
        assert row.share_zero == pytest.approx((half == 0).double().mean().item(), abs=2e-3)
        subnormal = ((sizes > 0) & (sizes < 2.0**-14)).double().mean().item()
        assert row.share_subnormal == pytest.approx(subnormal, abs=2e-3)
        if sizes.any():
            assert row.largest == pytest.approx(sizes.max().item(), rel=1e-2)
            assert row.smallest == pytest.approx(sizes[sizes > 0].min().item(), rel=0.5)
        lost = ((half == 0) & (full != 0)).double().mean().item()
        if row.largest > 64 * EDGE or math.isnan(
            row.largest
        ):  # farther down the estimate may be much too low
            assert 0.4 * lost - 0.02 <= row.share_lost <= 1.1 * lost + 0.02, name


@pytest.mark.parametrize("size", [1.0, 1e-1, 1e-2])
def test_zeros_of_relu_do_not_count(size):
    net = _deep(nn.ReLU)
    seen, x = _watched(net, [size])
    for name, (half, full) in _truth(net, x, size).items():
        row = next(row for row in seen.underflow().rows if row.module == name)
        lost, nonzero = ((half == 0) & (full != 0)).sum().item(), (full != 0).sum().item()
        assert row.share_lost <= 2 * lost / nonzero + 0.1, name
    assert max(row.share_zero for row in seen.underflow().rows) > 0.6


def test_where_it_begins():
    net = _deep(layers=3)
    sizes = [2.0 ** (-each / 4) for each in range(130)]
    seen, _ = _watched(net, sizes)
    table = seen.underflow()
    assert table.steps == [1, 2, 3, 32, 64, 96, 128]
    # The farther from the loss, the earlier; the last layer at the end.
    began = [table.began[name] for name in ("0", "2", "4", "6")]
    assert began == sorted(began)
    assert 32 < began[0] < began[-1]
    exact = {}
    torch.manual_seed(0)
    same, x = _deep(layers=3), torch.randn(32, 60)
    for step in table.steps:
        for name, (half, full) in _truth(same, x, sizes[step - 1]).items():
            if ((half == 0) & (full != 0)).sum() >= 0.05 * (full != 0).sum():
                exact.setdefault(name, step)
    for name, step in exact.items():
        assert abs(table.steps.index(table.began[name]) - table.steps.index(step)) <= 1


def test_all_zeros_after_the_edge_are_lost():
    net = _deep(layers=2)
    seen, _ = _watched(net, [1e-4, 1e-5, 1e-12])
    assert all(row.share_lost == 1 for row in seen.underflow().at(3))


def test_a_scale_keeps_them():
    net = _deep()
    seen, x = _watched(net, [1e-3] * 3)
    scale = seen.underflow().scale
    assert scale is not None
    assert math.frexp(scale)[0] == 0.5
    assert scale > 1
    for half, full in _truth(net, x, 1e-3 * scale).values():
        assert ((half == 0) & (full != 0)).sum() <= 0.03 * full.numel()
        assert half.abs().max() < 65504 / 2
    assert seen.underflow().dtype is torch.float16


def test_bf16_where_no_scale_does():
    """One module is at the edge, another at the end of the range."""
    tiny, large = torch.randn(64, 64) * EDGE, torch.full((64,), 30000.0)
    sample = take(1, {"first": [tiny.half().float()], "last": [large]}, None)
    table = Underflow([sample])
    assert table.scale is None
    assert table.dtype is torch.bfloat16
    assert "bfloat16" in table.summary()


def test_the_scale_is_read_from_the_scaler():
    net = _deep()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    seen, _ = _watched(net, [1e-3] * 3, scaler)
    table = seen.underflow()
    assert {row.scale for row in table.rows} == {2.0**14}
    assert not table.began
    assert table.scale == 2.0**14
    assert "gradients-underflow" not in seen.report().ids


class _Sparse(nn.Module):
    """Unused words, a mask, a norm in FP32, a layer times zero, one that is frozen."""

    def __init__(self):
        super().__init__()
        self.words, self.norm = nn.Embedding(500, 16), nn.LayerNorm(16)
        self.unused, self.frozen = nn.Linear(16, 16), nn.Linear(16, 16).requires_grad_(False)
        self.last = nn.Linear(16, 4)

    def forward(self, x):
        h = self.norm(self.words(x))
        h = self.frozen(h) + 0.0 * self.unused(h)
        return self.last(h * (torch.arange(16) < 8))


def test_natural_zeros_are_silent():
    net = _Sparse()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = torch.randint(0, 20, (32,)), torch.randint(0, 4, (32,))
    with watch(net, opt, scaler) as seen:
        for _ in range(4):
            opt.zero_grad()
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    table = seen.underflow()
    zeros = {row.module: row.share_zero for row in table.at(3)}
    assert zeros["words"] > 0.9
    assert zeros["unused"] == 1
    assert zeros["last"] > 0.4
    assert "frozen" not in zeros
    assert {row.share_lost for row in table.rows} == {0.0}
    assert not seen.report().ids


def test_the_rule_and_its_cause():
    seen, _ = _watched(_deep(), [1e-4] * 3)
    report = seen.report()
    assert report.ids[0] == "fp16-without-scaler"
    assert "gradients-underflow" in str(report.to_json())
    small = torch.amp.GradScaler("cpu", init_scale=2.0**-3)
    seen, _ = _watched(_deep(), [1e-3] * 3, small)
    assert "gradients-underflow" in seen.report().ids


@pytest.mark.parametrize("dtype", [torch.bfloat16, None])
def test_only_of_fp16(dtype):
    net, x = nn.Linear(4, 1), torch.randn(8, 4)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, opt) as seen:
        opt.zero_grad()
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss = net(x).float().mean()
        loss.backward()
        opt.step()
    assert not seen.run.underflow
    with pytest.raises(ValueError, match="FP16"):
        seen.underflow().plot()
    assert "Nothing to tell" in str(seen.underflow())


def test_fp32_gradients_are_not_judged():
    values = torch.randn(4000) * EDGE
    values[:1000] = 0
    assert judge([take(1, {"norm": [values]}, None)])[0].share_lost == 0


@pytest.mark.parametrize("bulk", [2.0, 8.0, 32.0, 200.0])
def test_the_estimate_of_a_known_spread(bulk):
    true = torch.randn(4000, dtype=torch.float64) * bulk * EDGE
    true[:100] *= 8  # a few that are large, so that the bulk is not all there is
    rounded = true.half().float()
    (counts,) = take(1, {"layer": [rounded]}, None).read()
    assert counts.zeros == (rounded == 0).sum()
    assert counts.ones == (rounded.abs() == EDGE).sum()
    assert counts.fours == ((rounded.abs() >= 4 * EDGE) & (rounded.abs() < 8 * EDGE)).sum()
    zeros = counts.zeros
    assert from_pile(counts) == pytest.approx(zeros, rel=0.45, abs=12)


def test_large_gradients_are_sampled_and_many_samples_thinned():
    big = torch.randn(1024, 768).half().float()
    transposed = big.t()
    (counts,) = take(
        1, {"layer": [big.reshape(768, 4, 16, 16).to(memory_format=torch.channels_last)]}, None
    ).read()
    assert counts.total == big.numel()
    assert MOST / 2 < counts.entries <= MOST + 1
    (counts,) = take(1, {"layer": [transposed]}, None).read()
    assert counts.zeros < 10
    assert counts.finite == counts.entries
    kept = Samples()
    for step in range(1, 1000):
        kept.add(take(step, {"layer": [torch.ones(1)]}, Later(float, 2.0)))
        kept.add(take(step, {"layer": [torch.ones(1)]}, Later(float, 4.0)))
    steps = [each.step for each in kept]
    assert len(steps) <= 64
    assert steps[:3] == [1, 2, 3]
    assert steps[-1] == 999
    assert steps == sorted(set(steps))
    assert {each.scale.value for each in kept} == {4.0}


def test_overflow_is_no_underflow():
    (row,) = judge([take(1, {"layer": [torch.tensor([0.0] * 50 + [math.inf, EDGE])]}, None)])
    assert row.overflowed
    assert row.share_lost == 0
    (row,) = judge([take(1, {"layer": [torch.tensor([0.0] * 50 + [math.nan, EDGE])]}, None)])
    assert row.overflowed
    assert row.share_lost == 0


def test_shown():
    import json

    seen, _ = _watched(_deep(layers=2), [1e-3, 1e-4, 1e-5])
    table = seen.underflow()
    told = json.loads(json.dumps(table.to_json(), allow_nan=False))
    assert len(told["rows"]) == 9
    assert told["began"] == table.began
    text, page = str(table), table._repr_html_()
    for module in table.modules:
        assert f"\n{module} " in text
        assert f">{module}</th>" in page
    out = io.StringIO()
    Console(file=out, width=140).print(table)
    assert all(module in out.getvalue() for module in table.modules)
    figure = table.plot()
    axes, bar = figure.axes
    assert axes.get_xlabel() == "sampled training step"
    assert "%" in bar.get_ylabel()
    shares = axes.images[0].get_array()
    assert shares.shape == (3, 3)
    assert shares[0, 2] == pytest.approx(100 * table.at(3)[0].share_lost)
    from matplotlib import pyplot as plt

    plt.close(figure)
    with pytest.raises(ValueError, match="1, 2, 3"):
        table.at(7)
