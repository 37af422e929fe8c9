"""What emulated products come to: exact sums in FP32, rounded to 16 bits once."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from amp_lab.autocast.emulate import TensorCores, tensor_cores
from amp_lab.autocast.kernels import tensor_cores as tensor_core_kernels
from tests.autocast.products import EMPTY, PRODUCTS, Product

HALVES = [torch.float16, torch.bfloat16]
NAMES = [product.name for product in PRODUCTS]
EPS = {torch.float16: 2.0**-10, torch.bfloat16: 2.0**-7}
SMALLEST = {torch.float16: 2.0**-24, torch.bfloat16: 2.0**-133}


@pytest.fixture(autouse=True)
def emulated():
    with tensor_cores(always=True):
        yield


def integers(seed: int, dtype: torch.dtype):
    """Draw operands of whole numbers so small that FP32 adds them up without any rounding."""
    generator = torch.Generator().manual_seed(seed)
    return lambda shape: torch.randint(-3, 10, shape, generator=generator).to(dtype)


def normals(seed: int, dtype: torch.dtype, positive: bool = False):
    generator = torch.Generator().manual_seed(seed)

    def draw(shape):
        values = torch.randn(shape, generator=generator)
        return (values.abs() if positive else values).to(dtype)

    return draw


def exactly(product: Product, operands) -> torch.Tensor:
    """The result in FP64, where these few terms are as good as exact."""
    return product.compute(*(operand.double() for operand in operands))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("product", PRODUCTS, ids=NAMES)
def test_sums_that_fp32_holds_are_rounded_once_and_no_more(product, dtype):
    for seed in range(3):
        operands = product.operands(integers(seed, dtype))
        exact = exactly(product, operands)
        assert torch.equal(exact, exact.float().double())  # so the only rounding is the one to 16 bits
        result = product.compute(*operands)
        assert result.dtype == dtype
        assert torch.equal(result, exact.to(dtype))


@pytest.mark.parametrize("product", PRODUCTS, ids=NAMES)
def test_each_of_them_goes_through_fp32(product, monkeypatch):
    seen, convert = [], tensor_core_kernels._in_fp32
    monkeypatch.setattr(
        tensor_core_kernels, "_in_fp32", lambda operand: seen.append(operand) or convert(operand)
    )
    product.compute(*product.operands(integers(0, torch.float16)))
    assert seen


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_these_sums_tell_one_rounding_from_many(dtype):
    draw = integers(0, dtype)
    a, b = draw((7, 300)), draw((300, 5))
    exact = (a.double() @ b.double()).to(dtype)
    sums = torch.zeros(7, 5, dtype=dtype)
    for k in range(300):
        sums += a[:, k, None] * b[None, k]  # in 16 bits, rounded at each step
    assert not torch.equal(sums, exact)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("product", PRODUCTS, ids=NAMES)
def test_any_numbers_lie_half_a_spacing_and_fp32s_errors_from_the_exact_result(product, dtype):
    operands = product.operands(normals(1, dtype))
    exact = exactly(product, operands)
    error = (product.compute(*operands).double() - exact).abs()
    assert (error <= _half_a_spacing(exact, dtype) + _fp32_errors(product, operands)).all()


# PyTorch's own kernels may round beta * input to 16 bits, and add to that; those are left out here.
PLAIN = [p for p in PRODUCTS if not any(word in p.name for word in ("addmm", "addbmm", "addmv", "baddbmm"))]
# And on a CPU without half arithmetic these add up partial sums, one for each pixel of a filter or each image, in
# 16 bits; there are at most 12 of them in these examples.
ADDED_IN_16_BITS = [p for p in PLAIN if "transpose2d" in p.name or "of conv" in p.name]
ROUNDED_ONCE = [p for p in PLAIN if p not in ADDED_IN_16_BITS]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("product", ROUNDED_ONCE, ids=lambda product: product.name)
def test_pytorchs_own_kernels_differ_by_one_spacing_on_positive_numbers(product, dtype):
    operands = product.operands(normals(2, dtype, positive=True))
    assert _spacings_between(product.compute(*operands), _own(product, operands)).max() <= 1


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("product", ROUNDED_ONCE, ids=lambda product: product.name)
def test_pytorchs_own_kernels_differ_by_one_spacing_and_fp32s_errors_on_any(product, dtype):
    operands = product.operands(normals(3, dtype))
    emulated, own = product.compute(*operands).double(), _own(product, operands).double()
    spacing = 2 * _half_a_spacing(torch.maximum(emulated.abs(), own.abs()), dtype)
    assert ((emulated - own).abs() <= spacing + 2 * _fp32_errors(product, operands)).all()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("product", ADDED_IN_16_BITS, ids=lambda product: product.name)
def test_pytorchs_own_kernels_that_add_in_16_bits_differ_by_the_roundings_of_partial_sums(product, dtype):
    operands = product.operands(normals(3, dtype))
    emulated, own = product.compute(*operands).double(), _own(product, operands).double()
    roundings = 12 * _half_a_spacing(_magnitudes(product, operands), dtype)
    assert ((emulated - own).abs() <= roundings + 2 * _fp32_errors(product, operands)).all()


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(0, 9),
    inner=st.integers(0, 70),
    columns=st.integers(0, 9),
    exponent=st.integers(-12, 5),
    seed=st.integers(0, 2**31),
    dtype=st.sampled_from(HALVES),
)
def test_products_of_any_shape_and_size(rows, inner, columns, exponent, seed, dtype):
    product = Product("mm", torch.mm, ((rows, inner), (inner, columns)), max(inner, 1))
    draw = normals(seed, torch.float32)
    operands = tuple((draw(shape) * 2.0**exponent).to(dtype) for shape in product.shapes)
    exact = exactly(product, operands)
    error = (product.compute(*operands).double() - exact).abs()
    assert (error <= _half_a_spacing(exact, dtype) + _fp32_errors(product, operands)).all()


@settings(max_examples=40, deadline=None)
@given(
    data=st.data(),
    groups=st.integers(1, 3),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    dtype=st.sampled_from(HALVES),
)
def test_convolutions_of_any_kind_forward_and_backward(
    data, groups, kernel, stride, padding, dilation, dtype
):
    batch, channels, filters = (data.draw(st.integers(1, 3)) for _ in range(3))
    size = data.draw(st.integers(dilation * (kernel - 1) + 1, 8))
    draw = integers(data.draw(st.integers(0, 999)), dtype)
    operands = (
        draw((batch, channels * groups, size, size)),
        draw((filters * groups, channels, kernel, kernel)),
        draw((filters * groups,)),
    )

    def results(*operands):
        leaves = [operand.clone().requires_grad_() for operand in operands]
        forward = F.conv2d(*leaves, stride=stride, padding=padding, dilation=dilation, groups=groups)
        return forward.detach(), *torch.autograd.grad(forward, leaves, torch.ones_like(forward))

    for result, exact in zip(results(*operands), results(*(o.double() for o in operands)), strict=True):
        assert torch.equal(result, exact.to(dtype))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("product", EMPTY, ids=[product.name for product in EMPTY])
def test_nothing_at_all(product, dtype):
    operands = product.operands(normals(0, dtype))
    result = product.compute(*operands)
    assert result.dtype == dtype
    assert torch.equal(result, exactly(product, operands).to(dtype))


def fp16(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float16)


@pytest.mark.parametrize(
    ("row", "column", "result"),
    [
        ([60000, 30000], [1, 1], float("inf")),
        ([60000, 60000], [1, -1], 0),  # no sum on the way overflows in FP32
        ([60000, 60000, -60000], [1, 1, 1], 60000),
        ([65504, 15], [1, 1], 65504),
        ([65504, 16], [1, 1], float("inf")),  # 65520 is the first that rounds to infinity
        ([2048, 1], [1, 1], 2048),  # a tie goes to the even neighbour
        ([2048, 1, 2**-10], [1, 1, 1], 2050),  # and no digit is lost before
        ([2**-24], [1], 2**-24),  # subnormal numbers count
        ([2**-24, 2**-24], [2**15, 2**15], 2**-8),
        ([2**-14], [2**-11], 0),  # half of the smallest: a tie, to zero
        ([2**-14, 2**-24], [2**-11, 2**-10], 2**-24),
        ([-(2**-20)], [2**-20], 0),
    ],
    ids=str,
)
def test_at_the_ends_of_fp16(row, column, result):
    a, b = fp16(row), fp16(column)
    assert torch.mm(a, b.T).item() == result
    assert torch.dot(a[0], b[0]).item() == result
    assert F.conv1d(a[None], b[None]).item() == result


def test_beyond_fp32_bf16_is_infinite():
    huge = torch.full((1, 2), 2.0**127, dtype=torch.bfloat16)
    assert torch.mm(huge, torch.ones_like(huge).T).item() == float("inf")
    assert torch.mm(huge, torch.full_like(huge, 0.25).T).item() == 2.0**126


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_nan_and_infinity_spread(dtype):
    a = torch.ones(4, 4, dtype=dtype)
    a[0, 0], a[1, 0], a[1, 1], a[2, 0] = float("nan"), float("inf"), -float("inf"), float("inf")
    result = a @ torch.ones(4, 2, dtype=dtype)
    assert result[:2].isnan().all()
    assert (result[2] == float("inf")).all()
    assert (result[3] == 4).all()
    image = torch.zeros(1, 1, 5, 5, dtype=dtype)
    image[0, 0, 2, 2] = float("inf")
    assert F.conv2d(image, torch.ones(1, 1, 3, 3, dtype=dtype)).isinf().all()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_beta_zero_does_not_read_the_input(dtype):
    nan, ones = torch.full((3, 3), float("nan"), dtype=dtype), torch.ones(3, 3, dtype=dtype)
    assert (torch.addmm(nan, ones, ones, beta=0) == 3).all()
    assert (nan.clone().addmm_(ones, ones, beta=0) == 3).all()


def _own(product: Product, operands) -> torch.Tensor:
    """The result of PyTorch's own kernels: emulation is switched off meanwhile."""
    switch = TensorCores.switch
    dtypes, switch.in_force = switch.in_force, frozenset()
    try:
        return product.compute(*operands)
    finally:
        switch.in_force = dtypes


def _half_a_spacing(exact: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return torch.clamp(exact.abs() * EPS[dtype] / 2, min=SMALLEST[dtype] / 2)


def _magnitudes(product: Product, operands) -> torch.Tensor:
    """The sum of the magnitudes of what is added up."""
    return product.compute(*(operand.double().abs() for operand in operands))


def _fp32_errors(product: Product, operands) -> torch.Tensor:
    """A bound for FP32's roundings in a sum of n terms: n * 2^-24 * the sum of their magnitudes."""
    return product.terms * 2.0**-24 * _magnitudes(product, operands)


def _spacings_between(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """How many 16-bit numbers apart: their bits, read as integers, are in the order of the numbers."""

    def place(values):
        bits = torch.from_numpy(np.atleast_1d(values.detach().view(torch.int16).numpy())).int()
        return torch.where(bits < 0, -0x8000 - bits, bits)

    return (place(one) - place(other)).abs()
