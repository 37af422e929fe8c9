"""`amp-lab hint` and `amp-lab solution`: the words of an exercise, on a terminal."""

from __future__ import annotations

import shutil
import textwrap

import click

from amp_lab.course import catalog
from amp_lab.course.learner import workspace


@click.command()
@click.argument("exercise_id", metavar="ID")
@click.argument("number", metavar="[N]", type=click.IntRange(1, 3), default=1)
def hint(exercise_id: str, number: int) -> None:
    """Show a hint for an exercise.

    Hint 1 is the idea, hint 2 names the calls to use, hint 3 is nearly the code.
    """
    exercise = catalog.exercise(exercise_id)
    _show(f"{exercise.id} {exercise.title}: hint {number} of 3", exercise.hints[number - 1])
    more = f"hint {exercise_id} {number + 1}" if number < 3 else f"solution {exercise_id}"
    click.echo(f"Still stuck? amp-lab {more}")


@click.command()
@click.argument("exercise_id", metavar="ID")
def solution(exercise_id: str) -> None:
    """Show a solution, and why it is right."""
    exercise, code = catalog.exercise(exercise_id), workspace.solution(exercise_id)
    click.secho(f"{exercise.id} {exercise.title}: a solution\n", bold=True)
    click.echo(f"{code}\n")
    _show("Why it is right", exercise.why)


def _show(title: str, text: str) -> None:
    """Print a title and a text, its long lines broken between words; indented ones are code and stay."""
    width = min(shutil.get_terminal_size().columns, 100)
    click.secho(f"{title}\n", bold=True)
    for line in text.strip().split("\n"):
        click.echo(line if line.startswith(" ") else textwrap.fill(line, width))
    click.echo()
