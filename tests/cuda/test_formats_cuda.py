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
    on_gpu = format.encode(values.cuda())
    assert on_gpu.is_cuda
    assert torch.equal(on_gpu.cpu(), format.encode(values))
    for method in (format.round, format.ulp, lambda numbers: torch.stack(format.neighbours(numbers))):
        assert method(values.cuda()).is_cuda
        torch.testing.assert_close(
            method(values.cuda()).cpu(), method(values), rtol=0, atol=0, equal_nan=True
        )
