"""The emulation under the rest of PyTorch: autograd, autocast, torch.func, compile; errors and other dtypes as ever."""

import warnings

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

from amp_lab.autocast.emulate import tensor_cores
from amp_lab.autocast.kernels import tensor_cores as tensor_core_kernels

HALF = torch.float16


def h(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(HALF)


@pytest.fixture
def conversions(monkeypatch):
    """Emulation is on; the list fills with the operands that went to FP32."""
    seen = []
    convert = tensor_core_kernels._in_fp32
    monkeypatch.setattr(
        tensor_core_kernels, "_in_fp32", lambda operand: seen.append(operand) or convert(operand)
    )
    with tensor_cores(always=True):
        yield seen


def outcome(compute):
    """What comes out: a tensor's looks, or an error's first line; and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = compute()
            looks = [(t.dtype, t.shape, t.stride(), t.device.type) for t in _tensors(result)]
        except Exception as error:
            looks = [(type(error), str(error).splitlines()[0])]
    return looks, [(w.category, str(w.message).splitlines()[0]) for w in caught]


def _tensors(result):
    return [each for each in (result if isinstance(result, tuple | list) else [result]) if each is not None]


class _Names(torch.utils._python_dispatch.TorchDispatchMode):
    """The operators that PyTorch calls meanwhile."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


IMAGE, FILTERS = h(1, 2, 5, 5), h(3, 2, 3, 3)

# What goes to the original kernels, or fails as it does there.
AS_EVER = {
    "FP16 × FP32": lambda: h(4, 4) @ h(4, 4).float(),
    "FP16 × BF16": lambda: h(4, 4) @ h(4, 4).bfloat16(),
    "addmm of an FP32 input": lambda: torch.addmm(h(4, 4).float(), h(4, 4), h(4, 4)),
    "addmm_ of an FP32 input": lambda: h(4, 4).float().addmm_(h(4, 4), h(4, 4)),
    "convolution with FP32 filters": lambda: F.conv2d(IMAGE, FILTERS.float()),
    "convolution with an FP32 bias": lambda: F.conv2d(IMAGE, FILTERS, torch.zeros(3)),
    "shapes of mm": lambda: h(2, 3) @ h(2, 3),
    "shapes of mv": lambda: h(2, 3) @ h(2),
    "shapes of dot": lambda: torch.dot(h(3), h(4)),
    "dimensions of dot": lambda: torch.dot(h(3, 3), h(3, 3)),
    "dimensions of bmm": lambda: torch.bmm(h(3, 3), h(3, 3)),
    "channels of a convolution": lambda: F.conv2d(IMAGE, h(3, 3, 3, 3)),
    "padding below zero": lambda: F.conv2d(IMAGE, FILTERS, padding=-1),
    "filters larger than the image": lambda: F.conv2d(h(1, 2, 2, 2), FILTERS),
    "addmm_ into a smaller tensor": lambda: h(1, 4).addmm_(h(4, 4), h(4, 4)),
    "addmv_ into a smaller tensor": lambda: h(1).addmv_(h(4, 4), h(4)),
    "addmm_ into a leaf": lambda: h(4, 4).requires_grad_().addmm_(h(4, 4), h(4, 4)),
    "addmm_ into one value": lambda: h(1).expand(4, 4).addmm_(h(4, 4), h(4, 4)),
    "out= with a gradient": lambda: torch.mm(h(4, 4).requires_grad_(), h(4, 4), out=h(4, 4)),
    "out= of FP32": lambda: torch.mm(h(4, 4), h(4, 4), out=torch.empty(4, 4)),
    "out= of one value": lambda: torch.mm(h(4, 4), h(4, 4), out=h(1).expand(4, 4)),
    "out= that is resized": lambda: torch.mm(h(4, 4), h(4, 4), out=h(2, 2)),
    "out= that is empty": lambda: torch.mm(h(4, 4), h(4, 4), out=h(0)),
    "out= that is transposed": lambda: torch.mm(h(4, 3), h(3, 5), out=h(5, 4).T),
    "a complex alpha": lambda: torch.addmm(h(4, 4), h(4, 4), h(4, 4), alpha=1j),
    "meta tensors": lambda: h(4, 4).to("meta") @ h(4, 4).to("meta"),
    "FP32": lambda: F.conv2d(IMAGE.float(), FILTERS.float()),
    "FP64": lambda: h(4, 4).double() @ h(4, 4).double(),
    "integers": lambda: h(4, 4).int() @ h(4, 4).int(),
    "complex numbers": lambda: h(4, 4).to(torch.complex64) @ h(4, 4).to(torch.complex64),
    "sparse": lambda: torch.sparse.mm(h(4, 4).float().to_sparse(), h(4, 4).float()),
    "strides of a transposed product": lambda: h(4, 3).T @ h(5, 4).T,
    "strides, channels last": lambda: F.conv2d(IMAGE.to(memory_format=torch.channels_last), FILTERS),
    "a convolution's missing gradients": lambda: torch.ops.aten.convolution_backward(
        h(1, 3, 3, 3), IMAGE, FILTERS, [3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [False, True, False]
    ),
}


@pytest.mark.parametrize("compute", AS_EVER.values(), ids=AS_EVER.keys())
def test_looks_errors_and_warnings_are_pytorchs(compute):
    without = outcome(compute)
    with tensor_cores(always=True):
        assert outcome(compute) == without


@pytest.mark.parametrize(
    "name", ["FP16 × FP32", "FP32", "FP64", "integers", "complex numbers", "meta tensors", "sparse"]
)
def test_nothing_else_goes_through_fp32(conversions, name):
    outcome(AS_EVER[name])
    assert conversions == []


def _encoder() -> torch.Tensor:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dtype=HALF, batch_first=True).eval()
    with torch.no_grad():
        return layer(h(2, 3, 8))


# What PyTorch builds from the operators that are replaced.
BUILT = {
    "nn.Linear": lambda: nn.Linear(8, 4, dtype=HALF)(h(2, 3, 8)),
    "nn.Bilinear": lambda: nn.Bilinear(4, 5, 3, dtype=HALF)(h(2, 4), h(2, 5)),
    "nn.Conv1d": lambda: nn.Conv1d(2, 3, 3, dtype=HALF)(h(1, 2, 9)),
    "nn.ConvTranspose3d": lambda: nn.ConvTranspose3d(2, 3, 2, dtype=HALF)(h(1, 2, 3, 3, 3)),
    "nn.LSTM in training": lambda: nn.LSTM(8, 8, dtype=HALF)(h(3, 2, 8))[0],
    "nn.GRU": lambda: nn.GRU(8, 8, dtype=HALF)(h(3, 2, 8))[0],
    "nn.MultiheadAttention": lambda: nn.MultiheadAttention(8, 2, dtype=HALF)(*[h(3, 2, 8)] * 3)[0],
    "nn.TransformerEncoderLayer": _encoder,
    "einsum": lambda: torch.einsum("ij,kj->ik", h(3, 4), h(5, 4)),
    "tensordot": lambda: torch.tensordot(h(3, 4), h(4, 5), 1),
    "conv_tbc": lambda: torch.conv_tbc(h(5, 2, 3), h(3, 3, 4), h(4)),
    "multi_dot": lambda: torch.linalg.multi_dot([h(3, 4), h(4, 5), h(5, 2)]),
}


@pytest.mark.parametrize("compute", BUILT.values(), ids=BUILT.keys())
def test_what_is_built_from_products_is_emulated(conversions, compute):
    result = compute()
    assert result.dtype == HALF
    assert result.isfinite().all()
    assert conversions


# Where PyTorch takes oneDNN's LSTM, that one is left alone, as the docstring of tensor_cores says.
@pytest.mark.parametrize("dtype", [HALF, torch.bfloat16], ids=str)
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_an_lstm_is_emulated_unless_onednn_has_one(conversions, dtype, training):
    model = nn.LSTM(8, 8, dtype=dtype)
    with torch.set_grad_enabled(training), _Names() as seen:
        model(h(3, 2, 8).to(dtype))
    onednn = "aten.mkldnn_rnn_layer.default" in seen.names
    assert bool(conversions) != onednn
    assert not (onednn and dtype == HALF and training)


@pytest.mark.parametrize("layer", [nn.LSTMCell, nn.GRU, nn.RNN])
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_its_relatives_are_emulated_in_bf16_too(conversions, layer, training):
    with torch.set_grad_enabled(training):
        layer(8, 8, dtype=torch.bfloat16)(h(2, 8).bfloat16())
    assert conversions


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_traced_models_convolutions_are_left_alone(conversions):
    convolution, linear = nn.Conv2d(2, 3, 3, dtype=HALF), nn.Linear(5, 5, dtype=HALF)
    traced = [torch.jit.trace(model, IMAGE, check_trace=False) for model in (convolution, linear)]
    conversions.clear()
    traced[0](IMAGE)
    assert conversions == []  # as the docstring of tensor_cores says
    traced[1](IMAGE)
    assert conversions


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 5))


