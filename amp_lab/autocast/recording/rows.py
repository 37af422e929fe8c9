"""From a recording to the rows of an x-ray: which events are rows, what they are called, why they ran as they did."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import torch

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.recording import reasons
from amp_lab.autocast.recording.events import Event, Kernel, Seen
from amp_lab.autocast.recording.operators import overload
from amp_lab.autocast.records import Cast, Op, Value

ACCUMULATION: Final = "accumulate_grad"
_ACCUMULATION_NODE: Final = "torch::autograd::AccumulateGrad"
_CAST_NODE: Final = "ToCopyBackward0"
# They take and give statistics in FP32 beside data in 16 bits, which their kernels are made for.
_NORMALISING: Final = {"batch_norm", "instance_norm", "layer_norm", "group_norm"}
# What people call them, where it is not the operator's name without "_" or "native_" in front.
_NAMES: Final = {
    "_to_copy": "to",
    "_local_scalar_dense": "item",
    "nll_loss_nd": "nll_loss",
    "_unsafe_view": "view",
    "max_pool2d_with_indices": "max_pool2d",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A row, with what was seen of the tensors that `op.inputs` and `op.outputs` tell of.

    `kernels` are the numbers of its kernels, casts before them among them.
    """

    op: Op
    inputs: tuple[Seen, ...]
    outputs: tuple[Seen, ...]
    kernels: tuple[int, ...]


def rows(events: Iterable[Event], device: str, fate: Callable[[str], Fate]) -> tuple[Row, ...]:
    """Return what was recorded as rows, in order.

    Args:
        events: what was recorded.
        device: the device type whose cast policy was in force.
        fate: what that policy does with an operator ("softmax.int").
    """
    table = _Table(device, fate)
    for event in _row_events(events):
        table.add(event)
    table.close()
    return tuple(table.rows)


def _row_events(events: Iterable[Event | Kernel]) -> Iterator[Event]:
    """Choose the events that are rows: what autocast saw, and of all else the outermost."""
    for event in events:
        if isinstance(event, Kernel):
            continue
        if event.kind == "autocast" or not _holds_autocast(event):
            if event.parts or event.error or event.kind == "autocast":
                yield event
        else:
            yield from _row_events(_with_lone_kernels(event))


def _holds_autocast(event: Event) -> bool:
    parts = [part for part in event.parts if isinstance(part, Event)]
    return any(part.kind == "autocast" or _holds_autocast(part) for part in parts)


def _with_lone_kernels(event: Event) -> Iterator[Event]:
    """Yield the parts of an event that comes apart, its own kernels as events of their own."""
    for part in event.parts:
        if isinstance(part, Event):
            yield part
        else:
            name = overload(part.operator)
            yield Event("kernel", name, event.place, event.region, part.inputs, part.outputs, parts=[part])


