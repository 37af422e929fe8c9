"""What people ask of a policy: names as they write them, why, differences, a tutorial's list, and how it shows."""

import io
import math
import operator
import re
from functools import partial
from html import unescape

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.kernels.dispatcher import autocast_key, operators_with_kernel
from amp_lab.autocast.policy import OpPolicy, Policy, compare, differences, policy, why
from amp_lab.autocast.probing.answers import Why, differences_between
from amp_lab.autocast.probing.op_names import _SYMBOLS, op_named, writes
from amp_lab.autocast.probing.probe import ask
from amp_lab.autocast.probing.tables import MEANING
from amp_lab.autocast.report.words import dtype_in_words

# The operators that many tutorials print as those that run in FP16.
CLASSIC = (
    "__matmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d linear matmul mm mv prelu"
).split()


# --- names


class Inheriting(nn.Linear):
    """Computes what a Linear does."""


class Overriding(nn.Linear):
    """Computes more than a Linear does."""

    def forward(self, x):
        return super().forward(x).relu()


class LayerNorm(nn.Module):
    """Computes something else than its namesake."""

    def forward(self, x):
        return x - x.mean()


def softmax(x):
    """Compute something else than its namesake."""
    return x / x.sum()


NAMES = {
    "softmax": "softmax",
    "softmax.int": "softmax.int",
    " softmax ": "softmax",
    "aten::softmax.int": "softmax.int",
    "torch.ops.aten.softmax.int": "softmax.int",
    "torch.ops.aten.mm.default": "mm",
    "torch.softmax": "softmax",
    "F.softmax": "softmax",
    "nn.functional.softmax": "softmax",
    "torch.nn.functional.softmax": "softmax",
    "Tensor.softmax": "softmax",
    "torch.Tensor.softmax": "softmax",
    "torch.linalg.norm": "linalg_norm",
    "torch.fft.rfft": "fft_rfft",
    "@": "matmul",
    "**": "pow",
    "/": "div",
    "__matmul__": "matmul",
    "__rmatmul__": "matmul",
    "__pow__": "pow",
    "__rpow__": "pow",
    "__truediv__": "div",
    "__iadd__": "add_",
    "__getitem__": "index",
    "torch.Tensor.__matmul__": "matmul",
    "cross_entropy": "cross_entropy_loss",
    "F.cross_entropy": "cross_entropy_loss",
    "nn.CrossEntropyLoss": "cross_entropy_loss",
    "BCELoss": "binary_cross_entropy",
    "nn.BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "MSELoss": "mse_loss",
    "LayerNorm": "layer_norm",
    "BatchNorm2d": "batch_norm",
    "Conv2d": "conv2d",
    "ConvTranspose1d": "conv_transpose1d",
    "LogSoftmax": "log_softmax",
    "exp_": "exp_",
    "special.expit": "special_expit",
    "softmax()": "softmax",
    "sum.default": "sum",
    "half": "to",
    "Tensor.float": "to",
    "+=": "add_",
    "RNN": "rnn_tanh",
    "nn.RNNCell": "rnn_tanh_cell",
    "LazyLinear": "linear",
    "nn.LazyConv2d": "conv2d",
    "nn.InstanceNorm2d": "instance_norm",
    "nn.Unfold": "im2col",
    "F.grid_sample": "grid_sampler",
}


@pytest.mark.parametrize("written", NAMES)
def test_names_are_understood_as_people_write_them(written):
    assert op_named(written) == NAMES[written]


