"""All rules in a table: what the watcher can find."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from amp_lab.view.words import paragraph
from amp_lab.watching.report.html import page, prose, word
from amp_lab.watching.report.text import WORDS
from amp_lab.watching.rules import RULES
from amp_lab.watching.rules.rule import Rule
from amp_lab.watching.words import counted

_RULES = "amp_lab.watching.rules"


class Row(NamedTuple):
    """A rule: the family it belongs to, its id, "WRONG", "RISK" or "NOTE", and what it finds."""

    family: str
    id: str
    severity: str
    title: str


@dataclass(frozen=True, repr=False)
class RulesTable:
    """The rules, by family. Print it, or leave it as the last line of a cell."""

    rules: tuple[Rule, ...]

    @property
    def rows(self) -> tuple[Row, ...]:
        """A row for each rule."""
        return tuple(
            Row(family, each.id, WORDS[each.severity], each.title)
            for family, rules in self.families().items()
            for each in rules
        )

    def families(self) -> dict[str, list[Rule]]:
        """Return the rules by what they are about: the first sentence of the folder that they stand in."""
        found: dict[str, list[Rule]] = {}
        for rule in self.rules:
            found.setdefault(_family(rule), []).append(rule)
        return found

    def __str__(self) -> str:
        return "\n".join([f"{counted(len(self.rules), 'rule')}.", *self._lines()])

    def _lines(self) -> Iterator[str]:
        width = max((len(each.id) for each in self.rules), default=0)
        for family, rules in self.families().items():
            yield f"\n{paragraph(family)}"
            for each in rules:
                first = f"  {WORDS[each.severity]:<6} {each.id:<{width}}  "
                yield paragraph(each.title, first, " " * len(first))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        parts = [f"<p>{counted(len(self.rules), 'rule')}.</p>"]
        for family, rules in self.families().items():
            rows = "".join(
                f"<tr><td>{word(each.severity)}</td><td><code>{escape(each.id)}</code></td>"
                f"<td>{prose(each.title)}</td></tr>"
                for each in rules
            )
            parts.append(f"<p><b>{prose(family)}</b></p><table><tbody>{rows}</tbody></table>")
        return page("".join(parts))


def rules_table() -> RulesTable:
    """Return a table of all that `amp_lab.watch` can find."""
    return RulesTable(tuple(RULES.values()))


def _family(rule: Rule) -> str:
    name = rule.look.__module__
    folder = name.rpartition(".")[0]
    # A rule in no family, such as `raised`, and one of somebody else's, is told by its own module.
    module = sys.modules.get(name if folder == _RULES else folder) or sys.modules.get(name)
    first = ((module.__doc__ if module else None) or name).strip().split("\n\n")[0]
    return " ".join(first.split())
