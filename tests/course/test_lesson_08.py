"""What the page of lesson 08 says beyond what its cells show."""

import functools
import json
import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from amp_lab.course.lessons.l08.stored import stored_ladder
from amp_lab.formats import TF32
from amp_lab.train import measure
from amp_lab.train.measure import GPUS, Ladder, memory_account


def test_a_linear_layer_keeps_its_weight_as_a_view_of_the_same_storage():
    layer, kept = nn.Linear(8, 4), []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        layer(torch.ones(2, 8, requires_grad=True))
    (weight,) = (
        each
        for each in kept
        if each.untyped_storage().data_ptr() == layer.weight.untyped_storage().data_ptr()
    )
    assert weight.shape != layer.weight.shape


def test_the_copies_of_autocast_are_gone_after_the_backward_pass():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    batch = torch.randn(4, 256), torch.randint(256, (4,))
    account = memory_account(
        model, nn.functional.cross_entropy, batch, dtype=torch.float16, device_type="cuda"
    )
    lasting = account.weights + account.gradients + account.inputs + account.outputs + account.buffers
    assert account.cached_casts == 2 * 256 * 256  # of the second layer; the first one's ends with the region
    assert account.casts_freed >= 2 * 256 * 256
    assert account.after_backward <= lasting + 2048
    assert account.after_forward >= account.weights + account.cached_casts


def test_tf32_has_10_of_the_23_fraction_bits():
    assert TF32.fraction_bits == 10


def test_a_bf16_step_below_2_to_the_minus_9_of_its_weight_moves_nothing():
    weight = torch.ones((), dtype=torch.bfloat16)
    assert weight - 0.99 * 2.0**-9 == weight
    assert weight - 1.01 * 2.0**-9 != weight


def test_the_logits_of_padding_take_part_in_the_softmax_and_are_driven_down():
    logits = torch.zeros(3, 16, requires_grad=True)
    loss = nn.functional.cross_entropy(logits, torch.tensor([0, 5, 9]))  # 10 classes and 6 that pad
    loss.backward()
    assert loss > torch.tensor(10.0).log()
    assert (logits.grad[:, 10:] > 0).all()


@pytest.mark.usefixtures("switches_kept")
def test_one_line_lets_products_use_tf32():
    assert not torch.backends.cuda.matmul.allow_tf32
    torch.set_float32_matmul_precision("high")
    assert torch.backends.cuda.matmul.allow_tf32


@pytest.mark.long  # a process of its own
def test_an_environment_variable_lets_products_use_tf32():
    script = "import torch; print(torch.backends.cuda.matmul.allow_tf32)"
    variable = {"TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1"}
    run = [sys.executable, "-c", script]
    told = subprocess.run(run, env=os.environ | variable, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "True"


@pytest.mark.parametrize("name", GPUS)
def test_peaks_are_dense_so_fp16_is_at_most_16_times_fp32_and_twice_tf32(name):
    """The double, for sparse matrices, would show here."""
    gpu = GPUS[name]
    assert 1.9 < gpu.fp16 / gpu.fp32 < 16.5
    assert gpu.tf32 is None or gpu.fp16 / gpu.tf32 == pytest.approx(2, rel=0.02)


@functools.cache
def measured():
    return measure.ladder("cpu", width=8, depth=1, batch_size=4, rounds=3).as_dict()


def ladder(device_type="cuda", device="NVIDIA A100", date="2026-12-01"):
    """Return a ladder as a file keeps it: one that was measured here, under another name."""
    return measured() | {"device_type": device_type, "device": device, "date": date}


def keep(folder, name, content):
    (folder / name).write_text(json.dumps(content))


def test_the_newest_ladder_of_a_gpu_is_shown(tmp_path):
    keep(tmp_path, "2026-12-01_ladder_a100.json", {"ladder": ladder()})
    keep(tmp_path, "2026-12-03_ladder_t4.json", {"ladder": ladder(device="Tesla T4", date="2026-12-03")})
    keep(tmp_path, "2026-12-04_ladder_xeon.json", {"ladder": ladder("cpu", "Xeon", "2026-12-04")})
    keep(tmp_path, "2026-12-05_memory_t4.json", {"findings": []})
    found = stored_ladder(tmp_path)
    assert isinstance(found, Ladder)
    assert (found.device, found.date) == ("Tesla T4", "2026-12-03")


def test_without_a_stored_ladder_of_a_gpu_there_is_none(tmp_path):
    assert stored_ladder(tmp_path) is None
    assert stored_ladder(tmp_path / "no such folder") is None
    keep(tmp_path, "2026-12-04_ladder_xeon.json", {"ladder": ladder("cpu", "Xeon", "2026-12-04")})
    keep(tmp_path, "2026-12-05_ladder_old.json", {"findings": []})
    assert stored_ladder(tmp_path) is None
