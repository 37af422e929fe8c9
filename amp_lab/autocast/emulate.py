"""A GPU's mixed-precision arithmetic on a CPU.

A Tensor Core takes two matrices in FP16 or BF16, multiplies them, adds the products up in FP32 and rounds each
sum to 16 bits once, at the end (NVIDIA, *Volta architecture whitepaper*, "Tensor Cores"). Most CPUs have no such
unit, and PyTorch's own FP16 kernels for them are 10 to 100 times slower than its FP32 ones. But 16 bits fit into
FP32 without loss, and so do products of two such numbers in FP16 (11 + 11 significant bits; in BF16, 8 + 8). So
the same result comes from FP32 kernels, at their speed:

    convert the operands to FP32  ->  multiply and add in FP32  ->  round to 16 bits

    with tensor_cores():
        loss = model(images.half())  # matrix products and convolutions as on Tensor Cores

The code in between stays plain PyTorch; backward passes, autocast and compiled models go the same way.
"""

import inspect
import threading
from collections.abc import Callable, Sequence
from contextlib import ContextDecorator
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import torch

from amp_lab.autocast.replacing import Kernel, ReplacedKernels, original_kernel
from amp_lab.device.asking_system import ask_cpu
from amp_lab.device.cpu_kinds import cpu_kinds
from amp_lab.device.facts import CpuFacts

_Function = TypeVar("_Function", bound=Callable[..., Any])
_PIECEMEAL = (inspect.isgeneratorfunction, inspect.iscoroutinefunction, inspect.isasyncgenfunction)

HALVES = {"FP16": torch.float16, "BF16": torch.bfloat16}

# The operators that multiply and add up. What is not here comes down to these (linear, matmul, einsum, conv2d,
# LSTM cells, most of attention), is an operation per element (outer, addr), or has FP32 sums of its own
# (scaled_dot_product_attention's fused kernel). The exceptions are in tensor_cores' docstring; oneDNN's LSTM hands
# what it keeps for its backward pass over in a block of bytes, so that only a second LSTM could take its place.
_NEW_RESULT = (
    "mm addmm bmm baddbmm addbmm addmv dot vdot _addmm_activation convolution convolution_backward".split()
)
# The same, into a tensor that is already there.
_INTO_SELF = "addmm_ baddbmm_ addbmm_ addmv_".split()
_INTO_OUT = "mm.out addmm.out bmm.out baddbmm.out addbmm.out addmv.out _addmm_activation.out".split()

# The kinds of support (see amp_lab.device) with which products *and* convolutions, forward and backward, are about
# as fast as in FP32. FP16 on vector units (AVX512_FP16) is not among them: oneDNN has only its reference code for
# the weight gradient of a convolution there, measured at 50 to 300 times the time of FP32.
_FAST = {("FP16", "matrix units"), ("BF16", "matrix units"), ("BF16", "vector units")}


def tensor_cores(*, always: bool = False) -> "TensorCores":
    """Compute FP16 and BF16 products on CPU tensors as Tensor Cores do, for a while.

        with tensor_cores():
            ...

        print(tensor_cores().start())  # for a whole notebook; says what that means on this machine
        tensor_cores().stop()

        @tensor_cores()
        def train(model): ...

    While it is on, matrix products and convolutions whose operands are all FP16, or all BF16, and lie on the CPU
    are summed in FP32 and rounded once; `beta * input + alpha * product` of addmm and its relatives, too. So are
    their gradients. Everything else is untouched: other dtypes, other devices, sparse tensors, errors.

    A result lies half a spacing of its dtype from the exact one, plus FP32's own error of n * 2^-24 * Σ|a||b| for
    n terms. PyTorch's CPU kernels agree to one spacing where nothing cancels; for gradients of convolutions some
    of them add up partial sums in 16 bits, which this does not.

    Not emulated: `nn.LSTM` where PyTorch takes oneDNN's, that is in BF16 on CPUs with AVX-512, and in FP16 under
    `torch.no_grad` on CPUs with FP16 arithmetic (LSTM cells, GRUs and RNNs are); and convolutions in a model that
    `torch.jit` traced.

    A dtype for which this CPU has fast arithmetic of its own is left to the CPU, unless `always` is True.

    It holds for the whole process, in every thread: PyTorch's table of kernels is changed, once, however many
    of these are on, and restored when the last one ends. Blocks are counted. `start` is not: it is one switch of
    the process (one more with `always`), which anybody's `stop` turns off; code that others call takes a block.

    Switch it on or off only while no other thread computes. PyTorch does not lock that table, so a product that
    runs in another thread at that moment may fail, or crash the process. Keep one on around all the threads'
    work; blocks inside it, with the same `always`, then leave the table alone.

    `torch.compile` does not compile a function with such a block in it, and warns. Put the block around the call.

    The FP32 sums are as exact as PyTorch's FP32 products: `torch.set_float32_matmul_precision` can make those
    shorter on some CPUs.
    """
    return TensorCores(always=always)


