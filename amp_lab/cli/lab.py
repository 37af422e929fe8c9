"""`amp-lab lab`: copy what is missing, and start JupyterLab."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import click

from amp_lab.cli.asking import lesson_called
from amp_lab.cli.update import tell_brought_over
from amp_lab.course.learner import workspace


class _PassesOn(click.Command):
    """A command that keeps what follows `--` in `ctx.args`, for the program that it starts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        split = args.index("--") if "--" in args else len(args)
        super().parse_args(ctx, args[:split])
        ctx.args = args[split + 1 :]
        return ctx.args


@click.command(cls=_PassesOn)
@click.argument("lesson", default="00")
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="N", help="The port, or the next that is free."
)
@click.option("--no-browser", is_flag=True, help="Only print the address, for you to open.")
@click.pass_context
def lab(ctx: click.Context, lesson: str, port: int | None, no_browser: bool) -> None:
    """Open the course in JupyterLab.

    It opens at the first page, or at LESSON. You work in copies, in the folder work/: those that are missing
    are made, and none is ever overwritten. Where the course has a new text, it says so.

    Arguments after -- go to JupyterLab: `amp-lab lab 00 -- --debug`.
    """
    from amp_lab.course.machine import server

    slug = lesson_called(lesson).slug
    page = f"{slug}.ipynb"
    root = workspace.checkout()
    if importlib.util.find_spec("jupyterlab") is None:
        raise click.ClickException(f"{sys.executable} has no JupyterLab: run `make lab` in {root}")
    if found := workspace.obstacle(root, slug):
        raise click.ClickException(found)
    tell_brought_over(root)
    copies = workspace.copy_blanks(root)
    if page not in copies.made + copies.kept:
        raise click.ClickException(f"{root / 'notebooks'} has no {page}: get the checkout again")
    click.echo(_copied(copies, root / "work"))
    for line in _news(root):
        click.echo(line)
    click.echo("Starting JupyterLab; Ctrl+C stops it.")
    options = ["--no-browser"] if no_browser else []
    options += [] if port is None else [f"--ServerApp.port={port}"]
    start = server.command(root / "work", page, [*options, *ctx.args])
    environment = server.environment(os.environ)
    if "AMP_LAB_COURSE" in environment:
        environment["AMP_LAB_COURSE"] = str(root)  # a relative one means another folder to a kernel in work/
    os.execve(start[0], start, environment)


def _copied(copies: workspace.Copies, work: Path) -> str:
    if not copies.made:
        return f"Your pages are in {work}, as you left them."
    names = ", ".join(name.removesuffix(".ipynb") for name in copies.made)
    kept = "; the rest is as you left it" if copies.kept else ""
    return f"Copied {names} to {work}{kept}.\nWork in these copies: they are never overwritten."


def _news(root: Path) -> list[str]:
    """Say what changed under the copies. That a lesson is gone is said once: the record of it goes, too."""
    from amp_lab.course.learner import updating

    changed, gone, _ = updating.news(root)
    lines = []
    if changed:
        numbers = [lesson.number for lesson in changed]
        of = "lesson" if len(changed) == 1 else "lessons"
        lines.append(
            f"The course has a new text of {of} {', '.join(numbers)}; your copy has the old one. "
            f"`amp-lab update {' '.join(numbers)}` brings it and keeps your work."
        )
    for name in gone:
        lines.append(
            f"The course has no {name} any more, or under another name: your copy stays in {root / 'work'}."
        )
    if gone:
        workspace.forget(root, gone)
    return lines
