"""`watch(..., replay=...)`, which gradients were not finite, and a scale that has collapsed."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import amp_lab
from amp_lab.scaling import DynamicLossScaler
from amp_lab.watching.recording import history, replaying
from amp_lab.watching.recording.events import BadGradients, Replayed, Updated
from amp_lab.watching.recording.noting import scalers as noting_scalers
from amp_lab.watching.recording.random_numbers import RandomNumbers
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


def overflows_in(loop: Loop, step: int) -> None:
    """Let a gradient be infinite in a step, whose loss is as any other: of dropout's random numbers one sees there."""
    weight = loop.model[-1].weight  # type: ignore[index]
    weight.register_hook(lambda gradient: gradient * torch.inf if loop.at == step else gradient)


def assert_again(loop: Loop, loss: float) -> None:
    """The loss was computed again, bit for bit; and in FP32 up to the rounding of FP16."""
    assert loop.again[0] == loss
    assert loop.again == pytest.approx([loss] * len(loop.again), rel=1e-3)


@pytest.mark.parametrize("with_scaler", [True, False], ids=["scaler", "no scaler"])
def test_the_batch_runs_with_the_random_numbers_of_its_first_time(with_scaler):
    loop = Loop(scaler=with_scaler)
    overflows_in(loop, 3)
    with loop.watch():
        loop.run(3)
    assert_again(loop, loop.losses[2])
    loop.x, loop.y = loop.data[2]
    others = float(loop.loss().detach())  # with other random numbers
    assert others != pytest.approx(loop.losses[2], rel=1e-2)


def draws_nothing() -> float:
    return 0.0


def draws_of_numpy() -> float:
    numpy = pytest.importorskip("numpy")
    return float(numpy.random.randn())  # of a pair, of which every second one moves no state


@pytest.mark.parametrize("draw", [random.random, draws_of_numpy], ids=["Python", "NumPy"])
@pytest.mark.parametrize("between", [draws_nothing, draws_of_numpy], ids=["", "NumPy between"])
@pytest.mark.parametrize("bad", [4, 5])
def test_what_a_model_draws_elsewhere_is_drawn_again(draw, between, bad):
    loop = Loop()
    drawn: list[float] = []

    def noise(module: nn.Module, inputs: Any) -> None:
        drawn.append(draw())

    loop.model.register_forward_pre_hook(noise)

    def spoil(step: int, x: torch.Tensor, y: torch.Tensor) -> None:
        between()
        if step == bad:
            y.mul_(1e18)

    with loop.watch():
        loop.run(6, spoil)
    assert loop.again
    again = drawn[bad : bad + len(loop.again)]
    assert set(again) == {drawn[bad - 1]}
    assert len({*drawn}) == 6


def test_a_generator_of_the_models_own_draws_the_same_again():
    loop = Loop()
    loop.model.dice = torch.Generator().manual_seed(1)  # type: ignore[assignment]
    drawn: list[float] = []
    loop.model.register_forward_pre_hook(
        lambda model, _: drawn.append(float(torch.rand((), generator=model.dice)))
    )
    with loop.watch():
        loop.run(5, times(1e18, 3))
    assert set(drawn[3:-2]) == {drawn[2]}
    dice = torch.Generator().manual_seed(1)
    assert drawn[-2:] == [float(torch.rand((), generator=dice)) for _ in range(5)][3:]


def test_a_validation_before_the_step_does_not_count():
    loop = Loop()

    def spoil(step: int, x: torch.Tensor, y: torch.Tensor) -> None:
        if step == 3:
            loop.model.eval()
            with torch.no_grad():
                loop.model(x)
            loop.model.train()
            torch.rand(1)  # as a DataLoader does that begins

    overflows_in(loop, 3)
    with loop.watch():
        loop.run(4, spoil)
    assert_again(loop, loop.losses[2])


