"""What the rules about order stand on: events with gaps between, and lines of code."""

import linecache
from dataclasses import replace

import pytest
import torch

from amp_lab.autocast.records import Source
from amp_lab.watching.recording.events import Backward, Gradients, Stepped, Unscaled, Updated, ZeroGrad
from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.run import Run, ScalerFacts
from amp_lab.watching.report import diagnose
from amp_lab.watching.rules.layout import calls, changes_gradients, goes_on, turn_below, whole_call
from amp_lab.watching.rules.order import after_zero, walk, windows
from amp_lab.watching.rules.rule import RULES

MINE = [
    rule
    for rule in RULES.values()
    if rule.look.__module__.rsplit(".", 1)[1]
    in "calls updates scaling own_step passes clipping clipping_wasted gradients missing_gradients accumulation "
    "micro_batches optimizers".split()
]
YES, NO = Later(bool, True), Later(bool, False)
SCALE = Later(float, 1024.0)


def backward(**other):
    settings = {"before": (Gradients.NONE,), "after": (Gradients.SCALED,), "touched": (0,)}
    return Backward(
        how="backward",
        losses=(1,),
        loss_dtype=torch.float32,
        finite=YES,
        scaled_by=0,
        scale=SCALE,
        **settings | other,
    )


def stepped(**other):
    return Stepped(optimizer=0, scaler=0, state=Gradients.SCALED, skipped=NO, ran=True, scale=SCALE, **other)


def zeroed(**other):
    return ZeroGrad(optimizers=(0,), by="optimizer", set_to_none=True, before=(Gradients.UNSCALED,), **other)


UPDATED = Updated(scaler=0, before=SCALE, after=SCALE)


def run_of(*events, first=1, gap_before=()):
    """Number the events, with one missing before those whose place is in `gap_before`."""
    number, numbered = first, []
    for at, event in enumerate(events):
        number += at in gap_before
        numbered.append(replace(event, number=number, step=1))
        number += 1
    scaler = ScalerFacts("GradScaler", True, True, "cpu", 1024.0, 2.0, 0.5, 2000, True)
    return Run((), (), (scaler,), (), numbered, 1, frozenset({1}))


def test_what_happened_since_a_call():
    seen = {
        type(event): past.since(Updated, 0)
        for event, past in walk(run_of(backward(), stepped(), UPDATED, zeroed()))
    }
    assert [type(event) for event in seen[Updated]] == [Backward, Stepped]
    assert seen[ZeroGrad] == []
    assert seen[Backward] == []


def test_after_a_gap_nothing_is_known_until_the_call_itself_is_seen():
    run = run_of(backward(), UPDATED, stepped(), backward(), stepped(), gap_before={2})
    known = [
        (past.since(Updated, 0), past.since(Stepped, 0), past.happened(Updated, 0)) for _, past in walk(run)
    ]
    assert known[0][2] is False
    assert known[2] == (None, None, None)
    assert [type(event) for event in known[4][1]] == [Backward]
    assert known[4][0] is None


def test_a_call_that_raised_does_not_count():
    run = run_of(backward(), replace(UPDATED, raised=True), stepped())
    *_, (_, past) = walk(run)
    assert past.happened(Updated, 0) is False
    assert past.last(Backward, 0).number == 1


def test_windows_leave_out_what_was_not_kept_and_closures():
    run = run_of(
        backward(), stepped(), backward(), stepped(), backward(), stepped(closure=True), gap_before={2}
    )
    assert [len(window.backwards) for window in windows(run, 0)] == [1]


def test_gradients_that_were_zeroed_are_not_used():
    events = run_of(backward(), zeroed(), backward(), stepped()).events
    assert [event.number for event in after_zero(events, 0)] == [3, 4]
    (window,) = windows(run_of(backward(), zeroed(), backward(), stepped()), 0)
    assert (len(window.backwards), len(window.used)) == (2, 1)
    assert after_zero(run_of(backward(), zeroed(all_of=False), stepped()).events, 0)[0].number == 1


def test_steps_on_both_sides_of_a_gap_are_not_compared():
    """Two steps without an update between: wrong, unless what was between was not kept."""
    refused = stepped(raised=True)
    assert "update-missing" in diagnose(run_of(backward(), stepped(), backward(), refused), MINE).ids
    assert (
        "update-missing"
        not in diagnose(run_of(backward(), stepped(), backward(), refused, gap_before={2}), MINE).ids
    )


@pytest.mark.parametrize("rule", MINE, ids=lambda rule: rule.id)
def test_a_rule_stands_a_run_without_events_and_one_without_beginnings(rule):
    assert list(rule.look(run_of())) == []
    unscaled = Unscaled(scaler=0, optimizer=0, before=Gradients.SCALED, scale=SCALE, found_inf=NO)
    calls = [unscaled, stepped(), UPDATED, zeroed(), backward()]
    for first in range(len(calls)):
        assert list(rule.look(run_of(*calls[first:], first=1000))) == []


CODE = """
def train(loader):
    for index, x in enumerate(loader):
        loss = model(x).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if bad(x):
            continue
        if index % 4 == 0:
            scaler.step(optimizer)
        scaler.update()

def divide():
    for p in params:
        p.grad = None
        p.grad /= 4
"""


@pytest.fixture
def at(tmp_path):
    file = str(tmp_path / "train.py")
    linecache.cache[file] = len(CODE), None, CODE.splitlines(keepends=True), file
    yield lambda line, event=UPDATED: replace(
        event, where=Source(file, line, "train", CODE.splitlines()[line - 1].strip())
    )
    del linecache.cache[file]


def test_where_calls_stand(at):
    ((step, below, deeper),) = calls(at(11), "scaler.step")
    assert (step.where.line, step.where.text, below, deeper) == (10, "scaler.step(optimizer)", False, True)
    assert [(below, deeper) for _, below, deeper in calls(at(5), "scaler.update")] == [(True, False)]


def test_where_the_loop_turns_back(at):
    assert turn_below(at(6)).where.line == 8
    assert turn_below(at(9)) is None


def test_what_always_follows(at):
    assert goes_on(at(5), at(6))
    assert not goes_on(at(6), at(11))
    assert not goes_on(at(6), at(10))


def test_whose_method_is_called_and_whether_gradients_are_changed(at):
    assert whole_call(at(5), "backward") == ("scaler.scale(loss).backward()", "scaler.scale(loss)")
    assert changes_gradients(at(16))
    assert not changes_gradients(at(5))


def test_code_that_cannot_be_read_says_nothing():
    lost = replace(UPDATED, where=Source("<stdin>", 3, "train", "scaler.update()"))
    assert list(calls(lost, "scaler.step")) == []
    assert turn_below(lost) is None
    assert whole_call(lost, "backward") is None
    assert not goes_on(lost, lost)
    assert not changes_gradients(lost)
