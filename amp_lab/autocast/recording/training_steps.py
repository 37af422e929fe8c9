"""Notice a whole training step in what is x-rayed, before it changes an optimizer or a loss scaler.

An x-ray runs a forward and a backward pass with stand-ins for the parameters, of which an optimizer knows nothing: its
step would find no gradients, and a scaler would wait in vain for what it was promised.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from amp_lab.scaling.loss_scale import LossScale
from amp_lab.scaling.scaler import LossScaler

_SCALERS: Final = (torch.amp.GradScaler, LossScaler)
_AFTER_BACKWARD: Final = ("unscale_", "step", "update")


class TrainingStepError(RuntimeError):
    """What is x-rayed goes on to a step of an optimizer."""

    def __init__(self, call: str):
        super().__init__(
            f"{call} was called, and was not run: an x-ray takes one forward and one backward pass, no training step"
        )


@contextlib.contextmanager
def training_steps_refused() -> Iterator[None]:
    """For a while, refuse steps of optimizers and scalers in this thread, and leave their state alone.

    `Optimizer.zero_grad` does nothing, since the gradients are the user's, and `scale` of a scaler works on a twin.
    """
    mine = threading.get_ident()

    def refuse(call: str) -> None:
        if threading.get_ident() == mine:
            raise TrainingStepError(call)

    hook = register_optimizer_step_pre_hook(lambda optimizer, *_: refuse(f"{type(optimizer).__name__}.step"))
    with contextlib.ExitStack() as stack:
        stack.callback(hook.remove)
        _replace(stack, torch.optim.Optimizer, "zero_grad", _unless(mine))
        for scaler in _SCALERS:
            _replace(stack, scaler, "scale", _on_twins(mine))
            for name in _AFTER_BACKWARD:
                _replace(stack, scaler, name, _refusing(name, refuse))
        yield


_Method = Callable[..., Any]


def _replace(
    stack: contextlib.ExitStack, owner: type, name: str, replacement: Callable[[_Method], _Method]
) -> None:
    original = getattr(owner, name)
    setattr(owner, name, replacement(original))
    stack.callback(setattr, owner, name, original)


def _unless(thread: int) -> Callable[[_Method], _Method]:
    def replacement(original: _Method) -> _Method:
        def zero_grad(*args: Any, **kwargs: Any) -> Any:
            return None if threading.get_ident() == thread else original(*args, **kwargs)

        return zero_grad

    return replacement


def _refusing(name: str, refuse: Callable[[str], None]) -> Callable[[_Method], _Method]:
    def replacement(original: _Method) -> _Method:
        def method(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            refuse(f"{type(scaler).__name__}.{name}")
            return original(scaler, *args, **kwargs)

        return method

    return replacement


def _on_twins(thread: int) -> Callable[[_Method], _Method]:
    """Let a scaler's twin scale: a scaler makes tensors for its scale when it is used first, which may be fake."""
    twins: dict[int, tuple[Any, Any]] = {}  # by id; the original is kept alive

    def replacement(original: _Method) -> _Method:
        def scale(scaler: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return original(scaler, *args, **kwargs)
            if id(scaler) not in twins:
                twins[id(scaler)] = scaler, _twin(scaler)
            return original(twins[id(scaler)][1], *args, **kwargs)

        return scale

    return replacement


def _twin(scaler: Any) -> Any:
    twin = object.__new__(type(scaler))
    for name, value in vars(scaler).items():
        vars(twin)[name] = _twin(value) if isinstance(value, LossScale) else value
    return twin
