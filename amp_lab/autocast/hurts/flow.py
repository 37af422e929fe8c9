"""Where the tensors of an x-ray come from and go to: which operator made a value, and which ones read it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import torch

from amp_lab.autocast.records import Op, Value

HALVES: Final = (torch.float16, torch.bfloat16)
WIDE: Final = (torch.float32, torch.float64)

_MATMULS: Final = frozenset(
    "mm addmm bmm baddbmm addbmm mv addmv linear convolution _convolution einsum matmul "
    "scaled_dot_product_attention _scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu "
    "_scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention lstm gru rnn_tanh rnn_relu "
    "lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell _trilinear".split()
)
_FACTORIES: Final = frozenset(
    "zeros ones full empty arange linspace logspace eye rand randn scalar_tensor new_zeros new_ones new_full "
    "new_empty zeros_like ones_like full_like empty_like rand_like randn_like empty_strided normal "
    "lift_fresh lift_fresh_copy".split()
)


class Flow:
    """The forward pass as a graph. Views are looked through: they hold the numbers of the tensor that they show."""

    def __init__(self, ops: Iterable[Op]):
        self.ops = [op for op in ops if op.phase == "forward"]
        self._made = {op.number: op for op in self.ops}
        self._readers: dict[int, list[Op]] = {}
        for op in self.ops:
            for number in {each.made_by for each in op.inputs if each.made_by is not None}:
                self._readers.setdefault(number, []).append(op)

    def maker(self, value: Value) -> Op | None:
        """Return the operator that computed a value, looking through views; None for inputs and parameters."""
        return self._made.get(number) if (number := self.root(value).made_by) is not None else None

    def root(self, value: Value) -> Value:
        """Return the tensor that a value is a view of, or the value itself."""
        while value.made_by is not None:
            op = self._made.get(value.made_by)
            if op is None or not op.view or not op.inputs:
                break
            value = op.inputs[0]
        return value

    def way_back(self, value: Value) -> Iterator[Op]:
        """Yield who made a value, who made the first argument of that, and so on."""
        op = self._made.get(value.made_by) if value.made_by is not None else None
        while op is not None and op.outputs:
            yield op
            made_by = op.inputs[0].made_by if op.inputs else None
            op = self._made.get(made_by) if made_by is not None else None

    def readers(self, op: Op) -> Iterator[Op]:
        """Yield the operators that read what one made, looking through views."""
        for reader in self._readers.get(op.number, ()):
            if reader.view:
                yield from self.readers(reader)
            else:
                yield reader

    def reads(self, reader: Op, op: Op) -> list[Value]:
        """Return the arguments of `reader` that `op` made."""
        return [each for each in reader.inputs if self.maker(each) is op]


def base(op: Op) -> str:
    """Return an operator's name without the mark of the in-place form: "addmm" for "addmm_"."""
    return op.name.rstrip("_") or op.name


def scalar(op: Op, argument: str) -> float | None:
    """Return the plain number that an operator was called with for an argument; None if it was none."""
    return next((number for name, number in op.scalars if name == argument), None)


def kernel_bases(op: Op) -> set[str]:
    """Return the names of an operator's kernels: "addmm" for "aten.addmm_.default"."""
    return {part.rstrip("_") for kernel in op.kernels for part in kernel.split(".")[1:2]}


def is_matmul(op: Op) -> bool:
    """Return whether an operator is a matrix product or convolution, or is made of them."""
    return not op.view and (base(op) in _MATMULS or bool(kernel_bases(op) & _MATMULS))


def is_factory(op: Op) -> bool:
    """Return whether an operator makes a tensor from no numbers but those of the call, as `zeros` does."""
    return base(op) in _FACTORIES or (bool(op.outputs) and not op.inputs)


def is_written_over(op: Op) -> bool:
    """Return whether an operator writes into a tensor that is there: the forms `add_` and `out=`."""
    return op.name.endswith("_") or any(kernel.endswith(("out", "_out")) for kernel in op.kernels)


def multiplications(op: Op) -> int:
    """Return about how many multiplications a matrix product or convolution takes, from the shapes it saw."""
    if not op.inputs or not op.outputs:
        return 0
    first = op.inputs[1] if base(op).startswith(("add", "badd")) and len(op.inputs) > 1 else op.inputs[0]
    if "conv" in op.name and len(op.inputs) > 1:
        weight = op.inputs[1].shape
        return numel(op.outputs[0]) * numel(op.inputs[1]) // max(1, weight[0])
    if base(op).startswith(("lstm", "gru", "rnn")):
        weights = sum(numel(each) for each in op.inputs[1:] if len(each.shape) == 2 and each.name)
        return weights * numel(first) // max(1, first.shape[-1])
    if "attention" in op.name and len(op.inputs) > 1:
        return 2 * numel(first) * op.inputs[1].shape[-2]
    return numel(op.outputs[0]) * (first.shape[-1] if first.shape else 1)


def numel(value: Value) -> int:
    """Return how many numbers a tensor holds."""
    count = 1
    for each in value.shape:
        count *= each
    return count
