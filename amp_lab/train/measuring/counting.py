"""Count the operations of a training step, and the bytes that it moves, operator by operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from amp_lab.train.measuring.batches import casts_of, dtype_or_none, region, scalar
from amp_lab.train.measuring.counts import Counts, Row
from amp_lab.train.measuring.module_names import ModulesBothWays
from amp_lab.train.measuring.traffic import bytes_moved
from amp_lab.watching.overflow import batch_of
from amp_lab.watching.replaying.batches import Batch, fresh, kept


def count_flops(
    model: nn.Module,
    loss_fn: Callable[..., Any] | None,
    batch: Any,
    *,
    dtype: torch.dtype | None = None,
    device_type: str | None = None,
    backward: bool = True,
) -> Counts:
    """Count the floating-point operations of one step, and estimate the bytes that it moves.

        counts = count_flops(model, loss_fn, (images, labels), dtype=torch.float16)
        print(counts)

    The batch is run once, on the model itself; all is put back afterwards, as by `memory_account`.

    Operations are those that PyTorch's FlopCounterMode counts, by its formulas from the shapes: matrix products,
    convolutions and attention, a multiplication and an addition as two. That is exact for these, if numbers are real:
    complex ones count as if they were. It counts nothing for all others: element by element, norms, softmax,
    reductions, losses, matrix times vector, LSTMs in one kernel (of cuDNN or oneDNN), optimizers, nested tensors.
    Their bytes do count: most of them wait for memory, not for arithmetic. `uncounted` names them. The CPU's fused
    attention, which FlopCounterMode leaves out, is counted by its formula for the GPU's.

    Bytes are an estimate: inputs and outputs of each operator, as if none stayed in a cache, and none were fused.

    Args:
        model, loss_fn, batch, dtype, device_type: as for `memory_account`.
        backward: whether the backward pass is counted, too.

    Raises:
        TypeError, ValueError: for arguments that cannot be, and a loss that cannot be trained on.
    """
    run = batch_of(model, loss_fn, batch, device_type=device_type, dtype=dtype_or_none(dtype))
    operators = _Operators(ModulesBothWays(dict(run.modules)))
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        kept(run),
        fresh(run),
        casts_of(run),
        operators.modules,
        operators,
    ):
        _run(run, operators, backward)
    return Counts(tuple(operators.rows()), operators.by_module())


def _run(run: Batch, operators: _Operators, backward: bool) -> None:
    with region(run):
        loss = run.call(*run.inputs, **run.keywords)
    if backward:
        operators.phase = "backward"
        scalar(loss).backward()  # type: ignore[no-untyped-call]


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up calls, operations and bytes for each operator, phase and dtype, and operations for each module.

    It does what FlopCounterMode does, with the same formulas. That one imports the compiler, which takes seconds,
    counts no bytes, and in backward takes some operators for parts of a module that they are no part of.
    """

    def __init__(self, modules: ModulesBothWays) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase = "forward"
        self.modules = modules
        self._total = 0
        self._formulas = _formulas()
        self._found: dict[tuple[str, str, torch.dtype | None], list[int]] = {}
        self._by_module: Counter[str] = Counter()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Keep PyTorch from importing its compiler for this mode: that takes seconds."""
        return False

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        arguments: Sequence[Any] = (),
        named: Mapping[str, Any] | None = None,
    ) -> Any:
        named = named or {}
        result = function(*arguments, **named)
        formula = self._formulas.get(function.overloadpacket)
        flops = int(formula(*arguments, **named, out_val=result)) if formula is not None else 0
        moved = bytes_moved(function, arguments, named, result)
        if flops or moved:
            name = function.overloadpacket.__name__
            row = self._found.setdefault((name, self.phase, _dtype(arguments, result)), [0, 0, 0])
            for place, more in enumerate((1, flops, moved)):
                row[place] += more
        if flops:
            self._total += flops
            self._by_module.update(dict.fromkeys(self.modules.running, flops))
        return result

    def rows(self) -> list[Row]:
        """Return what was found, the operators with most operations first, then those that move most."""
        rows = [Row(*key, *numbers) for key, numbers in self._found.items()]
        return sorted(rows, key=lambda row: (-row.flops, -row.bytes))

    def by_module(self) -> dict[str, int]:
        """Return operations by the path of the module; "" is the whole step."""
        return {**self._by_module, "": self._total}


def _dtype(arguments: Sequence[Any], result: Any) -> torch.dtype | None:
    """Return the dtype of an operator's first floating-point or complex argument, or else result."""
    for each in tree_leaves((list(arguments), result)):
        if isinstance(each, torch.Tensor) and (each.is_floating_point() or each.is_complex()):
            return each.dtype
    return None


def _formulas() -> dict[Any, Callable[..., int]]:
    """Return FlopCounterMode's formulas; for attention on a CPU, where it has none, those of the GPU's operators."""
    known = flop_counter.flop_registry
    aten = torch.ops.aten
    more = {
        aten._scaled_dot_product_flash_attention_for_cpu: aten._scaled_dot_product_flash_attention,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: (
            aten._scaled_dot_product_flash_attention_backward
        ),
    }
    return {**{on_cpu: known[on_gpu] for on_cpu, on_gpu in more.items()}, **known}
