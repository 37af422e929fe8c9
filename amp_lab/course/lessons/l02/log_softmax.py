"""Exercise 2.2: log-softmax of logits as far apart as FP16 allows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import exact
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake, Trial
from amp_lab.formats import FP32

Idea = Callable[[torch.Tensor, int], torch.Tensor]
_RTOL, _ATOL = 1e-6, 1e-5
_ONE_ROUNDING = 0.51 * 2.0**-10  # of a number that FP16 does not hold exactly, and a bit
_LOOSE_RTOL, _LOOSE_ATOL = 2e-3, 2e-2  # some roundings of FP16
_DTYPES = (torch.float16, torch.float32, torch.float64)
_EXP_UNDERFLOWS = -104.0  # below, exp is 0 in FP32
_TOP = 65504.0
_EXTREMES = (_TOP, -_TOP, 0.0)
_LONGEST = 4  # how many logits are shown


def _logits(*shape: int, size: float = 2.0) -> torch.Tensor:
    draw = torch.Generator().manual_seed(100 + math.prod(shape))
    return (size * torch.randn(shape, generator=draw)).half()


def _rows(*rows: tuple[float, ...]) -> torch.Tensor:
    return torch.tensor(rows).half()


def _cases() -> tuple[tuple[torch.Tensor, int], ...]:
    """Choose logits from plain to extreme. The first one is square, so that a missing `keepdim` raises no error."""
    far_rows = _rows((0.5, -5.0, 3.25), (-300.0, -301.5, -302.0), (500.0, 499.5, 480.0))
    return (
        (_logits(3, 3), 1),
        (_logits(4, 5), 0),
        (_logits(4, 5), -1),
        (_logits(2, 3, 4), 1),
        (_logits(2, 3, 4).transpose(0, 2), -3),
        (_logits(300, 2, size=0.5), 0),
        (_logits(3, 1), 1),
        (_rows((12.5, 3.0, 20.0), (14.0, 14.0, 13.0)), 1),
        (_rows((100.0, 95.0, 98.5), (-200.0, -210.0, -190.5)), 1),
        (far_rows, 1),
        (far_rows.t(), 0),
        (_rows((0.0, -200.0, 1.5), (40.0, -90.0, 39.0)), 1),
        (_rows(_EXTREMES, (_TOP, _TOP, _TOP), (-_TOP, -_TOP, 40.0 - _TOP), (1000.0, 1000.0, 1001.0)), 1),
        (_logits(7), 0),
        (_rows(_EXTREMES)[0], -1),
    )


def _right(logits: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.log_softmax(logits.double(), dim).float()


def _log_sum(z: torch.Tensor, dim: int) -> torch.Tensor:
    return z.exp().sum(dim, keepdim=True).log()


def _by_difference(x: torch.Tensor, dim: int, shifted: Idea, dtype: torch.dtype) -> torch.Tensor:
    z = shifted(x.to(dtype), dim)
    return z - _log_sum(z, dim)


def _by_quotient(x: torch.Tensor, dim: int, shifted: Idea, dtype: torch.dtype) -> torch.Tensor:
    exp = shifted(x.to(dtype), dim).exp()
    return (exp / exp.sum(dim, keepdim=True)).log()


def _all_ways(diagnosis: str, shifted: Idea) -> Iterator[tuple[str, Idea]]:
    """Yield what comes of logits shifted somehow, in each dtype: z - log(sum(exp(z))), log(exp(z) / sum(exp(z)))."""
    for way, dtype in itertools.product((_by_difference, _by_quotient), _DTYPES):
        yield diagnosis, partial(way, shifted=shifted, dtype=dtype)


def _below_largest(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x - x.amax(dim, keepdim=True)


def _without_keepdim(x: torch.Tensor, dim: int) -> Iterator[torch.Tensor]:
    """Yield what broadcasting makes of a maximum, a sum, or both, along the wrong dimension of a square matrix."""
    x = x.double()
    for maximum_kept, sum_kept in ((False, False), (True, False), (False, True)):
        z = x - x.amax(dim, keepdim=maximum_kept)
        yield z - z.exp().sum(dim, keepdim=sum_kept).log()
    yield x - x.logsumexp(dim)


def _implicit(x: torch.Tensor) -> int:
    """Return the dim that PyTorch's softmax takes when it is given none."""
    return 0 if x.dim() in (0, 1, 3) else 1


def _of_all(x: torch.Tensor) -> torch.Tensor:
    return torch.log_softmax(x.double().flatten(), 0).reshape(x.shape)


