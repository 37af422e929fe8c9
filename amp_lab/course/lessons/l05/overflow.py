"""Exercise 5.1: find an infinity or a NaN among gradients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake, Otherwise, Trial
from amp_lab.course.judging.guard import Contained

_INF, _NAN = math.inf, math.nan
Grad = torch.Tensor | None
Parameters = list[torch.nn.Parameter]


class Case(NamedTuple):
    """The gradients of some parameters, and the value of all their weights, which is not asked for."""

    grads: tuple[Grad, ...]
    weight: float = 0.5

    def parameters(self) -> Parameters:
        """Make parameters with copies of these gradients."""
        made = []
        for grad in self.grads:
            like = torch.zeros(3) if grad is None else grad
            weight = torch.full(like.shape, self.weight, dtype=like.dtype)
            made.append(torch.nn.Parameter(weight))
            made[-1].grad = None if grad is None else grad.clone()
        return made

    def __str__(self) -> str:
        """Return the gradients in words."""
        if not self.grads:
            return "no parameter at all"
        grads = ", ".join(map(_in_words, self.grads))
        weights = "" if math.isfinite(self.weight) else f" and the weights {self.weight}"
        return f"the gradients {grads}{weights}"


class Group(NamedTuple):
    """Cases that show one idea; `crash` is the diagnosis of an error that none of the groups before has raised."""

    cases: tuple[Case, ...]
    misconceptions: Sequence[tuple[str, Callable[[Case], bool]]]
    crash: str = ""
    otherwise: Otherwise = lambda trials: None


def _in_words(grad: Grad) -> str:
    if grad is None or not grad.is_sparse:
        return describe(grad)
    return f"{describe(grad)} (stored in it: {describe(grad._values())})"


def _case(*grads: Sequence[float] | None, dtype: torch.dtype = torch.float32, weight: float = 0.5) -> Case:
    made = (None if grad is None else torch.tensor(grad, dtype=dtype) for grad in grads)
    return Case(tuple(made), weight)


def _sparse(*rows: Sequence[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Make the gradient that looking up row 2, then row 0, then row 2 again leaves in an embedding of four rows."""
    where, values = torch.tensor([[2, 0, 2]]), torch.tensor(rows, dtype=dtype)
    return torch.sparse_coo_tensor(where, values, (4, values.shape[1]), check_invariants=True)


def _bad(grad: Grad) -> bool:
    return grad is not None and not bool(grad.to_dense().isfinite().all())


def _right(case: Case) -> bool:
    return any(map(_bad, case.grads))


def _any(test: Callable[[torch.Tensor], Any]) -> Callable[[Case], bool]:
    """Judge each gradient by `test`, as somebody does who asks the wrong question of a right set of gradients."""
    return lambda case: any(bool(test(grad)) for grad in case.grads if grad is not None)


def _until_none(case: Case) -> bool:
    return any(map(_bad, itertools.takewhile(lambda grad: grad is not None, case.grads)))


def _none_is_bad(case: Case) -> bool:
    return any(grad is None or _bad(grad) for grad in case.grads)


def _any_stored(case: Case) -> bool:
    """Judge sparse gradients by the numbers that they store, whether or not two of them belong to one entry."""
    return any(_bad(grad._values() if _is_sparse(grad) else grad) for grad in case.grads if grad is not None)


def _recognise_too_large(trials: Sequence[Trial]) -> None:
    """Say by the first case that is wrong what took finite numbers for an overflow; the cases are in `_LARGE`."""
    for (diagnosis, _), trial in zip(_LARGE, trials, strict=True):
        if trial.got != trial.want:
            raise Mistake(diagnosis, **expect.first_wrong([trial]))


