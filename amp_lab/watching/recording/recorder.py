"""Notes what a training loop does: makes events of its calls.

The modules in `noting/` know which calls there are, and what each of them tells; `calls.py` lets them see the calls.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.distributed as dist
from torch import nn

from amp_lab.autocast.records import Source
from amp_lab.watching.recording import setup, unseen
from amp_lab.watching.recording.calls import After, Calls, Noting, nothing_after
from amp_lab.watching.recording.collapsing import Collapsing
from amp_lab.watching.recording.events import Event, Gradients, Raised, Scheduled, ZeroGrad
from amp_lab.watching.recording.history import History
from amp_lab.watching.recording.host import CloserLooks
from amp_lab.watching.recording.noting import all_of
from amp_lab.watching.recording.ranks.seen import RanksSeen
from amp_lab.watching.recording.replaying import Replaying
from amp_lab.watching.recording.run import ModelFacts, Run
from amp_lab.watching.recording.scaled import ScaledLosses
from amp_lab.watching.recording.threads import Here
from amp_lab.watching.recording.watched import Watched
from amp_lab.watching.underflow.sample import Samples

if TYPE_CHECKING:
    from amp_lab.watching.recording.ranks.attendant import Attendant
    from amp_lab.watching.recording.ranks.this_rank import ThisRank

__all__ = ["After", "Noting", "Recorder", "nothing_after"]

# From `Places.frame` to the user's, these frames at least are the watch's own: emit, a noting function, what has
# called that, and the stand-in or hook.
_OWN_FRAMES: Final = 5


class Recorder(Watched, Calls):
    """Records one run, which may be stopped and started again."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Any],
        given: Sequence[Any],
        schedulers: Sequence[Any],
        replay: Callable[[], torch.Tensor] | None = None,
        min_scale: float | None = None,
    ) -> None:
        Calls.__init__(self)
        Watched.__init__(self, models, optimizers, given, schedulers)
        self.history, self.scaled = History(), ScaledLosses()
        self.collapsing = Collapsing(min_scale)
        self.replaying = None if replay is None else Replaying(replay)
        self.backwards = 0  # that run now, in all threads
        self.fresh = False  # a watched model was called in the step that runs
        self.skipped = False  # an optimizer was skipped in the step that runs, or has just ended
        self._regions = 0  # how many were entered
        self._lock = threading.RLock()
        self._main = self._loop = threading.get_ident()
        self._is_claimed = (
            False  # a watched model was called: before, the loop may yet begin in another thread
        )
        self._device_type = (
            setup.with_autocast(self._facts_of_models[0].device_type) if self.models else "cpu"
        )
        self.samples = Samples()
        self._looks = CloserLooks(self)
        self.look = self._looks.tell
        self._attendant: Attendant | None = None
        self.this_rank: ThisRank | None = None  # where several processes train together

    def start(self) -> None:
        """Put everything on."""
        self.take_off()  # what is left there of a stop that was interrupted
        self._main = self._loop = threading.get_ident()
        self._is_claimed = False
        self.here, self.backwards = Here(), 0
        self.listening = True
        self.hide_from_warnings()
        for install in all_of():
            try:
                install(self)
            except Exception as error:
                self.failed(install.__module__.rpartition(".")[2], error)
        if dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1:
            self.quietly("ranks", self._attend)
        self._looks.start()
        unseen.is_on(self)

    def _attend(self) -> None:
        """Watch also how this process trains together with others."""
        if self._attendant is None:
            from amp_lab.watching.recording.ranks.attendant import Attendant

            self._attendant = Attendant(self)
            self.this_rank = self._attendant.this_rank
        self._attendant.start()

    def stop(self, is_over: bool = True) -> None:
        """Take everything off again. May be called from any thread, and twice.

        Args:
            is_over: whether the loop has ended, so that the host may wait for a GPU.
        """
        if self._attendant is not None and self.listening:
            self._attendant.left(is_over=is_over)
        self.listening = False
        unseen.is_off(self)
        try:
            self.take_off()
        except BaseException:  # Ctrl-C
            self.take_off()
            raise

    def take_off(self) -> None:
        self._looks.stop()
        super().take_off()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Note nothing of what is called in here: it is no part of the loop."""
        if not self.listening:  # one inside of another
            yield
            return
        self.listening = False
        try:
            with self._looks.paused():
                yield
        finally:
            self.listening = unseen.notes(self)  # it may have been stopped in here

    def runs_here(self) -> bool:
        """Return whether this thread runs the watched loop: in another, gradients must not be read.

        PyTorch writes them in a backward pass without holding Python's lock, and to read one at that moment may end the
        process. The thread is the one that has settled last, at first the one that calls a watched model first, or one
        that has called a watched model since.
        """
        return threading.get_ident() == self._loop or self.here.called

    @property
    def thread(self) -> int:
        """The thread that runs the watched loop, as far as that is known."""
        return self._loop

    def is_begun(self) -> bool:
        """Return whether a watched model was called with gradients on, or an optimizer has stepped."""
        return self._is_claimed or bool(self.history.counts["Stepped"])

    def called_here(self) -> None:
        """A watched model is called in this thread."""
        if not torch.is_grad_enabled():
            return
        if not self._is_claimed:
            self._loop, self._is_claimed = threading.get_ident(), True
        elif threading.get_ident() != self._loop:
            self.here.called = True

    # -- events

    def emit(
        self,
        kind: type[Event],
        /,
        *,
        subject: tuple[str, int] = ("", 0),
        above: int = _OWN_FRAMES,
        **fields: Any,
    ) -> None:
        """Note an event. Its line (`where`) and names are found, unless `where` is among the fields.

        Args:
            subject: the object it is about: what it is, and its number.
            above: how many frames on the stack are the watch's own.
        """
        if "where" in fields:
            fields["names"] = ()
        else:
            fields["where"], fields["names"] = self.places.of(above, self.known.by_id, subject)
        fields["main"] = threading.get_ident() == self._main
        device = self._device_type
        is_on = device is not None and torch.is_autocast_enabled(device)
        fields["autocast"] = torch.get_autocast_dtype(device) if device is not None and is_on else None
        regions = self.here.regions
        fields["regions"] = tuple([region.number for region in regions]) if regions else ()
        with self._lock:
            fields["step"] = self.steps.now
            self.history.add(kind, fields)

    def next_region(self) -> int:
        """Return a number for a region that is entered."""
        with self._lock:
            self._regions += 1
            return self._regions

    def opens(self) -> None:
        """A call is made that begins a step, if the last one has ended. Regions around it belong to that step."""
        if not self.steps.ended:
            return
        around = frozenset([region.number for region in self.here.regions])
        with self._lock:
            if self.steps.begins():
                self.history.begin_step(self.steps.now, around)
                self.skipped = False

    def end_step(self) -> None:
        """The step that runs has ended now."""
        self.fresh = False
        self.history.end_step()
        self.look("step_ended", self.skipped)

    def skip(self, skipped: float | bool | torch.Tensor) -> None:
        """An optimizer was left out by the scaler, or may have been: then a tensor will tell."""
        if self.this_rank is not None:
            self.this_rank.stepped(self.steps.now, skipped)
        if isinstance(skipped, torch.Tensor):
            self.history.may_have_skipped(self.steps.now, skipped)
        elif skipped:
            self.skipped = True
            self.history.skip(self.steps.now)

    def concerns(self, scaler: Any) -> bool:
        """Return whether a scaler has to do with the watched models: another loop may run beside theirs.

        One that was handed over has, and one that a watched optimizer was given to; else one that is used after a
        watched model was called. Where those calls are not seen, as of compiled models, and none was handed over, every
        scaler has.
        """
        number = self.scaler(scaler)
        if number in self.trained:
            return True
        unseen = not self.given_scalers and not self.history.counts["Forward"]
        if (self.fresh or unseen) and self.runs_here():
            self.trained.add(number)
        return number in self.trained

    def raised(self, error: BaseException) -> None:
        """The loop ended with an exception."""
        if self._attendant is not None:
            self._attendant.left(error)
        from amp_lab.autocast.errors import explain  # it imports much, and most loops end well

        explained = self.quietly("explain", lambda: explain(error).id)
        message = self.quietly("explain", lambda: str(error)) or ""
        place = self.quietly("explain", lambda: _line_of(error))
        self.emit(
            Raised, where=place, kind=type(error).__name__, message=message, explained=explained or "unknown"
        )

    def settle(self, optimizers: Sequence[int]) -> None:
        """Take note of what somebody did by hand to gradients: set to None, or assigned.

        To be called in the thread that uses them; they are its own from now on.
        """
        if optimizers and self.runs_here():  # another thread may have begun the loop meanwhile
            self._loop, self.here.called = threading.get_ident(), False
        for number in optimizers:
            before = self.states.of(number)
            if self.states.see_by_hand(number) and before is not Gradients.NONE:
                self.emit(
                    ZeroGrad, where=None, optimizers=(number,), by="hand", set_to_none=True, before=(before,)
                )

    def see_rates(self, optimizer: int, now: tuple[float, ...]) -> None:
        """Note learning rates that somebody has written by hand since they were last seen."""
        before = self.lr[optimizer]
        if now != before and now == now:  # not NaN, which a GPU's is
            fields: dict[str, Any] = {"scheduler": None, "kind": None, "optimizer": optimizer}
            self.emit(Scheduled, where=None, before=before, after=now, **fields)
        self.lr[optimizer] = now

    # -- the run

    def _models_now(self) -> tuple[ModelFacts, ...]:
        if self.listening and not self.runs_here():
            return tuple(self._facts_of_models)
        both = zip(self._facts_of_models, self.models, strict=True)
        return tuple([setup.with_abandoned(facts, model, self.optimizers) for facts, model in both])

    def run(self) -> Run:
        """Return what was recorded until now. This may make the host wait for a device.

        Of several processes that train together it waits, for some seconds at most, until they have told, too.
        """
        attendant = self._attendant
        ranks = None if attendant is None else self.quietly("ranks", attendant.seen_for_report)
        with self._lock:
            return Run(
                models=self._models_now(),
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
                underflow=tuple(self.samples),
                ranks=ranks or RanksSeen(),
            )


def _line_of(error: BaseException) -> Source | None:
    """Return the innermost line of the user's code that an exception has passed."""
    from amp_lab.autocast.messages.users_code import frames, is_users

    return next((each for each in reversed(frames(error.__traceback__)) if is_users(each.file)), None)
