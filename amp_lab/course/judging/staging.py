"""One rank on which a learner's code runs, seen from inside: what it is lent, how it is watched, what it tells.

It runs under a `Guard`, as in a kernel. What a guard cannot end is a rank that waits for another: it is in C++ code and
does nothing. So each rank has a thread that looks whether the process still computes. Where no rank does, and none is
left that could answer, it tells where it stands, and the launch is over.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal
from unittest import mock

import torch
import torch.distributed as dist

from amp_lab.course.judging.guard import Guard, standing
from amp_lab.course.judging.stillness import Stillness

LIMIT_S = 10.0  # in the learner's code, on each rank
_LOOK_S = 0.05
# In spans of quiet. Whoever stands still outside of exchanges may yet come back: it may sleep, or wait for a file.
_STILL, _FOR_EVER = 2.0, 3.0
_TORCH = Path(torch.__file__).parent
_TALKING = tuple(str(_TORCH / each) for each in ("distributed", "nn/parallel", "autograd", "futures"))


@dataclass
class Report:
    """What one rank tells of itself.

    `ended` says how: "returned", with a `value`; "failed", with what the guard says: `fault` and `sentence`; "waits",
    with its `place` in words, and whether it `talks`; "alone", because another rank did not come to a meeting; "died";
    "broke", by an error of the play, or before it. `seen` is what the play noted, however it ended; `at` is when that
    was.
    """

    rank: int
    ended: Literal["returned", "failed", "waits", "alone", "died", "broke"] = "died"
    value: Any = None
    fault: str = ""
    sentence: str = ""
    error: str = ""  # type and message, where the learner's code raised one
    unwritten: bool = False  # it was the stub's own NotImplementedError
    place: str = ""
    talks: bool = True  # what it waits for are other ranks, as far as can be seen
    seen: dict[str, Any] = field(default_factory=dict)
    printed: str = ""
    at: float = float("inf")

    @property
    def words(self) -> str:
        """What a sentence says of this rank."""
        if self.ended == "waits":
            return f"rank {self.rank} {'waits' if self.talks else 'stands still'}{self.place}"
        return f"rank {self.rank} has {'died' if self.ended == 'died' else 'gone on'}"


class Alone(BaseException):
    """Raised by `meet`: another rank has failed or waits, so that it will never come."""


class Stage:
    """What a play has on each rank: `run` calls the learner's code, `meet` waits until all ranks are there.

    `seen` is a place for notes: they reach the check even if the rank never returns.
    """

    def __init__(self, rank: int, ranks: int, folder: str) -> None:
        self.rank, self.ranks, self.folder = rank, ranks, Path(folder)
        self.seen: dict[str, Any] = {}
        self._guard = Guard(LIMIT_S)
        self._meetings, self._told = 0, threading.Lock()
        self._in_code = self._in_meeting = False

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the learner's code; raises `Contained` if it does not return."""
        self._in_code = True
        try:
            with mock.patch.object(dist.Work, "wait", _seen(dist.Work.wait)):
                return self._guard.call(function, *args, **kwargs)
        finally:
            self._in_code = False

    def meet(self) -> None:
        """Wait for the others without torch.distributed, where the learner's code may have left anything."""
        self._meetings += 1
        (self.folder / f"meeting {self._meetings} {self.rank}").touch()
        name = f"meeting {self._meetings}"
        self._in_meeting = True
        while missing := self._missing(name):
            told = missing - self._missing("report")
            if told & self._missing(name):  # once more: it may have come, and told, since we looked
                raise Alone
            time.sleep(0.005)
        self._in_meeting = False

    def tell(self, report: Report) -> None:
        """Hand in what became of this rank, and stay until all have: whoever leaves breaks the others' connections."""
        if not self._told.acquire(blocking=False):
            threading.Event().wait()  # the watch has told already, and will end this process
        report.seen, report.at = self.seen, time.monotonic()
        report.printed = self._guard.output
        file = self.folder / f"report {self.rank}"
        file.with_suffix(".part").write_bytes(pickle.dumps(report))
        file.with_suffix(".part").rename(file)
        while self._missing("report"):
            time.sleep(0.005)

    def watch(self, quiet_s: float) -> None:
        """Look, in a thread, whether the learner's code gets on; where it never will, tell of it and end."""
        still, note = Stillness(quiet_s), self.folder / f"waiting {self.rank}"
        while True:
            time.sleep(_LOOK_S)
            if not self._in_code:
                still.begin()
            spans, frame = still.seconds() / quiet_s, sys._current_frames()[still.main]
            talks = _talks(frame)
            if self._in_meeting or (talks and spans > 1):
                note.touch()
            else:
                note.unlink(missing_ok=True)
            if self._in_code and self._is_over(spans, talks):
                self.tell(Report(self.rank, "waits", place=standing(frame), talks=talks))
                os._exit(0)

    def _is_over(self, spans: float, talks: bool) -> bool:
        """Return whether this rank, which has computed nothing for so many spans, never will again."""
        if not talks:
            return spans > _STILL
        others = self._missing("report") & self._missing("waiting")  # who may yet answer
        return spans > _FOR_EVER or (spans > 1 and not others - {self.rank})

    def _missing(self, name: str) -> set[int]:
        return {rank for rank in range(self.ranks) if not (self.folder / f"{name} {rank}").exists()}


def _seen(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return `Work.wait`, which is C++ code, with a frame of Python around it, by which a stack shows that it talks."""

    def wait_for_ranks(*args: Any, **kwargs: Any) -> Any:
        return wait(*args, **kwargs)

    return wait_for_ranks


def _talks(frame: FrameType | None) -> bool:
    """Return whether a stack has a call of torch.distributed, of DDP or of a backward pass, which talks for DDP."""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_TALKING) or (code.co_filename, code.co_name) == (
            __file__,
            "wait_for_ranks",
        ):
            return True
        frame = frame.f_back
    return False