class TensorCores(ContextDecorator):
    """What `tensor_cores` returns: a block, a decorator, and a switch to start and stop. `print` explains it.

    `dtypes` are those that it emulates on this CPU, `always` is what it was made with. Starting what is started,
    or stopping what is not, does nothing.

    Raises:
        TypeError: if `always` is neither True nor False, or what it decorates runs piecemeal (a generator).
    """

    def __init__(self, *, always: bool = False):
        if not isinstance(always, bool):
            raise TypeError(f"always is True or False, not {always!r}")
        self.always = always
        self.dtypes = frozenset(HALVES.values()) if always else slow_halves(ask_cpu())

    @property
    def on(self) -> bool:
        """Whether it is started, by this object or one with the same `always`, or a block of this object runs."""
        return _switch.holds(self)

    def start(self) -> Self:
        """Begin, until `stop` of this object or of any with the same `always`; return this object."""
        _switch.start(self)
        return self

    def stop(self) -> None:
        """End what `start` began. Blocks last until their own end, and so does what they emulate."""
        _switch.stop(self)

    def __enter__(self) -> Self:
        _switch.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _switch.leave(self)

    def __call__(self, function: _Function) -> _Function:
        """Decorate a function: each of its calls is a block."""
        if any(piecemeal(function) for piecemeal in _PIECEMEAL):
            # Its call returns at once; the block would be over before its work begins.
            raise TypeError("tensor_cores() decorates plain functions: use a with-block inside this one")
        return super().__call__(function)

    def __repr__(self) -> str:
        return _describe(self, _switch.dtypes, _switch.holder())


def slow_halves(cpu: CpuFacts) -> frozenset[torch.dtype]:
    """Which of FP16 and BF16 this CPU has no fast products and convolutions for, as far as PyTorch uses them."""
    kinds = cpu_kinds(cpu)
    x86 = (cpu.architecture or "").lower() in ("x86_64", "amd64")  # where that was measured
    return frozenset(dtype for name, dtype in HALVES.items() if not (x86 and (name, kinds[name]) in _FAST))


class _Switch:
    """Who asked for emulation, and the replaced kernels while anybody does."""

    def __init__(self) -> None:
        self.dtypes: frozenset[torch.dtype] = frozenset()
        self._started: dict[bool, TensorCores] = {}  # by `always`
        self._blocks: list[TensorCores] = []  # one entry for each block that runs now
        self._replaced: ReplacedKernels | None = None
        self._lock = threading.RLock()

    def holds(self, one: TensorCores) -> bool:
        return one.always in self._started or one in self._blocks

    def holder(self) -> str:
        """Who keeps the emulation on, in words."""
        for one in self._started.values():
            if one.dtypes:
                return f"tensor_cores({'always=True' if one.always else ''}), which was started,"
        return "a with-block"

    def start(self, one: TensorCores) -> None:
        with self._lock:
            self._settle(self._started | {one.always: one}, self._blocks)

    def stop(self, one: TensorCores) -> None:
        with self._lock:
            others = {always: other for always, other in self._started.items() if always != one.always}
            self._settle(others, self._blocks)

    def enter(self, one: TensorCores) -> None:
        with self._lock:
            self._settle(self._started, [*self._blocks, one])

    def leave(self, one: TensorCores) -> None:
        with self._lock:
            others = self._blocks.copy()
            others.remove(one)
            self._settle(self._started, others)

    def _settle(self, started: dict[bool, TensorCores], blocks: list[TensorCores]) -> None:
        dtypes = frozenset[torch.dtype]().union(*(one.dtypes for one in [*started.values(), *blocks]))
        if dtypes and self._replaced is None:
            self._replaced = ReplacedKernels("CPU", _replacements())
        elif not dtypes and self._replaced is not None:
            self._replaced.restore()
            self._replaced = None
        # Last, so that nothing is noted that could not be done.
        self._started, self._blocks, self.dtypes = started, blocks, dtypes


