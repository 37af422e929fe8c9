"""Answers to the exercises of lesson 00."""

import math

import torch

from tests.course.bank import Bank

tensor_bytes = Bank("0.1")
BANKS = (tensor_bytes,)


@tensor_bytes.wrong("bits")
def takes_the_number_in_the_name(shape, dtype):
    width = torch.finfo(dtype).bits if dtype.is_floating_point or dtype.is_complex else 8 * dtype.itemsize
    return math.prod(shape) * (2 * width if dtype.is_complex else width)


@tensor_bytes.wrong("bits")
def multiplies_bytes_by_eight(shape, dtype):
    return 8 * dtype.itemsize * torch.Size(shape).numel()


@tensor_bytes.wrong("always-four")
def thinks_of_float32(shape, dtype):
    return 4 * math.prod(shape)


@tensor_bytes.wrong("always-four")
def forgets_to_pass_the_dtype(shape, dtype):
    return torch.empty(shape, device="meta").nbytes


@tensor_bytes.wrong("elements")
def counts_elements(shape, dtype):
    return torch.empty(shape, dtype=dtype, device="meta").numel()


@tensor_bytes.wrong("forgets-dimension")
def leaves_out_the_batch(shape, dtype):
    return math.prod(shape[1:]) * dtype.itemsize


@tensor_bytes.wrong("forgets-dimension")
def stops_one_short(shape, dtype):
    count = 1
    for i in range(len(shape) - 1):
        count *= shape[i]
    return count * dtype.itemsize


@tensor_bytes.wrong("forgets-dimension")
def takes_only_the_length(shape, dtype):
    return (shape[0] if shape else 1) * dtype.itemsize


@tensor_bytes.wrong("adds-dimensions")
def adds_the_dimensions(shape, dtype):
    return sum(shape) * dtype.itemsize


@tensor_bytes.wrong("scalar-is-empty")
def takes_no_dimensions_for_no_elements(shape, dtype):
    return math.prod(shape) * dtype.itemsize if len(shape) else 0


@tensor_bytes.wrong("wrong-type")
def divides_bits(shape, dtype):
    return math.prod(shape) * (8 * dtype.itemsize) / 8


@tensor_bytes.wrong("wrong-type")
def stays_in_a_tensor(shape, dtype):
    return torch.tensor(shape, dtype=torch.int64).prod() * dtype.itemsize


@tensor_bytes.wrong("returned-none")
def forgets_to_return(shape, dtype):
    math.prod(shape) * dtype.itemsize


@tensor_bytes.wrong("wrong-value")
def knows_two_dtypes(shape, dtype):
    return math.prod(shape) * (2 if dtype == torch.float16 else 4)


@tensor_bytes.wrong("wrong-value")
def wraps_at_32_bits(shape, dtype):
    return math.prod(shape) * dtype.itemsize % 2**32


@tensor_bytes.right
def asks_a_meta_tensor(shape, dtype):
    return torch.empty(shape, dtype=dtype, device="meta").nbytes


@tensor_bytes.right
def multiplies_in_a_loop(shape, dtype):
    count = 1
    for dimension in shape:
        count *= dimension
    return count * torch.empty((), dtype=dtype).element_size()


@tensor_bytes.right
def lets_torch_count(shape, dtype):
    return torch.Size(shape).numel() * torch.zeros(1, dtype=dtype).untyped_storage().nbytes()


def _elements(shape):
    return shape[0] * _elements(shape[1:]) if shape else 1


@tensor_bytes.right
def goes_down_recursively(shape, dtype):
    return _elements(shape) * dtype.itemsize
