"""Which of PyTorch's operators somebody means by "torch.softmax", "F.softmax", "@" or `nn.BCELoss`."""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

import torch

from amp_lab.autocast.kernels.dispatcher import overload

# How people write where a function is from, and how aten's name for such a function begins.
_PLACES: Final = {
    "torch.ops.aten.": "",
    "aten::": "",
    "aten.": "",
    "torch.nn.functional.": "",
    "nn.functional.": "",
    "F.": "",
    "torch.linalg.": "linalg_",
    "linalg.": "linalg_",
    "torch.fft.": "fft_",
    "torch.special.": "special_",
    "torch.Tensor.": "",
    "Tensor.": "",
    "torch.nn.": "",
    "nn.": "",
    "torch.": "",
}
_SYMBOLS: Final = {
    "@": "matmul",
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "**": "pow",
    "%": "remainder",
}
# Names in Python that do not lead to aten's by their spelling.
_OTHER_NAMES: Final = {
    "truediv": "div",
    "mod": "remainder",
    "getitem": "index",
    "setitem": "index_put_",
    "cross_entropy": "cross_entropy_loss",
    "bceloss": "binary_cross_entropy",
    "bcewithlogitsloss": "binary_cross_entropy_with_logits",
    "kldivloss": "kl_div",
    "batchnorm1d": "batch_norm",
    "batchnorm2d": "batch_norm",
    "batchnorm3d": "batch_norm",
    "embeddingbag": "embedding_bag",
}


def is_op(name: str) -> bool:
    """Whether aten has an operator or an overload of this name: "softmax", "softmax.int", "linear"."""
    plain, dot, _ = name.partition(".")
    return plain in aten_names() and (not dot or is_overload(name))


def is_overload(name: str) -> bool:
    """Whether this is the name of one overload, "softmax.int", "linear", and not of several, "softmax"."""
    return f"aten::{name}" in _every_name()


def overloads_named(name: str) -> list[str]:
    """All overloads of a plain name, the usual ones first; of an overload's name that one."""
    if "." in name:
        return [name]
    every = (each.removeprefix("aten::") for each in _every_name())
    found = [each for each in every if each.partition(".")[0] == name]
    unusual = re.compile("out|name", re.IGNORECASE)  # writes into a tensor, or takes the names of dimensions
    return sorted(
        found, key=lambda each: (bool(unusual.search(each)), each not in (name, f"{name}.Tensor"), each)
    )


def writes(op: str) -> bool:
    """Whether an overload ("addmm_", "mm.out") writes into a tensor that it is given."""
    return any(
        argument.alias_info is not None and argument.alias_info.is_write
        for argument in overload(op)._schema.arguments
    )


@cache
def aten_names() -> frozenset[str]:
    """The plain names of all operators of aten."""
    names = (name.removeprefix("aten::") for name in _every_name() if name.startswith("aten::"))
    return frozenset(name.partition(".")[0] for name in names)


@cache
def _every_name() -> frozenset[str]:
    # There is no public list of what the dispatcher holds.
    return frozenset(torch._C._dispatch_get_all_op_names())


def op_named(op: Any) -> str:
    """Return aten's name, plain or of one overload, for what somebody calls an operator.

    Args:
        op: a text ("softmax", "softmax.int", "torch.softmax", "F.softmax", "Tensor.softmax", "__matmul__", "@",
            "BCELoss"), a function (`torch.softmax`), a module or its class (`nn.BCELoss`), or an operator
            (`torch.ops.aten.softmax.int`).

    Raises:
        TypeError: if it is none of these.
        ValueError: if aten has no such operator; names those that are spelt nearly so.
    """
    written = _written(op)
    name = _SYMBOLS.get(written.strip(), written.strip())
    place = next((place for place in _PLACES if name.startswith(place)), None)
    if place is not None:
        name = _PLACES[place] + name.removeprefix(place)
    for spelling in _spellings(name):
        if is_op(spelling):
            return spelling
    raise ValueError(f"PyTorch has no operator {written!r}{_advice(name)}")


def overload_name(op: Any) -> str:
    """The name of an operator of `torch.ops`, as the dispatcher writes it: "aten::softmax.int"."""
    name: str = op.name()
    return name


def _written(op: Any) -> str:
    if isinstance(op, str):
        return op
    if isinstance(op, torch._ops.OpOverload):
        return overload_name(op)
    named = type(op) if isinstance(op, torch.nn.Module) else op
    name = getattr(named, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(
            f"name an operator as a text such as 'softmax', or give a function or module, not {op!r}"
        )
    return name


def _spellings(name: str) -> Iterable[str]:
    """Ways in which aten may write a name, the likeliest first."""
    yield name.removesuffix(".default")
    bare = re.fullmatch(r"__(\w+)__", name)
    if bare:  # __matmul__, __rmatmul__, __iadd__
        word = bare[1]
        yield _OTHER_NAMES.get(word, word)
        yield _OTHER_NAMES.get(word[1:], word[1:]) + ("_" if word[0] == "i" else "")
    yield _OTHER_NAMES.get(name.lower(), name)
    yield from _by_letters().get(name.replace("_", "").lower(), ())


@cache
def _by_letters() -> dict[str, tuple[str, ...]]:
    """aten's public names by their letters alone: LayerNorm and layer_norm are both layernorm."""
    found: dict[str, tuple[str, ...]] = {}
    for name in sorted(aten_names()):
        if not name.startswith("_") and not name.endswith("_"):
            letters = name.replace("_", "")
            found[letters] = (*found.get(letters, ()), name)
    return found


def _advice(name: str) -> str:
    plain, dot, _ = name.partition(".")
    if dot and is_op(plain):
        return f": did you mean {plain}, {', '.join(overloads_named(plain)[:4])}?"
    names = sorted(each for each in aten_names() if name.startswith("_") or not each.startswith("_"))
    close = get_close_matches(name.lower(), names, n=3, cutoff=0.75)
    if not close:
        return ". Name one such as 'softmax' or 'torch.matmul'; a function made of several has no name of its own"
    return f": did you mean {' or '.join(close)}?"
