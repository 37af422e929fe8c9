"""The TorchFunctionMode through which a look sees calls."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode

from amp_lab.watching.recording.looks import stack
from amp_lab.watching.recording.looks.calls import Call
from amp_lab.watching.recording.patches import Patches


class Listener(Protocol):
    """Who is told of calls. It does not raise."""

    def begins(self, call: Call) -> None: ...

    def ends(self, call: Call) -> None: ...

    def fails(self, call: Call) -> None: ...


class CallMode(TorchFunctionMode):
    """Tells of each call that the user's code or a module makes. `awake`: if not, it hands calls on untouched.

    `calls` counts those that it is just handing on; meanwhile PyTorch has taken it off its stack. `over`: it was to be
    taken out by another thread, which cannot do that.
    """

    def __init__(self, listener: Listener):
        super().__init__()
        self._listener = listener
        self.awake, self.over, self.calls = True, False, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not self.awake or _others_at_work():
            try:
                return func(*args, **kwargs)
            finally:
                if self.over:
                    self._leave()
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

    def _leave(self) -> None:
        """Leave this thread's stack, as soon as PyTorch, after this call, has put the mode on it again.

        Only a profiler is called by then in this thread. One of the user's is not disturbed: a later call will do.
        """
        if sys.getprofile() is None:
            sys.setprofile(self._take_out)

    def _take_out(self, *_: object) -> None:
        if stack.is_on(self):
            sys.setprofile(None)
            stack.take_out(self)

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
        thread, patches = threading.get_ident(), Patches()

        def run(call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != thread:
                return call(*args, **kwargs)
            with self:
                return call(*args, **kwargs)

        try:
            patches.put_around(torch.autograd, "_engine_run_backward", run)
            yield
        finally:
            patches.undo()


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
