"""Operators that overflow, vanish or cancel in 16 bits, in models that people write by hand."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import labelled, regression

SECTION = "Model and dtype set-up"


def _train(watch, net, data, loss_fn, *, lr=1e-3, scale=1024.0, dtype=torch.float16):
    """Train, and return the losses."""
    opt = torch.optim.SGD(net.parameters(), lr=lr)
    scaler = GradScaler("cpu", init_scale=scale)
    losses = []
    with watch(net, opt, scaler):
        for x, y in data:
            opt.zero_grad()
            with autocast("cpu", dtype=dtype):
                loss = loss_fn(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            losses.append(loss.item())
    return losses


@wrong(
    "eps-lost",
    "x / (sum + 1e-8): the eps is 0 in FP16",
    shows=lambda losses: any(each != each for each in losses),
)
def share_of_nothing(watch):
    class Shares(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.down = nn.Linear(6, 5), nn.Linear(5, 1)

        def forward(self, x):
            h = torch.relu(self.up(x))
            h = h / (h.sum(dim=-1, keepdim=True) + 1e-8)
            return self.down(h)

    net = Shares()
    nn.init.zeros_(net.up.bias)
    data = regression()
    data[2][0][3] = 0.0
    return _train(watch, net, data, F.mse_loss)


@wrong("eps-lost", "F.normalize: its eps of 1e-12 is 0 in FP16", shows=lambda losses: losses[1] != losses[1])
def normalized_row_of_zeros(watch):
    class Cosine(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(6, 4, bias=False)
            self.classes = nn.Linear(4, 3)

        def forward(self, x):
            return self.classes(F.normalize(self.embed(x), dim=-1))

    data = labelled()
    data[1][0][0] = 0.0
    return _train(watch, Cosine(), data, F.cross_entropy)


@wrong("mask-overflows", "masked_fill with -1e9", raises="without overflow")
def masked_fill_with_a_billion(watch):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(6, 18)

        def forward(self, x):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            scores = q @ k.transpose(-1, -2) / 6**0.5
            future = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).triu(1)
            scores = scores.masked_fill(future, -1e9)
            return (scores.softmax(dim=-1) @ v).mean(dim=-1, keepdim=True)

    return _train(watch, Attention(), regression(), F.mse_loss)


@wrong(
    "mask-overflows",
    "-1e9 is added, and one row is masked completely",
    shows=lambda losses: losses[0] != losses[0],
)
def added_mask_of_a_whole_row(watch):
    class Pooling(nn.Module):
        def __init__(self):
            super().__init__()
            self.score, self.value = nn.Linear(6, 6), nn.Linear(6, 6)

        def forward(self, x):
            padding = torch.zeros(x.shape)
            padding[0] = 1.0
            scores = self.score(x)
            scores = scores + padding.to(scores.dtype) * -1e9
            return (scores.softmax(dim=-1) * self.value(x)).sum(dim=-1, keepdim=True)

    return _train(watch, Pooling(), regression(), F.mse_loss)


@wrong(
    "scores-overflow",
    "attention scores overflow before they are divided",
    shows=lambda losses: losses[0] != losses[0],
)
def scores_divided_too_late(watch):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value = nn.Linear(6, 64), nn.Linear(6, 64), nn.Linear(6, 1)

        def forward(self, x):
            q, k, v = self.query(x), self.key(x), self.value(x)
            weights = torch.softmax(q @ k.T / 64**0.5, dim=-1)
            return weights @ v

    net = Attention()
    with torch.no_grad():
        net.query.weight.mul_(100)
        net.key.weight.mul_(100)
    return _train(watch, net, regression(), F.mse_loss)


@wrong(
    "activation-overflows",
    "a Linear's output overflows: no loss scale helps",
    shows=lambda losses: losses[0] != losses[0],
)
def linear_overflows(watch):
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 8), nn.LayerNorm(8), nn.Linear(8, 1))
    with torch.no_grad():
        net[0].weight.mul_(1000)
        net[2].weight.mul_(1000)
    return _train(watch, net, regression(), F.mse_loss)


@wrong(
    "sum-overflows", "the loss is a sum of squares in FP16", shows=lambda losses: losses[0] == float("inf")
)
def loss_summed_in_half(watch):
    net = nn.Linear(6, 1000)
    return _train(watch, net, regression(), lambda out, y: (100 * (out - y.half())).abs().sum())


@wrong(
    "square-overflows",
    "RMSNorm by hand: the square overflows, the row becomes 0",
    shows=lambda losses: losses[0] > 0,
)
def rms_norm_by_hand(watch):
    class RMSNorm(nn.Module):
        def __init__(self, width):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width))

        def forward(self, x):
            return x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-5) * self.weight

    net = nn.Sequential(nn.Linear(6, 16), RMSNorm(16), nn.Linear(16, 1))
    with torch.no_grad():
        net[0].weight.mul_(2000)
    return _train(watch, net, regression(), F.mse_loss, scale=16.0)


@wrong("exp-overflows", "a softmax by hand: exp(12) overflows", shows=lambda losses: losses[0] != losses[0])
def softmax_by_hand(watch):
    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.logits, self.value = nn.Linear(6, 4), nn.Linear(6, 4)

        def forward(self, x):
            weights = torch.exp(self.logits(x))
            weights = weights / weights.sum(dim=-1, keepdim=True)
            return (weights * self.value(x)).sum(dim=-1, keepdim=True)

    net = Gate()
    with torch.no_grad():
        net.logits.weight.mul_(50)
    return _train(watch, net, regression(), F.mse_loss)


@wrong("log-of-zero", "log(softmax) in FP16 is -inf", shows=lambda losses: losses[0] == float("inf"))
def log_of_softmax(watch):
    net = nn.Linear(6, 3)
    with torch.no_grad():
        net.weight.mul_(60)
    return _train(watch, net, labelled(), lambda out, y: F.nll_loss(torch.log(out.softmax(dim=-1)), y))


@wrong(
    "log-of-zero",
    "log(1 - sigmoid(20)) in FP16 is -inf",
    shows=lambda losses: not math.isfinite(losses[0]),
)
def cross_entropy_by_hand(watch):
    net = nn.Linear(6, 1)
    with torch.no_grad():
        net.weight.mul_(40)

    def loss_fn(out, y):
        p, t = torch.sigmoid(out), (y > 0).half()
        return -(t * torch.log(p) + (1 - t) * torch.log(1 - p)).mean()

    return _train(watch, net, regression(), loss_fn)


@wrong(
    "probabilities-in-16-bits",
    "probabilities of FP16 are taken to FP32, and then to BCELoss",
    shows=lambda losses: max(losses) > 6,
)
def probabilities_to_float(watch):
    net = nn.Linear(6, 1)
    with torch.no_grad():
        net.weight.mul_(15)

    def loss_fn(out, y):
        return F.binary_cross_entropy(torch.sigmoid(out).float(), (y > 0).float())

    return _train(watch, net, regression(), loss_fn)


@wrong(
    "written-overflow",
    "h += a large FP32 tensor stays FP16, and overflows",
    shows=lambda losses: losses[0] != losses[0],
)
def added_in_place(watch):
    class Biased(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin, self.head = nn.Linear(6, 4), nn.Linear(4, 1)
            self.register_buffer("offset", torch.full((4,), 70000.0))

        def forward(self, x):
            h = self.lin(x)
            h += self.offset
            return self.head(h - h.mean())

    return _train(watch, Biased(), regression(), F.mse_loss)


@wrong(
    "nan-derivative",
    "where(x > 0, log(x), 0) at 0: the derivative is NaN at every scale",
    shows=lambda losses: all(map(math.isfinite, losses)) and len(losses) == 30,
)
def derivative_of_where(watch):
    class Logs(nn.Module):
        def __init__(self):
            super().__init__()
            self.slope, self.head = nn.Parameter(torch.ones(6)), nn.Linear(6, 1)

        def forward(self, x):
            h = x * self.slope
            h = torch.where(h > 0, torch.log(h), 0.0)
            return self.head(h)

    counts = [(torch.relu(x).round(), y) for x, y in regression(30)]
    return _train(watch, Logs(), counts, F.mse_loss)


@wrong("nan-derivative", "a norm by hand: the derivative of sqrt at 0 is NaN")
def derivative_of_sqrt(watch):
    class Distance(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Linear(6, 4, bias=False)

        def forward(self, x):
            a, b = self.embed(x).float(), self.embed(x.flip(0)).float()
            return ((a - b) ** 2).sum(dim=-1, keepdim=True).sqrt()

    data = [(torch.cat([x, x.flip(0)[1:]]), torch.cat([y, y[1:]])) for x, y in regression(30)]
    return _train(watch, Distance(), data, F.mse_loss)


@wrong(
    "nan-in-data",
    "one batch holds a NaN: no loss scale helps",
    shows=lambda losses: losses[2] != losses[2],
)
def nan_in_one_batch(watch):
    data = regression()
    data[2][0][0, 0] = float("nan")
    return _train(watch, nn.Linear(6, 1), data, F.mse_loss)


@wrong(
    "nan-in-data",
    "every target of one kind is NaN: the whole run is skipped",
    shows=lambda losses: losses[0] != losses[0],
)
def nan_in_every_batch(watch):
    data = [(x, torch.where(y > 0, y, torch.nan)) for x, y in regression(30)]
    return _train(watch, nn.Linear(6, 1), data, F.mse_loss)
