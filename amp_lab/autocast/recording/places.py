"""Where in a model something runs: which call of which module, which line of code, which pass."""

from __future__ import annotations

import contextlib
import functools
import linecache
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from amp_lab.autocast.messages.users_code import is_users, readable
from amp_lab.autocast.recording.events import Place
from amp_lab.autocast.records import Phase, Source

_Kind = Literal["user", "inside", "engine", "recomputing", "function", "compiled"]

_TORCH = str(Path(torch.__file__).parent)

# Which frames mean what: PyTorch has no public name for them.
_MARKS: dict[tuple[str, str], _Kind] = {
    ("autograd/graph.py", "_engine_run_backward"): "engine",
    ("utils/checkpoint.py", "recompute_fn"): "recomputing",  # use_reentrant=False
    ("utils/checkpoint.py", "backward"): "recomputing",  # use_reentrant=True: CheckpointFunction.backward
    ("autograd/function.py", "apply"): "function",
    ("_dynamo/eval_frame.py", "compile_wrapper"): "compiled",  # which calls the function itself in an x-ray
}

_COMPILED = (
    "a function in it is compiled (torch.compile): it was run as it is written, operator by operator; the compiler "
    "may fuse some, and then leave out casts between them"
)
_IN_ANOTHER_THREAD = (
    "a module of it was called in another thread: what ran there is not listed, and autocast is off in a new thread, "
    "unless that enters a region of its own"
)


class _Found(NamedTuple):
    """What the stack tells: the user's line, the custom autograd function, the pass (None: not told)."""

    source: Source | None
    within: str | None
    phase: Phase | None


class _Call(NamedTuple):
    module: nn.Module | None
    path: str
    type_name: str
    number: int


class Places:
    """Follows a run of a model. `paths` are those of its modules by `id`, `types` their classes by path.

    `types[""]` is what the model itself is called. `notes` is about what was met that could not be followed.
    """

    def __init__(self, paths: Mapping[int, str], types: Mapping[str, str], listening: Callable[[], bool]):
        self.notes: dict[str, None] = {}  # in order, each once
        self._paths, self._types = paths, types
        self._root = _Call(None, "", types[""], 1)
        self._listening = listening
        self._thread = threading.get_ident()
        self._calls: list[_Call] = []
        self._counts: Counter[tuple[str, bool]] = Counter()
        self._sources: dict[tuple[str, str, int], Source] = {}

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Note, for a while, which module's forward runs."""
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def here(self, forward: int | None) -> Place:
        """Say where the code runs that calls this. `forward` is handed on."""
        source, within, phase = self._look_up()
        if phase is None:  # PyTorch computes gradients of CUDA tensors in a thread of its own
            phase = "forward" if torch._C._current_graph_task_id() == -1 else "backward"
        _, path, type_name, number = self._calls[-1] if self._calls else self._root
        return Place(phase, path, type_name, number, source, within, forward)

    def _look_up(self) -> _Found:
        """Look through the stack, from the inside out."""
        source: Source | None = None
        within: str | None = None
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            kind = _kind(frame.f_code.co_filename, frame.f_code.co_name)
            if kind == "user":
                if source is None:
                    source = self._source(frame.f_code, frame.f_lineno)
            elif kind == "compiled":
                # PyTorch compiles some functions of its own, such as flex_attention, which is said elsewhere.
                if frame.f_back is not None and not frame.f_back.f_code.co_filename.startswith(_TORCH):
                    self.notes[_COMPILED] = None
            elif kind == "engine":
                return _Found(source, within, "backward")
            elif kind == "recomputing":
                return _Found(source, within, "recomputed")
            elif kind == "function" and within is None:
                within = _function_name(frame)
            elif frame.f_code is _run_code:
                return _Found(source, within, "forward")
            frame = frame.f_back
        return _Found(source, within, None)

    def _source(self, code: CodeType, line: int) -> Source:
        key = code.co_filename, code.co_name, line  # the same code in two files is equal
        if (known := self._sources.get(key)) is None:
            text = linecache.getline(code.co_filename, line).strip()
            file = readable(code.co_filename)
            known = self._sources[key] = Source(file, line, code.co_name, text)
        return known

    def of_parameter(self, name: str | None, place: Place) -> Place:
        """Say where a parameter belongs, for the end of a backward pass."""
        path = "" if name is None else name.rpartition(".")[0]
        return place._replace(module=path, module_type=self._types.get(path, self._root.type_name))

    def _enter(self, module: nn.Module, _: Any) -> None:
        if not self._listening():
            if threading.get_ident() != self._thread and id(module) in self._paths:
                self.notes[_IN_ANOTHER_THREAD] = None
            return
        path = self._path(module)
        again = torch._C._current_graph_task_id() != -1  # recomputed for a backward pass: counted apart
        self._counts[path, again] += 1
        self._calls.append(_Call(module, path, type(module).__name__, self._counts[path, again]))

    def _leave(self, module: nn.Module, *_: Any) -> None:
        if self._listening() and any(call.module is module for call in self._calls):
            while self._calls.pop().module is not module:
                pass

    def _path(self, module: nn.Module) -> str:
        """Return a module's path; for one that is no part of the model, its caller's path and its class."""
        if (known := self._paths.get(id(module))) is not None:
            return known
        caller = self._calls[-1].path if self._calls else ""
        return f"{caller}.({type(module).__name__})".removeprefix(".")


def call_model(function: Callable[[], Any]) -> Any:
    """Call it. The frame of this call is where looking for the user's code ends: what called `xray` is not meant."""
    return function()


_run_code = call_model.__code__


def _function_name(frame: FrameType) -> str | None:
    """Return the name of the custom function whose forward or backward this frame calls."""
    names = frame.f_locals
    function = names.get("cls") or getattr(names.get("self"), "_forward_cls", None)
    if not isinstance(function, type) or function.__module__ == "torch.utils.checkpoint":
        return None
    return function.__name__


@functools.lru_cache(maxsize=4096)
def _kind(file: str, function: str) -> _Kind:
    if file.startswith(_TORCH):
        mark = (file[len(_TORCH) + 1 :].replace("\\", "/"), function)
        return _MARKS.get(mark, "inside")
    return "user" if is_users(file) else "inside"
