"""Switching the emulation on and off: who asked, for which dtypes, what is said about it, and what stays behind."""

import gc
import threading
import time
import warnings
from contextlib import ExitStack
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_lab.autocast import emulate
from amp_lab.autocast.emulate import TensorCores, slow_halves, tensor_cores
from amp_lab.autocast.kernels import tensor_cores as tensor_core_kernels
from amp_lab.autocast.kernels.replacing import ReplacedKernels
from amp_lab.device.facts import CpuFacts
from tests.device.machines import CPUS

OPERATORS = [
    *tensor_core_kernels.NEW_RESULT,
    *tensor_core_kernels.INTO_SELF,
    *tensor_core_kernels.INTO_OUT,
]
FP16, BF16 = torch.float16, torch.bfloat16


def table() -> list[str]:
    """Per operator, the kernel that the dispatcher would call on each device, and where it was registered."""
    return [torch._C._dispatch_dump_table(f"aten::{name}") for name in OPERATORS]


UNTOUCHED = table()


@pytest.fixture(autouse=True)
def nothing_stays_behind():
    assert table() == UNTOUCHED
    registered = set(torch.library._impls)
    yield
    assert table() == UNTOUCHED
    assert torch.library._impls == registered
    assert TensorCores.switch.in_force == frozenset()


@pytest.fixture
def facts(monkeypatch):
    """Make `tensor_cores` believe in another CPU."""

    def believe(architecture, features, fp16, bf16):
        cpu = CpuFacts("some CPU", architecture, 2, 2**34, None, features, fp16, bf16)
        monkeypatch.setattr(emulate, "ask_cpu", lambda: cpu)

    return believe


def old_cpu(facts):
    facts("x86_64", ("avx2", "f16c"), False, False)


