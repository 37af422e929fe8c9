"""The handwritten digits: their shapes, dtypes and values, and what is refused."""

import re

import pytest
import torch

from amp_lab.train.data import digits


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
