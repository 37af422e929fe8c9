"""What a check starts from: PyTorch as it is after `import torch`, whatever the page has set before.

A page may well set a default dtype or device, to see what that does. An answer is judged by what it returns in a fresh
kernel: `torch.empty(0, 3)` is FP32 there, and a right answer stays right.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from amp_lab.course.judging.restore import default_device, put_back

_AUTOCAST_DEVICES = ("cpu", "cuda", "mps", "xpu")


@contextlib.contextmanager
def as_after_import() -> Iterator[None]:
    """Set PyTorch's and NumPy's own defaults for the `with` block, and put back what stood before.

    The default dtype (FP32) and device (the CPU); gradients recorded, no inference and no anomaly mode, no autocast;
    deterministic algorithms not asked for; subnormals kept; FP32 products in FP32; NumPy's error handling and printing.
    """
    # Where inference mode is switched off, gradients are recorded.
    with put_back(), torch.inference_mode(False), np.printoptions(legacy=False):
        torch.set_default_dtype(torch.float32)
        for device in _AUTOCAST_DEVICES:
            torch.set_autocast_enabled(device, False)
        torch.set_autocast_cache_enabled(True)
        if torch.are_deterministic_algorithms_enabled():  # to set it loads the compiler, which takes seconds
            torch.use_deterministic_algorithms(False)
        torch.set_anomaly_enabled(False)
        torch.set_flush_denormal(False)
        _keep_fp32_products()
        np.seterr(divide="warn", over="warn", under="ignore", invalid="warn")
        with _on_the_cpu():
            yield


def _keep_fp32_products() -> None:
    with contextlib.suppress(RuntimeError):  # the switches of the libraries differ: no one word tells them
        if torch.get_float32_matmul_precision() == "highest":
            return
    torch.set_float32_matmul_precision("highest")


def _on_the_cpu() -> contextlib.AbstractContextManager[object]:
    """Outdo a default device, and a `with torch.device(...)` around the check. Where there is none, nothing is paid."""
    own = default_device()
    return contextlib.nullcontext() if own is not None and own.type == "cpu" else torch.device("cpu")
