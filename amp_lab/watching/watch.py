"""Watching a training loop as it stands, and saying what is wrong with it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import nn

from amp_lab.watching.recording.arguments import (
    as_min_scale,
    as_models,
    as_optimizers,
    as_replay,
    as_scalers,
    as_schedulers,
)
from amp_lab.watching.recording.collapsing import SMALLEST, ScaleCollapsed
from amp_lab.watching.recording.recorder import Recorder
from amp_lab.watching.recording.run import Run

if TYPE_CHECKING:
    from amp_lab.watching.replaying.report import OverflowReport
    from amp_lab.watching.report import Report
    from amp_lab.watching.underflow.table import Underflow

__all__ = ["ScaleCollapsed", "Watch", "watch"]

F = TypeVar("F", bound=Callable[..., Any])


def watch(
    model: nn.Module | Sequence[nn.Module],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    scaler: Any = None,
    *,
    schedulers: Any = (),
    replay: Callable[[], torch.Tensor] | None = None,
    min_scale: float | None = SMALLEST,
) -> Watch:
    """Watch a training loop, which stays as it is, and say what is wrong with it.

        >>> with amp_lab.watch(model, optimizer, scaler) as seen:
        ...     train(model, optimizer, scaler, batches)
        >>> print(seen.report())

    It notes the order of the calls that mixed precision is about, and what they saw: autocast regions, forward and
    backward passes, scaling, unscaling, clipping, steps and updates, schedulers, averages, checkpoints. What it keeps
    is bounded. It changes nothing that is computed, and never makes the host wait for a GPU while the loop runs.

    Of several processes that train one model together, each watches its own loop, begun when the process group is
    there. What they see goes through the group's store, and no collective is added. Each report tells of all of them.
    Where ranks wait for one that cannot come, the first of those that wait says so on standard error, while they wait.

    If the loop raises an exception, that passes through, with the diagnosis as a note below it.

    It can also be a decorator: then watching goes on over all calls of the function. Or call `start()` and `stop()`.

        >>> seen = amp_lab.watch(model, optimizer)
        >>> @seen
        ... def train_step(x, y): ...
        >>> print(seen.report())

    With `replay` it also says where infinity or NaN comes from: a batch whose step is skipped, and that a smaller scale
    does not cure, is run again, operator by operator. See `overflows`. Nothing is run while nothing overflows.

        >>> def replay():  # x and y are the batch at hand
        ...     with torch.autocast("cuda", torch.float16):
        ...         return loss_fn(model(x), y)
        >>> with amp_lab.watch(model, optimizer, scaler, replay=replay) as seen: ...

    Args:
        model: the model that is trained, or several of them. On any device, of any dtype.
        optimizer: the optimizer, or several. An object that is no torch.optim.Optimizer will do, if it has
            `param_groups`, `step` and `zero_grad`.
        scaler: a torch.amp.GradScaler, one of amp_lab's scalers, or another object with their methods; or several.
            None: it is found when the loop uses one; many loops need none.
        schedulers: schedulers of another kind than PyTorch's, which are found by themselves.
        replay: a function that returns the unscaled loss of the batch at hand, with the loop's own autocast region.
            It is called for at most 16 batches, up to three times each, and for 3 full explanations, with the random
            numbers of the loop's own run. All is as it was afterwards, and no watch notes it. What fails in it is a
            line of the report, and the loop goes on. To be ready for it costs about 15 µs a step, and 50 to 110 more
            where NumPy's global generator moves in every step. In a loop without a scaler it is called when the loss
            or a gradient is not finite after a backward pass. There, and with a fused optimizer, a GPU is asked for
            one flag in each step, and the host waits: later, the batch would be gone.
        min_scale: when the loss scale has sunk below it, and at least 12 steps in a row were skipped, `scaler.update()`
            raises ScaleCollapsed. None: never. (For fused optimizers on a GPU up to 32 steps later: the host does not
            wait for what only the GPU knows.)

    Raises:
        TypeError, ValueError: for what is none of these.
    """
    return Watch(
        as_models(model),
        as_optimizers(optimizer),
        as_scalers(scaler),
        as_schedulers(schedulers),
        as_replay(replay),
        as_min_scale(min_scale),
    )


class Watch:
    """A watch over a training loop: `watch(...)` makes one. It may be used several times, and the run goes on."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        optimizers: Sequence[Any],
        scalers: Sequence[Any],
        schedulers: Iterable[Any],
        replay: Callable[[], torch.Tensor] | None = None,
        min_scale: float | None = SMALLEST,
    ) -> None:
        self._recorder = Recorder(models, optimizers, scalers, list(schedulers), replay, min_scale)
        self._depth = 0
        self._lock = threading.RLock()

    def start(self) -> Watch:
        """Begin to watch.

        Raises:
            RuntimeError: if it watches already.
        """
        with self._lock:
            if self._depth:
                raise RuntimeError(
                    "this watch is on already: stop() it first, or make another one with amp_lab.watch(...)"
                )
            self._enter()
        return self

    def stop(self) -> None:
        """Stop, and put everything back as it was. What was seen stays. Without effect on a watch that is off."""
        with self._lock:
            self._depth = 0
            self._recorder.stop()

    def _enter(self) -> None:
        with self._lock:
            if not self._depth:
                try:
                    self._recorder.start()
                except BaseException:
                    self._recorder.stop()
                    raise
            self._depth += 1

    def _exit(self, error: BaseException | None, is_over: bool = True) -> None:
        with self._lock:
            self._depth = max(0, self._depth - 1)
            if self._depth:
                return
            try:
                if error is not None:
                    self._see(error)
            finally:
                self._recorder.stop(is_over)

    def __enter__(self) -> Watch:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exit(error)

    def _see(self, error: BaseException) -> None:
        """Let an exception tell what was wrong with the loop."""
        if not isinstance(error, Exception) or isinstance(error, StopIteration | StopAsyncIteration):
            return  # the user's own wish to end
        try:
            self._recorder.raised(error)
            self._recorder.stop()
            note = self.report().note()
            # An exception may refuse it: one that is frozen, or has an add_note of its own.
            if note and note not in getattr(error, "__notes__", ()):
                error.add_note(note)
        except Exception as own:
            self._recorder.failed("report", own)

    def __call__(self, function: F) -> F:
        """Watch each call of a function.

        Raises:
            TypeError: if it is no function.
        """
        if not callable(function) or isinstance(function, type | nn.Module):
            raise TypeError(
                f"{type(function).__name__} is no function: @watch(model, optimizer) decorates the function with the "
                "loop, or one that makes a step of it"
            )
        return cast(F, _watched(self, function))

    @property
    def run(self) -> Run:
        """What was seen until now. If something of it is on a GPU, the host waits for it here."""
        return self._recorder.run()

    def report(self) -> Report:
        """Say what is wrong with the loop, as far as it was seen until now."""
        from amp_lab.watching.report import diagnose

        return diagnose(self.run)

    @property
    def overflows(self) -> list[OverflowReport]:
        """What `replay` has told, in the order of the steps: for each batch that was explained, where it overflowed."""
        replaying = self._recorder.replaying
        return [] if replaying is None else list(replaying.reports)

    def __repr__(self) -> str:
        counts = self._recorder.history.counts
        state = "on" if self._depth else "off"
        return f"Watch: {state}, {self._recorder.steps.now if counts else 0:,} steps, {counts.total():,} events seen"

    def underflow(self) -> Underflow:
        """Say which gradients FP16 made zero, module by module, and since when. The host may wait for a GPU here."""
        from amp_lab.watching.underflow.table import Underflow

        return Underflow(self.run.underflow)


def _watched(watch: Watch, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def of_coroutine(*args: Any, **kwargs: Any) -> Any:
            with _Call(watch):
                return await function(*args, **kwargs)

        return of_coroutine
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def of_generator(*args: Any, **kwargs: Any) -> Any:
            with _Call(watch):
                return (yield from function(*args, **kwargs))

        return of_generator
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def of_async_generator(*args: Any, **kwargs: Any) -> Any:
            with _Call(watch):
                async with contextlib.aclosing(function(*args, **kwargs)) as inner:
                    ask = anext(inner)
                    while True:
                        try:
                            value = await ask
                        except StopAsyncIteration:
                            return
                        try:
                            sent = yield value
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            ask = inner.athrow(error)
                        else:
                            ask = inner.asend(sent)

        return of_async_generator

    @functools.wraps(function)
    def of_function(*args: Any, **kwargs: Any) -> Any:
        with _Call(watch):
            return function(*args, **kwargs)

    return of_function


class _Call:
    """One call of a decorated function, which may call itself, or another with the same watch."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __enter__(self) -> None:
        self._watch._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch._exit(error, is_over=False)  # there may be more calls
