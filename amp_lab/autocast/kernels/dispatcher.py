"""What PyTorch's dispatcher, its table of kernels, holds for autocast."""

import re
import reprlib
from typing import Any

import torch

_DEVICES = ("cuda", "cpu", "mps", "xpu")
_OTHER_NAMES = {"gpu": "cuda", "nvidia": "cuda", "apple": "mps", "intel": "xpu"}


def device_type_of(device: str | torch.device) -> str:
    """The type of a device: "cuda" of "cuda", of "cuda:0" and of `torch.device("cuda", 0)`.

    Raises:
        TypeError: if it is neither a text nor a device.
    """
    if not isinstance(device, str | torch.device):
        raise TypeError(f"device_type is a text such as 'cuda' or 'cpu', not {reprlib.repr(device)}")
    if isinstance(device, torch.device):
        return device.type
    # Not by torch.device(...), which a TorchFunctionMode of the caller's would see.
    return re.sub(r":\d+$", "", device)


def autocast_key(device_type: str) -> str:
    """The dispatch key of a device's autocast kernels, such as "AutocastCUDA".

    Raises:
        ValueError: if PyTorch knows no such device or has no autocast for it.
    """
    try:
        key = f"Autocast{torch._C._dispatch_key_for_device(device_type)}"
        torch._C._dispatch_has_kernel_for_dispatch_key("aten::mm", key)
    except RuntimeError:
        meant = device_type.strip().lower().partition(":")[0]
        meant = _OTHER_NAMES.get(meant, meant)
        advice = f"did you mean {meant!r}?" if meant in _DEVICES else "name one such as 'cuda' or 'cpu'"
        raise ValueError(
            f"PyTorch has no autocast for a device type {reprlib.repr(device_type)}: {advice}"
        ) from None
    return key


def operators_with_kernel(key: str) -> list[str]:
    """The names of all operators that have a kernel for a dispatch key: "aten::softmax.int"."""
    # There is no public list of what the dispatcher holds.
    return sorted(torch._C._dispatch_get_registrations_for_dispatch_key(key))


def replaced_kernels(key: str) -> list[str]:
    """Those of aten's operators whose kernel for a dispatch key is written in Python: PyTorch's own are not."""
    kernel = re.compile(rf"^{key}: registered at \S*\.py:", re.MULTILINE)
    return [
        name
        for name in operators_with_kernel(key)
        if name.startswith("aten::") and kernel.search(torch._C._dispatch_dump(name))
    ]


def overload(name: str) -> Any:
    """The aten operator with an overload's name as torch.library writes it: "linear", "softmax.int"."""
    plain, _, rest = name.partition(".")
    return getattr(getattr(torch.ops.aten, plain), rest or "default")
