"""Answers to the exercises of lesson 09."""

import contextlib
import copy
import io
import os
import random
import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

import torch

from tests.course.bank import Bank

step = Bank("9.1")
choose = Bank("9.2")
keep = Bank("9.3")
evaluate = Bank("9.4")
review = Bank("9.5")
BANKS = (step, choose, keep, evaluate, review)

FP32 = torch.float32


def region(window, dtype):
    return torch.autocast(window[0][0].device.type, dtype, enabled=dtype != FP32)


def count(window):
    return sum(len(inputs) for inputs, _ in window)


def accumulate(model, optimizer, scaler, loss_function, window, dtype):
    """Clear, and fill `.grad` with scaled gradients of the mean loss: the first half of every step."""
    optimizer.zero_grad()
    total = 0.0
    for inputs, targets in window:
        with region(window, dtype):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count(window))
        if not loss.isfinite():
            raise FloatingPointError(f"loss {loss.item()}")
        scaler.scale(loss).backward()
        total += loss.item()
    return total


def finish(model, optimizer, scaler, scheduler, max_norm):
    """Unscale, clip, step, update, schedule: the second half."""
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if not scaler.is_enabled() and not norm.isfinite():
        raise FloatingPointError("gradients")
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()


def finish_unscaled(model, optimizer, scaler, scheduler):
    """What comes after clipping."""
    if not scaler.is_enabled() and not all(each.grad.isfinite().all() for each in model.parameters()):
        raise FloatingPointError("gradients")
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()


# 9.1 The step of a Trainer


