"""Warnings about numbers: powers and plain numbers that 16 bits cannot hold, and losses that they make coarse."""

import pytest
import torch
from torch.nn import functional as F

from amp_lab.autocast.xray import xray
from tests.autocast.hand_made import BF16, FP16
from tests.autocast.harmed import ROWS, D, ids, names, only, seen


def outside(body):
    """Return a forward pass whose second part runs where autocast is off, on FP16."""

    def run(net, x):
        h = net.first(x)
        with torch.autocast(x.device.type, enabled=False):
            return body(h)

    return run


# --- powers


def test_an_exponential_in_place():
    x = seen(lambda net, x: net.second((e := net.first(x).exp_()) / e.sum(-1, keepdim=True)))
    assert (only(x).id, names(x, only(x))) == ("by-hand-in-16-bits", ["exp_"])
    x = torch.tensor([11.0, 11.1], dtype=FP16)
    assert x.exp().isinf().tolist() == [False, True]


def test_an_exponential_on_a_cpu_has_no_rule():
    def body(net, x):
        return net.second(net.first(x).exp())

    assert ids(seen(body, device_type="cpu")) == ["by-hand-in-16-bits"]
    assert ids(seen(body, device_type="cuda")) == []
    assert ids(seen(body, BF16, device_type="cpu")) == []  # BF16 reaches as far as FP32


def test_a_square_outside_the_region():
    def body(net, x):
        h = net.first(x)
        with torch.autocast(x.device.type, enabled=False):
            return h.pow(2).float()

    assert "autocast is off there" in only(seen(body)).sentence
    assert (torch.tensor([255.0, 256.0], dtype=FP16) ** 2).isinf().tolist() == [False, True]
    assert torch.tensor(1.7e-4, dtype=FP16) ** 2 == 0 < torch.tensor(1.9e-4, dtype=FP16) ** 2


def test_a_norm_by_hand():
    def body(net, x):
        h = net.first(x)
        return net.second(h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-4))

    x = seen(body)
    assert (only(x).id, names(x, only(x))) == ("squares-in-16-bits", ["mul"])


@pytest.mark.parametrize(
    "body",
    [
        lambda net, x: net.second(net.first(x) * net.second(x)),
        lambda net, x: (net.first(x) * net.second(x)).mean(-1),  # a product of two tensors
        lambda net, x: torch.mul(*net.first(x).chunk(2, -1)).mean(-1),  # of two halves
        lambda net, x: ((h := net.first(x)) * h).relu(),  # no sum
        lambda net, x: ((h := net.first(x).float()) * h).mean(-1),
        lambda net, x: F.rms_norm(net.first(x), (D,)),
    ],
)
def test_products_that_are_no_norm(body):
    assert ids(seen(body)) == []


@pytest.mark.parametrize(("body", "said"), [
    (lambda h: h.square().mean(), "a square is infinite in FP16 from 256 on"),
    (lambda h: h**3, "x^3 is infinite in FP16 from 40.3 on"),
    (lambda h: 10 ** h, "10^x is infinite in FP16 from x = 4.82 on"),
    (lambda h: h.exp2(), "2^x is infinite in FP16 from x = 16 on"),
    (lambda h: h.square().neg().add(20).exp(), "e^x is infinite in FP16 from x = 11.1 on"),
])  # fmt: skip
def test_where_powers_become_infinite(body, said):
    assert any(said in each.sentence for each in seen(outside(body)).warnings)


def test_the_ends_of_powers_are_true():
    assert (torch.tensor([40.25, 40.35], dtype=FP16) ** 3).isinf().tolist() == [False, True]
    assert (10 ** torch.tensor([4.81, 4.82], dtype=FP16)).isinf().tolist() == [False, True]
    assert torch.tensor([15.99, 16.0], dtype=FP16).exp2().isinf().tolist() == [False, True]


@pytest.mark.parametrize("body", [
    lambda h: (h - h.max()).exp(),
    lambda h: (h - h.amax(-1, keepdim=True).detach()).exp(),
    lambda h: (h - h.logsumexp(-1, keepdim=True)).exp(),
    lambda h: (-0.5 * h.abs()).exp(),
    lambda h: (-h.relu() / 2).exp(),
    lambda h: h.clamp(max=10).exp(),
    lambda h: h.sigmoid().exp(),
    lambda h: h.abs() ** 0.5,
])  # fmt: skip
def test_exponentials_that_cannot_be_large(body):
    assert ids(seen(outside(body))) == []


