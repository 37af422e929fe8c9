"""A cast policy, and what two of them disagree about, in text, in HTML and with Rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

from amp_lab.autocast.fates import Fate
from amp_lab.view.words import paragraph

if TYPE_CHECKING:
    from rich.console import Group

    from amp_lab.autocast.probing.policies import Policy

_INDENT: Final = "    "

MEANING: Final = {
    Fate.LOWER: "arguments in FP32 are cast to autocast's dtype, FP16 or BF16",
    Fate.FP32: "arguments in 16 bits are cast to FP32",
    Fate.FP32_UNLESS: "16-bit arguments give a result in FP32, unless the call passes a dtype",
    Fate.WIDEST: "where dtypes are mixed, arguments are cast to the widest among them",
    Fate.REFUSED: "an error",
    Fate.FOLLOWS: "autocast casts nothing",
}


class Section(NamedTuple):
    """A heading and the operators under it."""

    title: str
    note: str
    ops: Sequence[str]


class Listing(NamedTuple):
    """What is shown: a title, sections of operators, and sentences below."""

    title: str
    sections: Sequence[Section]
    notes: Sequence[str]

    def text(self) -> str:
        """Lay it out for a terminal."""
        parts = [self.title]
        for title, note, ops in self.sections:
            lines = [f"{title} · {len(ops)}", _indented(note, "  "), _indented(_listed(ops), _INDENT)]
            parts.append("\n".join(filter(None, lines)))
        if self.notes:
            parts.append("\n".join(map(paragraph, self.notes)))
        return "\n\n".join(parts)

    def html(self) -> str:
        """Lay it out as an HTML table in the page's own style."""
        rows = "".join(map(_html_row, self.sections))
        notes = "<br>".join(map(escape, self.notes))
        return (
            f"<div><p>{escape(self.title)}</p><table><thead><tr>"
            '<th scope="col" style="text-align: left">what happens</th><th scope="col">count</th>'
            '<th scope="col" style="text-align: left">operators</th>'
            f"</tr></thead><tbody>{rows}</tbody></table><p>{notes}</p></div>"
        )

    def rich(self) -> Group:
        """Lay it out for Rich, which the course's command line uses."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(self.title), title_justify="left")
        table.add_column("what happens", overflow="fold")
        table.add_column("count", justify="right")
        table.add_column("operators", overflow="fold")
        for title, note, ops in self.sections:
            table.add_row(Text(f"{title}: {note}" if note else title), str(len(ops)), Text(_listed(ops)))
        return Group(table, *map(Text, self.notes))


def _indented(text: str, indent: str) -> str:
    return paragraph(text, indent, indent)


def _listed(ops: Iterable[str]) -> str:
    return ", ".join(ops)


def _html_row(section: Section) -> str:
    note = f'<br><small style="font-weight: normal">{escape(section.note)}</small>' if section.note else ""
    style = "text-align: left; vertical-align: top"
    ops = ", ".join(f"<code>{escape(op)}</code>" for op in section.ops)
    return (
        f'<tr><th scope="row" style="{style}; min-width: 11em">{escape(section.title)}{note}</th>'
        f'<td style="vertical-align: top">{len(section.ops)}</td>'
        f'<td style="{style}; max-width: 50em">{ops}</td></tr>'
    )


def device_in_words(device_type: str) -> str:
    """A device type as people write it: CUDA, not cuda."""
    return device_type.upper()


def policy_listing(policy: Policy) -> Listing:
    """What a policy shows: its operators by fate, and what could not be asked."""
    sections = [Section(fate.value, MEANING[fate], ops) for fate, ops in policy.by_fate().items()]
    title = (
        f"What autocast does to operators on {device_in_words(policy.device_type)}: "
        f"asked {policy.asked} of {policy.total} that have a rule"
    )
    return Listing(title, sections, [*variants(policy), *_unasked(policy), *_absent(policy)])


def variants(ops: Iterable[str]) -> Iterable[str]:
    """Yield a sentence about dots, if there is one in a name."""
    dotted = min((op for op in ops if "." in op), key=lambda op: (op.startswith("_"), len(op)), default="")
    if dotted:
        yield f"What stands behind a dot, as in {dotted}, tells apart the variants of one operator."


def _unasked(policy: Policy) -> Iterable[str]:
    reasons: dict[str, list[str]] = {}
    for op, reason in policy.unasked.items():
        reasons.setdefault(reason, []).append(op)
    for reason, ops in reasons.items():
        yield f"Not asked: {_listed(ops)}, because {reason}."


def _absent(policy: Policy) -> Iterable[str]:
    yield "Every other operator follows its inputs: autocast casts nothing for it."
    yield "A rule that this build of PyTorch does not hold, since it lacks a library, is not listed."
    if _lacks_cudnn(policy):
        yield (
            "One of them is cuDNN's _cudnn_rnn, which computes nn.LSTM, nn.GRU and nn.RNN on a GPU: it casts their "
            'input, states and weights to FP16, as PyTorch\'s source says. See why("lstm").'
        )


def _lacks_cudnn(policy: Policy) -> bool:
    return policy.device_type == "cuda" and not policy.overloads("_cudnn_rnn")
