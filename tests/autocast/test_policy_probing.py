"""How operators are asked: what each fate is told from, and what the control call and the other care are needed for."""

import pytest
import torch
from torch.library import _scoped_library

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.policy import policy
from amp_lab.autocast.probing import probe as probing
from amp_lab.autocast.probing.apart import apart
from amp_lab.autocast.probing.arguments import Arguments, MissingValue, make_arguments
from amp_lab.autocast.probing.probe import Effect, ask, fate_of

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32
UP, DOWN = (FP16, FP32), (FP32, FP16)
NOTHING = Effect()
LABELS = [*probing.QUESTIONS]


def told(low=NOTHING, wide=NOTHING, mixed=NOTHING, with_dtype=None):
    effects = dict(zip(LABELS, (low, wide, mixed), strict=True))
    return fate_of(effects | ({} if with_dtype is None else {probing.WITH_DTYPE: with_dtype}))


# --- from what is seen to a fate

IN_FP32 = Effect(result=FP32, plain_result=FP16)
SEEN = {
    "FP32 cast to FP16": ({"wide": Effect((DOWN,)), "mixed": Effect((DOWN,))}, Fate.LOWER),
    "FP16 cast to FP32": ({"low": Effect((UP,)), "mixed": Effect((UP,))}, Fate.FP32),
    "FP16 cast to FP32, also if a dtype is passed": (
        {"low": Effect((UP,)), "with_dtype": Effect((UP,))},
        Fate.FP32,
    ),
    "FP16 cast to FP32, not if a dtype is passed": (
        {"low": Effect((UP,)), "with_dtype": NOTHING},
        Fate.FP32_UNLESS,
    ),
    "a result in FP32": ({"low": IN_FP32}, Fate.FP32_UNLESS),
    "a result in FP32, not if a dtype is passed": ({"low": IN_FP32, "with_dtype": NOTHING}, Fate.FP32_UNLESS),
    "a cast where dtypes are mixed": ({"mixed": Effect((UP,))}, Fate.WIDEST),
    "an error, always": (dict.fromkeys(["low", "wide", "mixed"], Effect(refusal="no")), Fate.REFUSED),
    "nothing": ({}, None),
    "an error, once": ({"low": Effect(refusal="no")}, None),
    "casts both ways": ({"low": Effect((UP,)), "wide": Effect((DOWN,))}, None),
    "an FP16 result where autocast makes no difference": (
        {"low": Effect(result=FP16, plain_result=FP16)},
        None,
    ),
    "an FP32 result where autocast makes no difference": (
        {"low": Effect(result=FP32, plain_result=FP32)},
        None,
    ),
    "a failure with autocast only": ({"low": Effect(result=None, plain_result=FP16)}, None),
}


@pytest.mark.parametrize("seen", SEEN)
def test_a_fate_is_told_from_what_is_seen(seen):
    effects, fate = SEEN[seen]
    assert told(**effects) is fate


# --- operators that are known: made here, with an autocast kernel of each kind


def lowering(op, x):
    return op(x.to(FP16))


def raising(op, x):
    return op(x.to(FP32))


def refusing(op, x):
    raise RuntimeError("not under autocast")


def doing_nothing(op, x):
    return op(x)


def lowering_too_late(op, x):
    return op(x).to(FP16)


MADE = {
    "lowering": (lowering, Fate.LOWER),
    "raising": (raising, Fate.FP32),
    "refusing": (refusing, Fate.REFUSED),
    "doing_nothing": (doing_nothing, None),
    "lowering_too_late": (lowering_too_late, None),
}


def registered(library, name, rule, work):
    """aten::{name}(x), with a rule on AutocastCPU written here."""
    library.define(f"{name}(Tensor x) -> Tensor")
    library.impl(name, work, "CompositeImplicitAutograd")  # made of others: its casts are seen
    op = getattr(torch.ops.aten, name).default

    def kernel(x):
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)):
            return rule(op, x)

    library.impl(name, kernel, "AutocastCPU")


@pytest.mark.parametrize("kind", MADE)
def test_a_rule_made_here_is_told_right(kind):
    rule, fate = MADE[kind]
    with _scoped_library("aten", "FRAGMENT") as library:
        registered(library, f"amp_lab_test_{kind}", rule, lambda x: x + 1)
        answer = ask([f"amp_lab_test_{kind}"], "cpu")[f"amp_lab_test_{kind}"]
    assert answer.fate is fate
    assert bool(answer.trouble) == (fate is None)


@pytest.mark.parametrize(
    "work", [lambda x: x.to(FP32) + 1, lambda x: x.to(FP16) + 1, lambda x: x.to(FP32).to(FP16)]
)
def test_casts_of_the_operators_own_are_not_taken_for_autocasts(work):
    with _scoped_library("aten", "FRAGMENT") as library:
        registered(library, "amp_lab_test_casting", doing_nothing, work)
        answer = ask(["amp_lab_test_casting"], "cpu")["amp_lab_test_casting"]
    assert answer.fate is None


def failing(x):
    raise ValueError("wrong arguments")


def test_not_every_error_is_a_refusal():
    with _scoped_library("aten", "FRAGMENT") as library:
        registered(library, "amp_lab_test_failing", doing_nothing, failing)
        answer = ask(["amp_lab_test_failing"], "cpu")["amp_lab_test_failing"]
    assert answer.fate is None
    assert "does not take the arguments made up for it: wrong arguments" in answer.trouble


