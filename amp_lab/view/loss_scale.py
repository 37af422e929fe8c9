"""A slider for the loss scale: it moves the gradients of a real step through the numbers that a format has."""

from __future__ import annotations

import math
from html import escape
from typing import Any, Final, Protocol

from matplotlib.figure import Figure

from amp_lab.view import gradients, powers
from amp_lab.view.gradients import LOOKS, Fates, check_report, percent
from amp_lab.view.shown import Shown, as_image
from amp_lab.view.typed import as_float

# Powers of two that the picture shows on either side of the format's window, and that the slider reaches at most.
_BESIDE: Final = 10
_LOWEST, _HIGHEST, _USUAL = -24, 126, 16
# The slider goes on a little beyond where the largest gradients overflow, and where the smallest are saved; but bars
# lower than this part of the highest do not count there.
_FURTHER: Final = 4
_SEEN: Final = 0.01


class CountedFates(Fates, Protocol):
    """The counts themselves, too."""

    @property
    def zero(self) -> int: ...
    @property
    def subnormal(self) -> int: ...
    @property
    def normal(self) -> int: ...
    @property
    def overflow(self) -> int: ...


class Report(gradients.Report, Protocol):
    """What is asked of a report; `amp_lab.watching.gradients.GradientReport` answers."""

    def at(self, scale: float | None = None) -> CountedFates: ...
    @property
    def recommended_scale(self) -> float | None: ...


def loss_scale_explorer(report: Report, scale: float | None = None) -> LossScaleExplorer:
    """Show what becomes of the gradients of a report at the loss scale that you slide to.

    As the last line of a cell (or with `display`) it is a widget while a kernel runs, and a picture at `scale` where
    none does. In a terminal, `print` it.

    Args:
        report: what `amp_lab.gradient_report` returns.
        scale: the loss scale to start with, a power of two; None: that of the report.

    Raises:
        TypeError: for what is no report, and a scale that is no number.
        ValueError: for a scale that is no power of two, or none from 2^-24 to 2^126.
    """
    check_report(report, "loss_scale_explorer")
    start = report.scale if scale is None else as_float(scale, "scale")
    report.at(start)  # an error stands better here than in the widget
    if not _LOWEST <= math.log2(start) <= _HIGHEST:
        whose = " (the report's own; pass another, such as scale=1.0)" if scale is None else ""
        raise ValueError(f"scale={start:g}{whose}: the slider goes from 2**{_LOWEST} to 2**{_HIGHEST}")
    return LossScaleExplorer(report, start)


class LossScaleExplorer(Shown):
    """The result of `loss_scale_explorer`: a widget, a picture and a text."""

    def __init__(self, report: Report, start: float) -> None:
        self.report = report
        self.start = start

    def _make_panel(self) -> Panel:
        return Panel(self.report, self.start)

    def _draw(self) -> Figure:
        return _picture(self.report, self.start)

    def __repr__(self) -> str:
        return in_words(self.report, self.start)


class Panel:
    """The widgets: a slider over powers of two, what becomes of the gradients as a sentence, and as a picture."""

    def __init__(self, report: Report, start: float) -> None:
        import ipywidgets as w

        self.report = report
        power = round(math.log2(start))
        low, high = _reach(report, power)
        self.slider = w.SelectionSlider(
            # Short, as the bar gives way to a readout that grows; the sentence below has the number.
            options=[(powers.briefly(math.ldexp(1, each)), each) for each in range(low, high + 1)],
            value=power,
            description="loss scale",
            layout={"width": "560px", "max_width": "100%"},
            style={"description_width": "70px"},
        )
        self.best = w.Button(tooltip="Set the slider to it", layout={"width": "auto", "margin": "2px 16px"})
        self._offer_recommended(low, high)
        self.sentence, self.picture = w.HTML(), w.HTML()
        controls = w.HBox([self.slider, self.best], layout={"flex_flow": "row wrap"})
        self.box = w.VBox([controls, self.sentence, self.picture])
        self._show()
        self.slider.observe(self._show, "value")

    def _offer_recommended(self, low: int, high: int) -> None:
        scale = self.report.recommended_scale
        power = None if scale is None else round(math.log2(scale))
        if power is None or not low <= power <= high:
            self.best.layout.display = "none"
            return
        self.best.description = f"go to the recommended {powers.briefly(math.ldexp(1, power))}"
        self.best.on_click(lambda _: setattr(self.slider, "value", power))

    def _show(self, _: object = None) -> None:
        scale = math.ldexp(1, self.slider.value)
        words = in_words(self.report, scale)
        self.sentence.value = escape(words)
        self.picture.value = as_image(_picture(self.report, scale), words)


def _reach(report: Report, start: int) -> tuple[int, int]:
    """Return the slider's ends: from before the largest gradients overflow to where they do, and the smallest fit."""
    highest = max(report.counts, default=0)
    bars = [p for p, count in zip(report.powers, report.counts, strict=True) if count > _SEEN * highest]
    low, high = 0, _USUAL
    if bars:
        overflows = math.ceil(math.log2(report.window.overflow_from)) - report.powers[-1]
        saved = math.ceil(math.log2(report.window.zero_up_to)) - bars[0]
        low, high = overflows - _FURTHER, max(overflows, saved) + _FURTHER
    return max(_LOWEST, min(low, 0, start)), min(_HIGHEST, max(high, _USUAL, start))


def _picture(report: Report, scale: float) -> Figure:
    """Draw what `gradients.gradient_histogram` draws, on an axis that stays where it is whatever the scale."""
    low, high = gradients.window_ends(report)
    ends = (low - _BESIDE, high + _BESIDE)
    figure = Figure(figsize=(8, 3.9))
    gradients.draw(figure, report, scale, report.at(scale), gradients.default_title(report, scale), ends)
    return figure


def in_words(report: Report, scale: float) -> str:
    """Say what becomes of the gradients at a scale, with their numbers."""
    fates = report.at(scale)
    counts: dict[str, Any] = {name: getattr(fates, name) for name in LOOKS}
    said = [f"{count:,} {LOOKS[name].name} ({percent(fates.share(name))})" for name, count in counts.items()]
    where = f"At scale {powers.in_words(scale)}, in {report.format_name}"
    return f"{where}: of {fates.nonzero:,} nonzero gradients {', '.join(said)}."
