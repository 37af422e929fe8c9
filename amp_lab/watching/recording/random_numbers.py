"""The states of all generators of random numbers, kept in each step of a loop: so it must cost next to nothing."""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Iterable
from typing import Any, Final

import torch

# A Mersenne Twister in memory: 624 words of 4 bytes, and which of them comes next.
_WORDS: Final = 624
_BYTES: Final = (_WORDS + 1) * 4
_FORMAT: Final = f"={_WORDS + 1}I"  # as CPython has it: what comes next stands first


class RandomNumbers:
    """Keeps the states of PyTorch's, Python's and NumPy's generators, and puts the latest back.

    To keep them moves no generator, and makes no GPU wait. Python and NumPy make their states number by number, of 625:
    so their memory is read instead. Where NumPy's has moved since, it is asked all the same.
    """

    def __init__(self, generators: Iterable[torch.Generator] = ()) -> None:
        """Args: generators: further ones, which are a model's own."""
        self._own = list(generators)
        self._states: list[torch.Tensor] = []
        self._cpu: torch.Tensor | None = None
        self._python = _Python()
        self._gpus: list[tuple[int, torch.Tensor]] = []
        self._numpy: dict[str, Any] | None = None
        self._words = b""

    def keep(self) -> None:
        """Keep the states that there are now."""
        self._cpu = torch.get_rng_state()
        self._python.keep()
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
        self._python.restore()
        if self._numpy is not None:
            sys.modules["numpy.random"].set_state(self._numpy)
        for generator, state in zip(self._own, self._states, strict=True):
            generator.set_state(state)
        for gpu, state in self._gpus:
            torch.cuda.default_generators[gpu].set_state(state)


class _Python:
    """The state of Python's generator: its memory where that is known, which is made a state only to put it back."""

    def __init__(self) -> None:
        self._owner = getattr(
            random.getstate, "__self__", None
        )  # whose methods the functions of `random` are
        self._at = _words_at(self._owner) if type(self._owner) is random.Random else None
        self._memory, self._gauss = b"", None
        self._state: Any = None

    def keep(self) -> None:
        if self._at is None:
            self._state = random.getstate()
            return
        # Normal numbers are made in pairs: the second waits beside the words.
        self._memory, self._gauss = (
            ctypes.string_at(self._at, _BYTES),
            getattr(self._owner, "gauss_next", None),
        )

    def restore(self) -> None:
        if self._at is not None:
            after, *words = struct.unpack(_FORMAT, self._memory)
            self._state = random.Random.VERSION, (*words, after), self._gauss
        random.setstate(self._state)


def _words_at(owner: random.Random) -> int | None:
    """Return the address of a generator's state; None if it is not found in the generator's memory.

    CPython keeps it in the object itself, and says nowhere where: it is looked for.
    """
    _, (*words, after), _ = owner.getstate()
    if sys.implementation.name != "cpython" or len(words) != _WORDS:
        return None
    at = ctypes.string_at(id(owner), object.__sizeof__(owner)).find(struct.pack(_FORMAT, after, *words))
    return id(owner) + at if at >= 0 else None


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


def generators_of(models: Iterable[torch.nn.Module]) -> list[torch.Generator]:
    """Return the generators that modules have as attributes, each once."""
    held = [each for model in models for part in model.modules() for each in vars(part).values()]
    return list({id(each): each for each in held if isinstance(each, torch.Generator)}.values())
