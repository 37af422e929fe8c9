"""Every operation against exact arithmetic with fractions, for the formats that are here and for any other."""

import bisect
import itertools
import math
import struct
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amp_lab import formats
from amp_lab.formats import Format
from tests.formats.alike import assert_alike
from tests.formats.exact import PLANS, Plan

SMALL = [
    Plan(2, 1),
    Plan(3, 2),
    Plan(2, 3, False),
    Plan(3, 1, False, True),
    Plan(4, 3, True, True),
    Plan(4, 2, False),
]
NAMED = [(getattr(formats, name), plan) for name, plan in PLANS.items()]
named = pytest.mark.parametrize(("format", "plan"), NAMED, ids=list(PLANS))
small = pytest.mark.parametrize("plan", SMALL, ids=str)
quick = settings(deadline=None, max_examples=150, derandomize=True)


def made(plan):
    return Format("made", plan.exponent_bits, plan.fraction_bits, None, plan.has_infinity, plan.saturates)


def fp64(values):
    return torch.tensor(values, dtype=torch.float64)


@st.composite
def plans(draw):
    has_infinity = draw(st.booleans())
    exponent_bits = draw(st.integers(2, 11 if has_infinity else 10))
    return Plan(exponent_bits, draw(st.integers(1, 52)), has_infinity, draw(st.booleans()))


@st.composite
def plans_and_values(draw):
    """A format and a number that is interesting in it: anywhere, close to a number of it, or half-way between two."""
    plan = draw(plans())
    near = st.integers(0, 2 ** (plan.exponent_bits + plan.fraction_bits) - 1).map(plan.number)
    half = near.filter(math.isfinite).map(lambda number: number + float(plan.spacing(number) / 2))
    nudged = st.tuples(half, st.sampled_from([-math.inf, 0.0, math.inf])).map(
        lambda both: math.nextafter(*both)
    )
    value = draw(st.floats(width=64) | near | half | nudged | near.map(lambda number: -number))
    return plan, value


@named
def test_the_plan_is_the_one_of_the_format(format, plan):
    assert (format.exponent_bits, format.fraction_bits) == plan[:2]
    assert format.limits.max == plan.largest


@quick
@given(plans_and_values())
@example((Plan(11, 52), -5e-324))
@example((Plan(10, 52, False), 2.0**512))
@example((Plan(2, 1), 3.5))
def test_round_in_any_format(case):
    plan, value = case
    assert_alike(made(plan).round(value), fp64(plan.rounded(value)))


@quick
@given(plans(), st.data())
def test_decode_and_fields_in_any_format(plan, data):
    pattern = data.draw(st.integers(0, 2 ** (1 + sum(plan[:2])) - 1))
    format = made(plan)
    assert_alike(format.decode(pattern), fp64(plan.number(pattern)))
    sign, exponent, fraction = (field.item() for field in format.fields(pattern))
    assert pattern == (sign << sum(plan[:2])) + (exponent << plan.fraction_bits) + fraction
    assert 0 <= sign <= 1
    assert 0 <= exponent < 2**plan.exponent_bits
    assert 0 <= fraction < 2**plan.fraction_bits
    assert format.bit_string(pattern).replace(" ", "") == f"{pattern:0{format.bits}b}"
    assert [len(field) for field in format.bit_string(pattern).split()] == [1, *plan[:2]]


@quick
@given(plans(), st.data())
def test_encode_gives_back_the_pattern(plan, data):
    pattern = data.draw(st.integers(0, 2 ** (1 + sum(plan[:2])) - 1))
    number = plan.number(pattern)
    # Where it saturates, nothing becomes infinity.
    if math.isfinite(number) or (math.isinf(number) and not plan.saturates):
        got = made(plan).encode(number).item()
        assert got % 2 ** (1 + sum(plan[:2])) == pattern


@quick
@given(plans_and_values())
@example((Plan(5, 10), 65504.0))
@example((Plan(5, 10), 65519.0))
@example((Plan(4, 3, False), 448.0))
@example((Plan(11, 52), 5e-324))
def test_ulp_in_any_format(case):
    plan, value = case
    if math.isfinite(value) and abs(value) <= plan.largest:
        want = float(plan.spacing(value))
    else:
        want = math.nan if math.isnan(value) else math.inf
    assert_alike(made(plan).ulp(value), fp64(want))


