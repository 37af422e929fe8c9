"""The handwritten digits, with noise and without: their shapes, dtypes and values, and what is refused."""

import re

import numpy as np
import pytest
import torch

from amp_lab.train.data import digits, noisy_digits


def test_all_of_them():
    images, labels = digits()
    assert (images.shape, images.dtype) == ((1797, 64), torch.float32)
    assert (labels.shape, labels.dtype) == ((1797,), torch.int64)
    assert (images.min(), images.max()) == (0, 1)
    assert labels.unique().tolist() == list(range(10))


def test_the_first_of_them():
    (images, labels), (all_images, all_labels) = digits(12), digits(1797)
    assert torch.equal(images, all_images[:12])
    assert torch.equal(labels, all_labels[:12])
    assert labels.tolist() == [*range(10), 0, 1]  # as scikit-learn stores them


@pytest.mark.parametrize("count", [0, -1, 1798])
def test_more_or_fewer_than_there_are(count):
    with pytest.raises(
        ValueError, match=re.escape(f"digits(count={count}): there are 1,797 images; ask for")
    ):
        digits(count)


@pytest.mark.parametrize("count", ["3", 1.5, True, False, torch.tensor(3)])
def test_what_is_no_number_of_images(count):
    with pytest.raises(TypeError, match=re.escape(f"digits(count={count!r}): count is how many images")):
        digits(count)


def test_noisy_digits():
    noisy, clean = noisy_digits()
    assert (noisy.shape, noisy.dtype) == (clean.shape, clean.dtype) == ((1797, 1, 8, 8), torch.float32)
    assert torch.equal(clean.reshape(-1, 64), digits()[0])
    noise = noisy - clean
    assert noise.mean().abs() < 0.01
    assert noise.std() == pytest.approx(0.5, rel=0.01)
    assert (noise[0] - noise[1]).abs().max() > 0.1  # each image has noise of its own


def test_the_noise_is_the_same_each_time_and_touches_no_other_random_number():
    state = torch.get_rng_state()
    first, again, other = noisy_digits()[0], noisy_digits(seed=0)[0], noisy_digits(seed=1)[0]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_no_noise_and_more_noise():
    noisy, clean = noisy_digits(0)
    assert torch.equal(noisy, clean)
    assert (noisy_digits(2.0)[0] - clean).std() == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("noise", [-0.1, float("inf"), float("nan"), 1e39, "x", None, torch.tensor(0.5)])
def test_what_is_no_noise(noise):
    with pytest.raises(ValueError, match=re.escape(f"noisy_digits(noise={noise!r}): a standard deviation")):
        noisy_digits(noise)


@pytest.mark.parametrize("seed", ["x", None, 1.5, True, 2**64])
def test_what_is_no_seed(seed):
    with pytest.raises(ValueError, match=re.escape(f"noisy_digits(seed={seed!r}): a seed is a whole number")):
        noisy_digits(seed=seed)


def test_numpy_numbers_are_numbers():
    noisy, clean = noisy_digits(np.float32(0.5), seed=np.int64(0))
    assert torch.equal(noisy, noisy_digits()[0])
    assert torch.equal(digits(np.int64(5))[0], clean[:5].flatten(1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_default_dtype_and_device_change_nothing(dtype):
    wanted = (*noisy_digits(), *digits())
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            found = (*noisy_digits(), *digits())
    finally:
        torch.set_default_dtype(torch.float32)
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
