"""Exercise 5.3: a whole loss scaler, compared with PyTorch's own."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Misconceptions, Mistake, Trial
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l05 import random_runs
from amp_lab.course.lessons.l05.finished import SCALERS, Watch
from amp_lab.course.lessons.l05.given import ForgetfulScaler
from amp_lab.course.lessons.l05.runs import SLOPES, Net, Run, listed, play, scale_of, slopes_with

_INF, _NAN = math.inf, math.nan
_SETTINGS: dict[str, Any] = {
    "init_scale": 2.0**10,
    "growth_factor": 4.0,
    "backoff_factor": 0.25,
    "growth_interval": 3,
}
_KINDS = (_INF, -_INF, _NAN)
_PLACES = ((0, 0), (0, 2), (1, 0), (1, 1))  # parameter, element


class Group(NamedTuple):
    """Runs that show the same ideas, each of them a pattern for `play`, and whether all are unscaled first."""

    runs: tuple[tuple[tuple[str, ...], bool], ...]
    misconceptions: Misconceptions


class Bench:
    """One optimizer and the learner's scaler, with an eye on what each call changes."""

    def __init__(self, ask: Ask, **settings: Any) -> None:
        self._ask = ask
        self.net = Net()
        self.scaler = ask(**(_SETTINGS | settings))
        self.current = settings.get("init_scale", _SETTINGS["init_scale"])

    def backward(self, slopes: Sequence[Sequence[float]] | None = None) -> tuple[torch.Tensor, ...]:
        """Leave the scaled gradients, and return what the weights are."""
        self._ask.call = "`scaler.scale(loss).backward()`"
        self._ask.run(self._backward, SLOPES if slopes is None else slopes)
        return self.net.weights()

    def _backward(self, slopes: Sequence[Sequence[float]]) -> None:
        self.net.optimizer.zero_grad()
        self.scaler.scale(self.net.loss(slopes)).backward()

    def call(self, words: str, method: str) -> None:
        """Call a method with the optimizer; `words` tell when. Nothing but `step` may change a weight."""
        before = self.net.weights()
        self._ask.call = f"`scaler.{method}(optimizer)`{words}"
        self._ask.run(lambda: getattr(self.scaler, method)(self.net.optimizer))
        call, scale = self._ask.call, self._ask.run(scale_of, self.scaler)
        if scale != self.current:
            raise Mistake("scale-moves", call=call, got=scale, want=self.current)
        after = self.net.weights()
        if method != "step" and (self.net.steps or not expect.alike(after, before)):
            raise Mistake("steps-early", call=call, got=describe(after[0]), want=describe(before[0]))

    def update(self) -> None:
        """Call `update`, which alone may change the scale."""
        self._ask.call = "`scaler.update()`"
        self._ask.run(lambda: self.scaler.update())
        self.current = self._ask.run(scale_of, self.scaler)


@checker("5.3")
def loss_scaler(ask: Ask) -> None:
    """Try one method after the other, then whole runs, and at last random runs beside PyTorch's scaler."""
    ask.in_words, ask.around = _in_words, Watch(ask, *SCALERS, ForgetfulScaler)
    _try_scale(ask)
    _try_unscale(ask)
    _try_step(ask)
    _try_overflow(ask)
    _try_gradients_of_overflow(ask)
    _try_what_counts(ask)
    for group in GROUPS:
        _try_runs(ask, group)
    for all_of_it, count in LONG_RUNS:
        _try_long_run(ask, all_of_it, count)
    random_runs.compare_with_torch(ask)


def _in_words(**settings: Any) -> str:
    return f"`LossScaler({', '.join(f'{name}={value!r}' for name, value in settings.items())})`"


# --- scale ---


