"""One call of a PyTorch function by the user's code, as a look at operators gets it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final, Literal

import torch

from amp_lab.autocast.messages.users_code import is_users
from amp_lab.watching.recording.local_variables import locals_of

Origin = Literal["user", "module", "torch"]

HALVES: Final = (torch.float16, torch.bfloat16)

_TORCH: Final = str(Path(torch.__file__).parent)
# Through these a call goes on its way from the user's line to the handler of modes.
_ON_THE_WAY: Final = frozenset(
    {
        "overrides.py",
        "_tensor.py",
        "_jit_internal.py",
        "functional.py",
        "nn/functional.py",
        "autograd/__init__.py",
    }
)
_WATCHING: Final = str(Path(__file__).parents[2])
_SPELLINGS: Final = {
    "multiply": "mul",
    "subtract": "sub",
    "divide": "div",
    "true_divide": "div",
    "clip": "clamp",
    "__rsub__": "rsub",
    "__rdiv__": "rdiv",
    "__rtruediv__": "rdiv",
    "__rpow__": "rpow",
    "__rmatmul__": "matmul",
    "__itruediv__": "div_",
    "__ipow__": "pow_",
}
_PLAIN: Final = (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


class Call:
    """A call: its name ("add"; also for `+` and for `add_`), what it was given, where it stands.

    `target` is the tensor that it writes into, for the in-place and out= forms. `line` is what tells one place in the
    code from another. `result` is there once it has returned.
    """

    __slots__ = (
        "args",
        "backward",
        "frame",
        "inplace",
        "kwargs",
        "line",
        "module",
        "name",
        "origin",
        "result",
        "target",
    )

    def __init__(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ):
        self.origin, self.frame = _origin(frame)
        self.args, self.kwargs = args, kwargs
        self.result: Any = None
        self.name, self.inplace = _name(func)
        self.line = (self.frame.f_code.co_filename, self.frame.f_lineno)
        self.module = locals_of(self.frame).get("self") if self.origin == "module" else None
        self.target = self._target()
        self.backward = torch._C._current_graph_task_id() != -1  # private: there is no public way to ask

    def _target(self) -> torch.Tensor | None:
        if isinstance(out := self.kwargs.get("out"), torch.Tensor):
            return out
        first = self.args[0] if self.args else None
        return first if self.inplace and isinstance(first, torch.Tensor) else None

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield the tensors that it was given, also those in lists."""
        for each in (*self.args, *(value for name, value in self.kwargs.items() if name != "out")):
            if isinstance(each, torch.Tensor):
                yield each
            elif isinstance(each, list | tuple):
                yield from (inner for inner in each if isinstance(inner, torch.Tensor))

    def numbers(self) -> Iterator[float]:
        """Yield the plain numbers that it was given."""
        for each in (*self.args, *self.kwargs.values()):
            if type(each) in (int, float):
                yield float(each)

    def argument(self, place: int, name: str) -> Any:
        """Return an argument, by place or name; None if it was not given."""
        return self.args[place] if place < len(self.args) else self.kwargs.get(name)

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype of the tensor that came out."""
        return self.result.dtype if isinstance(self.result, torch.Tensor) else None


def is_plain(tensor: object) -> bool:
    """Return whether something is an ordinary tensor with numbers, so that asking them has no side effects."""
    return type(tensor) in _PLAIN and tensor.layout == torch.strided and not tensor.is_meta  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=1024)
def _spelling(name: str) -> tuple[str, bool]:
    name = _SPELLINGS.get(name, name).removeprefix("_foreach_").removeprefix("linalg_")
    inplace = name.endswith("_") and not name.endswith("__")
    name = name.rstrip("_") if inplace else name
    return _SPELLINGS.get(name, name), inplace


def _name(func: Callable[..., Any]) -> tuple[str, bool]:
    """Return the plain name of a function, and whether it is the in-place form: "grad.get" for reading `.grad`."""
    name = getattr(func, "__name__", "")
    if name in ("__get__", "__set__"):
        return f"{getattr(func.__self__, '__name__', '')}.{name.strip('_')}", False  # type: ignore[attr-defined]
    return _spelling(name)


def _origin(frame: FrameType) -> tuple[Origin, FrameType]:
    """Say whose call it is, and return the frame that made it."""
    while (kind := _kind(frame.f_code.co_filename)) == "on the way" and frame.f_back is not None:
        frame = frame.f_back
    return ("torch" if kind == "on the way" else kind), frame


@functools.lru_cache(maxsize=4096)
def _kind(file: str) -> Literal["user", "module", "torch", "on the way"]:
    if file.startswith(_TORCH):
        within = file[len(_TORCH) + 1 :].replace("\\", "/")
        if within in _ON_THE_WAY:
            return "on the way"
        return "module" if within.startswith("nn/modules/") else "torch"
    if file.startswith(_WATCHING):
        return "on the way"  # a function that the recorder has replaced
    return "user" if is_users(file) else "torch"


def in_a_hook(frame: FrameType) -> bool:
    """Return whether the user's code at a frame was called by PyTorch as a hook on gradients."""
    outer: FrameType | None = frame
    while outer is not None and _kind(outer.f_code.co_filename) == "user":
        outer = outer.f_back
    while outer is not None and outer.f_code.co_filename.startswith(_WATCHING):
        outer = outer.f_back  # the mode stands between
    if outer is None or not outer.f_code.co_filename.startswith(_TORCH):
        return False
    within = outer.f_code.co_filename[len(_TORCH) + 1 :].replace("\\", "/")
    return (within, outer.f_code.co_name) == (
        "autograd/graph.py",
        "_engine_run_backward",
    ) or within == "utils/hooks.py"
