"""Values in words: short, exact where it matters, and without running a line of a learner's class."""

import decimal
import fractions
import math
import re
from typing import Any

import numpy as np
import pytest
import torch

from amp_lab.course.judging.describe import bits, describe, exact, kind


def _never(*_: object) -> Any:
    raise AssertionError("a method of a learner's object was called")


# Everything that describing, comparing or counting could call.
Hostile = type(
    "Hostile",
    (),
    dict.fromkeys(
        ("__repr__", "__str__", "__eq__", "__len__", "__iter__", "__int__", "__index__", "__bool__"), _never
    )
    | {"__hash__": lambda self: 7, "__class__": property(_never), "__getattribute__": _never},
)


class FloatOfTheirOwn(float):
    __repr__ = __float__ = __str__ = __getattribute__ = _never


class IntOfTheirOwn(int):
    __repr__ = __int__ = __add__ = __abs__ = __index__ = __getattribute__ = _never


def function() -> None: ...


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, r"None"),
        (True, r"True"),
        (0.1, r"0\.1"),
        (fractions.Fraction(-1, 3), r"-1/3"),
        (fractions.Fraction(1, 10**5000), r"1/an `int` of more than 40 digits"),
        (decimal.Decimal("0.50"), r"0\.50"),
        (-7, r"-7"),
        (torch.float16, r"torch\.float16"),
        (torch.Size([2, 3]), r"\(2, 3\)"),
        ((2,), r"\(2,\)"),
        ((), r"\(\)"),
        ([1, [2, [3, [4]]]], r"\[1, \[2, \[3, an object of type `list`\]\]\]"),
        (list(range(10**6)), r"\[0, 1, 2, 3, 4, 5, …\]"),
        ({"scale": 2.0}, r"\{'scale': 2\.0\}"),
        ("x" * 10_000, r"'x+…"),
        (np.float32(0.5), r"np\.float32\(0\.5\)|0\.5"),
        (np.ones((2, 2)), r"an array of shape \(2, 2\) and dtype float64"),
        (function, r"the function `function`"),
        (math.prod, r"the function `prod`"),
        (dict, r"the class `dict`"),
        (torch.tensor(2.5), r"tensor\(2\.5, dtype=torch\.float32\)"),
        (torch.tensor([1.0, -0.5]).half(), r"tensor\(\[1, -0\.5\], dtype=torch\.float16\)"),
        (torch.ones(2, requires_grad=True), r"tensor\(\[1, 1\], dtype=torch\.float32\)"),
        (torch.nn.Parameter(torch.ones(1)), r"tensor\(\[1\], dtype=torch\.float32\)"),
        (torch.eye(2), r"a tensor of shape \(2, 2\), torch\.float32, with the values 1, 0, 0, 1"),
        (torch.arange(9), r"a tensor of shape \(9,\), torch\.int64, with the values 0, 1, 2, 3, 4, 5, …"),
        (torch.tensor([1.00390625]), r"tensor\(\[1\.0039062\], dtype=torch\.float32\)"),
        (torch.tensor([0.1, -0.0]), r"tensor\(\[0\.1, -0\], dtype=torch\.float32\)"),
        (torch.tensor([65535.0, 1e6 + 0.5]), r"tensor\(\[65535, 1000000\.5\], dtype=torch\.float32\)"),
        (torch.tensor([math.nan, -math.inf]), r"tensor\(\[nan, -inf\], dtype=torch\.float32\)"),
        (torch.tensor([0.1]).half(), r"tensor\(\[0\.0999756\], dtype=torch\.float16\)"),
        (torch.tensor([0.5]).to(torch.float8_e4m3fn), r"tensor\(\[0\.5\], dtype=torch\.float8_e4m3fn\)"),
        (torch.empty(2, device="meta"), r"a tensor of shape \(2,\), torch\.float32"),
        (torch.eye(2).to_sparse(), r"a sparse tensor of shape \(2, 2\), torch\.float32"),
    ],
)
def test_describe_is_short(value: object, words: str) -> None:
    text = describe(value)
    assert re.fullmatch(words, text)
    assert len(text) <= 160


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1, "an `int`"),
        (1.0, "a `float`"),
        (torch.ones(1), "a tensor"),
        (torch.eye(2).to_sparse(), "a sparse tensor"),
    ],
)
def test_kind_has_the_right_article(value: object, words: str) -> None:
    assert kind(value) == words


@pytest.mark.parametrize(
    ("number", "dtype", "text"),
    [
        (0.1, torch.float32, "0.1"),
        (0.1, torch.float64, "0.1"),
        (0.1, torch.float16, "0.0999755859375"),
        (0.1, torch.bfloat16, "0.10009765625"),
        (65504.0, torch.float16, "65504.0"),
        (7, torch.int64, "7"),
        (1e-45, torch.float32, "1e-45"),
    ],
)
def test_exact_has_the_digits_that_tell_a_number_from_its_neighbours(
    number: Any, dtype: torch.dtype, text: str
) -> None:
    stored = torch.tensor(number, dtype=dtype)
    assert exact(stored) == text
    assert torch.tensor(type(number)(text), dtype=dtype) == stored


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (torch.tensor(1.0), "0x3F800000"),
        (torch.tensor(-0.0).half(), "0x8000"),
        (torch.tensor([[1.0]], dtype=torch.float64), "0x3FF0000000000000"),
        (torch.tensor(-1, dtype=torch.int8), "0xFF"),
    ],
)
def test_bits_are_those_in_memory(number: torch.Tensor, text: str) -> None:
    assert bits(number) == text


def test_an_int_with_more_digits_than_python_writes() -> None:
    assert describe(10**5000) == "an `int` of more than 40 digits"


def test_no_method_of_a_learners_object_is_called() -> None:
    # Not parametrised: pytest itself would look at the objects.
    assert describe(Hostile) == "the class `Hostile`"
    assert describe(Hostile()) == "an object of type `Hostile`"
    assert describe([Hostile()]) == "[an object of type `Hostile`]"
    assert describe({1: Hostile()}) == "{1: an object of type `Hostile`}"
    assert describe(FloatOfTheirOwn(1)) == "1.0"
    assert describe(IntOfTheirOwn(7)) == "7"
    assert describe(IntOfTheirOwn(10**5000)) == "an `int` of more than 40 digits"
    assert kind(Hostile()) == "a `Hostile`"
