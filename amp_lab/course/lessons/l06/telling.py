"""Exercise 6.1: the fate of twelve expressions. The truth is what PyTorch does with CUDA's policy; no table is kept."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from amp_lab.autocast import emulate
from amp_lab.autocast.fates import Fate
from amp_lab.autocast.policy import policy
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake

RAISES = "raises"
Outcome = Any  # a dtype, or RAISES
Cast = Callable[[torch.Tensor], torch.Tensor]
_HALF, _SINGLE = torch.float16, torch.float32


class Expression(NamedTuple):
    """One expression of the page, with the operator behind it; `ideas` says which diagnosis a wrong fate shows."""

    words: str
    op: str
    compute: Callable[[Any], torch.Tensor]
    ideas: dict[Outcome, str]

    def fate(
        self, region: contextlib.AbstractContextManager[Any], cast: Cast = lambda tensor: tensor
    ) -> Outcome:
        """Run it in `region`, with fresh tensors that were `cast` before."""
        with region:
            try:
                return self.compute(_tensors(cast)).dtype
            except RuntimeError:
                return RAISES


def _tensors(cast: Cast) -> SimpleNamespace:
    draw = torch.Generator().manual_seed(6)
    x, p, t = (torch.rand(4, 4, generator=draw) for _ in range(3))
    zeros, ones = torch.zeros(4), torch.ones(4)
    made = {"h": x.half(), "x": x, "d": x.double(), "p": p, "t": t}
    made |= {"mean": zeros, "var": ones, "weight": ones, "bias": zeros}
    return SimpleNamespace(**{name: cast(tensor) for name, tensor in made.items()})


EXPRESSIONS = {
    "a": Expression("x @ x", "matmul", lambda n: n.x @ n.x, {_SINGLE: "product-follows-inputs"}),
    "b": Expression("d @ d", "matmul", lambda n: n.d @ n.d, {_HALF: "fp64-cast", _SINGLE: "fp64-cast"}),
    "c": Expression(
        "h + x", "add.Tensor", lambda n: n.h + n.x, {_HALF: "region-decides-all", RAISES: "sum-raises"}
    ),
    "d": Expression(
        "torch.dot(h[0], x[0])",
        "dot",
        lambda n: torch.dot(n.h[0], n.x[0]),
        {_HALF: "dot-is-a-product", RAISES: "mixture-raises"},
    ),
    "e": Expression(
        "torch.softmax(h, dim=-1)",
        "softmax.int",
        lambda n: torch.softmax(n.h, dim=-1),
        {_HALF: "softmax-stays"},
    ),
    "f": Expression("h.sum()", "sum", lambda n: n.h.sum(), {_HALF: "sum-stays"}),
    "g": Expression(
        "h.sum(dtype=torch.float16)",
        "sum",
        lambda n: n.h.sum(dtype=torch.float16),
        {_SINGLE: "dtype-overruled"},
    ),
    "h": Expression("h.mean()", "mean", lambda n: n.h.mean(), {_SINGLE: "mean-like-sum"}),
    "i": Expression(
        "F.batch_norm(h, mean, var, weight, bias)",
        "batch_norm",
        lambda n: F.batch_norm(n.h, n.mean, n.var, n.weight, n.bias),
        {_SINGLE: "batch-norm-widens", RAISES: "batch-norm-raises"},
    ),
    "j": Expression(
        "h.add_(x)",
        "add_.Tensor",
        lambda n: n.h.add_(n.x),
        {_SINGLE: "in-place-widens", RAISES: "in-place-raises"},
    ),
    "k": Expression(
        "h.addmm_(x, x)",
        "addmm_",
        lambda n: n.h.addmm_(n.x, n.x),
        {_HALF: "in-place-autocast", _SINGLE: "in-place-autocast"},
    ),
    "l": Expression(
        "F.binary_cross_entropy(p, t)",
        "binary_cross_entropy",
        lambda n: F.binary_cross_entropy(n.p, n.t),
        {_HALF: "bce-runs", _SINGLE: "bce-runs"},
    ),
}


def outcomes(region: Callable[[], contextlib.AbstractContextManager[Any]]) -> dict[str, Outcome]:
    """Return what becomes of each expression in a region."""
    return {letter: each.fate(region()) for letter, each in EXPRESSIONS.items()}


def _region() -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.float16)


def right_answer() -> dict[str, Outcome]:
    """Ask PyTorch, with CUDA's policy."""
    with emulate.cuda_autocast():
        return outcomes(_region)


