"""What a widget leaves where no kernel runs: a picture and a text."""

from __future__ import annotations

import base64
import io
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from html import escape
from typing import Any

from matplotlib.figure import Figure


class Shown(ABC):
    """A widget, a picture and a text, whichever the place can show: as the last line of a cell, or with `display`."""

    @cached_property
    def panel(self) -> Any:
        """The live part, with its widgets in `box`; it needs ipywidgets."""
        return self._make_panel()

    @abstractmethod
    def _make_panel(self) -> Any: ...

    @abstractmethod
    def _draw(self) -> Figure:
        """Return the picture of the start, as a figure that pyplot knows nothing of: it would be shown once more."""

    def _repr_mimebundle_(self, **_: object) -> Mapping[str, object]:
        """Give IPython all three forms. A reader without a kernel leaves out the widget and shows the picture."""
        shown = {"text/plain": repr(self), "image/png": as_png(self._draw())}
        try:
            return {**self.panel.box._repr_mimebundle_(), **shown}
        except ImportError:
            return shown


def as_png(figure: Figure) -> bytes:
    """Return a figure as a file."""
    file = io.BytesIO()
    figure.savefig(file, format="png", pil_kwargs={"compress_level": 1})  # a third of the time
    return file.getvalue()


def as_image(figure: Figure, words: str) -> str:
    """Return a figure as HTML, no wider than its place, with words for those who cannot see it."""
    data = base64.b64encode(as_png(figure)).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{escape(words)}" style="max-width: 100%; height: auto">'
