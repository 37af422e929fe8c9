"""CUDA's autocast against its emulation on a CPU: the dtype of everything, the values, and what cuDNN does.

The same numbers go through the same models: on the GPU under `torch.autocast("cuda")`, on the CPU emulated.
"""

import copy

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from amp_lab.autocast.emulate import cuda_autocast, tensor_cores
from amp_lab.autocast.policy import policy
from amp_lab.autocast.xray import xray
from tests.autocast.families import FAMILIES
from tests.autocast.observing import Calls, Kernels, tensors

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason="no CUDA device: the emulation of CUDA's autocast is not compared with the real one",
    ),
]
HALVES = [torch.float16, torch.bfloat16]
every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
both_halves = pytest.mark.parametrize("dtype", HALVES, ids=str)
# What two ways to add up may make of a model, in units of the dtype's eps, relative to the norm of what is compared.
OUTPUTS_APART, GRADIENTS_APART = 8, 32


def on_gpu(value):
    """Return a copy of a model, or of the tensors in a batch, on the GPU."""
    if isinstance(value, nn.Module):
        return copy.deepcopy(value).cuda()
    return tree_map(lambda each: each.cuda() if isinstance(each, torch.Tensor) else each, value)


def run(family, model, inputs, device, dtype):
    """Run forward, loss and backward under autocast; return outputs, gradients, and the calls of forward and loss."""
    with Kernels() as kernels:
        with Calls(kernels) as calls, torch.autocast(device, dtype):
            output = model(*inputs)
            loss = family.loss(output)
        loss.backward()
    gradients = {name: each.grad for name, each in model.named_parameters()}
    return [*tensors(output), loss], gradients, calls.calls


def both(family, dtype):
    """Return what `run` returns on the GPU, and on the CPU under the emulation."""
    model, inputs = without_dropout(family.model()), family.inputs()
    real = run(family, on_gpu(model), on_gpu(inputs), "cuda", dtype)
    with cuda_autocast(), tensor_cores(always=True):
        return real, run(family, model, inputs, "cpu", dtype)


def without_dropout(model):
    """The two devices draw different random numbers."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    return model


def casts(call, family):
    """Return the conversions of a call that are autocast's, with what one device does and the other does not left out.

    CUDA's softmax reads FP16 and writes FP32 with no copy; attention and recurrent layers cast inside of themselves.
    """
    if call.name in (
        "softmax",
        "log_softmax",
        "cross_entropy_loss",
        "scaled_dot_product_attention",
        "lstm",
        "gru",
    ):
        return None
    return call.casts


@every_family
@both_halves
def test_every_call_makes_the_same_dtypes(family, dtype):
    real, emulated = (calls for _, _, calls in both(family, dtype))
    found = [(call.name, call.outputs, casts(call, family)) for call in real]
    assert found == [(call.name, call.outputs, casts(call, family)) for call in emulated]


@every_family
@both_halves
def test_gradients_and_their_dtypes(family, dtype):
    (outputs, gradients, _), (wanted_outputs, wanted_gradients, _) = both(family, dtype)
    assert [each.dtype for each in outputs] == [each.dtype for each in wanted_outputs]
    assert {name: each.dtype for name, each in gradients.items()} == dict.fromkeys(
        wanted_gradients, torch.float32
    )


@every_family
@both_halves
@pytest.mark.parametrize("mode", ["fake", "value"])
def test_the_xray_of_a_cpu_model_is_that_of_the_model_on_the_gpu(family, dtype, mode):
    """What autocast sees, its casts and the results, row by row, in forward; in backward by forward operator."""
    settings = {"dtype": dtype, "loss": family.loss, "device_type": "cuda"}
    model, inputs = without_dropout(family.model()), family.inputs()
    real = xray(on_gpu(model), *on_gpu(inputs), mode="value", **settings)
    emulated = xray(model, *inputs, mode=mode, **settings)
    assert (real.error, emulated.error) == (None, None)
    assert forward_rows(real) == forward_rows(emulated)
    assert gradient_dtypes(real) == gradient_dtypes(emulated)


def ruled():
    """Return the names of what autocast has a rule for, but cuDNN's: a CPU has LSTM and GRU in its place."""
    return {each.name for each in policy("cuda").values() if not each.name.startswith("_cudnn")}


def forward_rows(found):
    """Return what autocast has a rule for, but the casts of softmax, of which CUDA makes no copy."""
    names = ruled()
    return [
        (
            op.name,
            op.module,
            op.fate,
            [
                (each.value.shape, each.value.dtype, each.dtype)
                for each in op.casts
                if "softmax" not in op.name
            ],
            [(each.shape, each.dtype) for each in op.outputs],
        )
        for op in found.ops
        if op.phase == "forward" and op.name in names
    ]


