"""Perceptrons: three linear layers, and losses of many kinds."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.watching.faults.collection import Case, fault, healthy

FAMILY = "MLP"
WIDTH, BATCH = 16, 8


class Perceptron(nn.Module):
    """Three layers; `between` is applied after the second."""

    def __init__(self, outputs=4, between=torch.relu):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.last = nn.Linear(WIDTH, outputs)
        self.between = between

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(self.between(self.second(x)))


def features():
    return torch.randn(BATCH, WIDTH)


def labels(classes=4):
    return torch.randint(0, classes, (BATCH,))


@torch.no_grad()
def scaled(parameter, factor):
    parameter.mul_(factor)


@fault(
    "forward-overflow",
    "weights of the second layer too large",
    ops=("linear",),
    module="second",
    phase="forward",
)
def large_weights():
    model = Perceptron()
    scaled(model.first.weight, 100.0)
    scaled(model.second.weight, 20_000.0)
    return Case(model, F.cross_entropy, (features(), labels()))


@fault("cast-overflow", "a column in FP32 of 300 000", ops=("linear",), module="first", phase="forward")
def large_inputs():
    x = features()
    x[:, 3] = 300_000.0  # such as a price, or seconds since midnight
    return Case(Perceptron(), F.cross_entropy, (x, labels()))


def _half(x):
    return (x.float() * 1e5).half().float() * 1e-5


@fault("cast-overflow", "x.half() of numbers above 65 504", ops=("to", "half"), module="", phase="forward")
def cast_by_hand():
    return Case(Perceptron(between=_half), F.cross_entropy, (features() * 10, labels()))


def _add_in_place(x):
    for _ in range(6):
        x += x.detach()
    return x


@fault(
    "forward-overflow",
    "additions in place reach 2^6 times a number of 2 000",
    ops=("add_", "add", "iadd"),
    module="",
    phase="forward",
)
def in_place_addition():
    model = Perceptron(between=_add_in_place)
    scaled(model.second.weight, 0.0)
    with torch.no_grad():
        model.second.bias.fill_(2000.0)
    return Case(model, F.cross_entropy, (features(), labels()))


def _sum_of_errors(output, target):
    return (output - target.half()).abs().sum()


@fault(
    "forward-overflow",
    "CPU autocast leaves sum in FP16, and 32 errors of 4 000 add up to 128 000",
    ops=("sum",),
    phase="forward",
    device_type="cpu",
)
def sum_of_the_loss():
    return Case(Perceptron(), _sum_of_errors, (features(), torch.full((BATCH, 4), 4000.0)))


def _running_sum(output, target):
    total = torch.zeros((), dtype=torch.float16)
    for error in (output.half() - target.half()).abs().flatten():
        total = total + error
    return total


@fault("forward-overflow", "a sum of FP16 errors, one by one", ops=("add",), phase="forward")
def sum_one_by_one():
    return Case(Perceptron(), _running_sum, (features(), torch.full((BATCH, 4), 4000.0)))


def _summed_squares(output, target):
    return F.mse_loss(output, target, reduction="sum")


@fault(
    "scale-too-large",
    "gradients of 20 do not bear 2^16",
    ops=("mse_loss", "to"),
    phase="backward",
    cures=True,
)
def sum_instead_of_mean():
    return Case(Perceptron(), _summed_squares, (features(), torch.full((BATCH, 4), 10.0)))


def _huge_factor(output, target):
    return 1e6 * F.mse_loss(output, target)


@fault(
    "backward-overflow",
    "a loss times a million: gradients pass 65 504 at scale 1",
    ops=("mse_loss", "to"),
    phase="backward",
    cures=True,
)
def loss_weighed_by_a_million():
    return Case(Perceptron(), _huge_factor, (features(), torch.full((BATCH, 4), 10.0)))


@fault("nan-in-data", "one missing value in the features", phase="forward")
def nan_in_a_feature():
    x = features()
    x[2, 5] = float("nan")
    return Case(Perceptron(), F.cross_entropy, (x, labels()))


@fault("nan-in-data", "one infinite feature", phase="forward")
def infinity_in_a_feature():
    x = features()
    x[2, 5] = float("inf")  # a division by zero, before it was saved
    return Case(Perceptron(), F.cross_entropy, (x, labels()))


@fault("nan-in-targets", "one missing value in the targets", phase="forward")
def nan_in_a_target():
    y = torch.randn(BATCH, 4)
    y[1, 1] = float("nan")
    return Case(Perceptron(), F.mse_loss, (features(), y))


@fault("nan-in-weights", "an earlier step left a NaN in a bias", module="second", phase="forward")
def nan_in_a_bias():
    model = Perceptron()
    with torch.no_grad():
        model.second.bias[0] = float("nan")
    return Case(model, F.mse_loss, (features(), torch.randn(BATCH, 4)))


def _masked_log(output, target):
    x = output.float()
    return (torch.where(x > 0, torch.log(x), torch.zeros(())) - target).square().mean()


def _relu_last():
    return nn.Sequential(Perceptron(), nn.ReLU())


def _silent_outputs():
    """The last layer starts with zeros, as some recommend."""
    model = Perceptron()
    scaled(model.last.weight, 0.0)
    scaled(model.last.bias, 0.0)
    return model


@fault(
    "nan-derivative",
    "where() hides log(0), its derivative does not",
    ops=("log", "where"),
    phase="backward",
)
def where_and_log():
    return Case(_silent_outputs(), _masked_log, (features(), torch.randn(BATCH, 4)))


def _root(output, target):
    return (output.float().square().sqrt() - target).square().mean()


@fault("nan-derivative", "sqrt at 0, as outputs start with zeros", ops=("sqrt",), phase="backward")
def sqrt_at_zero():
    return Case(_silent_outputs(), _root, (features(), torch.rand(BATCH, 4)))


def _log_of_a_relu(output, target):
    return -(torch.log(output.float())).mean() + target.sum()


@fault("pole", "log of a ReLU's zeros", ops=("log",), phase="forward")
def log_of_zero():
    return Case(_relu_last(), _log_of_a_relu, (features(), torch.zeros(BATCH, 4)))


def _relative_error(output, target):
    return ((output.float() - target) / target).abs().mean()


@fault("pole", "relative error of a target that is 0", ops=("div",), phase="forward")
def division_by_zero():
    return Case(
        Perceptron(), _relative_error, (features(), torch.tensor([1.0, 0.0, 2.0, 3.0]).expand(BATCH, 4))
    )


def _exponential(output, target):
    return (output.float() * 1000 + 1000).exp().mean() + target.sum()


@fault("fp32-overflow", "exp(1000) is infinite in FP32, too", ops=("exp",), phase="forward")
def exp_of_a_thousand():
    return Case(Perceptron(), _exponential, (features(), torch.zeros(BATCH, 4)))


def _nothing_chosen(output, target):
    return (output.float() - 1.0).square()[target > 100].mean()


@fault("no-labels", "the mean over a mask that chooses nothing", ops=("mean",), phase="forward")
def empty_mask():
    return Case(Perceptron(), _nothing_chosen, (features(), torch.zeros(BATCH, 4)))


@healthy("regression")
def regression():
    return Case(Perceptron(), F.mse_loss, (features(), torch.randn(BATCH, 4)))


@healthy("classification, a saturated softmax")
def saturated_softmax():
    model = Perceptron()
    with torch.no_grad():
        model.last.bias[0] = 200.0  # probabilities of exactly 1 and 0
    return Case(model, F.cross_entropy, (features(), torch.zeros(BATCH, dtype=torch.long)))


@healthy("dropout, and units that a ReLU has switched off")
def dropout_and_dead_units():
    model = nn.Sequential(nn.Dropout(0.5), Perceptron())
    with torch.no_grad():
        model[1].second.bias.fill_(-100.0)
    return Case(model, F.cross_entropy, (features(), labels()))


@healthy("under the policy of CPU autocast", device_type="cpu")
def cpu_policy():
    return Case(Perceptron(), F.cross_entropy, (features(), labels()))


def _safe_log(output, target):
    x = output.float()
    kept = x > 0.1
    return (torch.where(kept, torch.log(torch.where(kept, x, 1.0)), 0.0) - target).square().mean() / 8


@healthy("log behind where, twice, as it should be")
def safe_log():
    return Case(_relu_last(), _safe_log, (features(), torch.randn(BATCH, 4)))
