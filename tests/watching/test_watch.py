"""The door: what it takes, how it is used, and what it does with exceptions."""

import asyncio
import dataclasses
import itertools
import subprocess
import sys
import threading
import weakref

import pytest
import torch
from torch import nn

from amp_lab.scaling import DynamicLossScaler
from amp_lab.watching.recording.events import Backward, Clipped, Forward, Raised, Stepped
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


# -- strange things handed over


class Unmade(nn.Module):
    def __init__(self):
        pass


class WithoutAClass(nn.Linear):
    @property
    def __class__(self):
        raise ZeroDivisionError("mine")


def test_modules_that_are_not_made_in_full():
    both = nn.Sequential(nn.Linear(2, 2))
    both._modules["1"] = Unmade()
    for model in (Unmade(), both, [MODEL, Unmade()]):
        with pytest.raises(TypeError, match=r"must call super\(\).__init__\(\) first"):
            watch(model, OPTIMIZER)


def test_an_object_that_does_not_tell_its_class():
    for args in ((WithoutAClass(2, 2), OPTIMIZER), ([WithoutAClass(2, 2)], OPTIMIZER)):
        with pytest.raises(TypeError, match="does not tell its class"):
            watch(*args)


def test_what_has_no_end_is_not_taken():
    with pytest.raises(TypeError, match="goes on after 1,000"):
        watch(itertools.repeat(MODEL), OPTIMIZER)
    assert len(watch((each for each in [MODEL]), OPTIMIZER).run.models) == 1


# -- exceptions of the user's, and what they refuse


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    words: str


class WithTuple(Exception):
    __notes__ = ("mine",)


class Refuses(Exception):
    def add_note(self, note):
        raise ZeroDivisionError("no notes")


class Elusive(Exception):
    @property
    def __notes__(self):
        raise ZeroDivisionError("no notes")


@pytest.mark.parametrize("kind", [Frozen, WithTuple, Refuses, Elusive])
def test_an_exception_that_takes_no_note_passes_all_the_same(loop, kind):
    error = kind("mine")
    caught = None
    try:
        with loop.watch() as seen:
            loop.scaler.scale(loop.model(loop.x).mean()).backward()
            loop.scaler.step(loop.optimizer)
            loop.scaler.update(new_scale=1.0)
            loop.optimizer.step()
            raise error
    except Exception as other:
        caught = other
    assert caught is error
    assert not seen.report().ok  # there was something to say
    assert "off" in repr(seen)


# -- asynchronous generators


def test_a_decorated_asynchronous_generator(loop):
    seen = loop.watch()
    heard = []

    @seen
    async def steps():
        try:
            for number in range(3):
                loop.step()
                try:
                    heard.append((yield number))
                except KeyError as error:
                    heard.append(error)
        finally:
            heard.append("end")

    async def train():
        going = steps()
        assert await going.asend(None) == 0
        assert await going.asend("one") == 1
        assert "on" in repr(seen)
        assert await going.athrow(KeyError("two")) == 2
        assert [each async for each in going] == []
        going = steps()
        await anext(going)
        await going.aclose()

    asyncio.run(train())
    assert heard[0] == "one"
    assert isinstance(heard[1], KeyError)
    assert heard[2:] == [None, "end", "end"]
    assert seen.run.counts["Updated"] == 4
    assert "off" in repr(seen)


# -- threads


THREADS = """
import threading, torch
from torch import nn
from amp_lab import watch

torch.set_num_threads(1)

def parts():
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.001)

def train(model, optimizer):
    x = torch.randn(128, 256)
    for _ in range(40):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        nn.utils.clip_grad_value_(model.parameters(), 1.0)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()

def run(watched, *workers, here):
    threads = [threading.Thread(target=train, args=each) for each in workers]
    with watch(*watched) as seen:
        for each in threads:
            each.start()
        train(*here)
        for each in threads:
            each.join()
    counts = seen.run.counts
    print(*[counts[each] for each in ("Forward", "Backward", "Clipped", "Stepped")], seen.report().ok, seen.run.notes)

for _ in range(3):
    mine = parts()
    run(mine, parts(), parts(), here=mine)
for _ in range(2):
    mine = parts()
    run(mine, mine, here=parts())
"""


def test_other_threads_train_other_models():
    """To read a gradient that PyTorch is just writing in another thread ends the process, so here is another process.

    The watched model is trained in the main thread, then in another, while the main thread, in which the watch began,
    trains a model that is not watched, and often begins earlier.
    """
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert done.stdout.splitlines() == ["40 40 80 40 True ()"] * 5


def in_a_thread(call, *args):
    result = []
    thread = threading.Thread(target=lambda: result.append(call(*args)))
    thread.start()
    thread.join()
    return result[0]


def test_parts_of_a_step_in_other_threads(loop):
    """The forward pass, the backward pass, or the whole step."""
    with loop.watch() as seen:
        loop.optimizer.zero_grad()
        loss = in_a_thread(loop.model, loop.x).mean()
        loop.scaler.scale(loss).backward()
        loop.scaler.step(loop.optimizer)
        loop.scaler.update()
        loop.optimizer.zero_grad()
        in_a_thread(loop.scaler.scale(loop.model(loop.x).mean()).backward)
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.scaler.step(loop.optimizer)
        loop.scaler.update()
        in_a_thread(loop.step)
        loop.step()
    run = seen.run
    assert [(event.touched, event.scaled_by) for event in run.of(Backward)] == [((0,), 0)] * 4
    assert [event.main for event in run.of(Forward)] == [False, True, False, True]
    assert [event.optimizers for event in run.of(Clipped)] == [(0,)]
    assert [event.with_gradient for event in run.of(Stepped)] == [2] * 4
    assert run.notes == ()


# -- nothing is kept alive


def function_whose_first_tensor_dies(loop, seen):
    alive = []
    with seen:
        for _ in range(3):
            large = torch.ones(10)
            alive.append(weakref.ref(large))
            loop.step()
            del large
            if alive[0]() is not None:
                return False
    return True


def function_that_holds_its_locals(loop, seen):
    first = locals()
    with seen:
        for _ in range(2):
            large = torch.ones(10)
            loop.step()
    return set(first) == {"loop", "seen"} and large is not None


def test_a_tensor_of_the_loop_is_not_kept_alive(loop):
    assert function_whose_first_tensor_dies(loop, loop.watch())


def test_the_dictionary_of_locals_stays_what_it_was(loop):
    assert function_that_holds_its_locals(loop, loop.watch())