@step.right
def in_two_halves(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    finish(model, optimizer, scaler, scheduler, max_norm)
    return total


@step.right
def with_three_paths(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    parameters = [*model.parameters()]
    for each in parameters:
        each.grad = None
    losses = []
    for inputs, targets in window:
        context = contextlib.nullcontext() if dtype == FP32 else torch.autocast(inputs.device.type, dtype)
        with context:
            loss = loss_function(model(inputs), targets)
        part = loss * len(inputs) / count(window)
        if dtype == torch.float16:
            part = scaler.scale(part)
        part.backward()
        losses.append(loss.detach() * len(inputs))
    mean = float(torch.stack(losses).sum()) / count(window)
    if mean != mean or mean == float("inf"):
        raise FloatingPointError("the loss is not finite")
    if dtype == torch.float16:
        scaler.unscale_(optimizer)
    finite = all(each.grad.isfinite().all() for each in parameters)
    if finite:
        torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    elif dtype != torch.float16:
        raise FloatingPointError("the gradients are not finite")
    if dtype == torch.float16:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()
    if finite:
        scheduler.step()
    return mean


@step.right
def weighs_gradients_at_the_end(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    model.zero_grad()
    total = 0.0
    for inputs, targets in window:
        with region(window, dtype):
            loss = loss_function(model(inputs), targets)
        if not torch.isfinite(loss):
            raise FloatingPointError
        scaler.scale(loss * len(inputs)).backward()
        total += loss.item() * len(inputs)
    for each in model.parameters():
        each.grad /= count(window)
    finish(model, optimizer, scaler, scheduler, max_norm)
    return total / count(window)


@step.right
def clips_by_hand(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    scaler.unscale_(optimizer)
    grads = [each.grad for each in model.parameters()]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in grads]))
    if norm.isfinite():
        for each in grads:
            each *= min(1.0, max_norm / (norm.item() + 1e-6))
    elif not scaler.is_enabled():
        raise FloatingPointError(f"norm {norm}")
    scaler.step(optimizer)
    old = scaler.get_scale()
    scaler.update()
    if not scaler.get_scale() < old:
        scheduler.step()
    return total


@step.wrong("never-clears")
def no_zero_grad(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = 0.0
    for inputs, targets in window:
        with region(window, dtype):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count(window))
        scaler.scale(loss).backward()
        total += loss.item()
    finish(model, optimizer, scaler, scheduler, max_norm)
    return total


@step.wrong("clears-too-late")
def clears_at_the_end(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = 0.0
    for inputs, targets in window:
        with region(window, dtype):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count(window))
        scaler.scale(loss).backward()
        total += loss.item()
    finish(model, optimizer, scaler, scheduler, max_norm)
    optimizer.zero_grad()
    return total


def looping(share, clear=False):
    def answer(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in window:
            if clear:
                optimizer.zero_grad()
            with region(window, dtype):
                loss = loss_function(model(inputs), targets) * share(inputs, window)
            scaler.scale(loss).backward()
            total += loss.item()
        finish(model, optimizer, scaler, scheduler, max_norm)
        return total

    return answer


@step.wrong("last-only")
def clears_in_the_loop(*args):
    return looping(lambda inputs, window: 1 / len(window), clear=True)(*args)


@step.wrong("last-only")
def steps_on_the_last(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window[-1:], dtype)
    finish(model, optimizer, scaler, scheduler, max_norm)
    return total


@step.wrong("first-only")
def steps_on_the_first(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window[:1], dtype)
    finish(model, optimizer, scaler, scheduler, max_norm)
    return total


@step.wrong("counts-batches")
def shares_alike(*args):
    return looping(lambda inputs, window: 1 / len(window))(*args)


@step.wrong("not-divided")
def adds_losses(*args):
    return looping(lambda inputs, window: 1)(*args)


@step.wrong("divides-twice")
def divides_by_samples(*args):
    return looping(lambda inputs, window: 1 / count(window))(*args)


@step.wrong("clips-scaled")
def clips_before_unscaling(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if not scaler.is_enabled() and not norm.isfinite():
        raise FloatingPointError
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
    return total


@step.wrong("clips-each")
def clips_in_the_loop(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    optimizer.zero_grad()
    total = 0.0
    for inputs, targets in window:
        with region(window, dtype):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count(window))
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        total += loss.item()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return total


@step.wrong("never-clips")
def forgets_to_clip(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    finish(model, optimizer, scaler, scheduler, float("inf"))
    return total


def scheduling(moves):
    def answer(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
        total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if not scaler.is_enabled() and not norm.isfinite():
            raise FloatingPointError
        scale = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        if moves(scale, scaler.get_scale()):
            scheduler.step()
        return total

    return answer


@step.wrong("always-schedules")
def schedules_every_time(*args):
    return scheduling(lambda before, after: True)(*args)


@step.wrong("always-schedules")
def counts_calls_of_the_optimizer(
    model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm
):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if not scaler.is_enabled() and not norm.isfinite():
        raise FloatingPointError
    called = []
    handle = optimizer.register_step_post_hook(lambda *_: called.append(True))
    scaler.step(optimizer)  # a fused optimizer is called in a skipped step, too
    handle.remove()
    scaler.update()
    if called:
        scheduler.step()
    return total


@step.wrong("never-schedules")
def forgets_the_scheduler(*args):
    return scheduling(lambda before, after: False)(*args)


@step.wrong("growth-is-skip")
def wants_the_same_scale(*args):
    return scheduling(lambda before, after: after == before)(*args)


@step.wrong("never-schedules")
def mistakes_the_direction(*args):
    return scheduling(lambda before, after: after < before or after == before == 1.0)(*args)


@step.wrong("never-schedules")
def schedules_with_a_scaler_only(*args):
    return scheduling(lambda before, after: after > 1.0 and after >= before)(*args)


@step.wrong("not-scaled")
def walks_back_from_the_loss(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    optimizer.zero_grad()
    total = 0.0
    for inputs, targets in window:
        with region(window, dtype):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count(window))
        loss.backward()
        total += loss.item()
    finish(model, optimizer, scaler, scheduler, max_norm)
    return total


@step.wrong("passes-by")
def steps_directly(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    scaler.update()
    scheduler.step()
    return total


@step.wrong("no-update")
def forgets_to_update(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scheduler.step()
    return total


@step.wrong("unscaled-and-left")
def looks_at_the_loss_last(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    optimizer.zero_grad()
    total = 0.0
    for inputs, targets in window:
        with region(window, dtype):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count(window))
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if total - total != 0 or (not scaler.is_enabled() and not norm.isfinite()):
        raise FloatingPointError("not finite")
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
    return total


@step.wrong("unscales-twice")
def unscales_each_time(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    optimizer.zero_grad()
    total = 0.0
    for inputs, targets in window:
        with region(window, dtype):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count(window))
        scaler.scale(loss).backward()
        total += loss.item()
        scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return total


@step.wrong("loss-passes")
def lets_nan_through(*args):
    return looping(lambda inputs, window: len(inputs) / count(window))(*args)


@step.wrong("loss-passes")
def looks_at_the_first_loss(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    optimizer.zero_grad()
    total = 0.0
    for number, (inputs, targets) in enumerate(window):
        with region(window, dtype):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count(window))
        if number == 0 and not loss.isfinite():
            raise FloatingPointError
        scaler.scale(loss).backward()
        total += loss.item()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
    return total


@step.wrong("gradients-pass")
def trusts_the_disabled_scaler(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
    return total


@step.wrong("raises-on-overflow")
def raises_at_every_infinity(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if not norm.isfinite():
        raise FloatingPointError("gradients")
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
    return total


@step.wrong("changed-and-raised")
def raises_after_the_step(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    optimizer.zero_grad()
    total = 0.0
    for inputs, targets in window:
        with region(window, dtype):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count(window))
        scaler.scale(loss).backward()
        total += loss.item()
    finish(model, optimizer, scaler, scheduler, max_norm)
    if total - total != 0:
        raise FloatingPointError("the loss")
    return total


@step.wrong("changed-and-raised")
def looks_too_late(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if not scaler.is_enabled() and not norm.isfinite():
        raise FloatingPointError
    if scaler.get_scale() >= scale:
        scheduler.step()
    return total


@step.wrong("other-error")
def raises_by_clipping(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    scaler.unscale_(optimizer)
    enabled = scaler.is_enabled()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, error_if_nonfinite=not enabled)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
    return total


@step.wrong("other-region")
def always_autocasts(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    optimizer.zero_grad()
    total = 0.0
    for inputs, targets in window:
        with torch.autocast(inputs.device.type):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count(window))
        scaler.scale(loss).backward()
        total += loss.item()
    finish(model, optimizer, scaler, scheduler, max_norm)
    return total


@step.wrong("other-region")
def autocasts_with_a_scaler_only(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    optimizer.zero_grad()
    total = 0.0
    for inputs, targets in window:
        with torch.autocast(inputs.device.type, torch.float16, enabled=scaler.is_enabled()):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count(window))
        scaler.scale(loss).backward()
        total += loss.item()
    finish(model, optimizer, scaler, scheduler, max_norm)
    return total


@step.wrong("other-batches")
def makes_one_batch_of_all(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    whole = [tuple(map(torch.cat, zip(*window, strict=True)))]
    total = accumulate(model, optimizer, scaler, loss_function, whole, dtype)
    finish(model, optimizer, scaler, scheduler, max_norm)
    return total


@step.wrong("graphs-together")
def walks_back_once(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    optimizer.zero_grad()
    loss = 0.0
    for inputs, targets in window:
        with region(window, dtype):
            loss = loss + loss_function(model(inputs), targets) * (len(inputs) / count(window))
    if not loss.isfinite():
        raise FloatingPointError
    scaler.scale(loss).backward()
    finish(model, optimizer, scaler, scheduler, max_norm)
    return loss.item()


@step.wrong("window-changed")
def eats_the_window(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    optimizer.zero_grad()
    total, samples = 0.0, count(window)
    while window:
        inputs, targets = window.pop(0)
        with torch.autocast(inputs.device.type, dtype, enabled=dtype != FP32):
            loss = loss_function(model(inputs), targets) * (len(inputs) / samples)
        scaler.scale(loss).backward()
        total += loss.item()
    finish(model, optimizer, scaler, scheduler, max_norm)
    return total


@step.wrong("mutated-input")
def centres_the_inputs(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    for inputs, _ in window:
        inputs -= inputs.mean()
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    finish(model, optimizer, scaler, scheduler, max_norm)
    return total


@step.wrong("loss-scaled")
def returns_the_scaled_loss(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype) * scaler.get_scale()
    finish(model, optimizer, scaler, scheduler, max_norm)
    return total


@step.wrong("wrong-loss")
def returns_the_last_loss(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    optimizer.zero_grad()
    for inputs, targets in window:
        with region(window, dtype):
            loss = loss_function(model(inputs), targets)
        if not loss.isfinite():
            raise FloatingPointError
        scaler.scale(loss * (len(inputs) / count(window))).backward()
    finish(model, optimizer, scaler, scheduler, max_norm)
    return loss.item()


@step.wrong("wrong-type")
def returns_a_tensor(*args):
    return torch.tensor(in_two_halves(*args))


@step.wrong("returned-none")
def returns_nothing(*args):
    in_two_halves(*args)


@step.wrong("clips-values")
def clips_number_by_number(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_value_(model.parameters(), max_norm)
    finish_unscaled(model, optimizer, scaler, scheduler)
    return total


@step.wrong("schedules-early")
def schedules_before_the_step(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    scaler.unscale_(optimizer)
    if torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm).isfinite():
        scheduler.step()
    scaler.step(optimizer)
    scaler.update()
    return total


@step.wrong("never-schedules")
def tells_a_skip_by_the_weights(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    """With a learning rate of 0 no weight moves, in a step that happens."""
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if not scaler.is_enabled() and not norm.isfinite():
        raise FloatingPointError("gradients")
    before = [each.detach().clone() for each in model.parameters()]
    scaler.step(optimizer)
    scaler.update()
    if not all(map(torch.equal, before, model.parameters())):
        scheduler.step()
    return total


@step.wrong("eval-mode")
def trains_in_eval_mode(model, *args):
    model.eval()
    return in_two_halves(model, *args)


@step.wrong("wrong-step")
def clips_to_half(model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm):
    total = accumulate(model, optimizer, scaler, loss_function, window, dtype)
    finish(model, optimizer, scaler, scheduler, max_norm / 2)
    return total


# 9.2 Choose a precision

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
NATIVE = ("tensor cores", "matrix units")


def granted(name):
    return DTYPES[name], name == "fp16"


@choose.right
def by_questions(machine, wanted="auto"):
    if wanted == "auto":
        native = machine.bf16 in NATIVE
        if machine.type == "cuda":
            wanted = "bf16" if native else "fp16"
        else:
            wanted = "bf16" if machine.type == "cpu" and native else "fp32"
    if wanted not in DTYPES:
        raise ValueError(wanted)
    return granted(wanted)


@choose.right
def by_cases(machine, wanted="auto"):
    match wanted, machine.type:
        case "bf16", _:
            return torch.bfloat16, False
        case "fp16", _:
            return torch.float16, True
        case "fp32", _:
            return torch.float32, False
        case "auto", "cuda" | "cpu" if machine.bf16.endswith(("cores", "matrix units")):
            return torch.bfloat16, False
        case "auto", "cuda":
            return torch.float16, True
        case "auto", _:
            return torch.float32, False
    raise ValueError(f"unknown precision {wanted}")


def choosing(auto, scaled=("fp16",)):
    def answer(machine, wanted="auto"):
        name = auto(machine) if wanted == "auto" else wanted
        if name not in DTYPES:
            raise ValueError(name)
        return DTYPES[name], name in scaled

    return answer


def right_auto(machine):
    if machine.type != "mps" and machine.bf16 in NATIVE:
        return "bf16"
    return "fp16" if machine.type == "cuda" else "fp32"


@choose.wrong("scales-bf16")
def scales_all_16_bits(machine, wanted="auto"):
    return choosing(right_auto, ("fp16", "bf16"))(machine, wanted)


@choose.wrong("never-scales")
def forgets_the_scaler(machine, wanted="auto"):
    return choosing(right_auto, ())(machine, wanted)


@choose.wrong("always-scales")
def scales_everything(machine, wanted="auto"):
    return choosing(right_auto, tuple(DTYPES))(machine, wanted)


@choose.wrong("scales-the-wrong-one")
def swaps_the_formats(machine, wanted="auto"):
    return choosing(right_auto, ("bf16",))(machine, wanted)


@choose.wrong("believes-emulation")
def asks_pytorch(machine, wanted="auto"):
    def auto(machine):
        if machine.type == "cuda":
            return "bf16" if machine.says_bf16 else "fp16"
        return right_auto(machine)

    return choosing(auto)(machine, wanted)


@choose.wrong("believes-emulation")
def takes_what_is_not_missing(machine, wanted="auto"):
    takes = machine.type == "cuda" and machine.bf16 != "none"
    return choosing(lambda machine: "bf16" if takes else right_auto(machine))(machine, wanted)


@choose.wrong("always-fp16")
def follows_old_tutorials(machine, wanted="auto"):
    return choosing(lambda each: "fp16" if each.type == "cuda" else right_auto(each))(machine, wanted)


@choose.wrong("knows-nvidia-only")
def looks_for_tensor_cores(machine, wanted="auto"):
    def auto(machine):
        if machine.type == "cuda":
            return "bf16" if machine.bf16 == "tensor cores" else "fp16"
        return right_auto(machine)

    return choosing(auto)(machine, wanted)


@choose.wrong("vectors-are-fast")
def takes_vector_units(machine, wanted="auto"):
    fast = machine.type == "cpu" and machine.bf16 == "vector units"
    return choosing(lambda machine: "bf16" if fast else right_auto(machine))(machine, wanted)


@choose.wrong("cpu-always")
def bf16_on_every_cpu(machine, wanted="auto"):
    return choosing(lambda each: "bf16" if each.type == "cpu" else right_auto(each))(machine, wanted)


@choose.wrong("cpu-never")
def fp32_on_every_cpu(machine, wanted="auto"):
    return choosing(lambda each: "fp32" if each.type == "cpu" else right_auto(each))(machine, wanted)


@choose.wrong("not-only-cuda")
def fp16_on_a_mac(machine, wanted="auto"):
    return choosing(lambda each: "fp16" if each.type == "mps" else right_auto(each))(machine, wanted)


@choose.wrong("not-only-cuda")
def fp16_or_bf16(machine, wanted="auto"):
    return choosing(lambda each: "bf16" if each.bf16 in NATIVE else "fp16")(machine, wanted)


@choose.wrong("wish-ignored")
def knows_better(machine, wanted="auto"):
    return granted(right_auto(machine))


@choose.wrong("wrong-choice")
def trusts_the_name(machine, wanted="auto"):
    return choosing(lambda each: "bf16" if "A100" in each.name else "fp32")(machine, wanted)


@choose.wrong("wrong-choice")
def takes_all_but_emulation(machine, wanted="auto"):
    takes = machine.type == "cuda" and machine.bf16 not in ("emulated", "none")
    return choosing(lambda machine: "bf16" if takes else right_auto(machine))(machine, wanted)


@choose.wrong("native-anywhere")
def bf16_on_a_mac(machine, wanted="auto"):
    return choosing(lambda each: "bf16" if each.bf16 in NATIVE else right_auto(each))(machine, wanted)


@choose.wrong("wish-ignored")
def grants_what_there_is(machine, wanted="auto"):
    return choosing(right_auto)(machine, "fp32" if wanted == "bf16" and machine.bf16 == "none" else wanted)


@choose.wrong("never-scales")
def scales_on_cuda_only(machine, wanted="auto"):
    dtype, scaled = choosing(right_auto)(machine, wanted)
    return dtype, scaled and machine.type == "cuda"


@choose.wrong("not-refused")
def falls_back(machine, wanted="auto"):
    if wanted == "auto":
        wanted = right_auto(machine)
    return granted(wanted if wanted in DTYPES else "fp32")


@choose.wrong("wrong-type")
def returns_the_name(machine, wanted="auto"):
    return right_auto(machine) if wanted == "auto" else wanted


@choose.wrong("wrong-type")
def returns_the_dtype_alone(machine, wanted="auto"):
    return by_questions(machine, wanted)[0]


@choose.wrong("returned-none")
def forgets_to_return(machine, wanted="auto"):
    by_questions(machine, wanted)


# 9.3 A file that is whole or not there


class Keeper:
    """What is right in all answers below, in pieces that each of them replaces."""

    def __init__(self, path, parts):
        self.path, self.parts = path, parts

    def state(self):
        rng = {"torch": torch.get_rng_state(), "python": random.getstate()}
        return {"parts": {name: part.state_dict() for name, part in self.parts.items()}, "rng": rng}

    def save(self):
        beside = self.path.with_name(f".{self.path.name}")
        try:
            self.write(beside)
            os.replace(beside, self.path)
        finally:
            beside.unlink(missing_ok=True)

    def write(self, path):
        with path.open("wb") as file:
            torch.save(self.state(), file)
            file.flush()
            os.fsync(file.fileno())

    def read(self):
        return torch.load(self.path, map_location="cpu", weights_only=True)

    def compare(self, saved):
        for name in saved["parts"].keys() ^ self.parts.keys():
            raise KeyError(name)

    def random(self, saved):
        torch.set_rng_state(saved["rng"]["torch"])
        random.setstate(saved["rng"]["python"])

    def load(self):
        saved = self.read()
        self.compare(saved)
        for name, part in self.parts.items():
            part.load_state_dict(saved["parts"][name])
        self.random(saved)


@keep.right
class InPieces(Keeper):
    pass


@keep.right
class InAFolderOfItsOwn(Keeper):
    def save(self):
        with tempfile.TemporaryDirectory(dir=self.path.parent) as folder:
            self.write(Path(folder) / "new")
            (Path(folder) / "new").rename(self.path)


@keep.wrong("names-collide")
class AllInOneDict(Keeper):
    def state(self):
        state = super().state()
        return {**state["parts"], "rng": state["rng"]}

    def read(self):
        saved = super().read()
        rng = saved.pop("rng")
        return {"parts": saved, "rng": rng}


@keep.wrong("half-loaded")
class RandomStatesFirst(Keeper):
    def compare(self, saved):
        self.random(saved)
        super().compare(saved)


@keep.wrong("save-disturbs")
class SavesInEvalMode(Keeper):
    def state(self):
        if "model" in self.parts:
            self.parts["model"].eval()
        return super().state()


@keep.wrong("not-written")
class KeepsTheFirst(Keeper):
    def save(self):
        if not self.path.exists():
            super().save()


@keep.wrong("old-file-lost")
class MovesByCopying(Keeper):
    def save(self):
        beside = self.path.with_name("new")
        try:
            self.write(beside)
            shutil.move(beside, self.path)
        finally:
            beside.unlink(missing_ok=True)


@keep.right
class ByDescriptor:
    def __init__(self, path, parts):
        self.path, self.parts = Path(path), dict(parts)

    def save(self):
        whole = io.BytesIO()
        state = [(name, each.state_dict()) for name, each in self.parts.items()]
        torch.save((state, torch.get_rng_state(), random.getstate()), whole)
        number, name = tempfile.mkstemp(dir=self.path.parent)
        try:
            os.write(number, whole.getvalue())
            os.fsync(number)
            os.close(number)
            os.rename(name, self.path)
        except BaseException:
            os.unlink(name)
            raise

    def load(self):
        parts, rng, python = torch.load(self.path, map_location=torch.device("cpu"), weights_only=True)
        saved = dict(parts)
        if set(saved) != set(self.parts):
            raise KeyError(", ".join(set(saved) ^ set(self.parts)))
        for name, state in saved.items():
            self.parts[name].load_state_dict(state)
        torch.random.set_rng_state(rng)
        random.setstate(python)


@keep.right
class SyncsAfterwards(Keeper):
    def save(self):
        state = {**self.state()["parts"]}
        state[" random"] = [torch.get_rng_state(), random.getstate()]
        beside = self.path.parent / "new.pt"
        try:
            torch.save(state, beside)
            with beside.open("rb+") as file:
                os.fsync(file)
            beside.replace(self.path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise

    def load(self):
        state = self.read()
        drawn, python = state.pop(" random")
        self.compare({"parts": state})
        for name in state:
            self.parts[name].load_state_dict(state[name])
        torch.set_rng_state(drawn)
        random.setstate(python)


@keep.wrong("no-file")
class KeepsInMemory(Keeper):
    def save(self):
        self.kept = copy.deepcopy(self.state())

    def load(self):
        return None


@keep.wrong("no-file")
class ForgetsToMove(Keeper):
    def save(self):
        self.write(self.path.with_name("new.pt"))


@keep.wrong("pickled-objects")
class SavesObjects(Keeper):
    def state(self):
        return super().state() | {"parts": self.parts}


@keep.wrong("left-over")
class KeepsTheOldOne(Keeper):
    def save(self):
        self.write(self.path.with_suffix(".tmp"))
        shutil.copyfile(self.path.with_suffix(".tmp"), self.path)


@keep.wrong("left-over")
class LeavesTheHalf(Keeper):
    def save(self):
        beside = self.path.with_suffix(".tmp")
        self.write(beside)
        os.replace(beside, self.path)


@keep.wrong("part-lost")
class ForgetsTheScaler(Keeper):
    def load(self):
        saved = self.read()
        self.compare(saved)
        for name, part in self.parts.items():
            if name != "scaler":
                part.load_state_dict(saved["parts"][name])
        self.random(saved)


@keep.wrong("part-lost")
class LoadsNothing(Keeper):
    def load(self):
        self.random(self.read())


@keep.wrong("part-lost")
class FourNames(Keeper):
    def state(self):
        known = ("model", "optimizer", "scheduler", "scaler")
        found = {name: part.state_dict() for name, part in self.parts.items() if name in known}
        return super().state() | {"parts": found}

    def load(self):
        saved = self.read()
        for name, state in saved["parts"].items():
            self.parts[name].load_state_dict(state)
        self.random(saved)


@keep.wrong("torch-random-lost")
class NoRandomStates(Keeper):
    def random(self, saved):
        pass


@keep.wrong("torch-random-lost")
class SavesASeed(Keeper):
    def random(self, saved):
        torch.manual_seed(torch.initial_seed())
        random.setstate(saved["rng"]["python"])


@keep.wrong("python-random-lost")
class PyTorchOnly(Keeper):
    def random(self, saved):
        torch.set_rng_state(saved["rng"]["torch"])


@keep.wrong("save-disturbs")
class NamesByChance(Keeper):
    def save(self):
        beside = self.path.with_name(f"{random.random()}.pt")
        self.write(beside)
        os.replace(beside, self.path)


@keep.wrong("save-disturbs")
class SeedsAnew(Keeper):
    def save(self):
        torch.manual_seed(0)
        super().save()


@keep.wrong("gone-for-a-while")
class RemovesFirst(Keeper):
    def save(self):
        beside = self.path.with_suffix(".tmp")
        self.write(beside)
        self.path.unlink(missing_ok=True)
        beside.rename(self.path)


@keep.wrong("half-for-a-while")
class SavesThere(Keeper):
    def save(self):
        self.write(self.path)


@keep.wrong("half-for-a-while")
class EmptiesFirst(Keeper):
    def save(self):
        beside = self.path.with_suffix(".tmp")
        self.path.write_bytes(b"")
        self.write(beside)
        os.replace(beside, self.path)


@keep.wrong("writes-in-place")
class SavesByName(Keeper):
    def save(self):
        torch.save(self.state(), self.path)


@keep.wrong("writes-in-place")
class CopiesOver(Keeper):
    def save(self):
        beside = self.path.with_suffix(".tmp")
        self.write(beside)
        shutil.copyfile(beside, self.path)
        beside.unlink()


@keep.wrong("writes-in-place")
class WritesBytes(Keeper):
    def save(self):
        whole = io.BytesIO()
        torch.save(self.state(), whole)
        self.path.write_bytes(whole.getvalue())


@keep.wrong("other-folder")
class WritesElsewhere(Keeper):
    def save(self):
        with tempfile.TemporaryDirectory(dir=self.path.parents[1]) as folder:
            beside = Path(folder) / "new.pt"
            self.write(beside)
            shutil.move(beside, self.path)


@keep.wrong("not-synced")
class NeverSyncs(Keeper):
    def write(self, path):
        torch.save(self.state(), path)


@keep.wrong("not-synced")
class SyncsWithoutFlushing(Keeper):
    def write(self, path):
        whole = io.BytesIO()
        torch.save(self.state(), whole)
        with path.open("wb", buffering=1 << 20) as file:
            file.write(whole.getvalue())
            os.fsync(file.fileno())


@keep.wrong("not-synced")
class SyncsAfterTheName(Keeper):
    def save(self):
        beside = self.path.with_suffix(".tmp")
        torch.save(self.state(), beside)
        os.replace(beside, self.path)
        with self.path.open("rb") as file:
            os.fsync(file)


@keep.wrong("old-file-lost")
class GivesUp(Keeper):
    def save(self):
        try:
            super().save()
        except OSError:
            self.path.unlink()
            raise


@keep.wrong("error-swallowed")
class HidesErrors(Keeper):
    def save(self):
        with contextlib.suppress(OSError):
            super().save()


@keep.wrong("error-swallowed")
class TellsOtherwise(Keeper):
    def save(self):
        try:
            super().save()
        except OSError as error:
            raise RuntimeError("not saved") from error


@keep.wrong("missing-unnoticed")
class TakesWhatThereIs(Keeper):
    def load(self):
        saved = self.read()
        for name, state in saved["parts"].items():
            if name in self.parts:
                self.parts[name].load_state_dict(state)
        self.random(saved)


@keep.wrong("extra-unnoticed")
class TakesWhatItNeeds(Keeper):
    def compare(self, saved):
        for name in self.parts.keys() - saved["parts"].keys():
            raise KeyError(name)


@keep.wrong("not-named")
class SaysOnlyThat(Keeper):
    def compare(self, saved):
        if saved["parts"].keys() != self.parts.keys():
            raise KeyError("the parts differ")


@keep.wrong("not-named")
class RaisesAnotherError(Keeper):
    def compare(self, saved):
        for name in saved["parts"].keys() ^ self.parts.keys():
            raise ValueError(name)


@keep.wrong("half-loaded")
class NoticesOnTheWay(Keeper):
    def load(self):
        saved = self.read()
        parts = saved["parts"]
        for name, part in self.parts.items():
            part.load_state_dict(parts.pop(name))
        for name in parts:
            raise KeyError(name)
        self.random(saved)


@keep.wrong("needs-gpu")
class NoMapLocation(Keeper):
    def read(self):
        return torch.load(self.path, weights_only=True)


@keep.wrong("runs-code")
class LoadsAnything(Keeper):
    def read(self):
        return torch.load(self.path, map_location="cpu", weights_only=False)


# 9.4 Evaluate in reduced precision, count in FP32


@evaluate.right
def one_by_one(model, loss_function, metrics, loader, dtype):
    functions, sums, samples = {"loss": loss_function} | metrics, defaultdict(float), 0
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        for inputs, targets in loader:
            with torch.no_grad(), torch.autocast(inputs.device.type, dtype, enabled=dtype != FP32):
                outputs = model(inputs)
            for name, function in functions.items():
                sums[name] += function(outputs.to(FP32), targets).item() * len(targets)
            samples += len(targets)
    finally:
        for module, mode in modes:
            module.training = mode
    if not samples:
        raise ValueError("no batch")
    return {name: sums[name] / samples for name in functions}


@evaluate.right
@torch.no_grad()
def all_at_once(model, loss_function, metrics, loader, dtype):
    kept = {name: each.training for name, each in model.named_modules()}
    outputs, targets = [], []
    for each in model.modules():
        each.training = False
    try:
        for x, y in loader:
            with torch.autocast(x.device.type, dtype) if dtype != FP32 else contextlib.nullcontext():
                outputs.append(model(x))
            targets.append(y)
        if not outputs:
            raise ValueError("empty")
        whole = torch.cat(outputs).float(), torch.cat(targets)
        return {"loss": float(loss_function(*whole)), **{k: float(f(*whole)) for k, f in metrics.items()}}
    finally:
        for name, mode in kept.items():
            model.get_submodule(name).training = mode


def evaluating(
    *,
    mode=True,
    restore=None,
    grad=torch.no_grad,
    region=lambda dtype: torch.autocast(
        "cpu" if not torch.cuda.is_available() else "cuda", dtype, dtype != FP32
    ),
    cast=torch.Tensor.float,
    total=lambda means, sizes: sum(m * n for m, n in zip(means, sizes, strict=True)) / sum(sizes),
):
    """Return an evaluation that is right, but for what is given."""

    def answer(model, loss_function, metrics, loader, dtype):
        modes = [(module, module.training) for module in model.modules()]
        rows, sizes = [], []
        if mode:
            model.eval()
        for inputs, targets in loader:
            with grad(), region(dtype):
                outputs = cast(model(inputs))
                row = {"loss": float(loss_function(outputs, targets))}
                rows.append(row | {name: float(each(outputs, targets)) for name, each in metrics.items()})
            sizes.append(len(inputs))
        if restore:
            restore(model)
        else:
            for module, was in modes:
                module.training = was
        if not rows:
            raise ValueError("no batch")
        return {name: total([each[name] for each in rows], sizes) for name in rows[0]}

    return answer


@evaluate.wrong("mode-lost-on-error")
def no_finally(*args):
    return evaluating()(*args)


@evaluate.wrong("train-mode")
def forgets_eval(*args):
    return evaluating(mode=False)(*args)


@evaluate.wrong("keeps-graph")
def records_graphs(*args):
    return evaluating(grad=contextlib.nullcontext)(*args)


@evaluate.wrong("other-region")
def evaluates_in_fp32(*args):
    return evaluating(region=lambda dtype: contextlib.nullcontext())(*args)


@evaluate.wrong("other-region")
def evaluates_in_fp16(*args):
    return evaluating(region=lambda dtype: torch.autocast("cpu", torch.float16))(*args)


@evaluate.wrong("sixteen-bit-metrics")
def counts_in_16_bits(*args):
    return evaluating(cast=lambda outputs: outputs)(*args)


@evaluate.wrong("wide-metrics")
def counts_in_64_bits(*args):
    return evaluating(cast=torch.Tensor.double)(*args)


@evaluate.right
def evaluates_a_copy(model, *args):
    return evaluating()(copy.deepcopy(model), *args)


@evaluate.wrong("mode-lost")
def notes_the_outer_modes(model, *args):
    outer = [(module, module.training) for module in (model, *model.children())]
    return evaluating(restore=lambda _: [module.train(was) for module, was in outer])(model, *args)


@evaluate.wrong("mode-lost")
def wakes_all(*args):
    return evaluating(restore=lambda model: model.train())(*args)


@evaluate.wrong("mode-lost")
def leaves_eval(*args):
    return evaluating(restore=lambda model: None)(*args)


@evaluate.wrong("statistics-moved")
def resets_batch_norm(model, loss_function, metrics, loader, dtype):
    found = one_by_one(model, loss_function, metrics, loader, dtype)
    for each in model.modules():
        if isinstance(each, torch.nn.BatchNorm1d):
            each.reset_running_stats()
            each.running_mean += 0.5
    return found


@evaluate.wrong("model-changed")
def freezes_the_weights(model, *args):
    model.requires_grad_(False)
    return one_by_one(model, *args)


@evaluate.wrong("graphs-stay-off")
def switches_off(*args):
    torch.set_grad_enabled(False)
    return evaluating(grad=contextlib.nullcontext)(*args)


@evaluate.wrong("error-hidden")
def hides_errors(model, *args):
    modes = [(module, module.training) for module in model.modules()]
    try:
        return one_by_one(model, *args)
    except RuntimeError:
        return {}
    finally:
        for module, was in modes:
            module.training = was


@evaluate.wrong("other-batches")
def leaves_the_last_out(model, loss_function, metrics, loader, dtype):
    kept = list(loader)
    return one_by_one(
        model, loss_function, metrics, [each for each in kept if len(each[0]) == len(kept[0][0])], dtype
    )


@evaluate.wrong("other-batches")
def asks_twice(model, loss_function, metrics, loader, dtype):
    found = {}
    for name, function in {"loss": loss_function, **metrics}.items():
        found[name] = one_by_one(model, function, {}, loader, dtype)["loss"]
    return found


@evaluate.wrong("other-names")
def forgets_the_metrics(model, loss_function, metrics, loader, dtype):
    return one_by_one(model, loss_function, {}, loader, dtype)


@evaluate.wrong("mean-of-batches")
def averages_averages(*args):
    return evaluating(total=lambda means, sizes: sum(means) / len(means))(*args)


@evaluate.wrong("last-batch-only")
def overwrites(*args):
    return evaluating(total=lambda means, sizes: means[-1])(*args)


@evaluate.wrong("not-divided")
def adds_up(*args):
    return evaluating(total=lambda means, sizes: sum(means))(*args)


@evaluate.wrong("divides-by-samples")
def divides_twice(*args):
    return evaluating(total=lambda means, sizes: sum(means) / sum(sizes))(*args)


@evaluate.wrong("sum-of-samples")
def never_divides(*args):
    return evaluating(total=lambda means, sizes: sum(m * n for m, n in zip(means, sizes, strict=True)))(*args)


@evaluate.wrong("wrong-mean")
def takes_the_median(*args):
    return evaluating(total=lambda means, sizes: sorted(means)[0])(*args)


@evaluate.wrong("not-refused")
def zero_of_nothing(model, loss_function, metrics, loader, dtype):
    try:
        return one_by_one(model, loss_function, metrics, loader, dtype)
    except ValueError:
        return {"loss": 0.0}


@evaluate.wrong("mutated-input")
def centres_in_place(model, loss_function, metrics, loader, dtype):
    kept = list(loader)
    for inputs, _ in kept:
        inputs -= 1.0
    return one_by_one(model, loss_function, metrics, kept, dtype)


@evaluate.wrong("mutated-input")
def empties_the_loader(model, loss_function, metrics, loader, dtype):
    found = one_by_one(model, loss_function, metrics, loader, dtype)
    loader.clear()
    return found


@evaluate.wrong("returned-none")
def prints_it(*args):
    one_by_one(*args)


@evaluate.wrong("wrong-type")
def returns_a_pair(*args):
    found = one_by_one(*args)
    return found.pop("loss"), found


# 9.5 The review

TRUE = "ACEGIKL"


@review.right
def a_set():
    return {"A", "C", "E", "G", "I", "K", "L"}


@review.right
def a_list():
    return sorted("LKIGECA")


@review.right
def frozen():
    return frozenset("ACEGIKL")


def _without(letter):
    return review.wrong(f"claim-{letter}")


@_without("A")
def leaves_a_out():
    return set(TRUE) - {"A"}


@_without("B")
def holds_b():
    return set(TRUE) | {"B"}


@_without("C")
def leaves_c_out():
    return set(TRUE) - {"C"}


@_without("D")
def holds_d():
    return set(TRUE) | {"D"}


@_without("E")
def leaves_e_out():
    return set(TRUE) - {"E"}


@_without("F")
def holds_f():
    return set(TRUE) | {"F"}


@_without("G")
def leaves_g_out():
    return set(TRUE) - {"G"}


@_without("H")
def holds_h():
    return set(TRUE) | {"H"}


@_without("I")
def leaves_i_out():
    return set(TRUE) - {"I"}


@_without("J")
def holds_j():
    return set(TRUE) | {"J"}


@_without("K")
def leaves_k_out():
    return set(TRUE) - {"K"}


@_without("L")
def leaves_l_out():
    return set(TRUE) - {"L"}


@_without("M")
def holds_m():
    return set(TRUE) | {"M"}


@_without("N")
def holds_n():
    return set(TRUE) | {"N"}


@_without("B")
def holds_all():
    return set("ABCDEFGHIJKLMN")


@_without("A")
def holds_none():
    return set()


@review.wrong("no-such-claim")
def small_letters():
    return {"a", "c"}


@review.wrong("wrong-type")
def a_text():
    return "ACEGIKL"


@review.wrong("returned-none")
def nothing():
    return None
