"""Kernels that cast CPU tensors as CUDA's autocast casts CUDA tensors, in the place of PyTorch's own for CPUs.

Each does what the kernels of PyTorch's own autocast do (aten/src/ATen/autocast_mode.h): cast the arguments, and call
the operator again with autocast off, so that nothing inside it is cast once more. What a cast touches is *eligible*: a
floating-point tensor on the device that is not FP64. So BF16 becomes FP16 in an FP16 region; integers stay.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.kernels.cached_cast import cached_cast, eligible
from amp_lab.autocast.kernels.dispatcher import overload
from amp_lab.autocast.kernels.replacing import Kernel, ReplacedKernels, no_kernel, original_kernel
from amp_lab.autocast.policy import Policy, policy

# On CUDA these come down to _cudnn_rnn, which has its autocast kernel in CUDA builds only, so that it cannot be
# asked everywhere; the tests ask it where it is. `.data` is the overload for packed sequences.
CUDNN_RNNS = tuple(
    f"{kind}.{form}" for kind in ("lstm", "gru", "rnn_tanh", "rnn_relu") for form in ("input", "data")
)

Replacement = Callable[[Kernel], Kernel]

# As False, and yet another object: a False that somebody else sets is theirs to keep.
_OFF: Any = 0

# For the error that it raises. Taken now, before anybody replaces it.
_PYTORCHS_CAT = original_kernel("cat", "AutocastCPU")


class CudaCasts:
    """CUDA's cast policy, in force on CPU tensors from now on until `restore`."""

    def __init__(self) -> None:
        self._kernels = ReplacedKernels("AutocastCPU", _replacements())
        # nn.MultiheadAttention and its like ask whether CUDA's autocast is on, and leave their fast path then.
        self._fast_path = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(_OFF)

    def restore(self) -> None:
        """Put PyTorch's own policy for CPUs back."""
        self._kernels.restore()
        if torch.backends.mha.get_fastpath_enabled() is _OFF:  # and not what somebody else chose meanwhile
            torch.backends.mha.set_fastpath_enabled(self._fast_path)


def describe() -> str:
    """How many of CUDA's rules are in force, and by whose kernels."""
    on_cuda, on_cpu = policy("cuda"), policy("cpu")
    kept = sum(fate_on(on_cpu, name) == rule.fate for name, rule in on_cuda.items())
    only_on_cpus = len(_only_on_cpus(on_cuda, on_cpu))
    unknown = (
        f"; {len(on_cuda.unasked)} could not be asked and are left as they are" if on_cuda.unasked else ""
    )
    return (
        f"{kept} are PyTorch's for CPUs as well, {len(on_cuda) - kept} are emulated, "
        f"and {only_on_cpus} that only CPUs have are off{unknown}"
    )


def fate_on(rules: Policy, name: str) -> Fate | None:
    """The fate of an overload ("softmax.int") that has a rule and could be asked; else None."""
    return rules[name].fate if name in rules else None


def _only_on_cpus(on_cuda: Policy, on_cpu: Policy) -> list[str]:
    return [
        name for name in [*on_cpu, *on_cpu.unasked] if name not in on_cuda and name not in on_cuda.unasked
    ]


def _replacements() -> dict[str, Replacement]:
    """Per operator that the two policies treat differently, what takes the place of its kernel."""
    on_cuda, on_cpu = policy("cuda"), policy("cpu")
    replacements: dict[str, Replacement] = dict.fromkeys(_only_on_cpus(on_cuda, on_cpu), no_kernel)
    for name, rule in on_cuda.items():
        if rule.fate != fate_on(on_cpu, name):
            replacements[name] = _taking_place(_KERNELS[rule.fate](name))
    for name in CUDNN_RNNS:
        replacements[name] = _taking_place(_as_cudnn(name))
    return replacements


def _taking_place(kernel: Kernel) -> Replacement:
    return lambda original: kernel


def _lower(name: str) -> Kernel:
    """The kernel of an operator whose arguments go to the region's dtype."""
    operator = overload(name)

    def kernel(keys: object, *arguments: Any, **named: Any) -> Any:
        dtype = torch.get_autocast_dtype("cpu")
        return _without_autocast(operator, *_cast(dtype, arguments, named))

    return kernel


def _fp32(name: str) -> Kernel:
    """The kernel of an operator whose arguments in 16 bits go to FP32."""
    operator = overload(name)

    def kernel(keys: object, *arguments: Any, **named: Any) -> Any:
        return _without_autocast(operator, *_cast(torch.float32, arguments, named))

    return kernel


def _fp32_unless(name: str) -> Kernel:
    """The kernel of an operator whose result is FP32 unless the call names a dtype, or its input is FP64, say.

    `norm` has overloads that take no dtype, and others that do; its kernel calls one of those.
    """
    operator = overload(name)
    place = _place(operator, "dtype")
    if place is None:
        return _with_dtype_added(operator)

    def kernel(keys: object, *arguments: Any, **named: Any) -> Any:
        if eligible(arguments[0]):
            if place < len(arguments):
                dtype = arguments[place] or torch.float32
                arguments = (*arguments[:place], dtype, *arguments[place + 1 :])
            else:
                named["dtype"] = named.get("dtype") or torch.float32
        return _without_autocast(operator, arguments, named)

    return kernel


