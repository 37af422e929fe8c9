"""Errors of operators that a device does not have for a dtype."""

from __future__ import annotations

from typing import Final

from amp_lab.autocast.messages.cures import has_complex, has_whole, of_bytes
from amp_lab.autocast.messages.known import Known

_NO_KERNEL: Final = r"\"(?P<op>[^\"]{1,200})\" not implemented for '%T'"

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
        r"\"(?P<op>check_uniform_bounds|(?:uniform|normal)\w*)\" not implemented for '%T'",
        "Random numbers that are no whole ones were to be put into a tensor of whole numbers: {dtypes}.",
        "torch.randint(low, high, shape) draws whole numbers. torch.rand and torch.randn are for floating-point "
        "tensors.",
        ("the tensor",),
        when=has_whole,
    ),
    Known(
        "not-implemented",
        _NO_KERNEL,
        "{op} computes with floating-point numbers, and was given whole ones: {dtypes}. Autocast casts no whole "
        "numbers.",
        "In a loss, the model's output comes first and the target second: are they swapped? A loss that compares "
        "numbers (mse_loss) wants target.float(). Otherwise: x.float().",
        ("a tensor",),
        when=has_whole,
    ),
    Known(
        "not-implemented",
        _NO_KERNEL,
        "{op} is not for complex numbers here: {dtypes}.",
        "Compute with the parts, torch.view_as_real(z), or with z.abs(). Autocast leaves complex numbers alone.",
        ("a tensor",),
        when=has_complex,
    ),
    Known(
        "not-implemented",
        _NO_KERNEL,
        "This device has no kernel of {op} for FP8: {dtypes}. FP8 is for storing, and for products that are "
        "made for it.",
        "Cast before computing: x.to(torch.bfloat16), or x.float().",
        ("a tensor",),
        when=of_bytes(1),
    ),
    Known(
        "not-implemented",
        _NO_KERNEL,
        "This device has no kernel of {op} for this dtype: {dtypes}.",
        "Run this operator in FP32: inside autocast(device_type, enabled=False), on x.float(). A CPU lacks more "
        "kernels than a GPU: with FP16 on a CPU, try BF16.",
        ("a tensor",),
        when=of_bytes(2),
    ),
    Known(
        "not-implemented",
        _NO_KERNEL,
        "This device has no kernel of {op} for this dtype: {dtypes}.",
        "An operator that does not even take FP32 mostly wants whole numbers, x.long(), or truth values, x.bool().",
        ("a tensor",),
    ),
    Known(
        "not-implemented",
        r"(?:\b(?P<op>[\w.]{1,60}): Low precision dtypes not supported\. Got %T|Unsupported dtype %T|"
        r"\b(?P<it>[\w.]{1,60}) is only supported for [\w, ]{1,200} tensors, but got a tensor of scalar type: %T)",
        "An operator of linear algebra, on complex numbers, or a Fourier transform does not take this dtype: {dtypes}.",
        "Run it in FP32: inside autocast(device_type, enabled=False), on x.float().",
        ("a tensor", "a tensor", "a tensor"),
    ),
    Known(
        "whole-numbers",
        r"(?P<op>\w{1,60})\(\): could not infer output dtype\. Input dtype must be either a floating point or complex "
        r"dtype\. Got: %T",
        "{op} is computed in floating point, and was given whole numbers: {dtypes}.",
        "x.float() before it, or dtype=torch.float32 in the call.",
        ("the tensor",),
    ),
    Known(
        "whole-numbers",
        r"Only Tensors of floating point and complex dtype can require gradients",
        "Whole numbers have no gradient, and so their tensor cannot require one.",
        "x.float() before requires_grad, or a floating-point tensor from the start: torch.tensor([1.0, 2.0]).",
    ),
    Known(
        "fp8-promotion",
        r"Promotion for Float8 Types is not supported, attempted to promote %T and %T",
        "An operator met FP8 and another dtype, and PyTorch has no rule which one is to be taken: {dtypes}.",
        "Cast before computing, a.to(b.dtype): FP8 is for storing, and for products that are made for it.",
        ("the first tensor", "the second"),
        mismatch=True,
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
