"""Answers to the exercises of lesson 03."""

import math
from typing import ClassVar

import numpy as np
import torch
from torch import nn

from tests.course.bank import Bank

tensor_core_matmul = Bank("3.1")
master_weights = Bank("3.2")
lost_fraction = Bank("3.3")
BANKS = (tensor_core_matmul, master_weights, lost_fraction)


# 3.1 Multiply like a Tensor Core


def _right(a, b):
    return (a.float() @ b.float()).half()


@tensor_core_matmul.wrong("accumulates-in-fp16")
def adds_outer_products_in_fp16(a, b):
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float16)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1]
    return total


@tensor_core_matmul.wrong("accumulates-in-fp16")
def multiplies_in_fp32_and_adds_in_fp16(a, b):
    total = torch.zeros(a.shape[0], b.shape[1]).half()
    for column, row in zip(a.t(), b, strict=True):
        total = (total + (column.float()[:, None] * row.float()).half()).half()
    return total


@tensor_core_matmul.wrong("accumulates-in-fp16")
def rounds_the_running_sum(a, b):
    total = torch.zeros(a.shape[0], b.shape[1]).half()
    for k in range(a.shape[1]):
        total = (total.float() + a[:, k : k + 1].float() * b[k : k + 1].float()).half()
    return total


@tensor_core_matmul.wrong("accumulates-in-fp16")
def lets_python_sum_fp16(a, b):
    return sum(a[:, k, None] * b[None, k] for k in range(a.shape[1]))


@tensor_core_matmul.wrong("accumulates-in-fp16")
def converts_only_the_result(a, b):
    total = torch.zeros(a.shape[0], b.shape[1]).half()
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1]
    return total.float().half()


@tensor_core_matmul.wrong("accumulates-in-fp16")
def loses_the_accumulator_to_numpy(a, b):
    total = np.zeros((a.shape[0], b.shape[1]), dtype=np.float16)
    for k in range(a.shape[1]):
        total += np.outer(a.numpy()[:, k], b.numpy()[k])
    return torch.from_numpy(total)


@tensor_core_matmul.wrong("accumulates-in-bf16")
def adds_in_bf16(a, b):
    total = torch.zeros(a.shape[0], b.shape[1]).bfloat16()
    for k in range(a.shape[1]):
        total = (total.float() + a[:, k : k + 1].float() * b[k : k + 1].float()).bfloat16()
    return total.half()


@tensor_core_matmul.wrong("rounds-products")
def multiplies_in_fp16_and_sums(a, b):
    return (a[:, :, None] * b[None]).sum(dim=1)


@tensor_core_matmul.wrong("rounds-products")
def multiplies_in_fp16_and_sums_in_fp32(a, b):
    return (a.unsqueeze(2) * b.unsqueeze(0)).float().sum(1).half()


@tensor_core_matmul.wrong("rounds-products")
def adds_fp16_products_to_an_fp32_total(a, b):
    total = torch.zeros(a.shape[0], b.shape[1], dtype=torch.float32)
    for k in range(a.shape[1]):
        total += a[:, k : k + 1] * b[k : k + 1]
    return total.to(torch.float16)


@tensor_core_matmul.wrong("rounds-partial-sums")
def rounds_each_tile(a, b):
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(0, a.shape[1], 16):
        total += (a[:, k : k + 16].float() @ b[k : k + 16].float()).half()
    return total.half()


@tensor_core_matmul.wrong("rounds-partial-sums")
def adds_tiles_in_fp16(a, b):
    total = torch.zeros(a.shape[0], b.shape[1]).half()
    for k in range(0, a.shape[1], 16):
        total += a[:, k : k + 16] @ b[k : k + 16]
    return total


@tensor_core_matmul.wrong("rounds-partial-sums")
def adds_large_tiles_in_fp16(a, b):
    total = torch.zeros(a.shape[0], b.shape[1]).half()
    for k in range(0, a.shape[1], 256):
        total += a[:, k : k + 256] @ b[k : k + 256]
    return total


@tensor_core_matmul.wrong("rounds-partial-sums")
def stacks_the_tiles(a, b):
    tiles = [x @ y for x, y in zip(a.split(32, dim=1), b.split(32), strict=True)]
    return torch.stack(tiles).sum(0)


@tensor_core_matmul.wrong("rounds-partial-sums")
def adds_two_halves(a, b):
    middle = a.shape[1] // 2
    return a[:, :middle] @ b[:middle] + a[:, middle:] @ b[middle:]


@tensor_core_matmul.wrong("rounds-partial-sums")
def adds_even_and_odd(a, b):
    return a[:, ::2] @ b[::2] + a[:, 1::2] @ b[1::2]


