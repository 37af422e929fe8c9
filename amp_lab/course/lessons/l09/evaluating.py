"""Exercise 9.4: evaluate in reduced precision, count in FP32."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake, number
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l09.differences import first_difference
from amp_lab.course.lessons.l09.evaluated import (
    Batches,
    Looks,
    Model,
    batches,
    metric,
    snapshot,
)
from amp_lab.course.lessons.l09.runs import DEVICE

_RTOL = 1e-3  # FP16 rounds the same way every time; sums may be made in another order


class Case(NamedTuple):
    """One evaluation."""

    sizes: tuple[int, ...]
    dtype: torch.dtype = torch.float32
    metrics: tuple[str, ...] = ("accuracy",)
    as_generator: bool = False
    training: bool = True
    frozen: bool = False  # batch norm in evaluation mode, whatever the rest does
    size: float = 1.0  # of the targets
    seed: int = 0

    @property
    def words(self) -> str:
        """The call in words."""
        has = [f"batches of {', '.join(map(str, self.sizes))}", f"`{self.dtype}`"]
        has += ["a generator"] if self.as_generator else []
        has += [] if self.training else ["a model in evaluation mode"]
        has += ["batch norm frozen"] if self.frozen else []
        return f"`evaluate(…)` ({', '.join(has)})"


CASES = (
    Case((4, 4)),
    Case((4, 4, 1), seed=1),
    Case((5, 2), torch.bfloat16, ("accuracy", "error"), seed=2),
    Case((6, 1), torch.float16, ("error", "top"), seed=3),
    Case((3, 3, 2), torch.float16, ("accuracy",), as_generator=True, frozen=True, seed=4),
    Case((4, 1), torch.float16, ("largest",), size=3000.0, seed=5),
    Case((2, 1), training=False, metrics=(), seed=6),
    Case((1, 3, 3, 1), torch.float16, ("error",), frozen=True, seed=7),
)


@checker("9.4")
def evaluate(ask: Ask) -> None:
    """Evaluate in one case after the other; then with a metric that fails, and with nothing."""
    for case in CASES:
        _judge(ask, case)
    _judge_failing(ask)
    _judge_empty(ask)


def _set_up(case: Case) -> tuple[Model, Batches]:
    model = Model(case.seed).to(DEVICE)
    model.train(case.training)
    if case.frozen:
        model.first["norm"].eval()
    return model, batches(case.sizes, case.size, case.seed)


def _arguments(case: Case, model: Model, data: Iterable[Any], looks: Looks) -> tuple[Any, ...]:
    metrics = {name: looks.at(metric(name)) for name in case.metrics}
    return model, looks.at(metric("loss")), metrics, data, case.dtype


def _judge(ask: Ask, case: Case) -> None:
    model, data = _set_up(case)
    before, looks = snapshot(model), Looks()
    given = _arguments(case, model, _once(data) if case.as_generator else data, looks)
    pairs, saved = list(data), [(inputs.clone(), targets.clone()) for inputs, targets in data]
    ask.call = case.words
    got, grad_mode = ask.run(_call_and_look, ask.answer, given)
    _expect_forwards(ask.call, model, case)
    _expect_looks(ask.call, looks)
    changed = first_difference(snapshot(model), before)
    if changed is not None:
        place = changed["place"]
        diagnosis = (
            "mode-lost"
            if "training" in place
            else "statistics-moved"
            if "running" in place
            else "model-changed"
        )
        raise Mistake(diagnosis, call=ask.call, **changed)
    if not grad_mode:
        raise Mistake("graphs-stay-off", call=ask.call, got="off", want="on")
    if len(data) != len(pairs):
        shown = {"got": f"{len(data)} batches", "want": f"{len(pairs)} batches"}
        raise Mistake("mutated-input", call=ask.call, name="`loader`", **shown)
    for number_of, (one, other) in enumerate(zip(pairs, saved, strict=True)):
        if not all(map(torch.equal, one, other)):
            shown = {"got": "with other numbers", "want": "as given"}
            raise Mistake("mutated-input", call=ask.call, name=f"batch {number_of} of `loader`", **shown)
    _expect_means(ask.call, got, case)


def _call_and_look(answer: Callable[..., Any], given: tuple[Any, ...]) -> tuple[Any, bool]:
    return answer(*given), torch.is_grad_enabled()


def _once(data: Batches) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    yield from data


def _expect_forwards(call: str, model: Model, case: Case) -> None:
    """Raise `Mistake` unless each batch went through the model once, in the right way."""
    want_dtype = None if case.dtype == torch.float32 else case.dtype
    for seen in model.seen:
        if seen.training:
            raise Mistake(
                "train-mode", call=call, got=f"`{seen.training}` in training mode", want="evaluation mode"
            )
        if seen.autocast != want_dtype:
            shown = [("off" if each is None else f"`{each}`") for each in (seen.autocast, want_dtype)]
            raise Mistake("other-region", call=call, got=shown[0], want=shown[1])
        if seen.graph:
            raise Mistake("keeps-graph", call=call, got="with a graph", want="without")
    sizes = [seen.size for seen in model.seen]
    if sizes != list(case.sizes):
        shown = [", ".join(map(str, each)) or "none" for each in (sizes, case.sizes)]
        raise Mistake("other-batches", call=call, got=shown[0], want=shown[1])


def _expect_looks(call: str, looks: Looks) -> None:
    for dtype in looks.dtypes:
        if dtype != torch.float32:
            wide = dtype == torch.float64
            raise Mistake(
                "wide-metrics" if wide else "sixteen-bit-metrics",
                call=call,
                got=f"`{dtype}`",
                want="`torch.float32`",
            )


def _expect_means(call: str, got: Any, case: Case) -> None:
    names = ("loss", *case.metrics)
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want="a `dict` of numbers")
    if type(got) is not dict:
        shown = {"got": describe(got), "kind": kind(got), "want": "a `dict` of numbers"}
        raise Mistake("wrong-type", call=call, **shown, advice='Write `{"loss": …}` and add the metrics.')
    if set(got) != set(names):
        raise Mistake(
            "other-names", call=call, got=describe(sorted(map(str, got))), want=describe(sorted(names))
        )
    model, data = _set_up(case)
    model.eval()
    rows = [_row(model, case, names, *batch) for batch in data]
    for name in names:
        parts = torch.tensor([row[name] for row in rows], dtype=torch.float64)
        _expect_mean(f"{call}, `{name}`,", got[name], parts, torch.tensor(case.sizes, dtype=torch.float64))


def _row(
    model: Model, case: Case, names: tuple[str, ...], inputs: torch.Tensor, targets: torch.Tensor
) -> dict[str, float]:
    with torch.no_grad(), torch.autocast(DEVICE.type, case.dtype, enabled=case.dtype != torch.float32):
        outputs = model(inputs)
    return {name: float(metric(name)(outputs.float(), targets)) for name in names}


def _expect_mean(call: str, got: Any, parts: torch.Tensor, sizes: torch.Tensor) -> None:
    want = float((parts * sizes).sum() / sizes.sum())
    value = number(call, got, float(f"{want:.6g}"))
    if _near(value, want):
        return
    shown = {"got": f"{value:.6g}", "want": f"{want:.6g}"}
    others = {
        "mean-of-batches": parts.mean(),
        "last-batch-only": parts[-1],
        "not-divided": parts.sum(),
        "divides-by-samples": parts.sum() / sizes.sum(),
        "sum-of-samples": (parts * sizes).sum(),
    }
    for diagnosis, other in others.items():
        if _near(value, float(other)):
            raise Mistake(diagnosis, call=call, **shown)
    raise Mistake("wrong-mean", call=call, **shown)


def _near(got: float, want: float) -> bool:
    return abs(got - want) <= _RTOL * abs(want) + 1e-6


def _judge_failing(ask: Ask) -> None:
    """Let a metric raise an error: it comes out, and the model is in the modes that it was in."""
    case = Case((2, 2), torch.float16, ("accuracy",), frozen=True, seed=8)
    model, data = _set_up(case)
    before, looks = snapshot(model), Looks(fails=True)
    ask.call = f"{case.words[:-1]}, and a metric that raises an error)"
    try:
        ask.run(partial(ask.answer, *_arguments(case, model, data, looks)))
    except Contained as contained:
        if contained.fault != "exception" or "this metric fails" not in str(contained.error):
            raise
    else:
        raise Mistake("error-hidden", call=ask.call, got="no error")
    changed = first_difference(snapshot(model), before)
    if changed is not None:
        raise Mistake("mode-lost-on-error", call=ask.call, **changed)


def _judge_empty(ask: Ask) -> None:
    case = Case((), as_generator=True)
    model, data = _set_up(case)
    ask.in_words = lambda *_: "`evaluate(…)` with a loader that gives nothing"
    ask.refuses(ValueError, *_arguments(case, model, _once(data), Looks()))
