"""Exercise 10.1: whether a rank of a script decides alone, where its own loss is NaN."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.judging.staging import Report
from amp_lab.course.lessons.l10.comparing import difference
from amp_lab.course.lessons.l10.noting import Seen
from amp_lab.course.lessons.l10.rehearsal import BATCH, RANKS, play

# Of a scaler, where one of its calls was left out.
_COMPLAINTS = ("No inf checks were recorded", "has already been called")


def judge_decisions(ask: Ask, code: str, filename: str) -> None:
    """Run the file once more, for one epoch in which one loss is NaN; raise `Mistake` if one rank decides by it."""
    ask.call = f"`train(…, epochs=1, batch_size={BATCH})` on {RANKS} ranks, where one loss of one rank is NaN"
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "model.pt"))
        try:
            reports = ask.on_ranks(
                play, code, filename, file, 1, math.nan, ranks=RANKS, filename=filename, shown=False
            )
        except Contained as contained:
            if contained.fault == "timeout":
                return  # it is slow, and was right the first time
            if not any(each.seen["script"].strange for each in ask.reports if "script" in each.seen):
                raise  # it did not come to the NaN
            if not _stops_by_itself(ask.reports):
                got = f"your code raised `{contained.message}`"
                raise Mistake("one-rank-decides", call=ask.call, got=got) from None
            return
    if any(report.ended != "returned" for report in reports):
        got = " and ".join(report.words for report in reports)
        raise Mistake("one-rank-decides", call=ask.call, got=got)
    _judge_agreement(ask.call, [report.seen["script"] for report in reports])


def _stops_by_itself(reports: Sequence[Report]) -> bool:
    """Return whether a script ends where it meets its NaN, which is as good as to go on."""
    first = min((each for each in reports if each.ended == "failed"), key=lambda each: each.at)
    seen: Seen | None = first.seen.get("script")
    return seen is None or (seen.strange and not any(words in first.error for words in _COMPLAINTS))


def _judge_agreement(call: str, seen: Sequence[Seen]) -> None:
    first, second = seen
    place = difference(first.weights, second.weights, 0.0)
    if place:
        got = f"`{place[0]}` is {place[1]} on rank 0 and {place[2]} on rank 1 at the end"
        raise Mistake("one-rank-decides", call=call, got=got)
    if first.scales != second.scales:
        got = f"rank 0 has made {len(first.scales)} updates and ends with the scale {_last(first)}, "
        got += f"rank 1 {len(second.scales)}, with {_last(second)}"
        raise Mistake("one-rank-decides", call=call, got=got)


def _last(seen: Seen) -> str:
    return f"{seen.scales[-1]:g}" if seen.scales else "it began with"
