"""PyTorch's own CUDA autocast kernels, asked on a machine with no GPU: what would this call have done there?

Under `FakeTensorMode` a tensor can say that it is on CUDA where none is, and the dispatcher then takes CUDA's autocast
kernels. A build without CUDA cannot do that for tensors that require grad, nor for methods whose Python binding wants
to switch the current device, so calls are asked one by one.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map

from tests.autocast.observing import Call, Casting, Described, Kernels, Seen, tensors


@contextlib.contextmanager
def cuda_autocast(dtype: torch.dtype) -> Iterator[None]:
    """Autocast for CUDA, also where `torch.autocast` would find that there is no CUDA."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])
        torch.clear_autocast_cache()


def ask(call: Call, dtype: torch.dtype) -> Call | Exception:
    """Run the call on fake CUDA tensors under CUDA's autocast; the exception, if that cannot be done.

    The answer is what happened, as a call; each conversion in it names the argument of the question. Its `outputs` are
    None where there was no GPU to go on with.
    """
    made: dict[int, Described] = {}

    def on_cuda(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device("cuda")
        if not isinstance(value, Described):
            return value
        tensor = value.make("cuda")
        made[id(tensor)] = value
        return tensor

    with FakeTensorMode(allow_non_fake_inputs=True), Kernels() as kernels:
        args, kwargs = tree_map(on_cuda, (call.args, call.kwargs))
        kernels.seen.clear()
        outputs: tuple[torch.dtype, ...] | None = None
        try:
            with cuda_autocast(dtype):
                result = call.function(*args, **kwargs)
            outputs = tuple(each.dtype for each in tensors(result))
        except Exception as error:
            # A build with CUDA asks the GPU which kernel to take, after autocast has done its work.
            if "CUDA driver" not in str(error):
                return error
        seen = tuple(_about(each, made) for each in kernels.seen)
        return replace(call, outputs=outputs, seen=seen)


def _about(seen: Seen, made: dict[int, Described]) -> Seen:
    """The same, about the arguments of the question instead of those that were made for it."""
    return replace(seen, operands=tuple(made[each].identity if each in made else 0 for each in seen.operands))


class Cache:
    """Autocast's cache, which an answer knows nothing of: a weight is copied to a dtype once in a region."""

    def __init__(self) -> None:
        self._copied: set[tuple[int, torch.dtype]] = set()

    def copies(self, answer: Call) -> list[Casting]:
        """Return the casts of an answer that are copies, since the cache does not hold them yet."""
        return [each for each in answer.casts if self._is_new(each)]

    def _is_new(self, cast: Casting) -> bool:
        if cast.argument is None or not cast.argument.weight:
            return True
        key = cast.argument.identity, cast.target
        known = key in self._copied
        self._copied.add(key)
        return not known
