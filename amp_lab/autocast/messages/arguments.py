"""Errors of operators, losses and gradients whose arguments have dtypes that do not go together."""

from __future__ import annotations

from typing import Final

from amp_lab.autocast.messages.cures import lie_apart, no_class_index
from amp_lab.autocast.messages.known import Known
from amp_lab.autocast.messages.unrelated import TO_DEVICE

_TARGET: Final = (
    "target.long(); probabilities instead of indices must have the shape of the logits. Casting a whole batch with "
    ".half() or .float() turns its targets, too."
)
_SAME_TYPE: Final = (
    r"Expected tensor for argument #\d+ '(?P<one>\w+)' to have the same type as tensor for argument #\d+ "
    r"'(?P<two>\w+)'; but type %T does not equal %T"
)
_COMPLEX: Final = "Take both to FP32 with .float(): complex numbers are outside of mixed precision."

ARGUMENTS: Final = (
    Known(
        "target-dtype",
        r"expected target dtype to be Long or Byte, but got %T|expected scalar type Long but found %T",
        "Class indices must be int64 (torch.long) here: {dtypes}. Often these are the targets of a cross entropy.",
        _TARGET,
        ("the target", "the tensor"),
    ),
    Known(
        "target-dtype",
        r"\"(?P<op>nll_loss\w*|cross_entropy\w*)\" not implemented for '%T'",
        "Class indices must be int64 (torch.long) for this loss: {dtypes}.",
        _TARGET,
        ("the target",),
        when=no_class_index,
    ),
    Known(
        "index-dtype",
        r"(?:tensors used as indices must be long|argument #\d+ 'indices' to have one of the following scalar types: "
        r"[\w, ]+; but got %T instead)",
        "Floating-point numbers were used as indices, in an embedding or as in x[index].",
        "Indices stay integers: index.long(). FP16 holds whole numbers exactly only up to 2,048, so an index that has "
        "been through FP16 may be another one.",
        ("the indices",),
    ),
    Known(
        "optimizer-state-dtype",
        r"expected dtype %T for `(?P<which>end|weight)` but got dtype %T",
        "An optimizer's state and the gradients have different dtypes: {dtypes}. The state is called the tensor.",
        "The model was cast after the optimizer had made its state, or the state was loaded in another dtype. Keep "
        "FP32 parameters, and leave 16 bits to autocast.",
        ("the tensor", "{which}"),
        mismatch=True,
        in_line=r"torch/optim/",
    ),
    Known(
        "lerp-dtypes",
        r"expected dtype %T for `(?P<which>end|weight)` but got dtype %T",
        "lerp was given two dtypes: {dtypes}.",
        "Cast what you pass to lerp: b.to(a.dtype). If an optimizer's step called it, the model was cast after the "
        "optimizer had made its state: keep FP32 parameters, and leave 16 bits to autocast.",
        ("the tensor", "{which}"),
        mismatch=True,
    ),
    Known(
        "complex-dtypes",
        r"Expected object of scalar type %T but got scalar type %T for second argument",
        "torch.complex or torch.polar was given two dtypes: {dtypes}.",
        _COMPLEX,
        ("the first argument", "the second"),
        mismatch=True,
    ),
    Known(
        "scalar-type",
        r"Expected object of scalar type %T but got scalar type %T",
        "An operator met two dtypes: it expected {0}, mostly the dtype of its first tensor, and found {1}.",
        "{cure}",
        ("expected", "found"),
        mismatch=True,
    ),
    Known(
        "scalar-type",
        r"expected scalar type %T but found %T",
        "An operator met two dtypes: it expected {0}, mostly the dtype of its first tensor, and found {1}.",
        "{cure}",
        ("expected", "found"),
        mismatch=True,
    ),
    Known(
        "found-dtype",
        r"Found dtype %T but expected %T",
        "An operator, mostly a loss or its backward, met two dtypes: it expected {1} and found {0}.",
        "Take both to one dtype before the loss, FP32 at best: loss(output.float(), target.float()). {cure}",
        ("found", "expected"),
        mismatch=True,
    ),
    Known(
        "devices",
        _SAME_TYPE,
        "Two arguments of an operator lie on different devices: {devices}. Their dtypes are the same.",
        TO_DEVICE,
        ("{one}", "{two}"),
        when=lie_apart,
    ),
    Known(
        "argument-types",
        _SAME_TYPE,
        "Two arguments of an operator have different dtypes: {dtypes}.{apart}",
        "{cure}",
        ("{one}", "{two}"),
        mismatch=True,
    ),
    Known(
        "prelu-dtypes",
        r"prelu: Type promoting not supported\. Got %T and %T",
        "A PReLU's input and its weight have different dtypes: {dtypes}.",
        "{cure}",
        ("the input", "the weight"),
        mismatch=True,
    ),
    Known(
        "norm-dtypes",
        r"mixed dtype \(CPU\): (?:expect parameter to have scalar type of|all inputs must share same datatype)",
        "A normalization layer (BatchNorm, LayerNorm, GroupNorm) has parameters or statistics in a dtype that does "
        "not go with its input: FP16 or BF16 input with FP32 parameters works, the reverse and mixed ones do not.",
        "Keep the layer's parameters and statistics in FP32: layer.float(). Autocast needs no model.half().",
        mismatch=True,
    ),
    Known(
        "linalg-dtypes",
        r"\b(?P<op>[\w.]{1,60}): Expected (?P<one>\w+) and (?P<two>\w+) to have the same dtype, but found \w+ "
        r"of type %T and \w+ of type %T",
        "{op} was given two dtypes: {dtypes}.",
        "Linear algebra needs FP32 at least: take both there with .float(), inside autocast(device_type, "
        "enabled=False).",
        ("{one}", "{two}"),
        mismatch=True,
    ),
    Known(
        "gradient-dtype",
        r"attempting to assign a gradient with dtype '%T' to a tensor with (?:grad_)?dtype '%T'",
        "A gradient of another dtype was assigned to a parameter's .grad: {dtypes}.",
        "Cast it: p.grad = gradient.to(p.dtype). With FP32 master weights, copy 16-bit gradients into FP32 ones.",
        ("the gradient", "the parameter"),
        mismatch=True,
    ),
    Known(
        "devices",
        r"returned an invalid gradient at index \d+ - expected type %T but got %T",
        "A backward function returned a gradient on another device than its input: {devices}. Their dtypes are the "
        "same.",
        TO_DEVICE,
        ("the input", "the gradient"),
        when=lie_apart,
    ),
    Known(
        "gradient-dtype",
        r"returned an invalid gradient at index \d+ - expected type %T but got %T",
        "A backward function returned a gradient of another dtype than its input: {dtypes}.{apart}",
        "In the backward of a custom autograd function, return gradient.to(input.dtype). Newer versions of PyTorch "
        "cast it themselves.",
        ("the input", "the gradient"),
        mismatch=True,
    ),
    Known(
        "hook-dtype",
        r"hook '(?P<hook>[^']*)' has changed the type of value \(was %T got %T\)",
        "A gradient hook, {hook}, returned another dtype than it was given: {dtypes}.",
        "Return gradient.to(the dtype it had), or compute in another dtype inside and cast back.",
        ("the gradient", "what the hook returned"),
        mismatch=True,
    ),
    Known(
        "quantile-dtype",
        r"quantile\(\) (?:input tensor must be either float or double dtype|q tensor must be same dtype as the input)",
        "quantile takes FP32 or FP64, and q in the same dtype.",
        "torch.quantile(x.float(), q)",
    ),
    Known(
        "complex-dtypes",
        r"Expected both inputs to be Half, Float or Double tensors but got %T and %T",
        "torch.complex was given two dtypes, or one that it does not take: {dtypes}.",
        _COMPLEX,
        ("the real part", "the imaginary part"),
        mismatch=True,
    ),
)
