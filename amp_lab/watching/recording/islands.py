"""Parts of a model that switch autocast off, read from their code: what is compiled runs without a word to anybody."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import CodeType
from typing import Any

from torch import nn


def islands(model: nn.Module) -> Iterator[str]:
    """Yield the paths of modules with parameters to train whose forward calls `autocast(..., enabled=False)`."""
    for path, module in model.named_modules():
        trained = any(each.requires_grad for each in module.parameters())
        if trained and _switches_off(type(module).forward):
            yield path.removeprefix("_orig_mod").removeprefix(".")


def _switches_off(forward: Any) -> bool:
    code = getattr(inspect.unwrap(forward), "__code__", None)
    return isinstance(code, CodeType) and any(_says_so(each) for each in _with_inner(code))


def _says_so(code: CodeType) -> bool:
    """Whether a piece of code names autocast, `enabled` and False, as far as its names and constants tell."""
    keywords = (each for each in code.co_consts if isinstance(each, tuple))
    named = any("enabled" in each for each in keywords)
    return "autocast" in code.co_names and named and any(each is False for each in code.co_consts)


def _with_inner(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _with_inner(each)
