"""The float explorer, driven through its real widgets as a frontend drives them: by setting values and clicking."""

import base64
import io
import math
import random
import re
import subprocess
import sys
from pathlib import Path

import matplotlib

matplotlib.use("agg")

import pytest
from matplotlib import pyplot as plt

from amp_lab import formats
from amp_lab.view.widgets import float_explorer

REPOSITORY = Path(__file__).parents[2]
WIDGET = "application/vnd.jupyter.widget-view+json"
FP32, FP16, BF16, E4M3 = formats.FP32, formats.FP16, formats.BF16, formats.FP8_E4M3


@pytest.fixture
def panel():
    return float_explorer((FP32, FP16, BF16, E4M3)).panel


def stored(panel, name):
    """Return the value that the table shows for a format."""
    (row,) = re.findall(rf"<b>{name}</b>.*?</tbody>", panel.table.value)
    return re.search(r"<td><code><b>(.*?)</b>", row)[1]


def message(panel):
    return panel.message.value


def test_the_start(panel):
    assert panel.text.value == "0.1"
    assert panel.slider.value == -100
    assert stored(panel, "FP16") == "0.0999755859375"
    assert [each.description for each in (panel.down, panel.up)] == [
        "◀ previous FP16 number",
        "next FP16 number ▶",
    ]


@pytest.mark.parametrize(
    ("text", "fp16", "e4m3", "slider"),
    [
        ("65519.99", "65504", "448", 482),
        ("2**-24", "5.9604644775390625e−8", "0", -722),
        ("1/3", "0.333251953125", "0.34375", -48),
        ("-3", "−3", "−3", 48),
        ("inf", "inf", "448", 600),
        ("1e300", "inf", "448", 600),
        ("0", "0", "0", -900),
        ("nan", "NaN", "NaN", -100),
    ],
)
def test_typing(panel, text, fp16, e4m3, slider):
    panel.text.value = text
    assert (stored(panel, "FP16"), stored(panel, "FP8 E4M3")) == (fp16, e4m3)
    assert panel.slider.value == slider
    assert panel.text.value == text, "it is changed under somebody's hands"
    assert message(panel) == ""


def test_a_text_that_is_no_number_leaves_the_table_and_is_escaped(panel):
    before = panel.table.value
    panel.text.value = "<b>1"
    assert panel.table.value == before
    assert message(panel).startswith("“&lt;b&gt;1” is not a number")
    assert message(panel).endswith("The table is still of 0.1.")
    panel.text.value = "2"
    assert message(panel) == ""
    assert stored(panel, "FP16") == "2"


def test_sliding(panel):
    panel.text.value = "-0.1"
    panel.slider.value = -99
    assert panel.text.value == "-0.1023"
    assert panel.slider.value == -99
    assert stored(panel, "FP32").startswith("−0.1023000031")
    panel.slider.value = -800
    assert panel.text.value == "-1e-08"
    assert stored(panel, "FP16") == "−0"


def test_a_slide_sends_text_and_message_whatever_they_were(panel, monkeypatch):
    """A frontend whose own text is under way passes over another one."""
    sent = []
    for name in ("text", "message"):
        control = getattr(panel, name)
        monkeypatch.setattr(control, "send_state", lambda key, name=name: sent.append((name, key)))
    panel.text.value = "abc"
    sent.clear()
    panel.slider.value = -99
    assert sent[-2:] == [("text", "value"), ("message", "value")], "after what ipywidgets sends by itself"
    assert (panel.text.value, message(panel)) == ("0.1023", "")


def test_it_is_said_that_sums_are_rounded_once(panel):
    said = [each.value for each in panel.box.children if "0.1 + 0.2" in getattr(each, "value", "")]
    assert len(said) == 1
    assert "rounded once" in said[0]
    assert "rounded once" in panel.text.tooltip
    panel.text.value = "0.1 + 0.2"
    assert stored(panel, "FP32") == "0.300000011920928955…"


def test_a_root_is_refused_with_the_reason(panel):
    panel.text.value = "2**0.5"
    assert message(panel).startswith("The exponent of a power must be a whole number")


def test_every_place_of_the_slider_is_a_number_of_its_own(panel):
    seen = set()
    for place in range(panel.slider.min, panel.slider.max + 1, 25):
        panel.slider.value = place
        seen.add(panel.text.value)
        panel.text.value += " "  # typed: the slider must not move from where it is
        assert panel.slider.value == place
    assert len(seen) == len(range(panel.slider.min, panel.slider.max + 1, 25))


def test_stepping_from_a_number_between_two(panel):
    panel.up.click()
    assert float(panel.text.value) == 0.10003662109375
    panel.down.click()
    assert float(panel.text.value) == 0.0999755859375
    assert "error none" not in panel.table.value
    panel.down.click()
    assert float(panel.text.value) == 0.09991455078125
    assert stored(panel, "FP16") == "0.09991455078125"


def test_a_step_is_exact_also_where_its_text_is_not(panel):
    """0.10000000894069672 is the shortest text of an FP32 number, and not that number itself."""
    panel.choice.value = 0
    panel.up.click()
    panel.up.click()
    row = re.search(r"<b>FP32</b>.*?</tbody>", panel.table.value)[0]
    assert "<code>none</code>" in row


