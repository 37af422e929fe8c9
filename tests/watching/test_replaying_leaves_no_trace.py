"""A batch that is run again draws the same random numbers, and changes neither the loop nor what a watch has noted."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import amp_lab
from amp_lab.watching.recording.events import Replayed
from amp_lab.watching.recording.random_numbers import RandomNumbers
from amp_lab.watching.watch import Watch, watch
from tests.watching.loops_to_replay import Loop, assert_again, nan_in, noted, overflows_in, times

pytestmark = pytest.mark.usefixtures("one_thread")


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
