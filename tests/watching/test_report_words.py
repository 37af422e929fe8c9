"""Numbers, steps and places, as a report writes them."""

import enum
import math

import pytest
import torch

from amp_lab.autocast.records import Source
from amp_lab.watching.recording.later import Later
from amp_lab.watching.words import (
    in_words,
    line_in_words,
    listed,
    place_in_words,
    shortened,
    steps_in_words,
)


class Colour(enum.Enum):
    RED = "red as paint"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0, "0"),
        (0.0, "0"),
        (-0.0, "0"),
        (7, "7"),
        (65536.0, "65,536"),
        (65536, "65,536"),
        (16777216.0, "16,777,216"),
        (2**31, "2.15e9"),
        (10**400, "more than 1e308"),
        (-(10**400), "less than -1e308"),
        (2937.04, "2,937"),
        (999.96, "1,000"),
        (99.96, "100"),
        (9.996, "10"),
        (2.868, "2.87"),
        (0.5, "0.5"),
        (0.0943, "0.0943"),
        (-0.0001234, "-0.000123"),
        (0.00009996, "1e-4"),
        (9.21e-5, "9.21e-5"),
        (5.8e-11, "5.8e-11"),
        (1.4e-45, "1.4e-45"),
        (1e300, "1e300"),
        (math.inf, "infinite"),
        (-math.inf, "minus infinity"),
        (math.nan, "NaN"),
        (None, ""),
        (True, "yes"),
        (False, "no"),
        (torch.float16, "FP16"),
        (torch.int64, "int64"),
        (Later(float, 2.5), "2.5"),
        (Later(bool, True), "yes"),
        (Later(float, torch.tensor(1024.0)), "1,024"),
        (torch.tensor(3.0), "3"),
        (torch.tensor([3.0, 1.0]), "a Tensor"),
        (object(), "an object"),
        (Colour.RED, "red as paint"),
        ("text\nin  lines", "text in lines"),
        ("\x1b[31m", "\\x1b[31m"),
        ((1, 2.5, None), "1 and 2.5"),
        ([], ""),
        ({3, 1, 2}, "1, 2 and 3"),
        (list(range(9)), "0, 1, 2, 3, 4, 5 and 3 more"),
        (Source("a.py", 3, "f", "x = 1"), "a.py:3, in f: x = 1"),
    ],
)
def test_values(value, words):
    assert in_words(value) == words


@pytest.mark.parametrize("exponent", range(-45, 39))
def test_a_number_is_within_half_a_percent_of_what_is_written(exponent):
    for digit in (1.0, 1.234, 4.5678, 9.9951, 9.999999):
        value = digit * 10.0**exponent
        assert float(in_words(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


def test_what_cannot_be_read_is_left_out():
    class Broken(torch.Tensor):
        def item(self):
            raise RuntimeError("CUDA error: device-side assert triggered")

    assert in_words(Later(float, torch.tensor(1.0).as_subclass(Broken))) == ""


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], ""),
        ([7], "7"),
        ([2, 1], "1 and 2"),
        ([1, 2, 3, 3], "1 to 3"),
        ([1, 2, 3, 7], "1 to 3 and 7"),
        ([1, 2, 3, 7, 12, 13], "1 to 3, 7, 12 and 13"),
        (range(1, 20001), "1 to 20,000"),
        (range(1, 21, 2), "1, 3, 5, 7, 9, 11 and 4 more"),
        ([1, 3, 5, 7, 9, 11], "1, 3, 5, 7, 9 and 11"),
    ],
)
def test_steps(steps, words):
    assert steps_in_words(steps) == words


def test_places(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    where = Source(str(tmp_path / "train.py"), 41, "train", "  scaler.step(opt)  # two  blanks")
    assert line_in_words(where) == "train.py:41"
    assert place_in_words(where) == "train.py:41, in train: scaler.step(opt)  # two  blanks"
    assert place_in_words(where, text=False) == "train.py:41, in train"
    top = Source("/elsewhere/a.py", 3, "<module>", "")
    assert place_in_words(top) == "/elsewhere/a.py:3"
    assert line_in_words(Source("<stdin>", 1, "<module>", "")) == "<stdin>, line 1"
    assert line_in_words(Source("/my files/my train.py", 1, "", "")) == "/my files/my train.py:1"
    assert line_in_words(Source("", 0, "", "")) == "unknown file"
    assert line_in_words(Source("/tmp/ipykernel_12/345.py", 5, "", "")) == "a notebook's cell, line 5"


def test_lists_and_short_texts():
    assert [listed(each) for each in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == [
        "",
        "a",
        "a and b",
        "a, b and c",
    ]
    assert shortened("x" * 300) == "x" * 198 + " …"
    assert len(shortened("word " * 100)) <= 200
