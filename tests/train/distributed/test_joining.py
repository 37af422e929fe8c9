"""A wrong launch gets one message on one rank, an exit code, and no traceback; and nobody waits for ever."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from amp_lab.train import ddp
from amp_lab.train.distributed import joining
from amp_lab.train.distributed.errors import LaunchError
from amp_lab.train.distributed.launching import Launch
from tests.train.distributed import programs
from tests.train.distributed.launches import Started, free_port, held_port, ranks, started

SHORT = ["--quiet", "--epochs", "1", "--timeout", "4"]
PATIENT = ["--quiet", "--epochs", "1", "--timeout", "60"]  # where both come, however slowly


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """All wrong launches at once, and how each of their processes ended."""
    folder = tmp_path_factory.mktemp("wrong")
    other = ranks(2, free_port())
    with held_port() as taken:
        launches = {
            "half an environment": started(folder, ddp.main, (SHORT,), [{"RANK": "1"}]),
            "port taken": started(folder, ddp.main, (SHORT,), ranks(2, taken)),
            "rank 2 missing": started(folder, ddp.main, (SHORT,), ranks(3, free_port(), [0, 1])),
            "rank 0 missing": started(folder, ddp.main, (SHORT,), ranks(2, free_port(), [1])),
            "a wrong option": started(folder, ddp.main, (["--precision", "fp8"],), ranks(2, free_port())),
            "half an option": started(folder, ddp.main, (["--every", "5"],), ranks(2, free_port())),
            "no GPU": started(folder, ddp.main, ([*SHORT, "--device", "cuda"],), ranks(2, free_port())),
            "another option": [
                Started(folder, 10, other[0], ddp.main, ([*PATIENT, "--lr", "0.25"],)),
                Started(folder, 11, other[1], ddp.main, (PATIENT,)),
            ],
            "other data": started(
                folder, programs.script_with_other, ("data", PATIENT), ranks(2, free_port())
            ),
            "other code": started(
                folder, programs.script_with_other, ("code", PATIENT), ranks(2, free_port())
            ),
            "one GPU": started(
                folder, programs.script_on, (1, "nccl", SHORT), ranks(2, free_port(), LOCAL_WORLD_SIZE="2")
            ),
            "no gloo": started(folder, programs.script_on, (0, "gloo", SHORT), ranks(2, free_port())),
            "no NCCL": started(folder, programs.script_on, (2, "nccl", SHORT), ranks(2, free_port())),
            "spawn in torchrun": started(folder, ddp.main, (["--spawn", "2"],), ranks(1, free_port())),
        }
        yield {name: [each.ended() for each in processes] for name, processes in launches.items()}


SAID = {
    "half an environment": "has RANK, but no WORLD_SIZE, no MASTER_ADDR, no MASTER_PORT. Start it with `torchrun",
    "rank 2 missing": "rank 2 of 3 has not come",
    "rank 0 missing": "rank 1: for 4 s, nobody was at MASTER_ADDR=127.0.0.1",
    "a wrong option": "Invalid value for '--precision': 'fp8'",
    "half an option": "--every says how often to save; say where, too: --checkpoints DIR",
    "no GPU": "has no GPU that this PyTorch can use",
    "another option": "has options.lr 0.003, rank 0 (",
    "other data": 'has data "7 samples, checksum ',
    "other code": 'has code (checksum) "of tomorrow", rank 0 (',
    "one GPU": ", which has 1 GPU: each needs one of its own. Start 1 there (--nproc-per-node), or compute on the CPU",
    "no gloo": "was built without gloo, which ranks on cpu need: install one from pytorch.org that has it",
    "no NCCL": "was built without nccl, which ranks on cuda need: install one from pytorch.org that has it, or comp",
    "spawn in torchrun": "use one of the two",
}


@pytest.mark.parametrize("name", SAID)
def test_one_message_on_one_rank(wrong, name):
    ends = wrong[name]
    assert [each.code for each in ends] == [2] * len(ends), ends
    speaking = [each.output for each in ends if each.output.strip()]
    assert len(speaking) == 1, ends
    assert SAID[name] in speaking[0]
    assert "Traceback" not in speaking[0]


def test_a_port_that_is_taken(wrong):
    """Rank 0 knows at once. The other meets somebody who never answers, and cannot know that rank 0 has given up."""
    first, second = wrong["port taken"]
    assert (first.code, second.code) == (2, 2)
    assert first.output.startswith("MASTER_PORT=")
    assert "is taken on" in first.output
    assert "something answers that is not PyTorch's store" in second.output
    assert first.output.count("\n") == second.output.count("\n") == 1


# As such a build is: PyTorch asks for these functions in C++, and imports nothing that needs them.
WITHOUT_DISTRIBUTED = """
import importlib.abc, runpy, sys

