"""The tree of modules with dtypes: where marks, arrows, frames and texts lie."""

import itertools

import matplotlib

matplotlib.use("agg")

import pytest
from matplotlib import pyplot as plt
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from amp_lab.view.dtype_colours import LOOKS, OTHER, look
from amp_lab.view.dtype_rows import Arrow, Cell, Group, Row
from amp_lab.view.dtype_tree import dtype_tree


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    plt.close("all")
    yield
    plt.close("all")


def op(label, dtype, *casts, failed=False):
    return Row(label, [Cell({dtype: dtype}, casts)], failed)


ROWS = [
    op("embed", "FP32"),
    Group("layers.0 … layers.3", "Block", [
        op("norm", "FP32"),
        Group("attn", "Attention", [op("linear", "FP16", Arrow("FP32", "FP16", "x, 2 w")), op("sdpa", "FP16")]),
        op("loss", "FP32", Arrow("FP16", "FP32", "x")),
    ], 4),
]  # fmt: skip


def drawn(items=ROWS, phases=("forward",), title="A title", note=""):
    figure = dtype_tree(items, phases, title, note)
    figure.canvas.draw()
    return figure, figure.axes[0]


def texts(axes):
    return {each.get_text(): each for each in axes.texts if each.get_text()}


def marks(axes):
    return [each for each in axes.patches if isinstance(each, FancyBboxPatch) and each.get_zorder() == 3]


def frames(axes):
    return [each for each in axes.patches if isinstance(each, FancyBboxPatch) and each.get_zorder() < 1]


def middle(mark):
    return mark.get_x() + mark.get_width() / 2, mark.get_y() + mark.get_height() / 2


def test_each_mark_lies_in_the_column_of_its_dtype_beside_its_name():
    _, axes = drawn()
    said = texts(axes)
    columns = {dtype: each.get_position()[0] for dtype, each in said.items() if dtype in ("FP16", "FP32")}
    heads = [each for each in axes.texts if each.get_weight() == "bold" and each.get_text() in columns]
    columns = {each.get_text(): each.get_position()[0] for each in heads}
    assert columns["FP16"] < columns["FP32"]
    names = ["embed", "norm", "linear", "sdpa", "loss"]
    for mark, name, dtype in zip(marks(axes), names, ["FP32", "FP32", "FP16", "FP16", "FP32"], strict=True):
        x, y = middle(mark)
        assert x == pytest.approx(columns[dtype])
        assert y == pytest.approx(said[name].get_position()[1])
        assert to_rgb(mark.get_facecolor()) == to_rgb(LOOKS[dtype].fill)


def test_columns_go_from_narrow_to_wide():
    dtypes = ["no floats", "FP64", "FP32", "BF16", "FP16", "FP8 E4M3"]
    _, axes = drawn([op(f"row {dtype}", dtype) for dtype in dtypes])
    heads = sorted(
        (each for each in axes.texts if each.get_weight() == "bold"), key=lambda each: each.get_position()[0]
    )
    assert [each.get_text() for each in heads] == dtypes[::-1]


def test_arrows_go_from_one_column_to_the_edge_of_the_mark():
    _, axes = drawn()
    arrows = [each.arrow_patch for each in axes.texts if getattr(each, "arrow_patch", None)]
    assert len(arrows) == 2
    assert all(isinstance(each, FancyArrowPatch) for each in arrows)
    said = texts(axes)
    heads = {each.get_text(): each.get_position()[0] for each in axes.texts if each.get_weight() == "bold"}
    annotations = [each for each in axes.texts if getattr(each, "arrow_patch", None)]
    (down, up) = annotations
    mark = marks(axes)[2]
    assert down.xy[0] == pytest.approx(mark.get_x() + mark.get_width())
    assert down.get_position()[0] == pytest.approx(heads["FP32"])
    assert up.xy[0] == pytest.approx(marks(axes)[4].get_x())
    # The label stands behind the tail, outside of the arrow.
    assert said["x, 2 w"].get_position()[0] > heads["FP32"]
    assert said["x"].get_position()[0] < heads["FP16"]


def test_an_arrow_from_a_mark_has_its_label_at_its_head():
    rows = [op("linear", "FP16", Arrow("FP16", "FP32", "3 g")), op("norm", "FP32")]
    _, axes = drawn(rows)
    heads = {each.get_text(): each.get_position()[0] for each in axes.texts if each.get_weight() == "bold"}
    assert texts(axes)["3 g"].get_position()[0] > heads["FP32"]
    (arrow,) = [each for each in axes.texts if getattr(each, "arrow_patch", None)]
    assert arrow.get_position()[0] == pytest.approx(marks(axes)[0].get_x() + marks(axes)[0].get_width())


def test_a_frame_holds_the_rows_of_its_module():
    _, axes = drawn()
    layer, attention = frames(axes)
    said = texts(axes)

    def holds(frame, name):
        return frame.get_y() < said[name].get_position()[1] < frame.get_y() + frame.get_height()

    assert [name for name in ("embed", "norm", "linear", "sdpa", "loss") if holds(layer, name)] == [
        "norm",
        "linear",
        "sdpa",
        "loss",
    ]
    assert [name for name in ("norm", "linear", "sdpa", "loss") if holds(attention, name)] == [
        "linear",
        "sdpa",
    ]
    assert layer.get_x() < attention.get_x()
    assert "× 4" in said
    assert "Block" in said


