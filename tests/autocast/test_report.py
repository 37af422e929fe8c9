"""What a user sees of an x-ray: text, HTML, Rich, the summary by module, JSON."""

import json
import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser

import pytest
import torch
from rich.console import Console

from amp_lab.autocast.errors import explain
from amp_lab.autocast.fates import Fate
from amp_lab.autocast.records import Source, Value
from amp_lab.autocast.report.words import bytes_in_words, casts_in_words, outputs_in_words
from amp_lab.autocast.report.xrayed import XRay
from tests.autocast.hand_made import BF16, FP16, FP32, Tape, encoder

NBSP = "\N{NO-BREAK SPACE}"


@pytest.fixture(scope="module")
def image():
    return encoder(12).backward().xray(model="Encoder")


@pytest.fixture
def failing():
    tape = Tape()
    h = tape.linear(Value((2, 8), FP32), "first", 8)
    with tape.autocast_off():
        said = "RuntimeError: mat1 and mat2 must have the same dtype, but got Half and Float"
        tape.op("linear", h, tape.weight("head.weight", 4, 8), shape=(2, 4), error=said)
    return tape.xray(error=said, explanation=explain(said))


def lines(text):
    """Return the cells of a text table: columns are two spaces apart, or more."""
    return [re.split(r"  +", line.strip()) for line in text.splitlines()]


def title(x):
    """Return what stands above the counts, on one line."""
    return " ".join(repr(x).partition("\nforward:")[0].split())


# --- text


def test_the_title_says_what_and_how(image):
    first = title(image)
    assert first.startswith('Encoder under torch.autocast("cuda", torch.float16), fake mode')
    assert first.endswith("no numbers (asked for)")
    assert title(replace(image, mode_reason="")).endswith("no numbers")
    value = replace(image, mode="value", mode_reason="aten.nonzero depends on values")
    assert "value mode: with real numbers (aten.nonzero depends on values)" in " ".join(repr(value).split())


def test_counts_of_each_phase(image):
    forward, backward = [line for line in repr(image).splitlines() if "operators: " in line]
    assert forward == f"forward: 123 operators: 73 FP16, 50 FP32; 124 casts copied 1.30{NBSP}MB"
    assert backward == "backward: 123 operators: 73 FP16, 50 FP32"
    ops = [op for op in image.ops if op.phase == "forward" and not op.view]
    assert len(ops) == 123
    assert sum(op.dtype == FP16 for op in ops) == 73
    layer, head, logits = 2 * 16 * 64 * 2 + 49_728, 2 * 16 * 64 + 650, 2 * 16 * 10
    assert sum(cast.copied for op in ops for cast in op.casts) == 2 * (12 * layer + head) + 4 * logits


def test_equal_layers_are_listed_once(image):
    rows = lines(image.table())
    assert ["layers.0 … layers.11 (EncoderLayer): 12 times the same"] in rows
    assert ["2", "qkv: linear", "FP32", f"3 × FP32→FP16 29.1{NBSP}kB", "FP16", "FP16 2×16×192", "lower precision",
            "model.py:1"] in rows  # fmt: skip
    assert sum("qkv: linear" in row for row in rows) == 1
    assert sum("qkv: linear" in row for row in lines(image.table(fold=False, limit=None))) == 12


def test_modules_are_indented(image):
    names = [line[5:] for line in image.table().splitlines()]
    assert any(line.startswith("  attn (Attention)") for line in names)
    assert any(line.startswith("    qkv: linear") for line in names)


def test_views_are_counted_and_listed_only_if_asked(image):
    assert "84 views not listed" in image.table()
    assert "84 views not listed" not in image.table(views=True)
    assert "chunk" not in image.table()
    assert "chunk" in image.table(views=True)


def test_filters(image):
    one = image.table(module="layers.3.attn")
    assert [row[1] for row in lines(one) if row[0].isdigit()] == [
        "qkv: linear",
        "scaled_dot_product_attention",
        "out: linear",
    ]
    assert "7 views not listed" in one
    backward = lines(image.table(phase="backward", module="head"))
    assert backward[1] == [
        "208",
        "head: linear",
        "FP16",
        "FP16",
        "FP16 2×16×10",
        "gradient of #205",
        "model.py:1",
    ]
    assert backward[2] == [""]
    forward, both = (image.table(phase=phase, limit=None).splitlines() for phase in ("forward", None))
    place = both.index("     backward:")
    assert [line.strip() for line in both[1:place]] == [
        "forward:",
        *(line.strip() for line in forward[1 : place - 1]),
    ]


