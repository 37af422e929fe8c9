"""What this rank notes of itself, where several processes train a model together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from amp_lab.watching.recording.events import Noticed
from amp_lab.watching.recording.random_numbers import has_dropout
from amp_lab.watching.recording.ranks import groups, replicas
from amp_lab.watching.recording.ranks.numbers import Numbers
from amp_lab.watching.recording.ranks.records import FIRST, LAST, Meeting, RankRecord
from amp_lab.watching.recording.ranks.where import line_of_this_thread

if TYPE_CHECKING:
    from amp_lab.watching.recording.recorder import Recorder


class ThisRank:
    """This rank's record, and what fills it in.

    Attributes:
        peers: the ranks that it trains with, itself among them: those of DDP's group, or all.
        record: what the others get to see.
        numbers: the part of it that is numbers.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self.record = RankRecord(dist.get_rank())
        self.record.dropout = any(has_dropout(model) for model in recorder.models)
        self.numbers = Numbers(self.record)
        self._found(replicas.wrappers(recorder.models))
        self._forwards = 0
        self._synced: bool | None = None  # whether the forward pass since the last backward pass synchronises
        # In the forward pass after the first average DDP orders its buckets anew, which all ranks do together.
        self._averaged = self._orders = False
        self._window = [0, 0, 0]  # since the last step: backward passes that average, that do not, other talk

    def _found(self, wrappers: Sequence[DistributedDataParallel]) -> None:
        """Note who trains with this rank, and what must be equal; without DDP all ranks may, and all weights."""
        models, optimizers = self._recorder.models, self._recorder.optimizers
        self._wrappers = wrappers
        self.peers = groups.ranks_of(wrappers[0].process_group if wrappers else None)
        self.numbers.parameters = replicas.compared_parameters(wrappers, models)
        self.record.replicas = bool(wrappers) and not replicas.averages_weights(optimizers)
        self.record.queues = groups.queues(replicas.device_of(self.numbers.parameters))

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
        record.step, record.inside = self._step(), kind
        record.failed = record.unfinished = False
        where = line_of_this_thread()
        record.meetings.append(Meeting(record.begun, kind, record.step, self._forwards, where))
        if len(record.meetings) > FIRST + LAST:
            del record.meetings[FIRST]
        try:
            return call(*args, **kwargs)
        except BaseException as error:
            record.unfinished, record.failed = True, groups.is_about_talk(error)
            raise
        finally:
            record.inside = ""

    def _step(self) -> int:
        """Return the step that a call belongs to that is about to begin one."""
        steps = self._recorder.steps
        return steps.now + steps.ended

    # -- what the loop does

    def forward(
        self, wrapper: DistributedDataParallel, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """A model is called through DDP."""
        if not self.is_the_loops() or not self._trains(wrapper):
            return call(wrapper, *args, **kwargs)
        orders = False
        if torch.is_grad_enabled():
            orders, self._orders = self._orders, False
            if wrapper.training:
                self._synced = bool(wrapper.require_backward_grad_sync)
                self._forwards += 1
                inputs = (*args, *kwargs.values())
                self._recorder.quietly("ranks", self.numbers.batch, self._step(), inputs)
        if not (orders or replicas.sends_buffers(wrapper)):
            return call(wrapper, *args, **kwargs)
        return self.meets("forward", call, wrapper, *args, **kwargs)

    def _trains(self, wrapper: DistributedDataParallel) -> bool:
        """Return whether a wrapper is a part of a watched model, or around one: that can be seen only now."""
        if wrapper not in self._wrappers and wrapper.module in self._recorder.models:
            self._found([*self._wrappers, wrapper])
        return wrapper in self._wrappers

    def backward(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """A backward pass; DDP averages gradients in it, if the forward pass before it has made ready for that."""
        if not self.is_the_loops():
            return call(*args, **kwargs)
        self._recorder.quietly("ranks", self.numbers.weights, self._step())
        if not self._wrappers:
            return call(*args, **kwargs)
        asked = all(each.require_backward_grad_sync for each in self._wrappers)
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
        if groups.group_of(args, kwargs) != self.peers:
            return self._talks_elsewhere(call, *args, **kwargs)
        if kind == "barrier":
            self._notice("barrier")
        else:
            self._window[2] += 1
        if kind == "all_reduce" and not self.record.replicas:
            tensor = args[0] if args else kwargs.get("tensor")
            self.record.replicas = self.numbers.is_gradient(self._step(), tensor)
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

    def stepped(self, step: int, skipped: float | torch.Tensor = 0.0) -> None:
        """An optimizer has stepped, or the scaler has left the step out: `skipped` is more than 0 then."""
        averaged, alone, talk = self._window
        self._window = [0, 0, 0]
        if alone and not averaged and not talk:
            self._notice("never averaged")
        self.numbers.skipped(step, skipped)

    def end(self, is_over: bool) -> None:
        """The watch ends. `is_over`: so does the loop, and the host may wait for a GPU."""
        self.record.step = self._recorder.steps.now
        if self._recorder.steps.ended and not self.record.failed:
            self.numbers.weights(self._step())
        if is_over:
            self.numbers.read()

    def _notice(self, what: str) -> None:
        self._recorder.emit(Noticed, what=what, above=2)
