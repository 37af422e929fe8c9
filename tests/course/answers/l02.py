"""Answers to the exercises of lesson 02."""

import functools
import itertools
import math
import statistics

import numpy as np
import torch
import torch.nn.functional as F

from tests.course.bank import Bank

safe_norm = Bank("2.1")
stable_log_softmax = Bank("2.2")
smallest_effective_step = Bank("2.3")
masked_scores = Bank("2.4")
running_mean = Bank("2.5")
BANKS = (safe_norm, stable_log_softmax, smallest_effective_step, masked_scores, running_mean)


# 2.1 A norm that survives


@safe_norm.wrong("squares-in-fp16")
def squares_before_it_widens(x):
    return (x * x).float().sum().sqrt()


@safe_norm.wrong("squares-in-fp16")
def widens_at_the_end(x):
    return x.pow(2).sum().sqrt().float()


@safe_norm.wrong("squares-in-fp16")
def sums_half_squares_in_single(x):
    return torch.sqrt(x.square().sum(dtype=torch.float32))


@safe_norm.wrong("sum-in-fp16")
def takes_the_dot_product_with_itself(x):
    flat = x.flatten()
    return torch.dot(flat, flat).float().sqrt()


@safe_norm.wrong("squares-in-fp16")
def loops_in_half(x):
    total = torch.tensor(0.0, dtype=torch.float16)
    for value in x.flatten():
        total = total + value * value
    return total.float().sqrt()


@safe_norm.wrong("squares-in-fp16")
def squares_half_in_numpy(x):
    with np.errstate(all="ignore"):
        return torch.tensor(np.sqrt(np.square(x.numpy()).sum(dtype=np.float32)))


@safe_norm.wrong("sum-in-fp16")
def keeps_the_sum_in_half(x):
    return x.float().square().sum().half().float().sqrt()


@safe_norm.wrong("sum-in-fp16")
def has_a_half_accumulator(x):
    total = torch.zeros((), dtype=torch.float16)
    for value in x.float().flatten():
        total += value * value
    return total.float().sqrt()


@safe_norm.wrong("squares-in-fp16")
def sums_single_squares_as_half(x):
    wide = x.float()
    return (wide * wide).sum(dtype=torch.float16).sqrt().float()


@safe_norm.wrong("norm-in-fp16")
def widens_the_norm(x):
    return x.norm().float()


@safe_norm.wrong("norm-in-fp16")
def widens_the_vector_norm(x):
    return torch.linalg.vector_norm(x).to(torch.float32)


@safe_norm.wrong("norm-in-fp16")
def rounds_the_right_norm(x):
    return x.double().norm().half().float()


@safe_norm.wrong("returns-fp16")
def returns_half(x):
    return x.norm()


@safe_norm.wrong("returns-fp16")
def goes_back_to_the_dtype_of_x(x):
    return x.float().norm().to(x.dtype)


@safe_norm.wrong("wrong-dtype")
def returns_double(x):
    return x.double().norm()


@safe_norm.wrong("zero-over-zero")
def divides_by_the_largest(x):
    largest = x.float().abs().max()
    return largest * (x.float() / largest).square().sum().sqrt()


@safe_norm.wrong("zero-over-zero")
def normalises_first(x):
    wide = x.double()
    return ((wide / wide.abs().max()).norm() * wide.abs().max()).float()


@safe_norm.wrong("rounded-on-the-way")
def divides_in_half(x):
    largest = x.abs().max()
    if largest == 0:
        return torch.tensor(0.0)
    return (x / largest).float().norm() * largest.float()


@safe_norm.wrong("rounded-on-the-way")
def goes_through_bfloat16(x):
    return x.bfloat16().square().sum().sqrt().float()


@safe_norm.wrong("rounded-on-the-way")
def divides_in_half_without_a_case_for_zeros(x):
    largest = x.abs().max()
    return largest * (x / largest).float().norm()


@safe_norm.wrong("norm-in-fp16")
def scales_back_in_half(x):
    largest = x.abs().max()
    if largest == 0:
        return torch.tensor(0.0)
    return ((x / largest).norm() * largest).float()


@safe_norm.wrong("zero-over-zero")
def squares_the_quotients(x):
    largest = x.abs().max().float()
    return largest * (x.float() / largest).square().sum().sqrt()


@safe_norm.wrong("small-lost")
def divides_by_a_constant(x):
    return (x / 4096).float().norm() * 4096


@safe_norm.wrong("small-lost")
def divides_by_a_constant_and_squares_in_half(x):
    return ((x / 1024) ** 2).float().sum().sqrt() * 1024


@safe_norm.wrong("small-lost")
def divides_by_a_power_and_stays_in_half(x):
    return (x / 256).square().sum(dtype=torch.float32).sqrt() * 256


@safe_norm.wrong("leaves-the-range")
def multiplies_by_a_constant(x):
    return (x * 1024).float().norm() / 1024


@safe_norm.wrong("adds-eps")
def adds_eps_under_the_root(x):
    return (x.float().square().sum() + 1e-8).sqrt()


@safe_norm.wrong("adds-eps")
def clamps_the_sum(x):
    return x.float().square().sum().clamp(min=1e-12).sqrt()


@safe_norm.wrong("held-at-the-top")
def replaces_infinity(x):
    return x.norm().nan_to_num().float()


@safe_norm.wrong("held-at-the-top")
def clamps_the_norm(x):
    return x.float().norm().clamp(max=torch.finfo(torch.float16).max)


@safe_norm.wrong("another-norm")
def forgets_the_root(x):
    return x.float().square().sum()


@safe_norm.wrong("another-norm")
def sums_the_sizes(x):
    return x.float().abs().sum()


@safe_norm.wrong("another-norm")
def takes_the_largest(x):
    return x.abs().max().float()


@safe_norm.wrong("another-norm")
def takes_the_mean_square(x):
    return x.float().square().mean().sqrt()


@safe_norm.wrong("another-norm")
def takes_the_norm_of_a_matrix(x):
    return torch.linalg.norm(x.float(), 2) if x.dim() in (1, 2) else x.float().norm()


@safe_norm.wrong("another-norm")
def takes_the_longest_row(x):
    return x.float().norm(dim=-1).max()


@safe_norm.wrong("another-norm")
def adds_up_the_norms_of_columns(x):
    return x.float().norm(dim=0).sum()


@safe_norm.wrong("another-norm")
def forgets_the_squares(x):
    return x.float().sum().abs()


@safe_norm.wrong("another-norm")
def sums_the_sizes_in_half(x):
    return x.norm(p=1).float()


@safe_norm.wrong("wrong-shape")
def takes_the_norm_of_rows(x):
    return x.float().norm(dim=-1)


@safe_norm.wrong("wrong-shape")
def keeps_a_dimension(x):
    return x.float().flatten().norm(dim=0, keepdim=True)


@safe_norm.wrong("wrong-type")
def returns_a_float(x):
    return x.float().norm().item()


@safe_norm.wrong("mutated-input")
def divides_in_place(x):
    largest = float(x.abs().max()) or 1.0
    return x.div_(largest).float().norm() * largest


