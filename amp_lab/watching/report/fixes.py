"""A fix, as a change of the user's own code.

A rule tells which lines to take out and which to put in (`Fix`); here their place in the file is found, with the help
of Python's parser, and the names and the indentation are made the user's. Where that is not certain, nothing is
shown but words: code that does not fit is worse than none.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from amp_lab.autocast.messages.users_code import readable
from amp_lab.autocast.records import Source
from amp_lab.watching.recording.run import Run
from amp_lab.watching.report.edits import Edit, Misfit, Statement, applied, edits_of, parses
from amp_lab.watching.report.names import Names
from amp_lab.watching.report.source import Code, code_of
from amp_lab.watching.rules.rule import Fix
from amp_lab.watching.words import LONG, shortened

_CONTEXT: Final = 1  # lines around a change


@dataclass(frozen=True)
class Hunk:
    """Some lines of a diff, each with its sign, and the place of the first in the file."""

    where: Source
    lines: tuple[str, ...]

    def has(self, where: Source | None) -> bool:
        """Whether a line is one of these."""
        if where is None or where.file != self.where.file:
            return False
        return 0 <= where.line - self.where.line < sum(line[0] != "+" for line in self.lines)


@dataclass(frozen=True)
class Change:
    """A change of the user's code.

    Attributes:
        words: what to do.
        diff: a unified diff, which `patch -p0` takes; "" where the change cannot be shown in the user's own lines.
        hunks: its parts, for reading.
        code: without a diff, the lines to write.
    """

    words: str
    diff: str = ""
    hunks: tuple[Hunk, ...] = ()
    code: tuple[str, ...] = ()


def change_of(run: Run, fix: Fix) -> Change:
    """Find out what a fix is in the user's own lines."""
    words = shortened(Names(run, fix.event).fill(fix.say), LONG)
    try:
        files = _patched(run, fix)
    except Misfit:
        return Change(words, code=tuple(_to_write(run, fix)))
    return Change(
        words,
        "".join(_unified(file, code.text, after) for file, (code, after) in files.items()),
        tuple(hunk for file, (code, after) in files.items() for hunk in _hunks(file, code.text, after)),
    )


def _patched(run: Run, fix: Fix) -> dict[str, tuple[Code, str]]:
    """Return the code of each file that the fix changes, with its text afterwards.

    Raises:
        Misfit: if the fix does not fit into the code.
    """
    edits: dict[str, tuple[Code, list[Edit]]] = {}
    moved: Statement | None = None
    for part in _parts(fix):
        where = part.event.where
        code = code_of(where) if where else None
        if where is None or code is None:
            raise Misfit("no source")
        line, found = edits_of(code, part, Names(run, part.event), moved)
        if part is fix:
            moved = line
        edits.setdefault(where.file, (code, []))[1].extend(found)
    patched = {file: (code, applied(code.text, each)) for file, (code, each) in edits.items()}
    if not patched or any(code.text == after or not parses(after) for code, after in patched.values()):
        raise Misfit("the patched code is none")
    return patched


def _parts(fix: Fix) -> Iterator[Fix]:
    yield fix
    for part in fix.also:
        yield from _parts(part)


def _to_write(run: Run, fix: Fix) -> Iterator[str]:
    """Yield the lines that a fix puts in, where they say something without the user's own line beside them."""
    for part in _parts(fix):
        names = Names(run, part.event)
        code = "\n".join(map(names.fill, part.insert))
        if code and "{line}" not in code and "{moved}" not in code and parses(code) and _says_something(code):
            yield from code.split("\n")


def _says_something(code: str) -> bool:
    """Whether code is more than a name or a constant, which says nothing without the line that it belongs to."""
    return not all(
        isinstance(each, ast.Expr) and not isinstance(each.value, ast.Call) for each in ast.parse(code).body
    )


def _unified(file: str, before: str, after: str) -> str:
    name = readable(file)
    lines = difflib.unified_diff(_lines(before), _lines(after), name, name, n=3)
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _hunks(file: str, before: str, after: str) -> Iterator[Hunk]:
    old, new = _lines(before), _lines(after)
    for group in difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(_CONTEXT):
        lines: list[str] = []
        for tag, i, j, k, m in group:
            if tag == "equal":
                lines += [f" {line}" for line in old[i:j]]
            else:
                lines += [f"-{line}" for line in old[i:j]] + [f"+{line}" for line in new[k:m]]
        yield Hunk(Source(file, group[0][1] + 1, "", ""), tuple(line.rstrip("\n") for line in lines))


def _lines(text: str) -> list[str]:
    """Return the lines with their ends: at line feeds only, as Python counts them."""
    *lines, last = text.split("\n")
    return [*(f"{line}\n" for line in lines), *([last] if last else [])]