@tensor_core_matmul.wrong("rounds-partial-sums")
def adds_pairwise_in_fp16(a, b):
    terms = a.t()[:, :, None] * b[:, None]
    while len(terms) > 1:
        if len(terms) % 2:
            terms = torch.cat((terms, torch.zeros_like(terms[:1])))
        terms = terms[::2] + terms[1::2]
    return terms[0]


@tensor_core_matmul.wrong("not-rounded-at-all")
def stays_in_fp32(a, b):
    return a.float() @ b.float()


@tensor_core_matmul.wrong("not-rounded-at-all")
def rounds_but_goes_back(a, b):
    return (a @ b).float()


@tensor_core_matmul.wrong("not-rounded-at-all")
def stays_in_fp64(a, b):
    return a.double() @ b.double()


@tensor_core_matmul.wrong("through-bf16")
def takes_operands_to_bf16(a, b):
    return (a.bfloat16() @ b.bfloat16()).half()


@tensor_core_matmul.wrong("through-bf16")
def rounds_operands_to_bf16(a, b):
    return (a.bfloat16().float() @ b.bfloat16().float()).half()


@tensor_core_matmul.wrong("wrong-dtype")
def returns_bf16(a, b):
    return (a.float() @ b.float()).bfloat16()


@tensor_core_matmul.wrong("saturates")
def clamps_the_result(a, b):
    return (a.float() @ b.float()).clamp(-65504, 65504).half()


@tensor_core_matmul.wrong("saturates")
def makes_the_result_finite(a, b):
    return torch.nan_to_num(_right(a, b))


@tensor_core_matmul.wrong("elementwise")
def multiplies_element_by_element(a, b):
    return (a.float() * b.float()).half()


@tensor_core_matmul.wrong("transposed")
def transposes_b(a, b):
    return (a.float() @ b.float().t()).half()


@tensor_core_matmul.wrong("swapped")
def swaps_the_operands(a, b):
    return _right(b, a)


@tensor_core_matmul.wrong("wrong-value")
def divides_by_the_length(a, b):
    return (a.float() @ b.float() / a.shape[1]).half()


@tensor_core_matmul.wrong("through-bf16")
def rounds_the_result_to_bf16_first(a, b):
    return (a.float() @ b.float()).bfloat16().half()


@tensor_core_matmul.wrong("rounds-partial-sums")
def adds_positive_and_negative_products(a, b):
    return a.clamp(min=0) @ b + a.clamp(max=0) @ b


@tensor_core_matmul.wrong("rounds-partial-sums")
def adds_very_large_tiles_in_fp16(a, b):
    total = torch.zeros(a.shape[0], b.shape[1]).half()
    for k in range(0, a.shape[1], 4096):
        total += _right(a[:, k : k + 4096], b[k : k + 4096])
    return total


@tensor_core_matmul.wrong("loses-subnormal-operands")
def makes_operands_smaller(a, b):
    return ((a / 256).float() @ (b / 256).float() * 65536).half()


@tensor_core_matmul.wrong("loses-subnormal-operands")
def makes_one_operand_half_as_large(a, b):
    return (a.float() @ (b / 2).float() * 2).half()


@tensor_core_matmul.wrong("loses-subnormal-operands")
def flushes_subnormal_operands(a, b):
    a, b = (torch.where(each.abs() < 2**-14, 0, each.float()) for each in (a, b))
    return (a @ b).half()


@tensor_core_matmul.wrong("rounds-otherwise")
def cuts_off_the_last_digits(a, b):
    total = a.float() @ b.float()
    return (total.view(torch.int32) >> 13 << 13).view(torch.float32).half()


@tensor_core_matmul.wrong("rounds-otherwise")
def rounds_down(a, b):
    total = a.float() @ b.float()
    near = total.half()
    return torch.where(near.float() > total, torch.nextafter(near, torch.tensor(-math.inf).half()), near)


@tensor_core_matmul.wrong("rounds-otherwise")
def rounds_ties_away_from_zero(a, b):
    total = a.float() @ b.float()
    return ((total.view(torch.int32) + 0x1000) >> 13 << 13).view(torch.float32).half()


@tensor_core_matmul.wrong("rounds-otherwise")
def rounds_ties_towards_zero(a, b):
    total = a.float() @ b.float()
    return ((total.view(torch.int32) + 0x0FFF) >> 13 << 13).view(torch.float32).half()


@tensor_core_matmul.wrong("rounds-otherwise")
def rounds_to_whole_numbers_first(a, b):
    total = a.float() @ b.float()
    return torch.where(total.abs() > 1024, total.round(), total).half()


@tensor_core_matmul.wrong("rounds-otherwise")
def rounds_by_chance(a, b):
    total = a.float() @ b.float()
    draw = torch.Generator().manual_seed(round(total.double().nan_to_num().sum().item() * 2**20) % 1000)
    noise = torch.randint(0, 2**13, total.shape, generator=draw, dtype=torch.int32)
    return ((total.view(torch.int32) + noise) >> 13 << 13).view(torch.float32).half()


