"""A folder with the checkpoints of one run: which to keep, which to go on from."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Collection, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, Final

import torch

from amp_lab.train.arguments import as_size, is_whole
from amp_lab.train.saving import best as ranking
from amp_lab.train.saving.errors import CheckpointError
from amp_lab.train.saving.files import explained, remove_leftovers
from amp_lab.train.saving.lock import FolderLock
from amp_lab.train.saving.one import header, load_checkpoint, write_checkpoint

_NAME: Final = re.compile(r"step-(\d{10,})\.pt")
_GO_ON = "Go on with that run (fit(..., resume=True)), or give this run another folder"


class Checkpoints:
    """Keeps the checkpoints of one run in a folder: `step-0000001200.pt` was saved after 1,200 steps.

        trainer = Trainer(model, loss_fn, optimizer, checkpoints=Checkpoints("runs/a", every=500, best="max accuracy"))
        trainer.fit(train, dev, epochs=10, resume=True)

    A new checkpoint is whole and on the disk before an older one is removed. Files with other names are never touched,
    and the checkpoints of another run are never overwritten.

    Args:
        folder: made when a run begins. From `begin` to `end` no other process may save in it.
        every: steps from one checkpoint to the next; None: only at the end of each epoch, where there is always one.
        keep: how many of the newest to keep, besides the best; None: all.
        best: which one is never removed while it is the best: "loss" (the same as "min loss"), "max accuracy".

    Raises:
        ValueError, TypeError: for arguments of another kind.
    """

    def __init__(
        self,
        folder: str | PathLike[str],
        *,
        every: int | None = None,
        keep: int | None = 3,
        best: str | None = None,
    ) -> None:
        self.folder = Path(folder).absolute()  # it is the same after os.chdir
        self._lock = FolderLock(self.folder)
        self.every = _count("every", every)
        self.keep = _count("keep", keep)
        self._ranking = ranking.parse(best)
        self._known: set[Path] = set()  # what this run has written or was continued from
        self._broken: set[Path] = set()

    @property
    def paths(self) -> list[Path]:
        """The checkpoints in the folder, in order of steps."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_step)

    @property
    def newest(self) -> Path | None:
        """The checkpoint after most steps; None if there is none."""
        return max(self.paths, key=_step, default=None)

    @property
    def best(self) -> Path | None:
        """The best checkpoint, as `best` says; None if there is none."""
        path, _ = self._best()
        return path

    @property
    def best_value(self) -> float | None:
        """What was measured at the best checkpoint."""
        _, value = self._best()
        return value

    def due(self, step: int) -> bool:
        """Tell whether to save after this many steps, inside an epoch."""
        return self.every is not None and step % self.every == 0

    def check_values(self, names: Collection[str]) -> None:
        """Raise an error if `best` is not among the values that each epoch's end will give to `save`.

        Raises:
            CheckpointError: "mismatch".
        """
        if self._ranking:
            self._ranking.check(names)

    def begin(self, step: int) -> None:
        """Make sure that a run that has done this many steps loses nobody's checkpoints; tidy up after killed runs.

        Raises:
            CheckpointError: "occupied", if another process trains with this folder, or it holds checkpoints that this
                object neither wrote nor loaded, or later ones than `step`; "unsaved", if it cannot be written.
        """
        if self.folder.exists() and not self.folder.is_dir():
            raise CheckpointError(f"{self.folder}: this is a file: give a folder", "unsaved", self.folder)
        with explained(self.folder):
            self._lock.take()
        remove_leftovers(self.folder)
        self._refuse_strangers()
        later = [path for path in self.paths if _step(path) > step and path not in self._broken]
        if later:
            raise CheckpointError(
                f"{later[-1]}: saved after {_step(later[-1]):,} steps, and this run has done {step:,}: it would be "
                f"overwritten. {_GO_ON}",
                "occupied",
                later[-1],
            )

    def end(self) -> None:
        """Let other processes save in the folder: this run is over, or broken off."""
        self._lock.release()

    def save(self, state: Any, *, step: int, values: Mapping[str, float] | None = None) -> Path:
        """Save the state after this many steps, then remove what is no longer to be kept.

        Args:
            state: what `save_checkpoint` takes.
            step: steps done so far; the same step again replaces its file.
            values: what was measured at the end of an epoch, as {"loss": 0.3, "accuracy": 0.9}.

        Raises:
            CheckpointError: "unsaved" or "occupied"; all older checkpoints are as they were.
            ValueError: for another kind of step.
        """
        if values is not None:
            self.check_values(values)
        if not is_whole(step) or step < 0:
            raise ValueError(f"step={step!r}: give the number of steps done, a whole number from 0 on")
        self._refuse_strangers()
        path = self.folder / f"step-{step:010d}.pt"
        measured = None if values is None else {name: float(value) for name, value in values.items()}
        self._known.add(path)  # before it is there: Ctrl+C may come in between
        write_checkpoint(path, state, {"step": int(step), "values": measured})
        self._broken.discard(path)
        self._remove_old()
        return path

    def load(
        self, path: str | PathLike[str] | None = None, *, map_location: str | torch.device = "cpu"
    ) -> Any:
        """Return the newest state that can be read, with a warning for each newer file that cannot; or that of `path`.

        Raises:
            CheckpointError: if there is none ("missing"), or a newer amp_lab wrote the newest.
        """
        if path is not None:
            state = load_checkpoint(path, map_location=map_location)
            if Path(path).resolve().parent == self.folder.resolve():
                self._known.update(self.paths)
            return state
        reasons = []
        for candidate in reversed(self.paths):
            try:
                state = load_checkpoint(candidate, map_location=map_location)
            except CheckpointError as error:
                if error.kind == "newer":
                    raise
                reasons.append(error)
                continue
            for reason in reasons:
                warnings.warn(f"{reason}. Went on from {candidate.name} instead", stacklevel=2)
            self._known.update(self.paths)
            self._broken.update(Path(str(error.path)) for error in reasons)
            return state
        raise _nothing_to_load(self.folder, reasons)

    def _refuse_strangers(self) -> None:
        strangers = [path for path in self.paths if path not in self._known]
        if strangers:
            raise CheckpointError(
                f"{strangers[-1]}: another run has saved its checkpoints in this folder. {_GO_ON}",
                "occupied",
                strangers[-1],
            )

    def _remove_old(self) -> None:
        if self.keep is None:
            return
        whole = [path for path in self.paths if path not in self._broken]
        keep = {*whole[-self.keep :], self.best}
        for path in whole:
            if path not in keep:
                path.unlink(missing_ok=True)
                self._known.discard(path)

    def _best(self) -> tuple[Path | None, float | None]:
        """The first of equals, so that a run that has stopped improving keeps its best."""
        first: Path | None = None
        top = -math.inf
        if self._ranking is None:
            return None, None
        for path in self.paths:
            value = self._ranking.value(_values(path))
            if value is not None and value * self._ranking.sign > top:
                first, top = path, value * self._ranking.sign
        return first, None if first is None else top * self._ranking.sign


def _step(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    assert found
    return int(found[1])


def _values(path: Path) -> dict[str, float] | None:
    """Only the last line is read. A file without one is not the best of anything."""
    try:
        values = header(path).get("values")
    except CheckpointError:
        return None
    return values if isinstance(values, dict) else None


def _nothing_to_load(folder: Path, reasons: list[CheckpointError]) -> CheckpointError:
    if not reasons:
        return CheckpointError(
            f"{folder}: no checkpoint is here. Start without resume, or give the folder of the run",
            "missing",
            folder,
        )
    listed = "\n".join(f"  {reason}" for reason in reasons)
    return CheckpointError(
        f"{folder}: no checkpoint here can be read:\n{listed}", reasons[0].kind, reasons[0].path
    )


def _count(name: str, value: int | None) -> int | None:
    return None if value is None else as_size("Checkpoints", name, value)
