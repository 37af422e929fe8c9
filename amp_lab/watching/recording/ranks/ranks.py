"""What one rank notes of itself, where several processes train a model together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from amp_lab.watching.recording.events import Noticed
from amp_lab.watching.recording.ranks import facts
from amp_lab.watching.recording.ranks.checksums import checksum
from amp_lab.watching.recording.ranks.records import FIRST, LAST, MOST, Meeting, RankRecord
from amp_lab.watching.recording.readings import Readings

if TYPE_CHECKING:
    from amp_lab.watching.recording.recorder import Recorder

_TOGETHER = 16  # numbers of a GPU that come to the host in one parcel
_CLOSELY = 3  # steps, from the first, whose batches and random numbers are compared
_EVERY = 16  # steps: the weights of the first sixteen are compared, and of each sixteenth


class Ranks:
    """This rank's record, and what fills it in. `peers` are the ranks it trains with, itself among them."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.wrappers = facts.wrappers(recorder.models)
        self.peers = facts.peers(self.wrappers)
        self.record = RankRecord(dist.get_rank())
        self.record.dropout = any(facts.draws_random_numbers(model) for model in recorder.models)
        self.record.replicas = bool(self.wrappers) and not facts.averages_weights(recorder.optimizers)
        self._parameters = facts.compared_parameters(self.wrappers, recorder.models)
        self.record.queues = facts.queues(self._parameters)
        self._forwards = 0
        self._synced: bool | None = None  # whether the forward pass since the last backward pass synchronises
        # In the forward pass after the first average DDP orders its buckets anew, which all ranks do together.
        self._averaged = self._orders = False
        self._window = [0, 0, 0]  # since the last step: backward passes that average, that do not, other talk
        self._sampled = self._looked = 0
        self._skips = Readings(self._read_skip, _TOGETHER)
        self._scales = Readings(self._read_scale, _TOGETHER)
        self._weights = Readings(_appends(self.record.weights), _TOGETHER)
        self._inputs = Readings(_appends(self.record.inputs), _TOGETHER)

    # -- meetings

    def is_the_loops(self) -> bool:
        """Return whether a call is the loop's own: not PyTorch's, made inside of another that is noted."""
        recorder = self._recorder
        return (
            recorder.listening
            and not self.record.inside
            and not recorder.backwards
            and threading.get_ident() == recorder.thread
        )

    def meets(self, kind: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a call in which all ranks meet."""
        record = self.record
        record.begun += 1
        record.step, record.failed, record.inside = self._step(), False, kind
        where = facts.line_of_this_thread()
        record.meetings.append(Meeting(record.begun, kind, record.step, self._forwards, where))
        if len(record.meetings) > FIRST + LAST:
            del record.meetings[FIRST]
        try:
            return call(*args, **kwargs)
        except Exception as error:
            record.failed = facts.is_about_talk(error)
            raise
        finally:
            record.inside = ""

    def _step(self) -> int:
        """Return the step that a call belongs to that is about to begin one."""
        steps = self._recorder.steps
        return steps.now + steps.ended

    # -- what the loop does

    def forward(
        self, wrapper: DistributedDataParallel, call: Callable[..., Any], *args: Any, **kw: Any
    ) -> Any:
        """A model is called through DDP."""
        if not self.is_the_loops() or not facts.trains(wrapper, self._recorder.models):
            return call(wrapper, *args, **kw)
        if torch.is_grad_enabled() and wrapper.training:
            self._synced = bool(wrapper.require_backward_grad_sync)
            self._forwards += 1
            self._recorder.quietly("ranks", self._look, args, kw)
        orders, self._orders = self._orders, False
        if not (orders or facts.sends_buffers(wrapper)):
            return call(wrapper, *args, **kw)
        return self.meets("forward", call, wrapper, *args, **kw)

    def backward(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A backward pass; DDP averages gradients in it, if the forward pass before it has made ready for that."""
        if not self.is_the_loops():
            return call(*args, **kwargs)
        self._recorder.quietly("ranks", self._sample)
        if not self.wrappers:
            return call(*args, **kwargs)
        asked = all(each.require_backward_grad_sync for each in self.wrappers)
        synced = asked if self._synced is None else self._synced  # compiled forward passes are not seen
        self._synced = None
        self._window[not synced] += 1
        if synced and not self._averaged:
            self._averaged = self._orders = True
        if synced and not asked:
            self._notice("no_sync after forward")
        return self.meets("backward", call, *args, **kwargs) if synced else call(*args, **kwargs)

    def talks(self, kind: str, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A collective of torch.distributed is called."""
        if not self.is_the_loops():
            return call(*args, **kwargs)
        if facts.group_of(args, kwargs) != self.peers:
            return self._talks_elsewhere(call, *args, **kwargs)
        if kind == "barrier":
            self._notice("barrier")
        else:
            self._window[2] += 1
            if kind == "all_reduce" and not self.record.replicas and self._step() <= _CLOSELY and args:
                self.record.replicas = facts.is_gradient(args[0], self._parameters)
        return self.meets(kind, call, *args, **kwargs)

    def _talks_elsewhere(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.record.elsewhere = True
        try:
            return call(*args, **kwargs)
        finally:
            self.record.elsewhere = False

    def joins(self) -> None:
        """The loop uses `join()`."""
        self.record.joined = True

    def sampler_begins(self, sampler: Any) -> None:
        """A DistributedSampler begins an epoch."""
        if self._recorder.listening and getattr(sampler, "shuffle", False):
            values = {"sampler": id(sampler), "epoch": sampler.epoch, "forwards": self._forwards}
            self._recorder.emit(Noticed, what="sampler begins", above=2, values=values)

    # -- numbers

    def skipped(self, step: int, skipped: float | torch.Tensor) -> None:
        """The scaler has left a step out, or not."""
        averaged, alone, talk = self._window
        self._window = [0, 0, 0]
        if alone and not averaged and not talk:
            self._notice("never averaged")
        if len(self.record.skips) < MOST:
            self._skips.add(step, skipped)

    def stepped(self) -> None:
        """An optimizer has stepped without a scaler."""
        self.skipped(self._recorder.steps.now, 0.0)

    def scale(self, step: int, after: float | torch.Tensor) -> None:
        """The scale after an update."""
        if len(self.record.scales) < MOST:
            self._scales.add(step, after)

    def _read_skip(self, step: int, skipped: float) -> None:
        record = self.record
        record.skips_until = max(record.skips_until, step)
        if skipped > 0 and step not in record.skips[-1:]:
            record.skips.append(step)

    def _read_scale(self, step: int, scale: float) -> None:
        record = self.record
        record.scales_until = step
        if not record.scales or record.scales[-1][1] != scale:
            record.scales.append((step, scale))

    def _sample(self) -> None:
        """Take the checksum of the weights with which a step begins."""
        step = self._step()
        if step == self._sampled or not (step <= _EVERY or step % _EVERY == 1):
            return
        if facts.is_captured(self._parameters):
            return
        self._sampled = step
        if (found := checksum(self._parameters)) is not None:
            self._weights.add(step, _number(found))
            if len(self.record.weights) > FIRST + LAST:
                del self.record.weights[FIRST]

    def _look(self, args: Any, kwargs: Any) -> None:
        """Take the checksums of a batch, and of the state of the random numbers."""
        step = self._step()
        if step > _CLOSELY or step == self._looked or facts.is_captured(self._parameters):
            return
        self._looked = step
        given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
        if (found := checksum(given[:1])) is not None:
            self._inputs.add(step, _number(found))
        if (state := facts.random_state(self._parameters)) is not None:
            self.record.random.append((step, state))

    def _notice(self, what: str) -> None:
        self._recorder.emit(Noticed, what=what, above=2)

    def read(self) -> None:
        """Read what is still on a GPU; the host waits for it."""
        for each in (self._skips, self._scales, self._weights, self._inputs):
            each.read()

    def end(self, is_over: bool) -> None:
        """The watch ends. `is_over`: so does the loop, and the host may wait for a GPU."""
        self.record.step = self._recorder.steps.now
        if self._recorder.steps.ended and not self.record.failed:
            self._sample()
        if is_over:
            self.read()


def _number(value: torch.Tensor) -> float | torch.Tensor:
    return value if value.device.type != "cpu" else float(value.item())


def _appends(numbers: list[tuple[int, int]]) -> Callable[[int, float], None]:
    return lambda step, value: numbers.append((step, int(value)))
