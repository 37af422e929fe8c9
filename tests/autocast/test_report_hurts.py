"""Warnings: each fires on the code that it is about, with the numbers that were seen, and not on the better code.

Models are x-rayed for real; what a real x-ray cannot show in a few lines is written on a tape by hand.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.records import Value
from amp_lab.autocast.xray import xray
from tests.autocast.hand_made import BF16, FP16, FP32, Tape, encoder

D, ROWS = 64, 32
ACTIVATION = ROWS * D  # numbers


class Net(nn.Module):
    """Two linear layers, a matrix, and a forward pass that a test writes."""

    def __init__(self, body):
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)
        self.weight = nn.Parameter(torch.randn(D, D))
        self.body = body

    def forward(self, x):
        return self.body(self, x)


def seen(body, dtype=FP16, device_type="cuda", change=None):
    model = Net(body)
    if change:
        change(model)
    return xray(model, torch.randn(ROWS, D), device_type=device_type, dtype=dtype, backward=False)


def ids(x):
    return [each.id for each in x.warnings]


def only(x):
    """Return the one warning, after a look at what every warning must have."""
    (remark,) = x.warnings
    assert remark.ops
    assert remark.ops == tuple(sorted(set(remark.ops)))
    assert all(0 <= number < len(x.ops) for number in remark.ops)
    assert remark.advice
    return remark


def names(x, remark):
    return [x.ops[number].name for number in remark.ops]


# --- casts there and back


def test_a_float_before_a_linear_layer_is_undone():
    x = seen(lambda net, x: net.second(net.first(x).float()))
    remark = only(x)
    assert remark.id == "there-and-back"
    assert names(x, remark) == ["to", "linear"]
    assert "FP16 to FP32" in remark.sentence
    assert "nothing lies between" in remark.sentence
    assert f"{ACTIVATION * (4 + 2) / 1000:.1f}\N{NO-BREAK SPACE}kB" in remark.sentence
    assert "test_report_hurts.py:" in remark.sentence


@pytest.mark.parametrize("op", [F.relu, F.gelu, lambda h: F.dropout(h, 0.1), lambda h: h.view(-1, D) * 0.5])
def test_an_operator_that_fp32_does_not_help_lies_between(op):
    x = seen(lambda net, x: net.second(op(net.first(x).float())))
    assert ids(x) == ["there-and-back"]
    assert "does not make better" in only(x).sentence


def test_there_and_back_by_hand():
    x = seen(lambda net, x: net.second(F.relu(net.first(x).float()).half()))
    assert ids(x) == ["there-and-back"]


@pytest.mark.parametrize(
    "body",
    [
        lambda net, x: net.second(F.relu(net.first(x))),  # no cast at all
        lambda net, x: net.second(F.softmax(net.first(x).float(), -1)),  # protects an exponential
        lambda net, x: net.second(net.first(x).float().cumsum(-1)),
        lambda net, x: net.second((h := net.first(x).float()) - h.mean(-1, keepdim=True)),
        lambda net, x: F.relu(net.first(x).float()),  # a result of the model
        lambda net, x: net.second(x + net.first(x).float()),  # a residual that is FP32 in any case
        lambda net, x: net.second(x * net.first(x).float()),
        lambda net, x: (h := net.first(x).float(), net.second(h).sum() + h.logsumexp(0).sum())[
            1
        ],  # read twice
        lambda net, x: net.second(F.layer_norm(net.first(x), (D,))),  # autocast's own casts
    ],
)
def test_casts_that_protect_something_are_not_reported(body):
    assert ids(seen(body)) == []


# --- weights cast again


def thrice(net, x):
    for _ in range(3):
        x = net.first(x)
    return x


def test_a_frozen_layer_is_cast_at_every_call():
    x = seen(thrice, change=lambda net: net.first.requires_grad_(False))
    remark = only(x)
    assert remark.id == "cast-again"
    assert names(x, remark) == ["linear"] * 3
    assert "first.weight was cast to FP16 3 times" in remark.sentence
    assert "require no gradient" in remark.sentence
    assert (
        f"{2 * 2 * (D * D + D) / 1000:.1f}\N{NO-BREAK SPACE}kB" in remark.sentence
    )  # twice too often, 2 bytes


def test_a_transposed_weight_is_cast_at_every_use():
    def body(net, x):
        for _ in range(3):
            x = x @ net.weight.t()
        return x

    assert "views of them" in only(seen(body)).sentence


def test_a_trained_layer_is_cast_once():
    assert ids(seen(thrice)) == []


def test_a_frozen_layer_that_is_called_once_costs_what_a_trained_one_does():
    assert (
        ids(seen(lambda net, x: net.second(net.first(x)), change=lambda net: net.requires_grad_(False))) == []
    )


# --- products in FP32 and FP64


def island(net, x):
    h = net.first(x)
    with torch.autocast(x.device.type, enabled=False):
        h = h.float() @ net.weight
    return net.second(h)


def test_a_product_where_autocast_is_off():
    x = seen(island)
    remark = only(x)
    assert (remark.id, names(x, remark)) == ("fp32-matmul", ["matmul"])
    assert "33% of the multiplications" in remark.sentence
    assert "autocast is off there" in remark.sentence


def test_a_product_in_place():
    def body(net, x):
        out = torch.zeros(len(x), D)
        out.addmm_(x, net.weight.detach())
        return net.second(out)

    x = seen(body)
    assert only(x).id == "fp32-matmul"
    assert "50% of the multiplications" in only(x).sentence
    assert "in-place and out= forms" in only(x).sentence


def test_a_small_product_in_fp32_is_no_hot_path():
    def body(net, x):
        for _ in range(8):
            x = net.first(x)
        with torch.autocast(x.device.type, enabled=False):
            gate = x.float() @ net.weight[:, :2]
        return x * gate.sum()

    assert ids(seen(body)) == []


def test_a_product_in_fp64():
    x = seen(lambda net, x: net.second((x.double() @ net.weight.double()).float()))
    remark = only(x)
    assert (remark.id, names(x, remark)) == ("fp64-matmul", ["matmul"])


def test_fp64_that_is_no_product():
    assert ids(seen(lambda net, x: net.second((x.double() * 2).float()))) == []


# --- integers


@pytest.mark.parametrize(("dtype", "last"), [(FP16, 2048), (BF16, 256)], ids=["FP16", "BF16"])
@pytest.mark.parametrize("body", ["to", "outer", "made"])
def test_positions_beyond_the_digits_of_16_bits(dtype, last, body):
    def forward(count):
        def run(net, x):
            if body == "to":
                t = torch.arange(count).to(dtype)
            elif body == "made":
                t = torch.arange(count, dtype=dtype)
            else:
                t = torch.arange(count, dtype=torch.float32)[:, None] @ net.weight[:1]
            return net.first(x) + t.mean()

        return run

    assert ids(seen(forward(last + 1), dtype)) == []
    (remark,) = [each for each in seen(forward(last + 2), dtype).warnings if each.id == "integers-in-16-bits"]
    assert f"{last + 1:,} becomes {last:,}" in remark.sentence
    # What the sentence says is true.
    assert torch.arange(last + 2).to(dtype)[-1] == last
    assert (torch.arange(last + 1).to(dtype).long() == torch.arange(last + 1)).all()


@pytest.mark.parametrize(("op", "reported"), [("mul", ["integers-in-16-bits"]), ("index_select", [])])
def test_integers_that_meet_fp16(op, reported):
    x = Tape()
    positions = x.op("arange", shape=(4000,), dtype=torch.int64)
    h = x.op(op, Value((4000,), FP16), positions, dtype=FP16)
    x.op("relu", h)
    assert ids(x.xray()) == reported


@pytest.mark.parametrize(
    "body",
    [
        lambda net, x: net.first(x) + torch.arange(5000)[:D].half(),  # a slice may hold the small ones
        lambda net, x: net.first(x) + torch.arange(10).expand(9000, 10).half().mean(),
        lambda net, x: net.first(x) + torch.arange(0, 1, 1 / 5000, dtype=torch.float32).half().mean(),
        lambda net, x: net.first(x)[torch.arange(5000) % ROWS],  # places
        lambda net, x: net.first(x) + torch.arange(5000).float().sin().half().mean(),  # sines are small
        lambda net, x: F.embedding(torch.arange(5000) % D, net.weight),
    ],
)
def test_integers_that_16_bits_hold_or_never_see(body):
    assert ids(seen(body)) == []


# --- tensors with a dtype of their own


def test_zeros_in_fp32_widen_what_they_meet():
    x = seen(lambda net, x: net.second(F.gelu(net.first(x) + torch.zeros(ROWS, D, dtype=torch.float32))))
    remark = only(x)
    assert (remark.id, names(x, remark)) == ("hard-coded-dtype", ["zeros", "add"])
    assert "as its line asks" in remark.sentence
    assert "dtype=torch.float32" in remark.sentence
    assert f"{ACTIVATION * 2 / 1000:.2f}\N{NO-BREAK SPACE}kB more" in remark.sentence


@pytest.mark.parametrize(
    "body",
    [
        lambda net, x: net.second(net.first(x) + torch.randn(ROWS, D)),
        lambda net, x: net.second(torch.cat([net.first(x), torch.ones(ROWS, D)])),
        lambda net, x: net.second(net.first(x) + torch.zeros(D).fill_(2.0).sin()[None]),
    ],
)
def test_a_tensor_without_a_dtype_is_fp32_too(body):
    assert ids(seen(body)) == ["hard-coded-dtype"]


@pytest.mark.parametrize(
    "body",
    [
        lambda net, x: net.second((h := net.first(x)) + torch.zeros_like(h)),
        lambda net, x: net.second((h := net.first(x)) + torch.randn(h.shape, dtype=h.dtype)),
        lambda net, x: net.second(net.first(x) * torch.tensor(0.5)),  # no dimensions: FP16 stays
        lambda net, x: net.second(
            net.first(x).mean() * torch.ones(ROWS, D)
        ),  # a number in FP16 widens nothing
        lambda net, x: net.second(x + torch.zeros(ROWS, D)),  # FP32 meets FP32
        lambda net, x: F.mse_loss(net.first(x), torch.zeros(ROWS, D)),  # FP32 in any case
        lambda net, x: F.softmax(net.first(x) + torch.zeros(D).fill_(-1.0), -1),  # a mask
        lambda net, x: F.linear(torch.zeros(ROWS, D), net.weight),  # autocast casts it
    ],
)
def test_tensors_that_widen_nothing(body):
    assert ids(seen(body)) == []


@pytest.mark.parametrize("body", [
    lambda net, x: net.second(torch.ones(D, dtype=torch.float16) * net.first(x).float()),
    lambda net, x: net.second(x.half()),
])  # fmt: skip
def test_fp16_in_a_bf16_region(body):
    x = seen(body, BF16)
    (remark,) = [each for each in x.warnings if each.id == "other-16-bit-type"]
    assert "FP16 tensor in a BF16 region" in remark.sentence
    assert "other-16-bit-type" not in ids(seen(body, FP16))


# --- errors


def test_a_refused_operator():
    x = seen(lambda net, x: F.binary_cross_entropy(net.first(x).sigmoid(), torch.ones(ROWS, D)))
    remark = only(x)
    assert (remark.id, names(x, remark)) == ("refused", ["binary_cross_entropy"])
    assert remark.advice == x.explanation.advice


def test_a_refusal_that_raised_nothing_is_told_too():
    tape = Tape()
    tape.op("binary_cross_entropy", Value((4,), FP16), Value((4,), FP32), fate=Fate.REFUSED)
    assert "with_logits" in only(tape.xray()).advice


def test_dtypes_that_do_not_fit():
    def body(net, x):
        h = net.first(x)
        with torch.autocast(x.device.type, enabled=False):
            return net.second(h)

    x = seen(body)
    remark = only(x)
    assert (remark.id, names(x, remark)) == ("raises", ["linear"])
    assert "was given FP16, FP32, where autocast is off" in remark.sentence
    assert x.error in remark.sentence


def test_an_error_that_is_not_about_dtypes_is_no_warning():
    x = seen(lambda net, x: net.second(net.first(x)[:, :3]))
    assert x.error
    assert ids(x) == []


# --- parameters, and arithmetic by hand


def test_parameters_in_fp16():
    x = seen(lambda net, x: net.second(net.first(x)), change=lambda net: net.half())
    assert only(x).id == "half-parameters"
    assert "5 of 5 trainable parameters are FP16" in only(x).sentence
    assert "GradScaler" in only(x).sentence
    with pytest.raises(ValueError, match="unscale FP16"):
        step_with_scaler(FP16)


def step_with_scaler(dtype):
    weight = nn.Parameter(torch.ones(1, dtype=dtype))
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD([weight], 0.1)
    scaler.scale(weight.float().sum()).backward()
    scaler.unscale_(optimizer)


def test_bf16_parameters_are_no_error_of_the_scaler():
    x = seen(lambda net, x: net.second(net.first(x)), BF16, change=lambda net: net.bfloat16())
    assert only(x).id == "half-parameters"
    assert "GradScaler" not in only(x).sentence


def test_frozen_parameters_in_16_bits_are_well():
    assert (
        ids(
            seen(lambda net, x: net.second(net.first(x)), change=lambda net: net.half().requires_grad_(False))
        )
        == []
    )


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


# --- healthy models


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        first, second = (nn.Conv2d(8, 8, 3, padding=1) for _ in range(2))
        self.body = nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(), second)

    def forward(self, x):
        return F.relu(x + self.body(x))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.middle = nn.Conv2d(8, 16, 3, 2, 1), nn.Conv2d(16, 16, 3, 1, 1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 1, 1)

    def forward(self, x):
        deep = F.silu(self.middle(F.group_norm(self.down(x), 4)))
        return self.out(torch.cat([x, F.interpolate(self.up(deep), x.shape[-2:], mode="bilinear")], 1))


def mlp():
    return nn.Sequential(nn.Linear(D, D), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(D), nn.Linear(D, 9))


def layer(**options):
    return nn.TransformerEncoderLayer(D, 4, 128, batch_first=True, **options)


HEALTHY = {
    "MLP": (mlp, (ROWS, D)),
    "encoder": (layer, (2, 8, D)),
    "encoder, norm first": (lambda: layer(norm_first=True), (2, 8, D)),
    "residual block": (Residual, (2, 8, 8, 8)),
    "U-Net": (UNet, (2, 8, 8, 8)),
}


@pytest.mark.parametrize("dtype", [FP16, BF16], ids=["FP16", "BF16"])
@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_models_get_no_warning(name, device_type, dtype):
    make, shape = HEALTHY[name]

    def loss(out):
        return F.mse_loss(out, torch.zeros_like(out))

    x = xray(make(), torch.randn(shape), device_type=device_type, dtype=dtype, loss=loss)
    assert x.error is None
    assert {op.phase for op in x.ops} == {"forward", "backward"}
    assert ids(x) == []


def test_a_layer_that_comes_often_gets_one_warning():
    tape = encoder(12)
    for layer in range(12):
        h = tape.op("relu", Value((4, D), FP16), text="h = x.relu()", line=3)
        h = tape.to(h, FP32, text="h = h.float()", line=4)
        tape.linear(h, f"extra.{layer}", D, line=5)
    remark = only(tape.xray())
    assert "and 11 more like it" in remark.sentence
    assert len(remark.ops) == 24
