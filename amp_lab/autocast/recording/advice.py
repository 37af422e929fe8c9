"""What to do about an error that is the x-ray's, and not mixed precision's: a wrong call, no numbers, no GPU."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._pytree import tree_leaves

from amp_lab.autocast.recording.running import Mode, Task
from amp_lab.autocast.recording.training_steps import TrainingStepError

_NEED_NUMBERS: Final = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedFakeTensorException,
    UnsupportedOperatorException,
    GuardOnDataDependentSymNode,
)
_NEEDS_NUMBERS: Final = re.compile(r"is not supported for tensor subclasses|torch\.cond|HigherOrderOperator")
_NEEDS_GPU: Final = re.compile(
    "not compiled with CUDA|not linked with support for cuda|no CUDA GPUs|no NVIDIA driver|CUDA driver version is "
    "insufficient|(?:on the same device|two different devices).*cuda",
    re.IGNORECASE,
)
_SETTINGS: Final = ("device_type", "dtype", "mode", "backward", "loss")


class Advice(NamedTuple):
    """What happened, and what to do; `id` is the explanation's."""

    id: str
    happened: str
    advice: str


def advice(error: Exception, task: Task, mode: Mode) -> Advice | None:
    """Return what an x-ray knows of an error that ended it; None if that is nothing."""
    if isinstance(error, TrainingStepError):
        return Advice("xray-training-step", f"{error}.", _NO_STEP)
    if isinstance(error, TypeError | AttributeError) and (found := _of_call(task)) is not None:
        return found
    if task.runs_on == "cpu" and _NEEDS_GPU.search(str(error)):
        return Advice("xray-no-gpu", _ASKS_FOR_GPU, _WHERE_INPUTS_ARE)
    if "does not support backward on CPU" in str(error):
        return Advice("xray-forward-only", _NO_BACKWARD, _FORWARD_ALONE)
    if mode == "fake" and needs_numbers(error):
        return Advice("xray-needs-numbers", _NO_NUMBERS, _WITH_NUMBERS)
    return None


def needs_numbers(error: Exception) -> bool:
    """Say whether a run without numbers ended since there are none."""
    return isinstance(error, _NEED_NUMBERS) or bool(_NEEDS_NUMBERS.search(str(error)))


_NO_STEP: Final = (
    "Give xray the model, and as loss=... the function that makes a loss of its result. It runs the backward pass "
    "itself. What an optimizer or a scaler does is not changed by autocast."
)
_ASKS_FOR_GPU: Final = (
    "The model asks for a GPU, and its weights or its inputs are on the CPU, where it is x-rayed."
)
_WHERE_INPUTS_ARE: Final = (
    "Let it make its tensors where its inputs are, with device=x.device, and leave out .cuda() and .to('cuda'). "
    "Whose autocast is followed is said by device_type, and 'cuda' needs no GPU."
)
_NO_BACKWARD: Final = (
    "An operator of the model has no backward pass on a CPU, so PyTorch does not even begin."
)
_FORWARD_ALONE: Final = "X-ray the forward pass alone: with torch.no_grad(): xray(...)."
_NO_NUMBERS: Final = (
    "The model needs a number: it decides by one, prints one, or a shape depends on one (.item(), if, nonzero, a "
    "mask as an index, .numpy()). In fake mode there are none."
)
_WITH_NUMBERS: Final = (
    'X-ray it with mode="value", which computes, or with mode="auto", which does so if it must.'
)


def _of_call(task: Task) -> Advice | None:
    if (wrong := _wrong_call(task.model, task.inputs, task.keywords)) is not None:
        return Advice("xray-call", wrong, _closest(task.keywords))
    if task.loss is not None and (wrong := _wrong_call(task.loss, (None,), {})) is not None:
        return Advice("xray-call", wrong, _LOSS_TAKES_ONE)
    kinds = [type(leaf).__name__ for leaf in tree_leaves((task.inputs, dict(task.keywords)))]
    if "ndarray" in kinds:
        return Advice("xray-no-tensor", "There is a NumPy array among the inputs.", _FROM_NUMPY)
    leaves = tree_leaves((task.inputs, dict(task.keywords)))
    if kinds and not any(isinstance(leaf, torch.Tensor) for leaf in leaves):
        names = ", ".join(dict.fromkeys(kinds))
        return Advice("xray-no-tensor", f"There is no tensor among the inputs: only {names}.", _TENSORS)
    return None


_LOSS_TAKES_ONE: Final = (
    "The loss function is called with one thing, the model's result. If yours takes more, bind the rest: "
    "loss=lambda out: criterion(out, target)."
)
_FROM_NUMPY: Final = "Make a tensor of it, as for a call of the model: torch.from_numpy(array)."
_TENSORS: Final = "Give xray what the model is called with, such as a batch: xray(model, torch.randn(8, 64))."


def _wrong_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Say what is wrong with a call, if Python would not get as far as to make it."""
    is_module = isinstance(function, nn.Module)
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # some built-in ones have none
        return None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        name = type(function).__name__ if is_module else getattr(function, "__name__", "the function")
        names = ", ".join(str(each.replace(annotation=each.empty)) for each in signature.parameters.values())
        return f"It cannot be called like that: {error}. It is {name}({names})."
    return None


def _closest(keywords: Mapping[str, Any]) -> str:
    """Say what to do about a wrong call, and whether a keyword looks like one of xray's."""
    say = "Give xray all that the model is called with, after the model: xray(model, x, y, key=z)."
    for keyword in keywords:
        for meant in difflib.get_close_matches(keyword, _SETTINGS, n=1):
            return f"{say} {keyword} was handed on to the model: xray's own is {meant}."
    return say