@safe_norm.wrong("returned-none")
def only_prints_the_norm(x):
    print(x.float().norm())


@safe_norm.right
def widens_and_takes_the_norm(x):
    return x.float().norm()


@safe_norm.right
def lets_the_norm_widen(x):
    return torch.linalg.vector_norm(x, dtype=torch.float32)


@safe_norm.right
def asks_the_old_norm_for_a_dtype(x):
    return torch.norm(x, dtype=torch.float32)


@safe_norm.right
def goes_through_double(x):
    return x.double().square().sum().sqrt().float()


@safe_norm.right
def divides_by_the_largest_in_single(x):
    wide = x.float()
    largest = wide.abs().max()
    if largest == 0:
        return largest
    return largest * torch.sqrt(torch.sum((wide / largest) ** 2))


@safe_norm.right
def guards_the_division_with_where(x):
    wide = x.float()
    largest = wide.abs().amax()
    scale = torch.where(largest > 0, largest, 1.0)
    return scale * (wide / scale).pow(2).sum().sqrt()


@safe_norm.right
def asks_python_for_the_hypotenuse(x):
    return torch.tensor(math.hypot(*x.flatten().tolist()))


@safe_norm.right
def loops_in_python(x):
    total = 0.0
    for value in x.reshape(-1).tolist():
        total += value**2
    return torch.tensor(total**0.5, dtype=torch.float32)


@safe_norm.right
def loops_in_single(x):
    total = torch.zeros(())
    for value in x.flatten():
        total = total + value.float() ** 2
    return torch.sqrt(total)


@safe_norm.right
def asks_numpy(x):
    return torch.tensor(np.linalg.norm(x.numpy().astype(np.float32)))


@safe_norm.right
def combines_two_at_a_time(x):
    return functools.reduce(torch.hypot, x.float().flatten(), torch.tensor(0.0))


@safe_norm.right
def asks_for_the_total_norm(x):
    return torch.nn.utils.get_total_norm([x.float()])


@safe_norm.right
def asks_for_the_frobenius_norm(x):
    return torch.norm(x.type(torch.float32), p="fro")


@safe_norm.right
def scales_by_a_power_of_two_in_single(x):
    return 2.0**-10 * torch.linalg.vector_norm(x.float() * 2.0**10)


@safe_norm.right
def multiplies_as_matrices(x):
    column = x.float().reshape(-1, 1)
    return (column.T @ column).sqrt().squeeze()


# 2.2 Log-softmax without infinity


@stable_log_softmax.wrong("no-maximum")
def takes_exp_in_single(logits, dim):
    wide = logits.float()
    return wide - wide.exp().sum(dim, keepdim=True).log()


@stable_log_softmax.wrong("no-maximum")
def takes_exp_in_half(logits, dim):
    return (logits - logits.exp().sum(dim, keepdim=True).log()).float()


@stable_log_softmax.wrong("no-maximum")
def hopes_for_double(logits, dim):
    wide = logits.double()
    return (wide - wide.exp().sum(dim, keepdim=True).log()).float()


@stable_log_softmax.wrong("no-maximum")
def widens_behind_exp(logits, dim):
    return logits.float() - logits.exp().float().sum(dim, keepdim=True).log()


@stable_log_softmax.wrong("no-maximum")
def divides_by_hand_without_the_maximum(logits, dim):
    exp = torch.exp(logits.float())
    return torch.log(exp / exp.sum(dim, keepdim=True))


@stable_log_softmax.wrong("maximum-of-everything")
def subtracts_one_maximum_from_all(logits, dim):
    z = logits.float() - logits.float().max()
    return z - z.exp().sum(dim, keepdim=True).log()


@stable_log_softmax.wrong("maximum-of-everything")
def subtracts_one_maximum_in_half(logits, dim):
    z = logits - logits.max()
    return (z - z.exp().sum(dim, keepdim=True).log()).float()


@stable_log_softmax.wrong("maximum-of-everything")
def divides_with_one_maximum_for_all(logits, dim):
    exp = (logits.float() - logits.max().float()).exp()
    return (exp / exp.sum(dim, keepdim=True)).log()


@stable_log_softmax.wrong("maximum-of-sizes")
def subtracts_the_largest_size(logits, dim):
    z = logits.float() - logits.float().abs().amax(dim, keepdim=True)
    return z - z.exp().sum(dim, keepdim=True).log()


@stable_log_softmax.wrong("mean-subtracted")
def subtracts_the_mean(logits, dim):
    wide = logits.float()
    z = wide - wide.mean(dim, keepdim=True)
    return z - z.exp().sum(dim, keepdim=True).log()


@stable_log_softmax.wrong("log-of-softmax")
def takes_the_log_of_softmax(logits, dim):
    return torch.log(torch.softmax(logits.float(), dim))


@stable_log_softmax.wrong("log-of-softmax")
def takes_the_log_of_half_softmax(logits, dim):
    return logits.softmax(dim).log().float()


@stable_log_softmax.wrong("log-of-softmax")
def takes_the_log_of_a_shifted_quotient(logits, dim):
    exp = (logits.float() - logits.float().amax(dim, keepdim=True)).exp()
    return (exp / exp.sum(dim, keepdim=True)).log()


@stable_log_softmax.wrong("log-of-softmax")
def takes_the_log_of_double_softmax(logits, dim):
    return logits.double().softmax(dim).log().float()


@stable_log_softmax.wrong("log-of-softmax")
def takes_the_log_of_a_quotient_in_half(logits, dim):
    exp = (logits - logits.amax(dim, keepdim=True)).exp()
    return (exp / exp.sum(dim, keepdim=True)).log().float()


@stable_log_softmax.wrong("log-of-softmax")
def takes_the_log_of_half_softmax_in_single(logits, dim):
    return torch.softmax(logits, dim).float().log()


@stable_log_softmax.wrong("floor")
def adds_eps_before_the_log(logits, dim):
    return (torch.softmax(logits.float(), dim) + 1e-8).log()


@stable_log_softmax.wrong("floor")
def clamps_before_the_log(logits, dim):
    return torch.softmax(logits.float(), dim).clamp(min=1e-30).log()


@stable_log_softmax.wrong("floor")
def clamps_behind_the_log(logits, dim):
    return torch.log_softmax(logits.float(), dim).clamp(min=-1e4)


@stable_log_softmax.wrong("infinity-replaced")
def replaces_infinity_in_half(logits, dim):
    return torch.log_softmax(logits, dim).nan_to_num().float()


@stable_log_softmax.wrong("infinity-replaced")
def replaces_infinity_in_single(logits, dim):
    return torch.log_softmax(logits, dim).float().nan_to_num()


@stable_log_softmax.wrong("infinity-replaced")
def clamps_to_the_range_of_half(logits, dim):
    return torch.log_softmax(logits, dim).float().clamp(min=-65504)


@stable_log_softmax.wrong("infinity-replaced")
def subtracts_in_half_and_replaces_infinity(logits, dim):
    z = logits - logits.amax(dim, keepdim=True)
    return (z - z.exp().sum(dim, keepdim=True).log()).nan_to_num().float()


