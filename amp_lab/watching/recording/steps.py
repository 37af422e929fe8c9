"""Where one step of a training loop ends and the next begins."""

from __future__ import annotations

from typing import Final

# An optimizer that was not asked for so many turns of others is not waited for.
_PATIENCE: Final = 20


class Steps:
    """Counts steps.

    A step ends with `scaler.update()`, or when all optimizers were asked to step. What follows belongs to it, until a
    call begins the next one: a forward pass, an autocast region, a loss that is scaled, a backward pass.
    """

    def __init__(self) -> None:
        self.now = 1
        self.ended = False
        self._asked: set[int] = set()
        self._last_asked: dict[int, int] = {}
        self._turns = 0

    def add_optimizer(self, optimizer: int) -> None:
        self._last_asked[optimizer] = self._turns

    def asked(self, optimizer: int) -> None:
        """An optimizer was asked to step."""
        self._turns += 1
        self._asked.add(optimizer)
        self._last_asked[optimizer] = self._turns
        # Where all were asked, as one alone always is, nobody is awaited.
        self.ended = self.ended or len(self._asked) == len(self._last_asked) or self._awaited() <= self._asked

    def _awaited(self) -> set[int]:
        return {each for each, turn in self._last_asked.items() if self._turns - turn < _PATIENCE}

    def end(self) -> None:
        """The scaler was updated."""
        self.ended = True

    def begins(self) -> bool:
        """A call is made that belongs to a step of its own, if the last one has ended: return whether it had."""
        if not self.ended:
            return False
        self.now += 1
        self.ended = False
        self._asked.clear()
        return True
