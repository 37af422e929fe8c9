"""What exercise 3.2 is watched by: parameters of our own in the hands of the learner's class."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

import torch
from torch.nn import Parameter

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import TENSORS, describe, exact
from amp_lab.course.judging.expect import Mistake

HALF, SINGLE = torch.float16, torch.float32
_NAMES = {HALF: "FP16", SINGLE: "FP32"}


def parameter(value: float, grad: float | None, dtype: torch.dtype = HALF) -> Parameter:
    """Make a parameter of two equal numbers, and give it a gradient of two equal numbers."""
    made = Parameter(torch.full((2,), value, dtype=dtype))
    made.grad = None if grad is None else torch.full((2,), grad, dtype=dtype)
    return made


def number_in(tensor: torch.Tensor) -> str:
    """Return the first number of a tensor, with all its digits."""
    return exact(tensor.detach().flatten()[0])


def is_all(tensor: torch.Tensor, value: float) -> bool:
    """Return whether every number of a tensor is `value`."""
    return bool((tensor.detach() == value).all())


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
        self._with = " and ".join(map(_described, names, self.parameters))
        self._names, self._list, self._steps = names, list(self.parameters), list[str]()
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
        """All that was done, in words."""
        return ", then ".join((f"`{self._made}` with {self._with}", *self._steps))

    def name(self, number: int) -> str:
        """The name that sentences give to a parameter."""
        return self._names[number]

    def step(self, lr: float, times: int = 1) -> None:
        """Let it take `times` steps, and look whether the parameters are the objects that they were."""
        step = self._ask.run(getattr, self._object, "step", None)
        if not callable(step):
            raise Mistake("no-step", call=self.call, got="missing" if step is None else describe(step))
        self._steps.append(f"`step({lr:g})`" + (f" {times} times" if times > 1 else ""))
        for _ in range(times):
            self._ask.call = self.call
            self._ask.run(step, lr)
        self._expect_same_objects()
        self.masters()

    def scribble(self, value: float) -> None:
        """Write into every parameter, as somebody does who tries other weights for a moment."""
        self._steps.append(f"`fill_({value:g})` on the parameters")
        with torch.no_grad():
            for each in self.parameters:
                each.fill_(value)

    def set_grad(self, number: int, grad: torch.Tensor) -> None:
        """Give a parameter another gradient, as the next backward pass does."""
        self.parameters[number].grad = grad
        self._grads[number] = _copy(grad)

    def masters(self) -> list[torch.Tensor]:
        """Return `masters`, or raise `Mistake` unless they are FP32 tensors, one for each parameter."""
        found = self._ask.run(getattr, self._object, "masters", None)
        if issubclass(type(found), dict):
            found = list(dict.values(found))
        if type(found) not in (list, tuple, torch.nn.ParameterList):
            seen = "missing" if found is None else describe(found)
            raise Mistake("no-masters", call=self.call, got=seen)
        if len(found) != len(self.parameters):
            diagnosis = "masters-count" if found or self._as_list else "masters-of-nothing"
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

    def wrong(self, diagnosis: str, number: int, got: torch.Tensor, want: object, **more: object) -> NoReturn:
        """Raise a `Mistake` that shows a parameter or a master."""
        raise Mistake(
            diagnosis, call=self.call, name=self.name(number), got=number_in(got), want=want, **more
        )

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


def _described(name: str, parameter: Parameter) -> str:
    grad = "no gradient" if parameter.grad is None else f"gradient {number_in(parameter.grad)}"
    return f"`{name}` = {number_in(parameter)} ({_NAMES[parameter.dtype]}, {grad})"


def _copy(grad: torch.Tensor | None) -> torch.Tensor | None:
    return None if grad is None else grad.detach().clone()


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and torch.equal(one, other)


def _depth(tensor: torch.Tensor) -> int:
    """Return how many operations deep the history of a tensor is, up to a hundred."""
    nodes, depth = [tensor.grad_fn] if tensor.grad_fn is not None else [], 0
    while nodes and depth < 100:
        nodes = [parent for node in nodes for parent, _ in node.next_functions if parent is not None]
        depth += 1
    return depth
