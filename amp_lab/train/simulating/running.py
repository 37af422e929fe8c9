"""Lets the ranks run until all have ended, or none can go on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from amp_lab.scaling.rule import ScaleRule, start
from amp_lab.train.arguments import as_size, is_whole
from amp_lab.train.simulating.calls import Call, Calls, wrong
from amp_lab.train.simulating.diagnoses import Deadlock, mispairing
from amp_lab.train.simulating.events import Event
from amp_lab.train.simulating.programs import Program, read
from amp_lab.train.simulating.ranks import Rank
from amp_lab.train.simulating.replicas import Replica, not_finite
from amp_lab.train.simulating.timeline import Timeline
from amp_lab.train.simulating.tokens import is_number
from amp_lab.train.simulating.wire import Compression, Wire


def simulate(
    programs: Program | Iterable[Program],
    ranks: int | None = None,
    *,
    buckets: int | Sequence[float] = 4,
    bucket_mb: float = 25.0,
    latency_ms: float = 0.1,
    gb_per_s: float = 10.0,
    compress: Compression = "none",
    init_scale: float | None = 2.0**16,
    growth_interval: int = 2000,
) -> Timeline:
    """Let several ranks follow their programs, and return what each did when, and with which numbers.

        def loop(rank):
            for step in range(3):
                yield Forward()
                yield Backward(gradients=math.inf if (rank, step) == (1, 1) else 0.1)
                yield Step()
                yield Update()

        timeline = simulate(loop, ranks=2)

    It is a model. A rank does one thing after the other, and its all-reduces run beside its backward; one collective is
    under way at a time, and it takes what the ring algorithm takes. The optimizer is plain SGD with learning rate 1.
    Left out is what DDP does besides: its very first backward sends one bucket with everything, later ones begin with a
    small bucket of 1 MB unless you set `bucket_cap_mb`, and each forward broadcasts the buffers of a model, such as
    BatchNorm's.

    Args:
        programs: what a rank does: a list of tokens, or a function of the rank that returns or yields tokens. One for
            all ranks, or a list with one for each. What a token gives comes back from its `yield`.
        ranks: how many; None: one for each program, or 2 if there is one for all.
        buckets: how many buckets the gradients fill, numbered from the last layer on; or the megabytes of each.
        bucket_mb: megabytes (10^6 bytes) of FP32 gradients in each. DDP's `bucket_cap_mb` counts 2^20 bytes as one.
        latency_ms: what a collective takes however small it is, in milliseconds.
        gb_per_s: bytes per second from one rank to the next, in units of 10^9.
        compress: "fp16" or "bf16": PyTorch's communication hook of that name sends the buckets so. It only casts, so
            what FP16 cannot hold becomes infinite.
        init_scale, growth_interval: of each rank's GradScaler; `init_scale=None`: no scaler, and gradients in FP32.

    Raises:
        TypeError, ValueError: for what is no program, and settings that make no sense.
        ProgramError: if a program makes calls in an order that PyTorch refuses, too; it names rank and step.
    """
    sizes = _sizes(buckets, bucket_mb)
    wire = Wire(latency_ms, gb_per_s, compress)
    rule = ScaleRule(growth_interval=growth_interval)
    state = None if init_scale is None else start(init_scale, rule)
    running = read(programs, ranks)
    calls = Calls(len(running), wire)
    group = [
        Rank(number, program, Replica(len(sizes), state, rule), calls, sizes)
        for number, program in enumerate(running)
    ]
    moving = True
    while moving:
        for rank in group:
            rank.go()
        moving = calls.pair()
    return _timeline(group, calls)


def _sizes(buckets: Any, mb: Any) -> list[float]:
    sizes = [mb] * as_size("simulate", "buckets", buckets) if is_whole(buckets) else buckets
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or not sizes:
        raise ValueError(
            f"simulate(buckets={buckets!r}): give a number of buckets, or a list with their megabytes"
        )
    if bad := [size for size in sizes if not is_number(size) or not 0 < size < 1e9]:
        raise ValueError(f"simulate: a bucket of {bad[0]!r} MB: give a size above 0, such as 25.0")
    return [float(size) for size in sizes]


def _timeline(group: Sequence[Rank], calls: Calls) -> Timeline:
    network = [_on_the_wire(call, met) for met in calls.met for call in met]
    own = [event for rank in group for event in rank.events]
    waits = [calls.next(rank.number) for rank in group]
    deadlock = None
    if any(waits):
        deadlock = Deadlock(
            tuple(None if call is None else call.words for call in waits),
            tuple(rank.now for rank in group),
        )
    return Timeline(
        events=tuple(sorted(own + network, key=lambda event: (event.start, event.rank))),
        scales=tuple(tuple(rank.scales) for rank in group),
        skipped=tuple(tuple(rank.skipped) for rank in group),
        weights=tuple(tuple(rank.replica.weights) for rank in group),
        payload=max(sum(call.bytes for call in made if call.kind == "all-reduce") for made in calls.made),
        all_reduces=sum(met[0].kind == "all-reduce" for met in calls.met),
        deadlock=deadlock,
        mispaired=tuple(mispairing(met) for met in calls.met if wrong(met)),
    )


def _on_the_wire(call: Call, met: Sequence[Call]) -> Event:
    assert call.start is not None
    assert call.end is not None
    kind = "wrong pairing" if wrong(met) else call.kind
    what = (call.label or call.what) + not_finite([call.result])
    return Event(call.rank, kind, what, call.start, call.end, call.step)