def _try_scale(ask: Ask) -> None:
    for scale, value, dtype in (
        (1024.0, 0.75, torch.float32),
        (256.0, 3.0, torch.float32),
        (1024.0, 100.0, torch.float16),
    ):
        scaler = ask(**(_SETTINGS | {"init_scale": scale}))
        weight = torch.nn.Parameter(torch.tensor(value))
        loss = weight.to(dtype) * 1
        ask.call = f"`scaler.scale(loss)` with the scale {scale} and the loss {describe(loss)}"
        got = ask.run(_scale_with, scaler, loss)
        _judge_scaled(ask, got, loss, weight, scale)


def _scale_with(scaler: Any, loss: torch.Tensor) -> Any:
    return scaler.scale(loss)


def _judge_scaled(ask: Ask, got: Any, loss: torch.Tensor, weight: torch.nn.Parameter, scale: float) -> None:
    call, before = ask.call, weight.detach().to(loss.dtype)
    want = before.float() * scale
    shown = {"got": describe(got), "want": describe(want)}
    if not expect.alike(loss.detach(), before):
        raise Mistake("scales-in-place", call=call, got=describe(loss), want=describe(before))
    if (
        type(got) is torch.Tensor
        and (got.layout, got.device) == (loss.layout, loss.device)
        and loss.dtype == torch.float16
        and (got.dtype == loss.dtype or got.isinf().all())
    ):
        raise Mistake("half-product", call=call, **shown)
    value = expect.tensor_like(call, got, want)
    for diagnosis, wrong in (
        ("not-scaled", before.float()),
        ("divides-loss", before.float() / scale),
        ("fixed-scale", before.float() * 65536),
    ):
        if expect.alike(value, wrong) and not expect.alike(value, want):
            raise Mistake(diagnosis, call=call, **shown)
    expect.tensor(call, got, want)
    if got.requires_grad:
        ask.call = f"{call} and `backward()` after it"
        ask.run(got.backward)
    if weight.grad is None:
        raise Mistake("graph-lost", call=call, got=f"`requires_grad={got.requires_grad}`")


# --- unscale_ and step ---


def _try_unscale(ask: Ask) -> None:
    for scale in (256.0, 1024.0):
        bench = Bench(ask, init_scale=scale)
        bench.backward()
        try:
            bench.call("", "unscale_")
        except Contained as contained:
            if "NoneType" in str(contained.error):
                raise Mistake("crashes-on-none", call=ask.call, got=contained.sentence) from None
            raise
        _judge_gradients(ask.call, bench.net.grads()[:2], scale)


def _judge_gradients(call: str, got: Sequence[torch.Tensor | None], scale: float) -> None:
    want = _true_gradients()
    right = [_alike(one, other) for one, other in zip(got, want, strict=True)]
    if all(right):
        return
    wrong = right.index(False)
    shown = {"call": call, "got": describe(got[wrong]), "want": describe(want[wrong])}
    if _all_alike(got, [each * scale for each in want]):
        raise Mistake("not-unscaled", **shown)
    if _all_alike(got, [each * scale * scale for each in want]):
        raise Mistake("unscale-multiplies", **shown)
    if any(right):
        raise Mistake("group-left-out", **shown)
    raise Mistake("wrong-gradient", **shown)


def _true_gradients() -> list[torch.Tensor]:
    net = Net()
    net.loss().backward()  # type: ignore[no-untyped-call]
    return [each for each in net.grads() if each is not None]


def _alike(one: torch.Tensor | None, other: torch.Tensor) -> bool:
    return one is not None and expect.alike(one, other)


def _all_alike(some: Sequence[torch.Tensor | None], others: Sequence[torch.Tensor]) -> bool:
    return all(_alike(one, other) for one, other in zip(some, others, strict=True))


def _try_step(ask: Ask) -> None:
    """Make a clean step, with and without a call of `unscale_` before it."""
    for words, unscaled_before in (("", False), (" after `scaler.unscale_(optimizer)`", True)):
        bench = Bench(ask, growth_interval=1)
        bench.backward()
        if unscaled_before:
            bench.call("", "unscale_")
        bench.call(words, "step")
        _judge_step(ask.call, bench.net)
    _try_second_step(ask)


