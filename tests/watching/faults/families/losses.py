"""Losses, layers and functions that are at the edge of what they are defined for, or written by hand."""

import dataclasses

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.watching.faults.collection import Case, fault, healthy
from tests.watching.faults.families.tables import BNet, samples

FAMILY = "losses and layers"


@dataclasses.dataclass
class VOut:
    recon: object
    mu: object
    logvar: object


class Ctc(nn.Module):
    def __init__(self):
        super().__init__()
        self.c = nn.Conv1d(3, 5, 3, padding=1)

    def forward(self, x):
        return self.c(x).permute(2, 0, 1).float().log_softmax(-1)


def ctc(n, zero=False):
    t = torch.ones(2, n, dtype=torch.long)
    return Case(
        Ctc(),
        lambda out, y: F.ctc_loss(out, y, torch.full((2,), 6), torch.full((2,), n), zero_infinity=zero),
        (torch.randn(2, 3, 6), t),
    )


@healthy("CTC", device_type="cpu")
def ctc_healthy():
    model, loss, batch = ctc(2)
    return Case(model, lambda out, y: 0.05 * loss(out, y), batch)


@healthy("CTC with zero_infinity", device_type="cpu")
def ctc_zero_infinity_healthy():
    return ctc(5, True)


@fault(
    "pole",
    "a target that is longer than its input",
    phase="forward",
    ops=("ctc_loss",),
    device_type="cpu",
    or_cause="no-labels",
)
def ctc_too_long():
    return ctc(5)


@fault("pole", "p * log(p), where a probability is 0", phase="forward", ops=("log",), device_type="cpu")
def kl_by_hand():
    return Case(
        nn.Linear(4, 3),
        lambda out, p: (p * (p.log() - out.float().log_softmax(1))).sum(1).mean(),
        (torch.randn(2, 4), torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0]])),
    )


@healthy("kl_div, where a probability is 0", device_type="cpu")
def kl_healthy():
    return Case(
        nn.Linear(4, 3),
        lambda out, p: F.kl_div(out.float().log_softmax(1), p, reduction="batchmean"),
        (torch.randn(2, 4), torch.tensor([[1.0, 0, 0], [0.5, 0.5, 0]])),
    )


@fault(
    "forward-overflow",
    "the square of an error of 700 in FP16",
    phase="forward",
    ops=("pow", "mul", "square", "__pow__"),
    device_type="cpu",
)
def mse_by_hand():
    return Case(
        nn.Linear(4, 1),
        lambda out, y: ((out - y.half()) ** 2).mean(),
        (torch.randn(3, 4), torch.full((3, 1), 700.0)),
    )


@healthy("the Huber loss of an error of 700", device_type="cpu")
def huber_healthy():
    return Case(
        nn.Linear(4, 1),
        lambda out, y: 0.1 * F.huber_loss(out.float(), y),
        (torch.randn(3, 4), torch.full((3, 1), 700.0)),
    )


@fault("nan-derivative", "log(0) behind a where", phase="backward", ops=("log", "where"), device_type="cpu")
def where_log():  # one row of zeros: log(0) is not selected, but its derivative is 0 * inf
    x = torch.randn(6, 4)
    x[0] = 0

    def loss(o, y):
        o = o.float().abs()
        return torch.where(o > 0, o.log(), o).mean()

    return Case(nn.Linear(4, 3, bias=False), loss, (x, torch.zeros(6)))


@fault(
    "scale-too-large",
    "log(0) behind a clamp, which does no harm, at a scale that is too large",
    phase="backward",
    cures=True,
    device_type="cpu",
)
def where_clamp_log():  # an infinity that is never selected, and a scale that is too large
    x = torch.randn(6, 4)
    x[0] = 0.01
    return Case(
        nn.Linear(4, 3),
        lambda out, y: torch.where(out.float() > 0, out.float().clamp(min=0).log(), out.float()).sum(),
        (x, torch.zeros(6)),
    )


@fault("no-labels", "a mean over no number", phase="forward", ops=("mean",), device_type="cpu")
def mean_of_an_empty_mask():
    return Case(
        nn.Linear(4, 3), lambda out, y: out[y > 0].float().pow(2).mean(), (torch.randn(6, 4), torch.zeros(6))
    )


class Blow(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1.0

    @staticmethod
    def backward(ctx, g):
        return g * 1e6


class BlowNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 1)

    def forward(self, x):
        return self.b(Blow.apply(self.a(x)))


