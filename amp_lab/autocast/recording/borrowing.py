"""Run somebody's model and give it back as it was: parameters, gradients, buffers, attributes, hooks, inputs, RNGs.

The modules are not copied. While they are borrowed, their tensors are replaced by *stand-ins*: FakeTensors, which
have a shape and a dtype but no numbers, or aliases, which share the memory but not the `.grad`, the hooks and the
version counter. Where an operator is about to write into shared memory, its numbers are saved first, and put back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map_only

from amp_lab.autocast.recording.operators import tensors_in, written


class StandIns:
    """Makes one stand-in for each tensor, and remembers it, so that tied weights stay tied.

    `names` are the names of parameters and buffers by the `id` of the tensor that stands for them.
    """

    def __init__(self, fake: FakeTensorMode | None):
        self.names: dict[int, str] = {}
        self._fake = fake
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id; the original is kept alive
        self._ids: set[int] = set()  # of stand-ins
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []  # of the originals
        self._shared: dict[int, torch.Tensor] = {}  # aliases of the originals' memory, by its address
        self._saved: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._fresh: set[int] = set()  # addresses of memory that came up in the run

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what stands for a tensor, with the same `requires_grad`; a leaf of autograd's graph."""
        if id(tensor) not in self._made:
            self._made[id(tensor)] = tensor, self._make(tensor)
            if tensor.is_leaf:
                self._gradients.append((tensor, tensor.grad))
            self._ids.add(id(self._made[id(tensor)][1]))
        return self._made[id(tensor)][1]

    def among(self, tree: Any) -> Any:
        """Return tuples, lists and dicts with stand-ins in the place of their tensors."""
        return tree_map_only(torch.Tensor, self.of, tree)

    def made(self, tensor: torch.Tensor) -> bool:
        """Say whether a tensor is a stand-in."""
        return id(tensor) in self._ids

    def run_saved(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator; first save the numbers that it is about to write over, where they are the user's."""
        for tensor in written(func, args, kwargs):
            address = _address(tensor)
            if address is not None and address not in self._saved and address not in self._fresh:
                self._share(tensor)  # perhaps of a tensor that the model finds outside itself
                shared = self._shared[address]
                self._saved[address] = shared, shared.clone()
        result = func(*args, **kwargs)
        given = {_address(tensor) for tensor in tensors_in((args, kwargs))}
        made = {_address(tensor) for tensor in tensors_in(result)} - given
        self._fresh.update(address for address in made if address is not None and address not in self._shared)
        return result

    def put_back(self) -> None:
        """Write back what was saved, and give the originals their gradients."""
        for tensor, gradient in self._gradients:
            if tensor.grad is not gradient:
                tensor.grad = gradient
        self._gradients.clear()
        with torch.no_grad():
            for shared, numbers in self._saved.values():
                shared.copy_(numbers)
        self._saved.clear()

    def _make(self, tensor: torch.Tensor) -> torch.Tensor:
        if self._fake is not None:
            with torch.no_grad():
                stand_in = _fake(self._fake, tensor)
        else:
            stand_in = tensor.data  # shares no version counter, as detach() would
            self._share(stand_in)
        if isinstance(tensor, nn.Parameter):
            stand_in = nn.Parameter(stand_in, requires_grad=tensor.requires_grad)
            stand_in.__dict__.update(tensor.__dict__)
        elif tensor.requires_grad:
            stand_in.requires_grad_()
        return stand_in

    def _share(self, alias: torch.Tensor) -> None:
        address = _address(alias)
        if address is not None and address not in self._shared:
            everything = torch.empty(0, dtype=torch.uint8, device=alias.device).set_(alias.untyped_storage())
            self._shared[address] = everything


def _address(tensor: torch.Tensor) -> int | None:
    """Return where a tensor's memory begins; None for one that has none of its own (sparse, empty, wrapped, fake)."""
    if isinstance(tensor, FakeTensor):  # flex_attention makes some for itself; PyTorch warns of asking them
        return None
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_meta:  # a model without memory, to be followed as if it were on the CPU
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    return mode.from_tensor(tensor.detach())


@contextlib.contextmanager
def borrowed(modules: Mapping[str, nn.Module], stand_ins: StandIns) -> Iterator[None]:
    """Put stand-ins into modules (the roots, by name) for a while."""
    parts = list(dict.fromkeys(part for module in modules.values() for part in module.modules()))
    kept = [Attributes(part) for part in parts]
    try:
        for name, module in modules.items():
            _note_names(name, module, stand_ins)
        for part in parts:
            _swap(part, stand_ins)
        yield
    finally:
        for attributes in kept:
            attributes.restore()
        stand_ins.put_back()


def _note_names(root: str, module: nn.Module, stand_ins: StandIns) -> None:
    prefix = f"{root}." if root else ""
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        stand_ins.names[id(stand_ins.of(tensor))] = prefix + name


def _swap(module: nn.Module, stand_ins: StandIns) -> None:
    """Put stand-ins in the place of a module's parameters, buffers, and tensors that are plain attributes."""
    attributes = module.__dict__
    for name, value in list(attributes.items()):
        if isinstance(value, torch.Tensor):
            attributes[name] = stand_ins.of(value)
        elif isinstance(value, list):  # such as the weights of an nn.LSTM
            value[:] = [stand_ins.of(each) if isinstance(each, torch.Tensor) else each for each in value]
        elif isinstance(value, dict):
            tensors = {key: each for key, each in value.items() if isinstance(each, torch.Tensor)}
            value.update((key, stand_ins.of(each)) for key, each in tensors.items())


class Attributes:
    """What a module has: its attributes, and what is in those of them that are lists, dicts and sets."""

    def __init__(self, module: nn.Module):
        self._all = module.__dict__
        self._before = dict(self._all)
        self._contents = [
            (value, value.copy()) for value in self._before.values() if isinstance(value, list | dict | set)
        ]

    def restore(self) -> None:
        for container, contents in self._contents:
            _refill(container, contents)
        if list(self._all) != list(self._before):
            self._all.clear()
        self._all.update(self._before)


def _refill(container: Any, contents: Any) -> None:
    if isinstance(container, list):
        container[:] = contents
    else:
        container.clear()
        container.update(contents)


@contextlib.contextmanager
def gradients_kept(roots: Iterable[torch.Tensor], stand_ins: StandIns) -> Iterator[None]:
    """Keep a backward pass from `roots` out of the `.grad` of the user's own tensors, which a function may reach."""
    reached = [leaf for leaf in _leaves(roots) if not stand_ins.made(leaf)]
    kept = [(leaf, leaf.grad) for leaf in reached]
    try:
        for leaf in reached:
            leaf.grad = None
        yield
    finally:
        for leaf, gradient in kept:
            leaf.grad = gradient


def _leaves(roots: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors that a backward pass gives gradients."""
    waiting: list[Any] = [torch.autograd.graph.get_gradient_edge(root).node for root in roots]
    met, leaves = set(waiting), []
    while waiting:
        node = waiting.pop()
        if (variable := getattr(node, "variable", None)) is not None:
            leaves.append(variable)
        fresh = {edge for edge, _ in node.next_functions if edge is not None} - met
        met |= fresh
        waiting += fresh
    return leaves
