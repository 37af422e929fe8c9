"""Scaling what a model returns: a tensor, or lists and tuples of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch


def scale_outputs(outputs: Any, scale_on: Callable[[torch.device], torch.Tensor]) -> Any:
    """Return outputs in the same lists and tuples, each tensor multiplied by the scale on its device."""
    if isinstance(outputs, torch.Tensor):
        return outputs * scale_on(outputs.device)
    if isinstance(outputs, str | bytes | Mapping) or not isinstance(outputs, Iterable):
        raise TypeError(
            f"scale: outputs are tensors, or lists and tuples of tensors, not a {type(outputs).__name__}"
            + (
                ": scale its values, or the loss that you make of them"
                if isinstance(outputs, Mapping)
                else ""
            )
        )
    scaled = (scale_outputs(output, scale_on) for output in outputs)
    if isinstance(outputs, tuple) and hasattr(outputs, "_make"):  # a named tuple
        return outputs._make(scaled)
    return type(outputs)(scaled) if isinstance(outputs, list | tuple) else scaled
