"""`amp-lab diagnose`: which fault of mixed precision the log of a run shows. Imports no PyTorch."""

from __future__ import annotations

import shutil
import sys
from typing import Any, Final

import click

_COLOURS: Final = {"probable": "red", "possible": "yellow", "good": "green"}
_WIDEST: Final = 110


@click.command()
@click.argument("file")
@click.option("--loss", metavar="COL", help="The column of the training loss.")
@click.option("--scale", metavar="COL", help="The column of the loss scale.")
@click.option("--norm", metavar="COL", help="The column of the gradients' norm.")
@click.option("--lr", metavar="COL", help="The column of the learning rate.")
@click.option("--step", metavar="COL", help="The column of the step's number.")
@click.option("--skipped", metavar="COL", help="The column of skipped steps: 0 and 1, or a count.")
@click.option("--json", "as_json", is_flag=True, help="Write the report as JSON.")
def diagnose(file: str, as_json: bool, **columns: str | None) -> None:
    """Tell what is wrong from a run's log.

    FILE is CSV, TSV, JSON lines, a trainer_state.json, or what a Trainer prints; also .gz. Of a TensorBoard scalar
    exported as CSV, say what it is: `--loss Value` or `--scale Value`. Other columns need a name only where theirs is
    unusual.

    A finding is "probable" or "possible", with the rows that show it and what to do next; then follows what this log
    cannot show. Exit status 0: the log was read, whatever was found. 1: it cannot be read.
    """
    from amp_lab.watching.logs.diagnosing import diagnose as read
    from amp_lab.watching.logs.errors import LogError

    try:
        report = read(file, **columns)
    except LogError as error:
        raise click.ClickException(str(error)) from error
    if as_json:
        click.echo(_plain(report.to_json()))
        return
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    for line, kind in report.lines(width):
        _say(line, kind)


def _say(line: str, kind: str) -> None:
    style: dict[str, Any] = {"bold": True} if kind == "title" else {"fg": _COLOURS.get(kind)}
    click.secho(line, **style)


def _plain(text: str) -> str:
    """Escape in JSON what standard output has no letters for."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return text.encode("ascii", "backslashreplace").decode()
    return text
