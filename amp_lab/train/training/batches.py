"""Batches as they come from a loader: onto the device, how many samples, and through the model to the loss."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from amp_lab.train.arguments import kind_of
from amp_lab.watching.overflow import own_loss


def to_device(batch: Any, device: torch.device) -> Any:
    """Return a batch with its tensors on the device: in tuples, lists, mappings, and what has a `to` itself.

    The copy from pinned memory to a GPU runs beside what the GPU does (`non_blocking`); from other memory, it waits.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=device.type == "cuda")
    if type(batch) in (tuple, list):  # what most batches are: no further questions
        return [to_device(each, device) for each in batch]
    if isinstance(batch, Mapping):
        return {name: to_device(each, device) for name, each in batch.items()}
    if hasattr(batch, "to"):  # a PackedSequence, which is a tuple too
        return batch.to(device)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(to_device(each, device) for each in batch))
    return batch


def samples_in(batch: Any) -> int:
    """Return how many samples a batch has: the first dimension of its first tensor; 1 if it has none.

    Raises:
        ValueError: for a batch without samples, whose mean loss would be NaN.
    """
    tensor = _first_tensor(batch)
    if tensor is None:
        return 1
    if not tensor.shape[0]:
        raise ValueError(f"a batch has no samples: its first tensor is of shape {tuple(tensor.shape)}")
    return tensor.shape[0]


def _first_tensor(batch: Any) -> torch.Tensor | None:
    if isinstance(batch, torch.Tensor):
        return batch if batch.ndim else None
    if isinstance(batch, PackedSequence):  # its first time step has a row for each sample
        return batch.data[: int(batch.batch_sizes[0])]
    if not isinstance(batch, list | tuple):
        if not isinstance(batch, Mapping):
            return None
        batch = batch.values()
    return next((found for each in batch if (found := _first_tensor(each)) is not None), None)


class Forward(NamedTuple):
    """What comes out of a forward pass: the model's result, the target as the batch has it, and the loss."""

    outputs: Any
    target: Any
    loss: torch.Tensor


def forward(model: nn.Module, loss_fn: Callable[..., Any] | None, batch: Any) -> Forward:
    """Return outputs, target and loss of a batch; called inside the autocast region.

    Of a tuple or list, the last is the target: `loss_fn(model(*batch[:-1]), batch[-1])`. A mapping goes in by name, and
    is the target as a whole: `loss_fn(model(**batch), batch)`. Without loss_fn, the model's result has the loss.

    Raises:
        TypeError, ValueError: for a batch that is none of these, and a loss that is no single number or has no graph.
    """
    if isinstance(batch, list | tuple) and len(batch) > (loss_fn is not None):
        inputs, target = (batch, None) if loss_fn is None else (batch[:-1], batch[-1])
        outputs = model(*inputs)
    elif isinstance(batch, Mapping):
        outputs, target = model(**batch), batch
    else:
        raise _no_batch(batch)
    loss = own_loss(outputs) if loss_fn is None else loss_fn(outputs, target)
    return Forward(outputs, target, checked(loss))


def checked(loss: Any) -> torch.Tensor:
    """Return a loss in FP32 (FP64 stays) if gradients can be had of it."""
    if not isinstance(loss, torch.Tensor):
        raise TypeError(
            f"loss_fn returned {kind_of(loss)}; it must return the loss alone, as a tensor (without .item())"
        )
    if loss.ndim:
        raise ValueError(
            f"loss_fn returned a tensor of shape {tuple(loss.shape)}; the loss must be one number: its mean over the "
            "samples (do you use reduction='none'? then add .mean())"
        )
    if not loss.is_floating_point():
        raise TypeError(
            f"the loss is {loss.dtype}: it must be a floating-point tensor, of which gradients can be had"
        )
    if not loss.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "the loss has no graph, so no weight gets a gradient: is there a .detach(), a no_grad() or an argmax in "
            "the model or in loss_fn, or are all weights frozen (requires_grad=False)?"
        )
    return loss if loss.dtype in (torch.float32, torch.float64) else loss.float()


def in_fp32(outputs: Any) -> Any:
    """Return outputs whose FP16 and BF16 tensors are FP32, so that a metric adds without rounding."""
    if isinstance(outputs, torch.Tensor):
        return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
    if is_dataclass(outputs) and not isinstance(outputs, type):  # a Hugging Face model's output, too
        fields = [each.name for each in dataclasses.fields(outputs) if each.init]
        return dataclasses.replace(outputs, **{name: in_fp32(getattr(outputs, name)) for name in fields})
    if isinstance(outputs, Mapping):
        return {name: in_fp32(each) for name, each in outputs.items()}
    if isinstance(outputs, tuple) and hasattr(outputs, "_fields"):
        return type(outputs)(*map(in_fp32, outputs))
    return type(outputs)(map(in_fp32, outputs)) if isinstance(outputs, list | tuple) else outputs


def _no_batch(batch: Any) -> Exception:
    if isinstance(batch, list | tuple):
        return ValueError(f"a batch has {len(batch)} parts; it needs the inputs and, at the end, the target")
    if isinstance(batch, torch.Tensor):
        return TypeError(
            "a batch is one tensor, without a target: the loader must give (inputs, target). Was a tensor given in "
            "place of a loader? Use DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)"
        )
    return TypeError(
        f"a batch is {kind_of(batch)}; the loader must give tuples (inputs, target), or mappings of the model's "
        "arguments"
    )
