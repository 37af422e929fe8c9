"""Answers to the exercises of lesson 05."""

import collections
import copy
import json
import math
import pickle

import numpy as np
import torch

from amp_lab import scaling
from amp_lab.course.lessons.l05.given import ForgetfulScaler
from amp_lab.scaling import ScaleState
from tests.course.bank import Bank

has_overflow = Bank("5.1")
next_scale = Bank("5.2")
loss_scaler = Bank("5.3")
resumable_scaler = Bank("5.4")
BANKS = (has_overflow, next_scale, loss_scaler, resumable_scaler)


# 5.1 Find the overflow


def _dense(parameters):
    return [each.grad.to_dense() for each in parameters if each.grad is not None]


@has_overflow.wrong("looks-at-weights")
def looks_at_the_weights(parameters):
    return any(not p.isfinite().all() for p in parameters)


@has_overflow.wrong("looks-at-weights")
def looks_at_weights_and_gradients(parameters):
    return any(not t.isfinite().all() for p in parameters for t in (p, p.grad) if t is not None)


@has_overflow.wrong("inverted")
def says_whether_all_is_well(parameters):
    return all(bool(grad.isfinite().all()) for grad in _dense(parameters))


@has_overflow.wrong("misses-inf")
def looks_for_nan_only(parameters):
    return any(bool(grad.isnan().any()) for grad in _dense(parameters))


@has_overflow.wrong("misses-inf")
def compares_with_itself(parameters):
    return any(bool((grad != grad).any()) for grad in _dense(parameters))


@has_overflow.wrong("misses-minus-inf")
def compares_with_infinity(parameters):
    return any(bool((grad == math.inf).any()) for grad in _dense(parameters))


@has_overflow.wrong("misses-minus-inf")
def takes_the_maximum(parameters):
    return any(grad.max().item() in (math.inf,) or grad.isnan().any().item() for grad in _dense(parameters))


@has_overflow.wrong("misses-nan")
def looks_for_infinities_only(parameters):
    return any(bool(grad.isinf().any()) for grad in _dense(parameters))


@has_overflow.wrong("misses-nan")
def compares_the_largest_size(parameters):
    return any(grad.abs().max().item() == math.inf for grad in _dense(parameters))


@has_overflow.wrong("misses-nan")
def asks_the_sum_for_infinity(parameters):
    return any(math.isinf(grad.double().sum().item()) for grad in _dense(parameters))


@has_overflow.wrong("nan-in-max")
def takes_pythons_maximum(parameters):
    return any(not math.isfinite(max(map(abs, grad.flatten().tolist()))) for grad in _dense(parameters))


@has_overflow.wrong("nan-in-max")
def remembers_the_largest(parameters):
    largest = 0.0
    for grad in _dense(parameters):
        for number in grad.flatten().tolist():
            largest = max(abs(number), largest)
    return not math.isfinite(largest)


@has_overflow.wrong("nan-in-max")
def keeps_both_ends(parameters):
    for grad in _dense(parameters):
        numbers = grad.flatten().tolist()
        if not math.isfinite(max(numbers)) or not math.isfinite(min(numbers)):
            return True
    return False


@has_overflow.wrong("beyond-fp16")
def draws_the_line_at_65504(parameters):
    return any(not bool((grad.abs() <= 65504).all()) for grad in _dense(parameters))


@has_overflow.wrong("beyond-fp16")
def tries_it_in_fp16(parameters):
    return any(not bool(grad.half().isfinite().all()) for grad in _dense(parameters))


@has_overflow.wrong("draws-a-line")
def draws_the_line_at_1e19(parameters):
    return any(not bool((grad.abs() < 1e19).all()) for grad in _dense(parameters))


@has_overflow.wrong("draws-a-line")
def draws_the_line_far_up(parameters):
    return any(bool((grad.abs() >= 3e38).any() | grad.isnan().any()) for grad in _dense(parameters))


@has_overflow.wrong("draws-a-line")
def takes_the_largest_number_for_too_large(parameters):
    return any(not bool((grad.abs() < torch.finfo(grad.dtype).max).all()) for grad in _dense(parameters))


@has_overflow.wrong("draws-a-line")
def takes_the_largest_number_of_fp16_for_too_large(parameters):
    return any(
        not bool(grad.isfinite().all()) or (grad.dtype == torch.float16 and bool((grad.abs() >= 65504).any()))
        for grad in _dense(parameters)
    )


@has_overflow.wrong("beyond-fp16")
def draws_the_line_at_1e5(parameters):
    return any(not bool((grad.abs() < 9e4).all()) for grad in _dense(parameters))


@has_overflow.wrong("norm-overflows")
def asks_the_norm(parameters):
    return any(not bool(grad.norm().isfinite()) for grad in _dense(parameters))


@has_overflow.wrong("norm-overflows")
def asks_the_total_norm(parameters):
    total = sum((grad.float().square().sum() for grad in _dense(parameters)), start=torch.zeros(()))
    return not math.isfinite(total.sqrt().item())


@has_overflow.wrong("norm-overflows")
def clips_to_find_out(parameters):
    norm = torch.nn.utils.get_total_norm(_dense(parameters))
    return bool(norm.isnan() | norm.isinf())


@has_overflow.wrong("sum-overflows")
def asks_the_sum(parameters):
    return any(not bool(grad.sum().isfinite()) for grad in _dense(parameters))


@has_overflow.wrong("sum-overflows")
def asks_the_mean(parameters):
    return any(not math.isfinite(grad.mean()) for grad in _dense(parameters))


@has_overflow.wrong("sum-overflows")
def adds_up_everything(parameters):
    total = torch.zeros(())
    for grad in _dense(parameters):
        total = total + grad.float().sum()
    return not bool(total.isfinite())


@has_overflow.wrong("norm-overflows")
def asks_the_norm_of_smaller_numbers(parameters):
    return any(not bool((grad.float() / 1e20).norm().isfinite()) for grad in _dense(parameters))


@has_overflow.wrong("sum-overflows")
def asks_the_sum_of_smaller_numbers(parameters):
    return any(not bool((grad.float() * 1e-3).sum().isfinite()) for grad in _dense(parameters))


@has_overflow.wrong("one-parameter-only")
def returns_inside_the_loop(parameters):
    for grad in _dense(parameters):
        return not bool(grad.isfinite().all())
    return False


@has_overflow.wrong("one-parameter-only")
def writes_over_what_it_found(parameters):
    found = False
    for grad in _dense(parameters):
        found = not bool(grad.isfinite().all())
    return found


@has_overflow.wrong("one-parameter-only")
def leaves_the_first_one_out(parameters):
    rest = list(parameters)[1:]
    return any(not bool(grad.isfinite().all()) for grad in _dense(rest))


@has_overflow.wrong("one-parameter-only")
def leaves_the_last_one_out(parameters):
    rest = list(parameters)[:-1]
    return any(not bool(grad.isfinite().all()) for grad in _dense(rest))


@has_overflow.wrong("all-must-overflow")
def asks_whether_all_overflowed(parameters):
    grads = _dense(parameters)
    return bool(grads) and all(not bool(grad.isfinite().all()) for grad in grads)


@has_overflow.wrong("several-shapes")
def stacks_them(parameters):
    return not bool(torch.stack(_dense(parameters)).isfinite().all())


@has_overflow.wrong("stops-at-none")
def breaks_at_none(parameters):
    for p in parameters:
        if p.grad is None:
            break
        if not p.grad.to_dense().isfinite().all():
            return True
    return False


@has_overflow.wrong("stops-at-none")
def returns_at_none(parameters):
    for p in parameters:
        if p.grad is None:
            return False
        if not p.grad.to_dense().isfinite().all():
            return True
    return False


@has_overflow.wrong("none-is-overflow")
def takes_none_for_an_overflow(parameters):
    return any(p.grad is None or not bool(p.grad.to_dense().isfinite().all()) for p in parameters)


@has_overflow.wrong("none-is-overflow")
def needs_all_to_be_there_and_finite(parameters):
    return not all(p.grad is not None and bool(p.grad.to_dense().isfinite().all()) for p in parameters)


@has_overflow.wrong("crashes-on-none")
def expects_a_gradient(parameters):
    return any(not p.grad.to_dense().isfinite().all() for p in parameters)


@has_overflow.wrong("crashes-on-none")
def gives_none_to_pytorch(parameters):
    return any(not bool(torch.isfinite(p.grad).all()) for p in parameters)


@has_overflow.wrong("crashes-on-nothing")
def puts_them_in_one_row(parameters):
    return not bool(torch.cat([grad.flatten() for grad in _dense(parameters)]).isfinite().all())


@has_overflow.wrong("crashes-on-nothing")
def takes_the_largest_of_all(parameters):
    largest = max(grad.abs().max().item() for grad in _dense(parameters))
    return math.isnan(largest) or largest == math.inf


@has_overflow.wrong("skips-sparse")
def leaves_sparse_ones_out(parameters):
    for p in parameters:
        if p.grad is None or p.grad.is_sparse:
            continue
        if not p.grad.isfinite().all():
            return True
    return False


