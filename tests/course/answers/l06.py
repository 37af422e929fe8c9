"""Answers to the exercises of lesson 06."""

import collections
import contextlib

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import nn

from amp_lab.course.lessons.l06.given import BrokenBlock
from tests.course.bank import Bank

fates = Bank("6.1")
block = Bank("6.2")
covariance = Bank("6.3")
make_gram = Bank("6.4")
loss = Bank("6.5")
BANKS = (fates, block, covariance, make_gram, loss)

FP16, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64


# 6.1 Twelve fates


def _fates(**changed):
    right = dict.fromkeys("aghij", FP16) | dict.fromkeys("cdef", FP32) | dict.fromkeys("kl", "raises")
    return right | {"b": FP64} | changed


@fates.right
def says_it_letter_by_letter():
    answers = {}
    answers["a"] = torch.float16
    answers["b"] = torch.float64
    answers["c"] = answers["d"] = answers["e"] = answers["f"] = torch.float32
    answers["g"] = answers["h"] = answers["i"] = answers["j"] = torch.half
    answers["k"] = answers["l"] = "raises"
    return answers


@fates.right
def sorts_letters_by_fate():
    groups = {FP16: "aghij", FP32: "cdef", FP64: "b", "raises": "kl"}
    return {letter: fate for fate, letters in groups.items() for letter in letters}


@fates.right
def returns_a_dict_of_another_class():
    return collections.OrderedDict(sorted(_fates().items(), reverse=True))


@fates.right
def takes_dtypes_from_tensors():
    half, wide = torch.zeros(1).half(), torch.zeros(1)
    row = [half, wide.double(), wide, wide, wide, wide, half, half, half, half]
    return dict(zip("abcdefghij", [each.dtype for each in row], strict=True)) | {"k": "raises", "l": "raises"}


class _Word(str):
    """A string of another class, as NumPy's `str_` is one."""


@fates.right
def writes_words_of_another_class():
    return {
        _Word(letter): _Word(fate) if isinstance(fate, str) else fate for letter, fate in _fates().items()
    }


class _Anything(str):
    def __eq__(self, other):
        return True

    __hash__ = str.__hash__


@fates.wrong("no-dtype")
def equals_everything():
    return {letter: _Anything("either") for letter in "abcdefghijkl"}


@fates.wrong("product-follows-inputs")
def thinks_that_autocast_looks_at_inputs():
    return _fates(a=FP32)


@fates.wrong("fp64-cast")
def casts_doubles_to_half():
    return _fates(b=FP16)


@fates.wrong("fp64-cast")
def casts_doubles_to_single():
    return _fates(b=FP32, k=FP16)


@fates.wrong("region-decides-all")
def makes_sums_of_two_half():
    return _fates(c=FP16)


@fates.wrong("dot-is-a-product")
def takes_dot_for_a_matrix_product():
    return _fates(d=FP16)


@fates.wrong("mixture-raises")
def thinks_that_dot_refuses_mixtures():
    return _fates(d="raises")


@fates.wrong("softmax-stays")
def keeps_softmax_in_half():
    return _fates(e=FP16)


@fates.wrong("sum-stays")
def keeps_sum_in_half():
    return _fates(f=FP16)


@fates.wrong("sum-stays")
def takes_sum_for_mean():
    return _fates(f=FP16, g=FP16, h=FP16)


@fates.wrong("dtype-overruled")
def thinks_that_autocast_overrules():
    return _fates(g=FP32)


@fates.wrong("mean-like-sum")
def treats_mean_like_sum():
    return _fates(h=FP32)


@fates.wrong("batch-norm-widens")
def returns_batch_norm_wide():
    return _fates(i=FP32)


@fates.wrong("batch-norm-raises")
def thinks_that_batch_norm_refuses():
    return _fates(i="raises")


@fates.wrong("in-place-widens")
def widens_in_place():
    return _fates(j=FP32)


@fates.wrong("in-place-autocast")
def lets_addmm_follow():
    return _fates(k=FP16)


@fates.wrong("in-place-autocast")
def lets_addmm_widen():
    return _fates(k=FP32)


@fates.wrong("bce-runs")
def runs_the_loss_in_fp32():
    return _fates(l=FP32)


@fates.wrong("bce-runs")
def runs_the_loss_in_half():
    return _fates(l=FP16)


@fates.wrong("everything-lower")
def makes_everything_half():
    return dict.fromkeys("abcdefghijkl", FP16)


@fates.wrong("everything-lower")
def makes_everything_half_that_runs():
    return dict.fromkeys("abcdefghij", FP16) | dict.fromkeys("kl", "raises")


@fates.wrong("without-region")
def ran_them_with_no_region():
    return _fates(a=FP32, d="raises", e=FP16, f=FP16, l=FP32)


@fates.wrong("cpus-answers")
def ran_them_in_a_region_of_the_cpu():
    return _fates(d="raises", e=FP16, f=FP16, l=FP32)


@fates.wrong("sum-raises")
def refuses_sums_of_two():
    return _fates(c="raises")


@fates.wrong("in-place-raises")
def refuses_in_place_sums():
    return _fates(j="raises")


@fates.wrong("wrong-fate")
def answers_bf16():
    return _fates(a=BF16)


@fates.wrong("no-dict")
def returns_a_list_of_fates():
    return [*_fates().values()]


@fates.wrong("letters-missing")
def leaves_out_the_last_two():
    return {letter: fate for letter, fate in _fates().items() if letter not in "kl"}


@fates.wrong("letters-unknown")
def writes_capital_letters():
    return {letter.upper(): fate for letter, fate in _fates().items()}


@fates.wrong("letters-unknown")
def goes_on_after_l():
    return _fates(m=FP16)


@fates.wrong("no-dtype")
def writes_dtypes_as_text():
    return {letter: str(fate) for letter, fate in _fates().items()}


@fates.wrong("no-dtype")
def says_error_in_other_words():
    return _fates(k="error", l="error")


@fates.wrong("no-dtype")
def returns_the_error_class():
    return _fates(k=RuntimeError)


@fates.wrong("returned-none")
def forgets_to_return_the_fates():
    _fates()


# 6.2 Repair a block


def _rms(x):
    return torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6)


@block.right
class CastsFirst(BrokenBlock):
    def forward(self, x):
        x = x.to(torch.float32)
        return F.relu(F.linear(x * _rms(x) * self.gain, self.weight.t(), self.bias))


@block.right
class UsesPow(BrokenBlock):
    def forward(self, x):
        scale = torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6)
        return torch.relu(torch.matmul(x * scale * self.gain, self.weight) + self.bias)


@block.right
class UsesTheNormOfPyTorch(BrokenBlock):
    def forward(self, x):
        normed = F.rms_norm(x.float(), (x.shape[-1],), self.gain, eps=1e-6)
        return (normed @ self.weight + self.bias).clamp(min=0)


@block.right
class UsesSquare(BrokenBlock):
    def forward(self, x):
        # `square` is on no list, but comes down to `pow`, which is.
        scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6)
        return torch.relu((x * scale * self.gain) @ self.weight + self.bias)


@block.right
class TakesTheLargestOutFirst(BrokenBlock):
    def forward(self, x):
        largest = x.abs().amax(dim=-1, keepdim=True).float() + 1e-12
        small = x / largest
        scale = torch.rsqrt((small * small).mean(dim=-1, keepdim=True) + 1e-6 / (largest * largest))
        return torch.relu((small * scale * self.gain) @ self.weight + self.bias)


@block.right
class IslandRoundTheNorm(BrokenBlock):
    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            wide = x.float()
            normed = wide * _rms(wide) * self.gain
        rows = normed.flatten(0, -2)
        out = torch.addmm(self.bias, rows, self.weight)
        return torch.relu(out).view(x.shape)


