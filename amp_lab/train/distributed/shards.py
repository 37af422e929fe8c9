"""A rank's part of a set that is measured: each sample on one rank, once."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler


class DevShard(Sampler[int]):
    """Deals a dev set out to the ranks: rank r of n gets the samples r, r + n, r + 2n, …

        dev_loader = DataLoader(dev, batch_size=64, sampler=DevShard(dev))

    `DistributedSampler` fills up the parts until all are of one size, with samples that come twice; a mean over them is
    not that of the set. Here one part may have a sample more than another, and a set that is smaller than the number of
    ranks leaves some with none, which `Trainer` allows for a dev set.

    Args:
        dataset: with a length.
        rank, size: this rank, and how many there are; None: those of the process group, or one process alone.

    Raises:
        ValueError: for a rank that there is not.
    """

    def __init__(self, dataset: Sized, rank: int | None = None, size: int | None = None) -> None:
        grouped = torch.distributed.is_available() and torch.distributed.is_initialized()
        if size is None:
            size = torch.distributed.get_world_size() if grouped else 1
        if rank is None:
            rank = torch.distributed.get_rank() if grouped else 0
        if not 0 <= rank < size:
            raise ValueError(f"DevShard(rank={rank}, size={size}): ranks go from 0 to size - 1")
        self._mine = range(rank, len(dataset), size)

    def __iter__(self) -> Iterator[int]:
        return iter(self._mine)

    def __len__(self) -> int:
        return len(self._mine)
