"""Number formats, bit by bit: what FP16, BF16, FP8 and their like can hold, and what becomes of a number in them.

    >>> from amp_lab.formats import FP16
    >>> FP16.round(0.1).item()
    0.0999755859375
    >>> FP16.bit_string(FP16.encode(0.1))
    '0 01011 1001100110'
    >>> FP16.ulp([1.0, 1000.0]).tolist()
    [0.0009765625, 0.5]

A format of your own follows the rules of IEEE 754: `Format("tiny", exponent_bits=3, fraction_bits=2)`.
"""

import torch

from amp_lab.formats.format import Fields, Format, FormatLimits

FP64 = Format("FP64", 11, 52, torch.float64)
FP32 = Format("FP32", 8, 23, torch.float32)
# What NVIDIA's Tensor Cores can make of FP32 operands: the range of FP32, the precision of FP16. No tensor holds it.
TF32 = Format("TF32", 8, 10)
FP16 = Format("FP16", 5, 10, torch.float16)
BF16 = Format("BF16", 8, 7, torch.bfloat16)
# E4M3 has patterns for 256 to 448 where IEEE 754 would have infinity and NaN. OFP8 allows two modes for what is too
# large. PyTorch 2.13 saturates, infinity too; PyTorch 2.9's casts on a CPU made NaN of it, as in the other mode.
FP8_E4M3 = Format("FP8 E4M3", 4, 3, torch.float8_e4m3fn, has_infinity=False, saturates=True)
FP8_E4M3_OCP = Format("FP8 E4M3 (OCP, not saturating)", 4, 3, has_infinity=False)
FP8_E5M2 = Format("FP8 E5M2", 5, 2, torch.float8_e5m2)

ALL = (FP64, FP32, TF32, FP16, BF16, FP8_E4M3, FP8_E4M3_OCP, FP8_E5M2)

__all__ = [
    "ALL",
    "BF16",
    "FP8_E4M3",
    "FP8_E4M3_OCP",
    "FP8_E5M2",
    "FP16",
    "FP32",
    "FP64",
    "TF32",
    "Fields",
    "Format",
    "FormatLimits",
]
