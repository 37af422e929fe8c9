"""`xray` of a transformer (d = 768, 2 × 128 tokens), forward and backward: seconds in fake mode, and whether they grow
in proportion to the layers; in value mode, how many times as long as the plain FP32 step.

What grows in proportion takes as long for every layer more, however many there are: the seconds for each layer from 12
to 48 are compared with those from 4 to 12, all in one run.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from amp_lab.autocast.xray import xray
from amp_lab.train.measure import Timings, compare
from benchmarks.finding import Finding, against

WIDTH, HEADS, TOKENS = 768, 12, (2, 128)
FEW, SOME, MANY = 4, 12, 48
SECONDS = 5.0  # one can wait for that in a notebook
STEEPER = 1.3  # for a layer more, many against few
VALUE = 2.0


def measure(quick: bool) -> list[Finding]:
    """Return seconds, the growth, and the ratio of value mode; `quick` takes small stacks and few rounds."""
    few, some, many = (1, 2, 4) if quick else (FEW, SOME, MANY)
    fake = compare(
        {str(layers): _fake(layers) for layers in (few, some, many)},
        baseline=str(some),
        rounds=2 if quick else 7,
        warm_up=1,
    )
    print(fake)
    value = _value(some, rounds=1 if quick else 15)
    print(value)
    return [
        Finding(f"xray in fake mode, {some} layers", fake.median(str(some)), SECONDS, unit="s"),
        *(
            Finding(f"xray in fake mode, {layers} layers", fake.median(str(layers)), unit="s")
            for layers in (few, many)
        ),
        _growth(fake, few, some, many),
        against(value, "xray", f"xray in value mode ÷ plain FP32 step, {some} layers", VALUE),
    ]


def transformer(layers: int) -> nn.Module:
    """Return a stack of PyTorch's own encoder layers."""
    one = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(one, layers, enable_nested_tensor=False)


def _loss(output: torch.Tensor) -> torch.Tensor:
    return output.square().mean()


def _fake(layers: int) -> Callable[[], object]:
    model, tokens = transformer(layers), torch.randn(*TOKENS, WIDTH)
    return lambda: xray(model, tokens, mode="fake", loss=_loss)


def _value(layers: int, rounds: int) -> Timings:
    model, tokens = transformer(layers), torch.randn(*TOKENS, WIDTH)

    def plain() -> None:
        model.zero_grad()
        torch.autograd.backward(_loss(model(tokens)))

    ways = {"plain FP32 step": plain, "xray": lambda: xray(model, tokens, mode="value", loss=_loss)}
    return compare(ways, baseline="plain FP32 step", rounds=rounds, warm_up=1)


def _growth(timings: Timings, few: int, some: int, many: int) -> Finding:
    """Return seconds per layer between `some` and `many` layers, over those between `few` and `some`, by medians."""

    def layer(low: int, high: int) -> float:
        return (timings.median(str(high)) - timings.median(str(low))) / (high - low)

    ratio = layer(some, many) / layer(few, some)
    what = f"xray: seconds for a layer more, {some} to {many} ÷ {few} to {some}"
    return Finding(what, ratio, STEEPER, timings.noise)