@stable_log_softmax.wrong("infinity-replaced")
def replaces_the_logarithm_of_zero(logits, dim):
    return torch.softmax(logits.float(), dim).log().nan_to_num()


@stable_log_softmax.wrong("clamped")
def clamps_the_logits(logits, dim):
    return torch.log_softmax(logits.float().clamp(-80, 80), dim)


@stable_log_softmax.wrong("result-in-fp16")
def widens_the_result(logits, dim):
    return F.log_softmax(logits, dim).float()


@stable_log_softmax.wrong("result-in-fp16")
def rounds_the_right_result(logits, dim):
    return torch.log_softmax(logits.double(), dim).half().float()


@stable_log_softmax.wrong("subtracts-in-fp16")
def subtracts_in_half(logits, dim):
    z = (logits - logits.amax(dim, keepdim=True)).float()
    return z - z.exp().sum(dim, keepdim=True).log()


@stable_log_softmax.wrong("subtracts-in-fp16")
def stays_in_half_all_the_way(logits, dim):
    z = logits - logits.max(dim, keepdim=True).values
    return (z - z.exp().sum(dim, keepdim=True).log()).float()


@stable_log_softmax.wrong("steps-in-fp16")
def takes_exp_of_the_difference_in_half(logits, dim):
    z = logits.float() - logits.float().amax(dim, keepdim=True)
    return z - z.half().exp().sum(dim, keepdim=True).float().log()


@stable_log_softmax.wrong("steps-in-fp16")
def takes_the_logarithm_in_half(logits, dim):
    z = logits.float() - logits.float().amax(dim, keepdim=True)
    return z - z.exp().sum(dim, keepdim=True).half().log().float()


@stable_log_softmax.wrong("sum-swallowed")
def subtracts_the_logsumexp(logits, dim):
    wide = logits.float()
    return wide - torch.logsumexp(wide, dim, keepdim=True)


@stable_log_softmax.wrong("sum-swallowed")
def adds_the_maximum_back(logits, dim):
    wide = logits.float()
    largest = wide.max(dim, keepdim=True).values
    total = (wide - largest).exp().sum(dim, keepdim=True)
    return wide - (largest + total.log())


@stable_log_softmax.wrong("sum-swallowed")
def subtracts_the_logsumexp_in_half(logits, dim):
    return (logits - logits.logsumexp(dim, keepdim=True)).float()


@stable_log_softmax.wrong("sum-swallowed")
def adds_the_maximum_back_in_half(logits, dim):
    largest = logits.amax(dim, keepdim=True)
    total = (logits.float() - largest.float()).exp().sum(dim, keepdim=True).log()
    return logits.float() - (largest + total.half()).float()


@stable_log_softmax.wrong("sum-forgotten")
def subtracts_the_maximum_only(logits, dim):
    return logits.float() - logits.float().amax(dim, keepdim=True)


@stable_log_softmax.wrong("maximum-not-put-back")
def shifts_the_sum_only(logits, dim):
    wide = logits.float()
    return wide - (wide - wide.amax(dim, keepdim=True)).exp().sum(dim, keepdim=True).log()


@stable_log_softmax.wrong("no-log")
def returns_the_softmax(logits, dim):
    return logits.float().softmax(dim)


@stable_log_softmax.wrong("no-log")
def divides_exp_by_its_sum(logits, dim):
    exp = logits.float().exp()
    return exp / exp.sum(dim, keepdim=True)


@stable_log_softmax.wrong("no-log")
def divides_exp_by_its_sum_in_half(logits, dim):
    return (logits.exp() / logits.exp().sum(dim, keepdim=True)).float()


@stable_log_softmax.wrong("no-log")
def takes_exp_below_the_maximum(logits, dim):
    wide = logits.float()
    return (wide - wide.amax(dim, keepdim=True)).exp()


@stable_log_softmax.wrong("no-log")
def takes_exp_only(logits, dim):
    return logits.float().exp()


@stable_log_softmax.wrong("another-base")
def takes_log_to_base_two(logits, dim):
    z = logits.float() - logits.float().amax(dim, keepdim=True)
    return z / math.log(2) - z.exp().sum(dim, keepdim=True).log2()


@stable_log_softmax.wrong("another-base")
def takes_log_to_base_ten(logits, dim):
    return torch.log_softmax(logits.double(), dim).float() / math.log(10)


@stable_log_softmax.wrong("another-dim")
def always_takes_the_last(logits, dim):
    return torch.log_softmax(logits.float(), -1)


@stable_log_softmax.wrong("another-dim")
def always_takes_the_first(logits, dim):
    wide = logits.float()
    z = wide - wide.amax(0, keepdim=True)
    return z - z.exp().sum(0, keepdim=True).log()


@stable_log_softmax.wrong("another-dim")
def sums_over_everything(logits, dim):
    z = logits.float() - logits.float().max()
    return z - z.exp().sum().log()


@stable_log_softmax.wrong("another-dim")
def lets_pytorch_pick(logits, dim):
    return F.log_softmax(logits.float())


@stable_log_softmax.wrong("no-keepdim")
def forgets_keepdim(logits, dim):
    wide = logits.float()
    z = wide - wide.amax(dim)
    return z - z.exp().sum(dim).log()


@stable_log_softmax.wrong("no-keepdim")
def forgets_keepdim_of_the_sum(logits, dim):
    z = logits.float() - logits.float().amax(dim, keepdim=True)
    return z - z.exp().sum(dim).log()


@stable_log_softmax.wrong("no-keepdim")
def forgets_keepdim_of_the_maximum(logits, dim):
    z = logits.float() - logits.float().max(dim).values
    return z - z.exp().sum(dim, keepdim=True).log()


@stable_log_softmax.wrong("no-keepdim")
def forgets_keepdim_of_logsumexp(logits, dim):
    return logits.double().sub(logits.double().logsumexp(dim)).float()


@stable_log_softmax.wrong("not-finite")
def replaces_minus_infinity_by_infinity(logits, dim):
    right = torch.log_softmax(logits.float(), dim)
    return torch.where(right < -65504, math.inf, right)


@stable_log_softmax.wrong("wrong-element")
def negates(logits, dim):
    return -torch.log_softmax(logits.float(), dim)


@stable_log_softmax.wrong("wrong-dtype")
def returns_half_log_softmax(logits, dim):
    return F.log_softmax(logits, dim)


@stable_log_softmax.wrong("wrong-dtype")
def returns_double_log_softmax(logits, dim):
    return F.log_softmax(logits.double(), dim)


@stable_log_softmax.wrong("wrong-shape")
def returns_the_logsumexp(logits, dim):
    return logits.float().logsumexp(dim)


@stable_log_softmax.wrong("mutated-input")
def subtracts_in_place(logits, dim):
    logits -= logits.amax(dim, keepdim=True)
    return F.log_softmax(logits, dim, dtype=torch.float32)


@stable_log_softmax.right
def widens_first(logits, dim):
    return F.log_softmax(logits.float(), dim)


