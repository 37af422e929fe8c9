"""Models that make an x-ray's life hard: it shows a right table or a clear error, and leaves no trace."""

import threading
import types
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.xray import xray
from tests.autocast.hostile import (
    BF16,
    FP16,
    FP32,
    FP64,
    Model,
    both_modes,
    healthy,
    look,
    row,
    shown,
    table_or_refusal,
)
from tests.autocast.traces import leaves_no_trace

pytestmark = pytest.mark.long  # `make quick` leaves it to `make test`

# What forward does with tensors


@both_modes
def test_in_place_operators_keep_the_dtype_of_what_they_change(mode):
    def forward(model, x):
        h = model.fc(x)
        h += x
        h[0] = 1.0
        h.mul_(2).relu_()
        return h.sum()

    found = healthy(look(forward, mode=mode))
    assert [name for name, *_ in shown(found)] == ["linear", "add_", "fill_", "mul_", "relu_", "sum"]
    assert [dtype for _, dtype in shown(found)] == [FP16] * 5 + [FP32]
    assert (row(found, "sum").dtype, row(found, "sum").casts) == (
        FP32,
        (),
    )  # it is told a dtype, and copies nothing


@both_modes
def test_in_place_products_are_not_cast_and_fail(mode):
    def forward(model, x):
        h = model.fc(x)
        return h.addmm_(x[:, :4], x[:, 4:].t() @ x)

    found = look(forward, mode=mode)
    assert found.ops[-1].name == "addmm_"
    assert found.ops[-1].error
    assert "dtype" in str(found.error)
    assert "dtype" in str(found.explanation)


@both_modes
def test_views_are_marked_and_cast_as_what_they_show(mode):
    def forward(model, x):
        weight = model.fc.weight.t()[:, ::2]
        return x.unflatten(1, (2, 4)).transpose(1, 2).flatten(1) @ weight

    found = look(forward, mode=mode)
    assert found.error is None
    views = [op for op in found.ops if op.phase == "forward" and op.view]
    assert [op.name for op in views] == ["t", "slice", "unflatten", "transpose"]
    product = row(found, "matmul")
    assert [(each.value.shape, each.dtype) for each in product.casts] == [((4, 8), FP16), ((8, 4), FP16)]


class Pair(NamedTuple):
    first: torch.Tensor
    second: object


OUTPUTS = {
    "a dict with None and numbers": (lambda h: {"a": h, "b": None, 3: 1.5, "c": {"d": [h * 2, "x"]}}, True),
    "a named tuple": (lambda h: Pair(h, 7), True),
    "a list of one": (lambda h: [h], True),
    "the same twice": (lambda h: (h, h), True),
    "None": (lambda h: None, False),
    "integers": (lambda h: h.argmax(-1), False),
    "a number": (lambda h: 3.0, False),
    "a detached tensor": (lambda h: h.detach(), False),
}


@both_modes
@pytest.mark.parametrize(("output", "differentiable"), OUTPUTS.values(), ids=OUTPUTS)
def test_outputs_of_any_kind(output, differentiable, mode):
    found = look(lambda model, x: output(model.fc(x)), mode=mode)
    assert found.error is None
    assert row(found, "linear").outputs[0].dtype == FP16
    assert ("linear" in {op.name for op in found.ops if op.phase == "backward"}) == differentiable


@both_modes
def test_a_dataclass_or_any_object_may_come_out(mode):
    found = look(lambda model, x: types.SimpleNamespace(logits=model.fc(x)), mode=mode)
    assert found.error is None
    assert row(found, "linear").outputs[0].dtype == FP16


@both_modes
def test_float64_is_left_alone(mode):
    def forward(model, x):
        wide = x.double()
        exact = wide @ wide.t()
        return model.fc(x) + exact[:, :1] * torch.tensor(0.5, dtype=FP64)

    found = healthy(look(forward, mode=mode))
    assert row(found, "matmul").outputs[0].dtype == FP64
    assert not row(found, "matmul").casts
    assert row(found, "add").outputs[0].dtype == FP64


@both_modes
def test_float64_into_a_layer_is_an_error(mode):
    found = look(lambda model, x: model.fc(x.double()), mode=mode)
    assert found.ops[-1].name == "linear"
    assert found.ops[-1].error
    assert "dtype" in str(found.error)


