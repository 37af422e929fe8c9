"""A rank that dies, fails, hangs or freezes is named by the others; a signal stops all ranks after a step."""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore
from torch.utils.data import DataLoader

from amp_lab.train.distributed import pulse
from amp_lab.train.distributed.board import Board
from amp_lab.train.distributed.places import Place, seen
from amp_lab.train.distributed.pulse import Pulse
from amp_lab.train.distributed.stopping import leave_signals
from amp_lab.train.training import loop, together
from tests.train.distributed import programs
from tests.train.distributed.launches import free_port, ranks, started
from tests.train.small_runs import DATA


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Ranks 0 and 1 of each: something happens to rank 1 in step 5. All at once."""
    folder = tmp_path_factory.mktemp("runs")

    def both(happens, *args):
        return started(folder, programs.program, (happens, *args), ranks(2, free_port()))

    running = {
        "died": both(programs.die),
        "failed": both(programs.fail),
        "hangs": both(programs.hang, 1, 5, 6.0),
        "is about to time out": both(programs.hang, 1, 5, 12.0, None, True),
        "froze": both(programs.freeze, 1, 5, 6.0),
        "left": both(programs.leave),
        "saves alone": both(programs.save_alone, 1, 5, 6.0),
        "got SIGTERM": both(programs.sigterm, 1, 5, 60.0, str(folder / "sigterm")),
        "got Ctrl+C": both(programs.interrupt, 0, 5, 60.0, str(folder / "interrupt")),
    }
    yield running
    for processes in running.values():
        for each in processes:
            each.kill()


def told(runs, name):
    """What rank 0 says at the end, without its steps."""
    ended = runs[name][0].ended()
    assert ended.code == 1, ended
    assert "Traceback" not in ended.output
    return [line for line in ended.output.splitlines() if not line.startswith("step ")]


def test_a_rank_that_was_killed(runs):
    (line,) = told(runs, "died")
    assert line.startswith("rank 0: rank 1 (pid ")
    assert "is silent: was it killed" in line


def test_a_rank_that_raised_an_error(runs):
    (line,) = told(runs, "failed")
    assert line.startswith("rank 0: rank 1 (pid ")
    assert line.endswith("ended after step 5: ValueError: the cat has eaten sample 7")
    own = runs["failed"][1].ended()
    assert own.code == 1
    assert own.output.rstrip().endswith("ValueError: the cat has eaten sample 7")
    assert 'programs.py", line' in own.output, "its own error comes with the place"


def test_a_rank_that_left_early(runs):
    (line,) = told(runs, "left")
    assert line.endswith("ended after step 5: it had nothing more to do")


def test_a_rank_that_hangs(runs):
    """The one that waits for it ends when its time is over; SIGTERM, as launchers send it, ends the other."""
    (line,) = told(runs, "hangs")
    assert "is missing: it has been in step 5 for" in line
    assert ", hang) ([" in line, "it ends with gloo's own words: who is missing is a guess"
    assert "forward (programs.py, line" in line
    runs["hangs"][1].send(signal.SIGTERM)
    assert runs["hangs"][1].ended(20).code == 128 + signal.SIGTERM


def test_speaking_before_the_time_is_over(runs):
    early, late = told(runs, "is about to time out")
    assert early.startswith("rank 0 has waited for ")
    assert "is missing: it has been in step 5 for" in early
    assert late.startswith("rank 0: rank 1")


def test_a_rank_that_saves_alone(runs):
    """Both know it, and one says it. The store of rank 0 is still there for the other: C++ would tell in pages."""
    told = [each.ended() for each in runs["saves alone"]]
    assert [each.code for each in told] == [1, 1]
    lines = [line for each in told for line in each.output.splitlines() if not line.startswith("step ")]
    assert len(lines) == 1, lines
    assert lines[0].startswith("another rank does not answer: rank 1 waits in save (programs.py, line ")
    assert ", save_alone), which rank 0 has not called so far: all ranks" in lines[0]


def test_a_rank_whose_launcher_was_killed_ends(monkeypatch):
    """torchrun's ranks are not told of it by anybody, and would train on."""
    sent = []
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setattr(pulse, "EVERY", 0.01)
    monkeypatch.setattr(os, "kill", lambda *what: sent.append(what))
    with Pulse(HashStore(), 0, 2) as beating:
        time.sleep(0.2)
        assert sent == []
        beating._parent = 1
        end = time.monotonic() + 20
        while not sent and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.1)  # many beats: it is told once
    assert sent == [(os.getpid(), signal.SIGTERM)]


