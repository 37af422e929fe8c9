"""Would PyTorch refuse to compute with these dtypes?

A fake tensor has a dtype and no numbers, and PyTorch's fake kernels do not compare dtypes: FP16 times FP32 passes in
fake mode, and raises an error on real tensors. `refusal` asks the real operator, with tensors of a few numbers. It is
made to be called for every operator of a model: most calls have nothing to ask, and answers are kept.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final

import torch

from amp_lab.autocast.recording.small_arguments import LARGEST_HALF, Call, Small

# Sizes are cut to the first of these, so that asking takes no time. Where that makes them unfit for each other (as the
# groups and the channels of a convolution), they are cut otherwise.
_MOST: Final = (8, 1)
_KEPT: Final = 10_000  # answers
_ABOUT_DTYPES: Final = re.compile("type|overflow", re.IGNORECASE)
# Only autograd and other operators call these, with what a forward pass kept for them; some trust it blindly, and
# crash the process if it is made up.
_NOT_ASKED: Final = re.compile(r"_backward$|^_?(mkldnn|cudnn|miopen|thnn)_")

# What is kept of an error: its traceback would keep tensors alive.
_Error = tuple[type[Exception], str]
_answers: dict[Hashable, _Error | None] = {}


def refusal(
    func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None
) -> Exception | None:
    """Return the error with which the operator would refuse the dtypes of these arguments, or None.

    Of tensors only dtype and shape are looked at, so they may be fake. The operator itself is called, with small CPU
    tensors in their place, in a thread of its own: there, no mode, no autocast and no autograd of the caller is at
    work. It is called only if there is something to ask: tensors of several dtypes (`mm` of FP16 and FP32), or a number
    beyond the range of FP16 (`masked_fill` with -1e9). And only once for each combination of dtypes and small shapes.

    It is a refusal if the same call with one dtype throughout, and with small numbers, works. So a call that fails for
    its shapes is none, and neither is one that fails since the CPU has no kernel for a dtype ("not implemented for
    'Half'"), because a GPU may have one. It is the CPU's operator that is asked: it does not know where a GPU's is
    stricter. Not known either: what numbers are inside tensors, operators outside of aten, and those with sparse,
    nested or quantized tensors.

        >>> refusal(torch.ops.aten.mm.default, (torch.ones(2, 2).half(), torch.ones(2, 2)))
        RuntimeError('expected m1 and m2 to have the same dtype, but got: c10::Half != float')

    Args:
        func: an overload, such as `torch.ops.aten.mm.default`.
        args: its arguments, as a TorchDispatchMode is given them.
        kwargs: its keyword arguments.
    """
    kwargs = kwargs or {}
    if not _worth_asking(args, kwargs) or func.namespace != "aten" or _NOT_ASKED.search(func._opname):
        return None
    try:
        error = _answer(func, args, kwargs)
        return None if error is None else _again(error)
    except Exception:  # an argument that no small one can stand for: nothing is known
        return None


def _worth_asking(args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether there are tensors of several dtypes, or a number beyond FP16's range. Made to be quick."""
    first: torch.dtype | None = None
    large = False
    for value in (*args, *kwargs.values()) if kwargs else args:
        kind = type(value)
        if kind is int or kind is float:
            large = large or not -LARGEST_HALF <= value <= LARGEST_HALF
            continue
        for each in value if kind is list or kind is tuple else (value,):
            if isinstance(each, torch.Tensor) and each.dtype is not first and each.dtype is not torch.bool:
                if first is not None:
                    return True
                first = each.dtype
    return large


def _answer(func: torch._ops.OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Error | None:
    small = Small(func, args, kwargs, _MOST[0])
    if not small.is_suspicious:
        return None
    if small.signature not in _answers:
        if len(_answers) >= _KEPT:
            _answers.clear()
        calls = [small, *(Small(func, args, kwargs, most) for most in _MOST[1:])]
        _answers[small.signature] = _in_another_thread(lambda: _asked(func, calls))
    return _answers[small.signature]


def _in_another_thread(ask: Callable[[], _Error | None]) -> _Error | None:
    """Modes, autocast, autograd's switches and the default device belong to a thread: a new one has none of them."""
    answers: list[_Error | None] = []

    def run() -> None:
        state = torch.get_rng_state()  # random numbers belong to all threads
        with contextlib.suppress(Exception):  # an argument that cannot be made
            answers.append(ask())
        torch.set_rng_state(state)

    thread = threading.Thread(target=run, name="amp_lab: would it be refused?")
    thread.start()
    thread.join()
    return answers[0] if answers else None


def _asked(func: torch._ops.OpOverload, calls: Iterable[Small]) -> _Error | None:
    for small in calls:
        error = _error(func, small.arguments())
        if error is None:
            return None
        controls = [_error(func, call) for call in small.harmless()]
        # If one dtype alone gives the same error, the mixture is not to blame. If none works, the sizes may be.
        if error not in controls and (None in controls or _ABOUT_DTYPES.search(error[1])):
            return error
        if None in controls:
            return None
    return None


def _error(func: torch._ops.OpOverload, call: Call) -> _Error | None:
    args, kwargs = call
    try:
        func(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    return None


def _again(error: _Error) -> Exception:
    kind, message = error
    return kind(message)
