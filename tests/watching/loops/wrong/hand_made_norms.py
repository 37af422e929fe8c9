"""Norms of gradients by hand, where weights and gradients are FP16."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import regression

SECTION = "Model and dtype set-up"


@wrong(
    "fp16-weights",
    "FP16 weights and so FP16 gradients: their norm by hand is inf, and nothing moves",
    shows=lambda moved: moved == 0.0,
)
def gradient_norm_in_half(watch):
    net = nn.Linear(64, 64).half()
    before = net.weight.detach().clone()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, opt):
        for _, _ in regression():
            opt.zero_grad()
            x = 100 * torch.randn(64, 64).half()
            loss = 100 * F.l1_loss(net(x).float(), torch.zeros(64, 64))
            loss.backward()
            norm = sum((p.grad * p.grad).sum() for p in net.parameters()).sqrt()
            coefficient = min(1.0, (1.0 / (norm + 1e-3)).item())
            for p in net.parameters():
                p.grad.mul_(coefficient)
            opt.step()
    return (net.weight - before).float().norm().item()
