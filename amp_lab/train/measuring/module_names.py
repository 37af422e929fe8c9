"""Which module is running: its path in the model."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import nn
from torch.nn.modules import module as hooks


class ModuleNames:
    """While it is entered, `current` is the path of the innermost module whose forward runs ("" outside of all).

    Args:
        roots: the models, by name; "" for one alone.
    """

    def __init__(self, roots: dict[str, nn.Module]) -> None:
        self._names = {
            part: name for prefix, root in roots.items() for name, part in root.named_modules(prefix=prefix)
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
