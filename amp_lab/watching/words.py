"""Numbers, steps and places as a report writes them."""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import torch

from amp_lab.autocast.messages.users_code import readable
from amp_lab.autocast.records import Source
from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.view.words import name_in_words
from amp_lab.watching.recording.later import Later

_WHOLE: Final = 1e9  # up to here, and down to _SMALL, numbers are written without an exponent
_SMALL: Final = 1e-4
_MOST: Final = 6  # entries of a list, runs of steps: more are counted
_NO_FILE: Final = re.compile(
    r"<|Cell In\[|a notebook's cell"
)  # a file's name, as a prompt or a notebook has it
_LONGEST: Final = 200  # letters of somebody else's text
LONG: Final = 1000  # of a sentence


def in_words(value: object) -> str:
    """Write a value: "2,937", "0.0943", "5.8e-11", "infinite", "NaN", "FP16", "yes"; "" for nothing.

    Numbers get three digits, or all before the point; a `Later` is read. What is neither number nor text
    nor a list of them is named by its class.
    """
    if isinstance(value, Later):
        return in_words(read(value))
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, int | float):
        return _number(value)
    if isinstance(value, torch.dtype):
        return dtype_in_words(value)
    if isinstance(value, Source):
        return place_in_words(value)
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, tuple | list | set | frozenset):
        return _list(value)
    return _other(value)


def read(value: Later[Any] | None) -> Any:
    """Return what a `Later` holds; None where the device cannot be read any more, after an error of its own."""
    if value is None:
        return None
    try:
        return value.value
    except Exception:
        return None


def _number(value: float) -> str:
    if isinstance(value, int) and abs(value) < _WHOLE:
        return f"{value:,}"
    try:
        value = float(value)
    except OverflowError:
        return "more than 1e308" if value > 0 else "less than -1e308"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "infinite" if value > 0 else "minus infinity"
    if value == 0 or _SMALL <= abs(value) < _WHOLE:
        return _plainly(value)
    mantissa, _, exponent = f"{value:.2e}".partition("e")
    return f"{_trimmed(mantissa)}e{int(exponent)}"


def _plainly(value: float) -> str:
    """Write a number without an exponent, with three digits, or all that stand before the point."""
    before = math.floor(math.log10(abs(value))) + 1 if value else 1
    words = _trimmed(f"{value:,.{max(0, 3 - before)}f}")
    return "0" if words == "-0" else words


def _trimmed(number: str) -> str:
    return number.rstrip("0").rstrip(".") if "." in number else number


def _list(values: Iterable[object]) -> str:
    words = [word for word in map(in_words, values) if word]
    if isinstance(values, set | frozenset):
        words.sort()
    more = [f"{len(words) - _MOST:,} more"] if len(words) > _MOST else []
    return listed([*words[:_MOST], *more])


def _other(value: object) -> str:
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return in_words(value.item())
    name = type(value).__name__
    return f"{'an' if name[:1] in 'AEIOUaeiou' else 'a'} {name}"


def shortened(text: str, most: int = _LONGEST) -> str:
    """Return a text on one line, at most so long, with what is not visible written as Python writes it."""
    line = name_in_words(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most - 2].rstrip()} …"


def listed(words: Sequence[str]) -> str:
    """Join words: "a", "a and b", "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def counted(number: int, noun: str, plural: str = "s") -> str:
    """Write how many there are: "1 step", "1,200 steps"."""
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def steps_in_words(steps: Iterable[int]) -> str:
    """Write the numbers of steps: "7", "1 to 200", "1 to 3, 7 and 12"; of many runs the first, and how many more."""
    runs = _runs(sorted(set(steps)))
    words = [f"{first:,}" if first == last else f"{first:,} to {last:,}" for first, last in runs[:_MOST]]
    left = sum(last - first + 1 for first, last in runs[_MOST:])
    return listed([*words, *([f"{left:,} more"] if left else [])])


def _runs(steps: Sequence[int]) -> list[tuple[int, int]]:
    """Gather neighbours: (first, last). Two neighbours alone stay apart: "1 and 2" reads better than "1 to 2"."""
    found: list[list[int]] = []
    for step in steps:
        if found and step == found[-1][-1] + 1:
            found[-1].append(step)
        else:
            found.append([step])
    pairs: list[tuple[int, int]] = []
    for run in found:
        pairs += [(run[0], run[-1])] if len(run) != 2 else [(run[0], run[0]), (run[1], run[1])]
    return pairs


def place_in_words(where: Source, text: bool = True) -> str:
    """Write a place: "train.py:41, in train: scaler.step(opt)"; in a notebook "Cell In[3], line 5: …"."""
    said = line_in_words(where)
    if where.function and not where.function.startswith("<"):
        said += f", in {where.function}"
    code = name_in_words(where.text.strip())
    return f"{said}: {code}" if text and code else said


def line_in_words(where: Source) -> str:
    """Write a file and a line: "train.py:41"; where the file is none, "Cell In[3], line 5"."""
    file = readable(where.file) if where.file else "unknown file"
    if where.line < 1:
        return file
    return f"{file}, line {where.line}" if _NO_FILE.match(file) else f"{file}:{where.line}"
