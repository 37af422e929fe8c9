"""Run a model once and see, operator by operator, what autocast does to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from amp_lab.autocast.errors import AMP_LAB, UNKNOWN, Explanation, explain
from amp_lab.autocast.messages.unrelated import NOT_PRECISION
from amp_lab.autocast.policy import policy
from amp_lab.autocast.recording.accepted import check, device_of, module_types, modules_in, name_of
from amp_lab.autocast.recording.advice import advice, needs_numbers
from amp_lab.autocast.recording.alone import alone
from amp_lab.autocast.recording.running import Mode, Outcome, Task, run
from amp_lab.autocast.records import Value
from amp_lab.autocast.report.xrayed import XRay


def xray(
    model: Callable[..., Any],
    *inputs: Any,
    device_type: str = "cuda",
    dtype: torch.dtype = torch.float16,
    mode: Literal["auto", "fake", "value"] = "auto",
    backward: bool = True,
    loss: Callable[[Any], torch.Tensor] | None = None,
    **keywords: Any,
) -> XRay:
    """Run a model once under autocast, and return every operator that ran and the dtypes it ran in.

        seen = amp_lab.xray(model, images)
        print(seen)

    Args:
        model: an `nn.Module`, or a function that uses some. Eager: not compiled, not wrapped for several devices.
            (Compiled functions inside it are run as they are written.)
        inputs, keywords: what it is called with. (A keyword that is called as one of those below: use a lambda.)
        device_type: whose autocast: "cuda" (needs no GPU: on CPU tensors its cast policy is emulated) or "cpu".
        dtype: autocast's, `torch.float16` or `torch.bfloat16`.
        mode: "fake" follows shapes and dtypes only, without numbers and without memory for them; "value" computes,
            in about twice the time of a step in FP32. "auto" is "fake" where that will do, else "value".
        backward: whether to go on with the backward pass, outside the region. Its kernels are those of the device
            that it ran on: on a CPU, those of attention or of an LSTM are others than on a GPU.
        loss: what makes of the result a scalar, inside the region, for the backward pass to start from. None: it
            starts from all results that require gradients, with gradients of ones.

    What the model raises is not raised here: the x-ray then ends at that operator, and has `error` and its
    `explanation`. The model, its inputs and the states of random number generators stay as they are. What its code
    and its hooks do to things outside it happens: printing, or a hook that keeps an output in a list, which then is a
    FakeTensor, without numbers, if `mode` was "fake". Gradient mode, train and eval mode are taken as they are.

    While CUDA's autocast is followed on CPU tensors, regions inside the model count for both: `torch.autocast("cpu",
    enabled=False)` switches CUDA's off, too.

    One x-ray runs at a time; another thread's waits. While it runs, kernels of PyTorch are replaced in the whole
    process, so other threads should not enter or leave autocast regions of their own.

    Raises:
        TypeError: for a model that cannot be followed (compiled, TorchScript, DataParallel, not callable), and for
            arguments of a wrong type.
        ValueError: for a device type, dtype or mode that there is not; for tensors on another device; for a model
            with lazy parameters; for one on the meta device in mode "value".
        RuntimeError: if the model itself calls `xray`, or a FakeTensorMode is on.
    """
    _check_settings(device_type, dtype, mode, backward, loss)
    check(model)
    with alone(name_of(model)):
        return _xray(model, inputs, keywords, device_type, dtype, mode, backward, loss)


def _xray(
    model: Callable[..., Any],
    inputs: tuple[Any, ...],
    keywords: dict[str, Any],
    device_type: str,
    dtype: torch.dtype,
    mode: Literal["auto", "fake", "value"],
    backward: bool,
    loss: Callable[[Any], torch.Tensor] | None,
) -> XRay:
    modules = modules_in(model)
    tensors = [*_tensors(modules), *(each for each in tree_leaves((inputs, keywords)) if _is_tensor(each))]
    runs_on = device_of(iter(tensors), device_type)
    on_meta = any(tensor.is_meta for tensor in tensors)
    if on_meta and mode == "value":
        raise ValueError(
            'the model or its inputs are on the meta device, without numbers: x-ray with mode="fake"'
        )
    policy("cpu")  # asked before any kernel is replaced
    task = Task(
        model=model,
        inputs=inputs,
        keywords=keywords,
        modules=modules,
        types=module_types(model, modules),
        loss=loss,
        backward=backward,
        runs_on=runs_on,
        device_type=device_type,
        dtype=dtype,
        policy=policy(device_type),
    )
    took, why, outcome = _run(task, mode, on_meta)
    parameters = list(_parameters(modules))
    return XRay(
        model=task.types[""],
        device_type=device_type,
        dtype=dtype,
        mode=took,
        mode_reason=why,
        ops=outcome.ops,
        trainable=tuple(value for value, trained in parameters if trained),
        frozen=tuple(value for value, trained in parameters if not trained),
        error=None if outcome.error is None else f"{type(outcome.error).__name__}: {outcome.error}",
        explanation=None if outcome.error is None else _explained(outcome.error, task, took),
        module_types=tuple(task.types.items()),
        notes=tuple(outcome.notes),
    )


# Explanations that say no more than that the error is not mixed precision's.
_NOT_PRECISIONS = (UNKNOWN, AMP_LAB, NOT_PRECISION, "devices")


def _explained(error: Exception, task: Task, mode: Mode) -> Explanation:
    """Explain an error that ended an x-ray: as what it is in any code, or else as what it is here."""
    explanation = explain(error)
    if explanation.id in _NOT_PRECISIONS and (found := advice(error, task, mode)) is not None:
        return replace(explanation, id=found.id, happened=found.happened, advice=found.advice)
    return explanation


def _run(task: Task, mode: Literal["auto", "fake", "value"], on_meta: bool) -> tuple[Mode, str, Outcome]:
    """Run the task in the mode asked for; return the mode it was, why, if that is news, and what came of it."""
    if mode == "value":
        return mode, "asked for", run(task, mode)
    outcome = run(task, "fake")
    if mode == "fake":
        wants = outcome.error is not None and needs_numbers(outcome.error) and not on_meta
        return (
            mode,
            "asked for" + ('; the model needs numbers: mode="value" has them' if wants else ""),
            outcome,
        )
    if outcome.error is None or (outcome.refused and not on_meta):
        return "fake", "", outcome
    if on_meta:
        return "fake", "a model on the meta device has no numbers", outcome
    # Either the model needs numbers, or it fails with them as well, and then in PyTorch's own words.
    return "value", f"it cannot be followed without numbers: {_needs(outcome.error)}", run(task, "value")


def _needs(error: Exception) -> str:
    """Say in a line why a run without numbers ended."""
    first = str(error).strip().partition("\n")[0].rstrip(".")
    return f"{first} asks for them" if first.startswith("aten.") else f"{type(error).__name__}: {first}"


def _check_settings(device_type: Any, dtype: Any, mode: Any, backward: Any, loss: Any) -> None:
    if device_type not in ("cuda", "cpu"):
        raise ValueError(f'device_type={device_type!r}: it is whose autocast to follow, "cuda" or "cpu"')
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype={dtype!r}: it is a dtype of PyTorch, torch.float16 or torch.bfloat16")
    if dtype not in (torch.float16, torch.bfloat16):
        raise ValueError(f"dtype={dtype}: autocast's are torch.float16 and torch.bfloat16")
    if mode not in ("auto", "fake", "value"):
        raise ValueError(f'mode={mode!r}: it is "auto", "fake" or "value"')
    if not isinstance(backward, bool):
        raise TypeError(f"backward={backward!r}: it is True or False")
    if loss is not None and not callable(loss):
        raise TypeError(
            f"loss takes a function that makes a scalar of the result, not a {type(loss).__name__}"
        )
    if torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE) is not None:
        raise RuntimeError("a FakeTensorMode is on: x-ray outside it; xray makes its own")


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _tensors(modules: dict[str, nn.Module]) -> Iterator[torch.Tensor]:
    for module in modules.values():
        yield from itertools.chain(module.parameters(), module.buffers())


def _parameters(modules: dict[str, nn.Module]) -> Iterator[tuple[Value, bool]]:
    for root, module in modules.items():
        for name, parameter in module.named_parameters(prefix=root):
            yield Value(tuple(parameter.shape), parameter.dtype, name), parameter.requires_grad