_LARGEST = torch.finfo(torch.float32).max
_PLAIN = (
    _case([1.0, -2.0, 0.0]),
    _case([1.0, _INF, 2.0]),
    _case([_INF]),
    _case([1.0, 2.0], [1.0, _INF]),
    _case([_INF, 1.0], [1.0, 2.0]),
)
# A number by itself, whose square is finite or not needed, tells a line that is drawn somewhere from a norm or a sum.
_LARGE = (
    ("beyond-fp16", _case([1e5, -7e4])),
    ("draws-a-line", _case([1.8e19])),
    ("norm-overflows", _case([1e20, 1e20])),  # its squares add up to infinity, its sum is fine
    ("draws-a-line", _case([-3e38])),
    ("draws-a-line", _case([_LARGEST])),
    ("draws-a-line", _case([-65504.0], dtype=torch.float16)),
    ("sum-overflows", _case([3e38, 3e38])),
    ("sum-overflows", _case([3e38], [3e38])),
    ("sum-overflows", _case([6e4, 6e4], dtype=torch.float16)),
    # Made smaller first, a few numbers can be squared or added up; of many, not even that is finite.
    ("norm-overflows", Case((torch.full((64,), _LARGEST),))),
    ("sum-overflows", Case((torch.full((2**17,), _LARGEST),))),
)
# One parameter decides, or one is left out.
_ONE_ONLY = tuple(
    ("one-parameter-only", lambda case, seen=seen: any(map(_bad, case.grads[seen])))
    for seen in (slice(1), slice(-1, None), slice(1, None), slice(-1))
)
_ALL_MUST = ("all-must-overflow", lambda case: all(map(_bad, case.grads)))
# Which idea is wrong with all gradients comes first; what only some of them show comes after it.
_GROUPS = (
    Group(
        (*_PLAIN, _case([1.0, 2.0], weight=_INF)),
        (
            ("looks-at-weights", lambda case: not math.isfinite(case.weight)),
            ("looks-at-weights", lambda case: _right(case) or not math.isfinite(case.weight)),
            ("inverted", lambda case: not _right(case)),
            ("misses-inf", _any(lambda grad: grad.isnan().any())),
            *_ONE_ONLY,
            _ALL_MUST,
        ),
    ),
    Group(
        (_case([1.0, -_INF, 2.0]), _case([-_INF])),
        (("misses-minus-inf", lambda case: False),),
    ),
    Group(
        (_case([_NAN, 1.0]), _case([1.0, _NAN]), _case([1.0, _NAN, 2.0]), _case([_NAN])),
        (
            ("misses-nan", lambda case: False),
            ("nan-in-max", _any(lambda grad: grad[0].isnan())),
            ("nan-in-max", _any(lambda grad: grad[-1].isnan())),
            ("nan-in-max", _any(lambda grad: grad.numel() == 1)),
        ),
    ),
    Group(tuple(case for _, case in _LARGE), (), otherwise=_recognise_too_large),
    Group(
        (
            _case([1.0, 2.0], [_INF, 1.0], [1.0]),
            _case([_NAN], [1.0, 2.0], [1.0]),
            _case([1.0], [1.0, 2.0], [-_INF]),
            _case([_INF], [_NAN], [1.0]),
            _case([_INF, _NAN], [-_INF, _INF], [_INF]),
        ),
        (*_ONE_ONLY, _ALL_MUST),
        crash="several-shapes",
    ),
    Group(
        (_case(None, [1.0, 2.0]), _case([1.0], None, [_INF]), _case(None, [_NAN, 1.0])),
        (
            ("stops-at-none", _until_none),
            ("none-is-overflow", _none_is_bad),
        ),
        crash="crashes-on-none",
    ),
    Group(
        (_case(), _case(None), _case(None, None)),
        (("none-is-overflow", _none_is_bad),),
        crash="crashes-on-nothing",
    ),
    Group(
        (
            Case((_sparse([1.0, 2.0], [0.5, 0.0], [1.0, 1.0]),)),
            Case((_sparse([1.0, 2.0], [0.5, _INF], [1.0, 1.0]),)),
            Case((_sparse([1.0, 2.0], [0.5, 0.0], [_NAN, 1.0]), torch.ones(2))),
            Case((torch.ones(2), _sparse([1.0, 2.0], [0.5, 0.0], [1.0, 1.0]).coalesce())),
            Case((torch.ones(2), _sparse([1.0, -_INF], [0.5, 0.0], [1.0, 1.0]).coalesce())),
            Case((_sparse([1.0, _INF], [0.5, 0.0], [1.0, 1.0], dtype=torch.float16), None)),
        ),
        (
            ("skips-sparse", lambda case: any(_bad(grad) for grad in case.grads if not _is_sparse(grad))),
            ("sparse-is-overflow", lambda case: any(_bad(grad) or _is_sparse(grad) for grad in case.grads)),
        ),
        crash="crashes-on-sparse",
    ),
    Group(
        (
            Case((_sparse([3e4, 2.0], [0.5, 0.0], [3e4, 1.0], dtype=torch.float16),)),
            Case((_sparse([6e4, 2.0], [0.5, 0.0], [6e4, 1.0], dtype=torch.float16),)),
            Case((torch.ones(2), _sparse([1.0, -5e4], [0.5, 0.0], [1.0, -5e4], dtype=torch.float16))),
        ),
        (("misses-sum-of-rows", _any_stored),),
    ),
    Group(
        (
            Case((torch.tensor([[1.0, _NAN], [2.0, 3.0]]),)),
            _case([1.0, 3e38], [6e4], weight=_NAN),
            _case([6e4, -_INF], [1.0], dtype=torch.float16),
            _case([_INF, -_INF], [_INF, -_INF]),
            Case((torch.ones(2, 3, 2, 2), torch.full((), _NAN), None)),
            Case((torch.ones(2, 3, 2, 2), torch.full((), 2.0), None)),
        ),
        (),
    ),
)


