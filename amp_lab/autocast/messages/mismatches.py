"""Errors about dtypes: two that do not go together, one that an operator does not take, a number too large for one."""

from __future__ import annotations

from typing import Final

from amp_lab.autocast.messages.known import Known

_WRITE: Final = (
    "Autocast leaves in-place writing alone: the values must have the tensor's dtype already. Cast them, as in "
    "target[index] = values.to(target.dtype), or make the target in their dtype: torch.zeros(..., dtype=values.dtype), "
    "where the default would be FP32."
)
_SAME: Final = "Bring both to one dtype: b.to(a.dtype). {cure}"
_OVERFLOW: Final = (
    "For a mask, use the smallest number of the tensor's own dtype, torch.finfo(scores.dtype).min, once, or "
    "float('-inf') where no row is masked completely; or hand a boolean mask to scaled_dot_product_attention. For "
    "other constants, go to FP32 for this step: x.float()."
)

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
        "conv-dtypes",
        r"Input type \(%T\) and (?P<which>weight|bias) type \(%T\) should be the same",
        "A convolution's input and its {which} have different dtypes (or lie on different devices): {dtypes}.",
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
        r"result type %T can't be cast to the desired output type %T",
        "An in-place operator, or one with out=, had a result that its tensor cannot hold: {dtypes}.",
        "Write it out of place: x = x / 2 instead of x /= 2; or make the tensor a floating-point one first.",
        ("the result", "the tensor"),
        mismatch=True,
    ),
)

ARGUMENTS: Final = (
    Known(
        "target-dtype",
        r"expected target dtype to be Long or Byte, but got %T|expected scalar type Long but found %T",
        "Class indices must be int64 (torch.long) here: {dtypes}. Often these are the targets of a cross entropy.",
        "target.long(); probabilities instead of indices must have the shape of the logits. Casting a whole batch "
        "with .half() or .float() turns its targets, too.",
        ("the target", "the tensor"),
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
        "lerp was given two dtypes: {dtypes}. Inside of an optimizer: the gradients' dtype is no longer the one that "
        "its state was made with.",
        "In your own code, cast what you pass to lerp. In optimizer.step(): the model was cast after the optimizer had "
        "made its state, or the state was loaded in another dtype. Keep FP32 parameters, and leave 16 bits to "
        "autocast.",
        ("the tensor", "{which}"),
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
        "argument-types",
        r"Expected tensor for argument #\d+ '(?P<one>\w+)' to have the same type as tensor for argument #\d+ "
        r"'(?P<two>\w+)'; but type %T does not equal %T",
        "Two arguments of an operator have different dtypes (or lie on different devices): {dtypes}.",
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
        r"(?P<op>[\w.]+): Expected (?P<one>\w+) and (?P<two>\w+) to have the same dtype, but found \w+ of type %T and "
        r"\w+ of type %T",
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
        "gradient-dtype",
        r"returned an invalid gradient at index \d+ - expected type %T but got %T",
        "A backward function returned a gradient of another dtype than its input (or on another device): {dtypes}.",
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
        "Take both to FP32 with .float(): complex numbers are outside of mixed precision.",
        ("the real part", "the imaginary part"),
        mismatch=True,
    ),
)

RANGES: Final = (
    Known(
        "value-overflow",
        r"value cannot be converted to type %T without overflow|(?:from|to) is out of bounds for %T",
        "A number was to be stored in a dtype in which it is infinite: {dtypes}. The largest number is 65504 in "
        "FP16, and about 3.4e38 in BF16 and FP32.",
        _OVERFLOW,
        ("the tensor", "the tensor"),
    ),
    Known(
        "value-overflow",
        r"lambda must be in range \[0, [\d.e+]+\] for input dtype %T",
        "A number is beyond the range of the tensor's dtype: {dtypes}.",
        _OVERFLOW,
        ("the tensor",),
    ),
)

MISSING: Final = (
    Known(
        "unscale-not-implemented",
        r"\"_amp_foreach_non_finite_check_and_unscale_\w+\" not implemented for '%T'",
        "GradScaler has no kernel for the dtype of these gradients: {dtypes}.",
        "BF16 has the range of FP32 and needs no loss scaling: leave the GradScaler out, or enabled=False. For FP16, "
        "keep the parameters in FP32, and with them the gradients.",
        ("a gradient",),
    ),
    Known(
        "not-implemented",
        r"\"(?P<op>[^\"]+)\" not implemented for '%T'",
        "This device has no kernel of {op} for this dtype: {dtypes}.",
        "Run this operator in FP32: inside autocast(device_type, enabled=False), on x.float(). A CPU lacks more "
        "kernels than a GPU: with FP16 on a CPU, try BF16.",
        ("a tensor",),
    ),
    Known(
        "not-implemented",
        r"(?:(?P<op>[\w.]+): Low precision dtypes not supported\. Got %T|Unsupported dtype %T|(?P<it>[\w.]+) is only "
        r"supported for [\w, ]+ tensors, but got a tensor of scalar type: %T)",
        "An operator of linear algebra, on complex numbers, or a Fourier transform does not take this dtype: {dtypes}.",
        "Run it in FP32: inside autocast(device_type, enabled=False), on x.float().",
        ("a tensor", "a tensor", "a tensor"),
    ),
    Known(
        "lstm-on-cpu",
        r"could not create a primitive descriptor for the (?P<op>LSTM|RNN|GRU) forward",
        "The CPU's library has no {op} for this dtype, or for this mixture of dtypes, on this processor.",
        "Call the layer inside autocast('cpu', enabled=False), with input.float(). If it fails there, too, look for a "
        "hidden state in another dtype.",
    ),
    Known(
        "bf16-numpy",
        r"Got unsupported ScalarType (?P<dtype>\w+)",
        "NumPy has no {dtype}: .numpy(), np.asarray() and plotting of such a tensor fail.",
        "x.detach().float().cpu().numpy()",
    ),
)

ALL: Final = (*PRODUCTS, *WRITES, *ARGUMENTS, *RANGES, *MISSING)
