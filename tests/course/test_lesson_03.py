"""Lesson 03 from the inside: what its checks tell apart, and what its page says of PyTorch and of the formats."""

import itertools
import math
import re
import struct
from typing import Any

import pytest
import torch
from torch import nn

from amp_lab.autocast import emulate
from amp_lab.course.judging.exercise import grade
from amp_lab.course.judging.expect import Region, alike
from amp_lab.course.judging.verdict import Raised, Wrong
from amp_lab.course.lessons.l03 import accumulation, masters, trainee, underflow
from amp_lab.train.data import digits
from tests.course.answers import l03

pytestmark = pytest.mark.long

REGIONS = [
    *((accumulation._exact, each) for each in accumulation._REGIONS[1:]),
    *((underflow._right, each) for each in underflow._REGIONS),
]


# The checks


@pytest.mark.parametrize(("right", "region"), REGIONS)
def test_every_misconception_shows_and_no_two_look_alike(right: Any, region: Region) -> None:
    answers = [("right", right), *region.misconceptions]
    shown = [(name, [answer(*case) for case in region.cases]) for name, answer in answers]
    for (name, one), (other_name, other) in itertools.combinations(shown, 2):
        if name != other_name:
            assert not all(map(alike, one, other)), f"{name} and {other_name} cannot be told apart"


def test_square_matrices_tell_the_products_apart() -> None:
    square, _ = accumulation._REGIONS[0].cases
    products = [answer(*square) for _, answer in accumulation._REGIONS[0].misconceptions]
    for one, other in itertools.combinations([accumulation._exact(*square), *products], 2):
        assert not torch.equal(one, other)


@pytest.mark.parametrize("region", accumulation._REGIONS)
def test_sums_of_the_exact_cases_are_exact_in_fp32_in_any_order(region: Region) -> None:
    for a, b in region.cases:
        products = (a.double()[:, :, None] * b.double()[None]).permute(1, 0, 2)
        sizes = products.abs().sum(0)
        steps = products[products != 0].abs().log2()
        finest = 2.0 ** (math.floor(steps.min().item()) - 20)
        assert torch.equal(products, products.float().double())
        assert (sizes / finest).max() < 2**53
        forwards = products.float().cumsum(0)[-1]
        backwards = products.float().flip(0).cumsum(0)[-1]
        wanted = accumulation._exact(a, b)
        for total in (forwards, backwards, products.float().sum(0)):
            assert torch.equal(total.half(), wanted)