@both_modes
def test_integers_as_indices(mode):
    def forward(model, x):
        ids = torch.tensor([0, 3, 1, 1])
        picked = model.fc(x)[ids]
        picked = picked.gather(1, ids[:, None]) + picked.index_select(1, ids[:1])
        return picked.index_fill(0, ids[:1], 0.0)

    found = healthy(look(forward, mode=mode))
    assert row(found, "gather").outputs[0].dtype == FP16
    assert {dtype for name, *rest in shown(found) for dtype in rest if name in ("index", "gather")} == {FP16}


@both_modes
def test_writing_fp32_into_fp16_by_index_is_an_error(mode):
    def forward(model, x):
        h = torch.zeros_like(x)
        return h.scatter_add(1, torch.zeros(4, 8, dtype=torch.long), model.fc(x))

    found = look(forward, mode=mode)
    real = _raised(
        lambda: torch.zeros(4, 8).scatter_add(1, torch.zeros(4, 8, dtype=torch.long), torch.ones(4, 8).half())
    )
    # CUDA's autocast takes both to the widest; if it does, nothing is raised.
    if row(found, "scatter_add").casts:
        assert found.error is None
    else:
        assert str(real) in str(found.error)


def _raised(call):
    with pytest.raises(RuntimeError) as caught:
        call()
    return caught.value


@both_modes
def test_a_mask_with_minus_1e9_is_an_error(mode):
    found = look(lambda model, x: model.fc(x).masked_fill(x > 0, -1e9), mode=mode)
    assert found.ops[-1].name == "masked_fill"
    assert "overflow" in str(found.error)


@both_modes
def test_empty_and_zero_dim_tensors(mode):
    def forward(model, x):
        return model.fc(x).sum() * torch.tensor(2.0) + torch.empty(0).sum()

    found = healthy(look(forward, torch.randn(0, 8), mode=mode))
    assert row(found, "linear").outputs[0].shape == (0, 8)
    assert row(found, "mul").outputs[0].shape == ()


@both_modes
def test_sparse_gradients_of_an_embedding(mode):
    model = Model(lambda model, ids: model.fc(model.table(ids)), table=nn.Embedding(10, 8, sparse=True))
    found = healthy(look(model, torch.tensor([[1, 2], [2, 9]]), mode=mode))
    assert row(found, "embedding").outputs[0].dtype == FP32
    assert "embedding" in {op.name for op in found.ops if op.phase == "backward"}


@both_modes
def test_sparse_matrices(mode):
    def forward(model, x):
        return torch.sparse.mm(torch.eye(4).to_sparse(), model.fc(x).float())

    found = look(forward, mode=mode)
    assert found.error is None or str(found.error)
    assert row(found, "linear").outputs[0].dtype == FP16


@both_modes
def test_complex_numbers(mode):
    def forward(model, x):
        spectrum = torch.fft.rfft(model.fc(x).float())
        filtered = torch.fft.irfft(spectrum * torch.polar(torch.ones(5), torch.zeros(5)), n=8)
        return torch.view_as_real(torch.complex(filtered, filtered)).sum()

    found = healthy(look(forward, mode=mode))
    assert torch.complex64 in {each.dtype for op in found.ops for each in op.outputs}


# What forward does that is not computing


@pytest.mark.parametrize(
    "branch",
    [
        lambda h: h * 2 if h.sum() > 0 else h / 2,
        lambda h: h * h.abs().max().item(),
        lambda h: h[h > 0],
        lambda h: h[torch.nonzero(h[:, 0] > -9).flatten()],
        lambda h: h * len(torch.unique(h.detach().float().round())),
        lambda h: [h for number in h[0].tolist() if number == number],
        lambda h: h * float(h.detach().numpy().mean()),
    ],
)
def test_what_depends_on_data_needs_values(branch):
    found = healthy(look(lambda model, x: branch(model.fc(x))))
    assert found.mode == "value"
    assert found.mode_reason


def test_fake_mode_says_that_it_cannot_follow_data():
    def forward(model, x):
        return model.fc(x) if model.fc(x).sum() > 0 else x

    found = table_or_refusal(forward, mode="fake")
    told = found if isinstance(found, str) else f"{found.error} {found.explanation} {found.mode_reason}"
    assert "value" in told


@both_modes
def test_a_model_that_fails_is_shown_up_to_there(mode):
    def forward(model, x):
        model.fc(x)
        raise ValueError("my own sentence")

    found = look(forward, mode=mode)
    assert shown(found) == [("linear", FP16)]
    assert "my own sentence" in str(found.error)
    assert {op.phase for op in found.ops} == {"forward"}


