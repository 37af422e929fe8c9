"""`amp-lab update`: the course's new text in a copy that was worked in."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from amp_lab.cli.asking import lesson_called
from amp_lab.course import workspace

if TYPE_CHECKING:
    from amp_lab.course.catalog import Lesson
    from amp_lab.course.merging import Merged
    from amp_lab.course.updating import Updated


@click.command()
@click.argument("lessons", metavar="[LESSON]...", nargs=-1)
def update(lessons: tuple[str, ...]) -> None:
    """Get new text, keep your work.

    When the course was updated, your copies keep the text that they had. `amp-lab update 01` brings the new text
    of that lesson into your copy, with your answers, notes and cells in it; without a LESSON, of all that changed.
    Save the page first. What was there is kept in work/backups.
    """
    from amp_lab.course import updating

    root = workspace.checkout()
    named = {lesson.slug: lesson for lesson in map(lesson_called, lessons)}
    wanted = tuple(named.values()) or updating.news(root).changed
    if not wanted:
        click.echo(f"There is nothing to update: your copies in {root / 'work'} have the newest text.")
        return
    results = [_updated(root, lesson) for lesson in wanted]
    if any(result and result.merged for result in results):
        click.echo(
            "If JupyterLab has a page open: File, Reload Notebook from Disk. Had you not saved it? When JupyterLab "
            "says that the file has changed, choose Overwrite, then run the same command again."
        )
    if None in results:
        sys.exit(1)


def _updated(root: Path, lesson: Lesson) -> Updated | None:
    """Update one lesson and tell of it; None if it could not be done."""
    from amp_lab.course import updating

    try:
        done = updating.update(root, lesson.slug)
    except workspace.WorkspaceError as error:
        click.echo(f"Error: {error}", err=True)
        return None
    if done.merged is None:
        click.echo(f"Lesson {lesson.number} has the newest text.")
        return done
    click.echo(
        f"Lesson {lesson.number} ({lesson.title}) has its new text: {root / 'work' / lesson.slug}.ipynb"
    )
    for line in _told(done.merged, done):
        click.echo(f"  {line}")
    return done


def _told(merged: Merged, done: Updated) -> list[str]:
    lines = []
    if not done.sure:
        lines.append("Nobody knows any more which text this copy began with: all that may be yours was kept.")
    if merged.carried:
        lines.append(f"Your answers are in their places: {', '.join(merged.carried)}.")
    if merged.changed:
        lines.append(f"Changed, look at your answer again: {', '.join(merged.changed)}.")
    if merged.kept:
        cells = "1 more cell" if merged.kept == 1 else f"{merged.kept} more cells"
        lines.append(f"Kept: {cells} that you wrote or changed.")
    if merged.back:
        cells = "1 cell" if merged.back == 1 else f"{merged.back} cells"
        lines.append(f"Back: {cells} of the course that you had deleted.")
    if done.backup:
        lines.append(f"The page as it was is kept in {done.backup}.")
    return lines
