"""`Underflow` as text, in a notebook, and with Rich: for each module the sample in which it lost most."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Final

from amp_lab.view.words import columns, name_in_words
from amp_lab.watching.counting.wording import scale_in_words, size_in_words
from amp_lab.watching.underflow.judging import WORTH, Row
from amp_lab.watching.words import counted, steps_in_words

if TYPE_CHECKING:
    from rich.console import Group

    from amp_lab.watching.underflow.table import Underflow

_HEADS: Final = ("module", "began", "most in step", "exactly 0", "made 0", "subnormal", "smallest", "largest")
_ROWS: Final = 20
_WIDTH: Final = 100  # of sentences
_NAME_STYLE: Final = "text-align: left; min-width: 8em; max-width: 24em; overflow-wrap: anywhere"
_TITLE: Final = (
    "Gradients that FP16 made zero, module by module (shares of those looked at; sizes of scaled ones)"
)


def summary(table: Underflow) -> str:
    """Say what was lost, since when, and what would keep it; and what cannot be told."""
    if len(table.untold) == len(table.modules):
        return untold(table)
    modules = counted(len(table.modules), "module")
    steps = f"step{'s' if len(table.steps) > 1 else ''} {steps_in_words(table.steps)}"
    doubt = f" {untold(table)}" if table.untold else ""
    if not table.began:
        hardly = f"no module lost {WORTH:.0%} of its numbers, of {modules} in {steps}"
        return f"FP16 made hardly any gradient zero: {hardly}.{doubt}"
    worst = max(table.rows, key=lambda row: row.share_lost)
    first = min(table.began.values())
    said = (
        f"FP16 made gradients zero in {len(table.began)} of {modules}, {since(table, first)}; most in "
        f"`{worst.module}`: {percent(worst.share_lost)} in step {worst.step:,}, at a loss scale of "
        f"{scale_or_number(worst.scale)}. (Looked at in {steps}.) "
    )
    return said + cure(table) + doubt


def cure(table: Underflow) -> str:
    """Say what would keep what is lost, and how sure that is."""
    if table.scale is None:
        return (
            f"No loss scale {'keeps' if table.sure else 'is likely to keep'} them and leaves room above: the largest "
            "gradient would pass 65504 / 2. Use dtype=torch.bfloat16, which has FP32's range."
        )
    bf16 = "dtype=torch.bfloat16, which has FP32's range and needs no scale"
    if table.sure:
        return f"A loss scale of {scale_in_words(table.scale)} keeps them; so does {bf16}."
    return (
        "Most of a module is lost, so nobody can see how small its gradients were: try a loss scale of "
        f"{scale_in_words(table.scale)}, which leaves room above, and look again; or take {bf16}."
    )


def untold(table: Underflow) -> str:
    """Say which modules have nothing but zeros that nothing explains, and which experiment would tell."""
    return f"{only_zeros(table)} {experiment(table)}"


def only_zeros(table: Underflow) -> str:
    """Say which modules have nothing but zeros that nothing explains."""
    names = list(table.untold)
    first = min(table.untold.values())
    if len(names) == len(table.modules):
        what = f"Every gradient that was looked at is exactly 0, {since(table, first)}"
        others = "a loss that is 0, or that does not depend on the weights, gives"
    else:
        more = f" and {counted(len(names) - 1, 'more module')}" if len(names) > 1 else ""
        what = f"Every gradient of `{names[0]}`{more} is exactly 0, {since(table, first)}"
        others = "a part that is not used, or is multiplied by zero, has"
    return f"{what}. That may be FP16; {others} the same zeros."


def experiment(table: Underflow) -> str:
    """Say what tells whether zeros are FP16's."""
    scale = table.scale_to_try
    test = f"a loss scale of {scale_in_words(scale)}" if scale is not None else "dtype=torch.bfloat16"
    return f"Run some steps with {test}: if numbers appear, FP16 had made them 0."


def since(table: Underflow, step: int) -> str:
    """Say when something began: before the first sample nobody looked."""
    return "from the first sample on" if step == table.steps[0] else f"from step {step:,} on"


