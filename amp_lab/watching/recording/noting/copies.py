"""Copies of a watched model: the hooks of a watch are not copied, not saved, and not compiled with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import nn

from amp_lab.watching.recording.noting.forward import Hook
from amp_lab.watching.recording.recorder import Recorder

# Where PyTorch keeps hooks, and what it knows of them: all by the same number.
_HOOKS: Final = ("_forward_pre_hooks", "_forward_hooks")
_ABOUT: Final = (
    *_HOOKS,
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
)


def install(recorder: Recorder) -> None:
    # Copying and pickling ask for it.
    recorder.put_around(nn.Module, "__reduce_ex__", reduced)
    # torch.jit.script compiles hooks, too. It looks itself up how far it is from the user's line, so that nothing may
    # stand around it; this is a function that it calls, and private.
    recorder.put_around(torch.jit._recursive, "create_script_module", scripted)


def reduced(call: Callable[..., Any], module: nn.Module, *args: Any) -> Any:
    """Return what a copy is made from, without the hooks."""
    result = call(module, *args)
    if not isinstance(result, tuple) or len(result) < 3 or not isinstance(result[2], dict):
        return result
    state = result[2]
    ours = _ours(state)
    if not ours:
        return result
    kept = {name: _without(state[name], ours) for name in _ABOUT if name in state}
    return *result[:2], {**state, **kept}, *result[3:]


def _ours(state: dict[str, Any]) -> set[int]:
    return {key for name in _HOOKS for key, hook in state.get(name, {}).items() if isinstance(hook, Hook)}


def _without(hooks: Any, ours: set[int]) -> Any:
    return type(hooks)((key, value) for key, value in hooks.items() if key not in ours)


def scripted(call: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Compile a module while the hooks are away."""
    put_away: list[tuple[Any, list[tuple[int, Any]]]] = []
    try:
        for each in module.modules():
            if ours := _ours(vars(each)):
                for hooks in (vars(each)[name] for name in _ABOUT):
                    put_away.append((hooks, list(hooks.items())))
                    for key in ours:
                        hooks.pop(key, None)
        return call(module, *args, **kwargs)
    finally:
        for hooks, every in put_away:
            hooks.clear()
            hooks.update(every)
