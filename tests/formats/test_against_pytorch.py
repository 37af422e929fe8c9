"""Every pattern of the narrow formats, and many numbers of the others, against the dtypes of PyTorch itself."""

import pytest
import torch

from amp_lab import formats
from tests.formats.alike import assert_alike

# What holds the bits of a dtype.
HOLDERS = {8: torch.uint8, 16: torch.int16, 32: torch.int32, 64: torch.int64}
NARROW = [formats.FP16, formats.BF16, formats.FP8_E4M3, formats.FP8_E4M3_OCP, formats.FP8_E5M2]
WITH_DTYPE = [format for format in formats.ALL if format.dtype is not None]
E4M3 = torch.float8_e4m3fn


def patterns(format):
    return torch.arange(2**format.bits)


def pytorch_decode(patterns, format):
    return patterns.to(HOLDERS[format.bits]).view(format.dtype or E4M3).double()


def pytorch_round(values, format):
    """Cast by PyTorch, from FP32 (so it rounds once), and back to FP64."""
    assert values.dtype == torch.float32
    rounded = values.to(format.dtype or E4M3).double()
    if format.has_infinity:
        return rounded
    # What is too large for E4M3 became NaN in PyTorch 2.9 and saturates in 2.13: not taken from a cast.
    end = torch.tensor(448.0 if format.saturates else torch.nan, dtype=torch.float64)
    return torch.where(values.abs() > 464, end.copysign(values), rounded)


def from_zero_up(format):
    """All numbers of a narrow format from zero up, FP64, and the one that would come next if the format went on."""
    some = pytorch_decode(patterns(format)[: 2 ** (format.bits - 1)], format)
    some = some[some.isfinite()]
    return torch.cat([some, 2 * some[-1:] - some[-2:-1]])


@pytest.mark.parametrize("format", NARROW, ids=str)
def test_decode_of_every_pattern(format):
    assert_alike(format.decode(patterns(format)), pytorch_decode(patterns(format), format))


@pytest.mark.parametrize("format", NARROW, ids=str)
def test_encode_of_every_number(format):
    every = patterns(format)
    every = every[~pytorch_decode(every, format).isnan()]
    assert torch.equal(format.encode(pytorch_decode(every, format)), every)


@pytest.mark.parametrize("format", NARROW, ids=str)
def test_around_every_halfway_point(format):
    some = from_zero_up(format)
    halves = (some[:-1] / 2 + some[1:] / 2).float()
    assert torch.equal(halves.double(), some[:-1] / 2 + some[1:] / 2), "FP32 does not hold them"
    towards = torch.tensor([0.0, torch.inf])
    for values in (halves, halves.nextafter(towards[0]), halves.nextafter(towards[1])):
        assert_alike(format.round(values), pytorch_round(values, format))
        assert_alike(format.round(-values), pytorch_round(-values, format))


@pytest.mark.parametrize("format", NARROW, ids=str)
def test_around_every_halfway_point_of_fp64(format):
    """No FP32 on the way: the smallest nudge of FP64 decides. Right by construction, not by a cast."""
    some = from_zero_up(format)
    halves = some[:-1] / 2 + some[1:] / 2
    upper = torch.arange(1, len(some))
    upper[-1] = format.encode(torch.inf)
    lower = torch.arange(len(some) - 1)
    even = torch.where(lower % 2 == 0, lower, upper)
    for sign, bit in ((1, 0), (-1, 2 ** (format.bits - 1))):
        # NaN, where E4M3 does not saturate, has no sign.
        higher = torch.where(format.decode(upper).isnan(), upper, upper | bit)
        tie = torch.where(even == upper, higher, lower | bit)
        assert torch.equal(format.encode(sign * halves), tie)
        assert torch.equal(format.encode(sign * halves.nextafter(torch.tensor(torch.inf).double())), higher)
        assert torch.equal(format.encode(sign * halves.nextafter(torch.tensor(0.0).double())), lower | bit)