@both_modes
def test_a_wrong_shape_is_an_error_with_its_operator(mode):
    found = look(lambda model, x: model.fc(x) @ x, mode=mode)
    assert found.ops[-1].name == "matmul"
    assert found.ops[-1].error
    assert "shape" in found.error or "reduction dim" in found.error


@both_modes
@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_an_interruption_is_not_swallowed(stop, mode):
    def forward(model, x):
        model.fc(x)
        raise stop

    with pytest.raises(stop):
        look(forward, mode=mode)


@both_modes
def test_an_exception_that_the_model_handles(mode):
    def forward(model, x):
        h = model.fc(x)
        try:
            h = x @ h.double()
        except RuntimeError:
            h = h * 3
        return h

    found = look(forward, mode=mode)
    assert found.error is None
    assert shown(found)[-1] == ("mul", FP16)
    assert any(op.error for op in found.ops)


@both_modes
def test_generators(mode):
    def forward(model, x):
        def steps():
            h = x
            for _ in range(3):
                h = model.fc(h)
                yield h

        return torch.stack(list(steps()))

    found = healthy(look(forward, mode=mode))
    assert [op.call for op in found.ops if op.name == "linear" and op.phase == "forward"] == [1, 2, 3]


@both_modes
def test_a_forward_that_yields_is_a_table_or_an_error(mode):
    def forward(model, x):
        yield model.fc(x)

    found = table_or_refusal(forward, mode=mode)
    if isinstance(found, str):
        assert "generator" in found
    else:
        assert "linear" in {op.name for op in found.ops} or "generator" in str(found)


@both_modes
def test_hooks_run_and_are_seen(mode):
    model = Model(lambda model, x: model.fc(x).tanh())
    called = []
    model.fc.register_forward_hook(lambda module, args, output: called.append("forward") or output * 2)
    model.fc.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model.fc.register_full_backward_hook(lambda module, before, after: called.append("backward"))
    found = healthy(look(model, torch.randn(4, 8, requires_grad=True), mode=mode))
    assert called == ["forward", "backward"]
    assert [name for name, *_ in shown(found)] == ["add", "linear", "mul", "tanh"]


@both_modes
def test_hooks_of_parameters_do_not_run(mode):
    """They watch over training; an x-ray is none."""
    model, called = Model(lambda model, x: model.fc(x)), []
    model.fc.weight.register_hook(lambda grad: called.append("grad"))
    model.fc.weight.register_post_accumulate_grad_hook(lambda parameter: called.append("step"))
    healthy(look(model, mode=mode))
    assert not called


@both_modes
def test_a_shared_module_is_counted_and_its_weight_is_copied_once(mode):
    found = healthy(look(lambda model, x: model.fc(model.fc(x)), mode=mode))
    first, second = (op for op in found.ops if op.name == "linear" and op.phase == "forward")
    assert (first.call, second.call, first.module, second.module) == (1, 2, "fc", "fc")
    copied = [
        {each.value.name: each.copied for each in op.casts if each.value.name} for op in (first, second)
    ]
    assert copied == [{"fc.weight": 128, "fc.bias": 16}, {"fc.weight": 0, "fc.bias": 0}]


@both_modes
def test_a_module_under_two_names(mode):
    model = Model(lambda model, x: model.again(model.fc(x)))
    model.again = model.fc
    found = healthy(look(model, mode=mode))
    first, second = (op for op in found.ops if op.name == "linear" and op.phase == "forward")
    assert {first.module, second.module} <= {"fc", "again"}


@both_modes
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing(reentrant, mode):
    def forward(model, x):
        part = lambda h: model.drop(model.fc(h)).exp()  # noqa: E731
        return checkpoint(part, model.fc(x), use_reentrant=reentrant).sum()

    found = healthy(look(Model(forward, drop=nn.Dropout(0.5)), mode=mode))
    names = [name for name, *_ in shown(found) if name != "empty"]  # of which older versions make one
    assert names == ["linear", "linear", "dropout", "exp", "sum"]
    assert shown(found, "recomputed")[:2] == [("linear", FP16), ("dropout", FP16)]
    # PyTorch may stop recomputing once it has what the backward pass needs.
    assert shown(found, "recomputed")[2:] in ([("exp", FP32)], [("exp",)], [])