def _judge_step(call: str, net: Net) -> None:
    scale, want = _SETTINGS["init_scale"], _after_step(1.0)
    if net.steps != 1:
        raise Mistake("never-steps" if not net.steps else "steps-twice", call=call, got=net.steps, want=1)
    got = net.weights()
    if expect.alike(got, want):
        return
    wrong = 0 if not expect.alike(got[0], want[0]) else 1
    shown = {"call": call, "got": describe(got[wrong]), "want": describe(want[wrong])}
    if expect.alike(got, _after_step(scale)):
        raise Mistake("steps-with-scaled", **shown)
    if expect.alike(got, _after_step(1 / scale)):
        raise Mistake("unscales-twice", **shown)
    raise Mistake("wrong-weights", **shown)


def _try_second_step(ask: Ask) -> None:
    """Make two steps: was it forgotten in between that the gradients of the first are unscaled?"""
    bench = Bench(ask)
    for words in ("", " in the second iteration"):
        bench.backward()
        bench.call(words, "step")
        if not words:
            bench.update()
    got, want = bench.net.weights(), _after_step(1.0, 1.0)
    if not expect.alike(got, want):
        still_scaled = expect.alike(got, _after_step(1.0, bench.current))
        name = "unscaled-stays" if still_scaled else "wrong-weights"
        raise Mistake(name, call=ask.call, got=describe(got[0]), want=describe(want[0]))


def _after_step(*factors: float) -> tuple[torch.Tensor, ...]:
    """Return the weights after a step with each of `factors` times the true gradients."""
    net = Net()
    for factor in factors:
        net.optimizer.zero_grad()
        (net.loss() * factor).backward()  # type: ignore[no-untyped-call]
        net.optimizer.step()
    return net.weights()


# --- overflow ---


def _try_overflow(ask: Ask) -> None:
    """Let each kind of overflow happen at each place, and then say what those have in common that were missed."""
    missed: dict[tuple[float, tuple[int, int]], tuple[str, torch.Tensor]] = {}
    for kind in _KINDS:
        for place in _PLACES:
            bench = Bench(ask, growth_interval=1)
            before = bench.backward(slopes_with(kind, *place))
            bench.call(f" with the gradients {_shown(bench.net.grads()[:2])}", "step")
            after = bench.net.weights()
            if bench.net.steps or not expect.alike(after, before):
                missed[kind, place] = ask.call, after[place[0]]
    if missed:
        _explain_missed(missed)


def _shown(grads: Sequence[torch.Tensor | None]) -> str:
    return " and ".join(map(describe, grads))


def _explain_missed(missed: dict[tuple[float, tuple[int, int]], tuple[str, torch.Tensor]]) -> NoReturn:
    (kind, _), (call, weight) = next(iter(missed.items()))
    shown = {"call": call, "got": describe(weight)}
    kinds = {each for each in _KINDS if all((each, place) in missed for place in _PLACES)}
    if len(missed) == len(_KINDS) * len(_PLACES):
        raise Mistake("steps-with-zeros" if weight.isfinite().all() else "steps-on-overflow", **shown)
    if len(missed) == len(kinds) * len(_PLACES):
        name = "misses-nan" if kinds == {_NAN} else "misses-infinity"
        raise Mistake(name, **shown, kind=kind)
    raise Mistake("looks-at-some", **shown)


def _try_gradients_of_overflow(ask: Ask) -> None:
    """Look at the gradients of a step that is skipped: unscaled as always, with the infinity still in them."""
    for kind in _KINDS:
        for place in _PLACES:
            slopes = slopes_with(kind, *place)
            for method in ("unscale_", "step"):
                bench = Bench(ask)
                bench.backward(slopes)
                words = f" with the gradients {_shown(bench.net.grads()[:2])}"
                bench.call(words, method)
                _judge_overflowed(ask.call, bench.net, slopes)
                if method == "unscale_":
                    bench.call(f" after `unscale_`{words}", "step")
                    _judge_overflowed(ask.call, bench.net, slopes)


