"""What ran, seen without amp_lab: every ATen operator below autocast and autograd, and every call of PyTorch's API.

Written apart from the x-ray's own recording on purpose: tests compare the two.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

CAST = "aten._to_copy.default"


@dataclass(frozen=True)
class Seen:
    """An ATen operator that ran: its name, and the dtypes and shapes of its tensors, in order."""

    op: str
    inputs: tuple[torch.dtype, ...]
    outputs: tuple[torch.dtype, ...]
    shapes: tuple[tuple[int, ...], ...] = field(compare=False, default=())
    operands: tuple[int, ...] = field(compare=False, default=())  # identities, to recognise an argument

    @property
    def is_cast(self) -> bool:
        return self.op == CAST and self.inputs != self.outputs and _floating(self.inputs + self.outputs)


def _floating(dtypes: tuple[torch.dtype, ...]) -> bool:
    return all(dtype.is_floating_point for dtype in dtypes)


def tensors(values: object) -> Iterator[torch.Tensor]:
    """Every tensor in nested arguments or results."""
    return (each for each in tree_iter(values) if isinstance(each, torch.Tensor))


class Kernels(TorchDispatchMode):
    """Notes every ATen operator in `seen`."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Seen] = []
        self._alive: list[torch.Tensor] = []  # so that an identity stays one

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = list(tensors((args, kwargs)))
        self._alive += given
        dtypes, shapes = tuple(each.dtype for each in given), tuple(tuple(each.shape) for each in given)
        made: tuple[torch.dtype, ...] = ()
        try:
            result = function(*args, **kwargs)
            made = tuple(each.dtype for each in tensors(result))
            return result
        finally:  # also what fails
            self.seen.append(Seen(str(function), dtypes, made, shapes, tuple(map(id, given))))


@dataclass(frozen=True)
class Described:
    """A tensor of which only the description is kept. Autocast keeps its copy of a `weight`: an FP32 parameter."""

    identity: int
    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    weight: bool

    @classmethod
    def of(cls, value: Any) -> Any:
        """A tensor's description; anything else as it is."""
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        leaf = value.is_leaf and value.requires_grad and value.dtype == torch.float32
        return cls(id(value), value.shape, value.stride(), value.dtype, leaf)

    def make(self, device: str) -> torch.Tensor:
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Call:
    """A call of PyTorch's API, with the operators that ran in it."""

    name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[torch.dtype, ...] | None
    seen: tuple[Seen, ...]

    @property
    def casts(self) -> list["Casting"]:
        """Every conversion between floating-point dtypes in this call, of its arguments or of what came between."""
        given = {each.identity: each for each in tree_iter((self.args, self.kwargs)) if _described(each)}
        return [Casting.of(each, given.get(each.operands[0])) for each in self.seen if each.is_cast]


@dataclass(frozen=True)
class Casting:
    """A conversion: from, to, and the argument of the call that was converted, where it is one."""

    source: torch.dtype
    target: torch.dtype
    argument: Described | None = field(compare=False)

    @classmethod
    def of(cls, seen: Seen, argument: Described | None) -> "Casting":
        return cls(seen.inputs[0], seen.outputs[0], argument)


def _described(value: object) -> bool:
    return isinstance(value, Described)


def describe(values: Any) -> Any:
    """Nested values with a description in the place of each tensor."""
    return tree_map(Described.of, values)


class Calls(TorchFunctionMode):
    """Notes every call of PyTorch's API that lies below `torch.nn`, in `calls`; `kernels` must be on."""

    def __init__(self, kernels: Kernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.calls: list[Call] = []

    def __enter__(self) -> Any:
        # torch.nn.functional is Python, and asks before anything else whether somebody wants its call: nobody,
        # as what it calls itself is looked for.
        asks = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")
        self._silent = patch.multiple(functional, **dict.fromkeys(asks, lambda *_: False))
        self._silent.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._silent.stop()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        before = len(self.kernels.seen)
        described = describe((tuple(args), kwargs))
        result = function(*args, **kwargs)
        seen = tuple(self.kernels.seen[before:])
        outputs = tuple(each.dtype for each in tensors(result))
        if seen or outputs:  # neither is a question, such as for a shape
            name = (resolve_name(function) or str(function)).rpartition(".")[2]
            self.calls.append(Call(name, function, *described, outputs, seen))
        return result
