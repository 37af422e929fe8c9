"""Replace kernels of PyTorch for a while.

A *kernel* is the function that does an operator's work on one kind of device; PyTorch's *dispatcher* keeps a
table of them. `torch.library` lets Python write into that table. The table belongs to the process: every thread
computes with what stands in it.

What autocast does to an operator is a kernel, too: it stands under the key AutocastCPU or AutocastCUDA, is called
first, casts the arguments, and calls the operator again with autocast off.
"""

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch

from amp_lab.autocast.kernels.dispatcher import operators_with_kernel
from amp_lab.autocast.kernels.uncompiled import uncompiled

library: Any = torch.library  # without types of its own

# Takes the dispatcher's keys, then the operator's own arguments.
Kernel = Callable[..., Any]
_NOTHING: Kernel = library.fallthrough_kernel


class ReplacedKernels:
    """Kernels of aten operators on one dispatch key, replaced from now on until `restore`.

    They may lie in layers: what replaces a kernel is the original of a later replacement, which may call it. Layers
    are taken off as they were laid, the last one first. Only layers that share an operator on one key count as one
    above the other; all others may end in any order.

    Args:
        key: the dispatch key, such as "CPU".
        replacements: per operator ("mm", "mm.out"), a function that is given the original kernel and returns
            the one to use instead; `no_kernel` returns none, as if the operator had nothing to do on that key.

    Raises:
        RuntimeError: if there is no such operator; then nothing is replaced.
    """

    # All that are in force in this process, in the order in which they came.
    _layers: ClassVar[list["ReplacedKernels"]] = []

    def __init__(self, key: str, replacements: Mapping[str, Callable[[Kernel], Kernel]]):
        # All first, so that an error leaves nothing half done; and a kernel that is already replaced must not be
        # taken for an original.
        kernels = {name: replace(original_kernel(name, key)) for name, replace in replacements.items()}
        self._key, self._names = key, frozenset(kernels)
        self._library: Any = library.Library("aten", "IMPL")
        for name, kernel in kernels.items():
            _slot(name, key).kernels.append(kernel)
        with warnings.catch_warnings():
            # Said once per process, about what is done here on purpose.
            warnings.filterwarnings("ignore", r"(?s).*Overriding a previously registered kernel", UserWarning)
            for name, kernel in kernels.items():
                registered = _NOTHING if kernel is _NOTHING else _slot(name, key)
                self._library.impl(name, registered, key, with_keyset=True, allow_override=True)
        self._layers.append(self)

    def restore(self) -> None:
        """Put back the kernels that were there before; again does nothing.

        Raises:
            RuntimeError: if some of these kernels were replaced once more since, and that still holds. Nothing is
                restored then: it would leave the other layer with kernels below it that are no longer in force.
        """
        if self not in self._layers:
            return
        above = self._layers[self._layers.index(self) + 1 :]
        if any(layer._key == self._key and layer._names & self._names for layer in above):
            raise RuntimeError(
                f"kernels for {self._key} cannot be restored now: other kernels were laid over them since "
                "(an x-ray that runs, perhaps). End that first, then this"
            )
        self._library._destroy()
        for name in self._names:
            _slot(name, self._key).kernels.pop()  # its own: no layer that shares the operator lies above it
        self._layers.remove(self)


class _Slot:
    """What is registered for an operator on a key, always the same function: it calls the kernel of the top layer.

    Where a TorchDispatchMode is on, PyTorch calls the Python function that was registered *last* for an operator and
    key, even if that layer was taken off since. So the layers are kept here.
    """

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []

    @uncompiled
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.kernels[-1](*arguments, **named)


@functools.cache
def _slot(name: str, key: str) -> _Slot:
    return _Slot()


def no_kernel(original: Kernel) -> Kernel:
    """As a replacement: the operator has no kernel on the key, and the dispatcher goes on to the next key."""
    return _NOTHING


def original_kernel(name: str, key: str) -> Kernel:
    """The kernel that the dispatcher uses for the aten operator `name` on `key` now.

    Where the operator has no autocast kernel, a function that says so when it is called.

    Raises:
        RuntimeError: if there is no such operator, or no kernel of it on a key that is not autocast's.
    """
    if replaced := _slot(name, key).kernels:
        return _missing(name, key) if replaced[-1] is _NOTHING else replaced[-1]
    call: Kernel = library.get_kernel(f"aten::{name}", key).call_boxed
    # Without a kernel of its own, the operator has autocast's for all the others: one that must not be called.
    own = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
    return call if own or not key.startswith("Autocast") else _missing(name, key)


def kernels_in_force(key: str) -> list[str]:
    """The aten operators ("softmax.int") that have a kernel of their own on `key` now, replaced or not."""
    return [
        name.removeprefix("aten::")
        for name in operators_with_kernel(key)
        if name.startswith("aten::")
        # No public function tells.
        and not torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(name, key)
    ]


def _missing(name: str, key: str) -> Kernel:
    def kernel(*_: Any, **__: Any) -> Any:
        raise RuntimeError(f"aten::{name} had no kernel for {key} when it was asked for")

    return kernel
