"""Errors of writing values of one dtype into a tensor of another."""

from __future__ import annotations

from typing import Final

from amp_lab.autocast.messages.cures import has_complex
from amp_lab.autocast.messages.known import Known

_WRITE: Final = (
    "Autocast leaves in-place writing alone: the values must have the tensor's dtype already. Cast them, as in "
    "target[index] = values.to(target.dtype), or make the target in their dtype: torch.zeros(..., dtype=values.dtype), "
    "where the default would be FP32."
)

_RESULT: Final = r"result type %T can't be cast to the desired output type %T"

WRITES: Final = (
    Known(
        "index-put-dtypes",
        r"Index put requires the source and destination dtypes match, got %T for the destination and %T for the "
        r"source",
        "Values of one dtype were written into a tensor of another, as in target[index] = values: {dtypes}.",
        _WRITE,
        ("the destination", "the source"),
        mismatch=True,
    ),
    Known(
        "scatter-dtypes",
        r"scatter\(\): Expected self\.dtype to be equal to src\.dtype",
        "scatter, scatter_add or scatter_reduce wrote values into a tensor of another dtype.",
        _WRITE,
        mismatch=True,
    ),
    Known(
        "scatter-dtypes",
        r"(?P<op>index_add|index_reduce)_?\(\): self \(%T\) and source \(%T\) must have the same scalar type",
        "{op} wrote values into a tensor of another dtype: {dtypes}.",
        _WRITE,
        ("self", "source"),
        mismatch=True,
    ),
    Known(
        "scatter-dtypes",
        r"(?P<op>index_copy_?|put_)\(\): self and source expected to have the same dtype, but got "
        r"(?:\(self\) |self\.dtype = )%T and (?:\(source\) |source\.dtype = )%T",
        "{op} wrote values into a tensor of another dtype: {dtypes}.",
        _WRITE,
        ("self", "source"),
        mismatch=True,
    ),
    Known(
        "scatter-dtypes",
        r"masked_scatter_?: expected self and source to have same dtypes but got\s*%T and %T",
        "masked_scatter wrote values into a tensor of another dtype: {dtypes}.",
        _WRITE,
        ("self", "source"),
        mismatch=True,
    ),
    Known(
        "out-dtype",
        r"Expected out tensor to have dtype %T, but got %T instead",
        "The result has another dtype than the tensor given as out=: {dtypes}.",
        "Autocast leaves out= forms alone. Take the result as a new tensor, without out=.",
        ("the result", "out"),
        mismatch=True,
    ),
    Known(
        "result-cast",
        _RESULT,
        "BCEWithLogitsLoss was given a target of whole numbers, and computes in its dtype: {dtypes}.",
        "target.float(): this loss compares numbers, and so its targets are floating-point ones.",
        ("the loss", "the target"),
        mismatch=True,
        in_line=r"binary_cross_entropy_with_logits",
    ),
    Known(
        "result-cast",
        _RESULT,
        "Dropout scales what it lets through, and was given a tensor that cannot hold the result: {dtypes}.",
        "Dropout is for floating-point tensors: x.float(), or drop the features that an embedding makes of the words.",
        ("the result", "the tensor"),
        mismatch=True,
        in_line=r"dropout\w*\(",
    ),
    Known(
        "result-cast",
        _RESULT,
        "An operator was to write a complex result where none fits: {dtypes}.",
        "Write it out of place, x = x * z instead of x *= z; or take the part that you mean: z.real, z.abs().",
        ("the result", "the tensor"),
        mismatch=True,
        when=has_complex,
    ),
    Known(
        "result-cast",
        _RESULT,
        "An operator was to write its result into a tensor that cannot hold it: {dtypes}.",
        "Is it a loss, such as BCEWithLogitsLoss? Its target must be a floating-point one: target.float(). Dropout, "
        "too, needs x.float(). In place, write it out of place instead: x = x / 2 for x /= 2.",
        ("the result", "the tensor"),
        mismatch=True,
    ),
)
