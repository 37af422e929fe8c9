"""Train one model with several processes and mixed precision: a script to run, and to copy from.

    python -m amp_lab.train.ddp                                                 # one process
    python -m amp_lab.train.ddp --spawn 2                                       # two, without torchrun
    torchrun --standalone --nproc-per-node 2 -m amp_lab.train.ddp --precision fp16 --epochs 3

    # On each of two machines; host1 is one of them. A process that dies brings all back from the last checkpoint.
    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint host1:29400 --max-restarts 3 \
        -m amp_lab.train.ddp --checkpoints /shared/run1 --every 50

When a rank fails, and after Ctrl+C, torchrun ends with a traceback and a report of its own, for which it has no switch:
what happened stands in the line above them. With --spawn, that line is all.

For a model and data of your own, change `make_data` and `make_model`. It reads from top to bottom: options, data,
model, then `train`, which each process runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import click
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset, random_split

from amp_lab.train.distributed.errors import exit_code, need_distributed, speaks_for_its_machine

if not torch.distributed.is_available():  # what follows cannot be imported then
    sys.exit(exit_code(need_distributed))

from amp_lab.train.checkpoint import CheckpointError, Checkpoints
from amp_lab.train.data import digits
from amp_lab.train.distributed.compression import compress_gradients
from amp_lab.train.distributed.fingerprint import fingerprint
from amp_lab.train.distributed.joining import joined
from amp_lab.train.distributed.launching import spawn
from amp_lab.train.distributed.shards import DevShard
from amp_lab.train.distributed.stopping import leave_signals
from amp_lab.train.metrics import accuracy
from amp_lab.train.models import digit_classifier
from amp_lab.train.precision import PRECISIONS
from amp_lab.train.trainer import NonFiniteLoss, OutOfMemory, Trainer

EXPLAINED = (CheckpointError, NonFiniteLoss, OutOfMemory)  # their messages say what to do


@dataclass(frozen=True)
class Options:
    """What the command line says; the same on all ranks."""

    precision: str = "auto"
    epochs: int = 3
    batch_size: int = 32
    accumulate: int = 1
    clip_norm: float | None = 1.0
    lr: float = 0.003
    compress: str = "none"
    checkpoints: str | None = None
    every: int | None = None
    on_nonfinite: str = "raise"
    seed: int = 0
    device: str = "auto"
    timeout: float = 600.0
    quiet: bool = False


def make_data(options: Options) -> tuple[Subset[Any], Subset[Any]]:
    """Return what to train on and what to measure with: the same on all ranks, which take parts."""
    data: Dataset[Any] = TensorDataset(*digits())
    train, dev = random_split(data, [0.8, 0.2], torch.Generator().manual_seed(0))
    return train, dev


def make_model(options: Options) -> nn.Module:
    """Return a model with FP32 weights, the same on all ranks."""
    return digit_classifier(dropout=0.1, seed=options.seed)


def train(options: Options) -> int:
    """Train, as one rank of those that the environment describes; return the exit code."""
    with joined(options.timeout, device=options.device) as group:
        train_data, dev_data = make_data(options)
        group.check_alike(options=asdict(options), data=fingerprint(train_data, dev_data))

        # Each epoch deals all samples out anew: Trainer calls `set_epoch`. On dev, once each.
        shard: DistributedSampler[Any] = DistributedSampler(
            train_data, group.size, group.rank, shuffle=True, seed=options.seed
        )
        # With num_workers=...: Ctrl+C must not end the workers before the run has stopped.
        workers: dict[str, Any] = {"worker_init_fn": leave_signals}
        train_loader = DataLoader(train_data, options.batch_size, sampler=shard, **workers)
        dev_loader = DataLoader(dev_data, 256, sampler=DevShard(dev_data), **workers)

        network = make_model(options).to(group.device)
        model = DistributedDataParallel(network)  # copies rank 0's weights, averages gradients
        compress_gradients(model, options.compress)
        optimizer = torch.optim.AdamW(model.parameters(), options.lr)
        # It moves each epoch, whose steps depend on the number of ranks. And it never reaches 0,
        # so a run can go on with more epochs than were planned.
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        path = options.checkpoints
        folder = Checkpoints(path, every=options.every) if path else None
        trainer = Trainer(
            model,
            nn.CrossEntropyLoss(),
            optimizer,
            scheduler=scheduler,
            scheduler_every="epoch",
            precision=options.precision,
            device=group.device,
            accumulate=options.accumulate,
            clip_norm=options.clip_norm,
            metrics={"accuracy": accuracy},
            on_nonfinite=options.on_nonfinite,
            checkpoints=folder,
            seed=options.seed,  # plus the rank: each has dropout masks of its own
            progress=not options.quiet,
        )
        if group.first and folder and folder.newest:
            click.echo(f"goes on from {folder.newest}, with its learning rate (--lr is for the start)")
        with group.following(trainer) as stopping:
            trainer.fit(train_loader, dev_loader, epochs=options.epochs, resume=bool(folder))
        if group.first:
            click.echo(summary(trainer))
        return stopping.exit_code(trainer.stopped) if trainer.stopped else 0


def summary(trainer: Trainer) -> str:
    """Return one line about how a run ended, and how to go on with one that was stopped."""
    saved = trainer.checkpoints.newest if trainer.checkpoints else None
    parts = [
        counted(trainer.epoch, "epoch"),
        counted(trainer.step, "step"),
        counted(trainer.ranks.size, "rank"),
        trainer.precision,
    ]
    if trainer.precision == "fp16":
        parts.append(f"loss scale {trainer.scaler.get_scale():g}")
    for last in trainer.history.epochs[-1:]:
        parts += [
            f"dev loss {last.dev_loss:.4f}",
            *(f"{name} {each:.4f}" for name, each in last.metrics.items()),
        ]
    parts.append(f"saved in {saved}" if saved else "nothing saved (--checkpoints DIR)")
    if trainer.stopped:
        go_on = "the same command goes on from there" if saved else "the next run starts anew"
        parts = [f"stopped ({trainer.stopped})", *parts, go_on]
    return ", ".join(parts)


def counted(number: int, what: str) -> str:
    """Return "1 step", "2 steps"."""
    return f"{number} {what}" + ("" if number == 1 else "s")


@click.command(context_settings={"default_map": asdict(Options()), "show_default": True})
@click.option("--precision", type=click.Choice(["auto", *PRECISIONS]))
@click.option("--epochs", type=click.IntRange(1), help="In all, those of a resumed run included.")
@click.option("--batch-size", type=click.IntRange(1), help="Of one rank.")
@click.option("--accumulate", type=click.IntRange(1), help="Batches to a step.")
@click.option("--clip-norm", type=click.FloatRange(0, min_open=True), help="Of all gradients together.")
@click.option(
    "--lr",
    type=click.FloatRange(0, min_open=True),
    help="Learning rate at the start of a run; one that goes on has its own.",
)
@click.option("--compress", type=click.Choice(["none", "fp16", "bf16"]), help="Gradients on the wire.")
@click.option("--checkpoints", type=click.Path(file_okay=False), help="Folder to save in, and to go on from.")
@click.option(
    "--every", type=click.IntRange(1), help="Steps from one checkpoint to the next; else after epochs."
)
@click.option(
    "--on-nonfinite", type=click.Choice(["raise", "stop", "skip"]), help="At a NaN or infinite loss."
)
@click.option("--seed", type=click.IntRange(0))
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]))
@click.option("--timeout", type=click.FloatRange(1), help="Seconds to wait for another rank.")
@click.option("--quiet", is_flag=True, help="No progress bar.")
@click.option("--spawn", "ranks", type=click.IntRange(1), help="Start so many processes, without torchrun.")
def command(ranks: int | None, **given: Any) -> int:
    """Train a model that reads digits, with several processes and mixed precision."""
    options = Options(**given)
    if options.every and not options.checkpoints:
        raise click.UsageError("--every says how often to save; say where, too: --checkpoints DIR")
    return rank(options) if ranks is None else exit_code(lambda: spawn(rank, ranks, options))


def rank(options: Options) -> int:
    """Be one process of a run; return the exit code, with what went wrong printed by one of them."""
    return exit_code(lambda: train(options), EXPLAINED)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; of a wrong option, one process of a machine tells."""
    try:
        return int(command.main(arguments, prog_name="amp_lab.train.ddp", standalone_mode=False) or 0)
    except click.ClickException as error:
        if speaks_for_its_machine():
            error.show()
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
