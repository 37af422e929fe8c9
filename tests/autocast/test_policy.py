"""The cast policy asked from PyTorch: against PyTorch's own lists, from anywhere, and without a trace."""

import logging
import subprocess
import sys
import threading
import warnings
from contextlib import ExitStack, contextmanager, nullcontext

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab.autocast import policy as door
from amp_lab.autocast.emulate import cuda_autocast
from amp_lab.autocast.fates import Fate
from amp_lab.autocast.kernels.replacing import ReplacedKernels
from amp_lab.autocast.policy import OpPolicy, Policy, differences, policy, why
from amp_lab.autocast.probing.probe import ask
from tests.autocast.official_lists import (
    FOLLOWS,
    FP32,
    LOWER,
    REFUSED,
    WIDEST,
    compare_with_official,
    entries,
    run,
    unlisted,
)

DEVICES = ["cuda", "cpu"]
OTHER_DEVICES = ["xpu", "mps", "mtia"]

# Where the policy and PyTorch's lists disagree, with the reason.
DISAGREEMENTS: dict[str, dict[tuple[str, str], str]] = {"cuda": {}, "cpu": {}}

# Lines of PyTorch's lists whose result does not say what the policy says, with the reason.
NO_RESULT = {
    "cuda": {
        "cudnn_convolution": "cuDNN's own function, which needs the library",
        "cudnn_convolution_transpose": "cuDNN's own function, which needs the library",
        "einsum": "the line's equation stands where its arguments belong: PyTorch's own test leaves it out",
        "equal": "its result is True or False: no dtype, and no values to compare in fake tensors",
        "gru_cell": "asks for the tensor's GPU, which is not there",
        "grid_sampler": "asks for cuDNN, which is not there",
    },
    "cpu": {},
}
# A CUDA build that finds no GPU stumbles over these, too.
NO_RESULT_WITHOUT_DRIVER = {"_convolution"}


@pytest.fixture
def fresh(monkeypatch):
    """Nothing is remembered: the next question goes to PyTorch."""
    monkeypatch.setattr(door, "_asked", {})


def rules(device_type):
    return {op: (each.fate, each.evidence) for op, each in policy(device_type).items()}


USUAL = {device: rules(device) for device in DEVICES}


# --- against PyTorch's own lists


@pytest.mark.parametrize(("device", "entries_in_lists"), [("cuda", 105), ("cpu", 50)])
def test_pytorchs_lists_agree_op_by_op(device, entries_in_lists):
    comparison = compare_with_official(device)
    assert set(comparison.disagreements) == set(DISAGREEMENTS[device])
    assert len(comparison.agreements) >= entries_in_lists  # 112 and 55 in torch 2.13
    assert str(comparison).startswith(f"{len(comparison.agreements)} of ")


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="the README's numbers are of torch 2.13"
)
def test_the_numbers_that_are_quoted():
    assert {device: str(compare_with_official(device)) for device in DEVICES} == {
        "cuda": "112 of 112 entries agree",
        "cpu": "55 of 55 entries agree",
    }
    assert {device: (policy(device).total, len(unlisted(device))) for device in DEVICES} == {
        "cuda": (119, 22),
        "cpu": (127, 78),
    }


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("wrong", list(Fate))
def test_a_fate_told_wrongly_is_seen(device, wrong):
    """Every listed operator in turn is given another fate: PyTorch's list must object each time."""
    right, unseen = policy(device), []
    same = next((kind for kind in (LOWER, FP32, WIDEST, REFUSED, FOLLOWS) if wrong in kind), frozenset())
    for entry in entries(device):
        ops = right.overloads(entry.op.strip("_") if entry.op.startswith("__") else entry.op)
        if entry.expected == same or not ops:
            continue
        changed = {
            op: OpPolicy(op, right[op].name, wrong if op in ops else right[op].fate, ()) for op in right
        }
        comparison = compare_with_official(device, Policy(device, changed, {}))
        if (entry.list_name, entry.op) not in comparison.disagreements:
            unseen.append(entry.op)
    assert not unseen


