"""What was loaded before a run went on: parts left out, loaded too late, not fitting, rounded."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from amp_lab.watching.recording.events import Raised, Scheduled, StateLoaded, Stepped
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.saving.checkpoints import HALVES, was_kept
from amp_lab.watching.rules.steps import active_scalers, fp16_without_scale, in_steps, steps_of, was_skipped
from amp_lab.watching.words import counted, in_words


@rule("scaler-not-restored", Severity.RISK, title="the run goes on without the scaler's state")
def scaler_not_restored(run: Run) -> Iterator[Finding]:
    """Model and optimizer were loaded before the first step, the scaler's state was not.

    The weights are those of a run in progress, the scale is that of a new one: the first steps are likely to be
    skipped, and the run is not the one that was interrupted.

    Wrong:
        states = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        states["scaler"] = scaler.state_dict()
        # watched from here
        model.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        states = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        states["scaler"] = scaler.state_dict()
        # watched from here
        model.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
        scaler.load_state_dict(states["scaler"])
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    for scaler in active_scalers(run):
        first = _first_step(run, scaler)
        loads = _loads_before(run, first)
        if first is None or not {"model", "optimizer"} <= {event.of for event in loads}:
            continue
        own = [event for event in run.of(StateLoaded) if event.of == "scaler"]
        if any(event.index == scaler for event in own):
            continue
        other = any(event.number < first.number for event in own)
        why = "the scaler's state went into another scaler" if other else "no state of the scaler"
        yield Finding(
            f"Model and optimizer were loaded before step {first.step:,}, but {why}: the run goes on at a "
            "loss scale of "
            f"{in_words(first.scale)}.",
            (*loads, first),
            {"loss scale in the first step": first.scale},
            _load_too(loads, "scaler", was_kept(run, "scaler")),
            Severity.WRONG if other or was_kept(run, "scaler") else Severity.RISK,
        )


@rule("scheduler-not-restored", Severity.WRONG, title="the schedule begins again")
def scheduler_not_restored(run: Run) -> Iterator[Finding]:
    """Model and optimizer were loaded, and the run saves its scheduler's state, but did not load it.

    The schedule begins at its first step again, with weights of a run in progress.

    Wrong:
        states = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        states["scheduler"] = scheduler.state_dict()
        # watched from here
        model.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            states = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            torch.save({name: each.state_dict() for name, each in states.items()}, path)

    Right:
        states = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        states["scheduler"] = scheduler.state_dict()
        # watched from here
        model.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
        scheduler.load_state_dict(states["scheduler"])
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            states = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
            torch.save({name: each.state_dict() for name, each in states.items()}, path)
    """
    first = _first_step(run)
    loads = _loads_before(run, first)
    stepped = [event for event in run.of(Scheduled) if event.scheduler is not None]
    if first is None or not stepped or not {"model", "optimizer"} <= {event.of for event in loads}:
        return
    if any(event.of == "scheduler" for event in run.of(StateLoaded)) or not was_kept(run, "scheduler"):
        return
    yield Finding(
        f"Model and optimizer were loaded before step {first.step:,}, but no state of {stepped[0].kind}, "
        "though this run "
        "saves one: the schedule began at its first step again.",
        (*loads, stepped[0]),
        fix=_load_too(loads, "scheduler", kept=True),
    )


def _load_too(loads: Sequence[StateLoaded], part: str, kept: bool) -> Fix:
    """Return the change that loads another part from where the model came from, `checkpoint["model"]`.

    Only in words where that is no dictionary with such a key: nobody knows at which place of a list the part is.
    """
    say = f"Save the {part}'s state together with those of model and optimizer, and load all three."
    given = next((loaded_from(event) for event in loads if event.of == "model"), None)
    match given:
        case ast.Subscript(value=saved, slice=ast.Constant(value=str(key))) if "model" in key:
            own = key.replace("model", part)  # "model_state_dict": "scaler_state_dict"
            line = f'{{{part}}}.load_state_dict({ast.unparse(saved)}["{own}"])'
            if kept:
                return Fix(loads[-1], insert=(line,), place="after", say=say)
            guarded = (f'if "{own}" in {ast.unparse(saved)}:', f"    {line}")
            return Fix(loads[-1], insert=guarded, place="after", say=say)
    return Fix(loads[-1], say=say)