@quick
@given(plans_and_values())
def test_neighbours_in_any_format(case):
    plan, value = case
    below, above = (got.item() for got in made(plan).neighbours(value))
    for got, side, sign in ((below, "below", -1), (above, "above", 1)):
        if math.isnan(value):
            assert math.isnan(got), side
            continue
        # Mirror it, so that the neighbour looked for is always the one above.
        want = _next_up(plan, sign * value)
        assert_alike(fp64(sign * got), fp64(want))


def _next_up(plan, value):
    """The smallest number of a format above `value`, NaN if there is none."""
    if value < -plan.largest:
        return -float(plan.largest)
    if value >= plan.largest:
        return math.inf if plan.has_infinity and value < math.inf else math.nan
    # Towards zero the numbers lie half as far apart at a power of two: there the spacing is that of what is closer.
    spacing = plan.spacing(math.nextafter(value, 0.0) if value < 0 else value)
    steps = math.floor(Fraction(value) / spacing) + 1
    return float(steps * spacing) if steps or value >= 0 else -0.0


@small
def test_a_small_format_number_by_number(plan):
    format, every = made(plan), plan.numbers()
    points = [
        *every,
        *(math.nextafter(number, end) for number in every for end in (-9e9, 9e9)),
        1e300,
        -1e300,
    ]
    points += [(a + b) / 2 for a, b in itertools.pairwise(every) if math.isfinite(a + b)]
    lower = [every[: bisect.bisect_left(every, value)][-1:] or [math.nan] for value in points]
    higher = [every[bisect.bisect_right(every, value) :][:1] or [math.nan] for value in points]
    below, above = format.neighbours(points)
    assert_alike(below + 0.0, fp64(lower)[:, 0] + 0.0)  # -0.0 + 0.0 is 0.0
    assert_alike(above + 0.0, fp64(higher)[:, 0] + 0.0)
    assert_alike(format.round(points), fp64([plan.rounded(value) for value in points]))


def test_fp64_against_the_standard_library():
    values = [0.0, -0.0, 1.0, -1.0, 0.1, 1e308, 5e-324, -2.5e-310, 2.0**-1022, sys.float_info.max]
    values += torch.randn(500, generator=torch.Generator().manual_seed(2), dtype=torch.float64).exp().tolist()
    values += [math.inf, -math.inf]
    bits = struct.unpack(f"{len(values)}q", struct.pack(f"{len(values)}d", *values))
    assert formats.FP64.encode(values).tolist() == list(bits)
    assert_alike(formats.FP64.decode(bits), fp64(values))
    assert_alike(formats.FP64.ulp(values), fp64([math.ulp(value) for value in values]))
    below, above = formats.FP64.neighbours(values)
    down, up = ([math.nextafter(value, end) for value in values] for end in (-math.inf, math.inf))
    down[-1] = up[-2] = math.nan  # where `nextafter` stays
    assert_alike(below, fp64(down))
    assert_alike(above, fp64(up))


def test_fp16_against_the_standard_library():
    values = torch.randn(2000, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 1000
    values = torch.cat([values, values * 1e-9])
    bits = struct.unpack(f"{len(values)}H", struct.pack(f"{len(values)}e", *values.tolist()))
    assert formats.FP16.encode(values).tolist() == list(bits)


@pytest.mark.parametrize(
    ("format", "dtype"), [(formats.FP16, np.float16), (formats.FP32, np.float32)], ids=str
)
def test_spacing_and_neighbours_against_numpy(format, dtype):
    if format is formats.FP16:
        values = np.arange(2**16, dtype=np.uint16).view(dtype)
    else:
        values = np.random.default_rng(3).integers(0, 2**32, 50_000, dtype=np.uint32).view(dtype)
    values = values[np.isfinite(values)]
    below, above = format.neighbours(values)
    with np.errstate(over="ignore"):
        spacing = np.spacing(np.abs(values)).astype(np.float64)
        down, up = (np.nextafter(values, dtype(end)).astype(np.float64) for end in (-np.inf, np.inf))
    largest = np.abs(values) == np.finfo(dtype).max  # from where NumPy's spacing reaches to infinity
    assert_alike(format.ulp(values[~largest]), torch.from_numpy(spacing[~largest]))
    assert_alike(below, torch.from_numpy(down))
    assert_alike(above, torch.from_numpy(up))