_OTHER_DIMS: tuple[tuple[str, Idea], ...] = (
    ("the last one", lambda x, dim: torch.log_softmax(x.double(), -1)),
    ("the first one", lambda x, dim: torch.log_softmax(x.double(), 0)),
    ("all of them together", lambda x, dim: _of_all(x)),
    ("the one that PyTorch picks without `dim`", lambda x, dim: torch.log_softmax(x.double(), _implicit(x))),
)
_IDEAS: tuple[tuple[str, Idea], ...] = (
    ("another-base", lambda x, dim: _right(x, dim) / math.log(2)),
    ("another-base", lambda x, dim: _right(x, dim) / math.log(10)),
    ("sum-forgotten", lambda x, dim: _below_largest(x.double(), dim)),
    ("maximum-not-put-back", lambda x, dim: _right(x, dim) + x.double().amax(dim, keepdim=True)),
    *_all_ways("no-maximum", lambda x, dim: x),
    ("no-maximum", lambda x, dim: x.float() - x.exp().sum(dim, keepdim=True, dtype=torch.float32).log()),
    *_all_ways("maximum-of-everything", lambda x, dim: x - x.max()),
    *_all_ways("maximum-of-sizes", lambda x, dim: x - x.abs().amax(dim, keepdim=True)),
    *_all_ways("mean-subtracted", lambda x, dim: x - x.mean(dim, keepdim=True)),
    *(("log-of-softmax", partial(_by_quotient, shifted=_below_largest, dtype=each)) for each in _DTYPES),
    ("log-of-softmax", lambda x, dim: torch.softmax(x, dim).float().log()),
    ("log-of-softmax", lambda x, dim: torch.softmax(x, dim).log()),
)


@checker("2.2")
def stable_log_softmax(ask: Ask) -> None:
    """Ask for logits near and far apart; then see where infinities stand, and of what size the errors are."""
    ask.compare(_cases(), _right, (), read=_read, otherwise=_judge)


def _read(call: str, got: Any, want: torch.Tensor) -> torch.Tensor:
    got = expect.tensor_like(call, got, want)
    return want if _is_near(got, want, _RTOL, _ATOL) else got


def _is_right(trial: Trial) -> torch.Tensor:
    """Tell of each value whether it is as near to the right one as the exercise asks for."""
    return torch.isclose(trial.got, trial.want, _RTOL, _ATOL)


def _is_near(one: torch.Tensor, other: torch.Tensor, rtol: float, atol: float) -> bool:
    return bool(torch.isclose(one.double(), other.double(), rtol, atol, equal_nan=True).all())


def _fits(trials: Sequence[Trial], idea: Idea) -> bool:
    return all(_is_near(trial.got, idea(*trial.args), _LOOSE_RTOL, _LOOSE_ATOL) for trial in trials)


def _judge(trials: Sequence[Trial]) -> None:
    shown = _shown(trials)
    _recognise_no_log(trials)
    _recognise_dims(trials, shown)
    for diagnosis, idea in _IDEAS:
        if _fits(trials, idea):
            raise Mistake(diagnosis, **shown)
    _recognise_replaced_infinity(trials)
    _recognise_floors(trials, shown)
    _recognise_rounding(trials, shown)
    for trial in trials:
        expect.tensor(trial.call, trial.got, trial.want, rtol=_RTOL, atol=_ATOL)


def _recognise_no_log(trials: Sequence[Trial]) -> None:
    """Recognise exp, with or without a maximum, and shares of it: never negative, and NaN where it overflowed.

    Shares and exp of differences are 1 at most; exp of a logit is not, but it can be known by the first trial.
    """
    results = torch.cat([trial.got.flatten() for trial in trials])
    results = results[~results.isnan()]
    first = trials[0]
    exp = first.args[0].float().exp()
    are_shares = bool(len(results)) and bool(((results >= 0) & (results <= 1)).all()) and bool(results.any())
    if are_shares or _is_near(first.got, exp, _LOOSE_RTOL, _LOOSE_ATOL):
        raise Mistake("no-log", **_shown([first]))


def _recognise_dims(trials: Sequence[Trial], shown: dict[str, str]) -> None:
    for which, idea in _OTHER_DIMS:
        if _fits(trials, idea):
            raise Mistake("another-dim", **shown, which=which)
    first = trials[0]
    if any(_is_near(first.got, each, _LOOSE_RTOL, _LOOSE_ATOL) for each in _without_keepdim(*first.args)):
        raise Mistake("no-keepdim", **_shown([first]))


def _recognise_replaced_infinity(trials: Sequence[Trial]) -> None:
    """Recognise the lowest number of a dtype where -inf stood, as `nan_to_num` and `clamp` put it there."""
    for dtype, name in ((torch.float16, "FP16"), (torch.float32, "FP32")):
        lowest = torch.finfo(dtype).min
        held = [trial for trial in trials if ((trial.got == lowest) & ~_is_right(trial)).any()]
        if held:
            raise Mistake("infinity-replaced", **_shown(held), dtype=name)


def _recognise_floors(trials: Sequence[Trial], shown: dict[str, str]) -> None:
    """Recognise logarithms that stop at one value, as of p + 1e-8, and logits that were clamped."""
    far = [trial for trial in trials if (trial.want < 2 * _EXP_UNDERFLOWS).any()]
    low = [number for trial in far for number in trial.got[trial.want < 2 * _EXP_UNDERFLOWS].tolist()]
    if len(set(low)) == 1 and math.isfinite(low[0]):
        raise Mistake("floor", **_shown(far), floor=f"{low[0]:g}")
    bound = _bound(trials)
    if 0 < bound < _TOP and _fits(trials, lambda x, dim: _right(x.double().clamp(-bound, bound), dim)):
        raise Mistake("clamped", **shown, bound=f"{bound:.4g}")