@fault(
    "backward-overflow",
    "a Function whose derivative is a million",
    phase="backward",
    ops=("Blow", "mul", "BlowBackward"),
    cures=True,
    device_type="cpu",
)
def function_blows():
    return Case(
        BlowNet(), lambda out, y: (out.float() - y).abs().mean(), (torch.randn(3, 4), torch.ones(3, 1) * 9)
    )


class HalfHand(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 1)

    def forward(self, x):
        return self.b((self.a(x).float() * 1e5).half())


@fault("cast-overflow", "a cast by hand", phase="forward", ops=("half", "to", "_to_copy"), device_type="cpu")
def half_by_hand():
    return Case(
        HalfHand(), lambda out, y: (out.float() - y).abs().mean(), (torch.randn(3, 4) + 2, torch.ones(3, 1))
    )


@healthy("a model in FP64, with numbers of a million", device_type="cpu")
def fp64_healthy():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    return Case(
        model,
        lambda out, y: (out - y).pow(2).mean(),
        (torch.randn(3, 4).double() * 1e6, torch.ones(3, 1).double()),
    )


@healthy("a model in FP16", device_type="cpu")
def pure_half_healthy():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1)).half()
    return Case(
        model,
        lambda out, y: (out.float() - y).pow(2).mean() * 1e-2,
        (torch.randn(3, 4).half(), torch.ones(3, 1)),
    )


@fault(
    "pole",
    "LayerNorm of equal numbers, with an eps of 0",
    phase="forward",
    ops=("layer_norm", "native_layer_norm"),
    module="1",
    device_type="cpu",
)
def layernorm_eps0():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps=0.0), nn.Linear(4, 2))
    model[0].weight.data.zero_()
    model[0].bias.data.fill_(1.0)
    return Case(model, lambda out, y: F.cross_entropy(out, y), (torch.randn(3, 4), torch.tensor([0, 1, 0])))


@healthy("weight_norm and spectral_norm", device_type="cpu")
def weightnorm_healthy():
    return Case(
        nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            nn.utils.parametrizations.spectral_norm(nn.Linear(4, 2)),
        ),
        F.cross_entropy,
        (torch.randn(3, 4), torch.tensor([0, 1, 0])),
    )


@fault(
    "pole",
    "weight_norm of a row that is 0",
    phase="forward",
    ops=("_weight_norm", "weight_norm", "div"),
    module="0.parametrizations.weight.0",
    device_type="cpu",
    or_cause="nan-in-weights",
)
def weightnorm_zero():
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 2))
    model[0].parametrizations.weight.original1.data[1] = 0
    return Case(model, F.cross_entropy, (torch.randn(3, 4), torch.tensor([0, 1, 0])))


class Ema(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(4, 4)
        self.register_buffer("ema", torch.zeros(4))
        self.register_buffer("n", torch.zeros((), dtype=torch.long))
        self.drop = nn.Dropout(0.5)
        self.calls = 0

    def forward(self, x):
        h = self.drop(self.f(x))
        self.ema.mul_(0.9).add_(h.detach().float().mean(0) * 0.1)
        self.n += 1
        return h - self.ema


@healthy("buffers that forward writes, and dropout", device_type="cpu")
def ema_healthy():
    return Case(
        Ema(), lambda out, y: (out.float() - y).pow(2).mean() * 1e-2, (torch.randn(3, 4), torch.zeros(3, 4))
    )


@fault(
    "scale-too-large",
    "the gradients of 3 samples add up to 1",
    phase="backward",
    cures=True,
    device_type="cpu",
)
def huber_scale():
    return Case(
        nn.Linear(4, 1),
        lambda out, y: F.huber_loss(out.float(), y),
        (torch.randn(3, 4), torch.full((3, 1), 700.0)),
    )


@fault("forward-overflow", "log(1 + exp(x))", phase="forward", ops=("exp",), device_type="cpu")
def softplus_by_hand():
    model = nn.Linear(4, 3)
    model.bias.data.fill_(20.0)
    return Case(model, lambda out, y: torch.log(1 + torch.exp(out)).float().mean(), samples())


@fault(
    "no-labels",
    "a masked mean whose mask is empty",
    phase="forward",
    ops=("div", "__truediv__"),
    device_type="cpu",
)
def masked_mean_nothing():
    return Case(
        BNet(),
        lambda out, y: (F.cross_entropy(out, y, reduction="none") * (y > 5)).sum() / (y > 5).sum(),
        samples(),
    )


@fault(
    "fp32-overflow",
    "the square of 1e25, in FP32",
    phase="forward",
    ops=("mul", "pow", "square", "__pow__", "linear", "to", "_to_copy"),
    device_type="cpu",
    or_cause="nan-in-data",
)
def fp32_square():
    return Case(
        nn.Linear(4, 1),
        lambda out, y: ((out.float() - y) ** 2).mean(),
        (torch.randn(3, 4), torch.full((3, 1), 1e25)),
    )


@healthy("results in a dict, and a layer that is not used", device_type="cpu")
def two_heads_healthy():
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(4, 2)
            self.unused = nn.Linear(4, 2)

        def forward(self, x):
            return {"o": self.a(x), "aux": (self.a(x), [1, None, "x"])}

    model = M()
    model.unused.requires_grad_(False)
    return Case(model, lambda out, y: F.cross_entropy(out["o"], y), samples())


@fault("no-labels", "an error over no sample", phase="forward", ops=("mse_loss", "mean"), device_type="cpu")
def mse_of_nothing():
    return Case(
        nn.Linear(4, 1),
        lambda out, y: F.mse_loss(out[y[:, 0] > 9].float(), y[y[:, 0] > 9]),
        (torch.randn(3, 4), torch.ones(3, 1)),
    )


@fault(
    "no-labels",
    "all labels are ignored, with CUDA's policy",
    phase="forward",
    ops=("cross_entropy", "cross_entropy_loss", "nll_loss"),
)
def ignored_cuda():
    return Case(nn.Linear(4, 3), F.cross_entropy, (torch.randn(3, 4), torch.full((3,), -100)))


@fault(
    "no-labels",
    "class weights of 0 for all labels of the batch",
    phase="forward",
    ops=("cross_entropy", "cross_entropy_loss", "nll_loss"),
    module="loss_fn",
    device_type="cpu",
)
def class_weight_0():
    return Case(
        nn.Linear(4, 3),
        nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0, 1.0])),
        (torch.randn(3, 4), torch.zeros(3, dtype=torch.long)),
    )


