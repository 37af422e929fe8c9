"""Switching CUDA's cast policy on and off: who asked, what is said about it, what stays behind."""

import gc
import threading
from contextlib import ExitStack

import pytest
import torch
from torch import nn

from amp_lab.autocast.emulate import CudaAutocast, TensorCores, cuda_autocast, tensor_cores
from amp_lab.autocast.kernels import casts as cast_kernels
from amp_lab.autocast.kernels.replacing import ReplacedKernels, kernels_in_force
from amp_lab.autocast.policy import policy

FP16, FP32 = torch.float16, torch.float32
X = torch.linspace(-2, 2, 8).reshape(2, 4).half()
NAMES = sorted({*policy("cuda"), *policy("cpu"), *cast_kernels.CUDNN_RNNS, "mm", "relu"})


def table() -> list[str]:
    """Per operator, which kernel autocast on the CPU would call, and where it was registered."""
    lines = [torch._C._dispatch_dump_table(f"aten::{name}").splitlines() for name in NAMES]
    return [next(line for line in each if line.startswith("AutocastCPU:")) for each in lines]


def looks() -> list:
    """What else there is to change: PyTorch's switches, and names that torch.library remembers."""
    return [
        torch.backends.mha.get_fastpath_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch._C._len_torch_dispatch_stack(),
        sorted(name for name in torch.library._impls if name.endswith("/AutocastCPU")),
        kernels_in_force("AutocastCPU"),
    ]


UNTOUCHED, USUAL = table(), looks()


@pytest.fixture(autouse=True)
def nothing_stays_behind():
    assert (table(), looks()) == (UNTOUCHED, USUAL)
    yield
    assert (table(), looks()) == (UNTOUCHED, USUAL)
    assert not CudaAutocast.switch.in_force
    assert not TensorCores.switch.in_force
    assert ReplacedKernels._layers == []
    assert behaviour() == CPUS


def behaviour(dtype=FP16) -> dict[str, torch.dtype]:
    """What autocast on the CPU does to some operators, of which the two policies differ."""
    with torch.autocast("cpu", dtype):
        return {
            "softmax": torch.softmax(X, 1).dtype,
            "sum": X.sum().dtype,
            "layer_norm": nn.functional.layer_norm(X, (4,)).dtype,
            "mv": torch.mv(X.float(), X[0].float()).dtype,
            "padding": torch.ops.aten.reflection_pad1d(X, [1, 1]).dtype,
            "linear": nn.functional.linear(X.float(), X.float()).dtype,
            "mse_loss": nn.functional.mse_loss(X, X).dtype,
        }


CPUS = behaviour()
CUDAS = {
    "softmax": FP32,
    "sum": FP32,
    "layer_norm": FP32,
    "mv": FP16,
    "padding": FP16,
    "linear": FP16,
    "mse_loss": FP32,
}


def test_the_two_policies_differ():
    different = {name for name in CPUS if CPUS[name] != CUDAS[name]}
    assert different == {"softmax", "sum", "layer_norm", "mv", "padding"}


def test_it_is_on_inside_and_off_outside():
    with cuda_autocast() as casts:
        assert isinstance(casts, CudaAutocast)
        assert casts.on
        assert behaviour() == CUDAS
        assert X.exp().dtype == FP16  # outside regions nothing is cast
        changed = [name for name, now, before in zip(NAMES, table(), UNTOUCHED, strict=True) if now != before]
        assert len(changed) > 150
    assert not casts.on
    assert behaviour() == CPUS


def test_where_both_policies_agree_pytorchs_kernel_stays():
    on_cuda, on_cpu = policy("cuda"), policy("cpu")
    agreed = {name for name in on_cuda if name in on_cpu and on_cpu[name].fate == on_cuda[name].fate}
    assert {"linear", "matmul", "conv2d", "mse_loss"} <= agreed
    with cuda_autocast():
        same = {name for name, now, before in zip(NAMES, table(), UNTOUCHED, strict=True) if now == before}
    assert same == agreed | {"relu"}


