"""Kernels replaced for a while: what they are given, how layers of them lie, what is left when they are gone."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab.autocast.kernels.replacing import ReplacedKernels, kernels_in_force, no_kernel, original_kernel

ONES = torch.ones(2, 2)
PRODUCT = ONES @ ONES


def times(factor):
    """Replacements of mm: its result times `factor`."""
    return {"mm": lambda original: lambda keys, *operands: factor * original(keys, *operands)}


def table():
    """Where the kernels that may be replaced here were registered."""
    dumps = [torch._C._dispatch_dump(f"aten::{name}") for name in ("mm", "addmm", "reflection_pad1d", "relu")]
    lines = [line for dump in dumps for line in dump.splitlines()]
    return [line for line in lines if line.startswith(("CPU", "AutocastCPU"))]


UNTOUCHED = table()


def registered():
    return {name for name in torch.library._impls if name.endswith("CPU")}


@pytest.fixture(autouse=True)
def nothing_stays_behind():
    before = registered()
    yield
    assert table() == UNTOUCHED
    assert registered() == before
    assert ReplacedKernels._layers == []
    assert torch.equal(ONES @ ONES, PRODUCT)


def test_they_are_given_the_original():
    replaced = ReplacedKernels("CPU", times(3))
    assert torch.equal(ONES @ ONES, 3 * PRODUCT)
    replaced.restore()
    assert torch.equal(ONES @ ONES, PRODUCT)
    replaced.restore()  # again does nothing


class Sees(TorchDispatchMode):
    """A mode that looks on; where one is, PyTorch calls Python kernels in another way."""

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # else PyTorch imports its compiler, for seconds

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [None, Sees], ids=["no mode", "a mode"])
def test_layers_lie_on_each_other_and_come_off_one_by_one(mode):
    def product():
        if mode is None:
            return ONES @ ONES
        with mode():
            return ONES @ ONES

    lower = ReplacedKernels("CPU", times(3))
    upper = ReplacedKernels("CPU", times(5))
    assert torch.equal(product(), 15 * PRODUCT)
    upper.restore()
    assert torch.equal(product(), 3 * PRODUCT)
    upper = ReplacedKernels("CPU", times(7))
    assert torch.equal(product(), 21 * PRODUCT)
    upper.restore()
    lower.restore()
    assert torch.equal(product(), PRODUCT)


def test_a_layer_below_another_cannot_be_restored():
    lower = ReplacedKernels("CPU", times(3))
    upper = ReplacedKernels("CPU", times(5))
    with pytest.raises(RuntimeError, match=r"laid over them since .* End that first"):
        lower.restore()
    assert torch.equal(ONES @ ONES, 15 * PRODUCT)  # nothing was done
    upper.restore()
    lower.restore()


def test_layers_that_share_no_operator_or_no_key_end_in_any_order():
    def same(original):
        return lambda keys, *arguments, **named: original(keys, *arguments, **named)

    first = ReplacedKernels("CPU", times(3))
    others = [ReplacedKernels("AutocastCPU", {"mm": same}), ReplacedKernels("CPU", {"addmm": same})]
    first.restore()
    assert torch.equal(ONES @ ONES, PRODUCT)
    for other in others:
        other.restore()


@pytest.mark.parametrize("name", ["no_such_operator", "mm.no_such_overload"])
def test_an_operator_that_is_not_there_replaces_nothing(name):
    with pytest.raises(RuntimeError, match=name):
        ReplacedKernels("CPU", {**times(3), name: no_kernel})


def test_an_error_while_kernels_are_made_replaces_nothing():
    def fails(original):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ReplacedKernels("CPU", {**times(3), "addmm": fails})


def test_no_kernel_leaves_an_operator_to_the_next_key():
    dtype = _padded_dtype()
    replaced = ReplacedKernels("AutocastCPU", {"reflection_pad1d": no_kernel})
    assert (dtype, _padded_dtype()) == (torch.float32, torch.float16)
    assert "reflection_pad1d" not in kernels_in_force("AutocastCPU")
    with pytest.raises(RuntimeError, match="reflection_pad1d had no kernel for AutocastCPU"):
        original_kernel("reflection_pad1d", "AutocastCPU")(None, ONES, [1, 1])
    replaced.restore()
    assert _padded_dtype() == torch.float32
    assert "reflection_pad1d" in kernels_in_force("AutocastCPU")


def _padded_dtype():
    """What autocast makes of an operator that it casts to FP32 on CPUs."""
    with torch.autocast("cpu", torch.float16):
        return torch.ops.aten.reflection_pad1d(torch.ones(1, 4, dtype=torch.float16), [1, 1]).dtype


def test_no_kernel_may_lie_between_others():
    def as_fp64(original):
        return lambda keys, tensor, padding: tensor.double()

    layers = [ReplacedKernels("AutocastCPU", {"reflection_pad1d": each}) for each in (as_fp64, no_kernel)]
    assert _padded_dtype() == torch.float16
    layers.append(ReplacedKernels("AutocastCPU", {"reflection_pad1d": as_fp64}))
    assert _padded_dtype() == torch.float64
    seen = []
    for layer in reversed(layers):
        layer.restore()
        seen.append(_padded_dtype())
    assert seen == [torch.float16, torch.float64, torch.float32]


def test_an_operator_that_has_no_kernel_on_a_key_can_be_given_one():
    assert "relu" not in kernels_in_force("AutocastCPU")
    with pytest.raises(RuntimeError, match="relu had no kernel for AutocastCPU"):
        original_kernel("relu", "AutocastCPU")(None, ONES)
    replaced = ReplacedKernels("AutocastCPU", {"relu": lambda original: lambda keys, tensor: tensor + 41})
    assert "relu" in kernels_in_force("AutocastCPU")
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(torch.relu(ONES), 42 * ONES)
    assert torch.equal(torch.relu(ONES), ONES)
    replaced.restore()
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(torch.relu(ONES), ONES)


def test_kernels_in_force_are_those_of_the_dispatcher():
    names = kernels_in_force("AutocastCPU")
    assert {"mm", "linear", "mse_loss", "conv1d.padding"} <= set(names)
    assert not {"relu", "softmax.int"} & set(names)
    assert all(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{n}", "AutocastCPU") for n in names)