@pytest.mark.parametrize("body", [
    lambda h: (h - h.mean()).exp(),
    lambda h: (h - h.relu().amax(-1, keepdim=True)).exp(),  # the largest of other numbers
    lambda h: (-0.5 * h).exp(),
    lambda h: (2 * h.sigmoid() * 8).exp(),
    lambda h: h.clamp(max=12).exp(),
])  # fmt: skip
def test_exponentials_that_may_be_large(body):
    assert ids(seen(outside(body))) == ["by-hand-in-16-bits"]


@pytest.mark.parametrize("body", [
    lambda net, x: net.first(x).exp().half(),
    lambda net, x: net.first(x).exp().type_as(net.first(x)) * 2,
    lambda net, x: net.first(x)[:, None].square().half(),
])  # fmt: skip
def test_an_exponential_taken_down_at_once(body):
    x = seen(body)
    remark = only(x)
    assert remark.id == "narrowed-in-16-bits"
    assert names(x, remark)[-1] in ("to", "type_as")
    assert ids(seen(lambda net, x: body(net, x.abs().neg()))) == [
        "narrowed-in-16-bits"
    ]  # it is not what x is


@pytest.mark.parametrize("body", [
    lambda net, x: ((e := net.first(x).exp()) / e.sum(-1, keepdim=True)).half(),  # small again
    lambda net, x: ((h := net.first(x)) - h.max()).exp().half(),
    lambda net, x: net.first(x).exp(),
    lambda net, x: net.first(x) * net.weight[0].exp().half(),  # a weight
    lambda net, x: net.first(x) * net.first(x).mean().exp().half(),  # a number
])  # fmt: skip
def test_exponentials_that_are_small_or_wide(body):
    assert ids(seen(body)) == []


# --- plain numbers


