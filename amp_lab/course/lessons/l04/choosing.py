"""Exercise 4.2: the largest power of two that leaves headroom."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake, Region, Trial
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l04 import several

Grads = list[torch.Tensor]
_MAX = 65504
_MAX_OF_FP32 = torch.finfo(torch.float32).max
_LOWEST, _HIGHEST = -24, 126
_NOTHING = 65536.0
_BY_ACCIDENT = {f"raised `{name}`" for name in ("AssertionError", "OverflowError", "ZeroDivisionError")}


def _largest(grads: Grads) -> float:
    return max(each.abs().max().item() for each in grads)


def _all(grads: Grads) -> torch.Tensor:
    return torch.cat([each.flatten() for each in grads])


def _below(ratio: float) -> int:
    """Return the exponent of the largest power of two that is not above `ratio`."""
    return math.frexp(ratio)[1] - 1


def _right(grads: Grads, headroom: float = 4) -> float:
    return _power(_below(_MAX / (headroom * _largest(grads))))


def _power(exponent: int) -> float:
    return 2.0 ** min(max(exponent, _LOWEST), _HIGHEST)


def _from(statistic: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., float]:
    """Return what takes another statistic of all gradients in place of the largest."""

    def answer(grads: Grads, headroom: float = 4) -> float:
        size = statistic(_all(grads)).item()
        return _power(_below(_MAX / (headroom * size))) if size > 0 else math.nan

    return answer


def _smallest(values: torch.Tensor) -> torch.Tensor:
    size = values.abs()
    return size[size > 0].min()


def _spread(values: torch.Tensor) -> torch.Tensor:
    return values.std() if values.numel() > 1 else values.abs().max()


def _lifting(target: float, shift: int) -> Callable[..., float]:
    """Return what makes the smallest gradient other than zero about as large as `target`."""
    return lambda grads: 2.0 ** (_below(target / _smallest(_all(grads)).item()) + shift)


def _strictly_below(ratio: float) -> int:
    mantissa, exponent = math.frexp(ratio)
    return exponent - 2 if mantissa == 0.5 else exponent - 1


def _instead(trials: Sequence[Trial]) -> None:
    """Recognise an answer that follows from another statistic than the largest size."""
    for name, statistic in (
        ("mean", lambda values: values.abs().mean()),
        ("median", lambda values: values.abs().median()),
        ("norm", lambda values: values.norm()),
        ("sum", lambda values: values.abs().sum()),
        ("standard deviation", _spread),
        ("root mean square", lambda values: values.pow(2).mean().sqrt()),
        ("smallest size above zero", _smallest),
    ):
        answer = _from(statistic)
        if all(expect.alike(trial.got, answer(*trial.args)) for trial in trials):
            raise Mistake("not-the-largest", **expect.first_wrong(trials), instead=name)
    _constant(trials)
    _capped(trials)
    _no_power(trials)


def _constant(trials: Sequence[Trial]) -> None:
    """Recognise an answer that is the same whatever the gradients are."""
    if len(trials) > 1 and len({trial.got for trial in trials}) == 1:
        raise Mistake("constant", **expect.first_wrong(trials))


def _capped(trials: Sequence[Trial]) -> None:
    """Recognise an answer that is right up to some largest scale, and never goes beyond it."""
    wrong = [trial for trial in trials if not expect.alike(trial.got, trial.want)]
    largest = max(trial.got for trial in trials)
    if len(wrong) > 1 and all(trial.got == largest < trial.want for trial in wrong):
        raise Mistake("capped", **expect.first_wrong(wrong))


def _no_power(trials: Sequence[Trial]) -> None:
    for trial in trials:
        if not 0 < trial.got < math.inf or math.frexp(trial.got)[0] != 0.5:
            raise Mistake("no-power-of-two", **expect.first_wrong([trial]))


def _taken_for_nothing(trials: Sequence[Trial]) -> None:
    """Recognise gradients that were taken for all zero, and are not."""
    taken = [trial for trial in trials if trial.got == _NOTHING != trial.want]
    partly = [trial for trial in taken if not all(map(torch.any, trial.args[0]))]
    if taken:
        raise Mistake("any-zero" if partly == taken else "sum-zero", **expect.first_wrong(taken))


def _signs_otherwise(trials: Sequence[Trial]) -> None:
    _taken_for_nothing(trials)
    _instead(trials)


def _in_part(trials: Sequence[Trial]) -> None:
    """Name the only thing that is new: many entries, and more tensors."""
    raise Mistake("part-only", **expect.first_wrong(trials))


def _at_the_ends(trials: Sequence[Trial]) -> None:
    """Recognise tiny gradients that were taken for zero, and whatever is above the largest scale."""
    for trial in trials:
        if trial.got == _NOTHING != trial.want:
            raise Mistake("tiny-taken-for-zero", **expect.first_wrong([trial]))
    for trial in trials:
        if trial.want == 2.0**_HIGHEST and trial.got > trial.want:
            raise Mistake("beyond-126", **expect.first_wrong([trial]))
    _capped(trials)
    _no_power(trials)


def _size(grads: Grads, headroom: float = 4) -> float:
    return headroom * _largest(grads)


def _from_sizes(grads: Grads, choose: Callable[[list[float]], float]) -> float:
    size = choose([each.abs().max().item() for each in grads])
    return _power(_below(_MAX / (4 * size))) if size > 0 else _NOTHING


def _tensors(*numbers: Sequence[float]) -> Grads:
    return [torch.tensor(each, dtype=torch.float32) for each in numbers]


# Cases with one misconception each can be told apart only if everything else about them is plain.
_PLAIN = Region(
    (
        (_tensors([0.013, 0.002, 0.0007]),),
        (_tensors([3.1e-5, 1e-6, 2e-6, 4e-6]),),
        ([torch.tensor([[0.4, 0.05], [0.01, 0.02]])],),
        (_tensors([5e-7, 2e-7, 1e-8]),),
        (_tensors([0.0006]),),
        (_tensors([7.0, 0.3, 0.2, 0.1]),),
        ([torch.full((6, 8), 2e-3)],),
    ),
    (
        ("too-high", lambda grads: _power(_below(_MAX / (4 * _largest(grads))) + 1)),
        ("rounds", lambda grads: _power(round(math.log2(_MAX / (4 * _largest(grads)))))),
        ("too-low", lambda grads: _power(_below(_MAX / (4 * _largest(grads))) - 1)),
        ("headroom-ignored", lambda grads: _power(_below(_MAX / _largest(grads)))),
        ("headroom-bits", lambda grads: _power(_below(_MAX / _largest(grads)) - 4)),
        ("headroom-inverted", lambda grads: _power(_below(4 * _MAX / _largest(grads)))),
        ("returns-exponent", lambda grads: _below(_MAX / (4 * _largest(grads)))),
        ("inverse", lambda grads: 1 / _right(grads)),
        ("inverse", lambda grads: 2.0 ** _below(4 * _largest(grads) / _MAX)),
        ("limit-of-fp32", lambda grads: 2.0 ** _below(_MAX_OF_FP32 / (4 * _largest(grads)))),
        ("limit-of-fp32", lambda grads: _power(_below(_MAX_OF_FP32 / (4 * _largest(grads))))),
        *(
            ("lifts-the-smallest", _lifting(target, shift))
            for target in (2.0**-14, 2.0**-24)
            for shift in (0, 1)
        ),
        ("power-of-ten", lambda grads: 10.0 ** math.floor(math.log10(_MAX / (4 * _largest(grads))))),
        ("natural-log", lambda grads: 2.0 ** math.floor(math.log(_MAX / (4 * _largest(grads))))),
    ),
    _instead,
)
_SIGNS = Region(
    (
        (_tensors([0.001, -0.2, 0.03]),),
        (_tensors([-3e-5, 1e-6]),),
        (_tensors([-0.02, -0.4]),),
    ),
    (
        ("signs", _from(lambda values: values.max())),
        ("signs", _from(lambda values: values.min())),
        ("signs", _from(lambda values: values.min().abs())),
        ("signs", _from(lambda values: values.max().abs())),
    ),
    _signs_otherwise,
)
_MANY = Region(
    (
        (_tensors([0.001, -0.01], [0.6], [-0.002]),),
        (_tensors([2e-6], [-3e-5, 1e-6], [7e-4]),),
        (_tensors([0.3], [-0.03, 0.003], [1e-4]),),
        ([torch.tensor(-0.3), torch.zeros(3), torch.full((2, 1, 2), 1e-3)],),
    ),
    (
        ("one-tensor", lambda grads: _right(grads[:1])),
        ("one-tensor", lambda grads: _right(grads[-1:])),
        ("smallest-maximum", lambda grads: _from_sizes(grads, min)),
        ("smallest-maximum", lambda grads: _from_sizes(grads, lambda sizes: min(filter(None, sizes)))),
        ("mean-of-maxima", lambda grads: _from_sizes(grads, lambda sizes: sum(sizes) / len(sizes))),
        ("mean-of-maxima", lambda grads: _from_sizes(grads, sum)),
        ("any-zero", lambda grads: _NOTHING if not all(map(torch.any, grads)) else _right(grads)),
    ),
    _instead,
)
_LIKE_NOTHING = Region(
    (
        # A sum, a maximum, an entry or a tensor of them is zero; not all are.
        (_tensors([0.3, -0.3]),),
        (_tensors([0.3, 0.02], [-0.3, -0.02]),),
        (_tensors([-0.3, 0.0]),),
        (_tensors([0.0, 0.01, -0.02]),),
        (_tensors([0.0, 0.0], [0.02, 0.1]),),
        (_tensors([0.02, -0.1], [0.0, 0.0]),),
    ),
    (),
    _taken_for_nothing,
)
_LARGE = Region(
    (
        # The largest entry is the last one, and far behind.
        ([*_tensors([0.001], [0.002], [0.001], [-0.003]), torch.tensor([0.01, -0.7])],),
        ([torch.tensor([[0.001, 0.002], [-0.001, 0.1]])],),
        ([torch.cat([torch.full((4999,), 1e-4), torch.tensor([-0.05])])],),
        ([torch.cat([torch.full((4999,), 1e-4), torch.tensor([0.05])]).reshape(50, 4, 25)],),
    ),
    (),
    _in_part,
)
_HEADROOMS = Region(
    tuple((_tensors([0.013, -0.002], [0.0007]), headroom) for headroom in (1, 2, 16, 3, 2.5, 1000.0, 0.5)),
    (
        ("headroom-fixed", lambda grads, headroom: _right(grads, 4)),
        (
            "headroom-bits",
            lambda grads, headroom: _right(grads, 2.0**headroom) if headroom < 99 else math.nan,
        ),
        ("headroom-whole", lambda grads, headroom: _right(grads, int(headroom) or 1)),
        ("headroom-whole", lambda grads, headroom: _right(grads, round(headroom) or 1)),
        ("headroom-whole", lambda grads, headroom: _right(grads, max(headroom, 1))),
    ),
    _instead,
)
_LIMIT = Region(
    (
        # Exactly 65504 is allowed; 65536 is infinity in FP16.
        (_tensors([_MAX / 4 * 2.0**-12, 1e-3]),),
        (_tensors([-_MAX * 2.0**-20]), 1),
        (_tensors([2.0**-10, 2.0**-12]),),
        (_tensors([-(2.0**-21)]), 2),
        (_tensors([0.25]), 8),
        (_tensors([65512 / 4 * 2.0**-10]),),  # FP16 rounds 65512 to 65504
        (_tensors([65519 * 2.0**-20]), 1),
    ),
    (
        ("limit-refused", lambda *given: _power(_strictly_below(_MAX / _size(*given)))),
        ("limit-65536", lambda *given: _power(_below(65536 / _size(*given)))),
        ("limit-65520", lambda *given: _power(_strictly_below(65520 / _size(*given)))),
        ("limit-65520", lambda *given: _power(_below(65520 / _size(*given)))),
    ),
)
_EXTREMES = Region(
    (
        (_tensors([3e5, -2e6]),),
        (_tensors([1e9]),),
        (_tensors([2e11]),),
        (_tensors([1e12]), 1),
        (_tensors([1.0, -_MAX * 2.0**24]), 1),  # exactly what 2^-24 allows
        (_tensors([1e-33]),),
        (_tensors([2.0**-113]),),
        (_tensors([1e-38, -1e-39]),),
        (_tensors([2.0**-149]),),
    ),
    (
        ("never-below-one", lambda *given: max(_right(*given), 1.0)),
        ("int-truncates", lambda *given: _power(int(math.log2(_MAX / _size(*given))))),
        ("beyond-126", lambda *given: 2.0 ** _below(_MAX / _size(*given))),
        ("beyond-126", lambda *given: 2.0 ** min(_below(_MAX / _size(*given)), 127)),
    ),
    _at_the_ends,
)


_REGIONS = (_PLAIN, _SIGNS, _MANY, _LIKE_NOTHING, _LARGE, _HEADROOMS, _LIMIT, _EXTREMES)
_NO_GRADIENT: tuple[Grads, ...] = (
    [torch.zeros(3)],
    [torch.zeros(2, 2), -torch.zeros(1)],
    [torch.zeros(())],
    [],
)


def _refused() -> list[tuple[Any, ...]]:
    inf, nan = math.inf, math.nan
    bad = [[nan, 1e-3], [1e-3, inf], [-inf, 1e-3], [1e-3, nan, inf]]
    several_bad = [
        ([1e-3, 0.02], [0.5, nan]),
        ([0.1, -inf], [0.5]),
        ([nan], [1e-3], [0.2]),
        ([0.0], [nan, 0.0]),
    ]
    too_large = [
        (_tensors([1e13, 1.0]),),
        (_tensors([1.0], [-3e11]),),
        *((_tensors([1e12]), headroom) for headroom in (1.2, 16)),
        (_tensors([2.0**40]), 1),
    ]
    return [
        *((_tensors(each),) for each in bad),
        *((_tensors(*each),) for each in several_bad),
        *too_large,
    ]


@checker("4.2")
def pick_scale(ask: Ask) -> None:
    """Ask for plain gradients first, then with signs, in several tensors, with other headroom; then for the edges."""
    ask.in_words = _in_words
    for region in _REGIONS:
        try:
            ask.compare(
                region.cases, _right, region.misconceptions, read=expect.number, otherwise=region.otherwise
            )
        except Contained as contained:
            raised = several.known_error(contained)
            if region is not _EXTREMES or type(contained.error) is not ValueError or raised is None:
                raise
            raise Mistake("refuses-too-much", call=ask.call, got=f"raised `{raised}`") from None
    for grads in _NO_GRADIENT:
        _ask_without_gradient(ask, grads)
    for case in _refused():
        _ask_for_a_refusal(ask, *case)


def _ask_without_gradient(ask: Ask, grads: Grads) -> None:
    """Ask where every gradient is zero, or there is none: a ratio or a maximum may fail there."""
    try:
        got: Any = ask(grads)
    except Contained as contained:
        raised = several.known_error(contained)
        if raised is None:
            raise
        raise Mistake("no-gradient", call=ask.call, got=f"raised `{raised}`", want=_NOTHING) from None
    number = expect.number(ask.call, got, _NOTHING)
    if number != _NOTHING:
        raise Mistake("no-gradient", call=ask.call, got=f"returned {describe(number)}", want=_NOTHING)


def _ask_for_a_refusal(ask: Ask, grads: Grads, *headroom: float) -> None:
    """Ask for what no scale suits, and name what lets it pass."""
    try:
        ask.refuses(ValueError, grads, *headroom)
    except Mistake as mistake:
        got = mistake.observed.get("got")
        if mistake.diagnosis == "not-refused" and (diagnosis := _passed_over(grads, str(got))):
            raise Mistake(diagnosis, call=ask.call, got=got) from None
        raise


def _passed_over(grads: Grads, got: str) -> str | None:
    if got in _BY_ACCIDENT:
        return "other-error"
    if not got.startswith("returned ") or any(each.isinf().any() for each in grads):
        return None
    if all(each.isfinite().all() for each in grads):
        return "too-large" if _is_number(got.removeprefix("returned ")) else None
    # The scale that suits all numbers but the NaN, or all tensors but the one with the NaN in it.
    rest = ([each[each.isfinite()] for each in grads], [each for each in grads if each.isfinite().all()])
    suits = {
        _right(kept) if any(map(torch.any, kept)) else _NOTHING
        for kept in ([each for each in some if each.numel()] for some in rest)
    }
    return "nan-lost" if got in {f"returned {describe(each)}" for each in suits} else None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _in_words(grads: Grads, *headroom: float) -> str:
    """Return the call without the dtype, which is FP32 always, or a list of tensors gets too long to be read."""
    tensors = ", ".join(describe(each).replace(f", dtype={each.dtype}", "") for each in grads)
    return f"`pick_scale({', '.join([f'[{tensors}]', *map(describe, headroom)])})`"