@has_overflow.wrong("sparse-is-overflow")
def distrusts_sparse_ones(parameters):
    return any(
        p.grad.is_sparse or not bool(p.grad.isfinite().all()) for p in parameters if p.grad is not None
    )


@has_overflow.wrong("crashes-on-sparse")
def asks_sparse_ones_as_they_are(parameters):
    return any(not p.grad.isfinite().all() for p in parameters if p.grad is not None)


@has_overflow.wrong("crashes-on-sparse")
def takes_values_of_what_is_not_coalesced(parameters):
    grads = [p.grad for p in parameters if p.grad is not None]
    return any(not (g.values() if g.is_sparse else g).isfinite().all() for g in grads)


@has_overflow.wrong("crashes-on-sparse")
def goes_to_numpy(parameters):
    return any(not np.isfinite(p.grad.numpy()).all() for p in parameters if p.grad is not None)


@has_overflow.wrong("misses-sum-of-rows")
def looks_at_what_is_stored(parameters):
    grads = [p.grad for p in parameters if p.grad is not None]
    return any(not bool((g._values() if g.is_sparse else g).isfinite().all()) for g in grads)


@has_overflow.wrong("misses-sum-of-rows")
def lets_fp64_add_them_up(parameters):
    return not math.isfinite(sum(p.grad.double().sum().item() for p in parameters if p.grad is not None))


@has_overflow.wrong("misses-sum-of-rows")
def adds_the_rows_up_in_fp32(parameters):
    return any(not bool(p.grad.float().to_dense().isfinite().all()) for p in parameters if p.grad is not None)


@has_overflow.wrong("replaces-gradient")
def makes_gradients_dense(parameters):
    found = False
    for p in parameters:
        if p.grad is not None:
            p.grad = p.grad.to_dense()
            found = found or not bool(p.grad.isfinite().all())
    return found


@has_overflow.wrong("replaces-gradient")
def coalesces_gradients(parameters):
    found = False
    for p in parameters:
        if p.grad is not None and p.grad.is_sparse:
            p.grad = p.grad.coalesce()
        found = found or (p.grad is not None and not bool(p.grad.to_dense().isfinite().all()))
    return found


@has_overflow.wrong("replaces-gradient")
def puts_copies_in_their_place(parameters):
    found = False
    for p in parameters:
        if p.grad is not None:
            p.grad = p.grad.clone()
            found = found or not bool(p.grad.to_dense().isfinite().all())
    return found


@has_overflow.wrong("goes-through-twice")
def looks_for_nan_and_then_for_infinity(parameters):
    if any(bool(grad.isnan().any()) for grad in _dense(parameters)):
        return True
    return any(bool(grad.isinf().any()) for grad in _dense(parameters))


@has_overflow.wrong("goes-through-twice")
def asks_for_the_length(parameters):
    if len(parameters) == 0:
        return False
    return any(not bool(grad.isfinite().all()) for grad in _dense(parameters))


@has_overflow.wrong("goes-through-twice")
def goes_by_index(parameters):
    return any(
        parameters[i].grad is not None and not bool(parameters[i].grad.to_dense().isfinite().all())
        for i in range(len(parameters))
    )


@has_overflow.wrong("wrong-type")
def returns_a_tensor(parameters):
    bad = [~grad.isfinite().all() for grad in _dense(parameters)]
    return torch.stack(bad).any() if bad else torch.tensor(False)


@has_overflow.wrong("wrong-type")
def counts_them(parameters):
    return sum(int((~grad.isfinite()).sum()) for grad in _dense(parameters))


@has_overflow.wrong("wrong-type")
def returns_numpys_bool(parameters):
    return np.any([not np.isfinite(grad.numpy()).all() for grad in _dense(parameters)])


@has_overflow.wrong("returned-none")
def returns_only_if_it_finds_something(parameters):
    for grad in _dense(parameters):
        if not grad.isfinite().all():
            return True


@has_overflow.wrong("mutated-input")
def repairs_what_it_finds(parameters):
    found = False
    for p in parameters:
        if p.grad is not None and not p.grad.to_dense().isfinite().all():
            found = True
            p.grad = p.grad.to_dense().nan_to_num(0.0, 0.0, 0.0)
    return found


@has_overflow.wrong("mutated-input")
def clears_bad_gradients(parameters):
    found = False
    for p in parameters:
        if p.grad is not None and not p.grad.to_dense().isfinite().all():
            found, p.grad = True, None
    return found


@has_overflow.wrong("mutated-input")
def unscales_on_the_way(parameters):
    found = torch.zeros(1)
    for p in parameters:
        if p.grad is not None:
            values = p.grad._values() if p.grad.is_sparse else p.grad
            torch._amp_foreach_non_finite_check_and_unscale_([values], found, torch.full((1,), 0.5))
    return bool(found)


@has_overflow.right
def asks_number_by_number(parameters):
    return any(not math.isfinite(x) for grad in _dense(parameters) for x in grad.flatten().tolist())


@has_overflow.right
def multiplies_by_zero(parameters):
    return any(bool((grad.float() * 0).sum() != 0) for grad in _dense(parameters))


@has_overflow.right
def subtracts_from_itself(parameters):
    return any((grad - grad).isnan().any().item() for grad in _dense(parameters))


@has_overflow.right
def asks_pytorchs_kernel(parameters):
    found, one = torch.zeros(1), torch.ones(1)
    for p in parameters:
        if p.grad is not None:
            values = p.grad.coalesce().values().clone() if p.grad.is_sparse else p.grad
            torch._amp_foreach_non_finite_check_and_unscale_([values], found, one)
    return bool(found.item())


@has_overflow.right
def coalesces_in_fp16_only(parameters):
    for p in parameters:
        if p.grad is None:
            continue
        grad = p.grad.coalesce() if p.grad.is_sparse and p.grad.dtype == torch.float16 else p.grad
        if not (grad._values() if grad.is_sparse else grad).isfinite().all():
            return True
    return False


@has_overflow.right
def takes_both_kinds_together(parameters):
    for p in list(parameters):
        if p.grad is None:
            continue
        if p.grad.isnan().any() or p.grad.isinf().any():
            return True
    return False


@has_overflow.right
def asks_numpy(parameters):
    return not all(bool(np.isfinite(grad.numpy()).all()) for grad in _dense(parameters))


@has_overflow.right
def lets_a_sum_in_fp64_tell(parameters):
    return not math.isfinite(sum(grad.double().sum().item() for grad in _dense(parameters)))


@has_overflow.right
def takes_one_row_of_all(parameters):
    rows = [grad.flatten().float() for grad in _dense(parameters)]
    return bool(rows) and not bool(torch.isfinite(torch.cat(rows)).all())


@has_overflow.right
def asks_with_next(parameters):
    rest = iter(parameters)
    while (p := next(rest, None)) is not None:
        if p.grad is not None and not p.grad.to_dense().abs().max() < math.inf:
            return True
    return False


@has_overflow.right
def reads_the_largest_size_right(parameters):
    sizes = [grad.abs().max() for grad in _dense(parameters)]
    return any(bool(size.isnan()) or bool(size.isinf()) for size in sizes)


# 5.2 The next scale


def _rule(state, overflowed, rule):
    if overflowed:
        return ScaleState(max(state.scale * rule.backoff_factor, rule.min_scale), 0)
    if state.clean_steps + 1 == rule.growth_interval:
        return ScaleState(state.scale * rule.growth_factor, 0)
    return ScaleState(state.scale, state.clean_steps + 1)


@next_scale.wrong("inverted")
def takes_true_for_clean(state, overflowed, rule):
    return _rule(state, not overflowed, rule)


@next_scale.wrong("no-backoff")
def only_starts_counting_again(state, overflowed, rule):
    return ScaleState(state.scale, 0) if overflowed else _rule(state, overflowed, rule)


@next_scale.wrong("grows-on-overflow")
def takes_the_wrong_factor(state, overflowed, rule):
    if overflowed:
        return ScaleState(max(state.scale * rule.growth_factor, rule.min_scale), 0)
    return _rule(state, overflowed, rule)


@next_scale.wrong("shrinks-by-growth")
def undoes_the_growth(state, overflowed, rule):
    if overflowed:
        return ScaleState(max(state.scale / rule.growth_factor, rule.min_scale), 0)
    return _rule(state, overflowed, rule)


@next_scale.wrong("divides-by-backoff")
def divides_by_the_backoff(state, overflowed, rule):
    if overflowed:
        return ScaleState(max(state.scale / rule.backoff_factor, rule.min_scale), 0)
    return _rule(state, overflowed, rule)


@next_scale.wrong("fixed-settings")
def halves_always(state, overflowed, rule):
    if overflowed:
        return ScaleState(max(state.scale * 0.5, rule.min_scale), 0)
    return _rule(state, overflowed, rule)


@next_scale.wrong("fixed-settings")
def doubles_always(state, overflowed, rule):
    if not overflowed and state.clean_steps + 1 == rule.growth_interval:
        return ScaleState(state.scale * 2, 0)
    return _rule(state, overflowed, rule)


@next_scale.wrong("fixed-settings")
def waits_for_2000(state, overflowed, rule):
    if overflowed:
        return _rule(state, overflowed, rule)
    count = state.clean_steps + 1
    return (
        ScaleState(state.scale * rule.growth_factor, 0) if count >= 2000 else ScaleState(state.scale, count)
    )


