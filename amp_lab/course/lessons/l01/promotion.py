"""Exercise 1.4: which dtype comes out when two are mixed. The truth is what the installed PyTorch does."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake

_HALF, _BRAIN, _SINGLE, _DOUBLE, _WHOLE = (
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.int64,
)
_NAMES = {_HALF: "FP16", _BRAIN: "BF16", _SINGLE: "FP32", _WHOLE: "INT64"}


class Operand(NamedTuple):
    """One side of an addition: a tensor of ones, or a number of Python where `shape` is None."""

    type: Any
    shape: tuple[int, ...] | None = None

    def value(self) -> Any:
        """Make it."""
        return self.type(1) if self.shape is None else torch.ones(self.shape, dtype=self.type)

    def __str__(self) -> str:
        """Return it in the words of the page."""
        if self.shape is None:
            return f"Python `{self.type.__name__}`"
        return f"{_NAMES[self.type]} tensor `{self.shape}`"


class Row(NamedTuple):
    """One row of the table on the page; `ideas` says which diagnosis a wrong dtype in it shows."""

    left: Operand
    right: Operand
    ideas: dict[torch.dtype, str]

    def dtype(self) -> torch.dtype:
        """Ask PyTorch."""
        sum_ = self.left.value() + self.right.value()
        return sum_.dtype  # type: ignore[no-any-return]


ROWS = {
    "a": Row(Operand(_HALF, (3,)), Operand(_SINGLE, (3,)), {_HALF: "half-wins"}),
    "b": Row(Operand(_HALF, (3,)), Operand(float), {_SINGLE: "python-widens", _DOUBLE: "python-widens"}),
    "c": Row(
        Operand(_HALF, (3,)), Operand(_BRAIN, (3,)), {_HALF: "one-of-two-halves", _BRAIN: "one-of-two-halves"}
    ),
    "d": Row(Operand(_HALF, (3,)), Operand(_SINGLE, ()), {_SINGLE: "zero-dim-counts"}),
    "e": Row(Operand(_HALF, ()), Operand(_SINGLE, (3,)), {_HALF: "half-wins"}),
    "f": Row(Operand(_HALF, ()), Operand(_SINGLE, ()), {_HALF: "two-zero-dims"}),
    "g": Row(Operand(_HALF, (3,)), Operand(_SINGLE, (1,)), {_HALF: "one-element-has-a-dimension"}),
    "h": Row(Operand(_BRAIN, (3,)), Operand(int), {_SINGLE: "python-widens", _WHOLE: "integer-counts"}),
    "i": Row(
        *(Operand(_WHOLE, (3,)), Operand(_HALF, (3,))),
        {_SINGLE: "integer-counts", _DOUBLE: "integer-counts", _WHOLE: "integer-counts"},
    ),
    "j": Row(
        *(Operand(_WHOLE, (3,)), Operand(_HALF, ())),
        {_SINGLE: "integer-counts", _DOUBLE: "integer-counts", _WHOLE: "kind-before-dimensions"},
    ),
    "k": Row(
        *(Operand(_WHOLE, (3,)), Operand(float)),
        {_DOUBLE: "python-float-is-double", _WHOLE: "kind-before-dimensions"},
    ),
    "l": Row(Operand(_HALF, ()), Operand(float), {_SINGLE: "python-widens", _DOUBLE: "python-widens"}),
}


@checker("1.4")
def promoted(ask: Ask) -> None:
    """Ask for the table once, and name the idea behind its first wrong row.

    What is right is kept back: who was told it row by row could fill in the table without a thought.
    """
    got = ask()
    answer = _read(ask.call, got)
    right = {name: row.dtype() for name, row in ROWS.items()}
    wrong = [name for name in ROWS if answer[name] is not right[name]]
    if wrong:
        name = wrong[0]
        row, said = ROWS[name], answer[name]
        observed = {"call": ask.call, "got": said}
        words = {"row": name, "left": row.left, "right": row.right, "share": f"{len(wrong)} of {len(ROWS)}"}
        raise Mistake(row.ideas.get(said, "wrong-row"), **observed, **words)


def _read(call: str, got: Any) -> dict[str, torch.dtype]:
    """Return the answer if it is a dict with a dtype for each row, else raise `Mistake`."""
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want="a `dict` of dtypes")
    if not issubclass(type(got), dict):
        raise Mistake("no-dict", call=call, got=describe(got), kind=kind(got))
    entries = dict(dict.items(got))  # of a subclass, such as OrderedDict, what lies in it
    named = {key: value for key, value in entries.items() if type(key) is str}
    missing = [name for name in ROWS if name not in named]
    if missing:
        raise Mistake("rows-missing", call=call, got=_listed(entries) or "none at all", rows=_listed(missing))
    unknown = [key for key in entries if type(key) is not str or key not in ROWS]
    if unknown:
        raise Mistake("rows-unknown", call=call, got=_listed(unknown))
    for name, value in named.items():
        if type(value) is not torch.dtype:
            raise Mistake(
                "no-dtype", call=call, row=name, got=describe(value), kind=kind(value), advice=_advice(value)
            )
    return named


def _listed(keys: Iterable[Any]) -> str:
    shown = [*map(describe, itertools.islice(keys, len(ROWS) + 1))]
    return ", ".join([*shown[: len(ROWS)], *(["…"] if len(shown) > len(ROWS) else [])])


def _advice(value: Any) -> str:
    if type(value) is str:
        return "Leave the quotes out and put `torch.` in front, as in `torch.float64`."
    if type(value) is torch.Tensor:
        return "The dtype of a tensor is its `.dtype`."
    return "Each row needs a dtype of PyTorch's, such as `torch.float64`."
