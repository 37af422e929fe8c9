"""What the emulation of CUDA's autocast casts, against PyTorch's own CUDA kernels, asked on fake CUDA tensors."""

from collections import Counter
from typing import Any, NamedTuple

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from amp_lab.autocast.emulate import CudaAutocast, cuda_autocast
from amp_lab.autocast.fates import Fate
from amp_lab.autocast.kernels import casts as cast_kernels
from amp_lab.autocast.kernels.dispatcher import overload
from amp_lab.autocast.policy import policy
from amp_lab.autocast.probing.arguments import MissingValue, make_arguments
from tests.autocast import official_lists
from tests.autocast.official_lists import entries

FP16, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64

# Dtypes of an operator's tensors, one after another, by the dtype of the region.
MIXES = {
    FP16: [
        (FP16,),
        (FP32,),
        (FP16, FP32),
        (FP32, FP16),
        (FP16, FP16, FP32),
        (BF16,),
        (BF16, FP32),
        (FP32, BF16),
        (FP64, FP16),
        (FP64, FP32, FP16),
        (torch.int64, FP32),
        (torch.complex64,),
    ],
    BF16: [(FP32,), (BF16, FP32), (FP32, FP16), (FP16,)],
}

# Operators whose own work begins in another way on CUDA: no matter of autocast.
OTHER_BODIES = {
    # CUDA's kernel reads 16 bits and writes FP32; on a CPU the input is converted first, inside the operator.
    "softmax.int",
    "log_softmax.int",
    "ctc_loss.Tensor",  # asks cuDNN first
    "stft",  # says CUDA or CPU in its error
    "lstm_cell",  # some compilers take its two products in another order
}


class Start(NamedTuple):
    """How a call began: the casts, the first operator after them with dtypes, or the error if there was none."""

    casts: Counter[Any]
    work: Any
    error: str | None


class Enough(Exception):
    """The work has begun."""


class Beginning(TorchDispatchMode):
    """Notes casts, up to the first operator that is something else; stops that one."""

    def __init__(self):
        super().__init__()
        self.casts, self.work = Counter(), None

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.ops.aten._to_copy.default:
            self.casts[args[0].dtype, kwargs.get("dtype")] += 1
        elif function.namespace != "prim":
            dtypes = [leaf.dtype for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
            handed_on = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.dtype)]
            self.work = (str(function), dtypes, handed_on)
            raise Enough
        return function(*args, **kwargs)


def start(name, mix, device, region) -> Start | None:
    """How an operator begins with made-up arguments, or None if none can be made up."""
    operator, beginning, error = overload(name), Beginning(), None
    try:
        arguments = make_arguments(operator._schema, mix, device)
    except MissingValue:
        return None
    before = torch.get_autocast_dtype(device)
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, region)
    try:
        with beginning:
            operator(*arguments.positional, **arguments.keywords)
    except Enough:
        pass
    except Exception as raised:
        error = str(raised).partition("\n")[0]
    finally:
        torch.set_autocast_enabled(device, False)
        torch.set_autocast_dtype(device, before)
    return Start(beginning.casts, beginning.work, error)


def compared(names, mixes=MIXES):
    """How many calls were compared, and those that differ: (operator, mix, region) -> (CUDA's, emulated)."""
    count, differ = 0, {}
    with FakeTensorMode(), cuda_autocast():
        for name in names:
            for region in mixes:
                for mix in mixes[region]:
                    real, emulated = start(name, mix, "cuda", region), start(name, mix, "cpu", region)
                    if real is None or "CUDA error" in (real.error or ""):
                        continue  # cannot be asked; a CUDA build without a driver fails inside some operators
                    count += 1
                    if real != emulated:
                        differ[name, mix, region] = real, emulated
    return count, differ


def test_every_operator_with_a_rule_casts_as_on_cuda():
    count, differ = compared(policy("cuda"))
    assert {name for name, _, _ in differ} <= OTHER_BODIES, differ
    askable = [name for name in policy("cuda") if start_is_possible(name)]
    assert count > 0.95 * len(askable) * sum(map(len, MIXES.values()))
    assert len(askable) >= 110


def start_is_possible(name) -> bool:
    try:
        make_arguments(overload(name)._schema, [FP32], "cpu")
    except MissingValue:
        return False
    return True


