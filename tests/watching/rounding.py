"""What becomes of every single gradient, found the slow way: multiply, round, look."""

import torch

from amp_lab.formats import Format
from amp_lab.watching.gradients import Fates


def fates_by_cast(values: torch.Tensor, power: int, dtype: torch.dtype) -> Fates:
    """Cast FP32 products with PyTorch. They must be exact: PyTorch's casts from FP64 round twice."""
    assert values.dtype is torch.float32
    products = values * 2.0**power
    assert torch.equal(products.double(), values.double() * 2.0**power), "a product was rounded"
    return _fates(products.double(), products.to(dtype).double(), power, torch.finfo(dtype))


def fates_by_rounding(values: torch.Tensor, power: int, format: Format) -> Fates:
    """Round exact products once, with the course's formats, which are held against PyTorch in tests/formats."""
    products = values.double() * 2.0**power
    assert torch.equal(products * 2.0**-power, values.double()), "FP64 does not hold a product"
    return _fates(products, format.round(products), power, torch.finfo(format.dtype))


def _fates(products: torch.Tensor, rounded: torch.Tensor, power: int, limits: torch.finfo) -> Fates:
    nonzero = products != 0
    size = rounded.abs()
    # A format that saturates has no infinity: what is further than half a step beyond the largest number overflows.
    half_step = limits.max - _before(limits)
    too_large = ~rounded.isfinite() | (products.abs() > limits.max + half_step / 2)
    zero, subnormal = nonzero & (size == 0), (size > 0) & (size < limits.smallest_normal)
    return Fates(
        scale=2.0**power,
        zero=int(zero.sum()),
        subnormal=int(subnormal.sum()),
        normal=int((nonzero & ~zero & ~subnormal & ~too_large).sum()),
        overflow=int(too_large.sum()),
        below_smallest=int((nonzero & (products.abs() < limits.smallest_normal * limits.eps)).sum()),
    )


def _before(limits: torch.finfo) -> float:
    """Return the number before the largest one of a format."""
    if limits.dtype == "float8_e4m3fn":
        return 416.0
    return limits.max - limits.max / (2 - limits.eps) * limits.eps
