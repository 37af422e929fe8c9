"""gradient_report on CUDA gradients: the counts of the CPU, one transfer, no copy, and deterministic on request."""

import math

import pytest
import torch

from amp_lab.watching.counting import bits
from amp_lab.watching.gradients import gradient_report
from tests.watching.rounding import fates_by_cast

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="no CUDA device: gradient_report on CUDA gradients is not checked",
    ),
]
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e5m2, torch.float8_e4m3fn]


def numbers(dtype=torch.float32):
    """Return numbers of all sizes, some of them zero, subnormal in FP32, infinite or NaN."""
    dice = torch.Generator().manual_seed(0)
    sizes = torch.exp2(torch.randint(-60, 30, (3000,), generator=dice).float())
    signed = sizes * torch.randn(3000, generator=dice)
    special = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40, 2.0**-149, 65519.99, 65520.0])
    return torch.cat([signed, special]).to(dtype)


def same(on_gpu, on_cpu, dtype=torch.float16):
    found, wanted = gradient_report(on_gpu, dtype=dtype), gradient_report(on_cpu, dtype=dtype)
    for what in ("entries", "zeros", "infinite", "nan", "nonzero", "largest"):
        assert getattr(found.total, what) == getattr(wanted.total, what), what
    assert (found.powers, found.counts) == (wanted.powers, wanted.counts)
    for power in (-24, 0, 13, 126):
        assert found.at(2.0**power) == wanted.at(2.0**power)
    assert found.recommend() == wanted.recommend()


@pytest.fixture(params=[False, True], ids=["usual", "deterministic"])
def algorithms(request):
    """Run a test as usual, and with `use_deterministic_algorithms`: PyTorch's docs call histc an error under it."""
    torch.use_deterministic_algorithms(request.param)
    yield request.param
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("algorithms")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_counts_as_on_the_cpu(dtype):
    values = numbers(dtype)
    same(values.cuda(), values)
    finite = values[values.float().isfinite()]
    same(finite.cuda(), finite, torch.bfloat16)


@pytest.mark.usefixtures("algorithms")
def test_against_casts():
    values = numbers()
    finite = values[values.isfinite() & (values.abs() < 2.0**60)]
    report = gradient_report(finite.cuda())
    for power in (-10, 0, 10):
        assert report.at(2.0**power) == fates_by_cast(finite, power, torch.float16)


@pytest.mark.usefixtures("algorithms")
def test_chunks_and_memory_orders(monkeypatch):
    monkeypatch.setitem(bits.CHUNK, "cuda", 100)
    values = numbers()[:3000].reshape(10, 3, 10, 10)
    for view in (
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x[..., ::3],
        lambda x: x.transpose(0, 3),
    ):
        same(view(values.cuda()), view(values))


@pytest.mark.usefixtures("algorithms")
def test_sparse_gradients():
    table = torch.nn.Embedding(1000, 3, sparse=True, device="cuda")
    table(torch.tensor([5, 5, 7], device="cuda")).sum().backward()
    report = gradient_report(table)
    assert (report.total.entries, report.total.zeros, report.counts) == (3000, 2994, [3, 3])


def test_gradients_on_two_devices():
    values = numbers()
    both = gradient_report({"cpu": values, "cuda": values.cuda()})
    assert both.total.entries == 2 * len(values)
    assert both.parameters["cpu"].at(1.0) == both.parameters["cuda"].at(1.0)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_one_transfer_for_each_gradient():
    """PyTorch warns of everything that waits for the device: only the transfer of the counts may."""
    ordinary = numbers()[:3000].cuda()
    gradient_report(ordinary)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with pytest.warns(UserWarning, match="synchronizing CUDA operation") as waits:
            gradient_report(ordinary)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 1


def test_memory_for_the_work_is_bounded():
    values = torch.full((200_000_000,), 0.75, device="cuda")
    gradient_report(values[:10])
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    gradient_report([values, values.view(20_000, 10_000).t()])
    assert torch.cuda.max_memory_allocated() - before < 300 * 2**20, "a copy of the gradients takes 763 MiB"
