"""Answers to the exercises of lesson 07."""

import contextlib
import copy
import math
import typing

import numpy as np
import torch
import torch.utils.checkpoint

from amp_lab.watching.overflow import find_overflow
from tests.course.bank import Bank

step = Bank("7.1")
clip = Bank("7.2")
accumulate = Bank("7.3")
share = Bank("7.4")
schedule = Bank("7.5")
penalty = Bank("7.6")
checkpoint = Bank("7.7")
read = Bank("7.8")
find = Bank("7.9")
BANKS = (step, clip, accumulate, share, schedule, penalty, checkpoint, read, find)

FP16 = torch.float16


def region(inputs, dtype=FP16):
    return torch.autocast(inputs.device.type, dtype)


def backward(model, optimizer, scaler, loss_function, inputs, targets):
    """Clear, and fill `.grad` with scaled gradients: the first half of every step."""
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    return loss.detach()


# 7.1 The canonical step


@step.right
def as_documented(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.right
def clears_with_zeros(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad(set_to_none=False)
    with torch.amp.autocast(device_type=next(model.parameters()).device.type, dtype=FP16):
        outputs = model(inputs)
        loss = loss_function(outputs, targets)
    torch.autograd.backward(scaler.scale(loss))
    scaler.step(optimizer)
    scaler.update()
    return loss.detach().clone()


@step.right
def unscales_by_itself(model, optimizer, scaler, loss_function, inputs, targets):
    model.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return loss.data


@step.right
def clears_by_hand_before_and_after(model, optimizer, scaler, loss_function, inputs, targets):
    for each in model.parameters():
        each.grad = None
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return torch.tensor(loss.item(), device=inputs.device)


@step.right
def clears_after_the_forward_pass(model, optimizer, scaler, loss_function, inputs, targets):
    forward = torch.autocast(inputs.device.type, FP16)(lambda: loss_function(model(inputs), targets))
    loss = forward()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.right
def assigns_gradients(model, optimizer, scaler, loss_function, inputs, targets):
    parameters = [*model.parameters()]
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    for each, grad in zip(parameters, torch.autograd.grad(scaler.scale(loss), parameters), strict=True):
        each.grad = grad
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.right
def computes_the_loss_outside(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        outputs = model(inputs)
    loss = loss_function(outputs.float(), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        return loss * 1.0


@step.right
def enters_by_hand(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    context = region(inputs)
    context.__enter__()
    loss = loss_function(model(inputs), targets)
    context.__exit__(None, None, None)
    scaler.scale(loss).backward()
    if scaler.get_scale() > 0:
        scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.right
def uses_stacks(model, optimizer, scaler, loss_function, inputs, targets):
    with contextlib.ExitStack() as stack:
        stack.enter_context(region(inputs))
        stack.enter_context(torch.enable_grad())
        loss = loss_function(model(inputs), targets)
    try:
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
    finally:
        scaler.update()
    return loss.detach()


@step.wrong("stale-counts")
def never_clears(model, optimizer, scaler, loss_function, inputs, targets):
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("stale-counts")
def clears_at_the_end(model, optimizer, scaler, loss_function, inputs, targets):
    loss = never_clears(model, optimizer, scaler, loss_function, inputs, targets)
    optimizer.zero_grad()
    return loss


@step.wrong("stale-counts")
def clears_if_not_skipped(model, optimizer, scaler, loss_function, inputs, targets):
    before = scaler.get_scale()
    loss = never_clears(model, optimizer, scaler, loss_function, inputs, targets)
    if scaler.get_scale() >= before:
        optimizer.zero_grad()
    return loss


@step.wrong("stale-counts")
def multiplies_old_ones_by_zero(model, optimizer, scaler, loss_function, inputs, targets):
    for each in model.parameters():
        if each.grad is not None:
            each.grad *= 0
    return never_clears(model, optimizer, scaler, loss_function, inputs, targets)


@step.wrong("stale-counts")
def clears_the_scaled_copy(model, optimizer, scaler, loss_function, inputs, targets):
    for each in model.parameters():
        each.grad_ = None
    return never_clears(model, optimizer, scaler, loss_function, inputs, targets)


@step.wrong("cleared-too-early")
def clears_after_backward(model, optimizer, scaler, loss_function, inputs, targets):
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    optimizer.zero_grad()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("cleared-too-early")
def zeroes_after_backward(model, optimizer, scaler, loss_function, inputs, targets):
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    model.zero_grad(set_to_none=False)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("not-scaled")
def without_a_scaler(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


@step.wrong("not-scaled")
def scales_for_nobody(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    loss.backward()
    scaler.scale(loss)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("not-scaled")
def only_steps_with_it(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("not-unscaled")
def steps_directly(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    optimizer.step()
    return loss.detach()


@step.wrong("never-skips")
def unscales_and_steps_directly(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    optimizer.step()
    scaler.update()
    return loss.detach()


@step.wrong("stepped-twice")
def steps_in_both_ways(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    optimizer.step()
    scaler.update()
    return loss.detach()


@step.wrong("stepped-twice")
def asks_twice(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("no-step")
def only_updates(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("no-backward")
def forgets_backward(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("no-backward")
def computes_only(model, optimizer, scaler, loss_function, inputs, targets):
    with region(inputs):
        return loss_function(model(inputs), targets).detach()


@step.wrong("step-first")
def steps_before_backward(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad(set_to_none=False)
    for each in model.parameters():
        each.grad = torch.zeros_like(each)
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaled = scaler.scale(loss)
    scaler.step(optimizer)
    scaled.backward()
    scaler.update()
    return loss.detach()


@step.wrong("no-update")
def never_updates(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    return loss.detach()


@step.wrong("no-update")
def updates_if_it_was_good(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    good = all(each.grad.isfinite().all() for each in model.parameters())
    scaler.step(optimizer)
    if good:
        scaler.update()
    return loss.detach()


@step.wrong("update-first")
def updates_before_the_step(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.update()
    scaler.step(optimizer)
    return loss.detach()


@step.wrong("update-twice")
def updates_twice(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    scaler.update()
    return loss.detach()


@step.wrong("no-autocast")
def trains_in_fp32(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("no-autocast")
def wraps_only_the_loss(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    outputs = model(inputs)
    with region(inputs):
        loss = loss_function(outputs, targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("bf16-region")
def trains_in_bf16(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs, torch.bfloat16):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("no-forward")
def trains_another_one(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        outputs = torch.nn.functional.linear(inputs, model.first.weight) @ model.last.weight.mT
        loss = loss_function(outputs, targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("forward-twice")
def computes_the_loss_again(model, optimizer, scaler, loss_function, inputs, targets):
    as_documented(model, optimizer, scaler, loss_function, inputs, targets)
    with torch.no_grad(), region(inputs):
        return loss_function(model(inputs), targets)


@step.wrong("backward-inside")
def walks_back_inside(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("backward-inside")
def does_all_inside(model, optimizer, scaler, loss_function, inputs, targets):
    with region(inputs):
        return as_documented(model, optimizer, scaler, loss_function, inputs, targets)


@step.wrong("unscales-twice")
def unscales_two_times(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("loss-scaled")
def returns_the_scaled_loss(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = scaler.scale(loss_function(model(inputs), targets))
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("loss-attached")
def returns_the_graph(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


@step.wrong("region-left-open")
def never_leaves_the_region(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    context = region(inputs)
    context.__enter__()
    loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("wrong-loss")
def returns_the_rate(model, optimizer, scaler, loss_function, inputs, targets):
    loss = as_documented(model, optimizer, scaler, loss_function, inputs, targets)
    return loss / len(inputs)


@step.wrong("wrong-type")
def returns_a_float(model, optimizer, scaler, loss_function, inputs, targets):
    return as_documented(model, optimizer, scaler, loss_function, inputs, targets).item()


@step.wrong("returned-none")
def returns_nothing(model, optimizer, scaler, loss_function, inputs, targets):
    as_documented(model, optimizer, scaler, loss_function, inputs, targets)


@step.wrong("wrong-step")
def clips_without_being_asked(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("no-backward")
def looks_away_when_the_loss_is_large(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    if loss > 1e6:
        return loss.detach()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("wrong-step")
def leaves_evaluation_mode_on(model, optimizer, scaler, loss_function, inputs, targets):
    loss = as_documented(model, optimizer, scaler, loss_function, inputs, targets)
    model.eval()
    return loss


@step.right
def skips_by_hand(model, optimizer, scaler, loss_function, inputs, targets):
    loss = backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    if all(each.grad.isfinite().all() for each in model.parameters()):
        scaler.step(optimizer)
    scaler.update()
    return loss


@step.right
def keeps_no_activations(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        outputs = torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False)
        loss = loss_function(outputs, targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


def finite(*models):
    grads = [each.grad for model in models for each in model.parameters()]
    return all(grad is None or grad.isfinite().all() for grad in grads)


@step.wrong("stale-counts")
def clears_only_infinities(model, optimizer, scaler, loss_function, inputs, targets):
    if not finite(model):
        optimizer.zero_grad()
    return never_clears(model, optimizer, scaler, loss_function, inputs, targets)


@step.wrong("stale-counts")
def replaces_only_infinities(model, optimizer, scaler, loss_function, inputs, targets):
    for each in model.parameters():
        if each.grad is not None:
            each.grad.nan_to_num_(0.0, 0.0, 0.0)
    return never_clears(model, optimizer, scaler, loss_function, inputs, targets)


@step.wrong("stale-counts")
def clears_at_first_and_after_skips(model, optimizer, scaler, loss_function, inputs, targets):
    if not optimizer.state or not finite(model):
        optimizer.zero_grad()
    return never_clears(model, optimizer, scaler, loss_function, inputs, targets)


@step.wrong("no-backward")
def looks_away_when_the_loss_is_not_finite(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    if not loss.isfinite():
        return loss.detach()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("wrong-step")
def cleans_the_loss(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss.nan_to_num(0.0, 0.0, 0.0)).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("no-step")
def leaves_when_it_overflows(model, optimizer, scaler, loss_function, inputs, targets):
    loss = backward(model, optimizer, scaler, loss_function, inputs, targets)
    if not finite(model):
        return loss
    scaler.step(optimizer)
    scaler.update()
    return loss


@step.wrong("watcher-says")
def scales_two_times(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(scaler.scale(loss)).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("watcher-says")
def unscales_with_its_own_hands(model, optimizer, scaler, loss_function, inputs, targets):
    loss = backward(model, optimizer, scaler, loss_function, inputs, targets)
    for each in model.parameters():
        each.grad /= scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return loss


@step.wrong("watcher-says")
def cleans_gradients(model, optimizer, scaler, loss_function, inputs, targets):
    loss = backward(model, optimizer, scaler, loss_function, inputs, targets)
    for each in model.parameters():
        each.grad.nan_to_num_(0.0, 0.0, 0.0)
    scaler.step(optimizer)
    scaler.update()
    return loss


@step.wrong("watcher-says")
def steps_with_a_closure(model, optimizer, scaler, loss_function, inputs, targets):
    def closure():
        with region(inputs):
            loss = loss_function(model(inputs), targets)
        scaler.scale(loss).backward()
        return loss

    optimizer.zero_grad()
    loss = closure()
    scaler.step(optimizer, closure)
    scaler.update()
    return loss.detach()


@step.wrong("update-first")
def updates_and_then_steps(model, optimizer, scaler, loss_function, inputs, targets):
    loss = backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.update()
    scaler.step(optimizer)
    return loss


@step.wrong("scale-given")
def updates_to_the_same_scale(model, optimizer, scaler, loss_function, inputs, targets):
    loss = backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.update(scaler.get_scale())
    return loss


@step.wrong("step-first")
def steps_at_the_top(model, optimizer, scaler, loss_function, inputs, targets):
    scaler.step(optimizer)
    scaler.update()
    return backward(model, optimizer, scaler, loss_function, inputs, targets)


@step.wrong("unscales-early")
def unscales_before_the_backward_pass(model, optimizer, scaler, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaled = scaler.scale(loss)
    scaler.unscale_(optimizer)
    scaled.backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("unscales-late")
def unscales_when_it_is_over(model, optimizer, scaler, loss_function, inputs, targets):
    loss = backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.unscale_(optimizer)
    scaler.update()
    return loss


@step.wrong("other-scaler")
def makes_a_scaler_for_each_step(model, optimizer, scaler, loss_function, inputs, targets):
    scaler = torch.amp.GradScaler(inputs.device.type)
    return as_documented(model, optimizer, scaler, loss_function, inputs, targets)


@step.wrong("other-scaler")
def steps_with_a_copy(model, optimizer, scaler, loss_function, inputs, targets):
    return as_documented(model, optimizer, copy.deepcopy(scaler), loss_function, inputs, targets)


@step.wrong("graph-kept")
def builds_a_graph(model, optimizer, scaler, loss_function, inputs, targets):
    parameters = [*model.parameters()]
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    grads = torch.autograd.grad(scaler.scale(loss), parameters, create_graph=True)
    for each, grad in zip(parameters, grads, strict=True):
        each.grad = grad
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()


@step.wrong("mutated-input")
def empties_the_batch(model, optimizer, scaler, loss_function, inputs, targets):
    loss = as_documented(model, optimizer, scaler, loss_function, inputs, targets)
    inputs.zero_()
    targets.zero_()
    return loss


# 7.2 Clip what is true


@clip.right
def clips_as_documented(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.right
def measures_then_cuts(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    parameters = [*model.parameters()]
    norm = torch.nn.utils.get_total_norm([each.grad for each in parameters])
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.right
def cuts_by_hand(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    squares = sum(each.grad.double().square().sum() for each in model.parameters())
    norm = squares.sqrt()
    with torch.no_grad():
        for each in model.parameters():
            each.grad *= (max_norm / (norm + 1e-6 * max_norm)).clamp(max=1.0).float()
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.right
def scales_the_limit_instead(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scale = scaler.get_scale()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm * scale)
    scaler.step(optimizer)
    scaler.update()
    return norm / scale


@clip.right
def clips_only_if_finite(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.linalg.vector_norm(torch.cat([each.grad.flatten() for each in model.parameters()]))
    if norm.isfinite() and norm > max_norm:
        for each in model.parameters():
            each.grad = each.grad * (max_norm / norm)
    scaler.step(optimizer)
    scaler.update()
    return norm.clone()


@clip.wrong("clips-scaled")
def clips_before_unscaling(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("clips-scaled")
def clips_then_unscales(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return norm / scaler.get_scale()


@clip.wrong("clips-scaled")
def clips_by_hand_while_scaled(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    for each in model.parameters():
        each.grad.mul_((max_norm / norm).clamp(max=1.0))
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("not-clipped")
def clips_when_it_is_over(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.update()
    return norm


@clip.wrong("not-clipped")
def only_measures(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("not-clipped")
def clips_copies(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    for each in model.parameters():
        grad = each.grad
        grad = grad * (max_norm / norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("unscales-again")
def divides_by_hand(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    for each in model.parameters():
        each.grad /= scaler.get_scale()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("unscales-again")
def divides_after_unscaling(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    for each in model.parameters():
        each.grad /= scaler.get_scale()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("cuts-values")
def clips_values(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    torch.nn.utils.clip_grad_value_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("one-by-one")
def clips_each_parameter(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norms = [torch.nn.utils.clip_grad_norm_([each], max_norm) for each in model.parameters()]
    scaler.step(optimizer)
    scaler.update()
    return torch.stack(norms).norm()


@clip.wrong("always-cuts")
def normalises(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    for each in model.parameters():
        each.grad.mul_(max_norm / norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("raises-on-overflow")
def insists_on_finite_norms(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, error_if_nonfinite=True)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("overflow-hidden")
def cleans_infinities(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    for each in model.parameters():
        each.grad.nan_to_num_(0.0, 0.0, 0.0)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("norm-scaled")
def logs_the_scaled_norm(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("norm-after")
def measures_afterwards(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("norm-attached")
def returns_a_norm_with_history(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    norm = clips_as_documented(model, optimizer, scaler, loss_function, inputs, targets, max_norm)
    return norm.requires_grad_()


@clip.wrong("wrong-norm")
def returns_the_loss(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    loss = backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return loss


@clip.wrong("wrong-norm")
def sums_the_norms(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = sum(each.grad.norm() for each in model.parameters())
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("returned-none")
def returns_no_norm(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    clips_as_documented(model, optimizer, scaler, loss_function, inputs, targets, max_norm)


@clip.wrong("wrong-type")
def returns_a_plain_norm(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    return clips_as_documented(model, optimizer, scaler, loss_function, inputs, targets, max_norm).item()


@clip.wrong("basics")
def clips_and_steps_directly(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    scaler.update()
    return norm


@clip.wrong("basics")
def clips_and_never_updates(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    return norm


@clip.wrong("basics")
def unscales_twice_to_clip(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("basics")
def clips_what_is_stale(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("basics")
def clips_with_a_region_left_open(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    norm = clips_as_documented(model, optimizer, scaler, loss_function, inputs, targets, max_norm)
    region(inputs).__enter__()
    return norm


@clip.wrong("wrong-clipped-step")
def halves_the_limit(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm / 2)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("wrong-norm")
def clips_the_largest(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm, norm_type=float("inf"))
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.right
def skips_and_clips_by_hand(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if norm.isfinite():
        optimizer.step()
    scaler.update()
    return norm


@clip.wrong("not-clipped")
def cuts_only_what_is_twice_as_long(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    if norm > 2 * max_norm:
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("one-by-one")
def clips_each_layer(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    for layer in (model.first, model.last):
        torch.nn.utils.clip_grad_norm_(layer.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("norm-of-nothing")
def clips_before_the_backward_pass(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    optimizer.zero_grad()
    with region(inputs):
        scaled = scaler.scale(loss_function(model(inputs), targets))
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaled.backward()
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("raises-on-overflow")
def asserts_finite_norms(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    assert norm.isfinite(), "the gradients have exploded"
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("raises-on-overflow")
def prints_whole_norms(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    norm = clips_as_documented(model, optimizer, scaler, loss_function, inputs, targets, max_norm)
    int(norm)
    return norm


@clip.wrong("norm-shape")
def returns_one_number_in_a_list(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    norm = clips_as_documented(model, optimizer, scaler, loss_function, inputs, targets, max_norm)
    return norm.reshape(1)


@clip.wrong("watcher-says")
def scales_twice_to_clip(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    optimizer.zero_grad()
    with region(inputs):
        loss = scaler.scale(loss_function(model(inputs), targets))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("basics")
def unscales_before_there_is_anything(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    optimizer.zero_grad()
    with region(inputs):
        scaled = scaler.scale(loss_function(model(inputs), targets))
    scaler.unscale_(optimizer)
    scaled.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


@clip.wrong("basics")
def updates_before_it_clips(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    scaler.update()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    return norm


@clip.wrong("basics")
def clips_no_infinite_loss(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    if not loss.isfinite():
        return loss.detach()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm


# 7.3 One step from several micro-batches


def finish(model, optimizer, scaler, max_norm):
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()


@accumulate.right
def weights_by_examples(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        scaler.scale(loss).backward()
        total += loss.detach()
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.right
def multiplies_after_scaling(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad(set_to_none=False)
    sizes = [inputs.shape[0] for inputs, _ in micro_batches]
    losses = []
    for (inputs, targets), size in zip(micro_batches, sizes, strict=True):
        with region(inputs):
            outputs = model(inputs)
            losses.append(loss_function(outputs, targets).detach())
            loss = loss_function(outputs, targets)
        (scaler.scale(loss) * size / sum(sizes)).backward()
    finish(model, optimizer, scaler, max_norm)
    return torch.stack(losses) @ torch.tensor(sizes, device=losses[0].device).float() / sum(sizes)


@accumulate.right
def divides_the_gradients(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    model.zero_grad()
    total, count = torch.zeros((), device=micro_batches[0][0].device), 0
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets) * len(inputs)
        scaler.scale(loss).backward()
        total += loss.detach()
        count += len(inputs)
    scaler.unscale_(optimizer)
    for each in model.parameters():
        each.grad.div_(count)
    norm = torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])
    torch.nn.utils.clip_grads_with_norm_(model.parameters(), max_norm, norm)
    scaler.step(optimizer)
    scaler.update()
    return total / count


@accumulate.right
def sums_gradients_itself(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    parameters = [*model.parameters()]
    sums = [torch.zeros_like(each) for each in parameters]
    count = sum(len(targets) for _, targets in micro_batches)
    total = 0
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets)
        grads = torch.autograd.grad(scaler.scale(loss), parameters)
        for each, grad in zip(sums, grads, strict=True):
            each += grad * (len(inputs) / count)
        total = total + loss.detach() * len(inputs) / count
    for each, grad in zip(parameters, sums, strict=True):
        each.grad = grad
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("graphs-together")
def one_region_for_all(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    device = micro_batches[0][0].device.type
    optimizer.zero_grad()
    total = sum(x.size(0) for x, _ in micro_batches)
    with torch.autocast(device, FP16):
        losses = [loss_function(model(x), y) * x.size(0) / total for x, y in micro_batches]
    for loss in losses:
        scaler.scale(loss).backward()
    finish(model, optimizer, scaler, max_norm)
    return sum(loss.item() for loss in losses) * torch.ones((), device=device)


def accumulates(share=lambda loss, size, batches: loss * size / sum(len(x) for x, _ in batches), end=finish):
    def loop(model, optimizer, scaler, loss_function, micro_batches, max_norm):
        optimizer.zero_grad()
        total = 0.0
        for inputs, targets in micro_batches:
            with region(inputs):
                loss = share(loss_function(model(inputs), targets), len(inputs), micro_batches)
            scaler.scale(loss).backward()
            total += loss.detach()
        end(model, optimizer, scaler, max_norm)
        return total

    return loop


@accumulate.wrong("counts-batches")
def divides_by_batches(*given):
    return accumulates(lambda loss, size, batches: loss / len(batches))(*given)


@accumulate.wrong("counts-batches")
def divides_by_the_first_size(*given):
    return accumulates(
        lambda loss, size, batches: loss * len(batches[0][0]) / sum(len(x) for x, _ in batches)
    )(*given)


@accumulate.wrong("not-divided")
def adds_losses(*given):
    return accumulates(lambda loss, size, batches: loss)(*given)


@accumulate.wrong("divides-by-all")
def divides_by_all_examples(*given):
    return accumulates(lambda loss, size, batches: loss / sum(len(x) for x, _ in batches))(*given)


@accumulate.wrong("wrong-sum")
def always_divides_by_four(*given):
    return accumulates(lambda loss, size, batches: loss / 4)(*given)


@accumulate.wrong("last-only")
def clears_in_the_loop(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        optimizer.zero_grad()
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        scaler.scale(loss).backward()
        total += loss.detach()
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("first-only")
def returns_too_early(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        scaler.scale(loss).backward()
        finish(model, optimizer, scaler, max_norm)
        return loss.detach()


@accumulate.wrong("clips-scaled-sum")
def clips_the_scaled_sum(*given):
    def end(model, optimizer, scaler, max_norm):
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()

    return accumulates(end=end)(*given)


@accumulate.wrong("never-clips")
def leaves_them_long(*given):
    def end(model, optimizer, scaler, max_norm):
        scaler.step(optimizer)
        scaler.update()

    return accumulates(end=end)(*given)


@accumulate.wrong("clips-each")
def clips_in_the_loop(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        total += loss.detach()
    scaler.step(optimizer)
    scaler.update()
    return total


@accumulate.wrong("unscales-in-loop")
def unscales_and_clips_in_the_loop(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        total += loss.detach()
    scaler.step(optimizer)
    scaler.update()
    return total


@accumulate.wrong("unscales-in-loop")
def unscales_after_the_first(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for number, (inputs, targets) in enumerate(micro_batches):
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        scaler.scale(loss).backward()
        if number == 0:
            scaler.unscale_(optimizer)
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total


@accumulate.wrong("steps-in-loop")
def steps_for_each(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        optimizer.zero_grad()
        with region(inputs):
            loss = loss_function(model(inputs), targets)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.detach() * len(inputs) / count
    return total


@accumulate.wrong("steps-in-loop")
def updates_for_each(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        scaler.scale(loss).backward()
        total += loss.detach()
        if number == len(micro_batches):
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            scaler.step(optimizer)
        scaler.update(scaler.get_scale())
    return total


@accumulate.wrong("concatenates")
def puts_them_together(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    inputs, targets = (torch.cat(each) for each in zip(*micro_batches, strict=True))
    loss = backward(model, optimizer, scaler, loss_function, inputs, targets)
    finish(model, optimizer, scaler, max_norm)
    return loss


@accumulate.wrong("loss-of-last")
def returns_the_last_loss(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets)
        scaler.scale(loss * (len(inputs) / count)).backward()
    finish(model, optimizer, scaler, max_norm)
    return loss.detach()


@accumulate.wrong("loss-of-last")
def returns_the_last_share(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        scaler.scale(loss).backward()
    finish(model, optimizer, scaler, max_norm)
    return loss.detach()


@accumulate.wrong("loss-summed")
def returns_the_sum(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets)
        scaler.scale(loss * (len(inputs) / count)).backward()
        total += loss.detach()
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("loss-summed")
def returns_the_mean_of_means(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    losses = []
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets)
        scaler.scale(loss * (len(inputs) / count)).backward()
        losses.append(loss.detach())
    finish(model, optimizer, scaler, max_norm)
    return torch.stack(losses).mean()


@accumulate.wrong("sum-scaled")
def sums_scaled_losses(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = scaler.scale(loss_function(model(inputs), targets) * (len(inputs) / count))
        loss.backward()
        total += loss.detach()
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("sum-attached")
def sums_graphs(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        scaler.scale(loss).backward()
        total += loss
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("wrong-total")
def returns_a_norm(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    weights_by_examples(model, optimizer, scaler, loss_function, micro_batches, max_norm)
    return torch.nn.utils.get_total_norm([each.grad for each in model.parameters()])


@accumulate.wrong("wrong-type")
def returns_a_plain_sum(*given):
    return float(weights_by_examples(*given))


@accumulate.wrong("returned-none")
def returns_no_sum(*given):
    weights_by_examples(*given)


@accumulate.wrong("basics")
def accumulates_and_never_updates(*given):
    def end(model, optimizer, scaler, max_norm):
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)

    return accumulates(end=end)(*given)


@accumulate.wrong("basics")
def accumulates_and_steps_directly(*given):
    def end(model, optimizer, scaler, max_norm):
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scaler.update()

    return accumulates(end=end)(*given)


@accumulate.wrong("basics")
def accumulates_what_is_stale(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        scaler.scale(loss).backward()
        total += loss.detach()
    finish(model, optimizer, scaler, max_norm)
    optimizer.zero_grad()
    return total


@accumulate.wrong("basics")
def accumulates_unscaled(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        loss.backward()
        total += loss.detach()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return total


def walk_back(model, scaler, loss_function, inputs, targets, share):
    with region(inputs):
        loss = loss_function(model(inputs), targets) * share
    scaler.scale(loss).backward()
    return loss.detach()


def walk_back_all(model, scaler, loss_function, micro_batches):
    count = sum(len(inputs) for inputs, _ in micro_batches)
    return sum(walk_back(model, scaler, loss_function, x, y, len(x) / count) for x, y in micro_batches)


@accumulate.right
def accumulates_without_activations(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        with region(inputs):
            outputs = torch.utils.checkpoint.checkpoint(model, inputs, use_reentrant=False)
            loss = loss_function(outputs, targets) * (len(inputs) / count)
        scaler.scale(loss).backward()
        total += loss.detach()
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.right
def begins_with_the_last(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    total = walk_back_all(model, scaler, loss_function, micro_batches[::-1])
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("graphs-together")
def walks_back_from_the_sum(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        with region(inputs):
            total = total + loss_function(model(inputs), targets) * (len(inputs) / count)
    scaler.scale(total).backward()
    finish(model, optimizer, scaler, max_norm)
    return total.detach()


@accumulate.wrong("graphs-together")
def puts_outputs_together(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    with region(micro_batches[0][0]):
        outputs = torch.cat([model(inputs) for inputs, _ in micro_batches])
        loss = loss_function(outputs, torch.cat([targets for _, targets in micro_batches]))
    scaler.scale(loss).backward()
    finish(model, optimizer, scaler, max_norm)
    return loss.detach()


@accumulate.wrong("concatenates")
def puts_them_together_behind_calls(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    inputs, targets = (torch.cat(each) for each in zip(*micro_batches, strict=True))
    loss = backward(model, optimizer, scaler, loss_function, inputs, targets)
    with torch.no_grad(), region(inputs):
        for _ in micro_batches[1:]:
            model(inputs[:1])
    finish(model, optimizer, scaler, max_norm)
    return loss


@accumulate.wrong("ends-early")
def breaks_when_it_overflows(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        total += walk_back(model, scaler, loss_function, inputs, targets, len(inputs) / count)
        if not finite(model):
            break
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("drops-bad")
def passes_over_infinite_losses(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        total += loss.detach()
        if loss.isfinite():
            scaler.scale(loss).backward()
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("cleared-between")
def clears_before_the_second(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for number, (inputs, targets) in enumerate(micro_batches):
        if number == 1 or len(micro_batches) == 1:
            optimizer.zero_grad()
        total += walk_back(model, scaler, loss_function, inputs, targets, len(inputs) / count)
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("clips-otherwise")
def clips_values_of_the_sum(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    total = walk_back_all(model, scaler, loss_function, micro_batches)
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_value_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return total


@accumulate.wrong("clips-otherwise")
def gives_each_its_limit(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    total = walk_back_all(model, scaler, loss_function, micro_batches)
    finish(model, optimizer, scaler, max_norm * len(micro_batches))
    return total


@accumulate.wrong("mutated-input")
def empties_the_list(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    while micro_batches:
        inputs, targets = micro_batches.pop(0)
        total += walk_back(model, scaler, loss_function, inputs, targets, len(inputs) / count)
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("watcher-says")
def scales_twice_in_the_loop(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for inputs, targets in micro_batches:
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        scaler.scale(scaler.scale(loss)).backward()
        total += loss.detach()
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("basics")
def walks_back_inside_but_the_last(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    optimizer.zero_grad()
    count = sum(len(inputs) for inputs, _ in micro_batches)
    total = 0.0
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        with region(inputs):
            loss = loss_function(model(inputs), targets) * (len(inputs) / count)
        with torch.autocast(inputs.device.type, FP16, enabled=number < len(micro_batches)):
            scaler.scale(loss).backward()
        total += loss.detach()
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("basics")
def accumulates_over_finite_ones(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    if not optimizer.state or not finite(model):
        optimizer.zero_grad()
    total = walk_back_all(model, scaler, loss_function, micro_batches)
    finish(model, optimizer, scaler, max_norm)
    return total


@accumulate.wrong("basics")
def accumulates_and_leaves_when_it_overflows(
    model, optimizer, scaler, loss_function, micro_batches, max_norm
):
    optimizer.zero_grad()
    total = walk_back_all(model, scaler, loss_function, micro_batches)
    if finite(model):
        finish(model, optimizer, scaler, max_norm)
    return total


# 7.4 Two optimizers, one scaler


@share.right
def shares_as_documented(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.right
def loops_over_both(encoder, head, first, second, scaler, loss_function, inputs, targets):
    with region(inputs):
        features = encoder(inputs)
        loss = loss_function(head(features), targets)
    for optimizer in (second, first):
        optimizer.zero_grad(set_to_none=False)
    torch.autograd.backward([scaler.scale(loss)])
    for optimizer in (second, first):
        scaler.step(optimizer)
    scaler.update()
    return loss.detach().clone()


@share.right
def unscales_one_of_them(encoder, head, first, second, scaler, loss_function, inputs, targets):
    for model in (encoder, head):
        model.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(second)
    scaler.step(second)
    scaler.unscale_(first)
    scaler.step(first)
    scaler.update()
    return loss.data


@share.right
def uses_two_regions(encoder, head, first, second, scaler, loss_function, inputs, targets):
    for each in [*encoder.parameters(), *head.parameters()]:
        each.grad = None
    with region(inputs):
        features = encoder(inputs)
    with region(inputs):
        outputs = head(features)
    loss = loss_function(outputs, targets)
    scaler.scale(loss).backward()
    [scaler.step(each) for each in (first, second)]
    scaler.update()
    return torch.tensor(float(loss), device=inputs.device)


@share.wrong("updates-between")
def updates_after_each(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    for each in (first, second):
        scaler.step(each)
        scaler.update()
    return loss.detach()


@share.wrong("updates-between")
def updates_after_the_first(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.update()
    scaler.step(second)
    return loss.detach()


@share.wrong("all-or-nothing")
def skips_both(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(first)
    scaler.unscale_(second)
    both = [*encoder.parameters(), *head.parameters()]
    if all(each.grad.isfinite().all() for each in both):
        scaler.step(first)
        scaler.step(second)
    scaler.update()
    return loss.detach()


@share.wrong("one-steps")
def forgets_the_head(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.update()
    return loss.detach()


@share.wrong("one-steps")
def forgets_the_encoder(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.wrong("one-cleared")
def clears_only_the_encoder(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.wrong("one-cleared")
def clears_only_the_head(encoder, head, first, second, scaler, loss_function, inputs, targets):
    head.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.wrong("walks-twice")
def walks_back_for_each(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward(retain_graph=True)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.wrong("cut-off")
def detaches_the_features(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs).detach()), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.wrong("cut-off")
def encodes_without_gradients(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        with torch.no_grad():
            features = encoder(inputs)
        loss = loss_function(head(features), targets)
    scaler.scale(loss).backward()
    scaler.step(second)
    scaler.step(first)
    scaler.update()
    return loss.detach()


@share.wrong("pair-loss-scaled")
def returns_the_pairs_scaled_loss(encoder, head, first, second, scaler, loss_function, inputs, targets):
    scale = scaler.get_scale()
    return shares_as_documented(encoder, head, first, second, scaler, loss_function, inputs, targets) * scale


@share.wrong("pair-loss-attached")
def returns_the_pairs_graph(encoder, head, first, second, scaler, loss_function, inputs, targets):
    loss = shares_as_documented(encoder, head, first, second, scaler, loss_function, inputs, targets)
    return loss.requires_grad_()


@share.wrong("wrong-pair-loss")
def returns_half_the_loss(encoder, head, first, second, scaler, loss_function, inputs, targets):
    return shares_as_documented(encoder, head, first, second, scaler, loss_function, inputs, targets) / 2


@share.wrong("returned-none")
def returns_no_loss(*given):
    shares_as_documented(*given)


@share.wrong("basics")
def shares_and_never_updates(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    return loss.detach()


@share.wrong("basics")
def shares_no_scaler(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    loss.backward()
    first.step()
    second.step()
    return loss.detach()


@share.wrong("basics")
def steps_the_second_directly(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    second.step()
    scaler.update()
    return loss.detach()


@share.wrong("basics")
def clears_neither(encoder, head, first, second, scaler, loss_function, inputs, targets):
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.wrong("basics")
def keeps_the_head_in_fp32(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        features = encoder(inputs)
    loss = loss_function(head(features.float()), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.right
def encodes_without_activations(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        features = torch.utils.checkpoint.checkpoint(encoder, inputs, use_reentrant=False)
        loss = loss_function(head(features), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.right
def skips_each_by_hand(encoder, head, first, second, scaler, loss_function, inputs, targets):
    loss = walk_back_both(encoder, head, first, second, scaler, loss_function, inputs, targets)
    for model, optimizer in ((encoder, first), (head, second)):
        scaler.unscale_(optimizer)
        if finite(model):
            scaler.step(optimizer)
    scaler.update()
    return loss


def walk_back_both(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    return loss.detach()


@share.wrong("basics")
def copies_the_scaler_for_the_head(encoder, head, first, second, scaler, loss_function, inputs, targets):
    other = copy.deepcopy(scaler)
    loss = walk_back_both(encoder, head, first, second, scaler, loss_function, inputs, targets)
    other.scale(loss)
    scaler.step(first)
    other.step(second)
    scaler.update()
    return loss


@share.wrong("basics")
def unscales_the_head_and_steps_directly(
    encoder, head, first, second, scaler, loss_function, inputs, targets
):
    loss = walk_back_both(encoder, head, first, second, scaler, loss_function, inputs, targets)
    scaler.unscale_(second)
    scaler.step(first)
    second.step()
    scaler.update()
    return loss


@share.wrong("basics")
def walks_back_in_two_parts_one_inside(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        features = encoder(inputs)
        cut = features.detach().requires_grad_()
        loss = loss_function(head(cut), targets)
        scaler.scale(loss).backward()
    features.backward(cut.grad)
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.wrong("one-cleared")
def clears_the_head_only_of_infinities(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    if not finite(head):
        second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.wrong("basics")
def clears_both_at_first_and_after_skips(
    encoder, head, first, second, scaler, loss_function, inputs, targets
):
    if not second.state or not finite(encoder, head):
        first.zero_grad()
        second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.wrong("basics")
def shares_no_infinite_loss(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    if not loss.isfinite():
        return loss.detach()
    scaler.scale(loss).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.wrong("watcher-says")
def scales_twice_for_both(encoder, head, first, second, scaler, loss_function, inputs, targets):
    first.zero_grad()
    second.zero_grad()
    with region(inputs):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(scaler.scale(loss)).backward()
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    return loss.detach()


@share.wrong("wrong-pair")
def swaps_the_rates(encoder, head, first, second, scaler, loss_function, inputs, targets):
    second.param_groups[0]["lr"] *= 0.5
    return shares_as_documented(encoder, head, first, second, scaler, loss_function, inputs, targets)


# 7.5 A scheduler that waits


@schedule.right
def compares_scales(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    before = scaler.get_scale()
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.update()
    stepped = scaler.get_scale() >= before
    if stepped:
        scheduler.step()
    return stepped


@schedule.right
def asks_whether_it_fell(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    skipped = before > scaler.get_scale()
    if skipped:
        return False
    scheduler.step()
    return True


@schedule.right
def looks_at_gradients(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    finite = all(bool(each.grad.isfinite().all()) for each in model.parameters())
    scaler.step(optimizer)
    scaler.update()
    if finite:
        scheduler.step()
    return finite


@schedule.right
def reads_the_state(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    before = scaler.state_dict()["scale"]
    optimizer.zero_grad()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    went_well = not scaler.state_dict()["scale"] < before
    for _ in range(went_well):
        scheduler.step()
    return went_well


@schedule.right
def looks_at_the_weights(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    before = [each.detach().clone() for each in model.parameters()]
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.update()
    pairs = zip(before, model.parameters(), strict=True)
    moved = any(not torch.equal(each, now) for each, now in pairs)
    if moved:
        scheduler.step()
    return moved


@schedule.wrong("always-schedules")
def moves_always(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    before = scaler.get_scale()
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    return scaler.get_scale() >= before


@schedule.wrong("always-schedules")
def reads_too_late(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.update()
    before = scaler.get_scale()
    stepped = scaler.get_scale() >= before
    if stepped:
        scheduler.step()
    return stepped


@schedule.wrong("always-schedules")
def asks_the_loss(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    loss = backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.update()
    good = bool(loss.isfinite())
    if good:
        scheduler.step()
    return good


@schedule.wrong("fused-counts")
def counts_calls(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    called = []
    handle = optimizer.register_step_post_hook(lambda *given: called.append(1))
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    handle.remove()
    scaler.update()
    if called:
        scheduler.step()
    return bool(called)


@schedule.wrong("growth-is-skip")
def sees_a_change(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    before = scaler.get_scale()
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.update()
    stepped = scaler.get_scale() == before
    if stepped:
        scheduler.step()
    return stepped


@schedule.wrong("only-on-growth")
def waits_for_growth(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    before = scaler.get_scale()
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.update()
    stepped = scaler.get_scale() > before
    if stepped:
        scheduler.step()
    return stepped


@schedule.wrong("only-on-skip")
def compares_the_wrong_way(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    before = scaler.get_scale()
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.update()
    stepped = scaler.get_scale() < before
    if stepped:
        scheduler.step()
    return stepped


@schedule.wrong("never-schedules")
def only_reports(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    before = scaler.get_scale()
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() >= before


@schedule.wrong("never-schedules")
def trusts_the_return_value(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    stepped = scaler.step(optimizer) is not None
    scaler.update()
    if stepped:
        scheduler.step()
    return stepped


@schedule.wrong("schedules-first")
def moves_before_the_step(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    before = scaler.get_scale()
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scheduler.step()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() >= before


@schedule.wrong("schedules-first")
def moves_before_good_steps(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.unscale_(optimizer)
    finite = all(bool(each.grad.isfinite().all()) for each in model.parameters())
    if finite:
        scheduler.step()
    scaler.step(optimizer)
    scaler.update()
    return finite


def asks(good):
    """Return an answer that moves where `good(parameters, loss)` is true."""

    def answer(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
        loss = backward(model, optimizer, scaler, loss_function, inputs, targets)
        stepped = bool(good([*model.parameters()], loss))
        scaler.step(optimizer)
        scaler.update()
        if stepped:
            scheduler.step()
        return stepped

    return answer


@schedule.wrong("looks-in-part")
def asks_the_first_gradient(*given):
    return asks(lambda parameters, loss: parameters[0].grad.isfinite().all())(*given)


@schedule.wrong("looks-in-part")
def asks_the_last_gradient(*given):
    return asks(lambda parameters, loss: parameters[-1].grad.isfinite().all())(*given)


@schedule.wrong("looks-in-part")
def asks_one_number(*given):
    return asks(lambda parameters, loss: parameters[2].grad[0, 0].isfinite())(*given)


@schedule.wrong("looks-in-part")
def asks_for_nan(*given):
    return asks(lambda parameters, loss: not any(each.grad.isnan().any() for each in parameters))(*given)


@schedule.wrong("looks-in-part")
def asks_for_infinities(*given):
    return asks(lambda parameters, loss: not any(each.grad.isinf().any() for each in parameters))(*given)


@schedule.wrong("looks-in-part")
def asks_for_a_small_loss(*given):
    return asks(lambda parameters, loss: loss < 1e6)(*given)


@schedule.right
def asks_all_gradients(*given):
    return asks(lambda parameters, loss: all(each.grad.isfinite().all() for each in parameters))(*given)


@schedule.wrong("rate-by-hand")
def puts_the_rate_back(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    rate, before = optimizer.param_groups[0]["lr"], scaler.get_scale()
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    stepped = scaler.get_scale() >= before
    if not stepped:
        optimizer.param_groups[0]["lr"] = rate
    return stepped


@schedule.wrong("rate-by-hand")
def halves_the_rate_itself(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    before = scaler.get_scale()
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    scaler.update()
    stepped = scaler.get_scale() >= before
    if stepped:
        optimizer.param_groups[0]["lr"] *= 0.5
    return stepped


@schedule.wrong("wrong-schedule")
def moves_twice(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    stepped = compares_scales(model, optimizer, scaler, scheduler, loss_function, inputs, targets)
    if stepped:
        scheduler.step()
    return stepped


@schedule.wrong("wrong-report")
def reports_the_skip(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    return not compares_scales(model, optimizer, scaler, scheduler, loss_function, inputs, targets)


@schedule.wrong("wrong-report")
def reports_success_always(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    compares_scales(model, optimizer, scaler, scheduler, loss_function, inputs, targets)
    return True


@schedule.wrong("returned-none")
def reports_nothing(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    compares_scales(model, optimizer, scaler, scheduler, loss_function, inputs, targets)


@schedule.wrong("wrong-type")
def reports_a_tensor(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    return torch.tensor(compares_scales(model, optimizer, scaler, scheduler, loss_function, inputs, targets))


@schedule.wrong("basics")
def never_updates_before_comparing(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    before = scaler.get_scale()
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    scaler.step(optimizer)
    stepped = scaler.get_scale() >= before
    if stepped:
        scheduler.step()
    return stepped


@schedule.wrong("basics")
def schedules_stale_steps(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    before = scaler.get_scale()
    with region(inputs):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    stepped = scaler.get_scale() >= before
    if stepped:
        scheduler.step()
        optimizer.zero_grad()
    return stepped


@schedule.wrong("basics")
def schedules_direct_steps(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    backward(model, optimizer, scaler, loss_function, inputs, targets)
    optimizer.step()
    scheduler.step()
    return True


# 7.6 A gradient penalty


def forward(model, optimizer, loss_function, inputs, targets):
    optimizer.zero_grad()
    with region(inputs):
        return loss_function(model(inputs), targets)


def euclidean(grads):
    return sum(grad.pow(2).sum() for grad in grads).sqrt()


def end(optimizer, scaler, total):
    scaler.scale(total).backward()
    scaler.step(optimizer)
    scaler.update()
    return total.detach()


@penalty.right
def penalises_as_documented(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    scaled = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    inverse = 1.0 / scaler.get_scale()
    grads = [grad * inverse for grad in scaled]
    with region(inputs):
        norm = 0
        for grad in grads:
            norm += grad.pow(2).sum()
        norm = norm.sqrt()
        total = loss + weight * norm
    return end(optimizer, scaler, total)


@penalty.right
def takes_the_norm_in_fp32(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    parameters = [each for each in model.parameters() if each.requires_grad]
    scaled = torch.autograd.grad(scaler.scale(loss), parameters, create_graph=True)
    flat = torch.cat([grad.flatten() for grad in scaled]) / scaler.get_scale()
    total = loss + weight * torch.linalg.vector_norm(flat)
    return end(optimizer, scaler, total)


@penalty.right
def divides_the_norm(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    one = scaler.scale(torch.ones((), device=loss.device))
    grads = torch.autograd.grad(loss * one, [*model.parameters()], create_graph=True)
    norm = torch.stack([grad.norm() for grad in grads]).norm() / one
    return end(optimizer, scaler, loss + weight * norm)


@penalty.right
def scales_the_gradient_of_the_output(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    scale = torch.full_like(loss, scaler.get_scale())
    grads = torch.autograd.grad(loss, [*model.parameters()], grad_outputs=scale, create_graph=True)
    norm = euclidean([grad.double() / scale for grad in grads])
    total = loss + weight * norm.float()
    torch.autograd.backward(scaler.scale(total))
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    return total.detach()


@penalty.right
def penalises_through_grad(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    parameters = [*model.parameters()]
    scale = scaler.get_scale()
    grads = [g / scale for g in torch.autograd.grad(loss * scale, parameters, create_graph=True)]
    total = loss + weight * euclidean(grads)
    for each, grad in zip(parameters, torch.autograd.grad(scaler.scale(total), parameters), strict=True):
        each.grad = grad
    scaler.step(optimizer)
    scaler.update()
    return total.detach()


@penalty.wrong("penalty-of-scaled")
def penalises_scaled_gradients(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), model.parameters(), create_graph=True)
    return end(optimizer, scaler, loss + weight * euclidean(grads))


@penalty.wrong("first-pass-unscaled")
def forgets_the_first_scale(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
    return end(optimizer, scaler, loss + weight * euclidean(grads))


@penalty.wrong("penalty-is-constant")
def keeps_the_graph_only(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], retain_graph=True)
    norm = euclidean([grad / scaler.get_scale() for grad in grads])
    return end(optimizer, scaler, loss + weight * norm)


@penalty.wrong("penalty-is-constant")
def takes_the_item(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], create_graph=True)
    norm = euclidean([grad / scaler.get_scale() for grad in grads]).item()
    return end(optimizer, scaler, loss + weight * norm)


@penalty.wrong("graph-freed")
def frees_the_graph(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()])
    norm = euclidean([grad / scaler.get_scale() for grad in grads])
    return end(optimizer, scaler, loss + weight * norm)


@penalty.wrong("no-penalty")
def forgets_the_penalty(model, optimizer, scaler, loss_function, inputs, targets, weight):
    return end(optimizer, scaler, forward(model, optimizer, loss_function, inputs, targets))


@penalty.wrong("penalty-is-constant")
def only_adds_it_to_the_log(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], retain_graph=True)
    norm = euclidean([grad / scaler.get_scale() for grad in grads])
    return end(optimizer, scaler, loss) + weight * norm


@penalty.wrong("loss-left-out")
def trains_the_penalty_alone(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], create_graph=True)
    norm = euclidean([grad / scaler.get_scale() for grad in grads])
    end(optimizer, scaler, weight * norm)
    return (loss + weight * norm).detach()


@penalty.wrong("weight-ignored")
def forgets_the_weight(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], create_graph=True)
    return end(optimizer, scaler, loss + euclidean([grad / scaler.get_scale() for grad in grads]))


@penalty.wrong("squared-norm")
def forgets_the_root(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], create_graph=True)
    squares = sum((grad / scaler.get_scale()).square().sum() for grad in grads)
    return end(optimizer, scaler, loss + weight * squares)


@penalty.wrong("norms-summed")
def adds_norms(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], create_graph=True)
    norm = sum((grad / scaler.get_scale()).norm() for grad in grads)
    return end(optimizer, scaler, loss + weight * norm)


@penalty.wrong("norm-of-some")
def leaves_biases_out(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    matrices = [each for each in model.parameters() if each.dim() == 2]
    grads = torch.autograd.grad(scaler.scale(loss), matrices, create_graph=True)
    norm = euclidean([grad / scaler.get_scale() for grad in grads])
    return end(optimizer, scaler, loss + weight * norm)


def penalises(norm, **options):
    """Return an answer with another norm, of gradients that have been divided."""

    def answer(model, optimizer, scaler, loss_function, inputs, targets, weight):
        loss = forward(model, optimizer, loss_function, inputs, targets)
        scaled = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], create_graph=True, **options)
        penalty = norm([grad / scaler.get_scale() for grad in scaled], scaler)
        return end(optimizer, scaler, loss + weight * penalty)

    return answer


@penalty.wrong("norm-of-some")
def takes_biases_only(*given):
    return penalises(lambda grads, scaler: euclidean(grads[1::2]))(*given)


@penalty.wrong("norm-of-some")
def takes_the_first_gradient(*given):
    return penalises(lambda grads, scaler: grads[0].norm())(*given)


@penalty.wrong("norm-of-some")
def takes_the_last_layer(*given):
    return penalises(lambda grads, scaler: euclidean(grads[2:]))(*given)


@penalty.wrong("divided-too-often")
def divides_twice(*given):
    return penalises(lambda grads, scaler: euclidean(grads) / scaler.get_scale())(*given)


@penalty.wrong("divided-too-often")
def divides_what_was_not_scaled(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(loss, [*model.parameters()], create_graph=True)
    norm = euclidean([grad / scaler.get_scale() for grad in grads])
    return end(optimizer, scaler, loss + weight * norm)


@penalty.wrong("wrong-penalised-step")
def rounds_the_gradients_to_fp16(*given):
    return penalises(lambda grads, scaler: euclidean([grad.half() for grad in grads]).float())(*given)


@penalty.wrong("wrong-penalised-step")
def takes_the_mean_of_all_norms(*given):
    return penalises(lambda grads, scaler: torch.stack([grad.norm() for grad in grads]).mean())(*given)


@penalty.wrong("eps-too-large")
def adds_an_eps(*given):
    return penalises(lambda grads, scaler: (euclidean(grads) ** 2 + 1e-6).sqrt())(*given)


@penalty.wrong("penalty-is-constant")
def takes_the_norm_without_a_graph(*given):
    return penalises(lambda grads, scaler: torch.nn.utils.get_total_norm(grads))(*given)


@penalty.wrong("penalty-is-constant")
def reads_grad_and_goes_on(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    scaler.scale(loss).backward(retain_graph=True)
    norm = euclidean([each.grad / scaler.get_scale() for each in model.parameters()])
    return end(optimizer, scaler, loss + weight * norm)


@penalty.wrong("norm-of-inputs")
def takes_the_norm_of_inputs(model, optimizer, scaler, loss_function, inputs, targets, weight):
    inputs = inputs.clone().requires_grad_()
    loss = forward(model, optimizer, loss_function, inputs, targets)
    (grad,) = torch.autograd.grad(scaler.scale(loss), [inputs], create_graph=True)
    return end(optimizer, scaler, loss + weight * (grad / scaler.get_scale()).norm())


@penalty.wrong("overflow-unsaid")
def returns_nought_in_an_overflow(*given):
    total = takes_the_norm_in_fp32(*given)
    return total if total.isfinite() else torch.zeros_like(total)


@penalty.right
def needs_no_penalty_without_a_weight(model, optimizer, scaler, loss_function, inputs, targets, weight):
    if weight:
        return takes_the_norm_in_fp32(model, optimizer, scaler, loss_function, inputs, targets, weight)
    return end(optimizer, scaler, forward(model, optimizer, loss_function, inputs, targets))


@penalty.wrong("penalty-outside")
def adds_it_after_scaling(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], create_graph=True)
    norm = euclidean([grad / scaler.get_scale() for grad in grads])
    (scaler.scale(loss) + weight * norm).backward()
    scaler.step(optimizer)
    scaler.update()
    return (loss + weight * norm).detach()


@penalty.wrong("counted-twice")
def uses_backward_twice(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    scaler.scale(loss).backward(create_graph=True)
    norm = euclidean([each.grad / scaler.get_scale() for each in model.parameters()])
    total = loss + weight * norm
    for each in model.parameters():
        each.grad = each.grad.detach()
    return end(optimizer, scaler, total)


@penalty.wrong("total-scaled")
def returns_the_scaled_total(model, optimizer, scaler, loss_function, inputs, targets, weight):
    scale = scaler.get_scale()
    return scale * takes_the_norm_in_fp32(model, optimizer, scaler, loss_function, inputs, targets, weight)


@penalty.wrong("total-attached")
def returns_both_graphs(*given):
    return takes_the_norm_in_fp32(*given).requires_grad_()


@penalty.wrong("returns-loss")
def returns_the_loss_alone(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], create_graph=True)
    end(optimizer, scaler, loss + weight * euclidean([grad / scaler.get_scale() for grad in grads]))
    return loss.detach()


@penalty.wrong("wrong-total-loss")
def returns_the_norm(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], create_graph=True)
    norm = euclidean([grad / scaler.get_scale() for grad in grads])
    end(optimizer, scaler, loss + weight * norm)
    return norm.detach()


@penalty.wrong("returned-none")
def returns_no_total(*given):
    takes_the_norm_in_fp32(*given)


@penalty.wrong("basics")
def penalises_and_never_updates(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], create_graph=True)
    total = loss + weight * euclidean([grad / scaler.get_scale() for grad in grads])
    scaler.scale(total).backward()
    scaler.step(optimizer)
    return total.detach()


@penalty.wrong("basics")
def penalises_and_steps_directly(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], create_graph=True)
    total = loss + weight * euclidean([grad / scaler.get_scale() for grad in grads])
    scaler.scale(total).backward()
    optimizer.step()
    scaler.update()
    return total.detach()


@penalty.wrong("wrong-penalised-step")
def clips_besides(model, optimizer, scaler, loss_function, inputs, targets, weight):
    loss = forward(model, optimizer, loss_function, inputs, targets)
    grads = torch.autograd.grad(scaler.scale(loss), [*model.parameters()], create_graph=True)
    total = loss + weight * euclidean([grad / scaler.get_scale() for grad in grads])
    scaler.scale(total).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    return total.detach()


# 7.7 Save and resume


class Keeps:
    """What all checkpoints here have in common: the given `__init__`, and a right `save` and `load`."""

    def __init__(self, model, optimizer, scheduler, scaler):
        self.model, self.optimizer, self.scheduler, self.scaler = model, optimizer, scheduler, scaler

    def state(self):
        names = ("model", "optimizer", "scheduler", "scaler")
        return {name: getattr(self, name).state_dict() for name in names}

    def save(self, path):
        torch.save(self.state(), path)

    def restore(self, state):
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])

    def load(self, path):
        self.restore(torch.load(path, weights_only=True))


@checkpoint.right
class KeepsFour(Keeps):
    """As documented."""

    def save(self, path):
        torch.save(self.state(), path)


@checkpoint.right
class LoopsOverNames(Keeps):
    """With a loop, in another order, and to the CPU first."""

    names = ("scaler", "scheduler", "optimizer", "model")

    def save(self, path):
        state = {}
        for name in self.names:
            state[name] = getattr(self, name).state_dict()
        with open(path, "wb") as file:
            torch.save(state, file)

    def load(self, path):
        state = torch.load(path, map_location="cpu", weights_only=True)
        for name in self.names:
            if len(state[name]) > 0:
                getattr(self, name).load_state_dict(state[name])


@checkpoint.right
class KeepsAListOfStates(Keeps):
    """One state in another, and the scaler's only where there is one."""

    def save(self, path):
        parts = [each.state_dict() for each in (self.model, self.optimizer, self.scheduler)]
        torch.save({"parts": parts, "amp": self.scaler.state_dict() or None, "version": 1}, path)

    def load(self, path):
        held = torch.load(path, weights_only=True)
        for each, state in zip((self.model, self.optimizer, self.scheduler), held["parts"], strict=True):
            each.load_state_dict(state)
        if held["amp"] is not None and self.scaler.get_scale() != 1.0:
            self.scaler.load_state_dict(held["amp"])


@checkpoint.right
class LeavesTheScalerOutIfDisabled(Keeps):
    """Catches what an enabled scaler says of an empty state."""

    def load(self, path):
        state = torch.load(path, weights_only=True)
        amp = state.pop("scaler")
        self.restore(state | {"scaler": None})
        try:
            self.scaler.load_state_dict(amp)
        except (RuntimeError, KeyError, TypeError, ValueError):
            if amp:
                raise


@checkpoint.right
class SavesATuple(Keeps):
    """The four states, without names."""

    def save(self, path):
        torch.save(tuple(self.state().values()), path)

    def load(self, path):
        names = ("model", "optimizer", "scheduler", "scaler")
        self.restore(dict(zip(names, torch.load(path, weights_only=True), strict=True)))


@checkpoint.right
class SavesTheRandomNumbersToo(Keeps):
    """More than was asked for."""

    def save(self, path):
        torch.save([self.state(), torch.get_rng_state()], path)

    def load(self, path):
        state, drawn = torch.load(path, weights_only=True)
        torch.set_rng_state(drawn)
        self.restore(state)


@checkpoint.wrong("scale-lost")
class ForgetsTheScaler(Keeps):
    def state(self):
        return super().state() | {"scaler": {}}


@checkpoint.wrong("scale-lost")
class SavesAndForgetsTheScaler(Keeps):
    def restore(self, state):
        super().restore(state | {"scaler": {}})


@checkpoint.wrong("clean-steps-lost")
class KeepsOnlyTheScale(Keeps):
    def restore(self, state):
        super().restore(state | {"scaler": {}})
        if state["scaler"] and self.scaler.state_dict():
            fresh = self.scaler.state_dict()
            self.scaler.load_state_dict(state["scaler"] | {"_growth_tracker": fresh["_growth_tracker"]})


@checkpoint.wrong("weights-lost")
class KeepsParametersOnly(Keeps):
    def state(self):
        return super().state() | {"model": dict(self.model.named_parameters())}

    def restore(self, state):
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in state["model"].items():
                own[name].copy_(value)
        super().restore(state | {"model": self.model.state_dict()})


@checkpoint.wrong("weights-lost")
class ForgetsTheModel(Keeps):
    def restore(self, state):
        super().restore(state | {"model": self.model.state_dict()})


@checkpoint.wrong("weights-lost")
class SavesHalves(Keeps):
    def state(self):
        halves = {name: value.half() for name, value in self.model.state_dict().items()}
        return super().state() | {"model": halves}


@checkpoint.wrong("momenta-lost")
class ForgetsTheOptimizer(Keeps):
    def restore(self, state):
        super().restore(state | {"optimizer": self.optimizer.state_dict()})
        for group, rate in zip(self.optimizer.param_groups, self.scheduler.get_last_lr(), strict=True):
            group["lr"] = rate


@checkpoint.wrong("schedule-lost")
class ForgetsTheScheduler(Keeps):
    def restore(self, state):
        super().restore(state | {"scheduler": self.scheduler.state_dict()})


@checkpoint.wrong("momenta-lost")
class ForgetsOptimizerAndRate(Keeps):
    def restore(self, state):
        super().restore(state | {"optimizer": self.optimizer.state_dict()})


@checkpoint.wrong("pickled-objects")
class PicklesObjects(Keeps):
    def save(self, path):
        torch.save({"model": self.model, "optimizer": self.optimizer.state_dict()}, path)


@checkpoint.wrong("pickled-objects")
class PicklesTheScheduler(Keeps):
    def save(self, path):
        torch.save(self.state() | {"scheduler": self.scheduler}, path)

    def load(self, path):
        self.restore(torch.load(path, weights_only=False))


@checkpoint.wrong("pickled-objects")
class PicklesAnUnknownKind(Keeps):
    def save(self, path):
        torch.save(self.state() | {"path": path}, path)


@checkpoint.wrong("cannot-be-saved")
class ForgetsTheParentheses(Keeps):
    def save(self, path):
        torch.save(self.state() | {"scaler": self.scaler.state_dict}, path)


@checkpoint.wrong("cannot-be-saved")
class SavesTheScalerItself(Keeps):
    def save(self, path):
        torch.save(self.state() | {"scaler": self.scaler}, path)


@checkpoint.wrong("no-file")
class SavesElsewhere(Keeps):
    def save(self, path):
        self.saved = self.state()


@checkpoint.wrong("no-file")
class AddsASuffix(Keeps):
    def save(self, path):
        torch.save(self.state(), f"{path}.tmp")


@checkpoint.wrong("save-disturbs")
class HalvesInPlace(Keeps):
    def save(self, path):
        torch.save(self.state(), path)
        self.model.eval()


@checkpoint.wrong("save-disturbs")
class UpdatesFirst(Keeps):
    def save(self, path):
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.9
        torch.save(self.state(), path)


@checkpoint.wrong("save-disturbs")
class ClearsGradients(Keeps):
    def save(self, path):
        self.optimizer.zero_grad()
        torch.save(self.state(), path)


@checkpoint.wrong("save-disturbs")
class Reseeds(Keeps):
    def save(self, path):
        torch.manual_seed(0)
        torch.save(self.state(), path)


@checkpoint.wrong("save-disturbs")
class SavesInFp64(Keeps):
    def save(self, path):
        self.model.double()
        torch.save(self.state(), path)


@checkpoint.wrong("save-disturbs")
class FreezesFirst(Keeps):
    def save(self, path):
        self.model.requires_grad_(False)
        torch.save(self.state(), path)


@checkpoint.wrong("objects-changed")
class LoadsForInference(Keeps):
    def restore(self, state):
        super().restore(state)
        self.model.eval()


@checkpoint.wrong("objects-changed")
class FreezesOnLoad(Keeps):
    def restore(self, state):
        super().restore(state)
        self.model.requires_grad_(False)


@checkpoint.wrong("objects-changed")
class AssignsTheWeights(Keeps):
    def restore(self, state):
        self.model.load_state_dict(state["model"], assign=True)
        super().restore(state | {"model": self.model.state_dict()})


@checkpoint.wrong("run-broken")
class WritesTheScaleAsANumber(Keeps):
    def restore(self, state):
        super().restore(state | {"scaler": {}})
        if state["scaler"]:
            self.scaler._scale = state["scaler"]["scale"]


@checkpoint.wrong("objects-changed")
class EmptiesTheGroups(Keeps):
    def restore(self, state):
        super().restore(state)
        self.optimizer.param_groups.clear()


@checkpoint.wrong("run-broken")
class LosesTheRate(Keeps):
    def restore(self, state):
        super().restore(state)
        for group in self.optimizer.param_groups:
            group["lr"] = None


@checkpoint.wrong("schedule-lost")
class KeepsTheEpochOnly(Keeps):
    def restore(self, state):
        epoch = state["scheduler"]["last_epoch"]
        super().restore(state | {"scheduler": self.scheduler.state_dict()})
        self.scheduler.last_epoch = epoch


@checkpoint.wrong("momenta-lost")
class KeepsRatesAndMomentaOnly(Keeps):
    def restore(self, state):
        own = self.optimizer.state_dict()
        for group, saved in zip(own["param_groups"], state["optimizer"]["param_groups"], strict=True):
            group["lr"] = saved["lr"]
        super().restore(state | {"optimizer": own | {"state": state["optimizer"]["state"]}})


@checkpoint.wrong("weights-lost")
class KeepsItInTheClass(Keeps):
    def save(self, path):
        type(self).kept = copy.deepcopy(self.state())
        torch.save({}, path)

    def load(self, path):
        self.restore(type(self).kept)


@checkpoint.wrong("weights-lost")
class SavesWhatItFirstSaw(Keeps):
    def __init__(self, *parts):
        super().__init__(*parts)
        self.kept = copy.deepcopy(self.state())

    def save(self, path):
        torch.save(self.kept, path)


@checkpoint.wrong("scale-lost")
class LoadsTheScaleIfItIsLower(Keeps):
    def restore(self, state):
        amp = state["scaler"]
        lower = amp and amp["scale"] < self.scaler.get_scale()
        super().restore(state | {"scaler": amp if lower else {}})


@checkpoint.wrong("fresh-scale-lost")
class FallsBackToTheUsualScale(Keeps):
    def restore(self, state):
        super().restore(state)
        if not state["scaler"] and self.scaler.state_dict():
            self.scaler.update(65536.0)


@checkpoint.wrong("empty-state")
class LoadsEmptyStates(Keeps):
    def restore(self, state):
        self.scaler.load_state_dict(state["scaler"])
        super().restore(state)


@checkpoint.wrong("empty-state")
class ExpectsTheScale(Keeps):
    def restore(self, state):
        if self.scaler.get_scale() != state["scaler"]["scale"]:
            self.scaler.load_state_dict(state["scaler"])
        super().restore(state)


@checkpoint.wrong("fresh-scale-lost")
class FallsToOne(Keeps):
    def restore(self, state):
        super().restore(state)
        if not state["scaler"] and self.scaler.state_dict():
            self.scaler.load_state_dict(self.scaler.state_dict() | {"scale": 1.0})


# 7.8 Read the log


@read.right
def names_them():
    return {"A": "w", "B": "q", "C": "p", "D": "u", "E": "s", "F": "t"}


@read.right
def zips_them():
    return dict(zip("ABCDEF", "wqpust", strict=True))


@read.right
def collects_them():
    faults = {}
    for pair in ("Ft", "Es", "Du", "Cp", "Bq", "Aw"):
        run, fault = pair
        faults[run] = fault
    return faults


@read.right
def maps_them_back():
    runs = {"w": "A", "q": "B", "p": "C", "u": "D", "s": "E", "t": "F"}
    return {run: fault for fault, run in runs.items()}


def reads(**changed):
    return names_them() | changed


@read.wrong("run-A")
def takes_skips_for_a_fault():
    return reads(A="r")


@read.wrong("run-A")
def takes_healthy_for_scheduled():
    return reads(A="s", E="w")


@read.wrong("run-B")
def takes_gradients_for_activations():
    return reads(B="u", D="q")


@read.wrong("run-B")
def takes_sinking_for_growing():
    return reads(B="r")


@read.wrong("run-C")
def takes_short_steps_for_lost_gradients():
    return reads(C="v")


@read.wrong("run-D")
def takes_nan_for_lost_gradients():
    return reads(D="v")


@read.wrong("run-E")
def takes_skips_for_growth():
    return reads(E="r")


@read.wrong("run-F")
def takes_resumed_for_growth():
    return reads(F="r")


@read.wrong("said-twice")
def says_healthy_twice():
    return reads(E="w")


@read.wrong("run-missing")
def leaves_one_out():
    return {"A": "w", "B": "q", "C": "p", "D": "u", "E": "s"}


@read.wrong("no-such-run")
def has_one_too_many():
    return reads(G="v")


@read.wrong("no-such-fault")
def writes_words():
    return reads(A="healthy")


@read.wrong("no-such-fault")
def writes_capitals():
    return reads(A="W")


@read.wrong("wrong-type")
def returns_a_list():
    return [*"wqpust"]


@read.wrong("returned-none")
def returns_no_faults():
    pass


# 7.9 Find the overflow


def first(model, loss_fn, batches, passes=lambda found: found.ok or (found.scale or 0) >= 1):
    """Return the number and the report of the first batch that is not passed over, or None twice."""
    for number, batch in enumerate(batches):
        found = find_overflow(model, loss_fn, batch, device_type="cuda")
        if not passes(found):
            return number, found
    return None, None


@find.right
def asks_for_the_largest_scale(model, loss_fn, batches):
    for number, batch in enumerate(batches):
        found = find_overflow(model, loss_fn, batch, device_type="cuda")
        if not found.ok and (found.scale is None or found.scale < 1):
            return number, found.module, found.phase, found.scale


@find.right
def asks_for_the_cause(model, loss_fn, batches):
    reports = ((n, find_overflow(model, loss_fn, each)) for n, each in enumerate(batches))
    broken = ((n, r) for n, r in reports if r.cause not in {"none", "scale-too-large"})
    number, report = next(broken, (None, None))
    return (
        None
        if report is None
        else (number, report.module, report.phase, report.scale if report.cures else None)
    )


@find.right
def asks_through_closures(model, loss_fn, batches):
    for number, (inputs, targets) in enumerate(batches):

        def loss_of(inputs=inputs, targets=targets):
            with region(inputs):
                return loss_fn(model(inputs), targets)

        found = find_overflow(model, loss_of, device_type="cuda")
        if not (found.ok or (found.cures and found.scale >= 1)):
            return (number, found.module, found.phase, found.scale)
    return None


class Followed(torch.overrides.TorchFunctionMode):
    """Notes which module first makes infinity or NaN of finite numbers, on the way forward and on the way back."""

    def __init__(self, model):
        super().__init__()
        self.inside, self.forward, self.backward, self.handles = [], None, None, []
        for name, each in model.named_modules():
            self.handles += [
                each.register_forward_pre_hook(lambda *_, name=name: self.inside.append(name)),
                each.register_forward_hook(lambda *_: (self.inside.pop(), None)[1]),
            ]

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if not isinstance(result, torch.Tensor) or not result.is_floating_point() or not self.inside:
            return result
        name = self.inside[-1]
        with torch._C.DisableTorchFunction():
            read = [each for each in args if isinstance(each, torch.Tensor)]
            fine = all(each.isfinite().all() for each in read)
            if self.forward is None and fine and not result.isfinite().all():
                self.forward = name
            if result.requires_grad:
                came = []
                result.register_hook(lambda grad: came.append(bool(grad.isfinite().all())) and None)
                looks = [each for each in read if each.requires_grad]
                self.handles += [
                    each.register_hook(lambda grad: self.look(grad, came, name)) for each in looks
                ]
        return result

    def look(self, grad, came, name):
        if self.backward is None and came == [True] and not grad.isfinite().all():
            self.backward = name


@find.right
def follows_by_hand(model, loss_fn, batches):
    """Without `find_overflow`: with hooks, and one run for each scale."""
    weights = [*model.parameters()]

    def run(batch, scale):
        with region(batch[0]):
            loss = loss_fn(model(batch[0]), batch[1])
        grads = torch.autograd.grad(loss * scale, weights)
        return bool(loss.isfinite()), all(bool(each.isfinite().all()) for each in grads)

    for number, batch in enumerate(batches):
        scales = [2.0**each for each in range(16, -25, -1)]
        cure = next((scale for scale in scales if all(run(batch, scale))), None)
        if cure is None or cure < 1:
            with Followed(model) as seen:
                finite, _ = run(batch, 1.0)
            for each in seen.handles:
                each.remove()
            return (
                (number, seen.backward, "backward", cure)
                if finite
                else (number, seen.forward, "forward", cure)
            )
    return None


@find.wrong("blames-healthy")
def takes_what_needs_no_cure_for_incurable(model, loss_fn, batches):
    for number, batch in enumerate(batches):
        found = find_overflow(model, loss_fn, batch, device_type="cuda")
        if not found.cures:  # it is false for a batch that is fine, too
            return number, found.module, found.phase, found.scale


@find.wrong("stops-at-scale")
def stops_at_the_first_that_is_not_ok(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches, lambda found: found.ok)
    return None if found is None else (number, found.module, found.phase, found.scale)


@find.wrong("looks-at-loss")
def passes_over_what_a_scale_cures(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches, lambda found: found.ok or found.cures)
    return None if found is None else (number, found.module, found.phase, found.scale)


@find.wrong("looks-at-loss")
def looks_for_a_loss_that_is_not_finite(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches, lambda found: found.phase != "forward")
    return None if found is None else (number, found.module, found.phase, found.scale)


@find.wrong("passes-over")
def never_finds_any(model, loss_fn, batches):
    return None


@find.wrong("later-batch")
def finds_the_last(model, loss_fn, batches):
    broken = None
    for number, batch in enumerate(batches):
        found = find_overflow(model, loss_fn, batch)
        if not found.ok and (found.scale or 0) < 1:
            broken = number, found.module, found.phase, found.scale
    return broken


@find.wrong("blames-healthy")
def returns_always_the_first(model, loss_fn, batches):
    found = find_overflow(model, loss_fn, batches[0])
    return 0, found.module or "", found.phase or "forward", found.scale


@find.wrong("no-such-batch")
def counts_from_one(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number + 2, found.module, found.phase, found.scale)


@find.wrong("other-phase")
def takes_every_fault_for_one_of_the_gradients(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, found.module, "backward", found.scale)


@find.wrong("other-phase")
def takes_what_no_scale_cures_for_forward(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return (
        None
        if found is None
        else (number, found.module, "backward" if found.cures else "forward", found.scale)
    )


@find.wrong("first-to-end")
def asks_forward_hooks(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    if found is None:
        return None
    ended = []
    handles = [
        each.register_forward_hook(
            lambda _, __, out, name=name: ended.append(name) if out.isnan().any() else None
        )
        for name, each in model.named_modules()
    ]
    with torch.no_grad(), region(batches[number][0]):
        model(batches[number][0])
    for each in handles:
        each.remove()
    return number, ended[0] if ended else found.module, found.phase, found.scale


@find.wrong("first-bad-gradient")
def takes_the_first_infinite_gradient(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    if found is None:
        return None
    bad = [name for each in found.replays if each.scale == 1 and not each.fp32 for name in each.bad]
    module = bad[0].rpartition(".")[0] if found.phase == "backward" else found.module
    return number, module, found.phase, found.scale


@find.wrong("no-such-module")
def names_the_class(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, found.module_type, found.phase, found.scale)


@find.wrong("no-such-module")
def names_the_operator(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, found.op, found.phase, found.scale)


@find.wrong("outer-module")
def names_the_layer(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, found.module.rpartition(".")[0], found.phase, found.scale)


@find.wrong("no-cure-forward")
def returns_the_scaler_s_start(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, found.module, found.phase, found.scale or 2.0**16)


@find.wrong("no-cure-backward")
def takes_every_gradient_for_too_large(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    if found is None:
        return None
    scale = found.scale or 2.0**-24
    return number, found.module, found.phase, scale if found.phase == "backward" else None


@find.wrong("gives-up")
def believes_that_no_scale_is_below_one(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, found.module, found.phase, None)


@find.wrong("too-large")
def returns_the_scale_that_breaks(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return (
        None
        if found is None
        else (number, found.module, found.phase, 2 * found.scale if found.scale else None)
    )


@find.wrong("not-largest")
def returns_the_first_replay_that_is_finite(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    if found is None:
        return None
    return number, found.module, found.phase, 2.0**-8 if found.cures else None


@find.wrong("no-such-module")
def hard_codes_the_demo(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, "layers.1.attn", found.phase, found.scale)


@find.wrong("not-four")
def leaves_the_scale_out(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, found.module, found.phase)


@find.wrong("no-such-phase")
def returns_the_cause(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, found.module, found.cause, found.scale)


@find.wrong("no-such-scale")
def writes_none_in_quotes(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, found.module, found.phase, str(found.scale))


@find.wrong("model-changed")
def walks_back_into_grad(model, loss_fn, batches):
    for number, (inputs, targets) in enumerate(batches):
        with region(inputs):
            loss = loss_fn(model(inputs), targets)
        loss.backward()
        if not all(each.grad.isfinite().all() for each in model.parameters()):
            return number, "", "backward", None
    return None


@find.wrong("wrong-type")
def returns_the_report(model, loss_fn, batches):
    return first(model, loss_fn, batches)[1]


def broken(model, loss_fn, batches):
    """Return the four, as a list; None if no batch breaks."""
    number, found = first(model, loss_fn, batches)
    return None if found is None else [number, found.module, found.phase, found.scale]


def finite_at(model, loss_fn, batch, scale):
    with region(batch[0]):
        loss = loss_fn(model(batch[0]), batch[1])
    grads = torch.autograd.grad(scale * loss, [*model.parameters()])
    return bool(loss.isfinite()) and all(bool(each.isfinite().all()) for each in grads)


@find.right
def asks_a_copy_at_scale_one_alone(model, loss_fn, batches):
    mine = copy.deepcopy(model).eval()
    for number, each in enumerate(batches):
        if not finite_at(mine, loss_fn, each, 1.0):
            found = find_overflow(mine, loss_fn, each, scales=(1.0,))
            return number, found.module, found.phase, found.scale


@find.right
def gives_numbers_of_numpy(model, loss_fn, batches):
    fine = [finite_at(model, loss_fn, each, 1.0) for each in batches]
    if all(fine):
        return None
    number = np.argmin(fine)
    powers = np.exp2(np.arange(-24, 0, dtype=np.float32))
    cures = [each for each in powers if finite_at(model, loss_fn, batches[number], float(each))]
    found = find_overflow(model, loss_fn, batches[number])
    return number, found.module, found.phase, max(cures, default=None)


class Made(typing.NamedTuple):
    index: int
    module: str
    phase: str
    scale: float | None


@find.right
def names_the_four(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    return found and Made(*found)


@find.wrong("wrong-type")
def returns_the_four_in_a_list(model, loss_fn, batches):
    return broken(model, loss_fn, batches)


@find.wrong("wrong-type")
def returns_a_dict(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    return found and Made(*found)._asdict()


@find.wrong("wrong-type")
def yields(model, loss_fn, batches):
    yield tuple(broken(model, loss_fn, batches))


@find.wrong("passes-over")
def only_prints(model, loss_fn, batches):
    print(broken(model, loss_fn, batches))


@find.wrong("passes-over")
def takes_the_first_number_for_false(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    return tuple(found) if found and found[0] else None


@find.wrong("passes-over")
def catches_its_own_mistake(model, loss_fn, batches):
    try:
        for number, (inputs, targets) in enumerate(batches):
            found = find_overflow(model, inputs, targets, loss_fn)
            if not found.ok:
                return number, found.module, found.phase, found.scale
    except Exception:
        pass


@find.wrong("passes-over")
def looks_in_fp32(model, loss_fn, batches):
    for number, each in enumerate(batches):
        found = find_overflow(model, loss_fn, each)
        if not all(run.finite for run in found.replays if run.fp32):
            return number, found.module, found.phase, found.scale


@find.wrong("stops-at-scale")
def tries_the_first_scale_only(model, loss_fn, batches):
    for number, each in enumerate(batches):
        if not finite_at(model, loss_fn, each, 2.0**16):
            found = find_overflow(model, loss_fn, each)
            return number, found.module, found.phase, found.scale


@find.wrong("blames-healthy")
def numbers_what_breaks_only(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    return found and (0, *found[1:])


@find.wrong("no-such-batch")
def returns_nones_where_nothing_breaks(model, loss_fn, batches):
    return tuple(broken(model, loss_fn, batches) or [None] * 4)


@find.wrong("no-such-batch")
def numbers_with_a_tensor(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    return found and (torch.tensor(found[0]), *found[1:])


@find.wrong("no-such-phase")
def begins_the_phase_with_a_capital(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, found.module, found.phase.title(), found.scale)


@find.wrong("no-such-scale")
def returns_the_exponent(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    return found and (*found[:3], found[3] and math.log2(found[3]))


@find.wrong("no-such-scale")
def returns_a_scale_between_two_powers(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    return found and (*found[:3], found[3] and 1.25 * found[3])


@find.wrong("no-such-scale")
def returns_a_number_without_end(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    return found and (*found[:3], 10**400)


@find.wrong("no-such-scale")
def returns_the_scale_as_a_tensor(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    return found and (*found[:3], found[3] and torch.tensor(found[3]))


@find.wrong("not-largest")
def returns_the_smallest_scale(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    return found and (*found[:3], found[3] and 2.0**-24)


@find.wrong("too-large")
def knows_one_scale_by_heart(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    return found and (*found[:3], found[3] and 2.0**-2)


@find.wrong("no-such-module")
def returns_the_module_itself(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, model.get_submodule(found.module), found.phase, found.scale)


@find.wrong("no-such-module")
def begins_the_path_with_the_model(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, f"model.{found.module}", found.phase, found.scale)


@find.wrong("outer-module")
def names_the_outermost(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    return None if found is None else (number, "", found.phase, found.scale)


@find.wrong("other-module")
def looks_for_attention_in_the_forward_pass(model, loss_fn, batches):
    """By the names: where a forward pass breaks, there attention is at fault."""
    number, found = first(model, loss_fn, batches)
    if found is None:
        return None
    by_name = [name for name, _ in model.named_modules() if name.endswith("attn")]
    module = by_name[0] if found.phase == "forward" else found.module
    return number, module, found.phase, found.scale


@find.wrong("other-module")
def takes_the_first_norm(model, loss_fn, batches):
    """By the names, from the front: the backward pass comes from the other end."""
    number, found = first(model, loss_fn, batches)
    if found is None:
        return None
    no_range = found.phase == "backward" and found.scale is None
    by_name = [name for name, _ in model.named_modules() if name.endswith("norm")]
    return number, by_name[0] if no_range else found.module, found.phase, found.scale


@find.wrong("only-when-scaled")
def looks_at_the_largest_scale(model, loss_fn, batches):
    """At 2^16 the first gradient that passes 65504 is one of the head's."""
    number, found = first(model, loss_fn, batches)
    if found is None:
        return None
    return (
        number,
        "head" if found.phase == "backward" and found.cures else found.module,
        found.phase,
        found.scale,
    )


@find.wrong("only-when-scaled")
def takes_the_gradient_of_the_loss(model, loss_fn, batches):
    number, found = first(model, loss_fn, batches)
    if found is None:
        return None
    return number, "" if found.cures else found.module, found.phase, found.scale


@find.wrong("model-changed")
def evaluates(model, loss_fn, batches):
    model.eval()
    found = broken(model, loss_fn, batches)
    return found and tuple(found)


@find.wrong("model-changed")
def evaluates_a_part(model, loss_fn, batches):
    model.layers[1].eval()
    found = broken(model, loss_fn, batches)
    return found and tuple(found)


@find.wrong("model-changed")
def leaves_its_hooks(model, loss_fn, batches):
    model.head.register_forward_hook(lambda module, inputs, result: None)
    found = broken(model, loss_fn, batches)
    return found and tuple(found)


@find.wrong("model-changed")
def leaves_hooks_on_weights(model, loss_fn, batches):
    for each in model.parameters():
        each.register_hook(lambda grad: None)
    found = broken(model, loss_fn, batches)
    return found and tuple(found)


@find.wrong("model-changed")
def freezes(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    model.embed.requires_grad_(False)
    return found and tuple(found)


@find.wrong("model-changed")
def casts_by_hand(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    model.half()
    return found and tuple(found)


@find.wrong("model-changed")
def sends_the_model_away(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    model.to("meta")
    return found and tuple(found)


@find.wrong("model-changed")
def prunes(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    del model.layers[2]
    return found and tuple(found)


@find.wrong("model-changed")
def repairs(model, loss_fn, batches):
    found = broken(model, loss_fn, batches)
    with torch.no_grad():
        model.embed.weight.div_(2)
    return found and tuple(found)


@find.wrong("mutated-input")
def takes_the_batches_out(model, loss_fn, batches):
    number = -1
    while batches:
        number, found = number + 1, find_overflow(model, loss_fn, batches.pop(0))
        if not found.ok and (found.scale or 0) < 1:
            return number, found.module, found.phase, found.scale


@find.wrong("mutated-input")
def makes_the_targets_smaller(model, loss_fn, batches):
    for _, targets in batches:
        targets.div_(2)
    found = broken(model, loss_fn, batches)
    return found and tuple(found)
