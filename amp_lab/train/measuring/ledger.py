"""A book of the memory that operators take while it is open: each storage from its birth to its death.

A *storage* is what memory is given to. Tensors are views of one: `x.t()`, `x[0]` and `x` share theirs, which lives as
long as any of them does. So storages are counted, not tensors.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from amp_lab.train.measuring.module_names import ModuleNames
from amp_lab.train.measuring.storages import sizes, storages


@dataclass(frozen=True)
class Birth:
    """Where a storage comes from: the first tensor in it, the operator that made that, and the module that called.

    `of_weight`: it holds a parameter in another dtype. `bytes` is the size of the storage.
    """

    module: str
    operator: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    bytes: int
    of_weight: bool


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator below autograd and autocast, forward and backward, and books what it returns.

    What a kernel takes and gives back before it returns, its workspace, is not seen.

    Attributes:
        alive: the births of the storages that live now, by address.
        bytes, peak: of the storages that live now; of the most that lived at once, after an operator.
        peak_operator: the operator after which that was.
        saved: the sizes of the storages that autograd has saved for backward and that live now, by address; see `save`.

    Args:
        device_type: storages elsewhere are not booked.
        known: addresses of storages that were there before: they are not booked.
        weights: those of them that belong to parameters.
        names: says which module is running.
    """

    def __init__(
        self, device_type: str, known: Collection[int], weights: Collection[int], names: ModuleNames
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device, self._known, self._weights, self._names = device_type, known, weights, names
        self.alive: dict[int, Birth] = {}
        self.saved: dict[int, int] = {}
        self._watching: dict[int, weakref.ref[Any]] = {}
        self.bytes = self.peak = 0
        self.peak_operator = ""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from importing its compiler for this mode: that takes seconds."""
        return False

    def __torch_dispatch__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        result = function(*arguments, **(named or {}))
        of_weight = function is torch.ops.aten._to_copy.default and self._is_weight(arguments[0])
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._book(tensor, str(function).removeprefix("aten.").rpartition(".")[0], of_weight)
        return result

    def save(self, tensor: torch.Tensor) -> torch.Tensor:
        """Note a tensor that autograd saves, and return it: one of the two hooks of `saved_tensors_hooks`.

        Without its node, for a node that kept a result that has this node would never die.
        """
        self.saved.update(sizes(tensor))
        return tensor.detach()

    def _is_weight(self, tensor: torch.Tensor) -> bool:
        return any(each.data_ptr() in self._weights for each in storages(tensor))

    def _book(self, tensor: torch.Tensor, operator: str, of_weight: bool) -> None:
        for storage in storages(tensor):
            address, size = storage.data_ptr(), storage.nbytes()
            if address in self._known or address in self.alive or storage.device.type != self._device:
                continue
            self.alive[address] = Birth(
                self._names.current, operator, tensor.dtype, tuple(tensor.shape), size, of_weight
            )
            self._watching[address] = weakref.ref(storage, partial(self._died, address))
            self.bytes += size
            if self.bytes > self.peak:
                self.peak, self.peak_operator = self.bytes, operator

    def _died(self, address: int, _: object) -> None:
        self.bytes -= self.alive.pop(address).bytes
        del self._watching[address]
        self.saved.pop(address, None)  # the next one at this address is another
