"""Each loop with a mistake gets exactly its own root cause, in its own code; each right loop gets nothing at all."""

import inspect
import re

import pytest
import torch

from tests.watching.loops.collection import Loop, loops, unwatched, watched

WRONG = [loop for loop in loops() if loop.cause is not None]
RIGHT = [loop for loop in loops() if loop.cause is None]


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def _name(loop: Loop) -> str:
    return loop.name


@pytest.mark.parametrize("loop", WRONG, ids=_name)
def test_a_loop_with_a_mistake_gets_its_root_cause_and_no_other(loop):
    outcome = watched(loop)
    assert outcome.causes == [loop.cause], [str(each) for each in outcome.reports]
    (diagnosis,) = outcome.reports[-1].diagnoses
    _lies_in(diagnosis.where, loop)
    assert diagnosis.sentence
    _ended(loop, outcome)  # as it does without a watcher


@pytest.mark.parametrize("loop", RIGHT, ids=_name)
def test_a_right_loop_gets_nothing(loop):
    outcome = watched(loop)
    assert outcome.error is None, outcome.error
    assert outcome.findings == [], [str(each) for each in outcome.reports]


@pytest.mark.parametrize("loop", [*WRONG, *RIGHT], ids=_name)
def test_the_loop_does_what_it_is_said_to_do_when_nobody_watches(loop):
    outcome = unwatched(loop)
    _ended(loop, outcome)
    if loop.shows is not None:
        assert loop.shows(outcome.result), outcome.result


def test_there_are_enough_loops():
    assert len(WRONG) >= 60
    assert len(RIGHT) >= 35


def _ended(loop, outcome):
    """It must end with the exception that it is said to end with, or with none."""
    if loop.raises is None:
        assert outcome.error is None, repr(outcome.error)
    else:
        assert re.search(loop.raises, str(outcome.error)), repr(outcome.error)


def _lies_in(where, loop):
    """Where a diagnosis points to must be the loop itself, or a helper in its module."""
    assert where is not None
    assert where.file == inspect.getsourcefile(loop.train)
    lines, first = inspect.getsourcelines(inspect.getmodule(loop.train))
    assert where.text.strip() == lines[where.line - 1].strip()
    assert first <= where.line <= len(lines)
