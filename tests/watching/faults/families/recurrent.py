"""Recurrent nets: a GRU cell written by hand, and one without gates."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.watching.faults.collection import Case, fault, healthy

FAMILY = "recurrent net"
BATCH, STEPS, WIDTH = 4, 8, 8


class Cell(nn.Module):
    """A GRU cell."""

    def __init__(self):
        super().__init__()
        self.inputs = nn.Linear(WIDTH, 3 * WIDTH)
        self.states = nn.Linear(WIDTH, 3 * WIDTH)

    def forward(self, x, state):
        reset, update, new = self.inputs(x).chunk(3, -1)
        reset_by, update_by, new_by = self.states(state).chunk(3, -1)
        reset, update = torch.sigmoid(reset + reset_by), torch.sigmoid(update + update_by)
        return (1 - update) * torch.tanh(new + reset * new_by) + update * state


class Plain(nn.Module):
    """A cell without gates: its state may grow."""

    def __init__(self, gain=0.5):
        super().__init__()
        self.inputs = nn.Linear(WIDTH, WIDTH)
        self.states = nn.Linear(WIDTH, WIDTH, bias=False)
        with torch.no_grad():
            self.states.weight.copy_(gain * torch.eye(WIDTH))

    def forward(self, x, state):
        return torch.relu(self.inputs(x)) + self.states(state)


class Reader(nn.Module):
    """Read a sequence, and give a vector for each."""

    def __init__(self, cell):
        super().__init__()
        self.cell = cell
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, sequence):
        state = torch.zeros(sequence.shape[0], WIDTH)
        for x in sequence.unbind(1):
            state = self.cell(x, state)
        return self.head(state)


class Tracker(Reader):
    """Add the states up, in place, in what they are."""

    def forward(self, sequence):
        state = torch.zeros(sequence.shape[0], WIDTH)
        total = torch.zeros(sequence.shape[0], WIDTH, dtype=torch.float16)
        for x in sequence.unbind(1):
            state = self.cell(x, state)
            total += 10_000 * (1 + state * state).to(total.dtype)
        return self.head(total.float() * 1e-5)


def sequences():
    return torch.randn(BATCH, STEPS, WIDTH)


def labels():
    return torch.randint(0, 3, (BATCH,))


@fault(
    "forward-overflow",
    "a state that grows 8 times a step",
    ops=("linear",),
    module="cell.states",
    phase="forward",
)
def growing_state():
    return Case(Reader(Plain(8.0)), F.cross_entropy, (sequences().abs() + 1, labels()))


@fault(
    "forward-overflow",
    "states, times 10 000, added up in FP16",
    ops=("add_", "add", "iadd"),
    module="",
    phase="forward",
)
def states_added_in_place():
    return Case(Tracker(Cell()), F.cross_entropy, (sequences(), labels()))


@fault(
    "scale-too-large",
    "states grow 4 times a step, and so do gradients, backwards; that of the head's weights is the first",
    ops=("linear",),
    module="head",
    phase="backward",
    cures=True,
)
def gradients_grow_backwards():
    model = Reader(Plain(4.0))
    with torch.no_grad():
        model.cell.inputs.bias.zero_()
    return Case(model, F.cross_entropy, (sequences() * 1e-3, labels()))


@fault(
    "backward-overflow",
    "gradients that grow 8 times a step",
    ops=("linear",),
    module="cell.states",
    phase="backward",
    cures=True,
)
def weighed_gradients_grow():
    model = Reader(Plain(8.0))
    with torch.no_grad():
        model.cell.inputs.bias.zero_()
    return Case(model, F.cross_entropy, (sequences() * 1e-4, labels()))


def _unit(output, target):
    x = output.float()
    length = (x * x).sum(-1, keepdim=True).sqrt()
    return (x - target).square().mean() + length.mean()


def _silent(cell):
    model = Reader(cell)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    return model


@fault("nan-derivative", "the length of a zero vector, by hand", ops=("sqrt",), phase="backward")
def length_of_zero():
    return Case(_silent(Cell()), _unit, (sequences(), torch.randn(BATCH, 3)))


def _angle(output, target):
    x = output.float()
    return (torch.atan2(x[:, 0], x[:, 1]) - target).square().mean()


def _atan2_derives_nan():
    """Ask PyTorch for its derivative of atan2 at (0, 0): of 2.9 it is NaN, of 2.13 it is 0."""
    x = torch.zeros(2, requires_grad=True)
    torch.atan2(x[0], x[1]).backward()
    return bool(x.grad.isnan().any())


# Built by `@fault` or by `@healthy`: what is true of it is PyTorch's to say.
_angle_case = (
    fault("nan-derivative", "atan2 at (0, 0)", ops=("atan2",), phase="backward")
    if _atan2_derives_nan()
    else healthy("atan2 at (0, 0), where PyTorch's derivative is 0")
)


@_angle_case
def angle_of_zero():
    return Case(_silent(Cell()), _angle, (sequences(), torch.randn(BATCH)))


def _root(output, target):
    return ((output.float() ** 2) ** 0.25 - target).square().mean()


@fault("nan-derivative", "a power of 0.25 at 0", ops=("pow",), phase="backward")
def power_at_zero():
    return Case(_silent(Cell()), _root, (sequences(), torch.randn(BATCH, 3)))


def _angle_to_itself(output, target):
    x = F.normalize(output.float(), dim=-1)
    cosine = (x * x.detach()).sum(-1).round(decimals=3) + (x - x.detach()).sum(-1)
    return torch.acos(cosine).mean() + target.sum()


@fault("nan-derivative", "acos at 1: the angle of a vector to itself", ops=("acos",), phase="backward")
def angle_to_itself():
    return Case(Reader(Cell()), _angle_to_itself, (sequences(), torch.zeros(BATCH)))


@fault("nan-in-targets", "an infinite target", phase="forward")
def infinite_target():
    y = torch.randn(BATCH, 3)
    y[0, 0] = float("inf")
    return Case(Reader(Cell()), F.mse_loss, (sequences(), y))


@fault(
    "fp32-overflow",
    "a state that grows a million times a step",
    ops=("linear",),
    module="cell.states",
    phase="forward",
)
def state_past_fp32():
    model = Reader(Plain(0.0))
    with torch.no_grad():
        model.cell.states.weight.copy_(60_000 * torch.eye(WIDTH))
    return Case(model, F.cross_entropy, (torch.rand(BATCH, 12, WIDTH) + 1000, labels()))


@healthy("a GRU cell")
def gated():
    return Case(Reader(Cell()), F.cross_entropy, (sequences(), labels()))


@healthy("sequences of zeros")
def silence():
    return Case(Reader(Cell()), F.cross_entropy, (torch.zeros(BATCH, STEPS, WIDTH), labels()))


@healthy("a state that shrinks")
def shrinking():
    return Case(Reader(Plain(0.5)), F.mse_loss, (sequences(), torch.randn(BATCH, 3)))
