"""Whether `torch.compile` can work here, without trying: it imports much and compiles for long before it fails."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path

import torch

_C: tuple[str, ...] = ("gcc", "clang", "cc")
_CPP: tuple[str, ...] = ("g++", "clang++", "c++")
_TRITON_FROM = (7, 0)


def why_no_compile(device: torch.device) -> str:
    """Say what `torch.compile` lacks on a device; "" if nothing that can be seen from here.

    For a CPU it writes C++ and calls a compiler; for CUDA it writes kernels for Triton, which calls a C compiler for
    what starts them. Both need the header files of Python.
    """
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            return "Triton, which compiles for the GPU, is not installed"
        capability = torch.cuda.get_device_capability(device)
        if capability < _TRITON_FROM:
            return f"Triton needs compute capability 7.0; this GPU has {capability[0]}.{capability[1]}"
    elif device.type != "cpu":
        return f"it is not tried on {device.type!r}"
    variable, names = ("CXX", _CPP) if device.type == "cpu" else ("CC", _C)
    asked = os.environ.get(variable)
    if not any(map(shutil.which, [asked] if asked else names)):
        looked = f"{variable}={asked}" if asked else ", ".join(names)
        return f"there is no compiler ({looked})"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "the header files of Python are missing (package python3-dev)"
    return ""
