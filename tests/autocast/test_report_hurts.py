"""Warnings: each fires on the code that it is about, with the numbers that were seen, and not on the better code.

Models are x-rayed for real; what a real x-ray cannot show in a few lines is written on a tape by hand.
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.records import Value
from amp_lab.autocast.xray import xray
from tests.autocast.hand_made import BF16, FP16, FP32, Tape, encoder
from tests.autocast.harmed import ACTIVATION, ROWS, D, ids, names, only, seen

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


def attention(**options):
    return nn.MultiheadAttention(D, 4, batch_first=True, **options)


def test_three_different_parts_of_a_weight_are_cast_once_each():
    q, k, v = torch.randn(3, 2, 5, D)
    x = xray(attention(), q, k, v, backward=False)
    casts = [cast for op in x.ops for cast in op.casts if cast.value.shape == (D, D) and cast.copied]
    assert len(casts) == 3 + 1  # a third of in_proj_weight each, and out_proj.weight
    assert ids(x) == []


def test_parts_of_a_weight_that_are_cast_again():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention(bias=False)

        def forward(self, q, k, v):
            return self.attention(self.attention(q, k, v)[0], k, v)[0]

    remark = only(xray(Twice(), *torch.randn(3, 2, 5, D), backward=False))
    assert "attention.in_proj_weight was cast to FP16 6 times" in remark.sentence
    assert f"{3 * D * D * 2 / 1000:.1f}\N{NO-BREAK SPACE}kB of that copied for nothing" in remark.sentence


def test_the_advice_about_a_parametrization_helps():
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(D, D))
    remark = only(xray(model, torch.randn(ROWS, D), backward=False))
    assert "a parametrization (such as spectral_norm" in remark.sentence
    parametrization = model.parametrizations.weight[0]
    parametrization.forward = torch.autocast("cuda", enabled=False)(parametrization.forward)
    assert 'p.forward = torch.autocast("cuda", enabled=False)(p.forward)' in remark.advice
    assert ids(xray(model, torch.randn(ROWS, D), backward=False)) == []


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


def test_a_product_with_a_vector_waits_for_memory():
    def body(net, x):
        with torch.autocast(x.device.type, enabled=False):
            return net.weight @ x[0]

    assert ids(seen(body)) == []


def test_a_product_in_fp64():
    x = seen(lambda net, x: net.second((x.double() @ net.weight.double()).float()))
    remark = only(x)
    assert (remark.id, names(x, remark)) == ("fp64-matmul", ["matmul"])


def test_a_product_with_weights_in_fp64():
    x = seen(lambda net, x: net.second(net.first(x).double()), change=lambda net: net.second.double())
    assert "second.weight is FP64 itself" in only(x).advice


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


@pytest.mark.parametrize("long", [2048, 2049, 5000])
def test_a_running_sum_of_integers(long):
    mask = torch.ones(1, 5000, dtype=torch.long)

    def positions(net, x):
        return net.first(x).mean() * ((mask[:, :long].cumsum(-1) - 1) * mask[:, :long]).type_as(net.first(x))

    x = seen(positions)
    reported = long > 2048
    assert ids(x) == ["integers-in-16-bits"] * reported
    if reported:
        assert f"a running sum of {long:,} whole numbers" in only(x).sentence


@pytest.mark.parametrize(
    "body",
    [
        lambda net, x: net.first(x) + torch.arange(5000)[:D].half(),  # a slice may hold the small ones
        lambda net, x: net.first(x) + torch.arange(10).expand(9000, 10).half().mean(),
        lambda net, x: net.first(x) + torch.arange(0, 1, 1 / 5000, dtype=torch.float32).half().mean(),
        lambda net, x: net.first(x)[torch.arange(5000) % ROWS],  # places
        lambda net, x: net.first(x) + torch.arange(5000).float().sin().half().mean(),  # sines are small
        lambda net, x: F.embedding(torch.arange(5000) % D, net.weight),
        lambda net, x: net.first(x) + (torch.arange(3000) - 1500).half().mean(),  # -1,500 to 1,499
        lambda net, x: F.embedding(torch.ones(1, 5000, dtype=torch.long).cumsum(-1) % D, net.weight),
        lambda net, x: net.first(x) + torch.ones(9000, 3, dtype=torch.long).cumsum(-1).half().mean(),
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
        lambda net, x: nn.LSTM(D, D, batch_first=True)(net.first(x))[0],  # its first state is its own
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


@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
@pytest.mark.parametrize("dtype", [FP16, BF16], ids=["FP16", "BF16"])
def test_what_pytorchs_own_recurrent_layers_make_is_not_the_users(dtype, device_type):
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.gru, self.alone = nn.LSTM(D, D), nn.GRU(D, D), nn.GRU(D, D)

        def forward(self, x):
            hidden, _ = self.lstm(x)  # on CUDA in FP16, whatever the region's dtype is
            return self.gru(hidden)[0], self.alone(x)[0]

    x = xray(Recurrent(), torch.randn(4, 2, D), dtype=dtype, device_type=device_type, backward=False)
    assert any(op.name == "zeros" and op.module == "gru" for op in x.ops)
    assert ids(x) == []


FP64_ARRAY = np.linspace(0, 1, D)


@pytest.mark.parametrize(("body", "source"), [
    (lambda net, x: net.first(x) + torch.from_numpy(FP64_ARRAY), "NumPy"),
    (lambda net, x: net.first(x) + torch.tensor(FP64_ARRAY)[None], "NumPy"),
    (lambda net, x: net.first(x) * net.scale, "scale, which is FP64"),
    (lambda net, x: net.first(x) + net.constant, "an attribute"),
    (lambda net, x: net.first(x) + torch.ones(D, dtype=torch.float64), "an FP64 tensor from ones"),
    (lambda net, x: net.first(x) + x.double(), "an FP64 tensor from to"),
])  # fmt: skip
def test_an_fp64_tensor_widens_what_it_meets(body, source):
    def change(net):
        net.register_buffer("scale", torch.ones(D, dtype=torch.float64))
        net.constant = torch.ones(D, dtype=torch.float64)

    x = seen(body, change=change)
    remark = only(x)
    assert remark.id == "fp64-tensor"
    assert "turned FP16 into FP64" in remark.sentence
    assert source in remark.sentence
    assert "default" not in remark.sentence


@pytest.mark.parametrize("body", [
    lambda net, x: net.first(x) * torch.tensor(0.5, dtype=torch.float64),  # no dimensions
    lambda net, x: net.first(x) + torch.from_numpy(FP64_ARRAY).half(),
    lambda net, x: net.first(x).double() * torch.from_numpy(FP64_ARRAY),  # FP64 on purpose
])  # fmt: skip
def test_fp64_that_widens_nothing(body):
    assert ids(seen(body)) == []


def test_where_an_fp32_tensor_came_in():
    numbers = np.linspace(0, 1, D, dtype=np.float32)
    remark = only(seen(lambda net, x: net.first(x) + torch.from_numpy(numbers)))
    assert remark.id == "hard-coded-dtype"
    assert remark.sentence.startswith("an FP32 tensor came in at test_report_hurts.py:")


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


# --- parameters


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
