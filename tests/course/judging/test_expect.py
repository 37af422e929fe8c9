"""What `expect` accepts, and what it says of the rest."""

import decimal
import fractions
import math
from typing import Any

import numpy as np
import pytest
import torch

from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.expect import (
    Mistake,
    Region,
    Trial,
    alike,
    number,
    recognise,
    region_by_region,
    tensor,
    whole_number,
)

CALL = "`f(2)`"


@pytest.mark.parametrize("got", [24, np.int64(24), np.uint8(24)])
def test_whole_number_takes_ints_of_python_and_numpy(got: object) -> None:
    number = whole_number(CALL, got, 24)
    assert type(number) is int
    assert number == 24


@pytest.mark.parametrize(
    "got", [24.0, True, "24", np.float64(24), np.bool_(True), torch.tensor(24), [24], 24 + 0j]
)
def test_whole_number_refuses_what_only_equals_one(got: object) -> None:
    with pytest.raises(Mistake) as caught:
        whole_number(CALL, got, 24)
    assert caught.value.diagnosis == "wrong-type"
    assert caught.value.observed["got"] == describe(got)


def test_whole_number_refuses_none_as_a_missing_return() -> None:
    with pytest.raises(Mistake) as caught:
        whole_number(CALL, None, 24)
    assert caught.value.diagnosis == "returned-none"


class AlwaysEqual(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_an_answer_that_claims_to_equal_everything_is_refused() -> None:
    with pytest.raises(Mistake) as caught:
        whole_number(CALL, AlwaysEqual(3), 24)
    assert caught.value.diagnosis == "wrong-type"


@pytest.mark.parametrize(
    ("got", "read"),
    [
        (0.5, 0.5),
        (2, 2),
        (2**2000, 2**2000),
        (-0.0, -0.0),
        (math.nan, math.nan),
        (np.float16(0.5), 0.5),
        (np.float32(0.1), float(np.float32(0.1))),
        (np.float64(0.1), 0.1),
        (np.longdouble(0.5), 0.5),
        (np.uint8(7), 7),
    ],
)
def test_number_takes_those_of_python_and_numpy(got: Any, read: float) -> None:
    taken = number(CALL, got, 0.5)
    assert type(taken) is type(read)
    assert alike(taken, read)


@pytest.mark.parametrize(
    ("got", "words"),
    [
        ("0.5", "Which step"),
        (True, "A comparison gives"),
        (0.5 + 0j, "no whole number is complex"),
        (np.complex128(1), "no whole number is complex"),
        (fractions.Fraction(1, 2), "float(...)"),
        (decimal.Decimal("0.5"), "float(...)"),
        (torch.tensor(0.5), ".item()"),
        (torch.tensor([[0.5]]), ".item()"),
        (torch.ones(2), "Reduce it"),
        (np.array([0.5]), ".item()"),
        (np.ones(2), "Which step"),
    ],
)
def test_number_refuses_the_rest_with_the_likely_reason(got: object, words: str) -> None:
    with pytest.raises(Mistake, match="wrong-type") as caught:
        number(CALL, got, 0.5)
    assert words in str(caught.value.observed["advice"])
    assert caught.value.observed["want"] == "a number (`float`), here 0.5"


class FloatOfTheirOwn(float):
    pass


def test_a_number_of_a_class_of_their_own_is_shown_with_the_way_out() -> None:
    with pytest.raises(Mistake, match="wrong-type") as caught:
        number(CALL, FloatOfTheirOwn(0.5), 0.5)
    seen = caught.value.observed
    assert (seen["got"], seen["kind"]) == ("0.5", "a `FloatOfTheirOwn`")
    assert "float(...)" in str(seen["advice"])
    with pytest.raises(Mistake, match="wrong-type") as caught:
        whole_number(CALL, AlwaysEqual(3), 24)
    assert caught.value.observed["got"] == "3"
    assert "int(...)" in str(caught.value.observed["advice"])


def test_number_refuses_none_as_a_missing_return() -> None:
    with pytest.raises(Mistake, match="returned-none"):
        number(CALL, None, 0.5)


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (np.ones(1), "torch.from_numpy"),
        ([1.0], "torch.tensor"),
        (1.0, "Which step"),
        (lambda: 1, "parentheses missing"),
    ],
)
def test_what_is_no_tensor_gets_advice_about_tensors(got: object, words: str) -> None:
    with pytest.raises(Mistake, match="wrong-type") as caught:
        tensor(CALL, got, torch.ones(1))
    assert words in str(caught.value.observed["advice"])


