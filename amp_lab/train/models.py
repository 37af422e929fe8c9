"""Small networks on which the lessons show what mixed precision does to training."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import nn

from amp_lab.train.arguments import as_seed, is_whole


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
        ValueError: if `width` is not an int of at least 1, or `seed` not an int.
    """
    if not is_whole(width) or width < 1:
        raise ValueError(f"denoiser(width={width!r}): the number of channels is an int of at least 1")
    seed = as_seed("denoiser", seed)
    kind: Any = {"kernel_size": 3, "padding": 1, "dtype": torch.float32, "device": "cpu"}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU only; torch.manual_seed would touch GPUs
        layers = [
            ("first", nn.Conv2d(1, int(width), **kind)),
            ("relu1", nn.ReLU()),
            ("middle", nn.Conv2d(int(width), int(width), **kind)),
            ("relu2", nn.ReLU()),
            ("last", nn.Conv2d(int(width), 1, **kind)),
        ]
    model = nn.Sequential(OrderedDict[str, nn.Module](layers))
    layout: Any = {"memory_format": torch.channels_last}  # PyTorch's own types leave it out
    return model.to(**layout)
