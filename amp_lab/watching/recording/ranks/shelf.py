"""Where each rank lays down its record for the others: the store of the process group."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from amp_lab.watching.recording.ranks.records import RankRecord

_PATIENCE: Final = timedelta(seconds=5)  # with a store that does not answer
# How many watches there were of models of a shape. A rank may watch something else beside, all by itself.
_numbers: Counter[int] = Counter()


class Shelf:
    """The records of all ranks of one watch. A store that is gone answers nothing, and is not asked again."""

    def __init__(self, shape: int) -> None:
        """`shape` is a number of the models, by which the watches of all ranks find each other."""
        _numbers[shape] += 1
        store = _store()
        self._store: Any = None if store is None else PrefixStore("amp_lab.watch", store)
        self._key = f"{shape}/{_numbers[shape]}"

    def lay_down(self, record: RankRecord) -> None:
        """Let the others see a record."""
        if self._store is not None:
            try:
                self._store.set(f"{self._key}/{record.rank}", record.packed())
            except Exception:  # the process that keeps the store has ended
                self._store = None

    def clock(self) -> int:
        """Return a number that is larger each time, whichever rank asks."""
        try:
            return 0 if self._store is None else int(self._store.add("clock", 1))
        except Exception:
            self._store = None
            return 0

    def of(self, ranks: Sequence[int]) -> list[RankRecord]:
        """Return the records of these ranks, as far as there are any."""
        found = []
        for rank in ranks:
            if self._store is None:
                break
            key = f"{self._key}/{rank}"
            try:
                if self._store.check([key]):
                    found.append(RankRecord.unpacked(self._store.get(key)))
            except Exception:
                self._store = None
        return found


def _store() -> Any:
    """Return the store of the default group, by a connection of our own: a thread may use it while the loop waits.

    None where PyTorch has none to give.
    """
    try:
        group: Any = dist.group.WORLD
        get = getattr(group, "get_group_store", None)
        store = get() if get is not None else dist.distributed_c10d._get_default_store()
        if not hasattr(store, "clone"):
            return store
        own = store.clone()
        own.set_timeout(_PATIENCE)
    except Exception:
        return None
    return own