@stable_log_softmax.right
def lets_log_softmax_widen(logits, dim):
    return torch.log_softmax(logits, dim, dtype=torch.float32)


@stable_log_softmax.right
def subtracts_the_largest_first(logits, dim):
    wide = logits.to(torch.float32)
    z = wide - wide.max(dim=dim, keepdim=True).values
    return z - z.exp().sum(dim=dim, keepdim=True).log()


@stable_log_softmax.right
def subtracts_the_largest_and_then_logsumexp(logits, dim):
    z = logits.float() - logits.float().amax(dim, keepdim=True)
    return z - z.logsumexp(dim, keepdim=True)


@stable_log_softmax.right
def uses_logsumexp_in_double(logits, dim):
    wide = logits.double()
    return (wide - wide.logsumexp(dim, keepdim=True)).float()


@stable_log_softmax.right
def moves_the_dimension(logits, dim):
    rows = logits.float().movedim(dim, -1)
    z = rows - rows.amax(-1)[..., None]
    return (z - z.exp().sum(-1)[..., None].log()).movedim(-1, dim)


@stable_log_softmax.right
def calculates_in_numpy(logits, dim):
    wide = logits.numpy().astype(np.float64)
    z = wide - wide.max(axis=dim, keepdims=True)
    return torch.from_numpy((z - np.log(np.exp(z).sum(axis=dim, keepdims=True))).astype(np.float32))


@stable_log_softmax.right
def loops_over_rows_in_python(logits, dim):
    rows = logits.movedim(dim, -1)
    result = torch.empty(rows.shape)
    for index in itertools.product(*map(range, rows.shape[:-1])):
        row = rows[index].tolist()
        largest = max(row)
        total = math.log(math.fsum(math.exp(x - largest) for x in row))
        result[index] = torch.tensor([(x - largest) - total for x in row])
    return result.movedim(-1, dim)


@stable_log_softmax.right
def uses_the_module(logits, dim):
    return torch.nn.LogSoftmax(dim)(logits.float())


@stable_log_softmax.right
def asks_cross_entropy(logits, dim):
    rows = logits.double().movedim(dim, -1)
    flat = rows.reshape(-1, rows.shape[-1])
    columns = [
        -F.cross_entropy(flat, torch.full((len(flat),), column), reduction="none")
        for column in range(flat.shape[1])
    ]
    return torch.stack(columns, 1).reshape(rows.shape).movedim(-1, dim).float()


@stable_log_softmax.right
def uses_log1p_of_the_others(logits, dim):
    wide = logits.float()
    largest, where = wide.max(dim, keepdim=True)
    z = wide - largest
    others = z.exp().scatter(dim, where, 0.0).sum(dim, keepdim=True)
    return z - others.log1p()


# 2.3 The smallest step that moves a weight


def _spacing(w):
    return 2.0 ** (math.floor(math.log2(abs(w))) - 10)


def _next_above(w):
    return np.nextafter(np.float16(w), np.float16(np.inf))


def _gap_above(w):
    return float(_next_above(w)) - w


@smallest_effective_step.wrong("same-everywhere")
def takes_eps(w):
    return torch.finfo(torch.float16).eps


@smallest_effective_step.wrong("same-everywhere")
def takes_half_of_eps(w):
    return torch.finfo(torch.float16).eps / 2


@smallest_effective_step.wrong("same-everywhere")
def takes_the_smallest_normal(w):
    return torch.finfo(torch.float16).tiny


@smallest_effective_step.wrong("share-of-the-weight")
def takes_eps_times_the_weight(w):
    return abs(w) * 2.0**-10


@smallest_effective_step.wrong("share-of-the-weight")
def takes_half_of_eps_times_the_weight_in_half(w):
    return (torch.tensor(abs(w)).half() * 2.0**-11).item()


@smallest_effective_step.wrong("whole-gap")
def takes_the_next_number(w):
    return float(_next_above(w)) - w


@smallest_effective_step.wrong("whole-gap")
def takes_the_spacing(w):
    return float(np.spacing(np.float16(abs(w))))


@smallest_effective_step.wrong("whole-gap")
def takes_the_number_below(w):
    half = torch.tensor(w).half()
    return (half - torch.nextafter(half, torch.tensor(-math.inf).half())).item()


@smallest_effective_step.wrong("half-gap")
def takes_half_the_distance(w):
    return (float(_next_above(w)) - w) / 2


@smallest_effective_step.wrong("half-gap")
def takes_half_the_spacing(w):
    return _spacing(w) / 2


@smallest_effective_step.wrong("above-half-always")
def always_goes_just_above_half(w):
    return np.nextafter(np.float16(_gap_above(w) / 2), np.float16(np.inf))


@smallest_effective_step.wrong("above-half-always")
def always_goes_just_above_half_the_spacing(w):
    return _spacing(w) / 2 * (1 + 2.0**-10)


@smallest_effective_step.wrong("largest-lost")
def takes_the_last_that_does_nothing(w):
    start, steps = torch.tensor(w).half(), _all_steps()
    return steps[start + steps == start].max().item()


@smallest_effective_step.wrong("ties-to-odd")
def sends_ties_to_the_odd(w):
    half = _gap_above(w) / 2
    odd = int(np.float16(w).view(np.uint16)) & 1
    return half * (1 + 2.0**-10) if odd else half


@smallest_effective_step.wrong("downward")
def subtracts_the_step(w):
    start, steps = torch.tensor(w).half(), _all_steps()
    return steps[start - steps != start][0].item()


@smallest_effective_step.wrong("sign-ignored")
def takes_the_size(w):
    return searches_all_steps(abs(w))


@smallest_effective_step.wrong("sign-ignored")
def goes_by_the_spacing(w):
    half = _spacing(w) / 2
    odd = w / _spacing(w) % 2
    return half if odd else half + half * 2.0**-10


@smallest_effective_step.wrong("powers-of-two-only")
def halves_the_step(w):
    start, step = torch.tensor(w).half(), torch.tensor(2.0**14).half()
    while start + step != start:
        step = step / 2
    return 2 * step.item()


@smallest_effective_step.wrong("powers-of-two-only")
def doubles_the_step(w):
    step = 2.0**-24
    while np.float16(w) + np.float16(step) == np.float16(w):
        step *= 2
    return step


@smallest_effective_step.wrong("added-in-a-wider-format")
def searches_in_single(w):
    steps = _all_steps().float()
    return steps[torch.tensor(w) + steps != w][0].item()


@smallest_effective_step.wrong("added-in-a-wider-format")
def searches_among_python_floats(w):
    return next(step for step in _all_steps().tolist() if w + step != w)


@smallest_effective_step.wrong("added-in-a-wider-format")
def asks_for_the_ulp_of_python(w):
    return math.ulp(w)


@smallest_effective_step.wrong("added-in-a-wider-format")
def asks_for_the_next_single(w):
    single = torch.tensor(w)
    return (torch.nextafter(single, torch.tensor(math.inf)) - single).item()


@smallest_effective_step.wrong("added-in-bf16")
def searches_in_bfloat16(w):
    steps = _all_steps().float()
    start = torch.tensor(w, dtype=torch.bfloat16)
    return steps[start + steps.bfloat16() != start][0].item()


