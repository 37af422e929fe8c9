"""How wide a text is in a figure, and texts cut or broken into lines for their place."""

from __future__ import annotations

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath

from amp_lab.view.lettering import wrapped

_MEASURE = TextToPath()
# On a screen, letters are moved to whole pixels, and a line of small ones grows: what a text may take of its room.
TAKEN = 0.93


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


def in_lines(text: str, room: float, size: float, lines: int = 2) -> str:
    """Return a text as `wrapped` does, in lines that are as long as `room`, in inches, allows."""
    room *= TAKEN
    most = int(room * 72 / (0.3 * size))  # of letters: few are narrower than that
    for letters in range(max(2, min(most, len(text))), 1, -1):
        found = wrapped(text, letters, lines)
        if all(width(line.replace(r"\$", "$"), size) <= room for line in found.splitlines()):
            return found
    return wrapped(text, 2, lines)