def scale_or_number(scale: float) -> str:
    """Write a scale, which a loop may have chosen as no power of two."""
    return scale_in_words(scale) if scale > 0 and math.frexp(scale)[0] == 0.5 else f"{scale:g}"


def percent(share: float) -> str:
    """Write a share that is an estimate: without more digits than it has."""
    if share in (0.0, 1.0):
        return f"{share:.0%}".replace("%", " %")
    return "<1 %" if share < 0.01 else ">99 %" if share > 0.99 else f"{100 * share:.0f} %"


def as_text(table: Underflow) -> str:
    lines = [list(_HEADS), *(_cells(table, row) for row in _worst(table))]
    widths = [max(map(columns, column)) for column in zip(*lines, strict=True)]
    body = [_line(row, widths) for row in lines] if table.rows else []
    return "\n".join([_TITLE, "", *body, *([""] if body else []), *_notes(table)])


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers = row
    gap = " " * (widths[0] - columns(name))
    return "  ".join([name + gap, *map(str.rjust, numbers, widths[1:])])


def as_html(table: Underflow) -> str:
    first, *others = map(escape, _HEADS)
    heads = f'<th scope="col" style="text-align: left">{first}</th>'
    heads += "".join(f'<th scope="col">{head}</th>' for head in others)
    body = "".join(map(_html_row, (_cells(table, row) for row in _worst(table))))
    notes = "<br>".join(map(escape, _notes(table, 10_000)))
    return (
        f"<div><p>{escape(_TITLE)}</p><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
        f"<p>{notes}</p></div>"
    )


def _html_row(row: Sequence[str]) -> str:
    name, *cells = map(escape, row)
    numbers = "".join(
        f'<td style="white-space: nowrap; text-align: right; padding: 0 0.5em">{cell}</td>' for cell in cells
    )
    return f'<tr><th scope="row" style="{_NAME_STYLE}">{name}</th>{numbers}</tr>'


def as_rich(table: Underflow) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = Table(title=Text(_TITLE), title_justify="left")
    for number, head in enumerate(_HEADS):
        shown.add_column(head, justify="right" if number else "left", overflow="fold")
    for row in _worst(table):
        shown.add_row(*map(Text, _cells(table, row)))
    return Group(shown, *map(Text, _notes(table, 10_000)))


def _worst(table: Underflow) -> list[Row]:
    """Return for each module the row in which it lost most; the modules that lost most of all, in the model's order."""
    worst: dict[str, Row] = {}
    for row in table.rows:
        if row.module not in worst or _badness(row) > _badness(worst[row.module]):
            worst[row.module] = row
    shown = {row.module for row in sorted(worst.values(), key=_badness, reverse=True)[:_ROWS]}
    return [row for module, row in worst.items() if module in shown]


def _badness(row: Row) -> tuple[float, bool]:
    return row.share_lost, row.untold


def _cells(table: Underflow, row: Row) -> list[str]:
    sizes = ["–" if math.isnan(each) else size_in_words(each) for each in (row.smallest, row.largest)]
    if row.overflowed:
        sizes = ["–", "overflow"]
    began = table.began.get(row.module)
    lost = "?" if row.untold else percent(row.share_lost)
    return [
        name_in_words(row.module),
        "–" if began is None else f"step {began:,}",
        f"{row.step:,}",
        percent(row.share_zero),
        lost,
        percent(row.share_subnormal),
        *sizes,
    ]


def _notes(table: Underflow, width: int = _WIDTH) -> list[str]:
    left = len(table.modules) - _ROWS
    more = [f"{left:,} more modules lost no more than these."] if left > 0 else []
    if table.untold:
        more.append("“?”: all are 0, and nothing that was seen tells why.")
    about = (
        "“made 0” is an estimate, of the numbers that would not be 0 without FP16's rounding; zeros of a ReLU, a mask "
        "or an unused word do not count. It is rather too low, and never more than “exactly 0”. "
        "FP16's smallest number is 2^-24 = 5.96e-8."
    )
    return [textwrap.fill(each, width) for each in [*more, table.summary(), *([about] if table.rows else [])]]