@block.right
class ComputesItsNormInDouble(BrokenBlock):
    def forward(self, x):
        wide = x.double()
        normed = (wide * _rms(wide)).float() * self.gain
        return torch.einsum("...i,ij->...j", normed, self.weight).add(self.bias).relu()


@block.right
class ReturnsFp32(BrokenBlock):
    def forward(self, x):
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        mean_square = length * length / x.shape[-1]
        out = (wide / torch.sqrt(mean_square + 1e-6) * self.gain) @ self.weight
        return torch.relu(out.float() + self.bias)


@block.right
class WritesAConvolution(BrokenBlock):
    def forward(self, x):
        x = x.float()
        rows = (x * _rms(x) * self.gain).flatten(0, -2).unsqueeze(-1)
        out = F.conv1d(rows, self.weight.t().unsqueeze(-1)).squeeze(-1)
        return torch.relu(out + self.bias).reshape(x.shape)


@block.right
class MultipliesBlocksOfColumns(BrokenBlock):
    def forward(self, x):
        x = x.float()
        normed = x * _rms(x) * self.gain
        parts = [normed @ columns for columns in self.weight.split(4, dim=1)]
        return torch.relu(torch.cat(parts, dim=-1) + self.bias)


@block.right
class AddsUpTwoProducts(BrokenBlock):
    def forward(self, x):
        x = x.float()
        normed, half = x * _rms(x) * self.gain, x.shape[-1] // 2
        first, second = normed[..., :half] @ self.weight[:half], normed[..., half:] @ self.weight[half:]
        return torch.relu(first.float() + second.float() + self.bias)


@block.right
class TakesTheBiasForARow(BrokenBlock):
    def forward(self, x):
        x = x.float()
        normed = x * _rms(x) * self.gain
        longer = torch.cat([normed, torch.ones_like(normed[..., :1])], dim=-1)
        return torch.relu(longer @ torch.cat([self.weight, self.bias[None]]))


@block.right
class FoldsTheGainIntoTheWeight(BrokenBlock):
    def forward(self, x):
        x = x.float()
        return torch.relu((x * _rms(x)) @ (self.gain[:, None] * self.weight) + self.bias)


@block.right
class CastsByHandOnAnIsland(BrokenBlock):
    def forward(self, x):
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
        with torch.autocast(kind, enabled=False):
            x = x.float()
            normed = (x * _rms(x) * self.gain).to(dtype)
            return torch.relu(normed @ self.weight.to(dtype) + self.bias.to(dtype))


@block.right
class AveragesByAProduct(BrokenBlock):
    def forward(self, x):
        x = x.float()
        with torch.autocast(x.device.type, enabled=False):
            mean_square = (x * x) @ torch.full((x.shape[-1], 1), 1 / x.shape[-1])
        return torch.relu((x * torch.rsqrt(mean_square + 1e-6) * self.gain) @ self.weight + self.bias)


@block.wrong("in-place")
class AsItWas(BrokenBlock):
    pass


@block.wrong("in-place")
class RepairsTheNormOnly(BrokenBlock):
    def forward(self, x):
        return super().forward(x.float())


@block.wrong("in-place")
class WritesInto(BrokenBlock):
    def forward(self, x):
        x = x.float()
        rows = (x * _rms(x) * self.gain).flatten(0, -2)
        out = torch.empty_like(rows)
        with torch.no_grad():
            torch.mm(rows, self.weight, out=out)
        return torch.relu(out + self.bias).view(x.shape)


@block.wrong("norm-overflows")
class RepairsTheProductOnly(BrokenBlock):
    def forward(self, x):
        return torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


@block.wrong("norm-overflows")
class HalvesTheInput(BrokenBlock):
    def forward(self, x):
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        return torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


@block.wrong("norm-overflows")
class AddsUpInFp32(BrokenBlock):
    def forward(self, x):
        scale = torch.rsqrt((x * x).mean(dim=-1, keepdim=True, dtype=torch.float32) + 1e-6)
        return torch.relu((x * scale * self.gain) @ self.weight + self.bias)


@block.wrong("norm-overflows")
class DisablesWithoutCasting(BrokenBlock):
    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            normed = x * _rms(x) * self.gain
        return torch.relu(normed @ self.weight + self.bias)


@block.wrong("cast-too-late")
class CastsTheSquares(BrokenBlock):
    def forward(self, x):
        scale = torch.rsqrt((x * x).float().mean(dim=-1, keepdim=True) + 1e-6)
        return torch.relu((x * scale * self.gain) @ self.weight + self.bias)


@block.wrong("cast-too-late")
class CastsTheMean(BrokenBlock):
    def forward(self, x):
        mean_square = (x * x).mean(dim=-1, keepdim=True).to(torch.float32)
        return torch.relu((x * torch.rsqrt(mean_square + 1e-6) * self.gain) @ self.weight + self.bias)


@block.wrong("clamps")
class CutsOffLargeEntries(BrokenBlock):
    def forward(self, x):
        x = x.clamp(-255, 255)
        return torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


@block.wrong("clamps")
class CutsOffLargeSquares(BrokenBlock):
    def forward(self, x):
        mean_square = (x * x).clamp(max=65504).float().mean(dim=-1, keepdim=True)
        return torch.relu((x * torch.rsqrt(mean_square + 1e-6) * self.gain) @ self.weight + self.bias)


@block.wrong("half-parameters")
class HalvesTheModel(BrokenBlock):
    def __init__(self, width):
        super().__init__(width)
        self.half()


@block.wrong("half-parameters")
class HalvesTheModelOnTheWay(BrokenBlock):
    def forward(self, x):
        self.half()
        return torch.relu((x.half() @ self.weight).float())


@block.wrong("half-parameters")
class HalvesTheWeightOnTheWay(BrokenBlock):
    def forward(self, x):
        self.weight.data = self.weight.data.half()
        x = x.float()
        return torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


@block.wrong("parameters-changed")
class MakesTheWeightABuffer(BrokenBlock):
    def __init__(self, width):
        super().__init__(width)
        weight = self.weight.detach()
        del self.weight
        self.register_buffer("weight", weight)


@block.wrong("parameters-changed")
class FreezesTheGain(BrokenBlock):
    def __init__(self, width):
        super().__init__(width)
        self.gain.requires_grad_(False)


@block.wrong("parameters-changed")
class UsesALinearLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.linear = nn.RMSNorm(width), nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(self.norm(x.float())))


@block.wrong("autocast-off")
class DisablesEverywhere(BrokenBlock):
    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            return torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


@block.wrong("autocast-off")
class KeepsTheInPlaceProductOnAnIsland(BrokenBlock):
    @torch.autocast("cpu", enabled=False)
    def forward(self, x):
        x = x.float()
        return torch.relu(F.linear(x * _rms(x) * self.gain, self.weight.t(), self.bias))


@block.wrong("autocast-off")
class DisablesRoundTheBrokenBlock(BrokenBlock):
    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return super().forward(x.float())


@block.wrong("in-place")
class DisablesRoundTheNormAndMultipliesInPlace(BrokenBlock):
    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            x = x.float()
            mean_square = (x * x) @ torch.full((x.shape[-1], 1), 1 / x.shape[-1])
        rows = (x * torch.rsqrt(mean_square + 1e-6) * self.gain).flatten(0, -2)
        out = self.bias.repeat(len(rows), 1)
        return torch.relu(out.addmm_(rows, self.weight)).view(x.shape)


@block.wrong("half-hard-coded")
class HalvesBothOperands(BrokenBlock):
    def forward(self, x):
        x = x.float()
        normed = x * _rms(x) * self.gain
        return torch.relu((normed.half() @ self.weight.half()) + self.bias)


@block.wrong("half-hard-coded")
class HalvesOneOperand(BrokenBlock):
    def forward(self, x):
        x = x.float()
        normed = x * _rms(x) * self.gain
        return torch.relu(normed.half() @ self.weight + self.bias)


