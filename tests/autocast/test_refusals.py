"""`refusal` beside real tensors: what it calls refused, they refuse, with the same words; and nothing else."""

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab.autocast.emulate import tensor_cores
from amp_lab.autocast.recording import refusals
from amp_lab.autocast.recording.refusals import refusal
from tests.autocast import faults
from tests.autocast.faults import MISMATCHES, PAIRS, Mismatch, ones

aten = torch.ops.aten
HALF, BF16, FP32, FP64 = torch.float16, torch.bfloat16, torch.float32, torch.float64

# Rows that no operator of a forward pass refuses: the Python of a layer, autograd, or an assignment does.
NOT_BY_AN_OPERATOR = {"LSTM", "assigned gradient", "hook"}
ROWS = [
    pytest.param(row, a, b, id=f"{name}: {str(a)[6:]}, {str(b)[6:]}")
    for name, row in MISMATCHES.items()
    for a, b in PAIRS
    if row.only(a, b) and name not in NOT_BY_AN_OPERATOR
]
# Fake tensors let these pass, and real ones do not.
PASS_IN_FAKE = (
    "linear",
    "@",
    "linear, bias alone",
    "addmm_",
    "mv",
    "x[index] = y",
    "x[mask] = y",
    "index_add",
    "index_reduce",
    "index_copy",
    "put_",
    "BCE",
    "layer_norm",
    "batch_norm",
)
TOO_LARGE: dict[str, Callable[[], Any]] = {
    name: faults.ALL[name][1]
    for name in ("masked_with_a_large_number", "masked_in_bf16", "full", "clamp", "padding")
}
# Real tensors compute these, though dtypes are mixed or numbers are large.
PASS: dict[str, Callable[[torch.dtype, torch.dtype], Any]] = {
    "add": lambda a, b: ones(2, dtype=a) + ones(2, dtype=b),
    "in place": lambda a, b: ones(2, dtype=a).add_(ones(2, dtype=b)),
    "times a large number": lambda a, b: ones(2, dtype=a) * 1e9,
    "divided by a large number": lambda a, b: ones(2, dtype=a) / 1e9,
    "compared with a large number": lambda a, b: ones(2, dtype=a) > 1e9,
    "masked with infinity": lambda a, b: ones(2, dtype=a).masked_fill(ones(2) > 0, float("-inf")),
    "masked with what fits": lambda a, b: ones(2, dtype=a).masked_fill(ones(2) > 0, -65504.0),
    "addcmul": lambda a, b: torch.addcmul(ones(2, dtype=a), ones(2, dtype=b), ones(2, dtype=b)),
    "where": lambda a, b: torch.where(ones(2) > 0, ones(2, dtype=a), ones(2, dtype=b)),
    "cat": lambda a, b: torch.cat([ones(2, dtype=a), ones(3, dtype=b)]),
    "copy": lambda a, b: ones(2, dtype=a).copy_(ones(2, dtype=b)),
    "mse_loss": lambda a, b: F.mse_loss(ones(2, dtype=a), ones(2, dtype=b)),
    "BCE of logits": lambda a, b: F.binary_cross_entropy_with_logits(ones(2, dtype=a), ones(2, dtype=b)),
    "soft targets": lambda a, b: F.cross_entropy(ones(2, 3, dtype=a), ones(2, 3, dtype=b)),
    "targets": lambda a, b: F.cross_entropy(ones(2, 3, dtype=a), torch.zeros(2, dtype=torch.int64)),
    "embedding": lambda a, b: F.embedding(torch.zeros(2, dtype=torch.int64), ones(3, 4, dtype=a)),
    "index": lambda a, b: ones(3, 4, dtype=a)[torch.zeros(2, dtype=torch.int64)],
    "gather": lambda a, b: ones(3, dtype=a).gather(0, torch.zeros(2, dtype=torch.int64)),
    "x[0] = y": lambda a, b: faults.put(ones(3, 4, dtype=a), 0, ones(4, dtype=b)),
    "x[mask] = number": lambda a, b: faults.put(ones(3, dtype=a), ones(3) > 0, 2.0),
    "softmax to a dtype": lambda a, b: ones(3, dtype=a).softmax(0, dtype=b),
    "a large size": lambda a, b: ones(2, 50_000, dtype=a).view(100_000),
    "dropout": lambda a, b: F.dropout(ones(8, dtype=a)) + ones(8, dtype=b),
}