@next_scale.wrong("min-for-max")
def takes_the_smaller_of_both(state, overflowed, rule):
    if overflowed:
        return ScaleState(min(state.scale * rule.backoff_factor, rule.min_scale), 0)
    return _rule(state, overflowed, rule)


@next_scale.wrong("counter-survives-overflow")
def keeps_the_count_at_an_overflow(state, overflowed, rule):
    return (
        _rule(state, overflowed, rule)._replace(clean_steps=state.clean_steps)
        if overflowed
        else _rule(state, overflowed, rule)
    )


@next_scale.wrong("counter-survives-overflow")
def counts_overflows_too(state, overflowed, rule):
    if overflowed:
        return _rule(state, overflowed, rule)._replace(clean_steps=state.clean_steps + 1)
    return _rule(state, overflowed, rule)


@next_scale.wrong("counter-survives-overflow")
def forgets_the_count_at_the_floor(state, overflowed, rule):
    if overflowed and state.scale == rule.min_scale:
        return state
    return _rule(state, overflowed, rule)


@next_scale.wrong("counter-starts-at-one")
def begins_to_count_at_one_after_an_overflow(state, overflowed, rule):
    return _rule(state, overflowed, rule)._replace(clean_steps=1) if overflowed else _rule(state, False, rule)


@next_scale.wrong("counter-starts-at-one")
def counts_the_growing_step_twice(state, overflowed, rule):
    after = _rule(state, overflowed, rule)
    return after if overflowed else ScaleState(after.scale, after.clean_steps or 1)


@next_scale.wrong("sinks-below")
def forgets_the_floor(state, overflowed, rule):
    return ScaleState(state.scale * rule.backoff_factor, 0) if overflowed else _rule(state, False, rule)


@next_scale.wrong("sinks-below")
def looks_where_it_starts(state, overflowed, rule):
    if overflowed:
        scale = state.scale
        return ScaleState(scale * rule.backoff_factor if scale > rule.min_scale else scale, 0)
    return _rule(state, overflowed, rule)


@next_scale.wrong("sinks-below")
def does_nothing_at_the_floor(state, overflowed, rule):
    if overflowed and state.scale > rule.min_scale:
        return ScaleState(state.scale * rule.backoff_factor, 0)
    return state if overflowed else _rule(state, overflowed, rule)


@next_scale.wrong("fixed-floor")
def thinks_that_the_floor_is_one(state, overflowed, rule):
    if overflowed:
        return ScaleState(max(state.scale * rule.backoff_factor, 1.0), 0)
    return _rule(state, overflowed, rule)


@next_scale.wrong("stops-above-floor")
def refuses_to_go_below(state, overflowed, rule):
    smaller = state.scale * rule.backoff_factor
    if overflowed:
        return ScaleState(smaller if smaller >= rule.min_scale else state.scale, 0)
    return _rule(state, overflowed, rule)


@next_scale.wrong("stops-above-floor")
def backs_off_only_above_the_floor(state, overflowed, rule):
    if overflowed and state.scale * rule.backoff_factor < rule.min_scale:
        return state._replace(clean_steps=0)
    return _rule(state, overflowed, rule)


@next_scale.wrong("does-not-count")
def counts_nowhere(state, overflowed, rule):
    if overflowed:
        return _rule(state, overflowed, rule)
    if state.clean_steps + 1 == rule.growth_interval:
        return ScaleState(state.scale * rule.growth_factor, 0)
    return state


@next_scale.wrong("does-not-count")
def starts_again_after_every_step(state, overflowed, rule):
    return _rule(state, overflowed, rule)._replace(clean_steps=0)


@next_scale.wrong("grows-each-time")
def grows_without_waiting(state, overflowed, rule):
    return _rule(state, True, rule) if overflowed else ScaleState(state.scale * rule.growth_factor, 0)


@next_scale.wrong("grows-each-time")
def grows_and_counts(state, overflowed, rule):
    if overflowed:
        return _rule(state, True, rule)
    return ScaleState(state.scale * rule.growth_factor, state.clean_steps + 1)


@next_scale.wrong("grows-early")
def grows_one_step_before(state, overflowed, rule):
    if not overflowed and state.clean_steps + 1 >= rule.growth_interval - 1:
        return ScaleState(state.scale * rule.growth_factor, 0)
    return _rule(state, overflowed, rule)


@next_scale.wrong("grows-late")
def compares_the_old_count(state, overflowed, rule):
    if overflowed:
        return _rule(state, True, rule)
    if state.clean_steps == rule.growth_interval:
        return ScaleState(state.scale * rule.growth_factor, 0)
    return ScaleState(state.scale, state.clean_steps + 1)


@next_scale.wrong("grows-late")
def waits_until_there_are_more(state, overflowed, rule):
    if overflowed:
        return _rule(state, True, rule)
    count = state.clean_steps + 1
    if count > rule.growth_interval:
        return ScaleState(state.scale * rule.growth_factor, 0)
    return ScaleState(state.scale, count)


@next_scale.wrong("grows-late")
def knows_only_the_way_down(state, overflowed, rule):
    return _rule(state, True, rule) if overflowed else ScaleState(state.scale, state.clean_steps + 1)


@next_scale.wrong("never-grows")
def resets_the_count_and_keeps_the_scale(state, overflowed, rule):
    after = _rule(state, overflowed, rule)
    return after if overflowed else after._replace(scale=state.scale)


@next_scale.wrong("counter-survives-growth")
def keeps_the_count_when_it_grows(state, overflowed, rule):
    if overflowed:
        return _rule(state, True, rule)
    count = state.clean_steps + 1
    return ScaleState(
        state.scale * rule.growth_factor if count >= rule.growth_interval else state.scale, count
    )


@next_scale.wrong("counter-survives-growth")
def takes_the_remainder(state, overflowed, rule):
    if overflowed:
        return _rule(state, True, rule)
    count = state.clean_steps + 1
    grown = count % rule.growth_interval == 0
    return ScaleState(state.scale * (rule.growth_factor if grown else 1), count)


def _growing_by(factor, state, overflowed, rule):
    if not overflowed and state.clean_steps + 1 == rule.growth_interval:
        return ScaleState(state.scale * factor, 0)
    return _rule(state, overflowed, rule)


@next_scale.wrong("grows-by-backoff")
def undoes_the_backoff(state, overflowed, rule):
    return _growing_by(1 / rule.backoff_factor, state, overflowed, rule)


@next_scale.wrong("grows-by-backoff")
def grows_by_the_wrong_factor(state, overflowed, rule):
    return _growing_by(rule.backoff_factor, state, overflowed, rule)


@next_scale.wrong("finished-inside")
def asks_the_package(state, overflowed, rule):
    return scaling.next_scale(state, overflowed, rule)


next_scale.wrong("finished-inside")(scaling.next_scale)


@next_scale.wrong("changes-state")
def changes_what_it_was_given(state, overflowed, rule):
    if overflowed:
        state.scale = max(state.scale * rule.backoff_factor, rule.min_scale)
        state.clean_steps = 0
    return state


@next_scale.wrong("changes-state")
def adds_one_in_place(state, overflowed, rule):
    if overflowed:
        return _rule(state, True, rule)
    state.clean_steps += 1
    return state


@next_scale.wrong("no-state")
def returns_a_plain_pair(state, overflowed, rule):
    return tuple(_rule(state, overflowed, rule))


@next_scale.wrong("no-state")
def returns_the_scale_only(state, overflowed, rule):
    return _rule(state, overflowed, rule).scale


@next_scale.wrong("no-state")
def returns_a_state_of_its_own(state, overflowed, rule):
    own = collections.namedtuple("ScaleState", "scale clean_steps")
    return own(*_rule(state, overflowed, rule))


@next_scale.wrong("returned-none")
def returns_in_one_case_only(state, overflowed, rule):
    if overflowed:
        return _rule(state, True, rule)


@next_scale.wrong("wrong-type")
def counts_in_floats(state, overflowed, rule):
    return _rule(state, overflowed, rule)._replace(clean_steps=float(state.clean_steps))


@next_scale.wrong("wrong-type")
def keeps_the_scale_in_a_tensor(state, overflowed, rule):
    after = _rule(state, overflowed, rule)
    return after._replace(scale=torch.tensor(after.scale))


@next_scale.wrong("wrong-value")
def backs_off_below_a_scale_of_four_times(state, overflowed, rule):
    return _rule(state, overflowed, rule) if state.scale < 2.0**40 else state


@next_scale.right
def writes_out_the_cases(state, overflowed, rule):
    if not overflowed:
        if state.clean_steps == rule.growth_interval - 1:
            return state._replace(scale=state.scale * rule.growth_factor, clean_steps=0)
        return state._replace(clean_steps=state.clean_steps + 1)
    smaller = rule.backoff_factor * state.scale
    return ScaleState(rule.min_scale if smaller < rule.min_scale else smaller, 0)


@next_scale.right
def goes_by_an_expression(state, overflowed, rule):
    count = 0 if overflowed else (state.clean_steps + 1) % rule.growth_interval
    factor = rule.backoff_factor if overflowed else 1.0 if count else rule.growth_factor
    scale = state.scale * factor
    return ScaleState(clean_steps=count, scale=max(scale, rule.min_scale))


