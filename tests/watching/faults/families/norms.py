"""A net with norms that are written by hand."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.watching.faults.collection import Case, fault, healthy

FAMILY = "hand-written norms"
BATCH, WIDTH = 8, 16


class RootMeanSquare(nn.Module):
    """x * x in the dtype of x: this is the mistake."""

    def __init__(self, eps=1e-4):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps)


class Careful(RootMeanSquare):
    """The same in FP32."""

    def forward(self, x):
        return super().forward(x.float())


class Layer(nn.Module):
    """Mean and variance, the latter as it stands in books."""

    def __init__(self, eps=1e-5):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        x = x - x.mean(-1, keepdim=True)
        return x / ((x * x).mean(-1, keepdim=True) + self.eps).sqrt()


class OfTwoMoments(nn.Module):
    """The mean of the squares less the square of the mean."""

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) * torch.rsqrt(variance.clamp_min(0) + 1e-3)


class Length(nn.Module):
    """Divide by the largest number and a small one."""

    def forward(self, x):
        return x / (x.abs().amax(-1, keepdim=True) + 1e-8)


class Net(nn.Module):
    """A linear layer, the norm and another linear layer; the norm gets numbers of about `size`."""

    def __init__(self, norm, size=1.0):
        super().__init__()
        self.inside = nn.Linear(WIDTH, WIDTH)
        self.norm = norm
        self.outside = nn.Linear(WIDTH, 4)
        with torch.no_grad():
            self.inside.weight.mul_(size)
            self.inside.bias.mul_(size)

    def forward(self, x):
        return self.outside(self.norm(self.inside(x)))


def features():
    return torch.randn(BATCH, WIDTH)


def labels():
    return torch.randint(0, 4, (BATCH,))


def _case(norm, size):
    return Case(Net(norm, size), F.cross_entropy, (features(), labels()))


@fault(
    "hidden-overflow",
    "RMSNorm: 2 000² is inf, its rsqrt 0, and all outputs are 0",
    ops=("mul",),
    module="norm",
    phase="forward",
)
def squares_in_rms_norm():
    return _case(RootMeanSquare(), 4000.0)


@fault(
    "hidden-overflow",
    "LayerNorm: variance = inf, and x / inf = 0",
    ops=("mul",),
    module="norm",
    phase="forward",
)
def squares_in_layer_norm():
    return _case(Layer(), 4000.0)


@fault(
    "hidden-overflow",
    "CPU autocast leaves pow in FP16: a square that is inf",
    ops=("pow",),
    module="norm",
    phase="forward",
    device_type="cpu",
)
def power_in_rms_norm():
    class Power(RootMeanSquare):
        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    model = Net(Power(), 4000.0)
    with torch.no_grad():
        model.outside.weight.mul_(0.001)
    return Case(model, F.cross_entropy, (features(), labels()))


@fault(
    "forward-overflow",
    "inf - inf: mean of squares less square of mean",
    ops=("mul",),
    module="norm",
    phase="forward",
)
def two_moments():
    model = Net(OfTwoMoments(), 4000.0)
    with torch.no_grad():
        model.inside.bias.add_(5000.0)
    return Case(model, F.cross_entropy, (features(), labels()))


def _constant(norm):
    model = Net(norm)
    with torch.no_grad():
        model.inside.weight.zero_()
        model.inside.bias.zero_()
    return Case(model, F.cross_entropy, (features(), labels()))


@fault("eps-lost", "0 + 1e-8 is 0 in FP16, and its rsqrt inf", ops=("rsqrt",), module="norm", phase="forward")
def eps_in_rms_norm():
    return _constant(RootMeanSquare(eps=1e-8))


@fault("eps-lost", "0 / (0 + 1e-8) in FP16", ops=("div",), module="norm", phase="forward")
def eps_in_a_division():
    return _constant(Length())


@fault(
    "backward-overflow",
    "a norm of tiny numbers divides gradients by them",
    module="norm",
    ops=("rsqrt", "to"),  # at scale 1 the gradient of rsqrt, on its way to FP16
    phase="backward",
    cures=True,
)
def tiny_variance():
    class Tiny(Net):
        def forward(self, x):
            return self.outside(self.norm(self.inside(x) * 1e-4))

    model = Tiny(RootMeanSquare(eps=1e-7))
    return Case(model, F.cross_entropy, (features(), labels()))


@fault(
    "scale-too-large",
    "small numbers before a norm: gradients of some 30",
    module="norm",
    ops=("rsqrt", "mul", "mean", "add"),
    phase="backward",
    cures=True,
)
def small_variance():
    return _case(RootMeanSquare(eps=1e-6), 0.003)


@healthy("RMSNorm of numbers of size 1")
def rms_norm():
    return _case(RootMeanSquare(), 1.0)


@healthy("RMSNorm in FP32, of numbers of 2 000")
def rms_norm_in_fp32():
    return _case(Careful(), 4000.0)


@healthy("LayerNorm of numbers of size 1")
def layer_norm():
    return _case(Layer(), 1.0)


@healthy("a norm of zeros, with an eps that FP16 can hold")
def norm_of_zeros():
    return _constant(RootMeanSquare(eps=1.0))


@healthy("the square as a power, which CUDA autocast does in FP32")
def power_on_cuda():
    class Power(RootMeanSquare):
        def forward(self, x):
            return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)

    return _case(Power(), 4000.0)
