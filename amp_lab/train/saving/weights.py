"""Weights into a model, whatever it was wrapped in when they were saved and is wrapped in now."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Any

from torch import nn

from amp_lab.train.saving.errors import CheckpointError

# torch.compile(model) puts the first before each name; DataParallel and DistributedDataParallel the second.
_WRAPPERS = ("_orig_mod", "module")
_SHOWN = 5


def load_weights(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a model's state dict, all of it.

    A state dict that was saved through `torch.compile` or DistributedDataParallel has `_orig_mod.` or `module.` in its
    names. They are matched with the model's own, in both directions.

    Raises:
        CheckpointError: "mismatch": names are missing or left over, or shapes differ. The model is as it was.
    """
    own = model.state_dict()
    renamed = _renamed(state, own)
    differ = _differences(renamed, own)
    if differ:
        raise CheckpointError(
            f"the checkpoint belongs to another model: {'; '.join(differ)}. Build the model as it was "
            "when it was saved",
            "mismatch",
        )
    model.load_state_dict(renamed)


def _renamed(state: Mapping[str, Any], own: Mapping[str, Any]) -> OrderedDict[str, Any]:
    """Return the state under the model's own names, if they are the same but for wrappers.

    `_metadata` is what PyTorch keeps with a state dict: the version of each module's code, by the module's name.
    """
    renamed, versions = OrderedDict(state), getattr(state, "_metadata", None)
    names, bare = _by_bare_name(own), _by_bare_name(state)
    # Names that differ by a wrapper only: a module that is called `module` by right. Then nothing is guessed.
    unclear = len(names) < len(own) or len(bare) < len(state)
    if state.keys() != own.keys() and not unclear:
        renamed = OrderedDict((names.get(short, name), state[name]) for short, name in bare.items())
        if versions is not None:
            modules = _by_bare_name(own._metadata)  # type: ignore[attr-defined]
            versions = {modules.get(_bare(name), name): version for name, version in versions.items()}
    if versions is not None:
        renamed._metadata = versions  # type: ignore[attr-defined]
    return renamed


def _by_bare_name(names: Iterable[str]) -> dict[str, str]:
    return {_bare(name): name for name in names}


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def _differences(state: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    found = {
        "it lacks": [name for name in own if name not in state],
        "it has": [name for name in state if name not in own],
        "shapes differ (saved, now):": [
            f"{name} {_shape(state[name])}, {_shape(own[name])}"
            for name in own
            if name in state and _shape(state[name]) != _shape(own[name])
        ],
    }
    return [f"{what} {_listed(names)}" for what, names in found.items() if names]


def _shape(value: Any) -> tuple[int, ...] | None:
    """What is no tensor (a module's own extra state) has no shape."""
    return tuple(value.shape) if hasattr(value, "shape") else None


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more