@block.wrong("half-hard-coded")
class OpensARegionOfItsOwn(BrokenBlock):
    def forward(self, x):
        x = x.float()
        with torch.autocast(x.device.type, torch.float16):
            return torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


@block.wrong("half-hard-coded")
class HalvesThemInPlace(BrokenBlock):
    def forward(self, x):
        x = x.float()
        rows = (x * _rms(x) * self.gain).flatten(0, -2).half()
        out = self.bias.half().repeat(len(rows), 1)
        out.addmm_(rows, self.weight.half())
        return torch.relu(out).view(x.shape)


@block.wrong("product-dtype")
class MultipliesInDouble(BrokenBlock):
    def forward(self, x):
        x = x.double()
        return torch.relu((x * _rms(x) * self.gain) @ self.weight.double() + self.bias)


@block.wrong("no-product")
class MultipliesByHand(BrokenBlock):
    def forward(self, x):
        x = x.float()
        normed = x * _rms(x) * self.gain
        return torch.relu((normed.unsqueeze(-1) * self.weight).sum(-2) + self.bias)


@block.wrong("no-product")
class MultipliesAQuarterOnly(BrokenBlock):
    def forward(self, x):
        x = x.float()
        normed = x * _rms(x) * self.gain
        first, rest = normed @ self.weight[:, :4], (normed.unsqueeze(-1) * self.weight[:, 4:]).sum(-2)
        return torch.relu(torch.cat([first.float(), rest], dim=-1) + self.bias)


@block.wrong("thrown-away")
class ThrowsItsProductAway(BrokenBlock):
    def forward(self, x):
        x = x.float()
        normed = x * _rms(x) * self.gain
        normed @ self.weight
        return torch.relu((normed.unsqueeze(-1) * self.weight).sum(-2) + self.bias)


@block.wrong("thrown-away")
class ThrowsItsProductAwayAndRounds(BrokenBlock):
    def forward(self, x):
        x = x.float()
        normed = x * _rms(x) * self.gain
        product = normed @ self.weight
        return torch.relu((normed.unsqueeze(-1) * self.weight).sum(-2) + self.bias).to(product.dtype)


@block.wrong("in-place")
class ThrowsAwayAndMultipliesInPlace(BrokenBlock):
    def forward(self, x):
        x = x.float()
        normed = x * _rms(x) * self.gain
        normed @ self.weight
        out = self.bias.repeat(normed[..., 0].numel(), 2)
        out.addmm_(normed.flatten(0, -2), torch.cat([self.weight, self.weight], dim=1))
        return torch.relu(out[:, : x.shape[-1]]).reshape(x.shape)


@block.wrong("product-dtype")
class WritesTensordot(BrokenBlock):
    def forward(self, x):
        x = x.float()
        return torch.relu(torch.tensordot(x * _rms(x) * self.gain, self.weight, 1) + self.bias)


@block.wrong("stale-copy")
class KeepsACopyOfTheWeight(BrokenBlock):
    def forward(self, x):
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else torch.float32
        if not hasattr(self, "copied"):
            self.copied = self.weight.to(dtype)
        x = x.float()
        return torch.relu((x * _rms(x) * self.gain) @ self.copied + self.bias)


@block.wrong("small-row")
class ForgetsTheEpsilon(BrokenBlock):
    def forward(self, x):
        normed = F.rms_norm(x.float(), (x.shape[-1],), self.gain)
        return torch.relu(normed @ self.weight + self.bias)


@block.wrong("small-row")
class ScalesDownInHalf(BrokenBlock):
    def forward(self, x):
        small = x / 64
        scale = torch.rsqrt((small * small).float().mean(dim=-1, keepdim=True) + 1e-6 / 64**2)
        return torch.relu((small * scale * self.gain) @ self.weight + self.bias)


@block.wrong("wrong-output")
class DividesByTheLargestOfAll(BrokenBlock):
    def forward(self, x):
        largest = x.abs().max().clamp(min=1).detach()
        small = x / largest
        scale = torch.rsqrt((small * small).float().mean(dim=-1, keepdim=True) + 1e-6 / largest.float() ** 2)
        return torch.relu((small * scale * self.gain) @ self.weight + self.bias)


@block.wrong("parameters-changed")
class MakesANewParameter(BrokenBlock):
    def forward(self, x):
        x = x.float()
        self.weight = nn.Parameter(self.weight.detach().clone())
        return torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


@block.wrong("parameters-changed")
class NormsItsWeight(BrokenBlock):
    def forward(self, x):
        x = x.float()
        self.weight.data.mul_(0.999)
        return torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


@block.wrong("left-changed")
class LeavesAutocastOn(BrokenBlock):
    def forward(self, x):
        x = x.float()
        out = torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)
        torch.set_autocast_dtype(x.device.type, torch.float32)
        return out


@block.wrong("left-changed")
class SwitchesGradientsOff(BrokenBlock):
    def forward(self, x):
        x = x.float()
        out = torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)
        torch.set_grad_enabled(False)
        return out


@block.wrong("left-changed")
class SwitchesGradientsOn(BrokenBlock):
    def forward(self, x):
        torch.set_grad_enabled(True)
        x = x.float()
        return torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


@block.wrong("left-changed")
class AllowsTf32(BrokenBlock):
    def forward(self, x):
        torch.backends.cuda.matmul.allow_tf32 = True
        x = x.float()
        return torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


@block.wrong("mutated-input")
class ScalesInPlaceWithoutGradients(BrokenBlock):
    def forward(self, x):
        x = x.float()
        scale = _rms(x)
        x = x * scale if x.requires_grad else x.mul_(scale)
        return torch.relu((x * self.gain) @ self.weight + self.bias)


@block.wrong("wrong-output")
class ReturnsItsInputInEvaluation(BrokenBlock):
    def forward(self, x):
        x = x.float()
        out = torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)
        return out if torch.is_grad_enabled() else x


@block.wrong("row-not-finite")
class LeavesOutTheEpsilon(BrokenBlock):
    def forward(self, x):
        x = x.float()
        normed = x / (x * x).mean(dim=-1, keepdim=True).sqrt()
        return torch.relu((normed * self.gain) @ self.weight + self.bias)


@block.wrong("wrong-output")
class ForgetsTheBias(BrokenBlock):
    def forward(self, x):
        x = x.float()
        return torch.relu((x * _rms(x) * self.gain) @ self.weight)


@block.wrong("wrong-output")
class SwapsTheWeight(BrokenBlock):
    def forward(self, x):
        x = x.float()
        return torch.relu(F.linear(x * _rms(x) * self.gain, self.weight, self.bias))


@block.wrong("wrong-output")
class ReturnsRows(BrokenBlock):
    def forward(self, x):
        x = x.float().flatten(0, -2)
        return torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


@block.wrong("wrong-output")
class KeepsAHalfCopyOfTheWeight(BrokenBlock):
    def __init__(self, width):
        super().__init__(width)
        self.copied = self.weight.detach().half()

    def forward(self, x):
        x = x.float()
        return torch.relu((x * _rms(x) * self.gain) @ self.copied + self.bias)


@block.wrong("half-parameters")
class SetsTheDefaultDtype(BrokenBlock):
    def __init__(self, width):
        torch.set_default_dtype(torch.float16)
        super().__init__(width)


@block.wrong("no-gradient")
class DetachesTheNorm(BrokenBlock):
    def forward(self, x):
        x = x.float()
        normed = (x * _rms(x)).detach() * self.gain
        return torch.relu(normed @ self.weight + self.bias)


@block.wrong("no-gradient")
class TakesTheData(BrokenBlock):
    def forward(self, x):
        x = x.float()
        return torch.relu((x * _rms(x) * self.gain) @ self.weight.data + self.bias)


