"""PyTorch's own lists of what autocast does, those its tests use, compared with a policy op by op.

`compare_with_official("cuda")` counts agreements and names disagreements; `run(entry, "cuda")` runs a line with
the arguments that stand in it. The lists are written by hand, by
PyTorch's authors, in `torch.testing._internal.autocast_test_lists`; nothing in them comes from the dispatcher.
They make no difference between "FP32" and "FP32 unless a dtype is passed": either agrees.
"""

import importlib.util
import sys
import unittest
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.policy import Policy, policy
from amp_lab.autocast.probing.apart import apart
from amp_lab.autocast.probing.op_names import op_named

FP32 = frozenset({Fate.FP32, Fate.FP32_UNLESS})
LOWER, WIDEST = frozenset({Fate.LOWER}), frozenset({Fate.WIDEST})
REFUSED, FOLLOWS = frozenset({Fate.REFUSED}), frozenset({Fate.FOLLOWS})

# Per list of PyTorch's, the fates that its operators are expected to meet.
CUDA_LISTS = {
    "torch_fp16": LOWER,
    "nn_fp16": LOWER,
    "linalg_fp16": LOWER,
    "methods_fp16": LOWER,
    "torch_fp32": FP32,
    "nn_fp32": FP32,
    "methods_fp32": FP32,
    "torch_need_autocast_promote": WIDEST,
    "torch_expect_builtin_promote": FOLLOWS,
    "methods_expect_builtin_promote": FOLLOWS,
    "banned": REFUSED,
}
CPU_LISTS = {
    "torch_16": LOWER,
    "nn_16": LOWER,
    "torch_fp32": FP32,
    "nn_fp32": FP32,
    "torch_need_autocast_promote": WIDEST,
    "torch_expect_builtin_promote": FOLLOWS,
    "methods_expect_builtin_promote": FOLLOWS,
}


class Entry(NamedTuple):
    """One line of one list."""

    list_name: str
    op: str
    rest: tuple[Any, ...]  # arguments, and more
    expected: frozenset[Fate]


class OfficialComparison(NamedTuple):
    """How a policy and PyTorch's lists compare: (list, operator) pairs, each once."""

    agreements: tuple[tuple[str, str], ...]
    disagreements: Mapping[tuple[str, str], str]  # what was found instead

    def __str__(self) -> str:
        total = len(self.agreements) + len(self.disagreements)
        return f"{len(self.agreements)} of {total} entries agree"


def entries(device_type: str) -> Iterator[Entry]:
    """All lines of PyTorch's lists for a device, whose tensors are made on the CPU."""
    autocast_test_lists = _lists_module()
    with torch.random.fork_rng(devices=[]):
        if device_type == "cuda":
            made, lists = autocast_test_lists.AutocastTestLists("cpu"), CUDA_LISTS
        else:
            made, lists = autocast_test_lists.AutocastCPUTestLists("cpu"), CPU_LISTS
    of_ops = {name for name, value in vars(made).items() if isinstance(value, list)}
    assert of_ops == set(lists), "PyTorch has other lists than these"
    for name, expected in lists.items():
        for op, *rest in getattr(made, name):
            yield Entry(name, op, tuple(rest), expected)


@cache
def _lists_module() -> Any:
    """PyTorch's module of lists, without what else it imports: that needs packages for PyTorch's own tests."""
    neighbour = ModuleType("torch.testing._internal.common_utils")
    vars(neighbour).update(TEST_WITH_ROCM=False, TestCase=unittest.TestCase)
    spec = importlib.util.find_spec("torch.testing._internal.autocast_test_lists")
    assert spec is not None, "this PyTorch has no such lists"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with mock.patch.dict(sys.modules, {neighbour.__name__: neighbour}):
        spec.loader.exec_module(module)
    return module


def compare_with_official(device_type: str, rules: Policy | None = None) -> OfficialComparison:
    """Compare a policy, PyTorch's own if none is given, with PyTorch's lists."""
    rules = policy(device_type) if rules is None else rules
    found = {(entry.list_name, entry.op): _disagreement(entry, rules) for entry in entries(device_type)}
    return OfficialComparison(
        tuple(pair for pair, wrong in found.items() if not wrong),
        {pair: wrong for pair, wrong in found.items() if wrong},
    )


def _disagreement(entry: Entry, rules: Policy) -> str:
    """What the policy says instead; nothing, if it agrees."""
    try:
        fate = rules.fate(op_named(entry.op))
    except (LookupError, ValueError) as error:
        return str(error)
    return "" if fate in entry.expected else fate.value


def unlisted(device_type: str) -> tuple[str, ...]:
    """Operators that have a rule, by their plain names, and that PyTorch's lists do not name."""
    listed = {op_named(entry.op).partition(".")[0] for entry in entries(device_type)}
    rules = policy(device_type)
    return tuple(dict.fromkeys(rules[op].name for op in rules if rules[op].name not in listed))


def run(entry: Entry, device_type: str) -> torch.dtype | type | str:
    """Run a line under autocast: on fake CUDA tensors in FP16, or on real CPU tensors in BF16.

    Returns the dtype of what comes out, its type if that is not a tensor, or the error.
    """
    arguments = entry.rest[0]
    keywords = entry.rest[1] if len(entry.rest) > 1 and isinstance(entry.rest[1], dict) else {}
    try:
        if device_type == "cpu":
            with torch.autocast("cpu", dtype=torch.bfloat16):
                result = _function(entry.op)(*arguments, **keywords)
        else:
            result = apart(lambda: _on_fake_cuda(entry.op, arguments, keywords))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    first = result[0] if isinstance(result, tuple | list) else result
    return first.dtype if isinstance(first, torch.Tensor) else type(first)


def _on_fake_cuda(op: str, arguments: Any, keywords: Any) -> Any:
    def moved(value: Any) -> Any:
        return torch.empty(value.shape, dtype=value.dtype, device="cuda")

    with FakeTensorMode():
        arguments, keywords = tree_map_only(torch.Tensor, moved, (tuple(arguments), keywords))
        torch.set_autocast_dtype("cuda", torch.float16)
        torch.set_autocast_enabled("cuda", True)
        return _function(op)(*arguments, **keywords)


def _function(op: str) -> Any:
    places = [torch, torch._C._nn, torch._C._linalg, torch.Tensor]
    if op.startswith("__"):
        places.reverse()  # modules have an __eq__, too
    return next(getattr(place, op) for place in places if hasattr(place, op))
