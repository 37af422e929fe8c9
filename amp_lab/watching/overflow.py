"""Why is the loss NaN? Run one batch again, and see which operator leaves its format, and whether a scale cures it.

>>> import torch
>>> from torch import nn
>>> from amp_lab.watching.overflow import find_overflow
>>> model = nn.Linear(4, 2)
>>> _ = nn.init.constant_(model.weight, 300.0)
>>> batch = torch.full((8, 4), 100.0), torch.zeros(8, 2)
>>> report = find_overflow(model, nn.functional.mse_loss, batch, device_type="cuda")
>>> report.cause, report.op, report.cures
('forward-overflow', 'linear', False)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
from torch import nn

from amp_lab.watching.replaying.batches import Batch
from amp_lab.watching.replaying.explaining import SCALES, device_of, explained, roots_of
from amp_lab.watching.replaying.report import OverflowReport

__all__ = ["OverflowReport", "find_overflow"]

_DTYPES: Final = (torch.float16, torch.bfloat16)


def find_overflow(
    model: nn.Module | Sequence[nn.Module],
    loss_fn: Callable[..., Any] | None = None,
    batch: Any = None,
    *,
    device_type: str | None = None,
    dtype: torch.dtype = torch.float16,
    scales: Sequence[float] = SCALES,
) -> OverflowReport:
    """Say where a batch overflows, in which direction, and whether a smaller loss scale cures it.

        report = amp_lab.find_overflow(model, nn.functional.cross_entropy, (images, labels))
        print(report)

    The batch is run forward and backward at the loss scales, and once with autocast off; then, if something is not
    finite, or to look for an infinity that vanishes inside the model, operator by operator. That takes about as long
    as 10 to 30 steps. All is put back afterwards: parameters, `.grad`, buffers, random number generators, train and
    eval mode. No optimizer steps.

    Args:
        model: an `nn.Module`; with a closure, also a list of them.
        loss_fn: what makes the loss, a scalar, of the model's result: see `batch`. Without a batch, a closure: called
            without arguments, it returns the unscaled loss of one batch, and has its own autocast region.
        batch: a tuple or list, the last of which is the target: `loss_fn(model(*batch[:-1]), batch[-1])`; a mapping:
            `loss_fn(model(**batch), batch)`, or without `loss_fn` the `.loss` of the result; a tensor:
            `loss_fn(model(batch))`. Forward and loss run in an autocast region of `dtype`.
        device_type: whose autocast: None for that of the device that the model is on; "cuda" on CPU tensors is
            emulated (its cast policy, and FP16 products as on Tensor Cores), so it needs no GPU.
        dtype: autocast's, `torch.float16` or `torch.bfloat16`. (A closure has its own.)
        scales: the loss scales to try. If the batch overflows at all of them, smaller ones follow, down to 2^-24.

    Raises:
        TypeError: for arguments of a wrong type, and a loss that is no tensor.
        ValueError: for a device, dtype or scale that there is not, a loss that is no single number, and a closure that
            calls backward or a step itself.
        Exception: what the model itself raises.
    """
    _check(model, loss_fn, batch, device_type, dtype)
    sizes = _scales(scales)
    if batch is None:
        assert loss_fn is not None
        roots = roots_of(model, loss_fn)
        runs_on = device_of(roots)
        return explained(Batch(loss_fn, roots, runs_on, _policy(device_type, runs_on)), sizes)
    assert isinstance(model, nn.Module)
    return explained(batch_of(model, loss_fn, batch, device_type=device_type, dtype=dtype), sizes)


def batch_of(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    *,
    device_type: str | None = None,
    dtype: torch.dtype | None = torch.float16,
) -> Batch:
    """Return a batch, given as to `find_overflow`, as one that can be run again; dtype None: without autocast."""
    _check(model, loss_fn, batch, device_type, torch.float16 if dtype is None else dtype)
    roots = {"": model}
    if isinstance(loss_fn, nn.Module) and any(True for _ in loss_fn.state_dict()):
        roots["loss_fn"] = loss_fn
    runs_on = device_of(roots, batch)
    policy = _policy(device_type, runs_on)
    call, inputs, keywords, targets = _call(model, loss_fn, batch)
    region = dtype is not None
    return Batch(call, roots, runs_on, policy, dtype or torch.float16, region, inputs, keywords, targets)


def _call(
    model: nn.Module, loss_fn: Callable[..., Any] | None, batch: Any
) -> tuple[Callable[..., Any], tuple[Any, ...], Mapping[str, Any], int]:
    """Return what computes the loss, what it is called with, and how many of the arguments are targets."""
    if isinstance(batch, torch.Tensor):
        return (lambda x: loss_fn(model(x)) if loss_fn is not None else own_loss(model(x))), (batch,), {}, 0
    if isinstance(batch, Mapping):
        fields = {str(name): each for name, each in batch.items()}

        def of_fields(**fields: Any) -> Any:
            output = model(**fields)
            return own_loss(output) if loss_fn is None else loss_fn(output, fields)

        return of_fields, (), fields, 0
    if loss_fn is None:
        return (lambda *inputs: own_loss(model(*inputs))), tuple(batch), {}, 0
    return (lambda *inputs: loss_fn(model(*inputs[:-1]), inputs[-1])), tuple(batch), {}, 1


def own_loss(output: Any) -> Any:
    """Return the loss that a model computes itself: `.loss` or `["loss"]` of its result.

    Raises:
        TypeError: if it has none.
    """
    if isinstance(output, Mapping) and "loss" in output:
        return output["loss"]
    found = getattr(output, "loss", None)
    if found is None:
        raise TypeError(
            f"without loss_fn, the model's result must have the loss, as .loss or ['loss']; this "
            f"{type(output).__name__} has none: give a loss_fn (for a Hugging Face model, give labels in the batch)"
        )
    return found


def _check(model: Any, loss_fn: Any, batch: Any, device_type: Any, dtype: Any) -> None:
    if isinstance(model, type):
        raise TypeError(f"model is the class {model.__name__} itself: give a model made of it")
    several = isinstance(model, list | tuple) and batch is None
    if not isinstance(model, nn.Module) and not several:
        raise TypeError(
            f"model is an nn.Module, not a {type(model).__name__}: for a function, give the modules in it, and a "
            "closure as loss_fn"
        )
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"loss_fn is a function that returns the loss, not a {type(loss_fn).__name__}")
    if loss_fn is None and batch is None:
        raise TypeError("give a batch, or as loss_fn a closure that returns the unscaled loss of one batch")
    if batch is not None:
        _check_batch(batch, loss_fn)
    if device_type not in (None, "cuda", "cpu"):
        raise ValueError(
            f'device_type={device_type!r}: it is "cuda" or "cpu", or None for the model\'s own device'
        )
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype={dtype!r}: it is a dtype of PyTorch, torch.float16 or torch.bfloat16")
    if dtype not in _DTYPES:
        raise ValueError(f"dtype={dtype}: autocast's are torch.float16 and torch.bfloat16")


def _check_batch(batch: Any, loss_fn: Any) -> None:
    if isinstance(batch, torch.Tensor | Mapping):
        return
    if not isinstance(batch, list | tuple):
        raise TypeError(
            f"batch is a tuple (inputs..., target), a mapping of keyword arguments or a tensor, not a "
            f"{type(batch).__name__}; of a data loader, give one batch: next(iter(loader))"
        )
    if len(batch) < (1 if loss_fn is None else 2):
        raise ValueError(
            f"batch has {len(batch)} of what a tuple must have, inputs and at the end the target; a batch that is only "
            "one tensor is given as that tensor"
        )


def _policy(device_type: str | None, runs_on: str) -> str:
    if device_type is None:
        return runs_on
    if device_type == "cpu" and runs_on == "cuda":
        raise ValueError(
            'device_type="cpu": the model is on "cuda", where the CPU\'s policy does not hold; move it'
        )
    return device_type


def _scales(scales: Any) -> tuple[float, ...]:
    if isinstance(scales, int | float):
        scales = (scales,)
    try:
        sizes = tuple(float(each) for each in scales)
    except (TypeError, ValueError) as error:
        raise TypeError(f"scales are numbers, such as (2.0**16, 1.0), not {scales!r}") from error
    if not sizes:
        raise ValueError("scales is empty: give at least one loss scale, such as (2.0**16,)")
    wrong = [each for each in sizes if not (math.isfinite(each) and each > 0)]
    if wrong:
        raise ValueError(f"scales has {wrong[0]}: a loss scale is finite and larger than 0")
    held = torch.finfo(torch.float32)  # a GradScaler's own dtype, in which others are infinity or 0
    far = [each for each in sizes if not held.tiny <= each <= held.max]
    if far:
        raise ValueError(f"scales has {far[0]:g}: a loss scale is a number of FP32, from 2^-126 to 3.4e38")
    return sizes
