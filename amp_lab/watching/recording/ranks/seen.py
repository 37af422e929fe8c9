"""What the records of all ranks tell when they are laid beside each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
        """ "rank 0 waits in loss.backward() (step 6, train.py:31), and rank 1 …"."""
        return f"{listed([_waits(each) for each in self.waiting])}; {listed([_is(each) for each in self.behind])}"


@dataclass(frozen=True)
class RanksSeen:
    """The records of the ranks that train together, as far as they have come here. `rank` is the one that looks."""

    rank: int
    records: tuple[RankRecord, ...]

    @property
    def all_wait(self) -> bool:
        return all(each.waits for each in self.records)

    @property
    def own(self) -> RankRecord:
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
        until = min((each.skips_until for each in self.records), default=0)
        skipped = [{step for step in each.skips if step <= until} for each in self.records]
        apart = set().union(*skipped) - set(skipped[0]).intersection(*skipped) if skipped else set()
        if self._cannot_compare or not apart:
            return None
        step = min(apart)
        words = ("skipped" if step in each else "taken" for each in skipped)
        return Apart(step, tuple(zip(self._ranks, words, strict=True)))

    def scales_apart(self) -> Apart | None:
        """The first step after which the loss scale differs."""
        until = min((each.scales_until for each in self.records), default=0)
        steps = sorted({step for each in self.records for step, _ in each.scales if step <= until})
        return self._first_apart(steps, lambda record, step: _scale_at(record, step))

    def weights_apart(self) -> Apart | None:
        """The first step that began with different weights, if they have been different ever since."""
        if not all(each.replicas for each in self.records):
            return None
        sums = [dict(each.weights) for each in self.records]
        common = sorted(set(sums[0]).intersection(*sums))
        apart = [step for step in common if len({each[step] for each in sums}) > 1]
        if self._cannot_compare or not apart or apart[-1] != common[-1]:
            return None
        together = [step for step in common if step not in apart]
        first = next(step for step in apart if not together or step > together[-1])
        return Apart(first, tuple((rank, each[first]) for rank, each in zip(self._ranks, sums, strict=True)))

    def _first_apart(self, steps: Iterable[int], of: Callable[[RankRecord, int], object]) -> Apart | None:
        if self._cannot_compare:
            return None
        for step in steps:
            values = [of(each, step) for each in self.records]
            if len(set(values)) > 1:
                return Apart(step, tuple(zip(self._ranks, values, strict=True)))
        return None

    def decided_apart(self) -> dict[int, Meeting] | None:
        """The first meeting in which the ranks did not do the same, by rank."""
        if self._cannot_compare:
            return None
        each_rank = [{meeting.number: meeting for meeting in each.meetings} for each in self.records]
        for number in sorted(set(each_rank[0]).intersection(*each_rank)):
            met = [each[number] for each in each_rank]
            if len({(each.kind, each.forwards if each.kind == "backward" else 0) for each in met}) > 1:
                return dict(zip(self._ranks, met, strict=True))
        return None

    def stuck(self) -> Stuck | None:
        """Who waits, and for whom; None if nobody does."""
        waiting = [each for each in self.records if each.waits or each.failed]
        if self._cannot_compare or not waiting:
            return None
        at = max(each.begun for each in waiting)
        waiting = [each for each in waiting if each.begun == at]
        behind = [each for each in self.records if each not in waiting and each.done < at]
        behind = [each for each in behind if each.begun < at or each.ended]
        return Stuck(tuple(waiting), tuple(behind)) if behind else None

    def same(self, of: Callable[[RankRecord], Sequence[tuple[int, int]]]) -> list[int]:
        """Return the steps in which checksums are the same on all ranks; none, if they are not in every step."""
        if self._cannot_compare:
            return []
        sums = [dict(of(each)) for each in self.records]
        common = sorted(set(sums[0]).intersection(*sums))
        equal = [step for step in common if len({each[step] for each in sums}) == 1]
        return equal if equal == common else []

    @property
    def _ranks(self) -> list[int]:
        return [each.rank for each in self.records]

    @property
    def _cannot_compare(self) -> bool:
        return len(self.records) < 2 or any(each.joined for each in self.records)


def _scale_at(record: RankRecord, step: int) -> float | None:
    scale = None
    for changed, value in record.scales:
        if changed > step:
            break
        scale = value
    return scale


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