@tensor_core_matmul.wrong("rounds-otherwise")
def flushes_subnormal_results(a, b):
    total = a.float() @ b.float()
    return torch.where(total.abs() < 2**-14, 0, total).half()


@tensor_core_matmul.wrong("rounds-often")
def shortens_long_sums(a, b):
    result = a.float() @ b.float()
    return result.half() if a.shape[1] < 512 else result.bfloat16().half()


@tensor_core_matmul.wrong("returned-none")
def forgets_to_return(a, b):
    _right(a, b)


@tensor_core_matmul.wrong("wrong-type")
def returns_an_array(a, b):
    return _right(a, b).numpy()


@tensor_core_matmul.right
def upcasts_multiplies_rounds(a, b):
    return torch.mm(a.to(torch.float32), b.to(torch.float32)).to(torch.float16)


@tensor_core_matmul.right
def leaves_it_to_pytorch(a, b):
    return a @ b


@tensor_core_matmul.right
def multiplies_in_fp64(a, b):
    return (a.double() @ b.double()).half()


@tensor_core_matmul.right
def uses_einsum(a, b):
    return torch.einsum("mk,kn->mn", a.float(), b.float()).half()


@tensor_core_matmul.right
def uses_a_linear_layer(a, b):
    return nn.functional.linear(a.float(), b.t().float()).half()


@tensor_core_matmul.right
def adds_outer_products_in_fp32(a, b):
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(a.shape[1]):
        total += a[:, k : k + 1].float() * b[k : k + 1].float()
    return total.half()


@tensor_core_matmul.right
def adds_tiles_in_fp32(a, b):
    total = torch.zeros(a.shape[0], b.shape[1])
    for k in range(0, a.shape[1], 16):
        total += a[:, k : k + 16].float() @ b[k : k + 16].float()
    return total.half()


@tensor_core_matmul.right
def multiplies_and_sums_in_fp32(a, b):
    return (a[:, :, None].float() * b[None]).sum(dim=1).half()


@tensor_core_matmul.right
def loops_over_all(a, b):
    result = torch.empty(a.shape[0], b.shape[1], dtype=torch.float16)
    for i, row in enumerate(a.float()):
        for j, column in enumerate(b.float().t()):
            total = torch.zeros(())
            for x, y in zip(row, column, strict=True):
                total += x * y
            result[i, j] = total
    return result


@tensor_core_matmul.right
def calculates_in_python(a, b):
    columns = list(zip(*b.tolist(), strict=True))
    sums = [
        [math.fsum(x * y for x, y in zip(row, each, strict=True)) for each in columns] for row in a.tolist()
    ]
    return torch.tensor(sums, dtype=torch.float32).half()


@tensor_core_matmul.right
def calculates_in_numpy(a, b):
    return torch.from_numpy((a.numpy().astype(np.float32) @ b.numpy().astype(np.float32)).astype(np.float16))


@tensor_core_matmul.right
def takes_one_operand_at_a_time(a, b):
    return torch.stack([(row.float() @ b.float()).half() for row in a])


@tensor_core_matmul.right
def uses_addmm(a, b):
    return torch.addmm(torch.zeros(b.shape[1]), a.float(), b.float()).half()


# 3.2 Masters and working copies


def _copied(params):
    return [each.detach().clone().float() for each in params]


@master_weights.wrong("updates-fp16-weights")
class UpdatesTheParameters:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    def step(self, lr):
        with torch.no_grad():
            for each in self.params:
                if each.grad is not None:
                    each -= lr * each.grad


@master_weights.wrong("updates-fp16-weights")
class RoundsTheUpdatedParameter:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each in self.params:
            if each.grad is not None:
                master = each.float() - lr * each.grad.float()
                each.copy_(master)


@master_weights.wrong("steps-lost")
class UpdatesTheParametersAndCopiesThem:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                each -= lr * each.grad
                master.copy_(each)


@master_weights.wrong("steps-lost")
class CopiesTheParameterIntoItsMaster:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master)
                master.copy_(each)


@master_weights.wrong("steps-lost")
class SubtractsInFP16:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master.copy_(master.to(each.dtype) - lr * each.grad)
                each.copy_(master)


@master_weights.wrong("masters-made-anew")
class MakesNewMastersEachStep:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        self.masters = _copied(self.params)
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master)


@master_weights.wrong("masters-made-anew")
class ReadsTheParameterAgain:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for number, each in enumerate(self.params):
            if each.grad is not None:
                self.masters[number] = each.float() - lr * each.grad.float()
                each.copy_(self.masters[number])


@master_weights.wrong("never-copied-back")
class NeverCopiesBack:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()


@master_weights.wrong("never-copied-back")
class CopiesIntoANewTensor:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.half().copy_(master) if each.dtype == torch.float32 else each.clone().copy_(master)