def test_what_failed_is_hatched_and_says_so():
    _, axes = drawn([op("bce", "FP16", failed=True)])
    (mark,) = marks(axes)
    assert mark.get_hatch()
    assert "error" in texts(axes)


def test_two_phases_have_columns_of_their_own():
    row = Row("linear", [Cell({"FP16": "FP16"}), Cell({"FP32": "FP32"}, [Arrow("FP64", "FP32", "g")])])
    _, axes = drawn([row], ("forward", "backward"))
    heads = [each.get_text() for each in axes.texts if each.get_weight() == "bold"]
    assert heads == ["FP16", "FP32", "FP64"]
    assert {"forward", "backward"} <= set(texts(axes))


CROWDED = [
    op("a.very.long.path.of.modules.that.does.not.fit.into.the.column.of.names.at.all: linear", "FP16",
       Arrow("FP32", "FP16", "3 x, 2 w, w*")),
    Group("encoder.with.a.long.name.too.and.still.longer.than.that", "AClassWithAnEvenLongerNameThanItsPath" * 2, [
        op("$x_1$ costs $5", "no floats"),
        Row("closed (Block): 12 casts", [Cell({"FP16": "× 1,234", "FP32": "× 999"})]),
        op("both", "FP32", Arrow("FP16", "FP32", "4 g", both=True)),
    ], 1200),
]  # fmt: skip


@pytest.mark.parametrize("style", ["default", "dark_background", "grayscale"])
@pytest.mark.parametrize("items", [ROWS, CROWDED], ids=["rows", "crowded"])
def test_no_text_leaves_the_figure_or_meets_another(items, style):
    with plt.style.context(style):
        figure, axes = drawn(items, title="What a long title " * 8, note="A note that goes on. " * 12)
    boxes = {each: each.get_window_extent() for each in axes.texts if each.get_text().strip()}
    for text, box in boxes.items():
        assert box.x0 >= 0 <= box.y0, text
        assert box.x1 <= figure.bbox.x1, text
        assert box.y1 <= figure.bbox.y1, text
    for (one, first), (other, second) in itertools.combinations(boxes.items(), 2):
        overlap = (
            min(first.x1, second.x1) - max(first.x0, second.x0),
            min(first.y1, second.y1) - max(first.y0, second.y0),
        )
        assert min(overlap) < 1.5, (one, other)


@pytest.mark.parametrize("dpi", [72, 100, 200])
@pytest.mark.parametrize("length", [5, 60, 90, 400])
def test_title_and_note_are_as_long_as_the_figure_is_wide(length, dpi):
    words = ("layer norm, weights and gradients: " * 20)[:length]
    figure, axes = drawn(title=words, note=words * 2)
    figure.set_dpi(dpi)
    figure.canvas.draw()
    for text in (found for said, found in texts(axes).items() if said.startswith(words[:5])):
        right = text.get_window_extent().x1 / dpi
        assert right <= figure.get_figwidth()
        assert "\n" not in text.get_text() or right > 0.7 * figure.get_figwidth()


def test_the_columns_take_the_room_that_the_title_needs():
    _, short = drawn(title="A")
    figure, long = drawn(title="A long title on one line: the dtype of every operator, FP16 on CUDA")
    assert all("\n" not in said for said in texts(long))
    apart = []
    for axes in (short, long):
        places = sorted(middle(each)[0] for each in marks(axes))
        assert places[-1] > 0.7 * axes.get_xlim()[1]
        apart.append(places[-1] - places[0])
    assert apart[1] > apart[0] + 0.1
    assert figure.get_figwidth() < 7


def test_dollars_are_no_formula():
    _, axes = drawn(CROWDED)
    assert any(each.get_text() == r"\$x_1\$ costs \$5" for each in axes.texts)


def test_colours_differ_in_grey_or_have_other_columns():
    greys = {name: _grey(each.fill) for name, each in LOOKS.items()}
    assert abs(greys["FP16"] - greys["FP32"]) > 0.2
    assert abs(greys["BF16"] - greys["FP32"]) > 0.2
    for each in (*LOOKS.values(), OTHER):
        assert _contrast(each.fill, each.text) > 3


def _grey(colour):
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def _contrast(one, other):
    """The contrast ratio of WCAG 2."""

    def luminance(colour):
        parts = [
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)
        ]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


def test_looks():
    assert look("FP8 E5M2") == LOOKS["FP8"]
    assert look("int64") == OTHER


def test_nothing_to_draw():
    with pytest.raises(ValueError, match="no row"):
        dtype_tree([], ("forward",), "title")
    with pytest.raises(ValueError, match="'a' has 1 cells, for 2 phases"):
        dtype_tree([op("a", "FP16")], ("forward", "backward"), "title")
    assert plt.get_fignums() == []