def gradient_dtypes(found):
    """Return the dtypes of gradients by module and name of the forward operator, of what autocast has a rule for.

    Softmax is left out: where CUDA's reads FP16 and writes FP32, its gradient goes back without a cast, too.
    """
    names, dtypes = ruled() - {"softmax", "log_softmax"}, {}
    for op in found.ops:
        if op.phase == "backward" and op.name in names:
            dtypes.setdefault((op.module, op.name), set()).update(each.dtype for each in op.outputs)
    return dtypes


@both_halves
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_through_cudnn(kind, dtype):
    """The one rule that cannot be asked without CUDA: cuDNN casts input, state and weights, to FP16."""
    layer, x = kind(8, 4, num_layers=2, batch_first=True), torch.randn(2, 5, 8)
    real, gpu_input = on_gpu(layer), x.clone().cuda().requires_grad_()
    with torch.autocast("cuda", dtype):
        found = list(tensors(real(gpu_input)))
    cpu_input = x.clone().requires_grad_()
    with cuda_autocast(), tensor_cores(always=True), torch.autocast("cpu", dtype):
        wanted = list(tensors(layer(cpu_input)))
    assert [each.dtype for each in found] == [each.dtype for each in wanted]
    for ours, theirs in zip(wanted, found, strict=True):
        assert apart(theirs, ours) < OUTPUTS_APART * torch.finfo(ours.dtype).eps
    found[0].float().sum().backward()
    wanted[0].float().sum().backward()
    assert gpu_input.grad.dtype == cpu_input.grad.dtype == torch.float32
    assert apart(gpu_input.grad, cpu_input.grad) < GRADIENTS_APART * torch.finfo(torch.float16).eps


# Values


@pytest.fixture
def exact_products():
    """Sums in FP32 and one rounding, as far as CUDA can be asked for that; FP32 products without TF32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_tf32,
        cudnn.allow_tf32,
    )
    set_reduced_precision(False)
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    yield
    (
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
        matmul.allow_tf32,
        cudnn.allow_tf32,
    ) = before


def set_reduced_precision(allowed):
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = allowed
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = allowed


def apart(found, wanted):
    """Return the distance of two tensors, relative to the norm of the second."""
    found, wanted = found.detach().cpu().double(), wanted.detach().cpu().double()
    return float((found - wanted).norm() / wanted.norm().clamp_min(1e-6))


def furthest(found, wanted):
    return max(apart(found[name], wanted[name]) for name in wanted)


@every_family
@both_halves
@pytest.mark.usefixtures("exact_products")
def test_values(family, dtype):
    (outputs, gradients, _), (wanted_outputs, wanted_gradients, _) = both(family, dtype)
    eps = torch.finfo(dtype).eps
    assert max(map(apart, outputs, wanted_outputs)) < OUTPUTS_APART * eps
    everything, wanted = (
        torch.cat([each.flatten().cpu() for each in all_.values()]) for all_ in (gradients, wanted_gradients)
    )
    assert apart(everything, wanted) < GRADIENTS_APART * eps


@both_halves
@pytest.mark.usefixtures("exact_products")
def test_one_long_product(dtype, capsys):
    """K = 16,384: in FP32 sums one rounding away from the emulation; how far with reduced precision is only shown."""
    dice = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=dice).to(dtype) for shape in ((64, 16384), (16384, 64)))
    with tensor_cores(always=True):
        wanted = a @ b
    exact = a.double() @ b.double()
    eps = torch.finfo(dtype).eps
    # Two roundings to the dtype, and FP32's own error for so many terms.
    bound = eps * exact.abs() + 2 * 2.0**-24 * 16384**0.5 * (a.double().abs() @ b.double().abs())
    strict = a.cuda() @ b.cuda()
    assert bool(((strict.cpu().double() - wanted.double()).abs() <= bound).all())
    set_reduced_precision(True)
    loose = a.cuda() @ b.cuda()
    assert apart(loose, wanted) < 64 * eps
    with capsys.disabled():
        print(
            f"\n{dtype}, K = 16,384, distance from the emulation relative to the norm: {apart(strict, wanted):.3g} "
            f"with FP32 sums, {apart(loose, wanted):.3g} with reduced-precision reduction allowed"
        )


@both_halves
@pytest.mark.usefixtures("exact_products")
def test_how_far_reduced_precision_takes_the_models(dtype, capsys):
    lines = []
    for family in FAMILIES:
        distances = []
        for allowed in (False, True):
            set_reduced_precision(allowed)
            (outputs, gradients, _), (wanted_outputs, wanted_gradients, _) = both(family, dtype)
            distances += [max(map(apart, outputs, wanted_outputs)), furthest(gradients, wanted_gradients)]
        lines.append("{:20} {:9.2e} {:9.2e}   {:9.2e} {:9.2e}".format(family.name, *distances))
        assert distances[2] < 64 * torch.finfo(dtype).eps
    with capsys.disabled():
        print(
            f"\n{dtype}: outputs and gradients from the emulation, FP32 sums; then reduced precision allowed"
        )
        print(*lines, sep="\n")
