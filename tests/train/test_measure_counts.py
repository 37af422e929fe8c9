"""Operations, bytes moved, and what they mean on a GPU."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from amp_lab.train.measure import GPUS, Gpu, attainable, count_flops, gpu_named, roofline_figure
from amp_lab.train.measuring.traffic import bytes_moved
from amp_lab.train.measuring.units import in_bytes, in_flops

ATEN = torch.ops.aten


def total(output, _):
    return output.sum()


def test_a_linear_layer_is_counted_by_hand():
    net, x = nn.Linear(32, 16, bias=False), torch.randn(8, 32)
    counts = count_flops(net, total, (x, None))
    product = 2 * 8 * 32 * 16
    assert counts.forward.flops == product
    assert counts.backward.flops == product, "the weight's gradient; the input needs none"
    assert counts.by_module == {"": 2 * product}
    (row,) = (each for each in counts.forward.rows if each.flops)
    assert (row.operator, row.dtype, row.calls) == ("mm", torch.float32, 1)
    assert row.bytes == 4 * (8 * 32 + 32 * 16 + 8 * 16)
    assert row.intensity == pytest.approx(product / row.bytes)
    assert "sum" in counts.uncounted


def test_both_operands_that_need_a_gradient_make_three_products():
    net = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4))
    counts = count_flops(net, total, (torch.randn(8, 32), None))
    first, last = 2 * 8 * 32 * 16, 2 * 8 * 16 * 4
    assert counts.flops == 2 * first + 3 * last
    assert counts.by_module == {"": counts.flops, "0": 2 * first, "2": 3 * last}
    assert count_flops(net, total, (torch.randn(8, 32), None), backward=False).flops == first + last


def test_sixteen_bits_halve_the_bytes_of_products_and_add_those_of_casts():
    net, batch = nn.Linear(64, 64, bias=False), (torch.randn(64, 64), None)
    plain, half = count_flops(net, total, batch), count_flops(net, total, batch, dtype=torch.bfloat16)
    (one,), (other,) = ([row for row in each.forward.rows if row.flops] for each in (plain, half))
    assert (one.dtype, other.dtype) == (torch.float32, torch.bfloat16)
    assert (one.flops, one.bytes) == (other.flops, 2 * other.bytes)
    (casts,) = (row for row in half.forward.rows if row.operator == "_to_copy" and row.dtype is torch.float32)
    assert casts.calls == 2
    assert casts.bytes == 2 * 64 * 64 * (4 + 2), (
        "the input's and the weight's: read in FP32, written in 16 bits"
    )


def test_attention_on_a_cpu_is_counted_as_two_products():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, x):
            x = x * self.scale
            return F.scaled_dot_product_attention(x, x, x)

    counts = count_flops(Attention(), total, (torch.randn(2, 3, 16, 8), None))
    product = 2 * 2 * 3 * 16 * 16 * 8
    assert counts.forward.flops == 2 * product
    assert counts.backward.flops == 5 * product, "the scores once more, and four gradients"


@pytest.mark.parametrize("depth", [1, 2])
def test_it_counts_what_flopcountermode_counts_module_by_module(depth):
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    net, x = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False), torch.randn(3, 5, 16)
    counts = count_flops(net, total, (x, None))
    with FlopCounterMode(display=False) as theirs:
        net(x).sum().backward()
    expected = {
        name.partition(".")[2]: sum(each.values())
        for name, each in theirs.get_flop_counts().items()
        if name != "Global"
    }
    assert counts.flops == theirs.get_total_flops() > 0
    assert counts.by_module == {name: flops for name, flops in expected.items() if flops}


def test_a_convolution_is_counted_by_hand():
    counts = count_flops(
        nn.Conv2d(3, 5, 3, padding=1), total, (torch.randn(2, 3, 8, 8), None), backward=False
    )
    assert counts.flops == 2 * (2 * 5 * 8 * 8) * (3 * 3 * 3)


def call(operator, *arguments):
    return bytes_moved(operator, arguments, {}, operator(*arguments))


@pytest.mark.parametrize(
    ("operator", "arguments", "moved"),
    [
        (ATEN.add.Tensor, (torch.ones(10), torch.ones(10)), 3 * 40),
        (ATEN.add.Tensor, (torch.ones(10, 1), torch.ones(1).expand(10, 10)), 40 + 4 + 400),
        (ATEN.relu_.default, (torch.ones(10),), 2 * 40),
        (ATEN.view.default, (torch.ones(10), [2, 5]), 0),
        (ATEN.t.default, (torch.ones(2, 5),), 0),
        (ATEN.detach.default, (torch.ones(10),), 0),
        (ATEN.zero_.default, (torch.ones(10),), 40),
        (ATEN.copy_.default, (torch.ones(10), torch.ones(10, dtype=torch.float16)), 40 + 20),
        (ATEN.empty_like.default, (torch.ones(10),), 0),
        (ATEN.zeros_like.default, (torch.ones(10),), 40),
        (ATEN.new_ones.default, (torch.ones(10), [3]), 12),
        (ATEN.clone.default, (torch.ones(10),), 2 * 40),
        (ATEN.embedding.default, (torch.ones(1000, 4), torch.arange(3)), 3 * 8 + 2 * 3 * 4 * 4),
        (ATEN.cat.default, ([torch.ones(10), torch.ones(10)],), 2 * 80),
        (ATEN.sum.default, (torch.ones(10),), 44),
    ],
)
def test_bytes_are_what_is_read_and_what_is_written(operator, arguments, moved):
    assert call(operator, *arguments) == moved


def test_peaks_have_sources_and_are_plausible():
    for name, gpu in GPUS.items():
        assert gpu.name == name
        assert "NVIDIA" in gpu.source
        assert gpu.fp32 < gpu.fp16
        assert gpu.bf16 in (None, gpu.fp16)
        assert gpu.tf32 is None or gpu.fp32 <= gpu.tf32 <= 0.51 * gpu.fp16
        assert 3e11 <= gpu.bandwidth <= 5e12
    assert [name for name, gpu in GPUS.items() if gpu.tf32 is None] == ["V100", "T4"]


def test_the_roof_bends_at_the_ridge():
    gpu = Gpu("toy", fp16=80.0, bf16=None, tf32=40.0, fp32=10.0, bandwidth=2.0, source="made up")
    assert gpu.ridge(torch.float16) == 40.0
    assert gpu.ridge("fp32") == 5.0
    assert attainable(1.0, gpu, "fp16") == attainable(1.0, gpu, "fp32") == 2.0
    assert attainable(1000.0, gpu, torch.float16) == 80.0
    assert attainable(20.0, gpu, torch.float16) == 40.0
    assert attainable(20.0, gpu, torch.float32) == 10.0


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("Tesla T4", "T4"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("L4", "L4"),
    ],
)
def test_a_gpu_is_found_by_the_name_that_pytorch_gives(name, found):
    assert gpu_named(name).name == found


@pytest.mark.parametrize("name", ["NVIDIA L40S", "NVIDIA GeForce RTX 4080", "NVIDIA T400", ""])
def test_a_gpu_that_is_not_in_the_table_is_not_taken_for_another(name):
    with pytest.raises(KeyError, match="no peaks of"):
        gpu_named(name)


def test_formats_that_there_are_not():
    with pytest.raises(ValueError, match="the T4 has no unit for BF16"):
        GPUS["T4"].peak(torch.bfloat16)
    with pytest.raises(ValueError, match="is none of fp16"):
        GPUS["T4"].peak("fp8")


def test_text_and_figures():
    net = nn.Linear(64, 64)
    counts = count_flops(net, total, (torch.randn(64, 64), None))
    assert "FLOP/byte" in str(counts)
    assert "addmm" in str(counts)
    lines = counts.plot("A100").axes[0].get_lines()
    assert len(lines) == 3 + len([row for row in counts.rows if row.flops])
    roofs = roofline_figure("T4").axes[0].get_lines()
    assert len(roofs) == 2, "a T4 has no TF32"
    x, y = lines[2].get_data()
    assert y[1] * 1e12 == GPUS["A100"].fp16
    assert math.isclose(x[1], GPUS["A100"].ridge("fp16"))


@pytest.mark.parametrize(
    ("size", "words"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (2**20 - 1, "1 MiB"),
        (3 * 2**30, "3 GiB"),
    ],
)
def test_bytes_in_words(size, words):
    assert in_bytes(size) == words


def test_operations_in_words():
    assert (in_flops(12), in_flops(2_500_000), in_flops(3e15)) == ("12 FLOP", "2.5 MFLOP", "3 PFLOP")
