"""Exercise 7.9: in which batch, where and in which pass an overflow begins, and whether a loss scale cures it."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import NUMPY_FLOATS, NUMPY_INTEGERS, describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l07.faulty import Batch, Patient, batches, squared_error
from amp_lab.course.lessons.l07.untouched import first_change
from amp_lab.watching.overflow import find_overflow

LARGEST, SMALLEST = 16, -24  # exponents of the loss scales that count
_LARGEST_FLOAT = 127  # exponent of the largest power of two in FP32, in which the loss is scaled


class NoPath(NamedTuple):
    """What was said instead of a module's path, in words: it is of a type that no path has."""

    words: str


class Place(NamedTuple):
    """What is asked for, and in this order."""

    number: int
    module: str | NoPath
    phase: str | None  # None is said of a batch that is finite, and then it is the batch that is wrong
    scale: float | None


class Case(NamedTuple):
    """A network and its batches, in the words of `faulty`, and where it breaks; None if it does not."""

    layers: tuple[str, ...]
    kinds: str
    seed: int
    want: Place | None

    def model(self) -> Patient:
        return Patient(self.layers, self.seed)

    def batches(self) -> list[Batch]:
        return batches(self.kinds, self.seed)

    @property
    def words(self) -> str:
        made = f"`Patient({self.layers!r}, {self.seed})` and `batches({self.kinds!r}, {self.seed})`"
        return f"`where_it_breaks` with {made}"


# No two agree in more than they must: neither a name, nor the kind of a layer, nor one scale gives all of them.
CASES = (
    Case(("", "attn", "wide norm"), ".mst", 1, Place(2, "layers.1.attn", "forward", None)),
    Case(("wide", "", "attn"), "m.ts", 5, Place(2, "layers.0.ffn.down", "backward", 2.0**-2)),
    Case(("norm", "attn", "wide norm"), "pt", 2, Place(0, "layers.2.norm", "backward", None)),
    Case(("attn", "", "wide"), ".m", 1, None),
    Case(("", "attn", "wide"), "t.s", 124, Place(0, "layers.2.ffn.down", "backward", 2.0**-3)),
    Case(("wide", "attn", ""), "ps", 3, Place(1, "layers.0.ffn.up", "forward", None)),
)


@checker("7.9")
def where_it_breaks(ask: Ask) -> None:
    """Ask for each network, and hold what is said against where it really begins."""
    with _one_thread():
        _get_ready()
        for case in CASES:
            _judge(ask, case)


@functools.cache
def _get_ready() -> None:
    """Search once in a process: the first time loads much and asks what the machine can do, in the answer's time."""
    find_overflow(Patient(), squared_error, batches(".")[0], device_type="cuda")


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute in one thread: with tensors this small, several only wait for each other, and on a busy machine long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _judge(ask: Ask, case: Case) -> None:
    """Ask for one network, and raise the `Mistake` that explains what was said of it, if it is wrong."""
    ask.in_words = lambda *_: case.words
    model = case.model()
    got = ask(model, squared_error, case.batches())
    change = first_change(model, case.model())
    if change is not None:
        raise Mistake("model-changed", call=ask.call, got=change)
    said = _read(ask.call, got, len(case.kinds))
    if said != case.want:
        _explain(ask.call, case, said)


def _read(call: str, got: Any, count: int) -> Place | None:
    """Return what was said, if it has the form that was asked for: in plain types, never in a learner's own."""
    if got is None:
        return None
    if not issubclass(type(got), tuple):
        advice = "Write `return number, module, phase, scale`."
        words = {"got": describe(got), "kind": kind(got), "want": "a tuple of four", "advice": advice}
        raise Mistake("wrong-type", call=call, **words)
    said = tuple(tuple.__iter__(got))
    if len(said) != len(Place._fields):
        raise Mistake("not-four", call=call, got=describe(said), length=len(said))
    number, module, phase, scale = said
    if not (type(number) is int or type(number) in NUMPY_INTEGERS) or not 0 <= number < count:
        raise Mistake("no-such-batch", call=call, got=f"`{describe(number)}`", last=count - 1)
    if phase is not None and (type(phase) is not str or phase not in ("forward", "backward")):
        raise Mistake("no-such-phase", call=call, got=f"`{describe(phase)}`")
    if scale is not None and not _is_a_power(scale):
        raise Mistake("no-such-scale", call=call, got=f"`{describe(scale)}`")
    path = module if type(module) is str else NoPath(describe(module))
    return Place(int(number), path, phase, None if scale is None else float(scale))


def _is_a_power(scale: Any) -> bool:
    """Return whether this is a number of Python or NumPy, and a power of two that a loss can be multiplied with."""
    if type(scale) in NUMPY_INTEGERS:
        scale = int(scale)
    elif type(scale) in NUMPY_FLOATS:
        scale = float(scale)  # as FP16 it could not even be compared with the largest
    if type(scale) not in (int, float):
        return False
    return 0 < scale <= 2.0**_LARGEST_FLOAT and math.frexp(scale)[0] == 0.5


