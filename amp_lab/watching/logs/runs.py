"""The rows of a log as runs: in order, with numbers, and with what follows from two rows that are neighbours."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Final, NamedTuple

from amp_lab.watching.logs.columns import find_epoch_column, find_run_column
from amp_lab.watching.logs.numbers import counted, number
from amp_lab.watching.logs.reading import Table

_UNSORTED: Final = 0.05  # from this share of steps backward on, rows are out of order, not resumed


class Row(NamedTuple):
    """What one row says; None: nothing. `step` is the row's number where the log has no steps."""

    line: int
    step: float
    loss: float | None = None
    scale: float | None = None
    norm: float | None = None
    lr: float | None = None
    skipped: float | None = None


@dataclass
class Run:
    """One run: its rows in order, what columns it has, and the rows at which it was resumed."""

    name: str
    rows: list[Row]
    has: frozenset[str]
    resumed: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @cached_property
    def gap(self) -> float:
        """The usual number of steps from one row to the next; 1 where that is not known."""
        gaps = [b.step - a.step for a, b in zip(self.rows, self.rows[1:], strict=False) if b.step > a.step]
        return median(gaps) if gaps else 1.0

    @property
    def dense(self) -> bool:
        """Whether each step was logged, or nearly each."""
        return self.gap <= 1

    @cached_property
    def steered(self) -> bool:
        """Whether the log shows what a scaler did: without that, a norm that is not finite need not be a skip."""
        return bool(self.has & {"scale", "skipped"})

    @cached_property
    def changes(self) -> list[Change]:
        """All pairs of neighbours among the rows with a scale, also those between which it stays."""
        known = self.known("scale")
        joints = sorted(self.resumed)
        found = []
        for (i, before), (j, after) in itertools.pairwise(known):
            steps = max(self.rows[j].step - self.rows[i].step, 1.0)
            found.append(Change(i, j, before, after, steps, any(i < k <= j for k in joints)))
        return found

    @cached_property
    def scale_after(self) -> bool | None:
        """Whether a row has the scale that its step's `update()` left, not the one that it ran with; None: not known.

        Told by the first of rows that are not finite: the scale falls in the row of the skipped step, or in the next.
        """
        bad = {i for kind in ("loss", "norm") for i, value in self.known(kind) if not math.isfinite(value)}
        firsts = {i for i in bad if i - 1 not in bad}
        falls = [each for each in self.changes if each.powers < 0 and not each.resumed]
        fallen = {each.second for each in falls}
        after = len(firsts & fallen)
        before = len((firsts & {each.first for each in falls}) - fallen)
        return None if after == before else after > before

    def known(self, kind: str) -> list[tuple[int, float]]:
        """Return the rows in which a kind of number stands, with it."""
        cells = ((i, getattr(row, kind)) for i, row in enumerate(self.rows))
        return [(i, value) for i, value in cells if value is not None]

    def at(self, index: int) -> str:
        """Name a row for a sentence."""
        row = self.rows[index]
        if "step" not in self.has:
            return f"line {row.line}"
        return f"step {row.step:,.0f} (line {row.line})"


class Change(NamedTuple):
    """Two neighbouring rows that both have a scale: it goes from `before` to `after` within `steps` steps."""

    first: int
    second: int
    before: float
    after: float
    steps: float
    resumed: bool

    @property
    def powers(self) -> float:
        """The change in powers of two; 0 where the scale is not a number above 0."""
        if not (0 < self.before < math.inf and 0 < self.after < math.inf):
            return -math.inf if self.after == 0 < self.before else 0.0
        return math.log2(self.after / self.before)


def skips(run: Run) -> list[int]:
    """Return the rows whose step was skipped, as far as the log shows it.

    The column counts where it is there. Else a norm that is not finite says so, or a scale that falls: from this row
    to the next, or in this one if scales were written down after `update()`.
    """
    marked = run.known("skipped")
    if marked:
        return _marked(marked)
    found = {i for i, norm in run.known("norm") if not math.isfinite(norm)}
    if "norm" not in run.has or not found:
        falls = [change for change in run.changes if change.powers < 0 and not change.resumed]
        found |= {change.second if run.scale_after else change.first for change in falls}
    return sorted(found)


def _marked(marked: Sequence[tuple[int, float]]) -> list[int]:
    """Read a column of 0 and 1, or one that counts all skips so far."""
    values = [value for _, value in marked]
    counts = max(values) > 1 and all(a <= b for a, b in itertools.pairwise(values))
    if not counts:
        return [i for i, value in marked if value > 0]
    return [i for (_, a), (i, b) in zip([(0, 0.0), *marked], marked, strict=False) if b > a]


