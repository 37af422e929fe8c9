"""Read tracebacks and warnings that were copied from a terminal, a notebook, a log, an issue."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple

from amp_lab.autocast.records import Source

How = Literal["", "cause", "context", "inside"]


class Raised(NamedTuple):
    """An exception, as far as a traceback tells of it.

    Attributes:
        message: its class and its text.
        passed: the lines of code that it has passed, outermost first.
        how: what it is to the exception before it in a list: its cause; what was being handled when it
            was raised; what it holds or reports.
        module: where its class comes from.
    """

    message: str
    passed: tuple[Source, ...] = ()
    how: How = ""
    module: str = ""


# Of a longer text, so many letters at its beginning and at its end are looked at; and of a line; and, below a line
# that names a place, so many lines for the code of that place.
_LONGEST_TEXT: Final = 50_000
_LONGEST_LINE: Final = 2_000
_LINES_OF_CODE: Final = 40

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What stands before a line: torchrun's ranks; quotes of Markdown, marks of pytest, boxes of groups of exceptions.
_RANK: Final = re.compile(r"^\s*\[(rank\d+|default\d+)\]: ?")
_BEFORE: Final = re.compile(r"^(?:(?:> ?)+|E {3,}| *\| ?| *\+ (?=Exception Group))")
_BOX: Final = re.compile(r"^[│╭╰](?P<line>.*)[│╮╯]$")  # that Rich draws
_RULE: Final = re.compile(r"^\s*(?:```\w*|─.*|\+[-+\s\d.]*|-{20,}|={20,})\s*$")

_BEGINS: Final = re.compile(r"Traceback .{0,40}\(most recent call last\)")
_INSIDE: Final = re.compile(r"Original Traceback|Traceback of TorchScript")  # in the message of another
_CAUSE: Final = re.compile(r"^\s*The above exception was the direct cause of the following exception")
_CONTEXT: Final = re.compile(r"^\s*During handling of the above exception, another exception occurred")

_PYTHON: Final = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>.+))?')
_IPYTHON: Final = re.compile(
    r"^\s*(?:File (?P<file><[^>]+>|.+?)(?::|, line )(?P<line>\d+)"
    r"|(?:Cell|Input) In ?\[(?P<cell>\d+)\](?:, line (?P<at>\d+))?)"
    r"(?:, in (?P<function>[^(]+).*)?$"
)
_OLD_IPYTHON: Final = re.compile(  # and Rich
    r"^ ?(?:<ipython-input-(?P<cell>\d+)-\w+>|(?P<file>\S+\.py)(?::(?P<line>\d+))?) in (?P<function>[^(]+)"
)
_WARNED: Final = re.compile(
    r"^\s*(?P<file>(?:[A-Za-z]:)?[^:]+(?:\.py|>)):(?P<line>\d+): (?P<message>\w*(?:Warning|Error)(?::.*|$))"
)
_ARROW: Final = re.compile(r"^\s*(?:-+>|❱) *(?P<line>\d+)(?: |\s*│)?(?P<text>.*)$")
_HERE: Final = re.compile(r"^\s*~+ <--- HERE")
_MARKS: Final = re.compile(r"^\s*[~^]+\s*$")
_ERROR: Final = re.compile(
    r"^(?P<module>(?:\w+\.)*)(?P<message>\w*(?:Error|Exception|Warning|Interrupt|Exit|Iteration|Group)(?::.*|$))"
)


def has_traceback(text: str) -> bool:
    """Return whether lines of a traceback stand in a text."""
    return any(_PYTHON.match(line[:_LONGEST_LINE]) for line in text[:_LONGEST_TEXT].splitlines())


def cleaned(text: str) -> str:
    """Return a text without what terminals, launchers and forums have put around its lines."""
    if len(text) > 2 * _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}\n{text[-_LONGEST_TEXT:]}"
    lines = _ANSI.sub("", text).expandtabs(4).splitlines()
    ranks = [rank[1] for line in lines if (rank := _RANK.match(line))]
    if ranks:  # each process has written the same traceback
        lines = [_RANK.sub("", line) for line in lines if line.lstrip().startswith(f"[{ranks[0]}]:")]
    lines = [_BOX.sub(r"\g<line>", _BEFORE.sub("", line).rstrip()) for line in lines]
    return "\n".join("" if _RULE.match(line[:_LONGEST_LINE]) else line.rstrip() for line in lines).strip("\n")


def read(text: str) -> list[Raised]:
    """Return the exceptions of a copied text, the one that reached the top first."""
    found: list[Raised] = []
    for how, lines in _parts(cleaned(text).splitlines()):
        raised = _read(textwrap.dedent("\n".join(lines)).splitlines())
        if raised is None:
            continue
        if how == "inside":
            found.append(raised._replace(how=how))
            continue
        if how and found:  # the one above is behind this one
            found[0] = found[0]._replace(how=how)
        found.insert(0, raised)
    return found or [Raised(cleaned(text).strip())]


def _parts(lines: Sequence[str]) -> Iterator[tuple[How, list[str]]]:
    """Cut a text where another exception begins. Yield how each hangs together with the one above, and its lines."""
    how: How = ""
    part: list[str] = []
    for line in lines:
        begins = _begins(line[:_LONGEST_LINE])
        if begins is None:
            part.append(line)
        elif begins or any(each.strip() for each in part):
            yield how, part
            how, part = begins, []
    yield how, part


def _begins(line: str) -> How | None:
    if _CAUSE.match(line):
        return "cause"
    if _CONTEXT.match(line):
        return "context"
    if _BEGINS.search(line):
        return "inside" if _INSIDE.search(line) else ""
    return None


def _read(lines: Sequence[str]) -> Raised | None:
    """Return what one traceback tells, None if these lines are none and name no error either."""
    places = [at for at, line in enumerate(lines) if _place(line) is not None]
    errors = [at for at, line in enumerate(lines) if _ERROR.match(line[:_LONGEST_LINE])]
    warned = [at for at, line in enumerate(lines) if _WARNED.match(line[:_LONGEST_LINE])]
    if places:
        passed = tuple(_with_code(lines, at) for at in places)
        return _raised(lines, _first_below(lines, places, errors), passed)
    if warned:
        return _warning(lines, warned[-1], errors)
    return _raised(lines, errors[-1]) if errors else None


def _first_below(lines: Sequence[str], places: list[int], errors: list[int]) -> int:
    """Return where the message begins: below the places, or above them if it names them itself."""
    if errors:
        return next((at for at in errors if at > places[0]), errors[-1])
    below = range(places[-1] + 1, len(lines))
    indented = [at for at in below if _ERROR.match(lines[at][:_LONGEST_LINE].strip())]
    unindented = [at for at in below if lines[at][:1].strip() and not _ARROW.match(lines[at])]
    return next(iter(indented + unindented), 0)


def _raised(lines: Sequence[str], at: int, passed: tuple[Source, ...] = ()) -> Raised:
    """Return the error whose message begins in a line."""
    first = lines[at].strip()
    named = _ERROR.match(first[:_LONGEST_LINE])
    module = named["module"] if named else ""
    message = "\n".join([first.removeprefix(module), *lines[at + 1 :]]).strip()
    return Raised(message, passed, module=module.rstrip("."))


def _warning(lines: Sequence[str], at: int, errors: list[int]) -> Raised:
    """Return a warning as Python prints it: below its text stands the line of code. Or the end of pytest's report."""
    found = _WARNED.match(lines[at][:_LONGEST_LINE])
    assert found is not None
    *text, code = lines[at][found.start("message") :], *lines[at + 1 :]
    if not text or not code.startswith("  "):
        text, code = [*text, code], ""
    passed = (Source(found["file"], int(found["line"]), "", code.strip()),)
    if errors and ":" not in found["message"]:
        return _raised(lines, errors[-1], passed)
    return Raised("\n".join(text).strip(), passed)


