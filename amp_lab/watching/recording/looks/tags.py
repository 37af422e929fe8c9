"""What is known about single tensors, for as long as they live."""

from __future__ import annotations

import weakref
from typing import Any

import torch


class Tags:
    """Facts about tensors by name. It keeps no tensor alive."""

    def __init__(self) -> None:
        self._facts: dict[int, tuple[weakref.ref[torch.Tensor], dict[str, Any]]] = {}

    def of(self, tensor: object, name: str) -> Any:
        """Return a fact about a tensor; None where nothing is known."""
        known = self._facts.get(id(tensor))
        return known[1].get(name) if known and known[0]() is tensor else None

    def put(self, tensor: torch.Tensor, name: str, fact: object) -> None:
        """Note a fact about a tensor."""
        known = self._facts.get(id(tensor))
        if known is None or known[0]() is not tensor:
            key, facts = id(tensor), self._facts
            known = facts[key] = (weakref.ref(tensor, lambda ref: _forget(facts, key, ref)), {})
        known[1][name] = fact

    def pass_on(self, tensor: object, result: object, *names: str) -> None:
        """Note of a result what is known of the tensor that it was made from."""
        if isinstance(result, torch.Tensor):
            for name in names:
                if (fact := self.of(tensor, name)) is not None:
                    self.put(result, name, fact)

    def clear(self) -> None:
        """Forget everything."""
        self._facts.clear()


def _forget(
    facts: dict[int, tuple[weakref.ref[torch.Tensor], dict[str, Any]]], key: int, ref: object
) -> None:
    if key in facts and facts[key][0] is ref:
        del facts[key]
