"""An answer's surroundings in this lesson: a region with CUDA's policy, and an eye on what happens in it.

Everything runs on CPU tensors, on every machine: `emulate` lets `torch.autocast("cpu", ...)` cast as CUDA's does. Seen
from *above* autocast, a call shows what the answer handed over, and which regions were open; from *below*, a kernel
shows in which dtype the work was done.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode  # documented, though its module has an underscore

from amp_lab.autocast import emulate
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.expect import Mistake

Region = torch.dtype | None  # autocast's dtype, None where there is no region

NAMES: dict[torch.dtype, str] = {
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float32: "FP32",
    torch.float64: "FP64",
}
_PRODUCTS = {
    *(
        "mm",
        "bmm",
        "mv",
        "dot",
        "vdot",
        "addmm",
        "addmm_",
        "baddbmm",
        "baddbmm_",
        "addbmm",
        "addbmm_",
        "addmv",
    ),
    *("addmv_", "_addmm_activation", "convolution"),
    *("matmul", "linear", "einsum"),  # which come down to those above, except in inference mode
}
_PRODUCT_CALLS = ("matmul", "mm", "mv", "dot", "linear", "einsum", "inner", "cov", "conv")


class Call(NamedTuple):
    """A function that the answer called, by its plain name, before autocast did anything.

    `cpu` says whether autocast was on for that device, `cuda` in which dtype it was (None: off). `smallest` is the
    smallest number that was handed over, and `infinite` says whether one of them was infinite or NaN.
    """

    name: str
    dtypes: frozenset[torch.dtype]
    cpu: bool
    cuda: Region
    smallest: float
    infinite: bool

    @property
    def is_product(self) -> bool:
        """Whether it comes down to matrix products."""
        return any(part in self.name for part in _PRODUCT_CALLS)


class Product(NamedTuple):
    """A kernel that multiplies and adds up, by its ATen name, with the shapes and the dtypes of its operands."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]

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


class _Above(TorchFunctionMode):
    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(
        self, func: Any, kinds: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        tensors = [*_floats((*args, *(kwargs or {}).values()))]
        if tensors and name != "__get__":  # which only looks at an attribute, such as the shape
            self._seen.calls.append(_call(name, tensors))
        return func(*args, **(kwargs or {}))


class _Below(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, seen: Seen) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._seen = seen

    def __torch_dispatch__(
        self, func: Any, kinds: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = func.name().removeprefix("aten::")  # "mm", "addmm_", "mm.out"
        if name.partition(".")[0] in _PRODUCTS:
            tensors = [*_floats(args)]
            shapes = tuple(tuple(each.shape) for each in tensors)
            self._seen.products.append(Product(name, shapes, tuple(each.dtype for each in tensors)))
        return func(*args, **(kwargs or {}))


def _floats(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point():
                yield value
        elif isinstance(value, (list, tuple)):
            yield from _floats(value)


def _call(name: str, tensors: list[torch.Tensor]) -> Call:
    real = [each.detach() for each in tensors if each.numel() and not _is_fake(each)]
    return Call(
        name,
        frozenset(each.dtype for each in tensors),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None,
        min((float(each.min()) for each in real), default=0.0),
        not all(bool(each.isfinite().all()) for each in real),
    )


def _is_fake(tensor: torch.Tensor) -> bool:
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter)


def as_on_cuda(check: Callable[[Ask], None]) -> Callable[[Ask], None]:
    """Decorate a check: while it runs, regions on CPU tensors follow CUDA's policy, with Tensor Cores' sums."""

    @functools.wraps(check)
    def run(ask: Ask) -> None:
        with emulate.cuda_autocast(), emulate.tensor_cores():
            check(ask)

    return run


@contextlib.contextmanager
def watched(region: Region, *, cuda: Region = None) -> Iterator[Seen]:
    """Open a region, and note what happens in it.

    With `cuda`, CUDA's own autocast is on as well, in that dtype, which does nothing to CPU tensors.
    """
    seen = Seen()
    with contextlib.ExitStack() as stack:
        if cuda is not None:
            stack.enter_context(_cuda_switched_on(cuda))
        if region is not None:
            stack.enter_context(torch.autocast("cpu", region))
        stack.enter_context(_Above(seen))
        stack.enter_context(_Below(seen))
        yield seen


@contextlib.contextmanager
def _cuda_switched_on(dtype: torch.dtype) -> Iterator[None]:
    # torch.autocast("cuda") would warn, and stay off, where there is no CUDA; the switch itself is there.
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


class Scene(contextlib.AbstractContextManager[None]):
    """A region to run code of the learner in, and what was `seen` there, even if it ended in an error."""

    def __init__(self, region: Region, *, cuda: Region = None) -> None:
        self._region, self._cuda = region, cuda
        self.seen = Seen()

    def run(self, ask: Ask, function: Callable[..., Any], *args: Any) -> Any:
        """Return what `function` returns."""
        ask.around = self
        try:
            return ask.run(function, *args)
        finally:
            ask.around = contextlib.nullcontext()

    def __enter__(self) -> None:
        self._watched = watched(self._region, cuda=self._cuda)
        self.seen = self._watched.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._watched.__exit__(*error)


def where(region: Region) -> str:
    """Say it in words, for a sentence: "in an FP16 region"."""
    if region is None:
        return "outside of any region"
    return f"in {'an' if region is torch.float16 else 'a'} {NAMES[region]} region"


def named(dtypes: Iterable[torch.dtype]) -> str:
    """Return dtypes in words: "FP16", "FP16 and FP32"."""
    return " and ".join(sorted(NAMES.get(dtype, str(dtype)) for dtype in set(dtypes)))


def given(leaf: torch.Tensor) -> torch.Tensor:
    """Return what a layer before would hand on: the values of `leaf`, with a way back to it."""
    with torch.enable_grad():
        return leaf.clone()


def must_be_unchanged(call: str, value: torch.Tensor, leaf: torch.Tensor, name: str = "1") -> None:
    """Raise `Mistake` if the answer changed what it was given."""
    before, after = leaf.detach(), value.detach()
    alike = before.dtype == after.dtype and before.shape == after.shape
    if not (alike and torch.equal(before.reshape(-1).view(torch.uint8), after.reshape(-1).view(torch.uint8))):
        raise Mistake("mutated-input", call=call, name=name, want=describe(before), got=describe(after))
