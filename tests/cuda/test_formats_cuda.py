"""amp_lab.formats on a CUDA device: the same answers as on the CPU, and they stay on the device."""

import pytest
import torch

from amp_lab import formats

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="no CUDA device: the number formats on CUDA tensors are not checked",
    ),
]


@pytest.mark.parametrize("format", formats.ALL, ids=str)
def test_the_same_on_the_gpu(format):
    generator = torch.Generator().manual_seed(0)
    anything = torch.randint(-(2**63), 2**63 - 1, (100_000,), generator=generator).view(torch.float64)
    values = torch.cat([anything, torch.randn(100_000, generator=generator, dtype=torch.float64)])
    _same(format, values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_narrow_numbers_arrive_whole(dtype):
    """Subnormal ones, too: they are widened by hand."""
    holder = {4: torch.int32, 2: torch.int16}[dtype.itemsize]
    values = torch.arange(-(2**15), 2**15).to(holder).view(dtype)
    _same(formats.FP64, values)
    _same(formats.FP8_E5M2, values)


def _same(format, values):
    on_gpu = format.encode(values.cuda())
    assert on_gpu.is_cuda
    assert torch.equal(on_gpu.cpu(), format.encode(values))
    for method in (format.round, format.ulp, lambda numbers: torch.stack(format.neighbours(numbers))):
        assert method(values.cuda()).is_cuda
        torch.testing.assert_close(
            method(values.cuda()).cpu(), method(values), rtol=0, atol=0, equal_nan=True
        )
