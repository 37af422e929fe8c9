"""What launched processes run in tests: a small Trainer under DDP, on which something happens at a step of one rank."""

import contextlib
import os
import signal
import time

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset

from amp_lab.train import ddp
from amp_lab.train.checkpoint import Checkpoints
from amp_lab.train.distributed import roll_call
from amp_lab.train.distributed.errors import exit_code
from amp_lab.train.distributed.joining import joined
from amp_lab.train.trainer import Trainer
from tests.train.small_runs import DATA, make_model


def die(trainer):
    os.kill(os.getpid(), signal.SIGKILL)


def fail(trainer):
    raise ValueError("the cat has eaten sample 7")


def hang(trainer):
    print("hangs", flush=True)
    time.sleep(1000)


def freeze(trainer):
    print("freezes", flush=True)
    os.kill(os.getpid(), signal.SIGSTOP)


def sigterm(trainer):
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt(trainer):
    os.kill(os.getpid(), signal.SIGINT)


class Left(Exception):
    """The program ends here, as if it were through."""


def leave(trainer):
    raise Left


def save_alone(trainer):
    trainer.save(os.devnull)


def nothing(trainer):
    pass


class Odd(nn.Module):
    """Does something at a step, and then is the model it has."""

    def __init__(self, model, happens):
        super().__init__()
        self.model, self.happens = model, happens

    def forward(self, inputs):
        if self.training:
            self.happens()
        return self.model(inputs)


def program(happens=nothing, rank=1, step=5, timeout=60.0, folder=None, early=False, slow=0.0, epochs=50):
    """Train; at a step of a rank, `happens(trainer)` in its forward pass."""
    return exit_code(lambda: _train(happens, rank, step, timeout, folder, early, slow, epochs))


def _train(happens, rank, step, timeout, folder, early, slow, epochs):
    with joined(timeout, device="cpu") as group:
        if early:
            group.pulse.speak_early()

        def at_step():
            time.sleep(slow)
            if group.rank == rank and trainer.step == step:
                happens(trainer)

        model = DistributedDataParallel(Odd(make_model(), at_step))
        trainer = Trainer(
            model,
            nn.CrossEntropyLoss(),
            torch.optim.SGD(model.parameters(), lr=0.01),
            precision="fp32",
            device="cpu",
            checkpoints=Checkpoints(folder, every=4) if folder else None,
            progress=False,
            callback=lambda record: print("step", trainer.step, flush=True),
        )
        sampler = DistributedSampler(DATA, group.size, group.rank)
        with contextlib.suppress(Left), group.following(trainer) as stopping:
            trainer.fit(DataLoader(DATA, 4, sampler=sampler), epochs=epochs, resume=folder is not None)
        print("ended", trainer.step, trainer.stopped, flush=True)
        return stopping.exit_code(trainer.stopped) if trainer.stopped else 0


def script_with_other(what, options):
    """Run the script; what rank 1 has, its data or its code, is not what rank 0 has."""
    if os.environ["RANK"] == "1" and what == "data":
        ddp.make_data = lambda options: (Subset(DATA, range(7)), DATA)
    if os.environ["RANK"] == "1" and what == "code":
        roll_call._code = lambda: "of tomorrow"
    return ddp.main(options)


def script_on(gpus, without, options):
    """Run the script as with so many GPUs, and a PyTorch that was built without a backend."""
    setattr(torch.distributed, f"is_{without}_available", lambda: False)
    torch.cuda.is_available = lambda: gpus > 0
    torch.cuda.device_count = lambda: gpus
    torch.cuda.set_device = lambda device: None
    return ddp.main(options)
