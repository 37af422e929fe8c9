"""The processes that train one model together, as one of them sees them.

    ranks = ranks_of(model, device)           # of amp_lab.train.distributed.several
    ranks.rank, ranks.size, ranks.first       # 0, 1, True where the process is alone
    ranks.rows([0.5])                         # what each of them has: [[0.5]] where the process is alone

Alone, every question has its answer at once, and nothing is sent. Together, all ranks must ask the same questions in
the same order: what one of them asks alone, nobody answers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from torch import nn

from amp_lab.train.distributed.failures import RanksDiffer

T = TypeVar("T")
NOTHING: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
_LONG: Final = 200  # letters of a value in a message


class Ranks:
    """One process alone; `SeveralRanks` has the same questions.

    Attributes:
        rank: the number of this process, from 0.
        size: how many there are.
    """

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this is the one that writes files and draws a progress bar."""
        return self.rank == 0

    def rows(self, values: Sequence[float]) -> list[list[float]]:
        """Return the values of every rank, in order of ranks, as FP64 numbers (FP32 where a device has no FP64)."""
        return [[float(value) for value in values]]

    def any(self, flag: bool) -> bool:
        """Tell whether a flag is up on any rank."""
        return any(row[0] for row in self.rows([flag]))

    def gather(self, value: T) -> list[T]:
        """Return a plain value (numbers, text, tensors, containers of them) of every rank, in order of ranks."""
        return [value]

    def share(self, value: T) -> T:
        """Return the value that rank 0 has."""
        return value

    def agree(self, what: str, value: Any) -> None:
        """Make sure that a value is the same everywhere.

        Raises:
            RanksDiffer: on every rank, with the ranks and their values.
        """
        values = self.gather(value)
        if any(each != values[0] for each in values):
            raise differ(what, values)

    def each(self, function: Callable[[], T]) -> list[T]:
        """Call a function on every rank, and return what it gave on each of them.

        Raises:
            RankFailed: where it went well, if it has raised on another rank; there, its own error.
        """
        return [function()]

    def first_does(self, function: Callable[[], T]) -> T:
        """Call a function on rank 0 only, and return there and everywhere what it gave.

        Raises:
            RankFailed: if it has raised; on rank 0, its own error.
        """
        return function()

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Return a context for forward and backward of a micro-batch: gradients are averaged in the last one only."""
        return NOTHING

    def check_gradients(self, step: int) -> None:
        """Refuse to go on if DDP waits for the gradient of a parameter that the loss of this rank does not depend on.

        Raises:
            RuntimeError: with the names of the parameters.
        """

    def settings(self) -> dict[str, Any]:
        """Return the settings of DDP that decide what is sent, and when."""
        return {}

    def model_inside(self, model: nn.Module) -> nn.Module:
        """Return the model as it can be run on one rank without the others."""
        return model

    def same_buffers(self) -> None:
        """Give every rank the buffers of rank 0 (the running averages of BatchNorm), as DDP's next step would."""

    def own_buffers(self) -> dict[str, Any]:
        """Return, for a checkpoint, the buffers that are not those of rank 0: DDP(..., broadcast_buffers=False)."""
        return {}

    def load_own_buffers(self, state: Mapping[str, Any]) -> None:
        """Take what `own_buffers` gave."""

    def begin(self) -> None:
        """Begin a run: what was left in an earlier one is forgotten."""

    def leaving(self, error: BaseException) -> None:
        """Leave a note for the others: this rank does not go on, and why."""

    def explain(self, error: BaseException) -> None:
        """Raise RankFailed in place of an error that says only that another rank does not answer."""


def differ(what: str, values: Sequence[Any]) -> RanksDiffer:
    """Return the error for what is not the same on all ranks; `values` are theirs, in order of ranks."""
    listed = ", ".join(f"{_cut(each)} on rank {rank}" for rank, each in enumerate(values))
    return RanksDiffer(
        f"{what} must be the same on all ranks, and is {listed}: start all with the same script, data and arguments"
    )


def _cut(value: Any) -> str:
    said = repr(value)
    return said if len(said) <= _LONG else f"{said[:_LONG]}…"
