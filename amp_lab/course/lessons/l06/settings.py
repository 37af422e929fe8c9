"""PyTorch's settings before and after an answer ran: what is not as it was is a mistake of its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

# Each library's own switch; `torch.set_float32_matmul_precision` and `allow_tf32` write them.
_backends: Any = torch.backends  # for mypy, which does not know all that is in it
_LIBRARIES: dict[str, Any] = {
    "cuBLAS": _backends.cuda.matmul,
    "cuDNN": _backends.cudnn.conv,
    "oneDNN": _backends.mkldnn.matmul,
}
_KINDS = ("cpu", "cuda", "xpu")


class Change(NamedTuple):
    """A setting that was `before` and is `after`, in words."""

    setting: str
    before: str
    after: str


def now() -> dict[str, str]:
    """Return the settings that an answer of this lesson could leave changed, by name."""
    state = {f'autocast for "{kind}"': _switch(torch.is_autocast_enabled(kind)) for kind in _KINDS}
    state |= {f'the dtype of autocast for "{kind}"': str(torch.get_autocast_dtype(kind)) for kind in _KINDS}
    return state | {
        "autocast's cache of weights": _switch(torch.is_autocast_cache_enabled()),
        "the number of open regions": str(_depth()),
        "gradient mode": _switch(torch.is_grad_enabled()),
        "inference mode": _switch(torch.is_inference_mode_enabled()),
        "the default dtype": str(torch.get_default_dtype()),
        "the precision of FP32 products": _fp32_precision(),
        **{f"the precision of FP32 in {name}": owner.fp32_precision for name, owner in _LIBRARIES.items()},
    }


def change(before: dict[str, str]) -> Change | None:
    """Return the first setting that is no longer what it was."""
    after = now()
    for name, was in before.items():
        if after[name] != was:
            return Change(name, was, after[name])
    return None


def _switch(on: bool) -> str:
    return "on" if on else "off"


def _fp32_precision() -> str:
    try:
        return f'"{torch.get_float32_matmul_precision()}"'
    except RuntimeError:  # the switches of the libraries differ, so that one word cannot tell
        return "different from library to library"


def _depth() -> int:
    # PyTorch tells how many regions are open only in answer to opening or closing one.
    torch.autocast_increment_nesting()
    return torch.autocast_decrement_nesting()