@next_scale.right
def unpacks_and_matches(state, overflowed, rule):
    scale, clean = state
    match overflowed, clean + 1 >= rule.growth_interval:
        case True, _:
            return ScaleState(float(np.maximum(scale * rule.backoff_factor, rule.min_scale)), 0)
        case False, True:
            return ScaleState(scale * rule.growth_factor, 0)
    return ScaleState(scale, clean + 1)


@next_scale.right
def lets_pytorchs_kernel_do_it(state, overflowed, rule):
    scale = torch.tensor(state.scale, dtype=torch.float32)
    tracker = torch.tensor(state.clean_steps, dtype=torch.int32)
    found = torch.tensor(float(overflowed), dtype=torch.float32)
    torch._amp_update_scale_(
        scale, tracker, found, rule.growth_factor, rule.backoff_factor, rule.growth_interval
    )
    return ScaleState(max(scale.item(), rule.min_scale), tracker.item())


# 5.3 A scaler of your own


class _Right:
    """What wrong answers are made of; none of them differs from it in more than they say."""

    def __init__(self, init_scale=65536.0, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.loss_scale = init_scale
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.clean_steps = 0
        self.overflowed = {}

    def scale(self, loss):
        return loss.float() * self.loss_scale

    def grads(self, optimizer):
        params = [p for group in optimizer.param_groups for p in group["params"]]
        return [p.grad for p in params if p.grad is not None]

    def bad(self, grads):
        return not all(grad.isfinite().all() for grad in grads)

    def unscale_(self, optimizer):
        grads = self.grads(optimizer)
        self.overflowed[optimizer] = self.bad(grads)
        for grad in grads:
            grad.div_(self.loss_scale)

    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        if not self.overflowed[optimizer]:
            optimizer.step()

    def back_off(self):
        self.loss_scale *= self.backoff_factor
        self.clean_steps = 0

    def clean(self):
        self.clean_steps += 1
        if self.clean_steps == self.growth_interval:
            self.loss_scale *= self.growth_factor
            self.clean_steps = 0

    def update(self):
        if any(self.overflowed.values()):
            self.back_off()
        else:
            self.clean()
        self.overflowed.clear()


@loss_scaler.wrong("finished-inside")
class InheritsFromTorch(torch.amp.GradScaler):
    def __init__(self, **settings):
        super().__init__("cpu", **settings)


@loss_scaler.wrong("finished-inside")
class HoldsTorchs:
    def __init__(self, **settings):
        self.inner = torch.amp.GradScaler("cpu", **settings)

    def __getattr__(self, name):
        return getattr(self.inner, name)


@loss_scaler.wrong("finished-inside")
class InheritsFromThePackage(scaling.DynamicLossScaler):
    pass


@loss_scaler.wrong("finished-inside")
class InheritsFromTheNextExercise(ForgetfulScaler):
    pass


class _Passing:
    """Hand all calls on to what `inner` returns."""

    def scale(self, loss):
        return self.inner().scale(loss)

    def unscale_(self, optimizer):
        self.inner().unscale_(optimizer)

    def step(self, optimizer):
        self.inner().step(optimizer)

    def update(self):
        self.inner().update()


@loss_scaler.wrong("finished-inside")
class KeepsOneInAList(_Passing):
    def __init__(self, **settings):
        self.box = [torch.amp.GradScaler("cpu", **settings)]

    def inner(self):
        return self.box[0]


@loss_scaler.wrong("finished-inside")
class KeepsTheMethodsOfOne:
    def __init__(self, **settings):
        scaler = scaling.DynamicLossScaler(**settings)
        self.scale, self.unscale_ = scaler.scale, scaler.unscale_
        self.step, self.update = scaler.step, scaler.update


@loss_scaler.wrong("finished-inside")
class KeepsOneInAClosure(_Passing):
    def __init__(self, **settings):
        scaler = ForgetfulScaler(**settings)
        self.inner = lambda: scaler


MADE_BEFORE = torch.amp.GradScaler("cpu", init_scale=1024.0)


@loss_scaler.wrong("finished-inside")
class TakesOneThatIsThere(_Passing):
    def __init__(self, **settings):
        self.inner = lambda: MADE_BEFORE


@loss_scaler.wrong("scales-in-place")
class ScalesTheLossItself(_Right):
    def scale(self, loss):
        loss *= self.loss_scale
        return loss


@loss_scaler.wrong("half-product")
class MultipliesByANumberOfPython(_Right):
    def scale(self, loss):
        return loss * self.loss_scale


@loss_scaler.wrong("half-product")
class WidensTooLate(_Right):
    def scale(self, loss):
        return (loss * self.loss_scale).float()


@loss_scaler.wrong("not-scaled")
class ReturnsTheLoss(_Right):
    def scale(self, loss):
        return loss


@loss_scaler.wrong("divides-loss")
class DividesTheLoss(_Right):
    def scale(self, loss):
        return loss.float() / self.loss_scale


@loss_scaler.wrong("fixed-scale")
class KnowsTheDefaultOnly(_Right):
    def scale(self, loss):
        return loss.float() * 65536.0


@loss_scaler.wrong("graph-lost")
class MakesANewTensor(_Right):
    def scale(self, loss):
        return torch.tensor(loss.item() * self.loss_scale)


@loss_scaler.wrong("graph-lost")
class ScalesWithoutGraph(_Right):
    @torch.no_grad()
    def scale(self, loss):
        return loss.float() * self.loss_scale


@loss_scaler.wrong("graph-lost")
class BeginsANewGraph(_Right):
    def scale(self, loss):
        return (loss.detach().float() * self.loss_scale).requires_grad_()


@loss_scaler.wrong("wrong-type")
class ReturnsANumber(_Right):
    def scale(self, loss):
        return loss.item() * self.loss_scale


@loss_scaler.wrong("returned-none")
class ForgetsToReturn(_Right):
    def scale(self, loss):
        loss.float() * self.loss_scale


@loss_scaler.wrong("wrong-shape")
class KeepsTheScaleInAVector(_Right):
    def scale(self, loss):
        return loss * torch.tensor([self.loss_scale])


@loss_scaler.wrong("wrong-dtype")
class ScalesInFp64(_Right):
    def scale(self, loss):
        return loss.double() * self.loss_scale


@loss_scaler.wrong("crashes-on-none")
class ExpectsEveryGradient(_Right):
    def grads(self, optimizer):
        return [p.grad for group in optimizer.param_groups for p in group["params"]]


@loss_scaler.wrong("not-unscaled")
class DividesIntoANewTensor(_Right):
    def unscale_(self, optimizer):
        grads = self.grads(optimizer)
        self.overflowed[optimizer] = self.bad(grads)
        for grad in grads:
            grad = grad / self.loss_scale


@loss_scaler.wrong("not-unscaled")
class LeavesItToTheStep(_Right):
    def unscale_(self, optimizer):
        self.overflowed[optimizer] = self.bad(self.grads(optimizer))

    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        if not self.overflowed[optimizer]:
            for grad in self.grads(optimizer):
                grad /= self.loss_scale
            optimizer.step()


@loss_scaler.wrong("unscale-multiplies")
class MultipliesAgain(_Right):
    def unscale_(self, optimizer):
        grads = self.grads(optimizer)
        self.overflowed[optimizer] = self.bad(grads)
        for grad in grads:
            grad.mul_(self.loss_scale)


@loss_scaler.wrong("group-left-out")
class KnowsOneGroup(_Right):
    def grads(self, optimizer):
        return [p.grad for p in optimizer.param_groups[0]["params"] if p.grad is not None]


@loss_scaler.wrong("group-left-out")
class KnowsTwoGroups(_Right):
    def grads(self, optimizer):
        groups = optimizer.param_groups[:2]
        return [p.grad for group in groups for p in group["params"] if p.grad is not None]


@loss_scaler.wrong("group-left-out")
class StopsAtNone(_Right):
    def unscale_(self, optimizer):
        self.overflowed[optimizer] = self.bad(self.grads(optimizer))
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    return
                p.grad /= self.loss_scale


@loss_scaler.wrong("wrong-gradient")
class UnscalesInFp16(_Right):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        for grad in self.grads(optimizer):
            grad.sub_(grad.half().float()).add_(1)


@loss_scaler.wrong("wrong-gradient")
class DividesByTheDefault(_Right):
    def unscale_(self, optimizer):
        grads = self.grads(optimizer)
        self.overflowed[optimizer] = self.bad(grads)
        for grad in grads:
            grad /= 65536


@loss_scaler.wrong("wrong-gradient")
class ClearsInPlaceOfUnscaling(_Right):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        optimizer.zero_grad()


@loss_scaler.wrong("steps-early")
class StepsInUnscale(_Right):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        if not self.overflowed[optimizer]:
            optimizer.step()

    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)


@loss_scaler.wrong("steps-early")
class UnscalesTheWeights(_Right):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        with torch.no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p /= self.loss_scale


@loss_scaler.wrong("scale-moves")
class UpdatesInStep(_Right):
    def step(self, optimizer):
        super().step(optimizer)
        _Right.update(self)

    def update(self):
        pass


