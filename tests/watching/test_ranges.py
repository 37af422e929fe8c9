"""The range of a tensor's numbers, and when it has to be taken anew."""

from __future__ import annotations

import math

import pytest
import torch

from amp_lab.watching.replaying.ranges import Ranges, of_number, range_of
from amp_lab.watching.replaying.truth import true_range

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_finite_numbers_zeros_infinities_and_nan_are_told_apart(dtype: torch.dtype):
    numbers = [1.0, -2.0, 0.0, math.inf, math.inf, -math.inf, math.nan, 0.25]
    found = range_of(torch.tensor(numbers).to(dtype), name="w", made_by=3)
    assert (found.smallest, found.largest, found.size) == (-2.0, 1.0, 2.0)
    assert (found.positive, found.negative, found.nan, found.zeros, found.of) == (2, 1, 1, 1, 8)
    assert (found.dtype, found.shape, found.name, found.made_by) == (dtype, (8,), "w", 3)
    assert (found.infinite, found.finite) == (3, False)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_many_finite_numbers(dtype: torch.dtype):
    numbers = torch.linspace(-3, 3, 70_001).to(dtype)  # more than FP16 can count
    numbers[::2] = 0
    found = range_of(numbers)
    exact = numbers.double()
    assert (found.smallest, found.largest) == (exact.min().item(), exact.max().item())
    assert (found.zeros, found.of, found.finite) == (int((exact == 0).sum()), 70_001, True)


def test_no_number_is_finite():
    found = range_of(torch.tensor([math.nan, math.inf]))
    assert (found.smallest, found.largest, found.size) == (0.0, 0.0, 0.0)


def test_tensors_of_other_layouts():
    expanded = torch.tensor([[0.0], [math.inf], [2.0]]).expand(3, 5)
    found = range_of(expanded)
    assert (found.of, found.zeros, found.positive, found.largest) == (15, 5, 5, 2.0)
    assert range_of(torch.tensor([3 - 4j])).smallest == -4.0
    assert range_of(torch.eye(3).to_sparse()).largest == 1.0
    for nothing in (torch.empty(0), torch.empty(3, device="meta")):
        assert (range_of(nothing).of, range_of(nothing).finite) == (0, True)


def test_a_range_is_taken_anew_after_a_write():
    ranges, base = Ranges(), torch.ones(4)
    assert ranges.of(base) is ranges.of(base)
    base.data[1:2].fill_(5.0)
    ranges.note_written([base[1:2]])
    found = ranges.of(base)
    assert found is not None
    assert found.largest == 5.0
    assert ranges.of(torch.ones(2, dtype=torch.int64)) is None


def test_memory_that_was_handed_out_as_it_was():
    ranges, memory = Ranges(), torch.full((4,), math.inf)
    ranges.note_fresh([memory])
    assert [each.of for each in (ranges.of(memory), ranges.of(memory[1:])) if each] == [0, 0]
    ranges.note_written([memory[:1]])
    found = ranges.of(memory)
    assert found is not None
    assert found.positive == 4


def test_a_number_beside_a_tensor():
    assert of_number(-math.inf, torch.float16).negative == 1
    assert of_number(math.nan, torch.float16).nan == 1
    assert (of_number(0.0, torch.float16).zeros, of_number(2.5, torch.float16).largest) == (1, 2.5)


def test_the_truth_changes_nothing():
    x, state = torch.full((4,), 300.0, dtype=torch.float16), torch.get_rng_state()
    found = true_range(torch.ops.aten.mul_.Tensor, (x, x), {})
    assert found is not None
    assert (found.largest, found.dtype, x.tolist()) == (90_000.0, torch.float64, [300.0] * 4)
    drawn = true_range(torch.ops.aten.bernoulli_.float, (x, 0.5), {})
    assert drawn is not None
    assert drawn.largest <= 1.0
    assert torch.equal(torch.get_rng_state(), state)


def test_the_truth_of_kernels_that_are_told_a_dtype():
    x = torch.full((2, 2), 70_000.0)
    cast = true_range(torch.ops.aten._to_copy.default, (x,), {"dtype": torch.float16})
    softmax = true_range(torch.ops.aten._softmax.default, (x.half(), -1, True), {})
    summed = true_range(torch.ops.aten.sum.dim_IntList, (x, [1]), {"dtype": torch.float16})
    assert cast is not None
    assert summed is not None
    assert softmax is not None
    assert (cast.largest, summed.largest, softmax.nan) == (70_000.0, 140_000.0, 4)
    assert true_range(torch.ops.aten.bitwise_not.default, (torch.ones(2, dtype=torch.int32),), {}) is None
