"""Convolutional nets with BatchNorm."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.watching.faults.collection import Case, fault, healthy

FAMILY = "convolutional net"
BATCH, SIDE = 4, 8


class Net(nn.Module):
    """Two convolutions, a norm between them, and a mean over the picture."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.body = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 3)

    def forward(self, pictures):
        x = torch.relu(self.norm(self.stem(pictures)))
        x = torch.relu(self.body(x))
        return self.head(x.mean((2, 3)))


class Denoiser(nn.Module):
    """One convolution that gives a picture."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(1, 1, 3, padding=1)

    def forward(self, pictures):
        return self.layer(pictures)


def pictures():
    return torch.randn(BATCH, 1, SIDE, SIDE)


def labels():
    return torch.randint(0, 3, (BATCH,))


@fault(
    "forward-overflow", "weights of a convolution too large", ops=("conv2d",), module="body", phase="forward"
)
def large_kernel():
    model = Net()
    with torch.no_grad():
        model.body.weight.mul_(0.0).add_(30_000.0)
    return Case(model, F.cross_entropy, (pictures(), labels()))


@fault(
    "cast-overflow",
    "16-bit depth pictures, not scaled: 65 535",
    ops=("conv2d",),
    module="stem",
    phase="forward",
)
def depth_pictures():
    x = torch.randint(0, 60_000, (BATCH, 1, SIDE, SIDE)).float()
    x[:, :, 0, 0] = 65_535.0  # "no measurement"
    return Case(Net(), F.cross_entropy, (x, labels()))


@fault(
    "forward-overflow",
    "a convolution over pictures of up to 60 000",
    ops=("conv2d",),
    module="stem",
    phase="forward",
)
def raw_pictures():
    model = Net()
    with torch.no_grad():
        model.stem.weight.fill_(0.5)
    return Case(model, F.cross_entropy, (torch.full((BATCH, 1, SIDE, SIDE), 60_000.0), labels()))


def _summed(output, target):
    return F.mse_loss(output, target, reduction="sum")


@fault("scale-too-large", "a sum over pixels", ops=("mse_loss", "to"), phase="backward", cures=True)
def sum_over_pixels():
    return Case(Denoiser(), _summed, (pictures(), 10 * pictures()))


def _weighed(output, target):
    return 1e5 * F.mse_loss(output, target, reduction="sum")


@fault(
    "backward-overflow",
    "a sum over pixels, weighed by 100 000",
    ops=("mse_loss", "to"),
    phase="backward",
    cures=True,
)
def weighed_sum_over_pixels():
    return Case(Denoiser(), _weighed, (pictures(), 10 * pictures()))


def _variation(output, target):
    x = output.float()
    across = x[..., 1:, 1:] - x[..., 1:, :-1]
    down = x[..., 1:, 1:] - x[..., :-1, 1:]
    return F.mse_loss(x, target) + (across.square() + down.square()).sqrt().mean()


@fault("nan-derivative", "total variation of an even picture: sqrt at 0", ops=("sqrt",), phase="backward")
def total_variation():
    model = Denoiser()
    with torch.no_grad():
        model.layer.weight.fill_(0.0)
    return Case(model, _variation, (torch.ones(BATCH, 1, SIDE, SIDE), pictures()))


@fault("nan-in-data", "a dead pixel", phase="forward")
def dead_pixel():
    x = pictures()
    x[0, 0, 3, 3] = float("nan")
    return Case(Net(), F.cross_entropy, (x, labels()))


@fault(
    "nan-in-weights", "weights of a convolution are NaN after an earlier step", module="stem", phase="forward"
)
def nan_kernel():
    model = Net()
    with torch.no_grad():
        model.stem.weight[0] = float("nan")
    return Case(model, F.cross_entropy, (pictures(), labels()))


@healthy("pictures through BatchNorm")
def batch_norm():
    return Case(Net(), F.cross_entropy, (pictures(), labels()))


@healthy("BatchNorm in evaluation mode")
def batch_norm_evaluated():
    return Case(Net().eval(), F.cross_entropy, (pictures(), labels()))


@healthy("a black picture: variances of 0")
def black_picture():
    return Case(Net(), F.cross_entropy, (torch.zeros(BATCH, 1, SIDE, SIDE), labels()))


@healthy("a picture for a picture")
def denoising():
    return Case(Denoiser(), F.mse_loss, (pictures(), pictures()))
