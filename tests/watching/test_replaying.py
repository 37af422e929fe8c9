"""When `watch(..., replay=...)` runs a batch again and what it then says; and which gradients were not finite."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from amp_lab.watching.recording import history, replaying
from amp_lab.watching.recording.events import BadGradients, Replayed
from amp_lab.watching.watch import Watch, watch
from tests.watching import loops_to_replay
from tests.watching.loops_to_replay import Loop, nan_in, noted, times

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_skipped_step_tells_which_gradients_are_not_finite():
    loop = Loop()
    last = loop.model[-1].weight  # type: ignore[index]
    last.register_hook(lambda gradient: torch.full_like(gradient, torch.inf) if loop.at == 3 else gradient)
    with loop.watch(replay=None) as seen:
        loop.run(5)
    (event,) = seen.run.of(BadGradients)
    assert (event.step, event.which, event.bad, event.of, event.place) == (3, ("4.weight",), 1, 6, "some")


@pytest.mark.parametrize(
    ("bad", "place"), [((0, 1), "first"), ((5,), "last"), ((1, 5), "some"), (tuple(range(6)), "all")]
)
def test_their_place_among_the_parameters_is_told(bad, place):
    loop = Loop()
    every = list(loop.model.named_parameters())
    for at in bad:
        every[at][1].register_hook(lambda gradient: gradient * torch.nan if loop.at == 2 else gradient)
    with loop.watch(replay=None) as seen:
        loop.run(4)
    (event,) = seen.run.of(BadGradients)
    assert (event.place, event.bad, event.of) == (place, len(bad), 6)
    assert event.which == tuple(every[at][0] for at in bad[:4])


def test_rules_name_them_and_say_whether_the_next_scale_is_better():
    loop = Loop()
    with loop.watch(replay=None, min_scale=None) as seen:
        loop.run(20, times(1e18))
    (found,) = seen.report().diagnoses
    assert found.id == "scale-collapse"
    assert "those of all 6 parameters" in found.sentence
    assert "at the next scale: 512, the same again" in found.evidence

    loop = Loop()
    with loop.watch(replay=None) as seen:
        loop.run(20, nan_in(2))
    loss = next(each for each in seen.report().all if each.id == "loss-not-finite")
    assert "gradients not finite: those of all 6 parameters" in loss.evidence
    assert "at the next scale: 512, all finite" in loss.evidence


def test_a_healthy_loop_is_never_run_again(monkeypatch):
    monkeypatch.setattr(replaying.Replaying, "_run_again", lambda *_: pytest.fail("it was run again"))
    loop = Loop()
    with loop.watch() as seen:
        loop.run(20)
    assert loop.again == []
    assert seen.overflows == []
    assert not list(seen.run.of(BadGradients, Replayed))


def test_a_scale_that_is_merely_too_large_is_not_explained(monkeypatch):
    loop = Loop(scale=2.0**16)
    with loop.watch() as seen:
        loop.run(20, times(300.0))
    assert loop.scaler is not None
    assert loop.scaler.get_scale() < 2.0**16  # steps were skipped
    # Two cheap runs for each: at the loop's own scale, and at a much smaller one.
    assert len(loop.again) == 2 * len(seen.run.skips)
    assert len(set(loop.again)) == len(seen.run.skips)
    assert seen.overflows == []
    assert seen.run.notes == ()
    assert seen.report().ok


def test_nan_in_a_batch_is_explained_and_the_rest_of_the_loop_goes_on():
    loop = Loop()
    with loop.watch() as seen:
        loop.run(12, nan_in(4))
    (report,) = seen.overflows
    assert report.cause == "nan-in-data" or report.phase == "forward"
    assert not report.cures
    (event,) = seen.run.of(Replayed)
    assert event.step == 4
    assert event.report is report
    (root,) = seen.report().diagnoses
    assert root.id == "replayed"
    assert root.sentence == f"{report.cause}: {report.sentence}"
    assert root.where is None or root.where.file == loops_to_replay.__file__
    assert {each.id for each in root.consequences} >= {"loss-not-finite"}
    assert seen.run.skips == (4,)


def test_an_overflow_of_the_backward_pass_is_explained():
    loop = Loop()
    with loop.watch(min_scale=None) as seen:
        loop.run(20, times(1e18))
    assert [each.phase for each in seen.overflows] == ["backward"] * replaying.MOST_FULL
    (root,) = seen.report().diagnoses
    assert root.id == "replayed"
    assert "scale-collapse" in {each.id for each in root.consequences}


def test_a_loop_without_a_scaler_is_run_again_where_its_loss_is_not_finite():
    loop = Loop(scaler=False, dtype=torch.bfloat16)
    with loop.watch() as seen:
        loop.run(3, nan_in(3))
    (report,) = seen.overflows
    assert not report.ok
    assert next(seen.run.of(Replayed)).step == 3
    assert "replayed" in [each.id for each in seen.report().diagnoses]


class NanDerivative(nn.Module):
    """Its result is finite; its gradient is NaN where a number is 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.where(x != 0, torch.sqrt(x.abs()), 0.0)


