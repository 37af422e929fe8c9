"""`watch(..., replay=...)`, which gradients were not finite, and a scale that has collapsed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from amp_lab.watching.recording import history, replaying
from amp_lab.watching.recording.events import BadGradients, Replayed, Updated
from amp_lab.watching.watch import ScaleCollapsed, Watch, watch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Loop:
    """A tiny training loop; `factor(step)` multiplies the loss's target, so that batches overflow on purpose."""

    def __init__(
        self, *, scale: float = 1024.0, scaler: bool = True, dtype: torch.dtype = torch.float16
    ) -> None:
        dice = torch.Generator().manual_seed(0)
        torch.manual_seed(0)
        self.model: nn.Module = nn.Sequential(
            nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, 1)
        )
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale) if scaler else None
        self.dtype = dtype
        self.data = [
            (torch.randn(16, 8, generator=dice), torch.randn(16, 1, generator=dice)) for _ in range(60)
        ]
        self.losses: list[float] = []
        self.again: list[float] = []
        self.at = 0
        self.x, self.y = self.data[0]

    def loss(self) -> torch.Tensor:
        with torch.autocast("cpu", self.dtype):
            return F.mse_loss(self.model(self.x), self.y)

    def replay(self) -> torch.Tensor:
        loss = self.loss()
        self.again.append(float(loss.detach()))
        return loss

    def step(self) -> None:
        self.optimizer.zero_grad()
        loss = self.loss()
        self.losses.append(float(loss.detach()))
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
            return
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def run(
        self, steps: int, spoil: Callable[[int, torch.Tensor, torch.Tensor], Any] = lambda *_: None
    ) -> None:
        for self.at in range(1, steps + 1):
            x, y = self.data[self.at - 1]
            self.x, self.y = x.clone(), y.clone()
            spoil(self.at, self.x, self.y)
            self.step()

    def watch(self, **settings: Any) -> Watch:
        return watch(self.model, self.optimizer, self.scaler, **{"replay": self.replay, **settings})


def times(factor: float, *steps: int) -> Callable[[int, torch.Tensor, torch.Tensor], None]:
    def spoil(step: int, x: torch.Tensor, y: torch.Tensor) -> None:
        if not steps or step in steps:
            y.mul_(factor)

    return spoil


def nan_in(*steps: int) -> Callable[[int, torch.Tensor, torch.Tensor], None]:
    def spoil(step: int, x: torch.Tensor, y: torch.Tensor) -> None:
        if step in steps:
            x[0, 0] = torch.nan

    return spoil


# -- always on


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


# -- what is run again


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
    assert len(loop.again) == len(seen.run.skips)  # a cheap run each
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
    assert root.sentence == report.sentence
    assert root.where is None or root.where.file == __file__
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


def test_the_batch_runs_with_the_random_numbers_of_its_first_time():
    loop = Loop()
    with loop.watch():
        loop.run(6, times(1e18, 3))
    assert loop.losses[2] == loop.again[0] != loop.losses[1]  # of dropout and BatchNorm
    assert set(loop.again) == {loop.losses[2]}


def test_of_micro_batches_the_last_one_runs_with_its_own_random_numbers():
    loop = Loop()
    assert loop.scaler is not None
    with loop.watch():
        for at in (0, 1):
            loop.x, loop.y = loop.data[at]
            loss = loop.loss()
            loop.losses.append(float(loss.detach()))
            loop.scaler.scale(loss * (1e38 if at == 1 else 1.0)).backward()
        loop.scaler.step(loop.optimizer)
        loop.scaler.update()
    assert loop.again[0] == loop.losses[1]


@pytest.mark.parametrize("with_scaler", [True, False], ids=["scaler", "no scaler"])
def test_the_loop_computes_what_it_computes_without(with_scaler):
    """Bit for bit: weights, buffers, losses, random numbers, gradients, hooks."""

    def ends(watched: bool) -> list[Any]:
        loop = Loop(scaler=with_scaler, dtype=torch.float16 if with_scaler else torch.bfloat16)
        fired: list[int] = []
        loop.model[0].weight.register_post_accumulate_grad_hook(lambda _: fired.append(loop.at))  # type: ignore[index]
        steps: list[int] = []
        loop.optimizer.register_step_post_hook(lambda *_: steps.append(loop.at))
        random.seed(0)
        if watched:
            with loop.watch(min_scale=None) as seen:
                loop.run(16, nan_in(5, 9))
            assert seen.overflows
        else:
            loop.run(16, nan_in(5, 9))
        gradients = [each.grad for each in loop.model.parameters()]
        state = [
            *loop.model.state_dict().values(),
            *gradients,
            torch.tensor(loop.losses),
            torch.get_rng_state(),
        ]
        return [*state, fired, steps, random.random()]

    for one, other in zip(ends(True), ends(False), strict=True):
        if isinstance(one, torch.Tensor):
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        else:
            assert one == other


