"""Things to play with in a notebook: the float explorer."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from html import escape
from typing import Any, Final

from amp_lab.view import layout
from amp_lab.view.given import several
from amp_lab.view.stored import NumberFormat, Stored, store
from amp_lab.view.typed import NotANumber, Number, exactly, number, read

# What the slider reaches, in powers of ten, and its steps for each; other numbers can be typed.
_LOWEST, _HIGHEST, _STEPS = -9, 6, 100
# Not what Python does, which rounds 0.1, then 0.2, then their sum.
_ONCE = (
    "0.1 + 0.2 and the like are worked out exactly, and rounded once: to FP64, which all formats are given."
)
_CONTROL: Final[Mapping[str, Any]] = {"layout": {"width": "340px"}, "style": {"description_width": "60px"}}


def float_explorer(formats: Sequence[NumberFormat], value: float | str = 0.1) -> FloatExplorer:
    """Show what number formats make of a number that you type, slide to or step to.

    As the last line of a cell (or with `display`) it is a widget while a kernel runs, and a picture of `value`
    where none does. In a terminal, `print` it.

    Args:
        formats: such as `amp_lab.formats.ALL`; they are shown in this order.
        value: the number to start with: a float, or a text as one types it, such as "2**-24" or "1/3".

    Raises:
        TypeError: for anything but a list of formats, and a value that is neither a number nor a text.
        ValueError: for no formats, a text that is no number, and an int beyond FP64.
    """
    return FloatExplorer(formats, value)


class FloatExplorer:
    """The result of `float_explorer`: a widget, a picture and a text, whichever the place can show."""

    def __init__(self, formats: Sequence[NumberFormat], value: float | str) -> None:
        self.formats = tuple(several(formats, "float_explorer"))
        self.start = number(value)

    @cached_property
    def panel(self) -> Panel:
        """The live part; it needs ipywidgets."""
        return Panel(self.formats, self.start)

    def __repr__(self) -> str:
        return f"{_title(self.start)}\n{layout.as_text(_rows(self.formats, self.start))}"

    def _repr_mimebundle_(self, **_: object) -> Mapping[str, object]:
        """Give IPython all three forms. A reader without a kernel leaves out the widget and shows the picture."""
        shown = {"text/plain": repr(self), "image/png": self._picture()}
        try:
            return {**self.panel.box._repr_mimebundle_(), **shown}
        except ImportError:
            return shown

    def _picture(self) -> bytes:
        from matplotlib import pyplot as plt

        from amp_lab.view.bits import bit_layout

        figure = bit_layout([(format, self.start.text) for format in self.formats], _title(self.start))
        file = io.BytesIO()
        figure.savefig(file, format="png")
        plt.close(figure)  # or the notebook would show it a second time
        return file.getvalue()


class Panel:
    """The widgets: a number, three ways to change it, and what every format makes of it.

    `meant` is the number shown. Whatever is typed, nothing here raises: a kernel would have nowhere to show it.
    """

    def __init__(self, formats: Sequence[NumberFormat], meant: Number) -> None:
        import ipywidgets as w

        self.formats = formats
        self._own_change = False
        self.text = w.Text(description="number", tooltip=f"Type a number. {_ONCE}", **_CONTROL)
        hint = w.HTML(f"<small>{_ONCE}</small>")
        # Of whole numbers: a FloatSlider rounds what it is set to, and sends that back as if somebody had moved it.
        self.slider = w.IntSlider(
            min=_LOWEST * _STEPS,
            max=_HIGHEST * _STEPS,
            readout=False,
            description="slide",
            tooltip=f"From 1e{_LOWEST} to 1e{_HIGHEST}, keeping the sign",
            **_CONTROL,
        )
        names = [format.name for format in formats]
        places = [(name, place) for place, name in enumerate(names)]
        first = names.index("FP16") if "FP16" in names else 0
        self.choice = w.Dropdown(description="step in", options=places, value=first, **_CONTROL)
        self.choice.layout.width = "220px"
        self.down, self.up = (w.Button(layout={"width": "auto"}) for _ in range(2))
        self.message, self.table = w.HTML(), w.HTML(layout={"min_width": "0", "overflow": "auto"})
        rows = ([self.text, self.slider], [self.choice, self.down, self.up])
        controls = [w.HBox(row, layout={"flex_flow": "row wrap"}) for row in rows]
        self.box = w.VBox([*controls, hint, self.message, self.table])
        self._name_buttons()
        self._show(meant)
        self._listen()

    def _listen(self) -> None:
        self.text.observe(self._typed, "value")
        self.slider.observe(self._slid, "value")
        self.choice.observe(self._name_buttons, "value")
        self.down.on_click(lambda _: self._step(0))
        self.up.on_click(lambda _: self._step(1))

    def _typed(self, _: object) -> None:
        if self._own_change:
            return
        try:
            meant = read(self.text.value)
        except NotANumber as error:
            # A text may arrive after a slide that was made later: so say what the table is of.
            self._say(f"{error} The table is still of {self.meant.text}.")
        else:
            self._show(meant)

    def _slid(self, _: object) -> None:
        if self._own_change:
            return
        size = float(f"{10.0 ** (self.slider.value / _STEPS):.4g}")
        self._show(number(math.copysign(size, self.meant.value)))
        # Also what did not change here: a frontend that is waiting for its own text to arrive passes over another one.
        self.text.send_state("value")
        self.message.send_state("value")

    def _step(self, side: int) -> None:
        """Go to the chosen format's next number below (0) or above (1)."""
        format = self.formats[self.choice.value]
        there = float(format.neighbours(self.meant.value)[side])
        if not math.isnan(there):
            self._show(exactly(there))
        elif math.isnan(self.meant.value):
            self._say("NaN has no next number. Type one, such as 1.")
        else:
            self._say(f"{format.name} has no number {('below', 'above')[side]} {self.meant.text}.")

    def _show(self, meant: Number) -> None:
        """Show a number everywhere. The control that it came from shows it already, and is left as it is."""
        self.meant = meant
        self._own_change = True
        try:
            self.text.value = meant.text
            if not math.isnan(meant.value):
                self.slider.value = _position(meant.value)
        finally:
            self._own_change = False
        self.table.value = layout.as_html(_rows(self.formats, meant))
        self._say("")

    def _say(self, sentence: str) -> None:
        self.message.value = escape(sentence)

    def _name_buttons(self, _: object = None) -> None:
        name = self.formats[self.choice.value].name
        self.down.description, self.up.description = f"◀ previous {name} number", f"next {name} number ▶"


def _position(value: float) -> int:
    """Return where the slider stands for a number; beyond its ends, at them."""
    size = min(max(abs(value), 10.0**_LOWEST), 10.0**_HIGHEST)
    return round(math.log10(size) * _STEPS)


def _rows(formats: Sequence[NumberFormat], meant: Number) -> list[Stored]:
    return [store(format, meant) for format in formats]


def _title(meant: Number) -> str:
    return f"What each format makes of {meant.text}"