def test_autocast_trains_through_it(conversions):
    model, exact = network(), network()
    with torch.autocast("cpu", HALF):
        result = model(IMAGE.float())
    assert result.dtype == HALF
    result.float().square().sum().backward()
    exact(IMAGE.float()).square().sum().backward()
    for parameter, reference in zip(model.parameters(), exact.parameters(), strict=True):
        assert parameter.grad.dtype == torch.float32
        assert torch.allclose(parameter.grad, reference.grad, rtol=0.02, atol=0.01)
    # Forward and backward, of a convolution and a linear layer.
    assert len([operand for operand in conversions if isinstance(operand, torch.Tensor)]) >= 12


@pytest.mark.parametrize("autocast_dtype", [HALF, torch.bfloat16], ids=str)
def test_products_called_inside_autocast_do_not_go_round_in_circles(conversions, autocast_dtype):
    with torch.autocast("cpu", autocast_dtype):
        assert (h(4, 4) @ h(4, 4)).dtype == autocast_dtype
        assert torch.mv(h(4, 4), h(4)).dtype in (HALF, autocast_dtype)
        assert torch.ops.aten.convolution(
            IMAGE, FILTERS, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1
        ).dtype in (HALF, autocast_dtype)


def test_gradients_of_gradients(conversions):
    x, w = IMAGE.clone().requires_grad_(), FILTERS.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(F.conv2d(x, w).square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), w)
    x64, w64 = IMAGE.double().requires_grad_(), FILTERS.double().requires_grad_()
    (gradient64,) = torch.autograd.grad(F.conv2d(x64, w64).square().sum(), x64, create_graph=True)
    (second64,) = torch.autograd.grad(gradient64.sum(), w64)
    assert torch.allclose(second.double(), second64, rtol=0.02, atol=0.5)


