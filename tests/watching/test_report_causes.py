"""Root causes and their consequences."""

import itertools
import random

import pytest

from amp_lab.watching.recording.events import Event, Unscaled
from amp_lab.watching.report.causes import Found, trees
from amp_lab.watching.rules.rule import Finding, Severity
from tests.watching.report_runs import clipped, line, raised, rule, stepped

WRONG, RISK, NOTE = Severity.WRONG, Severity.RISK, Severity.NOTE


def found(id: str, *events: Event, explains: tuple[str, ...] = (), severity: Severity = WRONG) -> Found:
    return Found(rule(id, severity=severity, explains=explains), Finding(f"{id}.", events))


def at(step: int) -> Event:
    return Event(step=step, number=10 * step)


def tree(*all_found: Found) -> dict[str, list[str]]:
    """Return the ids of the roots, in order, with those below; the same in whatever order the rules had found them."""
    orders = itertools.islice(itertools.permutations(all_found), 24)
    (told,) = {
        tuple((root.rule.id, tuple(each.rule.id for each in below)) for root, below in trees(order))
        for order in orders
    }
    return {root: list(below) for root, below in told}


def test_a_consequence_stands_below_its_cause():
    assert tree(found("a", at(1), explains=("b",)), found("b", at(2)), found("c", at(1))) == {
        "a": ["b"],
        "c": [],
    }


def test_a_cause_began_no_later_than_its_consequence():
    assert tree(found("a", at(3), explains=("b",)), found("b", at(2))) == {"b": [], "a": []}
    assert tree(found("a", at(2), explains=("b",)), found("b", at(2))) == {"a": ["b"]}
    assert tree(found("a", explains=("b",)), found("b", at(1))) == {
        "a": ["b"]
    }  # without events: from the beginning


def test_in_the_same_line_the_order_of_events_does_not_matter():
    cause = found("a", stepped(3), explains=("b",))
    assert tree(cause, found("b", stepped(2))) == {"a": ["b"]}
    assert tree(cause, found("b", stepped(2, where=line("update")))) == {"b": [], "a": []}


def test_consequences_of_consequences():
    a, b, c = found("a", at(1), explains=("b",)), found("b", at(2), explains=("c",)), found("c", at(3))
    assert tree(a, b, c) == {"a": ["b", "c"]}
    assert tree(b, c) == {"b": ["c"]}
    assert tree(a, c) == {"a": [], "c": []}


def test_of_two_causes_the_earlier_one_takes_it():
    first, second = found("z", at(1), explains=("b",), severity=RISK), found("a", at(2), explains=("b",))
    assert tree(first, second, found("b", at(2))) == {"z": ["b"], "a": []}


def test_those_that_explain_each_other():
    a, b = found("a", at(1), explains=("b",)), found("b", at(1), explains=("a",))
    assert tree(a, b) == {"a": ["b"]}
    c = found("c", at(1), explains=("a",))
    assert tree(found("a", at(1), explains=("b",)), found("b", at(1), explains=("c",)), c) == {
        "a": ["b", "c"]
    }
    assert tree(found("a", at(1), explains=("a",))) == {"a": []}


def test_two_findings_of_one_rule_are_two_roots():
    twice = [found("a", at(1), explains=("a", "b")), found("a", at(2), explains=("a", "b"))]
    (first, below), (second, none) = trees([*twice, found("b", at(3))])
    assert (first, second) == tuple(twice)
    assert [each.rule.id for each in below] == ["b"]
    assert none == []


def test_the_worst_come_first_consequences_counted_then_what_began_first():
    order = tree(
        found("note", at(1), severity=NOTE),
        found("late", at(9)),
        found("early", at(2)),
        found("harmless", at(1), explains=("bad",), severity=NOTE),
        found("bad", at(5)),
        found("risk", at(1), severity=RISK),
    )
    assert list(order) == ["early", "late", "harmless", "risk", "note"]
    own = Found(rule("a"), Finding("a.", (), severity=NOTE))
    assert own.severity == NOTE


def test_an_exception_follows_from_a_call_that_raised():
    refused = Unscaled(step=2, number=25, scaler=0, optimizer=0, before=None, raised=True)
    assert tree(found("twice", at(1), refused), found("raised", raised(2))) == {"twice": ["raised"]}
    assert tree(found("twice", at(1), refused), found("raised", raised(3))) == {"twice": [], "raised": []}
    assert tree(found("read", at(1), raised(2)), found("raised", raised(2))) == {"read": ["raised"]}
    assert tree(found("clip", clipped(1)), found("raised", raised(2))) == {"clip": [], "raised": []}
    assert tree(found("clip", clipped(1), explains=("raised",)), found("raised", raised(2))) == {
        "clip": ["raised"]
    }


@pytest.mark.parametrize("seed", range(60))
def test_every_finding_is_told_once_whatever_explains_what(seed):
    dice = random.Random(seed)
    names = "abcdefgh"
    explains = {name: tuple(dice.sample(names, dice.randint(0, 6))) for name in names}
    all_found = [
        Found(
            rule(name, explains=explains[name]),
            Finding(
                f"{number}",
                tuple(at(dice.randint(1, 3)) for _ in range(dice.randint(0, 2))),
                severity=dice.choice(list(Severity)),
            ),
        )
        for number, name in enumerate(dice.choices(names, k=8))
    ]
    told = [each for root, below in trees(all_found) for each in (root, *below)]
    assert sorted(each.finding.sentence for each in told) == list("01234567")
    shuffled = dice.sample(all_found, 8)
    assert [each.finding.sentence for root, below in trees(shuffled) for each in (root, *below)] == [
        each.finding.sentence for each in told
    ]