_switch = _Switch()


def _replacements() -> dict[str, Callable[[Kernel], Kernel]]:
    """Per operator, how its kernel is made from the original one."""
    replacements: dict[str, Callable[[Kernel], Kernel]] = dict.fromkeys(_NEW_RESULT, _new_result)
    for name in _INTO_SELF:
        replacements[name] = partial(_into_self, original_kernel(name.removesuffix("_"), "CPU"))
    for name in _INTO_OUT:
        replacements[name] = partial(_into_out, original_kernel(name.removesuffix(".out"), "CPU"))
    return replacements


def _new_result(original: Kernel) -> Kernel:
    """A kernel that returns new tensors, as `mm` does."""

    def kernel(keys: object, *operands: Any, **scalars: Any) -> Any:
        dtype = _common_dtype(operands)
        if dtype not in _switch.dtypes:
            return original(keys, *operands, **scalars)
        return _rounded(original(keys, *map(_in_fp32, operands), **scalars), dtype)

    return kernel


def _into_self(compute: Kernel, original: Kernel) -> Kernel:
    """A kernel that writes its result into its first operand, as `addmm_` does; `compute` is addmm."""

    def kernel(keys: object, *operands: Any, **scalars: Any) -> Any:
        target = operands[0]
        if _common_dtype(operands) in _switch.dtypes:
            sums = compute(keys, *map(_in_fp32, operands), **scalars)
            if sums.shape == target.shape:
                return target.copy_(sums)
        return original(keys, *operands, **scalars)  # where the shapes do not fit, for its error

    return kernel


def _into_out(compute: Kernel, original: Kernel) -> Kernel:
    """A kernel that writes its result into the tensor `out`, as `mm.out` does; `compute` is mm."""

    def kernel(keys: object, *operands: Any, out: torch.Tensor, **scalars: Any) -> Any:
        if _common_dtype([*operands, out]) not in _switch.dtypes:
            return original(keys, *operands, out=out, **scalars)
        sums = compute(keys, *map(_in_fp32, operands), **scalars)
        # Resizes `out` if it must, and then warns as any operator does; copy_ would not.
        return torch.ops.aten._to_copy.out(_rounded(sums, out.dtype), out=out)

    return kernel


def _common_dtype(operands: Sequence[Any]) -> torch.dtype | None:
    """The dtype of the tensors among an operator's arguments, None where it differs."""
    dtypes = {operand.dtype for operand in operands if isinstance(operand, torch.Tensor)}
    return dtypes.pop() if len(dtypes) == 1 else None


def _in_fp32(operand: Any) -> Any:
    return operand.float() if isinstance(operand, torch.Tensor) else operand


def _rounded(sums: Any, dtype: torch.dtype) -> Any:
    """The one rounding: FP32 sums to 16 bits; several results (of a backward pass) one by one."""
    if isinstance(sums, tuple | list):
        return tuple(_rounded(each, dtype) for each in sums)
    return None if sums is None else sums.to(dtype)


def _describe(one: TensorCores, in_force: frozenset[torch.dtype], holder: str) -> str:
    """Two sentences about what happens to products of CPU tensors now."""
    if not in_force:
        now = "PyTorch's own CPU kernels compute FP16 and BF16 products"
        if one.on:
            return f"{now}: this CPU has fast ones, so nothing is emulated."
        return f"{now}: the emulation of Tensor Cores is off."
    emulated, native = _names(in_force), _names(frozenset(HALVES.values()) - in_force)
    now = (
        f"On CPU tensors, matrix products and convolutions in {emulated} are computed as on ideal Tensor Cores: "
        "operands in 16 bits, sums in FP32, one rounding at the end."
    )
    if not one.on:
        return f"{now} This one is off; {holder} keeps that on."
    if one.always:
        return f"{now} FP32 kernels do the work, as always=True demands."
    if one.dtypes != in_force:
        return f"{now} Another one, with always=True, demands more of that than this one."
    rest = f"; products in {native} are left to the CPU, which is fast at them" if native else ""
    return f"{now} FP32 kernels do the work, since this CPU has no fast ones for {emulated}{rest}."


def _names(dtypes: frozenset[torch.dtype]) -> str:
    return " and ".join(name for name, dtype in HALVES.items() if dtype in dtypes)