NAN, MINUS_NAN = torch.tensor([0x7FC00000, -1], dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.5, 0.5),
        (2, 2.0),
        (0, 0.0),
        (math.nan, -math.nan),
        (-0.0, -0.0),
        (math.inf, math.inf),
        (torch.float16, torch.half),
        ((1.0, math.nan), (1, math.nan)),
        (NAN, MINUS_NAN),
        (torch.tensor([-0.0, 1.0]), torch.tensor([-0.0, 1.0])),
        (torch.tensor([1, 2]), torch.tensor([1, 2])),
        (torch.tensor([1.0]).to(torch.float8_e5m2), torch.tensor([1.0]).to(torch.float8_e5m2)),
        (torch.empty(0, 3), torch.empty(0, 3)),
        (0j, 0j),
    ],
)
def test_alike(one: Any, other: Any) -> None:
    assert alike(one, other)
    assert alike(other, one)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (0.5, 0.25),
        (0.0, -0.0),
        (0, -0.0),
        (math.nan, 1.0),
        (math.nan, None),
        (math.inf, -math.inf),
        (2**53 + 1, 2.0**53),  # Python does not round the int to compare it
        ((1.0,), (1.0, 2.0)),
        ((1.0, 0.0), (1.0, -0.0)),
        (torch.tensor([0.0]), torch.tensor([-0.0])),
        (torch.tensor([1.0]), torch.tensor([math.nan])),
        (torch.tensor([1.0]), torch.tensor([1.0]).half()),
        (torch.tensor([1.0]), torch.tensor(1.0)),
        (torch.tensor([1.0]), torch.tensor([1.0, 1.0])),
        (torch.tensor(1.0), 2.0),
    ],
)
def test_not_alike(one: Any, other: Any) -> None:
    assert not alike(one, other)
    assert not alike(other, one)


REGIONS = (
    Region(((2,), (4,)), (("doubles", lambda n: 2 * n),)),
    Region(((-3,), (-5,)), (("doubles", lambda n: 2 * n), ("sign", lambda n: -n * n))),
)


@pytest.mark.parametrize(
    ("answer", "diagnosis", "call"),
    [
        (lambda n: 2 * n, "doubles", "`f(4)`"),
        (lambda n: n * abs(n), "sign", "`f(-3)`"),
        (lambda n: 2 * n if n > 0 else -n * n, "doubles", "`f(4)`"),  # both: the first region counts
        (lambda n: n * n + (n == -5), "wrong-value", "`f(-5)`"),
    ],
)
def test_region_by_region_one_idea_does_not_hide_another(answer: Any, diagnosis: str, call: str) -> None:
    trials = [Trial(f"`f({n})`", (n,), answer(n), n * n) for region in REGIONS for (n,) in region.cases]
    with pytest.raises(Mistake, match=diagnosis) as caught:
        region_by_region(REGIONS)(trials)
    assert caught.value.observed["call"] == call


def test_region_by_region_lets_right_trials_pass_and_needs_not_all() -> None:
    right = [Trial(f"`f({n})`", (n,), n * n, n * n) for n in (2, 4, -3)]
    region_by_region(REGIONS)(right)
    region_by_region(REGIONS)([])


def _diagnosis(got: object, want: torch.Tensor, **tolerance: float) -> str | None:
    try:
        tensor(CALL, got, want, **tolerance)
    except Mistake as mistake:
        return mistake.diagnosis
    return None