def test_start_stop_blocks_and_decorators_are_counted():
    started = cuda_autocast().start()
    assert cuda_autocast().start().on  # twice is once
    with cuda_autocast(), started:
        pass
    assert behaviour() == CUDAS
    with cuda_autocast() as block:
        cuda_autocast().stop()
        assert block.on
        assert behaviour() == CUDAS
    assert behaviour() == CPUS

    @cuda_autocast()
    def decorated(depth=2):
        return decorated(depth - 1) if depth else behaviour()

    assert decorated() == CUDAS
    assert behaviour() == CPUS


def test_what_was_started_without_a_name_stays_on():
    cuda_autocast().start()
    gc.collect()
    assert behaviour() == CUDAS
    cuda_autocast().stop()


def test_blocks_may_end_in_any_order():
    first, second = ExitStack(), ExitStack()
    first.enter_context(cuda_autocast())
    second.enter_context(cuda_autocast())
    first.close()
    assert behaviour() == CUDAS
    second.close()


@pytest.mark.parametrize("casts_first", [True, False])
@pytest.mark.parametrize("end_in_order", [True, False])
def test_it_and_tensor_cores_begin_and_end_in_any_order(casts_first, end_in_order):
    both = [cuda_autocast(), tensor_cores(always=True)]
    both = both if casts_first else both[::-1]
    for one in both:
        one.start()
    assert behaviour() == CUDAS
    assert TensorCores.switch.in_force
    for one in both if end_in_order else both[::-1]:
        one.stop()


def test_an_error_in_the_block_or_in_an_operator_ends_nothing_but_itself():
    with pytest.raises(ZeroDivisionError), cuda_autocast():
        _ = 1 / 0
    with cuda_autocast(), torch.autocast("cpu", FP16):
        with pytest.raises(IndexError, match="Dimension out of range"):
            torch.softmax(X, 7)
        assert torch.is_autocast_enabled("cpu")
        with pytest.raises(RuntimeError, match="size mismatch"):
            torch.mv(X, X[:, 0])
        with pytest.raises(RuntimeError, match="unsafe to autocast"):
            nn.functional.binary_cross_entropy(X.sigmoid(), X.sigmoid())
        assert torch.is_autocast_enabled("cpu")
        assert torch.softmax(X, 1).dtype == FP32


def test_a_start_that_fails_is_no_start(monkeypatch):
    monkeypatch.setattr(cast_kernels, "CUDNN_RNNS", ("no_such_rnn.input",))
    with pytest.raises(AttributeError, match="no_such_rnn"):
        cuda_autocast().start()
    assert not cuda_autocast().on
    assert behaviour() == CPUS


def test_it_cannot_end_below_another_layer_and_can_after_it():
    def same(original):
        return lambda keys, *arguments, **named: original(keys, *arguments, **named)

    casts = cuda_autocast().start()
    names = kernels_in_force("AutocastCPU")
    assert "softmax.int" in names
    assert "reflection_pad1d" not in names
    looking_on = ReplacedKernels("AutocastCPU", dict.fromkeys(names, same))
    assert behaviour() == CUDAS
    with pytest.raises(RuntimeError, match="cannot be restored now"):
        casts.stop()
    assert casts.on
    assert behaviour() == CUDAS
    looking_on.restore()
    assert behaviour() == CUDAS
    casts.stop()


def test_it_may_lie_above_another_layer():
    seen = []

    def look(original):
        def kernel(keys, *arguments, **named):
            seen.append(1)
            return original(keys, *arguments, **named)

        return kernel

    below = ReplacedKernels("AutocastCPU", dict.fromkeys(kernels_in_force("AutocastCPU"), look))
    with cuda_autocast():
        assert behaviour() == CUDAS
        weight = nn.Parameter(torch.ones(4, 4))
        with torch.autocast("cpu", FP16):
            seen.clear()
            torch.mv(weight, torch.ones(4))
        assert not seen  # the cast of a weight is no operator of the user's
    below.restore()


