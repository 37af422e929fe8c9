"""Exercise 2.4: masks that fit into the dtype of the scores."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, exact
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained

_LIMIT = 1000.0  # how large scores are
_ROUNDINGS = 8  # how many roundings a kept score may be off
_LOG_OF_SMALLEST = -104.0  # log of FP32's smallest number
_OVERFLOW = "without overflow"  # what PyTorch says when a number does not fit into a dtype


class _Case(NamedTuple):
    """One call and what came back; `empty` is where a row keeps nothing, `hidden` where another row hides something."""

    call: str
    scores: torch.Tensor
    keep: torch.Tensor
    got: torch.Tensor

    @property
    def empty(self) -> torch.Tensor:
        return ~self.keep.any(-1, keepdim=True).expand_as(self.keep)

    @property
    def hidden(self) -> torch.Tensor:
        return ~self.keep & ~self.empty

    @property
    def weights(self) -> torch.Tensor:
        return torch.softmax(self.got, -1)

    def mistake(self, diagnosis: str, where: torch.Tensor, **observed: object) -> Mistake:
        """Return the mistake that shows in the first place of `where`, with the row that it stands in."""
        place = tuple(where.nonzero()[0].tolist())
        scores = ", ".join(f"{score:g}" for score in self.scores[place[:-1]].tolist())
        kept = ", ".join(map(str, self.keep[place[:-1]].tolist()))
        seen = {"got": exact(self.got[place]), "score": exact(self.scores[place]), "place": place}
        row = f"The row has the scores {scores}, and `keep` is {kept}."
        return Mistake(diagnosis, **{"call": self.call, "row": row, **seen, **observed})


def _draw(*shape: int, size: float = 3.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw scores, and a mask that keeps something in every row and hides something in most."""
    draw = torch.Generator().manual_seed(math.prod(shape))
    scores = (size * torch.randn(shape, generator=draw)).clamp(-_LIMIT, _LIMIT)
    keep = torch.rand(shape, generator=draw) < 0.6
    keep[..., 0] |= ~keep.any(-1)
    return scores, keep


def _causal() -> tuple[torch.Tensor, torch.Tensor]:
    """Make scores of two heads over four words, each of which sees the words before it; one sample has three words."""
    scores, _ = _draw(2, 2, 4, 4)
    keep = torch.ones(2, 2, 4, 4, dtype=torch.bool).tril()
    keep[1, :, :, 3] = False
    return scores, keep


def _pairs() -> tuple[tuple[torch.Tensor, torch.Tensor], ...]:
    keeps_one = torch.tensor([[True, False, False], [False, False, True]])
    keeps_none = torch.tensor([[False, True, True], [False, False, False], [False, False, False]])
    return (
        _draw(4, 6),
        (torch.tensor([[-20.0, 1.5, 2.0], [-40.0, -300.0, -999.0], [3.0, -1.0, 0.5]]), keeps_none),
        (torch.tensor([[-_LIMIT, _LIMIT, 0.0], [_LIMIT, 0.0, -_LIMIT]]), keeps_one),
        _draw(3, 5, size=300.0),
        _draw(7),
        _causal(),
        (torch.tensor([1.0, 2.5, -3.0]), torch.tensor([True, True, True])),
        (torch.tensor([[7.0], [-7.0]]), torch.tensor([[True], [False]])),
    )


@checker("2.4")
def masked_scores(ask: Ask) -> None:
    """Ask for each pair in FP16, BF16 and FP32, and put what comes back through softmax."""
    ask.in_words = lambda scores, keep: f"`masked_scores(<{tuple(scores.shape)}, {scores.dtype}>, keep)`"
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        for scores, keep in _pairs():
            case = _called(ask, scores.to(dtype), keep)
            for examine in (_examine_which, _examine_empty, _examine_nan, _examine_hidden, _examine_kept):
                examine(case)


def _called(ask: Ask, scores: torch.Tensor, keep: torch.Tensor) -> _Case:
    try:
        got = ask(scores, keep)
    except Contained as contained:
        if type(contained.error) is RuntimeError and _OVERFLOW in str(contained.error):
            _blame_the_fill(ask, scores, keep, f"raised `RuntimeError: {contained.error}`")
        raise
    call = ask.call
    if type(got) is torch.Tensor and got.dtype == torch.float32 != scores.dtype and got.shape == scores.shape:
        raise Mistake("promoted", call=call, got=got.dtype, want=scores.dtype)
    case = _Case(call, scores, keep, expect.tensor_like(call, got, scores))
    infinite = case.empty & (case.got == -math.inf)
    if infinite.any() and not _is_sum_with_lowest(case) and not case.got.isnan().any():
        _blame_the_fill(ask, scores, keep, "has -inf in a row that keeps nothing")
    return case