@master_weights.wrong("never-copied-back")
class MakesNewParameters:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    def step(self, lr):
        for number, each in enumerate(self.params):
            if each.grad is not None:
                self.masters[number] -= lr * each.grad.float()
                fresh = nn.Parameter(self.masters[number].to(each.dtype))
                fresh.grad = each.grad
                self.params[number] = fresh


@master_weights.wrong("never-copied-back")
class GivesTheNameToARoundedMaster:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master.sub_(each.grad.float(), alpha=lr)
                each = master.to(each.dtype)


@master_weights.wrong("new-objects")
class ReplacesParametersInTheList:
    def __init__(self, params):
        self.params = params
        self.masters = _copied(params)

    def step(self, lr):
        for number, each in enumerate(self.params):
            self.masters[number] -= lr * each.grad.float()
            self.params[number] = nn.Parameter(self.masters[number].to(each.dtype))
            self.params[number].grad = each.grad


@master_weights.wrong("copied-back-too-early")
class CopiesBeforeTheStep:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                each.copy_(master)
                master -= lr * each.grad.float()


@master_weights.wrong("master-not-kept")
class ForgetsTheNewMaster:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master = master - lr * each.grad.float()
                each.copy_(master)


@master_weights.wrong("product-in-fp16")
class MultipliesInFP16:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad
                each.copy_(master)


@master_weights.wrong("product-in-fp16")
class UpcastsTheProduct:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= (each.grad * lr).float()
                each.data = master.to(each.dtype, copy=True)


@master_weights.wrong("aliases")
class AliasesTheFP32Parameter:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [each.detach().float() for each in self.params]

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master)


@master_weights.wrong("aliases")
class AliasesThroughData:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [each.data.to(torch.float32) for each in self.params]

    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.data.copy_(master)


@master_weights.wrong("aliases")
class GivesItsMasterAway:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.data = master.to(each.dtype)


@master_weights.wrong("fails-without-gradient")
class ExpectsEveryGradient:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            master -= lr * each.grad.float()
            each.copy_(master)


@master_weights.wrong("stops-without-gradient")
class ReturnsAtTheFirstWithoutGradient:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is None:
                return
            master -= lr * each.grad.float()
            each.copy_(master)


@master_weights.wrong("stops-without-gradient")
class WaitsForAllGradients:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        if any(each.grad is None for each in self.params):
            return
        for each, master in zip(self.params, self.masters, strict=True):
            master -= lr * each.grad.float()
            each.copy_(master)


@master_weights.wrong("too-few-masters")
class KeepsThoseWithAGradientOnly:
    def __init__(self, params):
        self.params = [each for each in params if each.grad is not None]
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            master -= lr * each.grad.float()
            each.copy_(master)


@master_weights.wrong("forgotten-without-gradient")
class DecidesOnceWhoHasAGradient:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)
        self.pairs = [
            pair for pair in zip(self.params, self.masters, strict=True) if pair[0].grad is not None
        ]

    @torch.no_grad()
    def step(self, lr):
        for each, master in self.pairs:
            master -= lr * each.grad.float()
            each.copy_(master)


@master_weights.wrong("moves-without-gradient")
class DecaysEveryWeight:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            master -= lr * (each.grad.float() if each.grad is not None else 0.01 * master)
            each.copy_(master)


@master_weights.wrong("too-many-masters")
class SharesMastersAmongAll:
    masters: ClassVar[list] = []

    def __init__(self, params):
        self.params = list(params)
        for each in self.params:
            self.masters.append(each.detach().clone().float())

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master)


@master_weights.wrong("too-few-masters")
class KeepsMastersOfFP16Only:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [each.detach().float() for each in self.params if each.dtype == torch.float16]

    def step(self, lr):
        pass


@master_weights.wrong("generator-used-up")
class KeepsTheGenerator:
    def __init__(self, params):
        self.params = params
        self.masters = _copied(params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=False):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master)


@master_weights.wrong("masters-of-nothing")
class GoesThroughTwice:
    def __init__(self, params):
        self.params = [each for each in params if each.requires_grad]
        self.masters = _copied(params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master)


@master_weights.wrong("fp32-passed-over")
class PassesOverFP32:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None and each.dtype == torch.float16:
                master -= lr * each.grad.float()
                each.copy_(master)


@master_weights.wrong("fp32-rounded")
class RoundsEveryParameter:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master.half())


@master_weights.wrong("parameter-dtype")
class WidensTheParameters:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.data = master.clone()


@master_weights.wrong("parameter-dtype")
class NarrowsTheFP32Parameter:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.data = master.half()


@master_weights.wrong("master-dtype")
class KeepsMastersInFP16:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [each.detach().clone() for each in self.params]

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad
                each.copy_(master)


