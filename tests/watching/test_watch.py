"""The door: what it takes, how it is used, and what it does with exceptions."""

import asyncio
import threading

import pytest
import torch
from torch import nn

from amp_lab.scaling import DynamicLossScaler
from amp_lab.watching.recording.events import Backward, Raised, Stepped
from amp_lab.watching.watch import Watch, watch


class Loop:
    def __init__(self, scaler=None):
        torch.manual_seed(0)
        self.model = nn.Linear(8, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.scaler = scaler or torch.amp.GradScaler("cpu", init_scale=8.0)
        self.x = torch.randn(2, 8)

    def watch(self):
        return watch(self.model, self.optimizer, self.scaler)

    def step(self):
        self.optimizer.zero_grad()
        self.scaler.scale(self.model(self.x).mean()).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()


@pytest.fixture
def loop():
    return Loop()


MODEL = nn.Linear(2, 2)
OPTIMIZER = torch.optim.SGD(MODEL.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((nn.Linear, OPTIMIZER), "the model itself, not its class Linear"),
        ((OPTIMIZER, MODEL), "the order is watch"),
        (("model", OPTIMIZER), "not a str"),
        (([], OPTIMIZER), "model: there is none"),
        ((MODEL, torch.optim.SGD), "the optimizer itself, not its class"),
        ((MODEL, torch.amp.GradScaler("cpu")), "this is a scaler"),
        ((MODEL, []), "optimizer: there is none"),
        ((MODEL, 0.1), "not a float"),
        ((MODEL, OPTIMIZER, 1024.0), "not the number 1024.0"),
        ((MODEL, OPTIMIZER, torch.amp.GradScaler), "the scaler itself, not its class"),
        ((MODEL, OPTIMIZER, OPTIMIZER), "an object with scale, step and update"),
    ],
)
def test_what_it_does_not_take(args, words):
    with pytest.raises(TypeError, match=words):
        watch(*args)


def test_what_it_takes():
    other = nn.Linear(2, 2)
    both = [OPTIMIZER, torch.optim.Adam(other.parameters())]
    run = watch([MODEL, other], both, None).run
    assert [facts.kind for facts in run.optimizers] == ["SGD", "Adam"]
    assert [facts.models for facts in run.optimizers] == [{0}, {1}]
    assert (
        watch(nn.ModuleList([MODEL]), OPTIMIZER).run.models[0].kind == "ModuleList"
    )  # one model, though iterable
    assert (
        watch(MODEL, torch.optim.SGD(other.parameters(), lr=1)).run.optimizers[0].foreign == 2
    )  # for a rule to tell


def test_a_watch_that_is_on_is_not_started_again(loop):
    seen = loop.watch().start()
    with pytest.raises(RuntimeError, match="on already"):
        seen.start()
    seen.stop()
    seen.stop()
    assert "off" in repr(seen)


def test_one_after_the_other_goes_on_with_the_run(loop):
    seen = loop.watch()
    for _ in range(2):
        with seen:
            loop.step()
    loop.step()
    assert seen.run.steps == 2
    assert seen.run.counts["Stepped"] == 2


def test_a_decorated_function_is_watched_over_calls_and_when_it_calls_itself(loop):
    seen = loop.watch()

    @seen
    def step(again):
        """Make a step."""
        loop.step()
        if again:
            step(False)
        return "done"

    assert step(True) == "done"
    assert step.__doc__ == "Make a step."
    step(False)
    assert seen.run.counts["Updated"] == 3
    loop.step()
    assert seen.run.counts["Updated"] == 3


def test_a_decorator_takes_functions_only(loop):
    with pytest.raises(TypeError, match="is no function"):
        loop.watch()(loop.model)


def test_a_decorated_generator_is_watched_while_it_runs(loop):
    seen = loop.watch()

    @seen
    def steps():
        for _ in range(3):
            loop.step()
            yield

    for _ in steps():
        pass
    assert seen.run.counts["Updated"] == 3
    for _ in steps():
        break
    assert seen.run.counts["Updated"] == 4
    assert "off" in repr(seen)


def test_a_decorated_coroutine(loop):
    seen = loop.watch()

    @seen
    async def train():
        await asyncio.sleep(0)
        loop.step()

    asyncio.run(train())
    assert seen.run.counts["Updated"] == 1


def test_report_in_the_middle(loop):
    with loop.watch() as seen:
        loop.step()
        assert seen.report().run.steps == 1
        loop.step()
    assert seen.report().run.steps == 2


def test_an_exception_passes_and_gets_the_diagnosis_as_a_note(loop):
    def train():
        loop.scaler.scale(loop.model(loop.x).mean()).backward()
        loop.scaler.step(loop.optimizer)
        loop.scaler.step(loop.optimizer)

    with pytest.raises(RuntimeError, match="already been called") as caught, loop.watch() as seen:
        train()
    assert any("twice" in note for note in caught.value.__notes__)
    raised = next(seen.run.of(Raised))
    assert raised.kind == "RuntimeError"
    assert raised.where.text == "loop.scaler.step(loop.optimizer)"
    assert [event.raised for event in seen.run.of(Stepped)] == [False, True]


@pytest.mark.parametrize("kind", [KeyboardInterrupt, StopIteration, SystemExit])
def test_the_wish_to_end_is_no_error(loop, kind):
    with pytest.raises(kind) as caught, loop.watch() as seen:
        raise kind
    assert not hasattr(caught.value, "__notes__")
    assert not list(seen.run.of(Raised))


def test_stopped_from_another_thread(loop):
    before = torch.autograd.backward
    seen = loop.watch().start()
    loop.step()
    thread = threading.Thread(target=seen.stop)
    thread.start()
    thread.join()
    assert torch.autograd.backward is before
    assert seen.run.steps == 1


def test_a_scaler_that_is_not_handed_over_is_found(loop):
    with watch(loop.model, loop.optimizer) as seen:
        loop.step()
    (facts,) = seen.run.scalers
    assert (facts.kind, facts.scale, facts.given) == ("GradScaler", 8.0, False)
    assert [event.scaled_by for event in seen.run.of(Backward)] == [0]


def test_our_own_scaler():
    loop = Loop(DynamicLossScaler(8.0))
    with loop.watch() as seen:
        loop.step()
    (step,) = seen.run.of(Stepped)
    assert (step.scaler, step.skipped.value, step.scale.value) == (0, False, 8.0)
    assert isinstance(seen, Watch)
