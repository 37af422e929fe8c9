"""Rules about several processes: the wrong loops of their docstrings get this root cause, the right ones nothing."""

from functools import cache

import pytest

from tests.watching.docs import Loop
from tests.watching.documented_ranks import ENDING, Said, loops, run

LOOPS = loops()
WAITING = [each for each in LOOPS if each.name in ENDING]


@cache
def said_by_all() -> dict[str, list[Said]]:
    """What both ranks said about the loops that come to their end, one after the other in the same processes."""
    those = [each for each in LOOPS if each.name not in ENDING]
    outcomes = run(those)
    assert [each.ended for each in outcomes] == ["returned"] * 2, outcomes
    return {loop.name: [each.value[at] for each in outcomes] for at, loop in enumerate(those)}


def test_there_are_loops_of_ranks():
    assert len(LOOPS) >= 20
    assert {each.name for each in WAITING} == set(ENDING)


@pytest.mark.parametrize(
    "loop",
    [each for each in LOOPS if each.which == "Wrong" and each not in WAITING],
    ids=lambda loop: loop.name,
)
def test_both_ranks_name_this_root_cause(loop: Loop):
    for said in said_by_all()[loop.name]:
        assert said.roots == [loop.rule], said.report
        assert said.line is not None
        assert said.text.strip() in loop.program
        assert not said.error
        assert [bool(words) for words, _ in said.cures] == [True]
        assert [diff for _, diff in said.cures] == [""]  # with one, test_report_cures.py would have to try it


@pytest.mark.parametrize(
    "loop", [each for each in LOOPS if each.which == "Right"], ids=lambda loop: loop.name
)
def test_a_right_loop_gets_nothing(loop: Loop):
    for said in said_by_all()[loop.name]:
        assert not said.error
        assert said.all == [], said.report


@pytest.mark.parametrize("loop", WAITING, ids=lambda loop: loop.name)
def test_ranks_that_wait_are_told_for_whom(loop: Loop):
    first, second = run([loop])
    assert (first.ended, second.ended) == ("returned", "returned"), (first, second)
    assert first.value[0].roots == [loop.rule], first.value[0].report
    assert first.value[0].line is not None
    if loop.rule == "one-rank-decides":
        assert second.value[0].roots == [loop.rule], second.value[0].report
