"""The figure of an x-ray: what is opened, folded, counted and cast."""

from dataclasses import replace

import matplotlib

matplotlib.use("agg")

import pytest
import torch
from matplotlib import pyplot as plt

from amp_lab.autocast.records import Value
from amp_lab.autocast.report import drawing as xray_drawing
from amp_lab.view.dtype_rows import Arrow, Cell, Group, Row
from tests.autocast.hand_made import FP16, FP32, Tape, encoder


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    yield
    plt.close("all")


@pytest.fixture
def given(monkeypatch):
    """What was given to the drawing."""
    calls = {}

    def draw(items, phases, title, note=""):
        calls.update(items=items, phases=phases, title=title, note=note)
        return plt.figure()

    monkeypatch.setattr(xray_drawing, "dtype_tree", draw)
    return calls


@pytest.fixture(scope="module")
def image():
    return encoder(12).backward().xray(model="Encoder")


def label(item):
    return item.label


def test_equal_layers_are_one_group(image, given):
    image.plot()
    embed, layers, head, loss = given["items"]
    assert (layers.label, layers.kind, layers.times) == ("layers.0 … layers.11", "EncoderLayer", 12)
    assert list(map(label, layers.items)) == [
        "norm1: layer_norm", "attn", "add", "norm2: layer_norm", "up: linear", "act: gelu", "down: linear", "add",
    ]  # fmt: skip
    assert embed == Row("embed: embedding", [Cell({"FP32": "FP32"}, [])])
    assert head.cells == [Cell({"FP16": "FP16"}, [Arrow("FP32", "FP16", "x, 2 w")])]
    assert loss.cells == [Cell({"FP32": "FP32"}, [Arrow("FP16", "FP32", "x")])]
    assert given["title"] == "Encoder: the dtype of every operator, FP16 autocast on CUDA"


def test_weights_from_the_cache_are_marked(given):
    tape, x = Tape(), Value((2, 8), FP32)
    tape.linear(x, "a", 8)
    tape.linear(x, "a", 8, call=2)
    tape.xray().plot()
    assert [each.label for each in given["items"]] == ["a: linear", "a, call 2: linear"]
    assert given["items"][1].cells[0].casts == [Arrow("FP32", "FP16", "x, 2 w*")]


def test_closed_modules_are_counted(image, given):
    image.plot(depth=0)
    (layers,) = [each for each in given["items"] if isinstance(each, Group)]
    assert layers.times == 12
    assert layers.items == [
        Row("layers.0 … layers.11 (EncoderLayer): 10 casts", [Cell({"FP32": "× 4", "FP16": "× 6"})])
    ]
    image.plot(depth=1)
    assert "attn (Attention): 5 casts" in map(label, given["items"][1].items)


def test_backward_stands_beside_forward(image, given):
    image.plot(phase="both")
    assert given["phases"] == ("forward ↓", "backward ↑")
    assert given["items"][0].cells[1] == Cell({"FP32": "FP32"}, [])
    image.plot(phase="backward", module="head")
    assert given["phases"] == ("backward",)
    assert list(map(label, given["items"])) == ["head: linear"]


def test_a_gradient_cast_is_an_arrow(given):
    tape = Tape()
    tape.linear(Value((2, 8), FP16), "a", 8)
    forward = tape.ops[0]
    tape.backward()
    tape.to(Value((8, 8), FP16), FP32)
    tape.ops[-1] = replace(tape.ops[-1], phase="backward", forward=forward.number)
    tape.xray().plot(phase="both")
    assert given["items"][0].cells[1] == Cell({"FP16": "FP16"}, [Arrow("FP16", "FP32", "g")])


def test_casts_there_and_back_are_one_arrow(given):
    tape = Tape()
    tape.op("attention", Value((2, 8), FP16))
    tape.to(Value((2, 8), FP16), FP32)
    tape.to(Value((2, 8), FP32), FP16)
    tape.ops[1:] = [replace(each, phase="backward", forward=0) for each in tape.ops[1:]]
    tape.xray().plot(phase="both")
    assert given["items"][0].cells[1] == Cell({}, [Arrow("FP16", "FP32", "2 g", both=True)])


def test_a_cast_in_the_code_ends_where_it_goes(given):
    tape = Tape()
    tape.to(Value((2, 8), FP16), FP32)
    tape.op("argmax", Value((2, 8), FP16), dtype=torch.int64, shape=(2,))
    tape.op("add", Value((2,), torch.int64))
    tape.xray().plot()
    cast, _ = given["items"]  # without the counter
    assert cast.cells == [Cell({"FP32": "FP32"}, [Arrow("FP16", "FP32", "x")])]


