"""Start processes as a launcher does: each with its environment, from a server that has imported torch."""

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from typing import NamedTuple

import psutil

from amp_lab.train.distributed.in_worker import end_with_the_program

_CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["torch", "torch.distributed", "torch._dynamo", "torch.nn.parallel", "numpy", "amp_lab.train.ddp"]


class Ended(NamedTuple):
    code: int
    output: str
    seconds: float


class Started:
    """A process that runs `function(*args)` in a session of its own."""

    def __init__(self, folder, number, environment, function, args):
        _CONTEXT.set_forkserver_preload(PRELOADED)
        self._path = folder / f"output-{number}-{time.monotonic_ns()}"
        self._killed = False
        self._begun = time.monotonic()
        self.process = _CONTEXT.Process(target=_run, args=(str(self._path), environment, function, args))
        self.process.start()

    def wait_for(self, text, seconds=60):
        end = time.monotonic() + seconds
        while text not in self.output:
            assert time.monotonic() < end, f"no {text!r} in:\n{self.output}"
            assert self.process.is_alive(), self.output
            time.sleep(0.02)

    @property
    def output(self):
        text = self._path.read_text(errors="replace") if self._path.exists() else ""
        # In PyTorch 2.9, gloo prints such a line on every rank.
        return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("[Gloo] Rank"))

    def ended(self, seconds=60):
        """Return how it ended; that it has not is a failure. Nothing that it has started is left."""
        self.process.join(seconds)
        seconds = time.monotonic() - self._begun
        end = (
            time.monotonic() + 20
        )  # the server of --spawn sees that its master has ended, and takes leave of torch
        while (session := in_session(self.process.pid)) and self.process.exitcode is not None:
            if time.monotonic() > end:
                break
            time.sleep(0.05)
        self.kill()
        assert not self._killed, f"it hung:\n{self.output}"
        assert session == [], f"left behind: {session}"
        return Ended(self.process.exitcode, self.output, seconds)

    def send(self, number):
        os.kill(self.process.pid, number)

    def kill(self):
        if self.process.exitcode is None:
            self._killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.join()


def started(folder, function, args=(), environments=({},)):
    return [Started(folder, number, each, function, args) for number, each in enumerate(environments)]


def ranks(size, port, which=None, **more):
    """The environments that a scheduler gives to processes which meet at a port; rank 0 opens it."""
    common = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **more}
    return [common | {"RANK": str(each), "LOCAL_RANK": str(each)} for each in which or range(size)]


@contextlib.contextmanager
def held_port():
    """A port that somebody has, who does not answer."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield holder.getsockname()[1]


def free_port():
    with held_port() as port:
        return port


def in_session(leader, but=()):
    """The processes of a session, by what they run; without zombies."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append((process.pid, " ".join(process.cmdline()[-3:])))
    return [each for each in found if each[0] not in but]


def _run(path, environment, function, args):
    os.setsid()
    threading.Thread(target=end_with_the_program, daemon=True).start()  # if pytest is killed
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(file, stream)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    os.environ |= environment
    import torch

    torch.set_num_threads(1)
    sys.exit(function(*args))