class Asking(TorchDispatchMode):
    """Raises what `refusal` says, before each operator."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        error = refusal(func, args, kwargs or {})
        if error is not None:
            raise error
        return func(*args, **(kwargs or {}))


def outcome(run: Callable[[], Any], *surroundings: Any) -> tuple[str, str] | None:
    """The class and first line of what this raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with ExitStack() as stack:
                for each in surroundings:
                    stack.enter_context(each)
                run()
        except Exception as error:
            return type(error).__name__, str(error).splitlines()[0]
    return None


def in_fake(run: Callable[[], Any]) -> tuple[str, str] | None:
    return outcome(run, FakeTensorMode())


def in_fake_and_asked(run: Callable[[], Any]) -> tuple[str, str] | None:
    return outcome(run, FakeTensorMode(), Asking())


# Against real tensors


@pytest.mark.parametrize(("row", "a", "b"), ROWS)
def test_refused_as_by_real_tensors(row: Mismatch, a: torch.dtype, b: torch.dtype) -> None:
    def run() -> None:
        row.run(a, b)

    real = outcome(run)
    assert real is not None
    assert in_fake_and_asked(run) == real or in_fake(run) is not None


@pytest.mark.parametrize("name", PASS_IN_FAKE)
def test_fake_tensors_let_it_pass(name: str) -> None:
    """If this fails with a new PyTorch: its fake tensors check more than those before, which is good news."""
    row = MISMATCHES[name]
    a, b = next(pair for pair in PAIRS if row.only(*pair) and FP32 in pair)
    assert in_fake(lambda: row.run(a, b)) is None
    real = outcome(lambda: row.run(a, b))
    assert real is not None
    assert in_fake_and_asked(lambda: row.run(a, b)) == real


@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_number_that_does_not_fit(name: str) -> None:
    assert in_fake(TOO_LARGE[name]) is None
    real = outcome(TOO_LARGE[name])
    assert real is not None
    assert "without overflow" in real[1]
    assert in_fake_and_asked(TOO_LARGE[name]) == real


def test_a_number_in_a_fake_tensor_that_remembers_it() -> None:
    run = faults.masked_with_a_tensor
    assert in_fake(run) is None
    real = outcome(run)
    assert real is not None
    assert in_fake_and_asked(run) == real