def test_what_the_replay_does_itself_is_not_noted():
    def events(replayed: bool) -> list[str]:
        loop = Loop()
        with loop.watch(**({} if replayed else {"replay": None})) as seen:
            loop.run(8, nan_in(3))
        assert bool(seen.overflows) == replayed
        return [type(each).__name__ for each in seen.run.events if not isinstance(each, Replayed)]

    assert events(True) == events(False)


def test_a_loop_without_a_scaler_is_run_again_where_its_loss_is_not_finite():
    loop = Loop(scaler=False, dtype=torch.bfloat16)
    with loop.watch() as seen:
        loop.run(3, nan_in(3))
    (report,) = seen.overflows
    assert not report.ok
    assert next(seen.run.of(Replayed)).step == 3
    assert "replayed" in [each.id for each in seen.report().diagnoses]


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
    assert len(seen.run.skips) > len(loop.again) == replaying.MOST_CHEAP


@pytest.mark.parametrize("wrong", ["raises", "backward", "nothing"])
def test_what_goes_wrong_in_the_closure_is_a_note(wrong):
    loop = Loop()

    def closure() -> Any:
        if wrong == "raises":
            raise KeyError("x")
        if wrong == "backward":
            loop.loss().backward()
        return None

    with loop.watch(replay=closure) as seen:
        loop.run(8, nan_in(3, 5))
    (note,) = seen.run.notes
    assert note.startswith("replay: step 3 could not be run again")
    assert seen.overflows == []
    assert len(loop.losses) == 8
    assert seen.run.skips == (3, 5)


def test_a_closure_that_computes_another_loss_is_told_so():
    loop = Loop(scaler=False, dtype=torch.bfloat16)
    with loop.watch(replay=lambda: F.mse_loss(loop.model(loop.data[0][0]), loop.data[0][1])) as seen:
        loop.run(2, nan_in(2))
    (note,) = seen.run.notes
    assert "does the function given as replay compute the same loss" in note
    assert seen.overflows == []


def test_the_steps_that_were_explained_are_kept_in_a_long_run(monkeypatch):
    monkeypatch.setattr(history, "DIFFERENT", 0)  # as if there had been many different steps before
    loop = Loop(scale=64.0)
    loop.data = loop.data * 5
    with loop.watch() as seen:
        loop.run(300, nan_in(100, 150, 200))
    assert [each.step for each in seen.run.of(Replayed)] == [100, 150, 200]


# -- what is given


@pytest.mark.parametrize("value", [nn.Linear(1, 1), 1.0, nn.Linear])
def test_replay_is_a_function(value):
    loop = Loop()
    with pytest.raises(TypeError, match="replay: a function without arguments"):
        loop.watch(replay=value)


def test_min_scale_is_a_scale():
    loop = Loop()
    with pytest.raises(TypeError, match="min_scale"):
        loop.watch(min_scale="small")
    for value in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="above 0"):
            loop.watch(min_scale=value)


# -- a scale that has collapsed


def collapsed(**settings: Any) -> tuple[Loop, Watch, ScaleCollapsed]:
    loop = Loop()
    seen = loop.watch(**settings)
    with pytest.raises(ScaleCollapsed) as raised, seen:
        loop.run(60, times(1e18))
    return loop, seen, raised.value


def test_a_scale_that_sinks_to_nothing_stops_the_loop():
    before = [each.clone() for each in Loop().model.parameters()]
    loop, seen, error = collapsed(replay=None)
    assert isinstance(error, FloatingPointError)
    assert loop.at == 35  # 2^10 / 2^35 is below 2^-24
    assert loop.scaler is not None
    assert loop.scaler.get_scale() == 2.0**-25
    for now, then in zip(loop.model.parameters(), before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0)
    for words in ("2^-25", "35 steps were all skipped", "min_scale=None", "`0.weight`", "replay="):
        assert words in str(error)
    assert "scale-collapse" in [each.id for each in seen.report().diagnoses]
    assert "ScaleCollapsed" in str(seen.report())
    assert repr(seen).startswith("Watch: off")
    assert len(list(seen.run.of(Updated))) == 35


def test_its_message_has_the_root_cause():
    _, seen, error = collapsed()
    assert seen.overflows[0].sentence in str(error)
    assert seen.overflows[0].advice in str(error)


def test_another_min_scale_or_none():
    loop, _, _ = collapsed(replay=None, min_scale=1.0)
    assert loop.at == 12  # 2^-1 after 11 skips already, but 12 in a row it takes
    loop = Loop()
    with loop.watch(replay=None, min_scale=None):
        loop.run(60, times(1e18))
    assert loop.at == 60


def test_a_step_that_is_taken_in_between_counts_anew():
    loop = Loop(scale=2.0**-22)
    with loop.watch(replay=None):
        loop.run(40, nan_in(*(step for step in range(40) if step % 10)))
    assert loop.scaler is not None
    assert loop.scaler.get_scale() < 2.0**-40
