"""A few words by which ranks find out whether they have the same data."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch


def fingerprint(*datasets: Any, samples: int = 64) -> str:
    """Return the length and a checksum of each data set, over so many samples from all parts of it.

    Samples that are drawn at random (augmentation) are drawn from the same random numbers on each rank, and the global
    generators are put back. A data set with a generator of its own is known by its length.
    """
    return "; ".join(_fingerprint(data, samples) for data in datasets)


def _fingerprint(data: Any, samples: int) -> str:
    size = len(data)
    indices = sorted({size * each // samples for each in range(samples)} if size else ())
    first, second = _checksum(data, indices), _checksum(data, indices)
    return f"{size} samples, checksum {first if first == second else 'of none, as they change'}"


def _checksum(data: Any, indices: Iterable[int]) -> str:
    total = hashlib.sha256()
    with _the_same_random_numbers():
        for index in indices:
            for part in _leaves(data[index]):
                total.update(part)
    return total.hexdigest()[:12]


@contextlib.contextmanager
def _the_same_random_numbers() -> Iterator[None]:
    numpys, pythons = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        np.random.seed(0)
        random.seed(0)
        try:
            yield
        finally:
            np.random.set_state(numpys)
            random.setstate(pythons)


def _leaves(sample: Any) -> Iterator[bytes]:
    """Yield the parts of a sample as bytes."""
    if isinstance(sample, torch.Tensor):
        yield f"{sample.dtype} {tuple(sample.shape)}".encode()
        yield sample.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    elif isinstance(sample, Mapping):
        for name, part in sample.items():
            yield repr(name).encode()
            yield from _leaves(part)
    elif isinstance(sample, list | tuple):
        for part in sample:
            yield from _leaves(part)
    elif isinstance(sample, np.ndarray | np.generic) and sample.dtype != object:
        yield f"{sample.dtype} {sample.shape}".encode()
        yield np.ascontiguousarray(sample).tobytes()
    elif isinstance(sample, bool | int | float | complex | str | bytes | None):
        yield repr(sample).encode()
    else:  # of other objects, the text may hold an address, which is another one in each process
        yield type(sample).__qualname__.encode()
        if hasattr(sample, "__array__"):  # an image of PIL
            yield from _leaves(np.asarray(sample))