WANT = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    ("got", "diagnosis"),
    [
        (torch.tensor([1.0, 2.0]), None),
        (torch.nn.Parameter(torch.tensor([1.0, 2.0])), None),
        (None, "returned-none"),
        ([1.0, 2.0], "wrong-type"),
        (np.array([1.0, 2.0], dtype=np.float32), "wrong-type"),
        (torch.tensor([1.0, 2.0], dtype=torch.float64), "wrong-dtype"),
        (torch.tensor([1.0, 2.0], dtype=torch.float16), "wrong-dtype"),
        (torch.tensor([[1.0, 2.0]]), "wrong-shape"),
        (torch.tensor([1.0]), "wrong-shape"),
        (torch.tensor(1.0), "wrong-shape"),
        (torch.tensor([1.0, math.nan]), "not-finite"),
        (torch.tensor([math.inf, 2.0]), "not-finite"),
        (torch.tensor([1.0, 2.0000002]), "wrong-element"),
        (torch.empty(2, device="meta"), "wrong-device"),
        (torch.tensor([1.0, 2.0]).to_sparse(), "wrong-type"),
    ],
)
def test_tensor_holds_dtype_shape_and_values_exactly(got: object, diagnosis: str | None) -> None:
    assert _diagnosis(got, WANT) == diagnosis


def test_tensor_wants_nan_and_infinity_where_they_belong() -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, 1.0])
    assert _diagnosis(special.clone(), special) is None
    assert _diagnosis(torch.tensor([math.nan, -math.inf, math.inf, 1.0]), special) == "wrong-element"
    assert _diagnosis(torch.tensor([0.0, math.inf, -math.inf, 1.0]), special) == "wrong-element"


def test_tensor_tolerance_is_relative_to_what_is_right() -> None:
    assert _diagnosis(torch.tensor([1.0, 2.02]), WANT, rtol=0.011) is None
    assert _diagnosis(torch.tensor([1.0, 2.03]), WANT, rtol=0.011) == "wrong-element"
    assert _diagnosis(torch.tensor([1.5, 2.0]), WANT, atol=0.5) is None


def test_tensor_compares_integers_beyond_fp64_exactly() -> None:
    big = torch.tensor([2**60])
    assert _diagnosis(torch.tensor([2**60 + 1]), big) == "wrong-element"
    assert _diagnosis(torch.tensor([2**60]), big) is None


@pytest.mark.parametrize(
    ("got", "want", "seen", "right", "place", "share"),
    [
        ([0.1000001], [0.1], "0.1000001", "0.1", " at index (0,)", "1 of 1"),
        ([1234567.0], [1234568.0], "1234567.0", "1234568.0", " at index (0,)", "1 of 1"),
        ([0.0] * 9 + [7.0], [0.0] * 10, "7.0", "0.0", " at index (9,)", "1 of 10"),
        ([[1.0, 2.0], [3.0, 5.0]], [[1.0, 2.0], [3.5, 4.0]], "5.0", "4.0", " at index (1, 1)", "2 of 4"),
        (3.0, 4.0, "3.0", "4.0", "", "1 of 1"),
    ],
)
def test_a_wrong_value_is_shown_where_it_is_and_unlike_the_right_one(
    got: object, want: object, seen: str, right: str, place: str, share: str
) -> None:
    with pytest.raises(Mistake) as caught:
        tensor(CALL, torch.tensor(got), torch.tensor(want))
    assert caught.value.observed == {"call": CALL, "got": seen, "want": right, "place": place, "share": share}


class ClaimsToBeATensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, *args: object, **kwargs: object) -> object:
        raise ValueError("do not look at me")


@pytest.mark.parametrize(
    "got",
    [
        torch.tensor([1.0, 2.0]).as_subclass(ClaimsToBeATensor),
        torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.jagged),
    ],
)
def test_a_foreign_kind_of_tensor_is_refused_and_not_touched(got: object) -> None:
    assert _diagnosis(got, WANT) == "wrong-type"


def _generator() -> object:
    yield 24


