"""What one rank tells the others about itself."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Final, NamedTuple

MOST: Final = 500  # changes of the scale, and skipped steps: later ones are not compared
FIRST: Final = 32  # meetings, and steps whose weights are known: so many of the first, and of the last
LAST: Final = 64
STILL: Final = 1.5  # seconds without a move, after which a rank counts as waiting
GONE: Final = ("raised", "exited", "silent")


class Meeting(NamedTuple):
    """A call that returns when every rank has made it: the ranks must make the same ones in the same order.

    Attributes:
        number: 1 for the first of a rank.
        kind: "backward" (DDP averages gradients in it), "forward" (DDP sends buffers), "barrier", "all_reduce", …
        step: of the training loop, on this rank.
        forwards: how many training passes through DDP it had made by then.
        where: the line that made it, in words.
    """

    number: int
    kind: str
    step: int
    forwards: int
    where: str

    @property
    def way(self) -> tuple[str, int]:
        """What must be the same on all ranks: the kind, and what a backward pass averages the gradients of."""
        return self.kind, self.forwards if self.kind == "backward" else 0


@dataclass
class RankRecord:
    """One rank, as it was when it told.

    Attributes:
        rank: its number in the default group.
        step: the step that runs, or has just ended.
        ended: "" while its loop is watched, then "left", "raised" or "exited"; "silent"
            where the others conclude that its process has ended.
        error: the exception that ended the loop, in words.
        begun: how many meetings it has begun. `inside` is the kind of the one it is in, "" for none.
        unfinished: the last one ended with an error. `failed`: with one of the connection between ranks, or a timeout.
        broken: its loop ended with such an error, in whatever call.
        where: the line that runs, in words. `still` is for how many seconds nothing has moved there.
        queues: the host does not wait in a meeting itself, but later (NCCL).
        talking: the function of torch.distributed that runs at `where`, whether it was noted or not; "" for none.
        elsewhere: it is in a collective of another group.
        began, over: when its watch began and ended, by a clock that all ranks share; 0 for not yet.
        beat: goes up as long as the process lives.
        joined: the loop uses `join()`, for uneven inputs: then meetings and steps cannot be compared.
        meetings: the first ones and the last ones.
        scales: (step, scale after its update) where it changed, up to the step `scales_until`.
        skips: steps that the scaler left out, up to the step `skips_until`.
        weights: (step, checksum) with which a step began.
        replicas: the weights are meant to be equal on all ranks.
        inputs, random: (step, checksum) of the batch, and of the state of the random numbers, at the first steps.
        dropout: the model has layers that draw random numbers.
    """

    rank: int
    step: int = 0
    ended: str = ""
    error: str = ""
    begun: int = 0
    inside: str = ""
    unfinished: bool = False
    failed: bool = False
    broken: bool = False
    where: str = ""
    still: float = 0.0
    queues: bool = False
    talking: str = ""
    elsewhere: bool = False
    began: int = 0
    over: int = 0
    beat: int = 0
    joined: bool = False
    meetings: list[Meeting] = field(default_factory=list)
    scales: list[tuple[int, float]] = field(default_factory=list)
    scales_until: int = 0
    skips: list[int] = field(default_factory=list)
    skips_until: int = 0
    weights: list[tuple[int, int]] = field(default_factory=list)
    replicas: bool = False
    inputs: list[tuple[int, int]] = field(default_factory=list)
    random: list[tuple[int, int]] = field(default_factory=list)
    dropout: bool = False

    @property
    def done(self) -> int:
        """How many meetings it has left behind, or will never come to the end of."""
        return self.begun - (bool(self.inside) or self.unfinished)

    @property
    def waits(self) -> bool:
        """Whether it has not moved for a while in a meeting, or after one that the host does not wait in itself."""
        return self.still >= STILL and bool(self.inside or (self.queues and self.begun))

    @property
    def is_lost(self) -> bool:
        """Whether it will come to no other meeting: it has ended, or stands in a call that is none of its loop's."""
        stands = self.talking and self.still >= STILL and not (self.inside or self.elsewhere)
        return self.ended in GONE or bool(stands)

    def packed(self) -> bytes:
        """Return it as bytes, for a store."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpacked(cls, data: bytes) -> RankRecord:
        """Return what `packed` made bytes of."""
        fields = json.loads(data)
        fields["meetings"] = [Meeting(*each) for each in fields["meetings"]]
        for name in ("scales", "weights", "inputs", "random"):
            fields[name] = [(step, value) for step, value in fields[name]]
        return cls(**fields)
