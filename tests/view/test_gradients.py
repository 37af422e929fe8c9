"""The gradient histogram and the loss-scale explorer, over reports of `amp_lab.watching`."""

import base64
import io
import math
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import matplotlib

matplotlib.use("agg")

import pytest
import torch
from matplotlib import pyplot as plt

from amp_lab.view.gradients import LOOKS, gradient_histogram
from amp_lab.view.loss_scale import loss_scale_explorer
from amp_lab.watching.gradients import gradient_report

REPOSITORY = Path(__file__).parents[2]
WIDGET = "application/vnd.jupyter.widget-view+json"
# 10 zeros; of the others 40 at 2^-30, 30 at 2^-20, 20 at 2^-10, 10 at 2^0
VALUES = [0.0] * 10 + [2.0**-30] * 40 + [-(2.0**-20)] * 30 + [2.0**-10] * 20 + [1.0] * 10


@pytest.fixture(autouse=True)
def no_figure_stays_open():
    plt.close("all")
    yield
    plt.close("all")


@pytest.fixture
def report():
    return gradient_report({"w": torch.tensor(VALUES)})


def drawn(figure):
    figure.canvas.draw()
    (axes,) = figure.axes
    return axes


def bars(axes):
    """Return for each fate the bars in its colour: power of two and height."""
    found = {}
    for fate, group in zip(LOOKS, axes.containers, strict=True):
        for bar in group:
            assert matplotlib.colors.same_color(bar.get_edgecolor(), LOOKS[fate].colour)
        found[fate] = [(bar.get_x(), round(bar.get_height(), 6)) for bar in group if bar.get_height()]
    return found


def legend(figure):
    """Return what the shares are, and what stands apart from them."""
    return [dict(text.get_text().split("\n") for text in each.get_texts()) for each in figure.legends]


def triangles(axes):
    return [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "v"]


def test_at_scale_1(report):
    figure = gradient_histogram(report)
    axes = drawn(figure)
    assert bars(axes) == {
        "zero": [(-30, 40)],
        "subnormal": [(-20, 30)],
        "normal": [(-10, 20), (0, 10)],
        "overflow": [],
    }
    shares = {"become zero": "40.0 %", "subnormal": "30.0 %", "normal": "30.0 %", "overflow": "0 %"}
    assert legend(figure) == [shares, {"all under 2⁻²⁴": "40.0 %"}]
    first, apart = (each.get_window_extent() for each in figure.legends)
    assert apart.x0 - first.x1 > 50
    assert figure.get_suptitle() == "What FP16 makes of the gradients at scale 1"
    assert axes.get_xlabel() == "size of the gradient (not shown: 10 exactly 0, of 110)"
    assert axes.get_ylabel() == "share of the gradients (%)"


def test_a_scale_moves_the_bars_and_not_the_window(report):
    figure = gradient_histogram(report, 2.0**17)
    axes = drawn(figure)
    assert bars(axes) == {
        "zero": [],
        "subnormal": [],
        "normal": [(-13, 40), (-3, 30), (7, 20)],
        "overflow": [(17, 10)],
    }
    assert figure.get_suptitle() == "What FP16 makes of the gradients at scale 2¹⁷ = 131,072"
    assert axes.get_xlabel().startswith("size of the gradient × scale")
    edges = [(span.get_x(), span.get_x() + span.get_width()) for span in axes.patches[:4]]
    assert [right for _, right in edges[:3]] == pytest.approx([left for left, _ in edges[1:]])
    assert edges[0][1] == -25
    assert math.isclose(edges[1][1], -14, abs_tol=1e-3)
    assert math.isclose(edges[2][1], 16, abs_tol=1e-3)


def test_all_bars_and_the_whole_window_are_on_the_axis():
    for values in ([2.0**-140, 1.0], [2.0**60], [2.0**-100]):
        report = gradient_report(torch.tensor(values))
        low, high = drawn(gradient_histogram(report)).get_xlim()
        assert low <= min(-25, report.powers[0]) - 1
        assert high >= max(16, report.powers[-1] + 1) + 1


def test_ticks_are_powers_of_two_and_few(report):
    axes = drawn(gradient_histogram(report))
    labels = [label.get_text() for label in axes.get_xticklabels()]
    assert "2⁻²⁴" in labels
    assert "2⁰" in labels
    assert 5 <= len(labels) <= 15


def test_what_is_not_shown_is_named_if_it_occurs():
    axes = drawn(gradient_histogram(gradient_report(torch.tensor([1.0, 0.0, math.nan, math.inf, -math.inf]))))
    assert axes.get_xlabel().endswith("(not shown: 1 exactly 0, 2 infinite, 1 NaN, of 5)")
    axes = drawn(gradient_histogram(gradient_report(torch.tensor([1.0, math.nan]))))
    assert axes.get_xlabel().endswith("(not shown: 1 NaN, of 2)")


