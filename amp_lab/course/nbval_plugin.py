"""The pytest plugin that `amp-lab check` gives to nbval: it tells, cell by cell, what happens, and waits for nothing.

pytest -p nbval.plugin -p amp_lab.course.nbval_plugin --amp-lab-events=FD --nbval-lax page.ipynb

On the file descriptor FD it writes one JSON object a line: `{"kernel": 123}` when a kernel runs, with its process id;
`{"page": …, "cell": …}` when a cell begins; and when it ends the same with `outcome`, `seconds`, `error`, `stopped`
(why no further cell of the page can run, or "") and `verdicts`, the proofs among its outputs (see `evidence`).

Three habits of nbval are changed. What a page says to nbval (tags, comments such as `# NBVAL_SKIP`) does not count. A
kernel that died is noticed at once, rather than when the time of the cell is up. And once a cell was interrupted, or
the kernel died, the rest of the page is skipped, as no result there would mean anything.
"""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from queue import Empty
from typing import Any, TextIO

import nbval.plugin
import pytest
from nbval.kernel import RunningKernel

from amp_lab.course.evidence import VERDICT

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
    if kernel is not None and kernel.stopped():
        pytest.skip("a cell before this one stopped the page")
    _tell(page=item.path.name, cell=item.cell.id)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: Any, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # A kernel that does not start fails the setup of every cell.
    if report.when == "call" or (report.when == "setup" and report.failed):
        kernel = item.parent.kernel
        _tell(
            page=item.path.name,
            cell=item.cell.id,
            outcome=report.outcome,
            seconds=report.duration,
            error=_error(item, call),
            stopped=kernel.stopped() if kernel else "Jupyter could not start a kernel",
            verdicts=[
                output["data"][VERDICT] for output in _outputs(item) if VERDICT in output.get("data", {})
            ],
        )
    return report


class _Kernel(RunningKernel):  # type: ignore[misc]
    """nbval's kernel, with an eye on whether it still lives."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._interrupted_at = math.inf
        super().__init__(*args, **kwargs)
        _tell(kernel=self.km.provisioner.pid)

    def stopped(self) -> str:
        """Return why no further cell can run, or an empty text."""
        if self._interrupted_at < math.inf:
            return "timeout"
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
        return super().get_message(stream, timeout=min(timeout, left))


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
