"""The handwritten digits, with noise and without, and the text: shapes, dtypes, values, and what is refused."""

import re
import string
from pydoc_data.topics import topics

import numpy as np
import pytest
import torch

from amp_lab.train.data import ALPHABET, _manual, characters, digits, noisy_digits


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


@pytest.mark.parametrize("seed", ["x", None, 1.5, True, 2**63])
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


def text(numbers):
    return "".join(ALPHABET[each] for each in numbers.flatten().tolist())


def test_the_alphabet():
    assert len(ALPHABET) == len(set(ALPHABET)) == 96
    assert set(string.printable) - set(ALPHABET) == set("\t\r\x0b\x0c")


def test_characters_are_the_manual():
    pieces, targets = characters(64)
    assert (pieces.shape, pieces.dtype) == (targets.shape, targets.dtype)
    assert (pieces.shape[1], pieces.dtype) == (64, torch.int64)
    whole = text(pieces)
    topic = topics[min(topics)]  # the first of them; it is plain ASCII
    assert whole.startswith(topic)
    assert len(whole) > 0.95 * sum(map(len, topics.values()))
    assert pieces.min() >= 0
    assert pieces.max() < 96


def test_each_target_is_the_next_character():
    pieces, targets = characters(64)
    assert torch.equal(targets[:, :-1], pieces[:, 1:])
    assert torch.equal(targets[:-1, -1], pieces[1:, 0])


def test_what_is_no_ascii(monkeypatch):
    monkeypatch.setattr("pydoc_data.topics.topics", {"b": "né\n", "a": "“ß”\t—"})
    _manual.cache_clear()
    try:
        pieces, targets = characters(1)
        assert text(pieces) + text(targets[-1]) == "?????ne\n"
    finally:
        _manual.cache_clear()


def test_some_of_the_characters():
    (pieces, targets), (all_pieces, all_targets) = characters(8, 3), characters(8)
    assert torch.equal(pieces, all_pieces[:3])
    assert torch.equal(targets, all_targets[:3])
    assert torch.equal(characters(np.int64(8), np.int64(3))[0], pieces)
    pieces.zero_()  # it is the caller's own
    assert torch.equal(characters(8, 3)[0], all_pieces[:3])


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"length": 1.5}, TypeError, "characters(length=1.5): a number of characters is an int"),
        ({"length": None}, TypeError, "characters(length=None): a number of characters is an int"),
        ({"length": True}, TypeError, "characters(length=True): a number of characters is an int"),
        ({"count": "3"}, TypeError, "characters(count='3'): a number of pieces is an int"),
        ({"length": 0}, ValueError, "characters(length=0): the text has "),
        ({"length": 10**9}, ValueError, "characters(length=1000000000): the text has "),
        ({"count": 0}, ValueError, "characters(length=64, count=0): there are "),
        ({"count": 10**6}, ValueError, "characters(length=64, count=1000000): there are "),
    ],
)
def test_what_are_no_characters(given, error, message):
    with pytest.raises(error, match=re.escape(message)):
        characters(**given)


def test_characters_on_another_default_device():
    _manual.cache_clear()
    with torch.device("meta"):
        pieces, _ = characters(16, 2)
    assert pieces.device.type == "cpu"
    assert text(pieces).isascii()