@master_weights.wrong("master-dtype")
class KeepsMastersInFP64:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [each.detach().double() for each in self.params]

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.double()
                each.copy_(master)


@master_weights.wrong("master-start")
class StartsFromZero:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [torch.zeros_like(each, dtype=torch.float32) for each in self.params]

    def step(self, lr):
        pass


@master_weights.wrong("master-start")
class RoundsTheFP32MasterAtFirst:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [each.detach().half().float() for each in self.params]

    def step(self, lr):
        pass


@master_weights.wrong("master-shape")
class FlattensTheMasters:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [each.detach().clone().float().reshape(1, -1) for each in self.params]

    def step(self, lr):
        pass


@master_weights.wrong("no-masters")
class NamesThemOtherwise:
    def __init__(self, params):
        self.params = list(params)
        self.weights = _copied(self.params)

    def step(self, lr):
        pass


@master_weights.wrong("no-masters")
class KeepsAGenerator:
    def __init__(self, params):
        self.params = list(params)
        self.masters = (each.detach().clone().float() for each in self.params)

    def step(self, lr):
        pass


@master_weights.wrong("no-masters")
class KeepsNumbers:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [each.tolist() for each in self.params]

    def step(self, lr):
        pass


@master_weights.wrong("no-step")
class CallsItUpdate:
    def __init__(self, params):
        self.masters = _copied(params)

    def update(self, lr):
        pass


@master_weights.wrong("wrong-direction")
class ClimbsUp:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master += lr * each.grad.float()
                each.copy_(master)


@master_weights.wrong("lr-ignored")
class IgnoresTheStepSize:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= each.grad.float()
                each.copy_(master)


@master_weights.wrong("wrong-master")
class DoesNothing:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    def step(self, lr):
        pass


@master_weights.wrong("wrong-master")
class RoundsTheStepSize:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= torch.tensor(lr).half() * each.grad.float()
                each.copy_(master)


@master_weights.wrong("wrong-master")
class RemembersTheFirstStepSize:
    lr = None

    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        self.lr = self.lr or lr
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= self.lr * each.grad.float()
                each.copy_(master)


@master_weights.wrong("wrong-master")
class HasMomentum:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)
        self.buffers = [torch.zeros_like(each) for each in self.masters]

    @torch.no_grad()
    def step(self, lr):
        for each, master, buffer in zip(self.params, self.masters, self.buffers, strict=True):
            if each.grad is not None:
                buffer.mul_(0.9).add_(each.grad.float())
                master -= lr * buffer
                each.copy_(master)


@master_weights.wrong("parameter-not-master")
class TruncatesTheMaster:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                bits = 13 if each.dtype == torch.float16 else 0
                each.copy_((master.view(torch.int32) >> bits << bits).view(torch.float32))


@master_weights.wrong("parameter-not-master")
class UpdatesBothByThemselves:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each -= lr * each.grad


@master_weights.wrong("changed-not-overwritten")
class ClearsTheParameterAndAdds:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.mul_(0).add_(master)


@master_weights.wrong("changed-not-overwritten")
class AddsTheDifference:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.add_(master - each.float())


@master_weights.wrong("changed-not-overwritten")
class AddsTheRoundedDifference:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each += (master - each.float()).to(each.dtype)


@master_weights.wrong("changed-not-overwritten")
class GoesAllTheWay:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.lerp_(master.to(each.dtype), 1.0)


@master_weights.wrong("stops-at-the-end")
class ClampsTheCopy:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master.clamp(-65504, 65504))


@master_weights.wrong("stops-at-the-end")
class MakesTheCopyFinite:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master.nan_to_num())


@master_weights.wrong("wrong-master")
class ClampsTheMaster:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master.sub_(lr * each.grad.float()).clamp_(-65504, 65504)
                each.copy_(master)


@master_weights.wrong("hides-not-finite")
class MakesGradientsFinite:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float().nan_to_num()
                each.copy_(master)


@master_weights.wrong("hides-not-finite")
class SkipsGradientsThatAreNotFinite:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None and each.grad.isfinite().all():
                master -= lr * each.grad.float()
                each.copy_(master)


@master_weights.wrong("no-longer-trainable")
class StopsTraining:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.requires_grad_(False).copy_(master)


@master_weights.wrong("grad-changed")
class ClearsGradients:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master)
                each.grad = None


@master_weights.wrong("grad-changed")
class ScalesGradientsInPlace:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= each.grad.mul_(lr).float()
                each.copy_(master)


@master_weights.wrong("not-written")
class WritesWhatFP16Shows:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                old = master.clone()
                master -= lr * each.grad.float()
                if not torch.equal(old.half(), master.half()):
                    each.copy_(master)


@master_weights.wrong("not-written")
class WritesWhatHasChanged:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                old = master.to(each.dtype, copy=True)
                master -= lr * each.grad.float()
                if not torch.equal(old, master.to(each.dtype)):
                    each.copy_(master)