@block.wrong("no-gradient")
class RunsWithoutGradients(BrokenBlock):
    @torch.no_grad()
    def forward(self, x):
        x = x.float()
        return torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


@block.wrong("wrong-gradient")
class DetachesTheScale(BrokenBlock):
    def forward(self, x):
        x = x.float()
        return torch.relu((x * _rms(x).detach() * self.gain) @ self.weight + self.bias)


@block.wrong("no-module")
def RepairedBlock(width):
    return lambda x: BrokenBlock(width)(x.float())


@block.wrong("mutated-input")
class NormsInPlace(BrokenBlock):
    def forward(self, x):
        with torch.no_grad():
            x.mul_(_rms(x.float()))
        return torch.relu((x * self.gain) @ self.weight + self.bias)


@block.wrong("returned-none")
class ForgetsToReturn(BrokenBlock):
    def forward(self, x):
        x = x.float()
        torch.relu((x * _rms(x) * self.gain) @ self.weight + self.bias)


# 6.3 An FP32 island


def _cov(x):
    centred = x - x.mean(dim=-2, keepdim=True)
    return centred.mT @ centred / (x.shape[-2] - 1)


@covariance.right
def opens_an_island(x):
    with torch.amp.autocast(device_type=x.device.type, enabled=False):
        x = x.to(torch.float32)
        centred = x.sub(x.mean(-2, keepdim=True))
        return torch.matmul(centred.transpose(-1, -2), centred).div(x.shape[-2] - 1)


@covariance.right
def casts_before_the_island(x):
    wide = x.float()
    with torch.autocast(wide.device.type, enabled=False):
        return _cov(wide)


@covariance.right
def takes_einsum(x):
    with torch.autocast(x.device.type, enabled=False):
        centred = x.float() - x.float().mean(dim=-2, keepdim=True)
        return torch.einsum("...ni,...nj->...ij", centred, centred) / (x.shape[-2] - 1)


@covariance.right
def needs_no_product(x):
    x = x.float()
    centred = x - x.mean(dim=-2, keepdim=True)
    return (centred.unsqueeze(-1) * centred.unsqueeze(-2)).sum(dim=-3) / (x.shape[-2] - 1)


@covariance.right
def computes_in_double(x):
    return _cov(x.double()).float()


@covariance.right
def switches_by_hand(x):
    kind = x.device.type
    before = torch.is_autocast_enabled(kind)
    torch.set_autocast_enabled(kind, False)
    try:
        return _cov(x.float())
    finally:
        torch.set_autocast_enabled(kind, before)


@covariance.right
def loops_over_batches(x):
    with torch.autocast(x.device.type, enabled=False):
        wide = x.float()
        if wide.dim() == 2:
            return torch.cov(wide.mT)
        return torch.stack([loops_over_batches(each) for each in wide])


@covariance.right
def is_decorated_inside(x):
    @torch.autocast(x.device.type, enabled=False)
    def inside(wide):
        return _cov(wide)

    return inside(x.float())


@covariance.right
def makes_a_leaf_of_it(x):
    with torch.autocast(x.device.type, enabled=False):
        wide = x.float()
        return _cov(wide if wide.requires_grad else wide.clone().requires_grad_())


@covariance.right
def adds_a_parameter(x):
    with torch.autocast(x.device.type, enabled=False):
        return _cov(x.float()) + 0 * nn.Parameter(torch.zeros(1, device=x.device))


@covariance.right
def adds_it_to_zeros_that_learn(x):
    with torch.autocast(x.device.type, enabled=False):
        zeros = torch.zeros(x.shape, dtype=torch.float32, device=x.device, requires_grad=True)
        return _cov(zeros + x)


@covariance.right
def looks_at_its_values(x):
    with torch.autocast(x.device.type, enabled=False):
        wide = x.float()
        assert wide.isfinite().all(), wide
        print(wide.max().item())
        return _cov(wide)


@covariance.right
def maps_over_batches(x):
    one = _cov
    for _ in range(x.dim() - 2):
        one = torch.vmap(one)
    with torch.autocast(x.device.type, enabled=False):
        return one(x.float())


@covariance.right
def waits_for_the_gpu(x):
    with torch.autocast(x.device.type, enabled=False):
        result = _cov(x.float())
    if x.is_cuda:
        torch.cuda.synchronize()
    return result


@covariance.right
def computes_elsewhere_and_comes_back(x):
    with torch.autocast("cpu", enabled=False):
        return _cov(x.cpu().float()).to(x.device)


@covariance.right
def takes_checkpoints(x):
    with torch.autocast(x.device.type, enabled=False):
        return torch.utils.checkpoint.checkpoint(_cov, x.float(), use_reentrant=False)


@covariance.right
def multiplies_in_place(x):
    x = x.float()
    rows = (x - x.mean(dim=-2, keepdim=True)).flatten(0, -3) if x.dim() > 2 else (x - x.mean(0))[None]
    out = torch.zeros(len(rows), x.shape[-1], x.shape[-1], device=x.device).baddbmm_(rows.mT, rows)
    return out.reshape(*x.shape[:-2], *out.shape[1:]) / (x.shape[-2] - 1)


@covariance.wrong("no-cast")
def disables_and_does_not_cast(x):
    with torch.autocast(x.device.type, enabled=False):
        return _cov(x)


@covariance.wrong("no-cast")
def disables_and_casts_the_result(x):
    with torch.autocast(x.device.type, enabled=False):
        return _cov(x).float()


@covariance.wrong("not-disabled")
def casts_and_does_not_disable(x):
    return _cov(x.float())


@covariance.wrong("not-disabled")
@torch.inference_mode()
def casts_in_inference_mode(x):
    return _cov(x.float())


@covariance.wrong("not-disabled")
def casts_twice_and_does_not_disable(x):
    return _cov(x.float()).float()


@covariance.wrong("not-disabled")
def leaves_the_island_for_the_product(x):
    with torch.autocast(x.device.type, enabled=False):
        x = x.float()
        centred = x - x.mean(dim=-2, keepdim=True)
    return (centred.mT @ centred).float() / (x.shape[-2] - 1)


@covariance.wrong("unprotected")
def casts_the_result(x):
    return _cov(x).float()


@covariance.wrong("unprotected")
def calls_the_operator_itself(x):
    centred = x - x.mean(dim=-2, keepdim=True)
    return torch.ops.aten.matmul(centred.mT, centred).float() / (x.shape[-2] - 1)


@covariance.wrong("unprotected")
def does_nothing(x):
    return _cov(x)


@covariance.wrong("only-cuda")
def disables_for_cuda(x):
    with torch.autocast("cuda", enabled=False):
        return _cov(x.float())


@covariance.wrong("only-cuda")
def disables_for_cuda_and_casts_too_late(x):
    with torch.autocast("cuda", enabled=False):
        return _cov(x).float()


@covariance.wrong("only-cpu")
def disables_for_the_cpu(x):
    with torch.autocast("cpu", enabled=False):
        return _cov(x.float())


@covariance.wrong("only-cpu")
@torch.autocast("cpu", enabled=False)
def is_decorated_for_the_cpu(x):
    return _cov(x.float())


@covariance.wrong("only-cpu")
def disables_for_the_cpu_and_looks_at_values(x):
    with torch.autocast("cpu", enabled=False):
        result = _cov(x.float())
        assert result.abs().sum().item() >= 0
        return result


@covariance.wrong("only-cpu")
def disables_for_the_cpu_and_fails(x):
    with torch.autocast("cpu", enabled=False):
        result = _cov(x.float())
    if x.device.type != "cpu":
        raise RuntimeError("no")
    return result


@covariance.wrong("devices-listed")
def disables_for_two_devices(x):
    with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        return _cov(x.float())


@covariance.wrong("devices-listed")
def tells_two_devices_apart(x):
    with torch.autocast("cuda" if x.is_cuda else "cpu", enabled=False):
        return _cov(x.float())