@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (torch.softmax, "softmax"),
        (F.softmax, "softmax"),
        (F.linear, "linear"),
        (F.cross_entropy, "cross_entropy_loss"),
        (torch.Tensor.softmax, "softmax"),
        (torch.Tensor.__matmul__, "matmul"),
        (torch.nn.BCELoss, "binary_cross_entropy"),
        (torch.nn.LayerNorm(3), "layer_norm"),
        (torch.ops.aten.softmax.int, "softmax.int"),
        (torch.ops.aten.mm.default, "mm"),
        (torch.ops.aten.softmax, "softmax"),
        (partial(F.softmax, dim=1), "softmax"),
        (torch.ones(2).softmax, "softmax"),
        (operator.floordiv, "floor_divide"),
        (operator.and_, "bitwise_and"),
        (torch.compile(nn.Linear(2, 2), backend="eager"), "linear"),
        (torch.compile(F.softmax, backend="eager"), "softmax"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), "linear"),
        (nn.LazyLinear, "linear"),
        (Inheriting, "linear"),
        (Inheriting(2, 2), "linear"),
        (nn.Conv2d(1, 1, 1).forward, "conv2d"),
        (nn.Conv2d.forward, "conv2d"),
        (nn.RNN(2, 2), "rnn_tanh"),
        (nn.RNN(2, 2, nonlinearity="relu"), "rnn_relu"),
        (nn.RNNCell(2, 2, nonlinearity="relu"), "rnn_relu_cell"),
        (F.grid_sample, "grid_sampler"),
    ],
)
def test_functions_modules_and_operators_are_understood(thing, name):
    assert op_named(thing) == name


def test_every_operator_of_a_policy_is_known_by_its_name():
    for device in ("cuda", "cpu"):
        for op, rule in policy(device).items():
            assert op_named(op) == op
            assert op_named(rule.name) == rule.name


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("sofmax", "'sofmax': did you mean softmax"),
        ("torch.linaer", "did you mean linear"),
        ("nosuch", r"no operator 'nosuch'. Name one such as 'softmax'"),
        ("softmax.nonsense", "'softmax.nonsense': did you mean softmax, softmax\\."),
        ("softmax.default", "'softmax.default': did you mean softmax, softmax\\."),
        ("matmul.", r"did you mean matmul, matmul.out\?"),
        ("len", "no operator 'len'. Name one"),
        ("", "no operator ''"),
        ("torchvision::nms", "belongs to another library"),
        (torch.ops.prim.device.default, "prim::device belongs to another library"),
    ],
)
def test_a_name_that_is_none_is_an_error_with_advice(written, said):
    with pytest.raises(ValueError, match=said):
        op_named(written)


@pytest.mark.parametrize(
    "thing",
    [
        nn.MultiheadAttention(4, 2),
        nn.MultiheadAttention(4, 2).forward,
        nn.Transformer,
        "nn.Transformer",
        "MultiheadAttention",
        nn.Sequential(nn.Linear(2, 2)),
        F.normalize,
        "F.normalize",
        "torch.nn.functional.interpolate",
        Overriding,
        Overriding(2, 2),
        torch.compile(Overriding(2, 2), backend="eager"),
        LayerNorm,
    ],
)
def test_what_is_made_of_several_operators_is_an_error_that_leads_to_the_x_ray(thing):
    for ask_for in (op_named, why, policy("cuda").fate):
        with pytest.raises(ValueError, match=r"is no single operator: .* Make an x-ray, `print\(xray\("):
            ask_for(thing)


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (len, "Python's len is none"),
        (math.exp, "math's exp is none"),
        (np.exp, "numpy's exp is none"),
        ([].sort, "list.sort is none"),
        (softmax, "softmax is none"),
    ],
)
def test_a_namesake_that_is_not_pytorchs_is_an_error(thing, said):
    with pytest.raises(ValueError, match=f"{said} of PyTorch's functions. Name one such as 'softmax'"):
        op_named(thing)


@pytest.mark.parametrize("thing", ["a" * 3000, ["a"] * 3000, "x." * 2000, type("A" * 3000, (nn.Module,), {})])
def test_what_is_wrong_and_long_is_not_repeated_in_full(thing):
    with pytest.raises((TypeError, ValueError)) as caught:
        op_named(thing)
    assert len(str(caught.value)) < 240