@smallest_effective_step.wrong("no-fp16-number")
def goes_above_half_by_a_python_float(w):
    half = _gap_above(w) / 2
    odd = int(np.float16(w).view(np.uint16)) & 1
    return half if odd else math.nextafter(half, math.inf)


@smallest_effective_step.wrong("no-fp16-number")
def goes_above_half_by_a_little(w):
    half = _gap_above(w) / 2
    return half * (1 + 1e-6)


@smallest_effective_step.wrong("not-a-step")
def steps_away_from_zero(w):
    return math.copysign(searches_all_steps(abs(w)), w)


@smallest_effective_step.wrong("not-a-step")
def finds_that_nothing_moves(w):
    steps = _all_steps()
    start = torch.tensor(w).half()
    moved = steps[(start + steps == start).logical_not() & (steps < 1e-6)]
    return moved[0].item() if len(moved) else 0.0


@smallest_effective_step.wrong("not-a-step")
def finds_that_only_infinity_is_enough(w):
    return math.inf if w < 0 else searches_all_steps(w)


@smallest_effective_step.wrong("at-this-weight")
def slips_at_one_binade(w):
    right = searches_all_steps(w)
    return _gap_above(w) if 256 <= abs(w) < 512 else right


@smallest_effective_step.wrong("wrong-value")
def takes_two_gaps(w):
    return 2 * _gap_above(w)


@smallest_effective_step.wrong("wrong-type")
def returns_the_step_as_a_tensor(w):
    start, steps = torch.tensor(w).half(), _all_steps()
    return steps[start + steps != start][0]


def _all_steps():
    return torch.arange(1, 0x7C00, dtype=torch.int16).view(torch.float16)


@smallest_effective_step.right
def searches_all_steps(w):
    start, steps = torch.tensor(w, dtype=torch.float16), _all_steps()
    return steps[(start + steps) != start].min().item()


@smallest_effective_step.right
def bisects_the_patterns(w):
    low, high = 0, 0x7BFF
    while high - low > 1:
        middle = (low + high) // 2
        step = np.array(middle, dtype=np.uint16).view(np.float16)
        moves = np.float16(w) + step != np.float16(w)
        low, high = (low, middle) if moves else (middle, high)
    return float(np.array(high, dtype=np.uint16).view(np.float16))


@smallest_effective_step.right
def knows_the_tie_rule(w):
    half = np.float16(_gap_above(w) / 2)
    odd = int(np.float16(w).view(np.uint16)) & 1
    return float(half) if odd else float(np.nextafter(half, np.float16(np.inf)))


@smallest_effective_step.right
def tries_half_and_the_next(w):
    start = torch.tensor(w).half()
    half = (torch.nextafter(start, torch.tensor(math.inf).half()) - start) / 2
    if start + half == start:
        half = torch.nextafter(half, torch.tensor(math.inf).half())
    return half.item()


@smallest_effective_step.right
def counts_by_arithmetic(w):
    exponent = math.frexp(w)[1] - 1
    spacing = 2.0 ** (exponent - 10)
    if w == -(2.0**exponent):
        return spacing / 4 * (1 + 2.0**-10)
    odd = int(abs(w) / spacing) % 2 == 1
    return spacing / 2 if odd else spacing / 2 * (1 + 2.0**-10)


@smallest_effective_step.right
def walks_up_one_by_one(w):
    start = np.float16(w)
    step = np.float16(2.0**-13)  # nothing smaller moves a number of 1 or more
    while start + step == start:
        step = np.nextafter(step, np.float16(np.inf))
    return step


@smallest_effective_step.right
def adds_wide_and_rounds(w):
    steps = _all_steps().double()
    moved = (steps + w).half().double() != w
    return steps[moved].tolist()[0]


# 2.4 Masks that fit


@masked_scores.wrong("does-not-fit")
def fills_with_minus_a_billion(scores, keep):
    return scores.masked_fill(~keep, -1e9)


@masked_scores.wrong("does-not-fit")
def takes_minus_a_billion_elsewhere(scores, keep):
    return torch.where(keep, scores, -1e9)


@masked_scores.wrong("does-not-fit")
def assigns_minus_a_billion(scores, keep):
    masked = scores.clone()
    masked[~keep] = -1e9
    return masked


@masked_scores.wrong("does-not-fit")
def adds_minus_a_billion_in_half(scores, keep):
    return scores + (1.0 - keep.to(scores.dtype)) * -1e9


@masked_scores.wrong("does-not-fit")
def fills_with_minus_one_hundred_thousand(scores, keep):
    return torch.where(keep, scores, torch.tensor(-1e5, dtype=scores.dtype))


@masked_scores.wrong("does-not-fit")
def fills_with_the_lowest_bfloat16(scores, keep):
    return scores.masked_fill(keep.logical_not(), torch.finfo(torch.bfloat16).min)


@masked_scores.wrong("lowest-of-fp32")
def fills_with_the_lowest_single(scores, keep):
    return scores.masked_fill(~keep, torch.finfo(torch.float32).min)


@masked_scores.wrong("lowest-of-fp32")
def takes_the_lowest_single_elsewhere(scores, keep):
    return torch.where(keep, scores, torch.finfo(torch.float).min)


@masked_scores.wrong("minus-infinity")
def fills_with_minus_infinity(scores, keep):
    return scores.masked_fill(~keep, float("-inf"))


@masked_scores.wrong("minus-infinity")
def takes_minus_infinity_elsewhere(scores, keep):
    return torch.where(keep, scores, -torch.inf)


@masked_scores.wrong("minus-infinity")
def adds_the_logarithm_of_the_mask(scores, keep):
    return scores + keep.to(scores.dtype).log()


@masked_scores.wrong("adds-the-lowest")
def adds_the_lowest(scores, keep):
    return scores + (~keep).to(scores.dtype) * torch.finfo(scores.dtype).min


@masked_scores.wrong("adds-the-lowest")
def adds_the_lowest_as_libraries_do(scores, keep):
    inverted = 1.0 - keep.to(scores.dtype)
    bias = inverted.masked_fill(inverted.bool(), torch.finfo(scores.dtype).min)
    return scores + bias


@masked_scores.wrong("eps-vanishes")
def adds_the_logarithm_with_an_eps(scores, keep):
    return scores + (keep.to(scores.dtype) + 1e-8).log()


@masked_scores.wrong("eps-vanishes")
def adds_the_logarithm_of_almost_nothing(scores, keep):
    return scores + (keep.to(scores.dtype) + 1e-9).log()


@masked_scores.wrong("does-not-fit")
def masks_in_single_and_goes_back(scores, keep):
    return scores.float().masked_fill(~keep, -1e9).to(scores.dtype)


@masked_scores.wrong("does-not-fit")
def adds_a_bias_of_minus_a_billion(scores, keep):
    return scores + torch.where(keep, 0.0, -1e9).to(scores.dtype)


@masked_scores.wrong("makes-nan")
def multiplies_with_infinity(scores, keep):
    return scores + (~keep).to(scores.dtype) * -math.inf


