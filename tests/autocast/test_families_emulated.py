"""The emulation of CUDA's autocast on eight model families, call by call against PyTorch's own CUDA kernels.

`observing` notes every call of PyTorch's API with the operators that ran in it; `cuda_oracle` asks what CUDA's autocast
would have done with each. What a build without CUDA cannot be asked has no autocast kernel there, or is `nn.LSTM` and
`nn.GRU`: these go through cuDNN as a whole, which tests/cuda compares; here, with what the documentation says.
"""

import pytest
import torch
from torch import nn

from amp_lab.autocast.emulate import cuda_autocast
from tests.autocast import cuda_oracle
from tests.autocast.families import FAMILIES
from tests.autocast.observing import Call, Calls, Casting, Kernels

pytestmark = pytest.mark.long  # `make quick` leaves it to `make test`

HALVES = [torch.float16, torch.bfloat16]
# Their Python bindings want to switch to the GPU that is not there; none of them has an autocast kernel.
UNASKED = {"batch_norm", "contiguous", "__getitem__", "__invert__"}
RECURRENT = {"lstm", "gru"}


def run(family, dtype):
    """Return every call of forward and loss, on a CPU under the emulation."""
    model, inputs = family.model(), family.inputs()
    with cuda_autocast(), Kernels() as kernels, Calls(kernels) as calls, torch.autocast("cpu", dtype):
        family.loss(model(*inputs))
    return calls.calls


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_call_casts_as_on_cuda(family, dtype):
    cache, asked = cuda_oracle.Cache(), 0
    for call in run(family, dtype):
        if call.name in RECURRENT:
            continue
        answer = cuda_oracle.ask(call, dtype)
        if isinstance(answer, Exception):
            assert call.name in UNASKED, f"{call.name}: {answer}"
            assert not call.casts
            continue
        asked += 1
        assert answer.outputs in (None, call.outputs), call.name
        wanted = casts_of_arguments(call, cache.copies(answer)) + without_a_copy(answer)
        assert casts_of_arguments(call, call.casts) == wanted, call.name
    assert asked >= 5


def casts_of_arguments(call: Call, casts: list[Casting]) -> list[Casting]:
    """Return the casts that are autocast's: all, but of attention only those of arguments to 16 bits.

    Which kernel does the attention, and what that casts for itself, depends on the device.
    """
    if call.name != "scaled_dot_product_attention":
        return casts
    return [each for each in casts if each.argument is not None and each.target in HALVES]


def without_a_copy(answer: Call) -> list[Casting]:
    """Return the casts that CUDA's softmax does while it reads FP16 and writes FP32; a CPU needs a copy for it."""
    fused = ("aten._softmax.default", "aten._log_softmax.default")
    softmax = [each for each in answer.seen if each.op in fused and each.inputs != each.outputs]
    return [Casting(each.inputs[0], each.outputs[0], None) for each in softmax]


def test_what_cannot_be_asked_has_no_autocast_kernel():
    for name in UNASKED - {"__getitem__", "__invert__"} | {
        "index.Tensor",
        "select.int",
        "slice.Tensor",
        "bitwise_not",
    }:
        assert not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA"), name


def test_the_oracle_sees_what_a_cpu_does_differently():
    """Without the emulation, the same comparison finds differences: it can fail."""
    differ = set()
    for family in FAMILIES:
        model, inputs = family.model(), family.inputs()
        with Kernels() as kernels, Calls(kernels) as calls, torch.autocast("cpu", torch.bfloat16):
            family.loss(model(*inputs))
        for call in calls.calls:
            answer = cuda_oracle.ask(call, torch.bfloat16)
            if not isinstance(answer, Exception) and answer.outputs not in (None, call.outputs):
                differ.add(call.name)
    assert {"layer_norm", "softmax", "group_norm", "mv"} <= differ


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_compute_in_fp16(kind, dtype):
    """cuDNN's autocast kernel (ATen/cudnn/AutocastRNN.cpp) names FP16, whatever the region's dtype is."""
    layer, x = kind(8, 4, num_layers=2, batch_first=True), torch.randn(2, 5, 8)
    with cuda_autocast(), Kernels() as kernels, torch.autocast("cpu", dtype):
        output, state = layer(x)
    last = state if isinstance(state, tuple) else (state,)
    assert {each.dtype for each in (output, *last)} == {torch.float16}
    casts = [each for each in kernels.seen if each.is_cast]
    assert {each.outputs[0] for each in casts} == {torch.float16}
    assert {each.shapes[0] for each in casts} >= {tuple(each.shape) for each in (x, *layer.parameters())}
    products = [each for each in kernels.seen if each.op.split(".")[1] in ("mm", "addmm", "bmm", "addbmm")]
    assert products
    assert {each.inputs[-1] for each in products} == {torch.float16}
