"""The numbers that a rank tells of itself: skipped steps, loss scales, and checksums of what may or must be equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import torch
from torch import nn

from amp_lab.watching.recording.ranks import replicas
from amp_lab.watching.recording.ranks.checksums import checksum
from amp_lab.watching.recording.ranks.records import FIRST, LAST, MOST, RankRecord
from amp_lab.watching.recording.readings import Readings

_TOGETHER: Final = 16  # numbers of a GPU that come to the host in one parcel
_CLOSELY: Final = 3  # steps, from the first, whose batches and random numbers are compared
_EVERY: Final = 16  # steps: the weights of the first sixteen are compared, and of each sixteenth


class Numbers:
    """Writes numbers into a rank's record, once a GPU has them ready.

    Attributes:
        parameters: those that must be equal on all ranks.
    """

    def __init__(self, record: RankRecord) -> None:
        self._record = record
        self.parameters: Sequence[nn.Parameter] = ()
        self._sampled = self._looked = 0  # the last step of which there is a checksum
        self._skips = Readings(self._read_skip, _TOGETHER)
        self._scales = Readings(self._read_scale, _TOGETHER)
        self._weights = Readings(_appends(record.weights), _TOGETHER)
        self._inputs = Readings(_appends(record.inputs), _TOGETHER)

    def skipped(self, step: int, skipped: float | torch.Tensor) -> None:
        """Note whether the scaler has left a step out: more than 0 if it has."""
        if len(self._record.skips) < MOST:
            self._skips.add(step, skipped)

    def scale(self, step: int, after: float | torch.Tensor) -> None:
        """Note the scale after an update."""
        if len(self._record.scales) < MOST:
            self._scales.add(step, after)

    def weights(self, step: int) -> None:
        """Note the checksum of the weights with which a step begins."""
        if step == self._sampled or not (step <= _EVERY or step % _EVERY == 1) or self._is_captured():
            return
        self._sampled = step
        if (found := checksum(self.parameters)) is not None:
            self._weights.add(step, _number(found))
            if len(self._record.weights) > FIRST + LAST:
                del self._record.weights[FIRST]

    def batch(self, step: int, inputs: Iterable[Any]) -> None:
        """Note the checksums of what a model is given, and of the state of the random numbers.

        Of all tensors together: some may be the same on all ranks by right, as the numbers of positions are.
        """
        if step > _CLOSELY or step == self._looked or self._is_captured():
            return
        self._looked = step
        if (found := checksum(inputs)) is not None:
            self._inputs.add(step, _number(found))
        if (state := replicas.random_state(replicas.device_of(self.parameters))) is not None:
            self._record.random.append((step, state))

    def is_gradient(self, step: int, tensor: Any) -> bool:
        """Return whether a tensor is the gradient of a weight; of the first steps only, False later."""
        return step <= _CLOSELY and replicas.is_gradient(tensor, self.parameters)

    def read(self) -> None:
        """Read what is still on a GPU; the host waits for it."""
        for each in (self._skips, self._scales, self._weights, self._inputs):
            each.read()

    def _is_captured(self) -> bool:
        return replicas.is_captured(replicas.device_of(self.parameters))

    def _read_skip(self, step: int, skipped: float) -> None:
        record = self._record
        record.skips_until = step
        if skipped > 0 and step not in record.skips[-1:]:
            record.skips.append(step)

    def _read_scale(self, step: int, scale: float) -> None:
        record = self._record
        record.scales_until = step
        if not record.scales or record.scales[-1][1] != scale:
            record.scales.append((step, scale))


def _number(value: torch.Tensor) -> float | torch.Tensor:
    return value if value.device.type != "cpu" else float(value.item())


def _appends(numbers: list[tuple[int, int]]) -> Callable[[int, float], None]:
    return lambda step, value: numbers.append((step, int(value)))
