"""Dynamic loss scaling replayed over the gradients of a real run, with settings that you slide to."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from itertools import pairwise
from typing import Any, Final, Protocol

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from amp_lab.view import powers
from amp_lab.view.given import numbers
from amp_lab.view.gradients import percent
from amp_lab.view.plots import COLOURS
from amp_lab.view.scale_history import History, draw_scales, is_history, tidy
from amp_lab.view.shown import Shown, as_image
from amp_lab.view.typed import as_float

_OVERFLOW_FROM: Final = 65520.0  # of this size a number rounds to infinity in FP16
# What the sliders offer; a setting that is given stands among them.
_OFFERED: Final[Mapping[str, Sequence[float]]] = {
    "init_scale": [2.0**power for power in range(33)],
    "growth_interval": [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000],
    "growth_factor": [1.1, 1.5, 2.0, 4.0, 8.0, 16.0],
    "backoff_factor": [0.0625, 0.125, 0.25, 0.5, 0.75, 0.9],
}


class Simulate(Protocol):
    """The rule of the scaler; `amp_lab.scaling.simulate` is one."""

    def __call__(
        self,
        peaks: Sequence[float],
        /,
        *,
        init_scale: float,
        growth_factor: float,
        backoff_factor: float,
        growth_interval: int,
    ) -> History: ...


def scaler_simulator(
    peaks: Iterable[float] | torch.Tensor,
    simulate: Simulate,
    *,
    init_scale: float = 2.0**16,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 20,
) -> ScalerSimulator:
    """Show what a dynamic loss scale would have done in a run, with the settings that you slide to.

    As the last line of a cell (or with `display`) it is a widget while a kernel runs, and a picture of the settings
    given where none does. In a terminal, `print` it.

    Args:
        peaks: the largest |gradient|, unscaled, of each step of a real run.
        simulate: the rule, `amp_lab.scaling.simulate`: given peaks and the four settings it returns a history. The
            picture shows its scales against those at which FP16 overflows.
        init_scale, growth_factor, backoff_factor, growth_interval: the settings to start with.

    Raises:
        TypeError: if peaks or settings are no numbers, or simulate is no function of these that returns a history.
        ValueError: for no peaks and negative ones; and what `simulate` raises for settings that it refuses.
    """
    run = numbers(peaks, "peaks")
    if not run:
        raise ValueError("peaks is empty: it is the largest |gradient| of each step of a run")
    if negative := [peak for peak in run if peak < 0]:
        raise ValueError(f"peaks are sizes, the largest |gradient| of each step; this one is {negative[0]:g}")
    if not callable(simulate):
        raise TypeError(
            f"simulate must be a function, such as amp_lab.scaling.simulate; this is {type(simulate).__name__}"
        )
    settings = {
        "init_scale": as_float(init_scale, "init_scale"),
        "growth_interval": growth_interval,
        "growth_factor": as_float(growth_factor, "growth_factor"),
        "backoff_factor": as_float(backoff_factor, "backoff_factor"),
    }
    _check_rule(simulate, settings)
    return ScalerSimulator(_Replay(run, simulate), settings)


def _check_rule(simulate: Any, settings: Mapping[str, float]) -> None:
    try:
        inspect.signature(simulate).bind([], **settings)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"simulate must take the peaks and {', '.join(settings)}, as amp_lab.scaling.simulate does ({error})"
        ) from None


class _Replay:
    """A run, and the rule that it is replayed with."""

    def __init__(self, peaks: list[float], simulate: Simulate) -> None:
        self.peaks = peaks
        self._simulate: Any = simulate
        self.bearable = [_bearable(peak) for peak in peaks]

    def history(self, settings: Mapping[str, float]) -> History:
        found: History = self._simulate(self.peaks, **settings)
        if not is_history(found):
            raise TypeError(f"simulate must return a history of scales and skipped, not {found!r}")
        return found

    def picture(self, history: History) -> Figure:
        figure = Figure(figsize=(8, 3.6))
        # Fixed margins, and so a fixed size of letters: Matplotlib's layout engines are what would take longest here.
        with rc_context({"font.size": 10}):
            axes = figure.add_axes((0.085, 0.135, 0.9, 0.76))
            axes.tick_params(labelsize=10)
            self._draw_bearable(axes)
            draw_scales(axes, history.scales, history.skipped, self._ends(history))
            tidy(axes, len(self.peaks))  # also if the scaler stops before
            axes.set_xlabel("training step")
        return figure

    def _draw_bearable(self, axes: Any) -> None:
        heights = [math.log2(scale) if 0 < scale < math.inf else math.nan for scale in self.bearable]
        # Without a height: nothing is too large without a gradient, and everything if that is infinite.
        tops = [
            math.copysign(1e6, scale - 1) if math.isnan(height) else height
            for scale, height in zip(self.bearable, heights, strict=True)
        ]
        steps = range(len(heights))
        axes.plot(
            steps,
            heights,
            drawstyle="steps-mid",
            color="#777777",
            linewidth=1,
            marker="None",
            zorder=3,  # on the scale, which may go up and down in every step
            label="overflows above",
        )
        axes.fill_between(steps, tops, 1e6, step="mid", color=COLOURS["orange"], alpha=0.12, linewidth=0)

    def _ends(self, history: History) -> tuple[float, float]:
        """Return the ends of the axis: with all scales on it, and all that the run would bear."""
        shown = [math.log2(x) for x in (*history.scales, *self.bearable) if 0 < x < math.inf]
        return (min(shown) - 1, max(shown) + 1) if shown else (-1, 1)


def _bearable(peak: float) -> float:
    """Return the scale at which a step begins to overflow: infinite without a gradient, 0 if that is not finite."""
    if peak == 0:
        return math.inf
    return _OVERFLOW_FROM / peak if math.isfinite(peak) else 0.0


class ScalerSimulator(Shown):
    """The result of `scaler_simulator`: a widget, a picture and a text."""

    def __init__(self, replay: _Replay, settings: Mapping[str, float]) -> None:
        self._replay = replay
        self.settings = dict(settings)
        self._history = replay.history(settings)  # an error stands better here than in the widget

    def _make_panel(self) -> Panel:
        return Panel(self._replay, self.settings)

    def _draw(self) -> Figure:
        return self._replay.picture(self._history)

    def __repr__(self) -> str:
        return in_words(self._history, self.settings, len(self._replay.peaks))


class Panel:
    """The widgets: a slider for each setting, what the scale did as a sentence, and as a picture."""

    def __init__(self, replay: _Replay, settings: Mapping[str, float]) -> None:
        import ipywidgets as w

        self._replay = replay
        self.sliders = {
            name: w.SelectionSlider(
                options=[(_short(name, each), each) for each in sorted({*_OFFERED[name], value})],
                value=value,
                description=name,
                layout={"width": "380px", "max_width": "100%"},
                style={"description_width": "105px"},
            )
            for name, value in settings.items()
        }
        self.sentence, self.picture = w.HTML(), w.HTML()
        controls = w.HBox(list(self.sliders.values()), layout={"flex_flow": "row wrap"})
        self.box = w.VBox([controls, self.sentence, self.picture])
        self._show()
        for slider in self.sliders.values():
            slider.observe(self._show, "value")

    def _show(self, _: object = None) -> None:
        settings = {name: slider.value for name, slider in self.sliders.items()}
        try:
            history = self._replay.history(settings)
        except (ValueError, RuntimeError) as error:  # a kernel would have nowhere to show it
            self.sentence.value = escape(f"{error} The picture is still of other settings.")
            return
        words = in_words(history, settings, len(self._replay.peaks))
        self.sentence.value = escape(words)
        self.picture.value = as_image(self._replay.picture(history), words)


def _short(name: str, value: float) -> str:
    return powers.briefly(value) if name == "init_scale" else powers.plain(value)


def in_words(history: History, settings: Mapping[str, float], planned: int) -> str:
    """Say what the scale did over a run of so many planned steps, with its settings."""
    scales, skips = history.scales, sum(history.skipped)
    if not scales:
        return "The run stops before its first step."
    steps = len(scales)
    done = f"{steps:,}" if steps == planned else f"The run stops after {steps:,} of {planned:,}"
    grown = sum(later > earlier for earlier, later in pairwise(scales))
    said = ", ".join(f"{name} {_short(name, value)}" for name, value in settings.items())
    return (
        f"{done} steps, {skips:,} skipped ({percent(skips / steps)}); the scale grew {grown:,} "
        f"times, the last step had {powers.in_words(scales[-1])}. Settings: {said}."
    )
