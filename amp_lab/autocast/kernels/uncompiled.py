"""Functions that `torch.compile` neither compiles nor looks into."""

from collections.abc import Callable
from typing import Any, TypeVar

import torch

_Function = TypeVar("_Function", bound=Callable[..., Any])

_REASON = "amp_lab changes PyTorch's table of kernels here: put the with-block around the compiled call"


def uncompiled(function: _Function) -> _Function:
    """Keep the compiler out of a function and of all that it calls, as `torch.compiler.disable` does.

    That one is public, and imports the compiler, which takes seconds, when it decorates. These are the marks that it
    makes and reads; where a PyTorch has others, it is asked after all.
    """
    marks: Any = function
    api: Any = torch.compiler
    try:
        compiler = torch._C._dynamo.eval_frame
        skip = compiler._FrameAction.SKIP
        # This call of the function, and what is called in it.
        compiler.set_code_exec_strategy(marks.__code__, compiler._FrameExecStrategy(skip, skip))
    except AttributeError:
        disabled: _Function = api.disable(function, reason=_REASON)
        return disabled
    marks._torchdynamo_disable = True  # a function that is compiled ends its graph before it calls this one
    marks._torchdynamo_disable_msg = _REASON
    return function
