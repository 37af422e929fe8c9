"""A batch that is run again, operator by operator: the ranges, what makes infinity, and what that should have been."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from amp_lab import xray
from amp_lab.autocast.recording.accepted import modules_in
from amp_lab.watching.replaying.records import Trace, Traced
from amp_lab.watching.replaying.tracing import trace
from tests.autocast.families import FAMILIES, Family

CUDA: dict[str, Any] = {"device_type": "cuda", "dtype": torch.float16}


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def traced(
    model: nn.Module,
    x: torch.Tensor,
    loss: Callable[[torch.Tensor], torch.Tensor] | None = None,
    **settings: Any,
) -> Trace:
    loss = loss or (lambda output: output.float().square().mean())
    return trace(
        lambda x: loss(model(x)), {"": model}, inputs=(x,), **{"scale": 1.0, "device_type": "cuda"} | settings
    )


def filled(layer: nn.Linear, weight: float) -> nn.Linear:
    with torch.no_grad():
        layer.weight.fill_(weight)
        layer.bias.zero_()
    return layer


class Block(nn.Module):
    """A linear layer in a module of its own, that a factor goes into."""

    def __init__(self, weight: float):
        super().__init__()
        self.inner = filled(nn.Linear(8, 8), weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)  # the inner call


def test_an_overflow_in_a_linear_layer_has_its_true_value():
    model = nn.Sequential(filled(nn.Linear(8, 8), 0.5), Block(40.0))
    x = torch.full((4, 8), 1000.0)
    seen = traced(model, x)
    (source,) = seen.sources
    assert (source.op.name, source.op.module, source.op.module_type) == ("linear", "1.inner", "Linear")
    assert (source.op.phase, source.op.forward, source.op.error) == ("forward", None, None)
    assert source.op.source is not None
    assert source.op.source.file.endswith("test_tracing.py")
    assert "the inner call" in source.op.source.text
    given, weight, bias = source.inputs
    assert (given.size, given.dtype, given.finite) == (4000.0, torch.float16, True)
    assert seen.ops[given.made_by or 0].op.module == "0"
    assert (weight.name, weight.size, bias.zeros, bias.of) == ("1.inner.weight", 40.0, 8, 8)
    (result,) = source.outputs
    assert (result.positive, result.negative, result.nan, result.of) == (32, 0, 0, 32)
    with torch.autocast("cpu", enabled=False):
        double = F.linear(torch.full((4, 8), 4000.0, dtype=torch.float64), torch.full((8, 8), 40.0).double())
    assert source.truth is not None
    assert (source.truth.dtype, source.truth.finite) == (torch.float64, True)
    assert source.truth.largest == double.max().item() == 1_280_000.0
    assert seen.loss is not None
    assert seen.loss.positive == 1


def test_the_rows_are_those_of_an_xray():
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
    x = torch.randn(4, 8)
    seen = traced(model, x, lambda output: output.float().square().mean())
    rows = xray(model, x, mode="value", loss=lambda output: output.float().square().mean())
    assert [each.op.name for each in seen.ops] == [each.name for each in rows.ops]
    assert [each.op.kernels for each in seen.ops] == [each.kernels for each in rows.ops]
    assert [each.op.number for each in seen.ops] == list(range(len(seen.ops)))


def test_what_is_finite_has_ranges_and_no_source():
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    x = torch.randn(4, 8)
    seen = traced(model, x)
    assert seen.sources == ()
    assert seen.error is None
    assert all(each.truth is None for each in seen.ops)
    relu = next(each for each in seen.ops if each.op.name == "relu" and each.op.phase == "forward")
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        before = model[0](x)
    assert relu.inputs[0].smallest == pytest.approx(before.min().item(), rel=2e-3)
    assert relu.inputs[0].largest == pytest.approx(before.max().item(), rel=2e-3)
    assert relu.outputs[0].zeros == int((before <= 0).sum()) > 0


class Scores(nn.Module):
    """Attention that forgets to scale its scores, or masks them."""

    def __init__(self, size: float, mask: str = "none"):
        super().__init__()
        self.size, self.mask = size, mask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query = x * self.size
        scores = query @ query.transpose(-1, -2)
        above = torch.ones(4, 4, dtype=torch.bool).triu(1)
        if self.mask == "fill":
            scores = scores.masked_fill(above, float("-inf"))
        elif self.mask == "full":
            scores = scores + torch.full((4, 4), float("-inf")).triu(1)
        elif self.mask == "where":
            scores = torch.where(above, float("-inf"), scores)
        elif self.mask == "number":
            scores = scores + above * -1e9
            scores = scores.half()
        return scores.softmax(-1) @ x


def test_attention_scores():
    x = torch.ones(2, 4, 16, requires_grad=True)
    seen = traced(Scores(100.0), x)
    first = seen.sources[0]
    assert (first.op.name, first.op.phase) == ("matmul", "forward")
    assert first.truth is not None
    assert first.truth.largest == 16 * 100.0**2
    softmax = next(each for each in seen.ops if each.op.name == "softmax")
    assert softmax.outputs[0].nan == 2 * 4 * 4
    assert not softmax.makes_it


@pytest.mark.parametrize("mask", ["fill", "full", "where"])
def test_infinity_that_the_code_hands_over_is_no_overflow(mask: str):
    seen = traced(Scores(1.0, mask), torch.randn(2, 4, 16, requires_grad=True))
    assert any(result.negative for each in seen.ops for result in each.outputs)
    assert seen.sources == ()


def test_a_scalar_that_is_infinite_is_an_input_with_a_name():
    seen = traced(Scores(1.0, "fill"), torch.randn(2, 4, 16, requires_grad=True))
    mask = next(each for each in seen.ops if each.op.name == "masked_fill" and each.op.phase == "forward")
    assert (mask.inputs[-1].name, mask.inputs[-1].negative) == ("value", 1)


def test_a_cast_by_hand_that_overflows():
    first = traced(Scores(1.0, "number"), torch.randn(2, 4, 16, requires_grad=True)).sources[0]
    assert (first.op.name, first.inputs[0].dtype) == ("to", torch.float32)
    assert first.truth is not None
    assert first.truth.smallest == first.inputs[0].smallest < -9e8


def test_a_cast_by_autocast_that_overflows():
    first = traced(filled(nn.Linear(8, 8), 1e-3), torch.full((4, 8), 70000.0)).sources[0]
    assert first.op.name == "linear"
    assert first.op.casts[0].value.dtype is torch.float32
    assert first.truth is not None
    assert first.truth.largest == first.inputs[0].largest == 70000.0


class InPlace(nn.Module):
    """Squares its input in place, in FP16."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.half()
        y.mul_(y)
        return y