def _place(line: str) -> Source | None:
    """Return the place that a line of a traceback names. Its code stands below."""
    line = line[:_LONGEST_LINE]
    found = _PYTHON.match(line) or _IPYTHON.match(line) or _OLD_IPYTHON.match(line)
    if found is None:
        return None
    groups = found.groupdict()
    file = groups["file"] or f"Cell In[{groups['cell']}]"
    return Source(
        file, int(groups.get("line") or groups.get("at") or 0), (groups["function"] or "").strip(), ""
    )


def _with_code(lines: Sequence[str], at: int) -> Source:
    place = _place(lines[at])
    assert place is not None
    below: list[str] = []
    for line in lines[at + 1 : at + 1 + _LINES_OF_CODE]:
        if _place(line) is not None or _ERROR.match(line[:_LONGEST_LINE]):
            break
        below.append(line[:_LONGEST_LINE])
    for number, line in enumerate(below):
        if arrow := _ARROW.match(line):
            return replace(place, line=int(arrow["line"]), text=arrow["text"].strip(" │"))
        if _HERE.match(line) and number:
            return replace(place, text=below[number - 1].strip())
    return replace(place, text=_code(lines[at], below[0]) if below else "")


def _code(place: str, below: str) -> str:
    """Return the line below a place if it is code: it is indented, unless somebody has taken all spaces away."""
    deeper = _indentation(below) > _indentation(place) or not _indentation(place)
    return "" if not deeper or _MARKS.match(below) else below.strip()


def _indentation(line: str) -> int:
    return len(line) - len(line.lstrip())
