"""Samples of what FP16 made zero, between backward and what uses the gradients: in the first steps, and each 32nd.

A model of more than 128 modules is sampled less often, so that samples take no larger share of its time. Nothing is
read here: a sample is a handful of numbers for each module, which stay on their device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import nn

from amp_lab.watching.recording.events import Gradients
from amp_lab.watching.recording.looks.calls import is_plain
from amp_lab.watching.recording.looks.look import Bench, Look
from amp_lab.watching.underflow.sample import take

_FIRST_STEPS: Final = 3
_EACH: Final = 32
_MODULES: Final = 128  # of so many, samples are taken in each 32nd step
_AS_FP16_SAW_THEM: Final = (Gradients.TRUE, Gradients.SCALED)


class SampledUnderflow(Look):
    """Adds to the run's `Samples`, in a loop that uses FP16 autocast.

    Where a step has several backward passes, what the last one left counts.
    """

    def __init__(self, bench: Bench):
        super().__init__(bench)
        self._on, self._half, self._each = True, False, _EACH

    def begin_step(self, step: int) -> None:
        self._on, self._half = step <= _FIRST_STEPS or step % self._each == 0, False

    def forward(self) -> None:
        if self._on and not self._half:
            self._half = any(
                torch.is_autocast_enabled(kind) and torch.get_autocast_dtype(kind) == torch.float16
                for kind in ("cuda", "cpu")
            )

    def after_backward(self) -> None:
        if not self._on or not self._half:
            return
        states = [self.bench.state(number) for number in range(len(self.bench.optimizers))]
        names = module_names(self.bench.models)  # afresh: the model may have changed since the last sample
        gradients = self._gradients(names, [state in _AS_FP16_SAW_THEM for state in states])
        if gradients:
            self._each = _EACH * math.ceil(len(gradients) / _MODULES)
            scale = self.bench.scale() if Gradients.SCALED in states else None
            words = embeddings(self.bench.models, names)
            self.bench.samples.add(take(self.bench.step, gradients, scale, words))

    def _gradients(self, names: Mapping[int, str], usable: Sequence[bool]) -> dict[str, list[torch.Tensor]]:
        """Return the gradients of each module, in the model's order, where FP16's numbers are still what they were."""
        parameters = {
            id(each): each
            for number, is_usable in enumerate(usable)
            if is_usable
            for each in self.bench.parameters(number)
        }
        found: dict[str, list[torch.Tensor]] = {}
        for each, module in names.items():
            gradient = numbers_of(parameters[each].grad) if each in parameters else None
            if gradient is not None and gradient.is_floating_point() and gradient.numel():
                found.setdefault(module, []).append(gradient)
        return found


def numbers_of(gradient: torch.Tensor | None) -> torch.Tensor | None:
    """Return the numbers of a gradient, for a sparse one those that it stores; None where there are none to read."""
    if type(gradient) is torch.Tensor and gradient.layout == torch.sparse_coo:
        gradient = gradient._values()  # values() would refuse one that is not coalesced
    return gradient if is_plain(gradient) else None


def module_names(models: Sequence[nn.Module]) -> dict[int, str]:
    """Return for each parameter, by its id, the path of the module that holds it: "layers.2.linear1"."""
    names: dict[int, str] = {}
    for number, model in enumerate(models):
        for path, module in model.named_modules():
            name = path.replace("_orig_mod.", "").removesuffix("_orig_mod") or type(module).__name__
            for parameter in module.parameters(recurse=False):
                names.setdefault(id(parameter), f"model {number + 1}: {name}" if len(models) > 1 else name)
    return names


def embeddings(models: Sequence[nn.Module], names: Mapping[int, str]) -> frozenset[str]:
    """Return which of these modules are embeddings. One whose weight another layer uses, too, gets it in each row."""
    words: set[str] = set()
    others: set[str] = set()
    for model in models:
        for module in model.modules():
            found = words if isinstance(module, nn.Embedding | nn.EmbeddingBag) else others
            found.update(names[id(each)] for each in module.parameters(recurse=False) if id(each) in names)
    return frozenset(words - others)
