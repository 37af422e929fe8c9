"""The pytest plugin that `amp-lab check` gives to nbval: it tells, cell by cell, what happens, and waits for nothing.

pytest -p nbval.plugin -p amp_lab.course.checking.plugin --amp-lab-events=FD --nbval-lax page.ipynb

On the file descriptor FD it writes one JSON object a line: `{"kernel": 123}` when a kernel runs, with its process id;
`{"page": …, "cell": …}` when a cell begins; and when it ends the same with `outcome`, `seconds`, `error`, `stopped`
(why no further cell of the page can run, or "") and `verdicts`, the proofs among its outputs (see `evidence`).

`stopped` is "timeout", "exit" (the cell called `exit()`), "died N" or "gone N" (the kernel ended while the cell ran, or
before it was begun, with the exit status N), or a sentence about a kernel that does not start.

Four habits of nbval are changed. What a page says to nbval (tags, comments such as `# NBVAL_SKIP`) does not count. A
kernel that does not start gets a second try. One that died is noticed at once, rather than when the time of the cell is
up. And once a cell was interrupted, or the kernel ended, the rest of the page is skipped, as no result there would mean
anything.
"""

from __future__ import annotations

import json
import math
import os
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from queue import Empty
from typing import Any, BinaryIO, TextIO

import nbval.plugin
import pytest
from nbval.kernel import RunningKernel, start_new_kernel

from amp_lab.course.checking.evidence import VERDICT

_POLL_S = 0.25
_AFTER_INTERRUPT_S = 5.0  # a cell that goes on for so long has swallowed the interrupt
_OUTPUT_S = 30.0  # from a cell's end to its last output; nbval's 5 s are few for a machine that is busy
_ERROR_LENGTH = 300
_PARENT = os.getppid()
_ALONE = "the program that started this was killed"

_events: TextIO  # open until this process ends


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--amp-lab-events", type=int, required=True, help="the file descriptor to write to")


def pytest_configure(config: pytest.Config) -> None:
    global _events
    descriptor = config.getoption("--amp-lab-events")
    os.set_inheritable(descriptor, False)  # the end of this process is to end the stream, whatever kernels do
    _events = os.fdopen(descriptor, "w", buffering=1, encoding="ascii")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # pytest then stops the kernel
    nbval.plugin.RunningKernel = _Kernel


def pytest_collection_modifyitems(items: Sequence[Any]) -> None:
    for item in items:
        item.options = defaultdict(bool)
        item.output_timeout = _OUTPUT_S


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: Any) -> None:
    kernel = item.parent.kernel
    stopped = kernel.stopped() if kernel is not None else ""
    if stopped and not kernel.stop_told:
        kernel.stop_told = True
        nothing = {"outcome": "failed", "seconds": 0.0, "error": "", "verdicts": []}
        _tell(page=item.path.name, cell=item.cell.id, stopped=stopped.replace("died", "gone"), **nothing)
    if stopped:
        pytest.skip("the page was stopped before this cell")
    _tell(page=item.path.name, cell=item.cell.id)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: Any, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # A kernel that does not start fails the setup of every cell.
    if report.when == "call" or (report.when == "setup" and report.failed):
        kernel, error = item.parent.kernel, _error(item, call)
        stopped = kernel.stopped() if kernel else f"Jupyter could not start a kernel ({error})"
        if kernel:
            kernel.stop_told = bool(stopped)
        _tell(
            page=item.path.name,
            cell=item.cell.id,
            outcome=report.outcome,
            seconds=report.duration,
            error=error,
            stopped=stopped,
            verdicts=[
                output["data"][VERDICT] for output in _outputs(item) if VERDICT in output.get("data", {})
            ],
        )
    return report


class _Kernel(RunningKernel):  # type: ignore[misc]
    """nbval's kernel, with an eye on whether it still lives."""

    def __init__(self, kernel_name: str, cwd: str, startup_timeout: float) -> None:
        self._interrupted_at = math.inf
        self._exits = False
        self.stop_told = False
        try:
            super().__init__(kernel_name, cwd, startup_timeout)
        except RuntimeError:  # rare, and no fault of the page: another program took one of its ports first
            self._start_again(kernel_name, cwd, startup_timeout)
        _tell(kernel=self.km.provisioner.pid)

    def _start_again(self, kernel_name: str, cwd: str, timeout: float) -> None:
        """Do what nbval does, and keep what the kernel says; raises RuntimeError with its last words."""
        if self.is_alive():
            self.stop()
        with tempfile.TemporaryFile() as said:
            try:
                self.km, self.kc = start_new_kernel(timeout, kernel_name, stderr=said, cwd=cwd)
                self._ensure_iopub_up()
            except RuntimeError as error:
                raise RuntimeError(": ".join([str(error), *_last_line(said)])) from error

    def stopped(self) -> str:
        """Return why no further cell can run, or an empty text."""
        if self._interrupted_at < math.inf:
            return "timeout"
        if self._exits:
            return "exit"
        if self.is_alive():
            return ""
        provisioner = getattr(getattr(self, "km", None), "provisioner", None)
        return f"died {getattr(getattr(provisioner, 'process', None), 'returncode', None)}"

    def await_reply(self, msg_id: str, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            try:
                super().await_reply(msg_id, timeout=_POLL_S)
                return
            except Empty:
                if not self.is_alive():
                    raise RuntimeError("the kernel died") from None
                if os.getppid() != _PARENT:
                    pytest.exit(_ALONE)
                if time.monotonic() > deadline:
                    raise

    def interrupt(self) -> None:
        """Called by nbval when the time of a cell is up."""
        self._interrupted_at = time.monotonic()
        super().interrupt()

    def get_message(self, stream: str, timeout: float) -> Any:
        # nbval reads until a cell is silent; an endless loop that prints and catches everything never is.
        left = self._interrupted_at + _AFTER_INTERRUPT_S - time.monotonic()
        if left <= 0:
            raise Empty
        message = super().get_message(stream, timeout=min(timeout, left))
        # After `exit()` the kernel still answers, and ends a little later; but its answer says that it will.
        for each in message["content"].get("payload", ()) if stream == "shell" else ():
            self._exits |= each["source"] == "ask_exit" and not each["keepkernel"]
        return message


def _last_line(said: BinaryIO) -> list[str]:
    said.seek(0)
    return said.read().decode(errors="replace").strip().splitlines()[-1:]


def _outputs(item: Any) -> list[Any]:
    return item.test_outputs or []


def _error(item: Any, call: pytest.CallInfo[None]) -> str:
    """Return the error of a cell in one line, as its learner sees it, or what nbval met instead."""
    for output in _outputs(item):
        if output["output_type"] == "error":
            return ": ".join(filter(None, (output["ename"], output["evalue"])))[:_ERROR_LENGTH]
    return str(call.excinfo.value)[:_ERROR_LENGTH] if call.excinfo else ""


def _tell(**event: Any) -> None:
    try:
        _events.write(json.dumps(event) + "\n")
    except BrokenPipeError:
        pytest.exit(_ALONE)