def test_triangles_mark_the_smallest_and_the_largest():
    report = gradient_report(torch.tensor([2.0**-30] * 10**6 + [1.5 * 2.0**-11, 2.0**-56]))
    assert triangles(drawn(gradient_histogram(report))) == [-55.5, math.log2(1.5) - 11]
    for power in (0, 26, 27):  # the largest crosses the edge where the words say that it does
        axes = drawn(gradient_histogram(report, 2.0**power))
        _, largest = triangles(axes)
        assert (largest > math.log2(report.window.overflow_from)) == bool(report.at(2.0**power).overflow)
        edges = axes.get_window_extent()
        words = [text.get_window_extent() for text in axes.texts]
        assert [text.get_text().strip() for text in axes.texts] == ["smallest", "largest"]
        assert min(box.x0 for box in words) > edges.x0
        assert max(box.x1 for box in words) < edges.x1


def inside(figure):
    """Tell whether all words of a figure are on it."""
    figure.canvas.draw()
    box, page = figure.get_tightbbox(), figure.get_size_inches()
    return box.x0 >= 0 and box.y0 >= 0 and box.x1 <= page[0] and box.y1 <= page[1]


def test_a_long_title_takes_two_lines_and_letters_of_a_style_do_not_push_anything_out(report):
    with plt.rc_context({"font.size": 20, "lines.marker": "o"}):
        figure = gradient_histogram(report, title="a long title with $ signs $ " * 8)
        assert inside(figure)
    first, _, second = figure.get_suptitle().partition("\n")
    assert r"\$" in first
    assert second.endswith("…")
    assert figure._suptitle.get_window_extent().y0 > figure.legends[0].get_window_extent().y1
    assert [line.get_marker() for line in figure.axes[0].lines].count("None") == 1


def test_nothing_but_zeros_is_said():
    figure = gradient_histogram(gradient_report(torch.zeros(5)), title="mine")
    assert "no finite gradient but zeros" in [text.get_text() for text in drawn(figure).texts]
    assert figure.get_suptitle() == "mine"


@pytest.mark.parametrize(
    ("draw", "name"),
    [(gradient_histogram, "gradient_histogram"), (loss_scale_explorer, "loss_scale_explorer")],
)
def test_what_cannot_be_drawn_leaves_no_figure(draw, name, report):
    with pytest.raises(TypeError, match=f"{name} needs a gradient report.*this is a Linear"):
        draw(torch.nn.Linear(1, 1))
    with pytest.raises(ValueError, match="scale=3: a scale here is a power of two"):
        draw(report, 3)
    with pytest.raises(TypeError, match=r"scale: a number such as 0\.1 is needed"):
        draw(report, "large")
    assert plt.get_fignums() == []


# The explorer, driven as a frontend drives it.


def test_sliding(report):
    panel = loss_scale_explorer(report).panel
    assert panel.slider.value == 0
    assert panel.sentence.value == (
        "At scale 1, in FP16: of 100 nonzero gradients 40 become zero (40.0 %), 30 subnormal (30.0 %), "
        "30 normal (30.0 %), 0 overflow (0 %)."
    )
    before = panel.picture.value
    panel.slider.value = 17
    assert panel.slider.label == "2^17"
    assert panel.sentence.value.startswith("At scale 2^17 = 131,072, in FP16: of 100")
    assert (
        "0 become zero (0 %), 0 subnormal (0 %), 90 normal (90.0 %), 10 overflow (10.0 %)"
        in panel.sentence.value
    )
    assert panel.picture.value != before
    assert re.search('alt="(.*?)"', panel.picture.value)[1] == panel.sentence.value
    panel.slider.value = 0
    assert panel.picture.value == before


@pytest.mark.parametrize("size", [2.0**-80, 2.0**-6, 1.0, 2.0**20, 2.0**30])
def test_the_slider_goes_a_little_further_than_the_window(size):
    report = gradient_report(torch.tensor(VALUES) * size)
    panel = loss_scale_explorer(report).panel
    powers = [power for _, power in panel.slider.options]
    assert powers == list(range(powers[0], powers[-1] + 1))
    overflows = [power for power in powers if report.at(2.0**power).overflow]
    saved = [power for power in powers if not report.at(2.0**power).zero]
    assert powers[0] <= 0 <= powers[-1]
    assert 0 < len(overflows) < len(powers)
    assert saved
    assert powers[-1] <= max(overflows[0], saved[0], 12) + 5
    for power in powers[::10]:
        panel.slider.value = power