def test_torch_func(conversions):
    a, b = h(3, 4), h(4, 4)
    assert torch.equal(torch.vmap(torch.mv)(h(5, 3, 4), h(5, 4)), torch.bmm(h(5, 3, 4), h(5, 4, 1))[..., 0])
    assert torch.equal(torch.func.grad(lambda x: (x @ b).sum())(a), torch.ones(3, 4).half() @ b.T)
    assert torch.equal(torch.func.jacrev(lambda x: b @ x)(h(4)), b)
    images, filters = h(3, 1, 2, 5, 5), h(3, 3, 2, 3, 3)
    one_by_one = torch.stack([F.conv2d(x, w) for x, w in zip(images, filters, strict=True)])
    assert torch.allclose(torch.vmap(F.conv2d)(images, filters), one_by_one)
    assert conversions


def test_inference_mode(conversions):
    with torch.inference_mode():
        assert (h(2, 2) @ h(2, 2)).is_inference()
    assert conversions


def test_fake_tensors_have_the_right_looks(conversions):
    with FakeTensorMode() as mode:
        a = mode.from_tensor(h(3, 4))
        product, image = (
            a @ a.T,
            F.conv2d(torch.empty(1, 2, 5, 5, dtype=HALF), torch.empty(3, 2, 3, 3, dtype=HALF)),
        )
    assert (product.shape, product.dtype) == ((3, 3), HALF)
    assert (image.shape, image.dtype) == ((1, 3, 3, 3), HALF)
    assert conversions == []


def test_a_compiled_model_is_emulated_when_it_runs(conversions):
    torch._dynamo.reset()
    model = torch.compile(network().half(), backend="aot_eager")
    result = model(IMAGE)
    result.sum().backward()
    assert torch.equal(result, network().half()(IMAGE))
    assert conversions


def test_users_modes_see_what_they_always_see():
    def names():
        with _Names() as seen:
            F.conv2d(IMAGE, FILTERS) @ torch.ones(3, 1, dtype=HALF)
        return seen.names

    without = names()
    with tensor_cores(always=True):
        assert names() == without
    assert "aten.convolution.default" in without


def test_an_operand_may_be_the_target():
    a, b = h(4, 4), h(4, 4, seed=1)
    with tensor_cores(always=True):
        expected = a @ b
        assert torch.equal(torch.mm(a, b, out=a), expected)
        assert torch.equal(a, expected)


def test_autograd_notices_changes_in_place(conversions):
    weight = h(4, 4).requires_grad_()
    kept = h(4, 4)
    loss = (weight @ kept).sum()
    kept.addmm_(h(4, 4), h(4, 4))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