def test_rules_that_only_cpus_have_are_off():
    names = [name for name in policy("cpu") if name not in policy("cuda")]
    assert len(names) >= 80
    count, differ = compared(names, {FP16: MIXES[FP16]})
    # PyTorch has no FFT in FP16 on CPUs: it refuses where CUDA goes on.
    ffts = {name for name in names if name.startswith("fft_")}
    assert {name for name, _, _ in differ} <= OTHER_BODIES | ffts
    assert count > 0.95 * 80 * len(MIXES[FP16])


@pytest.mark.parametrize(
    ("fate", "instead"),
    [(fate, other) for fate in cast_kernels._KERNELS for other in (Fate.LOWER, Fate.FP32)],
)
def test_a_wrong_fate_would_be_noticed(fate, instead, monkeypatch):
    if fate == instead:
        return
    changed = [name for name, rule in policy("cuda").items() if rule.fate == fate]
    changed = [name for name in changed if cast_kernels.fate_on(policy("cpu"), name) != fate]
    monkeypatch.setitem(cast_kernels._KERNELS, fate, cast_kernels._KERNELS[instead])
    _, differ = compared(changed, {FP16: [(FP16, FP32), (FP32,), (FP16,)]})
    noticed = {name for name, _, _ in differ}
    assert noticed >= set(changed) - OTHER_BODIES, set(changed) - noticed


# PyTorch's own tests of CUDA's autocast, on real tensors.
# Left out: the line of einsum, which has its arguments in the wrong places and which PyTorch's tests leave out, too;
# and operators of cuDNN by name. Convolutions are in the list under other names as well.
NO_SUCH_KERNEL = {"cudnn_convolution", "cudnn_convolution_transpose"}
ENTRIES = [
    entry for entry in entries("cuda") if isinstance(entry.rest[0], tuple) and entry.op not in NO_SUCH_KERNEL
]
# Fake CUDA tensors cannot be asked without CUDA: the result's dtype is what the list says.
NOT_FAKE = {"gru_cell", "grid_sampler", "equal", "_convolution", "conv2d", "conv_transpose2d", "convolution"}


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated", "ignore:Using torch.cross")
@pytest.mark.parametrize("entry", ENTRIES, ids=[f"{e.list_name}-{e.op}-{i}" for i, e in enumerate(ENTRIES)])
def test_pytorchs_own_list_on_real_tensors(entry):
    emulated = emulated_result(entry)
    real = official_lists.run(entry, "cuda")
    if isinstance(real, str) and entry.op in NOT_FAKE:
        assert emulated == expected_by_the_list(entry)
    else:
        assert emulated == real
    if entry.expected <= official_lists.FP32 | official_lists.LOWER:
        assert emulated == expected_by_the_list(entry)


def expected_by_the_list(entry):
    if entry.op == "equal":
        return bool
    return FP16 if entry.expected == official_lists.LOWER else FP32


def emulated_result(entry):
    """The dtype of what comes out of a line of the list, its type if that is no tensor, or the error."""
    keywords = entry.rest[1] if len(entry.rest) > 1 and isinstance(entry.rest[1], dict) else {}
    with cuda_autocast(), torch.autocast("cpu", FP16):
        try:
            result = official_lists._function(entry.op)(*entry.rest[0], **keywords)
        except RuntimeError as error:
            return f"{type(error).__name__}: {error}"
    first = result[0] if isinstance(result, tuple | list) else result
    return first.dtype if isinstance(first, torch.Tensor) else type(first)


