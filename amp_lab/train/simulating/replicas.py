"""The numbers of one rank: weights and gradients, one of each for a bucket, and its own GradScaler."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence

from amp_lab.scaling.rule import ScaleRule, ScaleState, next_scale, to_fp32
from amp_lab.train.simulating.programs import ProgramError


class Replica:
    """One rank's copy of the model, its optimizer (plain SGD, learning rate 1) and its scaler.

    Args:
        buckets: how many there are.
        state: where the scaler begins; None: there is no scaler, as with BF16.
        rule: how its scale adapts.
    """

    def __init__(self, buckets: int, state: ScaleState | None, rule: ScaleRule) -> None:
        self.weights = [0.0] * buckets
        self.gradients: list[float | None] = [None] * buckets
        self.state, self.rule = state, rule
        self.found_inf: bool | None = None  # None: not looked at since the last update
        self.stepped = False

    @property
    def scale(self) -> float:
        """The loss scale; 1 without a scaler."""
        return 1.0 if self.state is None else self.state.scale

    def backward(self, gradients: float | Sequence[float]) -> None:
        """Add a micro-batch's gradients. With a scaler they have come through FP16, scaled: so they can overflow."""
        new = list(gradients) if isinstance(gradients, Sequence) else [gradients] * len(self.weights)
        if len(new) != len(self.weights):
            raise ProgramError(
                f"Backward has {len(new)} gradients for {len(self.weights)} buckets: give one number for each, or one"
            )
        scaled = [to_fp32(each) if self.state is None else _to_fp16(each * self.scale) for each in new]
        self.gradients = [
            to_fp32((old or 0.0) + each) for old, each in zip(self.gradients, scaled, strict=True)
        ]

    def unscale(self) -> bool:
        """Divide the gradients by the scale; return whether one of them is not finite."""
        if self.stepped:
            raise ProgramError("Unscale comes after Step: do it before, or leave it to Step")
        if self.found_inf is not None:
            raise ProgramError("Unscale comes twice: PyTorch refuses the second before Update, too")
        present = self._present("Unscale")
        if self.state is None:
            return False
        inverse = to_fp32(1 / self.scale) if self.scale else math.inf
        self.gradients = [to_fp32(each * inverse) for each in present]
        self.found_inf = not all(map(math.isfinite, present))
        return self.found_inf

    def clip(self, max_norm: float) -> float:
        """Make the gradients' norm at most `max_norm`, as `clip_grad_norm_` does; return the norm before."""
        present = self._present("Clip")
        norm = math.sqrt(sum(each * each for each in present))  # math.hypot hides a NaN beside an infinity
        part = max_norm / (norm + 1e-6)
        if not part >= 1:  # NaN, too
            self.gradients = [to_fp32(each * part) for each in present]
        return norm

    def step(self) -> bool:
        """Move the weights, unless the scaler found an infinity; return whether they moved."""
        if self.stepped:
            raise ProgramError("Step comes twice: call Update after each Step")
        present = self._present("Step")
        if self.state is not None and self.found_inf is None:
            self.unscale()
            present = self._present("Step")
        self.stepped = self.state is not None
        moved = not self.found_inf
        if moved:
            pairs = zip(self.weights, present, strict=True)
            self.weights = [to_fp32(weight - gradient) for weight, gradient in pairs]
        self.drop()
        return moved

    def drop(self) -> None:
        """Throw the gradients away, as `zero_grad` does."""
        self.gradients = [None] * len(self.weights)

    def update(self) -> float:
        """Adapt the scale by GradScaler's rule; return it."""
        if self.state is None:
            return self.scale
        if self.found_inf is None:
            raise ProgramError("Update comes before Step: the scaler has not looked at any gradient yet")
        self.state = next_scale(self.state, self.found_inf, self.rule)
        self.found_inf, self.stepped = None, False
        return self.scale

    def _present(self, token: str) -> list[float]:
        present = [each for each in self.gradients if each is not None]
        if len(present) != len(self.weights):
            raise ProgramError(f"{token} comes before Backward: there are no gradients yet")
        return present


def _to_fp16(number: float) -> float:
    try:
        (rounded,) = struct.unpack("e", struct.pack("e", number))
    except OverflowError:
        return math.copysign(math.inf, number)
    return float(rounded)


def not_finite(gradients: Iterable[float | None]) -> str:
    """Return the sign of what is not finite among gradients: "NaN", "∞", or "" if all are."""
    present = [each for each in gradients if each is not None]
    if any(map(math.isnan, present)):
        return "NaN"
    return "∞" if any(map(math.isinf, present)) else ""