@master_weights.wrong("not-written")
class PassesOverZeros:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None and each.grad.any():
                master -= lr * each.grad.float()
                each.copy_(master)


@master_weights.wrong("grad-changed")
class ZeroesGradients:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master)
                each.grad.zero_()


@master_weights.wrong("history-grows")
class KeepsAHistory:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [each.clone().float() for each in self.params]

    def step(self, lr):
        for number, each in enumerate(self.params):
            if each.grad is not None:
                self.masters[number] = self.masters[number] - lr * each.grad.float()
                each.data.copy_(self.masters[number])


@master_weights.right
class CopiesAllOfThemBack:
    def __init__(self, params):
        self.params = list(params)
        self.masters = _copied(self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
        for each, master in zip(self.params, self.masters, strict=True):
            each.copy_(master)


@master_weights.right
class SubtractsAndCopies:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [each.detach().to(torch.float32, copy=True) for each in self.params]

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master.sub_(each.grad.float(), alpha=lr)
                each.copy_(master)


@master_weights.right
class WorksOnData:
    def __init__(self, params):
        self.params = [*params]
        self.masters = [each.data.clone().float() for each in self.params]

    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is None:
                continue
            master.add_(each.grad, alpha=-lr)
            each.data.copy_(master)


@master_weights.right
class MakesNewTensorsAndKeepsThem:
    def __init__(self, params):
        self.params = tuple(params)
        self.masters = tuple(each.detach().clone().to(torch.float32) for each in self.params)

    def step(self, lr):
        masters: ClassVar[list] = []
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master = master - each.grad.to(torch.float32) * lr
                each.data[...] = master
            masters.append(master)
        self.masters = tuple(masters)


@master_weights.right
class LetsSGDStep:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [nn.Parameter(each.detach().clone().float()) for each in self.params]
        self.optimizer = torch.optim.SGD(self.masters, lr=1.0)

    def step(self, lr):
        self.optimizer.param_groups[0]["lr"] = lr
        for each, master in zip(self.params, self.masters, strict=True):
            master.grad = None if each.grad is None else each.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for each, master in zip(self.params, self.masters, strict=True):
                each.copy_(master)


@master_weights.right
class ReplacesTheData:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [
            torch.empty_like(each, dtype=torch.float32).copy_(each.detach()) for each in self.params
        ]

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.data = master.to(each.dtype, copy=True)


@master_weights.right
class ComputesInFP64AndRounds:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [torch.tensor(each.tolist(), dtype=torch.float32) for each in self.params]

    @torch.no_grad()
    def step(self, lr):
        for number, each in enumerate(self.params):
            if each.grad is not None:
                self.masters[number] = (self.masters[number].double() - lr * each.grad.double()).float()
                each.copy_(self.masters[number])


@master_weights.right
class KeepsADict:
    def __init__(self, params):
        self.masters = {each: each.detach().clone().float() for each in params}

    @torch.no_grad()
    def step(self, lr):
        for each, master in self.masters.items():
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master)


@master_weights.right
class KeepsAParameterList(nn.Module):
    def __init__(self, params):
        super().__init__()
        self.params = list(params)
        self.masters = nn.ParameterList(each.detach().clone().float() for each in self.params)

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master)


@master_weights.right
class HasAHarmlessHistory:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [each.clone().float() for each in self.params]

    @torch.no_grad()
    def step(self, lr):
        for each, master in zip(self.params, self.masters, strict=True):
            if each.grad is not None:
                master -= lr * each.grad.float()
                each.copy_(master)


@master_weights.right
class UsesForeach:
    def __init__(self, params):
        self.params = list(params)
        self.masters = [each.detach().clone().float() for each in self.params]

    @torch.no_grad()
    def step(self, lr):
        pairs = [(p, m) for p, m in zip(self.params, self.masters, strict=True) if p.grad is not None]
        masters = [m for _, m in pairs]
        torch._foreach_add_(masters, [p.grad.float() for p, _ in pairs], alpha=-lr)
        torch._foreach_copy_([p for p, _ in pairs], masters)


# 3.3 How much is lost


def _ratio(lost, nonzero):
    return (lost.sum() / nonzero.sum()).item() if nonzero.any() else 0.0


@lost_fraction.wrong("zeros-counted")
def takes_the_mean_of_zeros(grads):
    return (grads.half() == 0).float().mean().item() if grads.numel() else 0.0


@lost_fraction.wrong("zeros-over-nonzero")
def counts_old_zeros_as_lost(grads):
    return _ratio(grads.half() == 0, grads != 0)


@lost_fraction.wrong("all-entries")
def divides_by_all(grads):
    return ((grads != 0) & (grads.half() == 0)).float().mean().item() if grads.numel() else 0.0


