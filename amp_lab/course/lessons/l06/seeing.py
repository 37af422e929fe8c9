"""An eye on what runs: from above autocast, what the answer handed over; from below, which kernels did the work."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode  # documented, though its module has an underscore

Region = torch.dtype | None  # autocast's dtype, None where there is no region

_PRODUCTS = {
    *("mm", "bmm", "mv", "dot", "vdot", "convolution"),
    *("addmm", "addmm_", "baddbmm", "baddbmm_", "addbmm", "addbmm_", "addmv", "addmv_", "_addmm_activation"),
    *("matmul", "linear", "einsum"),  # which come down to those above, except in inference mode
}
_PRODUCT_CALLS = ("matmul", "mm", "mv", "dot", "linear", "einsum", "inner", "cov", "conv")
CASTS = ("float", "double", "half", "bfloat16", "to", "type", "type_as")


class Call(NamedTuple):
    """A function that the answer called, by its plain name, before autocast did anything.

    `cpu` says whether autocast was on for that device, `cuda` in which dtype it was (None: off). `smallest` is the
    smallest number in the tensors that were handed over, and `infinite` says whether one of them was infinite or NaN;
    `numbers` are plain numbers that were handed over, such as the bounds of a clamp.
    """

    name: str
    dtypes: frozenset[torch.dtype]
    cpu: bool
    cuda: Region
    smallest: float
    infinite: bool
    numbers: tuple[float, ...]

    @property
    def is_product(self) -> bool:
        """Whether it comes down to matrix products."""
        return any(part in self.name for part in _PRODUCT_CALLS)


class Product(NamedTuple):
    """A kernel that multiplies and adds up, by its ATen name, with the shapes and the dtypes of its operands.

    `work` is the number of its multiplications.
    """

    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    work: int

    @property
    def in_place(self) -> bool:
        """Whether it writes into a tensor that is there already."""
        return self.op.endswith(("_", "out"))


class Seen:
    """What happened in one run."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.products: list[Product] = []

    def called(self, *names: str) -> list[Call]:
        """Return the calls of these functions, of their methods and in-place forms (`sub`, `__sub__`, `sub_`)."""
        return [call for call in self.calls if call.name.strip("_") in names]

    def product_calls(self) -> list[Call]:
        """Return the calls that ask for matrix products."""
        return [call for call in self.calls if call.is_product]

    def dtypes(self) -> set[torch.dtype]:
        """Return all dtypes in which products were computed."""
        return {dtype for product in self.products for dtype in product.dtypes}


class Above(TorchFunctionMode):
    """Notes calls into `seen`."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, func: Any, kinds: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        handed = [*args, *(kwargs or {}).values()]
        tensors = [*_floats(handed)]
        if tensors and name != "__get__":  # which only looks at an attribute, such as the shape
            self._seen.calls.append(_call(name, tensors, handed))
        return func(*args, **(kwargs or {}))


class Below(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes products into `seen`."""

    def __init__(self, seen: Seen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen

    def __torch_dispatch__(
        self, func: Any, kinds: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().removeprefix("aten::")  # "mm", "addmm_", "mm.out"
        plain = name.partition(".")[0]
        if plain in _PRODUCTS:
            tensors = [*_floats(args)]
            shapes = tuple(tuple(each.shape) for each in tensors)
            dtypes = tuple(each.dtype for each in tensors)
            self._seen.products.append(Product(name, shapes, dtypes, _work(plain, shapes)))
        return func(*args, **(kwargs or {}))


def _work(name: str, shapes: tuple[tuple[int, ...], ...]) -> int:
    """Return how many multiplications a product makes (0 for einsum, which may be any).

    Of a convolution it is taken that its output has as many places as its input.
    """
    match name:
        case "convolution":
            return math.prod(shapes[0]) * shapes[1][0] * math.prod(shapes[1][2:])
        case "linear":
            return math.prod(shapes[0]) * shapes[1][0]
        case "mv" | "addmv" | "addmv_":
            return math.prod(shapes[-2])
        case "dot" | "vdot":
            return math.prod(shapes[-1])
        case "einsum":
            return 0
    return math.prod(shapes[-2]) * shapes[-1][-1]


def _floats(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _floats(value)


def _call(name: str, tensors: list[torch.Tensor], handed: list[Any]) -> Call:
    smallest, infinite = 0.0, False
    with contextlib.suppress(RuntimeError):  # inside of `vmap`, no tensor tells its values
        real = [each.detach() for each in tensors if each.numel() and _is_plain(each)]
        smallest = min((float(each.min()) for each in real), default=0.0)
        infinite = not all(bool(each.isfinite().all()) for each in real)
    return Call(
        name,
        frozenset(each.dtype for each in tensors),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None,
        smallest,
        infinite,
        tuple(float(each) for each in handed if type(each) in (int, float)),
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter)
