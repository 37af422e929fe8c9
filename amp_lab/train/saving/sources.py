"""The random generators that a loader has for itself: its own, its samplers', its dataset's."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from amp_lab.train.saving import random_states as plainly

_PARTS = ("sampler", "batch_sampler", "dataset")


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
    seen: set[int] = set()
    for place, part in _parts(loader, "loader"):
        for name, value in sorted(getattr(part, "__dict__", {}).items()):
            if (
                isinstance(value, torch.Generator | np.random.Generator | random.Random)
                and id(value) not in seen
            ):
                seen.add(id(value))
                yield f"{place}.{name}", value


def _parts(thing: Any, place: str) -> Iterator[tuple[str, Any]]:
    """Yield a loader and what it reads with; a batch sampler has a sampler, a subset has a dataset."""
    yield place, thing
    for name in _PARTS:
        part = getattr(thing, "__dict__", {}).get(name)
        if part is not None:
            yield from _parts(part, f"{place}.{name}")


def _state(source: Any) -> Any:
    if isinstance(source, torch.Generator):
        return source.get_state()
    if isinstance(source, np.random.Generator):
        return plainly.numpy_to_plain(source.bit_generator.state)
    return plainly.python_to_plain(source.getstate())


def _set(source: Any, state: Any) -> None:
    if isinstance(source, torch.Generator):
        source.set_state(state.cpu())
    elif isinstance(source, np.random.Generator):
        source.bit_generator.state = plainly.numpy_from_plain(state)
    else:
        source.setstate(plainly.python_from_plain(state))
