"""The random generators that a loader has for itself: its own, its samplers', its datasets', their transforms'."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch

from amp_lab.train.saving import random_states as plainly

_GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
_DEPTH = 8  # loader, batch_sampler, sampler, data_source, datasets, [0], transform, rng
_FEW = 100  # a longer list holds samples


def own_states(loader: Any) -> dict[str, Any]:
    """Return where the generators of a loader, its samplers and its dataset stand, each under its place."""
    return {place: _state(source) for place, source in _sources(loader)}


def put_back(loader: Any, states: Mapping[str, Any]) -> None:
    """Put a loader's own generators back to where `own_states` found them; one that is new is left as it is."""
    for place, source in _sources(loader):
        if place in states:
            _set(source, states[place])


def _sources(loader: Any) -> Iterator[tuple[str, Any]]:
    """Yield each generator once, with the place where it was found first."""
    found = _search(loader, "loader", _DEPTH, {id(loader): loader})
    # Python cannot tell where the system's generator stands, and nobody expects that it comes again.
    return ((place, each) for place, each in found if not isinstance(each, random.SystemRandom))


def _search(thing: Any, place: str, depth: int, seen: dict[int, Any]) -> Iterator[tuple[str, Any]]:
    """Search attributes and short lists and dicts, nearest first: what is found has the shortest name."""
    nested = []
    for name, value in _parts(thing):
        if id(value) in seen:
            continue
        seen[id(value)] = value  # kept, so that no other object gets its number
        if isinstance(value, _GENERATORS):
            yield f"{place}{name}", value
        elif depth:
            nested.append((name, value))
    for name, value in nested:
        yield from _search(value, f"{place}{name}", depth - 1, seen)


def _parts(thing: Any) -> list[tuple[str, Any]]:
    """Return what an object holds by name, a container by place; none of what is a tensor, a model or a class."""
    if isinstance(thing, list | tuple | dict):
        many = thing.items() if isinstance(thing, dict) else enumerate(thing)
        return [(f"[{key!r}]", value) for key, value in many] if len(thing) <= _FEW else []
    if isinstance(thing, torch.Tensor | torch.nn.Module | type | ModuleType):
        return []
    return [(f".{name}", value) for name, value in sorted(getattr(thing, "__dict__", {}).items())]


def _state(source: Any) -> Any:
    if isinstance(source, torch.Generator):
        return source.get_state()
    if isinstance(source, np.random.Generator):
        return plainly.numpy_to_plain(source.bit_generator.state)
    if isinstance(source, np.random.RandomState):
        return plainly.numpy_to_plain(source.get_state(legacy=False))
    return plainly.python_to_plain(source.getstate())


def _set(source: Any, state: Any) -> None:
    if isinstance(source, torch.Generator):
        source.set_state(state.cpu())
    elif isinstance(source, np.random.Generator):
        source.bit_generator.state = plainly.numpy_from_plain(state)
    elif isinstance(source, np.random.RandomState):
        source.set_state(plainly.numpy_from_plain(state))
    else:
        source.setstate(plainly.python_from_plain(state))