async def _coroutine() -> int:
    return 24


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (_generator(), "write `return`"),
        (_coroutine(), "write plain `def`"),
        (_generator, "parentheses missing"),
        (24.0, "product of no numbers"),
        (torch.tensor([24]), ".item()"),
        (torch.tensor([2, 12]), "Reduce it"),
    ],
)
def test_a_wrong_type_comes_with_the_likely_reason(got: object, words: str) -> None:
    with pytest.raises(Mistake) as caught:
        whole_number(CALL, got, 24)
    assert words in str(caught.value.observed["advice"])


def test_tensor_compares_complex_numbers_whole() -> None:
    assert _diagnosis(torch.tensor([1 + 1j]), torch.tensor([1 + 2j])) == "wrong-element"
    assert _diagnosis(torch.tensor([1 + 2j]), torch.tensor([1 + 2j])) is None


def test_tensor_compares_fp8() -> None:
    value = torch.tensor([1.0, 448.0]).to(torch.float8_e4m3fn)
    assert _diagnosis(value.clone(), value) is None
    assert _diagnosis(torch.tensor([1.125, 448.0]).to(torch.float8_e4m3fn), value) == "wrong-element"


def _trials(answer: object) -> list[Trial]:
    return [Trial(f"`f({n})`", (n,), answer(n), n * n) for n in (2, 3, 4)]  # type: ignore[operator]


MISCONCEPTIONS = (("doubles", lambda n: 2 * n), ("adds-one", lambda n: n + 1))


def test_recognise_lets_right_answers_pass() -> None:
    recognise(_trials(lambda n: n**2), MISCONCEPTIONS)


@pytest.mark.parametrize(
    ("answer", "diagnosis", "first_wrong"),
    [
        (lambda n: n + n, "doubles", "`f(3)`"),  # right for 2
        (lambda n: n + 1, "adds-one", "`f(2)`"),
        (lambda n: n**2 if n < 4 else 8, "wrong-value", "`f(4)`"),  # doubles, but only once
        (lambda n: 0, "wrong-value", "`f(2)`"),
    ],
)
def test_recognise_names_the_idea_that_explains_every_trial(
    answer: object, diagnosis: str, first_wrong: str
) -> None:
    with pytest.raises(Mistake) as caught:
        recognise(_trials(answer), MISCONCEPTIONS)
    assert caught.value.diagnosis == diagnosis
    assert caught.value.observed["call"] == first_wrong


def test_recognise_lets_the_check_say_what_it_can_before_it_shows_the_bare_value() -> None:
    def otherwise(trials: object) -> None:
        raise Mistake("odd", got=0)

    recognise(_trials(lambda n: n**2), MISCONCEPTIONS, otherwise=otherwise)
    with pytest.raises(Mistake, match="doubles"):
        recognise(_trials(lambda n: 2 * n), MISCONCEPTIONS, otherwise=otherwise)
    with pytest.raises(Mistake, match="odd"):
        recognise(_trials(lambda n: 7), MISCONCEPTIONS, otherwise=otherwise)


def test_values_are_compared_in_fp64() -> None:
    want = torch.tensor([1.0], dtype=torch.float64)
    assert _diagnosis(want + 1e-12, want, rtol=1e-13) == "wrong-element"
    assert _diagnosis(want + 1e-12, want, rtol=1e-11) is None


def test_the_tolerance_does_not_grow_with_what_was_returned() -> None:
    assert _diagnosis(torch.tensor([100.0]), torch.tensor([1.0]), rtol=0.995) == "wrong-element"
    assert _diagnosis(torch.tensor([1.0]), torch.tensor([100.0]), rtol=0.995) is None


def test_recognise_compares_as_alike_does() -> None:
    nan = Trial("`f()`", (), math.nan, math.nan)
    recognise([nan], ())
    with pytest.raises(Mistake, match="wrong-value"):
        recognise([nan, Trial("`f()`", (), 0.0, -0.0)], ())
    with pytest.raises(Mistake, match="always-nan"):
        recognise([nan, Trial("`f()`", (), math.nan, 1.0)], (("always-nan", lambda: math.nan),))
