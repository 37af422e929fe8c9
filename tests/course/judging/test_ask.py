"""What a check can ask of an answer beside a plain call: many calls at once, a refusal, a context around the code."""

import struct
import time
from typing import Any

import numpy as np
import pytest
import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained, Guard
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


def test_many_while_begins_no_batch_when_the_time_is_over() -> None:
    def slow(n: int) -> int:
        time.sleep(0.02)
        return -n

    batches = [[(10 * batch + n,) for n in range(2)] for batch in range(1000)]
    got = list(_ask(slow).many_while(batches, seconds=0.1))
    assert 4 <= len(got) < 20
    assert len(got) % 2 == 0
    assert got[:3] == [((0,), 0), ((1,), -1), ((10,), -10)]
    assert list(_ask(slow).many_while(batches, seconds=-1.0)) == []


def test_many_while_asks_a_quick_answer_for_everything() -> None:
    batches = [[(batch,)] for batch in range(50)]
    assert len(list(_ask(lambda n: n).many_while(batches, seconds=60.0))) == 50


NAN, OTHER_NAN = torch.tensor([0x7FC00000, 0x7F800001], dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize(
    ("value", "change", "name", "before", "after"),
    [
        (NAN.clone(), lambda x: x.copy_(OTHER_NAN), "1", "(bits `0x7FC00000`)", "(bits `0x7F800001`)"),
        (torch.zeros(9), lambda x: x[7].add_(1), "1 at `[7]`", "tensor(0,", "tensor(1,"),
        (torch.zeros(3, 3), lambda x: x[2, 1].add_(1), "1 at `[2, 1]`", "tensor(0,", "tensor(1,"),
        ([*range(9)], lambda x: x.__setitem__(8, 5), "1 at `[8]`", "8", "5"),
        ({"a": [[[[1]]]]}, lambda x: x["a"][0][0][0].append(2), "1 at `['a'][0]`", "[[[1]]]", "[[[1, 2]]]"),
        (np.array([[1.0, np.nan], [2.0, 3.0]]), lambda x: x[1].fill(2.0), "1 at `[1, 1]`", "3.0", "2.0"),
        (torch.ones(2), lambda x: x.neg_(), "1", "tensor([1, 1]", "tensor([-1, -1]"),
        ({1}, lambda x: x.clear(), "1", "{1}", "{}"),
    ],
)
def test_a_changed_input_is_shown_where_it_changed(
    value: Any, change: Any, name: str, before: str, after: str
) -> None:
    with pytest.raises(Mistake, match="mutated-input") as caught:
        _ask(change)(value)
    seen = caught.value.observed
    assert seen["name"] == name
    assert before in str(seen["want"])
    assert after in str(seen["got"])
    assert seen["want"] != seen["got"]


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
        (
            lambda n: ValueError("returned, not raised"),
            "returned `ValueError`, and to return an error is not to raise it",
        ),
        (lambda n: ValueError, "returned `ValueError`, and to return an error is not to raise it"),
        (lambda n: int, "returned the class `int`"),
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
