"""Which modules are running: their paths in the model."""

from __future__ import annotations

import bisect
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from amp_lab.train.measuring.storages import tensors_of


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
            hooks.register_module_forward_hook(self._ends, always_call=True),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._handles:
            each.remove()

    def _begins(self, module: nn.Module, inputs: Any) -> None:
        self._running.append(self._names.get(module, self.current))

    def _ends(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._running:
            self._running.pop()


class ModulesBothWays(ModuleNames):
    """Knows in backward, too, whose operators run: `running` are the paths of all these modules.

    A node of autograd belongs to the modules that ran when it was made: nodes have numbers in the order in which they
    were made, and the number of the next one is noted when a module begins. When it ends, the nodes that led to its
    result, and belong to no module yet, are marked. (PyTorch's ModuleTracker waits for gradients of a module's inputs
    instead. Where an input needs none, as in a first layer, it takes all that follows for a part of that module.)
    """

    def __init__(self, roots: dict[str, nn.Module]) -> None:
        super().__init__(roots)
        self._begun: list[int] = []

    @property
    def running(self) -> set[str]:
        node: Any = torch._C._current_autograd_node()  # private; nothing public says which node runs
        return {*self._running, *(node.metadata.get(self, ()) if node is not None else ())}

    def _begins(self, module: nn.Module, inputs: Any) -> None:
        super()._begins(module, inputs)
        self._begun.append(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]

    def _ends(self, module: nn.Module, inputs: Any, output: Any) -> None:
        self._mark([each.grad_fn for each in tensors_of(output)])
        super()._ends(module, inputs, output)
        if self._begun:
            self._begun.pop()

    def _mark(self, nodes: list[Any]) -> None:
        """Say of nodes, and of those before them, which modules they belong to, where that is not said yet."""
        while nodes:
            node = nodes.pop()
            # What adds up a parameter's gradient belongs to nobody, and outlives the graph.
            if node is None or self in node.metadata or hasattr(node, "variable"):
                continue
            deep = bisect.bisect_right(self._begun, node._sequence_nr())
            node.metadata[self] = tuple(self._running[:deep])
            nodes.extend(before for before, _ in node.next_functions)


def _without_wrappers(path: str) -> str:
    """Return a module's path as it is without `torch.compile`."""
    return ".".join(each for each in path.split(".") if each != "_orig_mod")
