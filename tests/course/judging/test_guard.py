"""The guard in this process: faults, callables, what is put back, and no alarm where none may be."""

from __future__ import annotations

import builtins
import concurrent.futures
import contextlib
import functools
import gc
import linecache
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
import tqdm

from amp_lab.course.judging import alarm, guard
from amp_lab.course.judging.guard import Contained, Guard
from tests.course.judging.faults import FAULTS

# Long enough for any wait on a busy machine: where it appears, nothing waits for it to pass.
PLENTY_S = 60.0


def learner_of(source: str, name: str) -> Callable[..., Any]:
    """Define `learner` as a notebook cell does: from a source that linecache knows."""
    file = f"/cells/{name}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(source, file, "exec"), namespace)
    return namespace["learner"]


def contained(function: Callable[..., Any], *args: Any, limit_s: float = PLENTY_S) -> Contained:
    with pytest.raises(Contained) as caught:
        Guard(limit_s).call(function, *args)
    return caught.value


@pytest.fixture(autouse=True)
def _nobody_collects_garbage() -> Iterator[None]:
    """Hypothesis listens to the collector: an alarm that hits it in the middle of a call is no fault here."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def _the_process_is_as_it_was() -> Iterator[None]:
    def look() -> list[object]:
        return [
            *(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)),
            *(sys.stdout, sys.stderr, sys.stdin, sys.gettrace(), input, os._exit, os.abort),
            *(warnings.showwarning, list(warnings.filters)),
        ]

    before = look()
    yield
    assert look() == before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_contained_and_told(name: str) -> None:
    source, fault, words = FAULTS[name]
    caught = contained(learner_of(source, name), limit_s=0.1 if fault == "timeout" else PLENTY_S)
    assert caught.fault == fault
    for word in words:
        assert word in caught.sentence
    assert "amp_lab" not in caught.sentence
    assert len(caught.sentence) < 500
    assert caught.sentence.endswith(".")
    gc.collect()  # here, not at the bottom of the next fault's recursion, where a finalizer has no room to run


def test_the_sentence_reads_well() -> None:
    source = FAULTS["TypeError"].source
    assert contained(learner_of(source, "TypeError")).sentence == (
        "Your code raised TypeError: can't multiply sequence by non-int of type 'float' "
        "(line 3, in learner: `return 4.0 * shape`)."
    )


def test_the_error_is_kept_with_a_traceback_that_begins_in_their_code() -> None:
    caught = contained(learner_of(FAULTS["error in PyTorch"].source, "error"))
    assert isinstance(caught.error, RuntimeError)
    assert caught.error.__traceback__ is not None
    assert caught.error.__traceback__.tb_frame.f_code.co_name == "learner"
    assert contained(time.sleep, 1000, limit_s=0.01).error is None


def test_a_call_that_does_not_fit_is_told_without_a_line() -> None:
    caught = contained(lambda x: x, 1, 2)
    assert caught.sentence.startswith("Your code raised TypeError: ")
    assert "(line " not in caught.sentence


def test_an_error_in_our_package_is_told_at_the_line_that_called_it() -> None:
    source = "from amp_lab.formats import FP16\n\ndef learner(x):\n    return FP16.encode('many')"
    assert (
        "(line 4, in learner: `return FP16.encode('many')`)"
        in contained(learner_of(source, "words"), 1).sentence
    )


def test_an_instruction_without_a_line_is_told_without_one() -> None:
    def learner() -> None:
        raise ValueError("no line")

    learner.__code__ = learner.__code__.replace(co_linetable=b"")
    assert contained(learner).sentence == "Your code raised ValueError: no line."


def test_a_line_in_a_comprehension_carries_the_name_of_its_function() -> None:
    source = "def learner():\n    return sum(1 / x for x in [0])\n"
    assert "(line 2, in learner: `return" in contained(learner_of(source, "comprehension")).sentence


# --- callables ------------------------------------------------------------------------------------


class Scale:
    def __init__(self, value: float) -> None:
        self.value = value

    def __call__(self, x: float) -> float:
        return self.value * x

    def halve(self) -> float:
        return self.value / 2


def test_whatever_can_be_called_is_called() -> None:
    call = Guard(PLENTY_S).call
    assert call(max, [1, 3, 2]) == 3
    assert call(functools.partial(max, 1), 5) == 5
    assert call(Scale(4.0).halve) == 2.0
    assert call(Scale, 4.0).value == 4.0
    assert call(Scale(4.0), 2.0) == 8.0
    assert call(dict, function=1, self=2) == {"function": 1, "self": 2}


def test_a_generator_is_emptied_under_the_guard() -> None:
    def numbers(error: bool) -> Iterator[int]:
        yield 1
        if error:
            raise ValueError("no more")
        while True:
            pass

    watched = Guard(0.2)
    assert watched.call(next, numbers(True)) == 1
    with pytest.raises(Contained, match="no more"):
        watched.call(list, numbers(True))
    with pytest.raises(Contained, match=r"line .*, in test_a_generator.*numbers: `"):
        watched.call(list, numbers(False))


@pytest.mark.parametrize(
    "endless",
    [time.sleep, functools.partial(time.sleep), threading.Event().wait],
    ids=["C", "partial", "wait"],
)
def test_a_function_without_lines_is_stopped(endless: Callable[..., Any]) -> None:
    assert contained(endless, 1000, limit_s=0.05).fault == "timeout"


def test_a_check_inside_a_check_is_refused_with_what_to_do() -> None:
    caught = contained(lambda: Guard().call(int))
    assert isinstance(caught.error, RuntimeError)
    assert "move check() out of the checked function" in caught.sentence
    assert Guard().call(int) == 0


@pytest.mark.parametrize("limit", [0.0, -1.0, float("nan"), float("inf")])
def test_a_limit_that_is_none_is_refused(limit: float) -> None:
    with pytest.raises(ValueError, match="limit_s must be a positive number of seconds"):
        Guard(limit)


# --- the time limit -------------------------------------------------------------------------------


def test_calls_share_the_limit_and_only_their_time_counts() -> None:
    watched = Guard(0.5)
    watched.call(time.sleep, 0.01)
    time.sleep(0.6)
    assert watched.call(int) == 0
    with pytest.raises(Contained, match=r"after 0\.5 seconds"):
        watched.call(time.sleep, 1000)
    ran: list[int] = []
    with pytest.raises(Contained, match="still running"):
        watched.call(ran.append, 1)
    assert ran == []


@contextlib.contextmanager
def another_timer(seconds: float, interval: float = 0.0) -> Iterator[list[int]]:
    fired: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _frame: fired.append(number))
    signal.setitimer(signal.ITIMER_REAL, seconds, interval)
    try:
        yield fired
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_timer_of_others_goes_on() -> None:
    with another_timer(1000.0, 7.0) as fired:
        contained(time.sleep, 1000, limit_s=0.05)
        left, interval = signal.getitimer(signal.ITIMER_REAL)
        assert fired == []
    assert 0 < left < 1000 - 0.05
    assert interval == 7.0


def test_a_timer_of_others_that_ran_out_fires_after_the_call() -> None:
    with another_timer(0.05) as fired:
        Guard(PLENTY_S).call(time.sleep, 0.2)
        deadline = time.monotonic() + PLENTY_S
        while not fired and time.monotonic() < deadline:
            time.sleep(0.001)
        assert fired == [signal.SIGALRM]


def test_an_alarm_that_the_code_sets_is_no_time_out() -> None:
    def rings() -> int:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        time.sleep(0.1)
        return 5

    assert Guard(PLENTY_S).call(rings) == 5

    def rings_and_loops() -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        while True:
            pass

    assert contained(rings_and_loops, limit_s=0.2).fault == "timeout"


def test_an_alarm_that_the_code_sets_does_not_outlive_the_call() -> None:
    """It would end the process: that is what the system does on SIGALRM."""
    for _ in range(200):
        Guard(PLENTY_S).call(signal.setitimer, signal.ITIMER_REAL, 1e-5)
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_only_what_runs_above_the_guard_is_stopped() -> None:
    clock = alarm.Alarm()

    def stoppable() -> list[bool]:
        frame: FrameType | None = sys._getframe()
        stopped = []
        while frame is not None:
            stopped.append(clock._in_guarded_code(frame))
            frame = frame.f_back
        return stopped

    # This function, the frame that calls it, and none from `Alarm.run` on.
    value, error = clock.run(stoppable)
    assert error is None
    assert value[:3] == [True, True, False]
    assert not any(value[2:])
    assert not clock._in_guarded_code(sys._getframe())


def test_no_alarm_escapes_and_none_hits_a_clean_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Alarms every 50 microseconds, limits about as long as the calls: they arrive everywhere."""
    arrived = {True: 0, False: 0}
    decide = alarm.Alarm._in_guarded_code

    def counted(self: alarm.Alarm, frame: FrameType | None) -> bool:
        inside = decide(self, frame)
        arrived[inside] += 1
        return inside

    monkeypatch.setattr(alarm, "AGAIN_S", 5e-5)
    monkeypatch.setattr(alarm.Alarm, "_in_guarded_code", counted)

    def swallows(rounds: int) -> int:
        for _ in range(rounds):
            try:
                sum(range(20))
            except BaseException:
                continue
        return rounds

    def raises(rounds: int) -> int:
        return len(list(range(rounds))) // 0

    seeded, outcomes = random.Random(0), {"returned": 0, "timeout": 0, "exception": 0}
    tries = 0
    # Few alarms arrive outside of the learner's code, which is where the guard spends little time: go on until one has.
    while tries < 3000 or (tries < 60_000 and not all(arrived.values())):
        tries += 1
        function = seeded.choice([swallows, raises, sum])
        rounds = seeded.randrange(1000)
        watched = Guard(seeded.uniform(0.00005, 0.001))
        try:
            assert watched.call(function, range(rounds) if function is sum else rounds) is not None
            outcomes["returned"] += 1
        except Contained as caught:
            outcomes[caught.fault] += 1
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
        assert sys.gettrace() is None
    assert all(outcomes.values()), outcomes
    assert all(arrived.values()), arrived


