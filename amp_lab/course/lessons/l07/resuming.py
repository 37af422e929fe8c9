"""Exercise 7.7: a checkpoint that holds everything."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l07.scenes import DEVICE, Scene, State
from amp_lab.course.lessons.l07.scheduling import SchedulingBench, right


class Case(NamedTuple):
    """A run that is saved after some steps, and goes on in new objects; whose scaler is enabled?"""

    scene: Scene
    stop: int  # steps before the checkpoint
    saved: bool = True
    loaded: bool = True
    as_text: bool = False  # the path


SCENES = (
    Case(Scene("cococc", scale=2.0**12, interval=3), 3),
    Case(Scene("cccocc", scale=2.0**8, interval=3, optimizer="Adam", seed=1), 2, as_text=True),
    Case(Scene("cccccc", scale=2.0**8, interval=4, net="batch norm", seed=2), 3),
    Case(Scene("coccc", ours=True, interval=2), 3),
    Case(Scene("cccc", optimizer="fused Adam"), 2),
    Case(Scene("occc"), 1),
    Case(Scene("ccc"), 0),
    Case(Scene("cccc"), 2, saved=False),
    Case(Scene("cccc"), 2, loaded=False),
    Case(Scene("cccc"), 2, saved=False, loaded=False),
)
# Of a checkpoint, what is told when it is missing: the part of the state that differs first, in this order.
_LOST = (
    ("model.", "weights-lost", "the weights"),
    ("learning rate", "schedule-lost", "the learning rate"),
    (" of ", "momenta-lost", "what the optimizer keeps"),
)


class _Run(SchedulingBench):
    """A run with a scaler that may be disabled."""

    def __init__(self, scene: Scene, enabled: bool) -> None:
        super().__init__(scene)
        if not enabled:
            self.scaler = torch.amp.GradScaler(DEVICE.type, enabled=False)
        self.parts = (self.net, self.optimizer, self.scheduler, self.scaler)

    def train(self, first: int, last: int) -> None:
        for number in range(first, last):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(number)
                right(*self.arguments(number))

    def state(self) -> State:
        state = super().state()
        epoch = torch.tensor(float(self.scheduler.last_epoch))
        return state._replace(tensors=state.tensors | {"last_epoch of the scheduler": epoch})


@checker("7.7")
def checkpoint(ask: Ask) -> None:
    """Save in the middle, look at the file, load into new objects, and let both go on."""
    with tempfile.TemporaryDirectory(prefix="amp-lab-") as folder:
        for number, case in enumerate(SCENES):
            _play(ask, case, Path(folder) / f"run {number}.pt", first=number == 0)


def _play(ask: Ask, case: Case, path: Path, *, first: bool) -> None:
    run, twin = _Run(case.scene, case.saved), _Run(case.scene, case.saved)
    run.train(0, case.stop)
    twin.train(0, case.stop)
    given: Any = str(path) if case.as_text else path
    ask.in_words = lambda *_: f"`Checkpoint(model, optimizer, scheduler, scaler)` ({_words(case)})"
    keeper = ask(*run.parts, may_change=True)
    if first:
        ask.returned = False  # its `__init__` is given
    ask.call = f"`checkpoint.save(path)` after {case.stop} steps ({_words(case)})"
    ask.run(_save, keeper, given)
    _expect_file(ask.call, path)
    _expect_same(ask.call, run, twin)
    _load(ask, case, given, run)


def _load(ask: Ask, case: Case, given: Any, run: _Run) -> None:
    """Load what `run` has saved into new objects, and let both go on."""
    other = case.scene._replace(seed=case.scene.seed + 100, scale=2.0**16)
    resumed = _Run(other, case.loaded)
    resumed.scene = case.scene
    resumed.train(0, min(1, case.stop))  # a life before that leaves its traces, unless it is overwritten
    fresh = resumed.scaler.get_scale()
    keeper = ask(*resumed.parts, may_change=True)
    ask.call = f"`checkpoint.load(path)` in new objects ({_words(case)})"
    try:
        ask.run(_restore, keeper, given)
    except Contained as contained:
        _explain_error(ask.call, case, contained)
        raise
    got, want = resumed.state(), run.state()
    if not (case.saved and case.loaded):  # each goes on with its own scale
        if got.scale != fresh:
            shown = {"got": f"{got.scale:g}", "want": f"{fresh:g}"}
            raise Mistake("fresh-scale-lost", call=ask.call, **shown)
        want = want._replace(scale=got.scale, clean_steps=got.clean_steps)
    _compare(ask.call, got, want)
    if case.saved and case.loaded:
        ask.call = f"`checkpoint.load(path)`, {len(case.scene.plan) - case.stop} steps later ({_words(case)})"
        run.train(case.stop, len(case.scene.plan))
        resumed.train(case.stop, len(case.scene.plan))
        _compare(ask.call, resumed.state(), run.state())


def _save(keeper: Any, path: Any) -> None:
    keeper.save(path)


def _restore(keeper: Any, path: Any) -> None:
    keeper.load(path)


def _words(case: Case) -> str:
    if case.saved and case.loaded:
        return case.scene.words
    enabled = {True: "enabled", False: "disabled"}
    return (
        f"saved with a scaler that is {enabled[case.saved]}, loaded with one that is {enabled[case.loaded]}"
    )


def _expect_file(call: str, path: Path) -> None:
    if not path.is_file():
        raise Mistake("no-file", call=call, got="no file")
    try:
        held = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        line = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:140]
        raise Mistake("pickled-objects", call=call, got=f"`{line}`") from None
    if not isinstance(held, dict):
        raise Mistake("pickled-objects", call=call, got=describe(held))


def _expect_same(call: str, run: _Run, twin: _Run) -> None:
    """Expect that saving has changed nothing."""
    found = _difference(run.state(), twin.state())
    if found:
        raise Mistake("save-disturbs", call=call, **found)


def _explain_error(call: str, case: Case, contained: Contained) -> None:
    if contained.fault != "exception" or isinstance(contained.error, NotImplementedError):
        return
    if not case.saved or not case.loaded:
        line = f"{type(contained.error).__name__}: {str(contained.error).strip().partition(chr(10))[0]}"
        raise Mistake("empty-state", call=call, got=f"`{line[:160]}`") from None


def _compare(call: str, got: State, want: State) -> None:
    found = _difference(got, want)
    if found is None:
        return
    place = found["place"]
    if place == "the scale":
        raise Mistake("scale-lost", call=call, **found)
    if place == "the count of clean steps":
        raise Mistake("clean-steps-lost", call=call, **found)
    name = place.strip("`")
    if name.startswith("last_epoch"):
        raise Mistake("schedule-lost", call=call, **found)
    diagnosis = next((each for part, each, _ in _LOST if _is(name, part)), "momenta-lost")
    raise Mistake(diagnosis, call=call, **found)


def _is(name: str, part: str) -> bool:
    return name.startswith(part) or (part == " of " and part in name)


def _difference(got: State, want: State) -> dict[str, str] | None:
    """Return the first thing that is not bit for bit the same: `place`, `got` and `want`."""
    for name in sorted(want.tensors | got.tensors, key=lambda name: " of " in name):  # weights come first
        one, other = got.tensors.get(name), want.tensors.get(name)
        if one is None or other is None:
            words = {True: "not there", False: "there"}
            return {"place": f"`{name}`", "got": words[one is None], "want": words[other is None]}
        if not torch.equal(one, other):
            far = (one != other).nonzero()
            index = tuple(far[0].tolist())
            shown = (f"{float(each[index]):.8g}" for each in (one, other))
            where = f"`{name}[{', '.join(map(str, index))}]`" if index else f"`{name}`"
            return dict(zip(("place", "got", "want"), (where, *shown), strict=True))
    if got.scale != want.scale:
        return {"place": "the scale", "got": f"{got.scale:g}", "want": f"{want.scale:g}"}
    if got.clean_steps != want.clean_steps:
        return {
            "place": "the count of clean steps",
            "got": str(got.clean_steps),
            "want": str(want.clean_steps),
        }
    return None