class _Table:
    """Rows as they grow. An operator's number is known when those before it are, which it may refer to."""

    def __init__(self, device: str, fate: Callable[[str], Fate]):
        self.rows: list[Row] = []
        self._device, self._fate = device, fate
        self._row_of: dict[int, int] = {}  # kernel's number -> row
        self._casts: set[int] = set()  # kernels that are casts by autocast
        self._gradient: list[Event] = []  # nodes of one operator's gradient, which become one row
        self._kept: list[Event] = []  # gradients of parameters that were kept meanwhile

    def add(self, event: Event) -> None:
        """Add a row; or wait, if it may be a part of one."""
        if event.kind == "node" and self._gradient:
            if event.name == _ACCUMULATION_NODE:
                self._kept.append(event)
                return
            if self._is_gradient(event) and self._forward(event) == self._forward(self._gradient[0]):
                self._gradient.append(event)
                return
        self.close()
        if self._is_gradient(event):
            self._gradient.append(event)
        else:
            self._add(event)

    def close(self) -> None:
        """Add what has waited."""
        if self._gradient:
            first, *_, last = *self._gradient, self._gradient[-1]
            parts = [part for event in self._gradient for part in event.parts]
            self._add(Event("node", first.name, first.place, first.region, parts=parts, error=last.error))
        for event in self._kept:
            self._add(event)
        self._gradient, self._kept = [], []

    def _is_gradient(self, event: Event) -> bool:
        """Say whether an event computes the gradient of an operator, and not that of a cast before it."""
        is_cast = event.name == _CAST_NODE and event.place.forward in self._casts
        return event.kind == "node" and not is_cast and self._forward(event) is not None

    def _forward(self, event: Event) -> int | None:
        """Return the row whose gradient an event in a backward pass computes."""
        kernel = event.place.forward
        known = kernel is not None and event.name != _ACCUMULATION_NODE
        return self._row_of.get(kernel) if known and kernel is not None else None

    def _add(self, event: Event) -> None:
        kernels = event.kernels()
        number = len(self.rows)
        self._row_of.update((kernel.number, number) for kernel in kernels)
        self._casts.update(kernel.number for kernel in kernels if kernel.is_cast)
        if event.kind in ("node", "engine"):
            going_in, coming_out = _ends(event, kernels)
            op = self._of_node(event, kernels, self._values(going_in), self._values(coming_out))
        else:
            going_in, coming_out = event.inputs, event.outputs
            op = self._of_operator(event, kernels, self._values(going_in), self._values(coming_out))
        self.rows.append(Row(op, going_in, coming_out, tuple(kernel.number for kernel in kernels)))

    def _of_operator(
        self, event: Event, kernels: list[Kernel], inputs: tuple[Value, ...], outputs: tuple[Value, ...]
    ) -> Op:
        place = event.place
        casts = tuple(Cast(inputs[cast.position], cast.dtype, cast.copied) for cast in event.casts)
        fate = self._fate_of(event)
        dtype = _computes_in(event, fate, outputs)
        work = [kernel for kernel in kernels if not kernel.is_cast]
        is_view = fate in (None, Fate.FOLLOWS) and all(kernel.is_view for kernel in work) and not event.error
        name = plain_name(event.name)
        if is_view:
            reason = reasons.of_view(inputs)
        elif name == "to":
            reason = reasons.of_to(inputs[:1], outputs)
        elif event.region is None:
            reason = reasons.off(inputs, outputs)
        elif fate is None or fate is Fate.FOLLOWS:
            reason = reasons.without_rule(inputs, outputs, dtype, event.passed)
        else:
            reason = reasons.of_autocast(fate, self._device, inputs, casts, dtype, event.passed)
        forward = self._row_of.get(place.forward) if place.forward is not None else None
        backward = place.phase == "backward"
        caller = self.rows[forward].op if backward and forward is not None else place
        return Op(
            number=len(self.rows),
            phase=place.phase,
            name=name,
            kernels=tuple(kernel.name for kernel in work),
            module=caller.module,
            module_type=caller.module_type,
            call=caller.call,
            source=place.source,
            region=event.region,
            inputs=inputs,
            casts=casts,
            dtype=dtype,
            outputs=outputs,
            fate=fate,
            reason=reason,
            forward=forward if backward else None,
            error=event.error,
            within=place.within,
            view=is_view,
            scalars=event.scalars,
        )

    def _fate_of(self, event: Event) -> Fate | None:
        if event.region is None or (event.place.phase == "backward" and event.kind != "autocast"):
            return None
        return self._fate(event.name) if event.kind == "autocast" else Fate.FOLLOWS

    def _of_node(
        self, event: Event, kernels: list[Kernel], inputs: tuple[Value, ...], outputs: tuple[Value, ...]
    ) -> Op:
        place = event.place
        row = self._row_of.get(place.forward) if place.forward is not None else None
        forward = self.rows[row].op if row is not None else None
        if event.name == _ACCUMULATION_NODE:
            forward, row, name = None, None, ACCUMULATION
            variable = inputs[0]
            reason = reasons.of_accumulation(variable.name, variable.dtype)
        elif event.name == _CAST_NODE and forward is not None and place.forward in self._casts:
            name, reason = "to", reasons.of_cast_backward(forward.name, inputs, outputs)
        elif event.kind == "engine":
            name, reason = (
                plain_name(overload(kernels[0].operator)),
                reasons.of_engine(inputs, outputs),
            )
        else:
            name = forward.name if forward is not None else plain_name(_node_name(event.name))
            reason = reasons.of_backward(name, inputs, outputs)
        caller = forward or place
        return Op(
            number=len(self.rows),
            phase="backward",
            name=name,
            kernels=tuple(kernel.name for kernel in kernels),
            module=caller.module,
            module_type=caller.module_type,
            call=caller.call,
            source=caller.source,
            region=event.region,
            inputs=inputs,
            casts=(),
            dtype=_differentiated_in(forward, inputs, outputs),
            outputs=outputs,
            fate=None,
            reason=reason,
            forward=row,
            error=event.error,
            within=forward.within if forward is not None else None,
            view=all(kernel.is_view for kernel in kernels) and not event.error,
        )

    def _values(self, seen: Iterable[Seen]) -> tuple[Value, ...]:
        makers = self._row_of
        return tuple(
            Value(each.shape, each.dtype, each.name, None if each.maker is None else makers.get(each.maker))
            for each in seen
        )


