"""Loss and metrics of a set that is not trained on: evaluation mode, no graph, autocast as in training, FP32 values."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from amp_lab.train.training.batches import forward, in_fp32, samples_in, to_device

if TYPE_CHECKING:
    from amp_lab.train.trainer import Trainer


def evaluate(trainer: Trainer, loader: Iterable[Any], name: str = "loader") -> dict[str, float]:
    """Return "loss" and each metric: means over all samples, a batch weighted by how many it has.

    Values stay on the device until the end, so that a GPU is waited for once each, and are added in FP64.
    """
    sizes: list[int] = []
    rows: list[list[torch.Tensor]] = []
    with modes_kept(trainer.modules()) as modules, torch.inference_mode():
        for module in modules:
            module.eval()
        for batch in loader:
            sizes.append(samples_in(batch))
            rows.append(_values(trainer, to_device(batch, trainer.device)))
    if not sum(sizes):
        raise ValueError(
            f"{name} gave no sample: is its data set empty, or is it a generator, which can be read only once?"
        )
    columns = [torch.stack(column).tolist() for column in zip(*rows, strict=True)]
    return dict(zip(("loss", *trainer.metrics), (_mean(column, sizes) for column in columns), strict=True))


def _values(trainer: Trainer, batch: Any) -> list[torch.Tensor]:
    with trainer.autocast:
        outputs, target, loss = forward(trainer.model, trainer.loss_fn, batch)
    outputs = in_fp32(outputs)
    return [loss, *(_number(name, f(outputs, target), loss) for name, f in trainer.metrics.items())]


def _number(name: str, value: Any, loss: torch.Tensor) -> torch.Tensor:
    try:
        number = torch.as_tensor(value, dtype=loss.dtype, device=loss.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"the metric {name!r} returned a {type(value).__name__}; it must return one number, the mean over the "
            "samples of the batch"
        ) from error
    if number.ndim:
        raise ValueError(
            f"the metric {name!r} returned a tensor of shape {tuple(number.shape)}; it must be one number, "
            "the mean over the samples of the batch"
        )
    return number


def _mean(values: Sequence[float], sizes: Sequence[int]) -> float:
    if not all(map(math.isfinite, values)):
        return math.nan  # fsum refuses inf - inf
    return math.fsum(value * size for value, size in zip(values, sizes, strict=True)) / sum(sizes)


@contextlib.contextmanager
def modes_kept(modules: Sequence[nn.Module]) -> Iterator[Sequence[nn.Module]]:
    """Put every module, and each part of it, back into training or evaluation mode as it was."""
    before = [(part, part.training) for module in modules for part in module.modules()]
    try:
        yield modules
    finally:
        for part, training in before:
            part.training = training
