"""The loop that a loss scaler is used in, and who may be called when.

    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)      # if you look at the gradients, or clip them
    scaler.step(optimizer)
    scaler.update()

Between two updates each optimizer is READY, then UNSCALED, then STEPPED, and a call at the wrong time is an error. So
it is in `torch.amp.GradScaler`, whose methods these are. Here, a loss must also have been scaled since the last update,
and no backward pass of a scaled loss may write to gradients that are already unscaled.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, overload
from weakref import WeakKeyDictionary

import torch

from amp_lab.scaling import rule as rules
from amp_lab.scaling.errors import too_small, wrong_time
from amp_lab.scaling.history import History
from amp_lab.scaling.loss_scale import LossScale
from amp_lab.scaling.marks import Marks
from amp_lab.scaling.optimizer_state import OptimizerState, Stage, refuse_closure, refuse_others
from amp_lab.scaling.outputs import scale_outputs
from amp_lab.scaling.report import Search, StepReport, Trace
from amp_lab.scaling.rule import ScaleRule, ScaleState
from amp_lab.scaling.unscaling import Found, search, unscale

T = TypeVar("T")

# Of how many skips in a row `LossScaleTooSmall` can tell.
REMEMBERED_SKIPS = 100
SPOILT = (
    "backward() of a scaled loss has run after unscale_, or after a step that failed, and this optimizer's gradients "
    "hold what it has added: not divided, and so too large by the loss scale"
)


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
        was_scaled = self._is_scaled
        try:
            return scale_outputs(outputs, self._scaled)
        except Exception:
            self._is_scaled = was_scaled  # a refused call is none
            raise

    def _scaled(self, output: torch.Tensor) -> torch.Tensor:
        if output.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            self._is_recorded = True
        scaled = output * self._scale.on(output.device)
        self._is_scaled = True
        if scaled.requires_grad and not torch.compiler.is_compiling():
            assert scaled.grad_fn is not None
            scaled.grad_fn.register_prehook(self._watch_backward)
        return scaled

    def _watch_backward(self, *_: Any) -> None:
        """Let the optimizers see to their gradients: the backward pass of a scaled output begins."""
        for state in self._states.values():
            state.watch_backward()

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the gradients of an optimizer by the scale, in place, and look for infinities and NaNs in them.

        `step` does it by itself. Call this, once, if you want to look at the gradients or clip them before.

        Raises:
            CallOrderError: if this optimizer's gradients are already unscaled, or no loss was scaled.
            ValueError: if a gradient is FP16.
        """
        state = self._state_of(optimizer, "unscale_")
        if state.stage is Stage.STEPPED:
            raise wrong_time(
                "unscale_", "step was called before for this optimizer since the last update()", True
            )
        if state.stage is Stage.UNSCALED and state.overflowed is not None:
            raise wrong_time(
                "unscale_",
                "unscale_ or step has already unscaled these gradients since the last update()",
                True,
            )
        self._unscale(state)
        state.unscaled = Marks(optimizer) if state.is_fused else None

    def _unscale(self, state: OptimizerState) -> None:
        found = unscale(state.optimizer, self._scale.inverse_on)
        state.set_unscaled()
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

        If `optimizer.step` raises, this was no step: the same call can be made again, or `update()` ends the iteration.

        Args:
            optimizer: whose turn it is.
            args, kwargs: passed to `optimizer.step`.

        Returns:
            what `optimizer.step` returned; None if the step was skipped.

        Raises:
            CallOrderError: if this optimizer has already made its step, no loss was scaled, it has no gradients, or
                `backward()` of a scaled loss has written to its gradients since they were unscaled.
            RuntimeError: if a closure is given or needed. It would compute gradients again, unscaled ones.
            ValueError: if a gradient is FP16, unless a fused optimizer unscales by itself.
        """
        state = self._state_of(optimizer, "step")
        refuse_closure(optimizer, args, kwargs)
        if state.stage is Stage.STEPPED:
            raise wrong_time(
                "step", "step was called before for this optimizer since the last update()", True
            )
        if state.is_spoilt():
            raise wrong_time("step", SPOILT, True)
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
            del self._states[id(state.optimizer)]  # nothing was done with it
            raise wrong_time("step", "no parameter of this optimizer had a gradient to unscale")
        return None if state.overflowed else state.optimizer.step(*args, **kwargs)

    def _step_fused(self, state: OptimizerState, args: Any, kwargs: Any) -> float | None:
        """Give the optimizer the scale and what was found. Its kernel unscales, or does nothing."""
        optimizer, home = state.optimizer, self._scale.home
        own = getattr(optimizer, "grad_scale", None)  # a scale that somebody has put on top
        # Were they clipped since unscale_? Then all may be NaN because one was infinite.
        is_as_found = state.unscaled is None or state.unscaled.hold(optimizer)
        if state.stage is Stage.READY:
            state.overflowed = self._gathered(search(optimizer))
            scale = self._scale.on(home)
            own = scale if own is None else scale * own
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
        state.search = Trace(optimizer) if is_as_found else None
        return result

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """End the iteration: adapt the scale, once for all optimizers, and let each of them begin again.

        Args:
            new_scale: the next scale, if you do not want the rule's, not below `min_scale`. The host waits for it if it
                is on a device.

        Raises:
            CallOrderError: if no optimizer was stepped or unscaled since the last update.
            LossScaleTooSmall: if the scale would fall below `min_scale`. It is `min_scale` then.
            TypeError, ValueError: if `new_scale` is no scale.
        """
        if not self._scale.was_used:
            raise wrong_time("update", "no loss was scaled yet")
        number = None if new_scale is None else self._number(new_scale)
        states = self._states.values()
        answers = [state.overflowed for state in states if state.overflowed is not None]
        if not answers and number is None:
            self._states = {}  # of optimizers without gradients, with which nothing was done
            raise wrong_time("update", "no optimizer was stepped or unscaled since the last update()")
        overflowed = _any_of(answers)
        if self._scale.rule.min_scale is not None:
            self._watch_the_floor(overflowed, number)
        else:
            self._scale.advance(overflowed, number)
            self._begin_again()

    def _number(self, new_scale: float | torch.Tensor) -> float:
        """Return a scale that somebody wants, if it is allowed."""
        number = _one_number(new_scale)
        rules.not_below(self._scale.rule.min_scale, "new_scale", number, "the scale may not fall below it")
        return number

    def _begin_again(self) -> None:
        self._states = {}
        self._is_scaled = False

    def _watch_the_floor(self, overflowed: bool | torch.Tensor, new_scale: float | None) -> None:
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
        self._scale.advance(overflowed, new_scale)
        self._begin_again()
        if overflowed and new_scale is None and rules.sinks(before, rule):
            self._scale.history.stopped = True
            raise too_small(before, rule, self._skips_in_a_row)

    @property
    def last(self) -> StepReport | None:
        """What the last call of `step` did; None before the first. See `last_for` for several optimizers.

        A call that raised an error leaves no report: this is then the one before it.
        """
        return self._last

    def last_for(self, optimizer: torch.optim.Optimizer) -> StepReport | None:
        """Return what the last call of `step` with this optimizer did; None before the first.

        Raises:
            TypeError: if it is no optimizer.
        """
        refuse_others(optimizer, "last_for")
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
            KeyError, TypeError, ValueError: if something is missing or out of range, or if it is the state of a scale
                that changes and this is a StaticLossScaler, or the other way round.
        """
        self._scale.set(*self._read(state_dict))
        self._skips_in_a_row.clear()
        self._begin_again()

    def _read(self, state_dict: dict[str, Any]) -> tuple[ScaleState, ScaleRule]:
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                "load_state_dict: the state must be a dict, what state_dict() of a scaler has returned, not a "
                f"{type(state_dict).__name__}"
            )
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
        refuse_others(optimizer, call)
        if not (self._is_scaled or (self._is_recorded and self._scale.was_used)):
            raise wrong_time(call, "no loss was scaled since the last update()")
        state = self._states.get(id(optimizer))
        if state is None:
            state = self._states[id(optimizer)] = OptimizerState(optimizer)
        return state

    def __getstate__(self) -> dict[str, Any]:
        """Let pickle and copy have everything but the reports, between two iterations."""
        if self._states:
            raise wrong_time(
                "pickle or deepcopy", "an iteration has begun and not ended: copy it after update()", True
            )
        state = self.__dict__.copy()
        for name in ("_states", "_reports", "_last", "_is_scaled", "_skips_in_a_row"):
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


def _one_number(new_scale: float | torch.Tensor) -> float:
    if isinstance(new_scale, torch.Tensor):
        if new_scale.numel() != 1 or new_scale.requires_grad:
            raise TypeError(
                "update(new_scale): a number, or a tensor with one number and requires_grad=False"
            )
        new_scale = new_scale.item()
    return rules.as_scale("new_scale", new_scale)
