"""The script under torchrun: killed and restarted, and on two machines of which one is lost. (Both are loopback.)

torchrun imports torch once for itself and once for each rank, and again for a restart: seconds, of which little can be
shared. So here is one run of each kind; `make soak` has many.
"""

import pytest

from amp_lab.train import ddp
from tests.train.distributed.launches import free_port, ranks, started
from tests.train.elastic import SCRIPT, Torchrun, final, machine, wait_for_step

EPOCHS = ("--epochs", "12")  # of 23 steps each with two ranks


@pytest.fixture
def torchrun(tmp_path):
    running = []

    def start(name, options, script):
        running.append(Torchrun(tmp_path, name, options, script))
        return running[-1]

    yield start
    for each in running:
        each.lose()


def test_a_killed_rank_changes_no_bit(torchrun, tmp_path):
    script = (*SCRIPT, *EPOCHS, "--checkpoints", str(tmp_path / "killed"))
    options = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "3")
    run = torchrun("killed", options, script)
    wait_for_step(tmp_path / "killed", 10)
    run.workers()[1].kill()

    undisturbed = [*SCRIPT, *EPOCHS, "--checkpoints", str(tmp_path / "undisturbed")]
    for each in started(tmp_path, ddp.main, (undisturbed,), ranks(2, free_port())):
        assert each.ended().code == 0, each.output

    assert run.ended(90) == 0, run.output
    assert run.left() == []
    assert "12 epochs, 276 steps, 2 ranks, fp16" in run.output
    assert run.output.count("failed (exitcode: -9)") == 1, "it was not killed, or more than once"
    assert final(tmp_path / "killed") == final(tmp_path / "undisturbed")


def test_a_machine_is_lost(torchrun, tmp_path):
    """The other one goes on alone from the last checkpoint, with half the ranks."""
    folder = tmp_path / "lost"
    port = free_port()
    script = (*SCRIPT, *EPOCHS, "--checkpoints", str(folder))
    first, second = (torchrun(f"machine{number}", machine(number, port), script) for number in range(2))
    wait_for_step(folder, 10)
    second.lose()
    assert first.ended(120) == 0, first.output
    assert first.left() == []
    assert "12 epochs, " in first.output
    assert ", 1 rank, fp16" in first.output
