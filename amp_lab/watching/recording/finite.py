"""Are gradients finite? What is asked only in a loop that can be run again, or of a step that was skipped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

_PLAIN: Final = (torch.Tensor, torch.nn.Parameter)


@torch.no_grad()
def all_finite(losses: Sequence[torch.Tensor], parameters: Sequence[torch.Tensor]) -> bool:
    """Return whether losses, and the gradients of parameters, are finite. The host waits once for a GPU.

    What has no numbers that can be read, such as a DTensor, counts as finite.
    """
    flags = [torch.isfinite(each).all() for each in losses if _is_plain(each)]
    found = [numbers for _, numbers in gradients(parameters) if numbers.numel()]
    if found:  # the largest number of all, which is NaN if there is one
        flags.append(torch.isfinite(torch.nn.utils.get_total_norm(found, torch.inf)))
    return not flags or bool(_together(flags).all())


@torch.no_grad()
def not_finite(found: Sequence[torch.Tensor]) -> list[int]:
    """Return which of these tensors are not finite, by their places. The host waits once for a GPU."""
    if not found:
        return []
    of_each: list[bool] = _together([torch.isfinite(each).all() for each in found]).tolist()
    return [at for at, is_finite in enumerate(of_each) if not is_finite]


def gradients(parameters: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Return those parameters that have gradients which can be read, each with the gradient's numbers."""
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None and _is_plain(gradient):
            is_sparse = gradient.layout is torch.sparse_coo
            yield parameter, gradient._values() if is_sparse else gradient


def _together(flags: Sequence[torch.Tensor]) -> torch.Tensor:
    device = flags[-1].device
    return torch.stack([each if each.device == device else each.to(device) for each in flags])


def _is_plain(tensor: torch.Tensor) -> bool:
    return type(tensor) in _PLAIN and not tensor.is_meta
