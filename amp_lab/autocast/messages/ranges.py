"""Errors about numbers that are too large for a dtype."""

from __future__ import annotations

from typing import Final

from amp_lab.autocast.messages.cures import has_whole, is_fp16, of_bytes
from amp_lab.autocast.messages.known import Known

_TOO_LARGE: Final = (
    r"value cannot be converted to type %T without overflow|(?:from|to(?: - 1)?) is out of bounds for %T"
)
_MASK: Final = (
    "For a mask, use the smallest number of the tensor's own dtype, torch.finfo(scores.dtype).min, once, or "
    "float('-inf') where no row is masked completely; or hand a boolean mask to scaled_dot_product_attention."
)
_FP32: Final = "For other constants, go to FP32 for this step: x.float()."
_TENSOR: Final = ("the tensor", "the tensor")

RANGES: Final = (
    Known(
        "value-overflow",
        _TOO_LARGE,
        "A number was to be stored among whole numbers, in a type that does not hold it: {dtypes}{limits}.",
        "Whole numbers know neither infinity nor NaN. Use a number of this range (torch.iinfo(x.dtype).min in a mask), "
        "or make the tensor a floating-point one before: x.float().",
        _TENSOR,
        when=has_whole,
    ),
    Known(
        "value-overflow",
        _TOO_LARGE,
        "A number was to be stored in a dtype that does not hold it: {dtypes}{limits}.",
        "FP8 has so little range that tensors are divided by a scale before they are cast to it. Compute in BF16 or "
        "FP32, and cast the result.",
        _TENSOR,
        when=of_bytes(1),
    ),
    Known(
        "value-overflow",
        _TOO_LARGE,
        "A number was to be stored in a dtype in which it is infinite: {dtypes}{limits}.",
        f"{_MASK} {_FP32}",
        _TENSOR,
        when=is_fp16,
    ),
    Known(
        "value-overflow",
        _TOO_LARGE,
        "A number was to be stored in a dtype that does not hold it: {dtypes}{limits}.",
        f"{_MASK} No usual computation needs larger numbers than that: look where this one comes from.",
        _TENSOR,
    ),
    Known(
        "value-overflow",
        r"lambda must be in range \[0, [\d.e+]+\] for input dtype %T",
        "A number is beyond the range of the tensor's dtype: {dtypes}{limits}.",
        f"{_MASK} {_FP32}",
        ("the tensor",),
    ),
)
