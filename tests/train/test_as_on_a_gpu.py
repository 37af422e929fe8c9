"""What only a GPU does, played by stand-ins: it breaks, it runs out of memory, it has switches and generators."""

import weakref

import pytest
import torch
from torch import nn

from amp_lab.course.lessons.l09 import evaluated, keeping_runs, runs, strangers
from amp_lab.train.precision import fp32_products
from amp_lab.train.trainer import Trainer
from amp_lab.train.training.devices import move
from amp_lab.train.training.errors import OutOfMemory
from benchmarks.training.task import Task

BATCH = torch.ones(4, 6), torch.zeros(4, dtype=torch.long)


def make(loss_fn, **settings):
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, loss_fn, optimizer, device="cpu", progress=False, **settings)


def test_the_first_error_of_a_gpu_that_is_broken_comes_out(monkeypatch):
    """After a device-side assert, each further call fails, too, whatever it asks."""

    def breaks(outputs, target):
        def dead(scaler):
            raise RuntimeError("CUDA error: any call fails now")

        monkeypatch.setattr(torch.amp.GradScaler, "get_scale", dead)
        raise RuntimeError("CUDA error: device-side assert triggered")

    with pytest.raises(RuntimeError, match="device-side assert"):
        make(breaks, precision="fp16").fit([BATCH])


def test_what_has_not_fitted_into_memory_is_gone_while_the_error_is_there():
    """A notebook keeps the last error, and with it the local variables of all calls on the way."""
    kept = []

    def too_large(outputs, target):
        activation = outputs * 2
        kept.append(weakref.ref(activation))
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with pytest.raises(OutOfMemory) as caught:
        make(too_large).fit([BATCH])
    assert caught.value.__cause__ is not None
    assert kept[0]() is None


@pytest.mark.usefixtures("switches_kept")
def test_tf32_where_a_cpus_products_are_bf16():
    """The compiler asks for both kinds of switches, and an answer that they do not share is an error."""
    torch.set_float32_matmul_precision("medium")
    with fp32_products("tf32"):
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
        assert torch.backends.mkldnn.matmul.fp32_precision == "bf16"
        assert torch.get_float32_matmul_precision() == "medium"
    assert torch.get_float32_matmul_precision() == "medium"


def test_an_optimizers_state_is_loaded_anew_only_if_its_parameters_move(monkeypatch):
    """To load it casts it to the dtype of the parameters, which optimizers of 8 bits do not want."""
    model = nn.Linear(6, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.state[model.weight]["packed"] = torch.zeros(18, dtype=torch.uint8)
    move([model], optimizer, torch.device("cpu"))
    assert optimizer.state[model.weight]["packed"].dtype == torch.uint8
    loaded = []
    monkeypatch.setattr(optimizer, "load_state_dict", loaded.append)
    move([], optimizer, torch.device("meta"))
    assert len(loaded) == 1


@pytest.mark.parametrize(
    "make_something",
    [
        lambda: runs.Bench(runs.Scene("c")),
        lambda: evaluated.Model(1),
        lambda: keeping_runs.make_parts(1, ("model",)),
        lambda: Task(torch.bfloat16, "cpu").model(),
    ],
    ids=["9.1", "9.4", "9.3", "benchmark"],
)
def test_the_random_numbers_of_gpus_stay_as_they_are(monkeypatch, make_something):
    """`fork_rng(devices=[])` puts back the CPU's only, and `torch.manual_seed` seeds them all."""
    seeded = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    make_something()
    assert seeded == []


def test_no_machine_has_the_gpu_of_exercise_9_3(monkeypatch, tmp_path):
    with strangers.says_gpu():
        torch.save(torch.ones(3), tmp_path / "a.pt")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 16)
    with pytest.raises(RuntimeError, match="CUDA device 99"):
        torch.load(tmp_path / "a.pt", weights_only=True)
