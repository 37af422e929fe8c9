"""A training run that can be killed: FP16 with a scaler, accumulation, dropout, shuffling, augmentation, a scheduler.

It runs in a process forked from one that has imported torch and done nothing with it, which takes milliseconds. What
kills it stands here and not in amp_lab: functions of the operating system are replaced in the child.
"""

import hashlib
import io
import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from amp_lab.train.checkpoint import Checkpoints
from amp_lab.train.metrics import accuracy
from amp_lab.train.trainer import Trainer

EPOCHS, SAMPLES, BATCH, ACCUMULATE, EVERY = 3, 44, 4, 2, 2
SECONDS = 60  # more than any run takes


class Noisy(Dataset):
    """Data with an augmentation from every generator there is."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        noise = torch.rand(6) + torch.from_numpy(np.random.rand(6)).float() + random.random()
        return torch.sin(torch.arange(6.0) * index) + 0.1 * noise, torch.tensor(index % 3)


def make():
    """Return a Trainer that has begun nothing, and its loaders; the same each time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss(),
        optimizer,
        scheduler=torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=100),
        precision="fp16",
        device="cpu",
        accumulate=ACCUMULATE,
        clip_norm=1.0,
        metrics={"accuracy": accuracy},
        # Begins above what FP16 can hold, and grows often: steps are skipped in every part of the run.
        scaler=torch.amp.GradScaler("cpu", init_scale=2.0**18, growth_interval=3),
        seed=0,
        progress=False,
    )
    return trainer, DataLoader(Noisy(), BATCH, shuffle=True), DataLoader(Noisy(), BATCH, shuffle=True)


def digest(trainer):
    """Every bit of what a run ends with, seconds left out."""
    final = trainer.state_dict()
    final["history"] = [
        trainer.history.steps,
        [record._replace(seconds=0.0) for record in trainer.history.epochs],
    ]
    sums = {name: hashlib.sha256(bits(value)).hexdigest() for name, value in final.items()}
    return sums | {"steps": trainer.step, "skipped": sum(trainer.history.skipped)}


def bits(value):
    """Return a value's bytes; equal values have the same, NaN too."""
    if isinstance(value, torch.Tensor):
        return value.contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return b"{" + b",".join(repr(key).encode() + bits(one) for key, one in value.items()) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(map(bits, value)) + b"]"
    return repr(value).encode()


def run(folder, kill, answer):
    """Train to the end, or until killed; send how it ended. `kill`: (point, at which save) or None."""
    torch.set_num_threads(1)
    if kill:
        POINTS[kill[0]](kill[1])
    trainer, train_loader, dev_loader = make()
    trainer.checkpoints = Checkpoints(folder, every=EVERY, keep=2, best="max accuracy")
    answer.send("begun")
    started = time.monotonic()
    trainer.fit(train_loader, dev_loader, epochs=EPOCHS, resume=True)
    answer.send(json.dumps(digest(trainer) | {"seconds": time.monotonic() - started}))


class Forks:
    """Starts runs as forks of a clean process, and kills them."""

    def __init__(self):
        self._context = multiprocessing.get_context("forkserver")
        # Optimizers import torch._dynamo when they are first made.
        self._context.set_forkserver_preload(["amp_lab.train.trainer", "torch._dynamo", "torch.utils.data"])

    def __call__(self, folder, kill=None, after=None):
        """Return what a run ended with, or None if it was killed, by itself or after so many seconds."""
        mine, theirs = self._context.Pipe()
        child = self._context.Process(target=run, args=(Path(folder), kill, theirs))
        child.start()
        theirs.close()
        try:
            if not mine.poll(SECONDS) or mine.recv() != "begun":
                raise AssertionError("the run did not begin")
            if after is not None:
                time.sleep(after)
                child.kill()
            child.join(SECONDS)
            assert child.exitcode in (0, -signal.SIGKILL), f"the run ended with {child.exitcode}"
            return json.loads(mine.recv()) if child.exitcode == 0 else None
        finally:
            child.kill()
            child.join()
            mine.close()


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def _nth(many, before, original):
    """Replace a function: at its nth call die, before or after it has done its work."""
    calls = 0

    def replaced(*args, **options):
        nonlocal calls
        calls += 1
        if calls == many and before:
            die()
        result = original(*args, **options)
        if calls == many:
            die()
        return result

    return replaced


def _before_writing(many):
    torch.save = _nth(many, True, torch.save)


def _while_writing(many):
    """The first half of the file reaches the disk."""
    original, calls = torch.save, 0

    def replaced(state, file):
        nonlocal calls
        calls += 1
        if calls == many:
            whole = io.BytesIO()
            original(state, whole)
            file.write(memoryview(whole.getvalue()[: len(whole.getvalue()) // 2]))
            file._file.flush()
            die()
        original(state, file)

    torch.save = replaced


def _written_not_synced(many):
    os.fsync = _nth(2 * many - 1, True, os.fsync)  # each save syncs the file, then the folder


def _before_rename(many):
    os.replace = _nth(many, True, os.replace)


def _after_rename(many):
    os.replace = _nth(many, False, os.replace)


def _after_sync_of_folder(many):
    os.fsync = _nth(2 * many, False, os.fsync)


def _while_removing_old(many):
    """The temporary names are gone by then, so that each unlink that finds a file removes an old checkpoint."""
    original, calls = os.unlink, 0

    def replaced(path, **options):
        nonlocal calls
        original(path, **options)
        calls += 1
        if calls == many:
            die()

    os.unlink = replaced


POINTS = {
    "before writing": _before_writing,
    "while writing": _while_writing,
    "written, not synced": _written_not_synced,
    "before the rename": _before_rename,
    "after the rename": _after_rename,
    "after the folder was synced": _after_sync_of_folder,
    "while old ones are removed": _while_removing_old,
}