@pytest.mark.parametrize("format", WITH_DTYPE, ids=str)
def test_random_numbers_of_every_size(format):
    generator = torch.Generator().manual_seed(0)
    if format.bits == 64:
        values = torch.randint(-(2**63), 2**63 - 1, (50_000,), generator=generator).view(torch.float64)
        want = values
    elif format.bits == 32:
        bits = torch.randint(0x3680_0000_0000_0000, 0x4800_0000_0000_0000, (200_000,), generator=generator)
        values = torch.cat([bits.view(torch.float64), -bits.view(torch.float64)])
        want = values.float().double()  # one rounding
        subnormal = (want != 0) & (want.abs() < torch.finfo(torch.float32).tiny)
        assert min(subnormal.sum(), want.isinf().sum(), (want == 0).sum()) > 1000
    else:
        values = torch.randint(-(2**31), 2**31 - 1, (200_000,), generator=generator).int().view(torch.float32)
        want = pytorch_round(values, format)
    assert_alike(format.round(values), want)
    # The bits, too: what PyTorch holds for the same numbers.
    held = want.to(format.dtype).view(HOLDERS[format.bits]).long()
    held = held & (2**format.bits - 1) if format.bits < 64 else held
    assert torch.equal(format.encode(values)[~want.isnan()], held[~want.isnan()])


def test_pytorch_makes_of_what_is_too_large_for_e4m3_what_one_of_the_two_modes_does():
    """Which one depends on PyTorch: 2.9's casts on a CPU made NaN of it, those of 2.13 saturate."""
    values = torch.tensor([465.0, 1e6, -1e6, torch.inf, -torch.inf])
    got = values.to(E4M3).double()
    assert ((got == formats.FP8_E4M3.round(values)) | got.isnan()).all()
    assert formats.FP8_E4M3_OCP.round(values).isnan().all()


def test_tf32_is_fp32_with_thirteen_bits_less():
    values = torch.randn(10_000, generator=torch.Generator().manual_seed(1)) * 2.0 ** torch.arange(
        -140, 110, 0.025
    )
    rounded = formats.TF32.round(values)
    held = rounded.float().view(torch.int32).long() & 0xFFFF_FFFF
    assert_alike(held.int().view(torch.float32).double(), rounded)
    assert (held & 0x1FFF == 0).all()
    assert torch.equal(formats.TF32.encode(values), held >> 13)
    assert ((rounded - values.double()).abs() <= formats.TF32.ulp(values) / 2).all()


@pytest.mark.parametrize("format", WITH_DTYPE, ids=str)
def test_limits_are_those_of_finfo(format):
    finfo = torch.finfo(format.dtype)
    assert format.bits == finfo.bits
    assert format.limits.max == finfo.max
    assert format.limits.smallest_normal == finfo.smallest_normal
    assert format.limits.eps == finfo.eps
    first = torch.ones(1, dtype=HOLDERS[format.bits]).view(format.dtype).double().item()
    assert format.limits.smallest_subnormal == first


@pytest.mark.parametrize("format", [f for f in NARROW if f.dtype], ids=str)
def test_pytorch_rounds_fp64_twice_and_we_once(format):
    # A little more than half-way above 1. FP32 drops that little, and a half goes to the even 1.
    eps = 2.0**-format.fraction_bits
    value = 1 + eps / 2 + 2.0**-40
    assert torch.tensor(value, dtype=torch.float64).to(format.dtype).item() == 1
    assert format.round(value).item() == 1 + eps


def test_views_of_tensors_decode_to_their_numbers():
    for format in WITH_DTYPE:
        values = torch.tensor([0.1, -0.1, -0.0, -2.0, 448.0]).to(format.dtype)
        signed = {8: torch.int8}.get(format.bits, HOLDERS[format.bits])
        assert_alike(format.decode(values.view(signed)), values.double())
        assert_alike(format.decode(values.view(signed).numpy()), values.double())
        assert_alike(format.round(values), values.double())
