"""What is handed to a watch, checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import islice
from types import FunctionType
from typing import Any, Final, cast

import torch
from torch import nn

from amp_lab.watching.recording.attributes import attribute
from amp_lab.watching.recording.scalers import is_scaler

_MOST: Final = 1000  # of one kind; a generator may be endless


def as_models(value: Any) -> list[nn.Module]:
    """Return the models in what was given.

    Raises:
        TypeError: if there is something else, or none.
    """
    models = _several(value, nn.Module)
    for each in models:
        if isinstance(each, type):
            raise TypeError(
                f"model: give the model itself, not its class {each.__name__}: watch(model, optimizer)"
            )
        if isinstance(each, torch.optim.Optimizer):
            raise TypeError("model: this is an optimizer; the order is watch(model, optimizer, scaler)")
        if not isinstance(each, nn.Module):
            raise TypeError(f"model: a torch.nn.Module, or a list of some, not {_said(each)}")
        if not _is_made(each):
            raise TypeError(
                f"model: a {type(each).__name__}, or a module in it, is not made in full: its __init__ must call "
                "super().__init__() first"
            )
    if not models:
        raise TypeError("model: there is none in it; give the model that is trained")
    return _each_once(models)


def _is_made(model: nn.Module) -> bool:
    """Return whether nn.Module's own `__init__` has run, in the model and in all modules in it."""
    inside = {"_parameters", "_buffers", "_modules"}
    seen, open_ones = set[int](), [model]
    while open_ones:
        each = open_ones.pop()
        own = object.__getattribute__(each, "__dict__")
        if not inside <= own.keys():
            return False
        seen.add(id(each))
        open_ones += [
            inner for inner in own["_modules"].values() if inner is not None and id(inner) not in seen
        ]
    return True


def as_optimizers(value: Any) -> list[Any]:
    """Return the optimizers in what was given.

    Raises:
        TypeError: if there is something else, or none.
    """
    optimizers = _several(value, torch.optim.Optimizer)
    for each in optimizers:
        if isinstance(each, type):
            name = each.__name__
            raise TypeError(
                f"optimizer: give the optimizer itself, not its class: {name}(model.parameters(), …)"
            )
        if is_scaler(each):
            raise TypeError("optimizer: this is a scaler; the order is watch(model, optimizer, scaler)")
        if not _is_optimizer(each):
            raise TypeError(f"optimizer: a torch.optim.Optimizer, or a list of some, not {_said(each)}")
    if not optimizers:
        raise TypeError("optimizer: there is none in it; give the optimizer that trains the model")
    return _each_once(optimizers)


def _is_optimizer(value: Any) -> bool:
    groups = attribute(value, "param_groups", None)
    return isinstance(groups, list) and all(
        callable(attribute(value, name, None)) for name in ("step", "zero_grad")
    )


def as_scalers(value: Any) -> list[Any]:
    """Return the scalers in what was given; None: there is none to name.

    Raises:
        TypeError: if there is something else.
    """
    scalers = [] if value is None else _several(value, object)
    for each in scalers:
        if isinstance(each, type):
            raise TypeError(f"scaler: give the scaler itself, not its class {each.__name__}")
        if isinstance(each, int | float):
            raise TypeError(
                f"scaler: a torch.amp.GradScaler, not the number {each!r}; a loss scale is given to the scaler: "
                "GradScaler(device, init_scale=…)"
            )
        if not is_scaler(each):
            raise TypeError(
                f"scaler: an object with scale, step and update, such as a GradScaler, not {_said(each)}"
            )
    return _each_once(scalers)


def as_schedulers(value: Any) -> list[Any]:
    """Return the schedulers in what was given.

    Raises:
        TypeError: if something there has no `step`.
    """
    schedulers = [] if value is None else _several(value, object)
    for each in schedulers:
        if isinstance(each, type) or not callable(attribute(each, "step", None)):
            raise TypeError(f"schedulers: objects with a step, not {_said(each)}")
    return _each_once(schedulers)


def _several(value: Any, kind: type) -> list[Any]:
    """Return one thing as a list of one; several as they are. A model may be iterable itself."""
    if kind is not object and _is_a(value, kind):
        return [_asked(value)]
    if _is_a(value, dict):
        value = value.values()
    elif not _is_a(value, Iterable) or _is_a(value, str) or _is_a(value, torch.Tensor):
        return [_asked(value)]
    found = list(islice(value, _MOST + 1))
    if len(found) > _MOST:
        raise TypeError(f"a {type(value).__name__} that goes on after {_MOST:,} elements; give a list")
    return [_asked(each) for each in found]


def _asked(value: object) -> object:
    """Return an object that can be asked for its class, as PyTorch itself does everywhere."""
    try:
        _ = value.__class__
    except Exception as error:
        raise TypeError(
            f"a {type(value).__name__} that does not tell its class, but raises {error!r}"
        ) from error
    return value


def _is_a(value: object, kind: type) -> bool:
    try:
        return isinstance(value, kind)
    except Exception:  # an object may answer for its class itself, and raise
        return issubclass(type(value), kind)


def _each_once(values: list[Any]) -> list[Any]:
    return list({id(each): each for each in values}.values())


def _said(value: object) -> str:
    name = type(value).__name__
    return f"the function {value.__name__}" if isinstance(value, FunctionType) else f"a {name}"


def as_replay(value: Any) -> Callable[[], torch.Tensor] | None:
    """Return the function that computes the loss of the batch at hand; None if none was given.

    Raises:
        TypeError: if it cannot be called, or is a model or a loss itself.
    """
    if value is None:
        return None
    if not callable(value) or isinstance(value, type | nn.Module):
        raise TypeError(
            f"replay: a function without arguments that returns the unscaled loss of the batch at hand, not "
            f"{_said(value)}: replay=lambda: loss_of(x, y)"
        )
    return cast("Callable[[], torch.Tensor]", value)


def as_min_scale(value: Any) -> float | None:
    """Return the loss scale below which the loop is stopped; None for never.

    Raises:
        TypeError: if it is no number.
        ValueError: if it is not above 0 and finite.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"min_scale: a loss scale, such as 2.0**-24, or None for never, not {_said(value)}")
    if not 0 < value < math.inf:
        raise ValueError(f"min_scale: a number above 0, such as 2.0**-24, or None for never, not {value!r}")
    return float(value)