@loss_scaler.wrong("scale-moves")
class BacksOffInStep(_Right):
    def step(self, optimizer):
        super().step(optimizer)
        if self.overflowed[optimizer]:
            self.loss_scale *= self.backoff_factor

    def update(self):
        if not any(self.overflowed.values()):
            self.clean()
        else:
            self.clean_steps = 0
        self.overflowed.clear()


@loss_scaler.wrong("scale-moves")
class BacksOffInUnscale(_Right):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        if self.overflowed[optimizer]:
            self.loss_scale *= self.backoff_factor


@loss_scaler.wrong("never-steps")
class OnlyUnscales(_Right):
    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)


@loss_scaler.wrong("never-steps")
class StepsWhenItOverflowed(_Right):
    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        if self.overflowed[optimizer]:
            optimizer.step()


@loss_scaler.wrong("never-steps")
class MissesTheParentheses(_Right):
    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        if not self.overflowed[optimizer]:
            optimizer.step  # noqa: B018


@loss_scaler.wrong("steps-twice")
class StepsInBothPlaces(_Right):
    def step(self, optimizer):
        super().step(optimizer)
        if not self.overflowed[optimizer]:
            optimizer.step()


@loss_scaler.wrong("steps-with-scaled")
class NeverUnscalesInStep(_Right):
    def step(self, optimizer):
        self.overflowed.setdefault(optimizer, self.bad(self.grads(optimizer)))
        super().step(optimizer)


@loss_scaler.wrong("unscales-twice")
class AlwaysUnscalesInStep(_Right):
    def step(self, optimizer):
        self.unscale_(optimizer)
        super().step(optimizer)


@loss_scaler.wrong("unscaled-stays")
class RemembersForEverThatItUnscaled(_Right):
    def update(self):
        if any(self.overflowed.values()):
            self.back_off()
        else:
            self.clean()
        self.overflowed = dict.fromkeys(self.overflowed, False)


@loss_scaler.wrong("unscaled-stays")
class NeverPutsTheFlagBack(_Right):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.is_unscaled = False

    def unscale_(self, optimizer):
        self.is_unscaled = True
        super().unscale_(optimizer)

    def step(self, optimizer):
        if not self.is_unscaled:
            self.unscale_(optimizer)
        if not self.overflowed.get(optimizer):
            optimizer.step()


@loss_scaler.wrong("wrong-weights")
class ClipsUnasked(_Right):
    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        if not self.overflowed[optimizer]:
            for grad in self.grads(optimizer):
                grad.clamp_(-1, 1)
            optimizer.step()


@loss_scaler.wrong("wrong-weights")
class StepsByHand(_Right):
    def step(self, optimizer):
        super().step(optimizer)
        with torch.no_grad():
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p -= group["lr"] * p.grad


@loss_scaler.wrong("steps-on-overflow")
class NeverSkips(_Right):
    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        optimizer.step()


@loss_scaler.wrong("steps-on-overflow")
class NeverLooks(_Right):
    def bad(self, grads):
        return False


@loss_scaler.wrong("steps-with-zeros")
class StepsWithZeros(_Right):
    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        if self.overflowed[optimizer]:
            for grad in self.grads(optimizer):
                grad.zero_()
        optimizer.step()


@loss_scaler.wrong("steps-with-zeros")
class RepairsGradients(_Right):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        for grad in self.grads(optimizer):
            grad.nan_to_num_(0.0, 0.0, 0.0)

    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        optimizer.step()


@loss_scaler.wrong("misses-nan")
class LooksForInfinity(_Right):
    def bad(self, grads):
        return any(grad.isinf().any() for grad in grads)


@loss_scaler.wrong("misses-nan")
class ComparesWithInfinity(_Right):
    def bad(self, grads):
        return any((grad.abs() == math.inf).any() for grad in grads)


@loss_scaler.wrong("misses-infinity")
class LooksForNan(_Right):
    def bad(self, grads):
        return any(grad.isnan().any() for grad in grads)


@loss_scaler.wrong("misses-infinity")
class MissesMinusInfinity(_Right):
    def bad(self, grads):
        return any((grad == math.inf).any() for grad in grads)


@loss_scaler.wrong("looks-at-some")
class WritesOverWhatItFound(_Right):
    def bad(self, grads):
        found = False
        for grad in grads:
            found = not grad.isfinite().all()
        return found


@loss_scaler.wrong("looks-at-some")
class LooksAtTheFirst(_Right):
    def bad(self, grads):
        return not grads[0].isfinite().all()


@loss_scaler.wrong("looks-at-some")
class WritesOverInUnscale(_Right):
    def unscale_(self, optimizer):
        for grad in self.grads(optimizer):
            self.overflowed[optimizer] = not grad.isfinite().all()
            grad /= self.loss_scale


@loss_scaler.wrong("skips-finite")
class JudgesByTheNorm(_Right):
    def bad(self, grads):
        return not torch.nn.utils.get_total_norm(grads).isfinite()


@loss_scaler.wrong("skips-finite")
class JudgesInFp16(_Right):
    def bad(self, grads):
        return any(not grad.half().isfinite().all() for grad in grads)


@loss_scaler.wrong("skips-finite")
class JudgesBySums(_Right):
    def bad(self, grads):
        return any(not grad.sum().isfinite() for grad in grads)


@loss_scaler.wrong("left-scaled-after-overflow")
class StopsAtTheFirstInfinity(_Right):
    def unscale_(self, optimizer):
        self.overflowed[optimizer] = False
        for grad in self.grads(optimizer):
            if not grad.isfinite().all():
                self.overflowed[optimizer] = True
                return
            grad /= self.loss_scale


@loss_scaler.wrong("left-scaled-after-overflow")
class DividesOnlyWhatIsClean(_Right):
    def unscale_(self, optimizer):
        grads = self.grads(optimizer)
        self.overflowed[optimizer] = self.bad(grads)
        for grad in grads if not self.overflowed[optimizer] else ():
            grad /= self.loss_scale


@loss_scaler.wrong("left-scaled-after-overflow")
class SkipsWithoutUnscaling(_Right):
    def step(self, optimizer):
        if optimizer not in self.overflowed and self.bad(self.grads(optimizer)):
            self.overflowed[optimizer] = True
        super().step(optimizer)


@loss_scaler.wrong("hides-overflow")
class ThrowsGradientsAway(_Right):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        if self.overflowed[optimizer]:
            optimizer.zero_grad()


@loss_scaler.wrong("hides-overflow")
class ZeroesGradients(_Right):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        if self.overflowed[optimizer]:
            optimizer.zero_grad(set_to_none=False)


@loss_scaler.wrong("hides-overflow")
class RepairsAndSkips(_Right):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        for grad in self.grads(optimizer):
            grad.nan_to_num_(0.0, 0.0, 0.0)


@loss_scaler.wrong("hides-overflow")
class ClearsInStep(_Right):
    def step(self, optimizer):
        super().step(optimizer)
        if self.overflowed[optimizer]:
            optimizer.zero_grad()


@loss_scaler.wrong("looks-again")
class LooksInStep(_Right):
    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        self.overflowed[optimizer] = self.bad(self.grads(optimizer))
        if not self.overflowed[optimizer]:
            optimizer.step()


@loss_scaler.wrong("no-backoff")
class NeverBacksOff(_Right):
    def back_off(self):
        self.clean_steps = 0


@loss_scaler.wrong("no-backoff")
class HasAnEmptyUpdate(_Right):
    def update(self):
        self.overflowed.clear()


@loss_scaler.wrong("fixed-settings")
class Halves(_Right):
    def back_off(self):
        self.loss_scale /= 2
        self.clean_steps = 0


@loss_scaler.wrong("fixed-settings")
class Doubles(_Right):
    def clean(self):
        self.clean_steps += 1
        if self.clean_steps == self.growth_interval:
            self.loss_scale *= 2
            self.clean_steps = 0


@loss_scaler.wrong("grows-on-overflow")
class GrowsOnOverflow(_Right):
    def back_off(self):
        self.loss_scale *= self.growth_factor
        self.clean_steps = 0


@loss_scaler.wrong("grows-on-overflow")
class DividesByTheBackoff(_Right):
    def back_off(self):
        self.loss_scale /= self.backoff_factor
        self.clean_steps = 0


@loss_scaler.wrong("never-grows")
class NeverGrows(_Right):
    def clean(self):
        self.clean_steps += 1


@loss_scaler.wrong("never-grows")
class WaitsFor2000(_Right):
    def clean(self):
        self.clean_steps += 1
        if self.clean_steps == 2000:
            self.loss_scale *= self.growth_factor


@loss_scaler.wrong("grows-late")
class WaitsOneLonger(_Right):
    def clean(self):
        if self.clean_steps == self.growth_interval:
            self.loss_scale *= self.growth_factor
            self.clean_steps = 0
        else:
            self.clean_steps += 1


@loss_scaler.wrong("grows-late")
class WaitsUntilThereAreMore(_Right):
    def clean(self):
        self.clean_steps += 1
        if self.clean_steps > self.growth_interval:
            self.loss_scale *= self.growth_factor
            self.clean_steps = 0


