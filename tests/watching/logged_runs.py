"""Small training loops that really run with `torch.amp.GradScaler("cpu")` and write down a log, each with one fault."""

import contextlib
import csv
import json
import warnings

import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

COLUMNS = ("step", "loss", "scale", "norm", "lr", "skipped")
STEPS = 120


def run(fault="", *, seed=0, steps=STEPS, init=2.0**14, interval=25, after=False, size=16.0):
    """Train, and return the rows of the log, counted from 1.

    `after` writes down the scale and the learning rate after `update()` and the scheduler's step, not before.
    """
    with torch.random.fork_rng(devices=[]), one_thread(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler", UserWarning)
        torch.default_generator.manual_seed(seed)
        return _Loop(fault, init, interval, after, size).rows(steps)


@contextlib.contextmanager
def one_thread():
    """On a machine that others use, two threads for such small tensors wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Loop:
    def __init__(self, fault, init, interval, after, size):
        self.fault, self.interval, self.after, self.size = fault, interval, after, size
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
        self.teacher = torch.randn(16, 4) / 2
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.97)
        self.init = init
        self.scaler = self._scaler(init)
        self.skipped = False

    def _scaler(self, init):
        interval = 1 if self.fault == "grows" else self.interval
        return torch.amp.GradScaler(
            "cpu", init_scale=init, growth_interval=interval, enabled=self.fault != "underflow"
        )

    def rows(self, steps):
        return [self.step(step) for step in range(1, steps + 1)]

    def step(self, step):
        if (self.fault == "epochs" and step % 30 == 0) or (self.fault == "restart" and step == 61):
            self.scaler = self._scaler(self.init if self.fault == "epochs" else 2.0**16)
        if not (self.fault == "no zero_grad" and self.skipped):
            self.optimizer.zero_grad()
        loss = self.loss(step)
        self.scaler.scale(loss).backward()
        if self.fault == "backward" and step >= 50:
            self.model[0].weight.grad[0, 0] = torch.inf
        norm = self.clipped()
        scale, rate = self.scaler.get_scale(), self.scheduler.get_last_lr()[0]
        self.scaler.step(self.optimizer)
        self.scaler.update(self.init if self.fault == "fixed" else None)
        self.skipped = self.scaler.get_scale() < scale
        if self.fault == "fixed":
            self.skipped = norm != norm or norm == float("inf")
        if not self.skipped or self.fault == "scheduler":
            self.scheduler.step()
        if self.after:
            scale, rate = self.scaler.get_scale(), self.scheduler.get_last_lr()[0]
        return dict(zip(COLUMNS, (step, float(loss.detach()), scale, norm, rate, self.skipped), strict=True))

    def loss(self, step):
        inputs = torch.randn(32, 16)
        targets = inputs @ self.teacher
        if self.fault == "data" and step >= 50:
            inputs = inputs * 60000
        if self.fault == "nan" and step == 50:
            inputs[0, 0] = torch.nan
        size = 1e-9 if self.fault == "underflow" else self.size
        with torch.autocast("cpu", torch.float16):
            outputs = self.model(inputs)
            if self.fault == "underflow":
                outputs = _Small.apply(outputs)
        return size * (outputs.float() - targets).square().mean()

    def clipped(self):
        if self.fault not in ("scaled norm", "clip scaled"):
            self.scaler.unscale_(self.optimizer)
        norm = float(clip_grad_norm_(self.model.parameters(), 1.0 if self.fault == "clip scaled" else 100.0))
        if self.fault == "clip scaled":
            return float(torch.stack([p.grad.norm() for p in self.model.parameters()]).norm())
        return norm


class _Small(torch.autograd.Function):
    """Makes the gradient FP16, as any operator of the forward pass in FP16 does."""

    @staticmethod
    def forward(ctx, outputs):
        return outputs.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient.half()


def every(rows, count):
    """What a loop that logs each `count`th step has of these rows."""
    return [row for row in rows if row["step"] % count == 0]


def without(rows, *columns):
    return [{name: cell for name, cell in row.items() if name not in columns} for row in rows]


def write_csv(path, rows, separator=","):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=separator)
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
