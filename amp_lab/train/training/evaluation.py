"""Loss and metrics of a set that is not trained on: evaluation mode, no graph, autocast as in training, FP32 values."""

from __future__ import annotations

import contextlib
import math
import operator
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

    Of several ranks, each looks at its part, with the buffers of rank 0, and the sums of all are added at the end: the
    parts may be of any sizes, and one of them may be empty.
    """
    trainer.ranks.same_buffers()
    parts = trainer.ranks.each(lambda: _sums(trainer, loader))
    samples = sum(part[0] for part in parts)
    if not samples:
        raise ValueError(
            f"{name} gave no sample: is its data set empty, or is it a generator, which can be read only once?"
        )
    columns = zip(*(part[1] for part in parts if part[0]), strict=True)
    means = (_sum(column) / samples for column in columns)
    return dict(zip(("loss", *trainer.metrics), means, strict=True))


def _sums(trainer: Trainer, loader: Iterable[Any]) -> tuple[int, list[float]]:
    """Return how many samples there are, and over them the sum of the loss and of each metric."""
    sizes: list[int] = []
    rows: list[list[torch.Tensor]] = []
    with modes_kept(trainer.modules()) as modules, torch.inference_mode():
        for module in modules:
            module.eval()
        for batch in loader:
            sizes.append(samples_in(batch))
            rows.append(_values(trainer, to_device(batch, trainer.device)))
    columns = [torch.stack(column).tolist() for column in zip(*rows, strict=True)]
    return sum(sizes), [_sum(map(operator.mul, column, sizes)) for column in columns]


def _values(trainer: Trainer, batch: Any) -> list[torch.Tensor]:
    model = trainer.ranks.model_inside(trainer.model)  # DDP would wait for ranks that have fewer batches
    with trainer.autocast:
        outputs, target, loss = forward(model, trainer.loss_fn, batch)
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


def _sum(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) if all(map(math.isfinite, values)) else math.nan  # fsum refuses inf - inf


@contextlib.contextmanager
def modes_kept(modules: Sequence[nn.Module]) -> Iterator[Sequence[nn.Module]]:
    """Put every module, and each part of it, back into training or evaluation mode as it was."""
    before = [(part, part.training) for module in modules for part in module.modules()]
    try:
        yield modules
    finally:
        for part, training in before:
            part.training = training
