"""Open the process group of a run, and close it, however the run ends.

with joined() as group:
    model = DistributedDataParallel(network.to(group.device))
    trainer = Trainer(model, ...)
    with group.following(trainer):
        trainer.fit(...)
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # first: imported when there is a group, its functions keep that for ever

from amp_lab.train.distributed import meeting, roll_call
from amp_lab.train.distributed.errors import LaunchError, is_quiet, of_this_machine, quiet
from amp_lab.train.distributed.failures import RankFailed, first_line, is_about_others, line
from amp_lab.train.distributed.launching import Launch
from amp_lab.train.distributed.missing import blame
from amp_lab.train.distributed.pulse import Pulse
from amp_lab.train.distributed.stopping import Stopping
from amp_lab.train.distributed.stores import HashStore, PrefixStore

# Seconds that who hosts the store stays, so that the others find it when they ask who is missing.
_LINGER: Final = 2.0
_CLOSED: Final[list[Any]] = []  # groups, until the process ends: see `_close`
_LAST: Final = 0.05  # seconds in which a thread of gloo gets Python once more


@dataclass
class Group:
    """The processes of a run, as one of them sees them.

    Attributes:
        rank, size: which process this is, from 0, of how many; alone, 0 of 1.
        local_rank: which one on this machine: its GPU.
        device: where it computes.
        backend: "nccl" or "gloo", which moves tensors between the processes.
        store: small values that all of them can read and write; None for a process alone.
        timeout: how long one of them waits for another, in seconds.
    """

    rank: int
    size: int
    local_rank: int
    device: torch.device
    backend: str
    timeout: float
    store: Any = None
    pulse: Pulse = field(default_factory=Pulse)
    _compared: int = 0  # times

    @property
    def first(self) -> bool:
        """Whether this is the rank that speaks and saves."""
        return self.rank == 0

    def check_alike(self, **facts: object) -> None:
        """Compare what the ranks have, such as `options={...}, data=fingerprint(...)`; every rank calls it.

        Raises:
            LaunchError: on all ranks, if one has something else than rank 0; rank 0 says which and what.
        """
        if self.store is not None:
            self._compared += 1
            store = PrefixStore(f"alike-{self._compared}", self.store)
            roll_call.check_alike(store, self.rank, self.size, facts, self.timeout)

    def following(self, trainer: Any) -> contextlib.AbstractContextManager[Stopping]:
        """Tell the others how far a Trainer is, and let Ctrl+C and SIGTERM stop it after a step."""
        self.pulse.follow(trainer)
        return Stopping(trainer.stop, self.pulse)


@contextlib.contextmanager
def joined(
    timeout: float = 600.0, *, device: str = "auto", join_timeout: float | None = None
) -> Iterator[Group]:
    """Open the group that the environment describes (torchrun's, `spawn`'s); alone, a group of one.

    Args:
        timeout: how long a rank waits for another in a collective, in seconds.
        device: "cuda" with NCCL, "cpu" with gloo; "auto": CUDA where there is one.
        join_timeout: how long to wait until all are there; None: as `timeout`.

    Raises:
        LaunchError: for a wrong launch, on the rank that knows; on the others it is marked as told.
        RankFailed: in place of "Connection closed by peer" and the like: which rank is missing, and where it was last.
    """
    launch = Launch.read()
    group = _opened(launch, timeout, device, timeout if join_timeout is None else join_timeout)
    board = group.pulse.board
    try:
        with group.pulse:
            try:
                yield group
            except BaseException as error:
                if isinstance(error, RankFailed) or is_about_others(error):
                    group.pulse.lost()
                    told = _missing(group, error)
                    if launch and launch.rank == 0 and not launch.hosted:
                        board.wait_for_others(_LINGER)
                    raise told from error
                board.last_words(group.pulse.step, line(error))
                if not is_quiet(error) and not board.says_first(line(error)):
                    quiet(error)
                raise
            board.last_words(group.pulse.step, "it had nothing more to do")
    except BaseException:
        _close(failed=True)
        raise
    _close()


def _missing(group: Group, error: BaseException) -> RankFailed:
    """Return an error that names the rank that is missing, if that can be known."""
    board = group.pulse.board
    said, sure = blame(board, group.pulse.step)
    if not said or (not sure and isinstance(error, RankFailed) and error.known):
        told = RankFailed(str(error))
    else:
        # The error itself may know more than a guess.
        own = "" if sure else f" ({first_line(error.__cause__ or error)})"
        told = RankFailed(f"rank {group.rank}: {said}{own}")
    if not board.says_first(str(told)):
        quiet(told)
    board.leave()
    return told


def _opened(launch: Launch | None, timeout: float, device: str, join_timeout: float) -> Group:
    place = _device(device, launch)
    backend = _backend(place)
    wait = timedelta(seconds=timeout)
    if launch is None:
        dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1, timeout=wait)
        return Group(0, 1, 0, place, backend, timeout)
    end = time.monotonic() + join_timeout
    store = meeting.opened(launch, join_timeout)
    left = max(1.0, end - time.monotonic())
    part = roll_call.called(store, launch.rank, launch.size, left)
    store = PrefixStore(part, store)
    versions = PrefixStore("versions", store)
    roll_call.check_alike(versions, launch.rank, launch.size, roll_call.versions(), left)
    # A client of its own: one that waits for a value keeps everybody waiting who shares it.
    own = PrefixStore(part, meeting.client(launch, 10.0))
    pulse = Pulse(own, launch.rank, launch.size, timeout)
    if backend == "nccl":
        roll_call.check_different(PrefixStore("gpus", store), launch.rank, launch.size, _gpu(place), left)
        pulse.speak_early()
    dist.init_process_group(
        backend,
        store=PrefixStore("group", store),
        rank=launch.rank,
        world_size=launch.size,
        timeout=wait,
    )
    return Group(launch.rank, launch.size, launch.local_rank, place, backend, timeout, store, pulse)


def _device(device: str, launch: Launch | None) -> torch.device:
    """Return the GPU of this process, or the CPU."""
    if device not in ("auto", "cpu", "cuda"):
        raise LaunchError(f'device={device!r}: it is "cuda", "cpu" or "auto"')
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cpu" or (device == "auto" and gpus == 0):
        return torch.device("cpu")
    local_rank = _gpu_number(launch, gpus)
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


def _gpu_number(launch: Launch | None, gpus: int) -> int:
    """Return which GPU is that of this process."""
    here, instead = socket.gethostname(), 'compute on the CPU (device="cpu", --device cpu)'
    if not gpus:
        raise of_this_machine(f"{here} has no GPU that this PyTorch can use: {instead}")
    if launch is None:
        return 0
    if gpus == 1 and os.environ.get("CUDA_VISIBLE_DEVICES"):
        return 0  # the launcher may have given each process one of its own to see: the roll call will tell
    if launch.local_size <= gpus:
        return launch.local_rank
    error = LaunchError(
        f"{launch.local_size} processes on {here}, which has {gpus} GPU{'s' * (gpus > 1)}: each needs one of its own. "
        f"Start {gpus} there (--nproc-per-node), or {instead}"
        + ("" if os.environ.get("LOCAL_RANK") else ". On several machines, each rank needs LOCAL_RANK, too")
    )
    # Who does not know how many are here finds out by itself, and the others do not.
    if launch.local_rank != (0 if os.environ.get("LOCAL_WORLD_SIZE") else gpus):
        quiet(error)
    raise error


def _gpu(device: torch.device) -> str:
    """Return a name of a GPU that no other one has."""
    about = torch.cuda.get_device_properties(device)
    own = getattr(about, "uuid", None) or f"{os.environ.get('CUDA_VISIBLE_DEVICES')}:{device.index}"
    return f"GPU {own} of {socket.gethostname()}"


def _backend(device: torch.device) -> str:
    backend = "nccl" if device.type == "cuda" else "gloo"
    if not getattr(dist, f"is_{backend}_available")():
        other = ', or compute on the CPU (device="cpu", --device cpu)' if backend == "nccl" else ""
        raise of_this_machine(
            f"this PyTorch ({torch.__version__}) was built without {backend}, which ranks on {device.type} need: "
            f"install one from pytorch.org that has it{other}"
        )
    return backend


def _close(failed: bool = False) -> None:
    """Close the group. What others have left may be in the middle of a collective, which NCCL would never end."""
    if not dist.is_initialized():
        return
    # A DDP model may outlive the group. It must not be the last to let go of it: from there, gloo's threads would be
    # waited for with Python locked, and one of them may be waiting for Python.
    _CLOSED.append(dist.group.WORLD)
    abort = getattr(dist.distributed_c10d, "_abort_process_group", dist.destroy_process_group)
    close = abort if failed and dist.get_backend() == "nccl" else dist.destroy_process_group
    with contextlib.suppress(RuntimeError) if failed else contextlib.nullcontext():
        close()


@atexit.register
def _let_go() -> None:
    """Let the threads of gloo end before Python does; one that still needs Python then would abort the process.

    Nobody but this list holds on to a group, and its threads are waited for without Python's lock. Where a DDP model
    lives on, that cannot be; but they get Python for a moment, which is all that they need after the last exchange.
    """
    if _CLOSED:
        gc.collect()
        _CLOSED.clear()
        time.sleep(_LAST)
