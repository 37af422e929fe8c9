"""The command line, `amp-lab`: open the course, check answers, ask for a hint or a solution, start over.

One module a command, or two that belong together. A command imports only what it needs, so that a hint does not wait
for PyTorch.
"""

from __future__ import annotations

import difflib
import io
import signal
import sys
from typing import Any

import click

from amp_lab import __version__
from amp_lab.cli.check import check
from amp_lab.cli.diagnose import diagnose
from amp_lab.cli.doctor import doctor
from amp_lab.cli.lab import lab
from amp_lab.cli.progress import progress
from amp_lab.cli.reset import reset
from amp_lab.cli.update import update
from amp_lab.cli.words import hint, solution
from amp_lab.course import catalog
from amp_lab.course.learner import disk, workspace

__all__ = ["main"]

_STOPPED = 128 + signal.SIGINT


class Doors(click.Group):
    """Says in one sentence what went wrong. Exit status 2: nobody knows the name; 1: it could not be done."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)  # as a learner needs them, not by the alphabet

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in self.commands and not name.startswith("-"):
            near = difflib.get_close_matches(name, self.commands, n=3, cutoff=0.5)
            guess = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(self.commands)}"
            raise click.UsageError(f"there is no command {name!r}; {guess}", ctx)
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            click.echo(f"Error: {disk.in_words(error)}", err=True)
            sys.exit(1)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (KeyboardInterrupt, click.Abort) as error:
            # At a question, click has caught Ctrl+C itself. The end of the input is something else.
            if not isinstance(error, KeyboardInterrupt) and not isinstance(
                error.__context__, KeyboardInterrupt
            ):
                raise
            click.echo("Stopped.", err=True)
            sys.exit(_STOPPED)
        except catalog.UnknownExercise as error:
            raise click.UsageError(str(error)) from error
        except workspace.WorkspaceError as error:
            raise click.ClickException(str(error)) from error


@click.group(cls=Doors, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="amp-lab")
def main() -> None:
    """AMP Lab teaches PyTorch's automatic mixed precision in JupyterLab.

    Start with `amp-lab lab`. A LESSON is a number such as 00; the ID of an exercise looks like 0.1.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that has no × shows a question mark, not a traceback.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


for _command in (
    lab,
    check,
    progress,
    hint,
    solution,
    reset,
    update,
    doctor,
    diagnose,
):  # as a learner needs them
    main.add_command(_command)
