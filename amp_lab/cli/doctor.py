"""`amp-lab doctor`: what is not as it should be here, and what to do about it."""

from __future__ import annotations

import shutil
import sys
import textwrap
from typing import TYPE_CHECKING

import click

from amp_lab.course.learner import workspace

if TYPE_CHECKING:
    from amp_lab.course.machine.health import Finding

_COLOURS = {"ok": "green", "note": "yellow", "problem": "red"}


@click.command()
def doctor() -> None:
    """Look for what is broken.

    Looks at Python, packages, Jupyter, PyTorch and your copies, and says what to do. Changes nothing itself. Exit
    status 1: there is a problem.
    """
    from amp_lab.course.machine import health

    problems = 0
    try:
        root = workspace.checkout()
    except workspace.WorkspaceError as error:
        root = None
        if str(error).startswith("AMP_LAB_COURSE"):
            _tell(health.Finding("problem", "course", str(error), "or unset it"))
            problems += 1
    for finding in health.examine(root):
        _tell(finding)
        problems += finding.kind == "problem"
    click.echo(f"\n{'No problems' if not problems else f'{problems} to solve'}.")
    sys.exit(1 if problems else 0)


def _tell(finding: Finding) -> None:
    """Print a finding, broken between words, with its advice below."""
    width = max(min(shutil.get_terminal_size().columns, 110), 50)
    indent = " " * 9
    text = f"{finding.what}: {finding.said}"
    lines = textwrap.wrap(text, width - len(indent), break_long_words=False, break_on_hyphens=False)
    if finding.advice:
        lines += textwrap.wrap(
            f"-> {finding.advice}", width - len(indent), break_long_words=False, break_on_hyphens=False
        )
    click.secho(f"{finding.kind:9}", fg=_COLOURS[finding.kind], nl=False)
    click.echo(f"\n{indent}".join(lines))