class Without(importlib.abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "torch.distributed":
            sys.meta_path.remove(self)
            for each in ("_c10d_init", "_rpc_init", "_dist_autograd_init", "_faulty_agent_init"):
                vars(sys.modules["torch._C"]).pop(each, None)
            sys.modules["torch._C._distributed_c10d"] = None

sys.meta_path.insert(0, Without())
"""
SCRIPT = 'runpy.run_module("amp_lab.train.ddp", run_name="__main__")'
OWN = """
import torch
from amp_lab import Trainer

model = torch.nn.Linear(2, 1)
trainer = Trainer(model, torch.nn.MSELoss(), torch.optim.SGD(model.parameters(), 0.1), precision="fp32", progress=False)
trainer.fit([(torch.ones(3, 2), torch.ones(3, 1))] * 3)
print(trainer.step)
from amp_lab.train.distributed.workers import run_ranks
"""


def test_a_pytorch_without_torch_distributed():
    """The script says so. One process trains all the same; where more are asked for, the import says so."""

    def run(program):
        command = [sys.executable, "-c", WITHOUT_DISTRIBUTED + program]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)

    with ThreadPoolExecutor(2) as pool:
        script, own = pool.map(run, (SCRIPT, OWN))
    assert (script.returncode, script.stdout) == (2, "")
    (said,) = script.stderr.splitlines()
    assert "was built without torch.distributed" in said
    assert "One process can train without: Trainer(model, ...)" in said
    assert own.stdout == "3\n"
    assert own.stderr.splitlines()[-1] == f"ImportError: {said}"


ENVIRONMENT = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "host", "MASTER_PORT": "29500"}


def test_what_the_environment_says():
    assert Launch.read({}) is None
    assert Launch.read({"MASTER_ADDR": "host", "MASTER_PORT": "1"}) is None, "an address alone is no launch"
    launch = Launch.read(ENVIRONMENT | {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"})
    assert launch == Launch(1, 4, 0, 2, "host", 29500)
    assert Launch.read(launch.environment()) == launch
    hosted = Launch.read(ENVIRONMENT | {"TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert hosted is not None
    assert hosted.hosted


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"RANK": "4"}, "RANK=4 of WORLD_SIZE=4"),
        ({"RANK": "one"}, "RANK='one' is no number"),
        ({"RANK": "-1"}, "RANK='-1' is no number"),
        ({"WORLD_SIZE": ""}, "has RANK and MASTER_ADDR and MASTER_PORT, but no WORLD_SIZE"),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "2"}, "LOCAL_RANK=2 of LOCAL_WORLD_SIZE=2"),
        ({"LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "8"}, "LOCAL_RANK=2 of LOCAL_WORLD_SIZE=8"),
    ],
)
def test_an_environment_that_cannot_be(change, said):
    with pytest.raises(LaunchError, match=said):
        Launch.read(ENVIRONMENT | change)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"MASTER_PORT": "99999"}, "MASTER_PORT=99999: a port is a number from 1 to 65535"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT=0: a port"),
        ({"MASTER_ADDR": "a..b"}, "MASTER_ADDR='a..b' is no name and no address"),
        ({"MASTER_ADDR": "a b"}, "MASTER_ADDR='a b' is no name"),
    ],
)
def test_an_address_that_cannot_be(change, said):
    with pytest.raises(LaunchError, match=said):
        Launch.read(ENVIRONMENT | change)
    assert Launch.read(ENVIRONMENT | {"MASTER_ADDR": "fe80::1"}) is not None


@pytest.mark.parametrize(
    ("gpus", "environment", "got"),
    [
        (2, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 1),
        (2, {"LOCAL_RANK": "1"}, 1),
        (1, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "1"}, 0),
        (1, {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "GPU-5a"}, 0),
        (1, {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, "2 processes on .*, which has 1 GPU:"),
        (2, {"LOCAL_RANK": "2"}, "3 processes on .*, which has 2 GPUs"),
        (2, {}, "4 processes on .* which has 2 GPUs.*On several machines, each rank needs LOCAL_RANK"),
    ],
)
def test_the_gpu_of_a_process(monkeypatch, gpus, environment, got):
    """By torchrun's local rank; or the only one that it can see, as from SLURM's --gpus-per-task."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    for name in ("LOCAL_RANK", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    launch = Launch.read(ENVIRONMENT | environment)
    if isinstance(got, str):
        with pytest.raises(LaunchError, match=got):
            joining._device("auto", launch)
        assert chosen == []
    else:
        assert joining._device("auto", launch) == torch.device("cuda", got)
        assert chosen == [got]