def loaded_from(event: StateLoaded) -> ast.expr | None:
    """Return what `load_state_dict` was given, as it is written in its line."""
    try:
        tree = ast.parse(event.where.text if event.where else "")
    except SyntaxError:  # the call goes over several lines
        return None
    calls = [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    given = [node.args[0] for node in calls if node.func.attr == "load_state_dict" and node.args]  # type: ignore[attr-defined]
    return given[0] if len(given) == 1 else None


def _first_step(run: Run, scaler: int | None = None) -> Stepped | None:
    return next((event for event in run.of(Stepped) if scaler in (None, event.scaler)), None)


def _loads_before(run: Run, step: Stepped | None) -> list[StateLoaded]:
    """Return what was loaded before a step and after any other: what a run goes on from."""
    found: list[StateLoaded] = []
    for event in run.events:
        if event is step:
            break
        if isinstance(event, Stepped):
            found = []
        elif isinstance(event, StateLoaded) and not event.raised and not event.empty:
            found.append(event)
    return found


@rule("restored-late", Severity.WRONG, title="a part of the checkpoint is loaded after the first steps")
def restored_late(run: Run) -> Iterator[Finding]:
    """The model was loaded before the first step, its optimizer or scaler or scheduler only later.

    The steps between were taken with a fresh one, and are then forgotten by it, but not by the weights.

    Wrong:
        states = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        states["scaler"] = scaler.state_dict()
        # watched from here
        model.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
        for number, (x, y) in enumerate(batches):
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            if number == 0:
                scaler.load_state_dict(states["scaler"])

    Right:
        states = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        states["scaler"] = scaler.state_dict()
        # watched from here
        model.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
        for number, (x, y) in enumerate(batches):
            if number == 0:
                scaler.load_state_dict(states["scaler"])
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    first = _first_step(run)
    before = _loads_before(run, first)
    if first is None or not any(event.of == "model" for event in before):
        return
    later = [event for event in run.of(StateLoaded) if event.number > first.number and not event.raised]
    if any(event.of == "model" for event in later):
        return  # went back to a checkpoint in the middle of the run
    known = {(event.of, event.index) for event in before}
    late = [event for event in later if (event.of, event.index) not in known and not event.empty]
    if not late:
        return
    steps = {event.step for event in run.of(Stepped) if event.number < late[0].number}
    yield Finding(
        f"The model was loaded before the first step, the {late[0].of}'s state only in step {late[0].step:,}, after "
        f"{counted(len(steps), 'step')} with a fresh {late[0].of}.",
        (*before, first, *late),
        fix=Fix(late[0], say="Load all parts of a checkpoint before the first step."),
    )


@rule("load-empty-scaler", Severity.WRONG, title="the scaler's saved state is empty", explains=("raised",))
def load_empty_scaler(run: Run) -> Iterator[Finding]:
    """An empty state was loaded into an enabled scaler, which refuses it.

    A disabled scaler has an empty state: the checkpoint comes from a run in FP32 or BF16. The scaler should then
    begin as a new one.

    Wrong:
        state = GradScaler(device_type, enabled=False).state_dict()
        # watched from here
        scaler.load_state_dict(state)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        state = GradScaler(device_type, enabled=False).state_dict()
        # watched from here
        if state:
            scaler.load_state_dict(state)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    for event in run.of(StateLoaded):
        if event.of == "scaler" and event.empty and event.raised:
            yield Finding(
                "The state that was loaded into the scaler is empty, as that of a disabled scaler is: the "
                "run that saved "
                "it did not use one.",
                (event,),
                fix=_only_if_there(event),
            )


def _only_if_there(event: StateLoaded) -> Fix:
    given = loaded_from(event)
    say = "Load it only if there is something in it."
    return (
        Fix(event, ("{line}",), (f"if {ast.unparse(given)}:", "    {line}"), say=say)
        if given
        else Fix(event, say=say)
    )


@rule(
    "load-ignored",
    Severity.WRONG,
    title="a disabled scaler ignores what it loads",
    explains=("fp16-without-scaler",),
)
def load_ignored(run: Run) -> Iterator[Finding]:
    """A scaler's state was loaded into a disabled scaler, which ignores it, and the run trains in FP16.

    The run that goes on had a loss scale, this one has none: small gradients become zero. (With BF16 or FP32 it is
    right to have the scaler disabled, and nothing is lost.)

    Wrong:
        state = GradScaler(device_type).state_dict()
        scaler = GradScaler(device_type, enabled=False)
        # watched from here
        scaler.load_state_dict(state)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        state = GradScaler(device_type).state_dict()
        scaler = GradScaler(device_type, enabled=False)
        # watched from here
        scaler.load_state_dict(state)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    plain = fp16_without_scale(run)
    for event in run.of(StateLoaded):
        disabled = (
            event.of == "scaler" and event.index < len(run.scalers) and not run.scalers[event.index].enabled
        )
        if disabled and not event.empty and plain:
            yield Finding(
                "A state with a loss scale was loaded into a disabled scaler, which ignores it, and FP16 "
                "autocast trains "
                f"on without a scale in {in_steps(steps_of(plain))}.",
                (event, *plain),
                fix=Fix(event, say="Enable the scaler wherever autocast's dtype is FP16."),
            )


@rule("loaded-in-half", Severity.WRONG, title="the run goes on from weights in 16 bits")
def loaded_in_half(run: Run) -> Iterator[Finding]:
    """Weights in FP16 or BF16 were loaded into an FP32 model, together with the state of its optimizer.

    It was a run in FP32, and goes on from rounded weights. (To begin from weights in 16 bits, with a new optimizer,
    is what fine-tuning does, and right.)

    Wrong:
        weights = {name: each.half() for name, each in model.state_dict().items()}
        states = copy.deepcopy({"model": weights, "optimizer": optimizer.state_dict()})
        # watched from here
        model.load_state_dict(states["model"])
        optimizer.load_state_dict(states["optimizer"])
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()

    Right:
        weights = {name: each.half() for name, each in model.state_dict().items()}
        # watched from here
        model.load_state_dict(weights)
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
    """
    if not run.models or any(facts.dtypes & HALVES for facts in run.models):
        return
    loads = _loads_before(run, _first_step(run))
    models = [event for event in loads if event.of == "model" and event.floats & HALVES]
    if models and any(event.of == "optimizer" for event in loads):
        yield Finding(
            f"The run went on from weights in {in_words(models[0].floats)}, with the optimizer's state of a run in "
            "FP32: what was below their last digit is lost.",
            tuple(models),
            {"dtypes loaded": models[0].floats},
            Fix(models[0], say="Go on from a checkpoint that holds FP32 weights."),
        )


@rule("keys-not-loaded", Severity.WRONG, title="not one of the weights was loaded")
def keys_not_loaded(run: Run) -> Iterator[Finding]:
    """`load_state_dict(strict=False)` found none of the model's weights in what it was given.

    It says so only in what it returns. Usually every key has a prefix: `module.` from DistributedDataParallel or
    DataParallel, `_orig_mod.` from torch.compile. The model keeps its random weights.

    Wrong:
        states = {"module." + name: each.clone() for name, each in model.state_dict().items()}
        # watched from here
        model.load_state_dict(states, strict=False)
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()

    Right:
        states = {"module." + name: each.clone() for name, each in model.state_dict().items()}
        # watched from here
        model.load_state_dict({name.removeprefix("module."): each for name, each in states.items()})
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
    """
    for event in run.of(StateLoaded):
        if event.of != "model" or event.raised or event.index >= len(run.models):
            continue
        nothing = (
            event.missing >= max(run.models[event.index].parameters, 1) and event.unexpected >= event.missing
        )
        if nothing:
            yield Finding(
                f"load_state_dict(strict=False) loaded nothing into {run.models[event.index].kind}: all "
                f"{event.missing:,} keys "
                f"of the model were missing, and {event.unexpected:,} others were not expected.",
                (event,),
                {"missing keys": event.missing, "unexpected keys": event.unexpected},
                Fix(
                    event,
                    say="Take the prefix off the keys: {name.removeprefix('module.'): each for name, each in "
                    "states.items()}, or '_orig_mod.', and load with strict=True.",
                ),
            )


@rule(
    "optimizer-on-other-device",
    Severity.WRONG,
    title="the model moved after the optimizer was loaded",
    explains=("raised",),
)
def optimizer_on_other_device(run: Run) -> Iterator[Finding]:
    """The optimizer's state was loaded before the model was moved to the GPU.

    `load_state_dict` puts the state where the parameters are at that moment. `model.to("cuda")` moves the parameters
    only, and the first step finds numbers on two devices.

    Wrong, on a GPU:
        optimizer = torch.optim.AdamW(model.parameters())
        loss_fn(model(batches[0][0]), batches[0][1]).backward()
        optimizer.step()
        state = copy.deepcopy(optimizer.state_dict())
        # watched from here
        optimizer.load_state_dict(state)
        model.cuda()
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()

    Right, on a GPU:
        optimizer = torch.optim.AdamW(model.parameters())
        loss_fn(model(batches[0][0]), batches[0][1]).backward()
        optimizer.step()
        state = copy.deepcopy(optimizer.state_dict())
        model.cuda()
        # watched from here
        optimizer.load_state_dict(state)
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x.cuda()), y.cuda())
            loss.backward()
            optimizer.step()
    """
    loads = [event for event in run.of(StateLoaded) if event.of == "optimizer" and not event.raised]
    for event in run.of(Raised):
        if event.kind != "RuntimeError" or "same device" not in event.message or not loads:
            continue
        tried = [step for step in run.of(Stepped) if step.number > loads[-1].number]
        if not tried or not all(step.raised or was_skipped(step) for step in tried):
            continue
        yield Finding(
            f"The first step after the optimizer's state was loaded raised, in step {event.step:,}: the "
            "state lies on another "
            "device than the parameters, so the model was moved after the load.",
            (loads[-1], *tried[:1], event),
            fix=Fix(loads[-1], say="Move the model first, make the optimizer, then load its state."),
        )