@masked_scores.wrong("makes-nan")
def multiplies_the_mask_with_half_a_billion(scores, keep):
    huge = torch.tensor(-1e9, dtype=torch.float16)
    return (scores + (~keep).half() * huge).to(scores.dtype)


@masked_scores.wrong("makes-nan")
def multiplies_what_is_hidden(scores, keep):
    return torch.where(keep, scores, scores * 1e9)


@masked_scores.wrong("makes-nan")
def hides_everything_with_infinity(scores, keep):
    return torch.where(keep.any(-1, keepdim=True), -math.inf, 0.0).to(scores.dtype).expand_as(scores)


@masked_scores.wrong("inverted")
def fills_what_is_kept(scores, keep):
    return scores.masked_fill(keep, torch.finfo(scores.dtype).min)


@masked_scores.wrong("inverted")
def takes_scores_where_nothing_is_kept(scores, keep):
    return torch.where(keep, -1e4, scores)


@masked_scores.wrong("inverted")
def fills_what_is_kept_with_minus_infinity(scores, keep):
    return scores.masked_fill(keep, -math.inf)


@masked_scores.wrong("does-not-fit")
def fills_what_is_kept_with_minus_a_billion(scores, keep):
    return scores.masked_fill(keep, -1e9)


@masked_scores.wrong("filled-with-zero")
def multiplies_by_the_mask(scores, keep):
    return scores * keep


@masked_scores.wrong("filled-with-zero")
def fills_with_zero(scores, keep):
    return scores.masked_fill(~keep, 0)


@masked_scores.wrong("not-low-enough")
def fills_with_minus_one_hundred(scores, keep):
    return scores.masked_fill(~keep, -100.0)


@masked_scores.wrong("not-low-enough")
def fills_with_minus_one_thousand(scores, keep):
    return torch.where(keep, scores, -1000.0)


@masked_scores.wrong("not-low-enough")
def fills_with_the_smallest_positive(scores, keep):
    return scores.masked_fill(~keep, torch.finfo(scores.dtype).tiny)


@masked_scores.wrong("not-low-enough")
def subtracts_one_thousand(scores, keep):
    return scores - 1000 * (~keep).to(scores.dtype)


@masked_scores.wrong("not-low-enough")
def fills_with_the_lowest_of_the_row(scores, keep):
    return torch.where(keep, scores, scores.amin(-1, keepdim=True) - 10)


@masked_scores.wrong("nothing-hidden")
def forgets_the_result(scores, keep):
    scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
    return scores


@masked_scores.wrong("weights-returned")
def returns_the_weights(scores, keep):
    lowest = torch.finfo(scores.dtype).min
    return scores.masked_fill(~keep, lowest).softmax(-1)


@masked_scores.wrong("kept-changed")
def adds_much_and_takes_it_away(scores, keep):
    much = torch.tensor(10000.0, dtype=scores.dtype)
    return (scores + much) * keep - much


@masked_scores.wrong("kept-changed")
def scales_what_is_kept(scores, keep):
    return (scores / 2).masked_fill(~keep, torch.finfo(scores.dtype).min)


@masked_scores.wrong("promoted")
def multiplies_the_mask_by_a_number(scores, keep):
    return scores + ~keep * -1e4


@masked_scores.wrong("promoted")
def returns_single(scores, keep):
    return scores.float().masked_fill(~keep, -1e9)


@masked_scores.wrong("wrong-dtype")
def returns_double_scores(scores, keep):
    return torch.where(keep, scores.double(), -1e4)


@masked_scores.wrong("wrong-dtype")
def returns_half_always(scores, keep):
    return scores.half().masked_fill(~keep, -1e4)


@masked_scores.wrong("wrong-shape")
def drops_what_is_hidden(scores, keep):
    return scores[keep]


@masked_scores.wrong("mutated-input")
def fills_in_place(scores, keep):
    return scores.masked_fill_(~keep, torch.finfo(scores.dtype).min)


@masked_scores.right
def fills_with_the_lowest(scores, keep):
    return scores.masked_fill(~keep, torch.finfo(scores.dtype).min)


@masked_scores.right
def takes_minus_ten_thousand_elsewhere(scores, keep):
    return torch.where(keep, scores, -1e4)


@masked_scores.right
def assigns_to_a_copy(scores, keep):
    masked = scores.clone()
    masked[keep == 0] = torch.finfo(masked.dtype).min
    return masked


@masked_scores.right
def adds_minus_ten_thousand_in_the_same_dtype(scores, keep):
    return scores + (~keep).to(scores.dtype) * -1e4


@masked_scores.right
def fills_with_half_of_the_lowest(scores, keep):
    return scores + torch.zeros_like(scores).masked_fill(~keep, torch.finfo(scores.dtype).min / 2)


@masked_scores.right
def multiplies_and_adds(scores, keep):
    kept = keep.to(scores.dtype)
    return scores * kept + (1 - kept) * torch.finfo(scores.dtype).min


@masked_scores.right
def takes_the_lowest_of_half_for_all(scores, keep):
    lowest = torch.full_like(scores, -65504.0)
    return scores.where(keep, lowest)


@masked_scores.right
def hides_with_infinity_only_where_something_is_kept(scores, keep):
    some = keep.any(-1, keepdim=True)
    return torch.where(some, scores.masked_fill(~keep, -math.inf), scores)


@masked_scores.right
def clamps_minus_infinity(scores, keep):
    masked = scores.masked_fill(~keep, -torch.inf)
    return masked.clamp(min=torch.finfo(scores.dtype).min)


@masked_scores.right
def loops_over_the_elements(scores, keep):
    pairs = zip(scores.flatten().tolist(), keep.flatten().tolist(), strict=True)
    values = [score if kept else -3e4 for score, kept in pairs]
    return torch.tensor(values, dtype=scores.dtype).reshape(scores.shape)


@masked_scores.right
def replaces_infinity_by_the_lowest(scores, keep):
    return torch.where(keep, scores, -math.inf).nan_to_num()


@masked_scores.right
def keeps_everything_where_nothing_is_kept(scores, keep):
    return scores.masked_fill(~(keep | ~keep.any(-1, keepdim=True)), -math.inf)


@masked_scores.right
def adds_the_lowest_and_clamps(scores, keep):
    lowest = torch.finfo(scores.dtype).min
    return (scores + (~keep).to(scores.dtype) * lowest).clamp_min(lowest)


@masked_scores.right
def shifts_each_row(scores, keep):
    lowest = torch.finfo(scores.dtype).min
    wide = scores.float()
    shifted = wide - wide.masked_fill(~keep, -2000).amax(-1, keepdim=True)
    return shifted.to(scores.dtype).masked_fill(~keep, lowest)


# 2.5 A mean over many batches


@running_mean.wrong("mean-of-means")
def averages_the_means(batches):
    means = [batch.double().mean().item() for batch in batches]
    if not means:
        raise ValueError("no batches")
    return sum(means) / len(means)