def _judge_overflowed(call: str, net: Net, slopes: Sequence[Sequence[float]]) -> None:
    want = list(map(torch.tensor, slopes))
    for got, right in zip(net.grads(), want, strict=False):
        if not _alike(got, right):
            name = "hides-overflow" if _hides(got, right) else "left-scaled-after-overflow"
            raise Mistake(name, call=call, got=describe(got), want=describe(right))


def _hides(got: torch.Tensor | None, right: torch.Tensor) -> bool:
    """Return whether an infinity or NaN is no longer what it was."""
    if got is None or got.layout is not right.layout or got.shape != right.shape:
        return True
    bad = ~right.isfinite()
    return not expect.alike(got[bad], right[bad])


def _try_what_counts(ask: Ask) -> None:
    """Try large finite gradients, which are no overflow, and an infinity that is clipped before the step."""
    _expect_step(Bench(ask), ask, slopes_with(2.0**70))  # its square is infinite
    bench = Bench(ask, init_scale=1.0)
    with torch.no_grad():
        bench.net.used[0].mul_(2.0**-10)  # so that the loss is finite, too
    _expect_step(bench, ask, [[3e38, 3e38, 3.0], [0.75, -1.5]])  # their sum is infinite
    bench = Bench(ask)
    bench.backward(slopes_with(_INF))
    bench.call("", "unscale_")
    _judge_overflowed(ask.call, bench.net, slopes_with(_INF))
    torch.nn.utils.clip_grad_value_(bench.net.used, 1.0)
    bench.call(" after `unscale_` found an infinity and `clip_grad_value_` made 1 of it", "step")
    if bench.net.steps:
        raise Mistake("looks-again", call=ask.call, got=describe(bench.net.weights()[0]))


def _expect_step(bench: Bench, ask: Ask, slopes: Sequence[Sequence[float]]) -> None:
    bench.backward(slopes)
    bench.call(f" with the gradients {_shown(bench.net.grads()[:2])}", "step")
    if not bench.net.steps:
        raise Mistake("skips-finite", call=ask.call, got="skipped")


# --- update, and several optimizers ---


def simulate(
    pattern: Sequence[str],
    unscale: bool,
    *,
    growth: float = 4.0,
    backoff: float = 0.25,
    interval: float = 3,
    floor: float = 0.0,
    kept: frozenset[str] = frozenset(),
    each: frozenset[str] = frozenset(),
    leaks: bool = False,
    once: bool = False,
    need_all: bool = False,
    seen: slice = slice(None),
    stepped_only: bool = False,
) -> Run:
    """Follow the rule through a pattern as somebody does who has the things wrong that the keywords say.

    `kept`: what is not reset: the count at an "overflow" or a "growth", what was "found" at an update. `each`: what
    is done once for each optimizer: "backoff", "count", and with "sum" all of the latter at once. `leaks`: an overflow
    keeps other optimizers from their step. `once`: only the first optimizer of an iteration is unscaled by its step,
    for then all count as unscaled. `need_all`: the scale backs off only if all overflowed. `seen`: which optimizers'
    overflow an update looks at. `stepped_only`: an update knows only of optimizers whose step was asked for.
    """
    scale, count, found_before = _SETTINGS["init_scale"], 0, False
    scales, steps = [], []
    for letters in pattern:
        found = [letter in "oO" for letter in letters]
        if once and not unscale:
            first = next(number for number, letter in enumerate(letters) if letter != ".")
            found = [overflowed and number == first for number, overflowed in enumerate(found)]
        if "found" in kept:
            found = [each_found or found_before for each_found in found]
        stepped = [
            not each_found and letter.islower() for each_found, letter in zip(found, letters, strict=True)
        ]
        if leaks:
            sofar = [any(found) if unscale else any(found[: n + 1]) for n in range(len(found))]
            stepped = [step and not earlier for step, earlier in zip(stepped, sofar, strict=True)]
        found_before = any(found)
        if stepped_only:
            found = [
                each_found and letter.islower() for each_found, letter in zip(found, letters, strict=True)
            ]
        overflows = 0 if need_all and not all(found) else sum(found[seen])
        if overflows:
            scale = max(scale * backoff ** (overflows if "backoff" in each else 1), floor)
            count = count if "overflow" in kept else 0
        else:
            for _ in letters if "count" in each else letters[:1]:
                count += 1
                if count >= interval and ("sum" not in each or count % len(letters) == 0):
                    scale, count = scale * growth, count if "growth" in kept else 0
        scales.append(scale)
        steps.append(tuple(stepped))
    return Run(tuple(scales), tuple(steps))


