"""X-ray a small hostile model, and read the table."""

import types

import pytest
import torch
from torch import nn

from amp_lab.autocast.xray import xray
from tests.autocast.traces import leaves_no_trace

FP16, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
both_modes = pytest.mark.parametrize("mode", ["fake", "value"])


class Model(nn.Module):
    """A linear layer and a function that gets it, and the inputs."""

    def __init__(self, forward, **parts):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self._forward = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs, **keywords):
        return self._forward(self, *inputs, **keywords)


def look(model, *inputs, mode="auto", **settings):
    """X-ray a model, or a function of a model and its inputs; nothing may be left behind."""
    if isinstance(model, types.FunctionType):
        model = Model(model)
    return leaves_no_trace(xray, model, *(inputs or (torch.randn(4, 8),)), mode=mode, **settings)


def table_or_refusal(model, *inputs, **settings):
    """Return an x-ray, or the sentence with which it was refused."""
    try:
        return look(model, *inputs, **settings)
    except (TypeError, ValueError) as refusal:
        return str(refusal)


def shown(found, phase="forward"):
    """Return (name, dtype of its results) for every row that is no view."""
    return [
        (op.name, *(each.dtype for each in op.outputs))
        for op in found.ops
        if op.phase == phase and not op.view
    ]


def row(found, name, phase="forward"):
    """Return the one row with this name."""
    (only,) = (op for op in found.ops if op.name == name and op.phase == phase)
    return only


def healthy(found):
    assert found.error is None, found.error
    assert [op.number for op in found.ops] == list(range(len(found.ops)))
    assert "linear" in {op.name for op in found.ops if op.phase == "backward"}, str(found)
    return found