def test_a_model_of_integers_is_drawn(given):
    tape = Tape()
    tape.op("add", Value((2,), torch.int64))
    tape.xray().plot()
    (integers,) = given["items"]
    assert integers.cells == [Cell({"no floats": "int64"}, [])]


TENSOR, WEIGHT = "x is a tensor", "w is a weight or bias"
CACHED, GRADIENT = "w* is a weight or bias from autocast's cache", "g is a gradient"


def test_the_note_explains_what_is_drawn_and_nothing_else(image, given):
    def letters():
        return {each for each in (TENSOR, WEIGHT, CACHED, GRADIENT) if each in given["note"]}

    image.plot()
    assert letters() == {TENSOR, WEIGHT}
    assert "Views are left out." in given["note"]
    x = Value((2, 8), FP32)
    tape = Tape()
    tape.op("relu", x)
    tape.xray().plot()
    assert given["note"] == ""
    tape.linear(x, "a", 8)
    tape.linear(Value((2, 8), FP16), "a", 8, call=2)
    tape.xray().plot()
    assert letters() == {TENSOR, WEIGHT, CACHED}
    assert given["note"].endswith("ran.")
    tape.backward()
    tape.to(Value((8, 8), FP16), FP32)
    tape.ops[-1] = replace(tape.ops[-1], phase="backward", forward=1)
    tape.xray().plot(phase="both")
    assert letters() == {TENSOR, WEIGHT, CACHED, GRADIENT}
    tape.xray().plot(phase="backward")
    assert letters() == {GRADIENT}


def test_a_module_is_opened_alone(image, given):
    image.plot(module="layers.5")
    assert list(map(label, given["items"]))[:2] == ["norm1: layer_norm", "attn"]
    assert given["title"].startswith("layers.5 of Encoder")


def test_a_large_model_is_opened_as_far_as_it_fits(given):
    tape, x = Tape(), Value((2, 8), FP16)
    for block in range(30):
        for part in range(3):
            for number in range(part + 1):
                with tape.module(f"{block}.{part}", "Part"):
                    tape.types[f"{block}"] = f"Block{block}"  # no two are equal
                    x = tape.op(f"op{number}", x)
    tape.xray().plot()
    assert len(given["items"]) == 30
    assert given["items"][7] == Row("7 (Block7)", [Cell({"FP16": "× 6"})])


def test_more_rows_than_a_page_has_are_counted(given):
    tape, x = Tape(), Value((2, 8), FP16)
    for number in range(100):
        x = tape.op(f"op{number}", x)
    tape.xray().plot()
    assert len(given["items"]) == 45
    assert given["items"][-1] == Row("… 56 more rows", [Cell({"FP16": "× 56"})])


def test_what_failed_is_marked(given):
    tape = Tape()
    tape.op("relu", Value((2, 8), FP16))
    tape.op("mm", Value((2, 8), FP16), error="RuntimeError: no")
    tape.xray(error="RuntimeError: no").plot()
    assert [each.failed for each in given["items"]] == [False, True]


def test_bad_arguments(image):
    with pytest.raises(ValueError, match="'forward', 'recomputed', 'backward', 'both'"):
        image.plot(phase="all")
    with pytest.raises(ValueError, match="no recomputed operator ran; the phases are 'forward', 'backward'"):
        image.plot(phase="recomputed")
    with pytest.raises(ValueError, match="no operator ran in it"):
        image.plot(module="tail")
    assert plt.get_fignums() == []


def test_it_draws_for_real(image):
    figure = image.plot(phase="both", title="My title")
    texts = [each.get_text() for each in figure.axes[0].texts]
    assert {"My title", "× 12", "attn"} <= set(texts)
    assert texts.count("FP16") == 2 + 2 * 7  # heads, and seven marks in each phase


def test_what_is_folded_away_in_a_closed_module_is_counted(given):
    tape, x = Tape(), Value((2, 8), FP16)
    tape.types["a"] = "Stack"
    for number in range(5):
        x = tape.linear(x, f"a.{number}", 8)
    with tape.module("a", "Stack"):
        x = tape.op("relu", x)
    tape.op("tanh", x)
    tape.xray().plot(depth=0)
    assert given["items"][:1] == [Row("a (Stack): 10 casts", [Cell({"FP16": "× 6"})])]