def _is_sparse(grad: Grad) -> bool:
    return grad is not None and grad.is_sparse


@checker("5.1")
def has_overflow(ask: Ask) -> None:
    """Ask group by group, with what can be gone through once; if that fails, find out whether a list would not."""
    try:
        _judge(ask, once=True)
    except (Mistake, Contained) as first:
        if isinstance(first, Contained) and (first.fault != "exception" or _is_stub(first)):
            raise
        call, got = ask.call, _what_came(first)
        try:
            _judge(ask, once=False)
        except Contained:
            raise first from None
        raise Mistake("goes-through-twice", call=call, got=got) from None


def _is_stub(contained: Contained) -> bool:
    return isinstance(contained.error, NotImplementedError) and not contained.error.args


def _what_came(failure: Mistake | Contained) -> str:
    if isinstance(failure, Contained):
        return failure.sentence
    return f"The answer was {failure.observed['got']}."


def _judge(ask: Ask, *, once: bool) -> None:
    for group in _GROUPS:
        trials: list[Trial] = []
        try:
            for case in group.cases:
                trials.append(_try(ask, case, once=once))
        except Contained as contained:
            expect.recognise(trials, group.misconceptions, otherwise=_nothing)
            if group.crash and contained.fault == "exception" and not _is_stub(contained):
                raise Mistake(group.crash, call=ask.call, got=contained.sentence) from None
            raise
        expect.recognise(trials, group.misconceptions, otherwise=group.otherwise)


def _nothing(trials: Sequence[Trial]) -> None:
    """Make nothing of trials that are not all there."""


def _try(ask: Ask, case: Case, *, once: bool) -> Trial:
    ask.in_words = lambda parameters: f"`has_overflow(parameters)` with {case}"
    parameters = case.parameters()
    given: Iterable[torch.nn.Parameter] = (each for each in parameters) if once else parameters
    held = [each.grad for each in parameters]
    got = _read(ask(given, may_change=True), ask.call)  # a copy of a parameter has no gradient
    _expect_unchanged(ask.call, parameters, case, held)
    return Trial(ask.call, (case,), got, _right(case))


def _read(got: Any, call: str) -> bool:
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want="`True` or `False`")
    if type(got) is not bool:
        advice = "`bool(...)` or `.item()` takes the truth value out of it."
        of_numpy = type(got) is np.bool_
        seen = "NumPy's and not Python's `bool`" if of_numpy else kind(got)
        observed = {"got": describe(got), "kind": seen, "want": "a Python `bool`", "advice": advice}
        raise Mistake("wrong-type", call=call, **observed)
    return got


def _expect_unchanged(call: str, parameters: Parameters, case: Case, held: Sequence[Grad]) -> None:
    """Expect the same numbers in the very tensors that were there; `held` are those."""
    for number, (parameter, before, there) in enumerate(zip(parameters, case.grads, held, strict=True)):
        after = parameter.grad
        same = before is after if before is None or after is None else _same(before, after)
        words = {"call": call, "got": _in_words(after)}
        if not same:
            name = f"`parameters`, in the `.grad` of number {number},"
            raise Mistake("mutated-input", **words, name=name, want=_in_words(before))
        if after is not there:
            raise Mistake("replaces-gradient", **words, number=number, was=_in_words(before))


def _same(before: torch.Tensor, after: torch.Tensor) -> bool:
    return expect.alike(before.to_dense(), after.to_dense())