@pytest.mark.parametrize(("a", "b"), PAIRS, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("name", PASS)
def test_not_refused_as_by_real_tensors(name: str, a: torch.dtype, b: torch.dtype) -> None:
    def run() -> None:
        PASS[name](a, b)

    assert outcome(run) is None
    assert in_fake_and_asked(run) is None


SIZES = st.integers(1, 40)
DTYPES = st.sampled_from([HALF, BF16, FP32, FP64])
# An operator and its arguments, of sizes and dtypes that the search chooses.
CALLS: dict[str, Callable[..., tuple[Any, ...]]] = {
    "mm": lambda a, b, m, n, k: (aten.mm.default, ones(m, k, dtype=a), ones(k, n, dtype=b)),
    "bmm": lambda a, b, m, n, k: (aten.bmm.default, ones(2, m, k, dtype=a), ones(2, k, n, dtype=b)),
    "addmm": lambda a, b, m, n, k: (
        aten.addmm.default,
        ones(n, dtype=b),
        ones(m, k, dtype=a),
        ones(k, n, dtype=a),
    ),
    "linear": lambda a, b, m, n, k: (
        aten.linear.default,
        ones(m, k, dtype=a),
        ones(n, k, dtype=b),
        ones(n, dtype=b),
    ),
    "add": lambda a, b, m, n, k: (aten.add.Tensor, ones(m, n, dtype=a), ones(n, dtype=b)),
    "lerp": lambda a, b, m, n, k: (aten.lerp.Scalar, ones(m, n, dtype=a), ones(n, dtype=b), 0.5),
    "cat": lambda a, b, m, n, k: (aten.cat.default, [ones(m, n, dtype=a), ones(k, n, dtype=b)]),
    "masked_fill": lambda a, b, m, n, k: (
        aten.masked_fill.Scalar,
        ones(m, n, dtype=a),
        ones(n) > 0,
        -(10.0**k),
    ),
    "clamp": lambda a, b, m, n, k: (aten.clamp.default, ones(m, n, dtype=a), None, 10.0**k),
    "index_put": lambda a, b, m, n, k: (
        aten.index_put_.default,
        ones(m, n, dtype=a),
        [torch.zeros(k, dtype=torch.int64)],
        ones(k, n, dtype=b),
    ),
    "index_put at a mask": lambda a, b, m, n, k: (
        aten.index_put_.default,
        ones(m, n + 1, dtype=a),
        [ones(m, n + 1) > 0],
        ones(m * (n + 1), dtype=b),
    ),
    "index_put at a mask of columns": lambda a, b, m, n, k: (
        aten.index_put_.default,
        ones(m + 1, n, dtype=a),
        [None, ones(n) > 0],
        ones(m + 1, n, dtype=b),
    ),
    "scatter": lambda a, b, m, n, k: (
        aten.scatter.src,
        ones(m, dtype=a),
        0,
        torch.zeros(m, dtype=torch.int64),
        ones(m, dtype=b),
    ),
    "convolution": lambda a, b, m, n, k: (
        aten.convolution.default,
        ones(1, 2 * m, 5, 5, dtype=a),
        ones(2 * m, 2, 3, 3, dtype=b),
        None,
        [1, 1],
        [1, 1],
        [1, 1],
        False,
        [0, 0],
        m,
    ),
    "layer_norm": lambda a, b, m, n, k: (
        aten.native_layer_norm.default,
        ones(m, n, dtype=a),
        [n],
        ones(n, dtype=b),
        ones(n, dtype=b),
        1e-5,
    ),
    "batch_norm": lambda a, b, m, n, k: (
        aten.native_batch_norm.default,
        ones(m + 1, n, dtype=a),
        *[ones(n, dtype=b)] * 4,
        True,
        0.1,
        1e-5,
    ),
}


def fake_arguments(args: Any) -> Any:
    with FakeTensorMode() as mode:
        return torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, args)


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=25, deadline=None)
@given(a=DTYPES, b=DTYPES, m=SIZES, n=SIZES, k=SIZES)
def test_of_any_size(name: str, a: torch.dtype, b: torch.dtype, m: int, n: int, k: int) -> None:
    func, *args = CALLS[name](a, b, m, n, k)
    refused = refusal(func, tuple(fake_arguments(args))) is not None
    # Large tensors can go to other kernels, which say it in other words.
    assert refused == (outcome(lambda: func(*args)) is not None)


def test_dtypes_that_meet_in_a_list_or_in_a_keyword() -> None:
    half, single = ones(2, 2, dtype=HALF), ones(2, 2)
    assert refusal(aten.linalg_multi_dot.default, ([half, single],)) is not None
    assert refusal(aten.linalg_multi_dot.default, ([half, half],)) is None
    assert refusal(aten.mm.out, (single, single), {"out": half}) is not None
    assert refusal(aten.mm.out, (single, single), {"out": single}) is None


def test_a_device_that_is_not_there() -> None:
    for device in ("cuda", "meta"):
        keywords = {"dtype": HALF, "device": torch.device(device)}
        assert refusal(aten.full.default, ([2], 1e9), keywords) is not None
        assert refusal(aten.full.default, ([2], 1e4), keywords) is None


