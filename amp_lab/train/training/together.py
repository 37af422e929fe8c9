"""What the ranks of a run tell each other: one message of five numbers in each step, and more where it begins and ends.

A step has no other meeting than this one and DDP's own. Nobody may find out alone that a loss is NaN, or that somebody
wants to stop, and act on it: the others would wait for that rank in the next all-reduce.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from amp_lab.train.distributed.failures import RanksDiffer
from amp_lab.train.distributed.ranks import Ranks
from amp_lab.train.saving.positions import Batches, length

if TYPE_CHECKING:
    from amp_lab.train.trainer import Trainer


_SKIPPED: Final = (
    "in the step before, some ranks have skipped and others have not, and their weights differ. DDP averages "
    "gradients, so all scalers see the same; what changes gradients after that, on one rank only, parts them: a hook "
    "of yours, or loss_fn's own weights. Do it on all ranks alike, and go back to a checkpoint from before"
)
_MOVED: Final = (
    "a scheduler or a callback has moved it on some ranks and not on others. Their weights are still the same; move "
    "it on all ranks alike"
)


class Together:
    """How the ranks of a Trainer keep together. Alone, there is nothing to keep.

    Attributes:
        stopping: whether all ranks know that the run ends after this step.
        largest: the samples of the largest window that any rank has had; 0 before the first. To go on exactly, a
            checkpoint holds it.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self.stopping = False
        self.largest = 0
        self._came = 0  # samples of the largest window of this step

    def begin(self) -> None:
        """Begin a run: nobody has asked to stop."""
        self.stopping = False
        self._ranks.begin()

    def whole(self, samples: int) -> int:
        """Return how many samples a window has on one rank, the same number on all: what shares are shares of.

        DDP takes the mean over ranks as if all windows were alike; nearly all are. Where they are not, `put_right`
        corrects it. The ranks agree on the number in the first step; the largest window that has come counts.
        """
        if self._ranks.size == 1:
            return samples
        if not self.largest:
            self.largest = int(max(row[0] for row in self._ranks.rows([samples])))
        return self.largest

    def mean(self, trainer: Trainer, losses: list[torch.Tensor], sizes: Sequence[int]) -> tuple[float, int]:
        """Return the mean loss over all samples of this step, and how many they are: on all ranks.

        It waits for the GPU, once, and for the other ranks. With the message comes whether one of them wants to stop.

        Raises:
            RanksDiffer: if the last step has left them with other loss scales, or learning rates.
        """
        loss, samples = _mean(torch.stack(losses).tolist(), sizes), sum(sizes)
        if self._ranks.size == 1:
            return loss, samples
        scale, lr = trainer.scaler.get_scale(), float(trainer.optimizer.param_groups[0]["lr"])
        wants_to_stop = trainer.asked_to_stop is not None
        rows = self._ranks.rows([loss, samples, scale, lr, wants_to_stop])
        means, counts, scales, lrs, stops = zip(*rows, strict=True)
        _check_alike("the loss scale", scales, trainer.step, _SKIPPED)
        _check_alike("the learning rate", lrs, trainer.step, _MOVED)
        self.stopping = any(stops)
        self._came = int(max(counts))
        return _mean(means, counts), int(sum(counts))

    def put_right(self, parameters: Iterable[torch.Tensor], samples: int) -> None:
        """Correct gradients whose shares were not shares of all the samples that came, and shares from now on."""
        if self._ranks.size == 1:
            return
        expected = self.largest * self._ranks.size
        if samples != expected:
            for each in parameters:
                if each.grad is not None:
                    each.grad.mul_(expected / samples)
        self.largest = max(self.largest, self._came)

    def stop(self, trainer: Trainer, because: str) -> None:
        """End the run after this step; all ranks have found the same, and call it together."""
        trainer.stop(because)
        self.stopping = True

    def stops(self, trainer: Trainer) -> bool:
        """Tell whether the run ends here. On several ranks, a request of one counts from the next message on."""
        if self._ranks.size == 1:
            return trainer.asked_to_stop is not None
        if self.stopping:
            trainer.asked_to_stop = self.first_said(trainer.asked_to_stop or "")
        return self.stopping

    def stops_between_epochs(self, trainer: Trainer) -> bool:
        """The same, where there is no message to ride on."""
        if self._ranks.size == 1 or self.stopping:
            return trainer.asked_to_stop is not None
        self.stopping = self._ranks.any(trainer.asked_to_stop is not None)
        return self.stops(trainer)

    def first_said(self, text: str) -> str:
        """Return what the first rank says that says something, and which one it is; all ranks ask together."""
        said = self._ranks.gather(text)
        if all(each == said[0] for each in said):
            return said[0]
        return next(f"rank {rank}: {each}" for rank, each in enumerate(said) if each)

    def windows(self, batches: Batches, size: int) -> Iterator[list[Any]]:
        """Yield the batches in lists of `size`, the last one as long as it comes; each is read when it is asked for.

        Raises:
            RanksDiffer: if some ranks have no batch left, and others have.
            ValueError: if a rank has not as many batches as its loader has said.
        """
        source = iter(batches)
        while window := list(itertools.islice(source, size)):
            self._check_left(batches, True)
            yield window
        self._check_left(batches, False)

    def _check_left(self, batches: Batches, some: bool) -> None:
        """Make sure that all ranks are about to make a step, or none. Of loaders with a length, all know that."""
        if self._ranks.size == 1:
            return
        said, taken = length(batches), batches.taken
        if said is not None and (taken > said or (taken < said and not some)):
            raise ValueError(
                f"train_loader has said that it has {said:,} batches, and gave {'more' if some else f'{taken:,}'}: the "
                "other ranks rely on that number; let its len() be right, or leave it out"
            )
        rows = self._ranks.rows([some, taken]) if said is None else []
        done = {rank: int(number) for rank, (one, number) in enumerate(rows) if not one}
        if 0 < len(done) < len(rows):
            rank, number = next(iter(done.items()))
            raise RanksDiffer(
                f"rank {rank} has no more batches after {number:,} of this epoch, and others have: give each rank "
                "the same number of batches (where samples come one after another, itertools.islice ends each part at "
                "the same number)"
            )


def _check_alike(what: str, values: Sequence[float], step: int, why: str) -> None:
    if any(value != values[0] and value == value for value in values):  # NaN is not equal to itself
        listed = ", ".join(f"{value:.9g} on rank {rank}" for rank, value in enumerate(values))
        raise RanksDiffer(f"{what} is {listed} at step {step:,}: {why}")


def _mean(values: Sequence[float], samples: Sequence[float]) -> float:
    """Return the mean over all samples, of values that are means over so many of them; one alone comes out as it is."""
    whole = sum(samples)
    return sum(value * (each / whole) for value, each in zip(values, samples, strict=True))
