"""Where memory goes: one bar for each way to train, stacked by category."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from amp_lab.view.given import finite, named
from amp_lab.view.lettering import GRID, wrapped
from amp_lab.view.plots import COLOURS

# Neighbours differ in lightness, too, and the casts, which are what autocast adds, have strokes.
_STYLES: Final[tuple[dict[str, Any], ...]] = (
    {"color": COLOURS["blue"]},
    {"color": "#8CC4E8"},
    {"color": COLOURS["green"]},
    {"color": COLOURS["orange"]},
    {"color": "#F0B48A", "hatch": "///", "edgecolor": "#7A3600", "linewidth": 0},
    {"color": COLOURS["pink"]},
    {"color": "#555555"},
    {"color": "#BBBBBB"},
)
_MIB: Final = 2**20
_SHOWN: Final = 0.04  # a part smaller than this share of the longest bar has no number in it


def memory_bars(accounts: Mapping[str, Mapping[str, float]], title: str | None = None) -> Figure:
    """Draw one horizontal bar for each account, stacked by category in the order of the first.

    Args:
        accounts: for each bar its name and the bytes of each category by name, eight at most. Categories that are empty
            in all bars are left out.
        title: what the picture says; None: of two bars, how far they are apart.

    Raises:
        TypeError: for what is no mapping of mappings.
        ValueError: for no account, one that is empty, and for more than eight categories.
    """
    named(accounts, "memory_bars", "{'FP32': {'weights': 4e6}}")
    if not accounts:
        raise ValueError("memory_bars was given no account to draw")
    for each in accounts.values():
        named(each, "memory_bars", "{'FP32': {'weights': 4e6}}")
        if bad := [name for name, size in each.items() if not finite(size)]:
            raise ValueError(
                f"memory_bars draws bytes, finite and not negative; {bad[0]} is {each[bad[0]]!r}"
            )
    names = [name for name in _categories(accounts) if any(each.get(name) for each in accounts.values())]
    if not 1 <= len(names) <= len(_STYLES):
        raise ValueError(f"memory_bars draws 1 to {len(_STYLES)} categories, not {len(names)}")
    longest = max(sum(each.values()) for each in accounts.values()) / _MIB
    figure, axes = plt.subplots(figsize=(8, 1.7 + 0.55 * len(accounts)), layout="constrained")
    begins = dict.fromkeys(accounts, 0.0)
    for name, style in zip(names, _styles(accounts, names), strict=True):
        parts = [account.get(name, 0) / _MIB for account in accounts.values()]
        bars = axes.barh(list(accounts), parts, left=list(begins.values()), label=name, height=0.62, **style)
        texts = [f"{part:.3g}" if part >= _SHOWN * longest else "" for part in parts]
        if "hatch" not in style:
            axes.bar_label(bars, texts, label_type="center", color=_ink(style), fontsize=9)
        begins = {bar: begin + part for (bar, begin), part in zip(begins.items(), parts, strict=True)}
    for place, end in enumerate(begins.values()):
        axes.text(end + longest / 100, place, f"{end:.3g} MiB", va="center")
    _finish(axes, longest)
    axes.set_title(wrapped(title or _title(begins)))
    figure.legend(loc="outside lower center", ncols=min(4, len(names)), frameon=False)
    return figure


def _categories(accounts: Mapping[str, Mapping[str, float]]) -> list[str]:
    return list(dict.fromkeys(name for account in accounts.values() for name in account))


def _styles(accounts: Mapping[str, Mapping[str, float]], names: list[str]) -> list[dict[str, Any]]:
    """Return a style for each category: the same in all figures that have the same categories, drawn or not."""
    every = _categories(accounts)
    places = range(len(names)) if len(every) > len(_STYLES) else [every.index(name) for name in names]
    return [_STYLES[place] for place in places]


def _ink(style: Mapping[str, Any]) -> str:
    return "black" if style["color"] in ("#8CC4E8", "#BBBBBB") else "white"


def _finish(axes: Axes, longest: float) -> None:
    axes.invert_yaxis()  # the first on top
    axes.set_xlim(0, 1.16 * longest)
    axes.set_xlabel("memory (MiB)")
    axes.grid(True, axis="x", **GRID)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _title(totals: Mapping[str, float]) -> str:
    names = sorted(totals, key=lambda name: totals[name])
    if len(names) != 2:
        return "Memory of a training step" + (f": {names[0]}" if len(names) == 1 else "")
    less, more = names
    if not totals[less]:
        return f"{less} keeps nothing, {more} does"
    return f"{more} keeps {totals[more] / totals[less]:.2f} times as much as {less}"