def test_an_in_place_operator_is_computed_again_from_what_was_there():
    seen = traced(InPlace(), torch.full((4,), 300.0, requires_grad=True))
    (source, *_) = seen.sources
    assert source.op.name == "mul_"
    assert source.inputs[0].size == 300.0
    assert source.outputs[0].positive == 4
    assert source.truth is not None
    assert source.truth.largest == 90000.0


class FillsMemory(nn.Module):
    """Writes its input into memory that holds infinity, as memory that was used before may."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory = torch.empty_like(x, dtype=torch.float16)
        memory.data_ptr()
        memory.copy_(x)
        torch.mul(memory.detach(), 2, out=torch.empty(4, dtype=torch.float16))
        return memory


def test_memory_that_nothing_was_written_to_is_not_looked_at():
    seen = traced(FillsMemory(), torch.ones(4, requires_grad=True))
    empty = next(each for each in seen.ops if each.op.name == "empty_like")
    assert empty.outputs[0].of == 0
    copy = next(each for each in seen.ops if each.op.name == "copy_")
    assert copy.inputs[0].of == 0
    assert copy.outputs[0].largest == 1.0
    assert copy.outputs[0].of == 4
    assert seen.sources == ()


def test_an_overflow_in_the_backward_pass_only():
    model = nn.Sequential(filled(nn.Linear(8, 8), 30.0), filled(nn.Linear(8, 1), 30.0))
    x = torch.full((4, 8), 1e-5)
    assert traced(model, x).sources == ()
    seen = traced(model, x, scale=65536.0)
    first = seen.sources[0]
    assert first.op.phase == "backward"
    assert first.op.forward is not None
    assert first.op.name == "linear"
    assert seen.ops[first.op.forward].op.module == first.op.module
    assert first.op.source == seen.ops[first.op.forward].op.source
    assert first.truth is not None
    assert 65536 < first.truth.size < 1e9


def test_gradients_are_the_scale_times_the_true_ones():
    model = nn.Linear(8, 1)
    x = torch.randn(4, 8)
    seen = traced(model, x, scale=256.0)
    with torch.autocast("cpu", torch.float16):
        loss = model(x).float().square().mean()
    gradient = torch.autograd.grad(loss, model.weight)[0] * 256
    kept = next(
        each
        for each in seen.ops
        if each.inputs and each.inputs[0].name == "weight" and "accum" in each.op.name
    )
    assert kept.outputs[0].largest == pytest.approx(gradient.max().item(), rel=1e-2)
    assert seen.loss is not None
    assert seen.loss.largest == pytest.approx(loss.item(), rel=1e-2)


def test_a_loss_in_fp16_cannot_hold_the_scale():
    model = nn.Linear(8, 1)
    x = torch.randn(4, 8)
    first = traced(model, x, lambda output: output.half().mean(), scale=65536.0, device_type="cpu").sources[0]
    assert (first.op.phase, first.op.name, first.op.source) == ("backward", "mul", None)
    assert max(each.size for each in first.inputs) == 65536.0
    assert first.truth is not None
    assert first.truth.size == 65536.0
    assert (
        traced(model, x, lambda output: output.half().mean(), scale=1024.0, device_type="cpu").sources == ()
    )


def test_cudas_policy_is_emulated():
    class Softmax(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x @ x).softmax(-1)

    def dtype(device_type: str) -> torch.dtype:
        seen = traced(Softmax(), torch.randn(4, 4, requires_grad=True), device_type=device_type)
        return next(each for each in seen.ops if each.op.name == "softmax").outputs[0].dtype

    assert (dtype("cuda"), dtype("cpu")) == (torch.float32, torch.float16)


def test_a_closure_has_its_own_region():
    model = nn.Sequential(filled(nn.Linear(8, 8), 40.0), filled(nn.Linear(8, 8), 40.0))
    x = torch.full((4, 8), 100.0)

    def closure() -> torch.Tensor:
        with torch.autocast("cuda", torch.float16):
            return model(x).float().mean()

    seen = trace(closure, modules_in(closure), region=False, scale=1.0, **CUDA)
    assert (seen.sources[0].op.name, seen.sources[0].op.module) == ("linear", "model.1")
    without = trace(lambda: model(x).mean(), {"": model}, region=False, scale=1.0, **CUDA)
    assert without.sources == ()
    assert {each.op.region for each in without.ops} == {None}


class Changing(nn.Module):
    """Changes what it can: running statistics, random states, a tensor outside, its input."""

    def __init__(self, outside: torch.Tensor):
        super().__init__()
        self.linear, self.norm, self.drop = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)
        self.outside = [outside]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.outside[0].view(-1).add_(random.random() + numpy.random.rand())
        x.mul_(2)
        return self.drop(self.norm(self.linear(x))) * 1e5


@pytest.mark.parametrize("captured", [False, True])
def test_nothing_is_left_changed(captured: bool):
    outside, x = torch.ones(3), torch.randn(4, 8)
    model = Changing(outside)
    model.linear.weight.grad = torch.full((8, 8), 3.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.linear.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batch = x.clone()
    gradient = model.linear.weight.grad
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    if captured:
        seen = trace(lambda: model(x).half().float().mean(), {"": model}, scale=8.0, **CUDA)
    else:
        seen = traced(model, x, lambda output: output.half().float().mean())
    assert seen.error is None
    assert seen.sources
    assert seen.sources[0].truth is not None
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert model.linear.weight.grad is gradient
    assert (gradient == 3.0).all()
    assert model.linear.bias.grad is None
    assert torch.equal(x, batch)
    assert torch.equal(outside, torch.ones(3))
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert numpy.random.get_state()[1].tolist() == states[2]
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    assert model.training


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_runs_again(reentrant: bool):
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block, self.head = nn.Sequential(Block(40.0), nn.ReLU()), filled(nn.Linear(8, 1), 1e-3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(checkpoint(self.block, x, use_reentrant=reentrant))

    seen = traced(Checkpointed(), torch.full((4, 8), 1000.0, requires_grad=True))
    assert seen.error is None
    makers = [(each.op.phase, each.op.name, each.op.module) for each in seen.sources]
    assert makers[0] == ("forward", "linear", "block.0.inner")
    assert ("recomputed", "linear", "block.0.inner") in makers


def test_a_hidden_infinity_is_seen_where_it_arises():
    class Norm(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.half()
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True))

    seen = traced(Norm(), torch.full((2, 8), 300.0, requires_grad=True), device_type="cpu")
    assert (seen.sources[0].op.name, seen.sources[0].op.phase) == ("mul", "forward")
    assert seen.loss is not None
    assert seen.loss.finite


def test_an_error_ends_the_trace():
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(9, 1))
    seen = traced(model, torch.randn(4, 8))
    assert seen.error is not None
    assert "shapes cannot be multiplied" in seen.error
    assert seen.loss is None
    assert seen.ops[0].op.module == "0"
    seen = traced(model[0], torch.randn(4, 8), lambda output: output)
    assert seen.error is not None
    assert "let it return one, a scalar" in seen.error


def test_no_more_truths_than_asked_for():
    def truths(seen: Trace) -> list[Traced]:
        return [each for each in seen.ops if each.truth is not None]

    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([(x.half() * 300.0).float() for _ in range(6)])

    x = torch.full((4,), 300.0, requires_grad=True)
    assert len(traced(Many(), x).sources) == 6
    assert len(truths(traced(Many(), x))) == 4
    assert len(truths(traced(Many(), x, truths=2))) == 2


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_healthy_models_make_no_infinity(family: Family):
    model = family.model()
    call = lambda *inputs: family.loss(model(*inputs)).float()  # noqa: E731
    seen = trace(call, {"": model}, inputs=family.inputs(), scale=256.0, **CUDA)
    assert (seen.error, seen.sources) == (None, ())
    assert {each.op.phase for each in seen.ops} == {"forward", "backward"}
    assert all(each.truth is None for each in seen.ops)


def test_what_cannot_be_traced():
    model = nn.Linear(8, 1)
    with pytest.raises(ValueError, match="finite number above 0"):
        traced(model, torch.randn(2, 8), scale=0.0)
    with pytest.raises(ValueError, match="whose autocast to follow"):
        traced(model, torch.randn(2, 8), device_type="gpu")
