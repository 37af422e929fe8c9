"""Lesson 02's checks from the inside: what is right, by brute force, and what they tell apart."""

import itertools
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from amp_lab.course import catalog
from amp_lab.course.judging.exercise import check_of, grade, judge
from amp_lab.course.judging.expect import Trial, alike
from amp_lab.course.judging.verdict import Raised, Stopped, Wrong
from amp_lab.course.lessons.l02 import log_softmax, masks, mean, nearness, norm, step

pytestmark = pytest.mark.long

WEIGHTS = [sign * size for size in step._ALL for sign in (1.0, -1.0)]
STEPS = torch.arange(1, 0x7C00, dtype=torch.int16).view(torch.float16)  # all that are positive and finite


def _sums(weights: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """Add in FP32, where sums near a tie are exact, and round to FP16."""
    return (weights + steps).half().float()


def test_every_smallest_step_moves_and_the_one_below_it_does_not() -> None:
    weights, steps = torch.tensor(WEIGHTS), torch.tensor([step._step(w) for w in WEIGHTS]).half()
    below = (steps.view(torch.int16) - 1).view(torch.float16)
    assert torch.equal(steps.double(), torch.tensor([step._step(w) for w in WEIGHTS]).double())
    assert (_sums(weights, steps.float()) != weights).all()
    assert (_sums(weights, below.float()) == weights).all()


def test_smallest_steps_are_right_by_brute_force() -> None:
    """Add every FP16 number there is, without the assumption that what is larger moves a weight, too.

    Every 13th weight, and those beside powers of two: all 30,722 were tried once, which takes half a minute.
    """
    near_powers = [
        w for w in WEIGHTS if abs(w) / 2 ** math.floor(math.log2(abs(w))) % 1 in (0, 2**-10, 1 - 2**-10)
    ]
    steps = STEPS.float()
    for some in torch.tensor(sorted({*WEIGHTS[::13], *near_powers})).split(256):
        moved = _sums(some[:, None], steps) != some[:, None]
        assert moved.any(1).all()
        assert steps[moved.int().argmax(1)].tolist() == [step._step(w) for w in some.tolist()]


def test_steps_added_in_fp16_itself_agree() -> None:
    for w in [case[0] for case in step._CASES]:
        start = torch.tensor(w).half()
        assert STEPS[start + STEPS != start][0].item() == step._step(w)


def test_what_the_texts_say_of_steps() -> None:
    assert step._step(1.0) == 2**-11 + 2**-21
    assert step._step(1 + 2**-10) == 2**-11
    assert step._step(-1.0) == 2**-12 + 2**-22
    assert f"{step._step(1.0):.2g}" == "0.00049"
    start = torch.tensor(0.01).half()
    needed = STEPS[start + STEPS != start][0].item()
    assert 125 < step._step(1.0) / needed < 131
    shares = [step._step(w) / w for w in step._ALL]
    assert 0.00024 < min(shares) < 0.00025 < max(shares) < 0.0005
    assert len({step._step(w) for w in WEIGHTS}) > 30


def test_all_weights_of_the_exercise_are_asked_for() -> None:
    assert (min(step._ALL), max(step._ALL), len(step._ALL)) == (1.0, 32768.0, 15 * 1024 + 1)
    assert sorted(w for batch in step._batches() for (w,) in batch) == sorted(WEIGHTS)
    powers, odd = {2.0**k for k in range(16)}, {w for w in step._ALL if not step._is_even(w)}
    sizes = {abs(w) for (w,) in step._CASES}
    assert len(sizes & powers) >= 3
    assert len(sizes & odd) >= 3
    assert {1.0, 32768.0} <= sizes <= set(step._ALL)


@pytest.mark.parametrize("weight", [1.25, -1.25, 17.0, -17.0, 2047.0, 32736.0, -16384.0, 1 + 2**-9])
def test_a_quick_answer_is_asked_for_every_weight(weight: float) -> None:
    verdict = grade("2.3", lambda w: 2 * step._step(w) if w == weight else step._step(w))
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "at-this-weight"
    assert verdict.observed["call"] == f"`smallest_effective_step({weight})`"


def test_a_slow_answer_is_asked_for_less_and_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    monkeypatch.setattr(step, "_FULL_SWEEP_S", 0.0)
    assert grade("2.3", lambda w: asked.append(w) or step._step(w)).passed
    assert len(step._CASES) <= len(asked) < 100
    asked.clear()
    monkeypatch.setattr(step, "_CASES_S", 0.0)
    assert grade("2.3", lambda w: asked.append(w) or step._step(w)).passed
    assert step._FEWEST <= len(asked) < step._FEWEST + 10


def test_few_weights_are_enough_to_tell_every_idea_about_a_step_from_what_is_right() -> None:
    few = step._CASES[: step._FEWEST]
    for name, idea in step._MISCONCEPTIONS:
        assert any(idea(*case) != step._step(*case) for case in few), name
    assert len(set(step._CASES)) == len(step._CASES) == 2 * len(step._SIZES)


def test_a_search_of_two_seconds_for_each_weight_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """All in a tenth of the time: the guard gives 20 seconds, so such a search must need less than 2 here."""
    monkeypatch.setattr(step, "_CASES_S", step._CASES_S / 10)
    monkeypatch.setattr(step, "_FULL_SWEEP_S", step._FULL_SWEEP_S / 10)

    def answer(w: float) -> float:
        time.sleep(0.2)
        return step._step(w)

    verdict = judge(catalog.exercise("2.3"), check_of("2.3"), answer, limit_s=2.0)
    assert verdict.passed, verdict.text


def test_any_order_of_adding_in_fp32_is_right_for_as_many_elements_as_the_task_names() -> None:
    """n additions are off by n/2 units of 2^-23 at most, and the root halves it; squares of FP16 are exact."""
    page = catalog.exercise("2.1")
    assert f"add up {norm._MOST} in any order" in page.why
    assert norm._MOST * 2.0**-24 / 2 + 2.0**-24 < norm._RTOL
    assert max(x.numel() for (x,) in norm._cases()) == norm._MOST
    for (x,) in norm._cases():
        total = torch.zeros(())
        for square in x.float().square().flatten():
            total = total + square
        assert nearness.is_near(float(total.sqrt()), norm._norm(x), norm._RTOL)


@pytest.mark.parametrize("factor", [64.0, 256.0, 1024.0, 4096.0])
def test_a_fixed_factor_loses_the_large_or_the_small(factor: float) -> None:
    verdict = grade("2.1", lambda x: (x / factor).square().float().sum().sqrt() * factor)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == ("small-lost" if factor > 128 else "leaves-the-range")


def test_a_total_in_fp32_loses_what_the_task_asks_for() -> None:
    (long,) = (case for case in mean._lists() if len(case[0]) > 300)
    batches = mean._long_in_fp32()
    assert torch.equal(torch.cat(long[0]), torch.cat(batches))
    total = torch.zeros(())
    for batch in batches:
        total = total + batch.sum(dtype=torch.float32)
    error = abs(total.item() / mean._count(batches) / mean._mean(batches) - 1)
    assert 10 * mean._RTOL < error < mean._IN_FP32


def test_what_is_shown_of_a_result_in_fp16_is_finite() -> None:
    verdict = grade("2.2", lambda x, dim: torch.log_softmax(x, dim).float())
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "result-in-fp16"
    assert math.isfinite(float(str(verdict.observed["got"])))


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("whole", [True, False])
def test_a_missing_logarithm_is_told_by_a_number(half: bool, whole: bool) -> None:
    def answer(x: torch.Tensor, dim: int) -> torch.Tensor:
        exp = (x if half else x.float()).exp()
        return (exp if whole else exp / exp.sum(dim, keepdim=True)).float()

    verdict = grade("2.2", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "no-log"
    assert float(str(verdict.observed["got"])) > 0


def test_the_score_that_spoils_a_row_is_shown() -> None:
    verdict = grade("2.4", lambda scores, keep: torch.where(keep, scores, scores * 1e9))
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "makes-nan"
    assert verdict.observed["got"] == "inf"


@pytest.mark.parametrize(("eps", "words"), [(1e-8, "1e-8"), (1e-10, "1e-10"), (2e-8, "2e-8")])
def test_the_eps_that_vanishes_is_told(eps: float, words: str) -> None:
    verdict = grade("2.4", lambda scores, keep: scores + (keep.to(scores.dtype) + eps).log())
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "eps-vanishes"
    assert f"the logarithm of {words}." in verdict.sentence


@pytest.mark.parametrize("places", range(6))
def test_rounded_means_are_told(places: int) -> None:
    for verdict, words in (
        (grade("2.5", lambda batches: round(_adds(batches), places)), f"to {places} places."),
        (grade("2.5", lambda batches: float(f"{_adds(batches):.{places}e}")), f"to {places + 1} digits."),
    ):
        assert isinstance(verdict, Wrong) or (places == 5 and "digits" in words)
        assert verdict.passed or words in verdict.sentence


def _distinct(
    trials: Callable[[Any], list[Any]], named: list[tuple[str, Any]], near: Callable[[Any, Any], bool]
) -> None:
    shown = [(name, trials(idea)) for name, idea in named]
    for (name, one), (other_name, other) in itertools.combinations(shown, 2):
        if name != other_name:
            assert not all(map(near, one, other)), f"{name} and {other_name} cannot be told apart"


def test_no_two_ideas_about_a_step_look_alike() -> None:
    def trials(idea: Any) -> list[Any]:
        return [idea(*case) for case in step._CASES]

    _distinct(trials, [("right", step._step), *step._MISCONCEPTIONS], alike)


def test_no_idea_about_a_mean_looks_right_or_like_another() -> None:
    def trials(idea: Any) -> list[Any]:
        return [idea(*case) for case in mean._lists() if not mean._has_empty(case[0])]

    _distinct(trials, [("right", mean._mean), *mean._IDEAS], nearness.is_near)


def test_no_idea_about_a_norm_looks_right() -> None:
    """Some lose the same range and differ in the last digits only; but each must differ from what is right."""
    cases = norm._cases()
    others = [(name, idea) for name, idea in norm._OTHER_NORMS]
    for name, idea in (*norm._TOO_NARROW, *others):
        assert not all(nearness.is_near(idea(*case), norm._norm(*case)) for case in cases), name
    _distinct(
        lambda idea: [idea(*case) for case in cases],
        [("right", norm._norm), *others, norm._TOO_NARROW[0], norm._TOO_NARROW[5], norm._TOO_NARROW[-1]],
        nearness.is_near,
    )


def test_no_two_ideas_about_log_softmax_look_alike() -> None:
    def near(one: torch.Tensor, other: torch.Tensor) -> bool:
        return log_softmax._is_near(one, other, log_softmax._LOOSE_RTOL, log_softmax._LOOSE_ATOL)

    dims = [("another-dim", idea) for _, idea in log_softmax._OTHER_DIMS]
    # Without its maximum, or with a wrong one, a quotient may lose the same places: it is told by other cases.
    ideas = [("right", log_softmax._right), *dims, *log_softmax._IDEAS]
    cases = [case for case in log_softmax._cases() if case[0].dim() > 1]
    _distinct(lambda idea: [idea(*case) for case in cases], ideas, near)


@pytest.mark.parametrize("number", range(len(norm._cases())))
def test_every_case_of_the_norm_counts(number: int) -> None:
    (x,) = norm._cases()[number]

    def answer(given: torch.Tensor) -> torch.Tensor:
        right = given.float().norm()
        return right * 1.0001 + 1e-30 if given.shape == x.shape and torch.equal(given, x) else right

    assert not grade("2.1", answer).passed


@pytest.mark.parametrize("number", range(len(log_softmax._cases())))
def test_every_case_of_log_softmax_counts(number: int) -> None:
    x, dim = log_softmax._cases()[number]

    def answer(given: torch.Tensor, given_dim: int) -> torch.Tensor:
        right = torch.log_softmax(given.float(), given_dim)
        chosen = given.shape == x.shape and given_dim == dim and torch.equal(given, x)
        return right * 1.0001 + 2e-5 if chosen else right

    assert not grade("2.2", answer).passed


@pytest.mark.parametrize("number", range(len(mean._lists())))
def test_every_case_of_the_mean_counts(number: int) -> None:
    want = mean._mean(mean._lists()[number][0])

    def answer(batches: Any) -> float:
        kept = list(batches)
        if not mean._count(kept):
            raise ValueError
        got = mean._mean(kept)
        return got * 1.00001 if got == want else got

    assert not grade("2.5", answer).passed


def _hides(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(~keep, torch.finfo(scores.dtype).min)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("number", range(len(masks._pairs())))
def test_every_mask_counts_in_every_dtype(number: int, dtype: torch.dtype) -> None:
    scores, _ = masks._pairs()[number]

    def answer(given: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
        right = _hides(given, kept)
        if given.dtype == dtype and torch.equal(given, scores.to(dtype)):
            right[..., 0] += torch.nan
        return right

    assert not grade("2.4", answer).passed


def test_masks_have_every_kind_of_row() -> None:
    rows = [row for _, keep in masks._pairs() for row in keep.reshape(-1, keep.shape[-1])]
    assert any(row.all() for row in rows)
    assert any(not row.any() for row in rows)
    assert any(row.sum() == 1 and len(row) > 2 for row in rows)
    assert {keep.dim() for _, keep in masks._pairs()} == {1, 2, 4}
    assert all(scores.abs().max() <= masks._LIMIT for scores, _ in masks._pairs())
    assert all(
        torch.equal(scores, scores.clone()) and scores.shape == keep.shape for scores, keep in masks._pairs()
    )


@pytest.mark.parametrize(
    ("fill", "words"), [(-1e5, "-100000 is"), (-70000.0, "-70000 is"), (-1e38, "-1e+38 is")]
)
@pytest.mark.parametrize("quiet", [True, False])
def test_the_number_that_does_not_fit_is_told(fill: float, words: str, quiet: bool) -> None:
    def answer(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return torch.where(keep, scores, fill) if quiet else scores.masked_fill(~keep, fill)

    verdict = grade("2.4", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "does-not-fit"
    assert words in verdict.sentence
    assert ("-inf in a row" if quiet else "without overflow") in verdict.sentence


def test_a_number_that_does_not_fit_is_told_even_if_it_cannot_be_seen() -> None:
    def answer(scores: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        if scores.dtype != torch.float16:
            raise ArithmeticError
        return scores.masked_fill(~keep, -1e9)

    verdict = grade("2.4", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "does-not-fit"
    assert "What hides a score is too much" in verdict.sentence


def test_another_error_about_a_mask_is_told_as_it_is() -> None:
    verdict = grade("2.4", lambda scores, keep: scores.masked_fill(~keep, "low"))
    assert type(verdict) is Raised
    assert "TypeError" in verdict.sentence


@pytest.mark.parametrize("error", [ValueError, ZeroDivisionError, IndexError, StopIteration])
def test_an_error_with_a_generator_only_is_a_second_walk(error: type[Exception]) -> None:
    def answer(batches: Any) -> float:
        if type(batches) is not list:
            raise error("nothing left")
        return _adds(batches)

    verdict = grade("2.5", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "walks-twice"
    assert error.__name__ in verdict.sentence


def _adds(batches: Any) -> float:
    kept = list(batches)
    if not mean._count(kept):
        raise ValueError
    return mean._mean(kept)


def test_an_endless_loop_over_a_generator_is_stopped() -> None:
    def answer(batches: Any) -> float:
        while type(batches) is not list:
            pass
        return _adds(batches)

    verdict = judge(catalog.exercise("2.5"), check_of("2.5"), answer, limit_s=1.0)
    assert isinstance(verdict, Stopped)


@pytest.mark.parametrize("share", [0.5, 0.1, 0.9, 0.01])
@pytest.mark.parametrize("start", ["first", "zero"])
def test_moving_averages_are_recognised(share: float, start: str) -> None:
    verdict = grade("2.5", lambda batches: mean._moving(start, share)(list(batches)))
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "moving-average"


@pytest.mark.parametrize("bound", [10.0, 50.0, 80.0, 100.0, 1000.0])
def test_the_bound_of_clamped_logits_is_told(bound: float) -> None:
    verdict = grade("2.2", lambda x, dim: torch.log_softmax(x.float().clamp(-bound, bound), dim))
    assert isinstance(verdict, Wrong)
    assert (verdict.diagnosis, verdict.observed["bound"]) == ("clamped", f"{bound:.4g}")


@pytest.mark.parametrize("eps", [1e-6, 1e-8, 1e-12, 1e-30])
def test_the_floor_of_a_logarithm_is_told(eps: float) -> None:
    verdict = grade("2.2", lambda x, dim: (x.float().softmax(dim) + eps).log())
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "floor"
    assert f"{math.log(eps):.5g}"[:5] in verdict.sentence


def test_a_log_sum_is_swallowed_by_a_large_maximum_and_only_then() -> None:
    large, small = torch.full((3,), 65504.0), torch.tensor([1.5, -2.0, 3.0])
    for x, largest, least in ((large, 1e-2, 5e-4), (small, 1e-5, 0.0)):
        error = (x - x.logsumexp(0) - torch.log_softmax(x.double(), 0)).abs().max()
        assert least <= error < largest


def _spoilt(x: torch.Tensor, *, at: float, by: float) -> torch.Tensor:
    return torch.where(x.float() == at, x.float() * by, x.float())


def test_a_norm_that_forgets_one_element_is_wrong() -> None:
    for at in (2.0**-24, 65504.0):
        assert type(grade("2.1", lambda x, at=at: _spoilt(x, at=at, by=0.0).norm())) is Wrong


def test_needed_exponents_are_as_the_sentence_says() -> None:
    for dtype, first in ((torch.float16, 12), (torch.float32, 89), (torch.float64, 710)):
        assert torch.tensor(first, dtype=dtype).exp().isinf()
        assert torch.tensor(first - 1, dtype=dtype).exp().isfinite()


def _sentences() -> Iterator[tuple[str, str]]:
    for exercise in catalog.lesson("02").exercises:
        for name, diagnosis in exercise.diagnoses.items():
            yield f"{exercise.id} {name}", diagnosis.sentence


@pytest.mark.parametrize(("name", "sentence"), [*_sentences()])
def test_sentences_begin_with_the_call_and_end_with_a_full_stop(name: str, sentence: str) -> None:
    assert sentence.startswith("{call} ")
    assert sentence.removesuffix(" {row}").removesuffix(" {why}").endswith((".", "?")), name


def test_the_trial_that_catches_the_eye_is_shown() -> None:
    trials = [
        Trial("right", (), 1.0, 1.0),
        Trial("near", (), 1.001, 1.0),
        Trial("far", (), 2.0, 1.0),
        Trial("infinite", (), math.inf, 1.0),
    ]
    assert nearness.shown(trials)["call"] == "infinite"
    assert nearness.shown(trials[:3])["call"] == "far"
    assert nearness.shown(trials[:2]) == {"call": "near", "got": "1.001", "want": "1"}


def test_nearness() -> None:
    assert nearness.is_near(math.nan, math.nan)
    assert nearness.is_near(math.inf, math.inf)
    assert nearness.is_near(1.004, 1.0)
    assert not nearness.is_near(1.0, math.inf)
    assert not nearness.is_near(-math.inf, math.inf)
    assert not nearness.is_near(1.0, math.nan)
    assert not nearness.is_near(1.006, 1.0)
    assert not nearness.is_near(1e-9, 0.0)
    assert nearness.snapped(1.000001, 1.0, 1e-5) == 1.0
    assert nearness.snapped(1.0001, 1.0, 1e-5) == 1.0001