# What is no refusal


def test_not_implemented_for_a_dtype_on_a_cpu() -> None:
    args = (ones(2, 3, dtype=HALF), ones(2, 3))
    assert outcome(lambda: torch.cdist(*args)) is not None
    assert refusal(aten.cdist.default, args) is None
    assert refusal(aten.cdist.default, args[::-1]) is not None


def test_shapes_that_do_not_fit() -> None:
    args = ([ones(2, 3, dtype=HALF), ones(2, 4)],)
    assert outcome(lambda: aten.cat.default(*args)) is not None
    assert refusal(aten.cat.default, args) is None
    args = (ones(7, dtype=HALF), ones(3))
    assert outcome(lambda: aten.add.Tensor(*args)) is not None
    assert refusal(aten.add.Tensor, args) is None


def test_what_no_small_argument_can_stand_for() -> None:
    sparse = ones(2, 2, dtype=HALF).to_sparse()
    assert refusal(aten.mm.default, (sparse, ones(2, 2))) is None
    nested = torch.nested.nested_tensor([ones(2, dtype=HALF), ones(3, dtype=HALF)], layout=torch.jagged)
    assert refusal(aten.add.Tensor, (nested, ones(2))) is None
    assert refusal(aten.mm.default, (ones(2, 2), ones(2, 2, dtype=HALF), object(), 1)) is None
    assert refusal(torch.ops.prims.add.default, (ones(2), ones(2, dtype=HALF))) is None


def test_an_argument_that_cannot_be_made(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("no memory")

    args = mixed()
    monkeypatch.setattr(torch, "full", fail)
    assert refusal(aten.mm.default, args) is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("message", "refused"), [("no such dtype", True), ("no such luck", False)])
def test_a_call_that_also_fails_without_a_mixture(
    monkeypatch: pytest.MonkeyPatch, message: str, refused: bool
) -> None:
    """Then only an error about dtypes is taken for a refusal."""
    errors = [(RuntimeError, message), (RuntimeError, "shapes"), (RuntimeError, "shapes")] * 2
    monkeypatch.setattr(refusals, "_error", lambda func, call: errors.pop(0))
    assert (refusal(aten.mm.default, mixed()) is not None) == refused


def test_integers_are_to_blame_if_floating_point_numbers_work(monkeypatch: pytest.MonkeyPatch) -> None:
    args = (torch.ones(2, 2, dtype=torch.int64), ones(2, 2))
    assert "long int != float" in str(refusal(aten.mm.default, args))
    refusals._answers.clear()
    errors = [(RuntimeError, "in other words"), None]
    monkeypatch.setattr(refusals, "_error", lambda func, call: errors.pop(0))
    assert str(refusal(aten.mm.default, args)) == "in other words"


def test_empty_tensors() -> None:
    assert refusal(aten.add.Tensor, (ones(0), ones(0, dtype=HALF))) is None
    assert refusal(aten.mm.default, (ones(0, 2), ones(2, 0, dtype=HALF))) is not None


def test_sizes_that_depend_on_values() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    with FakeTensorMode(shape_env=ShapeEnv(allow_dynamic_output_shape_ops=True)):
        chosen = ones(4, 3, dtype=HALF)[ones(4) > 0]
        assert isinstance(chosen.shape[0], torch.SymInt)
        assert refusal(aten.mm.default, (chosen, ones(3, 2))) is not None
        assert refusal(aten.add.Tensor, (chosen, ones(3))) is None


# Nothing of the caller's is at work, and nothing is left behind


