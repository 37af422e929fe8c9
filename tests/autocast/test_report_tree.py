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


def blocks(*paths, wide=(8, 8, 8, 8), inner=("in", "out"), given=FP16):
    """Return a tape on which blocks of two layers and a relu run one after the other."""
    tape, x = Tape(), Value((2, 8), given)
    for path, size in zip(paths, wide, strict=False):
        tape.types[path] = "Block"
        for name in inner:
            x = tape.linear(x, f"{path}.{name}", size)
        with tape.module(path, "Block"):
            x = tape.op("relu", x)
    return tape


def kinds(branch):
    """Write what stands side by side: paths of modules, and how often folded ones came."""
    return [
        f"{each.times} × {each.items[0].path}" if isinstance(each, Fold) else each.path
        for each in branch.items
    ]


def test_layers_of_other_dtypes_sizes_or_parts_are_not_the_same():
    assert kinds(tree(blocks("0", "1", "2", "3"))) == ["4 × 0"]
    assert kinds(tree(blocks("0", "1", "2", "3", given=FP32))) == ["0", "3 × 1"]
    assert kinds(tree(blocks("0", "1", "2", "3", wide=(8, 8, 16, 16)))) == ["2 × 0", "2", "3"]  # 2 is given 8
    named = blocks("0", "1")
    named.types["0.in"] = "MyLinear"
    assert kinds(tree(named)) == ["0", "1"]
    renamed = blocks("0", "1")
    for place, op in enumerate(renamed.ops):
        if op.module == "1.out":
            renamed.ops[place] = replace(op, module="1.down")
    assert kinds(tree(renamed)) == ["0", "1"]


def test_only_siblings_of_one_container_are_folded():
    assert kinds(tree(blocks("layers.0", "layers.1"))) == ["2 × layers.0"]
    assert kinds(tree(blocks("layer1.0", "layer2.0"))) == ["layer1.0", "layer2.0"]
    assert kinds(tree(blocks("first", "second"))) == ["first", "second"]
    assert kinds(tree(blocks("stage.0.0", "stage.0.1", "stage.1.0", "stage.1.1"))) == [
        "2 × stage.0.0", "2 × stage.1.0",
    ]  # fmt: skip


def test_a_branch_beside_a_layer_is_shown():
    """As in ResNet: conv2, bn2, and beside them down.0, down.1, which do the same at other sizes or elsewhere."""
    tape, x = Tape(), Value((2, 8), FP16)
    tape.types["down"] = "Sequential"
    for convolution, norm in (("conv1", "bn1"), ("conv2", "bn2"), ("down.0", "down.1")):
        x = tape.linear(x, convolution, 8)
        with tape.module(norm, "BatchNorm2d"):
            x = tape.op("add_", x)
            x = tape.op("batch_norm", x)
    assert kinds(tree(tape)) == ["conv1", "bn1", "conv2", "bn2", "down.0", "down.1"]


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
    assert list(ops_in(folded)) == shown
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


def test_operators_on_other_sizes_are_not_the_same():
    tape = Tape()
    for size in (4, 4, 4, 4, 8, 16, 32, 64):
        tape.op("amax", Value((size,), FP16), shape=())
    assert outline(tree(tape)) == "[4*(amax) amax amax amax amax]"