def new_cpu(facts):
    facts("x86_64", ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_fp16"), True, True)


def emulated(dtype=FP16) -> bool:
    """Whether a product of this dtype goes through FP32 now."""
    seen = []
    kernels, convert = tensor_core_kernels, tensor_core_kernels._in_fp32
    kernels._in_fp32 = lambda operand: seen.append(operand) or convert(operand)
    try:
        torch.ones(2, 2, dtype=dtype) @ torch.ones(2, 2, dtype=dtype)
    finally:
        kernels._in_fp32 = convert
    return bool(seen)


def test_it_is_on_inside_and_off_outside():
    assert not emulated()
    with tensor_cores(always=True) as arithmetic:
        assert isinstance(arithmetic, TensorCores)
        assert arithmetic.on
        assert emulated(FP16)
        assert emulated(BF16)
        assert not emulated(torch.float32)
        assert all(now != before for now, before in zip(table(), UNTOUCHED, strict=True))
    assert not arithmetic.on
    assert not emulated()


def test_start_and_stop():
    arithmetic = tensor_cores(always=True)
    assert not arithmetic.on
    arithmetic.stop()  # off already
    assert arithmetic.start() is arithmetic
    assert arithmetic.start() is arithmetic  # twice is once
    assert emulated()
    arithmetic.stop()
    assert not arithmetic.on
    assert not emulated()
    arithmetic.start()
    assert emulated()
    arithmetic.stop()


def test_nested_blocks_end_with_the_outermost():
    with tensor_cores(always=True):
        with tensor_cores(always=True):
            assert emulated()
        assert emulated()
        with tensor_cores(always=True):
            assert emulated()
        assert emulated()


def test_a_block_leaves_on_what_was_on():
    arithmetic = tensor_cores(always=True).start()
    with arithmetic, arithmetic:
        assert emulated()
    assert arithmetic.on
    assert emulated()
    arithmetic.stop()


def test_blocks_may_end_in_any_order():
    first, second = ExitStack(), ExitStack()
    first.enter_context(tensor_cores(always=True))
    second.enter_context(tensor_cores(always=True))
    first.close()
    assert emulated()
    second.close()
    assert not emulated()


def test_a_cell_that_starts_it_may_run_twice():
    for _ in range(2):
        arithmetic = tensor_cores(always=True).start()
    arithmetic.stop()
    assert not emulated()


def test_what_was_started_without_a_name_stays_on_and_any_other_stops_it():
    tensor_cores(always=True).start()
    gc.collect()
    assert emulated()
    other = tensor_cores(always=True)
    assert other.on
    other.stop()
    assert not emulated()


def test_a_block_ends_neither_what_was_started_nor_another_block():
    tensor_cores(always=True).start()
    with tensor_cores(always=True):
        pass
    assert emulated()
    with tensor_cores(always=True) as block:
        block.stop()
        assert block.on
        assert emulated()
    assert not emulated()


def test_stopping_it_leaves_on_what_always_started(facts):
    new_cpu(facts)
    tensor_cores().start()
    tensor_cores(always=True).start()
    tensor_cores().stop()
    assert emulated()
    tensor_cores(always=True).stop()
    assert not emulated()


ACTIONS = st.lists(
    st.tuples(st.sampled_from(["start", "stop", "enter", "leave"]), st.integers(0, 3)), max_size=25
)


@settings(max_examples=25, deadline=None)
@given(actions=ACTIONS)
def test_however_they_are_mixed_it_is_on_while_anybody_asks(actions):
    objects = [tensor_cores(always=True), tensor_cores(always=True), _fp16_only(), _fp16_only()]
    started, blocks = {True: False, False: False}, []

    def do(action, one):
        if action in ("start", "stop"):
            getattr(one, action)()
            started[one.always] = action == "start"
        elif action == "enter":
            blocks.append(one.__enter__())
        elif one in blocks:
            blocks.remove(one)
            one.__exit__(None, None, None)

    for action, index in actions:
        do(action, objects[index])
        both = started[True] or any(one.always for one in blocks)
        assert emulated(BF16) == both
        assert emulated(FP16) == (both or started[False] or bool(blocks))
        assert [one.on for one in objects] == [started[one.always] or one in blocks for one in objects]
    for one in objects:
        one.stop()
    while blocks:
        do("leave", blocks[-1])
    assert table() == UNTOUCHED


def _fp16_only() -> TensorCores:
    one = tensor_cores()
    one.dtypes = frozenset({FP16})  # as on a CPU that is fast at BF16
    return one


def test_it_decorates_functions():
    @tensor_cores(always=True)
    def is_emulated(depth: int = 2) -> bool:
        """Docs."""
        return emulated() and (depth == 0 or is_emulated(depth - 1))

    assert is_emulated()
    assert is_emulated(depth=0)
    assert (is_emulated.__name__, is_emulated.__doc__) == ("is_emulated", "Docs.")
    assert not emulated()


def test_it_does_not_decorate_what_runs_after_the_call():
    def generator():
        yield

    async def coroutine():
        pass

    async def asynchronous_generator():
        yield

    for function in (generator, coroutine, asynchronous_generator):
        with pytest.raises(TypeError, match=r"tensor_cores\(\) decorates .* use a with-block inside"):
            tensor_cores()(function)


class Generates:
    def __call__(self):
        yield


class Computes:
    def __call__(self, dtype=FP16):
        return emulated(dtype)


@pytest.mark.parametrize(
    ("thing", "advice"),
    [
        (3, "give it a function"),
        (None, "give it a function"),
        (torch.ones(2), "give it a function"),
        (torch.nn.Linear, "decorate its methods"),
        (torch.nn.Linear(1, 1), "decorate its forward"),
        (staticmethod(len), "below that decorator"),
        (classmethod(len), "below that decorator"),
        (property(len), "below that decorator"),
        (Generates(), "use a with-block inside it"),
        (partial(Generates.__call__, None), "use a with-block inside it"),
    ],
)
def test_it_decorates_nothing_but_plain_functions(thing, advice):
    with pytest.raises(TypeError, match=rf"^tensor_cores\(\) decorates plain functions, not .*: .*{advice}"):
        tensor_cores(always=True)(thing)


@pytest.mark.parametrize("function", [Computes(), partial(Computes(), FP16), lambda: emulated()])
def test_it_decorates_whatever_is_called_like_a_function(function):
    assert tensor_cores(always=True)(function)()
    assert not emulated()


async def _later():
    pass


async def _later_and_again():
    yield


@pytest.mark.parametrize(
    "function", [lambda: (x for x in "ab"), lambda: _later(), lambda: _later_and_again()]
)
def test_a_function_that_leaves_its_work_for_later_is_an_error_when_it_is_called(function):
    decorated = tensor_cores(always=True)(function)
    with pytest.raises(TypeError, match="whose work begins when the block is over: use a with-block inside"):
        decorated()
    assert not emulated()
    gc.collect()  # no warning of a coroutine that was never awaited


def test_a_block_that_did_not_begin_cannot_end():
    arithmetic, other = tensor_cores(always=True), tensor_cores(always=True)
    again = r"no block of this tensor_cores\(always=True\) runs that could end: let a with-statement"
    with other:
        with pytest.raises(RuntimeError, match=again):
            arithmetic.__exit__(None, None, None)
        assert emulated()  # the other's block goes on
        with arithmetic:
            pass
        with pytest.raises(RuntimeError, match=again):
            arithmetic.__exit__(None, None, None)
        assert emulated()
    arithmetic.start()
    with pytest.raises(RuntimeError, match=again):  # what was started is no block
        arithmetic.__exit__(None, None, None)
    assert emulated()
    arithmetic.stop()


@pytest.mark.parametrize("always", ["no", "", 1, None])
def test_always_is_true_or_false(always):
    with pytest.raises(TypeError, match=f"always is True or False, not {always!r}"):
        tensor_cores(always=always)


def test_an_error_in_the_block_ends_it():
    with pytest.raises(ZeroDivisionError), tensor_cores(always=True):
        _ = 1 / 0
    assert not emulated()


def test_an_error_in_a_product_changes_nothing():
    with tensor_cores(always=True):
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            torch.ones(2, 3, dtype=FP16) @ torch.ones(2, 3, dtype=FP16)
        assert emulated()


def test_a_start_that_fails_is_no_start(monkeypatch):
    arithmetic = tensor_cores(always=True)
    monkeypatch.setattr(tensor_core_kernels, "NEW_RESULT", ["mm", "no_such_operator"])
    with pytest.raises(RuntimeError, match="no_such_operator"):
        arithmetic.start()
    assert not arithmetic.on
    assert not emulated()


def test_it_holds_in_every_thread():
    seen = []
    thread = threading.Thread(target=lambda: seen.append(emulated()))
    with tensor_cores(always=True):
        thread.start()
        thread.join(timeout=60)
    assert seen == [True]


def test_many_threads_may_switch_at_once():
    def switch(results):
        a = torch.full((4, 4), 3.0, dtype=FP16)
        for _ in range(10):
            with tensor_cores(always=True):
                results.append((a @ a).unique().tolist())

    results = []
    threads = [threading.Thread(target=switch, args=(results,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert results == [[36.0]] * 40


def test_two_threads_never_change_the_table_at_once(monkeypatch):
    inside, most = [], []
    replace, restore = ReplacedKernels, ReplacedKernels.restore

    def slowly(work):
        def alone(*arguments):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.02)  # so that the other threads come here meanwhile, if they can
            result = work(*arguments)
            inside.pop()
            return result

        return alone

    monkeypatch.setattr(ReplacedKernels, "restore", slowly(restore))
    monkeypatch.setattr(tensor_core_kernels, "ReplacedKernels", slowly(replace))

    def switch():
        with tensor_cores(always=True):
            pass

    threads = [threading.Thread(target=switch) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert max(most) == 1
    assert len(most) % 2 == 0  # replaced as often as restored


def test_blocks_inside_another_leave_the_table_to_threads_that_compute(facts):
    facts("x86_64", ("avx2", "avx512f", "avx512_bf16"), False, True)
    with tensor_cores():
        installed = table()
        with tensor_cores(always=True):
            assert emulated(BF16)
            assert table() == installed
        assert not emulated(BF16)
        assert table() == installed


def test_no_warning_and_no_silenced_warning():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        with tensor_cores(always=True):
            assert warnings.filters == filters
            warnings.warn("mine", stacklevel=1)
    assert [str(warning.message) for warning in caught] == ["mine"]


@pytest.mark.parametrize(("architecture", "features", "fp16", "bf16", "kind16", "kindb16", "_"), CPUS)
def test_only_where_products_and_convolutions_are_fast_nothing_is_replaced(
    architecture, features, fp16, bf16, kind16, kindb16, _
):
    cpu = CpuFacts("some CPU", architecture, 2, 2**34, None, features, fp16, bf16)
    slow = slow_halves(cpu)
    intel = architecture in ("x86_64", "AMD64")
    assert (FP16 not in slow) == (intel and kind16 == "matrix units")
    assert (BF16 not in slow) == (intel and kindb16 in ("matrix units", "vector units"))


def test_on_a_fast_cpu_nothing_is_touched(facts):
    new_cpu(facts)
    with tensor_cores() as arithmetic:
        assert arithmetic.on
        assert arithmetic.dtypes == frozenset()
        assert table() == UNTOUCHED


def test_one_dtype_is_left_to_the_cpu(facts):
    facts("x86_64", ("avx2", "avx512f", "avx512_bf16"), False, True)
    with tensor_cores() as arithmetic:
        assert arithmetic.dtypes == {FP16}
        assert emulated(FP16)
        assert not emulated(BF16)
        with tensor_cores(always=True):
            assert emulated(BF16)
        assert not emulated(BF16)


def test_on_an_old_cpu_both_are_emulated(facts):
    old_cpu(facts)
    with tensor_cores():
        assert emulated(FP16)
        assert emulated(BF16)


def test_this_machine_can_be_asked():
    with tensor_cores() as arithmetic:
        assert emulated(FP16) == (FP16 in arithmetic.dtypes)
        assert emulated(BF16) == (BF16 in arithmetic.dtypes)


IDEAL = "are computed as on ideal Tensor Cores: operands in 16 bits, sums in FP32, one rounding at the end."


def said(arithmetic):
    """What it says, on one line; its own are short enough for JupyterLab."""
    lines = str(arithmetic).splitlines()
    assert max(map(len, lines)) <= 92
    return " ".join(lines)


def test_what_it_says_on_an_old_cpu(facts):
    old_cpu(facts)
    arithmetic = tensor_cores()
    assert said(arithmetic) == (
        "PyTorch's own CPU kernels compute FP16 and BF16 products: the emulation of Tensor Cores is off."
    )
    with arithmetic:
        assert said(arithmetic) == (
            f"On CPU tensors, matrix products and convolutions in FP16 and BF16 {IDEAL} "
            "FP32 kernels do the work, since this CPU has no fast ones for FP16 and BF16."
        )
    assert said(arithmetic).endswith("is off.")


def test_what_it_says_on_a_fast_cpu(facts):
    new_cpu(facts)
    with tensor_cores() as arithmetic:
        assert said(arithmetic) == (
            "PyTorch's own CPU kernels compute FP16 and BF16 products: "
            "this CPU has fast ones, so nothing is emulated."
        )


def test_what_it_says_where_one_dtype_is_fast(facts):
    facts("x86_64", ("avx2", "avx512f", "avx512_bf16"), False, True)
    with tensor_cores() as arithmetic:
        assert said(arithmetic) == (
            f"On CPU tensors, matrix products and convolutions in FP16 {IDEAL} FP32 kernels do the work, since "
            "this CPU has no fast ones for FP16; products in BF16 are left to the CPU, which is fast at them."
        )
        with tensor_cores(always=True) as demanded:
            assert said(demanded) == (
                f"On CPU tensors, matrix products and convolutions in FP16 and BF16 {IDEAL} "
                "FP32 kernels do the work, as always=True demands."
            )
            assert "FP16 and BF16" in said(arithmetic)
            assert said(arithmetic).endswith(
                "Another one, with always=True, demands more of that than this one."
            )


def test_what_it_says_when_only_another_one_is_on(facts):
    old_cpu(facts)
    arithmetic = tensor_cores()
    with tensor_cores():
        assert said(arithmetic).endswith("This one is off; a with-block keeps that on.")
        tensor_cores(always=True).start()
        assert said(arithmetic).endswith(
            "This one is off; tensor_cores(always=True), which was started, keeps that on."
        )
        tensor_cores(always=True).stop()
    with tensor_cores(always=True):
        tensor_cores().start()
        assert said(tensor_cores(always=True)).endswith(
            "This one is off; tensor_cores(), which was started, keeps that on."
        )
        tensor_cores().stop()


def test_what_it_says_when_the_one_started_emulates_nothing(facts):
    new_cpu(facts)
    tensor_cores().start()
    with tensor_cores(always=True):
        assert said(tensor_cores(always=True)).endswith("This one is off; a with-block keeps that on.")
    tensor_cores().stop()
