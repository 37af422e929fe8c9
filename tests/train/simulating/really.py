"""Does what the programs of the simulator say with real processes' DDP, GradScaler and collectives."""

import contextlib
import math
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from amp_lab.train.ddp_simulator import (
    AllReduce,
    Backward,
    Barrier,
    Broadcast,
    Clip,
    Forward,
    NoSync,
    SetGradient,
    Skip,
    Step,
    Unscale,
    Update,
)
from amp_lab.train.simulating.programs import next_token, read

BUCKETS = 3
SIZE = 300_000  # FP32 numbers of a bucket: more than a MB, so that DDP makes a bucket of each parameter
SETTINGS = {"buckets": BUCKETS, "bucket_mb": 4 * SIZE / 1e6, "init_scale": 2.0**10, "growth_interval": 2}


class Products(nn.Module):
    """The loss is the sum of w·g over the weights, so that the gradients are g; in FP16, as under autocast."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(SIZE) for _ in range(BUCKETS)])

    def forward(self, gradients):
        # Backward begins with what was computed last, so bucket 0 holds the last weight.
        pairs = zip(self.weights, reversed(gradients), strict=True)
        return sum((weight.half() * gradient).float().sum() for weight, gradient in pairs)


HOOKS = {
    "none": default_hooks.allreduce_hook,
    "fp16": default_hooks.fp16_compress_hook,
    "bf16": default_hooks.bf16_compress_hook,
}


class Machine:
    """One rank. It follows a program as `simulate` does, and notes what has become of it."""

    def __init__(self, rank, group=None, compress="none"):
        self.rank, self.group, self.hook = rank, group, HOOKS[compress]
        self.model = DistributedDataParallel(Products(), bucket_cap_mb=1, process_group=group)
        self.weights = list(self.model.module.weights)[::-1]  # by bucket
        self.model.register_comm_hook(group, self._send)
        for bucket, weight in enumerate(self.weights):
            weight.register_hook(lambda _, bucket=bucket: self.log.append(f"gradient {bucket}"))
        self.begin()
        for _ in range(
            2
        ):  # DDP sends the first step's gradients in one bucket, and makes its buckets only then
            self.do(Forward())
            self.do(Backward(gradients=0.0))

    def begin(self):
        """Forget all that has been trained."""
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.optimizer.register_step_post_hook(self._note)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
        self.log, self.skipped, self.found, self.norms = [], [], [], []
        self.scales = [self.scaler.get_scale()]
        self._moved = False
        for weight in self.weights:
            weight.data.zero_()
            weight.grad = None

    def follow(self, program, ranks=2):
        self.begin()
        running, given = read(program, ranks)[self.rank], None
        with contextlib.suppress(StopIteration):
            while True:
                given = self.do(next_token(running, given))

    def facts(self):
        names = ("log", "skipped", "found", "norms", "scales")
        return {name: getattr(self, name) for name in names} | {
            "weights": [each[0].item() for each in self.weights]
        }

    def do(self, token):
        match token:
            case NoSync():
                with self.model.no_sync():
                    for each in token.tokens:
                        self.do(each)
            case Forward():
                self._gradients = [torch.tensor(0.0, dtype=torch.float16) for _ in range(BUCKETS)]
                self._loss = self.model(self._gradients)
                return token.loss
            case Backward():
                several = isinstance(token.gradients, list)
                for place, gradient in enumerate(self._gradients):
                    # Backward reads what forward has kept; so they can be filled in until then.
                    gradient.data.fill_(token.gradients[place] if several else token.gradients)
                self.scaler.scale(self._loss).backward()
            case SetGradient():
                self.weights[token.bucket].grad[0] = token.value
            case Unscale():
                self.scaler.unscale_(self.optimizer)
                self.found.append(not all(weight.grad.isfinite().all() for weight in self.weights))
                return self.found[-1]
            case Clip():
                # The simulator has one number for a whole bucket.
                many = math.sqrt(SIZE)
                norm = nn.utils.clip_grad_norm_(self.model.parameters(), many * token.max_norm)
                self.norms.append(norm.item() / many)
                return self.norms[-1]
            case Step():
                self._moved = False
                self.scaler.step(self.optimizer)
                self.optimizer.zero_grad()
                self.skipped.append(not self._moved)
                return self._moved
            case Skip():
                self.optimizer.zero_grad()
                self.skipped.append(True)
            case Update():
                self.scaler.update()
                self.scales.append(self.scaler.get_scale())
                return self.scales[-1]
            case AllReduce():
                return self._talk(dist.all_reduce, token.value)
            case Broadcast():
                return self._talk(dist.broadcast, token.value, src=token.source)
            case Barrier():
                dist.barrier(self.group)
        return None

    def _talk(self, function, value, **options):
        number = torch.tensor(float(value))
        function(number, group=self.group, **options)
        return number.item()

    def _send(self, group, bucket):
        self.log.append(f"bucket {bucket.index()}")
        return self.hook(group, bucket)

    def _note(self, *_):
        self._moved = True


def follow_all(rank, programs):
    """Follow programs one after the other, each from the start; return the facts of each.

    Args:
        programs: pairs of a program and what `compress` is.
    """
    facts = []
    machines = {compress: Machine(rank, compress=compress) for compress in HOOKS}
    for program, compress in programs:
        machines[compress].follow(program)
        facts.append(machines[compress].facts())
    return facts


def follow_until_timeout(rank, programs, seconds):
    """The same with programs that may hang, each in a process group of its own; return (error or "", facts) of each."""
    groups = [dist.new_group(timeout=timedelta(seconds=seconds)) for _ in programs]
    ends = []
    for program, group in zip(programs, groups, strict=True):
        machine, error = Machine(rank, group), ""
        try:
            machine.follow(program)
        except RuntimeError as problem:
            error = str(problem)
        ends.append((error, machine.facts()))
        dist.barrier()
    return ends
