"""The Trainer on a CUDA device: model and batches are moved, precisions are real, checkpoints go to a CPU and back."""

import pytest
import torch
from torch import nn

from amp_lab.device import describe_device
from amp_lab.train.checkpoint import Checkpoints
from amp_lab.train.precision import choose
from amp_lab.train.trainer import Trainer
from amp_lab.train.training.errors import OutOfMemory

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device: the Trainer is not tried on a GPU"
    ),
]


def parts(width=32, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Dropout(0.1), nn.Linear(width, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, **settings)


def loader(**settings):
    generator = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(70, 8, generator=generator), torch.randint(0, 4, (70,), generator=generator)
    data = torch.utils.data.TensorDataset(inputs, targets)
    return torch.utils.data.DataLoader(data, 16, shuffle=True, generator=generator, **settings)


def native(precision):
    kinds = {"tf32": "TF32", "bf16": "BF16"}
    if precision in kinds and describe_device("cuda").support(kinds[precision]).kind != "tensor cores":
        pytest.skip(f"this GPU has no {kinds[precision]}: the Trainer is not tried with it")


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_it_learns(precision, fused):
    native(precision)
    model, optimizer = parts(fused=fused)
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss(),
        optimizer,
        precision=precision,
        accumulate=2,
        clip_norm=1.0,
        seed=0,
        progress=False,
    )
    history = trainer.fit(loader(pin_memory=True), loader(), epochs=8)
    assert trainer.device.type == next(model.parameters()).device.type == "cuda"
    assert trainer.scaler.is_enabled() == (precision == "fp16")
    assert history.epochs[-1].dev_loss < history.epochs[0].dev_loss


def test_auto_is_what_choose_says():
    model, optimizer = parts()
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, progress=False)
    assert trainer.precision == choose(describe_device(trainer.device).facts)
    assert trainer.precision in ("bf16", "fp16")


def test_fp32_is_fp32_and_the_switches_are_put_back():
    """A product of numbers that TF32 rounds: with `allow_tf32` on around fit, the loss is exact all the same."""
    old = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        model = nn.Linear(64, 64, bias=False)
        nn.init.constant_(model.weight, 1 + 2**-12)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        trainer = Trainer(model, lambda out, _: out.mean(), optimizer, precision="fp32", progress=False)
        history = trainer.fit([(torch.ones(64, 64), torch.ones(1))])
        assert history.losses == [64 * (1 + 2**-12)]
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = old


def test_an_optimizer_that_has_stepped_on_the_cpu_goes_along():
    model, optimizer = parts()
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    Trainer(model, nn.CrossEntropyLoss(), optimizer, progress=False).fit(loader())
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert {each.device.type for each in moments} == {"cuda"}


def test_an_overflow_is_skipped_and_the_scale_falls():
    model, optimizer = parts(fused=True)
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**30)
    trainer = Trainer(
        model, nn.CrossEntropyLoss(), optimizer, precision="fp16", scaler=scaler, progress=False
    )
    history = trainer.fit(loader(), epochs=6)
    assert history.skipped[0]
    assert not history.skipped[-1]


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_resume_is_exact(tmp_path, precision):
    native(precision)

    def make(**settings):
        model, optimizer = parts()
        return Trainer(
            model, nn.CrossEntropyLoss(), optimizer, precision=precision, seed=4, progress=False, **settings
        )

    undisturbed = make()
    undisturbed.fit(loader(), loader(), epochs=3)
    first = make(
        checkpoints=Checkpoints(tmp_path),
        callback=lambda record: first.stop() if first.step == 7 else None,
    )
    first.fit(loader(), loader(), epochs=3)
    second = make(checkpoints=Checkpoints(tmp_path))
    second.fit(loader(), loader(), epochs=3, resume=True)
    assert second.history == undisturbed.history
    for one, other in zip(second.model.parameters(), undisturbed.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_of_the_gpu_on_a_cpu(tmp_path):
    model, optimizer = parts()
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, precision="fp32", progress=False)
    trainer.fit(loader())
    trainer.save(tmp_path / "run.pt")
    other, optimizer = parts()
    on_cpu = Trainer(other, nn.CrossEntropyLoss(), optimizer, precision="fp32", device="cpu", progress=False)
    on_cpu.load(tmp_path / "run.pt")
    assert torch.equal(other[0].weight, model[0].weight.cpu())
    on_cpu.fit(loader(), epochs=2)


def test_out_of_memory_says_what_to_try():
    class Huge(nn.Linear):
        def forward(self, inputs):
            torch.empty(2**50, dtype=torch.uint8, device=inputs.device)
            return super().forward(inputs)

    model = Huge(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = Trainer(model, nn.CrossEntropyLoss(), optimizer, precision="fp32", progress=False)
    with pytest.raises(OutOfMemory, match="half the batch size and accumulate=2"):
        trainer.fit(loader())
