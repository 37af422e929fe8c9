"""Notes what a training loop does: takes calls in, and makes events of them.

The modules in `noting/` know which calls there are, and what each of them tells. Each call that is noted is a
generator function: what stands before its `yield` runs before the call, what comes after, after it.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from amp_lab.autocast.records import Source
from amp_lab.watching.recording import scalers, setup
from amp_lab.watching.recording.events import Event, Gradients, Raised, Scheduled, ZeroGrad
from amp_lab.watching.recording.history import History
from amp_lab.watching.recording.known import MOST, Known, Owners, parameters_of
from amp_lab.watching.recording.noting import all_of
from amp_lab.watching.recording.numbers import rates
from amp_lab.watching.recording.patches import Around, Patches
from amp_lab.watching.recording.places import Names, Places
from amp_lab.watching.recording.run import ModelFacts, OptimizerFacts, Run, ScalerFacts
from amp_lab.watching.recording.scaled import ScaledLosses
from amp_lab.watching.recording.states import Factor, States
from amp_lab.watching.recording.steps import Steps
from amp_lab.watching.recording.threads import Here


class Outcome(NamedTuple):
    """How a call ended."""

    result: Any
    error: BaseException | None


# What notes a call: it yields once, where the call is made; it returns at once if the call is none of the watch's.
Noting = Generator[None, Outcome, None]

# From `Places.frame` to the one that has made the call: at least emit, a noting function, what has called that, and
# the stand-in or hook.
_OWN_FRAMES: Final = 5
_NOWHERE: Final[Any] = object()


class Recorder:
    """Records one run, which may be stopped and started again."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Any],
        given: Sequence[Any],
        schedulers: Sequence[Any],
    ) -> None:
        self.models = list(models)
        self.optimizers: list[Any] = []
        self.given_scalers = list(given)  # kept alive
        self.given_schedulers = list(schedulers)
        self.known, self.owners, self.states = Known(), Owners(), States()
        self.steps, self.history, self.scaled = Steps(), History(), ScaledLosses()
        self.places, self.here, self.notes = Places(), Here(), dict[str, None]()
        self.scales: dict[int, scalers.Scale] = {}
        self.eras: dict[int, int] = {}  # how often each scaler was updated
        self.last_scaler: Any = None
        self.lr: dict[int, tuple[float, ...]] = {}
        self.backwards = 0  # that run now, in all threads
        self.regions = 0  # how many were entered
        self.trained: set[int] = set()  # the scalers that have to do with the watched models
        self.fresh = False  # a watched model was called in the step that runs
        self.skipped = False  # an optimizer was skipped in the step that runs, or has just ended
        self.listening = False
        self.compiled = False
        self._facts_of_models: list[ModelFacts] = []
        self._facts_of_optimizers: list[OptimizerFacts] = []
        self._facts_of_scalers: list[ScalerFacts] = []
        self._kinds_of_schedulers: list[str] = []
        self._patches, self._undo = Patches(), list[Callable[[], None]]()
        self._lock = threading.RLock()
        self._main = threading.get_ident()
        self._device_type: str | None = "cpu"
        self._looks: Any = None
        self._take_in(optimizers)

    def _take_in(self, optimizers: Sequence[Any]) -> None:
        for model in self.models:
            self.known.models.add(model)
        for optimizer in optimizers:
            self._add_optimizer(optimizer, optimizers)
        self._facts_of_models = [setup.model_facts(model, optimizers) for model in self.models]
        for scaler in self.given_scalers:
            self.trained.add(self.add_scaler(scaler, given=True))
        for scheduler in self.given_schedulers:
            self.add_scheduler(scheduler)
        self.compiled = any(facts.compiled for facts in self._facts_of_models)
        self._device_type = _with_autocast(self._facts_of_models[0].device_type) if self.models else "cpu"

    # -- what is watched

    def _add_optimizer(self, optimizer: Any, all_optimizers: Sequence[Any]) -> int:
        number = self.known.optimizers.add(optimizer)
        self.optimizers.append(optimizer)
        others = [each for each in all_optimizers if each is not optimizer]
        self._facts_of_optimizers.append(setup.optimizer_facts(optimizer, self.models, others))
        begin = Gradients.UNSCALED if self.given_scalers else Gradients.TRUE
        self.states.add(self.owners.add(optimizer), begin)
        self.steps.add_optimizer(number)
        self.lr[number] = rates(optimizer.param_groups)
        self.places.forget_names()
        return number

    def optimizer(self, optimizer: Any) -> int | None:
        """Return an optimizer's number. One that trains a watched model gets a number when it is first met."""
        number = self.known.optimizers.get(optimizer)
        if number is None:
            number = self._met(optimizer)
        if number is not None and self.owners.has_grown(number, self.optimizers[number]):
            self.states.renew(number, self.owners.read(number, self.optimizers[number]))
        return number

    def _met(self, optimizer: Any) -> int | None:
        if not isinstance(getattr(optimizer, "param_groups", None), list) or len(self.optimizers) >= MOST:
            return None
        ids = {id(each) for each in parameters_of(optimizer)}
        for number, other in enumerate(self.optimizers):
            if ids == {id(each) for each in parameters_of(other)}:
                # A wrapper's optimizer, or one made anew for the same parameters: it goes by the same number.
                return self.known.optimizers.add(optimizer, number)
        if ids.isdisjoint(id(each) for model in self.models for each in model.parameters()):
            return None
        return self._add_optimizer(optimizer, [*self.optimizers, optimizer])

    def add_scaler(self, scaler: Any, *, given: bool = False, asked: dict[str, Any] | None = None) -> int:
        """Give a scaler a number. `asked` are the arguments that it was made with, where that was seen."""
        new = self.known.scalers.count < MOST
        number = self.known.scalers.add(scaler)
        self.eras.setdefault(number, 0)
        self.scales[number] = scalers.Scale()
        if new:
            scale = self.scales[number].of(scaler)
            known = None if isinstance(scale, torch.Tensor) else scale
            self._facts_of_scalers.append(scalers.facts(scaler, known, given, asked))
            self.places.forget_names()
        return number

    def scaler(self, scaler: Any) -> int:
        number = self.known.scalers.get(scaler)
        return self.add_scaler(scaler) if number is None else number

    def concerns(self, scaler: Any) -> bool:
        """Return whether a scaler has to do with the watched models: another loop may run beside theirs.

        One that was handed over has, and one that a watched optimizer was given to; else one that is used after a
        watched model was called. Where those calls are not seen, as of compiled models, and none was handed over, every
        scaler has.
        """
        number = self.scaler(scaler)
        unseen = not self.given_scalers and not self.history.counts["Forward"]
        if number not in self.trained and (self.fresh or unseen):
            self.trained.add(number)
        return number in self.trained

    def scale_of(self, scaler: Any) -> float | torch.Tensor:
        """Return a scaler's scale: a number, or a tensor that nobody writes to."""
        return self.scales[self.scaler(scaler)].of(scaler)

    def factor(self, scaler: Any, number: int, scale: float | torch.Tensor) -> Factor | None:
        """Return what a scaler of this number multiplies by, at this scale; None if it is disabled."""
        if not scalers.is_enabled(scaler):
            return None
        return Factor(number, None if isinstance(scale, torch.Tensor) else scale, self.eras[number])

    def add_scheduler(self, scheduler: Any) -> int:
        if self.known.schedulers.count < MOST:
            self._kinds_of_schedulers.append(type(scheduler).__name__)
        return self.known.schedulers.add(scheduler)

    def scheduler(self, scheduler: Any) -> int:
        number = self.known.schedulers.get(scheduler)
        return self.add_scheduler(scheduler) if number is None else number

    # -- on and off

    def start(self) -> None:
        """Put everything on."""
        self._main = threading.get_ident()
        self.listening = True
        for install in all_of():
            try:
                install(self)
            except Exception as error:
                self.failed(install.__module__.rpartition(".")[2], error)
        self._start_looks()

    def stop(self) -> None:
        """Take everything off again. May be called from any thread, and twice."""
        if not self.listening:
            return
        self.listening = False
        self._call_looks("stop")
        self._looks = None
        while self._undo:
            self._quietly("stop", self._undo.pop())
        self._patches.undo()

    def on_stop(self, undo: Callable[[], None]) -> None:
        self._undo.append(undo)

    def around(self, owner: Any, name: str, what: str, noting: Callable[..., Noting]) -> None:
        """Let a generator function note the calls of a function of a class or a module.

        Args:
            what: the kind of call. Of calls of one kind inside of another, in the same thread, the outermost is noted.
        """
        self.put_around(owner, name, functools.partial(self._call, what, noting))

    def _call(
        self, what: str, noting: Callable[..., Noting], call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        here = self.here
        if not self.listening or here.paused or what in here.inside:
            return call(*args, **kwargs)
        try:
            noted = noting(self, *args, **kwargs)
            next(noted)
        except StopIteration:  # not a call of the watch's
            return call(*args, **kwargs)
        except Exception as error:
            self.failed(what, error)
            return call(*args, **kwargs)
        here.inside.add(what)
        try:
            result = call(*args, **kwargs)
        except BaseException as error:
            here.inside.discard(what)
            self._end(what, noted, Outcome(None, error))
            raise
        here.inside.discard(what)
        self._end(what, noted, Outcome(result, None))
        return result

    def _end(self, what: str, noted: Noting, outcome: Outcome) -> None:
        try:
            noted.send(outcome)
        except StopIteration:
            pass
        except Exception as error:
            self.failed(what, error)

    def listens(self) -> bool:
        """Return whether calls of this thread are noted now."""
        return self.listening and not self.here.paused

    def put_around(self, owner: Any, name: str, around: Around) -> None:
        """Let a function stand around the calls of another, which is not noted itself: `around(call, *args)`."""
        try:
            self._patches.put_around(owner, name, around)
        except (AttributeError, TypeError) as error:
            self.failed(f"{getattr(owner, '__name__', owner)}.{name}", error)

    def failed(self, what: str, error: BaseException) -> None:
        """An error of the watch's own: the loop goes on, and the run tells of it."""
        self.note(f"{what}: could not be watched in full ({type(error).__name__}: {str(error)[:200]})")

    def note(self, words: str) -> None:
        if len(self.notes) < MOST:
            self.notes[words] = None

    def _quietly(self, what: str, call: Callable[..., object], *args: Any) -> Any:
        try:
            return call(*args)
        except Exception as error:
            self.failed(what, error)
            return None

    # -- events

    def emit(
        self,
        kind: type[Event],
        /,
        *,
        subject: tuple[str, int] = ("", 0),
        where: Any = _NOWHERE,
        above: int = _OWN_FRAMES,
        **fields: Any,
    ) -> None:
        """Note an event. Its line and names are found, unless `where` is given.

        Args:
            subject: the object it is about: what it is, and its number.
            above: how many frames on the stack are the watch's own.
        """
        names: Names = ()
        if where is _NOWHERE:
            where = None
            frame = self.places.frame(above)
            if frame is not None:
                where, names = self.places.place(frame, self.known.by_id, subject)
        regions = self.here.regions
        fields["where"], fields["names"] = where, names
        fields["main"] = threading.get_ident() == self._main
        fields["autocast"] = self._autocast()
        fields["regions"] = tuple([region.number for region in regions]) if regions else ()
        with self._lock:
            fields["step"] = self.steps.now
            self.history.add(kind, fields)

    def _autocast(self) -> torch.dtype | None:
        kind = self._device_type
        if kind is None or not torch.is_autocast_enabled(kind):
            return None
        return torch.get_autocast_dtype(kind)

    def opens(self) -> None:
        """A call is made that begins a step, if the last one has ended."""
        if self.steps.ended:
            with self._lock:
                if self.steps.begins():
                    self.history.begin_step(self.steps.now)
                    self.skipped = False

    def end_step(self) -> None:
        """The step that runs has ended now."""
        self.fresh = False
        self.look("step_ended")

    def skip(self, skipped: float | bool | torch.Tensor) -> None:
        """An optimizer was left out by the scaler, or may have been: then a tensor will tell."""
        if isinstance(skipped, torch.Tensor):
            self.history.may_have_skipped(self.steps.now, skipped)
        elif skipped:
            self.skipped = True
            self.history.skip(self.steps.now)

    def raised(self, error: BaseException) -> None:
        """The loop ended with an exception."""
        from amp_lab.autocast.errors import explain  # it imports much, and most loops end well

        explained = self._quietly("explain", lambda: explain(error).id)
        message = self._quietly("explain", lambda: str(error)) or ""
        place = self._quietly("explain", lambda: _line_of(self.places, error))
        self.emit(
            Raised, where=place, kind=type(error).__name__, message=message, explained=explained or "unknown"
        )

    def settle(self, optimizers: Iterable[int]) -> None:
        """Take note of what somebody did by hand to gradients: set to None, or assigned."""
        for number in optimizers:
            before = self.states.of(number)
            if self.states.was_cleared(number):
                self.emit(
                    ZeroGrad, where=None, optimizers=(number,), by="hand", set_to_none=True, before=(before,)
                )
            else:
                self.states.see_assigned(number)

    def see_rates(self, optimizer: int, now: tuple[float, ...]) -> None:
        """Note learning rates that somebody has written by hand since they were last seen."""
        before = self.lr[optimizer]
        if now != before and now == now:  # not NaN, which a GPU's is
            self.emit(
                Scheduled,
                where=None,
                scheduler=None,
                kind=None,
                optimizer=optimizer,
                before=before,
                after=now,
            )
        self.lr[optimizer] = now

    def read_again(self, optimizer: int) -> None:
        """An optimizer's settings were loaded."""
        self.lr[optimizer] = rates(self.optimizers[optimizer].param_groups)

    # -- closer looks: see recording/looks/

    def _start_looks(self) -> None:
        from amp_lab.watching.recording import looks

        make = getattr(looks, "Looks", None)
        self._looks = None if make is None else self._quietly("looks", make, Host(self))
        self._call_looks("start")

    def look(self, name: str, *args: Any) -> None:
        """Tell the closer looks what happens; they are told in the main thread only."""
        if self._looks is not None and threading.get_ident() == self._main and not self.here.paused:
            self._call_looks(name, *args)

    def _call_looks(self, name: str, *args: Any) -> None:
        if self._looks is not None:
            self._quietly("looks", getattr(self._looks, name), *args)

    # -- the run

    def _with_abandoned(self, facts: ModelFacts, model: Any) -> ModelFacts:
        left, optimized = 0, False
        for each in model.parameters():
            if self.owners.of(each) is not None:
                left, optimized = 0, True
            elif each.grad is not None:
                left += 1
        return replace(facts, abandoned=left if optimized else 0)

    def run(self) -> Run:
        """Return what was recorded until now. This may make the host wait for a device."""
        with self._lock:
            return Run(
                models=tuple(map(self._with_abandoned, self._facts_of_models, self.models)),
                optimizers=tuple(self._facts_of_optimizers),
                scalers=tuple(self._facts_of_scalers),
                schedulers=tuple(self._kinds_of_schedulers),
                events=tuple(self.history.events()),
                steps=self.steps.now if self.history.counts else 0,
                kept_steps=self.history.kept_steps(),
                scales=tuple(self.history.scales()),
                skips=tuple(self.history.skips()),
                counts=dict(self.history.counts),
                notes=tuple(self.notes),
            )


class Host:
    """What a closer look may ask the recorder."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.models: Sequence[nn.Module] = recorder.models
        self.optimizers: Sequence[Any] = recorder.optimizers

    @property
    def compiled(self) -> bool:
        return self._recorder.compiled

    @property
    def step(self) -> int:
        return self._recorder.steps.now

    @property
    def skipped(self) -> bool:
        return self._recorder.skipped

    def states(self) -> tuple[Gradients, ...]:
        return self._recorder.states.all()

    def scale(self) -> float | torch.Tensor | None:
        """Return the scale of the scaler that was used last, or was handed over; None without an enabled one."""
        recorder = self._recorder
        scaler = recorder.last_scaler or next(iter(recorder.given_scalers), None)
        return recorder.scale_of(scaler) if scaler is not None and scalers.is_enabled(scaler) else None

    def frame(self) -> FrameType | None:
        """Return the innermost frame of the user's code."""
        return self._recorder.places.frame()

    def here(self) -> Source | None:
        """Return the user's line now."""
        frame = self.frame()
        return None if frame is None else self._recorder.places.source(frame)

    def note(self, event: Event) -> None:
        """Note an event that was made without number, step, and place."""
        recorder = self._recorder
        fields = {
            name: getattr(event, name) for name in type(event).__dataclass_fields__ if name not in _FILLED
        }
        recorder.emit(type(event), where=event.where or _NOWHERE, above=2, **fields)
        if isinstance(event, ZeroGrad):
            for number in event.optimizers:
                recorder.states.set(number, Gradients.NONE if event.set_to_none else Gradients.ZERO)

    def unscaled(self, optimizer: int) -> None:
        """Its gradients were found to be divided by the scale, by hand: from now on they are UNSCALED."""
        self._recorder.states.unscale(optimizer)

    def owner(self, parameter: torch.Tensor) -> int | None:
        """Return the number of the optimizer that has a parameter."""
        return self._recorder.owners.of(parameter)


_FILLED: Final = frozenset(Event.__dataclass_fields__)


def _with_autocast(device_type: str) -> str | None:
    """Return a device type, if there is an autocast for it."""
    try:
        torch.is_autocast_enabled(device_type)
    except (RuntimeError, TypeError):
        return None
    return device_type


def _line_of(places: Places, error: BaseException) -> Source | None:
    """Return the innermost line of the user's code that an exception has passed."""
    from amp_lab.autocast.messages.users_code import frames, is_users

    return next((each for each in reversed(frames(error.__traceback__)) if is_users(each.file)), None)
