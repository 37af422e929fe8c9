"""The many names that PyTorch's messages have for a dtype, and the device that some of them tell, too."""

import re
from typing import Final

import torch

# One of them inside a message: "Half", "c10::Half", "torch.cuda.HalfTensor", "long int", "c10::complex<float>".
SPELLING: Final = (
    r"((?:struct |unsigned |signed |long )?[A-Za-z_][\w:]{0,60}(?:<[\w:]{1,30}>)?"
    r"(?:\.\w{1,30}){0,4}(?: int)?)"
)

# What is said beside the name: a namespace, a device, what kind of thing it is.
_FRAME: Final = re.compile(
    r"^(?:struct )?(?:c10::|at::|torch\.)?(?:(?P<device>cuda|cpu|xpu|mps|CPU|CUDA|XPU|MPS)\.?)?"
    r"(?P<name>.+?)(?:_t)?(?:Tensor|Type)?$"
)
_OF_A_TENSOR: Final = re.compile(
    r"^torch\.\w+Tensor$"
)  # of a tensor on the CPU: that of another names its device
_NAMES: Final = {
    "half": torch.float16,
    "float": torch.float32,
    "double": torch.float64,
    "byte": torch.uint8,
    "unsigned char": torch.uint8,
    "char": torch.int8,
    "signed char": torch.int8,
    "short": torch.int16,
    "int": torch.int32,
    "long": torch.int64,
    "long int": torch.int64,
    "__int64": torch.int64,
    "complexhalf": torch.complex32,
    "complexfloat": torch.complex64,
    "complexdouble": torch.complex128,
    "complex<c10::half>": torch.complex32,
    "complex<float>": torch.complex64,
    "complex<double>": torch.complex128,
}


def dtype_of(spelling: str) -> torch.dtype | None:
    """Return the dtype that a message means, None if it is no name of a dtype.

    >>> dtype_of("torch.cuda.HalfTensor"), dtype_of("c10::BFloat16")
    (torch.float16, torch.bfloat16)
    """
    found = _FRAME.match(spelling.strip())
    name = found["name"].lower() if found else ""
    dtype = _NAMES.get(name) or getattr(torch, name, None)
    return dtype if isinstance(dtype, torch.dtype) else None


def device_of(spelling: str) -> str | None:
    """Return the device that is named with the dtype, None if none is.

    >>> device_of("torch.cuda.HalfTensor"), device_of("torch.HalfTensor"), device_of("c10::Half")
    ('cuda', 'cpu', None)
    """
    if _OF_A_TENSOR.match(spelling):
        return "cpu"
    found = _FRAME.match(spelling)
    return found["device"].lower() if found and found["device"] else None
