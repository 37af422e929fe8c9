"""Where the random generators stand: dropout, shuffling and augmentation go on as if nothing had happened.

states = random_states.capture()
…
random_states.restore(states)
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def capture() -> dict[str, Any]:
    """Return where the global generators of PyTorch (CPU, and CUDA if it is in use), NumPy and Python stand.

    Only plain values and tensors are in it, so that a checkpoint can hold it.
    """
    return {
        "torch": torch.get_rng_state(),
        # Asking a CUDA that nobody uses would start it, which takes seconds and memory.
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else [],  # type: ignore[no-untyped-call]
        "numpy": numpy_to_plain(np.random.get_state(legacy=False)),
        "python": python_to_plain(random.getstate()),
    }


def restore(states: Mapping[str, Any]) -> None:
    """Put the global generators back to where `capture` found them."""
    torch.set_rng_state(states["torch"].cpu())
    _restore_cuda(states["cuda"])
    np.random.set_state(numpy_from_plain(states["numpy"]))
    random.setstate(python_from_plain(states["python"]))


def _restore_cuda(states: list[torch.Tensor]) -> None:
    have = torch.cuda.device_count() if states else 0
    if have != len(states):
        warnings.warn(
            f"random states of {len(states)} GPU(s) were saved, and {have} are here: dropout on a GPU goes on with "
            "other random numbers than in the undisturbed run",
            stacklevel=3,
        )
    for device, state in enumerate(states[:have]):
        torch.cuda.set_rng_state(state.cpu(), device)


def numpy_to_plain(state: Any) -> Any:
    """Return a state of NumPy's without its arrays: unsigned ones as their bytes, which every dtype has."""
    if isinstance(state, Mapping):
        return {key: numpy_to_plain(value) for key, value in state.items()}
    if isinstance(state, np.ndarray):
        return {
            "dtype": state.dtype.str,
            "bytes": torch.frombuffer(bytearray(state.tobytes()), dtype=torch.uint8),
        }
    return state


def numpy_from_plain(state: Any) -> Any:
    """Return what `numpy_to_plain` was given."""
    if isinstance(state, Mapping) and state.keys() == {"dtype", "bytes"}:
        return np.frombuffer(state["bytes"].cpu().numpy().tobytes(), state["dtype"]).copy()
    if isinstance(state, Mapping):
        return {key: numpy_from_plain(value) for key, value in state.items()}
    return state


def python_to_plain(state: Any) -> list[Any]:
    """Return a state of Python's generator with its 625 numbers in one tensor."""
    version, numbers, gauss = state
    return [version, torch.tensor(numbers, dtype=torch.int64, device="cpu"), gauss]


def python_from_plain(state: list[Any]) -> Any:
    """Return what `python_to_plain` was given."""
    version, numbers, gauss = state
    return version, tuple(numbers.tolist()), gauss
