"""`amp-lab progress`: what is done, what is left, what comes next."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import click

from amp_lab.course import catalog
from amp_lab.course.catalog import Exercise, Lesson
from amp_lab.course.learner import progress as log
from amp_lab.course.learner import workspace

_WIDEST = 100  # columns
_SHORTEST_TITLE = 20


class Row(NamedTuple):
    """One lesson, in words."""

    lesson: Lesson
    state: str
    minutes_left: int
    open: tuple[Exercise, ...]


@click.command()
def progress() -> None:
    """Show what is done and what is next.

    An exercise counts as done once `check` called it correct, on your page or in `amp-lab check`; a reset opens it
    again.
    """
    from amp_lab.course.learner import updating

    root = workspace.checkout()
    lessons = catalog.lessons()
    solved = log.done(root)
    changed, _, renamed = updating.news(root)
    begun = {lesson.slug for lesson in (*updating.started(root), *(each.lesson for each in renamed))}
    rows = [row(lesson, solved, lesson.slug in begun) for lesson in lessons]
    exercises = catalog.exercises()
    count = sum(exercise.id in solved for exercise in exercises)
    left = sum(each.minutes_left for each in rows)
    click.secho(f"{count} of {len(exercises)} exercises done, {_time(left)} left\n", bold=True)
    for line in table(rows, shutil.get_terminal_size().columns):
        click.echo(line)
    click.echo()
    for line in _what_now(rows, begun):
        click.echo(line)
    for line in _what_is_wrong(root):
        click.echo(line)
    for lesson, former in renamed:
        click.echo(f"Your {former} is {lesson.slug}.ipynb now: amp-lab update {lesson.number} brings it over")
    if changed:
        click.echo(f"The course has new text: amp-lab update {' '.join(lesson.number for lesson in changed)}")


def _what_is_wrong(root: Path) -> Iterator[str]:
    from amp_lab.course.learner import updating

    try:
        workspace.look(root)
    except workspace.WorkspaceError as error:
        yield f"Not all can be seen here: {error}"
    for lesson, problem, advice in (*updating.damaged(root), *updating.lacking(root)):
        yield f"Lesson {lesson.number}: {problem}: {advice}"


def row(lesson: Lesson, solved: Collection[str], is_begun: bool) -> Row:
    """Say how far a lesson is; `solved` are ids of exercises."""
    open_ones = tuple(exercise for exercise in lesson.exercises if exercise.id not in solved)
    number = len(lesson.exercises) - len(open_ones)
    if lesson.exercises and not open_ones:
        return Row(lesson, "done", 0, ())
    left = lesson.minutes - sum(exercise.minutes for exercise in lesson.exercises if exercise.id in solved)
    if number or is_begun:
        return Row(lesson, f"{number} of {len(lesson.exercises)} done", max(left, 1), open_ones)
    return Row(lesson, "not started", lesson.minutes, open_ones)


def table(rows: Sequence[Row], columns: int) -> list[str]:
    """Return a line for each lesson, two where the terminal is too narrow for one."""
    states = max(len(each.state) for each in rows)
    lefts = max(len(_left(each)) for each in rows)
    longest = max(len(each.lesson.title) for each in rows)
    titles = min(longest, min(columns, _WIDEST) - states - lefts - 8)
    if titles < min(longest, _SHORTEST_TITLE):
        return [line for each in rows for line in _two_lines(each, columns)]
    return [
        f"{each.lesson.number}  {_cut(each.lesson.title, titles):{titles}}  "
        f"{each.state:{states}}  {_left(each):>{lefts}}".rstrip()
        for each in rows
    ]


def _two_lines(each: Row, columns: int) -> tuple[str, str]:
    title = _cut(each.lesson.title, max(columns, _SHORTEST_TITLE) - 4)
    return f"{each.lesson.number}  {title}", f"    {', '.join(filter(None, [each.state, _left(each)]))}"


def _what_now(rows: Sequence[Row], begun: Collection[str]) -> list[str]:
    """Say what is next: the first open exercise of a lesson that is under way, or else of the first one open."""
    unfinished = [each for each in rows if each.minutes_left]
    if not unfinished:
        return ["All done. `amp-lab check` runs your pages once more from top to bottom."]
    under_way = [each for each in unfinished if each.state != "not started"]
    lesson, _, _, exercises = (under_way or unfinished)[0]
    what = f"lesson {lesson.number}, {lesson.title}"
    if under_way and exercises:
        what = f"exercise {exercises[0].id}, {exercises[0].title}"
    return [f"Next: {what}", f"  amp-lab lab {lesson.number}"]


def _left(each: Row) -> str:
    return _time(each.minutes_left) + (" left" if "of" in each.state else "") if each.minutes_left else ""


def _time(minutes: int) -> str:
    hours, minutes = divmod(minutes, 60)
    return " ".join(
        filter(None, [f"{hours} h" if hours else "", f"{minutes} min" if minutes or not hours else ""])
    )


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 3, 0)].rstrip() + "..."
