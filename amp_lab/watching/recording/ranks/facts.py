"""What is asked of models, groups and threads where several processes train together."""

from __future__ import annotations

import functools
import linecache
import re
import sys
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from amp_lab.autocast.messages.users_code import is_users, readable

# gloo's errors are plain RuntimeErrors. They begin with the place in its sources: "[…/gloo/transport/tcp/pair.cc:553]";
# a word such as "gloo" or "timed out" stands in other people's messages, too.
_TALK: Final = re.compile(
    r"\[[^\]\n]*\bgloo[/\\][^\]\n]*:\d+\]|\[Rank \d+\]: Ranks? .* failed to pass monitoredBarrier"
)
_DISTRIBUTED: Final = str(Path(dist.__file__).parent)
# Functions of torch.distributed that return when all ranks of their group have called them.
COLLECTIVES: Final = (
    "all_reduce",
    "barrier",
    "monitored_barrier",
    "broadcast",
    "broadcast_object_list",
    "reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "gather",
    "gather_object",
    "scatter",
    "scatter_object_list",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
)
# These optimizers let the ranks go apart on purpose, and bring them together now and then.
_AVERAGING: Final = ("PostLocalSGDOptimizer",)


def are_several() -> bool:
    """Return whether this process is one of several in a process group."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def wrappers(models: Sequence[nn.Module]) -> list[DistributedDataParallel]:
    """Return the DDP wrappers in the watched models."""
    return [each for model in models for each in model.modules() if isinstance(each, DistributedDataParallel)]


def sends_buffers(wrapper: DistributedDataParallel) -> bool:
    """Return whether a forward pass begins with the buffers of one rank, sent to all."""
    return bool(wrapper.will_sync_module_buffers())  # type: ignore[no-untyped-call]


def trains(wrapper: DistributedDataParallel, models: Sequence[nn.Module]) -> bool:
    """Return whether a wrapper is a watched model, or around one, or inside of one."""
    inner = wrapper.module
    return any(wrapper is each or inner is each for model in models for each in (model, *model.children()))


def peers(found: Sequence[DistributedDataParallel]) -> tuple[int, ...]:
    """Return the ranks that train with this one: those of DDP's group, or all."""
    return ranks_of(found[0].process_group if found else None)


def ranks_of(group: Any) -> tuple[int, ...]:
    """Return the ranks of a group; of None, all."""
    return tuple(dist.get_process_group_ranks(group))


def group_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ranks of the group that a collective is called with; none where this rank is no member of it."""
    group = next((each for each in args if isinstance(each, dist.ProcessGroup)), kwargs.get("group"))
    return ranks_of(group) if group is None or isinstance(group, dist.ProcessGroup) else ()


def queues(parameters: Sequence[nn.Parameter]) -> bool:
    """Return whether the host goes on before a collective with such tensors has ended, as NCCL's do."""
    return f"{_device_of(parameters).type}:nccl" in str(dist.get_backend_config())


def _device_of(parameters: Sequence[nn.Parameter]) -> torch.device:
    return parameters[0].device if parameters else torch.device("cpu")


def shape_of(models: Sequence[nn.Module]) -> int:
    """Return a number that is the same for models of the same parts: on every rank the same."""
    names = [(name, tuple(each.shape)) for model in models for name, each in model.named_parameters()]
    return zlib.crc32(repr(names).encode())


def averages_weights(optimizers: Iterable[Any]) -> bool:
    """Return whether an optimizer lets the weights of ranks differ for a while."""
    return any(type(each).__name__ in _AVERAGING for each in optimizers)


def draws_random_numbers(model: nn.Module) -> bool:
    """Return whether a model has dropout."""
    kind = nn.modules.dropout._DropoutNd
    return any(isinstance(each, kind) and each.p > 0 for each in model.modules())


def compared_parameters(
    found: Sequence[DistributedDataParallel], models: Sequence[nn.Module]
) -> list[nn.Parameter]:
    """Return the parameters that must be equal on all ranks: those that DDP looks after, or all."""
    if not found:
        return [each for model in models for each in model.parameters() if each.requires_grad]
    return [
        parameter
        for wrapper in found
        for name, parameter in wrapper.module.named_parameters()
        if parameter.requires_grad and name not in wrapper.parameters_to_ignore
    ]


def is_gradient(tensor: Any, parameters: Sequence[nn.Parameter]) -> bool:
    """Return whether a tensor is the gradient of one of these parameters."""
    if not isinstance(tensor, torch.Tensor):
        return False
    at = tensor.data_ptr()
    return any(each.grad is not None and each.grad.data_ptr() == at for each in parameters)


def random_state(parameters: Sequence[nn.Parameter]) -> int | None:
    """Return the checksum of the state of the generator that dropout of this model draws from."""
    device = _device_of(parameters)
    if device.type == "cpu":
        return zlib.crc32(torch.get_rng_state().numpy().tobytes())
    if device.type == "cuda":
        return zlib.crc32(torch.cuda.get_rng_state(device).numpy().tobytes())
    return None


def is_captured(parameters: Sequence[nn.Parameter]) -> bool:
    """Return whether what is computed now becomes part of a CUDA graph."""
    on_gpu = bool(parameters) and parameters[0].device.type == "cuda"
    return on_gpu and torch.cuda.is_current_stream_capturing()


def is_about_talk(error: BaseException | None) -> bool:
    """Return whether an error, or what it was raised from, is one of the connection between ranks.

    Errors of this rank's own doing are not: a DataLoader that timed out, or a host of data that does not answer.
    """
    while error is not None:
        known = getattr(dist, "DistError", None)
        if known and isinstance(error, known):
            return True
        if type(error) is RuntimeError and _TALK.match(str(error)):
            return True
        error = error.__cause__
    return False


def timeout() -> float:
    """Return how many seconds a rank waits for others before PyTorch gives up; 600 where that cannot be asked."""
    try:
        group: Any = dist.group.WORLD
        cpu, serves = torch.device("cpu"), str(dist.get_backend_config())
        device = cpu if "cpu:" in serves else torch.device("cuda")
        return float(group._get_backend(device).options._timeout.total_seconds())
    except Exception:
        return 600.0


# -- where a thread is

_is_users = functools.cache(is_users)


def line_of_this_thread() -> str:
    """Return the user's line that runs, in words: "train.py:31: loss.backward()"."""
    return _in_words(sys._getframe(1))


class Place(NamedTuple):
    """Where a thread is: `moved` is another when it moves, `where` is the user's line, `talking` a collective."""

    moved: object
    where: str
    talking: str


def place_of(thread: int) -> Place:
    """Return where another thread is."""
    frame = sys._current_frames().get(thread)
    if frame is None or thread == threading.get_ident():
        return Place(None, "", "")
    name = frame.f_code.co_name
    talks = name in COLLECTIVES and frame.f_code.co_filename.startswith(_DISTRIBUTED)
    return Place((id(frame), frame.f_lasti), _in_words(frame), f"dist.{name}()" if talks else "")


def _in_words(frame: FrameType | None) -> str:
    for each in _outwards(frame):
        if _is_users(each.f_code.co_filename):
            return _line(each.f_code.co_filename, each.f_lineno)
    return ""


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


@functools.lru_cache(maxsize=4096)
def _line(file: str, line: int) -> str:
    text = linecache.getline(file, line).strip()
    return f"{readable(file)}:{line}" + (f": {text}" if text else "")
