"""Several tensors as one value: the gradients of some parameters, or how far their weights moved.

Scaled or not, added in this order or in that: right answers differ in their last digits. So they are compared up to a
share of each number, `rtol`, and so is what somebody with a misconception would get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.describe import exact
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained

Tensors = Mapping[str, torch.Tensor | None]
Story = TypeVar("Story")
# What our own and PyTorch's code raises; the class of any other error may be the learner's, and so its message.
_KNOWN_ERRORS = (AttributeError, TypeError, RuntimeError, ValueError, ZeroDivisionError)


class Seen(NamedTuple):
    """What one call left behind, and what it should have: by name, where None counts as zeros."""

    call: str
    story: Any
    got: Tensors
    want: Tensors


def gradients(call: str, parameters: Mapping[str, torch.Tensor]) -> Tensors:
    """Return copies of the gradients; raise `Mistake` for one that is not like its parameter."""
    return {
        name: None
        if each.grad is None
        else expect.tensor_like(f"{call}: the `.grad` of `{name}`", each.grad, each).clone()
        for name, each in parameters.items()
    }


def near(got: Tensors, want: Tensors, rtol: float) -> bool:
    """Tell whether all numbers agree up to the share `rtol` of each; NaN agrees with NaN."""
    return all(_near(got[name], want[name], rtol) for name in want)


def first_far(seen: Seen, rtol: float) -> dict[str, str]:
    """Return what a sentence shows of the first number that is wrong: `call`, `place`, `got` and `want`."""
    name = next(name for name in seen.want if not _near(seen.got[name], seen.want[name], rtol))
    got, want = seen.got[name], seen.want[name]
    if got is None or want is None:
        present = got if want is None else want
        assert present is not None
        got, want = (torch.zeros_like(present) if each is None else each for each in (got, want))
    far = ~torch.isclose(got.double(), want.double(), rtol, 0.0, equal_nan=True)
    index = tuple(far.nonzero()[0].tolist())
    shown = "None" if seen.got[name] is None else _digits(got[index])
    return {"call": seen.call, "place": _place(name, index), "got": shown, "want": _digits(want[index])}


def recognise(
    trials: Sequence[Seen],
    misconceptions: Sequence[tuple[str, Callable[[Any], Tensors]]],
    rtol: float,
    *,
    otherwise: Callable[[Sequence[Seen]], None] = lambda trials: None,
    unknown: str,
) -> None:
    """Raise `Mistake` unless every trial is right.

    A misconception is a pair of a diagnosis id and a function that plays a story as somebody who has it would. It is
    the one if it gives what was seen in every trial. If none does, `otherwise` may raise; at last `unknown` is raised.
    """
    wrong = [each for each in trials if not near(each.got, each.want, rtol)]
    if not wrong:
        return
    shown = first_far(wrong[0], rtol)
    for diagnosis, play in misconceptions:
        if all(near(each.got, play(each.story), rtol) for each in trials):
            raise Mistake(diagnosis, **shown)
    otherwise(trials)
    raise Mistake(unknown, **shown)


def known_error(contained: Contained) -> str | None:
    """Return an error in a few words if it is one of Python's or PyTorch's own, such as a call on `None` raises."""
    error = contained.error
    if contained.fault != "exception" or type(error) not in _KNOWN_ERRORS:
        return None
    first_line = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if len(first_line) < 90 else f"{type(error).__name__}"


def _near(got: torch.Tensor | None, want: torch.Tensor | None, rtol: float) -> bool:
    if got is None or want is None:
        return all(each is None or not each.any() for each in (got, want))
    return bool(torch.isclose(got.double(), want.double(), rtol, 0.0, equal_nan=True).all())


def _place(name: str, index: tuple[int, ...]) -> str:
    return f"`{name}[{', '.join(map(str, index))}]`" if index else f"`{name}`"


def _digits(number: torch.Tensor) -> str:
    """Return a number with six digits: gradients that went through a division have no simpler form."""
    short = f"{number.item():.6g}"
    return short if "." in short or "e" in short else exact(number)
