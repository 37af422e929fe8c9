"""Ask PyTorch's own autocast kernels what they do.

An *autocast kernel* is the function that stands in PyTorch's dispatcher for an operator under autocast. It casts
the operator's arguments, switches autocast off for the call, and calls the operator again. So it can be watched:
call the operator with made-up arguments, once under autocast and once without as a control, and stop at the first
thing it does that is not a cast. What only the first call did is autocast's doing.

The tensors are fake: a shape, a dtype and a device, with no memory behind them. So a machine without a GPU has
CUDA's kernels asked, too.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.kernels.dispatcher import overload
from amp_lab.autocast.probing.apart import apart
from amp_lab.autocast.probing.arguments import Arguments, MissingValue, make_arguments
from amp_lab.autocast.recording.refusals import refusal

Cast = tuple[torch.dtype, torch.dtype]  # from, to
Call = Callable[[], Arguments]

LOWER: Final = torch.float16  # autocast's dtype while an operator is asked
WIDE: Final = torch.float32

# What an operator is asked with: the dtypes of its floating-point tensors, one after another.
QUESTIONS: Final = {"FP16 in": (LOWER,), "FP32 in": (WIDE,), "FP16 and FP32 in": (LOWER, WIDE)}
WITH_DTYPE: Final = "FP16 in and dtype=torch.float16 passed"  # only what has an argument of that name
NAMES: Final = {torch.float16: "FP16", torch.float32: "FP32", torch.bfloat16: "BF16", torch.float64: "FP64"}

_ASSERTION: Final = "INTERNAL ASSERT FAILED"  # a complaint about arguments that no real call has


@dataclass(frozen=True)
class Answer:
    """What an operator said.

    Attributes:
        fate: None if nothing was seen from which it could be told.
        evidence: what was seen, a sentence for each question.
        trouble: why there is no fate; empty if there is one.
    """

    fate: Fate | None
    evidence: tuple[str, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class Effect:
    """What autocast did in one call: what was seen with autocast and not without.

    Attributes:
        casts: of the operator's arguments, before it did anything else.
        result: the result's dtype; None if the call was broken off, or failed.
        plain_result: the same, without autocast.
        mismatch: the error, if autocast left dtypes as they were that the operator does not take together.
        refusal: the error, if autocast raised one before anything else happened.
        error: of the call with autocast, whatever it was.
    """

    casts: tuple[Cast, ...] = ()
    result: torch.dtype | None = None
    plain_result: torch.dtype | None = None
    mismatch: str = ""
    refusal: str = ""
    error: str = ""

    @property
    def other_result(self) -> bool:
        """Whether there is a result, of another dtype than without autocast."""
        return self.result is not None and self.result is not self.plain_result

    @property
    def nothing(self) -> bool:
        """Whether autocast did nothing at all."""
        return not (self.casts or self.other_result or self.refusal)


@dataclass(frozen=True)
class _Seen:
    """One call, watched."""

    casts: tuple[Cast, ...]
    worked: bool  # whether it got as far as an operator that is not a cast of an argument
    result: torch.dtype | None
    error: str
    mismatch: str


def ask(names: Sequence[str], device_type: str) -> dict[str, Answer]:
    """Ask aten operators ("softmax.int") what autocast on a device does to them.

    The asking is done `apart`: the caller's modes do not change the answers.
    """
    return apart(lambda: _ask(names, device_type))


def _ask(names: Sequence[str], device_type: str) -> dict[str, Answer]:
    with FakeTensorMode(allow_fallback_kernels=False):
        return {name: _ask_one(name, device_type) for name in names}


def _ask_one(name: str, device: str) -> Answer:
    operator = overload(name)
    try:
        effects = _effects(operator, device, stop=True)
        if all(effect.nothing for effect in effects.values()):
            effects = _effects(operator, device, stop=False)
    except MissingValue as missing:
        return Answer(None, trouble=str(missing))
    fate = fate_of(effects)
    telling = {label: effect for label, effect in effects.items() if fate or effect.result or effect.mismatch}
    evidence = tuple(_sentence(label, effect) for label, effect in telling.items())
    return Answer(fate, evidence, "" if fate else _trouble(effects))


def fate_of(effects: Mapping[str, Effect]) -> Fate | None:
    """Tell an operator's fate from what autocast did for the `QUESTIONS`; None if that fits no fate."""
    low, wide, mixed = (effects.get(label, Effect()) for label in QUESTIONS)
    raised = (LOWER, WIDE) in low.casts
    # An operator that is asked for a result in FP32 may cast its arguments itself: not if a dtype is passed.
    spared = WITH_DTYPE in effects and effects[WITH_DTYPE].nothing
    signs = {
        Fate.REFUSED: all(effect.refusal for effect in effects.values()),
        Fate.LOWER: (WIDE, LOWER) in wide.casts,
        Fate.FP32: raised and not spared,
        Fate.FP32_UNLESS: (raised and spared) or (low.other_result and low.result is WIDE),
        Fate.WIDEST: (LOWER, WIDE) in mixed.casts and not low.casts,
    }
    fates = [fate for fate, shown in signs.items() if shown]
    return fates[0] if len(fates) == 1 else None


