"""Which loss scale suits the gradients of a step, and why."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from amp_lab.formats import Format
from amp_lab.watching.wording import scale_in_words, share_in_words, size_in_words

if TYPE_CHECKING:
    from amp_lab.watching.gradients import GradientReport

# torch.amp.GradScaler starts here.
_USUAL: Final = 16
# With 2^127 a loss of 2 is infinite in FP32. Under 2^-24 a loss of 1 is zero in FP16.
_LOWEST, _HIGHEST = -24, 126
_EXPONENT_BITS_OF_FP32: Final = 8


class Recommendation(NamedTuple):
    """A loss scale, None where none can be said, and the reason in words."""

    scale: float | None
    reason: str


def recommend(report: GradientReport, format: Format, headroom: float) -> Recommendation:
    """See `GradientReport.recommend`."""
    room = _checked(headroom)
    total = report.total
    if total.infinite or total.nan:
        return Recommendation(
            None,
            f"{total.infinite + total.nan:,} of {total.entries:,} gradients are infinite or NaN as they are, which no "
            "scale mends. Find out where that begins, and look at the gradients of a step without it.",
        )
    if not total.nonzero:
        return Recommendation(
            math.ldexp(1, _USUAL),
            "all gradients are exactly zero, so that any scale would do; this is where torch.amp.GradScaler starts. "
            "If they come from a backward pass in 16 bits, they may have been lost there: look at one in FP32.",
        )
    # headroom × largest × 2^power <= max, in whole numbers and fractions: floats would round at the edge.
    fits = _floor_log2(Fraction(format.limits.max) / (room * Fraction(total.largest)))
    if format.exponent_bits >= _EXPONENT_BITS_OF_FP32 and fits >= 0:
        return Recommendation(1.0, f"{format} reaches as far as FP32. {_what_is_lost(report, 0)}")
    power = max(_LOWEST, min(fits, _HIGHEST))
    return Recommendation(math.ldexp(1, power), " ".join(_reasons(report, format, headroom, fits, power)))


def _checked(headroom: float) -> Fraction:
    if isinstance(headroom, bool) or not isinstance(headroom, int | float):
        raise TypeError(f"headroom={headroom!r}: headroom is a factor, such as 4.0")
    if not 1 <= headroom < math.inf:
        raise ValueError(
            f"headroom={headroom!r}: headroom is the factor by which gradients may grow, 1 or more, such as 4.0"
        )
    return Fraction(headroom)


def _floor_log2(value: Fraction) -> int:
    power = value.numerator.bit_length() - value.denominator.bit_length()
    return power if Fraction(2) ** power <= value else power - 1


def _reasons(report: GradientReport, format: Format, headroom: float, fits: int, power: int) -> list[str]:
    largest = report.total.largest
    scaled = size_in_words(math.ldexp(largest, power))
    reasons = [
        f"it takes the largest gradient, {size_in_words(largest)}, to {scaled}: {headroom:g} times that is still "
        f"below {format}'s largest number, {size_in_words(format.limits.max)}."
    ]
    if fits > power:
        reasons.append(
            "A larger scale would fit, too, but not in FP32, in which the loss is multiplied by it."
        )
    if fits < power:
        reasons = [
            f"the largest gradient, {size_in_words(largest)}, would need a smaller scale still, and under "
            f"{scale_in_words(math.ldexp(1, _LOWEST))} the loss itself is lost."
        ]
    return [*reasons, _what_is_lost(report, power), *_if_not_all_fit(report, power)]


def _what_is_lost(report: GradientReport, power: int) -> str:
    """Say what becomes zero and too large at 2^power, and without a scale."""
    here, unscaled = report.at(math.ldexp(1, power)), report.at(1.0)
    too_large = f", {share_in_words(here.overflow, here.nonzero)} overflow" if here.overflow else ""
    lost = share_in_words(here.zero, here.nonzero) if here.zero else "none"
    before = f" ({share_in_words(unscaled.zero, unscaled.nonzero)} without a scale)" if power else ""
    return f"Of the nonzero gradients {lost} become{'s' if not here.zero else ''} zero with it{before}{too_large}."


def _if_not_all_fit(report: GradientReport, power: int) -> list[str]:
    """Say what it would take to keep every gradient from becoming zero, if this scale does not."""
    if not report.at(math.ldexp(1, power)).zero:
        return []
    saving = next((k for k in range(power + 1, 128) if not report.at(math.ldexp(1, k)).zero), None)
    if saving is None:
        return ["No scale saves them all."]
    overflow = report.at(math.ldexp(1, saving)).overflow
    scale = scale_in_words(math.ldexp(1, saving))
    if overflow:
        share = share_in_words(overflow, report.total.nonzero)
        return [f"No scale fits both ends: {scale} would save the smallest, and {share} would overflow."]
    return [f"{scale} would save all of this step, with less room for larger ones to come."]
