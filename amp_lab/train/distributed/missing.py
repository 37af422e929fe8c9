"""Who is missing: what a rank concludes from what the others have written on the board."""

from __future__ import annotations

import time
from typing import Final, NamedTuple

from amp_lab.train.distributed.board import Board
from amp_lab.train.distributed.places import latecomer

_SILENT: Final = 4.0  # so many seconds without a beat, and a process is gone, or frozen


class Blame(NamedTuple):
    """Who is missing, in words, and whether that is sure: the best guess is of help, too."""

    said: str
    sure: bool


def blame(board: Board, step: int, patience: float = 3.0) -> Blame:
    """Say which rank is missing, and where it was last; "" if nobody can know.

    It waits for some seconds: who has failed may still be writing why, and who is silent must be heard out.

    Args:
        board: of the rank that asks.
        step: where that one is.
        patience: so many seconds.
    """
    if board.size == 1:
        return Blame("", False)
    before, end = board.places(), time.monotonic() + patience
    while time.monotonic() < end:
        if words := board.words():
            return Blame(words, True)
        time.sleep(0.1)
    after = board.places()
    if not after:
        said = "nobody answers where the ranks meet: rank 0 has ended, or whoever started it. Was it killed?"
        return Blame(said, False)
    left = board.left()  # they have waited in vain, too
    for rank, place in after.items():
        if rank in before and place.beat == before[rank].beat and rank not in left:
            said = (
                f"rank {rank} ({place.process}) is silent: was it killed, or is it frozen? This one is in step {step}; "
                f"the other one, which writes once a second, last wrote in step {place.step} ({place.doing})"
            )
            return Blame(said, True)
    return Blame(latecomer(after), False)


class Listener:
    """Hears whether the others are still there; it must be asked again and again."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._heard: dict[int, tuple[int, float]] = {}  # the last beat of each other rank, and when that was

    def misses(self) -> bool:
        """Tell whether another rank has ended or is silent, or the store is gone with rank 0."""
        if self._board.left() or not self._board.answers():
            return True
        now = time.monotonic()
        for rank, place in self._board.places().items():
            if self._heard.get(rank, (-1, now))[0] != place.beat:
                self._heard[rank] = place.beat, now
        return any(now - heard > _SILENT for _, heard in self._heard.values())
