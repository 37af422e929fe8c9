"""What the records of all ranks tell when they are laid beside each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from amp_lab.watching.recording.ranks.records import Meeting, RankRecord
from amp_lab.watching.words import in_words, listed


class Apart(NamedTuple):
    """Something that must be equal on all ranks and is not, from this step on."""

    step: int
    of_each: tuple[tuple[int, object], ...]  # each rank, with what it had

    @property
    def words(self) -> str:
        """ "1,024 on ranks 0 and 2, 512 on rank 1"."""
        by_value: dict[object, list[int]] = {}
        for rank, value in self.of_each:
            by_value.setdefault(value, []).append(rank)
        return ", ".join(f"{in_words(value)} on {ranks_in_words(of)}" for value, of in by_value.items())


class Stuck(NamedTuple):
    """Ranks that wait in a call that all must make, and ranks that have not come to it."""

    waiting: tuple[RankRecord, ...]
    behind: tuple[RankRecord, ...]

    @property
    def is_certain(self) -> bool:
        """Whether those that are awaited cannot come any more, or waiting has ended with an error."""
        return all(each.is_lost for each in self.behind) or any(each.failed for each in self.waiting)

    @property
    def left(self) -> bool:
        """Whether those that are awaited have left the loop, and not because they had waited in vain themselves."""
        return all(each.ended and not each.broken for each in self.behind)

    @property
    def words(self) -> str:
        """ "rank 0 waits in backward of step 6 (train.py:31: loss.backward()); rank 1 left the loop after step 5"."""
        return "; ".join([listed([_waits(each) for each in self.waiting]), *map(_is, self.behind)])


@dataclass(frozen=True)
class RanksSeen:
    """The records of the ranks that train together, as far as they have come here. `rank` is the one that looks.

    Where one process trains alone there are none: then nothing is apart, and nobody waits.
    """

    rank: int = 0
    records: tuple[RankRecord, ...] = ()

    @property
    def all_wait(self) -> bool:
        """Whether nobody moves."""
        return all(each.waits for each in self.records)

    @property
    def own(self) -> RankRecord:
        """The record of the rank that looks."""
        return next(each for each in self.records if each.rank == self.rank)

    def without_those_silent_since(self, before: RanksSeen) -> RanksSeen:
        """Mark the ranks that have given no sign of life since they were seen before."""
        beats = {each.rank: each.beat for each in before.records if each.rank != self.rank}
        return RanksSeen(
            self.rank,
            tuple(
                replace(each, ended="silent")
                if beats.get(each.rank) == each.beat and each.ended in ("", "left")
                else each
                for each in self.records
            ),
        )

    def skips_apart(self) -> Apart | None:
        """The first step that the scaler left out on some ranks only."""
        if self._cannot_compare:
            return None
        until = min(each.skips_until for each in self.records)
        skipped = [{step for step in each.skips if step <= until} for each in self.records]
        apart = skipped[0].union(*skipped) - skipped[0].intersection(*skipped)
        if not apart:
            return None
        first = min(apart)
        return self._apart(first, ["skipped" if first in each else "taken" for each in skipped])

    def scales_apart(self) -> Apart | None:
        """The first step after which the loss scale differs."""
        if self._cannot_compare:
            return None
        until = min(each.scales_until for each in self.records)
        for step in sorted({step for each in self.records for step, _ in each.scales if step <= until}):
            scales = [_scale_at(each, step) for each in self.records]
            if len(set(scales)) > 1:
                return self._apart(step, scales)
        return None

    def weights_apart(self) -> Apart | None:
        """The first step that began with different weights, if they have been different ever since."""
        if not all(each.replicas for each in self.records):
            return None
        told = self._checksums(lambda record: record.weights)
        together = [step for step, sums in told.items() if len(set(sums)) == 1]
        apart = [step for step in told if step > max(together, default=0)]
        return self._apart(apart[0], told[apart[0]]) if apart else None

    def same(self, of: Callable[[RankRecord], Sequence[tuple[int, int]]]) -> list[int]:
        """Return the steps in which checksums are the same on all ranks; none, if they are not in every step."""
        told = self._checksums(of)
        return list(told) if all(len(set(sums)) == 1 for sums in told.values()) else []

    def _checksums(self, of: Callable[[RankRecord], Sequence[tuple[int, int]]]) -> dict[int, list[int]]:
        """Return the checksums of all ranks, in order of ranks, for each step of which all have told one."""
        if self._cannot_compare:
            return {}
        sums = [dict(of(each)) for each in self.records]
        return {step: [each[step] for each in sums] for step in sorted(set.intersection(*map(set, sums)))}

    def _apart(self, step: int, values: Sequence[object]) -> Apart:
        return Apart(step, tuple(zip(self._ranks, values, strict=True)))

    def decided_apart(self) -> dict[int, Meeting] | None:
        """The first meeting in which the ranks did not do the same, by rank."""
        if self._cannot_compare:
            return None
        each_rank = [{meeting.number: meeting for meeting in each.meetings} for each in self.records]
        for number in sorted(set(each_rank[0]).intersection(*each_rank)):
            met = [each[number] for each in each_rank]
            if len({each.way for each in met}) > 1:
                return dict(zip(self._ranks, met, strict=True))
        return None

    def stuck(self) -> Stuck | None:
        """Who waits, and for whom; None if nobody does."""
        waiting = [each for each in self.records if each.waits or each.failed]
        if self._cannot_compare or not waiting:
            return None
        at = max(each.begun for each in waiting)
        waiting = [each for each in waiting if each.begun == at]
        others = [each for each in self.records if each not in waiting]
        behind = [each for each in others if each.done < at and (each.begun < at or each.ended)]
        return Stuck(tuple(waiting), tuple(behind)) if behind else None

    @property
    def _ranks(self) -> list[int]:
        return [each.rank for each in self.records]

    @property
    def _cannot_compare(self) -> bool:
        return len(self.records) < 2 or any(each.joined for each in self.records)


def _scale_at(record: RankRecord, step: int) -> float | None:
    """Return the scale after a step: that of the last change until then; None before the first."""
    return next((value for changed, value in reversed(record.scales) if changed <= step), None)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """ "rank 1", "ranks 0 and 2"."""
    return f"rank{'s' if len(ranks) > 1 else ''} {listed([str(each) for each in ranks])}"


def _waits(record: RankRecord) -> str:
    last = record.meetings[-1]
    return f"rank {record.rank} waits in {last.kind} of step {last.step} ({last.where})"


def _is(record: RankRecord) -> str:
    of = f"rank {record.rank}"
    if record.ended == "raised":
        where = f" ({record.where})" if record.broken else ""
        return f"{of} ended in step {record.step}{where} with {record.error}"
    if record.ended == "silent":
        return (
            f"{of} has given no sign of life since step {record.step} ({record.where}): its process has ended"
        )
    where = f" ({record.where})" if record.where else ""
    if record.ended == "exited":
        return f"{of} ended its process after step {record.step}"
    if record.ended:
        now = f", and is in {record.talking}{where} now" if record.talking else ""
        return f"{of} left the loop after step {record.step}{now}"
    return f"{of} is in step {record.step}{where}"