@both_modes
def test_custom_functions_are_named(mode):
    found = healthy(look(lambda model, x: Scaled.apply(model.fc(x)), mode=mode))
    inside = [op for op in found.ops if op.within == "Scaled"]
    assert {op.phase for op in inside} == {"forward", "backward"}
    assert {each.dtype for op in inside for each in op.outputs} == {FP16}


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, grad):
        return grad * 3


class Product(torch.autograd.Function):
    """Without custom_fwd and custom_bwd: its backward pass meets FP16 and FP32."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.t(), x.t() @ grad


@both_modes
def test_a_custom_function_whose_backward_mixes_dtypes(mode):
    found = look(lambda model, x: Product.apply(x, model.fc.weight), mode=mode)
    assert found.ops[-1].phase == "backward"
    assert found.ops[-1].error
    assert "dtype" in str(found.error)


class Careful(Product):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu")
    def forward(ctx, x, weight):
        return Product.forward(ctx, x, weight)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad):
        return Product.backward(ctx, grad)


@both_modes
def test_a_custom_function_that_is_made_for_autocast(mode):
    found = look(lambda model, x: Careful.apply(x, model.fc.weight), mode=mode)
    assert found.error is None
    products = [
        op
        for op in found.ops
        if op.within == "Careful" and op.name in ("matmul", "mm") and op.phase == "backward"
    ]
    assert {op.outputs[0].dtype for op in products} == {FP16}
    assert {kernel for op in products for kernel in op.kernels} == {"aten.mm.default"}


# Regions of its own


@both_modes
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_an_island_in_fp32(device, mode):
    def forward(model, x):
        h = model.fc(x)
        with torch.autocast(device, enabled=False):
            island = h.float() @ model.fc.weight
        return model.fc(island)

    found = healthy(look(forward, mode=mode))
    island = row(found, "matmul")
    assert (island.region, island.outputs[0].dtype, island.casts) == (None, FP32, ())
    assert island.fate is None
    assert shown(found)[-1] == ("linear", FP16)


@both_modes
def test_an_island_without_a_cast_is_an_error(mode):
    def forward(model, x):
        h = model.fc(x)
        with torch.autocast("cuda", enabled=False):
            return h @ model.fc.weight

    found = look(forward, mode=mode)
    assert found.ops[-1].name == "matmul"
    assert "dtype" in str(found.error)


@both_modes
def test_a_region_in_the_other_half(mode):
    def forward(model, x):
        with torch.autocast("cuda", dtype=BF16):
            h = model.fc(x)
        return model.other(h.float())

    found = healthy(look(Model(forward, other=nn.Linear(8, 8)), mode=mode))
    first, second = (op for op in found.ops if op.name == "linear" and op.phase == "forward")
    assert (first.outputs[0].dtype, first.region) == (BF16, BF16)
    assert (second.outputs[0].dtype, second.region) == (FP16, FP16)


@both_modes
def test_a_weight_that_is_cached_in_the_other_half(mode):
    """PyTorch's cache of weights does not ask for the dtype: in a second region it hands out the wrong copy."""

    def forward(model, x):
        with torch.autocast("cuda", dtype=BF16):
            h = model.fc(x)
        return model.fc(h.float())

    fc, x = nn.Linear(8, 8), torch.randn(4, 8)
    with torch.autocast("cpu", FP16), torch.autocast("cpu", BF16):
        fc(x)
        with torch.autocast("cpu", FP16), pytest.raises(RuntimeError) as real:
            fc(x)
    found = look(forward, mode=mode)
    assert str(real.value) in found.error
    assert found.ops[-1].name == "linear"


@both_modes
def test_a_forward_decorated_with_autocast(mode):
    """On a machine without CUDA, PyTorch warns where the decorator is made, and makes one that does nothing."""

    class Decorated(nn.Linear):
        def forward(self, x):
            return torch.autocast("cuda", dtype=BF16)(super().forward)(x)

    found = healthy(look(Decorated(8, 8), mode=mode))
    assert shown(found) == [("linear", BF16)]


@both_modes
def test_a_model_that_asks_whether_autocast_is_on(mode):
    def forward(model, x):
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else FP32
        return model.fc(x) + x.to(dtype)

    found = healthy(look(forward, mode=mode, dtype=BF16))
    assert row(found, "add").outputs[0].dtype == BF16