def _explain(call: str, case: Case, said: Place | None) -> None:
    """Raise the `Mistake` that explains the first part that is wrong: batch, phase, module, scale."""
    want = case.want
    if said is None:
        assert want is not None
        raise Mistake("passes-over", call=call, got="`None`", number=want.number, phase=want.phase)
    if want is None or said.number != want.number:
        raise _other_batch(call, case, said.number)
    if said.phase is None:
        raise Mistake("no-such-phase", call=call, got="`None`")
    seen = {"call": call, "number": want.number}
    if said.phase != want.phase:
        got, loss = f"`{said.phase!r}`", _run(case, want.number, 1.0)[0]
        raise Mistake("other-phase", **seen, got=got, loss=f"{loss:.4g}", want=f"`{want.phase!r}`")
    if said.module != want.module:
        raise _other_module(seen, case, said, want)
    raise _other_scale(seen, case, said, want)


def _other_batch(call: str, case: Case, index: int) -> Mistake:
    cure, want = largest_cure(case, index), case.want
    if cure is not None and cure >= 1:
        diagnosis = "blames-healthy" if cure == 2.0**LARGEST else "stops-at-scale"
        return Mistake(diagnosis, call=call, got=str(index), cure=_power(cure))
    assert want is not None  # without one, each batch has a scale of 1 or more
    seen = {"call": call, "got": str(index), "want": str(want.number), "phase": want.phase}
    loss, earlier = _run(case, index, 1.0)[0], _run(case, want.number, 1.0)[0]
    if math.isfinite(earlier) and not math.isfinite(loss):
        return Mistake("looks-at-loss", **seen, loss=f"{loss:.4g}", earlier=f"{earlier:.4g}")
    return Mistake("later-batch", **seen)


def _other_module(seen: dict[str, Any], case: Case, said: Place, want: Place) -> Mistake:
    """Return what is wrong with a module; the right one is not told, only where the one that was named stands."""
    got = said.module.words if isinstance(said.module, NoPath) else f"`{said.module!r}`"
    if said.module not in dict(case.model().named_modules()):
        return Mistake("no-such-module", **seen, got=got, example=f"`{'layers.0.ffn'!r}`")
    if want.phase == "forward" and said.module == first_to_end(case, want.number):
        return Mistake("first-to-end", **seen, got=got)
    bad = _owners(case, want.number, 1.0)
    if want.phase == "backward" and said.module in bad:
        return Mistake("first-bad-gradient", **seen, got=got, count=len(bad))
    if want.scale is not None and said.module in ("", *_owners(case, want.number, 2.0**LARGEST)):
        return Mistake("only-when-scaled", **seen, got=got)
    if f"{want.module}.".startswith(f"{said.module}." if said.module else ""):
        return Mistake("outer-module", **seen, got=got)
    return Mistake("other-module", **seen, got=got)


def _other_scale(seen: dict[str, Any], case: Case, said: Place, want: Place) -> Mistake:
    if said.scale is None:
        return Mistake("gives-up", **seen, got="`None`")
    got = _power(said.scale)
    loss, bad = _run(case, want.number, said.scale)
    count = len(bad)
    if want.scale is None:
        diagnosis = "no-cure-forward" if want.phase == "forward" else "no-cure-backward"
        return Mistake(diagnosis, **seen, got=got, loss=f"{loss:.4g}", count=count)
    if count:
        return Mistake("too-large", **seen, got=got, count=count)
    return Mistake("not-largest", **seen, got=got)


def _power(scale: float) -> str:
    return f"2^{math.log2(scale):.0f}"


def _run(case: Case, index: int, scale: float) -> tuple[float, list[str]]:
    """Return the loss of a batch, and the names of the parameters whose gradients are not finite at this scale."""
    model, (inputs, targets) = case.model(), case.batches()[index]
    with torch.autocast("cpu", torch.float16):
        loss = squared_error(model(inputs), targets)
    grads = torch.autograd.grad(scale * loss, [*model.parameters()])
    named = zip(model.named_parameters(), grads, strict=True)
    return float(loss.detach()), [name for (name, _), grad in named if not grad.isfinite().all()]


def _owners(case: Case, index: int, scale: float) -> list[str]:
    """Return the modules of the parameters whose gradients are not finite, one for each of these parameters."""
    return [name.rpartition(".")[0] for name in _run(case, index, scale)[1]]


def largest_cure(case: Case, index: int) -> float | None:
    """Return the largest power of two, from 2^16 to 2^-24, at which loss and gradients are finite; None if none is."""
    for exponent in range(LARGEST, SMALLEST - 1, -1):
        loss, bad = _run(case, index, 2.0**exponent)
        if not math.isfinite(loss):
            return None
        if not bad:
            return 2.0**exponent
    return None


def first_to_end(case: Case, index: int) -> str | None:
    """Return the module that a forward hook finds: the first to end with a result that is not finite."""
    model, found = case.model(), list[str]()
    for name, module in model.named_modules():

        def look(_: nn.Module, __: Any, result: torch.Tensor, name: str = name) -> None:
            if not result.isfinite().all():
                found.append(name)

        module.register_forward_hook(look)
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        model(case.batches()[index][0])
    return found[0] if found else None
