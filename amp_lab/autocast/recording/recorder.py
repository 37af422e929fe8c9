"""Record what PyTorch does while a model runs, at three heights of its dispatcher.

An operator goes down through the layers of the dispatcher. On top lies autocast, which casts its arguments; below
that autograd, where composite operators such as `linear` come apart into others; at the bottom the kernels of the
device. Watched are the kernels of autocast (what it saw, before its casts), the composite operators (what a user calls
them, and what they are made of), and, through a TorchDispatchMode, the operators at the bottom, which do the work.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from amp_lab.autocast.kernels.replacing import Kernel as Function
from amp_lab.autocast.kernels.replacing import ReplacedKernels, kernels_in_force
from amp_lab.autocast.recording.events import Event, EventKind, Kernel, Listener, Runner, Seen, SeenCast
from amp_lab.autocast.recording.operators import (
    composites,
    innermost,
    is_composite,
    is_question,
    is_view,
    named,
    overload,
    scalars,
    takes_functions,
    tensors_in,
    written,
)
from amp_lab.autocast.recording.places import Places


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records kernels and events, while it is entered and between `watching` autocast.

    Args:
        autocast_on: the device type whose autocast runs ("cpu", "cuda").
        names: the names of parameters and buffers by `id`.
        paths: the paths of modules by `id`.
        types: the classes of modules by path; "" is the model.
        lowered: which of autocast's operators it casts to its dtype: those whose casts it may have kept.
        run: runs an operator at the bottom: called with it, its arguments and its named arguments.
        listener: is told about kernels and tensors.
    """

    def __init__(
        self,
        autocast_on: str,
        names: Mapping[int, str],
        paths: Mapping[int, str],
        types: Mapping[str, str],
        lowered: Callable[[str], bool],
        run: Runner,
        listener: Listener | None = None,
    ):
        super().__init__()  # type: ignore[no-untyped-call]
        self.events: list[Event] = []
        self.places = Places(paths, types, self.listening)
        self._autocast_on, self._names, self._lowered, self._run = autocast_on, names, lowered, run
        self._listener = listener
        self._kernels: list[Kernel] = []
        self._open: list[Event] = []
        self._node: tuple[Any, Event] | None = None  # the node of autograd's graph that runs, and its event
        self._makers: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._kept: dict[
            tuple[int, torch.dtype], torch.Tensor
        ] = {}  # whose casts autocast may have in its cache
        self._paused = False
        self.not_looked_into: set[str] = set()  # operators that take functions, and call them
        # Kept by hand: below autograd, where a TorchDispatchMode stands, autocast always seems off.
        self.region: torch.dtype | None = None

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Stay as it is, and not be wrapped against torch.compile, which costs as much as half the recording."""
        return False

    supports_higher_order_operators = True

    def listening(self) -> bool:
        """Say whether what runs now is recorded: not in another thread, and not inside a kernel."""
        return not self._paused and self in _get_current_dispatch_mode_stack()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Record nothing, for a while."""
        paused, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = paused

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch autocast's kernels and composite operators, for a while, in the whole process."""
        backend = self._autocast_on.upper()
        with contextlib.ExitStack() as stack:
            self._lay(stack, "autocast", f"Autocast{backend}", kernels_in_force(f"Autocast{backend}"))
            self._lay(stack, "composite", f"Autograd{backend}", composites())
            stack.enter_context(self.places.following())
            yield

    def _lay(self, stack: contextlib.ExitStack, kind: EventKind, key: str, names: Iterable[str]) -> None:
        watched = {name: functools.partial(self._watched, kind, name) for name in names}
        stack.callback(ReplacedKernels(key, watched).restore)

    def _watched(self, kind: EventKind, name: str, original: Function) -> Function:
        """Return a kernel that does what `original` does, and records it."""

        def kernel(keys: object, *args: Any, **kwargs: Any) -> Any:
            if not self.listening() or (name.startswith("to.") and self._casting()):
                return original(keys, *args, **kwargs)
            if not self._open:
                self.note_region()
            return self._record(kind, name, functools.partial(original, keys), args, kwargs)

        return kernel

    def _casting(self) -> bool:
        """Say whether autocast may be at casting the arguments of an operator."""
        return bool(self._open) and self._open[-1].kind == "autocast" and not self._open[-1].working

    def _record(
        self, kind: EventKind, name: str, call: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        given = tensors_in((args, kwargs))
        tensors = tuple(map(innermost, given))
        event = Event(kind, name, self._place(), self.region, self._all_seen(tensors), tensors=tensors)
        event.wrapped = any(a is not b for a, b in zip(given, tensors, strict=True))
        event.passed = _dtype_passed(args, kwargs)
        event.scalars = scalars(named(name), args, kwargs)
        self._home(event).append(event)
        self._open.append(event)
        try:
            result = call(*args, **kwargs)
            event.outputs = self._all_seen(tensors_in(result))
            return result
        except Exception as error:
            event.error = f"{type(error).__name__}: {error}"
            raise
        finally:
            self._open.pop()
            if kind == "autocast":
                self._note_kept(event)
            event.tensors = ()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if self._paused or is_question(func):
            return func(*args, **kwargs)
        if is_composite(func):  # in inference mode, where there is no autograd to take it apart
            take_apart = functools.partial(self._take_apart, func)
            if overload(func).startswith("to.") and self._casting():
                return take_apart(*args, **kwargs)
            return self._record("composite", overload(func), take_apart, args, kwargs)
        tensors = tensors_in((args, kwargs))
        kernel = Kernel(len(self._kernels), func, self._all_seen(tensors), is_view=is_view(func))
        kernel.sequence = torch._C._autograd._get_sequence_nr()
        event = self._event_of(kernel, tensors)
        if event.kind == "kernel":
            event.passed = _dtype_passed(args, kwargs)
            event.scalars = scalars(func, args, kwargs)
        self._kernels.append(kernel)
        try:
            result = self._work(kernel, args, kwargs)
        except Exception as error:
            event.error = f"{type(error).__name__}: {error}"
            raise
        self._note_made(kernel, tensors_in(result) or written(func, args, kwargs))
        if kernel.is_cast:
            self._note_cast(event, tensors[0], result)
        elif event.kind == "kernel":
            event.outputs = kernel.outputs
        return result

    def _work(self, kernel: Kernel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        func = kernel.operator
        if takes_functions(func):
            self.not_looked_into.add(overload(func))
            return func(*args, **kwargs)
        if self._listener is not None:
            return self._listener.run(kernel, self._run, args, kwargs)
        return self._run(func, args, kwargs)

    def _take_apart(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        with self:
            result = func.decompose(*args, **kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result

    def _event_of(self, kernel: Kernel, tensors: tuple[torch.Tensor, ...]) -> Event:
        """Return the event that a kernel is part of, and put it there."""
        if self._open:
            event = self._open[-1]
            kernel.is_cast = _is_cast_for(event, kernel, tensors)
            # With an argument, its tangent is cast.
            is_tangent = event.wrapped and kernel.operator is torch.ops.aten._to_copy.default
            event.working = event.working or not (kernel.is_cast or is_tangent)
        else:
            place = self._place()
            node = torch._C._current_autograd_node()
            # What the user's code computes in a backward pass, in hooks and custom functions, is for itself.
            if (
                place.phase == "backward"
                and node is not None
                and place.source is None
                and place.within is None
            ):
                event = self._event_of_node(node, place)
            else:
                event = Event("kernel", overload(kernel.operator), place, self.region, kernel.inputs)
                self.events.append(event)
        event.parts.append(kernel)
        return event

    def _event_of_node(self, node: Any, place: Any) -> Event:
        if self._node is None or self._node[0] is not node:
            variable = getattr(node, "variable", None)
            inputs = () if variable is None else self._all_seen((variable,))
            if variable is not None:
                place = self.places.of_parameter(inputs[0].name, place)
            users = isinstance(node, torch.autograd.function.BackwardCFunction)
            event = Event("engine" if users else "node", node.name(), place, self.region, inputs)
            self.events.append(event)
            self._node = node, event
        return self._node[1]

    def _home(self, event: Event) -> list[Any]:
        """Return the list that an event which begins now goes into."""
        if self._open:
            return self._open[-1].parts
        node, place = torch._C._current_autograd_node(), event.place
        if place.phase == "backward" and node is not None and place.source is None and place.within is None:
            return self._event_of_node(node, place).parts
        return self.events

    def _place(self) -> Any:
        if self._open:  # the same, and looking for it costs
            return self._open[-1].place
        node = torch._C._current_autograd_node()
        return self.places.here(None if node is None else self._forward_of(node))

    def _forward_of(self, node: Any) -> int | None:
        """Return the number of the kernel that a node of autograd's graph was made for.

        Nodes are numbered as they are made, just before their kernel runs.
        """
        number = node._sequence_nr()
        low, high = 0, len(self._kernels)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._kernels[middle].sequence > number else (middle + 1, high)
        return low if low < len(self._kernels) else None

    def note_region(self) -> None:
        """Note which region this thread is in: to be called above autograd, whenever that may have changed."""
        on = torch.is_autocast_enabled(self._autocast_on)
        self.region = torch.get_autocast_dtype(self._autocast_on) if on else None

    def _all_seen(self, tensors: tuple[torch.Tensor, ...]) -> tuple[Seen, ...]:
        return tuple(map(self._seen, tensors))

    def _seen(self, tensor: torch.Tensor) -> Seen:
        made = self._makers.get(id(tensor))
        maker = made[1] if made is not None and made[0]() is tensor else None
        return Seen(
            tuple(map(int, tensor.shape)),
            tensor.dtype,
            self._names.get(id(tensor)),
            maker,
            id(tensor),
            self._look(tensor),
        )

    def _look(self, tensor: torch.Tensor) -> Any:
        if self._listener is None:
            return None
        with self.paused():
            return self._listener.look(tensor)

    def _note_made(self, kernel: Kernel, results: tuple[torch.Tensor, ...]) -> None:
        for tensor in results:
            self._makers[id(tensor)] = (weakref.ref(tensor), kernel.number)
        kernel.outputs = self._all_seen(results)

    def _note_cast(self, event: Event, argument: torch.Tensor, result: torch.Tensor) -> None:
        size = result.numel() * result.element_size()
        position = next(i for i, tensor in enumerate(event.tensors) if tensor is argument)
        event.casts.append(SeenCast(position, result.dtype, size))
        if _may_be_kept(argument) and torch.is_autocast_cache_enabled():
            self._kept[id(argument), result.dtype] = argument

    def _note_kept(self, event: Event) -> None:
        """Note the casts for which autocast had a copy in its cache: nothing was copied for them."""
        if event.region is None or event.error is not None or not self._lowered(event.name):
            return
        copied = {cast.position for cast in event.casts}
        for position, tensor in enumerate(event.tensors):
            if position not in copied and (id(tensor), event.region) in self._kept:
                event.casts.append(SeenCast(position, event.region, 0))
        event.casts.sort()


def _dtype_passed(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.dtype | None:
    return next((each for each in (*args, *kwargs.values()) if isinstance(each, torch.dtype)), None)


def _is_cast_for(event: Event, kernel: Kernel, tensors: tuple[torch.Tensor, ...]) -> bool:
    """Say whether a kernel is one of the casts with which autocast begins."""
    if event.kind != "autocast" or event.working or kernel.operator is not torch.ops.aten._to_copy.default:
        return False
    return tensors[0].is_floating_point() and any(tensor is tensors[0] for tensor in event.tensors)


def _may_be_kept(tensor: torch.Tensor) -> bool:
    """Say whether autocast keeps the copy of a tensor: it does of FP32 weights."""
    return tensor.dtype is torch.float32 and tensor.requires_grad and tensor.is_leaf
