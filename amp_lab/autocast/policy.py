"""Autocast's cast policy, asked from the PyTorch that is installed.

    print(policy("cuda"))
    print(why("softmax", "cuda"))
    print(differences("cuda", "cpu"))
    print(compare(["matmul", "softmax"], "cuda"))

None of it needs the device: see `probing` for how the operators are asked.
"""

import threading
from collections.abc import Iterable
from typing import Any

import torch

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.kernels.dispatcher import (
    autocast_key,
    device_type_of,
    operators_with_kernel,
    replaced_kernels,
)
from amp_lab.autocast.probing.answers import Comparison, Differences, Why, compare_with, differences_between
from amp_lab.autocast.probing.op_names import is_op, op_named, overloads_named, writes
from amp_lab.autocast.probing.policies import OpPolicy, Policy
from amp_lab.autocast.probing.probe import ask

__all__ = [
    "Comparison",
    "Differences",
    "OpPolicy",
    "Policy",
    "Why",
    "compare",
    "differences",
    "policy",
    "why",
]

# What cuDNN computes as a whole. The first ones come down to the last, whose autocast kernel is in CUDA builds only.
_OF_CUDNN = ("lstm", "gru", "rnn_tanh", "rnn_relu", "_cudnn_rnn")
_CUDNN = (
    "But where PyTorch has cuDNN, that computes nn.LSTM, nn.GRU and nn.RNN as a whole (_cudnn_rnn), and autocast casts "
    "input, states and weights to FP16, in a BF16 region, too. This was not asked: PyTorch's source says so "
    "(aten/src/ATen/cudnn/AutocastRNN.cpp)."
)

_lock = threading.Lock()
_asked: dict[str, Policy] = {}


def policy(device_type: str | torch.device = "cuda") -> Policy:
    """Autocast's cast policy on a kind of device, whether this machine has one or not.

    "cuda:1" and `torch.device("cuda")` stand for "cuda": each device of a kind has the same.

    The first call asks PyTorch, which takes a second or two; later ones return the same object. An operator
    that gets an autocast kernel after that, from another library, is not in it.

    Raises:
        TypeError: if `device_type` is neither a text nor a device.
        ValueError: if PyTorch has no autocast kernels for such a device.
        RuntimeError: at the first call, if some of PyTorch's autocast kernels are replaced by others just then.
    """
    device_type = device_type_of(device_type)
    key = autocast_key(device_type)
    with _lock:
        if device_type not in _asked:
            _asked[device_type] = _ask_all(device_type, key)
        return _asked[device_type]


def _ask_all(device_type: str, key: str) -> Policy:
    every = operators_with_kernel(key)
    if not every:
        raise ValueError(
            f"PyTorch has no autocast kernels for {device_type!r} here: ask about 'cuda' or 'cpu'"
        )
    replaced = replaced_kernels(key)
    if replaced:
        raise RuntimeError(
            f"PyTorch's own rules for {device_type!r} cannot be asked now: Python functions stand in the place of "
            f"{len(replaced)} autocast kernels, {replaced[0]} among them. Ask before they do, or when they are gone"
        )
    own = [name.removeprefix("aten::") for name in every if name.startswith("aten::")]
    answers = ask(own, device_type)
    unasked = {op: answer.trouble for op, answer in answers.items() if answer.fate is None}
    # Calling other people's code with made-up arguments might do anything.
    unasked |= {name: "belongs to another library" for name in every if not name.startswith("aten::")}
    ops = {
        op: OpPolicy(op, op.partition(".")[0], answer.fate, answer.evidence)
        for op, answer in answers.items()
        if answer.fate is not None
    }
    return Policy(device_type, ops, unasked)


def why(op: Any, device_type: str | torch.device = "cuda") -> Why:
    """Say what autocast does to an operator, and what was seen when it was asked.

    Args:
        op: "softmax", "torch.softmax", "F.softmax", "softmax.int", "@", "BCELoss", or a function, a module, a
            class of modules, an operator of `torch.ops.aten`.
        device_type: "cuda", "cpu", ...

    Raises:
        LookupError: if there is a rule, but the operator could not be asked.
        TypeError: if `op` is nothing of that kind.
        ValueError: if PyTorch has no such operator, or no autocast for the device.
    """
    rules = policy(device_type)
    device_type = rules.device_type
    name = op_named(op)
    if name in rules.unasked:
        raise LookupError(f"{rules.why_not(name)}. {_note(name, device_type)}".removesuffix(". "))
    ops = rules.overloads(name)
    if not ops:
        return _no_rule(name, device_type)
    fates = {each: rules.fate(each) for each in ops if each not in rules.unasked or ops == [each]}
    return Why(name, device_type, fates, {each: rules[each].evidence for each in fates}, _unlike(name))


def _no_rule(name: str, device_type: str) -> Why:
    """Answer for an operator without a rule: ask it, too, for what comes out of it all the same."""
    first = overloads_named(name)[0]
    evidence: tuple[str, ...] = ()
    if name not in _OF_CUDNN and not replaced_kernels(autocast_key(device_type)):
        evidence = ask([first], device_type)[first].evidence
    return Why(name, device_type, {first: Fate.FOLLOWS}, {first: evidence}, _note(first, device_type))


def _unlike(name: str) -> str:
    """Say that the forms of an operator which write have no rule, if it has such forms."""
    plain = name.partition(".")[0]
    forms = [f"in place ({plain}_)"] if is_op(f"{plain}_") else []
    forms += ["with out="] if any(writes(op) for op in overloads_named(plain)) else []
    said = " and ".join(forms)
    return f"{said[0].upper()}{said[1:]}, it has no rule." if said else ""


def _note(op: str, device_type: str) -> str:
    if writes(op):
        return (
            "No operator that writes in place or into out= has one, even where its namesake does: the tensor that it "
            "writes into is there already, and its dtype stays what it is."
        )
    if op.partition(".")[0] in _OF_CUDNN and device_type == "cuda":
        return _CUDNN
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{op}", "CompositeImplicitAutograd"):
        return "PyTorch puts it together from other operators, and each of them meets its own fate."
    return ""


def differences(first: str = "cuda", second: str = "cpu") -> Differences:
    """Which operators meet different fates on two kinds of device. Errors as in `policy`."""
    return differences_between(policy(first), policy(second))


def compare(names: Iterable[Any], device_type: str = "cuda") -> Comparison:
    """Compare a list of operators said to run in lower precision, such as a tutorial's, with those that do.

    Args:
        names: of operators, as in `why`.
        device_type: "cuda", "cpu", ...

    Raises:
        TypeError: if `names` is one text.
        ValueError: if PyTorch has no operator of some name. And errors as in `policy`.
    """
    if isinstance(names, str):
        raise TypeError(f"names={names!r}: give a list of operators, such as ['matmul', 'linear']")
    return compare_with(policy(device_type), names)
