"""Errors of products, convolutions and attention that were given several dtypes."""

from __future__ import annotations

from typing import Final

from amp_lab.autocast.messages.cures import lie_apart
from amp_lab.autocast.messages.known import Known
from amp_lab.autocast.messages.unrelated import TO_DEVICE

_SAME: Final = "Bring both to one dtype: b.to(a.dtype). {cure}"

PRODUCTS: Final = (
    Known(
        "matmul-dtypes",
        r"(?:mat1|m1) and (?:mat2|m2) (?:must|to) have the same dtype(?:, but got:? %T(?: and |\s*!= )%T)?",
        "A matrix product (linear, matmul, @) was given two dtypes: {dtypes}.",
        "{cure}",
        ("mat1", "mat2"),
        mismatch=True,
        in_linear="In a Linear layer, mat1 is the input and mat2 the weight.",
    ),
    Known(
        "addmm-dtypes",
        r"self and mat2 must have the same dtype, but got %T and %T",
        "A matrix product with something added to it (linear with a bias, addmm) was given two dtypes: {dtypes}. "
        "What is added is called self.",
        "{cure}",
        ("self", "mat2"),
        mismatch=True,
        in_linear="In a Linear layer, self is the bias and mat2 the weight.",
    ),
    Known(
        "addmm-dtypes",
        r"Input dtypes must be the same, got: input %T, batch1: %T, batch2: %T",
        "A batched matrix product with something added to it (baddbmm) was given several dtypes: {dtypes}.",
        "{cure}",
        ("input", "batch1", "batch2"),
        mismatch=True,
    ),
    Known(
        "matvec-dtypes",
        r"addmv input tensors must have the same dtype, but got %T, %T, and %T",
        "A product of a matrix and a vector was given several dtypes: {dtypes}. What is called self is the result.",
        "{cure}",
        ("self", "the matrix", "the vector"),
        mismatch=True,
    ),
    Known(
        "dot-dtypes",
        r"v?dot\s*: expected both vectors to have same dtype, but found %T and %T",
        "A dot product was given two dtypes: {dtypes}.",
        "{cure}",
        ("the left vector", "the right vector"),
        mismatch=True,
    ),
    Known(
        "tensordot-dtypes",
        r"both inputs should have same dtype",
        "tensordot was given tensors of two dtypes.",
        _SAME,
        mismatch=True,
    ),
    Known(
        "bilinear-dtypes",
        r"All tensors must have the same dtype, got input1: %T, input2: %T, weight: %T",
        "A Bilinear layer was given several dtypes: {dtypes}.",
        "{cure}",
        ("input1", "input2", "weight"),
        mismatch=True,
    ),
    Known(
        "devices",
        r"Input type \(%T\) and (?P<which>weight|bias) type \(%T\) should be the same",
        "A convolution's input and its {which} lie on different devices: {devices}. Their dtypes are the same.",
        TO_DEVICE,
        ("the input", "the {which}"),
        when=lie_apart,
    ),
    Known(
        "conv-dtypes",
        r"Input type \(%T\) and (?P<which>weight|bias) type \(%T\) should be the same",
        "A convolution's input and its {which} have different dtypes: {dtypes}.{apart}",
        "{cure}",
        ("the input", "the {which}"),
        mismatch=True,
    ),
    Known(
        "attention-dtypes",
        r"Expected query, key, and value to have the same dtype, but got query.dtype: %T key.dtype: %T and "
        r"value.dtype: %T instead",
        "scaled_dot_product_attention was given several dtypes: {dtypes}. (A rotary embedding or a cache of keys in "
        "FP32 often makes the difference.)",
        "{cure}",
        ("query", "key", "value"),
        mismatch=True,
    ),
    Known(
        "attention-mask-dtype",
        r"Expected attn_mask dtype to be bool or float or to match query dtype, but got attn_mask.dtype: %T and "
        r"query.dtype: %T",
        "The mask of scaled_dot_product_attention has a dtype of its own: {dtypes}.",
        "Pass a boolean mask (True: may be looked at), or mask.to(query.dtype).",
        ("attn_mask", "query"),
        mismatch=True,
    ),
    Known(
        "rnn-dtypes",
        r"RNN input dtype \(%T\) does not match weight dtype \(%T\)",
        "An RNN's input and its weight have different dtypes: {dtypes}.",
        "{cure}",
        ("the input", "the weight"),
        mismatch=True,
    ),
    Known(
        "rnn-dtypes",
        r"input must have the type %T, got type %T",
        "An RNN's input and its weight have different dtypes: {dtypes}.",
        "{cure}",
        ("the weight", "the input"),
        mismatch=True,
    ),
)
