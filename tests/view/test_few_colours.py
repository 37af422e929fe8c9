"""A figure as a picture of few colours."""

import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from amp_lab.view.few_colours import few_colours


@pytest.fixture
def figure():
    figure, axes = plt.subplots(figsize=(4, 3))
    for number in range(8):
        axes.plot([0, number], [1, 2], label=f"line {number}")
    axes.legend()
    yield figure
    plt.close(figure)


def test_it_is_the_same_picture_in_far_fewer_bytes(figure):
    full = io.BytesIO()
    figure.savefig(full, format="png")
    small = few_colours(figure)
    assert len(small.data) < 0.6 * len(full.getvalue())
    before, after = (
        np.asarray(Image.open(io.BytesIO(each)).convert("RGB"), dtype=int)
        for each in (full.getvalue(), small.data)
    )
    assert before.shape == after.shape
    far = (abs(before - after).max(axis=2) > 60).mean()
    assert far < 0.001


def test_it_has_as_many_colours_as_are_asked_for_and_the_figure_is_closed(figure):
    small = few_colours(figure, 8)
    assert len(Image.open(io.BytesIO(small.data)).convert("RGB").getcolors()) <= 8
    assert not plt.fignum_exists(figure.number)
