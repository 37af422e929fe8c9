"""Which loss scale suits the gradients of a step, and why."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Final, NamedTuple

from amp_lab.formats import Format
from amp_lab.watching.counting.factors import headroom_of
from amp_lab.watching.counting.wording import scale_in_words, share_in_words, size_in_words

if TYPE_CHECKING:
    from amp_lab.watching.gradients import GradientReport

# torch.amp.GradScaler starts here.
_USUAL: Final = 16
# With 2^127 a loss of 2 is infinite in FP32. Under 2^-24 a loss of 1 is zero in FP16.
_LOWEST, _HIGHEST = -24, 126
_EXPONENT_BITS_OF_FP32: Final = 8


class Recommendation(NamedTuple):
    """A loss scale, None where none helps, and the reason: a text that goes on after "because" or a colon."""

    scale: float | None
    reason: str


def recommend(report: GradientReport, format: Format, headroom: float) -> Recommendation:
    """See `GradientReport.recommend`."""
    room = headroom_of(headroom)
    total = report.total
    if total.infinite or total.nan:
        return Recommendation(
            None,
            f"{total.infinite + total.nan:,} of {total.entries:,} gradients are infinite or NaN as they are, which no "
            "scale mends. Find out where that begins, and look at the gradients of a step without it.",
        )
    if not total.nonzero:
        return Recommendation(math.ldexp(1, _USUAL), _nothing_to_scale(total.entries))
    fits = _largest_that_fits(Fraction(format.limits.max), room, Fraction(total.largest))
    highest = min(fits, _HIGHEST)
    if fits < _LOWEST:
        return Recommendation(None, _nothing_fits(report, room))
    if report.at(math.ldexp(1, highest)).zero == total.nonzero:
        return Recommendation(None, _nothing_is_saved(report, room, highest))
    if format.exponent_bits >= _EXPONENT_BITS_OF_FP32 and fits >= 0:
        power = _smallest_as_good_as(report, highest)
        reasons = [_of_a_wide_format(report, power)]
    else:
        power = highest
        reasons = [_of_the_largest(report, format.limits.max, room, power), *_if_more_would_fit(fits)]
    reasons += [_what_is_lost(report, power), *_if_not_all_are_saved(report, highest)]
    return Recommendation(math.ldexp(1, power), " ".join(reasons))


def _largest_that_fits(limit: Fraction, room: Fraction, largest: Fraction) -> int:
    """Return the largest k with room × largest × 2^k <= limit, in whole numbers: floats would round at the edge."""
    if not largest:  # as Python reads a number under 2^-1022 where subnormal numbers are flushed
        return _HIGHEST
    ratio = limit / (room * largest)
    power = ratio.numerator.bit_length() - ratio.denominator.bit_length()
    return power if Fraction(2) ** power <= ratio else power - 1


def _smallest_as_good_as(report: GradientReport, highest: int) -> int:
    """Return the smallest power, 0 or more, with which no more gradients become zero than with the highest."""
    lost = report.at(math.ldexp(1, highest)).zero
    return next(power for power in range(highest + 1) if report.at(math.ldexp(1, power)).zero == lost)


def _nothing_to_scale(entries: int) -> str:
    if not entries:
        return (
            "there are no gradients, only empty tensors, so that any scale would do; this is where "
            "torch.amp.GradScaler starts."
        )
    return (
        "all gradients are exactly zero, so that any scale would do; this is where torch.amp.GradScaler starts. "
        "If they come from a backward pass in 16 bits, they may have been lost there: look at one in FP32."
    )


def _nothing_fits(report: GradientReport, room: Fraction) -> str:
    times = "" if room == 1 else f"{float(room):g} times "
    return (
        f"{times}the largest gradient, {size_in_words(report.total.largest)}, would fit into {report.format_name} "
        f"only at a scale under {scale_in_words(math.ldexp(1, _LOWEST))}, with which a loss of 1 is zero in FP16."
    )


def _nothing_is_saved(report: GradientReport, room: Fraction, highest: int) -> str:
    scale = scale_in_words(math.ldexp(1, highest))
    if highest < _HIGHEST:
        return (
            f"with a headroom of {float(room):g} no scale above {scale} fits, and with that {report.format_name} makes "
            "every gradient zero. Ask for less headroom."
        )
    return f"{report.format_name} makes every gradient zero even at {scale}. {_too_large_for_fp32()}"


def _of_the_largest(report: GradientReport, limit: float, room: Fraction, power: int) -> str:
    largest = report.total.largest
    scaled = size_in_words(math.ldexp(largest, power))
    that = "that" if room == 1 else f"{float(room):g} times that"
    return (
        f"the largest gradient, {size_in_words(largest)}, times this scale is about {scaled}, and {that} is at most "
        f"{report.format_name}'s largest number, {size_in_words(limit)}."
    )


def _if_more_would_fit(fits: int) -> list[str]:
    return [f"A larger one would fit, too. {_too_large_for_fp32()}"] if fits > _HIGHEST else []


def _too_large_for_fp32() -> str:
    return f"But with 2^{_HIGHEST + 1} a loss of 2 is infinite in FP32."


def _of_a_wide_format(report: GradientReport, power: int) -> str:
    name = report.format_name
    if not power:
        return f"{name} reaches as far up as FP32."
    return (
        f"{name} reaches as far up as FP32, but down only to {size_in_words(report.window.smallest)}: this is the "
        "smallest scale that saves what a scale can save."
    )


def _what_is_lost(report: GradientReport, power: int) -> str:
    """Say what becomes zero at 2^power, and what without a scale, if anything does."""
    here, unscaled = report.at(math.ldexp(1, power)), report.at(1.0)
    where = "At this scale" if power else "Without a scale"
    lost = f"{share_in_words(here.zero, here.nonzero)} of the nonzero gradients become"
    lost = lost if here.zero else "none of the nonzero gradients becomes"
    compare = power and (here.zero or unscaled.zero)
    before = f" (without one, {share_in_words(unscaled.zero, unscaled.nonzero)})" if compare else ""
    return f"{where} {lost} zero{before}."


def _if_not_all_are_saved(report: GradientReport, highest: int) -> list[str]:
    """Say what it would take to keep every gradient from becoming zero, if no scale that fits does."""
    if not report.at(math.ldexp(1, highest)).zero:
        return []
    larger = range(highest + 1, _HIGHEST + 1)
    saving = next((power for power in larger if not report.at(math.ldexp(1, power)).zero), None)
    if saving is None:
        return [f"No scale up to 2^{_HIGHEST} saves them all."]
    overflow = report.at(math.ldexp(1, saving)).overflow
    scale = scale_in_words(math.ldexp(1, saving))
    if overflow:
        share = share_in_words(overflow, report.total.nonzero)
        return [f"No scale fits both ends: {scale} would save the smallest, and {share} would overflow."]
    return [f"{scale} would save all of this step, with less room for larger ones to come."]
