"""Which of PyTorch's operators somebody means by "torch.softmax", "F.softmax", "@" or `nn.BCELoss`."""

import re
from collections.abc import Container, Iterable
from difflib import get_close_matches
from functools import cache
from typing import Any, Final

import torch

from amp_lab.autocast.kernels.dispatcher import overload
from amp_lab.autocast.probing.things import in_words, is_composite, names_of

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
    "special.": "special_",
    "torch.Tensor.": "",
    "Tensor.": "",
    "torch.nn.": "",
    "nn.": "",
    "torch.": "",
}
_SYMBOLS: Final = {
    "@": "matmul",
    "@=": "matmul",  # there is none in place
    "+": "add",
    "-": "sub",
    "*": "mul",
    "/": "div",
    "//": "floor_divide",
    "**": "pow",
    "%": "remainder",
    "+=": "add_",
    "-=": "sub_",
    "*=": "mul_",
    "/=": "div_",
    "//=": "floor_divide_",
    "**=": "pow_",
    "%=": "remainder_",
    "==": "eq",
    "!=": "ne",
    "<": "lt",
    "<=": "le",
    ">": "gt",
    ">=": "ge",
    "~": "bitwise_not",
    "&": "bitwise_and",
    "|": "bitwise_or",
    "^": "bitwise_xor",
    "[]": "index",
}
# Names in Python that do not lead to aten's by their spelling.
_OTHER_NAMES: Final = {
    "truediv": "div",
    "floordiv": "floor_divide",
    "mod": "remainder",
    "invert": "bitwise_not",
    "inv": "bitwise_not",
    "and_": "bitwise_and",
    "or_": "bitwise_or",
    "pos": "positive",
    "getitem": "index",
    "setitem": "index_put_",
    "half": "to",
    "bfloat16": "to",
    "float": "to",
    "double": "to",
    "grid_sample": "grid_sampler",
    "affine_grid": "affine_grid_generator",
    "cross_entropy": "cross_entropy_loss",
    "bceloss": "binary_cross_entropy",
    "bcewithlogitsloss": "binary_cross_entropy_with_logits",
    "kldivloss": "kl_div",
    "batchnorm1d": "batch_norm",
    "batchnorm2d": "batch_norm",
    "batchnorm3d": "batch_norm",
    "instancenorm1d": "instance_norm",
    "instancenorm2d": "instance_norm",
    "instancenorm3d": "instance_norm",
    "embeddingbag": "embedding_bag",
    "softmax2d": "softmax",
    "unfold": "im2col",
    "fold": "col2im",
    "rnn": "rnn_tanh",  # unless its nonlinearity is another
    "rnncell": "rnn_tanh_cell",
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
            (`torch.ops.aten.softmax.int`). A module may be compiled, be parametrized, or inherit its `forward`.

    Raises:
        TypeError: if it is none of these.
        ValueError: if aten has no such operator; names those that are spelt nearly so.
    """
    for written in names_of(op):
        for spelling in _spellings(_without_place(written)):
            if is_op(spelling):
                return spelling
    raise ValueError(_no_operator(op))


def foreign_name(op: Any, known_besides: Container[str] = ()) -> str | None:
    """The name of another library's operator ("torchvision::nms", `torch.ops.prim.device`); None for any other thing.

    Raises:
        ValueError: if it has such a name, and PyTorch knows no such operator.
    """
    name = next(names_of(op), "")
    if "::" not in name or name.startswith("aten::"):
        return None
    if name in known_besides:
        return name
    # Some ("prim::device") are known to TorchScript alone, and there is no public list of those either.
    known = torch._C._jit_get_schemas_for_operator(name.partition(".")[0])
    if not any(name in (each.name, f"{each.name}.{each.overload_name or 'default'}") for each in known):
        raise ValueError(
            f"PyTorch knows no operator {in_words(op)}: import the library that brings it, first"
        )
    return name


def _without_place(written: str) -> str:
    name = written.strip()
    name = _SYMBOLS.get(name, name.removesuffix("()"))
    place = next((place for place in _PLACES if name.startswith(place)), None)
    return name if place is None else _PLACES[place] + name.removeprefix(place)


def _spellings(name: str) -> Iterable[str]:
    """Ways in which aten may write a name, the likeliest first."""
    yield name
    if is_overload(usual := name.removesuffix(".default")):
        yield usual
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


def _no_operator(op: Any) -> str:
    """What is wrong with something that is no operator's name, and what to do instead."""
    called = in_words(op)
    if is_composite(op):
        return (
            f"{called} is no single operator: it is Python code that may call several, and each meets its own fate. "
            "Make an x-ray, `print(xray(model, *inputs))`, to see which"
        )
    written = next(names_of(op), None)
    if written is None:
        return f"{called} is none of PyTorch's functions. Name one such as 'softmax' or torch.matmul"
    if "::" in written and not written.startswith("aten::"):
        return (
            f"{called} belongs to another library: only PyTorch's own operators, those of aten, can be asked"
        )
    return f"PyTorch has no operator {called}{_advice(_without_place(written))}"


def _advice(name: str) -> str:
    plain, dot, _ = name.partition(".")
    if dot and is_op(plain):
        overloads = dict.fromkeys([plain, *overloads_named(plain)])
        return f": did you mean {', '.join([*overloads][:4])}?"
    close = get_close_matches(name.lower(), _worth_a_hint(name), n=3, cutoff=0.75)
    if not close:
        return ". Name one such as 'softmax' or 'torch.matmul'; a function made of several has no name of its own"
    return f": did you mean {' or '.join(close)}?"


def _worth_a_hint(name: str) -> list[str]:
    """Names to compare a wrong one with: no very short ones, and those that begin or end with _ only if it does."""
    return sorted(
        each
        for each in aten_names()
        if len(each) > 2
        and name.startswith("_") >= each.startswith("_")
        and name.endswith("_") >= each.endswith("_")
    )
