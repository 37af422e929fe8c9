"""The command line, `amp-lab`: open the course, ask for a hint or a solution, start over.

A command imports only what it needs, so that a hint does not wait for PyTorch.
"""

from __future__ import annotations

import importlib.util
import io
import os
import re
import shutil
import sys
import textwrap
from pathlib import Path
from typing import Any

import click

from amp_lab import __version__
from amp_lab.course import catalog, workspace


class _Doors(click.Group):
    """Says in one sentence what went wrong. Exit status 2: nobody knows the name; 1: it could not be done."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # as a learner needs them, not by the alphabet

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except catalog.UnknownExercise as error:
            raise click.UsageError(str(error)) from error
        except workspace.WorkspaceError as error:
            raise click.ClickException(str(error)) from error


class _PassesOn(click.Command):
    """A command that keeps what follows `--` in `ctx.args`, for the program that it starts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        split = args.index("--") if "--" in args else len(args)
        super().parse_args(ctx, args[:split])
        ctx.args = args[split + 1 :]
        return ctx.args


@click.group(cls=_Doors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="amp-lab")
def main() -> None:
    """AMP Lab teaches PyTorch's automatic mixed precision in JupyterLab.

    Start with `amp-lab lab`. A LESSON is a number such as 00; the ID of an exercise looks like 0.1.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that has no × shows a question mark, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


@main.command(cls=_PassesOn)
@click.argument("lesson", default="00")
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N", help="The port, or the next that is free."
)
@click.option("--no-browser", is_flag=True, help="Only print the address, for you to open.")
@click.pass_context
def lab(ctx: click.Context, lesson: str, port: int | None, no_browser: bool) -> None:
    """Open the course in JupyterLab.

    It opens at the first page, or at LESSON. You work in copies, in the folder work/: those that are missing
    are made, and none is ever overwritten.

    Arguments after -- go to JupyterLab: `amp-lab lab 00 -- --debug`.
    """
    from amp_lab.course import server

    page = f"{_lesson(lesson).slug}.ipynb"
    root = workspace.checkout()
    if importlib.util.find_spec("jupyterlab") is None:
        raise click.ClickException(f"{sys.executable} has no JupyterLab: run `make lab` in {root}")
    copies = workspace.copy_blanks(root)
    if page not in copies.made + copies.kept:
        raise click.ClickException(f"{root / 'notebooks'} has no {page}: get the checkout again")
    click.echo(_copied(copies, root / "work"))
    click.echo("Starting JupyterLab; Ctrl+C stops it.")
    options = ["--no-browser"] if no_browser else []
    options += [] if port is None else [f"--ServerApp.port={port}"]
    start = server.command(root / "work", page, [*options, *ctx.args])
    environment = server.environment(os.environ)
    if "AMP_LAB_COURSE" in environment:
        environment["AMP_LAB_COURSE"] = str(root)  # a relative one means another folder to a kernel in work/
    os.execve(start[0], start, environment)


@main.command()
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


@main.command()
@click.argument("exercise_id", metavar="ID")
def solution(exercise_id: str) -> None:
    """Show a solution, and why it is right."""
    exercise, code = catalog.exercise(exercise_id), workspace.solution(exercise_id)
    click.secho(f"{exercise.id} {exercise.title}: a solution\n", bold=True)
    click.echo(f"{code}\n")
    _show("Why it is right", exercise.why)


@main.command()
@click.argument("name", metavar="LESSON|ID")
@click.option("--yes", is_flag=True, help="Do not ask.")
def reset(name: str, yes: bool) -> None:
    """Start a lesson or an exercise over.

    `amp-lab reset 00` puts the whole page back, `amp-lab reset 0.1` only the cells of that exercise. Save
    the page first: what is saved is kept in work/backups.
    """
    is_exercise = re.fullmatch(r"\d+\.\d+", name)
    lesson = catalog.lesson_of(name) if is_exercise else _lesson(name)
    what = f"exercise {name}" if is_exercise else f"lesson {lesson.number} ({lesson.title})"
    root = workspace.checkout()
    if not yes and not _agreed(
        f"Only what is saved can be kept: if JupyterLab has the page open, press Ctrl+S there first.\n"
        f"Make {what} blank again, and keep what is there in {root / 'work' / 'backups'}?"
    ):
        click.echo("Nothing was changed.")
        sys.exit(1)
    if is_exercise:
        backup = workspace.reset_exercise(root, lesson.slug, name)
    else:
        backup = workspace.reset_lesson(root, lesson.slug)
    page = root / "work" / f"{lesson.slug}.ipynb"
    if backup is None:
        click.echo(f"There was no copy of lesson {lesson.number} yet; now there is: {page}")
        return
    click.echo(f"{what[0].upper()}{what[1:]} is blank again in {page}.\nYour work is kept in {backup}.")
    click.echo("If JupyterLab has the page open: File, Reload Notebook from Disk (Revert, if it asks).")


def _lesson(name: str) -> catalog.Lesson:
    """Find a lesson also by the name of its file, which is what Jupyter shows."""
    return catalog.lesson(name.removesuffix(".ipynb"))


def _agreed(question: str) -> bool:
    if not _has_terminal():
        raise click.UsageError("there is no terminal to ask you on: add --yes")
    return click.confirm(question)


def _has_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()


def _copied(copies: workspace.Copies, work: Path) -> str:
    if not copies.made:
        return f"Your pages are in {work}, as you left them."
    names = ", ".join(name.removesuffix(".ipynb") for name in copies.made)
    kept = "; the rest is as you left it" if copies.kept else ""
    return f"Copied {names} to {work}{kept}.\nWork in these copies: they are never overwritten."


def _show(title: str, text: str) -> None:
    """Print a title and a text, its long lines broken between words; indented ones are code and stay."""
    width = min(shutil.get_terminal_size().columns, 100)
    click.secho(f"{title}\n", bold=True)
    for line in text.strip().split("\n"):
        click.echo(line if line.startswith(" ") else textwrap.fill(line, width))
    click.echo()
