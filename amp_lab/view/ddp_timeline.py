"""What several ranks do beside each other: bars along an axis of time, two rows for each rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from amp_lab.view.lettering import GRID, ink, wrapped
from amp_lab.view.plots import COLOURS


class Bar(Protocol):
    """What is asked of an event; that of `amp_lab.train.ddp_simulator` answers. Times are in milliseconds."""

    @property
    def rank(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def what(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


# A letter in each bar, and shades that differ in grey, too, so that nobody needs the colours.
_LOOKS: Final[dict[str, tuple[str, dict[str, Any]]]] = {
    "forward": ("F", {"facecolor": "#8CC4E8"}),
    "backward": ("B", {"facecolor": COLOURS["blue"]}),
    "wait": ("", {"facecolor": "none", "edgecolor": "#888888", "hatch": "....", "linewidth": 0.6}),
    "unscale": ("u", {"facecolor": "#E8D44D"}),
    "clip": ("c", {"facecolor": "#C9B63A"}),
    "step": ("S", {"facecolor": "#7FD3B6"}),
    "skip": ("X", {"facecolor": COLOURS["orange"]}),
    "update": ("U", {"facecolor": "#F0B48A"}),
    "all-reduce": ("", {"facecolor": COLOURS["pink"]}),
    "wrong pairing": (
        "",
        {"facecolor": COLOURS["pink"], "edgecolor": "black", "hatch": "////", "linewidth": 0.6},
    ),
    "broadcast": ("", {"facecolor": "#B58FC2"}),
    "barrier": ("|", {"facecolor": "#222222", "edgecolor": "#222222"}),
}
_HALT: Final[dict[str, Any]] = {
    "facecolor": "none",
    "edgecolor": COLOURS["orange"],
    "hatch": "xxx",
    "linewidth": 1.2,
}
_IN_A_BAR: Final[dict[str, Any]] = {"ha": "center", "va": "center", "fontsize": 8, "parse_math": False}
_NETWORK: Final = {"all-reduce", "wrong pairing", "broadcast", "barrier"}
_DARK: Final = {"backward", "barrier"}
# What parts of the axis' width are needed by a letter in a bar, by one above a bar, and by an edge.
_LETTER: Final = 0.011
_SMALL_LETTER: Final = 0.0075
_EDGE: Final = 0.004
_TITLE: Final = 86  # characters, in a figure 9 inches wide


def ddp_timeline(
    events: Iterable[Bar], ranks: int, halted: Mapping[int, tuple[float, str | None]], title: str
) -> Figure:
    """Draw the events of all ranks, for each rank a row of what it did, and one of what its network did.

    Args:
        events: with rank, kind, what, start and end, in milliseconds.
        ranks: how many there are.
        halted: after a deadlock, for each rank since when it waits, in milliseconds, and in what; None: it had ended.
        title: what the picture says.

    Raises:
        ValueError: if there is nothing to draw, or an event of a rank that is not there, or without a finite time.
    """
    bars = list(events)
    if not bars and not halted:
        raise ValueError("ddp_timeline was given no event to draw: let the programs do something")
    for bar in bars:
        if not (0 <= bar.rank < ranks and 0 <= bar.start <= bar.end < math.inf):
            raise ValueError(
                f"ddp_timeline draws events of ranks 0 to {ranks - 1} with finite times, not {bar}"
            )
    end = max([bar.end for bar in bars] + [since for since, _ in halted.values()]) or 1.0
    right = 1.45 * end if halted else 1.01 * end
    figure, axes = plt.subplots(figsize=(9, 1.7 + 0.8 * ranks), layout="constrained")
    for bar in bars:
        _draw(axes, bar, right)
    _write_scales(axes, bars, right)
    for rank, (since, what) in halted.items():
        _draw_halt(axes, rank, since, right, what)
    _finish(axes, ranks, right)
    axes.set_title(wrapped(title, _TITLE), loc="left", fontsize=11)
    keys = _keys(bars, halted)
    columns = math.ceil(len(keys) / math.ceil(len(keys) / 6))
    figure.legend(handles=keys, loc="outside lower center", ncols=columns, frameon=False, fontsize=9)
    return figure


def _look(kind: str) -> tuple[str, dict[str, Any]]:
    return _LOOKS.get(kind, (kind[:2].capitalize(), {"facecolor": "#BBBBBB"}))


def _draw(axes: Axes, bar: Bar, right: float) -> None:
    letter, look = _look(bar.kind)
    network = bar.kind in _NETWORK
    height, middle = (0.26, bar.rank + 0.22) if network else (0.4, bar.rank - 0.16)
    width = bar.end - bar.start
    edge = {"edgecolor": axes.get_facecolor(), "linewidth": 0.6} if width > _EDGE * right else {}
    axes.barh(middle, width, height, left=bar.start, **{**edge, **look})
    text = letter if bar.kind == "update" else letter + bar.what  # an update's is written above it
    # On strokes a letter needs a ground of its own.
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 0.8} if "hatch" in look else None
    letters = len(text) + (ground is not None)
    if text and width > _LETTER * letters * right:
        colour = "white" if bar.kind in _DARK else "black"
        axes.text(bar.start + width / 2, middle, text, color=colour, bbox=ground, **_IN_A_BAR)


def _write_scales(axes: Axes, bars: Iterable[Bar], right: float) -> None:
    """Write each new loss scale above the end of its update, unless the one before is in the way."""
    taken: dict[int, float] = {}  # for each rank, up to where
    for bar in sorted(bars, key=lambda bar: bar.end):
        half = _SMALL_LETTER * len(bar.what) * right / 2
        if bar.kind == "update" and bar.what and bar.end - half >= taken.get(bar.rank, -math.inf):
            axes.text(bar.end, bar.rank - 0.38, bar.what, ha="center", va="bottom", fontsize=7)
            taken[bar.rank] = bar.end + half


def _draw_halt(axes: Axes, rank: int, since: float, right: float, what: str | None) -> None:
    if what is None:
        axes.text(since + right / 100, rank - 0.16, "has ended", va="center", fontsize=8, style="italic")
        return
    axes.barh(rank - 0.16, right - since, 0.4, left=since, **_HALT)
    ground = {"facecolor": axes.get_facecolor(), "edgecolor": "none", "pad": 1.5}
    axes.text(0.99 * right, rank - 0.16, wrapped(what, 36), ha="right", va="center", fontsize=8, bbox=ground)


def _finish(axes: Axes, ranks: int, right: float) -> None:
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.set(xlim=(0, right), ylim=(ranks - 0.55, -0.55), xlabel="time (ms)")
    for line in range(1, ranks):
        axes.axhline(line - 0.56, color=ink(), linewidth=0.4, alpha=0.4)
    axes.grid(True, axis="x", **GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _keys(bars: Sequence[Bar], halted: Mapping[int, Any]) -> list[Patch]:
    seen = list(dict.fromkeys(bar.kind for bar in bars))
    order = [*(kind for kind in _LOOKS if kind in seen), *(kind for kind in seen if kind not in _LOOKS)]
    keys = []
    for kind in order:
        letter, look = _look(kind)
        name = f"{letter}  {kind}" if letter else kind
        if kind == "all-reduce":
            name += " (number: bucket)"
        keys.append(Patch(label=name, **look))
    if halted:
        keys.append(Patch(label="waits for ever", **_HALT))
    return keys
