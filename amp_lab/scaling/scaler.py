"""The loop that a loss scaler is used in, and who may be called when.

    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)      # if you look at the gradients, or clip them
    scaler.step(optimizer)
    scaler.update()

Between two updates each optimizer is READY, then UNSCALED, then STEPPED, and a call at the wrong time is an error. So
it is in `torch.amp.GradScaler`, whose methods these are; here, a loss must also have been scaled since the last update.
"""

from __future__ import annotations

import functools
import inspect
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary

import torch

from amp_lab.scaling import rule as rules
from amp_lab.scaling.errors import CallOrderError, LossScaleTooSmall
from amp_lab.scaling.history import History
from amp_lab.scaling.loss_scale import LossScale
from amp_lab.scaling.outputs import scale_outputs
from amp_lab.scaling.report import Search, StepReport, Trace
from amp_lab.scaling.rule import ScaleRule, ScaleState
from amp_lab.scaling.unscaling import Found, gradients, search, unscale

T = TypeVar("T")

# Of how many skips in a row `LossScaleTooSmall` can tell.
REMEMBERED_SKIPS = 100


class Stage(Enum):
    """How far an optimizer has come since the last update."""

    READY = "ready"
    UNSCALED = "unscaled"
    STEPPED = "stepped"


class OptimizerState:
    """What happened to an optimizer since the last update."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        # Kept alive until the update: another optimizer must not get its id, under which it is filed.
        self.optimizer = optimizer
        self.is_fused = _decides_itself(optimizer)
        self.stage = Stage.READY
        # Was a gradient infinite or NaN? None: not looked, or there were no gradients. A tensor: the device knows.
        self.overflowed: bool | torch.Tensor | None = None
        self.search: Search | Trace | None = None
        self.versions: list[int] = []


class LossScaler:
    """What `StaticLossScaler` and `DynamicLossScaler` share: everything but their rule."""

    def __init__(self, state: ScaleState, rule: ScaleRule) -> None:
        self._scale = LossScale(state, rule)
        self._skips_in_a_row: deque[list[Search]] = deque(maxlen=REMEMBERED_SKIPS)
        # A CUDA graph that has recorded the call of scale() scales without calling it again.
        self._is_recorded = False
        self._forget()

    def _forget(self) -> None:
        """Forget the optimizers, as at the start."""
        self._states: dict[int, OptimizerState] = {}
        self._reports: WeakKeyDictionary[torch.optim.Optimizer, StepReport] = WeakKeyDictionary()
        self._last: StepReport | None = None
        self._open_traces: list[Trace] = []
        self._is_scaled = False

    @overload
    def scale(self, outputs: torch.Tensor) -> torch.Tensor: ...

    @overload
    def scale(self, outputs: list[T]) -> list[T]: ...

    @overload
    def scale(self, outputs: tuple[T, ...]) -> tuple[T, ...]: ...

    @overload
    def scale(self, outputs: Iterable[T]) -> Iterable[T]: ...

    def scale(self, outputs: Any) -> Any:
        """Return outputs multiplied by the loss scale.

        Args:
            outputs: a loss, a tensor of any shape; or lists and tuples of them, nested as you like. Another iterable
                gives an iterator. The dtype stays: an FP16 *vector* overflows beyond 65504, a 0-dim FP16 loss becomes
                FP32, since the scale is FP32.

        Raises:
            TypeError: if there is something else among the outputs.
        """
        self._is_scaled = True
        for trace in self._open_traces:
            trace.close()
        self._open_traces.clear()
        if isinstance(outputs, torch.Tensor):
            return outputs * self._scale_on(outputs.device)
        return scale_outputs(outputs, self._scale_on)

    def _scale_on(self, device: torch.device) -> torch.Tensor:
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._is_recorded = True
        return self._scale.on(device)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of an optimizer by the scale, in place, and look for infinities and NaNs in them.

        `step` does it by itself. Call this, once, if you want to look at the gradients or clip them before.

        Raises:
            CallOrderError: if this optimizer's gradients are already unscaled, or no loss was scaled.
            ValueError: if a gradient is FP16.
        """
        state = self._state_of(optimizer, "unscale_")
        if state.stage is not Stage.READY:
            done = "step" if state.stage is Stage.STEPPED else "unscale_"
            raise CallOrderError(
                "unscale_", f"{done} was called before for this optimizer since the last update()"
            )
        self._unscale(state)
        state.versions = _versions(optimizer) if state.is_fused else []

    def _unscale(self, state: OptimizerState) -> None:
        found = unscale(state.optimizer, self._scale.inverse_on)
        state.stage = Stage.UNSCALED
        state.overflowed = self._gathered(found)
        # The one wait of a step. It is here and not in `step`: whose gradient overflowed can no longer be seen after
        # clipping, which makes NaN of all gradients if one was.
        if isinstance(state.overflowed, torch.Tensor) and not state.is_fused:
            state.overflowed = state.overflowed.item() > 0
            state.search = Search(state.optimizer) if state.overflowed else None

    def _gathered(self, found: Found) -> torch.Tensor | None:
        """Return what was found on all devices as one tensor, where the scale lives."""
        home = self._scale.home
        # Only a copy to the host has to be waited for before somebody reads it.
        answers = [answer.to(home, non_blocking=home.type != "cpu") for answer in found.values()]
        return _total(answers) if answers else None

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Let the optimizer make its step, unless a gradient is infinite or NaN.

        The gradients are unscaled first, if `unscale_` has not done it. A fused optimizer unscales and decides by
        itself, and nothing waits for it. `scaler.last` says what was done.

        Args:
            optimizer: whose turn it is.
            args, kwargs: passed to `optimizer.step`.

        Returns:
            what `optimizer.step` returned; None if the step was skipped.

        Raises:
            CallOrderError: if this optimizer has already made its step, no loss was scaled, or it has no gradients.
            RuntimeError: if a closure is given. It would compute gradients again, unscaled ones.
            ValueError: if a gradient is FP16.
        """
        _refuse_closure(args, kwargs)
        state = self._state_of(optimizer, "step")
        if state.stage is Stage.STEPPED:
            raise CallOrderError("step", "step was called before for this optimizer since the last update()")
        take = self._step_fused if state.is_fused else self._step
        scale = self._scale.snapshot()
        result = take(state, args, kwargs)
        state.stage = Stage.STEPPED
        skipped = False if state.overflowed is None else state.overflowed
        self._last = self._reports[optimizer] = StepReport(scale, skipped, state.search)
        return result

    def _step(self, state: OptimizerState, args: Any, kwargs: Any) -> float | None:
        if state.stage is Stage.READY:
            self._unscale(state)
        if state.overflowed is None:
            raise CallOrderError("step", "no parameter of this optimizer has a gradient")
        return None if state.overflowed else state.optimizer.step(*args, **kwargs)

    def _step_fused(self, state: OptimizerState, args: Any, kwargs: Any) -> float | None:
        """Give the optimizer the scale and what was found. Its kernel unscales, or does nothing."""
        optimizer, home = state.optimizer, self._scale.home
        own = getattr(optimizer, "grad_scale", None)  # a scale that somebody has put on top
        if state.stage is Stage.READY:
            state.overflowed = self._gathered(search(optimizer))
            state.search = Trace(optimizer)
            scale = self._scale.on(home)
            own = scale if own is None else scale * own
        elif _versions(optimizer) == state.versions:
            state.search = Trace(optimizer)
        found = state.overflowed
        if found is None:  # no gradients, so nothing can be wrong with them
            found = torch.zeros((), dtype=torch.float32, device=home)
        try:
            setattr(optimizer, "grad_scale", own)  # noqa: B010  (no attribute that an Optimizer is known to have)
            setattr(optimizer, "found_inf", found)  # noqa: B010
            result: float | None = optimizer.step(*args, **kwargs)
        finally:
            delattr(optimizer, "grad_scale")
            delattr(optimizer, "found_inf")
        if isinstance(state.search, Trace):
            self._open_traces.append(state.search)
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """End the iteration: adapt the scale, once for all optimizers, and let each of them begin again.

        Args:
            new_scale: the next scale, if you do not want the rule's. The host waits for it if it is on a device.

        Raises:
            CallOrderError: if no optimizer was stepped or unscaled since the last update.
            LossScaleTooSmall: if the scale would fall below `min_scale`. It is `min_scale` then.
        """
        if not self._scale.was_used:
            raise CallOrderError("update", "no loss was scaled yet")
        if new_scale is not None:
            new_scale = _one_number(new_scale)
        states = self._states.values()
        answers = [state.overflowed for state in states if state.overflowed is not None]
        if not answers and new_scale is None:
            raise CallOrderError("update", "no optimizer was stepped or unscaled since the last update()")
        overflowed = _any_of(answers)
        if self._scale.rule.min_scale is not None and new_scale is None:
            self._watch_the_floor(overflowed)
        else:
            self._scale.advance(overflowed, new_scale)
            self._begin_again()

    def _begin_again(self) -> None:
        self._states = {}
        self._is_scaled = False

    def _watch_the_floor(self, overflowed: bool | torch.Tensor) -> None:
        """Update with a `min_scale`. The host waits: who wants a run to stop in time has to know in time."""
        overflowed = bool(overflowed)
        if overflowed:
            # A search through finite gradients finds nothing, so there is no need to ask each optimizer what it had.
            searches = [state.search for state in self._states.values()]
            found = [some.search() if isinstance(some, Trace) else some for some in searches]
            self._skips_in_a_row.append([some for some in found if some is not None])
        else:
            self._skips_in_a_row.clear()
        before, rule = self._scale.state.scale, self._scale.rule
        self._scale.advance(overflowed)
        self._begin_again()
        if overflowed and rules.sinks(before, rule):
            self._scale.history.stopped = True
            raise LossScaleTooSmall(before, rule, self._skips_in_a_row)

    @property
    def last(self) -> StepReport | None:
        """What the last call of `step` did; None before the first. See `last_for` for several optimizers."""
        return self._last

    def last_for(self, optimizer: torch.optim.Optimizer) -> StepReport | None:
        """Return what the last call of `step` with this optimizer did; None before the first."""
        return self._reports.get(optimizer)

    @property
    def history(self) -> History:
        """The scale and the skips, one entry per `update()`. Waits for the device after fused optimizers."""
        return self._scale.history

    def get_scale(self) -> float:
        """Return the loss scale. Waits for the device after fused optimizers."""
        return self._scale.state.scale

    def get_growth_factor(self) -> float:
        return self._scale.rule.growth_factor

    def get_backoff_factor(self) -> float:
        return self._scale.rule.backoff_factor

    def get_growth_interval(self) -> int:
        return self._scale.rule.growth_interval

    def is_enabled(self) -> bool:
        """Return True: there is no scaler here that does nothing."""
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers, under the names that `torch.amp.GradScaler` uses.

        Call it after `update()`. The history and `min_scale` are not in it.
        """
        state, rule = self._scale.state, self._scale.rule
        return {
            "scale": state.scale,
            "growth_factor": float(rule.growth_factor),
            "backoff_factor": float(rule.backoff_factor),
            "growth_interval": int(rule.growth_interval),
            "_growth_tracker": state.clean_steps,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state, also one of `torch.amp.GradScaler`. What was begun since the last update is forgotten.

        Raises:
            RuntimeError: if it is empty, as that of a GradScaler with `enabled=False` is.
            KeyError, TypeError, ValueError: if something is missing or out of range.
        """
        self._scale.set(*self._read(state_dict))
        self._skips_in_a_row.clear()
        self._begin_again()

    def _read(self, state_dict: dict[str, Any]) -> tuple[ScaleState, ScaleRule]:
        if not state_dict:
            raise RuntimeError(
                "load_state_dict: the state is empty. It was probably saved from a GradScaler with enabled=False, "
                "which has none: start with a new scaler"
            )
        missing = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"} - set(
            state_dict
        )
        if missing:
            raise KeyError(
                f"load_state_dict: no scaler's state, for {', '.join(sorted(missing))} is missing in it"
            )
        return rules.loaded(state_dict, self._scale.rule.min_scale)

    def _state_of(self, optimizer: torch.optim.Optimizer, call: str) -> OptimizerState:
        """Return the state of an optimizer, if it is not too early for this call."""
        if not hasattr(optimizer, "param_groups"):
            raise TypeError(f"{call}({type(optimizer).__name__}): the argument is an optimizer")
        if not (self._is_scaled or (self._is_recorded and self._scale.was_used)):
            raise CallOrderError(call, "no loss was scaled since the last update()")
        state = self._states.get(id(optimizer))
        if state is None:
            state = self._states[id(optimizer)] = OptimizerState(optimizer)
        return state

    def __getstate__(self) -> dict[str, Any]:
        """Let pickle and copy have everything but the reports, between two iterations."""
        if self._states:
            raise CallOrderError(
                "pickle or deepcopy", "an iteration has begun and not ended: copy it after update()"
            )
        state = self.__dict__.copy()
        for name in ("_states", "_reports", "_last", "_open_traces", "_is_scaled", "_skips_in_a_row"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._skips_in_a_row = deque(maxlen=REMEMBERED_SKIPS)
        self._is_recorded = False
        self._forget()


def _total(answers: list[torch.Tensor]) -> torch.Tensor:
    # Not in place: reports keep what their own optimizer had found.
    return functools.reduce(torch.add, answers)


def _any_of(answers: list[bool | torch.Tensor]) -> bool | torch.Tensor:
    """Return whether one of them is an overflow; a tensor if only a device can say."""
    if any(answer is True for answer in answers):
        return True
    on_device = [answer for answer in answers if isinstance(answer, torch.Tensor)]
    return _total(on_device) if on_device else False


def _versions(optimizer: torch.optim.Optimizer) -> list[int]:
    """Return PyTorch's count of writes to each gradient."""
    return [gradient._version for _, _, _, gradient in gradients(optimizer)]


def _refuse_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if "closure" in kwargs or (args and callable(args[0])):
        raise RuntimeError(
            "step with a closure: it would compute new gradients, which nobody unscales. Optimizers that need a "
            "closure (LBFGS) cannot be used with a loss scaler"
        )


def _one_number(new_scale: float | torch.Tensor) -> float:
    if isinstance(new_scale, torch.Tensor):
        if new_scale.numel() != 1 or new_scale.requires_grad:
            raise TypeError(
                "update(new_scale): a number, or a tensor with one number and requires_grad=False"
            )
        new_scale = new_scale.item()
    return rules.as_scale("new_scale", new_scale)


def _decides_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer takes `grad_scale` and `found_inf`, as those with fused=True do."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    if _wants_scaler(type(optimizer).step):
        raise TypeError(
            f"{type(optimizer).__name__}.step takes a grad_scaler, an interface that PyTorch has deprecated: use a "
            "version of this optimizer that reads its attributes grad_scale and found_inf"
        )
    return True


@functools.cache
def _wants_scaler(step: Callable[..., Any]) -> bool:
    return "grad_scaler" in inspect.signature(step).parameters
