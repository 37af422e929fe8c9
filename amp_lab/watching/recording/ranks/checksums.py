"""Checksums of tensors: equal bits give equal numbers, in whatever order a device adds them up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import torch

# A prime, so that no bit of a number is without effect; what is below it is exact in FP32, in which numbers of a GPU
# come to the host.
_MODULUS: Final = 2**24 - 3
_MOST: Final = 2**16  # elements of one tensor: more are thinned out
_TENSORS: Final = 256
_WHOLE: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def checksum(tensors: Iterable[Any]) -> torch.Tensor | None:
    """Return the checksum of tensors of one device, as an integer on that device; None where there is nothing to add.

    What has no numbers of its own here (a DTensor, a fake tensor), and what is on another device, is left out.
    """
    total: torch.Tensor | None = None
    for number, each in enumerate(_plain(tensors), start=1):
        numbers = each.detach().reshape(-1)
        numbers = numbers[:: max(1, numbers.numel() // _MOST)].contiguous()
        whole = numbers.view(_WHOLE[each.element_size()]).sum(dtype=torch.int64)
        part = (whole % _MODULUS) * number
        if total is None:
            total = part
        elif part.device == total.device:
            total = total + part
        if number >= _TENSORS:
            break
    return None if total is None else total % _MODULUS


def _plain(tensors: Iterable[Any]) -> Iterable[torch.Tensor]:
    return (
        each
        for each in tensors
        if type(each) in (torch.Tensor, torch.nn.Parameter)
        and not each.is_meta
        and each.layout is torch.strided
        and each.numel()
        and not each.is_complex()
        and not each.is_quantized
    )