def _ends(event: Event, kernels: list[Kernel]) -> tuple[tuple[Seen, ...], tuple[Seen, ...]]:
    """Return what goes into an event that is known by its kernels alone, and what comes out of it."""
    inside = {kernel.number for kernel in kernels}
    used = {each.maker for kernel in kernels for each in kernel.inputs if each.maker in inside}
    # A tensor that several of its kernels read is one input.
    going_in = dict.fromkeys(each for kernel in kernels for each in kernel.inputs if each.maker not in inside)
    coming_out = [each for kernel in kernels if kernel.number not in used for each in kernel.outputs]
    variable = event.inputs if event.name == _ACCUMULATION_NODE else ()
    return (*variable, *going_in), tuple(coming_out)


def plain_name(overload: str) -> str:
    """Return what a user calls an operator: "softmax" for "_softmax.default", "to" for "_to_copy"."""
    name = overload.partition(".")[0]
    return _NAMES.get(name) or name.removeprefix("_").removeprefix("native_")


def _node_name(node: str) -> str:
    return node.rpartition("::")[2]


def _computes_in(event: Event, fate: Fate | None, outputs: tuple[Value, ...]) -> torch.dtype | None:
    if fate is Fate.FP32_UNLESS and (dtype := _widest(outputs)) is not None:
        return dtype  # its arguments stay as they are, and it is told another dtype to compute in
    after = {cast.position: cast.dtype for cast in event.casts}
    inputs = [Value(each.shape, after.get(i, each.dtype)) for i, each in enumerate(event.inputs)]
    if plain_name(event.name) in _NORMALISING and outputs and inputs[0].dtype is outputs[0].dtype:
        return inputs[0].dtype
    return _widest(inputs) or _widest(outputs)


def _differentiated_in(
    forward: Op | None, inputs: Iterable[Value], outputs: Iterable[Value]
) -> torch.dtype | None:
    """Return the dtype that a gradient was computed in.

    It is that of the forward operator, if it is met there at all. Statistics that were saved beside the tensors, such
    as attention's logsumexp, are FP32 and do not count.
    """
    if forward is not None and forward.dtype in {each.dtype for each in (*inputs, *outputs)}:
        return forward.dtype
    return _widest(inputs) or _widest(outputs)


def _widest(values: Iterable[Value]) -> torch.dtype | None:
    """Return the dtype that the floating-point ones among tensors are computed in together."""
    floats = [value for value in values if value.dtype.is_floating_point or value.dtype.is_complex]
    floats = [value for value in floats if value.shape] or floats
    widest: torch.dtype | None = None
    for value in floats:
        if widest is None:
            widest = value.dtype
        elif value.dtype.itemsize >= 2 and widest.itemsize >= 2:  # FP8 does not mix
            widest = torch.promote_types(widest, value.dtype)
    return widest
