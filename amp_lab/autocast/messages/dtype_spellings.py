"""The many names that PyTorch's messages have for a dtype."""

import re
from typing import Final

import torch

# One of them inside a message: "Half", "c10::Half", "struct c10::Half", "torch.cuda.HalfTensor", "long int".
SPELLING: Final = r"((?:struct |unsigned |signed |long )?[A-Za-z_][\w:]*(?:\.\w+)*(?: int)?)"

# What is said beside the name: a namespace, a device, what kind of thing it is.
_FRAME: Final = re.compile(
    r"^(?:struct )?(?:c10::|at::|torch\.)?(?:cuda\.|cpu\.|CPU|CUDA)?(.+?)(?:Tensor|Type)?$"
)
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
}


def dtype_of(spelling: str) -> torch.dtype | None:
    """Return the dtype that a message means, None if it is no name of a dtype.

    >>> dtype_of("torch.cuda.HalfTensor"), dtype_of("c10::BFloat16")
    (torch.float16, torch.bfloat16)
    """
    found = _FRAME.match(spelling.strip())
    name = found[1].lower() if found else ""
    dtype = _NAMES.get(name) or getattr(torch, name, None)
    return dtype if isinstance(dtype, torch.dtype) else None
