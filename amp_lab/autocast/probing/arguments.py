"""Arguments made up from an operator's schema: enough to call it, not enough for a sensible result."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import torch

# One value of each type that occurs; the types are written as a schema writes them.
_SIMPLE: Final[dict[str, Any]] = {
    "int": 1,
    "float": 1.0,
    "number": 1,
    "bool": False,
    "str": "ij,jk->ik",  # einsum's; where another text is needed, the casts come first all the same
    "List[int]": [1],
}
_SHAPE: Final = (3, 3)


class MissingValue(Exception):
    """There is no made-up value for an argument."""


class Arguments(NamedTuple):
    """What an operator is called with; `tensors` are the floating-point ones among it."""

    positional: list[Any]
    keywords: dict[str, Any]
    tensors: list[torch.Tensor]


def make_arguments(
    schema: Any, dtypes: Sequence[torch.dtype], device: str, given: Mapping[str, Any] = MappingProxyType({})
) -> Arguments:
    """Make arguments for an operator of this schema.

    Args:
        schema: a `torch.FunctionSchema`.
        dtypes: of the floating-point tensors, one after another, and again from the start.
        device: on which the tensors lie. Call this under a FakeTensorMode where there is no such device.
        given: values of arguments, by name, that are not made up.

    Raises:
        MissingValue: if an argument's type is one that nothing can be made up for.
    """
    made = Arguments([], {}, [])
    source = _tensors(cycle(dtypes), device, made.tensors)
    for argument in schema.arguments:
        name = argument.name
        value = given[name] if name in given else _value(argument, source, device)
        if argument.kwarg_only:
            made.keywords[name] = value
        else:
            made.positional.append(value)
    return made


def _tensors(dtypes: Iterator[torch.dtype], device: str, made: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    for dtype in dtypes:
        made.append(torch.empty(_SHAPE, dtype=dtype, device=device))
        yield made[-1]


def _value(argument: Any, tensors: Iterator[torch.Tensor], device: str) -> Any:
    kind = str(argument.type)
    if kind == "Tensor":
        return _index(device) if argument.name == "index" else next(tensors)
    if kind == "List[Tensor]":
        return [next(tensors), next(tensors)]
    if kind == "List[Optional[Tensor]]":  # the indices of index_put
        return [_index(device)]
    if kind in ("str", "List[str]") and argument.name == "dim":
        raise MissingValue("it takes the names of dimensions, and fake tensors have none")
    if argument.has_default_value():
        return argument.default_value
    if kind.startswith("Optional["):
        return None
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    raise MissingValue(f"no value can be made up for its argument {argument.name} of type {kind}")


def _index(device: str) -> torch.Tensor:
    return torch.zeros(_SHAPE[0], dtype=torch.int64, device=device)
