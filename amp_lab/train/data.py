"""Data that is here without a download."""

from __future__ import annotations

import numbers

import torch

from amp_lab.train.arguments import as_seed, is_whole

_CPU = torch.device("cpu")  # whatever the default device is


def digits(count: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scikit-learn's handwritten digits, in the order in which they are stored.

    Args:
        count: how many of the 1,797 images; None for all.

    Returns:
        both on the CPU: images, FP32 of shape `(count, 64)`: 8 × 8 pixels in rows, from 0 (paper) to 1 (ink);
        labels, int64 of shape `(count,)`: the digit, 0 to 9.

    Raises:
        TypeError: if `count` is neither an int nor None.
        ValueError: if `count` is not between 1 and 1,797.

    Source: `sklearn.datasets.load_digits`, the test part of the UCI set "Optical Recognition of Handwritten Digits".
    """
    if not (count is None or is_whole(count)):
        raise TypeError(
            f"digits(count={count!r}): count is how many images you want, an int, or None for all"
        )
    from sklearn.datasets import load_digits  # takes a second to import: only where the data is wanted

    data, target = load_digits(return_X_y=True)
    if count is not None and not 1 <= count <= len(data):
        raise ValueError(
            f"digits(count={count}): there are {len(data):,} images; ask for 1 to {len(data):,}, or for None (all)"
        )
    images = torch.as_tensor(data[:count], dtype=torch.float32, device=_CPU) / 16
    return images, torch.as_tensor(target[:count], dtype=torch.int64, device=_CPU)


def noisy_digits(noise: float = 0.5, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the digits under random noise, and as they were: what a denoiser sees, and what it should say.

    Args:
        noise: standard deviation of the normal noise that is added to each pixel; the ink is 1, paper 0.
        seed: of the noise; the global random numbers stay as they are.

    Returns:
        noisy, clean: FP32 of shape `(1797, 1, 8, 8)`, on the CPU. `clean` is `digits()`, as images of one channel.
        Pixels of `noisy` are not clipped: some are below 0 or above 1.

    Raises:
        ValueError: if `noise` is no number from 0 to 1e30 (FP32 has to hold the pixels), or `seed` not an int.
    """
    if not isinstance(noise, numbers.Real) or not 0 <= noise <= 1e30:
        raise ValueError(f"noisy_digits(noise={noise!r}): a standard deviation is a number from 0 to 1e30")
    clean = digits()[0].reshape(-1, 1, 8, 8)
    generator = torch.Generator(_CPU).manual_seed(as_seed("noisy_digits", seed))
    normal = torch.randn(clean.shape, generator=generator, dtype=torch.float32, device=_CPU)
    return clean + float(noise) * normal, clean
