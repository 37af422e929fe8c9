"""The counts of a report against rounding every single gradient: at every scale, tie, end, dtype and memory order."""

import math

import pytest
import torch

from amp_lab import formats
from amp_lab.watching.counting import bits
from amp_lab.watching.counting.cuts import cuts_of
from amp_lab.watching.gradients import gradient_report
from tests.watching.rounding import fates_by_cast, fates_by_rounding

SCALES = range(-20, 21)
FORMATS = [formats.FP16, formats.BF16, formats.FP8_E5M2, formats.FP8_E4M3]
# Where something changes in FP16, and numbers that people take for such places.
EDGES = [
    2.0**-26,
    2.0**-25,
    2.0**-24,
    2.0**-14 - 2.0**-25,
    2.0**-14,
    1.0,
    65472,
    65504,
    65519.99,
    65520,
    65536,
]


def with_neighbours(values):
    """Return values, their neighbours on both sides, and all of them negative."""
    far = torch.full_like(values, math.inf)
    both = torch.cat([values, values.nextafter(far), values.nextafter(-far)])
    return torch.cat([both, -both])


def edges(dtype):
    sizes = [edge * 2.0**power for edge in EDGES for power in SCALES]
    return with_neighbours(torch.tensor(sizes, dtype=dtype))


def random_numbers(count, low, high, dtype=torch.float32):
    dice = torch.Generator().manual_seed(0)
    fractions = 1 + torch.rand(count, generator=dice, dtype=dtype)
    return fractions * torch.exp2(torch.randint(low, high, (count,), generator=dice).to(dtype))


def test_41_scales_against_pytorch_casts():
    values = torch.cat([edges(torch.float32), random_numbers(20_000, -60, 30), torch.zeros(5)])
    report = gradient_report(values)
    for power in SCALES:
        assert report.at(2.0**power) == fates_by_cast(values, power, torch.float16)


@pytest.mark.parametrize("format", FORMATS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_every_format_at_far_scales(format, dtype):
    """Around every place at which the format cuts, from the largest of scales to the smallest."""
    powers = [-60, -33, -1, 0, 1, 24, 60]
    cuts = [each.size for each in cuts_of(format)]
    sizes = [size * 2.0**-power for size in cuts for power in powers if abs(math.log2(size) - power) < 126]
    values = torch.cat(
        [with_neighbours(torch.tensor(sizes, dtype=dtype)), random_numbers(2_000, -120, 120, dtype)]
    )
    report = gradient_report(values, dtype=format.dtype)
    for power in powers:
        assert report.at(2.0**power) == fates_by_rounding(values, power, format)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("format", FORMATS, ids=str)
def test_all_numbers_of_16_bits(dtype, format):
    values = torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)
    report = gradient_report(values, dtype=format.dtype)
    finite = values[values.isfinite()]
    assert (report.total.zeros, report.total.infinite) == (2, 2)
    assert report.total.nan == int(values.isnan().sum())
    for power in (-149, -7, 0, 9, 127):
        assert report.at(2.0**power) == fates_by_rounding(finite, power, format)


def patterns(*ranges):
    """Return the FP32 numbers with these patterns."""
    return torch.cat([torch.arange(*each, dtype=torch.int32) for each in ranges]).view(torch.float32)


def test_numbers_that_are_subnormal_in_fp32():
    values = patterns((1, 2**23, 997), (2**23 - 3, 2**23 + 3), (2**16 - 2, 2**16 + 2), (1, 9))
    report = gradient_report(torch.cat([values, -values, torch.zeros(2)]), dtype=torch.bfloat16)
    assert (report.total.zeros, report.total.nonzero) == (2, 2 * len(values))
    assert report.total.largest == values.max().item()
    assert report.powers == list(range(-149, -125))
    for power in (-3, 0, 1, 16, 127):
        both = torch.cat([values, -values])
        assert report.at(2.0**power) == fates_by_rounding(both, power, formats.BF16)


def test_numbers_that_are_subnormal_in_fp64_are_zero_in_everything():
    values = torch.tensor([5e-324, 2.0**-1023, 2.0**-1022, 1.7e308], dtype=torch.float64)
    report = gradient_report(values)
    assert (report.powers[0], report.powers[-1]) == (-1074, 1023)
    fates = report.at(2.0**127)
    assert (fates.zero, fates.overflow, report.total.largest) == (3, 1, 1.7e308)


def test_with_subnormal_numbers_flushed():
    """As after `torch.set_flush_denormal(True)`, which people train with."""
    values = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
    usual = gradient_report(values, dtype=torch.bfloat16)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        flushed = gradient_report(values, dtype=torch.bfloat16)
        fates = [flushed.at(2.0**power) for power in SCALES]
    finally:
        torch.set_flush_denormal(False)
    assert fates == [usual.at(2.0**power) for power in SCALES]


