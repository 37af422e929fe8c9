"""The six logs of exercise 7.8 as people see them: as a table, and drawn, a column of four small panels for each run.

So many panels are laid out by hand, and their ticks are few and given: looking for both takes Matplotlib seconds.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from amp_lab.course.lessons.l07.runs import FAULTS, STEPS, Log, log_of, logs
from amp_lab.view.lettering import GRID, ink
from amp_lab.view.plots import COLOURS
from amp_lab.view.powers import raised


def log_table(run: str, every: int = 1) -> str:
    """Return the log of a run as text, one line for each step, or for each `every`-th.

    Raises:
        ValueError: for what is not the letter of a run.
    """
    lines = ["step       loss        scale  gradient norm  learning rate"]
    for entry in log_of(run)[::every]:
        power = f"2^{math.log2(entry.scale):.0f}" if entry.scale else "0"
        numbers = f"{entry.step:4d} {entry.loss:10.4g} {power:>12} {entry.norm:14.4g} {entry.rate:14.3g}"
        lines.append(numbers + ("  skipped" if entry.skipped else ""))
    return "\n".join(lines)


def fault_list() -> str:
    """Return the faults as a list in Markdown."""
    return "\n".join(f"- **{letter}**: {words}" for letter, words in FAULTS.items())


class _Row(NamedTuple):
    """What one panel of each run shows: a name of an `Entry`, its words, its axis, and how high it is in inches."""

    name: str
    words: str
    ticks: dict[float, str]
    low: float
    high: float
    height: float = 0.75


_ROWS = (
    _Row("loss", "loss", {10.0: "10", 100.0: "100"}, 5.0, 200.0),
    # It sinks much further in two runs; then a jump by four powers could not be read any more.
    _Row("scale", "loss scale", {2.0**p: raised(p) for p in (0, 8, 16)}, 2.0**-4, 2.0**22, 1.15),
    _Row("norm", "gradient norm\nbefore clipping", {10.0: "10", 1e3: "1,000", 1e5: "100,000"}, 4.0, 2e5),
    _Row("rate", "learning rate", {1e-3: "0.001", 1e-2: "0.01"}, 3e-4, 1.5e-2),
)
_WIDTH, _LEFT, _RIGHT, _BETWEEN = 8.6, 1.65, 0.1, 0.15  # inches, as all that follow
_TOP, _TITLE, _GAP, _BOTTOM = 0.4, 0.3, 0.09, 0.5
_A_ROW = 3  # runs
_LINE: dict[str, Any] = {"color": COLOURS["blue"], "linewidth": 1.3, "marker": ".", "markersize": 3}
_SKIPPED: dict[str, Any] = {"color": COLOURS["orange"], "linestyle": "none", "marker": "x", "markersize": 4.5}
_NOT_FINITE: dict[str, Any] = {
    "color": COLOURS["pink"],
    "linestyle": "none",
    "marker": "s",
    "markersize": 4.5,
}


def draw_logs(run: str | None = None) -> Figure:
    """Draw all six logs, three in a row, each with four panels; or one run alone, larger.

    A cross marks a skipped step, a square at the lower edge a step where the quantity itself is infinite or NaN.

    Raises:
        ValueError: for what is not the letter of a run.
    """
    chosen = {run: log_of(run)} if run is not None else logs()
    larger = 1.0 if run is None else 1.6
    columns = min(len(chosen), _A_ROW)
    block = _TITLE + sum(row.height * larger + _GAP for row in _ROWS) + _BOTTOM
    height = _TOP + block * math.ceil(len(chosen) / _A_ROW)
    figure = plt.figure(figsize=(_WIDTH, height))
    width = (_WIDTH - _LEFT - _RIGHT - _BETWEEN * (columns - 1)) / columns
    for number, (letter, log) in enumerate(chosen.items()):
        across, down = number % _A_ROW, number // _A_ROW
        left, top = _LEFT + across * (width + _BETWEEN), height - _TOP - down * block - _TITLE
        for row in _ROWS:
            top -= row.height * larger
            place = (left / _WIDTH, top / height, width / _WIDTH, row.height * larger / height)
            axes = figure.add_axes(place)
            if row is _ROWS[0]:
                axes.set_title(f"run {letter}", fontsize=11, pad=4)
            _draw(axes, log, row, named=across == 0, last=row is _ROWS[-1])
            top -= _GAP
    keys = [Line2D([], [], **_SKIPPED), Line2D([], [], **_NOT_FINITE)]
    names = ["skipped step", "infinite or NaN (at the lower edge)"]
    figure.legend(keys, names, loc="upper left", ncols=2, frameon=False, fontsize=9.5, borderpad=0)
    return figure


def _draw(axes: Axes, log: Log, row: _Row, *, named: bool, last: bool) -> None:
    values = {entry.step: float(getattr(entry, row.name)) for entry in log}
    finite = {step: value if math.isfinite(value) else math.nan for step, value in values.items()}
    axes.set_yscale("log")
    axes.plot([*finite], [*finite.values()], **_LINE)
    skipped = [entry.step for entry in log if entry.skipped]
    axes.plot(skipped, [finite[step] for step in skipped], **_SKIPPED)
    lost = [step for step, value in finite.items() if math.isnan(value)]
    axes.plot(lost, [0.06] * len(lost), transform=axes.get_xaxis_transform(), **_NOT_FINITE)
    axes.set(xlim=(-1, STEPS + 2), ylim=(row.low, row.high))
    axes.set_xticks([1, 20, 40, 60], ["1", "20", "40", "60"] if last else [])
    axes.set_yticks([*row.ticks], [*row.ticks.values()] if named else [""] * len(row.ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.tick_params(labelsize=9)
    axes.grid(**GRID)
    if named:  # beside the ticks, where the labels of all rows begin at the same place
        axes.annotate(
            row.words, (0, 0.5), (-1.6 * 72, 0), "axes fraction", "offset points", va="center", fontsize=9.5
        )
    if last:
        axes.set_xlabel("step", fontsize=9.5, labelpad=1)
    beyond = log[-1].scale
    if row.name == "scale" and 0 < beyond < row.low:
        words = f"in step {log[-1].step}: {raised(round(math.log2(beyond)))}"
        axes.text(STEPS, row.high / 4, words, ha="right", va="top", fontsize=9, color=ink())
