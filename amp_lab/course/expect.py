"""What a check expects of an answer, and how a surprise becomes a sentence.

Exact dtype and shape come before values: nothing is broadcast or converted to make an answer look right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

_LONGEST = 160  # characters that a value takes in a sentence
_NUMBERS = 6  # how many of a tensor's numbers are shown


class Mistake(Exception):
    """Raised in a check: the answer shows the misconception `diagnosis`; `observed` fills its sentence."""

    def __init__(self, diagnosis: str, **observed: object) -> None:
        super().__init__(diagnosis)
        self.diagnosis = diagnosis
        self.observed = observed


@dataclass(frozen=True)
class Trial:
    """One call of the learner's function: how it was called, what came back, what is right."""

    call: str
    args: tuple[Any, ...]
    got: Any
    want: Any


def recognise(trials: Sequence[Trial], misconceptions: Sequence[tuple[str, Callable[..., Any]]]) -> None:
    """Raise `Mistake` unless every trial is right.

    A misconception is recognised by doing what somebody who has it would do: it is a pair of a diagnosis id and a
    function of the same arguments, and it is the one if it gives exactly what the learner's code gave in every trial.
    If none does, the first wrong trial is shown as it is.
    """
    wrong = [trial for trial in trials if trial.got != trial.want]
    if not wrong:
        return
    shown = {"call": wrong[0].call, "got": describe(wrong[0].got), "want": describe(wrong[0].want)}
    for diagnosis, answer in misconceptions:
        if all(trial.got == answer(*trial.args) for trial in trials):
            raise Mistake(diagnosis, **shown)
    raise Mistake("wrong-value", **shown)


def whole_number(call: str, got: Any, want: int) -> int:
    """Return `got` as an int, or raise `Mistake` if it is anything but a whole number (a bool is none)."""
    if type(got) is int:
        return got
    if isinstance(got, np.integer):
        return int(got)
    advice = "Which step made it something else?"
    if isinstance(got, (float, np.floating)):
        advice = "Division with `/` always makes a float; `//` keeps whole numbers whole."
    elif isinstance(got, torch.Tensor):
        advice = "`.item()` takes the number out of a tensor that holds just one."
    _not_none(call, got, describe(want))
    raise Mistake(
        "wrong-type",
        call=call,
        got=describe(got),
        kind=kind(got),
        want=f"a whole number (`int`), here {want}",
        advice=advice,
    )


def tensor(call: str, got: Any, want: torch.Tensor, *, rtol: float = 0.0, atol: float = 0.0) -> None:
    """Raise `Mistake` unless `got` is a tensor with the dtype, shape, device and values of `want`.

    Floating-point values may differ by `atol + rtol * |want|`, compared in FP64; all others must be equal. NaN is right
    only where `want` is NaN, infinity only where `want` is the same infinity.
    """
    wanted = f"a tensor of dtype `{want.dtype}`"
    _not_none(call, got, wanted)
    if not isinstance(got, torch.Tensor) or got.layout != want.layout:
        advice = "Keep the computation in plain (dense) tensors to the end."
        raise Mistake("wrong-type", call=call, got=describe(got), kind=kind(got), want=wanted, advice=advice)
    for diagnosis, seen, right in (
        ("wrong-device", got.device.type, want.device.type),
        ("wrong-dtype", got.dtype, want.dtype),
        ("wrong-shape", tuple(got.shape), tuple(want.shape)),
    ):
        if seen != right:
            raise Mistake(diagnosis, call=call, got=seen, want=right)
    shown = {"call": call, "got": describe(got), "want": describe(want)}
    got, want = _widened(got), _widened(want)
    if not torch.isfinite(got).all() and torch.isfinite(want).all():
        raise Mistake("not-finite", **shown)
    near = (
        torch.allclose(got, want, rtol, atol, equal_nan=True)
        if got.is_floating_point()
        else torch.equal(got, want)
    )
    if not near:
        raise Mistake("wrong-value", **shown)


def describe(value: Any) -> str:
    """Return a value in a few words for a sentence; never fails, whatever the learner's object does."""
    try:
        if isinstance(value, torch.Tensor):
            return _describe_tensor(value.detach())
        text = repr(value) if not isinstance(value, torch.Size) else repr(tuple(value))
    except Exception:
        return f"an object whose `repr` fails ({kind(value)})"
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def kind(value: Any) -> str:
    """Return the type of a value with its article: `a tensor`, `an int`, `NoneType`."""
    if isinstance(value, torch.Tensor):
        return "a tensor" if value.layout is torch.strided else "a sparse tensor"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} `{name}`"


def _describe_tensor(value: torch.Tensor) -> str:
    shape = f"shape {tuple(value.shape)}"
    if value.layout is not torch.strided or value.is_meta or value.numel() == 0:
        return f"{kind(value)} of {shape}, {value.dtype}"
    numbers = value.flatten()[:_NUMBERS].tolist()
    if value.numel() <= _NUMBERS and value.dim() <= 1:
        inside = ", ".join(map(_short, numbers))
        return f"tensor({f'[{inside}]' if value.dim() else inside}, dtype={value.dtype})"
    dots = ", …" if value.numel() > _NUMBERS else ""
    return f"a tensor of {shape}, {value.dtype}, with the values {', '.join(map(_short, numbers))}{dots}"


def _short(number: Any) -> str:
    return f"{number:.6g}" if isinstance(number, float) else str(number)


def _widened(value: torch.Tensor) -> torch.Tensor:
    plain = value.detach().as_subclass(torch.Tensor)
    return plain.double() if plain.is_floating_point() else plain


def _not_none(call: str, got: Any, want: str) -> None:
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want=want)