@pytest.mark.parametrize("device", DEVICES)
def test_running_pytorchs_lines_gives_what_the_policy_says(device):
    """PyTorch's functions, called with PyTorch's arguments: their result has the dtype that follows from the fate."""
    lower = {"cuda": torch.float16, "cpu": torch.bfloat16}[device]
    wrong, agreed = {}, 0
    for entry in entries(device):
        result = run(entry, device)
        if result == expected_result(entry, lower) or (
            entry.expected == REFUSED and "unsafe to autocast" in result
        ):
            agreed += 1
        else:
            wrong[entry.op] = result
    spared = NO_RESULT_WITHOUT_DRIVER if torch.version.cuda and not torch.cuda.is_available() else set()
    assert wrong.keys() <= NO_RESULT[device].keys() | spared, wrong
    assert agreed >= {"cuda": 110, "cpu": 55}[device]  # 115 of 121 and 55 of 55 lines in torch 2.13
    if not torch.version.cuda:  # each reason is needed
        assert wrong.keys() == NO_RESULT[device].keys()


def expected_result(entry, lower):
    if entry.expected == FOLLOWS:
        return entry.rest[-1]  # the line says it
    return {LOWER: lower, FP32: torch.float32, WIDEST: torch.float32}.get(entry.expected)


# --- how many were asked


@pytest.mark.parametrize("device", DEVICES + OTHER_DEVICES)
def test_every_operator_with_a_kernel_is_counted(device):
    key = f"Autocast{ {'mtia': 'MTIA'}.get(device, device.upper()) }"
    names = {
        name.removeprefix("aten::")
        for name in torch._C._dispatch_get_all_op_names()
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    }
    asked = policy(device)
    assert set(asked) | set(asked.unasked) == names
    assert not set(asked) & set(asked.unasked)
    assert (asked.asked, asked.total) == (len(asked), len(names))
    assert f"asked {asked.asked} of {asked.total}" in str(asked)


@pytest.mark.parametrize("device", [*DEVICES, "xpu", "mps"])
def test_all_could_be_asked_but_those_with_a_reason(device):
    reasons = policy(device).unasked
    assert all("names of dimensions" in reason for op, reason in reasons.items() if op != "_cudnn_rnn")
    assert all("name" in op.lower() for op in reasons if op != "_cudnn_rnn")
    if not torch.version.cuda:
        assert "_cudnn_rnn" not in reasons


def test_an_operator_of_another_library_is_named_and_not_called(fresh):
    called = []
    with torch.library._scoped_library("amp_lab_test_policy", "FRAGMENT") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", called.append, "AutocastCPU")
        asked = policy("cpu")
    assert asked.unasked["amp_lab_test_policy::double"] == "belongs to another library"
    assert asked.total == asked.asked + len(asked.unasked)
    assert "amp_lab_test_policy::double" in str(asked)
    assert called == []
    with pytest.raises(LookupError, match="could not be asked: belongs to another library"):
        asked.fate("amp_lab_test_policy::double")


def test_it_is_asked_once():
    assert policy("cuda") is policy("cuda") is policy()
    assert policy("cpu") is policy("cpu")


