"""The loops in the docstrings of rules about several processes, run by two.

python -m tests.watching.documented_ranks replicas-drift     what both watches say about the loops of one rule
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

from amp_lab.train.distributed.workers import Outcome, run_ranks
from tests.watching.docs import Loop, all_loops

# Loops after which the group is of no use any more: each is run by processes of its own.
ENDING = ("one-rank-decides Wrong", "one-rank-decides Wrong, a barrier", "rank-left-early Wrong")
TIMEOUT = 4.0  # seconds that a rank waits for the other


class Said(NamedTuple):
    """What one rank's watch said about a loop: the root causes, all findings, the line, the report, the exception.

    `cures` holds for each root cause what to do, in words, and as a diff.
    """

    roots: list[str]
    all: list[str]
    line: int | None
    text: str
    report: str
    error: str
    cures: list[tuple[str, str]]


def loops() -> list[Loop]:
    """Return the loops that take several processes."""
    return [each for each in all_loops() if each.is_of_ranks]


def run(some: Sequence[Loop], ranks: int = 2) -> list[Outcome]:
    """Run loops, one after the other, in the same processes; the value of each is a `Said` for each loop."""
    return run_ranks(_all, ranks, list(some), timeout=90.0, collective_timeout=TIMEOUT, grace=2 * TIMEOUT)


def _all(rank: int, some: Sequence[Loop]) -> list[Any]:
    return [_said(rank, each) for each in some]


def _said(rank: int, loop: Loop) -> Said:
    from tests.watching.docs import watched

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = watched(loop, rank)
    report = seen.report
    where = report.diagnoses[0].where if report.diagnoses else None
    if where is not None and where.file != loop.file:
        where = None
    return Said(
        [each.id for each in report.diagnoses],
        [each.id for each in report.all],
        where.line if where else None,
        where.text if where else "",
        str(report),
        repr(seen.error) if seen.error else "",
        [(each.fix.words, each.fix.diff) if each.fix else ("", "") for each in report.diagnoses],
    )


def _main() -> None:
    wanted = set(sys.argv[1:])
    for loop in loops():
        if not wanted or loop.rule in wanted or loop.name in wanted:
            print(f"\n--- {loop.name}\n{loop.program}")
            for outcome in run([loop]):
                said = outcome.value[0] if outcome.value else None
                print(f"rank {outcome.rank} {outcome.ended} after {outcome.seconds:.1f} s", outcome.error)
                print(said.report if said else outcome.traceback, said.error if said else "")
                print(outcome.output)


if __name__ == "__main__":
    _main()
