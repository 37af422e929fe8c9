"""Ways to count what a forward pass keeps: the right one, and those of people who get exercise 8.1 wrong.

They leave out the wrong things, or count a storage twice, or take a view for the whole. An answer with several of these
faults is told the first: all their combinations are computed, fewest faults first.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from amp_lab.course.judging.expect import Misconceptions

Tensors = list[torch.Tensor]
Count = Callable[[nn.Module, torch.Tensor, torch.dtype], int]


@functools.lru_cache(maxsize=16)  # each combination of faults counts the same tensors
def saved(model: nn.Module, batch: torch.Tensor, dtype: torch.dtype) -> Tensors:
    """Return every tensor that a forward pass hands to backward, in order."""
    tensors: Tensors = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    with _autocast(batch, dtype), saved_tensors_hooks(keep, lambda tensor: tensor):
        model(batch)
    return tensors


def _autocast(batch: torch.Tensor, dtype: torch.dtype) -> torch.autocast:
    lower = dtype != torch.float32
    return torch.autocast(batch.device.type, dtype if lower else None, enabled=lower)


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _whole(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().nbytes()


def _visible(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize


def _addresses(*tensors: torch.Tensor) -> set[int]:
    return {_address(each) for each in tensors}


# What was there before, as it is left out: rightly, or not.


def _all_there(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    return _address(tensor) in _addresses(*model.parameters(), *model.buffers(), batch)


def _but_buffers(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    return _address(tensor) in _addresses(*model.parameters(), batch)


def _but_what_is_not_saved_to_disk(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    return _address(tensor) in _addresses(*model.state_dict().values(), batch)


def _but_frozen(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    trained = [each for each in model.parameters() if each.requires_grad]
    return _address(tensor) in _addresses(*trained, *model.buffers(), batch)


def _but_batch(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    return _address(tensor) in _addresses(*model.parameters(), *model.buffers())


def _only_parameters(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    return _address(tensor) in _addresses(*model.parameters())


def _but_parameters(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    return _address(tensor) in _addresses(*model.buffers(), batch)


def _only_batch(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    return _address(tensor) == _address(batch)


def _nothing_there(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    return False


def _if_the_same_object(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or any(tensor is each for each in (*model.buffers(), batch))


def _if_a_parameter(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or tensor is batch


def _by_object_or_batch(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) or _address(tensor) in _addresses(*model.buffers(), batch)


def _if_shaped_like_weights(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    shapes = {
        shape
        for each in model.parameters()
        for shape in (each.shape, each.t().shape if each.dim() == 2 else None)
    }
    return tensor.shape in shapes or _all_there(tensor, model, batch)


def _if_shaped_like_anything_there(tensor: torch.Tensor, model: nn.Module, batch: torch.Tensor) -> bool:
    return tensor.shape == batch.shape or _if_shaped_like_weights(tensor, model, batch)


_LEFT_OUT = (
    ("", _all_there),
    ("counts-the-batch", _but_batch),
    ("counts-buffers", _but_buffers),
    ("counts-buffers", _but_what_is_not_saved_to_disk),
    ("counts-parameters", _but_frozen),
    ("counts-the-batch", _only_parameters),
    ("weights-as-views", _if_the_same_object),
    ("weights-as-views", _by_object_or_batch),
    ("weights-as-views", _if_a_parameter),
    ("casts-left-out", _if_shaped_like_weights),
    ("casts-left-out", _if_shaped_like_anything_there),
    ("counts-parameters", _but_parameters),
    ("counts-parameters", _only_batch),
    ("counts-parameters", _nothing_there),
)
_COUNTED_ONCE: tuple[tuple[str, Callable[[torch.Tensor], Any] | None], ...] = (
    ("", _address),
    ("storage-twice", lambda tensor: (tensor.data_ptr(), tensor.shape)),
    ("storage-twice", lambda tensor: tensor.data_ptr()),
    ("storage-twice", id),
    ("storage-twice", None),
)
_SIZES = (("", _whole), ("views-in-part", _visible), ("numbers-not-bytes", torch.Tensor.numel))


def _count(left_out: Any, once: Any, size: Any) -> Count:
    def answer(model: nn.Module, batch: torch.Tensor, dtype: torch.dtype) -> int:
        sizes: dict[Any, int] = {}
        for number, tensor in enumerate(saved(model, batch, dtype)):
            if not left_out(tensor, model, batch):
                sizes[once(tensor) if once else number] = size(tensor)
        return sum(sizes.values())

    return answer


right = _count(_all_there, _address, _whole)


def combinations() -> Iterator[tuple[str, Count]]:
    """Yield all ways to count with one of these faults or several, fewest first, named by the first fault."""
    ways = sorted(
        itertools.product(_LEFT_OUT, _COUNTED_ONCE, _SIZES),
        key=lambda way: sum(bool(name) for name, _ in way),
    )
    for way in ways[1:]:
        names = [name for name, _ in way if name]
        yield names[0], _count(*(function for _, function in way))


def _outputs(leaves: bool, once: bool) -> Count:
    """Return what adds up the outputs of modules: a forward hook on each."""

    def answer(model: nn.Module, batch: torch.Tensor, dtype: torch.dtype) -> int:
        outputs: Tensors = []
        hooks = [
            module.register_forward_hook(lambda module, given, output: outputs.append(output))
            for module in model.modules()
            if not (leaves and any(module.children()))
        ]
        with _autocast(batch, dtype):
            model(batch)
        for hook in hooks:
            hook.remove()
        sizes = {(_address(each) if once else number): _visible(each) for number, each in enumerate(outputs)}
        return sum(sizes.values())

    return answer


def _in_fp32(model: nn.Module, batch: torch.Tensor, dtype: torch.dtype) -> int:
    return right(model, batch, torch.float32)


def _half_of_fp32(model: nn.Module, batch: torch.Tensor, dtype: torch.dtype) -> int:
    return _in_fp32(model, batch, dtype) * dtype.itemsize // 4


def _in_mode(training: bool) -> Count:
    def answer(model: nn.Module, batch: torch.Tensor, dtype: torch.dtype) -> int:
        return right(copy.deepcopy(model).train(training), batch, dtype)

    return answer


def _with_result(model: nn.Module, batch: torch.Tensor, dtype: torch.dtype) -> int:
    with _autocast(batch, dtype):
        result = model(batch)
    return right(model, batch, dtype) + _visible(result)


ANYWHERE: Misconceptions = (
    ("no-graph", lambda model, batch, dtype: 0),
    *(("outputs-only", _outputs(leaves, once)) for leaves in (True, False) for once in (False, True)),
    *combinations(),
    ("counts-the-result", _with_result),
)
IN_16_BITS: Misconceptions = (
    ("no-autocast", _in_fp32),
    ("half-of-fp32", _half_of_fp32),
    *ANYWHERE,
)
IN_A_MODE: Misconceptions = (
    *IN_16_BITS,
    ("eval-mode", _in_mode(False)),
    ("train-mode", _in_mode(True)),
)
