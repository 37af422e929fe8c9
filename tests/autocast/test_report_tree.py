"""The tree of modules: what is nested, what is left out, and what is folded."""

from dataclasses import replace

import pytest
import torch

from amp_lab.autocast.records import Op, Value
from amp_lab.autocast.report.module_tree import Branch, Fold, module_tree, ops_in, rows
from tests.autocast.hand_made import FP16, FP32, Tape, encoder


def tree(tape, fold=True):
    shown = [op for op in tape.ops if not op.view]
    return module_tree(shown, tape.types, fold)


def outline(item):
    """Write a tree in brackets: operators by name, modules by path."""
    if isinstance(item, Op):
        return item.name
    inner = " ".join(map(outline, item.items))
    return f"{item.path}[{inner}]" if isinstance(item, Branch) else f"{item.times}*({inner})"


def image(*names, dtype=FP32):
    """Return a tape on which each of these modules runs one operator; "a.relu" runs relu in module "a"."""
    tape, value = Tape(), Value((4, 4), dtype)
    for name in names:
        path, _, op = name.rpartition(".")
        with tape.module(path, "Thing" if path else "Net"):
            value = tape.op(op, value)
    return tape


def test_operators_stand_in_the_modules_that_ran_them():
    tape = image("a.b.relu", "a.b.gelu", "a.tanh", "a.c.relu", "add", "a.b.relu")
    assert outline(tree(tape, fold=False)) == "[a[a.b[relu gelu] tanh a.c[relu]] add a[a.b[relu]]]"


def test_a_second_call_begins_a_second_branch():
    tape, x = Tape(), Value((4, 4), FP16)
    for call in (1, 1, 2):
        with tape.module("act", "Act", call):
            x = tape.op("relu", x)
    first, second = tree(tape, fold=False).items
    assert (first.call, len(first.items)) == (1, 2)
    assert (second.call, len(second.items)) == (2, 1)


@pytest.mark.parametrize("container", ["ModuleList", "ModuleDict", "Sequential"])
def test_a_container_that_computes_nothing_is_left_out(container):
    tape = image("layers.0.relu", "layers.1.gelu")
    tape.types["layers"] = container
    assert outline(tree(tape)) == "[layers.0[relu] layers.1[gelu]]"


def test_another_module_that_computes_nothing_itself_stays():
    tape = image("layers.0.relu", "layers.1.gelu")
    tape.types["layers"] = "Stack"
    assert outline(tree(tape)) == "[layers[layers.0[relu] layers.1[gelu]]]"


def test_equal_layers_are_folded():
    found = tree(encoder(12))
    embed, layers, head, loss = found.items
    assert isinstance(layers, Fold)
    assert (layers.times, layers.items[0].path, layers.last[0].path) == (12, "layers.0", "layers.11")
    assert [embed.path, head.path, loss.name] == ["embed", "head", "cross_entropy"]


def test_a_layer_that_differs_in_a_dtype_stands_alone():
    tape = encoder(6)
    place = next(number for number, op in enumerate(tape.ops) if op.module == "layers.2.act")
    tape.ops[place] = replace(tape.ops[place], dtype=FP32)
    kinds = [each.times if isinstance(each, Fold) else each.path for each in tree(tape).items[1:-2]]
    assert kinds == [2, "layers.2", 3]


def test_shapes_and_names_do_not_keep_layers_apart():
    tape, x = Tape(), Value((2, 3), FP32)
    for number, wide in enumerate((8, 16, 32)):
        tape.types[f"{number}"] = "Block"
        x = tape.linear(x, f"{number}.in", wide)
        x = tape.linear(x, f"{number}.out", wide)
        with tape.module(f"{number}", "Block"):
            x = tape.op("relu", x)
    # The first is given FP32, the others FP16.
    assert outline(tree(tape)) == (
        "[0[0.in[linear] 0.out[linear] relu] 2*(1[1.in[linear] 1.out[linear] relu])]"
    )


def test_steps_of_several_operators_are_folded_as_a_group():
    tape = image(*["cell.linear", "tanh", "mul"] * 50, "sum", dtype=FP16)
    assert outline(tree(tape)) == "[50*(cell[linear] tanh mul) sum]"


def test_two_equal_rows_are_not_worth_a_fold():
    assert outline(tree(image("relu", "relu", dtype=FP16))) == "[relu relu]"


def test_nothing_is_lost():
    tape = encoder(3)
    shown = [op for op in tape.ops if not op.view]
    assert list(ops_in(tree(tape, fold=False))) == shown
    folded = tree(tape)
    layer = sum(op.module.startswith("layers.1") for op in shown)
    assert len(list(ops_in(folded))) == len(shown) - 2 * layer
    assert (
        rows(folded) == 1 + 1 + (1 + 1 + 1 + 1 + 3 + 6) + 2
    )  # the model, embed, the fold with its layer, head, loss


def test_many_operators_take_no_time_to_speak_of():
    tape = image(*(f"op{number % 97}" for number in range(4000)), dtype=torch.float16)
    assert len(tree(tape).items) == 4000


def test_calls_whose_weights_were_cached_are_not_like_the_first():
    tape, x = Tape(), Value((2, 8), FP16)
    for call in range(1, 7):
        x = tape.linear(x, "a", 8, call=call)
    assert outline(tree(tape)) == "[a[linear] 5*(a[linear])]"
