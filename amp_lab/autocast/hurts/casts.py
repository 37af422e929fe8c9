"""Casts that cost and gain nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

import torch

from amp_lab.autocast.hurts.flow import HALVES, WIDE, Flow, base, numel
from amp_lab.autocast.hurts.remarks import Remark, alike, several
from amp_lab.autocast.records import Cast, Op
from amp_lab.autocast.report.summary import is_cast, written
from amp_lab.autocast.report.words import bytes_in_words, dtype_in_words

if TYPE_CHECKING:
    from amp_lab.autocast.report.xrayed import XRay

# What works number by number, or moves numbers, and is as good in 16 bits: rounding its result to 16 bits in the
# end gives the same, or nearly. Sums, powers and exponentials are not here.
_AS_GOOD: Final = frozenset(
    "relu relu6 leaky_relu prelu elu celu selu hardtanh hardswish hardsigmoid gelu silu mish tanh sigmoid softsign "
    "dropout native_dropout feature_dropout alpha_dropout bernoulli clamp clamp_min clamp_max threshold neg abs "
    "masked_fill where mul div max_pool1d max_pool2d max_pool3d max_pool2d_with_indices adaptive_max_pool2d "
    "clone contiguous cat stack chunk split pad constant_pad_nd flip roll index_select gather".split()
)


# Casts by weight and dtype: for which operator, and whether it was of a view of the weight.
_Casts: TypeAlias = dict[tuple[str, torch.dtype], list[tuple[Op, Cast, bool]]]
_MUCH: Final = 0.1  # of all bytes that casts copy


def there_and_back(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """Numbers that the code takes from 16 bits to FP32, and that go back to 16 bits with nothing gained in between.

        h = F.relu(linear1(x).float())  # FP16 → FP32
        y = linear2(h)                  # autocast: FP32 → FP16
        y = linear2(F.relu(linear1(x)))  # better: no cast at all

    FP32 protects a sum, a norm, an exponential: those are never reported. It does not protect a matrix product
    inside the region, since autocast casts its arguments back.
    """
    for ups in alike([op for op in flow.ops if _widens(op)]):
        found = [(up, chain) for up in ups if (chain := _chain(up, flow))]
        if not found:
            continue
        first, chain = found[0]
        narrow, wide = dtype_in_words(first.inputs[0].dtype), dtype_in_words(first.outputs[0].dtype)
        names = ", ".join(dict.fromkeys(op.name for op in chain.through))
        between = (
            f"only {names} lies between, which {wide} does not make better"
            if names
            else "nothing lies between"
        )
        readers = ", ".join(dict.fromkeys(op.name for op in chain.back))
        copied = sum(written(up) + each.copied for up, each in found)
        yield Remark(
            "there-and-back",
            f"{several([up for up, _ in found])} goes from {narrow} to {wide}, and {readers} back to 16 bits: "
            f"{between}. The casts there and back wrote {bytes_in_words(copied)}.",
            tuple(sorted({op.number for up, each in found for op in (up, *each.through, *each.back)})),
            "Leave the cast out. To run a matrix product in FP32, switch autocast off around it as well: "
            f'with torch.autocast("{xray.device_type}", enabled=False).',
        )


class _Chain:
    """What lies between a cast up and the casts down: operators that run in FP32, those after it, bytes copied."""

    def __init__(self) -> None:
        self.through: list[Op] = []
        self.back: list[Op] = []
        self.copied = 0


def _widens(op: Op) -> bool:
    return is_cast(op) and op.inputs[0].dtype in HALVES and op.outputs[0].dtype in WIDE


def _chain(up: Op, flow: Flow) -> _Chain | None:
    """Follow what a cast up made, to the casts down on every way; None if a way needs FP32, or does not end."""
    chain, waiting, numbers = _Chain(), [up], {up.number}
    while waiting:
        op = waiting.pop()
        readers = list(flow.readers(op))
        if not readers:
            return None  # a result of the model, or kept for later
        for reader in readers:
            if reader.number in numbers:
                continue
            down = _copied_down(reader, op, flow)
            if down is not None:
                chain.back.append(reader)
                chain.copied += down
            elif _as_good(reader, numbers, flow):
                chain.through.append(reader)
                waiting.append(reader)
            else:
                return None
            numbers.add(reader.number)
    return chain


def _copied_down(reader: Op, op: Op, flow: Flow) -> int | None:
    """Return how many bytes took what `op` made to 16 bits for `reader`; None if nothing did."""
    if is_cast(reader) and reader.outputs[0].dtype in HALVES:
        return written(reader)
    casts = [each for each in reader.casts if each.dtype in HALVES and flow.maker(each.value) is op]
    return sum(each.copied for each in casts) if casts else None


def _as_good(op: Op, chain: set[int], flow: Flow) -> bool:
    """Whether an operator gains nothing from FP32: it is harmless, and no other FP32 tensor comes in."""
    if base(op) not in _AS_GOOD:
        return False
    wide = [each for each in op.inputs if each.dtype in WIDE and each.shape]
    return all((maker := flow.maker(each)) is not None and maker.number in chain for each in wide)


def cast_again(xray: XRay, flow: Flow) -> Iterator[Remark]:
    """Weights that were cast several times in one forward pass: the cache of casts did not hold them.

        for frame in video: out = frozen(frame)   # requires_grad=False: cast for every frame
        y = x @ self.weight.t()                   # a view of a parameter is not cached, either
        frozen.half()                             # better: a frozen model can be in 16 bits for good
        y = F.linear(x, self.weight)              # better

    The cache holds FP32 leaf tensors that require a gradient, until the outermost region ends. Less than a tenth of
    all bytes that casts copy is not reported.
    """
    frozen = {each.name for each in xray.frozen}
    sizes = {each.name: numel(each) for each in (*xray.frozen, *xray.trainable) if each.name}
    found: _Casts = {}
    for op in flow.ops:
        for cast in op.casts:
            weight = flow.root(cast.value)
            if weight.name in sizes and weight.name and cast.copied:
                found.setdefault((weight.name, cast.dtype), []).append((op, cast, weight != cast.value))
    again = {
        key: casts for key, casts in found.items() if len(casts) > 1 and _copied_again(key, casts, sizes) > 0
    }
    for why in _AGAIN:
        group = {key: casts for key, casts in again.items() if _why_again(casts, key[0] in frozen) == why}
        extra = sum(_copied_again(key, casts, sizes) for key, casts in group.items())
        if group and extra >= _MUCH * sum(cast.copied for op in flow.ops for cast in op.casts):
            yield _again(group, why, extra, xray.device_type)


def _why_again(casts: list[tuple[Op, Cast, bool]], frozen: bool) -> str:
    if any("parametrizations" in op.module.split(".") for op, _, _ in casts):
        return "parametrized"
    return "view" if any(viewed for _, _, viewed in casts) else "frozen" if frozen else "other"


_AGAIN: Final = {
    "frozen": (
        "they require no gradient, and the cache holds only weights that do",
        "Take what is frozen to 16 bits for good, once: module.half(), since no optimizer updates it.",
    ),
    "view": (
        "the cache holds parameters themselves, and these are views of them (.t(), a slice)",
        "Give the parameter itself: F.linear(x, weight) instead of x @ weight.t(). nn.MultiheadAttention does so where "
        "query, key and value are one tensor.",
    ),
    "parametrized": (
        "a parametrization (such as spectral_norm, in training) computes with it before the layer does",
        "Let the parametrization run in FP32, where it needs no cast: p = layer.parametrizations.weight[0]; "
        'p.forward = torch.autocast("DEVICE", enabled=False)(p.forward).',
    ),
    "other": (
        "the cache did not hold them: under torch.no_grad before PyTorch 2.11, with cache_enabled=False, or in a "
        "region of their own for each call",
        "Put one region around all calls, and leave its cache on.",
    ),
}


def _copied_again(
    key: tuple[str, torch.dtype], casts: list[tuple[Op, Cast, bool]], sizes: Mapping[str, int]
) -> int:
    """Return how many bytes were copied beyond one copy of the whole weight: none for three different thirds of it."""
    name, dtype = key
    return sum(cast.copied for _, cast, _ in casts) - sizes[name] * dtype.itemsize


def _again(group: _Casts, why: str, extra: int, device_type: str) -> Remark:
    (name, dtype), first = next(iter(group.items()))
    more = (
        f", and so {'was' if len(group) == 2 else 'were'} {len(group) - 1:,} more" if len(group) > 1 else ""
    )
    reason, advice = _AGAIN[why]
    return Remark(
        "cast-again",
        f"{name} was cast to {dtype_in_words(dtype)} {len(first):,} times in one forward pass{more}, and "
        f"{bytes_in_words(extra)} of that copied for nothing, because {reason}.",
        tuple(sorted({op.number for casts in group.values() for op, _, _ in casts})),
        advice.replace("DEVICE", device_type),
    )