@pytest.mark.parametrize(
    "draw", ["random_sample", "standard_normal", "normal", "rand", "standard_exponential"]
)
def test_numpys_state_is_taken_again_whenever_it_has_moved(draw):
    numpy = pytest.importorskip("numpy")
    before = numpy.random.get_state()
    try:
        numpy.random.seed(0)
        kept = RandomNumbers()
        for _ in range(5):
            for _ in range(3):
                kept.keep()
            expected = getattr(numpy.random, draw)()
            kept.restore()
            assert getattr(numpy.random, draw)() == expected
    finally:
        numpy.random.set_state(before)


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


def noted(seen: Watch) -> dict[str, Any]:
    """Return all that a watch has noted but the replays, for a comparison."""
    run = seen.run
    events = [
        {name: told(value) for name, value in vars_of(each).items() if name != "number"} | {"is": type(each)}
        for each in run.events
        if not isinstance(each, Replayed)
    ]
    counts = {name: count for name, count in run.counts.items() if name != "Replayed"}
    others = [run.steps, run.scales, run.skips, run.notes, run.schedulers, run.optimizers, len(run.underflow)]
    return {"events": events, "counts": counts, "others": others, "kept": run.kept_steps}


def vars_of(event: Any) -> dict[str, Any]:
    return {name: getattr(event, name) for name in type(event).__dataclass_fields__}


def told(value: Any) -> Any:
    return repr(value)  # NaN is like NaN there


@pytest.mark.parametrize(
    "spoil", [lambda *_: None, nan_in(5, 9), times(1e18, 5, 9)], ids=["healthy", "NaN", "overflow"]
)
@pytest.mark.parametrize("with_scaler", [True, False], ids=["scaler", "no scaler"])
def test_a_watch_notes_the_same_with_a_replay_and_without(spoil, with_scaler):
    def watched(**settings: Any) -> tuple[Watch, int]:
        loop = Loop(scaler=with_scaler, scale=64.0)
        with loop.watch(min_scale=None, **settings) as seen:
            loop.run(20, spoil)
        return seen, len(loop.again)

    (seen, again), (without, _) = watched(), watched(replay=None)
    assert noted(seen) == noted(without)
    assert seen.run.steps == 20
    assert "20 steps" in repr(seen)
    if with_scaler:
        assert bool(again) == bool(seen.run.skips) == bool(seen.overflows)


@pytest.mark.parametrize("when", ["in a step", "after a step"])
def test_find_overflow_leaves_no_trace_in_what_a_watch_has_seen(when):
    def watched(asks: bool) -> Watch:
        loop = Loop(scale=64.0)
        with loop.watch(replay=None) as seen:
            for at in range(1, 9):
                loop.x, loop.y = loop.data[at]
                if when == "in a step":
                    loop.optimizer.zero_grad()
                    loss = loop.loss()
                if asks:
                    amp_lab.find_overflow(loop.model, F.mse_loss, (loop.x, loop.y))
                    amp_lab.find_overflow(loop.model, loop.loss)
                if when == "in a step":
                    assert loop.scaler is not None
                    loop.scaler.scale(loss).backward()
                    loop.scaler.step(loop.optimizer)
                    loop.scaler.update()
                else:
                    loop.step()
            if asks and when == "after a step":
                amp_lab.find_overflow(loop.model, loop.loss)
        return seen

    assert noted(watched(True)) == noted(watched(False))


def test_another_watch_does_not_see_the_replays_of_this_one():
    loop = Loop()
    with watch(loop.model, loop.optimizer, loop.scaler) as outer, loop.watch() as seen:
        loop.run(8, nan_in(3))
    assert seen.overflows
    assert noted(outer)["counts"] == noted(seen)["counts"]
    assert outer.run.steps == 8


def test_a_watch_that_is_stopped_in_a_replay_stays_off():
    loop = Loop()

    def closure() -> torch.Tensor:
        seen.stop()
        return loop.loss()

    seen = loop.watch(replay=closure)
    with seen:
        loop.run(8, nan_in(3))
    assert repr(seen).startswith("Watch: off, 3 steps")


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
    assert len(seen.run.skips) > len(loop.again) == replaying.MOST_CHEAP


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
    assert note.startswith("replay: step 3 could not be run again, and no other will be (")
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