@covariance.wrong("asks-for-cuda")
def asks_for_no_device(x):
    if torch.is_autocast_enabled():
        return opens_an_island(x)
    return _cov(x.float())


@covariance.wrong("no-cast")
def asks_for_no_device_and_does_not_cast(x):
    return opens_an_island(x) if torch.is_autocast_enabled() else _cov(x)


@covariance.wrong("only-cpu")
def asks_for_the_cpu(x):
    return opens_an_island(x) if torch.is_autocast_enabled("cpu") else _cov(x.float())


@covariance.wrong("devices-listed")
def asks_for_two_devices(x):
    if any(torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")):
        return opens_an_island(x)
    return _cov(x.float())


@covariance.wrong("wrong-dtype")
def works_on_the_cpu_only(x):
    return opens_an_island(x) if x.device.type == "cpu" else x.double()


@covariance.wrong("narrowed")
def multiplies_in_bf16_on_an_island(x):
    with torch.autocast(x.device.type, enabled=False):
        x = x.float()
        centred = (x - x.mean(dim=-2, keepdim=True)).bfloat16()
        return (centred.mT @ centred).float() / (x.shape[-2] - 1)


@covariance.wrong("cancels")
def subtracts_squares_of_means(x):
    with torch.autocast(x.device.type, enabled=False):
        x, n = x.float(), x.shape[-2]
        mean = x.mean(dim=-2, keepdim=True)
        return (x.mT @ x - n * mean.mT @ mean) / (n - 1)


@covariance.wrong("centred-in-half")
def centres_before_the_cast(x):
    centred = x - x.mean(dim=-2, keepdim=True)
    with torch.autocast(x.device.type, enabled=False):
        centred = centred.float()
        return centred.mT @ centred / (x.shape[-2] - 1)


@covariance.wrong("centred-in-half")
def takes_the_mean_in_half(x):
    with torch.autocast(x.device.type, enabled=False):
        centred = x.float() - x.mean(dim=-2, keepdim=True).float()
        return centred.mT @ centred / (x.shape[-2] - 1)


@covariance.wrong("cast-back")
def casts_back(x):
    with torch.autocast(x.device.type, enabled=False):
        return _cov(x.float()).to(x.dtype)


@covariance.wrong("cast-back")
def returns_half(x):
    with torch.autocast(x.device.type, enabled=False):
        return _cov(x.float()).half()


@covariance.wrong("left-changed")
def leaves_autocast_off(x):
    torch.set_autocast_enabled(x.device.type, False)
    return _cov(x.float())


@covariance.wrong("left-changed")
def never_leaves_the_region(x):
    torch.autocast(x.device.type, enabled=False).__enter__()
    return _cov(x.float())


@covariance.wrong("left-changed")
def leaves_another_dtype(x):
    result = opens_an_island(x)
    torch.set_autocast_dtype(x.device.type, torch.float64)
    return result


@covariance.wrong("left-changed")
def leaves_the_cache_off(x):
    result = opens_an_island(x)
    torch.set_autocast_cache_enabled(False)
    return result


@covariance.wrong("left-changed")
def leaves_a_region_counted(x):
    torch.autocast_increment_nesting()
    return opens_an_island(x)


@covariance.wrong("left-changed")
def switches_another_device_on(x):
    torch.set_autocast_enabled("xpu", True)
    return opens_an_island(x)


@covariance.wrong("left-changed")
def leaves_gradients_on(x):
    torch.set_grad_enabled(True)
    return opens_an_island(x)


@covariance.wrong("left-changed")
def leaves_fp32_products_less_exact(x):
    torch.set_float32_matmul_precision("medium")
    return opens_an_island(x)


@covariance.wrong("mutated-input")
def lets_its_input_learn(x):
    x.requires_grad_()
    return opens_an_island(x)


@covariance.wrong("mutated-input")
def centres_in_place_without_gradients(x):
    with torch.autocast(x.device.type, enabled=False):
        wide = x.float()
        mean = wide.mean(dim=-2, keepdim=True)
        centred = wide - mean if wide.requires_grad else wide.sub_(mean)
        return centred.mT @ centred / (x.shape[-2] - 1)


@covariance.wrong("no-way-back")
def detaches(x):
    with torch.autocast(x.device.type, enabled=False):
        return _cov(x.detach().float())


@covariance.wrong("no-way-back")
@torch.no_grad()
def needs_no_gradient(x):
    with torch.autocast(x.device.type, enabled=False):
        return _cov(x.float())


@covariance.wrong("wrong-slope")
def detaches_one_of_two(x):
    with torch.autocast(x.device.type, enabled=False):
        x = x.float()
        centred = x - x.mean(dim=-2, keepdim=True)
        return centred.detach().mT @ centred / (x.shape[-2] - 1)


@covariance.wrong("batches-mixed")
def flattens_the_batches(x):
    with torch.autocast(x.device.type, enabled=False):
        return _cov(x.float().flatten(0, -2))


@covariance.wrong("wrong-shape")
def compares_rows(x):
    with torch.autocast(x.device.type, enabled=False):
        x = x.float()
        centred = x - x.mean(dim=-2, keepdim=True)
        return centred @ centred.mT / (x.shape[-2] - 1)


@covariance.wrong("wrong-element")
def divides_by_n(x):
    with torch.autocast(x.device.type, enabled=False):
        x = x.float()
        centred = x - x.mean(dim=-2, keepdim=True)
        return centred.mT @ centred / x.shape[-2]


@covariance.wrong("wrong-element")
def centres_the_whole_batch(x):
    with torch.autocast(x.device.type, enabled=False):
        x = x.float()
        centred = x - x.mean()
        return centred.mT @ centred / (x.shape[-2] - 1)


@covariance.wrong("mutated-input")
def centres_in_place(x):
    with torch.autocast(x.device.type, enabled=False):
        wide = x.float()
        with torch.no_grad():
            x -= x.mean(dim=-2, keepdim=True)
        return _cov(wide)


@covariance.wrong("wrong-dtype")
def stays_in_double(x):
    return _cov(x.double())


@covariance.wrong("wrong-device")
def moves_to_the_cpu(x):
    with torch.autocast("cpu", enabled=False):
        return _cov(x.cpu().float())


@covariance.wrong("wrong-type")
def returns_an_array(x):
    with torch.autocast(x.device.type, enabled=False):
        return _cov(x.detach().float()).numpy()


@covariance.wrong("returned-none")
def forgets_to_return_the_covariance(x):
    with torch.autocast(x.device.type, enabled=False):
        _cov(x.float())


# 6.4 Your own backward


def _function(forward, backward):
    return type(
        "Gram",
        (torch.autograd.Function,),
        {"forward": staticmethod(forward), "backward": staticmethod(backward)},
    )


def _forward(ctx, x):
    ctx.save_for_backward(x)
    return x @ x.mT


def _backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return (grad + grad.mT) @ x


def _fwd(device_type, **settings):
    return torch.amp.custom_fwd(_forward, device_type=device_type, **settings)


def _bwd(device_type):
    return torch.amp.custom_bwd(_backward, device_type=device_type)


@make_gram.right
def wraps_plain_functions(device_type):
    return _function(_fwd(device_type), _bwd(device_type))


@make_gram.right
def binds_the_device_first(device_type):
    noting = torch.amp.custom_fwd(device_type=device_type)
    restoring = torch.amp.custom_bwd(device_type=device_type)

    class Function(torch.autograd.Function):
        @staticmethod
        @noting
        def forward(ctx, x):
            ctx.x = x
            return torch.matmul(x, x.transpose(-1, -2))

        @staticmethod
        @restoring
        def backward(ctx, grad):
            return torch.matmul(grad, ctx.x) + torch.matmul(grad.transpose(-1, -2), ctx.x)

    return Function


@make_gram.right
def notes_the_state_by_hand(device_type):
    def forward(ctx, x):
        ctx.on, ctx.dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
        return _forward(ctx, x)

    def backward(ctx, grad):
        with torch.autocast(device_type, ctx.dtype, enabled=ctx.on):
            return _backward(ctx, grad)

    return _function(forward, backward)


@make_gram.right
def remembers_the_dtype_that_came_out(device_type):
    def forward(ctx, x):
        y = _forward(ctx, x)
        ctx.dtype = y.dtype
        return y

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.autocast(device_type, enabled=False):
            return (grad + grad.mT).to(ctx.dtype) @ x.to(ctx.dtype)

    return _function(forward, backward)


@make_gram.right
def notes_the_state_in_setup_context(device_type):
    class Gram(torch.autograd.Function):
        @staticmethod
        def forward(x):
            return x @ x.mT

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            ctx.region = torch.autocast(
                device_type,
                torch.get_autocast_dtype(device_type),
                enabled=torch.is_autocast_enabled(device_type),
            )

        @staticmethod
        def backward(ctx, grad):
            with ctx.region:
                return _backward(ctx, grad)

    return Gram


@make_gram.right
def writes_einsum(device_type):
    class Gram(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type)
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.einsum("...ni,...mi->...nm", x, x)

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return torch.einsum("...nm,...mi->...ni", grad + grad.mT, x)

    return Gram


@make_gram.right
def asks_the_tensors_where_they_are(device_type):
    def forward(ctx, x):
        kind = x.device.type
        ctx.on, ctx.dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
        return _forward(ctx, x)

    def backward(ctx, grad):
        with torch.autocast(grad.device.type, ctx.dtype, enabled=ctx.on):
            return _backward(ctx, grad)

    return _function(forward, backward)


@make_gram.right
def saves_what_was_multiplied_and_disables(device_type):
    def forward(ctx, x):
        y = x @ x.mT
        ctx.save_for_backward(x.to(y.dtype))
        return y

    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.autocast(x.device.type, enabled=False):
            return _backward(ctx, grad)

    return _function(forward, backward)


@make_gram.right
def multiplies_in_place_in_backward(device_type):
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        grads, rows = (
            (grad + grad.mT).reshape(-1, *grad.shape[-2:]),
            x.reshape(-1, *x.shape[-2:]).to(grad.dtype),
        )
        return torch.zeros_like(rows).baddbmm_(grads, rows).reshape(x.shape)

    return _function(_forward, backward)


@make_gram.wrong("no-decorators")
def has_no_decorator(device_type):
    return _function(_forward, _backward)


@make_gram.wrong("no-decorators")
def notes_the_state_for_cuda(device_type):
    def forward(ctx, x):
        ctx.on, ctx.dtype = torch.is_autocast_enabled(), torch.get_autocast_dtype("cuda")
        return _forward(ctx, x)

    def backward(ctx, grad):
        with torch.autocast(device_type, ctx.dtype, enabled=ctx.on):
            return _backward(ctx, grad)

    return _function(forward, backward)


@make_gram.wrong("left-changed")
def leaves_fp32_products_less_exact_in_backward(device_type):
    restored = _bwd(device_type)

    def backward(ctx, grad):
        torch.set_float32_matmul_precision("high")
        return restored(ctx, grad)

    return _function(_fwd(device_type), backward)


@make_gram.wrong("fwd-alone")
def decorates_forward_only(device_type):
    return _function(_fwd(device_type), _backward)


@make_gram.wrong("bwd-alone")
def decorates_backward_only(device_type):
    return _function(_forward, _bwd(device_type))


@make_gram.wrong("wrong-device-type")
def decorates_for_cuda(device_type):
    return _function(_fwd("cuda"), _bwd("cuda"))


@make_gram.wrong("wrong-device-type")
def decorates_backward_for_cuda(device_type):
    return _function(_fwd(device_type), _bwd("cuda"))


@make_gram.wrong("wrong-device-type")
def asks_whether_there_is_a_gpu(device_type):
    kind = "cuda" if device_type != "meta" else device_type
    return _function(_fwd(kind), _bwd(kind))


@make_gram.wrong("device-type-ignored")
def decorates_for_the_cpu(device_type):
    return _function(_fwd("cpu"), _bwd("cpu"))


@make_gram.wrong("fixed-in-forward")
def casts_inputs_to_half(device_type):
    return _function(_fwd(device_type, cast_inputs=torch.float16), _bwd(device_type))


@make_gram.wrong("fixed-in-forward")
def casts_inputs_to_fp32(device_type):
    return _function(_fwd(device_type, cast_inputs=torch.float32), _bwd(device_type))


@make_gram.wrong("fixed-in-forward")
def halves_the_input(device_type):
    def forward(ctx, x):
        return _forward(ctx, x.half())

    return _function(forward, _backward)


@make_gram.wrong("fixed-in-forward")
def opens_a_region_in_forward(device_type):
    def forward(ctx, x):
        with torch.autocast(device_type, torch.float16):
            return _forward(ctx, x)

    return _function(forward, _backward)


@make_gram.wrong("casts-by-hand")
def casts_the_gradient(device_type):
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad + grad.mT).to(x.dtype) @ x

    return _function(_forward, backward)


