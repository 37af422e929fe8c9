"""`torch.set_flush_denormal(True)` makes the processor take subnormal numbers for zero; the formats must not care.

What is compared, and whether it is equal, is settled after the mode is off again: in it 5e-324 == 0.
"""

import contextlib
import struct

import numpy as np
import pytest
import torch

from amp_lab import formats
from amp_lab.formats import FP32, FP64, Format

# Of all dtypes whose numbers, or FP32's of the same value, are subnormal somewhere.
EVERY = {
    torch.float16: torch.arange(2**16).to(torch.uint16).view(torch.float16),
    torch.bfloat16: torch.arange(2**16).to(torch.uint16).view(torch.bfloat16),
    torch.float32: torch.arange(0, 2**32, 65_521).to(torch.uint32).view(torch.float32),
    torch.float8_e5m2: torch.arange(2**8).to(torch.uint8).view(torch.float8_e5m2),
    torch.float8_e4m3fn: torch.arange(2**8).to(torch.uint8).view(torch.float8_e4m3fn),
    torch.float8_e8m0fnu: torch.arange(2**8).to(torch.uint8).view(torch.float8_e8m0fnu),
}
WIDE = Format("wide, without infinity", 10, 52, has_infinity=False)
SUBNORMALS = [5e-324, -5e-324, 1.5e-323, 2.0**-1023, -(2.0**-1022), 1e-310, 0.0, -0.0, 2.0**-1022, 1.0]


@contextlib.contextmanager
def flushing():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers, or PyTorch cannot ask it to")
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


def bits(tensor):
    return tensor.view(torch.int64)


def test_the_mode_is_really_on():
    with flushing():
        assert torch.tensor(5e-324, dtype=torch.float64) == 0
        assert torch.tensor([1], dtype=torch.int32).view(torch.float32).double().item() == 0


@pytest.mark.parametrize("format", [*formats.ALL, WIDE, Format("FP64's exponent", 11, 3)], ids=str)
def test_all_that_is_worked_out_stays_the_same(format):
    def everything():
        values = torch.tensor(SUBNORMALS, dtype=torch.float64)
        patterns = format.encode(SUBNORMALS)
        return [
            patterns,
            format.encode(values),
            *map(bits, (format.decode([0, 1, 2, 3]), format.round(values), format.ulp(values))),
            *map(bits, format.neighbours(values)),
        ]

    def words():
        return [format.kind(pattern) for pattern in (0, 1, 1 << format.fraction_bits)]

    wanted, wanted_words, limits = everything(), words(), format.limits
    with flushing():
        got, got_words, got_limits = everything(), words(), format.limits
    assert [each.tolist() for each in got] == [each.tolist() for each in wanted]
    assert got_words == wanted_words == ["zero", "subnormal", "normal"]
    assert got_limits == limits
    assert struct.pack("4d", *got_limits) == struct.pack("4d", *limits)


def test_what_fp64_has_below_its_smallest_normal_number():
    with flushing():
        limits, ulp = FP64.limits, bits(FP64.ulp(0.0)).item()
        below, above = (bits(each).item() for each in FP64.neighbours(0.0))
    assert (limits.smallest_subnormal, ulp, above, below) == (5e-324, 1, 1, 1 - 2**63)


@pytest.mark.parametrize("dtype", EVERY, ids=str)
def test_numbers_of_every_dtype_arrive_whole(dtype):
    values = EVERY[dtype]
    wanted = bits(values.double())
    number = ~values.double().isnan()
    with flushing():
        got = FP64.encode(values)
        listed = FP64.encode([values[:300]])[0]
    assert torch.equal(got[number], wanted[number])
    assert torch.equal(listed[number[:300]], wanted[:300][number[:300]])


def test_numbers_of_numpy_arrive_whole():
    values = np.array([1, 2**31 + 1], dtype=np.uint32).view(np.float32)
    with flushing():
        got = [FP32.encode(values), FP32.encode([values[0], values[1]]), FP64.encode(np.float64(5e-324))]
    assert [each.tolist() for each in got] == [[1, 2**31 + 1], [1, 2**31 + 1], 1]
