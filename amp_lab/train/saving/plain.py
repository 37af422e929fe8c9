"""What a checkpoint may hold: values that `torch.load(..., weights_only=True)` makes again without running any code.

Whatever cannot be loaded is refused while it is being saved: then the run is still there, and the message says where
the value stands.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from amp_lab.train.saving.errors import CheckpointError

_ATOMS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
_MAPPINGS = (dict, OrderedDict, Counter)
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_BITS = 2039  # of the largest int that weights_only=True reads


def plain(state: Any) -> Any:
    """Return the same state in new containers: NumPy's numbers as Python's, and of each tensor only what it shows.

    A tensor that is a view of a larger one (a row of a table, an expanded column) would be saved with all of it.
    Tensors that share their memory whole, such as tied weights, still do in the file.

    Raises:
        CheckpointError: for a value of another type; it names the place, as in `state['scheduler']['f']`.
    """
    try:
        return _plain(state, "state")
    except RecursionError:
        raise CheckpointError(
            "state holds itself, or is nested too deeply to be saved: save plain dicts and lists", "unsaved"
        ) from None


def _plain(value: Any, place: str) -> Any:
    kind = type(value)
    if kind is int and value.bit_length() > _BITS:
        raise _refused(value, place)
    if kind in _ATOMS:
        return value
    if kind in _TENSORS:
        return _whole(value, place)
    if kind in _MAPPINGS:
        return _mapping(value, place)
    if kind in (list, tuple):
        return kind(_plain(one, f"{place}[{index}]") for index, one in enumerate(value))
    if isinstance(value, np.generic) and isinstance(value.item(), int | float | complex | str | bytes):
        return value.item()
    raise _refused(value, place)


def _mapping(value: dict[Any, Any], place: str) -> dict[Any, Any]:
    """A model's state dict says in an attribute which version of each module wrote it."""
    copy = type(value)({_key(key, place): _plain(one, f"{place}[{key!r}]") for key, one in value.items()})
    if hasattr(value, "_metadata"):
        copy._metadata = _plain(value._metadata, f"{place}._metadata")  # type: ignore[attr-defined]
    return copy


def _key(key: Any, place: str) -> Any:
    """Optimizers number their parameters, so keys need not be text."""
    if type(key) not in (str, int, float, bool, type(None)):
        raise _refused(key, f"a key of {place}")
    return key


def _whole(tensor: torch.Tensor, place: str) -> torch.Tensor:
    tensor = tensor.detach()
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
        raise _refused(tensor, place)
    same = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if same else tensor.clone(memory_format=torch.contiguous_format)


def _refused(value: Any, place: str) -> CheckpointError:
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return CheckpointError(
        f"{place} is a {kind}: {_instead(value)}. Nothing was saved: a checkpoint holds only numbers, text, lists, "
        "dicts and tensors, so that no code runs when it is loaded",
        "unsaved",
    )


def _instead(value: Any) -> str:
    if isinstance(value, UninitializedParameter | UninitializedBuffer):
        return "a lazy module, whose size is not known yet. Run the model once first"
    if isinstance(value, int | np.generic):
        return "save int(value), float(value) or str(value)"
    if isinstance(value, torch.Tensor):
        return "save an ordinary tensor with its values, .to_dense() or .full_tensor()"
    if isinstance(value, np.ndarray):
        return "save torch.from_numpy(array)"
    if isinstance(value, torch.nn.Module) or hasattr(value, "state_dict"):
        return "save its .state_dict()"
    if callable(value):
        return "leave it out, and give it again when you make the object that calls it"
    return "save list(value), dict(value) or the numbers in it"