def _trouble(effects: Mapping[str, Effect]) -> str:
    """Why no fate could be told."""
    if not all(effect.nothing for effect in effects.values()):
        return "what was seen fits none of the fates"
    errors = [effect.error for effect in effects.values() if effect.error]
    if errors:
        return f"it does not take the arguments made up for it: {_short(errors[0])}"
    return "nothing was seen that autocast did"


def _effects(operator: Any, device: str, stop: bool) -> dict[str, Effect]:
    """Ask all questions that fit; `stop`: break each call off before the operator does its own work."""
    schema = operator._schema
    tensors = len(make_arguments(schema, (WIDE,), device).tensors)
    if not tensors:
        raise MissingValue("no floating-point tensor goes into it")
    calls: dict[str, Call] = {
        label: partial(make_arguments, schema, dtypes, device)
        for label, dtypes in QUESTIONS.items()
        if len(dtypes) <= tensors
    }
    if any(argument.name == "dtype" for argument in schema.arguments):
        calls[WITH_DTYPE] = partial(make_arguments, schema, (LOWER,), device, {"dtype": LOWER})
    return {label: _effect(operator, make, device, stop) for label, make in calls.items()}


def _effect(operator: Any, make: Call, device: str, stop: bool) -> Effect:
    """Call an operator with autocast and without, and return what differs."""
    plain = _watch(operator, make(), stop)
    with _autocast(device):
        seen = _watch(operator, make(), stop)
    casts = tuple((Counter(seen.casts) - Counter(plain.casts)).elements())
    refused = not (seen.worked or seen.casts) and seen.error != plain.error and _ASSERTION not in seen.error
    return Effect(casts, seen.result, plain.result, seen.mismatch, seen.error if refused else "", seen.error)


@contextmanager
def _autocast(device: str) -> Iterator[None]:
    """Autocast's state without `torch.autocast`, which refuses devices that this machine has not got."""
    torch.set_autocast_dtype(device, LOWER)
    torch.set_autocast_enabled(device, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, False)


class _Enough(Exception):
    """Raised to end a call that has shown what it does to its arguments."""


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the casts of some tensors, up to the first operator that is something else.

    If it does not stop there, it raises the error that real tensors of those dtypes would: fake ones do not.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], stop: bool):
        super().__init__()  # type: ignore[no-untyped-call]
        self._tensors, self._stop = tensors, stop
        self.casts: list[Cast] = []
        self.worked = False
        self.mismatch = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace != "prim" and not self.worked:
            if func is torch.ops.aten._to_copy.default and self._by_autocast(args[0], kwargs.get("dtype")):
                self.casts.append((args[0].dtype, kwargs.get("dtype")))
            else:
                self.worked = True
                if self._stop:
                    raise _Enough
        error = None if self._stop else refusal(func, args, kwargs)
        if error is not None:
            self.mismatch = str(error)
            raise error
        return func(*args, **kwargs)

    def _by_autocast(self, tensor: torch.Tensor, dtype: torch.dtype | None) -> bool:
        """Whether a cast can be autocast's: it casts arguments, and all of a call to one dtype."""
        others = {new for _, new in self.casts}
        return any(tensor is each for each in self._tensors) and others <= {dtype}


def _watch(operator: Any, arguments: Arguments, stop: bool) -> _Seen:
    watch, result, error = _Watch(arguments.tensors, stop), None, ""
    try:
        with watch:
            result = operator(*arguments.positional, **arguments.keywords)
    except _Enough:
        pass
    except Exception as raised:  # made-up arguments may be wrong in any way
        error = str(raised)
    return _Seen(tuple(watch.casts), watch.worked, _dtype(result), error, watch.mismatch)


def _dtype(result: Any) -> torch.dtype | None:
    """The dtype of the first tensor of a result."""
    first = result[0] if isinstance(result, tuple | list) and result else result
    return first.dtype if isinstance(first, torch.Tensor) else None


def _sentence(label: str, effect: Effect) -> str:
    if effect.refusal:
        return f"{label}: refused, “{_short(effect.refusal)}”"
    if effect.casts:
        each = " and ".join(f"{_name(old)} cast to {_name(new)}" for old, new in dict.fromkeys(effect.casts))
        return f"{label}: {each}"
    if effect.mismatch:
        return f"{label}: nothing cast, which is an error, “{_short(effect.mismatch)}”"
    if effect.result is None:
        return f"{label}: nothing cast"
    without = f" (without autocast {_name(effect.plain_result)})" if effect.other_result else ""
    return f"{label}: nothing cast, {_name(effect.result)} out{without}"


def _name(dtype: torch.dtype | None) -> str:
    return NAMES.get(dtype, str(dtype)) if dtype else "an error"


def _short(error: str) -> str:
    """The first line of an error, without what PyTorch says about its own code."""
    return error.strip().partition("\n")[0].rpartition("please report a bug to PyTorch. ")[2].rstrip(".")
