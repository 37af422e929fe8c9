"""What the loop's own code does with gradients between backward and step, while they are multiplied by the scale."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from amp_lab.watching.recording.events import Gradients
from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.looks.calls import Call, is_plain
from amp_lab.watching.recording.looks.judge import Judge
from amp_lab.watching.recording.looks.noting import late
from amp_lab.watching.recording.looks.weights import Weights

SAME: Final = frozenset(
    "data.get detach float half double clone to cpu cuda flatten view reshape contiguous view_as ravel".split()
)
SIZES: Final = frozenset("norm vector_norm histc histogram std var amax amin max min mean dot".split())
_SQUARES: Final = frozenset("abs pow square mul".split())
_COMBINED: Final = frozenset(
    "stack cat add sqrt pow square sum norm vector_norm max amax item float detach".split()
)
_JOINED: Final = frozenset("cat concat concatenate hstack stack".split())
_NOISE: Final = frozenset("randn randn_like rand rand_like normal uniform".split())
_TESTS: Final = frozenset("isfinite isnan isinf".split())
_CHANGES: Final = {
    "clamp": "clamped",
    "clamp_min": "clamped",
    "clamp_max": "clamped",
    "clamp_maximum": "clamped",
    "clamp_minimum": "clamped",
    "sign": "clamped",
    "tanh": "clamped",
    "nan_to_num": "overflow hidden",
    "mul": "multiplied",
    "div": "multiplied",
    "add": "added",
    "sub": "added",
}


class GradientsUsed(Judge):
    """Notes "gradients read" and "gradients changed" while they are scaled, and gradients set to zero by hand."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self._weights = Weights(self.bench)

    def after(self, call: Call) -> None:
        if call.backward or call.origin != "user":
            return
        if call.name == "grad.get":
            self._read(call)
            return
        if call.name == "grad.set":
            self._set(call)
            return
        self._moves(call)
        given = _first(call)
        owner = self.tags.of(given, "gradient")
        if owner is not None:
            self._used(call, given, owner)
        elif (sizes := self.tags.of(given, "sizes of gradients")) is not None and call.name in (
            SIZES | {"sum"}
        ):
            self._note_read(call, sizes)
        elif call.inplace and call.name in ("add", "lerp") and len(call.args) > 1:
            self._kept(call)
        self._follow(call, given)
        self._tell_origin(call, given)

    def _kept(self, call: Call) -> None:
        """Note that gradients are added to a buffer of the loop's own: nobody loses them by zero_grad."""
        other = call.args[1][0] if isinstance(call.args[1], list | tuple) and call.args[1] else call.args[1]
        if (owner := self.tags.of(other, "gradient")) is not None:
            self.notes.add("gradients kept", call.line, {"optimizer": owner})

    def _read(self, call: Call) -> None:
        if not isinstance(call.result, torch.Tensor):
            return
        if (owner := self.bench.owner(call.args[0])) is not None:
            self.tags.put(call.result, "gradient", owner)
            if self._scaled(owner):
                self.tags.put(call.result, "step", 1.0)
        elif any(self._scaled(number) for number in range(len(self.bench.optimizers))):
            self.tags.put(call.result, "step", 1.0)
            self.tags.put(call.result, "of data", True)

    def _moves(self, call: Call) -> None:
        """Note weights, or data, that are moved by scaled gradients times a plain number."""
        if call.name in ("mul", "div", "neg") and not call.inplace:
            self._tag_step(call)
        elif call.name in ("add", "sub"):
            operands = [each for each in call.args[:2] if isinstance(each, torch.Tensor)]
            if len(operands) != 2 or operands[0].shape != operands[1].shape:
                return
            for moved, by in (operands, operands[::-1]):
                factor = self.tags.of(by, "step")
                if factor is None or self.tags.of(moved, "step") is not None:
                    continue
                weights = moved is operands[0] and self._weights.has(moved)
                if weights or (self.tags.of(by, "of data") and not call.inplace):
                    alpha = call.kwargs.get("alpha", 1)
                    factor *= abs(alpha) if type(alpha) in (int, float) else 1
                    facts: dict[str, object] = {"weights": weights, "scale": self.bench.scale()}
                    self.notes.add("moved by gradients", call.line, facts, factor=factor)

    def _tag_step(self, call: Call) -> None:
        """Follow a gradient that is multiplied by a plain number; by a tensor, it may be its norm or the scale."""
        given = next((each for each in call.tensors() if self.tags.of(each, "step") is not None), None)
        numbers = list(call.numbers())
        others = [each for each in call.tensors() if each is not given]
        if given is None or others or (call.name != "neg" and len(numbers) != 1):
            return
        by = abs(numbers[0]) if numbers else 1.0
        if isinstance(call.result, torch.Tensor) and by:
            known = self.tags.of(given, "step")
            self.tags.put(call.result, "step", known / by if call.name == "div" else known * by)
            self.tags.pass_on(given, call.result, "of data")

    def _used(self, call: Call, gradient: torch.Tensor, owner: int) -> None:
        if call.name in _SQUARES and isinstance(call.result, torch.Tensor) and not call.inplace:
            self.tags.put(call.result, "sizes of gradients", owner)
        if call.name in _JOINED and isinstance(call.result, torch.Tensor):
            self.tags.put(call.result, "sizes of gradients", owner)  # of their numbers, too, a norm is taken
        if call.name in SAME:
            self.tags.pass_on(gradient, call.result, "gradient", "step")
        elif _writes_zeros(call):
            self.bench.zeroed_by_hand(owner)
        elif not self._scaled(owner):
            return
        elif call.name in SIZES:
            self._note_read(call, owner)
        elif call.inplace and call.name == "copy":
            self._set_to(call, call.args[1], owner)
        elif (how := _CHANGES.get(call.name)) is not None:
            self._changed(call, how, owner)

    def _scaled(self, owner: int) -> bool:
        return self.bench.state(owner) in (Gradients.SCALED, Gradients.MIXED)

    def _note_read(self, call: Call, owner: int) -> None:
        if not self._scaled(owner):
            return
        size = call.result if isinstance(call.result, torch.Tensor) and call.result.dim() == 0 else None
        self.notes.add(
            "gradients read",
            call.line,
            {"call": call.name, "optimizer": owner, "scale": self.bench.scale()},
            size=late(size.detach().clone()) if size is not None else None,
        )
        for result in _results(call):
            self.tags.put(result, "read", call.line)

    def _follow(self, call: Call, given: object) -> None:
        """Forget a norm that is only tested for inf and NaN, or divided by the scale; follow it otherwise."""
        lines = {line for each in call.tensors() if (line := self.tags.of(each, "read")) is not None}
        if not lines:
            return
        if call.name in _TESTS or _takes_scale_out(call):
            for line in lines:
                self.notes.drop("gradients read", line)
        elif isinstance(call.result, torch.Tensor):
            self.tags.put(call.result, "read", next(iter(lines)))

    def _tell_origin(self, call: Call, given: object) -> None:
        """Note which tensors are noise, and which are weights times a number."""
        if call.name in _NOISE:
            for result in _results(call):
                self.tags.put(result, "noise", True)
        elif call.name == "mul" and isinstance(call.result, torch.Tensor):
            for each in call.tensors():
                self.tags.pass_on(each, call.result, "noise")
                if self._weights.has(each):
                    self.tags.put(call.result, "of weights", True)

    def _changed(self, call: Call, how: str, owner: int) -> None:
        facts: dict[str, object] = {"how": how, "call": call.name, "factor": None, "by_norm": False}
        if how == "multiplied":
            facts |= self._factor(call)
            if facts["factor"] is None and not facts["by_norm"]:
                return  # by a mask, or another tensor: what commutes with the scale
        if how == "added":
            other = call.argument(1, "other")
            noise = bool(self.tags.of(other, "noise"))
            facts["weights"] = self._weights.has(other) or bool(self.tags.of(other, "of weights"))
            if not noise and not facts["weights"]:
                return  # a buffer of other gradients, perhaps, with the scale in it
        if call.inplace or self.tags.of(call.kwargs.get("out"), "gradient") is not None:
            self._note_change(call, facts, owner)
        elif isinstance(call.result, torch.Tensor):
            self.tags.put(call.result, "changed", facts)

    def _factor(self, call: Call) -> dict[str, object]:
        by = call.argument(1, "other")
        if isinstance(by, list | tuple) and by:
            by = by[0]
        if type(by) in (int, float) and by:
            return {"factor": Later(float, 1 / by if call.name == "div" else by)}
        if isinstance(by, torch.Tensor) and by.numel() == 1 and is_plain(by):
            with torch.no_grad():
                factor = by.detach().clone().reshape(())
                factor = factor.reciprocal() if call.name == "div" else factor
            return {"factor": late(factor), "by_norm": self.tags.of(by, "read") is not None}
        return {"factor": None}

    def _set(self, call: Call) -> None:
        parameter, value = call.args[:2]
        owner = self.bench.owner(parameter) if isinstance(value, torch.Tensor) else None
        if owner is not None:
            self._set_to(call, value, owner)

    def _set_to(self, call: Call, value: Any, owner: int) -> None:
        facts = self.tags.of(value, "changed")
        if facts is not None and self._scaled(owner):
            self._note_change(call, facts, owner)

    def _note_change(self, call: Call, facts: dict[str, object], owner: int) -> None:
        scale = self.bench.scale()
        self.notes.add(
            "gradients changed",
            call.line,
            {**facts, "optimizer": owner, "scale": scale},
            factor=facts["factor"],
        )
        factor = facts["factor"]
        if isinstance(factor, Later) and takes_out(factor, scale):
            self.bench.unscaled_by_hand(owner)


