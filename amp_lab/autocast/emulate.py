"""A GPU's mixed-precision arithmetic, and what CUDA's autocast casts, on a CPU.

`tensor_cores` is about arithmetic. A Tensor Core takes two matrices in FP16 or BF16, multiplies them, adds the
products up in FP32 and rounds each sum to 16 bits once, at the end (NVIDIA, *Volta architecture whitepaper*, "Tensor
Cores"). Most CPUs have no such unit, and PyTorch's own FP16 kernels for them are 10 to 100 times slower than its FP32
ones. But 16 bits fit into FP32 without loss, and so do products of two such numbers in FP16 (11 + 11 significant
bits; in BF16, 8 + 8). So the same result comes from FP32 kernels, at their speed:

    convert the operands to FP32  ->  multiply and add in FP32  ->  round to 16 bits

`cuda_autocast` is about dtypes. PyTorch has a list of its own for each device of what autocast casts, and the list
for CPUs is another one than CUDA's: softmax, layer_norm, exp, pow and sum, for instance, stay in 16 bits.

    with cuda_autocast(), tensor_cores():
        with torch.autocast("cpu", torch.float16):  # casts as torch.autocast("cuda") does
            loss = loss_function(model(images), labels)  # products as on Tensor Cores
        scaler.scale(loss).backward()

The code in between stays plain PyTorch. Both hold for the whole process; either may begin and end first. Their
kernels are in `kernels.tensor_cores` and `kernels.casts`, and `kernels.switch` counts who asks for them.
"""

import torch

from amp_lab.autocast.kernels import casts as cast_kernels
from amp_lab.autocast.kernels import tensor_cores as tensor_core_kernels
from amp_lab.autocast.kernels.switch import Emulation, Switch
from amp_lab.device.asking_system import ask_cpu
from amp_lab.device.cpu_kinds import cpu_kinds
from amp_lab.device.facts import CpuFacts
from amp_lab.view.words import paragraph

HALVES = {"FP16": torch.float16, "BF16": torch.bfloat16}

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

    `torch.compile` does not compile a function with such a block in it, only those that are called in the block; with
    `fullgraph=True` it raises an error. Put the block around the call of what is compiled.

    The FP32 sums are as exact as PyTorch's FP32 products: `torch.set_float32_matmul_precision` can make those
    shorter on some CPUs.
    """
    return TensorCores(always=always)


def cuda_autocast() -> "CudaAutocast":
    """Let `torch.autocast("cpu", ...)` cast CPU tensors as CUDA's autocast casts CUDA tensors, for a while.

        with cuda_autocast(), torch.autocast("cpu", torch.float16):
            ...

        print(cuda_autocast().start())  # for a whole notebook; says what that means in this PyTorch
        cuda_autocast().stop()

        @cuda_autocast()
        def train(model): ...

    The rules are those of `policy("cuda")`, asked from the installed PyTorch. Where PyTorch does the same on CPUs,
    its own code stays; where it does something else, a kernel here does what CUDA's does; what has a rule on CPUs
    only has none. That covers nested regions, `enabled=False`, `cache_enabled=False`, the cache of cast weights
    (PyTorch's own, with its lifetime), gradients, regions in other threads, FakeTensors, `torch.func`, and errors.
    Write the dtype: left out, it is BF16 for "cpu" and FP16 for "cuda"; that is not changed.

    One rule cannot be asked on a machine without a GPU, and is written down here: on CUDA, cuDNN computes `nn.LSTM`,
    `nn.GRU` and `nn.RNN`, and autocast casts their input, states and weights to FP16, whatever dtype the region has
    (aten/src/ATen/cudnn/AutocastRNN.cpp). Only BF16 input, which cuDNN does not take, and everything where
    `torch.backends.cudnn.enabled` is False, goes to the region's dtype.

    `nn.MultiheadAttention` and `nn.TransformerEncoder` skip their fast path for inference when CUDA's autocast is
    on. They do not see this one, so that path is off (`torch.backends.mha`) as long as this is on, outside regions,
    too: the same values within rounding, a little slower. Set it meanwhile, and that stays when this ends.

    Not emulated: the arithmetic (see `tensor_cores`); dtypes that an operator's CUDA kernel itself decides about;
    and `torch.autocast("cuda")`, which ignores CPU tensors as ever. An operator that CPUs have no FP16 kernel for
    raises PyTorch's error: FFTs and `avg_pool3d`, for instance.

    Keep it on until the backward pass is over if it recomputes (`torch.utils.checkpoint`): what runs again must be
    cast as the first time. `torch.compile` traces what autocast casts: a function that was compiled while this was
    on stays so when it is off, and the other way round. Call `torch.compiler.reset()` in between. A block inside a
    compiled function is as with `tensor_cores`.

    It holds for the whole process, and is counted, as `tensor_cores` is: the same advice about threads.
    """
    return CudaAutocast()


class TensorCores(Emulation):
    """What `tensor_cores` returns: a block, a decorator, and a switch to start and stop. `print` explains it.

    `dtypes` are those that it emulates on this CPU, `always` is what it was made with.

    Raises:
        TypeError: if `always` is neither True nor False, or what it decorates is no plain function: a class,
            a module, or what does its work after its call (a generator).
        RuntimeError: if a block ends that did not begin.
    """

    switch = Switch(tensor_core_kernels.replace)

    def __init__(self, *, always: bool = False):
        if not isinstance(always, bool):
            raise TypeError(f"always is True or False, not {always!r}")
        self.always = always
        self.call = "tensor_cores(always=True)" if always else "tensor_cores()"
        self.dtypes = frozenset(HALVES.values()) if always else slow_halves(ask_cpu())

    @property
    def demands(self) -> frozenset[torch.dtype]:
        """The dtypes whose products it wants to be emulated."""
        return self.dtypes

    def __repr__(self) -> str:
        in_force = frozenset(HALVES.values()) & self.switch.in_force
        return paragraph(_describe(self, in_force, self.switch.holder()))


class CudaAutocast(Emulation):
    """What `cuda_autocast` returns: a block, a decorator, and a switch to start and stop. `print` explains it.

    Raises:
        TypeError, RuntimeError: as those of `TensorCores`.
    """

    switch = Switch(lambda _: cast_kernels.CudaCasts())
    call = "cuda_autocast()"

    @property
    def demands(self) -> frozenset[str]:
        """The device whose cast policy it wants."""
        return frozenset({"cuda"})

    def __repr__(self) -> str:
        if not self.switch.in_force:
            return paragraph(
                "torch.autocast(\"cpu\") casts by PyTorch's own rules for CPUs: the emulation of CUDA's is off."
            )
        now = f'torch.autocast("cpu") casts CPU tensors by CUDA\'s rules: {cast_kernels.describe()}.'
        return paragraph(now if self.on else f"{now} This one is off; {self.switch.holder()} keeps that on.")


def slow_halves(cpu: CpuFacts) -> frozenset[torch.dtype]:
    """Which of FP16 and BF16 this CPU has no fast products and convolutions for, as far as PyTorch uses them."""
    kinds = cpu_kinds(cpu)
    x86 = (cpu.architecture or "").lower() in ("x86_64", "amd64")  # where that was measured
    return frozenset(dtype for name, dtype in HALVES.items() if not (x86 and (name, kinds[name]) in _FAST))


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
