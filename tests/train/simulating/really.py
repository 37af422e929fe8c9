"""Does what the programs of the simulator say with real processes' DDP, GradScaler and collectives."""

import contextlib
import math
from concurrent.futures import ThreadPoolExecutor
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
        self._losses = []  # with the gradients that each will give
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
                gradients = [torch.tensor(0.0, dtype=torch.float16) for _ in range(BUCKETS)]
                self._losses.append((self.model(gradients), gradients))
                return token.loss
            case Backward():
                several = isinstance(token.gradients, list)
                loss, gradients = self._losses.pop()
                for place, gradient in enumerate(gradients):
                    # Backward reads what forward has kept; so they can be filled in until then.
                    gradient.data.fill_(token.gradients[place] if several else token.gradients)
                self.scaler.scale(loss).backward()
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


def follow_all(rank, sound, hanging, seconds):
    """Follow programs, each from the start.

    Args:
        sound: pairs of a program and what `compress` is.
        hanging: programs that need a timeout.
        seconds: the timeout.

    Returns:
        the facts of each sound program, and (error or "", facts) of each of the others.
    """
    facts = []
    machines = {compress: Machine(rank, compress=compress) for compress in HOOKS}
    for program, compress in sound:
        machines[compress].follow(program)
        facts.append(machines[compress].facts())
    return facts, _follow_until_timeout(rank, hanging, seconds)


def follow_in_pairs(rank, programs, seconds):
    """Follow one program by ranks 0 and 1, the next by 2 and 3, and so on; return (error or "", facts)."""
    pairs = [(2 * place, 2 * place + 1) for place in range(len(programs))]
    groups = [dist.new_group(pair, timeout=timedelta(seconds=seconds)) for pair in pairs]
    machine = Machine(rank % 2, groups[rank // 2])
    return _end(machine, programs[rank // 2])


def _follow_until_timeout(rank, programs, seconds):
    """Follow each in a process group and a thread of its own, so that all time out together."""
    groups = [dist.new_group(timeout=timedelta(seconds=seconds)) for _ in programs]
    machines = [Machine(rank, group) for group in groups]
    dist.barrier()
    with ThreadPoolExecutor(len(programs)) as threads:
        ends = list(threads.map(_end, machines, programs))
    dist.barrier()  # who ends first closes the others' connections
    return ends


def _end(machine, program):
    try:
        machine.follow(program)
    except RuntimeError as problem:
        return str(problem), machine.facts()
    return "", machine.facts()
