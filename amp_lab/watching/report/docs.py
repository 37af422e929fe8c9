"""What the docstring of a rule tells: why, and its loops, wrong and right."""

from __future__ import annotations

import inspect
import re
from typing import Final, NamedTuple

from amp_lab.watching.rules.rule import Rule

_LOOP: Final = re.compile(r"(?P<kind>Wrong|Right)(?:, (?P<which>.*))?:$")


class Told(NamedTuple):
    """The docstring of a rule: its prose, and its loops with the words that tell several apart ("" for none)."""

    why: str
    wrong: tuple[tuple[str, str], ...]
    right: tuple[tuple[str, str], ...]


def told(rule: Rule) -> Told:
    """Read the docstring of a rule."""
    prose: list[str] = []
    loops: dict[str, list[tuple[str, list[str]]]] = {"Wrong": [], "Right": []}
    code: list[str] | None = None
    for line in inspect.cleandoc(rule.look.__doc__ or rule.title).splitlines():
        if loop := _LOOP.match(line):
            code = []
            loops[loop["kind"]].append((loop["which"] or "", code))
        elif code is not None and (not line or line.startswith(" ")):
            code.append(line)
        else:
            code = None
            prose.append(line)
    wrong, right = (tuple((which, _code(lines)) for which, lines in loops[kind]) for kind in loops)
    return Told("\n".join(prose).strip(), wrong, right)


def _code(lines: list[str]) -> str:
    return inspect.cleandoc("\n" + "\n".join(lines)).rstrip()
