"""`amp-lab update`: the course's new text in a copy that was worked in."""

from __future__ import annotations

import sys
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

import click

from amp_lab.cli.asking import lesson_called
from amp_lab.course.learner import workspace

if TYPE_CHECKING:
    from amp_lab.course.catalog import Lesson
    from amp_lab.course.learner.renaming import Brought
    from amp_lab.course.learner.updating import Updated
    from amp_lab.course.pages.merging import Merged


@click.command()
@click.argument("lessons", metavar="[LESSON]...", nargs=-1)
def update(lessons: tuple[str, ...]) -> None:
    """Get new text, keep your work.

    When the course was updated, your copies keep the text that they had. `amp-lab update 01` brings the new text
    of that lesson into your copy, with your answers, notes and cells in it; without a LESSON, of all that changed.
    Save the page first. What was there is kept in work/backups.
    """
    named = {lesson.slug: lesson for lesson in map(lesson_called, lessons)}
    root = workspace.checkout()
    workspace.look(root)
    brought = {each.lesson.slug for each in tell_brought_over(root)}
    wanted = tuple(named.values()) or _with_news(root)
    results = [_updated(root, lesson) for lesson in wanted if lesson.slug not in brought]
    if not named:
        _tell_of_the_rest(root, bool(results or brought))
    if any(result and result.merged for result in results):
        click.echo(
            "If JupyterLab has a page open: File, Reload Notebook from Disk. Had you not saved it? When JupyterLab "
            "says that the file has changed, choose Overwrite, then run the same command again."
        )
    if None in results:
        sys.exit(1)


def _with_news(root: Path) -> tuple[Lesson, ...]:
    """Return what there is something to say about: lessons with a new text, and pages that cannot be read."""
    from amp_lab.course.learner import updating

    copied = updating.copied(root)
    broken = [each.lesson for each in (*updating.damaged(root), *updating.lacking(root))]
    return (*updating.news(root).changed, *(lesson for lesson in copied if lesson in broken))


def _tell_of_the_rest(root: Path, has_told: bool) -> None:
    from amp_lab.course.learner import updating

    gone = updating.news(root).gone
    for name in gone:
        click.echo(f"The course has no {name} any more: your copy in {root / 'work'} stays as it is.")
    if has_told:
        return
    if updating.copied(root):
        click.echo(f"There is nothing to update: your copies in {root / 'work'} have the newest text.")
    elif not gone:
        click.echo(
            f"There is nothing to update: no lesson is in {root / 'work'} yet; `amp-lab lab` copies them."
        )


def tell_of_new_text(root: Path, lessons: Collection[Lesson]) -> None:
    """Say of each lesson whether the course has a newer text of it than the copy."""
    from amp_lab.course.learner import updating

    for lesson in updating.news(root).changed:
        if lesson in lessons:
            click.echo(f"The course has a new text of lesson {lesson.number}: amp-lab update {lesson.number}")


def tell_brought_over(root: Path) -> tuple[Brought, ...]:
    """Make the pages of lessons whose file has another name now from those of before, and tell of it."""
    from amp_lab.course.learner import renaming

    brought = renaming.bring_over(root)
    for each in brought:
        page = root / "work" / f"{each.lesson.slug}.ipynb"
        click.echo(f"Lesson {each.lesson.number} ({each.lesson.title}) has another file name now: {page}")
        click.echo(f"  It was made from your {each.former}, which stays as it is.")
        for line in _told(each.merged, each.sure):
            click.echo(f"  {line}")
    return brought


def _updated(root: Path, lesson: Lesson) -> Updated | None:
    """Update one lesson and tell of it; None if it could not be done."""
    from amp_lab.course.learner import updating

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
    for line in _told(done.merged, done.sure):
        click.echo(f"  {line}")
    if done.backup:
        click.echo(f"  The page as it was is kept in {done.backup}.")
    return done


def _told(merged: Merged, sure: bool) -> list[str]:
    lines = []
    if not sure:
        lines.append("Nobody knows any more which text this copy began with: all that may be yours was kept.")
    if merged.carried:
        lines.append(f"Your answers are in their places: {', '.join(merged.carried)}.")
    if merged.changed:
        lines.append(f"Changed, look at your answer again: {', '.join(merged.changed)}.")
    if merged.apart:
        lines.append(f"Could not be put in its place, and stands above it: {', '.join(merged.apart)}.")
    if merged.kept:
        cells = "1 more cell" if merged.kept == 1 else f"{merged.kept} more cells"
        lines.append(f"Kept: {cells} that you wrote or changed.")
    if merged.back:
        cells = "1 cell" if merged.back == 1 else f"{merged.back} cells"
        lines.append(f"Back: {cells} of the course that you had deleted.")
    return lines
