"""Data that is here without a download."""

from __future__ import annotations

import numbers
import unicodedata
from functools import cache

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


# A newline and the 95 printable characters of ASCII: 96, a multiple of 8, as Tensor Cores like it.
ALPHABET = "\n" + "".join(map(chr, range(32, 127)))


def characters(length: int = 64, count: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return English text for a model that guesses the next character: the manual that `help()` shows in Python.

    The text is cut into pieces that do not overlap, in the order of the text. A character is a number: its place in
    `ALPHABET`. Letters lose their accents; what is still none of the 96 characters (a curly quote, a dash) becomes
    a question mark. How long the text is, and its wording, depends on the version of Python (3.11: 465,000
    characters).

    Args:
        length: how many characters a piece has.
        count: how many pieces, from the start; None for all.

    Returns:
        both int64 of shape `(pieces, length)`, on the CPU: the pieces, and for each of their characters the one that
        follows in the text: `targets[:, :-1]` is `pieces[:, 1:]`.

    Raises:
        TypeError: if `length` is not an int, or `count` neither an int nor None.
        ValueError: if `length` is less than 1 or longer than the text, or `count` not between 1 and the number of
            pieces that there are.

    Source: `pydoc_data.topics` of the Python that runs, part of its standard library.
    """
    if not is_whole(length):
        raise TypeError(f"characters(length={length!r}): a number of characters is an int, such as 64")
    if not (count is None or is_whole(count)):
        raise TypeError(f"characters(count={count!r}): a number of pieces is an int, or None for all")
    manual = _manual()
    most = len(manual) - 1  # the last character is only a target
    if not 1 <= length <= most:
        raise ValueError(
            f"characters(length={length}): the text has {most + 1:,} characters; a piece is 1 to {most:,} long"
        )
    pieces = most // int(length)
    if count is not None and not 1 <= count <= pieces:
        raise ValueError(
            f"characters(length={length}, count={count}): there are {pieces:,} pieces; ask for 1 to {pieces:,}, "
            "or for None (all)"
        )
    end = int(length) * int(pieces if count is None else count)
    shape = (-1, int(length))
    return manual[:end].reshape(shape).clone(), manual[1 : end + 1].reshape(shape).clone()


@cache
def _manual() -> torch.Tensor:
    """Return the whole text, int64 of shape `(characters,)`."""
    from pydoc_data.topics import topics  # half a megabyte: only where it is wanted

    text = "".join(topics[each] for each in sorted(topics))
    plain = unicodedata.normalize("NFKD", text)
    plain = "".join(each for each in plain if not unicodedata.combining(each))
    place = {each: number for number, each in enumerate(ALPHABET)}
    unknown = place["?"]
    return torch.tensor([place.get(each, unknown) for each in plain], dtype=torch.int64, device=_CPU)
