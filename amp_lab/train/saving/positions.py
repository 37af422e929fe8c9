"""The place in the data: which epoch, how many of its batches, and the random states that its order came from.

    batches = Batches(loader)
    for batch in batches:          # one epoch
        …
        save_checkpoint("run.pt", {…, "batches": batches.state_dict(), "random": random_states.capture()})

After `load_state_dict`, the next epoch that is read is the one that was broken off: it begins with the random states
that it had begun with, passes over the batches that were taken, and goes on with exactly those that were left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from amp_lab.train.saving import random_states
from amp_lab.train.saving.errors import CheckpointError
from amp_lab.train.saving.sources import own_states, put_back

__all__ = ["Batches", "own_states", "put_back"]


class Batches:
    """A loader that knows how far it has been read. Each `iter()` reads one epoch, or what is left of it.

    `epoch` is the number, from 0, of the epoch that is being read or will be next, and `taken` how many of its batches
    were given out. `end_epoch()` goes on to the next one, and so does `iter()` when there is nothing left.

    Shuffling may come from PyTorch's, NumPy's or Python's global generators, or from generators of the loader, its
    samplers or its dataset. A sampler's `set_epoch` is called. A loader with `state_dict` and `load_state_dict` is
    asked for its place instead of being read again.

    To be exact, the loader must read the same from the same random states. It does not if its worker processes live on
    from epoch to epoch (`persistent_workers=True`) and draw random numbers, nor if what the dataset gives depends on
    what it has given before and it draws from the generator that dropout draws from.
    """

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.epoch = 0
        self.taken = 0
        self._forget()

    def _forget(self) -> None:
        self._start: Mapping[str, Any] | None = None  # the random states at the epoch's start
        self._resume: Mapping[str, Any] | None = None  # what was loaded, until it is read
        self._reading: Iterator[Any] | None = None
        self._read_out = False

    def __len__(self) -> int:
        """Batches in an epoch; TypeError if the loader does not know."""
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        if self._read_out:
            self.end_epoch()
        if self._reading is None:
            self._reading = self._begin() if self._resume is None else self._go_on(self._resume)
        for batch in self._reading:
            self.taken += 1
            yield batch
        self._read_out = True

    def end_epoch(self) -> None:
        """Go on to the next epoch, when all that belongs to this one is done."""
        self.epoch, self.taken = self.epoch + 1, 0
        self._forget()

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Return the place, in plain values and tensors.

        Args:
            taken: batches that were trained on, if some were read ahead; None: all that were given out.
        """
        if self._resume is not None:  # loaded, and not read since
            return dict(self._resume)
        at = self.taken if taken is None else taken
        told = self._start is not None and at == self.taken and _tells(self.loader)
        return {
            "epoch": self.epoch,
            "taken": at,
            "length": length(self.loader),
            "start": self._start,
            "own": own_states(self.loader),
            "loader": self.loader.state_dict() if told else None,  # type: ignore[attr-defined]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a place; the next `iter()` begins there.

        Raises:
            CheckpointError: "mismatch", if an epoch was broken off that had another number of batches.
        """
        if state["taken"] and state["length"] != length(self.loader):
            raise _other_data(f"in the middle of an epoch of {state['length']} batches", length(self.loader))
        self._forget()
        self.epoch, self.taken = state["epoch"], state["taken"]
        self._resume = state if state["start"] is not None else None
        if self._resume is None:
            put_back(self.loader, state["own"])

    def _begin(self) -> Iterator[Any]:
        self.taken = 0
        _tell_epoch(self.loader, self.epoch)
        self._start = {"random": random_states.capture(), "own": own_states(self.loader)}
        return iter(self.loader)

    def _go_on(self, place: Mapping[str, Any]) -> Iterator[Any]:
        """Read the epoch again up to its place. The global random states end as they were: they have gone on since."""
        _tell_epoch(self.loader, self.epoch)
        now = random_states.capture()
        if place["loader"] is not None and _tells(self.loader):
            self.loader.load_state_dict(place["loader"])  # type: ignore[attr-defined]
            batches = iter(self.loader)
        else:
            random_states.restore(place["start"]["random"])
            put_back(self.loader, place["start"]["own"])
            batches = iter(self.loader)
            _pass_over(batches, place["taken"])
        random_states.restore(now)
        self._start, self._resume = place["start"], None
        return batches


def _pass_over(batches: Iterator[Any], many: int) -> None:
    passed = sum(1 for _, _ in zip(range(many), batches, strict=False))
    if passed < many:
        raise _other_data(f"after {many} batches of an epoch", passed)


def _other_data(when: str, now: int | None) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint was saved {when}, and this loader has {now}: give the same data in batches of the same size, "
        "or go on from a checkpoint of an epoch's end",
        "mismatch",
    )


def _tell_epoch(loader: Any, epoch: int) -> None:
    """A DistributedSampler shuffles by the number of the epoch; it may stand in a batch sampler."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    samplers = (getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None))
    for sampler in {id(each): each for each in samplers}.values():  # the first is often the last one, too
        tell = getattr(sampler, "set_epoch", None)
        if tell is not None:
            tell(epoch)


def _tells(loader: Any) -> bool:
    return hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict")


def length(loader: Any) -> int | None:
    """Return how many batches a loader says it has; None if it does not, as that of a dataset without length."""
    try:
        return len(loader)
    except (TypeError, NotImplementedError):
        return None
