"""The state of a loss scaler into a run of the same precision, or of another."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from torch.amp import GradScaler


def load_scaler(scaler: GradScaler, state: Mapping[str, Any]) -> None:
    """Load a scaler's state dict; where it has nothing to say to this run, warn and go on.

    A disabled scaler (FP32, BF16) saves `{}`, which PyTorch refuses to load into an enabled one; into a disabled one it
    loads nothing, and does not tell.
    """
    if scaler.is_enabled() and not state:
        warnings.warn(
            "The checkpoint was saved without loss scaling (FP32 or BF16). This run scales its losses and begins at "
            f"loss scale {scaler.get_scale():g}: it may skip a few steps until it has found its place",
            stacklevel=2,
        )
    elif not scaler.is_enabled() and state:
        warnings.warn(
            f"The checkpoint was saved with loss scale {state.get('scale', float('nan')):g} (FP16). This run does not "
            "scale its losses: the saved scale is not used",
            stacklevel=2,
        )
    elif state:
        scaler.load_state_dict(dict(state))
