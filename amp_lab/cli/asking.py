"""What more than one command asks: which lesson is meant, and whether to go on."""

from __future__ import annotations

import sys
from pathlib import PurePath

import click

from amp_lab.course import catalog


def lesson_called(name: str) -> catalog.Lesson:
    """Find a lesson also by its file, with or without a folder: Jupyter shows that, and a shell completes it."""
    return catalog.lesson(PurePath(name).name.removesuffix(".ipynb"))


def agreed(question: str) -> bool:
    if not _has_terminal():
        raise click.UsageError("there is no terminal to ask you on: add --yes")
    return click.confirm(question)


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()