def test_an_error_after_the_work_began_is_no_refusal():
    calls = []

    def operator(x):
        y = x + 1
        calls.append(y)
        if len(calls) == 2:  # the call with autocast
            raise ValueError("too late")

    def make():
        x = torch.ones(2)
        return Arguments([x], {}, [x])

    effect = apart(lambda: probing._effect(operator, make, "cpu", stop=False))  # it sets autocast's state
    assert (effect.error, effect.refusal) == ("too late", "")


def test_what_has_no_rule_shows_nothing_of_autocast():
    ops = (
        "relu add.Tensor mul.Tensor mean max_pool2d_with_indices transpose.int _softmax _log_softmax".split()
    )
    for device in ("cuda", "cpu"):
        for op, answer in ask(ops, device).items():
            assert answer.fate is None, (device, op)
            assert answer.trouble


def test_an_argument_that_cannot_be_made_up_is_named():
    answer = ask(["native_dropout", "set_.source_Storage", "rand"], "cpu")
    assert "cannot" not in answer["native_dropout"].trouble  # its Optional[bool] can be left out
    assert "no value can be made up for its argument source of type" in answer["set_.source_Storage"].trouble
    assert answer["rand"].trouble == "no floating-point tensor goes into it"


# --- each bit of care is needed: without it a fate is told wrongly


def wrong_fates(monkeypatch, device, **changes):
    for name, change in changes.items():
        monkeypatch.setattr(probing, name, change)
    right = policy(device)
    answers = ask([*right], device)
    return {op for op, answer in answers.items() if answer.fate is not right[op].fate}


def test_unchanged_it_tells_no_fate_wrongly(monkeypatch):
    assert wrong_fates(monkeypatch, "cuda") == set()


def test_without_the_control_call_an_operators_own_casts_mislead(monkeypatch):
    def alone(operator, make, device, stop):
        with probing._autocast(device):
            seen = probing._watch(operator, make(), stop)
        return Effect(seen.casts, seen.result, None, "" if seen.worked or seen.casts else seen.error)

    monkeypatch.setattr(probing, "_effect", alone)
    with _scoped_library("aten", "FRAGMENT") as library:
        registered(library, "amp_lab_test_own", doing_nothing, lambda x: x.to(FP32) + 1)
        assert ask(["amp_lab_test_own"], "cpu")["amp_lab_test_own"].fate is Fate.FP32


def test_without_the_whole_call_a_result_in_fp32_is_not_seen(monkeypatch):
    whole = probing._effects
    wrong = wrong_fates(
        monkeypatch, "cuda", _effects=lambda operator, device, stop: whole(operator, device, True)
    )
    assert {"sum", "softmax.int"} <= wrong
    assert wrong == set(policy("cuda").by_fate()[Fate.FP32_UNLESS])


def test_without_a_question_of_mixed_dtypes_the_widest_input_is_not_seen(monkeypatch):
    labels = dict(probing.QUESTIONS)
    labels[LABELS[2]] = (FP32, FP32)
    assert wrong_fates(monkeypatch, "cuda", QUESTIONS=labels) == set(policy("cuda").by_fate()[Fate.WIDEST])


def test_without_the_dtype_question_it_cannot_be_told_whether_autocast_or_the_operator_casts(monkeypatch):
    """XPU's softmax casts its own argument to FP32, and MPS's has it cast: both look alike without that question."""
    assert policy("xpu").fate("softmax") is Fate.FP32_UNLESS
    assert policy("mps").fate("softmax") is Fate.FP32
    usual = probing.fate_of

    def fate_without(effects):
        return usual({label: effect for label, effect in effects.items() if label != probing.WITH_DTYPE})

    assert "softmax.int" in wrong_fates(monkeypatch, "xpu", fate_of=fate_without)


def test_without_autocast_nothing_is_told(monkeypatch):
    from contextlib import nullcontext

    wrong = wrong_fates(monkeypatch, "cuda", _autocast=lambda device: nullcontext())
    assert wrong == set(policy("cuda"))


# --- arguments made up from a schema


def test_arguments_take_the_dtypes_in_turn():
    schema = torch.ops.aten.addmm.default._schema
    made = make_arguments(schema, (FP16, FP32), "cpu")
    assert [tensor.dtype for tensor in made.tensors] == [FP16, FP32, FP16]
    assert [type(value) for value in made.positional] == [torch.Tensor] * 3
    assert made.keywords == {"beta": 1, "alpha": 1}


def test_indices_are_integers_and_take_no_turn():
    made = make_arguments(torch.ops.aten.scatter_add.default._schema, (FP16, FP32), "cpu")
    assert [each.dtype for each in made.positional if isinstance(each, torch.Tensor)] == [
        FP16,
        torch.int64,
        FP32,
    ]
    made = make_arguments(torch.ops.aten.index_put.default._schema, (FP16, FP32), "cpu")
    assert made.positional[1][0].dtype is torch.int64
    assert [tensor.dtype for tensor in made.tensors] == [FP16, FP32]


def test_a_given_value_is_taken():
    made = make_arguments(torch.ops.aten.softmax.int._schema, (FP16,), "cpu", {"dtype": FP32})
    assert made.positional[2] is FP32


def test_a_name_of_a_dimension_cannot_be_made_up():
    class Argument:
        name, type, kwarg_only = "dim", "str", False

        def has_default_value(self):
            return False

    class Schema:
        arguments = (Argument(),)

    with pytest.raises(MissingValue, match="names of dimensions"):
        make_arguments(Schema(), (FP16,), "cpu")