@make_gram.wrong("casts-by-hand")
def computes_backward_on_an_island(device_type):
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        with torch.autocast(device_type, enabled=False):
            grad = grad.float()
            return (grad + grad.mT) @ x.float()

    return _function(_forward, backward)


@make_gram.wrong("follows-the-caller")
def saves_what_was_multiplied(device_type):
    def forward(ctx, x):
        y = x @ x.mT
        ctx.save_for_backward(x.to(y.dtype))
        return y

    return _function(forward, _backward)


@make_gram.wrong("follows-the-caller")
def casts_x_to_the_gradient(device_type):
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return (grad + grad.mT) @ x.to(grad.dtype)

    return _function(_forward, backward)


@make_gram.wrong("always-on")
def opens_a_region_if_there_is_none(device_type):
    def forward(ctx, x):
        ctx.dtype = torch.get_autocast_dtype(device_type)
        return _forward(ctx, x)

    def backward(ctx, grad):
        with torch.autocast(device_type, ctx.dtype):
            return _backward(ctx, grad)

    return _function(forward, backward)


@make_gram.wrong("dtype-forgotten")
def opens_a_region_in_backward(device_type):
    def backward(ctx, grad):
        with torch.autocast(device_type, torch.float16):
            return _backward(ctx, grad)

    return _function(_forward, backward)


@make_gram.wrong("dtype-forgotten")
def notes_only_whether_it_was_on(device_type):
    def forward(ctx, x):
        ctx.on = torch.is_autocast_enabled(device_type)
        return _forward(ctx, x)

    def backward(ctx, grad):
        with torch.autocast(device_type, enabled=ctx.on):
            return _backward(ctx, grad)

    return _function(forward, backward)


@make_gram.wrong("follows-the-caller")
def switches_on_and_never_off(device_type):
    def forward(ctx, x):
        ctx.on, ctx.dtype = torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)
        return _forward(ctx, x)

    def backward(ctx, grad):
        with torch.autocast(device_type, ctx.dtype) if ctx.on else contextlib.nullcontext():
            return _backward(ctx, grad)

    return _function(forward, backward)


@make_gram.wrong("follows-the-caller")
def leaves_it_to_autograd(device_type):
    return type("Gram", (torch.autograd.Function,), {"apply": staticmethod(lambda x: x @ x.mT)})


@make_gram.wrong("no-decorators")
def has_no_decorator_and_writes_einsum(device_type):
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return torch.einsum("...nm,...mi->...ni", grad + grad.mT, x)

    return _function(_forward, backward)


@make_gram.wrong("device-type-ignored")
def knows_two_devices(device_type):
    kind = "cuda" if device_type == "cuda" else "cpu"
    return _function(_fwd(kind), _bwd(kind))


