"""Exercise 7.7: a checkpoint that holds everything."""

from __future__ import annotations

import re
import tempfile
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l07.scenes import DEVICE, Scene, seed_all
from amp_lab.course.lessons.l07.scheduling import SchedulingBench, right
from amp_lab.course.lessons.l07.whole import Whole, difference, differs, whole


class Case(NamedTuple):
    """A run that is saved after some steps, and goes on in new objects; whose scaler is enabled?"""

    scene: Scene
    stop: int  # steps before the checkpoint
    saved: bool = True
    loaded: bool = True
    as_text: bool = False  # the path
    fresh: float = 2.0**16  # the scale of the new objects


SCENES = (
    Case(Scene("cococc", scale=2.0**12, interval=3), 3),
    Case(Scene("cccocc", scale=2.0**8, interval=3, optimizer="Adam", seed=1), 2, as_text=True),
    Case(Scene("cccccc", scale=2.0**8, interval=4, net="batch norm", seed=2), 3, fresh=2.0**6),
    Case(Scene("coccc", ours=True, interval=2), 3),
    Case(Scene("cccc", optimizer="fused Adam"), 2),
    Case(Scene("occc"), 1),
    Case(Scene("ccc"), 0),
    Case(Scene("cccc"), 2, saved=False, fresh=2.0**9),
    Case(Scene("cccc"), 2, loaded=False),
    Case(Scene("cccc"), 2, saved=False, loaded=False),
)
# The part of a run that is not as it was, and what is told of it.
_DIAGNOSES = {
    "objects": "objects-changed",
    "model": "weights-lost",
    "optimizer": "momenta-lost",
    "learning rate": "schedule-lost",
    "scheduler": "schedule-lost",
    "scale": "scale-lost",
    "scaler": "clean-steps-lost",
}
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")  # which PyTorch writes into some of its messages


class _Run(SchedulingBench):
    """A run with a scaler that may be disabled, and the keeper that a learner's class has made of it."""

    def __init__(self, ask: Ask, scene: Scene, enabled: bool, words: str) -> None:
        super().__init__(scene)
        if not enabled:
            self.scaler = torch.amp.GradScaler(DEVICE.type, enabled=False)
        ask.in_words = lambda *_: f"`Checkpoint(model, optimizer, scheduler, scaler)` ({words})"
        self.keeper = ask(self.net, self.optimizer, self.scheduler, self.scaler, may_change=True)

    def train(self, first: int, last: int, scene: Scene | None = None) -> None:
        self.scene = scene or self.scene
        for number in range(first, last):
            with torch.random.fork_rng(devices=[]):
                seed_all(number)
                right(*self.arguments(number))
            # In a region of the page, copies of weights would be kept over the steps, and differ after a load.
            torch.clear_autocast_cache()

    def look(self) -> Whole:
        return whole(self.net, self.optimizer, self.scheduler, self.scaler)


@checker("7.7")
def checkpoint(ask: Ask) -> None:
    """Save in the middle, look at the file, load into new objects, and let both go on."""
    with tempfile.TemporaryDirectory(prefix="amp-lab-") as folder:
        for number, case in enumerate(SCENES):
            place = Path(folder) / str(number)
            place.mkdir()
            _play(ask, case, place, first=number == 0)


def _play(ask: Ask, case: Case, folder: Path, *, first: bool) -> None:
    run = _Run(ask, case.scene, case.saved, _words(case))
    if first:
        ask.returned = False  # its `__init__` is given
    ask.call = f"`Checkpoint(model, optimizer, scheduler, scaler)` ({_words(case)})"
    _going_on(ask.call, run.train, 0, case.stop)
    path = folder / "run.pt"
    for time in ("", ", a second time,"):
        ask.call = f"`checkpoint.save(path)`{time} after {case.stop} steps ({_words(case)})"
        _save(ask, run, _given(case, path))
        _expect_file(ask.call, path)
    _load(ask, case, folder, run)


def _save(ask: Ask, run: _Run, given: Any) -> None:
    """Save, and expect that this has changed nothing."""
    before, grads = run.look(), _grads(run)
    try:
        drawn = ask.run(_call_save, run.keeper, given)
    except Contained as contained:
        if contained.fault == "exception" and "pickle" in str(contained.error):
            raise Mistake("cannot-be-saved", call=ask.call, got=_line(contained.error)) from None
        raise
    found = difference(_going_on(ask.call, run.look), before)
    shown = found[1] if found else None
    shown = shown or differs("`torch.get_rng_state()`", *drawn)
    for name, grad in _grads(run).items():
        shown = shown or differs(f"`{name}.grad`", grad, grads[name])
    if shown is not None:
        raise Mistake("save-disturbs", call=ask.call, **shown)