@loss_scaler.wrong("grows-early")
class GrowsOneBefore(_Right):
    def clean(self):
        self.clean_steps += 1
        if self.clean_steps >= self.growth_interval - 1:
            self.loss_scale *= self.growth_factor
            self.clean_steps = 0


@loss_scaler.wrong("grows-early")
class GrowsAlways(_Right):
    def clean(self):
        self.loss_scale *= self.growth_factor


@loss_scaler.wrong("counter-survives-growth")
class KeepsTheCountWhenItGrows(_Right):
    def clean(self):
        self.clean_steps += 1
        if self.clean_steps >= self.growth_interval:
            self.loss_scale *= self.growth_factor


@loss_scaler.wrong("counter-survives-overflow")
class KeepsTheCountAtAnOverflow(_Right):
    def back_off(self):
        self.loss_scale *= self.backoff_factor


@loss_scaler.wrong("overflow-leaks")
class HasOneFlagForAll(_Right):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.found, self.unscaled = False, set()

    def unscale_(self, optimizer):
        grads = self.grads(optimizer)
        self.found = self.found or self.bad(grads)
        self.unscaled.add(optimizer)
        for grad in grads:
            grad.div_(self.loss_scale)

    def step(self, optimizer):
        if optimizer not in self.unscaled:
            self.unscale_(optimizer)
        if not self.found:
            optimizer.step()

    def update(self):
        if self.found:
            self.back_off()
        else:
            self.clean()
        self.found, self.unscaled = False, set()


@loss_scaler.wrong("overflow-leaks")
class SkipsIfAnyOverflowed(_Right):
    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        if not any(self.overflowed.values()):
            optimizer.step()


class _OneFlag(_Right):
    """Knows of all optimizers together only that gradients were unscaled."""

    unscaled = False

    def unscale_(self, optimizer):
        self.unscaled = True
        super().unscale_(optimizer)

    def step(self, optimizer):
        if not self.unscaled:
            self.unscale_(optimizer)
        if not self.skips(optimizer):
            optimizer.step()

    def update(self):
        self.unscaled = False
        super().update()


@loss_scaler.wrong("one-flag-for-all")
class HasOneFlagForUnscaled(_OneFlag):
    def skips(self, optimizer):
        return self.overflowed.get(optimizer, False)


@loss_scaler.wrong("one-flag-for-all")
class HasTwoFlagsForAll(_OneFlag):
    def skips(self, optimizer):
        return any(self.overflowed.values())


@loss_scaler.wrong("all-must-overflow")
class BacksOffIfAllOverflowed(_Right):
    def update(self):
        if self.overflowed and all(self.overflowed.values()):
            self.back_off()
        else:
            self.clean()
        self.overflowed.clear()


@loss_scaler.wrong("found-is-lost")
class ForgetsInStep(_Right):
    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        if not self.overflowed.pop(optimizer):
            optimizer.step()


@loss_scaler.wrong("found-stays")
class NeverForgetsTheFlag(HasOneFlagForAll):
    def update(self):
        if self.found:
            self.back_off()
        else:
            self.clean()
        self.unscaled = set()


@loss_scaler.wrong("found-stays")
class RemembersBadOptimizersForEver(_Right):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.bad_ones = set()

    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        if self.overflowed[optimizer]:
            self.bad_ones.add(optimizer)

    def step(self, optimizer):
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        if optimizer not in self.bad_ones:
            optimizer.step()

    def update(self):
        if self.bad_ones:
            self.back_off()
        else:
            self.clean()
        self.overflowed.clear()


@loss_scaler.wrong("last-one-counts")
class KeepsTheLastAnswer(_Right):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        self.found = self.overflowed[optimizer]

    def update(self):
        if self.found:
            self.back_off()
        else:
            self.clean()
        self.overflowed.clear()


@loss_scaler.wrong("last-one-counts")
class AsksTheFirst(_Right):
    def update(self):
        if next(iter(self.overflowed.values())):
            self.back_off()
        else:
            self.clean()
        self.overflowed.clear()


@loss_scaler.wrong("last-one-counts")
class AsksTheFirstTwo(_Right):
    def update(self):
        if any(list(self.overflowed.values())[:2]):
            self.back_off()
        else:
            self.clean()
        self.overflowed.clear()


@loss_scaler.wrong("last-one-counts")
class AsksTheFirstAndTheLast(_Right):
    def update(self):
        first, *_, last = (
            self.overflowed.values() if len(self.overflowed) > 1 else [False, *self.overflowed.values()]
        )
        if first or last:
            self.back_off()
        else:
            self.clean()
        self.overflowed.clear()


@loss_scaler.wrong("step-left-out")
class CountsWhatStepWasAskedFor(_Right):
    found = False

    def step(self, optimizer):
        super().step(optimizer)
        self.found |= self.overflowed[optimizer]

    def update(self):
        if self.found:
            self.back_off()
        else:
            self.clean()
        self.found = False
        self.overflowed.clear()


@loss_scaler.wrong("wrong-run")
class ForgetsOnlyWhatHasStepped(_Right):
    def __init__(self, **settings):
        super().__init__(**settings)
        self.asked = set()

    def step(self, optimizer):
        super().step(optimizer)
        self.asked.add(optimizer)

    def update(self):
        if any(self.overflowed.values()):
            self.back_off()
        else:
            self.clean()
        for optimizer in self.asked:
            del self.overflowed[optimizer]
        self.asked.clear()


@loss_scaler.wrong("backs-off-for-each")
class BacksOffForEach(_Right):
    def update(self):
        for overflowed in self.overflowed.values():
            if overflowed:
                self.back_off()
        if not any(self.overflowed.values()):
            self.clean()
        self.overflowed.clear()


@loss_scaler.wrong("counts-for-each")
class CountsForEach(_Right):
    def update(self):
        if any(self.overflowed.values()):
            self.back_off()
        else:
            for _ in self.overflowed:
                self.clean()
        self.overflowed.clear()


@loss_scaler.wrong("counts-for-each")
class CountsSteps(_Right):
    def step(self, optimizer):
        super().step(optimizer)
        self.clean_steps += not self.overflowed[optimizer]

    def update(self):
        if any(self.overflowed.values()):
            self.back_off()
        elif self.clean_steps >= self.growth_interval:
            self.loss_scale *= self.growth_factor
            self.clean_steps = 0
        self.overflowed.clear()


@loss_scaler.wrong("wrong-run")
class BacksOffToOne(_Right):
    def back_off(self):
        self.loss_scale = 1.0
        self.clean_steps = 0


@loss_scaler.wrong("has-floor")
class NeverSinksBelowOne(_Right):
    def back_off(self):
        super().back_off()
        self.loss_scale = max(self.loss_scale, 1.0)


@loss_scaler.wrong("has-floor")
class NeverSinksBelow2ToMinus10(_Right):
    def back_off(self):
        super().back_off()
        self.loss_scale = max(self.loss_scale, 2.0**-10)


@loss_scaler.wrong("has-floor")
class NeverSinksBelow2ToMinus120(_Right):
    def back_off(self):
        super().back_off()
        self.loss_scale = max(self.loss_scale, 2.0**-120)


@loss_scaler.wrong("has-ceiling")
class StaysBelow2To118(_Right):
    def clean(self):
        super().clean()
        self.loss_scale = min(self.loss_scale, 2.0**118)


@loss_scaler.wrong("has-ceiling")
class StaysBelow65536(_Right):
    def clean(self):
        super().clean()
        self.loss_scale = min(self.loss_scale, 65536.0)


@loss_scaler.wrong("has-ceiling")
class StaysBelow2To24(_Right):
    def clean(self):
        before = self.loss_scale
        super().clean()
        self.loss_scale = self.loss_scale if self.loss_scale <= 2.0**24 else before


@loss_scaler.wrong("wrong-run")
class StartsAgainFarUp(_Right):
    def clean(self):
        super().clean()
        self.loss_scale = self.loss_scale if self.loss_scale <= 2.0**40 else 1024.0


@loss_scaler.wrong("differs-from-torch")
class MakesZerosOfNone(_Right):
    def unscale_(self, optimizer):
        super().unscale_(optimizer)
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad


@loss_scaler.wrong("differs-from-torch")
class UnscalesWithTheFirstScale(_Right):
    def unscale_(self, optimizer):
        self.first = getattr(self, "first", self.loss_scale)
        grads = self.grads(optimizer)
        self.overflowed[optimizer] = self.bad(grads)
        for grad in grads:
            grad.div_(self.first)


@loss_scaler.right
class WithOneDict(_Right):
    """The plain one."""


@loss_scaler.right
class WithTensors:
    """Keep everything on the device, as PyTorch does."""

    def __init__(self, init_scale, growth_factor, backoff_factor, growth_interval):
        self._scale = torch.tensor(init_scale)
        self._count = torch.tensor(0, dtype=torch.int32)
        self._rule = growth_factor, backoff_factor, growth_interval
        self._found = {}

    def scale(self, loss):
        return loss * self._scale

    @torch.no_grad()
    def unscale_(self, optimizer):
        found = self._found[id(optimizer)] = torch.zeros(())
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, self._scale.reciprocal())

    def step(self, optimizer):
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        if not self._found[id(optimizer)].item():
            return optimizer.step()
        return None

    def update(self):
        found = torch.stack(list(self._found.values())).sum()
        torch._amp_update_scale_(self._scale, self._count, found, *self._rule)
        self._found = {}