def test_what_is_cut_off_is_counted(image):
    short, whole = image.table(limit=5).splitlines(), image.table(limit=None).splitlines()
    assert "more row" not in " ".join(whole)
    listed, everything = short.index(""), whole.index("")
    assert listed == 1 + 5
    assert short[listed + 1] == f"{everything - listed} more rows: table(limit=None) lists all."
    assert [line.split()[:2] for line in short[:listed]] == [line.split()[:2] for line in whole[:listed]]


def test_other_phases_are_named(image):
    assert 'table(phase="backward")' in image.table()
    assert 'table(phase="forward")' in image.table(phase="backward")
    assert "Not listed" not in image.table(phase=None, views=True)


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"phase": "forwards"}, ValueError, "'forward', 'recomputed', 'backward'"),
        ({"limit": -1}, ValueError, "0 or more"),
        ({"limit": 2.5}, TypeError, "how many rows"),
        ({"limit": True}, TypeError, "how many rows"),
        ({"module": "layers.12"}, ValueError, "no operator ran in it; some ran in 'embed', 'layers.0.norm1'"),
        ({"module": 3}, TypeError, "path of a module"),
    ],
)
def test_bad_options(image, options, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        image.table(**options)


def test_nothing_ran():
    empty = Tape().xray(model="Shell")
    assert "No operator of PyTorch ran" in repr(empty)
    assert "No operator of PyTorch ran" in empty._repr_html_()
    assert "No operator of PyTorch ran" in printed(empty)
    assert len(empty.modules()) == 0
    with pytest.raises(ValueError, match="nothing to draw"):
        empty.plot()


def test_the_error_comes_last_with_its_explanation(failing):
    text = repr(failing)
    assert lines(failing.table())[2][-3:] == ["raised", "autocast is off", "model.py:1"]
    said = (
        "The model failed at linear (#1, model.py:1), which was given FP16, FP32, where autocast is off; "
        "nothing after that ran."
    )
    assert " ".join(text.split()).endswith(f"{said} {' '.join(str(failing.explanation).split())}")
    assert text.endswith(f"\n{failing.explanation}")
    assert failing.explanation._repr_html_() in failing._repr_html_()
    assert said in failing._repr_html_()
    assert said in flat(printed(failing))


def test_what_failed_is_told_once(failing):
    (remark,) = failing.warnings
    assert remark.id == "raises"
    for shown in (repr(failing), failing._repr_html_(), printed(failing)):
        assert remark.sentence not in flat(shown)
        assert flat(shown).count(flat(failing.explanation.advice)) == 1


def flat(text):
    return " ".join(str(text).split())


@pytest.fixture
def harmful():
    """An x-ray with two warnings, and an error that has nothing to do with them."""
    tape = Tape()
    h = tape.op("exp", Value((2, 8), FP16), fate=Fate.FOLLOWS, text="h = x.exp_()  # <hm>")
    with tape.autocast_off():
        tape.op("pow", h)
        tape.op("view", h, error="RuntimeError: shape")
    return tape.xray(error="RuntimeError: shape")


def test_warnings_are_told_everywhere(harmful):
    assert len(harmful.warnings) == 2
    for remark in harmful.warnings:
        for said in (remark.sentence, remark.advice):
            assert said in flat(repr(harmful))
            assert said in flat(printed(harmful))
            assert escape(said) in harmful._repr_html_()


def test_warnings_by_themselves(harmful):
    text, html = repr(harmful.warnings), harmful.warnings._repr_html_()
    for remark in harmful.warnings:
        assert str(remark) in text
        assert repr(remark) == str(remark)
        assert remark._repr_html_() in html
        assert flat(remark) == f"! {remark.sentence} → {remark.advice}"
    assert all(len(line) <= 92 for line in text.splitlines())
    assert harmful.warnings == tuple(harmful.warnings)
    outline(html)
    nothing = Tape().xray().warnings
    assert repr(nothing) in nothing._repr_html_()
    assert "No warnings" in repr(nothing)


def test_names_cannot_break_the_table():
    tape = Tape()
    with tape.module("evil\n\x1b[31m<b>", "Ty<i>pe"):
        tape.op("relu", Value((2,), FP16), text='x["a"] < 1')
        tape.op("gelu", Value((2,), FP16))
    x = tape.xray(model="A\nB")
    assert "\x1b" not in repr(x)
    assert "evil\\n\\x1b[31m<b>" in repr(x)
    assert "<b>evil" not in x._repr_html_().replace("<p><b>", "")
    assert "Ty&lt;i&gt;pe" in x._repr_html_()
    assert "x[&quot;a&quot;] &lt; 1" in x._repr_html_()
    assert "<i>pe" not in x._repr_html_()


def test_a_custom_function_is_named():
    tape = Tape()
    tape.op("mul", Value((2,), FP16), within="Swish")
    assert "Swish: mul" in repr(tape.xray())


# --- words


@pytest.mark.parametrize(
    ("size", "said"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (29_100, "29.1 kB"), (999_499, "999 kB"), (999_501, "1.00 MB"),
     (1_298_464, "1.30 MB"), (3_500_000_000, "3.50 GB")],
)  # fmt: skip
def test_bytes(size, said):
    assert bytes_in_words(size).replace(NBSP, " ") == said


def test_casts_say_which_came_from_the_cache():
    tape, x = Tape(), Value((2, 8), FP32)
    tape.linear(x, "a", 8)
    tape.linear(x, "a", 8, call=2)
    first, second = tape.ops
    assert casts_in_words(first.casts).replace(NBSP, " ") == "3 × FP32→FP16 176 B"
    assert casts_in_words(second.casts).replace(NBSP, " ") == "3 × FP32→FP16 32 B, 2 cached"
    assert casts_in_words(second.casts[1:]) == "2 × FP32→FP16 cached"
    assert "2 casts came from the cache of weights" in repr(tape.xray())


def test_outputs():
    assert outputs_in_words(()) == "–"
    assert outputs_in_words((Value((), FP32),)) == "FP32 scalar"
    assert outputs_in_words((Value((2, 3), torch.int64), Value((2,), FP16))) == "int64 2×3 and 1 more"


# --- HTML and Rich


class Outline(HTMLParser):
    """Checks that tags match, and notes the texts of what opens and closes."""

    def __init__(self):
        super().__init__()
        self.stack, self.summaries, self.deepest, self.aligned = [], [], 0, []

    def handle_starttag(self, tag, attributes):
        if tag in ("br", "col", "wbr"):
            return
        self.stack.append(tag)
        if tag == "tr":
            self.aligned.append(())
        if tag in ("th", "td"):
            self.aligned[-1] += (re.search(r"text-align: (\w+)", dict(attributes).get("style", "")).group(1),)
        self.deepest = max(self.deepest, self.stack.count("details"))
        if tag == "summary":
            self.summaries.append("")

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if "summary" in self.stack:
            self.summaries[-1] += data


def outline(html):
    found = Outline()
    found.feed(html)
    found.close()
    assert found.stack == []
    return found


def test_html_opens_and_closes_by_module(image):
    found = outline(image._repr_html_())
    assert found.deepest == 3
    said = [each.split(" FP")[0] for each in found.summaries]
    assert said[1:3] == ["layers.0 … layers.11 (EncoderLayer): 12 times the same", "attn (Attention)"]
    assert said[0].startswith("forward: 123 operators")
    assert found.summaries[1].startswith(f"{said[1]} FP16 × 72FP32 × 48")


def test_a_large_model_is_shown_closed():
    tape = Tape()
    for layer in range(30):
        tape.types[f"{layer}"] = "Block"
        with tape.module(f"{layer}", "Block"):
            tape.op("relu", Value((2,), FP16))
            tape.op(f"op{layer}", Value((2,), FP16))
    html = tape.xray()._repr_html_()
    assert html.count("<details open>") == 1
    assert html.count("<details>") == 30


def test_sentences_are_no_wider_than_what_jupyterlab_prints(image, failing, harmful):
    for x in (image, failing, harmful):
        outside = repr(x).replace(x.table(), "")
        assert x.table() in repr(x)
        assert all(len(line) <= 92 for line in outside.splitlines() if "Cell" not in line)


def test_texts_begin_left_and_numbers_end_right_whatever_the_page_says(image):
    """JupyterLab's own style for tables aligns every cell to the right."""
    found = outline(image._repr_html_())
    assert set(found.aligned) == {("right", "left", "left", "left", "left", "left", "left", "left")}


def test_a_notebooks_cell_is_named_by_its_number():
    tape = Tape()
    tape.op("relu", Value((2,), FP16))
    tape.ops[0] = replace(tape.ops[0], source=Source("Cell In[14]", 11, "forward", "y = relu(x)"))
    x = tape.xray()
    assert lines(x.table())[1][-1] == "[14]:11"
    assert ">[14]:11</td>" in x._repr_html_()
    assert 'title="Cell In[14]:11, in forward: y = relu(x)"' in x._repr_html_()
    assert "[14]:11" in printed(x)


def test_long_names_break_behind_dots_and_underscores():
    tape = Tape()
    tape.op("scaled_dot_product_attention", Value((2,), FP16))
    assert ">scaled_<wbr>dot_<wbr>product_<wbr>attention</th>" in tape.xray()._repr_html_()


def test_hovering_shows_reason_line_and_kernels(image):
    html = image._repr_html_()
    assert 'title="linear has the fate lower precision"' in html
    assert 'title="/home/me/model.py:1, in forward: y = linear(x)"' in html
    assert 'title="kernels: aten.linear.default"' in html
    assert 'title="FP32 2×16×64, layers.0.attn.qkv.weight FP32 192×64' in html


def printed(shown, width=200):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(shown)
    console.file.close()
    return console.export_text()


def test_rich_says_the_same(image):
    text = printed(image)
    assert "layers.0 … layers.11 (EncoderLayer): 12 times the same" in " ".join(
        text.replace("│", " ").split()
    )
    assert "lower precision" in text
    assert "84 views not listed" in text


def test_views_are_told_of_without_a_name_for_the_x_ray(image):
    html = image._repr_html_()
    assert "which copy nothing; .table(views=True) of this x-ray lists them." in html
    assert "print(" not in html


# --- by module


def test_modules(image):
    found = {each.module: each for each in image.modules()}
    assert list(found)[:5] == ["", "embed", "layers", "layers.0", "layers.0.norm1"]
    layer = found["layers.4"]
    assert layer.module_type == "EncoderLayer"
    assert dict(layer.forward.dtypes) == {FP16: 6, FP32: 4}
    assert (layer.forward.casts, layer.forward.copied, layer.forward.views) == (10, 107_648, 7)
    assert layer.backward.ops == 10
    assert found[""].forward.ops == 123
    assert found["layers"].forward.copied == 12 * 107_648


def test_modules_as_a_table(image):
    rows = lines(repr(image.modules(2)))
    assert rows[0] == ["module", "class", "forward", "casts", "copied", "backward", "casts", "copied"]
    assert rows[1][:4] == ["(the model)", "Net", "73 FP16, 50 FP32", "124"]
    assert rows[4] == [
        "layers.0",
        "EncoderLayer",
        "6 FP16, 4 FP32",
        "10",
        f"108{NBSP}kB",
        "6 FP16, 4 FP32",
        "–",
        "–",
    ]
    assert not any("attn" in row[0] for row in rows)
    assert outline(image.modules(1)._repr_html_()).stack == []
    assert "(the model)" in printed(image.modules(0))


@pytest.mark.parametrize(("depth", "kind"), [(-1, ValueError), (1.5, TypeError), (True, TypeError)])
def test_bad_depths(image, depth, kind):
    with pytest.raises(kind, match="levels of modules"):
        image.modules(depth)
    with pytest.raises(kind, match="levels of modules"):
        image.plot(depth=depth)


def test_casts_in_the_code_are_counted_apart():
    tape = Tape()
    tape.to(Value((10,), FP16), FP32)
    tape.op("copy", Value((10,), FP16), kernels=("aten._to_copy.default",))  # the same dtype: no cast
    (model,) = tape.xray().modules()
    assert (model.forward.casts, model.forward.own, model.forward.own_copied) == (0, 1, 40)
    assert f"1 cast of the model's code copied 40{NBSP}B" in repr(tape.xray())


# --- JSON


def test_json_gives_the_same_back(image, failing):
    for each in (image, failing, Tape(BF16).xray(dtype=BF16, notes=("a note",))):
        again = XRay.from_json(each.to_json())
        assert again == each
        assert again.warnings == each.warnings
        assert str(again.explanation) == str(each.explanation)


def test_json_keeps_what_matters(failing):
    data = json.loads(failing.to_json())
    assert (data["kind"], data["version"]) == ("amp_lab x-ray", 1)
    assert data["ops"][0]["fate"] == "LOWER"
    assert data["ops"][0]["casts"][1]["value"]["name"] == "first.weight"
    assert data["dtype"] == "float16"
    place = Source("a.py", 3, "f", "x")
    more = {"source": place, "fate": Fate.WIDEST, "region": None, "within": "F", "view": True}
    op = replace(failing.ops[0], **more, scalars=(("other", 1e-05), ("alpha", 2)))
    assert XRay.from_json(replace(failing, ops=(op,)).to_json()).ops == (op,)


def spoiled(x, change):
    data = json.loads(x.to_json())
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data.update(version=2), "of version 2"),
        (lambda data: data.update(kind="gradient report"), "not an x-ray"),
        (lambda data: data.pop("ops"), "'ops' is missing"),
        (lambda data: data.update(dtype="float17"), "no dtype 'float17'"),
        (lambda data: data.update(mode="guess"), "mode is 'guess'"),
        (lambda data: data.update(model=3), "model is 3"),
        (lambda data: data.update(ops=[{"number": 1}]), "is missing"),
        (lambda data: data["ops"][0].update(colour="blue"), "damaged"),
        (lambda data: data["ops"][0].update(fate="LOST"), "'LOST'"),
        (lambda data: data.update(ops=3), "damaged"),
    ],
)
def test_json_that_is_no_xray(failing, change, said):
    with pytest.raises(ValueError, match=said):
        XRay.from_json(spoiled(failing, change))


