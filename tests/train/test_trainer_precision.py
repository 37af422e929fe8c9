"""What "auto" chooses on machines that are not here; FP16 on a CPU is plain autocast, which can be emulated."""

import pytest
import torch
from torch import nn

from amp_lab.autocast.emulate import cuda_autocast, tensor_cores
from amp_lab.device.facts import AmpFacts, GpuFacts
from amp_lab.train import precision as precisions
from amp_lab.train.precision import choose, lacks
from tests.device.machines import AMD, CPUS, NVIDIA, facts, nvidia, on_cpu, report
from tests.train.small_runs import make_loader, make_model, make_trainer, same_bits, weights


@pytest.mark.parametrize(("name", "capability", "fp16", "bf16", "tf32", "fp8"), NVIDIA)
def test_nvidia(name, capability, fp16, bf16, tf32, fp8):
    assert choose(facts(nvidia(name, capability))) == ("bf16" if bf16 == "tensor cores" else "fp16")


def test_a_gpu_newer_than_the_tables():
    assert choose(facts(nvidia("NVIDIA Next", (99, 0), bf16_native=True))) == "bf16"


@pytest.mark.parametrize(("chip", "fp16", "bf16", "fp8"), AMD)
def test_amd(chip, fp16, bf16, fp8):
    gpu = GpuFacts("amd", "AMD Instinct", 2**36, architecture=chip)
    assert choose(facts(gpu)) == ("bf16" if bf16 == "matrix units" else "fp16")


def test_apple():
    assert choose(facts(GpuFacts("apple", "Apple M2", 2**33))) == "fp32"


@pytest.mark.parametrize("cpu", CPUS)
def test_cpus(cpu):
    assert choose(on_cpu(*cpu[:4])) == ("bf16" if cpu[5] == "matrix units" else "fp32")


@pytest.mark.parametrize(
    ("precision", "machine", "said"),
    [
        (
            "tf32",
            facts(nvidia("Tesla T4", (7, 5))),
            "TF32 is for NVIDIA GPUs from compute capability 8.0; Tesla T4",
        ),
        ("tf32", facts(nvidia()), ""),
        (
            "tf32",
            facts(GpuFacts("amd", "AMD Instinct", 2**36, architecture="gfx942")),
            "AMD Instinct has none",
        ),
        (
            "bf16",
            facts(amp=AmpFacts(("float16",), "float16", True)),
            "torch.autocast does not take bfloat16 on",
        ),
        ("fp16", facts(amp=AmpFacts(("float16",), "float16", False)), "GradScaler does not work on"),
        ("fp16", facts(amp=AmpFacts(None, None, None)), ""),  # nothing is known: PyTorch will say
    ],
)
def test_what_a_device_lacks(precision, machine, said):
    assert said in lacks(precision, machine)
    assert bool(said) == bool(lacks(precision, machine))


def test_emulated_bf16_is_warned_of(monkeypatch):
    monkeypatch.setattr(
        precisions, "describe_device", lambda device: report(facts(nvidia("Tesla T4", (7, 5))))
    )
    with pytest.warns(UserWarning, match='Tesla T4 emulates BF16, which is slow: take "fp16" or "auto"'):
        assert precisions.resolved("bf16", torch.device("cuda")) == "bf16"
    assert precisions.resolved("auto", torch.device("cuda")) == "fp16"


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_the_scaler_is_always_there(precision):
    trainer = make_trainer(precision=precision)
    assert isinstance(trainer.scaler, torch.amp.GradScaler)
    assert trainer.scaler.is_enabled() == (precision == "fp16")


def test_weights_stay_fp32_and_products_are_in_16_bits():
    seen = []
    model = make_model()
    model[0].register_forward_hook(lambda _, __, output: seen.append(output.dtype))
    make_trainer(model, precision="bf16").fit(make_loader())
    assert set(seen) == {torch.bfloat16}
    assert {each.dtype for each in model.parameters()} == {torch.float32}


def test_the_emulation_of_cuda_reaches_into_it():
    """On CUDA, autocast computes `pow` in FP32; on a CPU, in the dtype of its input."""
    seen = []

    class Squared(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = make_model()

        def forward(self, inputs):
            result = self.net(inputs).pow(2)
            seen.append(result.dtype)
            return result

    plain, emulated = Squared(), Squared()
    make_trainer(plain, precision="fp16").fit(make_loader())
    with cuda_autocast(), tensor_cores():
        make_trainer(emulated, precision="fp16").fit(make_loader())
    assert (seen[0], seen[-1]) == (torch.float16, torch.float32)
    assert not same_bits(weights(plain), weights(emulated))
