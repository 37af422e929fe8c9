"""Infinities that vanish inside a model or inside an operator, and causes that a trace alone shows."""

import dataclasses
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_lab.watching.overflow import find_overflow
from amp_lab.watching.replaying import explaining
from amp_lab.watching.replaying.causes import judge
from amp_lab.watching.replaying.causes.case import Case
from amp_lab.watching.replaying.causes.masks import mask_overflow
from amp_lab.watching.replaying.records import Replay, Trace
from amp_lab.watching.replaying.tracing import trace

NAN = math.nan


class Model(nn.Module):
    """A layer with a weight of `size` times the identity, and a function of its result."""

    def __init__(self, function, width=4, size=1.0):
        super().__init__()
        self.function = function
        self.layer = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.layer.weight.copy_(torch.eye(width) * size)

    def forward(self, x):
        return self.function(self.layer(x))


def asked(function, x, size=1.0, device_type="cuda"):
    model = Model(function, x.shape[-1], size)
    return find_overflow(model, lambda out: out.float().square().mean(), x, device_type=device_type)


def test_an_infinity_goes_a_long_way():
    """Longer than Python lets functions call each other."""

    def late(h):
        h = h.double()
        for _ in range(1100):
            h = h * 1
        return 1 / h

    report = asked(late, torch.full((2, 4), 80.0), size=1000.0)
    assert (report.cause, report.op, report.module) == ("hidden-overflow", "linear", "layer")
    assert "Then reciprocal" in report.sentence


def test_inside_one_operator():
    """The length of 2,048 numbers of 2,000 is 90,510; divided by that infinity, they are 0, and so is the cosine."""
    x = torch.full((4, 2048), 2000.0)
    assert F.cosine_similarity(x.half(), x.half()).abs().max() == 0
    report = asked(lambda h: F.cosine_similarity(h, h), x, device_type="cpu")
    assert (report.cause, report.op) == ("hidden-overflow", "cosine_similarity")
    assert "on the way had 90,510, and FP16 ends at 65,504" in report.sentence
    assert "gave" not in report.sentence  # it gave 0


@pytest.mark.parametrize(("mask", "told"), [("bool", True), ("float", False)])
def test_attention_that_makes_nan(mask, told):
    """It is the mask's doing only where that is of True and False: a sum with numbers may overflow."""
    keep = torch.zeros(8, 8, dtype=torch.bool)
    masks = keep if mask == "bool" else torch.where(keep, 0.0, -100.0).half()
    model = Model(lambda h: F.scaled_dot_product_attention(h, h, h, attn_mask=masks), 16)
    seen = trace(
        lambda: model(torch.ones(1, 8, 16)).float().mean(), {"": model}, scale=1.0, device_type="cpu"
    )
    ops = [
        _with_nan(row) if "attention" in row.op.name and row.op.phase == "forward" else row
        for row in seen.ops
    ]
    assert ops != list(seen.ops)
    bad = Replay(1.0, NAN, (), 1)
    verdict = mask_overflow(Case((bad,), None, bad, dataclasses.replace(seen, ops=tuple(ops))))
    assert (verdict is not None) is told


def _with_nan(row):
    outputs = tuple(dataclasses.replace(each, nan=each.of) for each in row.outputs)
    return dataclasses.replace(row, outputs=outputs)


@pytest.mark.parametrize(("in_fp32", "cause"), [(NAN, "fp32-overflow"), (0.5, "forward-overflow")])
def test_what_a_trace_does_not_show(in_fp32, cause):
    verdict = judge(
        Case((Replay(1.0, NAN, (), 2),), None, Replay(1.0, in_fp32, (), 2, True), Trace(1.0, (), None))
    )
    assert verdict.cause == cause
    assert "the traced run does not show which operator begins it" in verdict.sentence


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda h: torch.special.bessel_y0(h.float() * 0), "no finite value there"),
        (lambda h: torch.log(h.float() - 5), "outside what it is defined for"),
    ],
    ids=["bessel_y0", "log"],
)
def test_poles_that_are_not_at_zero(function, words):
    report = asked(function, torch.ones(2, 4))
    assert report.cause == "pole"
    assert words in report.sentence


def test_gradients_that_no_scale_cures():
    """1e15 / 8 is 7.5e6 even at a scale of 2^-24; FP32 holds it."""
    report = asked(lambda h: h.float().sum() * 1e8, torch.ones(2, 4))
    assert (report.cause, report.cures, report.scale) == ("backward-overflow", False, None)
    assert "No scale down to 2^-24 makes them finite" in report.sentence


def test_an_error_in_the_backward_pass_goes_through():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, _):
            raise RuntimeError("no gradient today")

    with pytest.raises(RuntimeError, match="no gradient today"):
        asked(Broken.apply, torch.ones(2, 4))


def test_a_model_that_asks_itself():
    inner = nn.Linear(4, 4)

    def asks(h):
        trace(lambda: inner(h).mean(), {"": inner}, scale=1.0, device_type="cpu")
        return h

    model = Model(asks)
    seen = trace(lambda: model(torch.ones(2, 4)).mean(), {"": model}, scale=1.0, device_type="cpu")
    assert "being followed operator by operator" in seen.error
    assert "take that call out of it" in seen.error


def test_a_report_of_a_model_with_many_faults_stays_short():
    """A norm by hand in each of 100 layers, of which each is a source of its own."""

    class NormByHand(nn.Module):
        def forward(self, x):
            return x + x / (x * x).mean(-1, keepdim=True).sqrt()

    model = nn.Sequential(*(NormByHand() for _ in range(100)), nn.Linear(4, 1)).half()
    batch = torch.full((2, 4), 800.0).half()
    report = find_overflow(model, lambda: model(batch).float().mean() / 1000, scales=(1.0,))
    assert report.cause == "hidden-overflow"
    assert len(report.others) == explaining.MOST_OTHERS
    assert any("more operators are not listed" in each for each in report.notes)