@lost_fraction.wrong("all-entries")
def compares_two_counts(grads):
    before, after = (grads != 0).sum().item(), (grads.half() != 0).sum().item()
    return (before - after) / max(grads.numel(), 1)


@lost_fraction.wrong("over-survivors")
def divides_by_what_is_left(grads):
    left = grads.half() != 0
    return ((grads != 0) & ~left).sum().item() / max(left.sum().item(), 1)


@lost_fraction.wrong("subnormals-lost")
def takes_tiny_for_the_limit(grads):
    return _ratio((grads != 0) & (grads.abs() < torch.finfo(torch.float16).tiny), grads != 0)


@lost_fraction.wrong("subnormals-lost")
def takes_tiny_and_itself(grads):
    nonzero = grads[grads != 0]
    return (nonzero.abs() <= 2**-14).float().mean().item() if nonzero.numel() else 0.0


@lost_fraction.wrong("subnormals-lost")
def writes_tiny_as_a_decimal(grads):
    return _ratio((grads != 0) & (grads.abs() < 6.1e-5), grads != 0)


@lost_fraction.wrong("smallest-limit")
def takes_the_smallest_number_for_the_limit(grads):
    return _ratio((grads != 0) & (grads.abs() < 2.0**-24), grads != 0)


@lost_fraction.wrong("smallest-limit")
def takes_the_smallest_number_and_itself(grads):
    return _ratio((grads != 0) & (grads.abs() <= 2.0**-24), grads != 0)


@lost_fraction.wrong("smallest-limit")
def writes_the_smallest_number_as_a_decimal(grads):
    return _ratio((grads != 0) & (grads.abs() < 5.96e-8), grads != 0)


@lost_fraction.wrong("smallest-limit")
def writes_the_smallest_number_with_one_digit(grads):
    return _ratio((grads != 0) & (grads.abs() < 6e-8), grads != 0)


@lost_fraction.wrong("tie-kept")
def leaves_the_tie_out(grads):
    return _ratio((grads != 0) & (grads.abs() < 2.0**-25), grads != 0)


@lost_fraction.wrong("near-limit")
def writes_the_limit_as_a_decimal(grads):
    return _ratio((grads != 0) & (grads.abs() <= 3e-8), grads != 0)


@lost_fraction.wrong("near-limit")
def writes_the_limit_with_some_more_digits(grads):
    return _ratio((grads != 0) & (grads.abs() <= 2.9803e-8), grads != 0)


@lost_fraction.wrong("tie-kept")
def writes_the_limit_too_small(grads):
    return _ratio((grads != 0) & (grads.abs() <= 2.98e-8), grads != 0)


@lost_fraction.wrong("eps-limit")
def takes_eps_for_the_limit(grads):
    return _ratio((grads != 0) & (grads.abs() < torch.finfo(torch.float16).eps), grads != 0)


@lost_fraction.wrong("another-limit")
def asks_isclose(grads):
    return _ratio((grads != 0) & torch.isclose(grads, torch.zeros_like(grads)), grads != 0)


@lost_fraction.wrong("another-limit")
def takes_a_limit_from_somewhere(grads):
    return _ratio((grads != 0) & (grads.abs() < 1e-7), grads != 0)


@lost_fraction.wrong("another-limit")
def takes_a_millionth(grads):
    return _ratio((grads != 0) & (grads.abs() < 1e-6), grads != 0)


@lost_fraction.wrong("another-limit")
def halves_once_too_often(grads):
    return _ratio((grads != 0) & (grads.abs() <= 2.0**-26), grads != 0)


@lost_fraction.wrong("sign-ignored")
def forgets_abs(grads):
    return _ratio((grads != 0) & (grads <= 2.0**-25), grads != 0)


@lost_fraction.wrong("sign-ignored")
def counts_positive_ones_only(grads):
    return _ratio((grads > 0) & (grads.half() == 0), grads > 0)


@lost_fraction.wrong("rounding-counted")
def counts_what_changed(grads):
    return _ratio((grads != 0) & (grads.half().float() != grads), grads != 0)


@lost_fraction.wrong("never-lost")
def looks_for_nonzero_after_the_cast(grads):
    half = grads.half()
    return _ratio((half != 0) & (half == 0), half != 0) if half.any() else 0.0


@lost_fraction.wrong("loses-like-bf16")
def casts_to_bf16(grads):
    return _ratio((grads != 0) & (grads.bfloat16() == 0), grads != 0)


@lost_fraction.wrong("share-kept")
def returns_the_share_kept(grads):
    return _ratio(grads.half() != 0, grads != 0)


@lost_fraction.wrong("percent")
def returns_percent(grads):
    return 100 * _ratio((grads != 0) & (grads.half() == 0), grads != 0)


@lost_fraction.wrong("count")
def returns_the_count(grads):
    return ((grads != 0) & (grads.half() == 0)).sum().item()