def _bound(trials: Sequence[Trial]) -> float:
    """Return to what the extremes 65504 and 0 seem to have been clamped: their distance is the bound."""
    extreme = (trial for trial in trials if trial.args[0].flatten()[:3].tolist() == list(_EXTREMES))
    return next((-float(trial.got.flatten()[2]) for trial in extreme), math.nan)


def _recognise_rounding(trials: Sequence[Trial], shown: dict[str, str]) -> None:
    """Tell apart where FP16 was left too late, or FP32's own digits were lost, by the size of the errors."""
    by_pytorch = all(expect.alike(trial.got, torch.log_softmax(*trial.args).float()) for trial in trials)
    finite = [trial for trial in trials if trial.got.isfinite().all()]
    if by_pytorch or all(_is_fp16(trial.got, trial.want) for trial in trials):
        coarse = [trial for trial in finite if not _is_right(trial).all()]
        raise Mistake("result-in-fp16", **_shown(coarse or trials))
    for dtype, swallowed in (
        ("FP32", all(map(_is_within_a_step, trials))),
        ("FP16", _is_difference_of_halves(trials)),
    ):
        if swallowed:
            largest = max(finite, key=lambda trial: float(_error(trial).max()))
            raise Mistake("sum-swallowed", **_shown([largest]), dtype=dtype)
    if _fits(trials, lambda x, dim: _right(x, dim)):
        raise Mistake("steps-in-fp16", **shown)
    if _fits(trials, _through_fp16) or _fits(trials, _difference_in_fp16):
        raise Mistake("subtracts-in-fp16", **shown)


def _is_fp16(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Tell whether `got` is the right result, rounded to FP16 at the end, or right altogether."""
    rounded = (got == got.half()) & ((got == want.half()) | torch.isclose(got, want, _ONE_ROUNDING, 0.0))
    return bool((rounded | torch.isclose(got, want, _RTOL, _ATOL)).all())


def _is_within_a_step(trial: Trial) -> bool:
    """Tell whether no error is larger than FP32's gap at the largest logit: as far as max + log(sum) can be off."""
    step = float(FP32.ulp(float(trial.args[0].abs().max())))
    return _is_near(trial.got, trial.want, _RTOL, _ATOL + step)


def _is_difference_of_halves(trials: Sequence[Trial]) -> bool:
    """Tell whether max + log(sum) was rounded to FP16, and then subtracted from the logit."""

    def rounded(x: torch.Tensor, dim: int) -> torch.Tensor:
        return x.double().logsumexp(dim, keepdim=True).half()

    return any(
        _fits(trials, idea)
        for idea in (
            lambda x, dim: x - rounded(x, dim),
            lambda x, dim: x.float() - rounded(x, dim).float(),
            lambda x, dim: x - x.logsumexp(dim, keepdim=True),
            lambda x, dim: x.float() - x.logsumexp(dim, keepdim=True).float(),
        )
    )


def _through_fp16(x: torch.Tensor, dim: int) -> torch.Tensor:
    return _right(x, dim).half()


def _difference_in_fp16(x: torch.Tensor, dim: int) -> torch.Tensor:
    z = _below_largest(x, dim).double()
    return z - _log_sum(z, dim)


def _shown(trials: Sequence[Trial]) -> dict[str, str]:
    """Say where an error catches the eye: in the first trial with a value that is not finite, else in the first wrong.

    Of that trial it is the first value that is not finite, else the one that is most wrong.
    """
    wrong = [trial for trial in trials if not expect.alike(trial.got, trial.want)]
    trial = next((each for each in wrong if not each.got.isfinite().all()), wrong[0])
    flat = int(_error(trial).argmax())
    index = tuple(map(int, torch.unravel_index(torch.tensor(flat), trial.want.shape)))
    got, want = (exact(each[index]) for each in (trial.got, trial.want))
    logits, dim = trial.args
    return {"call": _in_words(logits, dim, index), "got": got, "want": want}


def _error(trial: Trial) -> torch.Tensor:
    error: torch.Tensor = (trial.got.double() - trial.want).abs()
    return error.nan_to_num(math.inf, math.inf)


def _in_words(logits: torch.Tensor, dim: int, index: tuple[int, ...]) -> str:
    """Name one value of the result, and the logits that it depends on."""
    others = list(index)
    others.pop(dim)
    row = logits.movedim(dim, -1)[tuple(others)].tolist()
    numbers = ", ".join(f"{number:g}" for number in row[:_LONGEST]) + (", …" if len(row) > _LONGEST else "")
    value = f"`stable_log_softmax(<shape {tuple(logits.shape)}>, {dim})[{', '.join(map(str, index))}]`"
    return f"{value}, where the logits along `dim` are {numbers},"
