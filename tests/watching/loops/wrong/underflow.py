"""Gradients that FP16 makes zero: the loss scale is too small for them, or becomes so."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import labelled, regression

SECTION = "Underflow"


def _deep(width=32, layers=5, outputs=1):
    """Return a network in which the gradient becomes smaller on its way from the loss to the first layer."""
    hidden = [each for _ in range(layers) for each in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(nn.Linear(6, width), nn.Tanh(), *hidden, nn.Linear(width, outputs))


def _share_zero(layer):
    return (layer.weight.grad == 0).double().mean().item()


@wrong(
    "gradients-underflow",
    "a scaler whose scale is 1 and does not grow, beside a small loss",
    shows=lambda zeros: zeros > 0.5,
)
def scale_of_one(watch):
    net = _deep()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1.0, growth_interval=10**9)
    with watch(net, opt, scaler):
        for x, y in regression(4):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = 1e-5 * F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return _share_zero(net[0])


@wrong(
    "gradients-underflow",
    "a scale far too small, with a growth_interval that it never reaches",
    shows=lambda zeros: zeros > 0.5,
)
def scale_far_too_small(watch):
    net = _deep()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    scaler = GradScaler("cpu", init_scale=2.0**-17, growth_interval=100_000)
    with watch(net, opt, scaler):
        for x, y in regression(6):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return _share_zero(net[0])


@wrong(
    "gradients-underflow",
    "the loss is divided by 4,000,000 examples that are accumulated, at a scale of 2",
    shows=lambda zeros: zeros > 0.5,
)
def divided_by_many_examples(watch):
    net = _deep()
    opt = torch.optim.SGD(net.parameters(), lr=1.0)
    scaler = GradScaler("cpu", init_scale=2.0, growth_interval=10**9)
    examples = 4_000_000
    share = 0.0
    with watch(net, opt, scaler):
        for number, (x, y) in enumerate(regression(8), 1):
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y, reduction="sum") / examples
            scaler.scale(loss).backward()
            if number % 4 == 0:
                share = _share_zero(net[0])
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()
    return share


@wrong(
    "gradients-underflow",
    "a scale that is right at first: the loss shrinks, and most of the gradients are lost in the end",
    shows=lambda zeros: zeros[0] < 0.05 and zeros[1] > 0.4,
)
def loss_shrinks_and_the_scale_stays(watch):
    net = _deep(outputs=3)
    opt = torch.optim.Adam(net.parameters(), lr=1e-2)
    scaler = GradScaler("cpu", init_scale=2.0**-5, growth_interval=10**9)
    ((x, labels),) = labelled(1)
    shares = []
    with watch(net, opt, scaler):
        for _ in range(300):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            shares.append(_share_zero(net[6]))
            scaler.step(opt)
            scaler.update()
    return shares[0], shares[-1]


@wrong(
    "gradients-underflow",
    "no gradient arrives from the first step on: a convolution's are lost on their way, pixel by pixel",
    shows=lambda largest: largest == 0.0,
)
def nothing_from_the_first_step_on(watch):
    net = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 1, 1)
    )
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1.0, growth_interval=10**9)
    with watch(net, opt, scaler):
        for _ in range(3):
            pictures = torch.randn(16, 1, 16, 16)
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = 1e-5 * F.mse_loss(net(pictures), pictures)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return max(each.grad.abs().max().item() for each in net.parameters())
