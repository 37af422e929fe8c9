"""An x-ray in a notebook: modules that open and close, with their operators in tables."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING, Final

from amp_lab.autocast.records import Op, Phase
from amp_lab.autocast.report import rows as lines
from amp_lab.autocast.report.module_tree import Branch, Item, one_module, only_op, ops_in, rows
from amp_lab.autocast.report.summary import PHASES, counts, of_phase
from amp_lab.autocast.report.words import bytes_in_words, counted, dtype_in_words, shape_in_words
from amp_lab.view.dtype_colours import look

if TYPE_CHECKING:
    from amp_lab.autocast.report.xrayed import XRay

_OPEN: Final = 40  # rows: a larger model is shown closed, its modules to be opened one by one
# Other colours than those of dtypes are the page's own, so that it fits JupyterLab's light and dark theme. What
# JupyterLab's own rules for tables would overrule stands at the cells themselves.
_STYLE: Final = """<style>
.amp-lab-xray { line-height: 1.4; font-size: 13px; overflow-x: auto; }
.amp-lab-xray > details { min-width: 700px; }
.amp-lab-xray p { margin: 4px 0; }
.amp-lab-xray details { margin: 2px 0; }
.amp-lab-xray details details { margin-left: 6px; padding-left: 10px; border-left: 2px solid rgba(128, 128, 128, 0.4); }
.amp-lab-xray summary { cursor: pointer; padding: 2px 0; }
.amp-lab-xray summary small { opacity: 0.8; margin-left: 6px; }
.amp-lab-xray table { border-collapse: collapse; margin: 0; }
.amp-lab-xray table :is(th, td) { vertical-align: top; padding: 2px 8px 2px 0; font-size: 12px;
  font-weight: normal; white-space: normal; overflow-wrap: anywhere; max-width: none; }
