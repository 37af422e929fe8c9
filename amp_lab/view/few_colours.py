"""A figure as a picture of few colours, for pages: drawings of lines and letters take a third of the bytes so."""

from __future__ import annotations

import io

from IPython.display import Image
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from PIL import Image as pillow


def few_colours(figure: Figure, colours: int = 64) -> Image:
    """Return the figure as a PNG with a palette, to be the last expression of a cell, and close the figure.

    Args:
        figure: a drawing without photographs or fine shades of colour.
        colours: how many different ones are kept, 2 to 256.
    """
    full = io.BytesIO()
    figure.savefig(full, format="png")
    plt.close(figure)
    small = io.BytesIO()
    pillow.open(full).convert("RGB").quantize(colours).save(small, format="png", optimize=True)
    return Image(small.getvalue())  # type: ignore[no-untyped-call]
