"""The x-ray of eight model families against what an independent observer sees, operator by operator.

The observer (`observing.Kernels`) runs the same model without any x-ray: under the emulation, of which
test_families_emulated shows that it casts as CUDA's own kernels do; and under PyTorch's own autocast for CPUs.
"""

import contextlib
import functools
from dataclasses import replace

import pytest
import torch

from amp_lab.autocast.emulate import cuda_autocast
from amp_lab.autocast.fates import Fate
from amp_lab.autocast.xray import xray
from tests.autocast.families import FAMILIES
from tests.autocast.observing import Kernels
from tests.autocast.traces import leaves_no_trace

pytestmark = pytest.mark.long  # `make quick` leaves it to `make test`

HALVES = [torch.float16, torch.bfloat16]
# How Python reads what a tensor is: nothing runs.
QUESTIONS = {
    "prim.device.default",
    "aten.is_same_size.default",
    "aten.sym_size.int",
    "aten.sym_numel.default",
}
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
both_halves = pytest.mark.parametrize("dtype", HALVES, ids=str)
both_devices = pytest.mark.parametrize("device_type", ["cuda", "cpu"])


@functools.cache
def look(family, device_type, dtype, mode):
    found = leaves_no_trace(
        xray,
        family.model(),
        *family.inputs(),
        device_type=device_type,
        dtype=dtype,
        mode=mode,
        loss=family.loss,
    )
    assert found.mode == mode
    return found


def observe(family, device_type, dtype):
    """Return every ATen operator of forward, loss and backward, in order, and the error that ended it, or None."""
    model, inputs = family.model(), family.inputs()
    policy = cuda_autocast() if device_type == "cuda" else contextlib.nullcontext()
    kernels, error = Kernels(), None
    with policy:
        try:
            with kernels, torch.autocast("cpu", dtype):
                loss = family.loss(model(*inputs))
            start = torch.ones_like(loss)
            with kernels:
                loss.backward(start)
        except RuntimeError as raised:  # PyTorch's LSTM for FP16 wants a CPU with FP16 arithmetic
            error = f"RuntimeError: {raised}"
    return [each for each in kernels.seen if each.op not in QUESTIONS], error


def parts(found, seen):
    """Yield each row with what the observer saw of it: its casts, and its other operators."""
    rest = iter(seen)
    for op in found.ops:
        copies = [each for each in op.casts if each.copied]
        own = [each for _, each in zip(range(len(copies) + len(op.kernels)), rest, strict=False)]
        if op.phase == "forward" and op.fate is not None:
            casts, work = own[: len(copies)], own[len(copies) :]
        else:
            casts, work = [], own
        yield op, copies, casts, work
    assert not list(rest)


@every_family
@both_halves
@both_devices
def test_every_operator_and_its_dtypes(family, dtype, device_type):
    found, (seen, error) = look(family, device_type, dtype, "value"), observe(family, device_type, dtype)
    assert found.error == error
    assert error is None or (family.recurrent and device_type == "cpu")
    phases = set()
    for op, copies, casts, work in parts(found, seen):
        phases.add(op.phase)
        assert [each.op for each in work] == list(op.kernels), op
        # The table has them in the order of the arguments, which is not the one of C++.
        assert sorted(
            (each.value.shape, str(each.value.dtype), str(each.dtype)) for each in copies
        ) == sorted((each.shapes[0], str(each.inputs[0]), str(each.outputs[0])) for each in casts), op
        made = [dtype for each in work for dtype in each.outputs]
        assert {each.dtype for each in op.outputs} <= set(made), op
        if len(work) == 1:
            # A kernel may return more than the operator does: layer_norm's, also means and deviations.
            assert [each.dtype for each in op.outputs] == made[: len(op.outputs)], op
            # What is FP32 unless a dtype is passed has it passed: it reads 16 bits and computes in FP32.
            told = op.fate is Fate.FP32_UNLESS and widest(work[0].outputs)
            # The parameters and statistics of a layer that normalises may be FP32 beside data in 16 bits.
            data = work[0].inputs[:1] if "_norm" in work[0].op else work[0].inputs
            assert op.dtype == (told or widest(data) or widest(work[0].outputs)), op
    assert error or phases == {"forward", "backward"}


def widest(dtypes):
    floating = [dtype for dtype in dtypes if dtype.is_floating_point]
    return max(floating, key=lambda dtype: dtype.itemsize, default=None)


@every_family
@both_halves
@both_devices
def test_without_numbers_the_table_is_the_same(family, dtype, device_type):
    value, fake = (look(family, device_type, dtype, mode) for mode in ("value", "fake"))
    assert fake.error is None
    # Up to what this CPU cannot compute, if there is such a thing.
    ran = len(value.ops) if value.error is None else len(value.ops) - 1
    for one, other in zip(value.ops[:ran], fake.ops[:ran], strict=True):
        if torch.__version__ < "2.13" and op_with_a_wrong_fake(one):
            continue
        assert without_workspace(one) == without_workspace(other)
    assert value.error or len(value.ops) == len(fake.ops)


def op_with_a_wrong_fake(op):
    """Say whether 2.9's fake kernel gives another dtype than the real one to gradients of weights."""
    return op.phase == "backward" and op.name in ("layer_norm", "mkldnn_rnn_layer")


def without_workspace(op):
    """Leave out the block of bytes that oneDNN's LSTM keeps for its backward pass: its size is known when it ran."""
    inputs, outputs = (
        tuple(each for each in values if each.dtype is not torch.uint8) for values in (op.inputs, op.outputs)
    )
    return replace(op, inputs=inputs, outputs=outputs)


@every_family
@both_halves
def test_fates_are_what_happened(family, dtype):
    """What has a fate has it whatever was cast: the dtype of its results says so."""
    expected = {Fate.LOWER: {dtype}, Fate.FP32: {torch.float32}, Fate.FP32_UNLESS: {torch.float32}}
    if family.recurrent:
        expected[Fate.LOWER] |= {torch.float16}  # cuDNN's, whatever the region's dtype is
    lower = 0
    for op in look(family, "cuda", dtype, "fake").ops:
        lower += op.fate is Fate.LOWER
        # F.cross_entropy passes the dtype of its logits on to log_softmax.
        told = {dtype} if op.name == "log_softmax" else set()
        made = {each.dtype for each in op.outputs if each.dtype.is_floating_point}
        assert made <= expected.get(op.fate, made) | told, op
    assert lower >= 3


@every_family
def test_every_parameter_gets_an_fp32_gradient(family):
    found = look(family, "cuda", torch.float16, "fake")
    last = [op for op in found.ops if op.name == "accumulate_grad"]
    assert {each.dtype for op in last for each in op.inputs} == {torch.float32}