def test_without_a_scaler_gradients_that_go_bad_are_explained_in_their_own_step():
    loop = Loop(scaler=False, dtype=torch.bfloat16)
    first = nn.Linear(8, 8, bias=False)
    loop.model = nn.Sequential(first, NanDerivative(), nn.Linear(8, 1))
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=1e-3)

    def spoil(step: int, x: torch.Tensor, y: torch.Tensor) -> None:
        if step == 3:
            x[0] = 0.0

    with loop.watch() as seen:
        loop.run(4, spoil)
    assert torch.tensor(loop.losses[:3]).isfinite().all()
    report = seen.overflows[0]
    assert next(seen.run.of(Replayed)).step == 3
    assert (report.cause, report.phase) == ("nan-derivative", "backward")
    assert report.source is not None
    assert report.source.file.endswith("test_replaying.py")


def test_without_a_scaler_gradients_of_any_kind_are_looked_at():
    """Sparse ones, empty ones, several dtypes."""
    net = nn.ModuleDict({"words": nn.Embedding(6, 4, sparse=True), "head": nn.Linear(4, 1)})
    net.empty = nn.Parameter(torch.zeros(0))
    net["head"].to(torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    again: list[float] = []

    def loss(factor: float = 1.0) -> torch.Tensor:
        hidden = net["words"](torch.tensor([1, 2]))
        if factor != 1.0:
            hidden.register_hook(lambda gradient: gradient * factor)
        return net["head"](hidden.bfloat16()).float().sum() + net.empty.sum()

    def replay() -> torch.Tensor:
        again.append(1.0)
        return loss(factors[at])

    factors = [1.0, float("nan"), 1.0]
    with watch(net, optimizer, replay=replay) as seen:
        for at in range(2):
            optimizer.zero_grad()
            loss(factors[at]).backward()
            assert bool(again) == (at == 1)
            optimizer.step()
    assert again
    assert not [each for each in seen.run.notes if "backward" in each]


def test_replays_are_bounded():
    loop = Loop(scale=2.0**16)
    with loop.watch(min_scale=None) as seen:
        loop.run(60, times(1e18))
    assert len(seen.overflows) == replaying.MOST_FULL

    loop = Loop(scale=2.0**16)  # overflows again each time, and is cured each time
    loop.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=1, growth_factor=64.0)
    with loop.watch() as seen:
        loop.run(60, times(300.0))
    assert seen.overflows == []
    assert len(seen.run.skips) > len(set(loop.again)) == replaying.MOST_CHEAP
    assert len(loop.again) <= 3 * replaying.MOST_CHEAP


def wrong_closures(loop: Loop) -> dict[str, tuple[Callable[[], Any], str]]:
    """Return by name functions that no replay should be, each with what is said of it."""
    own = torch.amp.GradScaler("cpu", init_scale=8.0)
    batches = iter([(loop.x, loop.y)][:0])

    def twice() -> torch.Tensor:
        return own.scale(loop.loss())

    def with_update() -> torch.Tensor:
        loss = loop.loss()
        own.update()
        return loss

    def stepping() -> torch.Tensor:
        loss = loop.loss()
        loop.optimizer.step()
        return loss

    def backward() -> torch.Tensor:
        loss = loop.loss()
        loss.backward()
        return loss

    return {
        "raises": (lambda: {}["x"], "KeyError: 'x'"),
        "exits": (lambda: sys.exit(3), "SystemExit: 3"),
        "asks for an argument": (lambda x: x, "missing 1 required positional argument"),
        "a float": (lambda: loop.loss().item(), "the loss is a float: return a tensor of one number"),
        "None": (lambda: None, "the loss is a NoneType: return a tensor of one number"),
        "two numbers": (lambda: torch.stack([loop.loss()] * 2), "the loss has 2 numbers, (2,): return one"),
        "backward": (backward, "let it only return the unscaled loss"),
        "step": (stepping, "calls SGD.step: let it return the unscaled loss"),
        "scale": (twice, "calls GradScaler.scale: let it return the unscaled loss"),
        "update": (with_update, "calls GradScaler.update: let it return the unscaled loss"),
        "no batch left": (lambda: F.mse_loss(*next(batches)), "StopIteration"),
        "unbound": (lambda: F.mse_loss(loop.model(gone), loop.y), "NameError"),  # type: ignore[name-defined] # noqa: F821
    }


