"""The states of all generators of random numbers, kept in each step of a loop: so it must cost next to nothing."""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import nn

_DROPOUTS: Final = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
# NumPy's Mersenne Twister in memory: 624 words of 4 bytes, and which of them comes next.
_BYTES: Final = 625 * 4


class RandomNumbers:
    """Keeps the states of PyTorch's, Python's and NumPy's generators, and puts the latest back.

    To keep them moves no generator, and makes no GPU wait. Measured: 11 µs, of which 10 are Python's; and 46 more where
    NumPy's has moved since, for NumPy makes its state number by number.
    """

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        """Args: generators: further ones, which are a model's own."""
        self._own = list(generators)
        self._states: list[torch.Tensor] = []
        self._cpu: torch.Tensor | None = None
        self._python: Any = None
        self._gpus: list[tuple[int, torch.Tensor]] = []
        self._numpy: dict[str, Any] | None = None
        self._words = b""

    def keep(self) -> None:
        """Keep the states that there are now."""
        self._cpu, self._python = torch.get_rng_state(), random.getstate()
        self._states = [each.get_state() for each in self._own]
        self._gpus = [(each, torch.cuda.default_generators[each].get_state()) for each in gpus()]
        self._keep_numpy()

    def _keep_numpy(self) -> None:
        """Ask NumPy for its state, if that is another one than last time."""
        numpy = sys.modules.get("numpy.random")
        if numpy is None:
            self._numpy = None
            return
        words = _words(numpy)
        # Normal numbers are made in pairs: to draw the second, which waits beside the words, changes none of them.
        is_same = bool(words) and words == self._words and self._numpy and not self._numpy["has_gauss"]
        if not is_same:
            self._numpy, self._words = numpy.get_state(legacy=False), words

    def restore(self) -> None:
        """Put back what was kept last."""
        if self._cpu is None:
            return
        torch.set_rng_state(self._cpu)
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
        for generator, state in zip(self._own, self._states, strict=True):
            generator.set_state(state)
        for gpu, state in self._gpus:
            torch.cuda.default_generators[gpu].set_state(state)


def _words(numpy: Any) -> bytes:
    """Return what NumPy's generator has in memory; nothing if that is unknown: of an older NumPy, of another kind."""
    asked = getattr(numpy, "get_bit_generator", None)
    generator: Any = None if asked is None else asked()
    if type(generator).__name__ != "MT19937":
        return b""
    return ctypes.string_at(generator.ctypes.state_address, _BYTES)


def gpus() -> list[int]:
    """Return the GPUs that are used; none while one records a graph, whose generator must not be asked."""
    if not torch.cuda.is_initialized() or torch.cuda.is_current_stream_capturing():  # type: ignore[no-untyped-call]
        return []
    return list(range(torch.cuda.device_count()))


def generators_of(models: Iterable[nn.Module]) -> list[torch.Generator]:
    """Return the generators that modules have as attributes, each once."""
    held = [each for model in models for part in model.modules() for each in vars(part).values()]
    return list({id(each): each for each in held if isinstance(each, torch.Generator)}.values())


def has_dropout(model: nn.Module) -> bool:
    """Return whether a model has layers that leave out units at random."""
    return any(isinstance(each, _DROPOUTS) and each.p > 0 for each in model.modules())