def test_a_closure_that_moves_generators_moves_none_of_the_loops():
    def after(**settings: Any) -> list[Any]:
        numpy = pytest.importorskip("numpy")
        loop = Loop()
        random.seed(0), numpy.random.seed(0)

        def closure() -> torch.Tensor:
            torch.manual_seed(5), random.seed(5), numpy.random.seed(5)
            return loop.loss()

        with loop.watch(**{"replay": closure, **settings}):
            loop.run(6, nan_in(3))
        return [torch.rand(1).item(), random.random(), numpy.random.rand(), loop.losses[3:]]

    assert after() == after(replay=None)


def test_a_watch_that_is_on_is_not_started_again():
    loop = Loop()
    with loop.watch() as seen:
        with pytest.raises(RuntimeError, match="this watch is on already"):
            seen.start()
        loop.run(4, nan_in(3))
    with seen:  # once more, and the run goes on
        loop.run(4, nan_in(3))
    assert [each.step for each in seen.run.of(Replayed)] == [3, 7]


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


def test_after_it_all_is_as_it_was_and_the_loop_can_go_on():
    before = Loop()
    loop, _, error = collapsed(replay=None)
    assert "Weights and optimizer are as they were" in str(error)
    assert "scaler.update(2.0**16)" in str(error)
    for now, then in zip(loop.model.parameters(), before.model.parameters(), strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0)
    assert loop.optimizer.state_dict() == before.optimizer.state_dict()
    for kind in (torch.amp.GradScaler, torch.optim.SGD, torch.Tensor, nn.Module):  # patches
        for name, value in vars(kind).items():
            assert not getattr(value, "__module__", "").startswith("amp_lab.watching"), name
    assert not loop.model._forward_hooks
    assert not loop.model._forward_pre_hooks
    assert loop.scaler is not None
    loop.scaler.update(64.0)
    with loop.watch() as seen:
        loop.run(5)
    assert loop.scaler.get_scale() == 64.0
    assert not seen.run.skips


def test_a_scaler_of_amp_labs_is_stopped_in_the_same_way():
    loop = Loop()
    loop.scaler = DynamicLossScaler(init_scale=1024.0)  # type: ignore[assignment]
    with pytest.raises(ScaleCollapsed, match="min_scale"), loop.watch(replay=None):
        loop.run(60, times(1e18))


def only_the_gpu_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whether a fused optimizer's step was skipped be a tensor, as on a GPU."""
    monkeypatch.setattr(noting_scalers, "number", lambda value: value.detach().clone().reshape(()))


def test_what_only_the_gpu_knows_ends_the_loop_a_little_later(monkeypatch):
    only_the_gpu_knows(monkeypatch)
    loop = Loop()
    loop.optimizer = torch.optim.Adam(loop.model.parameters(), fused=True)
    seen = loop.watch(replay=None)
    loop.data = loop.data * 2
    with pytest.raises(ScaleCollapsed, match="steps were all skipped"), seen:
        loop.run(100, times(1e18))
    assert 35 <= loop.at <= 35 + 32
    assert "ScaleCollapsed" in str(seen.report())


def test_what_only_the_gpu_knows_may_be_that_a_step_was_taken(monkeypatch):
    only_the_gpu_knows(monkeypatch)
    loop = Loop(scale=2.0**-22)
    loop.data = loop.data * 4
    loop.optimizer = torch.optim.Adam(loop.model.parameters(), fused=True)
    with loop.watch(replay=None):
        loop.run(100, times(torch.inf, *(step for step in range(100) if step % 10)))
    assert loop.scaler is not None
    assert loop.scaler.get_scale() == 2.0 ** (-22 - 90)


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
