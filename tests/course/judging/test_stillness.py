"""For how long a process has computed nothing, by clocks that the tests set."""

import pytest

from amp_lab.course.judging import stillness
from amp_lab.course.judging.stillness import Stillness

SPAN_S = 4.0


class Clocks:
    """What the system says: the time, and for how long main thread, process and children have computed."""

    def __init__(self):
        self.now = self.main = self.process = self.children = 0.0
        self.asked = 0

    def children_work(self):
        self.asked += 1
        return self.children


@pytest.fixture
def clocks(monkeypatch):
    clocks = Clocks()
    monkeypatch.setattr(stillness.time, "monotonic", lambda: clocks.now)
    monkeypatch.setattr(stillness.time, "process_time", lambda: clocks.process)
    monkeypatch.setattr(stillness, "_clock_of", lambda thread: lambda: clocks.main)
    monkeypatch.setattr(stillness, "_work_of_children", clocks.children_work)
    return clocks


def test_whoever_waits_is_still_for_as_long(clocks):
    still = Stillness(SPAN_S)
    for now in (1.0, 2.0, 9.0):
        clocks.now = now
        assert still.seconds() == now


@pytest.mark.parametrize(
    ("clock", "little", "enough"), [("main", 0.0005, 0.002), ("process", 0.1, 0.3), ("children", 0.1, 0.3)]
)
def test_work_begins_it_anew_but_not_a_little(clocks, clock, little, enough):
    still = Stillness(SPAN_S)
    clocks.now = 5.0
    setattr(clocks, clock, little)
    assert still.seconds() == 5.0
    clocks.now = 10.0
    setattr(clocks, clock, little + enough)
    assert still.seconds() == 0.0
    clocks.now = 11.0
    assert still.seconds() == 1.0


def test_naps_between_steps_are_no_standstill(clocks):
    still = Stillness(SPAN_S)
    for _ in range(20):
        clocks.now += 0.5
        clocks.main += 0.002
        assert still.seconds() < SPAN_S


def test_children_are_asked_for_once_in_a_span_at_most(clocks):
    still = Stillness(SPAN_S)
    for now in range(21):
        clocks.now = float(now)
        still.seconds()
    assert clocks.asked <= 4


def test_own_clock_counts_what_the_main_thread_computes():
    if not hasattr(stillness.time, "pthread_getcpuclockid"):
        pytest.skip("this system has no clock for one thread")
    clock = stillness._clock_of(stillness.threading.main_thread().ident)
    before = clock()
    sum(range(300_000))
    assert clock() > before