@both_modes
def test_gradients_switched_off_inside(mode):
    def forward(model, x):
        with torch.no_grad():
            frozen = model.fc(x)
        return model.fc(frozen)

    found = look(forward, mode=mode)
    if (
        torch.__version__ < "2.11"
    ):  # kept the copy that was made without gradients: PyTorch's pull request 165068
        assert not shown(found, "backward")
        return
    linear = [op for op in healthy(found).ops if op.name == "linear"]
    assert [op.phase for op in linear if op.phase == "forward"] == ["forward"] * 2
    assert {op.forward for op in linear if op.phase == "backward"} == {linear[1].number}


@both_modes
def test_modules_in_threads_are_seen_or_said_not_to_be(mode):
    """Autocast's state belongs to a thread: a new one starts without."""

    def forward(model, x):
        results = []
        worker = threading.Thread(target=lambda: results.append(model.other(x.detach())))
        worker.start()
        worker.join()
        return model.fc(x) + results[0]

    found = look(Model(forward, other=nn.Linear(8, 8)), mode=mode)
    inside = [op for op in found.ops if op.module == "other"]
    assert all(op.outputs[0].dtype == FP32 for op in inside)
    assert inside or found.error or "thread" in str(found)


# Kinds of model


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_compiled_model_is_refused_with_advice():
    for compiled in (torch.compile(nn.Linear(8, 8)), nn.Sequential(torch.compile(nn.Linear(8, 8)))):
        with pytest.raises((TypeError, ValueError), match="eager"):
            xray(compiled, torch.randn(4, 8))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_model_compiled_in_place_is_refused_with_advice():
    model = nn.Linear(8, 8)
    model.compile()
    with pytest.raises(TypeError, match="compiled"):
        xray(model, torch.randn(4, 8))


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_scripted_model_is_a_table_or_a_clear_error():
    model = torch.jit.trace(nn.Linear(8, 8), torch.randn(4, 8))
    with pytest.raises((TypeError, ValueError), match="TorchScript"):
        xray(model, torch.randn(4, 8))


@both_modes
def test_a_half_model(mode):
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 8)).half()
    found = healthy(look(model, torch.randn(4, 8).half(), mode=mode))
    assert shown(found) == [("linear", FP16), ("layer_norm", FP32), ("linear", FP16)]
    assert {each.dtype for each in found.trainable} == {FP16}


@both_modes
def test_nested_containers_and_keywords(mode):
    model = nn.ModuleDict({"a": nn.ModuleList([nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8))])})
    model.extra = nn.ParameterList([nn.Parameter(torch.ones(8))])

    def forward(model, batch, *, scale, more=None):
        h = model.parts["a"][0](batch["x"][0])
        return {"out": [model.parts["a"][1](h) * model.parts.extra[0] * scale["s"]]}

    found = healthy(
        look(Model(forward, parts=model), {"x": [torch.randn(4, 8)]}, scale={"s": torch.ones(1)}, mode=mode)
    )
    paths = [op.module for op in found.ops if op.name == "linear" and op.phase == "forward"]
    assert paths == ["parts.a.0", "parts.a.1.0"]


@both_modes
def test_weights_that_are_computed(mode):
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
    found = healthy(look(Model(lambda model, x: model.normed(x), normed=layer), mode=mode))
    assert row(found, "linear").outputs[0].dtype == FP16


@both_modes
def test_a_model_without_parameters(mode):
    found = look(nn.Softmax(-1), torch.randn(4, 8), mode=mode)
    assert found.error is None
    assert (shown(found), found.ops[-1].fate) == ([("softmax", FP32)], Fate.FP32_UNLESS)


@both_modes
def test_a_model_that_does_nothing(mode):
    found = look(nn.Identity(), mode=mode)
    assert (found.error, shown(found), shown(found, "backward")) == (None, [], [])
    assert str(found)


def test_lazy_modules_are_refused_with_advice():
    found = table_or_refusal(nn.LazyLinear(8))
    assert isinstance(found, str)
    assert "lazy" in found.lower()


@pytest.mark.parametrize("model", ["model", None, 3, torch.ones(2)])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(TypeError, match="model"):
        xray(model, torch.randn(4, 8))


@both_modes
def test_a_function_that_uses_modules(mode):
    fc = nn.Linear(8, 8)
    found = healthy(leaves_no_trace(xray, lambda x: fc(x).relu(), torch.randn(4, 8), mode=mode))
    assert shown(found) == [("linear", FP16), ("relu", FP16)]