def _idea(**wrong: Any) -> Callable[..., Run]:
    names: dict[str, Any] = {
        name: frozenset(value.split()) if isinstance(value, str) else value for name, value in wrong.items()
    }
    return functools.partial(simulate, **names)


def _alone(*patterns: str) -> tuple[tuple[tuple[str, ...], bool], ...]:
    """Return runs of one optimizer: `"cco"` is a run of three iterations."""
    return tuple((tuple(pattern), False) for pattern in patterns)


def _together(*patterns: str) -> tuple[tuple[tuple[str, ...], bool], ...]:
    """Return runs of several optimizers, both with and without unscaling first: `"oc cc"` are two iterations."""
    return tuple((tuple(pattern.split()), unscale) for unscale in (False, True) for pattern in patterns)


GROUPS = (
    Group(
        _alone("o", "oo", "oooooo"),
        (
            ("no-backoff", _idea(backoff=1.0)),
            ("fixed-settings", _idea(backoff=0.5)),
            ("grows-on-overflow", _idea(backoff=4.0)),
            ("has-floor", _idea(floor=1.0)),
            ("found-is-lost", _idea(seen=slice(0))),
        ),
    ),
    Group(
        _alone("ccc", "cccc"),
        (
            ("never-grows", _idea(interval=_INF)),
            ("fixed-settings", _idea(growth=2.0)),
            ("grows-late", _idea(interval=4)),
            ("grows-early", _idea(interval=2)),
            ("grows-early", _idea(interval=1)),
            ("counter-survives-growth", _idea(kept="growth")),
        ),
    ),
    Group(
        _alone("ccccccc"),
        (("counter-survives-growth", _idea(kept="growth")), ("grows-late", _idea(interval=4))),
    ),
    Group(
        _alone("occc", "ccoccccc", "cocc"),
        (
            ("found-stays", _idea(kept="found")),
            ("counter-survives-overflow", _idea(kept="overflow")),
        ),
    ),
    Group(
        _together("oc", "co", "oc cc", "co cc"),
        (
            ("overflow-leaks", _idea(leaks=True)),
            ("overflow-leaks", _idea(leaks=True, kept="found")),
            ("one-flag-for-all", _idea(once=True)),
            ("one-flag-for-all", _idea(once=True, leaks=True)),
            ("one-flag-for-all", _idea(once=True, leaks=True, kept="found")),
            ("all-must-overflow", _idea(need_all=True)),
            ("last-one-counts", _idea(seen=slice(-1, None))),
            ("last-one-counts", _idea(seen=slice(0, 1))),
            ("found-stays", _idea(kept="found")),
        ),
    ),
    Group(_together("oo", "oo oo"), (("backs-off-for-each", _idea(each="backoff")),)),
    Group(
        _together("cc cc cc cc", "cc oc cc cc cc"),
        (("counts-for-each", _idea(each="count")), ("counts-for-each", _idea(each="count sum"))),
    ),
    Group(_together("oc c. .c cc", ".o c. cc oo cc"), ()),
    Group(
        _together("Oc", "cO", "OO", "Oc cc", "cO Cc cc"),
        (
            ("step-left-out", _idea(stepped_only=True)),
            ("found-stays", _idea(kept="found")),
        ),
    ),
    Group(
        _together("cco", "coc", "occ", "ccc ccc ccc cco"),
        (
            ("last-one-counts", _idea(seen=slice(2))),
            ("last-one-counts", _idea(seen=slice(0, None, 2))),
        ),
    ),
)
# To 2^-126 and 2^126: as far as a scale and its reciprocal are normal in FP32, and a scaled gradient is finite.
LONG_RUNS = (("o", 68), ("c", 174))