LOST = {
    "mask": (lambda h: h + (1 - (h > 0).to(h.dtype)) * -1e9, "mul", "FP16 numbers by -1e+09, which makes -inf of 1"),
    "mask, subtracted": (lambda h: h - 1e9 * (h > 0).to(h.dtype), "mul", "which makes inf of 1"),
    "mask, chosen": (lambda h: torch.where(h > 0, h, -1e9), "where", "wrote -1e+09 into FP16 numbers"),
    "mask, added": (lambda h: h + -1e5, "add", "added -100000 to FP16 numbers, which makes -inf of 0"),
    "scale": (lambda h: h * 1e5, "mul", "FP16's largest number is 65,504"),
    "divided": (lambda h: h / 1e-6, "div", "divided FP16 numbers by 1e-06, which makes inf of 1"),
    "clip": (lambda h: h.sigmoid().clip(1e-8), "clip", "falling below 1e-08"),
    "small factor": (lambda h: h * 1e-9, "mul", "which makes 0 of 1"),
    "eps": (lambda h: h / (h.abs().amax(-1, keepdim=True) + 1e-8), "add", "to FP16 numbers, which changes none"),
    "eps, taken away": (lambda h: h - 1e-9, "sub", "subtracted 1e-09 from FP16 numbers"),
    "eps, in place": (lambda h: h.abs().add_(1e-8), "add_", "FP16's smallest number is 6.0e-08"),
    "clamp": (lambda h: h.sigmoid().clamp(1e-8), "clamp", "falling below 1e-08, which is 0 there"),
    "clamp_min": (lambda h: h / h.abs().clamp_min(1e-12), "clamp_min", "below 1e-12"),
    "clamp, above": (lambda h: h.sigmoid().clamp(0.01, 1 - 1e-5), "clamp", "rising above 0.99999, which is 1 there"),
    "full": (lambda h: h + torch.full_like(h, 1e-8), "full_like", "wrote 1e-08 into FP16 numbers, where it is 0"),
    "average": (lambda h: h.mul_(0.9999), "mul_", "multiplied FP16 numbers by 0.9999, which changes none of them"),
    "average of two": (lambda h: 0.9999 * h + 0.0001 * h.relu(), "mul", "the number before 1 is 0.9995"),
    "lerp": (lambda h: h.lerp_(h.relu(), 1e-4), "lerp_", "more than about 2.4 times as long"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOST)
def test_a_number_that_fp16_does_not_hold(name):
    body, operator, said = LOST[name]
    x = seen(lambda net, x: body(net.first(x)))
    remark = only(x)
    assert remark.id == "scalar-lost"
    assert names(x, remark) == [operator]
    assert said in remark.sentence


@pytest.mark.parametrize("name", LOST)
def test_the_same_number_beside_fp32(name):
    body, _, _ = LOST[name]

    def run(net, x):
        with torch.autocast(x.device.type, enabled=False):
            return body(x * 3)

    assert ids(seen(run)) == []


@pytest.mark.parametrize("name", ["average", "average of two", "lerp"])
def test_averages_in_bf16(name):
    body, _, _ = LOST[name]
    remark = only(seen(lambda net, x: body(net.first(x)), BF16))
    assert remark.id == "scalar-lost"
    assert "FP32" in remark.advice


def test_bf16_reaches_as_far_as_fp32():
    wide = [name for name in LOST if "average" not in name and name not in ("lerp", "clamp, above")]
    for name in wide:
        body, _, _ = LOST[name]
        assert ids(seen(lambda net, x, body=body: body(net.first(x)), BF16)) == []


@pytest.mark.parametrize("body", [
    lambda h: h + 1e-6,
    lambda h: h.clamp(1e-6, 1.0),
    lambda h: h * 6e4 / 3e4,
    lambda h: h * 0.0 + h.clamp(0.0),
    lambda h: h.masked_fill(h > 0, float("-inf")),
    lambda h: torch.where(h > 0, h, float("-inf")),
    lambda h: h.clamp(max=6e4),
    lambda h: h > 1e-9,
    lambda h: h.mul_(0.99),
    lambda h: h * 0.9999,  # no average
    lambda h: h.relu() + h * 0.9999,
    lambda h: h.lerp_(h.relu(), 0.01),
    lambda h: torch.addmm(h[:, :ROWS], h, h.t(), beta=1e-9),
    lambda h: F.layer_norm(h, (D,), eps=1e-12),
    lambda h: F.dropout(h, 1e-5),
    lambda h: F.normalize(h),  # its norm is FP32
    lambda h: h * torch.tensor(1e-9),  # no plain number, and it is kept in FP32
])  # fmt: skip
def test_numbers_that_lose_nothing(body):
    assert ids(seen(lambda net, x: body(net.first(x)))) == []


@pytest.mark.parametrize("dtype", [FP16, BF16], ids=["FP16", "BF16"])
def test_what_is_said_of_plain_numbers_is_true(dtype):
    every = torch.arange(2**15).to(torch.int16).view(dtype)
    normal = every[every.isfinite() & (every >= torch.finfo(dtype).tiny)]
    assert torch.equal(normal * 0.9999, normal)
    assert not torch.equal(normal * 0.99, normal)
    unseen = torch.finfo(dtype).eps / 4
    for weight in (1e-4, unseen / 4):
        most = unseen / weight  # as many times as large is the way that moves nothing
        for way in (0.9 * most, -0.9 * most):
            end = normal.double() * (1 + way)
            moved = (normal.double() + weight * (end - normal.double())).to(dtype)
            assert torch.equal(moved, normal)
    if dtype == FP16:
        finite = every[every.isfinite()]
        assert torch.equal(finite + 1e-8, finite)
        assert not torch.equal(finite + 1e-6, finite)
        assert (torch.ones(1, dtype=FP16) * torch.tensor([-1e9, 1e5])).half().isinf().all()
        assert (torch.zeros(1, dtype=FP16) + -1e5).isinf().all()


def test_a_line_that_runs_often_gets_one_warning():
    def body(net, x):
        for _ in range(3):
            x = net.first(x) + 1e-9
        return x

    remark = only(seen(body))
    assert "and 2 more like it" in remark.sentence
    assert len(remark.ops) == 3


# --- losses


CLASSES = torch.arange(ROWS) % D


@pytest.mark.parametrize(("dtype", "apart"), [(FP16, "0.0078"), (BF16, "0.062")], ids=["FP16", "BF16"])
def test_a_cross_entropy_of_16_bit_logits(dtype, apart):
    x = seen(lambda net, x: F.cross_entropy(net.first(x), CLASSES), dtype)
    remark = only(x)
    assert (remark.id, names(x, remark)) == ("loss-in-16-bits", ["log_softmax", "nll_loss"])
    assert f"At a loss of 10, such numbers are {apart} apart" in remark.sentence
    assert "F.cross_entropy(logits.float(), target)" in remark.advice


def test_the_loss_of_an_xray_is_looked_at_too():
    model = torch.nn.Linear(D, D)
    x = xray(model, torch.randn(ROWS, D), loss=lambda out: F.cross_entropy(out, CLASSES))
    assert ids(x) == ["loss-in-16-bits"]


@pytest.mark.parametrize("body", [
    lambda net, x: F.cross_entropy(net.first(x).float(), CLASSES),
    lambda net, x: F.nll_loss(net.first(x).log_softmax(-1), CLASSES),
    lambda net, x: net.first(x).log_softmax(-1, dtype=torch.float16),  # no loss
    lambda net, x: F.mse_loss(net.first(x), x),
])  # fmt: skip
def test_losses_in_fp32(body):
    assert ids(seen(body)) == []