SYMBOLS = {
    "@": lambda a, b: a @ b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "+=": operator.iadd,
    "-=": operator.isub,
    "*=": operator.imul,
    "/=": operator.itruediv,
    "//=": operator.ifloordiv,
    "%=": operator.imod,
    "**=": operator.ipow,
    "@=": lambda a, b: operator.matmul(a, b),
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "~": lambda a, b: ~a.long(),
    "&": lambda a, b: a.long() & b.long(),
    "|": lambda a, b: a.long() | b.long(),
    "^": lambda a, b: a.long() ^ b.long(),
    "[]": lambda a, b: a[b.long()],
}


def test_each_symbol_has_its_line():
    assert set(SYMBOLS) == set(_SYMBOLS)


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_a_symbol_is_the_operator_that_real_tensors_call(symbol):
    class Last(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.name = function.overloadpacket.__name__
            return function(*args, **(kwargs or {}))

    with Last() as seen:
        SYMBOLS[symbol](torch.ones(2, 2), torch.ones(2, 2))
    below = {"matmul": "mm"}  # which matmul comes down to
    assert seen.name == below.get(op_named(symbol), op_named(symbol))


@pytest.mark.parametrize("thing", [3, None, torch.ones(2), ["mm"], b"mm", object(), torch.cuda])
def test_what_is_no_name_is_an_error(thing):
    with pytest.raises(TypeError, match="name an operator as a text such as 'softmax'"):
        op_named(thing)


# --- a policy's fates by name

RULES = Policy(
    "cuda",
    {
        op: OpPolicy(op, op.partition(".")[0], fate, ())
        for op, fate in {
            "mm": Fate.LOWER,
            "softmax.int": Fate.FP32_UNLESS,
            "pow.Scalar": Fate.FP32,
            "pow.Tensor_Scalar": Fate.WIDEST,
            "_convolution.deprecated": Fate.LOWER,
        }.items()
    },
    {"exp": "it was Sunday", "sum.dim_IntList": "it was late"},
)


@pytest.mark.parametrize(
    ("op", "fate"),
    [
        ("mm", Fate.LOWER),
        ("aten::mm", Fate.LOWER),
        (torch.ops.aten.mm.default, Fate.LOWER),
        ("softmax", Fate.FP32_UNLESS),
        ("softmax.int", Fate.FP32_UNLESS),
        (torch.ops.aten.softmax.int, Fate.FP32_UNLESS),
        ("softmax.int_out", Fate.FOLLOWS),
        (torch.ops.aten.pow.Tensor_Tensor, Fate.FOLLOWS),
        ("pow.Scalar", Fate.FP32),
        ("relu", Fate.FOLLOWS),
        ("mm.out", Fate.FOLLOWS),
        ("_convolution", Fate.FOLLOWS),  # this is one overload's name, and that one has no rule
        ("_convolution.deprecated", Fate.LOWER),
        (torch.ops.aten._convolution.default, Fate.FOLLOWS),
        ("prim::device", Fate.FOLLOWS),
        ("F.softmax", Fate.FP32_UNLESS),
        ("torch.softmax", Fate.FP32_UNLESS),
        ("Softmax", Fate.FP32_UNLESS),
        ("aten.softmax", Fate.FP32_UNLESS),
        (torch.ops.aten.softmax, Fate.FP32_UNLESS),
        (torch.softmax, Fate.FP32_UNLESS),
        (nn.Softmax(1), Fate.FP32_UNLESS),
        ("torch.mm", Fate.LOWER),
        ("mm.default", Fate.LOWER),
        ("F.relu", Fate.FOLLOWS),
        (torch.ops.prim.device.default, Fate.FOLLOWS),
    ],
)
def test_a_fate_by_name_and_by_operator(op, fate):
    assert RULES.fate(op) is fate


def test_a_plain_name_with_several_fates_is_an_error_that_names_them():
    with pytest.raises(
        ValueError, match=r"'pow' meet different fates: .*pow.Scalar \(FP32\), pow.Tensor_Scalar \(wid"
    ):
        RULES.fate("pow")


@pytest.mark.parametrize(("op", "why_not"), [("exp", "Sunday"), ("sum.dim_IntList", "late"), ("sum", None)])
def test_what_could_not_be_asked_is_an_error_not_a_guess(op, why_not):
    if why_not is None:  # the default overload, which has no rule here
        assert RULES.fate(op) is Fate.FOLLOWS
        return
    with pytest.raises(LookupError, match=f"could not be asked: it was {why_not}"):
        RULES.fate(op)


@pytest.mark.parametrize("ask_for", [RULES.fate, RULES.overloads], ids=["fate", "overloads"])
@pytest.mark.parametrize(
    ("op", "error", "said"),
    [
        ("sofmax", ValueError, "did you mean softmax"),
        ("F.sofmax", ValueError, "did you mean softmax"),
        ("softmax.default", ValueError, "did you mean softmax"),
        ("mm.foo", ValueError, "did you mean mm, mm"),
        ("nosuch", ValueError, "no operator 'nosuch'"),
        ("nosuch.int", ValueError, "no operator 'nosuch.int'"),
        ("aten::nosuch", ValueError, "no operator 'aten::nosuch'"),
        ("other_library::mm", ValueError, "knows no operator 'other_library::mm': import the library"),
        (None, TypeError, "not None"),
        (3, TypeError, "not 3"),
    ],
)
def test_no_such_operator_is_an_error(ask_for, op, error, said):
    with pytest.raises(error, match=said):
        ask_for(op)


@pytest.mark.parametrize(
    ("name", "overloads"),
    [
        ("torch.softmax", ["softmax.int"]),
        (torch.ops.aten.softmax, ["softmax.int"]),
        ("**", ["pow.Scalar", "pow.Tensor_Scalar"]),
        ("aten::pow.Scalar", ["pow.Scalar"]),
        ("torch.exp", ["exp"]),
        ("relu", []),
        ("prim::device", []),
    ],
)
def test_overloads_that_have_a_rule(name, overloads):
    assert RULES.overloads(name) == overloads


def test_it_is_a_mapping():
    rules = policy("cuda")
    assert rules["mm"] == OpPolicy("mm", "mm", Fate.LOWER, rules["mm"].evidence)
    assert "relu" not in rules
    assert len(list(rules)) == len(rules)
    assert sum(map(len, rules.by_fate().values())) == len(rules)
    assert list(rules.by_fate()) == [fate for fate in Fate if fate is not Fate.FOLLOWS]


# --- why


def flat(shown):
    return " ".join(str(shown).split())


def test_why_says_the_fate_and_what_was_seen():
    answer = why("softmax", "cuda")
    assert answer.fate is Fate.FP32_UNLESS
    assert str(answer) == repr(answer)
    assert str(answer).startswith("On CUDA, softmax makes FP32 of 16-bit arguments")
    assert "Seen, for softmax.int: FP16 in: nothing cast, FP32 out (without autocast FP16)" in flat(answer)
    assert "FP16 in and dtype=torch.float16 passed: nothing cast, FP16 out" in flat(answer)


@pytest.mark.parametrize(
    ("op", "device", "fate", "said"),
    [
        ("@", "cuda", Fate.LOWER, "matmul runs in lower precision.*FP32 in: FP32 cast to FP16"),
        ("layer_norm", "cuda", Fate.FP32, "runs in FP32.*FP16 in: FP16 cast to FP32"),
        ("cross", "cuda", Fate.WIDEST, "widest dtype.*FP16 and FP32 in: FP16 cast to FP32"),
        (torch.nn.BCELoss, "cuda", Fate.REFUSED, "is refused.*unsafe to autocast"),
        ("BCELoss", "cpu", Fate.FP32, "On CPU, binary_cross_entropy runs in FP32"),
        ("relu", "cuda", Fate.FOLLOWS, "no rule of its own.*FP16 in: nothing cast, FP16 out"),
        ("softmax", "cpu", Fate.FOLLOWS, "no rule of its own.*FP16 in: nothing cast, FP16 out"),
        ("+", "cuda", Fate.FOLLOWS, r"for add.Tensor: .*FP16 and FP32 in: nothing cast, FP32 out"),
        ("exp_", "cuda", Fate.FOLLOWS, "the tensor that it writes into is there already"),
        (
            "cross_entropy",
            "cuda",
            Fate.FOLLOWS,
            r"puts it together from other.*FP32 out \(without autocast FP16\)",
        ),
        ("cross_entropy", "cpu", Fate.FP32, "cross_entropy_loss runs in FP32"),
    ],
)
def test_why(op, device, fate, said):
    answer = why(op, device)
    assert answer.fate is fate
    assert re.search(said, flat(answer)), str(answer)


def test_why_where_overloads_meet_different_fates():
    answer = Why(
        "pow", "cuda", {"pow.Scalar": Fate.FP32, "pow.Tensor": Fate.LOWER}, {"pow.Scalar": ["a", "b"]}
    )
    assert "pow.Scalar runs in FP32" in str(answer)
    assert "Seen, for pow.Scalar: a; b." in str(answer)
    assert "pow.Tensor runs in lower precision" in str(answer)
    with pytest.raises(ValueError, match=r"different fates: pow\.Scalar"):
        _ = answer.fate


def test_a_call_that_failed_is_no_evidence():
    answer = why("batch_norm", "cuda")  # which takes no arguments that are made up
    assert answer.fate is Fate.FOLLOWS
    assert "Seen" not in str(answer)


@pytest.mark.parametrize("op", ["LSTM", "nn.GRU", nn.GRU(2, 2), "nn.RNN", "rnn_relu", "_cudnn_rnn"])
def test_of_recurrent_networks_it_is_said_what_cudnn_does(op):
    said = r"cuDNN, that computes nn.LSTM, nn.GRU and nn.RNN as a whole .* to FP16, in a BF16 region, too"
    if op in policy("cuda").unasked:  # a build with CUDA
        with pytest.raises(LookupError, match=f"has a rule for '_cudnn_rnn', but .*{said}"):
            why(op, "cuda")
    else:
        assert re.search(said, flat(why(op, "cuda")))
        assert "AutocastRNN.cpp" in flat(why(op, "cuda"))
        assert "Seen" not in flat(why(op, "cuda"))
    assert "cuDNN" not in flat(why(op, "cpu"))


def test_of_recurrent_cells_nothing_of_the_kind_is_said():
    assert "cuDNN" not in str(why("LSTMCell", "cuda"))


def test_answers_can_be_members_of_a_set():
    assert len({why("mm"), why("mm", "cuda:0"), why("mm", "cpu")}) == 2
    assert len({differences("cuda", "cpu"), differences("cuda", "cpu")}) == 1
    assert len({compare(["mm"]), compare(["mm"])}) == 1


def test_every_operator_of_a_policy_has_a_why():
    for op in policy("cuda"):
        answer = why(op, "cuda")
        assert answer.fate is policy("cuda")[op].fate
        assert answer.evidence[op]


def test_why_of_what_could_not_be_asked_is_an_error(monkeypatch):
    from amp_lab.autocast import policy as door

    monkeypatch.setattr(door, "_asked", {"cuda": RULES})
    with pytest.raises(LookupError, match="it was Sunday"):
        why("exp", "cuda")


def test_why_does_not_ask_while_other_kernels_stand_in_the_place_of_pytorchs():
    from amp_lab.autocast.emulate import cuda_autocast

    assert "FP16 out" in str(why("relu", "cpu"))
    with cuda_autocast():
        answer = why("relu", "cpu")
    assert answer.fate is Fate.FOLLOWS
    assert "Seen" not in str(answer)


WRITING = [
    "add_",
    "addmm_",
    "mm.out",
    "exp_",
    "sum.out",
    "index_put_",
    "scatter_add_",
    "copy_",
    "softmax.int_out",
]


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("op", WRITING)
def test_what_writes_in_place_or_into_out_is_said_to_have_no_rule(op, device):
    answer = why(op, device)
    assert answer.fate is Fate.FOLLOWS
    assert "No operator that writes in place or into out= has one, even where its namesake does" in flat(
        answer
    )


@pytest.mark.parametrize("device", ["cuda", "cpu", "xpu", "mps"])
def test_no_operator_that_writes_has_a_rule(device):
    kernels = operators_with_kernel(autocast_key(device))
    assert len(kernels) > 50
    assert not [op for op in kernels if op.startswith("aten::") and writes(op.removeprefix("aten::"))]
    assert writes("addmm_")
    assert writes("mm.out")
    assert not writes("mm")


@pytest.mark.parametrize(
    ("op", "said"),
    [
        ("addmm", "In place (addmm_) and with out=, it has no rule."),
        ("mm", "With out=, it has no rule."),
        ("softmax", "With out=, it has no rule."),
        ("layer_norm", ""),
    ],
)
def test_an_operator_with_a_rule_is_told_from_its_writing_forms(op, said):
    assert why(op).note == said
    assert said in flat(why(op))


# Two dtypes that real tensors refuse: what is called with FP16 and FP32, in the order of the arguments.
MIXED = {
    "addmm_": lambda a, b: a.addmm_(b, a),
    "mm.out": lambda a, b: torch.mm(a, b, out=torch.empty_like(a)),
    "prod.int_out": lambda a, b: torch.prod(a, 0, out=torch.empty_like(b[0])),
    "index_put_": lambda a, b: a.index_put_((torch.arange(3),), b),
    "scatter_add_": lambda a, b: a.scatter_add_(0, torch.zeros(3, 3, dtype=torch.int64), b),
    "index_add_": lambda a, b: a.index_add_(0, torch.arange(3), b),
    "lerp": lambda a, b: torch.lerp(a, b, a),
    "add_": lambda a, b: a.add_(b),
    "copy_": lambda a, b: a.copy_(b),
    "add": lambda a, b: a + b,
    "cat": lambda a, b: torch.cat([a, b]),
    "kron": lambda a, b: torch.kron(a, b),
}


@pytest.mark.parametrize("op", MIXED)
def test_what_is_seen_of_mixed_dtypes_is_what_real_tensors_do(op):
    """Fake tensors, which are asked, do not look whether dtypes fit."""
    low, wide = torch.rand(3, 3).half(), torch.rand(3, 3)
    try:
        does = f"FP16 and FP32 in: nothing cast, {dtype_in_words(MIXED[op](low, wide).dtype)} out"
    except RuntimeError:
        does = "FP16 and FP32 in: nothing cast, which is an error, “"
    assert does in flat(why(op))


def test_a_why_is_wrapped_and_has_a_form_in_html():
    answer = why("addmm_")
    lines = str(answer).splitlines()
    assert all(len(line) <= 92 for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])
    html = answer._repr_html_()
    assert html.count("<li>") == html.count("</li>") == 3
    text = " ".join(unescape(re.sub("<[^>]+>", " ", html)).split())
    for what in answer.evidence["addmm_"]:
        assert what in text
    assert answer.note in text
    assert "<li>" not in why("where")._repr_html_()
    printed = io.StringIO()
    Console(file=printed, width=500).print(answer)
    assert printed.getvalue().strip() == flat(answer)


