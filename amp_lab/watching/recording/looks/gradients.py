"""Samples of gradients, between the backward pass and what uses them: in the first steps, and each 32nd.

From a few numbers of each optimizer, copied before and after the loop's own code had its turn, one sees that it changed
them all by one factor. Whole gradients are never copied, and nothing is read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch

from amp_lab.watching.recording.events import Gradients, GradientsChanged, Noticed
from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.looks.calls import is_plain
from amp_lab.watching.recording.looks.gradients_used import takes_out
from amp_lab.watching.recording.looks.look import Bench, Look
from amp_lab.watching.recording.looks.noting import any_of, late

_FIRST_STEPS: Final = 3
_EACH: Final = 32
_PARAMETERS: Final = 6  # of each optimizer
_NUMBERS: Final = 8  # of each of them
_EMPTY: Final = (Gradients.NONE, Gradients.ZERO)


class SampledGradients(Look):
    """Emits `GradientsChanged`, "zeros" (how many gradients are exactly zero), zeroing by hand, and "rewritten".

    Rewritten are other gradients, that the loop itself wrote between a step and the next backward pass.
    """

    def __init__(self, bench: Bench):
        super().__init__(bench)
        self._on, self._half = True, False
        self._samples: dict[int, torch.Tensor] = {}
        self._after_step: dict[int, _Written] = {}

    def begin_step(self, step: int) -> None:
        self._on, self._half = step <= _FIRST_STEPS or step % _EACH == 0, False
        self._samples.clear()

    def forward(self) -> None:
        if self._on and not self._half:
            self._half = any(
                torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16
                for kind in ("cuda", "cpu")
            )

    def before_backward(self) -> None:
        for number, before in self._after_step.items():
            self._find_zeros(number, before)
        self._after_step.clear()

    def after_backward(self) -> None:
        if not self._on:
            return
        for number in range(len(self.bench.optimizers)):
            if self.bench.state(number) not in _EMPTY and (sample := self._sample(number)) is not None:
                self._samples[number] = sample
        if self._half and self.bench.scale() is None:
            self._count_zeros()

    def before_use(self, optimizer: int) -> None:
        """Note whether the numbers are still what backward left."""
        before = self._samples.pop(optimizer, None)
        if before is None or (now := self._sample(optimizer)) is None or now.shape != before.shape:
            return
        state, (factor, changed) = self.bench.state(optimizer), _compared(before, now)
        if changed.known and not changed.value:
            return
        self.bench.emit(GradientsChanged, optimizer=optimizer, state=state, factor=factor, changed=changed)
        scale = self.bench.scale()
        if state is Gradients.SCALED and takes_out(factor, scale):
            self.bench.unscaled_by_hand(optimizer)

    def after_step(self, optimizer: int) -> None:
        self._samples.pop(optimizer, None)
        self._after_step[optimizer] = _written(self._ends(optimizer))

    def stop(self) -> None:
        self._samples.clear()
        self._after_step.clear()

    def _sample(self, optimizer: int) -> torch.Tensor | None:
        """Return a few numbers of the first and last parameters that have a gradient, as a copy in FP32."""
        parts = [
            gradient.detach().view(-1)[:_NUMBERS].float()
            for each in self._some(optimizer)
            if is_plain(gradient := each.grad) and gradient is not None and gradient.is_contiguous()
        ]
        if not parts or any(each.device != parts[0].device for each in parts):
            return None
        with torch.no_grad():
            return torch.cat(parts)

    def _some(self, optimizer: int) -> list[torch.Tensor]:
        parameters, half = self.bench.parameters(optimizer), _PARAMETERS // 2
        return parameters if len(parameters) <= _PARAMETERS else [*parameters[:half], *parameters[-half:]]

    def _ends(self, optimizer: int) -> tuple[torch.Tensor, ...]:
        """Return the first and the last parameter of an optimizer."""
        groups = [
            group["params"] for group in self.bench.optimizers[optimizer].param_groups if group["params"]
        ]
        return (groups[0][0], groups[-1][-1]) if groups else ()

    def _find_zeros(self, optimizer: int, before: _Written) -> None:
        """Tell of gradients that were written to since the step: are they zeros, where reading costs no wait?"""
        if not before or self.bench.state(optimizer) in _EMPTY or before == _written(self._ends(optimizer)):
            return
        sample = self._sample(optimizer)
        if sample is not None and sample.device.type == "cpu" and not sample.any():
            self.bench.zeroed_by_hand(optimizer)
        else:
            self.bench.emit(Noticed, what="rewritten", values={"optimizer": optimizer})

    def _count_zeros(self) -> None:
        gradients = [
            each.grad
            for number in range(len(self.bench.optimizers))
            for each in self.bench.parameters(number)
            if each.grad is not None and is_plain(each.grad)
        ]
        if gradients and all(each.device == gradients[0].device for each in gradients):
            entries = sum(each.numel() for each in gradients)
            nonzero = torch.stack([torch.count_nonzero(each) for each in gradients]).sum()
            self.bench.emit(Noticed, what="zeros", values={"zeros": late(entries - nonzero), "of": entries})


# Of some gradients: which they are, and how often each had been written to.
_Written = tuple[tuple[int, int], ...]


def _written(parameters: Sequence[torch.Tensor]) -> _Written:
    gradients = [each.grad for each in parameters]
    return tuple(
        [(id(each), each._version) for each in gradients if each is not None and not each.is_inference()]
    )


def _compared(before: torch.Tensor, now: torch.Tensor) -> tuple[Later[float], Later[bool]]:
    """Return by which factor all numbers were multiplied (NaN: by different ones), and whether any has changed."""
    usable = before.isfinite() & now.isfinite() & (before.abs() > 1e-30)
    ratio = now / before
    lowest = torch.where(usable, ratio, torch.inf).amin()
    highest = torch.where(usable, ratio, -torch.inf).amax()
    one = (highest - lowest).abs() <= 1e-3 * highest.abs()
    return late(torch.where(one, highest, torch.nan)), any_of(usable & (now != before))