def _try_runs(ask: Ask, group: Group) -> None:
    trials = []
    for pattern, unscale in group.runs:
        scaler = ask(**_SETTINGS)
        ask.call = _run_in_words(pattern, unscale)
        got = ask.run(play, scaler, pattern, unscale=unscale)
        trials.append(Trial(ask.call, (pattern, unscale), got, simulate(pattern, unscale)))
    _recognise(trials, group.misconceptions)


def _try_long_run(ask: Ask, all_of_it: str, count: int) -> None:
    """Let every iteration overflow, or none: there is no floor and no ceiling."""
    scaler, pattern = ask(**_SETTINGS), all_of_it * count
    what = "each of which overflows" if all_of_it == "o" else "all of them clean"
    ask.call = f"{_in_words(**_SETTINGS)} in a run of {count} iterations, {what}"
    got, want = ask.run(play, scaler, pattern), simulate(pattern, False)
    if got == want:
        return
    pairs = zip(zip(*got, strict=True), zip(*want, strict=True), strict=True)
    at = next(number for number, (one, other) in enumerate(pairs) if one != other)
    stays = got.steps == want.steps and len(set(got.scales[at:])) == 1
    name = "wrong-run" if not stays else "has-floor" if all_of_it == "o" else "has-ceiling"
    after = f"after iteration {at + 1} the scale {got.scales[at]:.10g}"
    raise Mistake(name, call=ask.call, got=after, want=f"{want.scales[at]:.10g}")


def _recognise(trials: Sequence[Trial], misconceptions: Misconceptions) -> None:
    """Do as `expect.recognise` does, but show of a run only what is wrong."""
    wrong = next((trial for trial in trials if trial.got != trial.want), None)
    if wrong is None:
        return
    shown = {"call": wrong.call} | _difference(wrong.got, wrong.want)
    for diagnosis, idea in misconceptions:
        if all(trial.got == idea(*trial.args) for trial in trials):
            raise Mistake(diagnosis, **shown)
    raise Mistake("wrong-run", **shown)


def _difference(got: Run, want: Run) -> dict[str, str]:
    if got.steps != want.steps:
        return {"got": f"the steps made {_steps(got)}", "want": _steps(want)}
    return {"got": f"the scales {listed(got.scales)}", "want": listed(want.scales)}


def _steps(run: Run) -> str:
    return ", ".join("/".join("yes" if each else "no" for each in steps) for steps in run.steps)


def _run_in_words(pattern: Sequence[str], unscale: bool) -> str:
    letters = {"c": "clean", "o": "overflow", ".": "not used"}
    letters |= {"C": "clean, unscaled, no step", "O": "overflow, unscaled, no step"}
    iterations = ", ".join("/".join(letters[letter] for letter in each) for each in pattern)
    first = ", `unscale_` called first," if unscale else ""
    optimizers = f" with {len(pattern[0])} optimizers" if len(pattern[0]) > 1 else ""
    return f"{_in_words(**_SETTINGS)} in a run{optimizers}{first} of the iterations {iterations}"