def test_the_button_goes_to_the_recommended_scale(report):
    panel = loss_scale_explorer(report).panel
    assert panel.best.description == "go to the recommended 2^13"
    panel.best.click()
    assert panel.slider.value == 13
    broken = loss_scale_explorer(gradient_report(torch.tensor([1.0, math.inf]))).panel
    assert broken.best.layout.display == "none"


def test_the_axis_stays_where_it_is_and_says_what_is_beyond(monkeypatch):
    report = gradient_report(torch.tensor([2.0**-60] * 3 + [1.0]))
    figures = []
    from amp_lab.view import loss_scale

    original = loss_scale.as_image
    monkeypatch.setattr(
        loss_scale, "as_image", lambda figure, words: figures.append(figure) or original(figure, words)
    )
    panel = loss_scale_explorer(report).panel
    panel.slider.value = panel.slider.options[-1][1]
    first, last = map(drawn, figures)
    assert first.get_xlim() == last.get_xlim()
    assert [text.get_text() for text in first.texts] == ["  largest", "◀ 75.0 % further left"]
    assert [text.get_text() for text in last.texts] == ["smallest  ", "25.0 % further right ▶"]


def test_starting_elsewhere(report):
    assert loss_scale_explorer(report, 2.0**3).panel.slider.value == 3
    assert loss_scale_explorer(gradient_report(torch.ones(2), scale=2.0**100)).panel.slider.value == 100
    with pytest.raises(ValueError, match=r"the slider goes from 2\*\*-24 to 2\*\*126"):
        loss_scale_explorer(report, 2.0**127)
    with pytest.raises(
        ValueError, match=r"\(the report's own; pass another, such as scale=1\.0\): the slider"
    ):
        loss_scale_explorer(gradient_report(torch.ones(2), scale=2.0**-100))


@pytest.mark.parametrize("values", [[0.0, 0.0], [math.nan], [2.0**-149], [3e38]])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_odd_gradients(values, dtype):
    panel = loss_scale_explorer(gradient_report(torch.tensor(values), dtype=dtype)).panel
    panel.slider.value = panel.slider.options[-1][1]
    assert "of the gradients" not in panel.sentence.value
    assert panel.picture.value.startswith("<img")


def test_all_forms_for_a_notebook(report):
    explorer = loss_scale_explorer(report, 2.0**13)
    bundle = explorer._repr_mimebundle_(include=None, exclude=None)
    assert bundle[WIDGET]["model_id"] == explorer.panel.box.model_id
    assert bundle["text/plain"] == repr(explorer)
    height, width, _ = plt.imread(io.BytesIO(bundle["image/png"])).shape
    assert (width, height) == (800, 390)
    assert plt.get_fignums() == [], "the notebook would show the picture twice"
    assert explorer._repr_mimebundle_()["image/png"] == bundle["image/png"], "a build would not repeat itself"
    live = re.search('base64,(.*?)"', explorer.panel.picture.value)[1]
    assert base64.b64decode(live) == bundle["image/png"], "picture and widget start with the same"


SCRIPT = """
import sys
sys.modules["ipywidgets"] = None  # as where it is not installed
import torch
from amp_lab.view.loss_scale import loss_scale_explorer
from amp_lab.watching.gradients import gradient_report
print("matplotlib" in sys.modules, end=" ")
explorer = loss_scale_explorer(gradient_report(torch.ones(2)))
print(sorted(explorer._repr_mimebundle_()))
"""


def test_without_ipywidgets_there_are_text_and_picture():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert done.stdout.split(" ", 1)[1].strip() == "['image/png', 'text/plain']"


def test_a_report_of_another_kind_is_enough():
    """Nothing is asked but what the Protocol says; the numerics stay with whoever gives the report."""
    fates = SimpleNamespace(nonzero=2, zero=1, subnormal=0, normal=1, overflow=0, share=lambda fate: 0.5)
    other = SimpleNamespace(
        format_name="FP7",
        scale=1.0,
        window=SimpleNamespace(zero_up_to=2**-5, smallest=2**-4, normal_from=2**-2, overflow_from=8.0),
        total=SimpleNamespace(entries=2, nonzero=2, zeros=0, infinite=0, nan=0, largest=2**-6.5),
        powers=[-8, -7],
        counts=[1, 1],
        at=lambda scale=None: fates,
        recommended_scale=None,
    )
    assert gradient_histogram(other).get_suptitle() == "What FP7 makes of the gradients at scale 1"
    assert "1 become zero (50.0 %)" in loss_scale_explorer(other).panel.sentence.value