def read_runs(table: Table, columns: Mapping[str, str]) -> list[Run]:
    """Split a table into runs, and put the rows of each into order."""
    by = find_run_column(table)
    groups: dict[str, list[int]] = {}
    for index, cells in enumerate(table.rows):
        groups.setdefault(str(cells.get(by, "")) if by else "", []).append(index)
    runs: list[Run] = []
    for name, indices in groups.items():
        rows = _merged([_row(table, index, columns) for index in indices])
        runs += _split(table, rows, columns, f"{by} {name}" if by else "")
    return runs


def _row(table: Table, index: int, columns: Mapping[str, str]) -> Row:
    cells = table.rows[index]
    numbers = {kind: number(cells.get(name)) for kind, name in columns.items()}
    step = numbers.pop("step", None)
    if step is None or not math.isfinite(step):
        step = float("nan") if "step" in columns else index + 1.0
    return Row(table.lines[index], step, **numbers)


def _merged(rows: Sequence[Row]) -> list[Row]:
    """Join neighbouring rows of one step that fill each other's gaps, and drop those with nothing of interest.

    Lightning writes the loss and the learning rate of a step into different rows; an evaluation has neither.
    """
    merged: list[Row] = []
    for row in rows:
        if math.isnan(row.step) or all(cell is None for cell in row[2:]):
            continue
        last = merged[-1] if merged else None
        apart = last is not None and all(
            a is None or b is None for a, b in zip(last[2:], row[2:], strict=True)
        )
        if last is not None and last.step == row.step and apart:
            cells = (b if a is None else a for a, b in zip(last[2:], row[2:], strict=True))
            merged[-1] = Row(last.line, last.step, *cells)
        else:
            merged.append(row)
    return merged


def _split(table: Table, rows: list[Row], columns: Mapping[str, str], name: str) -> list[Run]:
    """Tell a resumed run (the step goes back a little) from a new one (it begins again), and from disorder."""
    has = frozenset(
        kind for kind in columns if kind == "step" or any(getattr(row, kind) is not None for row in rows)
    )
    back = [i for i, (a, b) in enumerate(itertools.pairwise(rows), 1) if b.step < a.step]
    if not back:
        return [Run(name, rows, has)] if rows else []
    starts = [i for i in back if rows[i].step <= rows[0].step + 1]
    if len(starts) == len(back) and _counts_in_epochs(table, rows, starts):
        note = "the step begins again with each epoch; steps were counted on"
        return [Run(name, _counted_on(rows, starts), has, notes=[note])]
    if len(back) > max(3, _UNSORTED * len(rows)):
        note = f"the steps are not in order ({len(back)} times backward); the rows were sorted by step"
        return [Run(name, sorted(rows, key=lambda row: row.step), has, notes=[note])]
    edges = [0, *starts, len(rows)]
    return [
        _part(
            rows[a:b], {i - a for i in back if a < i < b}, has, f"{name} run {k}".strip() if starts else name
        )
        for k, (a, b) in enumerate(itertools.pairwise(edges), 1)
    ]


def _part(rows: list[Row], resumed: set[int], has: frozenset[str], name: str) -> Run:
    """Drop the steps that were done again after a resume: those before it were thrown away with the crash."""
    kept: list[Row] = []
    joints: set[int] = set()
    for i, row in enumerate(rows):
        if i in resumed:
            while kept and kept[-1].step >= row.step:
                kept.pop()
            joints.add(len(kept))
        kept.append(row)
    notes = (
        [f"resumed {counted(len(joints), 'time')}; steps that were done twice count as the later time"]
        if joints
        else []
    )
    return Run(name, kept, has, joints - {0}, notes)


def _counts_in_epochs(table: Table, rows: Sequence[Row], starts: Sequence[int]) -> bool:
    column = find_epoch_column(table)
    if column is not None:
        epochs = {
            line: number(cells.get(column)) for line, cells in zip(table.lines, table.rows, strict=True)
        }
        return all((epochs[rows[i].line] or 0) > (epochs[rows[i - 1].line] or 0) for i in starts)
    lengths = {b - a for a, b in zip([0, *starts], [*starts, len(rows)], strict=True)}
    return len(starts) >= 2 and len(lengths) == 1


def _counted_on(rows: Sequence[Row], starts: Sequence[int]) -> list[Row]:
    offset, counted = 0.0, []
    for i, row in enumerate(rows):
        if i in starts:
            usual = rows[i].step - rows[0].step
            offset += rows[i - 1].step - rows[0].step + 1 - usual
        counted.append(row._replace(step=row.step + offset))
    return counted
