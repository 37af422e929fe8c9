"""Roots and logarithms of exactly zero: finite or not, their derivative is infinite, and times 0 it is NaN."""

from __future__ import annotations

from typing import Final

import torch

from amp_lab.watching.recording.looks.calls import Call, is_plain
from amp_lab.watching.recording.looks.judge import Judge
from amp_lab.watching.recording.looks.noting import any_of

_INFINITE_AT_ZERO: Final = frozenset("sqrt log log2 log10 rsqrt".split())


class Poles(Judge):
    """Notes "pole": something that needs a gradient was zero where the derivative is infinite. In every dtype."""

    def after(self, call: Call) -> None:
        if call.backward or call.origin != "user" or not isinstance(call.result, torch.Tensor):
            return
        given = call.args[0] if call.args else call.kwargs.get("input")
        if (
            not isinstance(given, torch.Tensor)
            or not call.result.requires_grad
            or not given.is_floating_point()
        ):
            return
        if call.name in _INFINITE_AT_ZERO or (call.name == "pow" and _is_root(call.argument(1, "exponent"))):
            self._note(call, given)
        elif call.name == "std":
            self._note(call, call.result)  # of numbers that are all equal: 0 / 0 in the backward pass

    def _note(self, call: Call, where_zero: torch.Tensor) -> None:
        if call.inplace or not is_plain(where_zero) or where_zero.numel() == 0:
            return
        with torch.no_grad():
            zero = any_of(where_zero.detach() == 0)
        if not zero.known or zero.value:
            self.notes.add("pole", call.line, {"call": call.name}, zero=zero)


def _is_root(exponent: object) -> bool:
    return isinstance(exponent, float) and 0 < exponent < 1
