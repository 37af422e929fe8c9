"""Models in DistributedDataParallel and in torch.compile: trained, saved, evaluated and measured like the plain one."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amp_lab.train.checkpoint import Checkpoints
from amp_lab.train.measure import count_flops, memory_account
from amp_lab.train.metrics import accuracy
from amp_lab.train.trainer import Trainer

DRAW = torch.Generator().manual_seed(1)
DATA = torch.utils.data.TensorDataset(
    torch.randn(24, 6, generator=DRAW), torch.randint(0, 3, (24,), generator=DRAW)
)
DEV = [DATA[:10], DATA[10:]]


@pytest.fixture
def alone():
    """A process group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def plain(model):
    return model


def compiled(model):
    return torch.compile(model, backend="eager")


def compiled_in_place(model):
    model.compile(backend="eager")
    return model


def both(model):
    return DistributedDataParallel(compiled(model))


def make(wrap, **settings):
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)
    model = wrap(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    settings = {"accumulate": 2, "clip_norm": 1.0, "metrics": {"accuracy": accuracy}, **settings}
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, device="cpu", seed=5, progress=False, **settings)


def loader():
    return torch.utils.data.DataLoader(DATA, 4, shuffle=True)


@pytest.mark.parametrize(
    ("wrap", "precision"), [(DistributedDataParallel, "fp16"), (compiled_in_place, "fp16"), (both, "bf16")]
)
def test_a_run_is_that_of_the_plain_model_and_can_be_resumed(tmp_path, alone, wrap, precision):
    as_it_is = make(plain, precision=precision)
    as_it_is.fit(loader(), DEV, epochs=2)
    checkpoints = Checkpoints(tmp_path)
    broken = make(wrap, precision=precision, checkpoints=checkpoints)
    broken.callback = lambda _: broken.step == 4 and broken.stop()
    broken.fit(loader(), DEV, epochs=2)
    assert broken.step == 4
    resumed = make(wrap, precision=precision, checkpoints=Checkpoints(tmp_path))
    resumed.fit(loader(), DEV, epochs=2, resume=True)
    assert resumed.history == as_it_is.history
    assert resumed.evaluate(DEV) == as_it_is.evaluate(DEV)
    unwrapped = make(plain, precision=precision)
    unwrapped.load(checkpoints.newest)
    for name, weight in as_it_is.model.state_dict().items():
        assert torch.equal(unwrapped.model.state_dict()[name], weight), name


@pytest.mark.parametrize("wrap", [DistributedDataParallel, compiled, compiled_in_place])
def test_what_is_measured_is_the_model_inside(alone, wrap):
    accounts, counts = [], []
    for each in (plain, wrap):
        trainer = make(each, precision="bf16")
        trainer.fit(loader())
        step = trainer.model, trainer.loss_fn, DATA[:8]
        accounts.append(memory_account(*step, optimizer=trainer.optimizer, dtype=torch.bfloat16))
        counts.append(count_flops(*step, dtype=torch.bfloat16))
        trainer.fit(loader(), epochs=2)  # what was hung in to measure is out again
    assert accounts[1].categories == accounts[0].categories
    assert counts[1].flops == counts[0].flops
    assert not nn.modules.module._has_any_global_hook()