def _with_dtype_added(operator: OpOverload) -> Kernel:
    """The kernel of an overload that takes no dtype, which calls the one that must be told."""
    told = _overload_with_dtype(operator)
    # The dispatcher leaves out arguments at the end that are as by default; the other overload has no defaults.
    defaults = [argument.default_value for argument in operator._schema.arguments]

    def kernel(keys: object, *arguments: Any) -> Any:
        dtype = torch.float32 if eligible(arguments[0]) else arguments[0].dtype
        return _without_autocast(told, [*arguments, *defaults[len(arguments) :]], {"dtype": dtype})

    return kernel


def _widest(name: str) -> Kernel:
    """The kernel of an operator whose arguments go to the widest dtype among them."""
    operator = overload(name)
    # An optional argument (the bias of `bilinear`) is cast with the others, but has no say in the dtype.
    types = [str(argument.type) for argument in operator._schema.arguments]
    places = [place for place, kind in enumerate(types) if kind in ("Tensor", "List[Tensor]")]

    def kernel(keys: object, *arguments: Any, **named: Any) -> Any:
        dtype = _widest_dtype(keys, _tensors(arguments[place] for place in places if place < len(arguments)))
        return _without_autocast(operator, *_cast(dtype, arguments, named))

    return kernel


def _widest_dtype(keys: object, tensors: Iterable[torch.Tensor]) -> torch.dtype:
    """FP32 if one of them is FP32, else the region's dtype. Another dtype in 16 bits before any FP32 is an error."""
    dtype = lower = torch.get_autocast_dtype("cpu")
    for tensor in filter(eligible, tensors):
        if torch.float32 in (dtype, tensor.dtype):
            dtype = torch.float32
        elif tensor.dtype is not lower:
            _PYTORCHS_CAT(keys, [tensor])  # has the same rule, and raises its own error
    return dtype


def _refused(name: str) -> Kernel:
    """CUDA's kernel itself, since it raises its error whatever it is given."""
    return original_kernel(name, "AutocastCUDA")


_KERNELS: dict[Fate, Callable[[str], Kernel]] = {
    Fate.LOWER: _lower,
    Fate.FP32: _fp32,
    Fate.FP32_UNLESS: _fp32_unless,
    Fate.WIDEST: _widest,
    Fate.REFUSED: _refused,
}


def _as_cudnn(name: str) -> Kernel:
    """The kernel of a whole LSTM, GRU or RNN, of which cuDNN casts input, states and weights to FP16.

    It casts the weights anew in each call: they are not in the cache.
    """
    operator = overload(name)
    weights = [each.name for each in operator._schema.arguments].index("params")

    def kernel(keys: object, *arguments: Any, **named: Any) -> Any:
        if arguments[0].dtype is torch.bfloat16 or not torch.backends.cudnn.enabled:
            # Computed without cuDNN, by operators that all go to the region's dtype.
            return _without_autocast(operator, *_cast(torch.get_autocast_dtype("cpu"), arguments, named))
        fresh = [weight.to(torch.float16) if eligible(weight) else weight for weight in arguments[weights]]
        arguments = (*arguments[:weights], fresh, *arguments[weights + 1 :])
        return _without_autocast(operator, *_cast(torch.float16, arguments, named))

    return kernel


def _without_autocast(operator: OpOverload, arguments: Sequence[Any], named: Mapping[str, Any]) -> Any:
    torch.set_autocast_enabled("cpu", False)
    try:
        return operator(*arguments, **named)
    finally:
        torch.set_autocast_enabled("cpu", True)  # it was on, or this kernel would not have been called


def _cast(
    dtype: torch.dtype, arguments: Sequence[Any], named: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """An operator's arguments with all tensors that are eligible in `dtype`, also those in lists."""

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return cached_cast(value, dtype)
        if isinstance(value, list | tuple):
            return [cast(each) for each in value]
        return value

    return [cast(value) for value in arguments], {key: cast(value) for key, value in named.items()}


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        yield from value if isinstance(value, list | tuple) else [value]


def _place(operator: OpOverload, argument: str) -> int | None:
    """Where an argument stands in an operator's schema."""
    names = [each.name for each in operator._schema.arguments]
    return names.index(argument) if argument in names else None


def _overload_with_dtype(operator: OpOverload) -> OpOverload:
    """The overload that takes the same arguments and then a dtype."""
    wanted = [*_looks(operator), "dtype"]
    packet = operator.overloadpacket
    return next(other for name in packet.overloads() if _looks(other := getattr(packet, name)) == wanted)


def _looks(operator: OpOverload) -> list[str]:
    """Its arguments by name and type, whether optional or not; a dtype by its name alone."""
    return [
        each.name
        if each.name == "dtype"
        else f"{each.name}: {each.type}".replace("Optional[number]", "number")
        for each in operator._schema.arguments
    ]