def test_of_those_that_wait_the_first_speaks(capfd):
    store = HashStore()
    waiting, busy = Place(5, "backward", True), Place(4, "reading a batch", False)
    for rank, place in enumerate((waiting, waiting, busy)):
        Board(store, rank, 3).write(place)
    Pulse(store, 1, 3)._speak(waiting, 9.0)
    assert capfd.readouterr().err == ""
    Pulse(store, 0, 3)._speak(waiting, 9.0)
    assert capfd.readouterr().err.startswith("rank 0 has waited for 9 s: rank 2 (pid ")


def test_how_long_a_step_takes_is_told(monkeypatch):
    monkeypatch.setattr(pulse, "EVERY", 0.01)
    store, trainer = HashStore(), SimpleNamespace(step=3)
    other = Board(store, 1, 2)

    def place(is_right):
        end = time.monotonic() + 20
        while not is_right(found := other.places()[0]) and time.monotonic() < end:
            time.sleep(0.01)
        return found

    with Pulse(store, 0, 2) as beating:
        beating.follow(trainer)
        slow = place(lambda found: found.step == 3 and found.since > 0.3)
        trainer.step = 4
        new = place(lambda found: found.step == 4)
    assert (slow.step, new.step) == (3, 4)
    assert new.since < slow.since


def blocked(monkeypatch, name, gate):
    """Wait, in a file of the Trainer, for a number from a GPU: a call in C, which has no frame."""
    number = SimpleNamespace(tolist=gate.acquire, item=gate.acquire)
    if name == "mean":
        monkeypatch.setattr(together, "torch", SimpleNamespace(stack=lambda losses: number))
        with contextlib.suppress(TypeError):  # it goes on with what no list is
            together.Together(SimpleNamespace(size=2)).mean(None, [], [])
    elif name == "clip":
        monkeypatch.setattr(loop, "clip_grad_norm_", lambda *_: number)
        scaler = SimpleNamespace(unscale_=lambda _: None)
        loop.clip(SimpleNamespace(clip_norm=1.0, parameters=[], optimizer=None, scaler=scaler))
    else:
        gate.acquire()


@pytest.mark.parametrize(
    ("name", "waiting", "doing"),
    [
        ("mean", True, "adding up the losses of all ranks"),
        ("clip", True, "clipping"),
        ("else", False, "blocked"),
    ],
)
def test_on_nccl_a_rank_waits_where_it_asks_for_a_number(monkeypatch, name, waiting, doing):
    gate = threading.Lock()
    gate.acquire()
    thread = threading.Thread(target=blocked, args=(monkeypatch, name, gate))
    thread.start()
    end = time.monotonic() + 20
    while doing not in (place := seen(thread.ident, 3)).doing and time.monotonic() < end:
        time.sleep(0.02)
    time.sleep(0.1)  # to where it waits
    place = seen(thread.ident, 3)
    gate.release()
    thread.join()
    assert (place.step, place.waiting) == (3, waiting)
    assert doing in place.doing


def test_workers_of_a_loader_go_on_after_ctrl_c():
    context = multiprocessing.get_context("forkserver")
    loader = DataLoader(
        DATA,
        1,
        num_workers=1,
        worker_init_fn=leave_signals,
        multiprocessing_context=context,
        prefetch_factor=1,
    )
    batches = iter(loader)
    next(batches)
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(batches._workers[0].pid, number)
    assert len(list(batches)) == len(DATA) - 1


def test_a_rank_that_froze(runs):
    (line,) = told(runs, "froze")
    assert "is silent: was it killed, or is it frozen?" in line


@pytest.mark.parametrize(("name", "code"), [("got SIGTERM", 143), ("got Ctrl+C", 130)])
def test_a_signal_to_one_rank_stops_all(runs, name, code):
    ends = [each.ended() for each in runs[name]]
    assert [each.code for each in ends] == [code, code], ends
    assert all("ended 6 " in each.output for each in ends), "the step in which it came was the last one"