def test_stepping_in_another_format(panel):
    panel.text.value = "1"
    panel.choice.value = 2
    assert panel.up.description == "next BF16 number ▶"
    panel.up.click()
    assert panel.text.value == "1.0078125"


def test_stepping_across_zero_and_off_the_end(panel):
    panel.text.value = "0"
    panel.down.click()
    assert float(panel.text.value) == -(2.0**-24)
    panel.up.click()
    panel.up.click()
    assert float(panel.text.value) == 2.0**-24
    panel.text.value = "65504"
    panel.up.click()
    assert panel.text.value == "inf"
    panel.up.click()
    assert message(panel) == "FP16 has no number above inf."
    panel.down.click()
    assert panel.text.value == "65504"
    panel.choice.value = 3
    panel.text.value = "448"
    panel.up.click()
    assert message(panel) == "FP8 E4M3 has no number above 448."
    panel.text.value = "nan"
    panel.up.click()
    assert message(panel) == "NaN has no next number. Type one, such as 1."


def test_a_wild_user(panel):
    """Whatever is done in whatever order, nothing raises, and the table is of the number that is shown last."""
    dice = random.Random(0)
    texts = [
        "",
        "-",
        "1e",
        "1e-400",
        "1e400",
        "-0.0",
        "nan",
        "inf",
        "2**",
        "2**-24",
        "1/0",
        "5e-324",
        "<",
        "0.3",
    ]
    for _ in range(200):
        match dice.randrange(5):
            case 0:
                panel.text.value = dice.choice(texts)
            case 1:
                panel.slider.value = dice.randint(panel.slider.min, panel.slider.max)
            case 2:
                panel.choice.value = dice.randrange(4)
            case 3:
                panel.up.click()
            case 4:
                panel.down.click()
        value = FP16.round(panel.meant.value).item()
        shown = stored(panel, "FP16").replace("−", "-").replace("…", "")
        assert math.isnan(value) if shown == "NaN" else math.isclose(float(shown), value, rel_tol=1e-15)


def test_formats_come_in_the_order_given_and_the_first_is_stepped_in_without_fp16():
    explorer = float_explorer((BF16, FP32), "1/3")
    assert re.findall(r"<b>(\w+)</b>", explorer.panel.table.value) == ["BF16", "FP32"]
    assert explorer.panel.up.description == "next BF16 number ▶"
    assert explorer.panel.text.value == "1/3"


def test_two_explorers_do_not_share_anything():
    one, other = float_explorer((FP16,)), float_explorer((FP16,))
    one.panel.text.value = "7"
    assert other.panel.text.value == "0.1"


def test_no_formats_and_no_number():
    with pytest.raises(ValueError, match="float_explorer was given no format"):
        float_explorer(())
    with pytest.raises(ValueError, match="That is beyond FP64"):
        float_explorer((FP16,), 10**400)
    with pytest.raises(TypeError, match=r"a number such as 0\.1 is needed"):
        float_explorer((FP16,), None)
    with pytest.raises(ValueError, match="“two” is not a number"):
        float_explorer((FP16,), "two")


def test_all_three_forms_for_a_notebook():
    plt.close("all")
    explorer = float_explorer(formats.ALL, 0.1)
    bundle = explorer._repr_mimebundle_(include=None, exclude=None)
    assert bundle[WIDGET]["model_id"] == explorer.panel.box.model_id
    assert bundle["text/plain"] == repr(explorer)
    height, width, _ = plt.imread(io.BytesIO(bundle["image/png"])).shape
    assert (width, height > 400) == (800, True)
    assert plt.get_fignums() == [], "the notebook would show the picture twice"
    assert explorer._repr_mimebundle_()["image/png"] == bundle["image/png"], "a build would not repeat itself"


def test_the_text_form():
    text = repr(float_explorer((FP16,), "1/3"))
    assert text.startswith("What each format makes of 1/3\nFP16      0 01101 0101010101\n")


SCRIPT = """
import sys
sys.modules["ipywidgets"] = None  # as where it is not installed
from amp_lab import formats
from amp_lab.view.widgets import float_explorer
explorer = float_explorer([formats.FP16], 0.1)
print(explorer)
print("matplotlib" in sys.modules)
print(sorted(explorer._repr_mimebundle_()))
"""


def test_without_ipywidgets_there_are_text_and_picture():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    lines = done.stdout.splitlines()
    assert "0.0999755859375" in lines[2]
    assert lines[-2:] == ["False", "['image/png', 'text/plain']"]


def test_a_real_notebook_shows_it_as_the_last_line_of_a_cell():
    """IPython's own formatter makes the bundle that a kernel would send."""
    from IPython.core.formatters import DisplayFormatter

    data, metadata = DisplayFormatter().format(float_explorer((FP16,)))
    assert {"text/plain", "image/png", WIDGET} == set(data)
    assert metadata == {}
    assert base64.b64encode(data["image/png"]).startswith(b"iVBOR")
