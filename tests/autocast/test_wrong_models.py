"""Models with a dtype error: real CPU tensors say what is refused, and the x-ray finds it without numbers as well."""

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_lab.autocast.emulate import cuda_autocast
from amp_lab.autocast.xray import xray
from tests.autocast.traces import leaves_no_trace

pytestmark = pytest.mark.long  # `make quick` leaves it to `make test`

FP16, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


class Wrong(nn.Module):
    def __init__(self, forward):
        super().__init__()
        self.fc, self.conv = nn.Linear(8, 8), nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(8)
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def outside(call):
    """What `call` does with the results of a region, after its end."""

    def forward(model, x):
        with torch.autocast("cpu", enabled=False):
            return call(model, x)

    return forward


FORWARDS = {
    "a linear layer outside": outside(lambda model, x: model.fc(x.half())),
    "a product outside": outside(lambda model, x: x.half() @ model.fc.weight),
    "a batched product outside": outside(lambda model, x: torch.bmm(x[None].half(), x.t()[None])),
    "a convolution outside": outside(lambda model, x: model.conv(x[None].half())),
    "addmm outside": outside(lambda model, x: torch.addmm(x[0].half(), x, model.fc.weight)),
    "attention outside": outside(
        lambda model, x: F.scaled_dot_product_attention(x[None].half(), x[None], x[None])
    ),
    "a lerp outside": outside(lambda model, x: torch.lerp(x, x.half(), 0.5)),
    "FP64 into a linear layer": lambda model, x: model.fc(x.double()),
    "FP64 into a convolution": lambda model, x: model.conv(x[None].double()),
    "FP64 into a product": lambda model, x: x.double() @ model.fc.weight,
    "addmm_ in place": lambda model, x: model.fc(x).addmm_(x, model.fc.weight[:, :8]),
    "baddbmm_ in place": lambda model, x: model.fc(x)[None].baddbmm_(x[None, :, :4], x[None]),
    "mm with out": lambda model, x: torch.mm(x, x.t(), out=torch.empty(4, 4)),
    "index_put": lambda model, x: torch.zeros(4, 8).index_put((torch.tensor([0]),), model.fc(x)[:1]),
    "index_copy": lambda model, x: torch.zeros(4, 8).index_copy(0, torch.tensor([0]), model.fc(x)[:1]),
    "scatter": lambda model, x: torch.zeros(4, 8).scatter(
        1, torch.zeros(4, 8, dtype=torch.int64), model.fc(x)
    ),
    "masked_scatter": lambda model, x: torch.zeros(4, 8).masked_scatter(x > 0, model.fc(x)),
    "a mask with -1e9": lambda model, x: model.fc(x).masked_fill(x > 0, -1e9),
    "a full tensor beyond FP16": lambda model, x: torch.full_like(model.fc(x), 1e9),
    "BCE": lambda model, x: F.binary_cross_entropy(model.fc(x).sigmoid(), torch.ones(4, 8)),
    "cat of FP16 in a BF16 region": lambda model, x: _in_bf16(lambda: torch.cat([x.half(), x])),
    "an integer weight": lambda model, x: F.linear(x, torch.ones(8, 8, dtype=torch.int64)),
}


def _in_bf16(call):
    with torch.autocast("cpu", BF16):
        return call()


def really(forward):
    """Return what real CPU tensors under the emulation raise, or None."""
    try:
        with cuda_autocast(), torch.autocast("cpu", FP16):
            Wrong(forward)(torch.randn(4, 8))
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("mode", ["fake", "value"])
@pytest.mark.parametrize("forward", FORWARDS.values(), ids=FORWARDS)
def test_the_error_of_real_tensors_is_found(forward, mode):
    real = really(forward)
    found = leaves_no_trace(xray, Wrong(forward), torch.randn(4, 8), mode=mode)
    if real is None:
        assert found.error is None
        return
    assert found.error == f"{type(real).__name__}: {real}"
    assert found.ops[-1].error
    assert found.explanation is not None
    assert Path(found.ops[-1].source.file).name == Path(__file__).name


def test_most_of_these_are_refused():
    refused = [name for name, forward in FORWARDS.items() if really(forward) is not None]
    assert len(refused) >= 15, refused