@pytest.mark.parametrize("text", ["", "xray.json", "[1]", "{}", "null"])
def test_foreign_text(text):
    with pytest.raises(ValueError, match=r"not JSON|not an x-ray"):
        XRay.from_json(text)
    with pytest.raises(TypeError, match="bytes"):
        XRay.from_json(text.encode())


def test_a_fold_says_how_many_more_there_are():
    tape = Tape()
    x = Value((4, 4), FP16)
    for _ in range(5):
        x = tape.op("relu", x)
    lines = tape.xray().table().splitlines()
    assert [line.split()[1:] for line in lines if "more like this" in line] == [
        ["and", "4", "more", "like", "this"]
    ]


def test_operators_on_integers_are_counted_and_listed_only_if_asked():
    tape = Tape()
    tape.op("add_", Value((), torch.int64))
    assert "add_" in tape.xray().table()  # there is nothing else
    tape.op("relu", Value((4, 4), FP16))
    assert "add_" not in tape.xray().table()
    assert "1 operator without floating-point numbers not listed" in flat(tape.xray().table())
    assert "add_" in tape.xray().table(views=True)


def test_a_cast_of_the_code_shows_its_bytes():
    tape = Tape()
    tape.to(Value((10, 10), FP16), FP32)
    assert "FP16→FP32 400\N{NO-BREAK SPACE}B" in tape.xray().table()