def _grads(run: _Run) -> dict[str, torch.Tensor | None]:
    return {
        name: None if each.grad is None else each.grad.clone() for name, each in run.net.named_parameters()
    }


def _load(ask: Ask, case: Case, folder: Path, run: _Run) -> None:
    """Load what `run` has saved into new objects, from another folder, and let both go on."""
    other = case.scene._replace(seed=case.scene.seed + 100, scale=case.fresh)
    resumed = _Run(ask, other, case.loaded, _words(case))
    # A life before that leaves its traces, unless it is overwritten.
    resumed.optimizer.param_groups[0]["weight_decay"] = 0.01
    resumed.train(0, min(1, case.stop), case.scene._replace(seed=other.seed))
    ask.call = f"`checkpoint.save(path)` of another run ({_words(case)})"
    _save(ask, resumed, _given(case, folder / "other.pt"))
    moved = folder / "moved"
    moved.mkdir()
    path = (folder / "run.pt").rename(moved / "file.pt")
    ask.call = f"`checkpoint.load(path)` of a file that was moved, in new objects ({_words(case)})"
    fresh = resumed.look()
    try:
        ask.run(_call_load, resumed.keeper, _given(case, path))
    except Contained as contained:
        _explain_error(ask.call, case, contained)
        raise
    got, want = _going_on(ask.call, resumed.look), run.look()
    if not (case.saved and case.loaded):  # each goes on with its own scaler
        _expect_fresh(ask.call, got, fresh)
        want = want._replace(scaler=got.scaler)
    _compare(ask.call, got, want)
    if case.saved and case.loaded:
        last = len(case.scene.plan)
        ask.call = f"`checkpoint.load(path)`, {last - case.stop} steps later ({_words(case)})"
        _going_on(ask.call, resumed.train, case.stop, last, case.scene)
        run.train(case.stop, last)
        _compare(ask.call, _going_on(ask.call, resumed.look), run.look())


def _expect_fresh(call: str, got: Whole, fresh: Whole) -> None:
    found = difference(got._replace(parts=fresh.parts), fresh)
    if found is not None:
        _, shown = found
        raise Mistake("fresh-scale-lost", call=call, **shown)


def _call_save(keeper: Any, path: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the state of PyTorch's random numbers after and before: whoever runs this puts it back."""
    torch.rand(1)
    before = torch.get_rng_state()
    keeper.save(path)
    return torch.get_rng_state(), before


def _call_load(keeper: Any, path: Any) -> None:
    keeper.load(path)


def _given(case: Case, path: Path) -> Any:
    return str(path) if case.as_text else path


def _going_on(call: str, function: Callable[..., Any], *given: Any) -> Any:
    """Call our own code with objects that went through the learner's hands."""
    try:
        return function(*given)
    except Exception as error:
        raise Mistake("run-broken", call=call, got=_line(error)) from None


def _line(error: BaseException | None) -> str:
    """Return an error in one line, without the names of the check's own classes."""
    words = _COLOURS.sub("", str(error)).strip().partition("\n")[0].partition(": attribute lookup")[0]
    words = re.sub(r"<class '[^']*\.(\w+)'>", r"\1", words)
    return f"`{textwrap.shorten(f'{type(error).__name__}: {words}', 160, placeholder=' …')}`"


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
        with warnings.catch_warnings(action="ignore"):  # of files that another program has written
            torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        # PyTorch's message begins with advice; which object it has met stands further on.
        met = re.search(r"GLOBAL (?:\w+\.)*(\w+)", str(error))
        words = f"an error: there is a `{met[1]}` in the file" if met else _line(error)
        raise Mistake("pickled-objects", call=call, got=words) from None


def _explain_error(call: str, case: Case, contained: Contained) -> None:
    if contained.fault != "exception" or isinstance(contained.error, NotImplementedError):
        return
    if not case.saved or not case.loaded:
        raise Mistake("empty-state", call=call, got=_line(contained.error)) from None


def _compare(call: str, got: Whole, want: Whole) -> None:
    found = difference(got, want)
    if found is not None:
        part, shown = found
        raise Mistake(_DIAGNOSES[part], call=call, **shown)
