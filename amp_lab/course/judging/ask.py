"""How a check calls a learner's code: with copies of what it passes, and an eye on what became of them."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from amp_lab.course.catalog import Exercise
from amp_lab.course.judging import expect
from amp_lab.course.judging.describe import bits, describe
from amp_lab.course.judging.expect import Misconceptions, Mistake, Otherwise, Trial
from amp_lab.course.judging.guard import Contained, Guard
from amp_lab.course.judging.launched import launch, warm_up
from amp_lab.course.judging.staging import Report


class Ask:
    """A learner's answer in the hands of a check: call it as you would call the answer itself.

    (An answer that is a file is not called: its check reads it, and runs it with `on_ranks`.)

    Tensors, arrays and containers are passed as copies, and an answer that changes them is told so; with
    `may_change=True` they are passed as they are, for contracts such as "add to `.grad`". Whatever the code does
    instead of returning is raised as `Contained`, which checks let pass. `call` is the last call in words, `returned`
    whether any call has come to its end.

    A check may set two attributes. `around` is a context that is entered for every run of the learner's code and for
    nothing else: a mode that watches which operations it uses, say. `in_words` is given what the answer is given, and
    returns the call in words that suit the exercise better than those of `describe`.
    """

    def __init__(self, exercise: Exercise, answer: Any, guard: Guard) -> None:
        self._exercise, self._answer, self._guard = exercise, answer, guard
        self.call = f"`{exercise.function}`"
        self.returned = False
        self.reports: list[Report] = []
        self.around: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
        self.in_words: Callable[..., str] = self._in_words

    @property
    def answer(self) -> Any:
        """The answer itself, for a check that calls it in code of its own, through `run`."""
        return self._answer

    def __call__(self, *args: Any, may_change: bool = False, **kwargs: Any) -> Any:
        """Call the answer and return what it returns."""
        self.call = self.in_words(*args, **kwargs)
        given: dict[Any, Any] = dict(enumerate(args, start=1)) | kwargs
        own = given if may_change else {name: _own_copy(value) for name, value in given.items()}
        positional = [own[number] for number in range(1, len(args) + 1)]
        got = self.run(self._answer, *positional, **{name: own[name] for name in kwargs})
        for name, value in given.items():
            if own[name] is not value and not _same(value, own[name]):
                which = f"`{name}`" if name in kwargs else str(name)
                place, before, after = _change(value, own[name])
                where = f"{which} at `{place}`" if place else which
                raise Mistake("mutated-input", call=self.call, name=where, want=before, got=after)
        return got

    def run(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call anything else that runs learner code (a method of their object, `list` on their generator)."""
        with self.around:
            got = self._guard.call(function, *args, **kwargs)
        self.returned = True
        return got

    def on_ranks(
        self, play: Callable[..., Any], *args: Any, ranks: int = 2, filename: str = "", shown: bool = True
    ) -> list[Report]:
        """Run `play(stage, *args)` in as many processes, and return what each of them tells (see `staging`).

        `filename` is the file in which the learner's code stands; what it prints is `shown`, or not. Raises
        `Contained` if their code failed on a rank: what failed first, for an error on one rank breaks the connections
        of all. `reports` is there in any case.
        """
        warm_up()
        reports: list[Report] = self._guard.call(
            _launch_and_print if shown else launch, play, args, ranks, filename
        )
        self.reports = reports
        for each in reports:
            if each.ended == "broke":
                raise RuntimeError(f"rank {each.rank} of a check broke:\n{each.error}")
        failed = [each for each in reports if each.ended == "failed"]
        if failed and all(
            each.ended != "died" for each in reports
        ):  # whoever dies takes the others' connections along
            first = min(failed, key=lambda each: each.at)
            error = NotImplementedError() if first.unwritten else None
            sentence = f"On rank {first.rank}: {first.sentence}"
            raise Contained(first.fault, sentence, error, first.error)
        self.returned = True
        return reports

    def many(self, cases: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call the answer with each case, of which there is at least one, and return all that it returned.

        All calls run under one guard, which makes each a hundred times cheaper: for every number of a format, say. What
        is passed is not copied, so it must be of a kind that nobody can change.
        """
        got: list[Any] = []

        def call_all() -> None:
            for case in cases:
                got.append(self._answer(*case))

        try:
            self.run(call_all)
        finally:
            self.returned = self.returned or bool(got)
            self.call = self.in_words(*cases[min(len(got), len(cases) - 1)])
        return got

    def many_while(
        self, batches: Iterable[Sequence[tuple[Any, ...]]], seconds: float
    ) -> Iterator[tuple[tuple[Any, ...], Any]]:
        """Call the answer as `many` does, batch after batch, and begin none later than after `seconds`.

        Yields each case with what was returned. So a quick answer is asked for everything, and a slow one, which may be
        right as well, for as much as a learner cares to wait for: put the cases that tell most first.
        """
        start = time.monotonic()
        for batch in batches:
            if time.monotonic() - start > seconds:
                return
            yield from zip(batch, self.many(batch), strict=True)

    def refuses(self, error: type[Exception], *args: Any) -> None:
        """Call the answer with what it must not take; raise `Mistake` unless it raises `error`."""
        try:
            got = self(*args)
        except Contained as contained:
            raised = type(contained.error)
            if contained.fault != "exception" or issubclass(raised, NotImplementedError):
                raise
            if issubclass(raised, error):
                return
            seen = f"raised `{_full_name(raised)}`"
        else:
            seen = f"returned {_returned(got)}"
        raise Mistake("not-refused", call=self.call, got=seen, want=error.__name__)

    def compare(
        self,
        cases: Iterable[tuple[Any, ...]],
        right: Callable[..., Any],
        misconceptions: Misconceptions,
        *,
        read: Callable[[str, Any, Any], Any],
        otherwise: Otherwise = lambda trials: None,
    ) -> None:
        """Call the answer with every case and raise the `Mistake` that explains best what came back.

        `right` gives the right answer to a case, `read` is what `expect` has for its type, such as
        `expect.whole_number`; for `misconceptions` and `otherwise` see `expect.recognise`. If the code fails at one
        case, but gave a wrong answer to an earlier one, the wrong answer is told: it is nearer to the idea behind it.
        """
        trials: list[Trial] = []
        try:
            for case in cases:
                want, got = right(*case), self(*case)
                trials.append(Trial(self.call, case, read(self.call, got, want), want))
        except (Mistake, Contained):
            expect.recognise(trials, misconceptions, otherwise=otherwise)
            raise
        expect.recognise(trials, misconceptions, otherwise=otherwise)

    def _in_words(self, *args: Any, **kwargs: Any) -> str:
        words = [*map(describe, args), *(f"{name}={describe(value)}" for name, value in kwargs.items())]
        return f"`{self._exercise.function}({', '.join(words)})`"


def _launch_and_print(*args: Any) -> list[Report]:
    """Print what the ranks printed, where what is printed is kept; ranks mostly print the same."""
    reports = launch(*args)
    for printed in dict.fromkeys(each.printed for each in reports if each.printed):
        print(printed, end="")
    return reports


def _returned(got: Any) -> str:
    kind_of_error = got if issubclass(type(got), type) else type(got)
    if not issubclass(kind_of_error, BaseException):
        return describe(got)
    return f"`{_full_name(kind_of_error)}`, and to return an error is not to raise it"


def _full_name(kind: type) -> str:
    module, name = (type.__getattribute__(kind, part) for part in ("__module__", "__name__"))
    return str(name) if module in ("builtins", "__main__") else f"{module}.{name}"


def _own_copy(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, (torch.Tensor, np.ndarray, list, dict, set)) else value


def _same(before: Any, after: Any) -> bool:
    if type(before) is not type(after):
        return False
    if isinstance(before, torch.Tensor):
        alike = before.dtype == after.dtype and before.shape == after.shape
        return alike and torch.equal(_bits(before), _bits(after))
    if isinstance(before, np.ndarray):
        return np.array_equal(before, after, equal_nan=before.dtype.kind in "fc")
    if isinstance(before, (list, tuple)):
        return len(before) == len(after) and all(map(_same, before, after))
    if isinstance(before, dict):
        return before.keys() == after.keys() and all(_same(before[key], after[key]) for key in before)
    return bool(before is after or before == after)


def _change(before: Any, after: Any) -> tuple[str, str, str]:
    """Return what changed, in words: the place in the argument, if it must be named, the value before and after."""
    words = describe(before), describe(after)
    if words[0] != words[1] or type(before) is not type(after):
        return "", *words
    # Both look the same in short: what differs lies deeper, or further on, or is a NaN with other bits.
    if isinstance(before, torch.Tensor) and before.shape == after.shape:
        return _change_of_tensor(before, after)
    if isinstance(before, (list, tuple)):
        return _change_of_items(before, after, range(len(before)))
    if isinstance(before, dict):
        return _change_of_items(before, after, before)
    if isinstance(before, np.ndarray) and before.shape == after.shape:
        both_nan = (before != before) & (after != after)
        index = tuple(map(int, np.argwhere((before != after) & ~both_nan)[0]))
        return _at(index), describe(before[index]), describe(after[index])
    return "", *words


def _change_of_items(before: Any, after: Any, keys: Iterable[Any]) -> tuple[str, str, str]:
    key = next(key for key in keys if not _same(before[key], after[key]))
    place, one, other = _change(before[key], after[key])
    return f"[{describe(key)}]{place}", one, other


def _change_of_tensor(before: torch.Tensor, after: torch.Tensor) -> tuple[str, str, str]:
    one, other = (each.detach().to_dense().flatten() for each in (before, after))
    differs = (_bits(one) != _bits(other)).reshape(one.numel(), -1).any(dim=1)
    flat = int(differs.nonzero()[0])
    place = _at(tuple(map(int, torch.unravel_index(torch.tensor(flat), before.shape))))
    was, became = (f"{describe(each[flat])} (bits `{bits(each[flat])}`)" for each in (one, other))
    return place, was, became


def _at(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""


def _bits(value: torch.Tensor) -> torch.Tensor:
    # Compared as bytes, so that a NaN equals itself and -0.0 differs from 0.0.
    return value.detach().to_dense().contiguous().reshape(-1).view(torch.uint8)