@running_mean.wrong("mean-of-means")
def averages_the_half_means(batches):
    means = [batch.mean().item() for batch in batches if batch.numel()]
    return statistics.fmean(means)


@running_mean.wrong("mean-of-means")
def stacks_the_means(batches):
    return torch.stack([batch.mean() for batch in batches if batch.numel()]).mean().item()


@running_mean.wrong("counts-batches")
def divides_by_the_number_of_batches(batches):
    total, count = 0.0, 0
    for batch in batches:
        total += batch.double().sum().item()
        count += 1
    return total / count


@running_mean.wrong("counts-rows")
def counts_by_len(batches):
    total, count = 0.0, 0
    for batch in batches:
        total += batch.double().sum().item()
        count += len(batch)
    if not count:
        raise ValueError
    return total / count


@running_mean.wrong("counts-rows")
def counts_the_first_dimension(batches):
    total, count = 0.0, 0
    for batch in batches:
        total += batch.float().sum().item()
        count += batch.shape[0] if batch.dim() else 1
    return total / count


@running_mean.wrong("not-divided")
def only_sums(batches):
    return sum(batch.double().sum().item() for batch in batches)


@running_mean.wrong("one-batch")
def returns_inside_the_loop(batches):
    for batch in batches:
        return batch.double().mean().item()
    raise ValueError("nothing")


@running_mean.wrong("one-batch")
def starts_anew_in_each_round(batches):
    for batch in batches:
        total, count = 0.0, 0
        total += batch.double().sum().item()
        count += batch.numel()
    return total / count


@running_mean.wrong("moving-average")
def averages_as_batchnorm_does(batches):
    mean = 0.0
    for batch in batches:
        mean = 0.9 * mean + 0.1 * batch.double().mean().item()
    return mean


@running_mean.wrong("moving-average")
def averages_old_and_new(batches):
    mean = None
    for batch in batches:
        if batch.numel():
            new = batch.double().mean().item()
            mean = new if mean is None else (mean + new) / 2
    return mean


@running_mean.wrong("batch-sum-in-fp16")
def widens_the_sum(batches):
    total, count = 0.0, 0
    for batch in batches:
        total += batch.sum().item()
        count += batch.numel()
    return total / count


@running_mean.wrong("batch-sum-in-fp16")
def widens_the_sum_to_single(batches):
    total, count = torch.zeros(()), 0
    for batch in batches:
        total = total + batch.sum().float()
        count += batch.numel()
    return (total / count).item()


@running_mean.wrong("total-in-fp16")
def adds_in_half(batches):
    total, count = torch.zeros((), dtype=torch.float16), 0
    for batch in batches:
        total += batch.sum()
        count += batch.numel()
    return (total / count).item()


@running_mean.wrong("total-in-fp16")
def lets_sum_add_half(batches):
    kept = list(batches)
    return (sum(batch.sum() for batch in kept) / sum(batch.numel() for batch in kept)).item()


@running_mean.wrong("total-in-fp16")
def has_a_half_total(batches):
    total, count = torch.zeros((), dtype=torch.float16), 0
    for batch in batches:
        total += batch.float().sum()
        count += batch.numel()
    return total.item() / count


@running_mean.wrong("total-in-fp16")
def adds_element_by_element_in_half(batches):
    total, count = np.float16(0), 0
    with np.errstate(over="ignore"):
        for batch in batches:
            for value in batch.flatten().numpy():
                total = total + value
                count += 1
    return float(total) / count


@running_mean.wrong("total-in-fp16")
def concatenates_and_sums(batches):
    together = torch.cat([batch.flatten() for batch in batches])
    return together.sum().item() / together.numel()


@running_mean.wrong("rounded-on-the-way")
def concatenates_and_averages(batches):
    return torch.cat([batch.flatten() for batch in batches]).mean().item()


@running_mean.wrong("rounded-on-the-way")
def rounds_the_right_mean(batches):
    return torch.tensor(adds_in_double(batches)).half().item()


@running_mean.wrong("rounded-on-the-way")
def asks_numpy_for_the_mean_of_half(batches):
    return np.concatenate([batch.numpy().ravel() for batch in batches]).mean()


@running_mean.wrong("rounded-on-the-way")
def weighs_half_means(batches):
    total, count = 0.0, 0
    for batch in batches:
        if batch.numel():
            total += batch.mean().item() * batch.numel()
            count += batch.numel()
    return total / count


@running_mean.wrong("mean-in-fp16")
def updates_a_half_mean(batches):
    mean, count = torch.zeros((), dtype=torch.float16), 0
    for batch in batches:
        if batch.numel():
            count += batch.numel()
            mean = mean + (batch.float().mean() - mean.float()).mul(batch.numel() / count).half()
    return mean.item()


@running_mean.wrong("small-lost")
def divides_each_element_in_half(batches):
    kept = list(batches)
    count = sum(batch.numel() for batch in kept)
    return sum((batch / count).double().sum().item() for batch in kept)


@running_mean.wrong("total-in-fp32")
def sums_in_single(batches):
    total, count = torch.zeros(()), 0
    for batch in batches:
        total += batch.sum(dtype=torch.float32)
        count += batch.numel()
    if not count:
        raise ValueError("no elements")
    return float(total / count)


@running_mean.wrong("total-in-fp32")
def adds_one_by_one_in_single(batches):
    total, count = np.float32(0), 0
    for batch in batches:
        for number in batch.numpy().astype(np.float32).flat:
            total += number
            count += 1
    if count == 0:
        raise ValueError("nothing")
    return float(total / np.float32(count))


@running_mean.wrong("total-in-fp32")
def lets_sum_add_single(batches):
    kept = list(batches)
    return (sum(batch.float().sum() for batch in kept) / sum(batch.numel() for batch in kept)).item()


@running_mean.wrong("total-in-fp32")
def corrects_the_mean_in_single(batches):
    mean, count = torch.zeros(()), 0
    for batch in batches:
        for number in batch.float().flatten():
            count += 1
            mean += (number - mean) / count
    return mean.item()


@running_mean.wrong("mean-in-fp16")
def corrects_the_mean_in_half(batches):
    mean, count = torch.zeros((), dtype=torch.float16), 0
    for batch in batches:
        for number in batch.flatten():
            count += 1
            mean += (number - mean) / count
    return mean.item()


@running_mean.wrong("rounded-for-show")
def rounds_to_four_places(batches):
    return round(adds_in_double(batches), 4)


@running_mean.wrong("rounded-for-show")
def prints_four_digits(batches):
    return float(f"{adds_in_double(batches):.4g}")


@running_mean.wrong("refuses-an-empty-batch")
def refuses_any_empty_batch(batches):
    kept = list(batches)
    if any(batch.numel() == 0 for batch in kept):
        raise ValueError("an empty batch")
    return adds_in_double(kept)


@running_mean.wrong("refuses-an-empty-batch")
def divides_by_the_size_of_each_batch(batches):
    total, count = 0.0, 0
    for batch in batches:
        numbers = batch.flatten().tolist()
        total += sum(numbers) / len(numbers) * len(numbers)
        count += len(numbers)
    return total / count


