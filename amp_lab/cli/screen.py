"""What a long command writes to: a terminal with a progress bar below the lines, or anything else, lines only."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.progress import Progress

_NARROWEST = 40
_INDENT = " " * 4


class Screen:
    """Prints lines as they are, and no progress: for files and pipes."""

    def say(self, line: str, style: str = "") -> None:
        """Print a line; `style` is rich's name for the colour of its first word."""
        click.echo(line)

    def step(self, doing: str, done: int, total: int) -> None:
        """Show how far the work is: `done` of `total` steps."""

    @staticmethod
    def can_show(text: str) -> bool:
        """Return whether standard output has these letters."""
        try:
            text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
        except (UnicodeEncodeError, LookupError):
            return False
        return True


class _Terminal(Screen):
    """Breaks lines between words, and keeps a bar below them."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("starting", total=None)

    def say(self, line: str, style: str = "") -> None:
        from rich.text import Text

        width = max(_NARROWEST, self._progress.console.width)
        text = Text(textwrap.fill(line, width, subsequent_indent=_INDENT, break_on_hyphens=False))
        first = len(line) - len(line.lstrip())
        text.stylize(style, first, line.find(" ", first))
        self._progress.console.print(text, soft_wrap=True)

    def step(self, doing: str, done: int, total: int) -> None:
        self._progress.update(self._task, description=doing, completed=done, total=total)


@contextmanager
def screen() -> Iterator[Screen]:
    """Yield what fits standard output; the bar is gone when the `with` block ends."""
    if sys.stdout is None or not sys.stdout.isatty():
        yield Screen()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    # The words of the lesson come last: they are what a narrow terminal can cut.
    columns = (
        BarColumn(20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(
        *columns, console=Console(file=sys.stdout), transient=True, redirect_stdout=False
    ) as progress:
        yield _Terminal(progress)
