"""Draw `course.svg`, the picture of the course in the README: four rows of three lessons.

A lesson that the catalogue has is drawn solid, with its time; one that is still to come is drawn dashed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from amp_lab.course import catalog  # noqa: E402


class Planned(NamedTuple):
    """A lesson of the plan: its number, its title, and the question of a learner that it answers."""

    number: str
    title: str
    question: str


# Rows of the picture, each with what one is doing in it.
PLAN: dict[str, tuple[Planned, ...]] = {
    "See the numbers": (
        Planned("00", "Start here", "Why does half() get stuck?"),
        Planned("01", "Number formats", "What fits into 16 bits?"),
        Planned("02", "FP16 failures", "Where does NaN come from?"),
    ),
    "Build it by hand": (
        Planned("03", "Mixed precision by hand", "Why keep FP32 weights?"),
        Planned("04", "Static loss scaling", "Where did gradients go?"),
        Planned("05", "Dynamic loss scaling", "Who picks the scale?"),
    ),
    "Let PyTorch do it": (
        Planned("06", "Autocast", "Which op, in which dtype?"),
        Planned("07", "GradScaler in practice", "What ails this loop?"),
        Planned("08", "What AMP buys", "Is it faster? By how much?"),
    ),
    "Train for real": (
        Planned("09", "A Trainer", "Can I stop it and go on?"),
        Planned("10", "DDP + AMP", "And on several GPUs?"),
        Planned("11", "Beyond, and interviews", "What comes after FP16?"),
    ),
}

# Row colours: Okabe and Ito's, paler for the boxes.
_COLOURS = (("#0072B2", "#e3f0f8"), ("#D55E00", "#fbeadf"), ("#007a5a", "#e0f3ed"), ("#8f4675", "#f6eaf1"))
_WIDTH, _BOX_WIDTH, _BOX_HEIGHT, _LEFT, _TOP, _GAP, _ROW = 900, 260, 72, 24, 44, 36, 122


def drawing() -> str:
    """Return the picture as the text of an SVG file."""
    height = _TOP + _ROW * len(PLAN)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" font-family="system-ui, sans-serif" role="img">',
        "<title>The lessons of AMP Lab, in order</title>",
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#555"/></marker></defs>',
        f'<rect width="{_WIDTH}" height="{height}" rx="10" fill="#fff"/>',
        *_boxes(),
        f'<text x="{_LEFT}" y="{height - 16}" font-size="12.5" fill="#555">solid: ready · dashed: still to come</text>',
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _boxes() -> Iterator[str]:
    for row, (doing, planned) in enumerate(PLAN.items()):
        y = _TOP + row * _ROW
        strong, pale = _COLOURS[row]
        yield f'<text x="{_LEFT}" y="{y - 12}" font-size="17" font-weight="600" fill="{strong}">{doing}</text>'
        for column, lesson in enumerate(planned):
            x = _LEFT + column * (_BOX_WIDTH + _GAP)
            yield from _box(x, y, lesson, strong, pale)
            if column < len(planned) - 1:
                yield _arrow(f"M{x + _BOX_WIDTH + 4} {y + _BOX_HEIGHT / 2:g}h{_GAP - 10}")
        if row < len(PLAN) - 1:  # back to the start of the next row, under the boxes
            middle = _LEFT + 2 * (_BOX_WIDTH + _GAP) + _BOX_WIDTH // 2
            yield _arrow(f"M{middle} {y + _BOX_HEIGHT + 4}v12H{_LEFT + 190}v28")


def _box(x: int, y: int, lesson: Planned, strong: str, pale: str) -> Iterator[str]:
    ready = {each.number: each for each in catalog.lessons()}.get(lesson.number)
    title = ready.title if ready else lesson.title
    look = f'fill="{pale}"' if ready else 'fill="none" stroke-dasharray="5 4"'
    ink = "#222" if ready else "#555"
    yield (
        f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="8" {look} '
        f'stroke="{strong}" stroke-width="1.5"/>'
    )
    yield (
        f'<text x="{x + 14}" y="{y + 30}" font-size="15" font-weight="600" fill="{ink}">'
        f'<tspan fill="{strong}">{lesson.number}</tspan> {escape(title)}</text>'
    )
    time = f" · {ready.minutes} min" if ready else ""
    yield f'<text x="{x + 14}" y="{y + 54}" font-size="12.5" fill="#444">{escape(lesson.question)}{time}</text>'


def _arrow(path: str) -> str:
    return f'<path d="{path}" fill="none" stroke="#555" stroke-width="1.5" marker-end="url(#tip)"/>'


if __name__ == "__main__":
    (ROOT / "course.svg").write_text(drawing(), encoding="utf-8")
