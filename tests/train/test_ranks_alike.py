"""What ranks must have alike, fact by fact: two Trainers that differ in one thing, and each other's answers."""

from typing import ClassVar

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from amp_lab.train.distributed.failures import RanksDiffer
from amp_lab.train.distributed.ranks import Ranks
from amp_lab.train.trainer import Trainer
from amp_lab.train.training.alike import check_alike, check_dealing
from tests.train.small_runs import DATA


class Recording(Ranks):
    """Rank 0 of two, which notes what it would tell the other."""

    size = 2

    def __init__(self, other=()):
        self._other, self.told = iter(other), []

    def gather(self, value):
        self.told.append(value)
        return [value, next(self._other, value)]

    def settings(self):
        return {"broadcast_buffers": True, **self.more}

    more: ClassVar = {}


def made(kind=torch.optim.SGD, schedule=None, every=None, groups=False, **settings):
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    weights = (
        [{"params": [model.weight]}, {"params": [model.bias], "lr": groups}] if groups else model.parameters()
    )
    optimizer = kind(weights, lr=0.1)
    if schedule:
        settings |= {"scheduler": schedule(optimizer), "scheduler_every": every or "step"}
    settings = {"precision": "fp32", "device": "cpu", "progress": False} | settings
    return Trainer(model, nn.CrossEntropyLoss(), optimizer, **settings)


def told(trainer, ranks, loader=None, dev=None, epochs=1, resume=False):
    trainer.ranks = ranks
    sampler = DistributedSampler(DATA, 2, 0)
    check_alike(trainer, loader or DataLoader(DATA, 4, sampler=sampler), dev, epochs, resume)
    return ranks.told


def scaler(**settings):
    return {"precision": "fp16", "scaler": torch.amp.GradScaler("cpu", **settings)}


def changed(change, **settings):
    trainer = made(**settings)
    change(trainer)
    return trainer


def add_to_the_bias(trainer):
    with torch.no_grad():
        trainer.model.bias[0] += 1e-3


def loader(size=4, **settings):
    return DataLoader(DATA, size, sampler=DistributedSampler(DATA, 2, 0, **settings))


def step_lr(size):
    return lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, size)


def cosine(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)


STEPS = {"schedule": step_lr(3)}
# What the error names: how rank 0 is made and asked, and rank 1.
DIFFERENCES = {
    "accumulate": (made(), made(accumulate=2)),
    "clip_norm": (made(), made(clip_norm=1.0)),
    "on_nonfinite": (made(), made(on_nonfinite="skip")),
    "precision": (made(), made(precision="bf16")),
    r"seed \(Trainer adds": (made(seed=0), made(seed=1)),
    "the names of metrics": (made(), made(metrics={"one": lambda *_: 1.0})),
    "whether there are checkpoints": (made(), made(checkpoints="a")),
    "the loss scale": (made(**scaler()), made(**scaler(init_scale=4.0))),
    "growth_interval of the scaler": (made(**scaler()), made(**scaler(growth_interval=3))),
    "the optimizer": (made(), made(torch.optim.Adam)),
    "momentum of the optimizer": (
        made(),
        changed(lambda trainer: trainer.optimizer.param_groups[0].update(momentum=0.9)),
    ),
    "lr of the optimizer, group 1": (made(groups=0.1), made(groups=0.2)),
    "the number of parameter groups": (made(), made(groups=0.1)),
    "params of the optimizer": (
        made(),
        changed(lambda trainer: trainer.optimizer.param_groups[0]["params"].pop()),
    ),
    "the scheduler": (made(**STEPS), made(schedule=cosine)),
    "step_size of the scheduler": (made(**STEPS), made(schedule=step_lr(4))),
    "scheduler_every": (made(**STEPS), made(**STEPS, every="epoch")),
    "how many steps are done": (made(), changed(lambda trainer: setattr(trainer, "step", 1))),
    "the weight 'bias'": (made(), changed(add_to_the_bias)),
}


@pytest.mark.parametrize("what", DIFFERENCES)
def test_trainers_that_differ(what):
    first, second = DIFFERENCES[what]
    others = told(second, Recording())
    with pytest.raises(RanksDiffer, match=f"^{what}"):
        told(first, Recording(others))


ASKED = {
    "epochs": {"epochs": 2},
    "resume": {"resume": "a"},
    "whether there is a dev_loader": {"dev": [0]},
    "the number of batches in train_loader": {"loader": loader(8)},
    "the DistributedSampler of train_loader .*'seed': 0.* on rank 0, .*'seed': 1": {"loader": loader(seed=1)},
    "the DistributedSampler of train_loader .*'shuffle': False": {"loader": loader(shuffle=False)},
}


@pytest.mark.parametrize("what", ASKED)
def test_calls_that_differ(what):
    with pytest.raises(RanksDiffer, match=f"^{what}"):
        told(made(), Recording(told(made(), Recording(), **ASKED[what])))


def test_models_that_are_wrapped_otherwise():
    other = Recording()
    other.more = {"find_unused_parameters": True}
    mine = Recording(told(made(), other))
    mine.more = {"find_unused_parameters": False}
    with pytest.raises(RanksDiffer, match=r"^find_unused_parameters of DistributedDataParallel"):
        told(made(), mine)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        STEPS,
        {"schedule": lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)},
        {"schedule": lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 5])},
        {"schedule": torch.optim.lr_scheduler.ReduceLROnPlateau, "every": "epoch"},
        {"kind": torch.optim.AdamW, **scaler()},
        {"kind": lambda weights, lr: torch.optim.Adam(weights, torch.tensor(lr))},
        {"groups": 0.2, "accumulate": 2},
    ],
)
def test_equals_are_let_through(settings):
    others = told(made(**settings), Recording())
    assert len(told(made(**settings), Recording(others))) == 2


def test_what_is_nan_on_both_is_left_to_others():
    def spoil(trainer):
        trainer.model.bias.data[0] = torch.nan
        trainer.optimizer.param_groups[0]["lr"] = torch.nan

    told(changed(spoil), Recording(told(changed(spoil), Recording())))
    with pytest.raises(RanksDiffer, match=r"^lr of the optimizer"):
        told(made(), Recording(told(changed(spoil), Recording())))


def test_a_sampler_that_deals_out_to_others():
    for sampler in (DistributedSampler(DATA, 2, 1), DistributedSampler(DATA, 1, 0)):
        with pytest.raises(ValueError, match="this is rank 0 of 2: make it with num_replicas=2, rank=0"):
            check_dealing(Recording(), DataLoader(DATA, 4, sampler=sampler))
        check_dealing(Ranks(), DataLoader(DATA, 4, sampler=sampler))
    check_dealing(Recording(), loader())
    check_dealing(Recording(), [1, 2])