def test_numbers_that_are_subnormal_in_fp64_with_subnormal_numbers_flushed():
    """Python then reads 0 for them, even where the report has counted them right."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        pattern = torch.tensor([7, 0], dtype=torch.int64)
        report = gradient_report({"w": pattern.view(torch.float64)})
        text, recommended = repr(report), report.recommend()
    finally:
        torch.set_flush_denormal(False)
    assert (report.total.nonzero, report.total.zeros) == (1, 1)
    assert "under 2.23e-308" in text
    assert recommended.scale is None
    assert "makes every gradient zero even at 2^126" in recommended.reason


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_gpu_counts_without_histc_where_pytorch_must_be_deterministic(dtype, deterministic, monkeypatch):
    """Some releases of PyTorch refuse histc there, on CUDA only. Here the GPU is played by a tensor that says it is."""
    values = random_numbers(500, -40, 20, dtype)
    monkeypatch.setattr(bits, "_is_on_gpu", lambda values: True)
    monkeypatch.setattr(torch, "histc", None)
    report = gradient_report(values)
    monkeypatch.undo()
    assert report.counts == gradient_report(values).counts


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def layouts():
    """Tensors in all kinds of memory order, most of them larger than a chunk of 100."""
    numbers = random_numbers(6_000, -40, 20)
    image = numbers.reshape(10, 6, 10, 10)
    yield "one chunk", numbers[:100]
    yield "chunks", numbers
    yield "channels last", image.to(memory_format=torch.channels_last)
    yield "transposed", numbers.reshape(60, 100).t()
    yield "every third column", numbers.reshape(60, 100)[:, ::3]
    yield "expanded", numbers[:7].expand(90, 7)
    yield "overlapping", numbers.unfold(0, 90, 10)
    yield "no dimension", numbers[3]
    yield "empty", numbers[:0].reshape(0, 5)
    yield "negative view", torch.complex(numbers, numbers).conj().imag
    yield "requires grad", (numbers * torch.ones(1, requires_grad=True))


@pytest.mark.parametrize(("name", "values"), list(layouts()))
def test_every_memory_order(name, values, monkeypatch):
    monkeypatch.setitem(bits.CHUNK, "cpu", 100)
    found, wanted = gradient_report(values), gradient_report(values.detach().contiguous().clone())
    assert found.total.entries == values.numel()
    assert (found.counts, found.total.largest) == (wanted.counts, wanted.total.largest)
    monkeypatch.undo()
    flat = values.detach().flatten()
    assert found.at(1.0) == gradient_report(flat).at(1.0) == fates_by_cast(flat, 0, torch.float16)


def test_the_carries_at_a_chunk_s_end(monkeypatch):
    """Infinite, NaN and subnormal gradients in other chunks than the rest."""
    tiny = patterns((5, 400))
    values = torch.cat(
        [torch.full((150,), math.nan), tiny, torch.full((99,), -math.inf), edges(torch.float32)]
    )
    monkeypatch.setitem(bits.CHUNK, "cpu", 100)
    total = gradient_report(values).total
    assert (total.nan, total.infinite, total.zeros, total.nonzero) == (
        150,
        99,
        0,
        395 + len(edges(torch.float32)),
    )
    assert total.at(4.0) == fates_by_cast(torch.cat([tiny, edges(torch.float32)]), 2, torch.float16)


def test_what_is_not_finite_is_counted_apart_in_every_dtype():
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2):
        values = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0, 1.0, -2.0]).to(dtype)
        total = gradient_report(values).total
        assert (total.infinite, total.nan, total.zeros, total.nonzero, total.largest) == (2, 1, 2, 2, 2.0)
        assert total.at(2.0**16).overflow == 2


def test_a_sparse_gradient_adds_what_it_stores_twice():
    table = torch.nn.Embedding(1000, 3, sparse=True)
    table(torch.tensor([5, 5, 7])).sum().backward()
    assert table.weight.grad._nnz() == 3, "not added up yet"
    report = gradient_report(table)
    dense = gradient_report(table.weight.grad.to_dense())
    assert (report.total.entries, report.total.zeros, report.counts) == (3000, 2994, [3, 3])
    assert (dense.total.zeros, dense.counts) == (2994, [3, 3])
    cancels = torch.sparse_coo_tensor([[1, 1]], [2.0, -2.0], (10,), check_invariants=True)
    assert gradient_report(cancels).total.zeros == 10


def test_the_default_device_does_not_matter():
    with torch.device("meta"):
        assert gradient_report(torch.ones(3, device="cpu")).at(2.0**-25).zero == 3


def test_gradients_are_left_as_they_are():
    values = torch.tensor([1.0, -0.0, math.nan, math.inf, 1e-42])
    before = values.view(torch.int32).clone()
    gradient_report(values)
    assert torch.equal(values.view(torch.int32), before)