def draw(*shape, dtype=FP16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


X, Y, IMAGES = draw(6, 6), draw(6, 6, seed=1), draw(2, 4, 5, 5)
IN_FP32 = {
    "softmax": lambda x, y, images: torch.softmax(x, 1),
    "log_softmax": lambda x, y, images: F.log_softmax(x, -1),
    "layer_norm": lambda x, y, images: F.layer_norm(x, (6,)),
    "group_norm": lambda x, y, images: F.group_norm(images, 2),
    "exp": lambda x, y, images: x.exp(),
    "pow": lambda x, y, images: x**2,
    "pow of a tensor": lambda x, y, images: x.abs() ** y,
    "rsqrt": lambda x, y, images: x.abs().rsqrt(),
    "sum": lambda x, y, images: x.sum(),
    "sum over a dimension": lambda x, y, images: x.sum(1, keepdim=True),
    "prod": lambda x, y, images: x.prod(),
    "cumsum": lambda x, y, images: x.cumsum(0),
    "norm": lambda x, y, images: torch.linalg.vector_norm(x),
    "aten's norm": lambda x, y, images: torch.ops.aten.norm.Scalar(x),
    "aten's norm over a dimension": lambda x, y, images: torch.ops.aten.norm.ScalarOpt_dim(x, 2, [0]),
    "mse_loss": lambda x, y, images: F.mse_loss(x, y),
    "interpolate": lambda x, y, images: F.interpolate(images, scale_factor=2, mode="bilinear"),
}


@pytest.mark.parametrize("compute", IN_FP32.values(), ids=IN_FP32)
def test_values_are_those_of_fp32(compute):
    with cuda_autocast(), torch.autocast("cpu", FP16):
        emulated = compute(X, Y, IMAGES)
    assert emulated.dtype == FP32
    torch.testing.assert_close(emulated, compute(X.float(), Y.float(), IMAGES.float()), rtol=1e-6, atol=1e-7)


def test_products_round_their_operands():
    weight, vector = draw(6, 6, dtype=FP32), draw(6, dtype=FP32, seed=2)
    with cuda_autocast(), torch.autocast("cpu", FP16):
        assert torch.equal(torch.mv(weight, vector), torch.mv(weight.half(), vector.half()))
        assert torch.equal(torch.einsum("ij,j->i", weight, vector), torch.mv(weight.half(), vector.half()))
        chain = torch.linalg.multi_dot([weight, weight, vector])
    assert chain.dtype == FP16


def test_a_dtype_that_the_call_names_is_respected():
    with cuda_autocast(), torch.autocast("cpu", FP16):
        for dtype in (FP16, BF16, FP64):
            assert torch.softmax(X, 0, dtype).dtype == dtype
            assert torch.softmax(X, 0, dtype=dtype).dtype == dtype
            assert X.sum(dtype=dtype).dtype == dtype
            assert X.sum(0, dtype=dtype).dtype == dtype
        assert X.double().sum().dtype == FP64
        assert torch.ops.aten.norm.Scalar(X.double(), 2).dtype == FP64
        assert torch.arange(3).sum().dtype == torch.int64
        # cross_entropy asks log_softmax for the dtype of its input: 16 bits, before nll_loss goes to FP32.
        loss = F.cross_entropy(X, torch.arange(6))
    assert torch.equal(loss, F.nll_loss(F.log_softmax(X, 1).float(), torch.arange(6)))


def test_an_optional_argument_has_no_say_in_the_widest_dtype():
    with cuda_autocast(), torch.autocast("cpu", FP16):
        weight, bias = draw(3, 6, 6), draw(3)
        assert F.bilinear(X, Y, weight, bias.float()).dtype == FP16
        assert F.bilinear(X, Y, weight.float(), bias).dtype == FP32


def test_the_widest_dtype_depends_on_the_order_as_in_pytorch():
    with cuda_autocast(), torch.autocast("cpu", FP16):
        assert torch.addcmul(X.float(), X, X.bfloat16()).dtype == FP32
        with pytest.raises(RuntimeError, match="Unexpected floating ScalarType"):
            torch.addcmul(X.bfloat16(), X.float(), X)


def test_a_refusal_is_cudas_own():
    chances = torch.rand(3)
    with FakeTensorMode():
        real = start("binary_cross_entropy", (FP32,), "cuda", FP16).error
    with cuda_autocast(), torch.autocast("cpu", FP16), pytest.raises(RuntimeError) as emulated:
        F.binary_cross_entropy(chances, chances)
    assert str(emulated.value).partition("\n")[0] == real
    assert str(emulated.value).count("\n") == 4  # the whole of it
    with cuda_autocast():
        assert F.binary_cross_entropy(chances, chances).dtype == FP32


def test_what_cannot_be_asked_is_left_alone_and_said(monkeypatch):
    on_cuda = policy("cuda")
    some = {"softmax.int", "stft"}  # without a rule on CPUs, and with one
    rules = {name: rule for name, rule in on_cuda.items() if name not in some}

    class Ignorant(dict):
        unasked = dict.fromkeys(some, "it would not say")

    monkeypatch.setattr(
        cast_kernels, "policy", lambda device: Ignorant(rules) if device == "cuda" else policy(device)
    )
    with cuda_autocast() as casts:
        assert "2 could not be asked and are left as they are" in " ".join(str(casts).split())
        with torch.autocast("cpu", FP16):
            assert torch.softmax(X, 0).dtype == FP16
            assert X.exp().dtype == FP32
            assert torch.stft(draw(64), 8, window=torch.ones(8), return_complex=True).dtype == torch.complex64
    assert not CudaAutocast.switch.in_force
