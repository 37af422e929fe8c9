"""Small networks on which the lessons show what mixed precision does to training."""

from __future__ import annotations

import numbers
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from amp_lab.train.arguments import as_seed, as_size
from amp_lab.train.transformer import FP32_ON_CPU, CharacterModel


def denoiser(width: int = 8, *, seed: int = 0) -> nn.Sequential:
    """Return a network that takes the noise out of 8 × 8 images: three 3 × 3 convolutions, ReLU between them.

    Its layers are called `first`, `middle` and `last`; the names appear in `named_parameters()`. It maps a batch
    of shape `(N, 1, height, width)` to one of the same shape. Parameters are FP32, on the CPU, and start from
    PyTorch's usual random values for this `seed`, whatever the default dtype and device are; the global random numbers
    stay as they are.

    It has no normalisation on purpose: BatchNorm between the layers rescales what flows back through them, and
    would hide a gradient that is too small for FP16.

    The weights, and so the images between the layers, lie in memory pixel by pixel, with the channels of a pixel
    side by side (`torch.channels_last`): convolutions with so few channels take half the time then. Flatten such
    a tensor with `flatten` or `reshape`; `view` refuses.

    Args:
        width: channels between the convolutions.
        seed: of the initial weights.

    Raises:
        ValueError: if `width` is not a whole number of at least 1, or `seed` not an int.
    """
    width = as_size("denoiser", "width", width)
    settings: Any = {"kernel_size": 3, "padding": 1, **FP32_ON_CPU}
    with _seeded(as_seed("denoiser", seed)):
        layers = {
            "first": nn.Conv2d(1, width, **settings),
            "relu1": nn.ReLU(),
            "middle": nn.Conv2d(width, width, **settings),
            "relu2": nn.ReLU(),
            "last": nn.Conv2d(width, 1, **settings),
        }
    model = nn.Sequential(OrderedDict[str, nn.Module](layers))
    layout: Any = {"memory_format": torch.channels_last}  # PyTorch's own types leave it out
    return model.to(**layout)


def digit_classifier(width: int = 64, *, dropout: float = 0.0, seed: int = 0) -> nn.Sequential:
    """Return a network that reads `amp_lab.train.data.digits`: two linear layers, ReLU between them.

    Its layers are called `first`, `relu`, `dropout` and `last`. It maps images of shape `(N, 64)` to the logits of
    the ten digits, `(N, 10)`; `nn.functional.cross_entropy` is its loss. Parameters are FP32, on the CPU, and start
    from PyTorch's usual random values for this `seed`; the global random numbers stay as they are.

    Args:
        width: how many numbers lie between the layers.
        dropout: the share of them that training sets to zero, at random.
        seed: of the initial weights.

    Raises:
        ValueError: if `width` is no whole number of at least 1, `dropout` no number from 0 to 1, or `seed` no int.
    """
    width = as_size("digit_classifier", "width", width)
    dropout = _as_share("digit_classifier", dropout)
    with _seeded(as_seed("digit_classifier", seed)):
        layers = {
            "first": nn.Linear(64, width, **FP32_ON_CPU),
            "relu": nn.ReLU(),
            "dropout": nn.Dropout(dropout),
            "last": nn.Linear(width, 10, **FP32_ON_CPU),
        }
    return nn.Sequential(OrderedDict[str, nn.Module](layers))


def character_model(
    width: int = 32,
    *,
    layers: int = 2,
    heads: int = 4,
    length: int = 64,
    dropout: float = 0.0,
    seed: int = 0,
) -> CharacterModel:
    """Return a small transformer that guesses the next character of `amp_lab.train.data.characters`.

    It maps characters, int64 of shape `(N, characters)`, to logits `(N, 96, characters)`: the classes come second,
    as `nn.functional.cross_entropy` wants them, which is its loss. A guess sees the characters up to its own place,
    none behind it. Parameters are FP32, on the CPU, and start from random values for this `seed`; the global random
    numbers stay as they are.

    Args:
        width: how many numbers stand for a character between the layers; a multiple of `heads`.
        layers: how many blocks of attention and two linear layers.
        heads: how many attentions work side by side in a block.
        length: the longest text that it takes.
        dropout: the share of numbers that training sets to zero, at random.
        seed: of the initial weights.

    Raises:
        ValueError: if a size is no whole number of at least 1, `heads` does not divide `width`, `dropout` is no number
            from 0 to 1, or `seed` no int.
    """
    sizes = {"width": width, "layers": layers, "heads": heads, "length": length}
    sizes = {name: as_size("character_model", name, size) for name, size in sizes.items()}
    if sizes["width"] % sizes["heads"]:
        raise ValueError(
            f"character_model(width={width}, heads={heads}): each head takes an equal share of the width; choose a "
            f"multiple of {heads}, such as {heads * 8}"
        )
    dropout = _as_share("character_model", dropout)
    with _seeded(as_seed("character_model", seed)):
        return CharacterModel(**sizes, dropout=dropout)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Random numbers of `seed` inside; those outside go on as if nothing had been drawn."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU only; torch.manual_seed would touch GPUs
        yield


def _as_share(function: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value <= 1:
        raise ValueError(
            f"{function}(dropout={value!r}): dropout is the share that is set to zero, from 0 to 1"
        )
    return float(value)
