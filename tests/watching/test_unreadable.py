"""Tensors whose numbers cannot be read, and what a report says of them: never an error from deep inside PyTorch."""

import re

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from amp_lab.watching import gradients
from amp_lab.watching.gradients import gradient_report

PLAIN = "without numbers of its own (as inside torch.vmap or FakeTensorMode): give a plain tensor"


@pytest.fixture
def mesh():
    """Return a mesh of one process, this one."""
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    from torch.distributed.device_mesh import init_device_mesh

    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.skipif(not dist.is_available(), reason="this PyTorch has no torch.distributed")
@pytest.mark.filterwarnings("ignore")  # of torch.distributed there are many, and none is about us
def test_gradients_of_fsdp2(mesh):
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import distribute_tensor

    model = nn.Linear(3, 2)
    fully_shard(model, mesh=mesh)
    model(torch.ones(4, 3)).sum().backward()
    give = "is a DTensor, of which every process has a part: give .full_tensor(), in all of them, or .to_local() for"
    for source, name in ((model, "weight"), (distribute_tensor(torch.ones(2), mesh), "gradient")):
        with pytest.raises(TypeError, match=re.escape(f"{name!r} {give}")):
            gradient_report(source)
    for whole in ("full_tensor", "to_local"):
        given = {name: getattr(p.grad, whole)() for name, p in model.named_parameters()}
        assert (gradient_report(given).total.entries, gradient_report(given).total.largest) == (8, 4.0)


def refused(gradient, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        gradient_report(gradient)


def test_fake_tensors():
    with FakeTensorMode():
        fake = torch.ones(3)
        refused(torch.ones(2), f"'gradient' is a FakeTensor {PLAIN}")
    refused(fake, f"'gradient' is a FakeTensor {PLAIN}")


def test_inside_vmap():
    def look(x):
        refused(x, f"'gradient' is a Tensor {PLAIN}")
        return x

    torch.vmap(look)(torch.ones(3, 2))


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_masked_tensors():
    from torch.masked import masked_tensor

    refused(masked_tensor(torch.ones(2), torch.tensor([True, False])), f"is a MaskedTensor {PLAIN}")


def test_two_numbers_in_one():
    packed = torch.zeros(4, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    refused(
        packed,
        "'gradient' is a tensor of torch.float4_e2m1fn_x2, with two numbers in one: give them unpacked",
    )


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors(layout):
    nested = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)], layout=layout)
    refused(nested, "'gradient' is a nested tensor: give its parts, .unbind()")
    assert gradient_report(nested.unbind()).total.entries == 5


def test_other_errors_stay_as_they_are(monkeypatch):
    """Such as a GPU's that has no memory left: that is not the tensor's fault."""

    def no_memory(*_):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(gradients, "tally", no_memory)
    for gradient in (torch.ones(3), torch.ones(3).to_sparse(), torch.ones(0)):
        with pytest.raises(torch.OutOfMemoryError):
            gradient_report(gradient)


def test_an_unusual_tensor_with_numbers_is_counted():
    class Mine(torch.Tensor):
        pass

    class Dispatched(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            with torch._C._DisableTorchDispatch():
                return func(*args, **(kwargs or {}))

    for kind in (Mine, Dispatched):
        assert gradient_report(torch.ones(3).as_subclass(kind)).total.entries == 3
