"""One rank on which a learner's code runs, seen from inside: what it is lent, how it is watched, what it tells.

It runs under a `Guard`, as in a kernel. What a guard cannot end is a rank that waits for another: it is in C++ code and
does nothing. So each rank has a thread that looks whether the process still computes. If it has not for some seconds,
the rank tells where it stands, and the launch is over.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal

import psutil
import torch

from amp_lab.course.judging.guard import Guard, standing

LIMIT_S = 10.0  # in the learner's code, on each rank
_LOOK_S = 0.05
_IDLE_SHARE = 0.05  # of the time; whoever computes for more than that works
_TORCH = Path(torch.__file__).parent
_TALKING = tuple(str(_TORCH / each) for each in ("distributed", "nn/parallel", "autograd"))


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
            return f"rank {self.rank} waits{self.place}"
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
        self._meetings, self._in_code, self._told = 0, False, threading.Lock()

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call the learner's code; raises `Contained` if it does not return."""
        self._in_code = True
        try:
            return self._guard.call(function, *args, **kwargs)
        finally:
            self._in_code = False

    def meet(self) -> None:
        """Wait for the others without torch.distributed, where the learner's code may have left anything."""
        self._meetings += 1
        (self.folder / f"meeting {self._meetings} {self.rank}").touch()
        name = f"meeting {self._meetings}"
        while missing := set(self._missing(name)):
            told = missing - set(self._missing("report"))
            if told & set(self._missing(name)):  # once more: it may have come, and told, since we looked
                raise Alone
            time.sleep(0.005)

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
        """Look, in a thread, whether the learner's code still computes; where it only waits, tell of it and end."""
        main = threading.main_thread().ident
        assert main is not None
        since, worked, children = time.monotonic(), time.process_time(), 0.0
        while True:
            time.sleep(_LOOK_S)
            now, work = time.monotonic(), time.process_time()
            if not self._in_code or work - worked > _IDLE_SHARE * quiet_s:
                since, worked = now, work
            elif now - since > quiet_s:
                before, children = children, _work_of_children()
                if children - before > _IDLE_SHARE * quiet_s:  # a DataLoader's workers, say
                    since, worked = now, work
                    continue
                frame = sys._current_frames()[main]
                self.tell(Report(self.rank, "waits", place=standing(frame), talks=_talks(frame)))
                os._exit(0)

    def _missing(self, name: str) -> list[int]:
        return [rank for rank in range(self.ranks) if not (self.folder / f"{name} {rank}").exists()]


def _talks(frame: FrameType | None) -> bool:
    """Return whether a stack has a call of torch.distributed, of DDP or of a backward pass, which talks for DDP."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_TALKING):
            return True
        frame = frame.f_back
    return False


def _work_of_children() -> float:
    """Return for how many seconds the processes that this one has started, and those of theirs, have computed."""
    seconds = 0.0
    for each in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            seconds += sum(each.cpu_times()[:2])
    return seconds
