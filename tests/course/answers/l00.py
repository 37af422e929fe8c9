"""Answers to the exercises of lesson 00."""

import math
import sys

import numpy as np
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


@tensor_bytes.wrong("element-width")
def knows_two_dtypes(shape, dtype):
    return math.prod(shape) * (2 if dtype == torch.float16 else 4)


@tensor_bytes.wrong("element-width")
def knows_the_floats_only(shape, dtype):
    width = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 4, torch.float64: 8}.get(dtype, 1)
    return math.prod(shape) * width


@tensor_bytes.wrong("counts-dimensions")
def takes_the_number_of_dimensions(shape, dtype):
    return len(shape) * dtype.itemsize


@tensor_bytes.wrong("counts-dimensions")
def makes_a_tensor_of_the_shapes_numbers(shape, dtype):
    return torch.tensor(shape, dtype=dtype).nbytes


@tensor_bytes.wrong("adds-width")
def adds_the_bytes_of_one_element(shape, dtype):
    return math.prod(shape) + dtype.itemsize


@tensor_bytes.wrong("element-width")
def asks_finfo_which_counts_half_of_a_complex_number(shape, dtype):
    if dtype == torch.bool:
        return math.prod(shape)
    info = torch.finfo(dtype) if dtype.is_floating_point or dtype.is_complex else torch.iinfo(dtype)
    return math.prod(shape) * (info.bits // 8)


@tensor_bytes.wrong("element-width")
def takes_everything_for_half(shape, dtype):
    return 2 * math.prod(shape)


@tensor_bytes.wrong("wrong-value")
def counts_in_fp32(shape, dtype):
    return int(torch.tensor(shape, dtype=torch.float32).prod()) * dtype.itemsize


@tensor_bytes.wrong("forgets-dimension")
def returns_inside_the_loop(shape, dtype):
    count = 1
    for dimension in shape:
        count *= dimension
        return count * dtype.itemsize


@tensor_bytes.wrong("forgets-dimension")
def knows_matrices_only(shape, dtype):
    return shape[0] * shape[1] * dtype.itemsize


@tensor_bytes.wrong("stays-zero")
def starts_at_zero(shape, dtype):
    count = 0
    for dimension in shape:
        count *= dimension
    return count * dtype.itemsize


@tensor_bytes.wrong("python-object")
def asks_python_for_the_size(shape, dtype):
    return sys.getsizeof(torch.zeros(shape, dtype=dtype))


@tensor_bytes.wrong("wrong-value")
def rounds_up_to_a_multiple_of_eight(shape, dtype):
    return -(-math.prod(shape) * dtype.itemsize // 8) * 8


@tensor_bytes.wrong("wrong-type")
def multiplies_with_numpy(shape, dtype):
    return np.prod(shape) * dtype.itemsize


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


@tensor_bytes.right
def makes_the_tensor_and_measures_it(shape, dtype):
    tensor = torch.zeros(shape, dtype=dtype)
    return tensor.numel() * tensor.element_size()


@tensor_bytes.right
def converts_and_measures(shape, dtype):
    return torch.ones(shape).to(dtype).untyped_storage().nbytes()


@tensor_bytes.right
def adds_up_element_by_element(shape, dtype):
    return sum(dtype.itemsize for _ in range(math.prod(shape)))


@tensor_bytes.right
def insists_on_a_tuple(shape, dtype):
    if type(shape) is not tuple:
        raise TypeError(shape)
    return math.prod(shape) * dtype.itemsize


@tensor_bytes.right
def multiplies_with_numpy_as_integers(shape, dtype):
    return np.prod(shape, dtype=np.int64) * dtype.itemsize
