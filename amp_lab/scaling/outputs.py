"""Scaling what a model returns: a tensor, or lists and tuples of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch


def scale_outputs(outputs: Any, scaled: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return outputs in the same lists and tuples, each tensor `scaled`."""
    if isinstance(outputs, torch.Tensor):
        return scaled(outputs)
    if isinstance(outputs, str | bytes | Mapping) or not isinstance(outputs, Iterable):
        raise TypeError(
            f"scale: outputs must be tensors, or lists and tuples of tensors, not a {type(outputs).__name__}"
            + (
                ": scale its values, or the loss that you make of them"
                if isinstance(outputs, Mapping)
                else ""
            )
        )
    each = (scale_outputs(output, scaled) for output in outputs)
    if isinstance(outputs, tuple) and hasattr(outputs, "_make"):  # a named tuple
        return outputs._make(each)
    return type(outputs)(each) if isinstance(outputs, list | tuple) else each