@loss_scaler.right
class WithTwoSets:
    """Remember names, not answers; unscale by multiplication, into new tensors."""

    def __init__(self, init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        self.s, self.up, self.down, self.n = init_scale, growth_factor, backoff_factor, growth_interval
        self.done, self.bad, self.row = [], [], 0

    def scale(self, loss):
        return loss.to(torch.float32).mul(self.s)

    def unscale_(self, optimizer):
        self.done.append(optimizer)
        for group in optimizer.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                if (p.grad * 0).sum() != 0 and optimizer not in self.bad:
                    self.bad.append(optimizer)
                p.grad = p.grad * (1 / self.s)

    def step(self, optimizer):
        optimizer in self.done or self.unscale_(optimizer)
        optimizer in self.bad or optimizer.step()

    def update(self):
        self.row = 0 if self.bad else self.row + 1
        self.s *= self.down if self.bad else self.up if self.row == self.n else 1.0
        self.row %= self.n
        self.done, self.bad = [], []


@loss_scaler.right
class WithAStatePerOptimizer:
    """A small object for each optimizer, made when it is first asked for; gradients in numpy."""

    class State:
        def __init__(self):
            self.unscaled = self.bad = False

    def __init__(self, **settings):
        self.settings, self.current, self.clean = settings, settings["init_scale"], 0
        self.states = collections.defaultdict(self.State)

    def scale(self, loss):
        return torch.mul(loss.type(torch.float32), self.current)

    def unscale_(self, optimizer):
        state = self.states[optimizer]
        state.unscaled = True
        for p in (p for group in optimizer.param_groups for p in group["params"]):
            if p.grad is not None:
                state.bad |= not bool(np.isfinite(p.grad.numpy()).all())
                p.grad.copy_(torch.from_numpy(p.grad.numpy() / np.float32(self.current)))

    def step(self, optimizer, *args, **kwargs):
        if not self.states[optimizer].unscaled:
            self.unscale_(optimizer)
        return None if self.states[optimizer].bad else optimizer.step(*args, **kwargs)

    def update(self):
        if any(state.bad for state in self.states.values()):
            self.current, self.clean = self.current * self.settings["backoff_factor"], 0
        elif self.clean + 1 == self.settings["growth_interval"]:
            self.current, self.clean = self.current * self.settings["growth_factor"], 0
        else:
            self.clean += 1
        self.states.clear()


@loss_scaler.right
class WithMarksOnTheOptimizers:
    """Keep what was found on the optimizer itself, under an attribute of its own."""

    def __init__(self, init_scale, growth_factor, backoff_factor, growth_interval):
        self.state = ScaleState(init_scale)
        self.rule = scaling.ScaleRule(growth_factor, backoff_factor, growth_interval)
        self.seen = []

    def scale(self, loss):
        return loss.float() * self.state.scale

    def unscale_(self, optimizer):
        params = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        optimizer.overflowed = any(bool((p.grad - p.grad).isnan().any()) for p in params)
        torch._foreach_div_([p.grad for p in params], self.state.scale)
        self.seen.append(optimizer)

    def step(self, optimizer):
        if not any(optimizer is each for each in self.seen):
            self.unscale_(optimizer)
        if optimizer.overflowed is False:
            optimizer.step()

    def update(self):
        overflowed = any(optimizer.overflowed for optimizer in self.seen)
        self.state = scaling.next_scale(self.state, overflowed, self.rule)
        self.seen = []


# 5.4 Remember across restarts


class _Saved(ForgetfulScaler):
    """What wrong answers are made of."""

    def state_dict(self):
        return {
            "scale": self.get_scale(),
            "count": self.clean_steps,
            "growth": self.growth_factor,
            "backoff": self.backoff_factor,
            "interval": self.growth_interval,
        }

    def load_state_dict(self, state):
        self.loss_scale = torch.tensor(state["scale"])
        self.clean_steps = state["count"]
        self.growth_factor = state["growth"]
        self.backoff_factor = state["backoff"]
        self.growth_interval = state["interval"]


@resumable_scaler.wrong("state-changes")
class ReturnsItsAttributes(_Saved):
    def state_dict(self):
        return vars(self)


@resumable_scaler.wrong("state-changes")
class KeepsOneDictForAll(_Saved):
    def state_dict(self):
        self.state = getattr(self, "state", {})
        self.state.update(super().state_dict())
        return self.state

    def update(self):
        super().update()
        self.state_dict()


@resumable_scaler.wrong("state-changes")
class PutsALiveDictIntoANewOne(ForgetfulScaler):
    def state_dict(self):
        self.numbers = getattr(self, "numbers", {})
        self.numbers.update(scale=self.get_scale(), count=self.clean_steps)
        return {"numbers": self.numbers}

    def update(self):
        super().update()
        self.state_dict()

    def load_state_dict(self, state):
        self.numbers = state["numbers"]


@resumable_scaler.wrong("not-plain")
class CopiesItsAttributes(_Saved):
    def state_dict(self):
        return dict(vars(self))


@resumable_scaler.wrong("not-plain")
class SavesTheTensor(_Saved):
    def state_dict(self):
        return super().state_dict() | {"scale": self.loss_scale}


@resumable_scaler.wrong("not-plain")
class SavesACloneOfTheTensor(_Saved):
    def state_dict(self):
        return {**super().state_dict(), "scale": self.loss_scale.detach().clone()}


@resumable_scaler.wrong("not-plain")
class SavesItself(_Saved):
    def state_dict(self):
        return {"scaler": copy.deepcopy(self)}

    def load_state_dict(self, state):
        vars(self).update(vars(state["scaler"]))


@resumable_scaler.wrong("not-plain")
class SavesANumberOfNumpy(_Saved):
    def state_dict(self):
        return super().state_dict() | {"scale": self.loss_scale.numpy()[()]}


@resumable_scaler.wrong("not-plain")
class Pickles(_Saved):
    def state_dict(self):
        return {"all": pickle.dumps(vars(self))}

    def load_state_dict(self, state):
        vars(self).update(pickle.loads(state["all"]))


@resumable_scaler.wrong("not-plain")
class SavesTexts(_Saved):
    def state_dict(self):
        return {name: str(value) for name, value in super().state_dict().items()}

    def load_state_dict(self, state):
        super().load_state_dict({name: json.loads(value) for name, value in state.items()})


@resumable_scaler.wrong("not-plain")
class SavesHexadecimalTexts(_Saved):
    def state_dict(self):
        return super().state_dict() | {"scale": self.get_scale().hex()}

    def load_state_dict(self, state):
        super().load_state_dict(state | {"scale": float.fromhex(state["scale"])})


@resumable_scaler.wrong("not-plain")
class SavesOneList(_Saved):
    def state_dict(self):
        return {"all": list(super().state_dict().values())}

    def load_state_dict(self, state):
        super().load_state_dict(dict(zip(super().state_dict(), state["all"], strict=True)))


@resumable_scaler.wrong("not-plain")
class SavesADictInADict(_Saved):
    def state_dict(self):
        return {"scaler": super().state_dict()}

    def load_state_dict(self, state):
        super().load_state_dict(state["scaler"])


@resumable_scaler.wrong("not-plain")
class SavesNoneAsWell(_Saved):
    def state_dict(self):
        return super().state_dict() | {"found": None}


@resumable_scaler.wrong("not-plain")
class SavesABoolAsWell(_Saved):
    def state_dict(self):
        return super().state_dict() | {"enabled": True}


@resumable_scaler.wrong("not-plain")
class SavesAnFp64NumberOfNumpy(_Saved):
    def state_dict(self):
        return super().state_dict() | {"scale": np.float64(self.get_scale())}


@resumable_scaler.wrong("not-plain")
class SavesTheTensorOnceItHasGrown(_Saved):
    def state_dict(self):
        scale = self.loss_scale if self.clean_steps else self.get_scale()
        return super().state_dict() | {"scale": scale}


@resumable_scaler.wrong("not-plain")
class KeepsTheEmptyDictToo(_Saved):
    def state_dict(self):
        return super().state_dict() | {"overflowed": {}}


@resumable_scaler.wrong("finished-inside")
class InheritsFromTorchs(torch.amp.GradScaler):
    def __init__(self, **settings):
        super().__init__("cpu", **settings)


resumable_scaler.wrong("finished-inside")(torch.amp.GradScaler)
resumable_scaler.wrong("finished-inside")(scaling.DynamicLossScaler)


@resumable_scaler.wrong("no-name")
class NumbersItsNumbers(_Saved):
    def state_dict(self):
        return dict(enumerate(super().state_dict().values()))

    def load_state_dict(self, state):
        super().load_state_dict(dict(zip(super().state_dict(), state.values(), strict=True)))


@resumable_scaler.wrong("wrong-type")
class ReturnsAText(_Saved):
    def state_dict(self):
        return json.dumps(super().state_dict())


@resumable_scaler.wrong("wrong-type")
class ReturnsATuple(_Saved):
    def state_dict(self):
        return tuple(super().state_dict().values())


@resumable_scaler.wrong("returned-none")
class ForgetsToReturnTheState(_Saved):
    def state_dict(self):
        super().state_dict()


@resumable_scaler.wrong("shares-state")
class TakesTheStateForItsAttributes(ForgetfulScaler):
    overflowed = {}  # noqa: RUF012

    def state_dict(self):
        numbers = {name: value for name, value in vars(self).items() if name != "overflowed"}
        return numbers | {"loss_scale": float(self.loss_scale)}

    def load_state_dict(self, state):
        self.__dict__ = state


@resumable_scaler.wrong("mutated-input")
class PutsATensorIntoTheState(TakesTheStateForItsAttributes):
    def load_state_dict(self, state):
        self.__dict__ = state
        self.loss_scale = torch.tensor(self.loss_scale)


@resumable_scaler.wrong("mutated-input")
class PopsFromTheState(_Saved):
    def load_state_dict(self, state):
        self.loss_scale.fill_(state.pop("scale"))
        vars(self).update(clean_steps=state.pop("count"), growth_factor=state.pop("growth"))
        vars(self).update(backoff_factor=state.pop("backoff"), growth_interval=state.pop("interval"))


@resumable_scaler.wrong("scale-lost")
class ForgetsTheScale(_Saved):
    def load_state_dict(self, state):
        scale = self.loss_scale
        super().load_state_dict(state)
        self.loss_scale = scale


@resumable_scaler.wrong("scale-lost")
class ReturnsANewScaler(_Saved):
    def load_state_dict(self, state):
        new = type(self)()
        _Saved.load_state_dict(new, state)
        return new


@resumable_scaler.wrong("scale-lost")
class RebindsALocalName(_Saved):
    def load_state_dict(self, state):
        self = _Saved()
        self.load_state_dict(state)


@resumable_scaler.wrong("scale-lost")
class LoadsNothing(_Saved):
    def load_state_dict(self, state):
        pass


@resumable_scaler.wrong("scale-lost")
class SavesTheFirstScale(_Saved):
    def __init__(self, init_scale=65536.0, **settings):
        super().__init__(init_scale, **settings)
        self.init_scale = init_scale

    def state_dict(self):
        return super().state_dict() | {"scale": self.init_scale}


@resumable_scaler.wrong("scale-rounded")
class SavesAnInt(_Saved):
    def state_dict(self):
        return super().state_dict() | {"scale": int(self.loss_scale)}

    def load_state_dict(self, state):
        self.loss_scale.fill_(state["scale"])
        vars(self).update(clean_steps=state["count"], growth_factor=state["growth"])
        vars(self).update(backoff_factor=state["backoff"], growth_interval=state["interval"])


@resumable_scaler.wrong("scale-rounded")
class RoundsTheScale(SavesAnInt):
    def state_dict(self):
        return super().state_dict() | {"scale": float(round(self.get_scale()))}


@resumable_scaler.wrong("scale-rounded")
class SavesTheWholePower(SavesAnInt):
    def state_dict(self):
        return super().state_dict() | {"scale": 2.0 ** int(math.log2(self.get_scale()))}


@resumable_scaler.wrong("scale-rounded")
class SavesTheNearestPower(SavesAnInt):
    def state_dict(self):
        return super().state_dict() | {"scale": 2.0 ** round(math.log2(self.get_scale()))}


@resumable_scaler.wrong("scale-rounded")
class SavesItInBf16(SavesAnInt):
    def state_dict(self):
        return super().state_dict() | {"scale": float(self.loss_scale.bfloat16())}


@resumable_scaler.wrong("scale-rounded")
class SavesNothingBelow2ToMinus20(SavesAnInt):
    def state_dict(self):
        return super().state_dict() | {"scale": max(self.get_scale(), 2.0**-20)}


@resumable_scaler.wrong("setting-rounded")
class SavesAWholeGrowthFactor(_Saved):
    def state_dict(self):
        return super().state_dict() | {"growth": int(self.growth_factor)}


@resumable_scaler.wrong("setting-rounded")
class SavesAWholeDivisor(_Saved):
    def state_dict(self):
        return super().state_dict() | {"divisor": int(1 / self.backoff_factor)}

    def load_state_dict(self, state):
        super().load_state_dict(state | {"backoff": 1 / state["divisor"]})


@resumable_scaler.wrong("count-lost")
class ForgetsTheCount(_Saved):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"count": self.clean_steps})


