"""All that makes up a run, for exercise 7.7: what its four objects hold, bit for bit, and what they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging.describe import describe


class Whole(NamedTuple):
    """Values by part and name. Parts come in the order in which a difference is told."""

    parts: dict[str, dict[str, Any]]
    scaler: dict[str, dict[str, Any]]  # its scale, and the rest


def whole(net: torch.nn.Module, optimizer: torch.optim.Optimizer, scheduler: Any, scaler: Any) -> Whole:
    """Return copies of all that the four objects of a run hold."""
    own = {id(each) for each in net.parameters()}
    held = {id(each) for group in optimizer.param_groups for each in group["params"]}
    of_model = "the model's" if own == held else "another one"
    objects: dict[str, Any] = {"the optimizer's list of parameters": of_model}
    objects |= {f"`{_dotted('model', name)}.training`": each.training for name, each in net.named_modules()}
    objects |= {f"`{name}.requires_grad`": each.requires_grad for name, each in net.named_parameters()}
    objects |= {f"`{name}.dtype`": each.dtype for name, each in net.state_dict().items()}
    # With parameters that are not the model's own it has no state that could be compared, and raises perhaps.
    state = optimizer.state_dict() if own == held else {"state": {}, "param_groups": []}
    names = [name for name, _ in net.named_parameters()]
    momenta = dict(_flat("", {names[key]: kept for key, kept in state["state"].items()}))
    rest = {
        name: value
        for name, value in _flat("param_groups", state["param_groups"])
        if not name.endswith("['lr']")
    }
    saved = scaler.state_dict()
    return Whole(
        {
            "objects": objects,
            "model": {f"`model.{name}`": _copy(each) for name, each in net.state_dict().items()},
            "optimizer": {f"`optimizer.{name}`": value for name, value in (momenta | rest).items()},
            "learning rate": {"the learning rate": [float(group["lr"]) for group in optimizer.param_groups]},
            "scheduler": {f"`scheduler.{name}`": value for name, value in _flat("", scheduler.state_dict())},
        },
        {
            "scale": {"the scale": float(scaler.get_scale())},
            "scaler": {
                f"the scaler's {_NAMES.get(name, f'`{name}`')}": value for name, value in saved.items()
            },
        },
    )


_NAMES = {"_growth_tracker": "count of clean steps"}


def _dotted(*names: str) -> str:
    return ".".join(filter(None, names))


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(f"{name}[{key!r}]" if name else str(key), each)
    elif isinstance(value, list | tuple):
        yield f"len({name})", len(value)
        for number, each in enumerate(value):
            yield from _flat(f"{name}[{number}]", each)
    else:
        yield name, _copy(value)


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def difference(got: Whole, want: Whole) -> tuple[str, dict[str, str]] | None:
    """Return the first thing that is not the same, bit for bit: its part, and `place`, `got` and `want` in words."""
    mine, right = got.parts | got.scaler, want.parts | want.scaler
    for part, values in right.items():
        for name in values | mine[part]:
            found = differs(name, mine[part].get(name, _Missing), values.get(name, _Missing))
            if found is not None:
                return part, found
    return None


class _Missing:
    """In place of a value that is not there."""


def differs(name: str, got: Any, want: Any) -> dict[str, str] | None:
    """Return `place`, `got` and `want` in words, unless two values are the same; NaN is the same as NaN."""
    if got is _Missing or want is _Missing:
        there = {True: "not there", False: "there"}
        return {"place": name, "got": there[got is _Missing], "want": there[want is _Missing]}
    if not (isinstance(got, torch.Tensor) and isinstance(want, torch.Tensor)):
        same = type(got) is type(want) and (got == want)
        return None if same else {"place": name, "got": _words(got), "want": _words(want)}
    if got.dtype != want.dtype or got.shape != want.shape:
        return {"place": name, "got": describe(got), "want": describe(want)}
    far = (got != want) & ~(got.isnan() & want.isnan())
    if not far.any():
        return None
    index = tuple(far.nonzero()[0].tolist())
    place = f"{name.rstrip('`')}[{', '.join(map(str, index))}]`" if index else name
    return {"place": place, "got": f"{float(got[index]):.8g}", "want": f"{float(want[index]):.8g}"}


def _words(value: Any) -> str:
    if isinstance(value, list) and len(value) == 1:
        return _words(value[0])
    if isinstance(value, str):
        return value
    return f"{value:g}" if isinstance(value, float) else describe(value)