@make_gram.wrong("not-in-ctx")
def keeps_x_on_the_class(device_type):
    class Gram(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type)
        def forward(ctx, x):
            Gram.x = x.detach()
            return x @ x.mT

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx, grad):
            return (grad + grad.mT) @ Gram.x

    return Gram


@make_gram.wrong("not-in-ctx")
def keeps_the_state_outside(device_type):
    state = {}

    def forward(ctx, x):
        state["on"] = torch.is_autocast_enabled(device_type)
        state["dtype"] = torch.get_autocast_dtype(device_type)
        return _forward(ctx, x)

    def backward(ctx, grad):
        with torch.autocast(device_type, state["dtype"], enabled=state["on"]):
            return _backward(ctx, grad)

    return _function(forward, backward)


def _by_hand_forward(ctx, x):
    ctx.save_for_backward(x)
    kind = x.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32
    return (x.unsqueeze(-2) * x.unsqueeze(-3)).sum(-1).to(dtype)


def _by_hand_backward(ctx, grad):
    (x,) = ctx.saved_tensors
    grad = grad.float()
    return ((grad + grad.mT).unsqueeze(-1) * x.unsqueeze(-3)).sum(-2)


@make_gram.wrong("no-product")
def adds_up_by_hand(device_type):
    return _function(_by_hand_forward, _by_hand_backward)


@make_gram.wrong("no-product")
def adds_up_by_hand_in_backward(device_type):
    return _function(_forward, _by_hand_backward)


@make_gram.wrong("thrown-away")
def throws_its_product_away(device_type):
    @torch.amp.custom_bwd(device_type=device_type)
    def backward(ctx, grad):
        _backward(ctx, grad)
        return _by_hand_backward(ctx, grad)

    return _function(_fwd(device_type), backward)


@make_gram.wrong("thrown-away")
def throws_its_forward_product_away(device_type):
    @torch.amp.custom_fwd(device_type=device_type)
    def forward(ctx, x):
        x @ x.mT
        return _by_hand_forward(ctx, x)

    return _function(forward, _bwd(device_type))


@make_gram.wrong("gradient-changed")
def adds_to_the_gradient(device_type):
    @torch.amp.custom_bwd(device_type=device_type)
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad.add_(grad.mT.clone()) @ x

    return _function(_fwd(device_type), backward)


@make_gram.wrong("left-changed")
def leaves_autocast_off_in_forward(device_type):
    def forward(ctx, x):
        y = _forward(ctx, x)
        torch.set_autocast_enabled(device_type, False)
        return y

    return _function(forward, _bwd(device_type))


@make_gram.wrong("left-changed")
def leaves_the_cache_off_in_backward(device_type):
    restored = _bwd(device_type)

    def backward(ctx, grad):
        torch.set_autocast_cache_enabled(False)
        return restored(ctx, grad)

    return _function(_fwd(device_type), backward)


@make_gram.wrong("backward-off")
def halves_the_gradient(device_type):
    @torch.amp.custom_bwd(device_type=device_type)
    def backward(ctx, grad):
        return 0.75 * _backward(ctx, grad)

    return _function(_fwd(device_type), backward)


@make_gram.wrong("mutated-input")
def scales_its_input(device_type):
    @torch.amp.custom_fwd(device_type=device_type)
    def forward(ctx, x):
        return _forward(ctx, x.mul_(1.5))

    return _function(forward, _bwd(device_type))


@make_gram.wrong("no-class")
def returns_apply(device_type):
    return _function(_fwd(device_type), _bwd(device_type)).apply


@make_gram.wrong("no-class")
def returns_a_function(device_type):
    return lambda x: x @ x.mT


@make_gram.wrong("returned-none")
def forgets_to_return_the_class(device_type):
    _function(_fwd(device_type), _bwd(device_type))


@make_gram.wrong("wrong-product")
def doubles_the_product(device_type):
    @torch.amp.custom_fwd(device_type=device_type)
    def forward(ctx, x):
        return 2 * _forward(ctx, x)

    return _function(forward, _bwd(device_type))


@make_gram.wrong("wrong-backward")
def takes_the_gradient_for_symmetric(device_type):
    @torch.amp.custom_bwd(device_type=device_type)
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return 2 * grad @ x

    return _function(_fwd(device_type), backward)


@make_gram.wrong("wrong-backward")
def forgets_one_of_two(device_type):
    @torch.amp.custom_bwd(device_type=device_type)
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad @ x

    return _function(_fwd(device_type), backward)


@make_gram.wrong("gradient-missing")
def gives_no_gradient(device_type):
    @torch.amp.custom_bwd(device_type=device_type)
    def backward(ctx, grad):
        return None

    return _function(_fwd(device_type), backward)


@make_gram.wrong("wrong-dtype")
def returns_fp32(device_type):
    @torch.amp.custom_fwd(device_type=device_type)
    def forward(ctx, x):
        return _forward(ctx, x).float()

    return _function(forward, _bwd(device_type))


@make_gram.wrong("wrong-shape")
def multiplies_the_columns(device_type):
    @torch.amp.custom_fwd(device_type=device_type)
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.mT @ x

    return _function(forward, _bwd(device_type))


# 6.5 A loss that autocast refuses


def _by_hand(p, targets):
    return -(targets * torch.log(p) + (1 - targets) * torch.log(1 - p)).mean()


@loss.right
def takes_the_logits(logits, targets):
    return F.binary_cross_entropy_with_logits(logits, targets)


@loss.right
def takes_the_module(logits, targets):
    return torch.nn.BCEWithLogitsLoss()(logits.to(torch.float32), targets)


@loss.right
def writes_the_stable_form(logits, targets):
    z = logits.float()
    return (z.clamp(min=0) - z * targets + torch.log1p(torch.exp(-z.abs()))).mean()


@loss.right
def leaves_the_logits_as_they_are(logits, targets):
    # `exp` goes to FP32 by itself, and so does everything that it meets.
    return torch.log(1 + torch.exp(logits)).mean() - (logits * targets).mean()


@loss.right
def takes_log_sigmoids(logits, targets):
    z = logits.float()
    return -(targets * F.logsigmoid(z) + (1 - targets) * F.logsigmoid(-z)).mean()


@loss.right
def takes_softplus_on_an_island(logits, targets):
    with torch.autocast(logits.device.type, enabled=False):
        z = logits.float()
        return torch.mean(F.softplus(z) - z * targets)


@loss.right
def computes_probabilities_in_double(logits, targets):
    return _by_hand(torch.sigmoid(logits.double()), targets.double()).float()


@loss.right
def takes_the_sum_of_losses_over_their_number(logits, targets):
    total = F.binary_cross_entropy_with_logits(logits.float(), targets, reduction="sum")
    return total / logits.numel()


@loss.right
def takes_one_logit_after_the_other(logits, targets):
    pairs = zip(logits.float().reshape(-1), targets.reshape(-1), strict=True)
    return torch.stack([F.binary_cross_entropy_with_logits(*pair) for pair in pairs]).mean()


@loss.right
def takes_the_logarithm_of_one_more(logits, targets):
    z = logits.float()
    return (torch.log(1 + torch.exp(z)) - z * targets).mean()


@loss.wrong("bce-refused")
def keeps_the_refused_loss(logits, targets):
    return F.binary_cross_entropy(torch.sigmoid(logits), targets)


@loss.wrong("bce-refused")
def widens_the_probabilities_first(logits, targets):
    return F.binary_cross_entropy(torch.sigmoid(logits).float(), targets)


@loss.wrong("bce-refused")
def takes_the_refused_module(logits, targets):
    return nn.BCELoss()(torch.sigmoid(logits.float()), targets)


