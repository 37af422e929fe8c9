"""What really happens to launches: many at once, ranks that are killed, a machine that is lost.

`AMP_LAB_SOAK_LAUNCHES` (20) launches start at the same time; none may fail for a port. A random rank is killed at
`AMP_LAB_SOAK_RANK_KILLS` (20) random moments, from the import of torch to the last checkpoint; torchrun brings all
back, and the run ends in the same bits as one that was left alone. Two agents of torchrun on loopback are two machines:
they complete, and the first goes on when the second is lost. What ran is kept in a dated JSON file under
benchmarks/results/, but only for the full numbers.
"""

import os
import random
import time
from collections import Counter

import pytest

from amp_lab.train import ddp
from benchmarks.finding import Finding
from benchmarks.results import FOLDER, keep
from tests.train.distributed.launches import Started, free_port
from tests.train.elastic import SCRIPT, Torchrun, final, machine, wait_for_step

FULL = 20
LAUNCHES = int(os.environ.get("AMP_LAB_SOAK_LAUNCHES", FULL))
KILLS = int(os.environ.get("AMP_LAB_SOAK_RANK_KILLS", FULL))
STANDALONE = ("--standalone", "--nproc-per-node", "2", "--max-restarts", "3")
HANGS = 60.0  # seconds after a kill that no run may take; it takes less than half of that alone on two cores


@pytest.mark.soak
def test_many_at_once(tmp_path):
    """Half of them by torchrun, half by --spawn."""
    begun = time.monotonic()
    script = [*SCRIPT, "--epochs", "1", "--timeout", "500"]
    spawned = [
        Started(tmp_path, number, {}, ddp.main, ([*script, "--spawn", "2"],))
        for number in range(LAUNCHES // 2)
    ]
    elastic = [
        Torchrun(tmp_path, f"torchrun{number}", STANDALONE, script)
        for number in range(LAUNCHES - len(spawned))
    ]
    try:
        failed = [each.output for each in spawned if each.ended(500).code]
        failed += [each.output for each in elastic if each.ended(500)]
        left = [process for each in elastic for process in each.left()]
    finally:
        for each in (*spawned, *elastic):
            each.kill()
    assert failed == []
    assert left == []
    kept(
        "launches",
        [Finding(f"launches that failed, of {LAUNCHES} at once", len(failed), bar=0, unit="")],
        LAUNCHES,
        begun,
        tmp_path,
    )


@pytest.mark.soak
def test_ranks_killed_at_random_moments(tmp_path):
    begun, chance, seen = time.monotonic(), random.Random(0), Counter(kills=0)
    script = (*SCRIPT, "--epochs", "12")
    undisturbed = Torchrun(
        tmp_path, "undisturbed", STANDALONE, (*script, "--checkpoints", str(tmp_path / "undisturbed"))
    )
    started = wait_for_workers(undisturbed)
    assert undisturbed.ended(120) == 0, undisturbed.output
    lasted, expected = time.monotonic() - started, final(tmp_path / "undisturbed")
    differing, longest, left = [], 0.0, []
    while seen["kills"] < KILLS:
        name = f"run{seen['kills'] + seen['ended before the kill']}"
        run = Torchrun(tmp_path, name, STANDALONE, (*script, "--checkpoints", str(tmp_path / name)))
        try:
            wait_for_workers(run)
            time.sleep(chance.uniform(0, lasted))
            workers = run.workers()
            if len(workers) < 2:
                seen["ended before the kill"] += 1
                run.ended(60)
                continue
            seen["before the first checkpoint"] += not list((tmp_path / name).glob("step-*"))
            chance.choice(workers).kill()
            seen["kills"] += 1
            killed = time.monotonic()
            assert run.ended(HANGS + 120) == 0, run.output
            longest = max(longest, time.monotonic() - killed)
            left += run.left()
            ended = final(tmp_path / name)
            differing += [key for key in expected if ended[key] != expected[key]]
        finally:
            run.lose()
    assert differing == []
    assert left == []
    kept(
        "rank_kills",
        [
            Finding(
                "parts of the state that differed in any bit after a rank was killed",
                len(differing),
                bar=0,
                unit="parts",
            ),
            Finding("processes left behind after a rank was killed", len(left), bar=0, unit="processes"),
            Finding("longest run from the kill of a rank to its end", longest, bar=HANGS, unit="s"),
        ],
        KILLS,
        begun,
        tmp_path,
        seen=dict(sorted(seen.items())),
    )


@pytest.mark.soak
@pytest.mark.parametrize("lost", [False, True])
def test_two_machines(tmp_path, lost):
    begun, folder, port = time.monotonic(), tmp_path / "two", free_port()
    script = (*SCRIPT, "--epochs", "20", "--checkpoints", str(folder))
    agents = [Torchrun(tmp_path, f"machine{number}", machine(number, port), script) for number in range(2)]
    try:
        if lost:
            wait_for_step(folder, 10)
            agents[1].lose()
        codes = [each.ended(150) for each in (agents[:1] if lost else agents)]
        left = [process for each in agents for process in each.left()]
    finally:
        for each in agents:
            each.lose()
    assert not any(codes), agents[0].output
    assert left == []
    who = "1 rank" if lost else "2 ranks"
    assert f", {who}, fp16" in agents[0].output + agents[1].output
    what = "survived the loss of one" if lost else "completed"
    finding = Finding(
        f"agents that failed, of two machines that {what}", sum(map(bool, codes)), bar=0, unit="agents"
    )
    kept(f"machines_{'lost' if lost else 'whole'}", [finding], min(LAUNCHES, KILLS), begun, tmp_path)


def wait_for_workers(run):
    end = time.monotonic() + 60
    while len(run.workers()) < 2:
        assert time.monotonic() < end, run.output
        time.sleep(0.01)
    return time.monotonic()


def kept(name, findings, number, begun, folder, **more):
    seconds = round(time.monotonic() - begun)
    keep(name, "make soak", findings, folder=FOLDER if number >= FULL else folder, seconds=seconds, **more)