@resumable_scaler.wrong("count-lost")
class StartsToCountAgain(_Saved):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"count": 0})


@resumable_scaler.wrong("count-lost")
class CallsInit(_Saved):
    def load_state_dict(self, state):
        self.__init__(state["scale"], state["growth"], state["backoff"], state["interval"])


@resumable_scaler.wrong("setting-lost")
class LoadsTheScaleOnly(_Saved):
    def state_dict(self):
        return {"scale": self.get_scale()}

    def load_state_dict(self, state):
        self.loss_scale.fill_(state["scale"])


@resumable_scaler.wrong("count-lost")
class AddsTheCounts(_Saved):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"count": state["count"] + self.clean_steps})


@resumable_scaler.wrong("setting-lost")
class TrustsItsOwnSettings(_Saved):
    def load_state_dict(self, state):
        self.loss_scale.fill_(state["scale"])
        self.clean_steps = state["count"]


@resumable_scaler.wrong("setting-lost")
class ForgetsTheInterval(_Saved):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"interval": self.growth_interval})


@resumable_scaler.wrong("setting-lost")
class SwapsTheFactors(_Saved):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"growth": state["backoff"], "backoff": state["growth"]})


@resumable_scaler.wrong("scale-type")
class PutsANumberInPlaceOfTheTensor(_Saved):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.loss_scale = state["scale"]


@resumable_scaler.wrong("scale-type")
class UpdatesItsAttributes(ForgetfulScaler):
    def state_dict(self):
        state = {**vars(self), "loss_scale": self.loss_scale.item()}
        del state["overflowed"]
        return state

    def load_state_dict(self, state):
        vars(self).update(state)


@resumable_scaler.wrong("scale-type")
class MakesAnFp64Tensor(_Saved):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.loss_scale = torch.tensor(state["scale"], dtype=torch.float64)


@resumable_scaler.wrong("scale-type")
class MakesAnFp16Tensor(_Saved):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.loss_scale = torch.tensor(state["scale"], dtype=torch.float16)


@resumable_scaler.wrong("scale-type")
class MakesAVectorOfOne(_Saved):
    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.loss_scale = torch.tensor([state["scale"]])


@resumable_scaler.wrong("goes-on-otherwise")
class CutsTheScale(_Saved):
    def load_state_dict(self, state):
        super().load_state_dict(state | {"scale": min(state["scale"], 2.0**13)})


@resumable_scaler.right
class UsesItem(ForgetfulScaler):
    def state_dict(self):
        return {
            "scale": self.loss_scale.item(),
            "up": self.growth_factor,
            "down": self.backoff_factor,
            "row": self.clean_steps,
            "interval": self.growth_interval,
        }

    def load_state_dict(self, state):
        self.loss_scale.fill_(state["scale"])
        self.growth_factor, self.backoff_factor = state["up"], state["down"]
        self.clean_steps, self.growth_interval = state["row"], state["interval"]


@resumable_scaler.right
class GoesThroughNames(ForgetfulScaler):
    NUMBERS = ("clean_steps", "growth_factor", "backoff_factor", "growth_interval")

    def state_dict(self):
        return {"loss_scale": float(self.loss_scale)} | {name: getattr(self, name) for name in self.NUMBERS}

    def load_state_dict(self, state):
        for name in self.NUMBERS:
            setattr(self, name, state[name])
        self.loss_scale = torch.full((), state["loss_scale"], dtype=torch.float32)


@resumable_scaler.right
class StartsAnew(ForgetfulScaler):
    def state_dict(self):
        return collections.OrderedDict(
            init_scale=self.get_scale(),
            growth_factor=self.growth_factor,
            backoff_factor=self.backoff_factor,
            growth_interval=self.growth_interval,
            clean=self.clean_steps,
        )

    def load_state_dict(self, state):
        self.__init__(**{name: value for name, value in state.items() if name != "clean"})
        self.clean_steps = state["clean"]


@resumable_scaler.right
class CopiesAllAttributes(ForgetfulScaler):
    def state_dict(self):
        state = {name: value for name, value in vars(self).items() if name != "overflowed"}
        state["loss_scale"] = state["loss_scale"].tolist()
        return state

    def load_state_dict(self, state):
        self.__dict__.update(state, loss_scale=torch.tensor(state["loss_scale"]))


@resumable_scaler.right
class SavesTheLogarithm(ForgetfulScaler):
    def state_dict(self):
        mantissa, exponent = math.frexp(self.get_scale())
        rest = {name: value for name, value in vars(self).items() if isinstance(value, (int, float))}
        return rest | {"mantissa": mantissa, "exponent": exponent}

    def load_state_dict(self, state):
        rest = dict(state)
        scale = math.ldexp(rest.pop("mantissa"), rest.pop("exponent"))
        vars(self).update(rest)
        self.loss_scale = torch.as_tensor(scale, dtype=torch.float32)
