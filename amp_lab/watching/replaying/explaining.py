"""Run a batch again until the cause of its overflow is known."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import keystr, tree_flatten_with_path

from amp_lab.autocast.recording.accepted import modules_in
from amp_lab.watching.recording.unseen import unseen
from amp_lab.watching.replaying.autocast_off import autocast_off
from amp_lab.watching.replaying.batches import Batch, kept
from amp_lab.watching.replaying.causes import judge
from amp_lab.watching.replaying.causes.case import Case, Verdict
from amp_lab.watching.replaying.causes.words import limit_of, names_in_words
from amp_lab.watching.replaying.flow import true_size
from amp_lab.watching.replaying.records import Replay, Trace
from amp_lab.watching.replaying.replays import replay
from amp_lab.watching.replaying.report import OverflowReport
from amp_lab.watching.replaying.scales import SMALLEST, Tried, tried
from amp_lab.watching.words import shortened

MOST_OTHERS: Final = 32  # further operators that a report keeps
SCALES: Final = (2.0**16, 2.0**8, 1.0, 2.0**-8)
_SPOILED: Final = (
    "not finite before this batch runs, and not what spoils its loss: {}. An overflow in training writes that to "
    "running averages, though the step is skipped; evaluation mode would give NaN. reset_running_stats() makes them new"
)
_ALONE: Final = threading.RLock()  # what a run borrows (casts, random numbers) belongs to the whole process


def explain(
    closure: Callable[[], Any],
    models: nn.Module | Sequence[nn.Module],
    *,
    scales: Sequence[float] = SCALES,
    min_scale: float = SMALLEST,
    device_type: str | None = None,
    hidden: bool = True,
) -> OverflowReport:
    """Say why the batch that a closure computes is not finite.

    Args:
        closure: returns the unscaled loss of one batch, and has its own autocast region. It is called several times.
        models: whose gradients are looked at, and whose state is put back.
        scales: the loss scales to try, largest first; a loop gives its own.
        min_scale: down to which a scale is searched that cures.
        device_type: whose autocast policy holds; None: that of the device the models are on. "cuda" on the CPU is
            emulated, for regions of `torch.autocast("cpu", ...)`.
        hidden: whether to trace a batch that is finite, too, for infinities that vanish inside.

    Raises:
        TypeError, ValueError: if the closure returns no loss, or calls backward or a step itself.
        Exception: what the model itself raises.
    """
    roots = roots_of(models, closure)
    runs_on = device_of(roots)
    return explained(Batch(closure, roots, runs_on, device_type or runs_on), scales, min_scale, hidden)


def explained(
    batch: Batch, scales: Sequence[float] = SCALES, smallest: float = SMALLEST, hidden: bool = True
) -> OverflowReport:
    """Run a batch at the scales, in FP32, and traced, as far as needed; judge; leave everything as it was."""
    began = time.perf_counter()
    weights, data, targets = _not_finite_before(batch)
    notes: list[str] = []
    with _ALONE, torch.inference_mode(False), torch.enable_grad(), unseen(), kept(batch) as changed:
        with batch.policy():  # held on to: to replace kernels takes longer than many a replay
            found = tried(lambda scale: replay(batch, scale), scales, smallest)
        bad = found.first_bad
        fp32 = _in_fp32(batch, notes) if bad is not None else None
        trace = _traced(batch, _scale_to_trace(found)) if bad is not None or hidden else None
        fp32_trace = _traced_in_fp32(batch) if fp32 is not None and not math.isfinite(fp32.loss) else None
    notes += changed
    if trace is not None:
        notes += trace.notes
        if trace.error is not None:
            notes.append(f"the traced run ended early: {shortened(trace.error)}")
    case = Case(
        found.replays,
        found.cure,
        fp32,
        trace,
        weights,
        data,
        targets,
        frozenset(_names(batch)),
        smallest,
        fp32_trace,
    )
    runs = found.replays if fp32 is None else (*found.replays, fp32)
    verdict = judge(case)
    if weights and verdict.cause != "nan-in-weights":
        notes.append(_SPOILED.format(names_in_words(weights)))
    return _report(verdict, found, runs, tuple(notes), time.perf_counter() - began)


def roots_of(models: nn.Module | Sequence[nn.Module], closure: Callable[..., Any]) -> dict[str, nn.Module]:
    """Return modules by name: "" for one alone; of several, the names that they go by in the closure."""
    given = [models] if isinstance(models, nn.Module) else list(models)
    if not given or not all(isinstance(each, nn.Module) for each in given):
        kinds = ", ".join(type(each).__name__ for each in given) or "nothing"
        raise TypeError(f"models is an nn.Module, or a list of them: not {kinds}")
    if len(given) == 1:
        return {"": given[0]}
    names = {id(module): name for name, module in modules_in(closure).items()}
    return {names.get(id(each)) or f"models[{at}]": each for at, each in enumerate(given)}


def device_of(roots: Mapping[str, nn.Module], inputs: Any = ()) -> str:
    """Return the device type that modules, or else the tensors of a batch, are on."""
    leaves, _ = tree_flatten_with_path(inputs)
    tensors = [*(each for root in roots.values() for each in (*root.parameters(), *root.buffers()))]
    tensors += [each for _, each in leaves if isinstance(each, torch.Tensor)]
    kinds = {each.device.type for each in tensors}
    if "meta" in kinds:
        raise ValueError(
            "the model or the batch is on the meta device, without numbers: give one that has them"
        )
    if strange := kinds - {"cpu", "cuda"}:
        raise ValueError(f"the model or the batch is on {strange.pop()!r}: move a copy to the CPU")
    return "cuda" if "cuda" in kinds else "cpu"


def _scale_to_trace(found: Tried) -> float:
    """Return the scale at which the cause is seen best: one of 1 or more at which a batch overflows, if there is one.

    Where a smaller one would cure, it is the first that overflowed; where none does, 1, which changes no number.
    """
    bad = [each.scale for each in found.replays if not each.finite]
    if not bad:
        return found.replays[0].scale
    if found.cure is not None and found.cure >= 1:
        return bad[0]
    return min((each for each in bad if each >= 1), default=bad[0])


def _in_fp32(batch: Batch, notes: list[str]) -> Replay | None:
    try:
        return replay(batch, 1.0, fp32=True)
    except Exception as error:  # code that casts by itself may not run without autocast
        first = shortened(f"{type(error).__name__}: {error}", 160)
        notes.append(f"without autocast the batch could not be run ({first})")
        return None


def _traced(batch: Batch, scale: float) -> Trace:
    from amp_lab.watching.replaying.tracing import trace

    return trace(
        batch.call,
        batch.modules,
        scale=scale,
        device_type=batch.device_type,
        dtype=batch.dtype,
        region=batch.region,
        inputs=batch.inputs,
        keywords=batch.keywords,
        runs_on=batch.runs_on,
    )


def _traced_in_fp32(batch: Batch) -> Trace:
    """Trace a batch whose loss is not finite in FP32 either: it may be that its code casts to 16 bits itself."""
    with autocast_off():
        return _traced(replace(batch, region=False), 1.0)


def _names(batch: Batch) -> Iterator[str]:
    for root, module in batch.modules.items():
        yield from (name for name, _ in module.named_parameters(prefix=root))
        yield from (name for name, _ in module.named_buffers(prefix=root))


def _not_finite_before(batch: Batch) -> tuple[list[str], list[str], list[str]]:
    """Return the names of weights, data and targets that are not finite. -inf in a mask or a buffer is meant so."""
    weights = [
        name
        for root, module in batch.modules.items()
        for name, each in module.named_parameters(prefix=root)
        if _any(each, torch.isnan, torch.isinf)
    ]
    weights += [
        name
        for root, module in batch.modules.items()
        for name, each in module.named_buffers(prefix=root)
        if _any(each, torch.isnan)
    ]
    first_target = len(batch.inputs) - batch.targets
    bad = [
        (path, each)
        for path, each in tree_flatten_with_path((batch.inputs, dict(batch.keywords)))[0]
        if isinstance(each, torch.Tensor) and _any(each, torch.isnan, torch.isposinf)
    ]
    data: list[str] = []
    targets: list[str] = []
    for path, _ in bad:
        positional = path[0].idx == 0  # type: ignore[attr-defined]
        target = positional and path[1].idx >= first_target  # type: ignore[attr-defined]
        (targets if target else data).append(f"batch{keystr(path[1:])}")
    return weights, data, targets


def _any(tensor: torch.Tensor, *tests: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    if not tensor.is_floating_point() or tensor.layout is not torch.strided:
        return False
    return any(bool(test(tensor.detach()).any()) for test in tests)


def _report(
    verdict: Verdict, found: Tried, runs: tuple[Replay, ...], notes: tuple[str, ...], seconds: float
) -> OverflowReport:
    row = verdict.row
    true = true_size(row) if row is not None else None
    left = len(verdict.others) - MOST_OTHERS
    more = (f"{left:,} more operators are not listed",) if left > 0 else ()
    return OverflowReport(
        cause=verdict.cause,
        sentence=verdict.sentence,
        advice=verdict.advice,
        phase=verdict.phase,
        op=row.op.name if row is not None else None,
        module=row.op.module if row is not None else None,
        module_type=row.op.module_type if row is not None else None,
        source=row.op.source if row is not None else None,
        first=row,
        limit=limit_of(row) if row is not None else None,
        true_size=true if true is None or not math.isnan(true) else None,
        cures=found.first_bad is not None and found.cure is not None,
        scale=found.cure,
        replays=runs,
        others=verdict.others[:MOST_OTHERS],
        notes=(*verdict.notes, *more, *notes),
        seconds=seconds,
    )
