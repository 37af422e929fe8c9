"""What exercise 3.2 is watched by: parameters of our own in the hands of the learner's class."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, NoReturn

import torch
from torch.nn import Parameter

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import TENSORS, describe, exact
from amp_lab.course.judging.expect import Mistake, alike

HALF, SINGLE = torch.float16, torch.float32
_NAMES = {HALF: "FP16", SINGLE: "FP32"}


def parameter(value: float, grad: float | None, dtype: torch.dtype = HALF) -> Parameter:
    """Make a parameter of two equal numbers, and give it a gradient of two equal numbers."""
    made = Parameter(torch.full((2,), value, dtype=dtype))
    made.grad = None if grad is None else torch.full((2,), grad, dtype=dtype)
    return made


def number_in(tensor: torch.Tensor, at: int = 0) -> str:
    """Return a number of a tensor, the first one or that at a place in the flattened tensor, with all its digits."""
    return exact(tensor.detach().flatten()[at])


def is_all(tensor: torch.Tensor, value: float) -> bool:
    """Return whether every number of a tensor is `value`, which may be NaN."""
    tensor = tensor.detach()
    return bool((tensor.isnan() if math.isnan(value) else tensor == value).all())


class _NewGradient(NamedTuple):
    """What happened between two steps: a parameter got another gradient."""

    number: int
    grad: torch.Tensor


class Trainee:
    """What the learner's class made of some parameters, and what has been done with it, in words."""

    def __init__(
        self,
        ask: Ask,
        parameters: Sequence[Parameter],
        given: Callable[[list[Parameter]], Iterable[Parameter]] = list,
    ) -> None:
        self._ask = ask
        self.parameters = list(parameters)
        names = ["w", "v", "u"][: len(self.parameters)]
        self._grads = [_copy(each.grad) for each in self.parameters]
        self._start = [each.detach().clone() for each in self.parameters]
        self._as_list = given is list
        inside = f"[{', '.join(names)}]"
        self._made = f"MasterWeights({inside if self._as_list else f'each for each in {inside}'})"
        self._names, self._list = names, list(self.parameters)
        self._first_grads, self._events = list(self._grads), list[str | _NewGradient]()
        self._focus: int | None = None  # the parameter that sentences are about, once one is wrong,
        self._at = 0  # and the entry of it
        ask.in_words = lambda *args: self.call
        parameters_given = self._list if self._as_list else given(self.parameters)
        self._object = ask(parameters_given, may_change=True)
        if self._object is None:
            raise Mistake(
                "returned-none", call=self.call, got=None, want="an object with `masters` and `step`"
            )
        self._expect_start()

    @property
    def call(self) -> str:
        """All that was done, in words; of what is wrong somewhere, only what has to do with it."""
        numbers = range(len(self._names)) if self._focus is None else [self._focus]
        given = " and ".join(map(self._described, numbers))
        events = [each for each in map(self._in_words, self._events) if each]
        return ", then ".join((f"`{self._made}` with {given}", *events))

    def name(self, number: int) -> str:
        """The name that sentences give to a parameter, or to the entry of it that they are about."""
        name, start = self._names[number], self._start[number]
        if number != self._focus or start.dim() == 0 or is_all(start, start.flatten()[0].item()):
            return name
        index = torch.unravel_index(torch.tensor(self._at), start.shape)
        return f"{name}[{', '.join(str(int(each)) for each in index)}]"

    def step(self, lr: float, times: int = 1) -> None:
        """Let it take `times` steps, and look whether the parameters are the objects that they were."""
        step = self._ask.run(getattr, self._object, "step", None)
        if not callable(step):
            raise Mistake("no-step", call=self.call, got="missing" if step is None else describe(step))
        self._events.append(f"`step({lr:g})`" + (f" {times} times" if times > 1 else ""))
        for _ in range(times):
            self._ask.call = self.call
            self._ask.run(step, lr)
        self._expect_same_objects()
        self.masters()

    def scribble(self, value: float) -> None:
        """Write into every parameter, as somebody does who tries other weights for a moment."""
        self._events.append(f"`fill_({value:g})` on the parameters")
        with torch.no_grad():
            for each in self.parameters:
                each.fill_(value)

    def set_grad(self, number: int, grad: torch.Tensor) -> None:
        """Give a parameter another gradient, as the next backward pass does."""
        self.parameters[number].grad = grad
        self._grads[number] = _copy(grad)
        self._events.append(_NewGradient(number, grad.clone()))

    def masters(self) -> list[torch.Tensor]:
        """Return `masters`, or raise `Mistake` unless they are FP32 tensors, one for each parameter."""
        found = self._ask.run(getattr, self._object, "masters", None)
        if issubclass(type(found), dict):
            found = list(dict.values(found))
        if type(found) not in (list, tuple, torch.nn.ParameterList):
            seen = "missing" if found is None else describe(found)
            raise Mistake("no-masters", call=self.call, got=seen)
        if len(found) != len(self.parameters):
            few = "too-few-masters" if found or self._as_list else "masters-of-nothing"
            diagnosis = few if len(found) < len(self.parameters) else "too-many-masters"
            raise Mistake(diagnosis, call=self.call, got=len(found), want=len(self.parameters))
        for name, master, parameter in zip(self._names, found, self.parameters, strict=True):
            if type(master) not in TENSORS:
                raise Mistake("no-masters", call=self.call, got=describe(master))
            if master.dtype != SINGLE:
                raise Mistake("master-dtype", call=self.call, name=name, got=f"`{master.dtype}`")
            if master.shape != parameter.shape:
                shapes = {"got": tuple(master.shape), "want": tuple(parameter.shape)}
                raise Mistake("master-shape", call=self.call, name=name, **shapes)
        return [master.detach().clone() for master in found]

    def history(self) -> int:
        """Count the operations in the autograd history of the masters, the longest of them."""
        found = self._ask.run(getattr, self._object, "masters", None)
        tensors = dict.values(found) if issubclass(type(found), dict) else found
        return max(_depth(each) for each in tensors)

    def wrong(
        self, diagnosis: str, number: int, got: torch.Tensor, want: object, at: int = 0, **more: object
    ) -> NoReturn:
        """Raise a `Mistake` that shows an entry of a parameter or of a master, and what led to it."""
        self._focus, self._at = number, at
        raise Mistake(
            diagnosis, call=self.call, name=self.name(number), got=number_in(got, at), want=want, **more
        )

    def _described(self, number: int) -> str:
        start, grad = self._start[number], self._first_grads[number]
        at = self._at if number == self._focus else 0
        shape = (
            ""
            if is_all(start, start.flatten()[0].item()) and start.dim()
            else f", shape {tuple(start.shape)}"
        )
        gradient = "no gradient" if grad is None else f"gradient {number_in(grad, at)}"
        about = f"{_NAMES[start.dtype]}{shape}, {gradient}"
        if shape and start.dim() and number != self._focus:
            return f"`{self.name(number)}` ({about})"
        return f"`{self.name(number)}` = {number_in(start, at)} ({about})"

    def _in_words(self, event: str | _NewGradient) -> str:
        if isinstance(event, str):
            return event
        if self._focus is None:
            return f"another gradient for `{self._names[event.number]}`"
        if event.number != self._focus:
            return ""
        return f"gradient {number_in(event.grad, self._at)}"

    def _expect_start(self) -> None:
        for number, (master, start) in enumerate(zip(self.masters(), self._start, strict=True)):
            if not torch.equal(master, start.float()):
                self.wrong("master-start", number, master, number_in(start))

    def _expect_same_objects(self) -> None:
        if any(one is not other for one, other in zip(self._list, self.parameters, strict=True)):
            raise Mistake("new-objects", call=self.call, got="another object in its place")
        for name, each, start, grad in zip(
            self._names, self.parameters, self._start, self._grads, strict=True
        ):
            if each.dtype != start.dtype:
                raise Mistake("parameter-dtype", call=self.call, name=name, got=each.dtype, want=start.dtype)
            if not each.requires_grad or each.grad_fn is not None:
                history = "None" if each.grad_fn is None else type(each.grad_fn).__name__
                state = f"requires_grad={each.requires_grad}, grad_fn={history}"
                raise Mistake("no-longer-trainable", call=self.call, name=name, got=f"`{state}`")
            if not _same(each.grad, grad):
                was, became = ("None" if of is None else number_in(of) for of in (grad, each.grad))
                dtype = "" if each.grad is None else f" ({_NAMES.get(each.grad.dtype, each.grad.dtype)})"
                raise Mistake("grad-changed", call=self.call, name=name, got=became + dtype, want=was)


def _copy(grad: torch.Tensor | None) -> torch.Tensor | None:
    return None if grad is None else grad.detach().clone()


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return alike(one, other)


def _depth(tensor: torch.Tensor) -> int:
    """Return how many operations deep the history of a tensor is, up to a hundred."""
    nodes, depth = [tensor.grad_fn] if tensor.grad_fn is not None else [], 0
    while nodes and depth < 100:
        nodes = [parent for node in nodes for parent, _ in node.next_functions if parent is not None]
        depth += 1
    return depth