def test_it_holds_in_every_thread():
    results = []
    with cuda_autocast():
        thread = threading.Thread(
            target=lambda: results.append((behaviour(), torch.is_autocast_enabled("cpu")))
        )
        with torch.autocast("cpu", FP16):
            thread.start()
            thread.join(timeout=60)
    assert results == [(CUDAS, False)]  # regions belong to threads, the policy to the process


def test_many_threads_may_switch_at_once():
    results = []

    def switch():
        for _ in range(5):
            with cuda_autocast():
                results.append(behaviour()["softmax"])

    with cuda_autocast():  # as advised: around the threads' work
        threads = [threading.Thread(target=switch) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
    assert results == [FP32] * 15


def test_the_policies_are_those_of_pytorch_while_it_is_on():
    before = {device: dict(policy(device)) for device in ("cuda", "cpu")}
    with cuda_autocast():
        assert {device: dict(policy(device)) for device in ("cuda", "cpu")} == before


@pytest.mark.parametrize("usual", [True, False])
def test_the_fast_path_of_attention_is_off_meanwhile(usual):
    torch.backends.mha.set_fastpath_enabled(usual)
    try:
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
        tokens = X.float().reshape(1, 2, 4)
        with torch.no_grad(), cuda_autocast():
            assert not torch.backends.mha.get_fastpath_enabled()
            with cuda_autocast(), torch.autocast("cpu", FP16):
                assert (
                    layer.self_attn(tokens, tokens, tokens)[0].dtype == FP16
                )  # not of the fast path, that is FP32
                assert layer(tokens).dtype == FP32  # after a layer_norm
        assert torch.backends.mha.get_fastpath_enabled() == usual
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


@pytest.mark.parametrize("usual", [True, False])
@pytest.mark.parametrize("chosen", [True, False])
def test_what_is_set_about_the_fast_path_meanwhile_stays(usual, chosen):
    torch.backends.mha.set_fastpath_enabled(usual)
    try:
        with cuda_autocast():
            with cuda_autocast():
                torch.backends.mha.set_fastpath_enabled(chosen)
            assert torch.backends.mha.get_fastpath_enabled() is chosen
        assert torch.backends.mha.get_fastpath_enabled() is chosen
        with cuda_autocast():
            pass
        assert torch.backends.mha.get_fastpath_enabled() is chosen
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


def test_it_does_not_decorate_what_runs_after_the_call():
    def generator():
        yield

    with pytest.raises(
        TypeError, match=r"cuda_autocast\(\) decorates plain functions, not .*: use a with-block inside"
    ):
        cuda_autocast()(generator)


def said(casts):
    """What it says, on one line; its own are short enough for JupyterLab."""
    lines = str(casts).splitlines()
    assert max(map(len, lines)) <= 92
    return " ".join(lines)


def test_what_it_says():
    casts = cuda_autocast()
    off = "torch.autocast(\"cpu\") casts by PyTorch's own rules for CPUs: the emulation of CUDA's is off."
    assert said(casts) == off
    with casts:
        now = said(casts)
        on_cuda, on_cpu = policy("cuda"), policy("cpu")
        agreed = sum(name in on_cpu and on_cpu[name].fate == rule.fate for name, rule in on_cuda.items())
        only = len({*on_cpu, *on_cpu.unasked} - {*on_cuda, *on_cuda.unasked})
        unasked = (
            f"; {len(on_cuda.unasked)} could not be asked and are left as they are" if on_cuda.unasked else ""
        )
        assert agreed > 30
        assert only > 80
        assert now == (
            f"torch.autocast(\"cpu\") casts CPU tensors by CUDA's rules: {agreed} are PyTorch's for CPUs as well, "
            f"{len(on_cuda) - agreed} are emulated, and {only} that only CPUs have are off{unasked}."
        )
        assert said(cuda_autocast()) == f"{now} This one is off; a with-block keeps that on."
        with cuda_autocast().start():
            pass
    assert said(cuda_autocast()) == now  # started, and so on
    cuda_autocast().stop()
    assert said(casts) == off
