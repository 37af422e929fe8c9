"""Regions that begin too early or end too late: backward, optimizer steps and several forward passes in one region."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch._functorch import config as functorch  # where torch.compile's documentation says the option is

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.watching.recording.events import (
    Backward,
    Clipped,
    Event,
    Forward,
    RegionEntered,
    StateLoaded,
    Stepped,
    Unscaled,
    Updated,
    ZeroGrad,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.regions.autocasting import (
    entered,
    half_or_none,
    is_island,
    is_on,
    one_a_step,
    place,
    ran_in,
    trained,
    with_caches,
)
from amp_lab.watching.rules.regions.region_fixes import after_the_region, without_cache
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import steps_of, was_skipped
from amp_lab.watching.words import counted, steps_in_words


@rule("backward-in-region", Severity.WRONG, title="backward() inside the region undoes an FP32 part")
def backward_in_region(run: Run) -> Iterator[Finding]:
    """The backward pass runs while autocast is on.

    It needs no region: each operator's backward runs in the dtype of its forward pass. Inside a region, autocast casts
    once more. For most layers that changes nothing, bit for bit, and nothing is said about it. But the gradients of a
    part that was taken out of autocast (`enabled=False`, an FP32 island) are computed in 16 bits: what was to be
    protected overflows in the backward pass. (So do those of a few operators that autocast leaves in FP32, such as
    `nn.Bilinear` and `torch.linalg`, which the watcher does not see.)

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            hidden = model[:2](x)
            with autocast(device_type, enabled=False):
                out = model[2](hidden.float())
            loss = loss_fn(out, y)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            hidden = model[:2](x)
            with autocast(device_type, enabled=False):
                out = model[2](hidden.float())
            loss = loss_fn(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    regions = entered(run)
    inside = [each for each in run.of(Backward) if each.how == "backward" and half_or_none(each.autocast)]
    if not inside:
        return
    islands = [each for each in regions.values() if is_island(each, regions) and _before_one(each, inside)]
    first, name = inside[0], dtype_in_words(inside[0].autocast)
    times = f"backward() was called inside the {name} region in {counted(len(steps_of(inside)), 'step')}"
    outer = regions.get(first.regions[0]) if first.regions else None
    fix = after_the_region(first, outer, _after(first, run))
    if islands:
        yield Finding(
            f"{times}: {place(islands[0])} switches autocast off for a part of the forward pass, but its gradients "
            f"were computed in {name} all the same, so that they can overflow and are rounded.",
            (first, islands[0], *one_a_step(inside)[1:]),
            {"autocast in the backward pass": first.autocast, "islands": len(steps_of(islands))},
            fix,
        )


@rule(
    "compiled-backward-in-region",
    Severity.RISK,
    title="the compiled model's backward pass is autocast, too",
    explains=("scale-collapse", "every-step-skipped", "backward-in-region"),
)
def compiled_backward_in_region(run: Run) -> Iterator[Finding]:
    """A compiled model is called in a region, and has a part that is to stay FP32.

    torch.compile makes the backward pass together with the forward pass, and by default
    (`torch._functorch.config.backward_pass_autocast`, "same_as_forward") under the same autocast state as around the
    call. The gradients of a part that switches autocast off are then computed in 16 bits, as if backward() had been
    called inside the region. With the region inside the model's own forward that does not happen.

    Wrong:
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 1)
            def forward(self, x):
                hidden = torch.relu(self.body(x))
                with autocast("cpu", enabled=False):
                    return self.head(hidden.float())
        model = torch.compile(Net(), backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 1)
            def forward(self, x):
                with autocast("cpu", torch.float16):
                    hidden = torch.relu(self.body(x))
                return self.head(hidden.float())
        model = torch.compile(Net(), backend="aot_eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    if getattr(functorch, "backward_pass_autocast", None) != "same_as_forward":
        return
    for number, facts in enumerate(run.models):
        calls = [each for each in trained(run) if each.model == number and half_or_none(each.autocast)]
        if facts.compiled and facts.islands and calls:
            part = f"its part {facts.islands[0]!r} switches" if facts.islands[0] else "it switches"
            yield Finding(
                f"The compiled model was called inside the {dtype_in_words(calls[0].autocast)} region in "
                f"{counted(len(steps_of(calls)), 'step')}, and {part} autocast off: torch.compile computes those "
                f"gradients under autocast all the same, in {dtype_in_words(calls[0].autocast)}.",
                one_a_step(calls),
                {"autocast around the call": calls[0].autocast, "parts without autocast": facts.islands},
                Fix(
                    calls[0],
                    say="Open the region inside the model's forward (decorate it with torch.autocast), or set "
                    'torch._functorch.config.backward_pass_autocast = "off" before compiling.',
                ),
            )


def _before_one(island: RegionEntered, inside: Sequence[Backward]) -> bool:
    """Whether a backward pass of the same step and the same outermost region came after it."""
    return any(
        each.step == island.step and each.number > island.number and each.regions[:1] == island.regions[:1]
        for each in inside
    )


def _after(first: Backward, run: Run) -> list[Event]:
    """Return the calls of the same step and the same region that come after a backward pass."""
    kinds = (Unscaled, Clipped, Stepped, Updated, ZeroGrad)
    return [
        each
        for each in run.of(*kinds)
        if each.step == first.step and each.number > first.number and each.regions == first.regions
    ]


@rule(
    "region-over-steps",
    Severity.WRONG,
    title="one region for several steps: the forward pass uses old weights",
    explains=("backward-in-region", "step-in-region"),
)
def region_over_steps(run: Run) -> Iterator[Finding]:
    """The weights change while a region is open, and the next forward pass does not see it.

    Autocast makes the 16-bit copy of a weight once, and keeps it until the outermost region ends. If the optimizer
    steps in between, the next forward pass still uses the old copy: the loss stays the same while the weights go
    astray. An outer region that is switched off (`enabled=False`) keeps the copies of the inner ones, too.

    Wrong:
        with autocast(device_type, torch.float16):
            for x, y in batches:
                optimizer.zero_grad()
                loss = loss_fn(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

    Right:
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right, without the cache:
        with autocast(device_type, torch.float16, cache_enabled=False):
            for x, y in batches:
                optimizer.zero_grad()
                loss = loss_fn(model(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
    """
    regions = entered(run)
    stale = list(_stale(run, regions))
    if not stale:
        return
    first, later, changed = stale[0]
    steps = steps_of(each for _, each, _ in stale)
    outer = regions.get(later.regions[0]) if later.regions else None
    yield Finding(
        f"{_opened(outer)}, so that the forward pass of step {later.step:,} still used the "
        f"{dtype_in_words(ran_in(first))} copies of the weights that were made in step {first.step:,}, before "
        f"{_what_changed(changed)}; so it went in {counted(len(steps), 'step')}.",
        tuple(each for each in (outer, first, changed) if each) + one_a_step([each for _, each, _ in stale]),
        {"forward passes with old weights": len(stale), "steps": steps_in_words(steps)},
        without_cache(outer, later),
    )


def _opened(outer: RegionEntered | None) -> str:
    if outer is None:
        return "Autocast was on all the time, with no region that ends"
    off = "" if is_on(outer) else " (switched off itself, it keeps the copies of the regions inside)"
    return f"The region of {place(outer)}{off} was left open over several steps"


def _what_changed(changed: Event | None) -> str:
    if isinstance(changed, Stepped):
        return "the optimizer stepped"
    return "other weights were loaded" if isinstance(changed, StateLoaded) else "they were changed"


def _stale(run: Run, regions: dict[int, RegionEntered]) -> Iterator[tuple[Forward, Forward, Event | None]]:
    """Yield forward passes with copies of weights that have changed since: who made them, who used them, what came."""
    made: dict[int, tuple[int, Forward]] = {}
    changes: list[Event] = []
    inner: list[RegionEntered] = []
    for cache, event in with_caches(run):
        if isinstance(event, RegionEntered):
            inner.append(event)
        elif isinstance(event, Stepped | StateLoaded):
            changes.append(event)
        elif isinstance(event, Forward):
            if not event.recomputed and _copies(event, run, regions, inner):
                known, first = made.get(event.model, (-1, event))
                if known != cache:
                    made[event.model] = (cache, event)
                else:
                    yield from ((first, event, change) for change in _changed(first, event, run, changes)[:1])
            inner = []


def _copies(
    forward: Forward, run: Run, regions: dict[int, RegionEntered], inner: Sequence[RegionEntered]
) -> bool:
    """Whether a forward pass makes 16-bit copies of FP32 weights, and autocast keeps them."""
    if ran_in(forward) is None or not _has_weights_to_copy(forward, run):
        return False
    if half_or_none(forward.inside) and not forward.regions:
        return False  # the region inside has ended, and the copies are forgotten
    if half_or_none(forward.inside):
        depth = len(forward.regions)
        those = [each for each in inner if each.regions[:depth] == forward.regions and is_on(each)]
        return any(each.cache_enabled for each in those) if those else True
    innermost = regions.get(forward.regions[-1]) if forward.regions else None
    return innermost.cache_enabled if innermost else True


def _has_weights_to_copy(forward: Forward, run: Run) -> bool:
    if forward.model >= len(run.models):
        return True
    facts = run.models[forward.model]
    return torch.float32 in facts.dtypes and facts.requires_grad > 0


def _changed(first: Forward, later: Forward, run: Run, changes: Sequence[Event]) -> Sequence[Event | None]:
    """Return what changed the weights between two forward passes, None for something unseen; empty: nothing did.

    A step counts if the versions of the weights tell of it, or cannot (fused optimizers do not count up versions).
    """
    between = [
        each
        for each in changes
        if first.number < each.number < later.number and _reaches(each, later.model, run)
    ]
    told = None not in (first.weights, later.weights)
    if told and first.weights != later.weights:
        return between or [None]
    return [each for each in between if not told or (isinstance(each, Stepped) and each.fused)]


def _reaches(change: Event, model: int, run: Run) -> bool:
    """Whether an event can have changed the weights of a model."""
    if isinstance(change, StateLoaded):
        return change.of == "model" and change.index == model and not change.raised
    if not isinstance(change, Stepped) or change.raised or not change.ran or was_skipped(change):
        return False
    if change.optimizer >= len(run.optimizers):
        return True
    models = run.optimizers[change.optimizer].models
    return not models or model in models
