"""A wrong launch gets one message on one rank, an exit code, and no traceback; and nobody waits for ever."""

import pytest

from amp_lab.train import ddp
from amp_lab.train.distributed.errors import LaunchError
from amp_lab.train.distributed.fingerprint import fingerprint
from amp_lab.train.distributed.launching import Launch
from tests.train.distributed.launches import Started, free_port, held_port, ranks, started
from tests.train.small_runs import DATA, INPUTS

SHORT = ["--quiet", "--epochs", "1", "--timeout", "4"]


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
            "no GPU": started(folder, ddp.main, ([*SHORT, "--device", "cuda"],), ranks(2, free_port())),
            "another option": [
                Started(folder, 10, other[0], ddp.main, ([*SHORT, "--lr", "0.25"],)),
                Started(folder, 11, other[1], ddp.main, (SHORT,)),
            ],
            "spawn in torchrun": started(folder, ddp.main, (["--spawn", "2"],), ranks(1, free_port())),
        }
        yield {name: [each.ended() for each in processes] for name, processes in launches.items()}


SAID = {
    "half an environment": "has RANK, but no WORLD_SIZE, no MASTER_ADDR, no MASTER_PORT. Start it with `torchrun",
    "rank 2 missing": "rank 2 of 3 has not come",
    "rank 0 missing": "rank 1: for 4 s, nobody was at MASTER_ADDR=127.0.0.1",
    "a wrong option": "Invalid value for '--precision': 'fp8'",
    "no GPU": "2 processes on",
    "another option": "has options.lr 0.003, rank 0 (",
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
    ],
)
def test_an_environment_that_cannot_be(change, said):
    with pytest.raises(LaunchError, match=said):
        Launch.read(ENVIRONMENT | change)


def test_a_fingerprint_tells_data_apart():
    mine = fingerprint(DATA)
    assert mine.startswith("23 samples, checksum ")
    assert fingerprint(DATA) == mine
    assert fingerprint([(each,) for each in INPUTS]) != mine
    changed = [{"x": each.clone()} for each in INPUTS]
    before = fingerprint(changed)
    changed[22]["x"][5] += 1
    assert fingerprint(changed) != before
    assert fingerprint([]).startswith("0 samples")
