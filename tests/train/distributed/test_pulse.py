"""A rank that dies, fails, hangs or freezes is named by the others; a signal stops all ranks after a step."""

import signal

import pytest

from tests.train.distributed import programs
from tests.train.distributed.launches import free_port, ranks, started


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
    assert line.endswith(", hang)")
    assert "forward (programs.py, line" in line
    runs["hangs"][1].send(signal.SIGTERM)
    assert runs["hangs"][1].ended(20).code == 128 + signal.SIGTERM


def test_speaking_before_the_time_is_over(runs):
    early, late = told(runs, "is about to time out")
    assert early.startswith("rank 0 has waited for ")
    assert "is missing: it has been in step 5 for" in early
    assert late.startswith("rank 0: rank 1")


def test_a_rank_that_froze(runs):
    (line,) = told(runs, "froze")
    assert "is silent: was it killed, or is it frozen?" in line


@pytest.mark.parametrize(("name", "code"), [("got SIGTERM", 143), ("got Ctrl+C", 130)])
def test_a_signal_to_one_rank_stops_all(runs, name, code):
    ends = [each.ended() for each in runs[name]]
    assert [each.code for each in ends] == [code, code], ends
    assert all("ended 6 " in each.output for each in ends), "the step in which it came was the last one"
