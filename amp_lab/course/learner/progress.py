"""What the learner has done: one line a success in `work/.amp-lab/progress.jsonl`, added at the end, never rewritten.

    {"time": "2027-01-31T18:05:09+01:00", "exercise": "1.1", "event": "correct"}

A reset adds a line, too ("reset"): the exercise is open again, and the file still tells that it was solved once. A line
that cannot be read, half of one after a crash say, is passed over. So is what another version of the course wrote.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from time import sleep
from typing import Literal, NamedTuple

from amp_lab.course.learner import disk, workspace

Kind = Literal["correct", "reset"]


class Event(NamedTuple):
    """One line of the log."""

    time: datetime
    exercise_id: str
    kind: str


def record(exercise_id: str) -> None:
    """Remember that an exercise was solved, if this is a learner's page: a kernel that works in `work/`.

    A test run is none: nbval (its kernel inherits pytest's environment), pytest, CI. Raises nothing, whatever happens:
    a check has just succeeded.
    """
    with suppress(Exception):
        if any(os.environ.get(name) for name in ("PYTEST_VERSION", "CI")):
            return
        root = workspace.checkout()
        work = os.path.realpath(root / "work")
        if os.path.commonpath([work, os.path.realpath(os.getcwd())]) == work:
            add(root, exercise_id, "correct")


def add(root: Path, exercise_id: str, kind: Kind = "correct") -> bool:
    """Add an event, whoever asks; tell whether it is in the log now.

    What would change nothing is not added: a second success, or a reset of what is open.
    """
    try:
        data = _read_whole(root)
        if (exercise_id in _done(data)) == (kind == "correct"):
            return True
        line = {"time": datetime.now().astimezone().isoformat(timespec="seconds")}
        text = json.dumps({**line, "exercise": exercise_id, "event": kind}) + "\n"
        _append(root, text if data[-1:] in (b"", b"\n") else "\n" + text)
    except OSError:
        return False
    return True


def done(root: Path) -> dict[str, datetime]:
    """Map each exercise that is solved to when it was: the first time since it was last reset.

    May hold exercises that this version of the course does not have. A log that cannot be read is an empty one.
    """
    with suppress(OSError):
        return _done(_read(root))
    return {}


def _done(data: bytes) -> dict[str, datetime]:
    found: dict[str, datetime] = {}
    for event in _events(data):
        if event.kind == "correct":
            found.setdefault(event.exercise_id, event.time)
        elif event.kind == "reset":
            found.pop(event.exercise_id, None)
    return found


def _events(data: bytes) -> Iterator[Event]:
    for line in data.split(b"\n"):
        # An impossible date is an OverflowError or an OSError, as the system likes.
        with suppress(ValueError, TypeError, KeyError, RecursionError, OverflowError, OSError):
            entry = json.loads(line)
            time, name, kind = entry["time"], entry["exercise"], entry["event"]
            if isinstance(name, str) and isinstance(kind, str):
                yield Event(datetime.fromisoformat(time).astimezone(), name, kind)


def _log(root: Path) -> Path:
    return root / "work" / ".amp-lab" / "progress.jsonl"


def _read(root: Path) -> bytes:
    try:
        return disk.read(_log(root))
    except FileNotFoundError:
        return b""


def _read_whole(root: Path) -> bytes:
    """Read the log; if it ends in half a line, look again: another kernel may be writing the rest."""
    data = _read(root)
    for _ in range(5):
        if data[-1:] in (b"", b"\n"):
            break
        sleep(0.01)
        data = _read(root)
    return data


def _append(root: Path, line: str) -> None:
    """Add to the file in one write, which the system does not mix with that of another kernel."""
    _log(root).parent.mkdir(parents=True, exist_ok=True)
    file = os.open(_log(root), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        data = line.encode()
        if os.write(file, data) < len(data):
            raise OSError("the disk took half a line")
    finally:
        os.close(file)
