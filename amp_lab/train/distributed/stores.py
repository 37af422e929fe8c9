"""PyTorch's stores of keys and values, in which processes meet: from here, so that words tell if there are none."""

from __future__ import annotations

import torch

from amp_lab.train.distributed.errors import WITHOUT_DISTRIBUTED

if not torch.distributed.is_available():
    raise ImportError(WITHOUT_DISTRIBUTED)

from torch.distributed import HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

__all__ = ["HashStore", "PrefixStore", "Store", "TCPStore"]