# --- differences


def test_differences_are_all_operators_with_two_fates():
    found = differences("cuda", "cpu")
    cuda, cpu = policy("cuda"), policy("cpu")
    for op in {*cuda, *cpu}:
        fates = tuple(rules[op].fate if op in rules else Fate.FOLLOWS for rules in (cuda, cpu))
        if op in cuda.unasked or op in cpu.unasked:
            continue
        assert (op in found.ops) == (fates[0] is not fates[1])
        if op in found.ops:
            assert found.ops[op] == fates
    assert found.ops["softmax.int"] == (Fate.FP32_UNLESS, Fate.FOLLOWS)
    assert found.ops["binary_cross_entropy"] == (Fate.REFUSED, Fate.FP32)
    assert "mm" not in found.ops


def test_differences_the_other_way_round():
    there, back = differences("cuda", "cpu").ops, differences("cpu", "cuda").ops
    assert {op: fates[::-1] for op, fates in there.items()} == dict(back)
    assert not differences("cuda", "cuda").ops


def test_differences_in_groups():
    found = differences()
    groups = found.grouped()
    assert sorted(op for ops in groups.values() for op in ops) == sorted(found.ops)
    text = str(found)
    for (one, other), ops in groups.items():
        assert f"CUDA: {one.value} → CPU: {other.value} · {len(ops)}" in text
    assert f"on CUDA and on CPU: {len(found.ops)}" in text


