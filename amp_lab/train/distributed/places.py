"""Where a rank is in its run, seen from outside; and which of several ranks keeps the others waiting."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final

# What functions of the Trainer are called in a message.
_DOING: Final = {
    "forward": "forward",
    "backward": "backward",
    "evaluate": "the dev set",
    "save": "saving a checkpoint",
    "load": "loading a checkpoint",
    "__next__": "reading a batch",
    "mean": "adding up the losses of all ranks",
    "clip": "clipping",
}
SAVING: Final = _DOING["save"]
_TRAINER: Final = f"{os.sep}amp_lab{os.sep}train{os.sep}"
_METHODS: Final = f"{_TRAINER}trainer.py"
_ASKING: Final = tuple(
    f"{_TRAINER}distributed{os.sep}{name}.py" for name in ("places", "lone_calls", "several", "ranks")
)
_TORCH: Final = f"{os.sep}torch{os.sep}"
# Where Python is while a process waits for others: in a collective, or in a backward pass, which averages gradients.
_WAITING: Final = tuple(
    f"{_TORCH}{name}".replace("/", os.sep)
    for name in ("distributed/", "autograd/", "nn/parallel/distributed")
) + tuple(
    # NCCL only puts a collective into the GPU's queue. Python waits when it wants to know a number, here.
    f"{_TRAINER}{name}".replace("/", os.sep)
    for name in (
        "distributed/several",
        "training/together",
        "training/loop",
        "training/nonfinite",
        "training/spoilt",
        "training/evaluation",
    )
)


@dataclass
class Place:
    """Where a rank is.

    Attributes:
        step: how many steps are done.
        doing: in words.
        waiting: whether it may be waiting for others.
        since: for how many seconds it has been in this step.
        beat: the number of this message.
        process: "pid 123 on host".
    """

    step: int
    doing: str
    waiting: bool
    since: float = 0.0
    beat: int = 0
    process: str = ""


def seen(thread: int | None, step: int) -> Place:
    """Return where a thread of this process is now: what the Trainer does in it, and the line of other code."""
    frames = list(_stack(sys._current_frames().get(thread or 0)))
    codes = [frame.f_code for frame in frames]
    known = (
        _DOING[each.co_name] for each in codes if each.co_name in _DOING and _TRAINER in each.co_filename
    )
    doing = next(known, "")
    waiting = bool(codes) and any(part in codes[0].co_filename for part in _WAITING)
    own = next((frame for frame in frames if not _is_of_others(frame.f_code.co_filename)), None)
    if own is not None and not (doing and _TRAINER in own.f_code.co_filename):
        doing = f"{doing} ({_at(own)})" if doing else _at(own)
    return Place(step, doing or "ending", waiting)


def latecomer(places: dict[int, Place]) -> str:
    """Say who is behind: of those that do not wait for others, the one with the fewest steps."""
    busy = {rank: place for rank, place in places.items() if not place.waiting}
    if busy:
        rank = min(busy, key=lambda each: (busy[each].step, each))
        place = busy[rank]
        return (
            f"rank {rank} ({place.process}) is missing: it has been in step {place.step} for {place.since:.0f} s: "
            f"{place.doing}"
        )
    if not places:
        return ""
    listed = ", ".join(f"rank {rank} in step {place.step} ({place.doing})" for rank, place in places.items())
    return f"the others wait, too, at another place: {listed}. Every rank must make the same calls in the same order"


def call_of_the_trainer() -> tuple[str, str]:
    """Return what of a Trainer this thread has called last, such as "save", and from which line.

    Where no Trainer is, it is what has asked the other ranks.
    """
    frames = [each for each in _stack(sys._getframe(1)) if not _is_of_others(each.f_code.co_filename)]
    files = [each.f_code.co_filename for each in frames]
    own = [number for number, file in enumerate(files) if file.endswith(_METHODS)]
    asked = [number for number, file in enumerate(files) if not file.endswith(_ASKING)]
    last = (own or asked or [0])[0]
    while last + 1 in own:
        last += 1
    return frames[last].f_code.co_name, _at(frames[last + 1]) if last + 1 < len(frames) else ""


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and its callers, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_of_others(file: str) -> bool:
    return _TORCH in file or file.startswith("<frozen")


def _at(frame: FrameType) -> str:
    code = frame.f_code
    return f"{os.path.basename(code.co_filename)}, line {frame.f_lineno}, {code.co_name}"
