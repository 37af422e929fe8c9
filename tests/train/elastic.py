"""Run the script under torchrun, kill a part of it, and see how it ends."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from amp_lab.train.checkpoint import Checkpoints, load_checkpoint
from tests.train.distributed.launches import in_session
from tests.train.killed import bits

ROOT = Path(__file__).parents[2]
SCRIPT = ("--precision", "fp16", "--every", "5", "--quiet", "--device", "cpu")


# Soon sure that nobody else comes, and that somebody is gone: seconds for what takes half a minute by default.
SOON = "last_call_timeout=8,join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=3"


def machine(number: int, port: int) -> tuple[str, ...]:
    """The options of an agent that is one of up to two machines; number 0 is where they meet."""
    return (
        *("--nproc-per-node", "1", "--nnodes", "1:2", "--max-restarts", "3", "--rdzv-backend", "c10d"),
        *("--rdzv-id", "two", "--rdzv-endpoint", f"localhost:{port}"),
        *("--rdzv-conf", f"{SOON},is_host={number == 0}"),
    )


class Torchrun:
    """One torchrun in a session of its own."""

    def __init__(self, folder: Path, name: str, options: Sequence[str], script: Sequence[str]) -> None:
        self._path = folder / f"{name}.txt"
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            *options,
            "-m",
            "amp_lab.train.ddp",
            *script,
        ]
        with self._path.open("w") as output:
            self.agent = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},
            )
        self._seen: set[psutil.Process] = set()

    @property
    def output(self) -> str:
        return self._path.read_text(errors="replace")

    def workers(self) -> list[psutil.Process]:
        """The processes of ranks, in the order in which they were started. They have sessions of their own."""
        with contextlib.suppress(psutil.NoSuchProcess):
            found = psutil.Process(self.agent.pid).children()
            self._seen.update(found)
            return sorted(found, key=lambda each: each.pid)
        return []

    def lose(self) -> None:
        """Kill all of it at once, as when a machine is lost."""
        workers = self.workers()
        self.agent.kill()
        for each in workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        self.agent.wait()

    def ended(self, seconds: float) -> int:
        """Return its exit code; a failure if it is not over by then."""
        end = time.monotonic() + seconds
        while self.agent.poll() is None and time.monotonic() < end:
            self.workers()
            time.sleep(0.1)
        hung = self.agent.poll() is None
        self.kill()
        assert not hung, f"it hung:\n{self.output}"
        return self.agent.returncode

    def left(self) -> list[object]:
        """What is still running of all that was seen."""
        return [each for each in self._seen if alive(each)] + in_session(self.agent.pid)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.agent.pid, signal.SIGKILL) if self.agent.poll() is None else None
        self.agent.wait()
        end = time.monotonic() + 5
        while any(alive(each) for each in self._seen) and time.monotonic() < end:
            time.sleep(0.05)


def alive(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def wait_for_step(folder: Path, step: int, seconds: float = 90.0) -> None:
    """Wait for a checkpoint of this step or a later one."""
    end = time.monotonic() + seconds
    while not any(int(path.stem.removeprefix("step-")) >= step for path in Checkpoints(folder).paths):
        assert time.monotonic() < end, f"no checkpoint of step {step} came"
        time.sleep(0.01)


def final(folder: Path) -> dict[str, bytes]:
    """Every bit of what a run has ended with, seconds left out."""
    newest = Checkpoints(folder).newest
    assert newest is not None
    state = load_checkpoint(newest)
    for record in state["history"]["epochs"]:
        record["seconds"] = 0.0
    return {name: bits(value) for name, value in state.items()}