def _blame_the_fill(ask: Ask, scores: torch.Tensor, keep: torch.Tensor, seen: str) -> None:
    """Raise the `Mistake` of the number that hides scores; in FP32, where more fits, it can be seen."""
    shown = {"call": ask.call, "dtype": scores.dtype, "lowest": torch.finfo(scores.dtype).min}
    fill = _fill_in_fp32(ask, scores, keep)
    if fill is not None and _LOG_OF_SMALLEST < fill < 0:
        raise Mistake(
            "eps-vanishes", **shown, got=seen, fill=f"{fill:.3g}", eps=_power_of_ten(math.exp(fill))
        )
    if fill == -math.inf or (fill is not None and abs(fill) <= torch.finfo(scores.dtype).max):
        raise Mistake("minus-infinity", **shown, got=seen)
    if fill == torch.finfo(torch.float32).min:
        raise Mistake("lowest-of-fp32", **shown, got=seen)
    raise Mistake(
        "does-not-fit", **shown, got=seen, fill="What hides a score" if fill is None else f"{fill:g}"
    )


def _fill_in_fp32(ask: Ask, scores: torch.Tensor, keep: torch.Tensor) -> float | None:
    """Return the number that the same code gives to hidden FP32 scores of 0, if it is one and the same for all."""
    try:
        got = ask(torch.zeros_like(scores, dtype=torch.float32), keep)
    except (Contained, Mistake):
        return None
    if type(got) is not torch.Tensor or got.shape != keep.shape:
        return None
    filled = {number for number in got.flatten().tolist() if number != 0}
    return float(filled.pop()) if len(filled) == 1 else None


def _power_of_ten(number: float) -> str:
    return f"{number:.1g}".replace("e-0", "e-")


def _is_sum_with_lowest(case: _Case) -> bool:
    """Tell whether the lowest finite number was added to what is hidden: only some of the sums are infinite."""
    added = (case.scores + torch.finfo(case.scores.dtype).min)[~case.keep]
    return bool(added.isfinite().any() and torch.equal(case.got[~case.keep], added))


def _examine_which(case: _Case) -> None:
    """Recognise a mask that hides the wrong ones, or none, and weights in place of scores."""
    untouched = case.got == case.scores
    if case.hidden.any() and torch.equal(untouched, ~case.keep):
        raise case.mistake("inverted", case.keep)
    if case.hidden.any() and untouched.all():
        raise case.mistake("nothing-hidden", case.hidden)
    sums = case.got.float().sum(-1)
    if (
        case.got.numel() > 3
        and (case.got >= 0).all()
        and torch.isclose(sums, torch.tensor(1.0), atol=1e-2).all()
    ):
        raise Mistake("weights-returned", call=case.call, got=describe(case.got))


def _examine_empty(case: _Case) -> None:
    """A row that keeps nothing must be finite; any other -inf in it was told as soon as it came back."""
    infinite = case.empty & (case.got == -math.inf)
    if infinite.any() and _is_sum_with_lowest(case):
        raise case.mistake("adds-the-lowest", infinite, lowest=torch.finfo(case.scores.dtype).min)


def _examine_nan(case: _Case) -> None:
    """Neither the scores nor the weights may be NaN; of weights, point at the score that spoilt the row."""
    lost = case.weights.isnan()
    for where in (case.got.isnan(), lost & (case.got == math.inf), lost):
        if where.any():
            raise case.mistake("makes-nan", where)


def _examine_hidden(case: _Case) -> None:
    """What is hidden must weigh exactly 0."""
    weights = case.weights.masked_fill(~case.hidden, 0.0)
    if (weights != 0).any():
        diagnosis = "not-low-enough" if case.got[case.hidden].any() else "filled-with-zero"
        heaviest = weights == weights.max()
        raise case.mistake(diagnosis, heaviest, weight=f"{float(weights.max()):.3g}")


def _examine_kept(case: _Case) -> None:
    """Compare the weights of what is kept with those that it has without the rest."""
    alone = torch.softmax(case.scores.float().masked_fill(~case.keep, -math.inf), -1)
    weights = torch.softmax(case.got.float(), -1)
    error = (weights - alone).abs().masked_fill(~case.keep, 0.0)
    if (error > _ROUNDINGS * torch.finfo(case.scores.dtype).eps).any():
        worst = error == error.max()
        weight, want = (f"{float(each[worst][0]):.3g}" for each in (weights, alone))
        raise case.mistake("kept-changed", worst, weight=weight, want=want)
