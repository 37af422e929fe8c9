"""Which modules are running: their paths in the model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from amp_lab.train.measuring.ledger import tensors_of


class ModuleNames:
    """While it is entered, `current` is the path of the innermost module whose forward runs ("" outside of all).

    Args:
        roots: the models, by name; "" for one alone.
    """

    def __init__(self, roots: dict[str, nn.Module]) -> None:
        self._names = {
            part: _without_wrappers(name)
            for prefix, root in roots.items()
            for name, part in root.named_modules(prefix=prefix)
        }
        self._running: list[str] = []
        self._handles: list[Any] = []

    @property
    def current(self) -> str:
        return self._running[-1] if self._running else ""

    def __enter__(self) -> ModuleNames:
        self._handles = [
            hooks.register_module_forward_pre_hook(self._begins),
            hooks.register_module_forward_hook(self._ends, with_kwargs=True, always_call=True),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._handles:
            each.remove()

    def _begins(self, module: nn.Module, inputs: Any) -> None:
        self._running.append(self._names.get(module, self.current))

    def _ends(self, module: nn.Module, inputs: Any, named: Mapping[str, Any], output: Any) -> None:
        if self._running:
            self._running.pop()


class ModulesBothWays(ModuleNames):
    """Knows in backward, too, whose operators run: `running` are the paths of all these modules, from the outermost on.

    A node of autograd belongs to the modules that ran when it was made. When a module's forward ends, what lies between
    its inputs and its outputs, and belongs to no module yet, is its own. (PyTorch's ModuleTracker waits for gradients
    of a module's inputs instead. Where an input needs none, as in a first layer, it takes all that follows for a part
    of that module.)
    """

    @property
    def running(self) -> set[str]:
        node: Any = torch._C._current_autograd_node()
        return {*self._running, *(node.metadata.get(self, ()) if node is not None else ())}

    def _ends(self, module: nn.Module, inputs: Any, named: Mapping[str, Any], output: Any) -> None:
        self._mark((inputs, dict(named)), tuple(self._running[:-1]))
        self._mark(output, tuple(self._running))
        super()._ends(module, inputs, named, output)

    def _mark(self, values: Any, running: tuple[str, ...]) -> None:
        """Say of the nodes that led to some tensors, and are not marked yet, which modules they belong to."""
        found: list[Any] = [each.grad_fn for each in tensors_of(values)]
        while found:
            node = found.pop()
            # What adds up a parameter's gradient belongs to nobody, and outlives the graph.
            if node is None or self in node.metadata or hasattr(node, "variable"):
                continue
            node.metadata[self] = running
            found.extend(before for before, _ in node.next_functions)


def _without_wrappers(path: str) -> str:
    """Return a module's path as it is without `torch.compile`."""
    parts: Iterable[str] = path.split(".")
    return ".".join(each for each in parts if each != "_orig_mod")
