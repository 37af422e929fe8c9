"""A learner's code on several ranks: in processes of their own, and none of them is left."""

from __future__ import annotations

import functools
import linecache
import multiprocessing
import pickle
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from amp_lab.course.judging.guard import Contained, still_running
from amp_lab.course.judging.staging import Alone, Report, Stage
from amp_lab.train.distributed.workers import Outcome, run_ranks

QUIET_S = 4.0  # without computing: nobody who waits for so long is ever answered
_WHOLE_S = 17.0  # for all of it, less than a check's own limit


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
    # What the learner's code raises is in a report: an error without one is the play's, or the new process's own.
    if outcome.ended == "raised" or not (folder / f"begun {outcome.rank}").exists():
        words = (
            "no process can be started. Was a package changed after this page was opened? Restart the kernel."
        )
        return Report(outcome.rank, "broke", error=outcome.traceback or f"{words}\n{outcome.output}")
    if outcome.ended == "timed out":  # in C++ code that lets no thread of Python run
        return Report(outcome.rank, "failed", fault="timeout", sentence=still_running(_WHOLE_S))
    if outcome.ended == "stopped":
        return Report(outcome.rank, "waits")
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
