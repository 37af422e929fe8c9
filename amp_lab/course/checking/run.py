"""Running notebooks through nbval in a process of its own, and reading what its plugin tells (`plugin`).

nbval runs a notebook in the folder that it lies in. So what is run lies beside the learner's copies, as hidden files
that are removed at the end, whatever the end is; those of a program that was killed are removed by the next one.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from amp_lab.course.machine import server

Event = dict[str, Any]

_HIDDEN = ".amp-lab-check."
_STARTUP_S = 150.0  # nbval gives a kernel 60 s, and it has two tries
_GRACE_S = 5.0


class Ended(Exception):
    """nbval ended, or had to be ended, before it was through; the message says how."""


@contextmanager
def beside(work: Path, pages: Mapping[str, bytes]) -> Iterator[dict[str, str]]:
    """Write notebooks as hidden files in `work` for as long as the `with` block lasts; yields {name of file: slug}.

    `pages` maps the slug of a lesson to its notebook. Raises OSError.
    """
    with ExitStack() as stack:
        names = {}
        with _one_at_a_time(work):
            _remove_stale(work)
            for slug, data in pages.items():
                path = work / f"{_HIDDEN}{os.urandom(4).hex()}.{slug}.ipynb"
                stack.enter_context(_locked_file(path, data))
                names[path.name] = slug
        yield names


@contextmanager
def _one_at_a_time(work: Path) -> Iterator[None]:
    """Keep another program from taking a file that was made, but not locked yet, for a stale one."""
    descriptor = os.open(work, os.O_RDONLY)
    try:
        with suppress(OSError):  # no locks here: then no file counts as stale, either
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextmanager
def _locked_file(path: Path, data: bytes) -> Iterator[None]:
    """The lock tells others that the file is in use; the system lifts it when this process ends in any way."""
    with open(path, "xb") as file:
        try:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_EX)
            file.write(data)
            file.flush()
            yield
        finally:
            path.unlink(missing_ok=True)


def _remove_stale(work: Path) -> None:
    for path in work.glob(f"{_HIDDEN}*.ipynb"):
        with suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


@contextmanager
def nbval(work: Path, names: Sequence[str], cell_timeout_s: float) -> Iterator[Iterator[Event]]:
    """Start nbval on notebooks in `work`; yields its events, which raise Ended if it does not come to its end.

    Nothing of it is left running after the `with` block, kernels included.
    """
    read, write = os.pipe()
    with tempfile.TemporaryFile() as said, open(read, "rb", buffering=0) as pipe:
        try:
            process = subprocess.Popen(
                _command(names, cell_timeout_s, write),
                cwd=work,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                pass_fds=(write,),
                start_new_session=True,  # Ctrl+C comes to us alone, and we end it in order
            )
        finally:
            os.close(write)
        kernel: list[int] = []
        try:
            yield _events(process, pipe, kernel, said, cell_timeout_s + _STARTUP_S)
        finally:
            _end(process, kernel)


def _command(names: Sequence[str], cell_timeout_s: float, pipe: int) -> list[str]:
    return [
        # -P: a `random.py` of the learner's is for their kernel, not for pytest.
        *(sys.executable, "-P", "-m", "pytest"),
        # No settings, plugins or conftest.py of others.
        *("-c", os.devnull, "--rootdir=.", "--noconftest", "-p", "no:cacheprovider"),
        *("-p", "nbval.plugin", "-p", "amp_lab.course.checking.plugin", f"--amp-lab-events={pipe}"),
        *("--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={cell_timeout_s}"),
        *("-q", "--tb=no", "--color=no", "--continue-on-collection-errors", *names),
    ]


def _environment() -> dict[str, str]:
    """Return what a kernel of JupyterLab has, without anything that steers pytest."""
    environment = server.environment(os.environ)
    kept = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    if "AMP_LAB_COURSE" in kept:  # a relative one means another folder to a kernel in work/
        kept["AMP_LAB_COURSE"] = os.path.abspath(os.path.expanduser(kept["AMP_LAB_COURSE"]))
    return {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def _events(
    process: subprocess.Popen[bytes], pipe: BinaryIO, kernel: list[int], said: BinaryIO, patience_s: float
) -> Iterator[Event]:
    for line in _lines(pipe, patience_s):
        event: Event = json.loads(line)
        if "kernel" in event:
            kernel[:] = [event["kernel"]]
        else:
            yield event
    status = process.wait()
    if status not in (0, 1):
        said.seek(0)
        words = said.read().decode(errors="replace").strip().splitlines() or [""]
        raise Ended(f"nbval ended with status {status}: {words[-1]}")


def _lines(pipe: BinaryIO, patience_s: float) -> Iterator[bytes]:
    rest = b""
    while select.select([pipe], [], [], patience_s)[0]:
        chunk = pipe.read(1 << 16)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
    raise Ended(f"nbval said nothing for {patience_s:g} s")


def _end(process: subprocess.Popen[bytes], kernel: list[int]) -> None:
    """Ask the process to end, which stops its kernel; if it does not, or could not, end both."""
    try:
        if process.poll() is None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
    finally:
        in_order = process.poll() is not None and process.returncode >= 0
        for group in () if in_order else (process.pid, *kernel):
            with suppress(OSError):
                os.killpg(group, signal.SIGKILL)
        process.wait()