@pytest.mark.parametrize(("found", "written"), [('"cuda"', '"tpu"'), ('"float16"', '"float17"')])
def test_json_with_an_unknown_device_or_dtype_is_refused(found, written):
    tape = Tape()
    tape.op("relu", Value((4, 4), FP16))
    text = tape.xray().to_json()
    assert found in text
    with pytest.raises(ValueError, match=written.strip('"')):
        XRay.from_json(text.replace(found, written))


def test_plain_numbers_survive_json():
    tape = Tape()
    tape.op(
        "masked_fill", Value((4, 4), FP16), scalars=(("value", float("-inf")), ("other", 3), ("alpha", 0.5))
    )
    x = tape.xray()
    assert "Infinity" not in x.to_json()  # which is no JSON
    assert XRay.from_json(x.to_json()) == x


@pytest.mark.parametrize(("name", "fate", "dtype", "said"), [
    ("log_softmax", Fate.FP32_UNLESS, FP16, "FP16 was passed as dtype"),
    ("einsum", Fate.LOWER, torch.complex64, "complex64 is left alone"),
    ("linear", Fate.LOWER, torch.float64, "FP64 is left alone"),
    ("softmax", Fate.FP32_UNLESS, FP32, "FP32 unless a dtype is passed"),
])  # fmt: skip
def test_why_says_what_happened_and_not_the_rule_alone(name, fate, dtype, said):
    tape = Tape()
    tape.op(name, Value((4, 4), dtype))
    tape.ops[0] = replace(tape.ops[0], fate=fate, dtype=dtype, casts=())
    assert said in tape.xray().table()