.amp-lab-xray thead th { opacity: 0.75; }
.amp-lab-xray i { font-style: normal; padding: 0 5px; margin-right: 3px; border-radius: 3px; white-space: nowrap; }
.amp-lab-xray .error { border-left: 4px solid #D55E00; padding-left: 8px; margin: 6px 0; white-space: pre-wrap; }
</style>"""
# One for each of HEADS. That of the names takes what is left: so the others stand below each other in every module.
_WIDTHS: Final = ("34px", "auto", "78px", "164px", "58px", "124px", "112px", "76px")
_COLUMNS: Final = "".join(f'<col style="width: {width}">' for width in _WIDTHS)
_ALIGNED: Final = tuple(f"text-align: {'right' if head == '#' else 'left'}" for head in lines.HEADS)
_HEADS: Final = "".join(
    f'<th scope="col" style="{style}">{escape(head)}</th>'
    for head, style in zip(lines.HEADS, _ALIGNED, strict=True)
)
_TABLE: Final = f'<table style="table-layout: fixed; width: 100%"><colgroup>{_COLUMNS}</colgroup>'


def as_html(xray: XRay) -> str:
    """Lay an x-ray out: what it is, one collapsible tree a phase, warnings, and the error last."""
    parts = [f"<p><b>{escape(lines.title(xray))}</b></p>"]
    if not xray.ops:
        parts.append(f"<p>{escape(lines.NOTHING)}</p>")
    parts += [_phase(xray, phase) for phase in PHASES if of_phase(xray.ops, phase)]
    parts += [f"<p>{escape(note)}</p>" for note in (*_hidden(xray), *xray.notes)]
    parts += [remark._repr_html_() for remark in lines.warnings(xray)]
    if xray.error is not None:
        parts.append(f'<div class="error">{_error(xray)}</div>')
    return f'{_STYLE}<div class="amp-lab-xray">{"".join(parts)}</div>'


def _error(xray: XRay) -> str:
    said, explained = lines.error_lines(xray)
    inner = xray.explanation._repr_html_() if xray.explanation else escape(explained)
    return f"<p>{escape(said)}</p>{inner}"


def _hidden(xray: XRay) -> Iterable[str]:
    views = sum(op.view for op in xray.ops)
    if views:
        yield f"{counted(views, 'view')} not listed, which copy nothing; .table(views=True) of this x-ray lists them."


def _phase(xray: XRay, phase: Phase) -> str:
    root = lines.tree(xray, lines.Selection(phase), phase)
    opened = " open" if phase == "forward" else ""
    said = escape(lines.phase_in_words(xray, phase))
    inner = _heads() + _items(root.items, "", rows(root) <= _OPEN)
    return f"<details{opened}><summary>{said}</summary>{inner}</details>"


def _items(items: Iterable[Item], parent: str, opened: bool) -> str:
    """Lay items out in order: neighbouring operators in one table, modules and folds between the tables."""
    parts: list[str] = []
    waiting: list[tuple[str, Op]] = []
    for item in items:
        if isinstance(item, Op):
            waiting.append((lines.op_name(item), item))
        elif isinstance(item, Branch) and (only := only_op(item)):
            waiting.append((f"{lines.module_in_words(item, parent)}: {lines.op_name(only)}", only))
        else:
            parts += [_table(waiting), _inner(item, parent, opened)]
            waiting = []
    return "".join([*parts, _table(waiting)])


def _inner(item: Item, parent: str, opened: bool) -> str:
    if isinstance(item, Branch):
        name, inner = lines.module_in_words(item, parent), _items(item.items, item.path, opened)
    else:
        assert not isinstance(item, Op)
        module = one_module(item)
        name = lines.fold_in_words(item, parent)
        inner = _items(module.items, module.path, opened) if module else _items(item.items, parent, opened)
    found = counts(ops_in(item))
    chips = "".join(
        _chip(dtype_in_words(dtype), f" × {number:,}") for dtype, number in found.dtypes.items() if dtype
    )
    copied = f"<small>{bytes_in_words(found.copied)} copied by casts</small>" if found.copied else ""
    return (
        f"<details{' open' if opened else ''}><summary>{escape(name)} {chips}{copied}</summary>"
        f"{inner}</details>"
    )


def _heads() -> str:
    return f"{_TABLE}<thead><tr>{_HEADS}</tr></thead></table>"


def _table(ops: list[tuple[str, Op]]) -> str:
    if not ops:
        return ""
    body = "".join(_row(label, op) for label, op in ops)
    return f"{_TABLE}<tbody>{body}</tbody></table>"


def _row(label: str, op: Op) -> str:
    number, name, took, casts, ran, gave, why, line = lines.cells(lines.Row(0, label, op))
    shown = (number, _breakable(name), escape(took), escape(casts), _chip(ran) if op.dtype else ran, escape(gave),
             escape(why), _breakable(line))  # fmt: skip
    hovered = ("", _kernels(op), _shapes(op), "", "", "", op.reason, _source(op))
    return f"<tr>{''.join(map(_cell, lines.HEADS, shown, hovered, _ALIGNED))}</tr>"


def _cell(head: str, shown: str, hovered: str, style: str) -> str:
    title = f' title="{escape(hovered)}"' if hovered else ""
    tag, scope = ("th", ' scope="row"') if head == "operator" else ("td", "")
    return f'<{tag}{scope} style="{style}"{title}>{shown}</{tag}>'


def _breakable(name: str) -> str:
    """Let a long name end its line behind an underscore or a dot, rather than anywhere."""
    return escape(name).replace("_", "_<wbr>").replace(".", ".<wbr>")


def _kernels(op: Op) -> str:
    return "kernels: " + (", ".join(op.kernels) or "none")


def _shapes(op: Op) -> str:
    named = (f"{each.name} " if each.name else "" for each in op.inputs)
    return ", ".join(
        f"{name}{dtype_in_words(each.dtype)} {shape_in_words(each.shape)}"
        for name, each in zip(named, op.inputs, strict=True)
    )


def _source(op: Op) -> str:
    source = op.source
    return f"{source.file}:{source.line}, in {source.function}: {source.text.strip()}" if source else ""


def _chip(dtype: str, more: str = "") -> str:
    ink = look(dtype)
    return f'<i style="background: {ink.fill}; color: {ink.text}">{escape(dtype + more)}</i>'
