"""How wide a text is in a figure, and texts cut to their place."""

from __future__ import annotations

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

_MEASURE = TextToPath()


def width(text: str, size: float, bold: bool = False) -> float:
    """Return how wide a text of this size in points is, in inches, in the font of the style."""
    font = FontProperties(size=size, weight="bold" if bold else "normal")
    return float(_MEASURE.get_text_width_height_descent(text, font, False)[0]) / 72 if text else 0.0


def fitting(text: str, room: float, size: float, bold: bool = False) -> str:
    """Return a text, cut at its beginning if it is wider than `room` in inches: the end of a path says most."""
    if width(text, size, bold) <= room:
        return text
    while text and width("…" + text, size, bold) > room:
        text = text[1:]
    return "…" + text
