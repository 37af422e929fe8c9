"""What somebody gives instead of an operator's name, a function or a module, and by which names it may be known."""

import functools
import reprlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Final

import torch
from torch import nn

_LINE: Final = reprlib.Repr()
_LINE.maxstring = _LINE.maxother = 60

# Where Python's functions for its operators come from, which call PyTorch's.
_OPERATOR: Final = "_operator"


def names_of(thing: Any) -> Iterator[str]:
    """Yield the names by which aten may know a thing, the likeliest first; nothing if it is not PyTorch's.

    Raises:
        TypeError: if it is no text, function, module, class of modules or operator.
    """
    thing = _bare(thing)
    if isinstance(thing, str):
        yield thing
        yield from _names_of_class(getattr(nn, thing.rpartition(".")[2], None))
    elif isinstance(thing, nn.Module):
        yield from _names_of_kind(thing)
        yield from _names_of_class(type(thing))
    elif isinstance(thing, type) and issubclass(thing, nn.Module):
        yield from _names_of_class(thing)
    elif isinstance(thing, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        yield overload_name(thing)
    elif _is_pytorchs(thing):
        yield thing.__name__
        if thing.__name__ == "forward":  # a function of a class, as nn.Conv2d.forward
            yield from _names_of_class(getattr(nn, thing.__qualname__.partition(".")[0], None))


def overload_name(op: Any) -> str:
    """The name of an operator of `torch.ops`, as the dispatcher writes it: "aten::softmax.int", "aten::softmax"."""
    packet = isinstance(op, torch._ops.OpOverloadPacket)
    name: str = op._qualified_op_name if packet else op.name()
    return name


def in_words(thing: Any) -> str:
    """What is called a thing in an error: not longer than a line, however long it is itself."""
    thing = _bare(thing)
    if isinstance(thing, str):
        return shortened(thing)
    if isinstance(thing, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return overload_name(thing)
    kind = type(thing) if isinstance(thing, nn.Module) else thing
    place = (getattr(kind, "__module__", None) or "").partition(".")[0]
    name = getattr(kind, "__qualname__", None) or getattr(kind, "__name__", None) or str(kind)
    owner = {"": "", "torch": "", "__main__": "", "builtins": "Python's "}.get(place, f"{place}'s ")
    return owner + shortened(name).strip("'\"")


def is_composite(thing: Any) -> bool:
    """Whether it is a module, or a Python function of PyTorch's, or such a one's name: what calls operators."""
    thing = _bare(thing)
    if isinstance(thing, str):
        place, _, name = thing.rpartition(".")
        places = {"": (nn, nn.functional), "F": (nn.functional,), "functional": (nn.functional,), "nn": (nn,)}
        found = [getattr(each, name, None) for each in places.get(place.rpartition(".")[2], ())]
        return any(_is_module(each) or _is_written_in_python(each) for each in found)
    return _is_module(thing) or (_is_pytorchs(thing) and _is_written_in_python(thing))


def shortened(thing: Any) -> str:
    """Its `repr`, or the two ends of a long one."""
    return _LINE.repr(thing)


def _bare(thing: Any) -> Any:
    """A thing without what is wrapped around it: partial arguments, torch.compile, a module's `forward`."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    owner = getattr(thing, "__self__", None)
    if isinstance(owner, nn.Module) and thing.__name__ in ("forward", "__call__", "_wrapped_call_impl"):
        thing = owner
    while isinstance(thing, nn.Module) and "_orig_mod" in thing._modules:
        thing = thing._modules["_orig_mod"]
    named = isinstance(getattr(thing, "__name__", None), str) and not isinstance(thing, ModuleType)
    if not (named or isinstance(thing, str | nn.Module)):
        raise TypeError(
            "name an operator as a text such as 'softmax', or give a function or module, not "
            f"{shortened(thing)}"
        )
    return thing


def _names_of_kind(module: nn.Module) -> Iterator[str]:
    """The operator of a recurrent network that has one for each nonlinearity."""
    if isinstance(module, nn.RNN):
        yield module.mode.lower()  # RNN_RELU
    if isinstance(module, nn.RNNCell):
        yield f"rnn_{module.nonlinearity}_cell"


def _names_of_class(kind: Any) -> Iterator[str]:
    """The classes of PyTorch's that a class of modules is made from, as long as it computes what they do."""
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        return
    for base in kind.__mro__[: kind.__mro__.index(nn.Module)]:
        if base.__module__.startswith("torch.nn.") and getattr(base, "forward", None) is kind.forward:
            yield base.__name__


def _is_pytorchs(thing: Any) -> bool:
    """Whether a function belongs to PyTorch, or is Python's for one of its operators, such as `operator.matmul`."""
    owner = getattr(thing, "__objclass__", None) or type(getattr(thing, "__self__", None))
    place = getattr(thing, "__module__", None) or owner.__module__
    return place.partition(".")[0] in ("torch", _OPERATOR)


def _is_module(thing: Any) -> bool:
    return isinstance(thing, nn.Module) or (isinstance(thing, type) and issubclass(thing, nn.Module))


def _is_written_in_python(thing: Any) -> bool:
    return hasattr(thing, "__code__")
