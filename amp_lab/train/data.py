"""Data that is here without a download."""

from __future__ import annotations

import torch


def digits(count: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scikit-learn's handwritten digits, in the order in which they are stored.

    Args:
        count: how many of the 1,797 images; None for all.

    Returns:
        images, FP32 of shape `(count, 64)`: 8 × 8 pixels in rows, from 0 (paper) to 1 (ink);
        labels, int64 of shape `(count,)`: the digit, 0 to 9.

    Raises:
        TypeError: if `count` is neither an int nor None.
        ValueError: if `count` is not between 1 and 1,797.

    Source: `sklearn.datasets.load_digits`, the test part of the UCI set "Optical Recognition of Handwritten Digits".
    """
    if not (count is None or (isinstance(count, int) and not isinstance(count, bool))):
        raise TypeError(
            f"digits(count={count!r}): count is how many images you want, an int, or None for all"
        )
    from sklearn.datasets import load_digits  # takes a second to import: only where the data is wanted

    data, target = load_digits(return_X_y=True)
    if count is not None and not 1 <= count <= len(data):
        raise ValueError(
            f"digits(count={count}): there are {len(data):,} images; ask for 1 to {len(data):,}, or for None (all)"
        )
    images = torch.as_tensor(data[:count], dtype=torch.float32) / 16
    return images, torch.as_tensor(target[:count], dtype=torch.int64)


def noisy_digits(noise: float = 0.5, *, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the digits under random noise, and as they were: what a denoiser sees, and what it should say.

    Args:
        noise: standard deviation of the normal noise that is added to each pixel; the ink is 1, paper 0.
        seed: of the noise; the global random numbers stay as they are.

    Returns:
        noisy, clean: FP32 of shape `(1797, 1, 8, 8)`. `clean` is `digits()`, as images of one channel.
        Pixels of `noisy` are not clipped: some are below 0 or above 1.

    Raises:
        ValueError: if `noise` is negative, infinite or NaN.
    """
    if not 0 <= noise < float("inf"):
        raise ValueError(f"noisy_digits(noise={noise}): a standard deviation is a finite number, 0 or more")
    clean = digits()[0].reshape(-1, 1, 8, 8)
    generator = torch.Generator().manual_seed(seed)
    return clean + noise * torch.randn(clean.shape, generator=generator), clean
