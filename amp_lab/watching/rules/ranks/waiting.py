"""Ranks that wait for one that does not come, or does something else."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from amp_lab.watching.recording.events import Backward, Event, Raised, Stepped
from amp_lab.watching.recording.ranks.records import Meeting
from amp_lab.watching.recording.ranks.seen import Stuck
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import counted, place_in_words

_TOGETHER: Final = (
    "Let all ranks decide together: all_reduce the flag (its maximum), then let each act on what came of it."
)
_SAME_NUMBER: Final = "Give every rank the same number of batches, or use `with model.join():`."
_MEND: Final = (
    "Mend that error; and start the ranks with torchrun, so that one that fails ends the others, too."
)


@rule(
    "one-rank-decides",
    Severity.WRONG,
    title="one rank goes another way than the others",
    explains=("rank-left-early", "raised", "replicas-drift", "ranks-skip-apart", "ranks-scale-apart"),
)
def one_rank_decides(run: Run) -> Iterator[Finding]:
    """All ranks must make the same collective calls in the same order: backward passes of DDP, all_reduce, barrier.

    Where one of them decides alone, by its own loss or its own number, it leaves a call out or makes one more. The
    others wait for it, or their call is paired with another of its calls and averages what does not belong together.
    Let all decide the same: all_reduce the flag first.

    Wrong:
        for step, (x, y) in enumerate(batches):
            loss = loss_fn(model(x), y)
            if step == 2 and rank == 1:  # such as: if torch.isnan(loss)
                continue
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Wrong, a barrier:
        for step, (x, y) in enumerate(batches):
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 2 and rank == 0:
                dist.barrier()

    Right:
        for step, (x, y) in enumerate(batches):
            loss = loss_fn(model(x), y)
            bad = (~loss.detach().isfinite()).float()
            dist.all_reduce(bad, op=dist.ReduceOp.MAX)
            if bad:
                continue
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    seen = run.ranks
    if met := seen.decided_apart():
        event = _event_of(run, met[seen.rank])
        yield Finding(
            _of_different(met),
            (*([event] if event else []), *_waited_in_vain(run)),
            {},
            Fix(event, say=_TOGETHER) if event else None,
        )
        return
    stuck = seen.stuck()
    if stuck is not None and stuck.is_certain and not stuck.left:
        yield _of_stuck(run, stuck, _TOGETHER)


@rule(
    "rank-left-early",
    Severity.WRONG,
    title="a rank has left the loop, and the others wait for it",
    explains=("raised",),
)
def rank_left_early(run: Run) -> Iterator[Finding]:
    """A rank that has fewer batches, or ends with an error, makes no more calls, and the others wait for them.

    They wait until the timeout of the process group, many minutes, or until the connection breaks. Give all ranks the
    same number of batches (`DistributedSampler` does), or train under `with model.join():`.

    Wrong:
        for x, y in batches[: 5 - rank]:
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Right:
        with model.join():
            for x, y in batches[: 5 - rank]:
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    """
    if run.ranks.decided_apart() is not None:
        return
    stuck = run.ranks.stuck()
    if stuck is not None and stuck.is_certain and stuck.left:
        has_failed = any(each.ended == "raised" for each in stuck.behind)
        yield _of_stuck(run, stuck, _MEND if has_failed else _SAME_NUMBER)


def _of_stuck(run: Run, stuck: Stuck, say: str) -> Finding:
    """Return the finding about ranks that wait, at the last step that this one took."""
    taken = list(run.of(Stepped))[-1:] or list(run.of(Backward))[:1]
    events = (*_waited_in_vain(run), *taken)
    sentence = stuck.words[:1].upper() + stuck.words[1:] + "."
    return Finding(sentence, events, {}, Fix(events[0], say=say) if events else None)


def _waited_in_vain(run: Run) -> tuple[Event, ...]:
    """Return the exception of this rank, if it is about the connection to the others."""
    raised = list(run.of(Raised))
    return tuple(raised[-1:]) if run.ranks.own.broken else ()


def _of_different(met: Mapping[int, Meeting]) -> str:
    """Say what the ranks did in place of each other. `met` is the call of each rank."""
    (rank, one), *others = met.items()
    other_rank, other = next(each for each in others if each[1].way != one.way)
    if one.kind == other.kind:
        passes = f"{counted(one.forwards, 'training pass', 'es')} forward on rank {rank}"
        return (
            f"The backward pass of step {one.step} followed {passes}, and {other.forwards:,} on rank {other_rank}: one "
            "of them left a backward pass out, and since then gradients were averaged that do not belong together."
        )
    return (
        f"Rank {rank} called {one.kind} in step {one.step} ({one.where}), while rank {other_rank} called {other.kind} "
        f"in step {other.step} ({other.where}): neither can go on, or each takes what was meant for another call."
    )


def _event_of(run: Run, met: Meeting) -> Event | None:
    """Return an event at the line of a call, or the nearest in its step."""
    step = [each for each in run.events if each.where is not None and each.step == met.step]
    line = [
        each for each in step if each.where and met.where == place_in_words(replace(each.where, function=""))
    ]
    taken = [each for each in run.of(Stepped) if each.step <= met.step]
    return next(iter([*line, *step, *reversed(taken)]), None)