def outcomes_on_a_cpu() -> dict[str, Outcome]:
    """Return what the CPU's own policy makes of them: it may be out of force, for the page shows CUDA's."""
    own = policy("cpu")
    casts: dict[Fate, Cast] = {
        Fate.LOWER: lambda tensor: tensor.half() if tensor.dtype == _SINGLE else tensor,
        Fate.FP32: lambda tensor: tensor.float() if tensor.dtype == _HALF else tensor,
    }
    outcome = {}
    for letter, each in EXPRESSIONS.items():
        cast = casts.get(own.fate(each.op), lambda tensor: tensor)
        outcome[letter] = each.fate(contextlib.nullcontext(), cast)
    return outcome


@checker("6.1")
def fates(ask: Ask) -> None:
    """Ask for the dict once, and name the idea behind the first wrong letter, or behind all of them together.

    What is right is kept back: who was told it letter by letter could fill in the dict without a thought.
    """
    got = ask()
    answer, right = _read(ask.call, got), right_answer()
    wrong = [letter for letter in EXPRESSIONS if answer[letter] != right[letter]]
    if not wrong:
        return
    expression, said = EXPRESSIONS[wrong[0]], answer[wrong[0]]
    diagnosis = _whole_idea(answer) or expression.ideas.get(said, "wrong-fate")
    share = f"{len(wrong)} of {len(EXPRESSIONS)}"
    raise Mistake(diagnosis, call=ask.call, got=_in_words(said), expression=expression.words, share=share)


def _whole_idea(answer: dict[str, Outcome]) -> str | None:
    """Recognise one idea behind all of the answer."""
    if {fate for fate in answer.values() if fate != RAISES} == {_HALF}:
        return "everything-lower"
    if answer == outcomes(contextlib.nullcontext):
        return "without-region"
    return "cpus-answers" if answer == outcomes_on_a_cpu() else None


def _read(call: str, got: Any) -> dict[str, Outcome]:
    """Return the answer if it is a dict with a fate for each letter, else raise `Mistake`."""
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want="a `dict`")
    if not issubclass(type(got), dict):
        raise Mistake("no-dict", call=call, got=describe(got), kind=kind(got))
    # Of a subclass, such as OrderedDict, what lies in it; of a string of another class, such as NumPy's, the string.
    entries = {_plain(key): _plain(value) for key, value in dict.items(got)}
    known = {key: value for key, value in entries.items() if type(key) is str and key in EXPRESSIONS}
    unknown = [key for key in entries if type(key) is not str or key not in EXPRESSIONS]
    if unknown:
        raise Mistake("letters-unknown", call=call, got=_listed(unknown))
    missing = [letter for letter in EXPRESSIONS if letter not in known]
    if missing:
        raise Mistake("letters-missing", call=call, got=_listed(known) or "none", missing=_listed(missing))
    for letter, value in known.items():
        if type(value) is not torch.dtype and not (type(value) is str and value == RAISES):
            raise Mistake("no-dtype", call=call, letter=letter, got=describe(value), kind=kind(value))
    return known


def _plain(value: Any) -> Any:
    return str.__add__(value, "") if issubclass(type(value), str) else value


def _in_words(fate: Outcome) -> str:
    return f"`{fate!r}`"


def _listed(keys: Iterable[Any]) -> str:
    shown = [*map(describe, itertools.islice(keys, len(EXPRESSIONS) + 1))]
    return ", ".join([*shown[: len(EXPRESSIONS)], *(["…"] if len(shown) > len(EXPRESSIONS) else [])])
