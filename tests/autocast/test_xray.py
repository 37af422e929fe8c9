"""What an x-ray says of small models, against hooks, another dispatch mode, and counts made by hand."""

import inspect
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from amp_lab.autocast.emulate import cuda_autocast
from amp_lab.autocast.fates import Fate
from amp_lab.autocast.xray import xray

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
both_modes = pytest.mark.parametrize("mode", ["fake", "value"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.second(F.gelu(self.norm(self.first(x))))


def ops(found, phase="forward"):
    return [op for op in found.ops if op.phase == phase and not op.view]


def named(found, name, phase="forward"):
    return [op for op in ops(found, phase) if op.name == name]


class Counter(TorchDispatchMode):
    """Counts the operators that reach the bottom."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@both_modes
@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_every_module_gives_what_a_hook_on_it_sees(mode, dtype):
    model, seen = nn.Sequential(Block(), nn.ReLU(), Block()), {}
    names = {module: name for name, module in model.named_modules()}

    def hook(module, _, output):
        seen[names[module]] = output.dtype

    for module in model.modules():
        module.register_forward_hook(hook)
    found = xray(model, torch.randn(4, 8), mode=mode, dtype=dtype)
    said = {op.module: op.outputs[0].dtype for op in ops(found)}
    assert len(said) == 9  # all that compute: each Block, with three parts, and the ReLU
    assert said == {name: seen[name] for name in said}
    assert set(said.values()) == {dtype, FP32}


@both_modes
@pytest.mark.parametrize("checkpointed", [None, True, False])
def test_as_many_kernels_as_without_an_xray(mode, checkpointed):
    model, x = Block(), torch.randn(4, 8, requires_grad=True)

    def run(x):
        if checkpointed is None:
            return model(x)
        return checkpoint(model, x, use_reentrant=checkpointed)

    found = xray(run, x, mode=mode)
    with cuda_autocast(), Counter() as counter:
        with torch.autocast("cpu", FP16):
            result = run(x)
        result.backward(torch.ones_like(result))
    copied = sum(cast.copied > 0 for op in found.ops for cast in op.casts)
    kernels = [kernel for op in found.ops for kernel in op.kernels] + ["aten._to_copy.default"] * copied
    # What starts a backward pass, questions, and how a gradient is kept (itself, or a copy of it, depending on who
    # else holds it) are no work of the model.
    left_out = ["ones_like", "is_same_size", "device", "detach", "new_empty_strided", "copy_", "view"]
    kernels, seen = (
        sorted(name for name in names if name.split(".")[1] not in left_out)
        for names in (kernels, counter.seen)
    )
    assert kernels == seen
    assert len(kernels) > 20


@both_modes
def test_casts_and_their_bytes_counted_by_hand(mode):
    model = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    found = xray(model, torch.randn(5, 8), mode=mode)
    first, second = named(found, "linear")
    assert [(cast.value.name, cast.dtype, cast.copied) for cast in first.casts] == [
        (None, FP16, 5 * 8 * 2),
        ("0.weight", FP16, 8 * 16 * 2),
        ("0.bias", FP16, 16 * 2),
    ]
    assert [cast.value.name for cast in second.casts] == ["1.weight", "1.bias"]
    assert [each.dtype for each in first.inputs] == [FP32] * 3
    assert (first.dtype, first.fate, first.region) == (FP16, Fate.LOWER, FP16)
    assert first.kernels[-1] == "aten.addmm.default"


@both_modes
def test_a_weight_that_is_used_twice_is_copied_once(mode):
    layer = nn.Linear(8, 8)
    found = xray(nn.Sequential(layer, layer), torch.randn(5, 8), mode=mode)
    first, second = named(found, "linear")
    assert [cast.copied for cast in first.casts] == [5 * 8 * 2, 8 * 8 * 2, 8 * 2]
    assert [(cast.value.name, cast.dtype, cast.copied) for cast in second.casts] == [
        ("0.weight", FP16, 0),
        ("0.bias", FP16, 0),
    ]
    assert (first.module, first.call, second.module, second.call) == ("0", 1, "0", 2)
    assert len(found.trainable) == 2


@both_modes
def test_the_gradient_of_a_cast_goes_back_to_fp32(mode):
    found = xray(nn.Linear(8, 8), torch.randn(5, 8), mode=mode)
    (linear,) = named(found, "linear")
    casts = named(found, "to", "backward")
    assert [(op.inputs[0].dtype, op.outputs[0].dtype, op.forward) for op in casts] == [
        (FP16, FP32, linear.number),
        (FP16, FP32, linear.number),
    ]
    assert all("linear" in op.reason and "back to FP32" in op.reason for op in casts)
    (backward,) = named(found, "linear", "backward")
    assert (backward.forward, backward.region, backward.dtype, backward.fate) == (
        linear.number,
        None,
        FP16,
        None,
    )
    kept = [op for op in found.ops if op.name == "accumulate_grad"]
    assert {op.inputs[0].name for op in kept} == {"weight", "bias"}


@both_modes
def test_casts_that_the_code_asks_for_are_operators(mode):
    found = xray(lambda x: (x.half() * 2).to(torch.float64), torch.randn(4), mode=mode)
    half, times, double = ops(found)
    assert [(op.name, op.casts) for op in (half, double)] == [("to", ()), ("to", ())]
    assert (half.outputs[0].dtype, double.outputs[0].dtype) == (FP16, torch.float64)
    assert (times.name, times.dtype, times.fate) == ("mul", FP16, Fate.FOLLOWS)
    assert "asks for" in half.reason
    assert double.inputs[0].made_by == times.number


@both_modes
def test_where_in_the_code(mode):
    class Model(nn.Module):
        def forward(self, x):
            x = x * 2
            return torch.softmax(x, -1)

    lines, start = inspect.getsourcelines(Model.forward)
    found = xray(Model(), torch.randn(2, 8, requires_grad=True), mode=mode)
    for op in ops(found):
        assert Path(op.source.file).samefile(__file__)
        assert lines[op.source.line - start].strip() == op.source.text
    assert [op.source.text for op in ops(found)] == ["x = x * 2", "return torch.softmax(x, -1)"]
    assert [op.source.text for op in ops(found, "backward")] == ["return torch.softmax(x, -1)", "x = x * 2"]
    assert xray(nn.ReLU(), torch.randn(2), mode=mode).ops[0].source is None


@both_modes
def test_what_users_call_it_also_where_autocast_is_off(mode):
    class Island(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

        def forward(self, x):
            with torch.autocast("cuda", enabled=False):
                return self.norm(self.layer(x)).softmax(-1)

    found = xray(Island(), torch.randn(2, 8), mode=mode)
    assert [op.name for op in ops(found)] == ["linear", "layer_norm", "softmax"]
    assert {op.region for op in ops(found)} == {None}
    assert all("autocast is off here" in op.reason for op in ops(found))
    with torch.inference_mode():
        found = xray(nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), torch.randn(2, 8), mode=mode)
    assert [op.name for op in ops(found)] == ["linear", "softmax"]
    assert found.notes


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.sigmoid()


@both_modes
def test_custom_functions_name_what_runs_inside(mode):
    layer = nn.Linear(8, 8)
    found = xray(lambda x: Swish.apply(layer(x)), torch.randn(2, 8), mode=mode)
    inside = [(op.phase, op.name) for op in found.ops if op.within == "Swish" and not op.view]
    assert inside == [
        ("forward", "sigmoid"),
        ("forward", "mul"),
        ("backward", "sigmoid"),
        ("backward", "mul"),
    ]


@both_modes
@pytest.mark.parametrize("reentrant", [True, False])
def test_what_is_recomputed(mode, reentrant):
    layer, model = nn.Linear(8, 8), nn.ReLU()

    def run(x):
        return model(checkpoint(lambda x: layer(x).sigmoid(), x, use_reentrant=reentrant))

    found = xray(run, torch.randn(2, 8, requires_grad=True), mode=mode)
    again = [op.name for op in ops(found, "recomputed")]
    assert again[:1] == ["linear"]
    assert [op.module for op in named(found, "linear", "recomputed")] == ["layer"]
    (backward,) = named(found, "linear", "backward")
    assert found.ops[backward.forward].name == "linear"


@both_modes
def test_the_end_of_a_model_that_fails(mode):
    class Fails(Block):
        def forward(self, x):
            h = self.first(x)
            return h @ x  # (4, 16) and (4, 8)

    found = xray(Fails(), torch.randn(4, 8), mode=mode)
    assert [op.name for op in found.ops if not op.view] == ["linear", "matmul"]
    assert found.ops[-1].error in found.error
    assert found.explanation is not None
    assert "size" in found.error or "shape" in found.error or "dim" in found.error


@both_modes
def test_a_backward_pass_that_fails(mode):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            return gradient.float() @ gradient.half()

    layer = nn.Linear(8, 8)
    found = xray(lambda x: Fails.apply(layer(x)), torch.randn(8, 8), mode=mode)
    assert "dtype" in found.error
    assert (found.ops[-1].phase, found.ops[-1].within, bool(found.ops[-1].error)) == (
        "backward",
        "Fails",
        True,
    )


def test_values_where_they_are_needed_and_never_for_a_model_without():
    class Asks(Block):
        def forward(self, x):
            return super().forward(x if x.sum() > 0 else -x)

    found = xray(Asks(), torch.randn(4, 8))
    assert (found.mode, found.error) == ("value", None)
    assert "_local_scalar_dense" in found.mode_reason
    without = xray(Asks().to("meta"), torch.randn(4, 8, device="meta"))
    assert without.mode == "fake"
    assert without.error is not None
    followed = xray(Block().to("meta"), torch.randn(4, 8))
    assert (followed.error, ops(followed)[-1].name) == (None, "add")


def test_a_reason_for_the_mode_is_given_where_it_is_news():
    assert xray(Block(), torch.randn(4, 8)).mode_reason == ""
    refused = xray(lambda x: torch.ones(8, 8).half().addmm_(x, x.t()), torch.randn(8, 8))
    assert (refused.mode, refused.mode_reason) == ("fake", "")
    assert refused.error is not None
    asked = xray(Block(), torch.randn(4, 8), mode="fake")
    assert asked.mode_reason == "asked for"


CUDAS = "CUDA's rule is FP32"
PASSED = {
    "h.sum()": (FP32, f"autocast asks it for FP32: {CUDAS} unless a dtype is passed, and none is"),
    "h.sum(dtype=FP16)": (FP16, f"FP16: the call passes dtype=torch.float16; without one, {CUDAS}"),
    "h.sum(dtype=FP32)": (FP32, f"FP32: the call passes dtype=torch.float32; without one, {CUDAS}"),
    "torch.softmax(h, -1, FP16)": (FP16, f"FP16: the call passes dtype=torch.float16; without one, {CUDAS}"),
    "h.double().sum()": (torch.float64, "FP64 as it came: autocast leaves FP64 alone"),
    "torch.ones(4, dtype=torch.int64).sum()": (None, "no floating-point numbers"),
    "h.mean(dtype=FP32)": (
        FP16,
        "no rule of autocast: FP16 comes in, and the call passes dtype=torch.float32",
    ),
    "h.mean()": (FP16, "follows its inputs: FP16"),
}


@both_modes
@pytest.mark.parametrize("written", PASSED)
def test_a_reason_says_which_dtype_was_passed(written, mode):
    found = xray(lambda h: eval(written), torch.randn(4, 4).half(), mode=mode)
    last = ops(found)[-1]
    assert (last.dtype, last.reason) == PASSED[written]
    with cuda_autocast(), torch.autocast("cpu", FP16):
        h = torch.randn(4, 4).half()
        assert eval(written).dtype is last.outputs[0].dtype, h


@both_modes
def test_pytorchs_own_policy_for_cpus(mode):
    model = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1))
    of_cuda, of_cpu = (
        ops(xray(model, torch.randn(2, 8), mode=mode, dtype=BF16, device_type=device))[-1].outputs[0].dtype
        for device in ("cuda", "cpu")
    )
    with torch.autocast("cpu", BF16):
        assert of_cpu == model(torch.randn(2, 8)).dtype == BF16
    assert of_cuda == FP32


def test_a_loss_begins_the_backward_pass_inside_the_region():
    target = torch.zeros(4, dtype=torch.int64)
    found = xray(nn.Linear(8, 3), torch.randn(4, 8), loss=lambda out: F.cross_entropy(out, target))
    names = [op.name for op in ops(found)]
    assert names == ["linear", "log_softmax", "nll_loss"]
    # PyTorch's cross_entropy passes log_softmax the dtype of the logits, so that it stays in 16 bits, on CUDA as well.
    (softmax,), (loss,) = named(found, "log_softmax"), named(found, "nll_loss")
    assert (softmax.outputs[0].dtype, loss.casts[0].dtype, loss.outputs[0].dtype) == (FP16, FP32, FP32)
    assert "the call passes dtype=torch.float16" in softmax.reason
    assert ops(found, "backward")[0].name == "nll_loss"


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"device_type": "tpu"}, ValueError, '"cuda" or "cpu"'),
        ({"dtype": FP32}, ValueError, "torch.bfloat16"),
        ({"dtype": "float16"}, TypeError, "torch.float16"),
        ({"mode": "real"}, ValueError, '"fake"'),
        ({"backward": 1}, TypeError, "True or False"),
        ({"loss": 3}, TypeError, "function"),
    ],
)
def test_settings_that_there_are_not(settings, error, words):
    with pytest.raises(error, match=words):
        xray(nn.Linear(2, 2), torch.randn(1, 2), **settings)


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (nn.DataParallel(nn.Linear(2, 2)), TypeError, "model.module"),
        (nn.Linear, TypeError, "class Linear itself"),
        (nn.LazyLinear(2), ValueError, "lazy"),
        ([nn.Linear(2, 2)], TypeError, "list"),
    ],
    ids=str,
)
def test_models_that_cannot_be_followed(model, error, words):
    with pytest.raises(error, match=words):
        xray(model, torch.randn(1, 2))
