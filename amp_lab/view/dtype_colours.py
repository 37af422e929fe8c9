"""The colour of every dtype, in figures and in tables: those of Okabe and Ito, which colour-blind people tell apart.

They also differ in lightness, so that they are not the same grey on paper. A colour never stands alone: the name
of the dtype is written beside or on it.
"""

from typing import Final, NamedTuple


class Look(NamedTuple):
    """A background, and the colour of text that can be read on it."""

    fill: str
    text: str


LOOKS: Final = {
    "FP16": Look("#0072B2", "#FFFFFF"),
    "BF16": Look("#009E73", "#FFFFFF"),
    "FP32": Look("#E69F00", "#000000"),
    "FP64": Look("#CC79A7", "#000000"),
    "FP8": Look("#56B4E9", "#000000"),
}
OTHER: Final = Look("#BBBBBB", "#000000")  # integers, complex numbers


def look(dtype: str) -> Look:
    """Return the look of a dtype by its name in words: "FP16", "FP8 E4M3", "int64"."""
    return LOOKS.get(dtype.partition(" ")[0], OTHER)
