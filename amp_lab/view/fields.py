"""The three fields of a floating-point number, and the colour that each has in every picture of this course."""

from typing import Final, NamedTuple


class Bits(NamedTuple):
    """The fields of one number as text, the most significant bit first."""

    sign: str
    exponent: str
    fraction: str


class Ink(NamedTuple):
    """The colour of a field's bits, and that of the digits on it; their contrast is over 5 to 1."""

    cell: str
    digit: str


# Okabe and Ito's vermillion, blue and bluish green: colour-blind people can tell them apart, on white and on black.
INKS: Final = (Ink("#D55E00", "#000000"), Ink("#0072B2", "#FFFFFF"), Ink("#009E73", "#000000"))
