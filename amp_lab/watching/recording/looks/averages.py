"""Averages of the weights that the loop's own code keeps: EMA, target networks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import torch

from amp_lab.watching.recording.events import Averaged
from amp_lab.watching.recording.looks.calls import Call
from amp_lab.watching.recording.looks.judge import Judge
from amp_lab.watching.recording.looks.weights import Weights

_CASTS: Final = frozenset("to float half bfloat16 type detach clone data.get".split())


class Averages(Judge):
    """Emits `Averaged(kind=None)`, once for each line and step.

    What counts is a tensor that is no weight itself, of a weight's shape, which moves towards that weight by a share:
    `average.lerp_(p, 0.1)`, `average.mul_(0.9).add_(p, alpha=0.1)`, `average = 0.9 * average + 0.1 * p`.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._weights = Weights(self.bench)
        self._step, self._noted = 0, set[object]()

    def _turn(self) -> None:
        if self.bench.step != self._step:
            self._step = self.bench.step
            self._noted.clear()

    def after(self, call: Call) -> None:
        if call.backward or call.origin != "user":
            return
        self._turn()
        if call.inplace:
            self._in_place(call)
        elif isinstance(call.result, torch.Tensor) and not call.result.requires_grad:
            self._out_of_place(call, call.result)

    def _in_place(self, call: Call) -> None:
        if call.name == "mul" and (factor := _plain(call.argument(1, "other"))) is not None:
            for target in _list(call.args[0]):
                self.tags.put(target, "times", factor)
            return
        if call.name not in ("lerp", "add", "sub", "copy") or len(call.args) < 2:
            return
        for target, other in zip(_list(call.args[0]), _list(call.args[1]), strict=False):
            if self._is_weight(target) or self.tags.of(target, "gradient") is not None:
                continue
            share = self._share_of(call, other)
            if share is not None and target.shape == other.shape:
                self._note(call, target, share)
                return

    def _share_of(self, call: Call, other: torch.Tensor) -> float | None:
        """Return by which share of a weight a call moves what it writes to; None if it does not."""
        if call.name == "lerp":
            share = _plain(call.argument(2, "weight"))
            return share if share is not None and 0 < share < 1 and self._is_weight(other) else None
        if call.name == "copy":
            return self._found(other, "average")
        alpha = _plain(call.kwargs.get("alpha"))
        if alpha is not None and 0 < abs(alpha) < 1:
            known = self._found(other, "difference")
            return abs(alpha) if self._is_weight(other) or known is not None else None
        return self._found(other, "share") or self._found(other, "share of difference")

    def _out_of_place(self, call: Call, result: torch.Tensor) -> None:
        if call.name in ("mul", "div"):
            self._multiplied(call, result)
        elif call.name == "sub" and any(self._is_weight(each) for each in call.args[:2]):
            if len(call.args) > 1 and isinstance(call.args[1], torch.Tensor):
                self.tags.put(result, "difference", 1.0)
        elif call.name in ("add", "lerp"):
            self._combined(call, result)
        elif call.name in _CASTS and call.args:
            for name in ("difference", "share", "times", "copy of a weight"):
                self.tags.pass_on(call.args[0], result, name)
            if self._weights.has(call.args[0]):
                self.tags.put(result, "copy of a weight", True)

    def _multiplied(self, call: Call, result: torch.Tensor) -> None:
        factor = _plain(call.argument(1, "other"))
        if factor is None and call.args:
            factor = _plain(call.args[0])
        if factor is None or not factor:
            return
        factor = 1 / factor if call.name == "div" else factor
        if not 0 < abs(factor) < 1:
            return
        for each in call.tensors():
            if self._is_weight(each):
                self.tags.put(result, "share", factor)
            elif self.tags.of(each, "difference") is not None:
                self.tags.put(result, "share of difference", abs(factor))
            else:
                self.tags.put(result, "times", factor)

    def _combined(self, call: Call, result: torch.Tensor) -> None:
        """A sum that is a weighted mean of a weight and of something else."""
        if call.name == "lerp":
            share = _plain(call.argument(2, "weight"))
            if share is not None and 0 < share < 1 and self._is_weight(call.args[1]):
                self._average(call, result, share, call.args[0].dtype)
            return
        both = [each for each in call.tensors() if each.shape == result.shape]
        if len(both) != 2:
            return
        for weight, other in (both, both[::-1]):
            share, rest = self._found(weight, "share"), self._found(other, "times")
            alpha = _plain(call.kwargs.get("alpha"))
            if share is None and alpha is not None and self._is_weight(weight):
                share = alpha
            if share is not None and rest is not None and abs(share + rest - 1) < 1e-6:
                self._average(call, result, share, other.dtype)
            elif self._found(weight, "share of difference") is not None and not self._is_weight(other):
                self._average(call, result, self._found(weight, "share of difference"), other.dtype)

    def _average(self, call: Call, result: torch.Tensor, share: float | None, kept: torch.dtype) -> None:
        """Note a weighted mean. `kept`: the dtype of what it was before: the result may be wider, and cast again."""
        self.tags.put(result, "average", share)
        self._note(call, result, share, kept)

    def _found(self, tensor: object, name: str) -> float | None:
        fact: float | None = self.tags.of(tensor, name)
        return fact

    def _note(
        self, call: Call, target: torch.Tensor, share: float | None, kept: torch.dtype | None = None
    ) -> None:
        if call.line in self._noted:
            return
        self._noted.add(call.line)
        average = hash(call.line) if not call.inplace else id(target)
        self.bench.emit(Averaged, kind=None, average=average, dtype=kept or target.dtype, share=share)

    def _is_weight(self, tensor: object) -> bool:
        return self._weights.has(tensor) or self.tags.of(tensor, "copy of a weight") is not None


def _list(given: Any) -> Iterator[torch.Tensor]:
    several: Iterable[Any] = given if isinstance(given, list | tuple) else (given,)
    return (each for each in several if isinstance(each, torch.Tensor))


def _plain(number: object) -> float | None:
    return float(number) if type(number) in (int, float) else None  # type: ignore[arg-type]