@pytest.mark.parametrize(
    "tile", [2, 3, 4, 8, 16, 32, 48, 64, 100, 128, 256, 512, 1000, 1024, 2048, 4095, 4096, 8191, 8192, 16383]
)
@pytest.mark.parametrize("total", [torch.float16, torch.float32])
def test_no_tile_is_so_large_that_its_rounding_is_not_seen(tile: int, total: torch.dtype) -> None:
    def answer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        tiles = zip(a.float().split(tile, dim=1), b.float().split(tile), strict=True)
        result = torch.zeros(a.shape[0], b.shape[1], dtype=total)
        for x, y in tiles:
            result += (x @ y).half()
        return result.half()

    verdict = grade("3.1", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "rounds-partial-sums"


@pytest.mark.parametrize("stride", [2, 3, 4, 8, 16, 64])
def test_pieces_that_are_no_blocks_are_seen_too(stride: int) -> None:
    def answer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (
            torch.stack([a[:, n::stride].float() @ b[n::stride].float() for n in range(stride)]).half().sum(0)
        )

    verdict = grade("3.1", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "rounds-partial-sums"


@pytest.mark.parametrize("name", l03.tensor_core_matmul.right_answers)
def test_right_products_pass_under_emulation(name: str) -> None:
    with emulate.tensor_cores(always=True):
        verdict = grade("3.1", l03.tensor_core_matmul.right_answers[name])
    assert verdict.passed, verdict.text


@pytest.mark.parametrize(("name", "wrong"), l03.tensor_core_matmul.wrong_answers.items())
def test_wrong_products_get_the_same_diagnosis_under_emulation(name: str, wrong: tuple[Any, str]) -> None:
    answer, diagnosis = wrong
    with emulate.tensor_cores(always=True):
        verdict = grade("3.1", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == diagnosis


def test_distance_in_fp16_numbers() -> None:
    one = torch.tensor([1.0, 65504.0, 2.0**-24]).half()
    other = torch.tensor([1 + 2.0**-9, math.inf, 0.0]).half()
    assert accumulation.steps_apart(one, other).tolist() == [2, 1, 1]


@pytest.mark.parametrize("steps", [2, 5])
def test_the_distance_of_a_random_sum_is_told(steps: int) -> None:
    def answer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        result = (a.float() @ b.float()).half()
        if a.shape == (3, 1024):
            result[1, 1] = (result[1, 1].view(torch.int16) + steps).view(torch.float16)
        return result

    verdict = grade("3.1", answer)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "rounds-often"
    assert steps - 1 <= verdict.observed["steps"] <= steps + 1


def test_one_step_of_fp16_is_allowed() -> None:
    def answer(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        exact = accumulation._exact(a, b)
        return (
            (exact.view(torch.int16) + 1).view(torch.float16)
            if a.shape[0] == 3 and a.shape[1] >= 512
            else exact
        )

    assert grade("3.1", answer).passed


def test_infinity_and_negative_sums_are_wrong_where_sums_are_positive() -> None:
    for wrong in (math.inf, -1.0, math.nan, 0.0):

        def answer(a: torch.Tensor, b: torch.Tensor, wrong: float = wrong) -> torch.Tensor:
            return accumulation._exact(a, b) if a.shape != (3, 512) else accumulation._filled(wrong)(a, b)

        assert type(grade("3.1", answer)) is Wrong


def test_sums_of_both_signs_are_looked_at() -> None:
    verdict = grade("3.1", lambda a, b: accumulation._exact(a, b) * (-1 if a.shape == (2, 513) else 1))
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "wrong-element"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_not_rounded_is_told_with_its_dtype(dtype: torch.dtype) -> None:
    verdict = grade("3.1", lambda a, b: a.to(dtype) @ b.to(dtype))
    assert isinstance(verdict, Wrong)
    assert str(dtype) in verdict.sentence


class _Right:
    """Plain descent on masters, for slips to be built on."""

    def __init__(self, params: Any) -> None:
        self.params = list(params)
        self.masters = [each.detach().clone().float() for each in self.params]

    @torch.no_grad()
    def step(self, lr: float) -> None:
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master)


def test_the_class_for_slips_is_right() -> None:
    assert grade("3.2", _Right).passed


CASES = (
    "two_steps",
    "many_small_steps",
    "small_product",
    "without_gradient",
    "generator",
    "scribbles",
    "scribbles_that_spread",
    "beyond_fp16",
    "not_finite",
    "like_training",
)


@pytest.mark.parametrize("case", CASES)
def test_every_case_of_the_masters_is_needed(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a case, some wrong answer of the bank gets another diagnosis, or passes."""
    monkeypatch.setattr(masters, f"_{case}", lambda ask: None)
    changed = [
        name
        for name, (answer, diagnosis) in l03.master_weights.wrong_answers.items()
        if getattr(grade("3.2", answer), "diagnosis", None) != diagnosis
    ]
    assert changed


def test_steps_are_taken_in_the_size_that_is_given() -> None:
    class Halves(_Right):
        def step(self, lr: float) -> None:
            super().step(lr / 2 if lr == 0.03 else lr)

    verdict = grade("3.2", Halves)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "wrong-master"
    assert "`step(0.03)`" in verdict.sentence


def test_the_start_the_gradient_and_the_end_of_one_entry_are_told() -> None:
    class Shifts(_Right):
        @torch.no_grad()
        def step(self, lr: float) -> None:
            super().step(lr)
            if self.params[0].dim() == 2:
                self.params[0][1, 2] += 1

    verdict = grade("3.2", Shifts)
    assert isinstance(verdict, Wrong)
    assert verdict.diagnosis == "parameter-not-master"
    told = re.search(
        r"`w\[1, 2\]` = (\S+) .*, then gradient (\S+), then `step\(0.1\)`: `w\[1, 2\]` is", verdict.sentence
    )
    assert told is not None
    start, gradient = map(float, told.groups())
    got, want = (float(verdict.observed[each]) for each in ("got", "want"))
    assert want == pytest.approx(start - 0.1 * gradient, abs=1e-3)
    assert got == pytest.approx(want + 1, abs=1e-3)


def test_an_error_for_a_parameter_without_dimensions_is_told_with_its_shape() -> None:
    class Slices(_Right):
        def step(self, lr: float) -> None:
            super().step(lr)
            for each, master in zip(self.params, self.masters, strict=True):
                each.data[:] = master

    verdict = grade("3.2", Slices)
    assert type(verdict) is Raised
    assert "(FP16, shape (), no gradient)" in verdict.sentence


def test_a_parameter_without_gradient_may_wait_for_its_own_step_or_be_put_right_at_once() -> None:
    given = nn.Parameter(torch.ones(2).half())
    once, later = l03.CopiesAllOfThemBack([given]), l03.SubtractsAndCopies([given])
    with torch.no_grad():
        given.fill_(7)
    later.step(0.1)
    assert (given == 7).all()
    once.step(0.1)
    assert (given == 1).all()
    assert {"CopiesAllOfThemBack", "SubtractsAndCopies"} <= l03.master_weights.right_answers.keys()


def test_a_stub_in_step_alone_is_told_as_an_error() -> None:
    class Half(_Right):
        def step(self, lr: float) -> None:
            raise NotImplementedError

    verdict = grade("3.2", Half)
    assert type(verdict) is Raised
    assert "step(0.5)" in verdict.sentence


def test_an_error_that_has_nothing_to_do_with_none_is_told_as_it_is() -> None:
    class Asserts(_Right):
        def step(self, lr: float) -> None:
            assert lr < 0.01, "too large a step"

    verdict = grade("3.2", Asserts)
    assert type(verdict) is Raised
    assert "too large a step" in verdict.sentence


def test_a_function_that_returns_such_an_object_will_do() -> None:
    assert grade("3.2", lambda params: _Right(params)).passed


def test_depth_of_a_history() -> None:
    leaf = torch.ones(2, requires_grad=True)
    assert trainee._depth(leaf) == 0
    assert trainee._depth(leaf.float()) == 0
    assert trainee._depth((leaf * 2).double()) == 3  # two operations, and the leaf that they lead to


@pytest.mark.parametrize("limit", [2.0**-n for n in (10, 14, 17, 20, 23, 24, 26, 28, 40)])
@pytest.mark.parametrize("with_limit", [True, False])
def test_no_other_limit_passes(limit: float, with_limit: bool) -> None:
    assert type(grade("3.3", underflow._below(limit, with_limit=with_limit))) is Wrong


@pytest.mark.parametrize(
    "limit", [2.97e-8, 2.98e-8, 2.9802e-8, 2.9803e-8, 2.981e-8, 2.99e-8, 3e-8, 3.3e-8, 4e-8]
)
def test_no_decimal_near_the_limit_passes(limit: float) -> None:
    assert type(grade("3.3", underflow._below(limit, with_limit=True))) is Wrong


def test_a_cast_that_refuses_large_numbers_is_told_as_an_error() -> None:
    def answer(grads: torch.Tensor) -> float:
        numbers = [each for each in grads.flatten().tolist() if each != 0]
        return sum(not any(struct.pack("<e", abs(each))) for each in numbers) / max(len(numbers), 1)

    verdict = grade("3.3", answer)
    assert type(verdict) is Raised
    assert "OverflowError" in verdict.sentence
    assert "100000" in verdict.sentence


def test_the_large_gradient_has_more_entries_than_sixteen_bits_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        underflow, "_judge_large", lambda ask, grads: seen.append(grads.count_nonzero().item())
    )
    grade("3.3", underflow._right)
    assert seen[0] > 65535


def test_the_limit_itself_passes() -> None:
    assert grade("3.3", underflow._below(2.0**-25, with_limit=True)).passed


def test_shares_of_the_first_cases_are_exact_in_fp32() -> None:
    for region in underflow._REGIONS:
        for (grads,) in region.cases:
            counts = grads.numel(), int((grads != 0).sum())
            assert all(count & (count - 1) == 0 for count in counts)


# What the page, the words and the hints say


def test_products_of_fp16_numbers_are_exact_in_fp32() -> None:
    draw = torch.Generator().manual_seed(0)
    patterns = torch.randint(0, 0x7C00, (2, 10**5), generator=draw, dtype=torch.int16)
    a, b = patterns.view(torch.float16)
    assert torch.equal((a.float() * b.float()).double(), a.double() * b.double())


def test_float_copies_nothing_where_nothing_changes() -> None:
    single, half = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2).half())
    assert single.float() is single
    assert single.to(torch.float32) is single
    assert single.detach().float().data_ptr() == single.data_ptr()
    assert half.detach().float().data_ptr() != half.data_ptr()


def test_a_step_with_alpha_is_computed_in_fp32() -> None:
    master, grad = torch.tensor([2.0**-6]), torch.tensor([2.0**-20]).half()
    assert (2.0**-6 * grad).item() == 0
    assert master.sub(grad, alpha=2.0**-6).item() == 2.0**-6 - 2.0**-26


def test_errors_of_two_signs_average_out_and_lost_steps_do_not() -> None:
    """The reason the page gives: gradients in FP16 are wrong to both sides."""
    images, labels = digits(128)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    nn.functional.cross_entropy(model(images), labels).backward()
    want = torch.cat([each.grad.flatten() for each in model.parameters()])
    model.zero_grad()
    half = model.half()
    with emulate.tensor_cores():
        nn.functional.cross_entropy(half(images.half()), labels).backward()
    got = torch.cat([each.grad.float().flatten() for each in half.parameters()])
    wrong = (got - want)[want != 0].sign()
    assert abs(wrong.mean().item()) < 0.2
