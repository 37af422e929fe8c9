"""Replace kernels of PyTorch for a while.

A *kernel* is the function that does an operator's work on one kind of device; PyTorch's *dispatcher* keeps a
table of them. `torch.library` lets Python write into that table. The table belongs to the process: every thread
computes with what stands in it.
"""

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch

library: Any = torch.library  # without types of its own

# Takes the dispatcher's keys, then the operator's own arguments.
Kernel = Callable[..., Any]


class ReplacedKernels:
    """Kernels of aten operators on one dispatch key, replaced from now on until `restore`.

    Args:
        key: the dispatch key, such as "CPU".
        replacements: per operator ("mm", "mm.out"), a function that is given the original kernel and returns
            the one to use instead.
    """

    def __init__(self, key: str, replacements: Mapping[str, Callable[[Kernel], Kernel]]):
        # All originals first: a kernel that is already replaced must not be taken for one.
        originals = {name: original_kernel(name, key) for name in replacements}
        self._library: Any = library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            # Said once per process, about what is done here on purpose.
            warnings.filterwarnings("ignore", r"(?s).*Overriding a previously registered kernel", UserWarning)
            for name, replace in replacements.items():
                kernel = replace(originals[name])
                self._library.impl(name, kernel, key, with_keyset=True, allow_override=True)

    def restore(self) -> None:
        """Put PyTorch's own kernels back."""
        self._library._destroy()


def original_kernel(name: str, key: str) -> Kernel:
    """The kernel that the dispatcher uses for the aten operator `name` on `key` now."""
    call: Kernel = library.get_kernel(f"aten::{name}", key).call_boxed
    return call
