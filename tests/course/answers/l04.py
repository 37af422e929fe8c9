"""Answers to the exercises of lesson 04."""

import functools
import itertools
import math
import statistics
from fractions import Fraction

import numpy as np
import torch

from amp_lab.scaling import StaticLossScaler
from tests.course.bank import Bank

scaled_backward = Bank("4.1")
pick_scale = Bank("4.2")
clip_scaled = Bank("4.3")
accumulate = Bank("4.4")
BANKS = (scaled_backward, pick_scale, clip_scaled, accumulate)


def _set_aside(parameters):
    """Return the gradients that are there and leave none."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return before


def _add_back(parameters, before):
    for parameter, old in zip(parameters, before, strict=True):
        if parameter.grad is None:
            parameter.grad = old
        elif old is not None:
            parameter.grad += old


def _unscale(parameters, scale):
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad /= scale


# 4.1 Scale, walk back, unscale


def _scaled_well(loss, parameters, scale):
    before = _set_aside(parameters)
    (loss * scale).backward()
    _unscale(parameters, scale)
    _add_back(parameters, before)


@scaled_backward.wrong("not-scaled")
def walks_back_as_ever(loss, parameters, scale):
    loss.backward()


@scaled_backward.wrong("not-scaled")
def drops_the_scaled_loss(loss, parameters, scale):
    loss * scale
    loss.backward()


@scaled_backward.wrong("only-unscales")
def unscales_what_was_never_scaled(loss, parameters, scale):
    before = _set_aside(parameters)
    loss.backward()
    _unscale(parameters, scale)
    _add_back(parameters, before)


@scaled_backward.wrong("scales-the-gradients")
def scales_the_gradients(loss, parameters, scale):
    loss.backward()
    for parameter in parameters:
        parameter.grad *= scale


@scaled_backward.wrong("not-unscaled")
def forgets_to_unscale(loss, parameters, scale):
    (loss * scale).backward()


@scaled_backward.wrong("not-unscaled")
def unscales_a_local_name(loss, parameters, scale):
    (loss * scale).backward()
    for parameter in parameters:
        grad = parameter.grad
        grad = grad / scale


@scaled_backward.wrong("divides-the-loss")
def divides_the_loss(loss, parameters, scale):
    (loss / scale).backward()


@scaled_backward.wrong("divides-the-loss")
def divides_first_and_multiplies_later(loss, parameters, scale):
    (loss / scale).backward()
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad *= scale


@scaled_backward.wrong("divides-the-loss")
def divides_both(loss, parameters, scale):
    (loss / scale).backward()
    _unscale(parameters, scale)


@scaled_backward.wrong("scales-twice")
def multiplies_at_both_ends(loss, parameters, scale):
    (loss * scale).backward()
    for parameter in parameters:
        parameter.grad.mul_(scale)


@scaled_backward.wrong("unscales-twice")
def unscales_once_more(loss, parameters, scale):
    before = _set_aside(parameters)
    (loss * scale).backward()
    _unscale(parameters, scale)
    _unscale(parameters, scale)
    _add_back(parameters, before)


@scaled_backward.wrong("first-only")
def returns_inside_the_loop(loss, parameters, scale):
    (loss * scale).backward()
    for parameter in parameters:
        parameter.grad /= scale
        return


@scaled_backward.wrong("weights-changed")
def takes_a_tiny_step(loss, parameters, scale):
    (loss * scale).backward()
    for parameter in parameters:
        parameter.data -= 0.01 * parameter.grad / scale


@scaled_backward.wrong("left-alone")
def makes_the_loss_anew(loss, parameters, scale):
    torch.tensor(loss.item() * scale, requires_grad=True).backward()


@scaled_backward.wrong("old-unscaled")
def lets_pytorchs_scaler_unscale_all(loss, parameters, scale):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(loss).backward()
    scaler.unscale_(torch.optim.SGD(parameters, lr=0.1))


@scaled_backward.wrong("whole-numbers")
def divides_to_whole_numbers(loss, parameters, scale):
    (loss * scale).backward()
    for parameter in parameters:
        parameter.grad //= scale


@scaled_backward.wrong("scale-in-half")
def scales_a_half_loss(loss, parameters, scale):
    (loss.half() * scale).backward()
    _unscale(parameters, scale)


@scaled_backward.wrong("scale-in-half")
def makes_the_scale_a_half(loss, parameters, scale):
    scale = torch.tensor(scale, dtype=torch.float16)
    (loss * scale).backward()
    for parameter in parameters:
        parameter.grad /= scale


@scaled_backward.wrong("scale-in-half")
def unscales_by_a_half(loss, parameters, scale):
    (loss * scale).backward()
    for parameter in parameters:
        parameter.grad /= torch.tensor(scale).half()


@scaled_backward.wrong("unscales-in-half")
def unscales_in_half(loss, parameters, scale):
    before = _set_aside(parameters)
    (loss * scale).backward()
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = (parameter.grad.half() / scale).float()
    _add_back(parameters, before)


@scaled_backward.wrong("unscales-in-half")
def keeps_unscaled_gradients_in_half(loss, parameters, scale):
    grads = torch.autograd.grad(loss * scale, parameters, allow_unused=True)
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is not None:
            fresh = (grad / scale).to(torch.float16).to(torch.float32)
            parameter.grad = fresh if parameter.grad is None else parameter.grad + fresh


@scaled_backward.wrong("clears")
def clears_first(loss, parameters, scale):
    for parameter in parameters:
        parameter.grad = None
    (loss * scale).backward()
    _unscale(parameters, scale)


@scaled_backward.wrong("clears")
def clears_with_zeros(loss, parameters, scale):
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()
    (loss * scale).backward()
    _unscale(parameters, scale)


@scaled_backward.wrong("clears")
def overwrites(loss, parameters, scale):
    grads = torch.autograd.grad(loss * scale, parameters, allow_unused=True)
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is not None:
            parameter.grad = grad / scale


@scaled_backward.wrong("old-unscaled")
def unscales_everything(loss, parameters, scale):
    (loss * scale).backward()
    _unscale(parameters, scale)


@scaled_backward.wrong("old-unscaled")
def unscales_with_hooks_after_accumulation(loss, parameters, scale):
    def divide(parameter):
        parameter.grad.div_(scale)

    handles = [each.register_post_accumulate_grad_hook(divide) for each in parameters]
    (loss * scale).backward()
    for handle in handles:
        handle.remove()


@scaled_backward.wrong("old-in-place")
def takes_a_name_for_a_copy(loss, parameters, scale):
    before = [parameter.grad for parameter in parameters]
    (loss * scale).backward()
    for parameter, old in zip(parameters, before, strict=True):
        if parameter.grad is None:
            continue
        parameter.grad = parameter.grad / scale if old is None else old + (parameter.grad - old) / scale


@scaled_backward.wrong("old-in-place")
def takes_a_name_and_clears_with_zeros(loss, parameters, scale):
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()
    (loss * scale).backward()
    _unscale(parameters, scale)
    _add_back(parameters, before)


@scaled_backward.wrong("old-in-place")
def takes_a_name_and_adds_it(loss, parameters, scale):
    before = [parameter.grad for parameter in parameters]
    (loss * scale).backward()
    _unscale(parameters, scale)
    _add_back(parameters, before)


@scaled_backward.wrong("old-in-place")
def unscales_only_what_was_empty(loss, parameters, scale):
    empty = [parameter for parameter in parameters if parameter.grad is None]
    (loss * scale).backward()
    _unscale(empty, scale)


@scaled_backward.wrong("old-twice")
def adds_a_copy_of_what_is_still_there(loss, parameters, scale):
    before = [None if each.grad is None else each.grad.clone() for each in parameters]
    (loss * scale).backward()
    _unscale(parameters, scale)
    _add_back(parameters, before)


@scaled_backward.wrong("old-twice")
def subtracts_and_adds_twice(loss, parameters, scale):
    before = [None if each.grad is None else each.grad.clone() for each in parameters]
    grads = torch.autograd.grad(loss * scale, parameters, allow_unused=True)
    for parameter, grad, old in zip(parameters, grads, before, strict=True):
        if grad is not None:
            parameter.grad = grad / scale + (0 if old is None else parameter.grad + old)


@scaled_backward.wrong("old-scaled")
def scales_what_was_there(loss, parameters, scale):
    before = _set_aside(parameters)
    (loss * scale).backward()
    _unscale(parameters, scale)
    _add_back(parameters, [None if old is None else old * scale for old in before])


@scaled_backward.wrong("hooks-left")
def leaves_its_hooks(loss, parameters, scale):
    for parameter in parameters:
        parameter.register_hook(lambda grad: grad / scale)
    (scale * loss).backward()


@scaled_backward.wrong("left-alone")
def returns_the_gradients(loss, parameters, scale):
    grads = torch.autograd.grad(loss * scale, parameters, allow_unused=True)
    return [grad / scale for grad in grads]


@scaled_backward.wrong("left-alone")
def only_scales(loss, parameters, scale):
    loss = loss * scale


@scaled_backward.wrong("idle-crashes")
def expects_a_gradient_everywhere(loss, parameters, scale):
    before = _set_aside(parameters)
    (loss * scale).backward()
    for parameter in parameters:
        parameter.grad.div_(scale)
    _add_back(parameters, before)


@scaled_backward.wrong("idle-crashes")
def expects_every_parameter_in_the_graph(loss, parameters, scale):
    for parameter, grad in zip(parameters, torch.autograd.grad(loss * scale, parameters), strict=True):
        parameter.grad = grad / scale if parameter.grad is None else parameter.grad + grad / scale


@scaled_backward.wrong("loss-changed")
def scales_the_loss_in_place(loss, parameters, scale):
    before = _set_aside(parameters)
    loss *= scale
    loss.backward()
    _unscale(parameters, scale)
    _add_back(parameters, before)


@scaled_backward.wrong("weights-changed")
def unscales_the_weights(loss, parameters, scale):
    (loss * scale).backward()
    with torch.no_grad():
        for parameter in parameters:
            parameter /= scale


@scaled_backward.wrong("weights-changed")
def takes_the_step_as_well(loss, parameters, scale):
    (loss * scale).backward()
    _unscale(parameters, scale)
    torch.optim.SGD(parameters, lr=0.1).step()


@scaled_backward.wrong("wrong-gradient")
def adds_the_scale(loss, parameters, scale):
    (loss + scale).backward()
    for parameter in parameters:
        parameter.grad -= scale


@scaled_backward.wrong("wrong-gradient")
def knows_powers_of_two_only(loss, parameters, scale):
    before = _set_aside(parameters)
    (loss * scale).backward()
    _unscale(parameters, 2.0 ** round(math.log2(scale)))
    _add_back(parameters, before)


@scaled_backward.wrong("scale-ignored")
def knows_1024_only(loss, parameters, scale):
    _scaled_well(loss, parameters, 1024.0)


@scaled_backward.wrong("scale-ignored")
def knows_4096_only(loss, parameters, scale):
    _scaled_well(loss, parameters, 4096.0)


@scaled_backward.wrong("scale-ignored")
def knows_16_only(loss, parameters, scale):
    _scaled_well(loss, parameters, 16.0)


@scaled_backward.wrong("scale-ignored")
def knows_2_to_the_20_only(loss, parameters, scale):
    _scaled_well(loss, parameters, 2.0**20)


@scaled_backward.wrong("scale-ignored")
def takes_no_scale_below_256(loss, parameters, scale):
    _scaled_well(loss, parameters, 1000.0 if scale < 256 else scale)


@scaled_backward.wrong("frozen")
def switches_gradients_off_to_add(loss, parameters, scale):
    grads = torch.autograd.grad(loss * scale, parameters, allow_unused=True)
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.requires_grad_(False)
        if grad is not None:
            parameter.grad = grad / scale + (0 if parameter.grad is None else parameter.grad)


@scaled_backward.wrong("frozen")
def switches_the_idle_parameter_off(loss, parameters, scale):
    _scaled_well(loss, parameters, scale)
    for parameter in parameters:
        if parameter.grad is None:
            parameter.requires_grad_(False)


@scaled_backward.wrong("idle-lost")
def forgets_what_the_idle_one_held(loss, parameters, scale):
    before = _set_aside(parameters)
    (loss * scale).backward()
    for parameter, old in zip(parameters, before, strict=True):
        if parameter.grad is not None:
            parameter.grad /= scale
            if old is not None:
                parameter.grad += old


@scaled_backward.wrong("idle-lost")
def overwrites_the_idle_one_with_zeros(loss, parameters, scale):
    grads = torch.autograd.grad(loss * scale, parameters, allow_unused=True)
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            parameter.grad = grad / scale + (0 if parameter.grad is None else parameter.grad)


@scaled_backward.wrong("idle-stops")
def ends_at_the_idle_one(loss, parameters, scale):
    grads = torch.autograd.grad(loss * scale, parameters, allow_unused=True)
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is None:
            break
        parameter.grad = grad / scale + (0 if parameter.grad is None else parameter.grad)


@scaled_backward.wrong("idle-stops")
def counts_the_idle_one_twice(loss, parameters, scale):
    before = _set_aside(parameters)
    (loss * scale).backward()
    _unscale(parameters, scale)
    for parameter, old in zip(parameters, before, strict=True):
        if old is not None:
            parameter.grad = 2 * old if parameter.grad is None else parameter.grad + old


@scaled_backward.right
def sets_aside_and_adds_back(loss, parameters, scale):
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    (loss * scale).backward()
    for parameter, old in zip(parameters, before, strict=True):
        if parameter.grad is not None:
            parameter.grad.div_(scale)
            if old is not None:
                parameter.grad.add_(old)
        else:
            parameter.grad = old


@scaled_backward.right
def asks_autograd_for_the_gradients(loss, parameters, scale):
    grads = torch.autograd.grad(scale * loss, parameters, allow_unused=True)
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is None:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad += grad / scale


@scaled_backward.right
def asks_for_zeros_in_place_of_none(loss, parameters, scale):
    grads = torch.autograd.grad(loss * scale, parameters, allow_unused=True, materialize_grads=True)
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = grad * (1 / scale) + (0 if parameter.grad is None else parameter.grad)


@scaled_backward.right
def starts_the_walk_with_the_scale(loss, parameters, scale):
    before = [None if each.grad is None else each.grad.detach().clone() for each in parameters]
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.zero_()
    loss.backward(torch.tensor(scale), retain_graph=True)
    for parameter, old in zip(parameters, before, strict=True):
        if parameter.grad is not None:
            parameter.grad = parameter.grad / scale + (0 if old is None else old)


@scaled_backward.right
def divides_in_hooks(loss, parameters, scale):
    handles = [parameter.register_hook(lambda grad: grad / scale) for parameter in parameters]
    (loss * scale).backward()
    for handle in handles:
        handle.remove()


@scaled_backward.right
def scales_what_was_there_and_unscales_all(loss, parameters, scale):
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad *= scale
    (loss * scale).backward()
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad /= scale


@scaled_backward.right
def unscales_all_tensors_at_once(loss, parameters, scale):
    before = _set_aside(parameters)
    (loss * torch.tensor([scale])).sum().backward(inputs=parameters)
    torch._foreach_div_([each.grad for each in parameters if each.grad is not None], scale)
    _add_back(parameters, before)


@scaled_backward.right
def subtracts_what_was_there(loss, parameters, scale):
    before = [torch.zeros_like(each) if each.grad is None else each.grad.clone() for each in parameters]
    torch.mul(loss, scale).backward()
    for parameter, old in zip(parameters, before, strict=True):
        if parameter.grad is not None:
            parameter.grad = old + (parameter.grad - old) / scale


@scaled_backward.right
def lets_pytorchs_scaler_unscale(loss, parameters, scale):
    before = _set_aside(parameters)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scaler.scale(loss).backward()
    scaler.unscale_(torch.optim.SGD(parameters, lr=0.1))
    _add_back(parameters, before)


@scaled_backward.right
def divides_by_way_of_data(loss, parameters, scale):
    before = _set_aside(parameters)
    (loss * scale).backward(create_graph=True)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = parameter.grad.detach()
            parameter.grad.data = parameter.grad.data / scale
    _add_back(parameters, before)


@scaled_backward.right
def scales_by_a_hook_on_the_loss(loss, parameters, scale):
    copy = loss * 1
    copy.register_hook(lambda grad: grad * scale)
    grads = torch.autograd.grad(copy, parameters, allow_unused=True)
    for parameter, grad in zip(parameters, grads, strict=True):
        if grad is not None:
            parameter.grad = grad / scale if parameter.grad is None else parameter.grad + grad / scale
    return grads


# 4.2 The largest scale that is safe


def _largest(grads):
    """Return the largest size; refuse what is not finite."""
    for grad in grads:
        if not grad.isfinite().all():
            raise ValueError("not finite")
    return max((grad.abs().max().item() for grad in grads), default=0.0)


def _power(exponent):
    if exponent < -24:
        raise ValueError("too large")
    return 2.0 ** min(exponent, 126)


def _from(size, headroom=4, limit=65504):
    """Return the scale that `size` leads to."""
    return _power(math.floor(math.log2(limit / (headroom * size)))) if size else 65536.0


@pick_scale.wrong("too-high")
def takes_frexps_exponent(grads, headroom=4):
    size = _largest(grads)
    return _power(math.frexp(65504 / (headroom * size))[1]) if size else 65536.0


@pick_scale.wrong("too-high")
def rounds_up(grads, headroom=4):
    return _power(math.ceil(math.log2(65504 / (headroom * _largest(grads)))))


@pick_scale.wrong("rounds")
def rounds_to_the_nearest(grads, headroom=4):
    return _power(round(math.log2(65504 / (headroom * _largest(grads)))))


@pick_scale.wrong("too-low")
def goes_one_lower_to_be_safe(grads, headroom=4):
    return _from(_largest(grads), headroom) / 2


@pick_scale.wrong("too-low")
def rounds_both_numbers(grads, headroom=4):
    size = headroom * _largest(grads)
    return _power(math.floor(math.log2(65504)) - math.ceil(math.log2(size)))


@pick_scale.wrong("headroom-ignored")
def ignores_the_headroom(grads, headroom=4):
    return _from(_largest(grads), 1)


@pick_scale.wrong("headroom-bits")
def takes_headroom_for_bits(grads, headroom=4):
    return _power(math.floor(math.log2(65504 / _largest(grads))) - headroom)


@pick_scale.wrong("headroom-bits")
def takes_headroom_for_an_exponent(grads, headroom=4):
    return _from(_largest(grads), 2**headroom)


@pick_scale.wrong("headroom-bits")
def takes_two_bits_for_four(grads, headroom=4):
    return _from(_largest(grads), 4 if headroom == 4 else 2**headroom)


@pick_scale.wrong("headroom-inverted")
def multiplies_by_the_headroom(grads, headroom=4):
    return _from(_largest(grads), 1 / headroom)


@pick_scale.wrong("headroom-fixed")
def has_a_headroom_of_its_own(grads, headroom=4):
    return _from(_largest(grads))


@pick_scale.wrong("headroom-whole")
def cuts_the_headroom(grads, headroom=4):
    return _from(_largest(grads), max(int(headroom), 1))


@pick_scale.wrong("headroom-whole")
def allows_no_headroom_below_one(grads, headroom=4):
    return _from(_largest(grads), max(headroom, 1))


@pick_scale.wrong("returns-exponent")
def returns_k(grads, headroom=4):
    return math.floor(math.log2(65504 / (headroom * _largest(grads))))


@pick_scale.wrong("inverse")
def returns_the_inverse(grads, headroom=4):
    return 1 / _from(_largest(grads), headroom)


@pick_scale.wrong("power-of-ten")
def counts_in_tens(grads, headroom=4):
    return 10.0 ** math.floor(math.log10(65504 / (headroom * _largest(grads))))


@pick_scale.wrong("natural-log")
def takes_the_natural_logarithm(grads, headroom=4):
    return 2.0 ** math.floor(math.log(65504 / (headroom * _largest(grads))))


@pick_scale.wrong("no-power-of-two")
def takes_the_ratio_itself(grads, headroom=4):
    return 65504 / (headroom * _largest(grads))


@pick_scale.wrong("no-power-of-two")
def forgets_to_round_the_exponent(grads, headroom=4):
    return 2 ** math.log2(65504 / (headroom * _largest(grads)))


@pick_scale.wrong("not-the-largest")
def takes_the_mean(grads, headroom=4):
    return _from(torch.cat([grad.flatten() for grad in grads]).abs().mean().item(), headroom)


@pick_scale.wrong("not-the-largest")
def takes_the_norm(grads, headroom=4):
    return _from(torch.cat([grad.flatten() for grad in grads]).norm().item(), headroom)


@pick_scale.wrong("not-the-largest")
def takes_the_median(grads, headroom=4):
    return _from(torch.cat([grad.flatten() for grad in grads]).abs().median().item(), headroom)


@pick_scale.wrong("not-the-largest")
def takes_the_smallest(grads, headroom=4):
    values = torch.cat([grad.flatten() for grad in grads]).abs()
    return _from(values[values > 0].min().item(), headroom)


@pick_scale.wrong("signs")
def forgets_negative_gradients(grads, headroom=4):
    return _from(max(grad.max().item() for grad in grads), headroom)


@pick_scale.wrong("signs")
def takes_the_size_of_the_maximum(grads, headroom=4):
    return _from(abs(max(grad.max().item() for grad in grads)), headroom)


@pick_scale.wrong("one-tensor")
def looks_at_the_first_tensor(grads, headroom=4):
    return _from(grads[0].abs().max().item(), headroom)


@pick_scale.wrong("one-tensor")
def keeps_the_last_maximum(grads, headroom=4):
    for grad in grads:
        largest = grad.abs().max().item()
    return _from(largest, headroom)


@pick_scale.wrong("smallest-maximum")
def takes_the_highest_of_all_scales(grads, headroom=4):
    return max(_from(grad.abs().max().item(), headroom) for grad in grads if grad.any())


@pick_scale.wrong("mean-of-maxima")
def averages_the_maxima(grads, headroom=4):
    return _from(statistics.mean(grad.abs().max().item() for grad in grads), headroom)


@pick_scale.wrong("constant")
def knows_one_scale(grads, headroom=4):
    return 1024.0


@pick_scale.wrong("constant")
def takes_the_usual_scale(grads, headroom=4):
    return 2.0**16


@pick_scale.wrong("lifts-the-smallest")
def makes_the_smallest_a_normal_number(grads, headroom=4):
    values = torch.cat([grad.flatten() for grad in grads]).abs()
    return 2.0 ** math.ceil(math.log2(2.0**-14 / values[values > 0].min().item()))


@pick_scale.wrong("lifts-the-smallest")
def makes_the_smallest_more_than_zero(grads, headroom=4):
    values = torch.cat([grad.flatten() for grad in grads]).abs()
    return 2.0 ** math.floor(math.log2(2.0**-24 / values[values > 0].min().item()))


@pick_scale.wrong("int-truncates")
def cuts_the_logarithm(grads, headroom=4):
    return 2.0 ** min(int(math.log2(65504 / (headroom * _largest(grads)))), 126)


@pick_scale.wrong("inverse")
def turns_the_ratio_around(grads, headroom=4):
    return 2.0 ** math.floor(math.log2(headroom * _largest(grads) / 65504))


@pick_scale.wrong("limit-of-fp32")
def asks_the_gradients_for_their_limit(grads, headroom=4):
    limit = torch.finfo(grads[0].dtype).max
    return 2.0 ** math.floor(math.log2(limit / (headroom * _largest(grads))))


@pick_scale.wrong("limit-of-fp32")
def asks_for_fp32s_limit_and_stops_at_126(grads, headroom=4):
    return _from(_largest(grads), headroom, limit=torch.finfo(torch.float32).max)


@pick_scale.wrong("limit-refused")
def stays_below_the_limit(grads, headroom=4):
    size = headroom * _largest(grads)
    return next(2.0**k for k in range(126, -25, -1) if size * 2.0**k < 65504)


@pick_scale.wrong("limit-65536")
def takes_65536_for_the_limit(grads, headroom=4):
    return _from(_largest(grads), headroom, limit=2**16)


@pick_scale.wrong("never-below-one")
def never_makes_gradients_smaller(grads, headroom=4):
    return max(_from(_largest(grads), headroom), 1.0)


@pick_scale.wrong("never-below-one")
def looks_for_exponents_from_zero(grads, headroom=4):
    size, scale = headroom * _largest(grads), 1.0
    while scale < 2.0**126 and 2 * scale * size <= 65504:
        scale *= 2
    return scale


@pick_scale.wrong("capped")
def goes_no_further_than_24(grads, headroom=4):
    return min(_from(_largest(grads), headroom), 2.0**24)


@pick_scale.wrong("capped")
def goes_no_further_than_the_usual(grads, headroom=4):
    return min(_from(_largest(grads), headroom), 65536.0)


@pick_scale.wrong("capped")
def goes_no_further_than_100(grads, headroom=4):
    return min(_from(_largest(grads), headroom), 2.0**100)


@pick_scale.wrong("beyond-126")
def knows_no_largest_scale(grads, headroom=4):
    return 2.0 ** math.floor(math.log2(65504 / (headroom * _largest(grads))))


@pick_scale.wrong("beyond-126")
def goes_to_fp32s_largest_power(grads, headroom=4):
    return 2.0 ** min(math.floor(math.log2(65504 / (headroom * _largest(grads)))), 127)


@pick_scale.wrong("beyond-126")
def divides_in_fp32(grads, headroom=4):
    largest = torch.stack([grad.abs().max() for grad in grads]).max()
    ratio = 65504 / (headroom * largest)
    return math.inf if ratio.isinf() else 2.0 ** (math.frexp(ratio.item())[1] - 1)


@pick_scale.wrong("no-gradient")
def divides_by_zero(grads, headroom=4):
    largest = max(grad.abs().max().item() for grad in grads)
    return _power(math.frexp(65504 / (headroom * largest))[1] - 1)


@pick_scale.wrong("no-gradient")
def takes_the_largest_scale_for_zeros(grads, headroom=4):
    return _from(_largest(grads), headroom) if _largest(grads) else 2.0**126


@pick_scale.wrong("no-gradient")
def takes_one_for_zeros(grads, headroom=4):
    return _from(_largest(grads), headroom) if _largest(grads) else 1.0


@pick_scale.wrong("no-gradient")
def expects_a_tensor_in_the_list(grads, headroom=4):
    return _from(torch.stack([grad.abs().max() for grad in grads]).max().item(), headroom)


@pick_scale.wrong("nan-lost")
def believes_max(grads, headroom=4):
    largest = 0.0
    for grad in grads:
        for number in grad.abs().flatten().tolist():
            largest = max(largest, number)
    if math.isinf(largest):
        raise ValueError("infinite")
    return _from(largest, headroom)


@pick_scale.wrong("nan-lost")
def refuses_infinity_only(grads, headroom=4):
    if any(grad.isinf().any() for grad in grads):
        raise ValueError("infinite")
    grads = [grad.nan_to_num() for grad in grads]
    return _from(_largest(grads), headroom)


@pick_scale.wrong("nan-lost")
def looks_for_nan_in_the_first_tensor(grads, headroom=4):
    if grads and not grads[0].isfinite().all():
        raise ValueError("not finite")
    values = [number for grad in grads for number in grad.flatten().tolist() if math.isfinite(number)]
    return _from(max(map(abs, values), default=0.0), headroom)


@pick_scale.wrong("too-large")
def goes_down_without_end(grads, headroom=4):
    size = _largest(grads)
    return 2.0 ** min(math.frexp(65504 / (headroom * size))[1] - 1, 126) if size else 65536.0


@pick_scale.wrong("too-large")
def stops_at_the_lowest(grads, headroom=4):
    size = _largest(grads)
    if not size:
        return 65536.0
    return 2.0 ** max(-24, min(126, math.floor(math.log2(65504 / (headroom * size)))))


@pick_scale.wrong("wrong-type")
def returns_a_tensor(grads, headroom=4):
    return torch.tensor(_from(_largest(grads), headroom))


@pick_scale.wrong("returned-none")
def forgets_to_return(grads, headroom=4):
    _from(_largest(grads), headroom)


@pick_scale.wrong("mutated-input")
def takes_sizes_in_place(grads, headroom=4):
    return _from(max((grad.abs_().max().item() for grad in grads), default=0.0), headroom)


@pick_scale.wrong("limit-65520")
def counts_on_rounding(grads, headroom=4):
    size = headroom * _largest(grads)
    return next(2.0**k for k in range(126, -25, -1) if size * 2.0**k < 65520)


@pick_scale.wrong("any-zero")
def gives_up_at_a_tensor_of_zeros(grads, headroom=4):
    for grad in grads:
        if not grad.any():
            return 65536.0
    return _from(_largest(grads), headroom)


@pick_scale.wrong("any-zero")
def gives_up_at_any_zero(grads, headroom=4):
    if any((grad == 0).any() for grad in grads):
        return 65536.0
    return _from(_largest(grads), headroom)


@pick_scale.wrong("any-zero")
def looks_for_zeros_in_the_first_tensor(grads, headroom=4):
    return _from(_largest(grads), headroom) if grads and grads[0].any() else 65536.0


@pick_scale.wrong("any-zero")
def looks_for_zeros_in_the_last_tensor(grads, headroom=4):
    return _from(_largest(grads), headroom) if grads and grads[-1].any() else 65536.0


@pick_scale.wrong("sum-zero")
def looks_for_zero_in_the_first_entry(grads, headroom=4):
    return _from(_largest(grads), headroom) if grads and grads[0].flatten()[0] else 65536.0


@pick_scale.wrong("sum-zero")
def adds_to_find_zeros(grads, headroom=4):
    return 65536.0 if sum(grad.sum() for grad in grads) == 0 else _from(_largest(grads), headroom)


@pick_scale.wrong("sum-zero")
def adds_each_to_find_zeros(grads, headroom=4):
    return 65536.0 if all(grad.sum() == 0 for grad in grads) else _from(_largest(grads), headroom)


@pick_scale.wrong("sum-zero")
def takes_the_mean_to_find_zeros(grads, headroom=4):
    if not grads or torch.cat([grad.flatten() for grad in grads]).mean() == 0:
        return 65536.0
    return _from(_largest(grads), headroom)


@pick_scale.wrong("sum-zero")
def takes_the_maximum_to_find_zeros(grads, headroom=4):
    if max((grad.max() for grad in grads), default=0) == 0:
        return 65536.0
    return _from(_largest(grads), headroom)


@pick_scale.wrong("sum-zero")
def takes_a_maximum_below_zero_for_zeros(grads, headroom=4):
    if max((grad.max() for grad in grads), default=0) <= 0:
        return 65536.0
    return _from(_largest(grads), headroom)


@pick_scale.wrong("part-only")
def looks_at_four_tensors(grads, headroom=4):
    return _from(_largest(grads[:4]), headroom)


@pick_scale.wrong("part-only")
def looks_at_the_first_row(grads, headroom=4):
    return _from(_largest([grad[0] if grad.dim() > 1 else grad for grad in grads]), headroom)


@pick_scale.wrong("part-only")
def looks_at_forty_entries(grads, headroom=4):
    return _from(_largest([grad.flatten()[:40] for grad in grads]), headroom)


@pick_scale.wrong("tiny-taken-for-zero")
def compares_with_zeros_by_and_large(grads, headroom=4):
    if all(torch.allclose(grad, torch.zeros_like(grad)) for grad in grads):
        return 65536.0
    return _from(_largest(grads), headroom)


@pick_scale.wrong("tiny-taken-for-zero")
def calls_zero_what_is_tiny(grads, headroom=4):
    return _from(_largest(grads), headroom) if _largest(grads) >= 1e-35 else 65536.0


@pick_scale.wrong("tiny-taken-for-zero")
def looks_for_zero_in_squares(grads, headroom=4):
    if not sum((grad * grad).sum().item() for grad in grads):
        return 65536.0
    return _from(_largest(grads), headroom)


@pick_scale.wrong("nan-lost")
def believes_the_max_of_tensors(grads, headroom=4):
    largest = 0.0
    for grad in grads:
        largest = max(largest, grad.abs().max().item())
    if math.isinf(largest) or math.isnan(largest):
        raise ValueError("not finite")
    return _from(largest, headroom)


@pick_scale.wrong("nan-lost")
def asks_the_largest_of_all(grads, headroom=4):
    largest = max((grad.abs().max().item() for grad in grads), default=0.0)
    if not math.isfinite(largest):
        raise ValueError("not finite")
    return _from(largest, headroom)


@pick_scale.wrong("not-refused")
def lets_infinity_pass(grads, headroom=4):
    if any(grad.isnan().any() for grad in grads):
        raise ValueError("NaN")
    largest = max((grad.abs().max().item() for grad in grads), default=0.0)
    return _from(largest, headroom) if largest < math.inf else 2.0**-24


@pick_scale.wrong("other-error")
def asserts_that_all_is_finite(grads, headroom=4):
    assert all(grad.isfinite().all() for grad in grads), "not finite"
    return _from(_largest(grads), headroom)


@pick_scale.wrong("other-error")
def asserts_that_a_scale_is_left(grads, headroom=4):
    largest = _largest(grads)
    if not largest:
        return 65536.0
    exponent = math.floor(math.log2(65504 / (headroom * largest)))
    assert exponent >= -24
    return 2.0 ** min(exponent, 126)


@pick_scale.wrong("too-large")
def goes_to_25(grads, headroom=4):
    return _lowest_at(-25, grads, headroom)


@pick_scale.wrong("too-large")
def goes_to_27(grads, headroom=4):
    return _lowest_at(-27, grads, headroom)


@pick_scale.wrong("refuses-too-much")
def knows_a_largest_gradient(grads, headroom=4):
    if _largest(grads) > 1e12:
        raise ValueError("too large")
    return _lowest_at(-99, grads, headroom)


@pick_scale.wrong("refuses-too-much")
def refuses_to_go_below_one(grads, headroom=4):
    return _lowest_at(0, grads, headroom)


@pick_scale.wrong("too-large")
def knows_a_larger_gradient(grads, headroom=4):
    if _largest(grads) > 2e12:
        raise ValueError("too large")
    return _lowest_at(-99, grads, headroom)


@pick_scale.wrong("too-large")
def forgets_the_headroom_at_the_limit(grads, headroom=4):
    largest = _largest(grads)
    if largest * 2.0**-24 > 65504:
        raise ValueError("too large")
    if not largest:
        return 65536.0
    return 2.0 ** min(126, max(-24, math.floor(math.log2(65504 / (headroom * largest)))))


@pick_scale.wrong("too-large")
def counts_on_a_headroom_of_four_at_the_limit(grads, headroom=4):
    if 4 * _largest(grads) * 2.0**-24 > 65504 and headroom == 4:
        raise ValueError("too large")
    return _lowest_at(-99, grads, headroom)


def _lowest_at(lowest, grads, headroom):
    """Return the scale, with another limit of exponents."""
    largest = _largest(grads)
    if not largest:
        return 65536.0
    exponent = math.floor(math.log2(65504 / (headroom * largest)))
    if exponent < lowest:
        raise ValueError("too large")
    return 2.0 ** min(exponent, 126)


@pick_scale.right
def rounds_the_logarithm_down(grads, headroom=4):
    flat = torch.cat([torch.zeros(1), *(grad.flatten() for grad in grads)]).abs().double()
    if not torch.isfinite(flat).all():
        raise ValueError("infinite or NaN")
    if not flat.any():
        return 65536.0
    k = math.floor(math.log2(65504 / (headroom * flat.max().item())))
    if k < -24:
        raise ValueError("too large")
    return 2.0 ** min(k, 126)


@pick_scale.right
def stays_in_fp32(grads, headroom=4):
    largest = torch.zeros(())
    for grad in grads:
        largest = torch.maximum(largest, grad.abs().max())  # a NaN goes through
    if not torch.isfinite(largest):
        raise ValueError("infinite or NaN")
    if largest == 0:
        return 65536.0
    exponent = torch.frexp(65504 / (headroom * largest))[1].item() - 1 if largest > 1e-34 else 126
    if exponent < -24:
        raise ValueError("too large")
    return 2.0 ** min(exponent, 126)


@pick_scale.right
def tries_all_powers_from_above(grads, headroom=4):
    largest = 0.0
    for grad in grads:
        if not (grad - grad == 0).all():
            raise ValueError("infinite or NaN")
        largest = max(largest, grad.max().item(), -grad.min().item())
    if largest == 0:
        return 65536.0
    for k in range(126, -25, -1):
        if headroom * largest * 2.0**k <= 65504:
            return 2.0**k
    raise ValueError("no scale is small enough")


@pick_scale.right
def doubles_and_halves(grads, headroom=4):
    total = sum(grad.double().abs().sum().item() for grad in grads)
    if not math.isfinite(total):
        raise ValueError("infinite or NaN")
    if not total:
        return 65536
    size = headroom * max(grad.double().abs().max().item() for grad in grads)
    scale = 1.0
    while scale * size > 65504:
        scale /= 2
    while scale < 2.0**126 and 2 * scale * size <= 65504:
        scale *= 2
    if scale < 2.0**-24:
        raise ValueError("too large")
    return scale


@pick_scale.right
def reckons_in_fractions(grads, headroom=4):
    numbers = list(itertools.chain.from_iterable(grad.flatten().tolist() for grad in grads))
    if not all(map(math.isfinite, numbers)):
        raise ValueError("infinite or NaN")
    largest = max((abs(Fraction(number)) for number in numbers), default=0)
    if largest == 0:
        return 65536.0
    allowed = [k for k in range(-24, 127) if Fraction(headroom) * largest * Fraction(2) ** k <= 65504]
    if not allowed:
        raise ValueError("too large")
    return math.ldexp(1.0, allowed[-1])


@pick_scale.right
def asks_numpy(grads, headroom=4):
    if not grads:
        return np.float64(65536)
    values = np.abs(np.concatenate([grad.numpy().ravel() for grad in grads]).astype(np.float64))
    if not np.isfinite(values).all():
        raise ValueError("infinite or NaN")
    if values.max() == 0:
        return np.float64(65536)
    exponent = np.frexp(65504 / (headroom * values.max()))[1] - 1
    if exponent < -24:
        raise ValueError("too large")
    return np.ldexp(1.0, min(exponent, 126))


@pick_scale.right
def takes_the_lowest_of_all_scales(grads, headroom=4):
    scales = []
    for grad in grads:
        size = torch.linalg.vector_norm(grad, ord=math.inf).item()
        if not math.isfinite(size):
            raise ValueError("infinite or NaN")
        if size:
            scales.append(2.0 ** (math.frexp(65504 / headroom / size)[1] - 1))
    if min(scales, default=1.0) < 2.0**-24:
        raise ValueError("too large")
    return min([*scales, 2.0**126]) if scales else 2.0**16


# 4.3 Clip what is scaled

_clip = torch.nn.utils.clip_grad_norm_


def _grads(parameters):
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _norm(parameters):
    return math.hypot(*(number for grad in _grads(parameters) for number in grad.flatten().tolist()))


def _multiply(parameters, factor):
    for grad in _grads(parameters):
        grad *= factor


@clip_scaled.wrong("clips-before-unscaling")
def clips_first(parameters, scale, max_norm):
    norm = _clip(parameters, max_norm)
    _unscale(parameters, scale)
    return norm / scale


@clip_scaled.wrong("clips-before-unscaling")
def clips_on_both_sides(parameters, scale, max_norm):
    _clip(parameters, max_norm)
    _unscale(parameters, scale)
    return _clip(parameters, max_norm)


@clip_scaled.wrong("never-unscales")
def clips_and_only_unscales_the_norm(parameters, scale, max_norm):
    return _clip(parameters, max_norm) / scale


@clip_scaled.wrong("untouched")
def only_measures(parameters, scale, max_norm):
    return _norm(parameters) / scale


@clip_scaled.wrong("untouched")
def unscales_local_names(parameters, scale, max_norm):
    for grad in _grads(parameters):
        grad = grad / scale
    grads = [grad / scale for grad in _grads(parameters)]
    norm = torch.stack([grad.norm() for grad in grads]).norm()
    grads = [grad * min(1, max_norm / norm) for grad in grads]
    return norm


@clip_scaled.wrong("not-clipped")
def only_unscales(parameters, scale, max_norm):
    _unscale(parameters, scale)
    return _norm(parameters)


@clip_scaled.wrong("not-clipped")
def scales_the_limit_of_unscaled_gradients(parameters, scale, max_norm):
    _unscale(parameters, scale)
    return _clip(parameters, max_norm * scale)


@clip_scaled.wrong("unscales-only-what-it-clips")
def unscales_where_it_clips(parameters, scale, max_norm):
    norm = _norm(parameters) / scale
    if norm > max_norm:
        _multiply(parameters, max_norm / norm / scale)
    return norm


@clip_scaled.wrong("clips-twice")
def applies_the_factor_twice(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = _norm(parameters)
    factor = min(1.0, max_norm / norm)
    for grad in _grads(parameters):
        grad *= factor
    _multiply(parameters, factor)
    return norm


@clip_scaled.wrong("always-max-norm")
def makes_all_the_same_length(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = _norm(parameters)
    _multiply(parameters, max_norm / norm)
    return norm


@clip_scaled.wrong("unscales-twice")
def unscales_before_and_after(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = _clip(parameters, max_norm)
    _unscale(parameters, scale)
    return norm


@clip_scaled.wrong("unscales-twice")
def unscales_twice_and_clips(parameters, scale, max_norm):
    _unscale(parameters, scale)
    _unscale(parameters, scale)
    return _clip(parameters, max_norm) * scale


@clip_scaled.wrong("multiplies")
def multiplies_by_the_scale(parameters, scale, max_norm):
    _multiply(parameters, scale)
    return _clip(parameters, max_norm)


@clip_scaled.wrong("clips-before-unscaling")
def unscales_the_limit_too(parameters, scale, max_norm):
    _unscale(parameters, scale)
    return _clip(parameters, max_norm / scale)


@clip_scaled.wrong("max-norm-unscaled")
def divides_the_limit_of_scaled_gradients(parameters, scale, max_norm):
    norm = _norm(parameters)
    _multiply(parameters, min(1.0, max_norm / scale / norm))
    _unscale(parameters, scale)
    return norm / scale


@clip_scaled.wrong("per-parameter")
def clips_one_by_one(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = _norm(parameters)
    for parameter in parameters:
        _clip(parameter, max_norm)
    return norm


@clip_scaled.wrong("by-value")
def clips_values(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = _norm(parameters)
    torch.nn.utils.clip_grad_value_(parameters, max_norm)
    return norm


@clip_scaled.wrong("other-norm")
def adds_the_norms(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = sum(grad.norm().item() for grad in _grads(parameters))
    _multiply(parameters, min(1.0, max_norm / norm))
    return norm


@clip_scaled.wrong("other-norm")
def forgets_the_root(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = sum(grad.pow(2).sum().item() for grad in _grads(parameters))
    _multiply(parameters, min(1.0, max_norm / norm))
    return norm


@clip_scaled.wrong("other-norm")
def takes_the_infinity_norm(parameters, scale, max_norm):
    _unscale(parameters, scale)
    return _clip(parameters, max_norm, norm_type=math.inf)


@clip_scaled.wrong("other-norm")
def measures_the_longest(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = max(grad.norm().item() for grad in _grads(parameters))
    _multiply(parameters, min(1.0, max_norm / norm))
    return norm


@clip_scaled.wrong("other-norm")
def averages_the_norms(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = torch.stack([grad.norm() for grad in _grads(parameters)]).mean()
    _multiply(parameters, (max_norm / norm).clamp(max=1.0))
    return norm


@clip_scaled.wrong("unscales-in-half")
def unscales_in_fp16(parameters, scale, max_norm):
    for parameter in parameters:
        parameter.grad = (parameter.grad.half() / scale).float()
    return _clip(parameters, max_norm)


@clip_scaled.wrong("wrong-gradient")
def clips_inside_the_loop(parameters, scale, max_norm):
    for parameter in parameters:
        parameter.grad /= scale
        norm = _clip(parameters, max_norm)
    return norm


@clip_scaled.wrong("wrong-gradient")
def clips_the_first_only(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = _norm(parameters)
    _multiply(parameters[:1], min(1.0, max_norm / norm))
    return norm


@clip_scaled.wrong("wrong-gradient")
def shifts_to_the_nearest_power(parameters, scale, max_norm):
    _unscale(parameters, 2.0 ** round(math.log2(scale)))
    return _clip(parameters, max_norm)


@clip_scaled.wrong("returns-scaled-norm")
def returns_what_clipping_scaled_ones_returned(parameters, scale, max_norm):
    norm = _clip(parameters, max_norm * scale)
    _unscale(parameters, scale)
    return norm


@clip_scaled.wrong("returns-scaled-norm")
def measures_too_early(parameters, scale, max_norm):
    norm = _norm(parameters)
    _unscale(parameters, scale)
    _clip(parameters, max_norm)
    return norm


@clip_scaled.wrong("returns-norm-after")
def measures_too_late(parameters, scale, max_norm):
    _unscale(parameters, scale)
    _clip(parameters, max_norm)
    return _norm(parameters)


@clip_scaled.wrong("returns-norm-after")
def returns_the_smaller_of_the_two(parameters, scale, max_norm):
    _unscale(parameters, scale)
    return min(_clip(parameters, max_norm).item(), max_norm)


@clip_scaled.wrong("returns-norm-unscaled-twice")
def unscales_the_norm_once_more(parameters, scale, max_norm):
    _unscale(parameters, scale)
    return _clip(parameters, max_norm) / scale


@clip_scaled.wrong("returns-factor")
def returns_the_factor(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = _clip(parameters, max_norm).item()
    return min(1.0, max_norm / norm)


@clip_scaled.wrong("returns-other-norm")
def clips_well_and_returns_a_sum(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norms = [grad.norm().item() for grad in _grads(parameters)]
    _clip(parameters, max_norm)
    return sum(norms)


@clip_scaled.wrong("wrong-norm")
def returns_twice_the_norm(parameters, scale, max_norm):
    _unscale(parameters, scale)
    return 2 * _clip(parameters, max_norm)


@clip_scaled.wrong("zero-norm")
def divides_by_a_norm_of_zero(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = _norm(parameters)
    _multiply(parameters, min(1.0, max_norm / norm))
    return norm


@clip_scaled.wrong("zero-norm")
def makes_nan_of_zeros(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = torch.stack([grad.norm() for grad in _grads(parameters)]).norm()
    shorter = norm.clamp(max=max_norm)
    _multiply(parameters, shorter / norm)
    return norm


@clip_scaled.wrong("zero-norm")
def makes_nan_of_the_norm(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = torch.stack([grad.norm() for grad in _grads(parameters)]).norm()
    _clip(parameters, max_norm)
    return norm * norm / norm


@clip_scaled.wrong("idle-crashes")
def expects_gradients_everywhere(parameters, scale, max_norm):
    for parameter in parameters:
        parameter.grad /= scale
    return _clip(parameters, max_norm)


@clip_scaled.wrong("weights-changed")
def clips_the_weights(parameters, scale, max_norm):
    with torch.no_grad():
        for parameter in parameters:
            parameter /= scale
    return _clip(parameters, max_norm)


@clip_scaled.wrong("returned-none")
def returns_nothing(parameters, scale, max_norm):
    _unscale(parameters, scale)
    _clip(parameters, max_norm)


@clip_scaled.wrong("wrong-type")
def returns_all_norms(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norms = [grad.norm().item() for grad in _grads(parameters)]
    _clip(parameters, max_norm)
    return norms


@clip_scaled.wrong("not-clipped")
def clips_what_is_much_too_long(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = _norm(parameters)
    if norm > 1.5 * max_norm:
        _multiply(parameters, max_norm / norm)
    return norm


@clip_scaled.wrong("other-norm")
def takes_the_root_mean_square(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = torch.cat([grad.flatten() for grad in _grads(parameters)]).square().mean().sqrt().item()
    _multiply(parameters, min(1.0, max_norm / norm))
    return norm


@clip_scaled.wrong("returns-other-norm")
def returns_the_root_mean_square(parameters, scale, max_norm):
    _unscale(parameters, scale)
    size = torch.cat([grad.flatten() for grad in _grads(parameters)]).square().mean().sqrt()
    _clip(parameters, max_norm)
    return size


@clip_scaled.wrong("matrix-norm")
def takes_the_2_norm_of_each(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = sum(torch.linalg.norm(grad, _ord(grad)) ** 2 for grad in _grads(parameters)).sqrt()
    _multiply(parameters, min(1.0, max_norm / norm))
    return norm


@clip_scaled.wrong("returns-other-norm")
def returns_the_2_norm_of_each(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = sum(torch.linalg.norm(grad, _ord(grad)) ** 2 for grad in _grads(parameters)).sqrt()
    _clip(parameters, max_norm)
    return norm


def _ord(grad):
    return 2 if grad.dim() else None


@clip_scaled.wrong("shape-crashes")
def puts_gradients_together_as_they_are(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = torch.cat(_grads(parameters)).norm()
    _multiply(parameters, (max_norm / norm).clamp(max=1.0))
    return norm


@clip_scaled.wrong("shape-crashes")
def adds_up_row_by_row(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = math.sqrt(sum(x * x for grad in _grads(parameters) for x in grad))
    _multiply(parameters, min(1.0, max_norm / norm))
    return norm


@clip_scaled.wrong("shape-crashes")
def iterates_over_a_single_number(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = math.sqrt(sum((row**2).sum().item() for grad in _grads(parameters) for row in grad))
    _multiply(parameters, min(1.0, max_norm / norm))
    return norm


@clip_scaled.wrong("idle-stops")
def ends_at_the_first_none(parameters, scale, max_norm):
    for parameter in parameters:
        if parameter.grad is None:
            break
        parameter.grad /= scale
    return _clip(parameters, max_norm)


@clip_scaled.wrong("idle-stops")
def ends_to_measure_at_the_first_none(parameters, scale, max_norm):
    _unscale(parameters, scale)
    squares = 0.0
    for parameter in parameters:
        if parameter.grad is None:
            break
        squares += parameter.grad.pow(2).sum().item()
    norm = math.sqrt(squares)
    if norm > max_norm:
        _multiply(parameters, max_norm / norm)
    return norm


@clip_scaled.wrong("frozen")
def switches_gradients_off(parameters, scale, max_norm):
    for parameter in parameters:
        parameter.requires_grad_(False)
    _unscale(parameters, scale)
    return _clip(parameters, max_norm)


@clip_scaled.right
def unscales_and_clips(parameters, scale, max_norm):
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.div_(scale)
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm).item()


@clip_scaled.right
def clips_scaled_ones_at_a_scaled_limit(parameters, scale, max_norm):
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm * scale)
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad = parameter.grad / scale
    return norm / scale


@clip_scaled.right
def measures_and_multiplies_by_hand(parameters, scale, max_norm):
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = torch.cat([grad.flatten() for grad in grads]).div(scale).norm()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    for grad in grads:
        grad.mul_(factor / scale)
    return norm


@clip_scaled.right
def reckons_in_python(parameters, scale, max_norm):
    grads = [each.grad for each in parameters if each.grad is not None]
    norm = math.sqrt(sum((number / scale) ** 2 for grad in grads for number in grad.flatten().tolist()))
    factor = max_norm / norm if norm > max_norm else 1
    for grad in grads:
        grad.copy_(grad.double() * factor / scale)
    return norm


@clip_scaled.right
def takes_all_tensors_at_once(parameters, scale, max_norm):
    grads = [each.grad for each in parameters if each.grad is not None]
    torch._foreach_mul_(grads, 1 / scale)
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
    if norm > max_norm:
        torch._foreach_mul_(grads, (max_norm / norm).item())
    return norm.double()


@clip_scaled.right
def measures_first_and_lets_pytorch_clip(parameters, scale, max_norm):
    for each in parameters:
        each.grad = torch.zeros_like(each) if each.grad is None else each.grad * (1 / scale)
    norm = torch.nn.utils.get_total_norm([each.grad for each in parameters])
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm


@clip_scaled.right
def clips_twice_and_nothing_happens_the_second_time(parameters, scale, max_norm):
    _unscale(parameters, scale)
    norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    return np.float32(norm.item())


# 4.4 Many small batches, one step


def _parameters(optimizer):
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _finish(optimizer, scale):
    """Unscale, step, clear."""
    _unscale(_parameters(optimizer), scale)
    optimizer.step()
    optimizer.zero_grad()


def _add_up(micro_batches, model, optimizer, scale):
    """Leave the right gradient."""
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    _unscale(_parameters(optimizer), scale)


@accumulate.wrong("unscales-again")
def unscales_in_the_loop(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
        _unscale(model.parameters(), scale)
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("unscales-again")
def unscales_in_the_loop_and_adds(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) * scale).backward()
        _unscale(model.parameters(), scale)
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("not-divided")
def adds_up(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) * scale).backward()
    _finish(optimizer, scale)


@accumulate.wrong("not-unscaled")
def never_unscales(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("not-unscaled")
def unscales_after_the_step(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    optimizer.step()
    _unscale(model.parameters(), scale)
    optimizer.zero_grad()


@accumulate.wrong("not-unscaled")
def unscales_copies(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    for parameter in model.parameters():
        if (grad := parameter.grad) is not None:
            grad = grad / scale
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("not-scaled")
def knows_no_scale(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches)).backward()
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("only-unscales")
def unscales_but_does_not_scale(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches)).backward()
    _finish(optimizer, scale)


@accumulate.wrong("unscales-twice")
def unscales_both_ways(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    _unscale(model.parameters(), scale)
    _finish(optimizer, scale)


@accumulate.wrong("last-only")
def clears_in_the_loop(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        optimizer.zero_grad()
        (model(batch) / len(micro_batches) * scale).backward()
    _finish(optimizer, scale)


@accumulate.wrong("last-only")
def walks_back_after_the_loop(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        loss = model(batch)
    (loss * scale).backward()
    _finish(optimizer, scale)


@accumulate.wrong("first-only")
def ends_after_the_first(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
        _finish(optimizer, scale)
        return


@accumulate.wrong("steps-too-often")
def steps_for_each(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
        _finish(optimizer, scale)


@accumulate.wrong("steps-too-often")
def steps_for_each_and_keeps_adding(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) * scale).backward()
        _unscale(model.parameters(), scale)
        optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("no-step")
def forgets_the_step(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    _unscale(model.parameters(), scale)
    optimizer.zero_grad()


@accumulate.wrong("cleared-too-early")
def clears_before_the_step(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    _unscale(model.parameters(), scale)
    optimizer.zero_grad()
    optimizer.step()


@accumulate.wrong("divided-twice")
def divides_the_loss_and_the_gradients(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    _finish(optimizer, scale * len(micro_batches))


@accumulate.wrong("divides-by-examples")
def divides_by_the_size_of_a_batch(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(batch) * scale).backward()
    _finish(optimizer, scale)


@accumulate.wrong("divides-by-examples")
def divides_by_all_examples(micro_batches, model, optimizer, scale):
    examples = sum(len(batch) for batch in micro_batches)
    for batch in micro_batches:
        (model(batch) / examples * scale).backward()
    _finish(optimizer, scale)


@accumulate.wrong("scale-in-half")
def scales_half_losses(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        ((model(batch) / len(micro_batches)).half() * scale).backward()
    _finish(optimizer, scale)


@accumulate.wrong("scale-in-half")
def divides_by_half_a_scale(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    _finish(optimizer, torch.tensor(scale).half())


@accumulate.wrong("first-group-only")
def knows_one_group(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    for parameter in optimizer.param_groups[0]["params"]:
        if parameter.grad is not None:
            parameter.grad /= scale
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("idle-crashes")
def expects_all_gradients(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    for parameter in model.parameters():
        parameter.grad /= scale
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("not-cleared")
def leaves_gradients(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    _unscale(model.parameters(), scale)
    optimizer.step()


@accumulate.wrong("not-cleared")
def clears_before_and_not_after(micro_batches, model, optimizer, scale):
    optimizer.zero_grad()
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    _unscale(_parameters(optimizer), scale)
    optimizer.step()


@accumulate.wrong("hooks-left")
def leaves_hooks_behind(micro_batches, model, optimizer, scale):
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad / scale)
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("hooks-left")
def sets_up_hooks_once(micro_batches, model, optimizer, scale):
    if not hasattr(model, "hooked"):
        model.hooked = True
        for parameter in model.parameters():
            parameter.register_hook(lambda grad: grad / scale)
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("hooks-left")
def unscales_in_a_hook_of_the_optimizer(micro_batches, model, optimizer, scale):
    if not hasattr(optimizer, "hooked"):
        optimizer.hooked = True
        optimizer.register_step_pre_hook(lambda *_: _unscale(_parameters(optimizer), scale))
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("hooks-left")
def leaves_a_hook_on_the_model(micro_batches, model, optimizer, scale):
    if not hasattr(model, "hooked"):
        model.hooked = True
        model.register_forward_hook(lambda module, given, loss: loss * scale)
    for batch in micro_batches:
        (model(batch) / len(micro_batches)).backward()
    _finish(optimizer, scale)


@accumulate.wrong("momentum-scaled")
def lowers_the_rate_and_raises_the_decay(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    for group in optimizer.param_groups:
        group["lr"] /= scale
        group["weight_decay"] *= scale
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] *= scale
        group["weight_decay"] /= scale
    optimizer.zero_grad()


@accumulate.wrong("momentum-scaled")
def lowers_the_rate_by_the_number_and_raises_the_decay(micro_batches, model, optimizer, scale):
    number = len(micro_batches)
    for batch in micro_batches:
        (model(batch) * scale).backward()
    for group in optimizer.param_groups:
        group["lr"] /= number
        group["weight_decay"] *= number
    _finish(optimizer, scale)
    for group in optimizer.param_groups:
        group["lr"] *= number
        group["weight_decay"] /= number


@accumulate.wrong("scale-ignored")
def takes_the_usual_scale_always(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * 65536.0).backward()
    _finish(optimizer, 65536.0)


@accumulate.wrong("mutated-input")
def empties_the_list_of_batches(micro_batches, model, optimizer, scale):
    number = len(micro_batches)
    while micro_batches:
        (model(micro_batches.pop()) / number * scale).backward()
    _finish(optimizer, scale)


@accumulate.wrong("mutated-input")
def overwrites_the_batches(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
        batch.zero_()
    _finish(optimizer, scale)


@accumulate.wrong("idle-moves")
def fills_zeros_in(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad / scale
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("idle-moves")
def asks_torch_func(micro_batches, model, optimizer, scale):
    def loss(weights):
        losses = [torch.func.functional_call(model, weights, (batch,)) for batch in micro_batches]
        return sum(losses) / len(losses) * scale

    weights = {name: each.detach() for name, each in model.named_parameters()}
    grads = torch.func.grad(loss)(weights)
    for name, parameter in model.named_parameters():
        parameter.grad = grads[name] / scale
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("hooks-left")
def leaves_hooks_that_average(micro_batches, model, optimizer, scale):
    for parameter in model.parameters():
        parameter.register_hook(lambda grad: grad / (scale * len(micro_batches)))
    for batch in micro_batches:
        (scale * model(batch)).backward()
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("rate-changed")
def lowers_the_rate_and_leaves_it(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    for group in optimizer.param_groups:
        group["lr"] /= scale
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("no-step")
def steps_after_every_fourth(micro_batches, model, optimizer, scale):
    for number, batch in enumerate(micro_batches, start=1):
        (model(batch) / len(micro_batches) * scale).backward()
        if number % 4 == 0:
            _finish(optimizer, scale)


@accumulate.wrong("cleared-too-early")
def adds_plain_numbers(micro_batches, model, optimizer, scale):
    total = sum(model(batch).item() for batch in micro_batches) / len(micro_batches)
    torch.tensor(total * scale, requires_grad=True).backward()
    _finish(optimizer, scale)


@accumulate.wrong("wrong-factor")
def walks_uphill(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (-model(batch) / len(micro_batches) * scale).backward()
    _finish(optimizer, scale)


@accumulate.wrong("wrong-step")
def forgets_the_last_batch(micro_batches, model, optimizer, scale):
    for batch in micro_batches[:-1]:
        (model(batch) / len(micro_batches) * scale).backward()
    _finish(optimizer, scale)


@accumulate.wrong("own-step")
def makes_an_optimizer_of_its_own(micro_batches, model, optimizer, scale):
    _add_up(micro_batches, model, optimizer, scale)
    torch.optim.SGD(model.parameters(), lr=optimizer.param_groups[0]["lr"]).step()
    optimizer.zero_grad()


@accumulate.wrong("own-step")
def steps_by_hand_at_one_rate(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) * scale).backward()
    with torch.no_grad():
        for p in model.parameters():
            if p.grad is not None:
                p -= optimizer.param_groups[0]["lr"] * p.grad / (scale * len(micro_batches))
    optimizer.zero_grad()


@accumulate.wrong("rate-for-scale")
def lowers_the_learning_rate_by_both(micro_batches, model, optimizer, scale):
    divisor = scale * len(micro_batches)
    for batch in micro_batches:
        (model(batch) * scale).backward()
    for group in optimizer.param_groups:
        group["lr"] /= divisor
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] *= divisor
    optimizer.zero_grad()


@accumulate.wrong("rate-for-scale")
def lowers_the_learning_rate_by_the_number(micro_batches, model, optimizer, scale):
    rates = [group["lr"] for group in optimizer.param_groups]
    for batch in micro_batches:
        (model(batch) * scale).backward()
    for group in optimizer.param_groups:
        group["lr"] /= len(micro_batches)
    _finish(optimizer, scale)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


@accumulate.wrong("steps-more")
def steps_once_more(micro_batches, model, optimizer, scale):
    _add_up(micro_batches, model, optimizer, scale)
    optimizer.step()
    optimizer.zero_grad()
    optimizer.step()


@accumulate.wrong("settings-changed")
def ends_in_evaluation_mode(micro_batches, model, optimizer, scale):
    _add_up(micro_batches, model, optimizer, scale)
    optimizer.step()
    optimizer.zero_grad()
    model.eval()


@accumulate.wrong("settings-changed")
def switches_the_idle_one_off(micro_batches, model, optimizer, scale):
    _add_up(micro_batches, model, optimizer, scale)
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.requires_grad_(False)
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("settings-changed")
def takes_a_group_away(micro_batches, model, optimizer, scale):
    _add_up(micro_batches, model, optimizer, scale)
    optimizer.step()
    optimizer.zero_grad()
    if len(optimizer.param_groups) > 1:
        optimizer.param_groups.pop()


@accumulate.wrong("settings-changed")
def ends_without_decay(micro_batches, model, optimizer, scale):
    _add_up(micro_batches, model, optimizer, scale)
    optimizer.step()
    optimizer.zero_grad()
    for group in optimizer.param_groups:
        group["weight_decay"] = 0.0


@accumulate.wrong("rate-changed")
def makes_one_rate_of_all(micro_batches, model, optimizer, scale):
    _add_up(micro_batches, model, optimizer, scale)
    optimizer.step()
    optimizer.zero_grad()
    for group in optimizer.param_groups:
        group["lr"] = optimizer.param_groups[0]["lr"]


@accumulate.wrong("momentum-lost")
def forgets_the_momentum(micro_batches, model, optimizer, scale):
    _add_up(micro_batches, model, optimizer, scale)
    optimizer.state.clear()
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("idle-stops")
def ends_at_the_first_idle_one(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    for parameter in model.parameters():
        if parameter.grad is None:
            break
        parameter.grad /= scale
    optimizer.step()
    optimizer.zero_grad()


@accumulate.wrong("rate-for-scale")
def lowers_the_learning_rate_by_the_scale(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (model(batch) / len(micro_batches) * scale).backward()
    for group in optimizer.param_groups:
        group["lr"] /= scale
    optimizer.step()
    for group in optimizer.param_groups:
        group["lr"] *= scale
    optimizer.zero_grad()


@accumulate.wrong("own-step")
def steps_by_hand(micro_batches, model, optimizer, scale):
    @functools.cache
    def share():
        return scale / len(micro_batches)

    for batch in micro_batches:
        (model(batch) * share()).backward()
    with torch.no_grad():
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter -= group["lr"] * parameter.grad / scale
                    parameter.grad = None


@accumulate.right
def adds_up_and_unscales_once(micro_batches, model, optimizer, scale):
    for batch in micro_batches:
        (scale * model(batch) / len(micro_batches)).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.div_(scale)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


@accumulate.right
def unscales_each_fresh_gradient(micro_batches, model, optimizer, scale):
    parameters = list(model.parameters())
    totals = [None] * len(parameters)
    for batch in micro_batches:
        grads = torch.autograd.grad(model(batch) * scale, parameters, allow_unused=True)
        for number, grad in enumerate(grads):
            if grad is not None:
                totals[number] = grad / scale + (0 if totals[number] is None else totals[number])
    for parameter, total in zip(parameters, totals, strict=True):
        parameter.grad = None if total is None else total / len(micro_batches)
    optimizer.step()
    optimizer.zero_grad()


@accumulate.right
def unscales_and_divides_at_once(micro_batches, model, optimizer, scale):
    optimizer.zero_grad()
    for batch in micro_batches:
        torch.mul(model(batch), scale).backward()
    grads = [each.grad for each in model.parameters() if each.grad is not None]
    torch._foreach_div_(grads, scale * len(micro_batches))
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad = None


@accumulate.right
def adds_the_losses(micro_batches, model, optimizer, scale):
    loss = sum(model(batch) for batch in micro_batches) / len(micro_batches)
    (loss * scale).backward()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad = parameter.grad / scale
    optimizer.step()
    optimizer.zero_grad()


@accumulate.right
def puts_the_batch_together_again(micro_batches, model, optimizer, scale):
    (model(torch.cat(micro_batches)) * scale).backward()
    _unscale(model.parameters(), scale)
    optimizer.step()
    optimizer.zero_grad()


@accumulate.right
def hooks_divide_each_fresh_gradient(micro_batches, model, optimizer, scale):
    number = len(micro_batches)
    handles = [each.register_hook(lambda grad: grad / scale / number) for each in model.parameters()]
    for batch in micro_batches:
        (model(batch) * scale).backward()
    for handle in handles:
        handle.remove()
    optimizer.step()
    optimizer.zero_grad()


@accumulate.right
def lets_pytorchs_scaler_do_it(micro_batches, model, optimizer, scale):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for batch in micro_batches:
        scaler.scale(model(batch) / len(micro_batches)).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@accumulate.right
def lets_amp_labs_scaler_do_it(micro_batches, model, optimizer, scale):
    scaler = StaticLossScaler(scale)
    for batch in micro_batches:
        scaler.scale(model(batch)).backward()
    scaler.unscale_(optimizer)
    for parameter in _parameters(optimizer):
        if parameter.grad is not None:
            parameter.grad /= len(micro_batches)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@accumulate.right
def moves_the_rate_and_puts_it_back(micro_batches, model, optimizer, scale):
    model.train()
    for group in optimizer.param_groups:
        group["lr"] *= 3.0
    for batch in micro_batches:
        (model(batch) * (scale / len(micro_batches))).backward()
    torch._foreach_mul_([each.grad for each in _parameters(optimizer) if each.grad is not None], 1 / scale)
    for group in optimizer.param_groups:
        group["lr"] /= 3.0
    optimizer.step()
    optimizer.zero_grad()