@pytest.mark.parametrize("wrong", list(wrong_closures(Loop())))
def test_what_goes_wrong_in_the_closure_is_a_note_and_the_loop_goes_on(wrong):
    def ends(**settings: Any) -> tuple[Loop, Watch]:
        loop = Loop()
        closure, _ = wrong_closures(loop)[wrong]
        with loop.watch(**{"replay": closure, **settings}) as seen:
            loop.run(8, nan_in(3, 5))
        return loop, seen

    (loop, seen), (other, without) = ends(), ends(replay=None)
    (note,) = seen.run.notes
    assert note.startswith("A replay failed: step 3 could not be run again, and no other will be (")
    assert wrong_closures(loop)[wrong][1] in note
    assert seen.overflows == []
    assert seen.run.skips == (3, 5)
    assert note in " ".join(str(seen.report()).split())
    assert {**noted(seen), "others": []} == {**noted(without), "others": []}
    state, expected = loop.model.state_dict(), other.model.state_dict()
    torch.testing.assert_close(state, expected, rtol=0, atol=0, equal_nan=True)
    assert loop.scaler is not None
    assert other.scaler is not None
    assert loop.scaler.state_dict() == other.scaler.state_dict()
    assert type(loop.scaler).scale.__module__ == "torch.amp.grad_scaler"


def test_a_disabled_scaler_may_be_in_the_closure():
    loop = Loop()
    own = torch.amp.GradScaler("cpu", enabled=False)
    with loop.watch(replay=lambda: own.scale(loop.loss())) as seen:
        loop.run(4, nan_in(3))
    assert len(seen.overflows) == 1


def test_a_closure_that_computes_another_loss_is_told_so():
    loop = Loop(scaler=False, dtype=torch.bfloat16)
    with loop.watch(replay=lambda: F.mse_loss(loop.model(loop.data[0][0]), loop.data[0][1])) as seen:
        loop.run(2, nan_in(2))
    (note,) = seen.run.notes
    assert note.startswith("A replay does not agree: step 2 overflowed, and its batch is finite")
    assert seen.overflows == []


def test_a_closure_without_the_loops_region_is_told_so_once():
    """In FP32 the batches are finite, at the loop's own scale, too."""
    loop = Loop(scale=1.0)

    def replay() -> torch.Tensor:
        return F.mse_loss(loop.model(loop.x), loop.y)

    def large(step: int, x: torch.Tensor, y: torch.Tensor) -> None:
        if step in (2, 3):
            x.mul_(1e6)  # in FP16 infinity

    with loop.watch(replay=replay) as seen:
        loop.run(4, large)
    assert len(seen.run.skips) == 2
    (note,) = seen.run.notes
    assert note.startswith("A replay does not agree: step 2 overflowed")
    assert "in the loop's autocast region" in " ".join(str(seen.report()).split())
    assert seen.overflows == []


def test_the_steps_that_were_explained_are_kept_in_a_long_run(monkeypatch):
    monkeypatch.setattr(history, "DIFFERENT", 0)  # as if there had been many different steps before
    loop = Loop(scale=64.0)
    loop.data = loop.data * 5
    with loop.watch() as seen:
        loop.run(300, nan_in(100, 150, 200))
    assert [each.step for each in seen.run.of(Replayed)] == [100, 150, 200]


@pytest.mark.parametrize("value", [nn.Linear(1, 1), 1.0, nn.Linear])
def test_replay_is_a_function(value):
    loop = Loop()
    with pytest.raises(TypeError, match="replay: a function without arguments"):
        loop.watch(replay=value)