def test_what_could_not_be_asked_is_left_out_and_named():
    found = differences_between(RULES, policy("cuda"))  # which knows of both
    assert not {"exp", "sum.dim_IntList"} & found.ops.keys()
    assert "layer_norm" in found.ops
    assert {"exp", "sum.dim_IntList"} <= set(found.unasked)
    assert f"could not be asked: {', '.join(found.unasked)}." in " ".join(str(found).split())


def test_its_note_is_true():
    """conv1d.padding has no rule on CUDA, and its FP32 arguments are cast all the same: by conv1d."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    from amp_lab.autocast.probing.apart import apart

    def work():
        with FakeTensorMode():
            signal, weight = (torch.empty(2, 3, 9, device="cuda"), torch.empty(4, 3, 3, device="cuda"))
            torch.set_autocast_enabled("cuda", True)
            return torch.ops.aten.conv1d.padding(signal, weight, padding="same").dtype

    assert policy("cuda").fate("conv1d.padding") is Fate.FOLLOWS
    assert apart(work) is torch.float16
    assert "conv1d.padding is of conv1d" in flat(differences())


# --- a tutorial's list


def test_the_classic_list_on_cuda():
    assert len(CLASSIC) == 19
    comparison = compare(CLASSIC, "cuda")
    assert comparison.lower == tuple(CLASSIC)
    assert not comparison.others
    lower = {policy("cuda")[op].name for op in policy("cuda").by_fate()[Fate.LOWER]}
    assert set(comparison.missing) == lower - {op_named(name) for name in CLASSIC}
    assert {"einsum", "scaled_dot_product_attention", "lstm_cell", "gru_cell"} <= set(comparison.missing)
    assert "19 of the list's 19 operators run in lower precision on CUDA" in str(comparison)


def test_the_classic_list_on_a_cpu():
    comparison = compare(CLASSIC, "cpu")
    assert comparison.others == dict.fromkeys(["addmv", "addr", "chain_matmul", "mv"], Fate.FOLLOWS)
    assert len(comparison.lower) == 15
    assert "in the list, but: follows its inputs · 4" in str(comparison)


def test_a_list_with_mistakes():
    comparison = compare(["F.linear", "softmax", "exp", "relu", torch.nn.BCELoss, "softmax"])
    assert comparison.lower == ("F.linear",)
    assert comparison.others == {
        "softmax": Fate.FP32_UNLESS,
        "exp": Fate.FP32,
        "relu": Fate.FOLLOWS,
        "binary_cross_entropy": Fate.REFUSED,
    }
    assert "linear" not in comparison.missing
    assert "matmul" in comparison.missing


def test_a_list_of_everything_misses_nothing():
    comparison = compare(list(policy("cuda").by_fate()[Fate.LOWER]))
    assert comparison.missing == ()
    assert not comparison.others
    assert "underscore" not in str(comparison)


@pytest.mark.parametrize(
    ("names", "error", "said"),
    [("matmul", TypeError, "give a list of operators"), (["sofmax"], ValueError, "did you mean softmax")],
)
def test_a_wrong_list_is_an_error(names, error, said):
    with pytest.raises(error, match=said):
        compare(names)


# --- how it shows


@pytest.mark.parametrize(
    "shown", [policy("cuda"), policy("cpu"), RULES, differences(), compare(CLASSIC, "cpu")]
)
def test_text_html_and_rich_say_the_same(shown):
    text, html, rich = str(shown), shown._repr_html_(), io.StringIO()
    Console(file=rich, width=200).print(shown)
    ops = re.findall(
        r"[a-z_]\w+(?:\.\w+)?", " ".join(line for line in text.splitlines() if line.startswith("    "))
    )
    assert len(ops) >= 5
    for op in ops:
        assert f"<code>{op}</code>" in html
        assert op in rich.getvalue()
    assert html.count("<tr>") == html.count("</tr>") > 1
    assert all(len(line) <= 92 for line in text.splitlines())


def test_a_policy_shows_each_fate_with_its_count_and_its_meaning():
    text = str(policy("cuda"))
    for fate, ops in policy("cuda").by_fate().items():
        assert f"{fate.value} · {len(ops)}\n  {MEANING[fate]}" in text
    assert "Every other operator follows its inputs" in text
    assert "A rule that this build of PyTorch does not hold, since it lacks a library, is not listed" in text


def test_a_fates_meaning_is_small_and_not_bold():
    html = policy("cuda")._repr_html_()
    assert html.count('<small style="font-weight: normal">') == html.count("<small") == 5


def test_dots_in_names_are_explained_where_there_are_some():
    for shown in (policy("cuda"), policy("cpu"), RULES, differences()):
        assert "tells apart the variants of one operator" in flat(shown)
    assert "variants" not in str(Policy("cuda", {"mm": OpPolicy("mm", "mm", Fate.LOWER, ())}, {}))


def test_a_policy_names_what_could_not_be_asked():
    assert "Not asked: exp, because it was Sunday." in str(RULES)
    assert "asked 5 of 7" in str(RULES)
    assert repr(RULES) == "<cast policy of 'cuda': asked 5 of 7 operators>"


def test_cudnns_rule_is_mentioned_where_it_is_not_there():
    said = "cuDNN's _cudnn_rnn, which computes nn.LSTM, nn.GRU and nn.RNN on a GPU: it casts"
    assert (said in flat(policy("cuda"))) == ("_cudnn_rnn" not in policy("cuda").unasked)
    assert "cuDNN" not in str(policy("cpu"))


def test_html_is_escaped():
    rules = Policy("cuda", {"mm": OpPolicy("mm<b>", "mm", Fate.LOWER, ())}, {"<i>": "<u>"})
    assert "<i>" not in rules._repr_html_()
    assert "&lt;i&gt;" in rules._repr_html_()


def test_the_meanings_are_what_the_evidence_shows():
    """Sentences about fates, held against what was seen of every operator that meets them."""
    signs = {
        Fate.LOWER: "FP32 in: FP32 cast to FP16",
        Fate.FP32: "FP16 in: FP16 cast to FP32",
        Fate.WIDEST: "FP16 and FP32 in: FP16 cast to FP32",
    }
    for device in ("cuda", "cpu"):
        for op, rule in policy(device).items():
            if rule.fate in signs:
                assert signs[rule.fate] in rule.evidence, op
            if rule.fate is Fate.WIDEST:
                assert {"FP16 in: nothing cast", "FP32 in: nothing cast"} <= set(rule.evidence)


def test_operators_without_a_rule_follow_their_inputs_when_asked():
    for op in ["relu", "mul.Tensor", "transpose.int", "sigmoid", "mean"]:
        evidence = ask([op], "cuda")[op].evidence
        assert {"FP16 in: nothing cast, FP16 out", "FP32 in: nothing cast, FP32 out"} <= set(evidence)