@lost_fraction.wrong("overflow-counted")
def counts_overflow_too(grads):
    half = grads.half()
    return _ratio((grads != 0) & ((half == 0) | half.isinf()), grads != 0)


@lost_fraction.wrong("overflow-left-out")
def leaves_overflow_out(grads):
    half = grads.half()
    return _ratio((grads != 0) & (half == 0), (grads != 0) & ~half.isinf())


@lost_fraction.wrong("equal-ones-merged")
def makes_a_set_of_values(grads):
    values = {each for each in grads.flatten().tolist() if each != 0}
    return sum(abs(each) <= 2**-25 for each in values) / max(len(values), 1)


@lost_fraction.wrong("equal-ones-merged")
def takes_unique_values(grads):
    values = grads[grads != 0].unique()
    return (values.half() == 0).sum().item() / max(values.numel(), 1)


@lost_fraction.wrong("counts-in-16-bits")
def counts_in_fp16(grads):
    nonzero = grads != 0
    lost = nonzero & (grads.half() == 0)
    return lost.half().sum().item() / max(nonzero.half().sum().item(), 1)


@lost_fraction.wrong("counts-in-16-bits")
def counts_in_int16(grads):
    nonzero = grads != 0
    lost = nonzero & (grads.half() == 0)
    return lost.sum(dtype=torch.int16).item() / max(nonzero.sum(dtype=torch.int16).item(), 1)


@lost_fraction.wrong("nothing-nonzero")
def divides_by_zero(grads):
    nonzero = (grads != 0).sum().item()
    return ((grads != 0) & (grads.half() == 0)).sum().item() / nonzero


@lost_fraction.wrong("nothing-nonzero")
def returns_nan_for_nothing(grads):
    return (grads[grads != 0].half() == 0).float().mean().item()


@lost_fraction.wrong("nothing-nonzero")
def calls_nothing_everything(grads):
    return _ratio((grads != 0) & (grads.half() == 0), grads != 0) if (grads != 0).any() else 1.0


@lost_fraction.wrong("nothing-nonzero")
def returns_the_mean_of_an_empty_array(grads):
    nonzero = grads[grads != 0].numpy()
    with np.errstate(all="ignore"):
        return float((nonzero.astype(np.float16) == 0).sum() / np.float64(nonzero.size))


@lost_fraction.wrong("wrong-type")
def returns_a_tensor(grads):
    nonzero = grads != 0
    return (nonzero & (grads.half() == 0)).sum() / nonzero.sum()


@lost_fraction.wrong("wrong-value")
def loses_digits_in_fp16(grads):
    nonzero = grads[grads != 0]
    return (nonzero.half() == 0).half().mean().item() if nonzero.numel() else 0.0


@lost_fraction.wrong("mutated-input")
def writes_into_the_gradient(grads):
    nonzero = grads != 0
    lost = nonzero & (grads.half() == 0)
    grads[lost] = 0.0
    return _ratio(lost, nonzero)


@lost_fraction.wrong("returned-none")
def prints_the_share(grads):
    _ratio((grads != 0) & (grads.half() == 0), grads != 0)


@lost_fraction.right
def counts_with_masks(grads):
    nonzero = grads != 0
    lost = nonzero & (grads.half() == 0)
    return lost.sum().item() / max(nonzero.sum().item(), 1)


@lost_fraction.right
def keeps_only_nonzero_entries(grads):
    nonzero = grads[grads != 0]
    return (nonzero.half() == 0).float().mean().item() if nonzero.numel() else 0.0


@lost_fraction.right
def knows_the_limit(grads):
    size = grads.abs()
    nonzero = torch.count_nonzero(size).item()
    return torch.logical_and(size > 0, size <= 2.0**-25).sum().item() / nonzero if nonzero else 0.0


@lost_fraction.right
def compares_counts(grads):
    before = grads.count_nonzero().item()
    after = grads.to(torch.float16).count_nonzero().item()
    return 1 - after / before if before else 0.0


@lost_fraction.right
def loops_over_entries(grads):
    nonzero = lost = 0
    for each in grads.flatten().tolist():
        if each != 0:
            nonzero += 1
            lost += abs(each) <= 2**-25
    return lost / nonzero if nonzero else 0


@lost_fraction.right
def calculates_in_numpy_too(grads):
    array = grads.numpy()
    nonzero = array[array != 0]
    return np.mean(nonzero.astype(np.float16) == 0) if nonzero.size else np.float64(0)


@lost_fraction.right
def catches_the_division(grads):
    try:
        return ((grads != 0) & (grads.half() == 0)).sum().item() / (grads != 0).sum().item()
    except ZeroDivisionError:
        return 0.0


@lost_fraction.right
def replaces_nan(grads):
    lost = ((grads != 0) & (grads.half() == 0)).sum()
    return torch.nan_to_num(lost / (grads != 0).sum(), nan=0.0).item()