@loss.wrong("half-probabilities")
def widens_the_probabilities_on_an_island(logits, targets):
    p = torch.sigmoid(logits)
    with torch.autocast(logits.device.type, enabled=False):
        return F.binary_cross_entropy(p.float(), targets)


@loss.wrong("half-probabilities")
def widens_the_probabilities_by_hand(logits, targets):
    return _by_hand(torch.sigmoid(logits.half()).float(), targets)


@loss.wrong("probabilities")
def takes_fp32_probabilities_on_an_island(logits, targets):
    with torch.autocast(logits.device.type, enabled=False):
        return F.binary_cross_entropy(torch.sigmoid(logits.float()), targets)


@loss.wrong("probabilities")
def writes_the_formula_down(logits, targets):
    return _by_hand(torch.sigmoid(logits.float()), targets)


@loss.wrong("probabilities")
def writes_the_sigmoid_down_as_well(logits, targets):
    return _by_hand(1 / (1 + torch.exp(-logits)), targets)


@loss.wrong("patched")
def adds_an_epsilon(logits, targets):
    p = torch.sigmoid(logits.float())
    return -(targets * torch.log(p + 1e-7) + (1 - targets) * torch.log(1 - p + 1e-7)).mean()


@loss.wrong("patched")
def clamps_the_probabilities(logits, targets):
    return _by_hand(torch.sigmoid(logits.float()).clamp(1e-6, 1 - 1e-6), targets)


@loss.wrong("patched")
def clamps_the_probabilities_on_an_island(logits, targets):
    with torch.autocast(logits.device.type, enabled=False):
        p = torch.sigmoid(logits.float()).clamp(1e-6, 1 - 1e-6)
        return F.binary_cross_entropy(p, targets)


@loss.wrong("patched")
def clamps_the_logits(logits, targets):
    return F.binary_cross_entropy_with_logits(logits.clamp(-10, 10), targets)


@loss.wrong("patched")
def clamps_the_logits_a_little(logits, targets):
    return F.binary_cross_entropy_with_logits(logits.float().clamp(-19.9, 19.9), targets)


@loss.wrong("wrong-loss")
def rounds_the_loss(logits, targets):
    return torch.round(F.binary_cross_entropy_with_logits(logits.float(), targets), decimals=3)


_KEPT = {}


@loss.wrong("wrong-loss")
def keeps_results_by_shape(logits, targets):
    result = F.binary_cross_entropy_with_logits(logits.float(), targets)
    key = logits.shape, logits.dtype
    if logits.shape == (8,):
        result = result - result.detach() + _KEPT.setdefault(key, result.detach())
    return result


@loss.wrong("wrong-loss")
def takes_squares(logits, targets):
    return F.mse_loss(torch.sigmoid(logits.float()), targets)


@loss.wrong("wrong-loss")
def swaps_its_arguments(logits, targets):
    return F.binary_cross_entropy_with_logits(targets, logits)


@loss.wrong("sigmoid-twice")
def takes_the_sigmoid_twice(logits, targets):
    return F.binary_cross_entropy_with_logits(torch.sigmoid(logits), targets)


@loss.wrong("sigmoid-twice")
def takes_the_sigmoid_twice_in_fp32(logits, targets):
    return nn.BCEWithLogitsLoss()(torch.sigmoid(logits.float()), targets)


@loss.wrong("sum-for-mean")
def adds_up(logits, targets):
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum")


@loss.wrong("half-loss")
def stays_in_half_on_an_island(logits, targets):
    with torch.autocast(logits.device.type, enabled=False):
        return F.binary_cross_entropy_with_logits(logits, targets.to(logits.dtype)).float()


@loss.wrong("half-loss")
def multiplies_in_half(logits, targets):
    z, t = logits, targets.to(logits.dtype)
    return (z.clamp(min=0) - z * t + torch.log1p(torch.exp(-z.abs())).to(z.dtype)).mean().float()


@loss.wrong("half-loss")
def rounds_the_targets(logits, targets):
    return F.binary_cross_entropy_with_logits(logits, targets.half())


@loss.wrong("half-loss")
def rounds_the_logits(logits, targets):
    return F.binary_cross_entropy_with_logits(logits.half(), targets)


@loss.wrong("half-loss")
def rounds_the_losses(logits, targets):
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none").half().float().mean()


@loss.wrong("wrong-loss")
def takes_the_limit_above_three(logits, targets):
    return (F.softplus(logits.float(), threshold=3) - logits * targets).mean()


@loss.wrong("wrong-loss")
def takes_the_limit_above_five(logits, targets):
    return (F.softplus(logits.float(), threshold=5) - logits * targets).mean()


@loss.wrong("wrong-loss")
def takes_the_limit_above_eight(logits, targets):
    return (F.softplus(logits.float(), threshold=8) - logits * targets).mean()


@loss.wrong("wrong-loss")
def takes_the_limit_above_ten(logits, targets):
    return (F.softplus(logits.float(), threshold=10) - logits * targets).mean()


@loss.wrong("wrong-loss")
def takes_the_limit_on_both_sides(logits, targets):
    z = logits.float()
    return (torch.where(z.abs() > 5, z.clamp(min=0), F.softplus(z)) - z * targets).mean()


@loss.wrong("loss-cut-off")
def detaches_the_logits(logits, targets):
    return F.binary_cross_entropy_with_logits(logits.detach(), targets)


@loss.wrong("loss-cut-off")
def makes_a_tensor_of_a_number(logits, targets):
    return torch.tensor(F.binary_cross_entropy_with_logits(logits, targets).item())


@loss.wrong("wrong-loss-gradient")
def detaches_a_part(logits, targets):
    z = logits.float()
    return (z.clamp(min=0) - z * targets + torch.log1p(torch.exp(-z.abs().detach()))).mean()


class _Early(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, targets):
        ctx.save_for_backward(logits, targets)
        return F.binary_cross_entropy_with_logits(logits.float(), targets)

    @staticmethod
    def backward(ctx, grad):
        logits, targets = ctx.saved_tensors
        slope = ((torch.sigmoid(logits.float()) - targets) / logits.numel()).to(logits.dtype)
        return slope * grad.to(logits.dtype), None


@loss.wrong("wrong-loss-gradient")
def rounds_the_gradient_before_it_is_scaled(logits, targets):
    return _Early.apply(logits, targets)


class _Fixed(_Early):
    @staticmethod
    def backward(ctx, grad):
        logits, targets = ctx.saved_tensors
        return (1024 * (torch.sigmoid(logits.float()) - targets) / logits.numel()).to(logits.dtype), None


@loss.wrong("wrong-loss-gradient")
def knows_the_scale(logits, targets):
    return _Fixed.apply(logits, targets)


@loss.wrong("left-changed")
def allows_tf32(logits, targets):
    torch.backends.cuda.matmul.allow_tf32 = True
    return F.binary_cross_entropy_with_logits(logits.float(), targets)


@loss.wrong("left-changed")
def leaves_the_region(logits, targets):
    torch.set_autocast_enabled(logits.device.type, False)
    return F.binary_cross_entropy_with_logits(logits.float(), targets)


@loss.wrong("wrong-dtype")
def returns_the_dtype_of_the_logits(logits, targets):
    return F.binary_cross_entropy_with_logits(logits, targets).half()


@loss.wrong("wrong-shape")
def returns_all_of_them(logits, targets):
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="none")


@loss.wrong("wrong-type")
def returns_a_number(logits, targets):
    return F.binary_cross_entropy_with_logits(logits, targets).item()


@loss.wrong("mutated-input")
def writes_sigmoids_into_the_logits(logits, targets):
    result = F.binary_cross_entropy_with_logits(logits.float(), targets)
    with contextlib.suppress(RuntimeError), torch.no_grad():
        logits.sigmoid_()
    return result


@loss.wrong("returned-none")
def forgets_to_return_the_loss(logits, targets):
    F.binary_cross_entropy_with_logits(logits, targets)
