"""What a scaler keeps about an optimizer from one update to the next, and what it asks of one."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import torch

from amp_lab.scaling.marks import Marks
from amp_lab.scaling.report import Search, Trace
from amp_lab.scaling.unscaling import gradients


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
        # As unscale_ left the gradients of a fused optimizer.
        self.unscaled: Marks | None = None
        # Gradients that a scaled loss has written to after they were unscaled. Kept, so that they can be recognized.
        self._spoilt: list[torch.Tensor] = []

    def set_unscaled(self) -> None:
        """Note that all gradients of now are unscaled."""
        self.stage = Stage.UNSCALED
        self._spoilt.clear()

    def watch_backward(self) -> None:
        """Note which unscaled gradients are written to in the backward pass that is just beginning."""
        if self.stage is Stage.UNSCALED:
            at_the_start = Marks(self.optimizer)
            _at_the_end_of_backward(lambda: self._spoilt.extend(at_the_start.changed(self.optimizer)))

    def is_spoilt(self) -> bool:
        """Return whether a gradient of now is partly scaled: whoever has put in others since knows what they are."""
        spoilt = {id(gradient) for gradient in self._spoilt}
        return bool(spoilt) and any(id(gradient) in spoilt for _, _, _, gradient in gradients(self.optimizer))


def _at_the_end_of_backward(call: Callable[[], None]) -> None:
    """Have a call made when the backward pass that is running has written all gradients."""
    torch.autograd.Variable._execution_engine.queue_callback(call)


def refuse_others(optimizer: object, call: str) -> None:
    """Raise a TypeError if this is no optimizer."""
    if not hasattr(optimizer, "param_groups"):
        raise TypeError(f"{call}: the argument must be an optimizer, not a {type(optimizer).__name__}")


def refuse_closure(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise a RuntimeError if a closure is given to `step`, or if it cannot do without."""
    is_given = kwargs.get("closure") is not None or (args and callable(args[0]))
    if is_given or not (args or "closure" in kwargs or _goes_without_closure(optimizer)):
        raise RuntimeError(
            "step with a closure: it would compute new gradients, which nobody unscales. Optimizers that need a "
            "closure (LBFGS) cannot be used with a loss scaler"
        )


def _goes_without_closure(optimizer: torch.optim.Optimizer) -> bool:
    closure = _parameters_of_step(optimizer).get("closure")
    return closure is None or closure.default is not closure.empty


def _decides_itself(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the optimizer takes `grad_scale` and `found_inf`, as those with fused=True do."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    if "grad_scaler" in _parameters_of_step(optimizer):
        raise TypeError(
            f"{type(optimizer).__name__}.step takes a grad_scaler, an interface that PyTorch has deprecated: use a "
            "version of this optimizer that reads its attributes grad_scale and found_inf"
        )
    return True


def _parameters_of_step(optimizer: torch.optim.Optimizer) -> Mapping[str, inspect.Parameter]:
    # Of the class: schedulers and others put wrappers into the object.
    return _parameters(getattr(type(optimizer), "step", None))


@functools.cache
def _parameters(step: Callable[..., Any] | None) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(step).parameters if step else {}
