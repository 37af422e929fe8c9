"""Plain numbers in the code that FP16 cannot hold: an eps that is 0, a mask that is -inf."""

from __future__ import annotations

import math
from typing import Final

import torch

from amp_lab.watching.recording.looks.calls import Call, is_plain
from amp_lab.watching.recording.looks.judge import Judge
from amp_lab.watching.recording.looks.noting import any_of, late, may_be, peak

_ZERO_UP_TO: Final = 2.0**-25  # half of FP16's smallest number, and the tie goes to 0
INFINITE_FROM: Final = 65520.0
_KEEP_FROM_ZERO: Final = frozenset("add sub clamp clamp_min".split())
_WITH_EPS_INSIDE: Final = {"normalize": 1e-12, "cosine_similarity": 1e-8, "pairwise_distance": 1e-6}
MASKS: Final = frozenset("add sub mul where masked_fill".split())


class PlainNumbers(Judge):
    """Notes "eps" and "mask". PyTorch computes with a plain number in FP32: it is the result that loses it."""

    def after(self, call: Call) -> None:
        if call.backward or call.dtype != torch.float16 or call.origin != "user" or not is_plain(call.result):
            return
        if call.name in _KEEP_FROM_ZERO:
            self._eps(call, _number(call))
        elif call.name in _WITH_EPS_INSIDE:
            self._function_with_eps(call)
        if call.name in MASKS:
            self._mask(call, raised=False)

    def raised(self, call: Call) -> None:
        scores = call.args[0] if call.name == "masked_fill" and call.args else None
        if isinstance(scores, torch.Tensor) and scores.dtype == torch.float16:
            self._mask(call, raised=True)

    def _eps(self, call: Call, eps: float | None) -> None:
        if eps is None or not 0 < abs(eps) <= _ZERO_UP_TO:
            return
        with torch.no_grad():
            self.notes.add(
                "eps",
                (call.line, eps),
                {"eps": eps, "call": call.name},
                zero=any_of(call.result.detach() == 0),
            )

    def _function_with_eps(self, call: Call) -> None:
        given = call.kwargs.get("eps", call.args[3] if len(call.args) > 3 else _WITH_EPS_INSIDE[call.name])
        if not isinstance(given, float) or not given <= _ZERO_UP_TO:
            return
        sizes = [peak(each) for each in call.tensors() if is_plain(each)]
        came_out = peak(call.result)
        if came_out is not None and may_be(late(came_out), math.isnan):
            self.notes.add(
                "eps inside",
                (call.line, call.name),
                {"eps": given, "call": call.name},
                came_out=late(came_out),
                went_in=tuple(late(each) for each in sizes if each is not None),
            )

    def _mask(self, call: Call, *, raised: bool) -> None:
        number = _number(call)
        if number is None or not INFINITE_FROM <= abs(number) < float("inf"):
            return
        if call.name == "mul" and number > 0:
            return  # it may multiply small numbers
        becomes = "-inf" if (number < 0) != (call.name == "sub") else "inf"
        self.notes.add(
            "mask",
            (call.line, number),
            {"number": number, "becomes": becomes, "call": call.name, "raised": raised},
        )


def _number(call: Call) -> float | None:
    """Return the plain number that a call computes with."""
    candidates = call.args[1:] if call.name != "where" else call.args[1:3]
    if call.name in ("add", "sub") and call.args and type(call.args[0]) in (int, float):
        candidates = call.args[:1]
    names = ("other", "value", "min", "self", "input")
    for each in (*candidates, *(call.kwargs.get(name) for name in names)):
        if type(each) in (int, float):
            return float(each)
    return None
