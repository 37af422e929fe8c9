"""A small model whose forward pass a test writes, and what an x-ray of it warns of."""

import torch
from torch import nn

from amp_lab.autocast.xray import xray
from tests.autocast.hand_made import FP16

D, ROWS = 64, 32
ACTIVATION = ROWS * D  # numbers


class Net(nn.Module):
    """Two linear layers, a matrix, and a forward pass that a test writes."""

    def __init__(self, body):
        super().__init__()
        self.first, self.second = nn.Linear(D, D), nn.Linear(D, D)
        self.weight = nn.Parameter(torch.randn(D, D))
        self.body = body

    def forward(self, x):
        return self.body(self, x)


def seen(body, dtype=FP16, device_type="cuda", change=None):
    model = Net(body)
    if change:
        change(model)
    return xray(model, torch.randn(ROWS, D), device_type=device_type, dtype=dtype, backward=False)


def ids(x):
    return [each.id for each in x.warnings]


def only(x):
    """Return the one warning, after a look at what every warning must have."""
    (remark,) = x.warnings
    assert remark.ops
    assert remark.ops == tuple(sorted(set(remark.ops)))
    assert all(0 <= number < len(x.ops) for number in remark.ops)
    assert remark.advice
    return remark


def names(x, remark):
    return [x.ops[number].name for number in remark.ops]
