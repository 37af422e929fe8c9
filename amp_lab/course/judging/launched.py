"""A learner's code on several ranks: in processes of their own, watched from inside, and none of them is left.

Each rank runs the code under a `Guard`, as a kernel would. What a guard cannot end is a rank that waits for another:
it is in C++ code and does nothing. So each rank has a thread that looks whether the process still computes. If it has
not for some seconds, the rank tells where it stands, and the launch is over.
"""

from __future__ import annotations

import functools
import linecache
import multiprocessing
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Literal, NamedTuple

import psutil
import torch

from amp_lab.course.judging.guard import Contained, Guard, standing
from amp_lab.train.distributed.workers import Outcome, run_ranks

LIMIT_S = 10.0  # in the learner's code, on each rank
QUIET_S = 4.0  # without computing: nobody who waits for so long is ever answered
_LOOK_S = 0.05
_TORCH = Path(torch.__file__).parent
_TALKING = tuple(str(_TORCH / each) for each in ("distributed", "nn/parallel", "autograd"))
_IDLE_SHARE = 0.05  # of the time; whoever computes for more than that works
_WHOLE_S = 17.0  # for all of it, less than a check's own limit


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


def available() -> bool:
    """Return whether this system has what `launch` needs; Windows has not."""
    return "forkserver" in multiprocessing.get_all_start_methods()


@functools.cache
def warm_up() -> None:
    """Start the server that processes come from, which imports PyTorch: once, not in the learner's time."""
    run_ranks(_do_nothing, 1)


def _do_nothing(_rank: int) -> None:
    pass


def launch(
    play: Callable[..., Any], args: tuple[Any, ...], ranks: int, filename: str, quiet_s: float = QUIET_S
) -> list[Report]:
    """Call `play(stage, *args)` on each rank, in a process group; return what each tells.

    `filename` is where the learner's code stands: its lines go along, to be quoted.
    """
    lines = linecache.getlines(filename)
    with tempfile.TemporaryDirectory() as folder:
        setting = _Setting(ranks, folder, quiet_s, filename, lines)
        outcomes = run_ranks(_be_a_rank, ranks, setting, play, args, timeout=_WHOLE_S)
        return [_read(Path(folder), outcome) for outcome in outcomes]


def _read(folder: Path, outcome: Outcome) -> Report:
    with suppress(FileNotFoundError):
        report: Report = pickle.loads((folder / f"report {outcome.rank}").read_bytes())
        return report
    if outcome.ended in ("timed out", "stopped"):  # in C++ code that lets no thread of Python run
        return Report(outcome.rank, "waits")
    # What the learner's code raises is in a report: an error without one is the play's, or the new process's own.
    if outcome.ended == "raised" or not (folder / f"begun {outcome.rank}").exists():
        words = (
            "no process can be started. Was a package changed after this page was opened? Restart the kernel."
        )
        return Report(outcome.rank, "broke", error=outcome.traceback or f"{words}\n{outcome.output}")
    return Report(outcome.rank, "died")


class _Setting(NamedTuple):
    """What all ranks are told: `lines` are those of the learner's file, to quote from."""

    ranks: int
    folder: str
    quiet_s: float
    filename: str
    lines: list[str]


def _be_a_rank(rank: int, setting: _Setting, play: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Be one rank: this runs in the new process."""
    name, lines = setting.filename, setting.lines
    linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    stage = Stage(rank, setting.ranks, setting.folder)
    (stage.folder / f"begun {rank}").touch()
    threading.Thread(target=stage.watch, args=(setting.quiet_s,), daemon=True).start()
    try:
        report = Report(rank, "returned", value=play(stage, *args))
    except Contained as contained:
        report = Report(rank, "failed", fault=contained.fault, sentence=contained.sentence)
        report.error, report.unwritten = contained.message, _is_of_stub(contained.error)
    except Alone:
        report = Report(rank, "alone")
    stage.tell(report)


def _is_of_stub(error: BaseException | None) -> bool:
    return isinstance(error, NotImplementedError) and not error.args
