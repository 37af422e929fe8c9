"""The TorchFunctionMode through which a look sees calls."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from amp_lab.watching.recording.looks.calls import Call


class Listener(Protocol):
    """Who is told of calls. It does not raise."""

    def begins(self, call: Call) -> None: ...

    def ends(self, call: Call) -> None: ...

    def fails(self, call: Call) -> None: ...


class CallMode(TorchFunctionMode):
    """Tells of each call that the user's code or a module makes. `awake`: if not, it hands calls on untouched.

    `calls` counts those that it is just handing on; meanwhile PyTorch has taken it off its stack.
    """

    def __init__(self, listener: Listener):
        super().__init__()
        self._listener = listener
        self.awake, self.calls = True, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.awake or _others_at_work():
            return func(*args, **kwargs)
        self.calls += 1
        try:
            if getattr(func, "__name__", "") == "backward":
                with self._on_in_the_engine():
                    return func(*args, **kwargs)
            call = Call(func, args, kwargs, sys._getframe(1))
            if call.origin == "torch":
                return func(*args, **kwargs)
            return self._tell(func, call)
        finally:
            self.calls -= 1

    def _tell(self, func: Callable[..., Any], call: Call) -> Any:
        self._listener.begins(call)
        try:
            call.result = func(*call.args, **call.kwargs)
        except BaseException:
            self._listener.fails(call)
            raise
        self._listener.ends(call)
        return call.result

    @contextlib.contextmanager
    def _on_in_the_engine(self) -> Iterator[None]:
        """Switch the mode on again for the hooks on gradients that a backward pass calls.

        PyTorch takes a mode off while it hands on a call, here that of backward. The function replaced for its time is
        private; a hook of our own would have to be registered with each tensor.
        """
        original, thread = torch.autograd._engine_run_backward, threading.get_ident()  # type: ignore[attr-defined]

        def run(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return original(*args, **kwargs)
            with self:
                return original(*args, **kwargs)

        torch.autograd._engine_run_backward = run  # type: ignore[attr-defined]
        try:
            yield
        finally:
            torch.autograd._engine_run_backward = original  # type: ignore[attr-defined]


def _others_at_work() -> bool:
    """Return whether other machinery would see what a look does: compilers, tracers, dispatch modes.

    Most of it has to be asked of private functions.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
        or (
            torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
            and torch.cuda.is_current_stream_capturing()
        )
    )
