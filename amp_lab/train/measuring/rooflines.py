"""Operators under the roof of a GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from amp_lab.train.measuring.gpus import Gpu, gpu_named

_WHATS: Final = ("fp32", "tf32", "fp16")


def roofline_figure(
    gpu: Gpu | str,
    points: Mapping[str, tuple[float, float, torch.dtype | str | None]] | None = None,
    whats: Sequence[str] = _WHATS,
) -> Any:
    """Return the roofline of a GPU: FLOP/s that can be reached, over FLOP/byte.

    Args:
        gpu: one of `GPUS`, by name, or a `Gpu`.
        points: for each operator its name and `(flops, bytes, dtype)`; it is marked where the roof of that dtype is the
            best that it can reach. A dtype that the GPU has no unit for is an error.
        whats: the formats whose roofs are drawn; those that the GPU lacks are left out.

    Raises:
        KeyError, ValueError: for a GPU or format that there is not.
    """
    from amp_lab.view.roofline import roofline  # matplotlib takes a second to import

    found = gpu_named(gpu)
    roofs = {each.upper(): found.peak(each) for each in whats if getattr(found, each, 0.0) is not None}
    marks = {name: _mark(found, name, *point) for name, point in (points or {}).items()}
    return roofline(found.name, found.bandwidth, roofs, marks)


def _mark(
    gpu: Gpu, name: str, flops: float, moved: float, what: torch.dtype | str | None
) -> tuple[float, float]:
    if not (0 < flops < math.inf and 0 < moved < math.inf):
        raise ValueError(f"{name}: {flops} operations and {moved} bytes have no place on logarithmic axes")
    intensity = flops / moved
    return intensity, min(gpu.peak(what or "fp32"), intensity * gpu.bandwidth)
