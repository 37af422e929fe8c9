"""What a check can ask of an answer beside a plain call: many calls at once, a refusal, a context around the code."""

import struct
from typing import Any

import pytest

from amp_lab.course.ask import Ask
from amp_lab.course.expect import Mistake
from amp_lab.course.guard import Contained, Guard
from tests.course.probe import DOUBLE


def _ask(answer: Any, limit_s: float = 20.0) -> Ask:
    return Ask(DOUBLE, answer, Guard(limit_s))


def test_many_returns_everything_in_order() -> None:
    ask = _ask(lambda n, m: n - m)
    assert ask.many([(n, 1) for n in range(1000)]) == [n - 1 for n in range(1000)]
    assert ask.returned
    assert ask.call == "`learner(999, 1)`"


def test_many_names_the_call_that_failed() -> None:
    ask = _ask(lambda n: 1 / (n - 7))
    with pytest.raises(Contained, match="ZeroDivisionError"):
        ask.many([(n,) for n in range(20)])
    assert ask.call == "`learner(7)`"
    assert ask.returned


def test_many_of_a_stub_have_not_returned() -> None:
    def stub(n: int) -> None:
        raise NotImplementedError

    ask = _ask(stub)
    with pytest.raises(Contained, match="NotImplementedError"):
        ask.many([(1,), (2,)])
    assert not ask.returned
    assert ask.call == "`learner(1)`"


def test_many_share_one_time_limit() -> None:
    def endless(n: int) -> None:
        while n == 3:
            pass

    ask = _ask(endless, limit_s=0.2)
    with pytest.raises(Contained, match="still running"):
        ask.many([(n,) for n in range(9)])
    assert ask.call == "`learner(3)`"


class _TheirOwn(ValueError):
    """A subclass is a ValueError, too."""


@pytest.mark.parametrize("error", [ValueError, ValueError("with words"), _TheirOwn])
def test_a_refusal_is_right(error: Any) -> None:
    def answer(n: int) -> None:
        raise error

    _ask(answer).refuses(ValueError, -1)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda n: 3, "returned 3"),
        (lambda n: None, "returned None"),
        (lambda n: ValueError("returned, not raised"), "returned an object of type `ValueError`"),
        (lambda n: {}[n], "raised `KeyError`"),
        (lambda n: struct.pack("<H", n), "raised `struct.error`"),
    ],
)
def test_anything_but_the_refusal_is_told(answer: Any, words: str) -> None:
    with pytest.raises(Mistake, match="not-refused") as caught:
        _ask(answer).refuses(ValueError, -1)
    assert caught.value.observed == {"call": "`learner(-1)`", "got": words, "want": "ValueError"}


def test_what_was_stopped_or_never_written_is_no_refusal() -> None:
    def stub(n: int) -> None:
        raise NotImplementedError

    for answer, fault in ((stub, "exception"), (lambda n: exit(), "exit")):
        with pytest.raises(Contained) as caught:
            _ask(answer).refuses(ValueError, -1)
        assert caught.value.fault == fault


class _Counts:
    entered = inside = 0

    def __enter__(self) -> None:
        self.entered += 1
        self.inside += 1

    def __exit__(self, *_: object) -> None:
        self.inside -= 1


def test_around_is_entered_for_the_learners_code_only() -> None:
    around = _Counts()
    seen = []
    ask = _ask(lambda n: seen.append(around.inside))
    ask.around = around
    ask(1)
    ask.many([(2,), (3,)])
    assert seen == [1, 1, 1]
    assert (around.entered, around.inside) == (2, 0)
    with pytest.raises(Contained):
        ask.run(lambda: 1 / 0)
    assert around.inside == 0


def test_a_check_may_word_the_call_itself() -> None:
    ask = _ask(lambda n: n)
    ask.in_words = lambda n: f"`learner({n:#x})`"
    ask(255)
    assert ask.call == "`learner(0xff)`"
    ask.many([(16,)])
    assert ask.call == "`learner(0x10)`"