@pytest.mark.usefixtures("fresh")
def test_threads_that_ask_at_once_get_one_policy():
    got = []
    threads = [threading.Thread(target=lambda: got.append(policy("cpu"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 4
    assert len(set(map(id, got))) == 1


def test_the_fates_are_the_same_in_bf16(fresh, monkeypatch):
    from amp_lab.autocast.probing import probe as probing

    monkeypatch.setattr(probing, "LOWER", torch.bfloat16)
    wide = torch.float32
    monkeypatch.setattr(
        probing,
        "QUESTIONS",
        {"low": (torch.bfloat16,), "wide": (wide,), "mixed": (torch.bfloat16, wide)},
    )
    for device in DEVICES:
        assert {op: each.fate for op, each in policy(device).items()} == {
            op: fate for op, (fate, _) in USUAL[device].items()
        }
    assert "BF16" in str(policy("cuda")["mm"])  # it was BF16 that was asked with


# --- from anywhere


class _Refusing(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called in the caller's mode")


class _RefusingFunctions(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} was called in the caller's mode")


@contextmanager
def default_dtype(dtype):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def registered_autocast(device):
    """CUDA's autocast switched on as the probe itself does, for a machine without CUDA."""
    torch.set_autocast_enabled(device, True)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, False)


CONTEXTS = {
    "autocast on a CPU": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast on CUDA": lambda: registered_autocast("cuda"),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "FakeTensorMode": FakeTensorMode,
    "a mode that catches operators": _Refusing,
    "another default device": lambda: torch.device("meta"),
    "another default dtype": lambda: default_dtype(torch.float64),
    "deterministic algorithms": deterministic,
    "warnings as errors": lambda: warnings.catch_warnings(action="error"),
    "a mode that catches functions": _RefusingFunctions,
}


# Of each fate one or two, with what is special: a composite, an own result dtype, a list of tensors.
SAMPLE = {
    "cuda": "mm scaled_dot_product_attention exp softmax.int sum cross index_put binary_cross_entropy".split(),
    "cpu": "mm scaled_dot_product_attention prod cross_entropy_loss cat".split(),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("context", CONTEXTS)
def test_where_it_is_asked_makes_no_difference(context, device):
    with CONTEXTS[context]():
        answers = ask(SAMPLE[device], device)
    assert {op: (each.fate, each.evidence) for op, each in answers.items()} == {
        op: USUAL[device][op] for op in SAMPLE[device]
    }


def test_the_sample_has_every_fate():
    assert {policy(device).fate(op) for device in DEVICES for op in SAMPLE[device]} == {*Fate} - {
        Fate.FOLLOWS
    }


@pytest.mark.usefixtures("fresh")
def test_the_whole_policy_can_be_asked_inside_everything_at_once():
    contexts = [context() for context in CONTEXTS.values()]
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        asked = {device: rules(device) for device in DEVICES}
    assert asked == USUAL


def test_it_can_be_asked_inside_vmap():
    answers = []
    torch.func.vmap(lambda x: answers.append(ask(SAMPLE["cuda"], "cuda")) or x)(torch.zeros(2))
    assert {op: each.fate for op, each in answers[0].items()} == {
        op: USUAL["cuda"][op][0] for op in SAMPLE["cuda"]
    }


def test_the_emulation_of_cuda_does_not_change_the_cpus_policy():
    with cuda_autocast():
        assert rules("cpu") == USUAL["cpu"]
        assert policy("cpu").fate("softmax") is Fate.FOLLOWS


@pytest.mark.usefixtures("fresh")
def test_the_emulation_asks_before_it_replaces_anything():
    with cuda_autocast():
        assert rules("cpu") == USUAL["cpu"]
        assert rules("cuda") == USUAL["cuda"]


@pytest.mark.usefixtures("fresh")
def test_kernels_that_are_not_pytorchs_are_not_asked():
    replaced = ReplacedKernels(
        "AutocastCPU", {"mm": lambda original: lambda keys, *args: original(keys, *args)}
    )
    try:
        with pytest.raises(
            RuntimeError, match=r"stand in the place of 1 autocast kernels, aten::mm among them"
        ):
            policy("cpu")
        assert rules("cuda") == USUAL["cuda"]
    finally:
        replaced.restore()
    assert rules("cpu") == USUAL["cpu"]


# --- no trace


def state():
    log = logging.getLogger("torch._subclasses.fake_tensor")
    return {
        "autocast": [(torch.is_autocast_enabled(each), torch.get_autocast_dtype(each)) for each in DEVICES],
        "gradients": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "default dtype": torch.get_default_dtype(),
        "generator": torch.get_rng_state().tolist(),
        "modes": (torch._C._len_torch_dispatch_stack(), torch._C._len_torch_function_stack()),
        "fake": torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE),
        "lifting": torch._C._only_lift_cpu_tensors(),
        "warnings": (list(warnings.filters), torch.is_warn_always_enabled()),
        "log": (list(log.filters), log.disabled, log.level),
        "threads": {each.ident for each in threading.enumerate()},
    }


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("context", ["nothing", "autocast on a CPU", "FakeTensorMode", "no_grad"])
def test_asking_leaves_no_trace(context):
    with CONTEXTS.get(context, nullcontext)():
        before = state()
        policy("cuda")
        policy("cpu")
        assert state() == before


@pytest.mark.usefixtures("fresh")
def test_an_exception_leaves_no_trace_either(monkeypatch):
    from amp_lab.autocast.probing import probe as probing

    def broken(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(probing, "fate_of", broken)
    before = state()
    with pytest.raises(RuntimeError, match="broken"):
        policy("cpu")
    assert state() == before
    monkeypatch.undo()
    assert rules("cpu") == USUAL["cpu"]


SILENT = """
import torch, warnings
from amp_lab.autocast.policy import policy
policy("cuda"), policy("cpu")
print("asked", torch.is_warn_always_enabled())
with warnings.catch_warnings(record=True) as given:
    warnings.simplefilter("always")
    torch._C._VariableFunctions.cross(torch.ones(3, 3), torch.ones(3, 3))  # warns once per process
print(len(given))
"""


def test_it_says_nothing_and_uses_up_no_warning():
    done = subprocess.run(
        [sys.executable, "-c", SILENT], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["asked", "False", "1"]
    assert done.stderr == ""


def test_another_threads_log_is_not_silenced(caplog):
    from amp_lab.autocast.probing.apart import apart

    log = logging.getLogger("torch._subclasses.fake_tensor")

    def work():
        log.error("from the work")
        other = threading.Thread(target=lambda: log.error("from elsewhere"))
        other.start()
        other.join()

    with caplog.at_level(logging.ERROR, log.name), ExitStack() as stack:
        propagate, log.propagate = log.propagate, True
        stack.callback(setattr, log, "propagate", propagate)
        log.addHandler(caplog.handler)
        stack.callback(log.removeHandler, caplog.handler)
        apart(work)
    assert {record.getMessage() for record in caplog.records} == {"from elsewhere"}


# --- wrong questions


@pytest.mark.parametrize("device", ["nonsense", "meta", "", torch.device("meta"), "x" * 3000])
def test_a_device_without_autocast_is_an_error(device):
    with pytest.raises(ValueError, match=r"no autocast for a device type .*'cuda' or 'cpu'") as caught:
        policy(device)
    assert len(str(caught.value)) < 120


@pytest.mark.parametrize("device", ["CUDA", "Cuda:0", "cuda ", "gpu", "GPU:1"])
def test_a_device_spelt_otherwise_is_an_error_that_names_the_right_one(device):
    with pytest.raises(ValueError, match=r"did you mean 'cuda'\?"):
        policy(device)


@pytest.mark.parametrize("device", ["cuda:0", "cuda:7", torch.device("cuda"), torch.device("cuda", 1)])
def test_a_device_of_a_kind_stands_for_the_kind(device):
    assert policy(device) is policy("cuda")
    assert why("mm", device) == why("mm", "cuda")
    assert differences(device, torch.device("cpu")).ops == differences("cuda", "cpu").ops


def test_a_device_whose_kernels_are_not_in_this_build_is_an_error():
    with pytest.raises(ValueError, match="no autocast kernels for 'hpu' here"):
        policy("hpu")


@pytest.mark.parametrize("device", [None, 3, torch.float16])
def test_a_device_is_a_text(device):
    with pytest.raises(TypeError, match="device_type is a text such as 'cuda'"):
        policy(device)