class Counting(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


class CountingFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(func)
        return func(*args, **(kwargs or {}))


@contextmanager
def default_device() -> Iterator[None]:
    with torch.device("meta"):
        yield


SURROUNDINGS = {
    "fake": FakeTensorMode,
    "CPU autocast": lambda: torch.autocast("cpu", BF16),
    "inference": torch.inference_mode,
    "default device": default_device,
    "tensor cores": tensor_cores,
}


@pytest.fixture(autouse=True)
def forget() -> None:
    refusals._answers.clear()


def mixed() -> tuple[torch.Tensor, torch.Tensor]:
    return ones(2, 2, dtype=HALF), ones(2, 2)


@pytest.mark.parametrize("name", SURROUNDINGS)
def test_the_answer_is_the_same_anywhere(name: str) -> None:
    args = mixed()
    mask = args[1] > 0
    with SURROUNDINGS[name]():
        assert refusal(aten.mm.default, args) is not None
        assert refusal(aten.add.Tensor, args) is None
        assert refusal(aten.masked_fill.Scalar, (args[0], mask, -1e9)) is not None


def test_inside_vmap_and_grad() -> None:
    answers = []

    def run(x: torch.Tensor) -> torch.Tensor:
        answers.append(refusal(aten.mm.default, mixed()))
        return x.sum()

    torch.vmap(run)(ones(3, 2))
    torch.func.grad(run)(ones(2))
    assert [str(each) for each in answers] == [str(refusal(aten.mm.default, mixed()))] * 2


def test_the_callers_modes_see_nothing() -> None:
    args = mixed()
    with CountingFunctions() as functions, Counting() as mode:
        assert refusal(aten.mm.default, args) is not None
        # Reading what a tensor is counts as calling a function of its class.
        seen = [each for each in functions.seen if "__get__" not in str(each)]
    assert mode.seen == []
    assert seen == []


def test_nothing_changes() -> None:
    args = (ones(2, 2, dtype=HALF), ones(2, 2))
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    threads = threading.active_count()
    aten_dropout = aten.native_dropout_backward.default
    assert refusal(aten_dropout, (args[0], args[1], 2.0)) is None
    refusal(aten.addmm_.default, (args[0], args[1], args[1]))
    refusal(aten.normal.Tensor_Tensor, args)
    dice = torch.Generator().manual_seed(0)
    assert refusal(aten.bernoulli_.Tensor, args, {"generator": dice}) is None
    assert torch.equal(dice.get_state(), torch.Generator().manual_seed(0).get_state())
    assert torch.equal(torch.rand(3), expected)
    assert threading.active_count() == threads
    assert torch.equal(args[0], ones(2, 2, dtype=HALF))
    assert args[0]._version == args[1]._version == 0


def test_an_error_is_a_new_one_each_time() -> None:
    first, second = refusal(aten.mm.default, mixed()), refusal(aten.mm.default, mixed())
    assert isinstance(first, RuntimeError)
    assert first is not second
    assert str(first) == str(second)
    assert first.__traceback__ is None


# What it costs


def test_most_calls_ask_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(refusals, "_answer", lambda *call: asked.append(call))
    x, weight = ones(2, 2, dtype=HALF), ones(2, 2, dtype=HALF)
    for call in (
        (aten.mm.default, (x, weight)),
        (aten.add.Tensor, (x, 1.0)),
        (aten.native_layer_norm.default, (x, [2], weight[0], weight[0], 1e-5)),
        (aten.masked_fill.Scalar, (x, x > 0, -1e4)),
        (aten.where.self, (x > 0, x, x)),
        (aten.cat.default, ([x, x],)),
    ):
        assert refusal(*call) is None
    assert asked == []
    refusal(aten.mm.default, mixed())
    assert len(asked) == 1


def test_an_answer_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    first = refusal(aten.mm.default, (ones(300, 200, dtype=HALF), ones(200, 100)))
    monkeypatch.setattr(refusals, "_in_another_thread", lambda ask: pytest.fail("asked again"))
    again = refusal(aten.mm.default, (ones(30, 20, dtype=HALF), ones(20, 10)))
    assert str(again) == str(first)


def test_not_too_many_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "_KEPT", 3)
    for size in range(1, 7):
        refusal(aten.mm.default, (ones(2, size, dtype=HALF), ones(size, 2)))
    assert len(refusals._answers) <= 3
