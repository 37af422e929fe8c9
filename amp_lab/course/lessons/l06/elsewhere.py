"""Tensors that say they are on another device, on every machine.

They are plain CPU tensors with values. Asked for their device they name another one, what is made on that device is
made on the CPU, and autocast for the CPU is what autocast for that device is. So code that asks its tensors where they
are behaves as it would there, and code that believes in one device is found out.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from amp_lab.course.lessons.l06.seeing import Region

# How PyTorch says that a part of it, or the hardware, is missing: no fault of the answer.
_MISSING = ("not compiled", "not linked", "is not available", "driver", "No CUDA GPUs", "without XPU")


class Elsewhere(TorchFunctionMode):
    """While it is on, all tensors claim to be on a device of type `kind`; `moves` are the devices moved to."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.moves: list[str] = []

    @property
    def left(self) -> bool:
        """Whether the last move went to the CPU: what is computed now is computed there."""
        return self.moves[-1:] == ["cpu"]

    def __torch_function__(
        self, func: Any, kinds: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name == "__get__":
            attribute = func.__self__.__name__
            if attribute == "device":
                return torch.device(self.kind, 0)
            if attribute in ("is_cpu", "is_cuda", "is_xpu"):
                return bool(attribute == f"is_{self.kind}")
        if name == "get_device":
            return 0
        kwargs = kwargs or {}
        self._note_move(name, [*args, *kwargs.values()])
        if name == "numpy" and not self.left and not kwargs.get("force"):
            raise TypeError(
                f"can't convert {self.kind}:0 device type tensor to numpy. Use Tensor.cpu() first."
            )
        if name == self.kind:  # x.cuda()
            return args[0]
        here = [self._here(each) for each in args]
        with contextlib.nullcontext() if self.left else self._autocast_as_there():
            return func(*here, **{key: self._here(each) for key, each in kwargs.items()})

    def _note_move(self, name: str, handed: list[Any]) -> None:
        if name in ("cpu", self.kind):
            self.moves.append(name)
        elif name == "to":
            kinds = [torch.device(each).type for each in handed[1:] if isinstance(each, (str, torch.device))]
            self.moves += [kind for kind in kinds if kind in ("cpu", self.kind)]

    def _here(self, value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == self.kind:
            return torch.device("cpu")
        return "cpu" if isinstance(value, str) and value in (self.kind, f"{self.kind}:0") else value

    @contextlib.contextmanager
    def _autocast_as_there(self) -> Iterator[None]:
        with _switched("cpu", torch.is_autocast_enabled(self.kind), torch.get_autocast_dtype(self.kind)):
            yield


@contextlib.contextmanager
def _switched(kind: str, on: bool, dtype: torch.dtype) -> Iterator[None]:
    before = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    torch.set_autocast_enabled(kind, on)
    torch.set_autocast_dtype(kind, dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled(kind, before[0])
        torch.set_autocast_dtype(kind, before[1])


@contextlib.contextmanager
def region_for(kind: str, dtype: torch.dtype) -> Iterator[None]:
    """Open a region for a device that need not be here.

    `torch.autocast("cuda")` would warn, and stay off, where there is no CUDA; the switch itself is there.
    """
    torch.autocast_increment_nesting()
    try:
        with _switched(kind, True, dtype):
            yield
    finally:
        if torch.autocast_decrement_nesting() == 0:
            torch.clear_autocast_cache()


@contextlib.contextmanager
def claimed(kind: str, region: Region) -> Iterator[Elsewhere]:
    """Let tensors claim to be on a device of type `kind`, with a region open for it."""
    with contextlib.ExitStack() as stack:
        if region is not None:
            stack.enter_context(region_for(kind, region))
        yield stack.enter_context(Elsewhere(kind))


def is_missing_here(error: BaseException | None) -> bool:
    """Return whether an error only says that this machine lacks the device."""
    return isinstance(error, (RuntimeError, AssertionError)) and any(part in str(error) for part in _MISSING)