@fault(
    "fp32-overflow", "the 200th power of 1,000", phase="forward", ops=("pow", "__pow__"), device_type="cpu"
)
def power_too_far():
    return Case(nn.Linear(4, 3), lambda out, y: (out.float().abs() + 1e3).pow(200).mean(), samples())


@fault(
    "pole",
    "GroupNorm of equal numbers, with an eps of 0",
    phase="forward",
    ops=("group_norm", "native_group_norm", "batch_norm"),
    module="1",
)
def groupnorm_eps0_cuda():
    model = nn.Sequential(nn.Conv2d(1, 4, 1), nn.GroupNorm(4, 4, eps=0.0))
    model[0].weight.data.zero_()
    return Case(model, lambda out, y: out.float().mean(), (torch.randn(2, 1, 4, 4), torch.ones(2)))


class SquareRow(nn.Module):
    def forward(self, x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-3)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm = SquareRow()

    def forward(self, x):
        return self.norm(self.linear(x))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Block()

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


@fault(
    "hidden-overflow",
    "the mean square of a norm, in a checkpoint",
    phase="forward",
    ops=("sum", "mul", "einsum", "pow"),
    module="0.block.norm",
    device_type="cpu",
)
def checkpointed_hidden():
    model = nn.Sequential(Checkpointed(), nn.Linear(4, 2))
    model[0].block.linear.weight.data.mul_(3e3)
    return Case(model, lambda out, y: 0.1 * F.cross_entropy(out.float(), y), samples())


@healthy("a weight that forward clamps", device_type="cpu")
def clamped_healthy():
    class C(nn.Linear):
        def forward(self, x):
            with torch.no_grad():
                self.weight.clamp_(-0.1, 0.1)
            return super().forward(x)

    return Case(C(4, 2), F.cross_entropy, samples())


@fault(
    "eps-lost",
    "a cosine of a vector of 0: FP16 makes 0 of its eps, 1e-8",
    phase="forward",
    ops=("cosine_similarity",),
    device_type="cpu",
)
def cosine_without_direction():
    return Case(nn.Linear(4, 3), lambda out, y: F.cosine_similarity(out * 0, out).float().mean(), samples())


@fault(
    "pole",
    "acos of a number that is a little larger than 1",
    phase="forward",
    ops=("acos",),
    device_type="cpu",
)
def acos_beyond_one():
    return Case(nn.Linear(4, 3), lambda out, y: (out.float() * 0 + 1.0001).acos().mean(), samples())


@fault(
    "nan-in-targets",
    "targets that are NaN, and an error that is set to 0 afterwards",
    phase="backward",
    ops=("mse_loss",),
    device_type="cpu",
)
def nan_that_the_loss_hides():
    def loss(out, y):
        return F.mse_loss(out.float(), y, reduction="none").nan_to_num().mean()

    return Case(nn.Linear(4, 3), loss, (torch.randn(3, 4), torch.full((3, 3), float("nan"))))