def takes_out(factor: Later[float], scale: Later[float] | None) -> bool:
    """Return whether a factor is known, without waiting for a device, to be that which takes the scale out."""
    known = scale is not None and scale.known and factor.known
    return known and scale is not None and is_inverse(factor.value, scale.value)


def is_inverse(factor: float, scale: float) -> bool:
    """Return whether a factor takes a scale out: 1 / scale, to FP32's digits."""
    return scale > 1 and abs(factor * scale - 1) < 1e-5


def _first(call: Call) -> Any:
    """Return what a call is about: its first argument, or the first tensor in a list that it was given."""
    first = call.args[0] if call.args else call.kwargs.get("input")
    if isinstance(first, list | tuple) and first:
        first = first[0]
    return first


def _results(call: Call) -> list[torch.Tensor]:
    results = call.result if isinstance(call.result, list | tuple) else [call.result]
    return [each for each in results if isinstance(each, torch.Tensor)]


def _writes_zeros(call: Call) -> bool:
    if not call.inplace:
        return False
    value = call.argument(1, "value")
    return call.name == "zero" or (
        call.name in ("fill", "mul") and type(value) in (int, float) and value == 0
    )


def _takes_scale_out(call: Call) -> bool:
    """Return whether a norm is divided by what may be the scale: a tensor, or a power of two from 64."""
    if call.name not in ("div", "mul") or len(call.args) < 2:
        return False
    by = call.args[1]
    if isinstance(by, torch.Tensor):
        return by.numel() == 1
    if type(by) not in (int, float) or not by:
        return False
    size = max(abs(by), 1 / abs(by))
    return size >= 64 and math.frexp(size)[0] == 0.5