@running_mean.wrong("zero-for-nothing")
def takes_a_total_of_zero_for_nothing(batches):
    total, count = 0.0, 0
    for batch in batches:
        total, count = total + batch.double().sum().item(), count + batch.numel()
    if total == 0:
        raise ValueError("no elements")
    return total / count


@running_mean.wrong("zero-for-nothing")
def passes_over_batches_of_zeros(batches):
    total, count = 0.0, 0
    for batch in batches:
        if batch.any():
            total, count = total + batch.double().sum().item(), count + batch.numel()
    if count == 0:
        raise ValueError("no elements")
    return total / count


@running_mean.wrong("zero-for-nothing")
def passes_over_sums_of_zero(batches):
    total, count = 0.0, 0
    for batch in batches:
        if subtotal := batch.double().sum().item():
            total, count = total + subtotal, count + batch.numel()
        elif batch.numel() and not batch.any():
            count += batch.numel()
    if count == 0:
        raise ValueError("no elements")
    return total / count


@running_mean.wrong("overflows")
def squares_on_the_way(batches):
    kept = [batch for batch in batches if batch.numel()]
    total = sum((batch * 200).double().sum().item() / 200 for batch in kept)
    return total / sum(batch.numel() for batch in kept)


@running_mean.wrong("empty-batch")
def weighs_means(batches):
    total, count = 0.0, 0
    for batch in batches:
        total += batch.double().mean().item() * batch.numel()
        count += batch.numel()
    if not count:
        raise ValueError("nothing to average")
    return total / count


@running_mean.wrong("walks-twice")
def walks_twice(batches):
    total = sum(batch.double().sum().item() for batch in batches)
    count = sum(batch.numel() for batch in batches)
    if count == 0:
        raise ValueError("empty")
    return total / count


@running_mean.wrong("walks-twice")
def divides_by_nothing_on_the_second_walk(batches):
    return sum(batch.double().sum().item() for batch in batches) / sum(batch.numel() for batch in batches)


@running_mean.wrong("walks-twice")
def looks_at_the_first(batches):
    for first in batches:
        if first.dtype != torch.float16:
            raise TypeError("FP16 only")
        break
    return adds_in_double(batches)


@running_mean.wrong("walks-twice")
def asks_whether_there_is_any(batches):
    if not any(batch.numel() for batch in batches):
        raise ValueError("nothing there")
    return adds_in_double(batches)


@running_mean.wrong("needs-a-list")
def asks_for_the_length(batches):
    if len(batches) == 0:
        raise ValueError("empty")
    return adds_in_double(batches)


@running_mean.wrong("needs-a-list")
def goes_by_index(batches):
    total, count, index = 0.0, 0, 0
    while batches[index:]:
        total += batches[index].double().sum().item()
        count += batches[index].numel()
        index += 1
    return total / count


@running_mean.wrong("not-refused")
def divides_by_zero(batches):
    total, count = 0.0, 0
    for batch in batches:
        total, count = total + batch.double().sum().item(), count + batch.numel()
    return total / count


@running_mean.wrong("not-refused")
def returns_zero_for_nothing(batches):
    total, count = 0.0, 0
    for batch in batches:
        total, count = total + batch.double().sum().item(), count + batch.numel()
    return total / max(count, 1)


@running_mean.wrong("not-refused")
def returns_nan_for_nothing(batches):
    flat = [batch.flatten().double() for batch in batches]
    return torch.cat(flat).mean().item() if flat else math.nan


@running_mean.wrong("not-refused")
def refuses_no_batches_only(batches):
    total, count, seen = 0.0, 0, 0
    for batch in batches:
        total += batch.double().sum().item()
        count += batch.numel()
        seen += 1
    if not seen:
        raise ValueError("no batches")
    return total / count if count else 0.0


@running_mean.wrong("wrong-type")
def returns_a_tensor(batches):
    total, count = torch.zeros((), dtype=torch.float64), 0
    for batch in batches:
        total += batch.double().sum()
        count += batch.numel()
    return total / count


@running_mean.wrong("mutated-input")
def empties_the_list(batches):
    total, count = 0.0, 0
    while batches:
        batch = batches.pop()
        total += batch.double().sum().item()
        count += batch.numel()
    return total / count


@running_mean.wrong("wrong-value")
def divides_by_one_less(batches):
    total, count = 0.0, 0
    for batch in batches:
        total += batch.double().sum().item()
        count += batch.numel()
    return total / max(count - 1, 0.5)


@running_mean.right
def adds_in_double(batches):
    total, count = 0.0, 0
    for batch in batches:
        total += batch.double().sum().item()
        count += batch.numel()
    if count == 0:
        raise ValueError("no elements")
    return total / count


@running_mean.right
def keeps_a_list(batches):
    flat = [batch.flatten() for batch in batches]
    if not any(map(len, flat)):
        raise ValueError("no elements")
    return torch.cat(flat).float().mean().item()


@running_mean.right
def loops_over_the_elements_in_python(batches):
    numbers = [number for batch in batches for number in batch.reshape(-1).tolist()]
    if not numbers:
        raise ValueError
    return math.fsum(numbers) / len(numbers)


@running_mean.right
def asks_statistics(batches):
    numbers = (number for batch in batches for number in batch.flatten().tolist())
    try:
        return statistics.fmean(numbers)
    except statistics.StatisticsError:
        raise ValueError("a mean of nothing") from None


@running_mean.right
def updates_the_mean(batches):
    mean, count = 0.0, 0
    for batch in batches:
        if batch.numel() == 0:
            continue
        count += batch.numel()
        mean += (batch.double().mean().item() - mean) * batch.numel() / count
    if count == 0:
        raise ValueError("nothing")
    return mean


@running_mean.right
def reduces_pairs(batches):
    pairs = ((batch.double().sum(), batch.numel()) for batch in batches)
    total, count = functools.reduce(lambda a, b: (a[0] + b[0], a[1] + b[1]), pairs, (0.0, 0))
    if count == 0:
        raise ValueError("nothing")
    return (total / count).item()


@running_mean.right
def tees_the_iterator(batches):
    one, other = itertools.tee(batches)
    count = sum(batch.numel() for batch in one)
    if not count:
        raise ValueError("nothing")
    return sum(float(batch.float().sum()) for batch in other) / count


@running_mean.right
def adds_in_numpy(batches):
    arrays = [batch.numpy().astype(np.float32).ravel() for batch in batches]
    if sum(map(np.size, arrays)) == 0:
        raise ValueError("nothing")
    return np.concatenate(arrays).mean(dtype=np.float64)


@running_mean.right
def scales_each_sum_first(batches):
    shares = [(batch.float().sum().item(), batch.numel()) for batch in batches]
    count = sum(number for _, number in shares)
    if count < 1:
        raise ValueError("nothing")
    return sum(total / count for total, _ in shares)


@running_mean.right
def takes_the_mean_of_single_precision_parts(batches):
    parts = [batch.flatten().to(torch.float32) for batch in batches if batch.nelement()]
    if len(parts) == 0:
        raise ValueError("nothing")
    return torch.concatenate(parts).mean().double().item()
