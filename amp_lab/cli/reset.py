"""`amp-lab reset`: start a lesson or an exercise over."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from amp_lab.cli.asking import agreed, lesson_called
from amp_lab.cli.update import tell_brought_over, tell_of_new_text
from amp_lab.course import catalog
from amp_lab.course.learner import progress, workspace


@click.command()
@click.argument("name", metavar="LESSON|ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(name: str, yes: bool) -> None:
    """Start a lesson or an exercise over.

    `amp-lab reset 00` puts the whole page back, `amp-lab reset 0.1` only the cells of that exercise. Save
    the page first: what is saved is kept in work/backups.
    """
    is_exercise = re.fullmatch(r"\d+\.\d+", name)
    lesson = catalog.lesson_of(name) if is_exercise else lesson_called(name)
    what = f"exercise {name}" if is_exercise else f"lesson {lesson.number} ({lesson.title})"
    root = workspace.checkout()
    if not yes and not agreed(
        f"Only what is saved can be kept: if JupyterLab has the page open, press Ctrl+S there first.\n"
        f"Make {what} blank again, and keep what is there in {root / 'work' / 'backups'}?"
    ):
        click.echo("Nothing was changed.")
        sys.exit(1)
    tell_brought_over(root)
    solved = progress.done(root)
    if is_exercise:
        backup = workspace.reset_exercise(root, lesson.slug, name)
    else:
        backup = workspace.reset_lesson(root, lesson.slug)
    ids = [name] if is_exercise else [exercise.id for exercise in lesson.exercises]
    opened = [each for each in ids if each in solved and progress.add(root, each, "reset")]
    page = root / "work" / f"{lesson.slug}.ipynb"
    if backup is None:
        click.echo(f"There was no copy of lesson {lesson.number} yet; now there is: {page}")
    else:
        _tell(what, page, backup)
    if opened:
        click.echo(f"For `amp-lab progress` open again: {', '.join(opened)}.")
    tell_of_new_text(root, [lesson])


def _tell(what: str, page: Path, backup: Path) -> None:
    click.echo(f"{what[0].upper()}{what[1:]} is blank again in {page}.\nYour work is kept in {backup}.")
    click.echo("If JupyterLab has the page open: File, Reload Notebook from Disk (Revert, if it asks).")