# --- the stop button ------------------------------------------------------------------------------


def presses_stop_and_swallows_it() -> None:
    signal.raise_signal(signal.SIGINT)
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(1000)


def test_the_stop_button_cannot_be_swallowed() -> None:
    caught = contained(presses_stop_and_swallows_it)
    assert caught.fault == "interrupted"
    assert caught.error is None
    assert caught.sentence.startswith("The check was interrupted (line ")


def test_the_stop_button_comes_back_to_code_that_keeps_the_exception() -> None:
    def keeps() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException as error:
            kept = error
        while kept:
            pass

    assert contained(keeps).fault == "interrupted"


@pytest.mark.parametrize("place", ["put_back", "left_running"])
def test_the_stop_button_waits_for_our_own_code(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pressed while things are saved, it stops the function; while they are put back, it is told at the end."""
    ours = getattr(guard, place)

    def pressed(*args: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return ours(*args)

    monkeypatch.setattr(guard, place, pressed)
    function = functools.partial(time.sleep, 1000) if place == "put_back" else int
    assert contained(function).sentence.startswith("The check was interrupted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGALRM])
def test_a_handler_of_theirs_works_and_is_taken_back(number: signal.Signals) -> None:
    def handles() -> list[int]:
        seen: list[int] = []
        signal.signal(number, lambda number, _frame: seen.append(number))
        signal.raise_signal(number)
        return seen

    before = signal.getsignal(number)
    assert Guard(PLENTY_S).call(handles) == [number]
    assert signal.getsignal(number) is before


# --- what is put back -----------------------------------------------------------------------------


KEPT: list[Any] = []


def left_open(*regions: Any) -> None:
    for region in regions:
        region.__enter__()
        KEPT.append(region)


def product() -> torch.Tensor:
    return torch.ones(2, 2).mm(torch.ones(2, 2))


def device_or_error() -> str:
    try:
        return str(product().device)
    except (AssertionError, RuntimeError) as error:
        return str(error)


# How to disturb something, and how to see that it was disturbed.
DISTURBANCES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "random": (random.random, random.getstate),
    "numpy": (np.random.rand, lambda: str(np.random.get_state())),
    "numpy, one of a pair": (np.random.randn, lambda: str(np.random.get_state())),
    "torch": (lambda: torch.rand(1), lambda: torch.get_rng_state().tolist()),
    "torch's seed": (lambda: torch.manual_seed(3), torch.initial_seed),
    "grad mode": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "grad mode, region": (lambda: left_open(torch.no_grad()), torch.is_grad_enabled),
    "inference mode": (
        lambda: left_open(torch.inference_mode()),
        lambda: (torch.is_inference_mode_enabled(), torch.is_grad_enabled(), product().is_inference()),
    ),
    "default dtype": (lambda: torch.set_default_dtype(torch.float64), lambda: product().dtype),
    "default device": (lambda: torch.set_default_device("meta"), lambda: product().device),
    "default device, absent": (lambda: torch.set_default_device("cuda:9"), device_or_error),
    "autocast": (
        lambda: left_open(torch.autocast("cpu", torch.float16)),
        lambda: (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), product().dtype),
    ),
    "autocast dtype": (
        lambda: torch.set_autocast_dtype("cuda", torch.bfloat16),
        lambda: torch.get_autocast_dtype("cuda"),
    ),
    "autocast cache": (lambda: torch.set_autocast_cache_enabled(False), torch.is_autocast_cache_enabled),
    "determinism": (
        lambda: torch.use_deterministic_algorithms(True, warn_only=True),
        torch.get_deterministic_debug_mode,
    ),
    "anomaly mode": (lambda: left_open(torch.autograd.detect_anomaly()), torch.is_anomaly_enabled),
    "threads": (lambda: torch.set_num_threads(torch.get_num_threads() + 1), torch.get_num_threads),
    "stdout": (lambda: setattr(sys, "stdout", sys.__stdout__), lambda: sys.stdout),
    "folder": (lambda: os.chdir("/"), os.getcwd),
    "filters": (lambda: warnings.simplefilter("ignore"), lambda: list(warnings.filters)),
    "recorded warnings": (
        lambda: left_open(warnings.catch_warnings(record=True)),
        lambda: (warnings.showwarning, warnings._showwarnmsg_impl),  # type: ignore[attr-defined]
    ),
    "recursion limit": (lambda: sys.setrecursionlimit(5000), sys.getrecursionlimit),
    "numpy errors": (lambda: np.seterr(all="raise"), np.geterr),
    "os._exit": (lambda: setattr(os, "_exit", print), lambda: os._exit),
    "input": (lambda: setattr(builtins, "input", print), lambda: input),
    "signal": (lambda: signal.signal(signal.SIGUSR1, print), lambda: signal.getsignal(signal.SIGUSR1)),
    "trace": (lambda: sys.settrace(lambda *_: None), sys.gettrace),
}


@pytest.mark.parametrize("then", ["returns", "raises", "is stopped"])
@pytest.mark.parametrize("name", DISTURBANCES)
def test_what_is_disturbed_is_put_back(name: str, then: str) -> None:
    disturb, look = DISTURBANCES[name]
    before = look()
    seen = []

    def learner() -> None:
        disturb()
        seen.append(look())
        if then == "raises":
            raise ValueError
        if then == "is stopped":
            signal.raise_signal(signal.SIGINT)

    with contextlib.suppress(Contained):
        Guard(PLENTY_S).call(learner)
    KEPT.clear()
    assert len(seen) == 1
    assert seen[0] != before, "nothing was disturbed"
    assert look() == before


def test_regions_left_open_do_not_keep_old_weights() -> None:
    """PyTorch keeps the casts of weights until the last region closes: one left open must not count."""
    Guard(PLENTY_S).call(left_open, torch.autocast("cpu", torch.bfloat16))
    linear, x = torch.nn.Linear(2, 2), torch.ones(1, 2)
    outputs = []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            outputs.append(linear(x).float())
        with torch.no_grad():
            linear.weight += 1.0
    KEPT.clear()
    assert not torch.equal(*outputs)


def test_the_code_starts_from_the_callers_settings() -> None:
    def look() -> tuple[bool, bool, torch.dtype]:
        return (
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            product().dtype,
        )

    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert Guard(PLENTY_S).call(look) == look() == (False, False, torch.bfloat16)
    with torch.inference_mode():
        assert Guard(PLENTY_S).call(look) == look() == (False, True, torch.float32)
    with torch.device("meta"):
        assert Guard(PLENTY_S).call(product).device == torch.device("meta")
    torch.manual_seed(5)
    drawn = Guard(PLENTY_S).call(torch.rand, 3)
    assert torch.equal(drawn, torch.rand(3))


# --- output ---------------------------------------------------------------------------------------


def test_output_is_kept_in_order_and_bounded(capsys: pytest.CaptureFixture[str]) -> None:
    watched = Guard(PLENTY_S, output_limit=10)

    def prints(text: str) -> None:
        sys.stdout.write("<")
        print(text, end=">", file=sys.stderr, flush=True)
        sys.stdout.close()

    watched.call(prints, "abc")
    assert (watched.output, watched.output_dropped) == ("<abc>", 0)
    watched.call(prints, "0123456789")
    assert (watched.output, watched.output_dropped) == ("<abc><0123", 7)
    watched.call(prints, "4")
    assert (watched.output, watched.output_dropped) == ("<abc><0123", 10)
    assert capsys.readouterr() == ("", "")


def test_a_flood_of_output_keeps_nothing_but_its_beginning() -> None:
    watched = Guard(PLENTY_S)
    line = "x" * 999

    def floods() -> None:
        for _ in range(20_000):
            print(line)

    watched.call(floods)
    assert len(watched.output) == 2000
    assert watched.output_dropped == 20_000 * 1000 - 2000


def test_output_takes_only_text() -> None:
    assert "must be str, not int" in contained(lambda: sys.stdout.write(3)).sentence  # type: ignore[arg-type]


def test_a_warning_becomes_output_even_where_warnings_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    watched = Guard(PLENTY_S)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watched.call(warnings.warn, "mind the step", UserWarning)
    assert watched.output == "UserWarning: mind the step\n"
    assert capsys.readouterr() == ("", "")


# --- threads and processes ------------------------------------------------------------------------


def test_a_thread_left_running_is_reported() -> None:
    finish = threading.Event()
    watched = Guard(PLENTY_S)

    def starts() -> None:
        threading.Thread(target=finish.wait, name="watcher", daemon=True).start()
        threading.Thread(target=int, name="short").start()
        executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="pool")
        executor.submit(finish.wait)

    watched.call(starts)
    finish.set()
    assert set(watched.leftover_threads) == {"watcher", "pool_0"}


def test_threads_of_libraries_are_not_reported() -> None:
    before = tqdm.tqdm.monitor_interval, tqdm.tqdm.monitor
    tqdm.tqdm.monitor_interval, tqdm.tqdm.monitor = 1000, None

    def monitored() -> list[str]:
        for _ in tqdm.tqdm(range(3)):
            pass
        return [type(thread).__name__ for thread in threading.enumerate()]

    watched = Guard(PLENTY_S)
    try:
        assert "TMonitor" in watched.call(monitored)
        tqdm.tqdm.monitor.exit()
    finally:
        tqdm.tqdm.monitor_interval, tqdm.tqdm.monitor = before
    assert watched.leftover_threads == ()
    assert "3/3" in watched.output


def test_in_another_thread_there_is_no_limit_and_everything_else() -> None:
    def elsewhere() -> tuple[bool, str, int]:
        watched = Guard(0.001)
        with pytest.raises(Contained) as caught:
            watched.call(exit)
        return watched.time_limited, caught.value.fault, Guard(0.001).call(lambda: time.sleep(0.05) or 3)

    assert Guard().time_limited
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        assert executor.submit(elsewhere).result() == (False, "exit", 3)


def test_a_thread_of_the_kernel_may_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """ipykernel ends itself from a thread when JupyterLab has died: a check must not keep it alive."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    go, gone = threading.Event(), threading.Event()

    def poller() -> None:
        go.wait()
        with contextlib.suppress(BaseException):
            os._exit(7)
        gone.set()

    thread = threading.Thread(target=poller)
    thread.start()

    def learner() -> None:
        go.set()
        gone.wait()

    Guard(PLENTY_S).call(learner)
    thread.join()
    assert codes == [7]


def test_a_forked_process_ends_as_it_should(tmp_path: Path) -> None:
    """Worker processes end by os._exit; a child forked by hand must not carry on with our program."""

    def works() -> int | None:
        worker = multiprocessing.get_context("fork").Process(target=int)
        worker.start()
        worker.join()
        return worker.exitcode

    def forks(error: bool) -> int:
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if error:
            raise ValueError
        return 0

    for function, error, code in ((works, [], 0), (forks, [False], 0), (forks, [True], 1)):
        try:
            assert Guard(PLENTY_S).call(function, *error) == code
        finally:
            with (tmp_path / "survivors").open("a") as file:
                file.write(f"{os.getpid()}\n")
    assert (tmp_path / "survivors").read_text() == f"{os.getpid()}\n" * 3
