"""Checkpoints of a run on a GPU: onto the CPU and back, and the random numbers of its dropout."""

import pytest
import torch
from torch import nn

from amp_lab.train.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from amp_lab.train.saving import random_states
from amp_lab.train.trainer import Trainer

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="no CUDA device: states on a GPU, and its random generator, are not saved and loaded",
    ),
]


def test_onto_the_cpu_and_back(tmp_path):
    weight = torch.randn(100, 100, device="cuda", dtype=torch.bfloat16)
    path = save_checkpoint(tmp_path / "a.pt", {"weight": weight, "row": weight[3]})
    assert path.stat().st_size < 25_000
    on_cpu = load_checkpoint(path)
    assert on_cpu["weight"].device.type == "cpu"
    assert torch.equal(on_cpu["weight"], weight.cpu())
    assert torch.equal(on_cpu["row"], weight[3].cpu())
    back = load_checkpoint(path, map_location="cuda")
    assert back["weight"].device.type == "cuda"
    assert torch.equal(back["weight"], weight)


def test_dropout_goes_on(tmp_path):
    ones = torch.ones(1000, device="cuda")
    path = save_checkpoint(tmp_path / "a.pt", random_states.capture())
    first = nn.functional.dropout(ones)
    assert not torch.equal(nn.functional.dropout(ones), first)
    random_states.restore(load_checkpoint(path))
    assert torch.equal(nn.functional.dropout(ones), first)


def trainer(folder):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 4))
    return Trainer(
        model,
        nn.CrossEntropyLoss(),
        torch.optim.AdamW(model.parameters()),
        precision="fp16",
        device="cuda",
        checkpoints=Checkpoints(folder, every=3),
        seed=0,
        progress=False,
    )


@pytest.mark.parametrize("stop", [3, 7])
def test_a_run_goes_on_in_every_bit(tmp_path, stop):
    data = [(torch.randn(16, 8), torch.randint(0, 4, (16,))) for _ in range(5)]
    whole = trainer(tmp_path / "whole")
    whole.fit(data, epochs=3)

    broken = trainer(tmp_path / "broken")
    broken.callback = lambda _: broken.step == stop and broken.stop()
    broken.fit(data, epochs=3)
    assert broken.step == stop
    resumed = trainer(tmp_path / "broken")
    resumed.fit(data, epochs=3, resume=True)

    assert resumed.history == whole.history
    assert resumed.scaler.state_dict() == whole.scaler.state_dict()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name
