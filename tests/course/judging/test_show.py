"""Showing a text in a notebook and elsewhere."""

import subprocess
import sys

import pytest

from amp_lab.course.judging.show import in_a_notebook, show


@pytest.fixture
def displayed(monkeypatch):
    """What a notebook is given to display."""
    import IPython
    from IPython import display

    bundles = []
    monkeypatch.setattr(IPython, "get_ipython", object)
    monkeypatch.setattr(display, "display", lambda bundle, *, raw: bundles.append((bundle, raw)))
    return bundles


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(("**Right.**",), "**Right.**"), (("**Right.**", "Right."), "Right."), (("a", "b", {"x/y": "c"}), "b")],
)
def test_elsewhere_the_words_are_printed(capsys, arguments, words):
    assert not in_a_notebook()
    show(*arguments)
    assert capsys.readouterr().out == f"{words}\n"


def test_a_notebook_gets_every_form_and_prints_none(displayed, capsys):
    assert in_a_notebook()
    show("**Right.**")
    show("**Right.**", "Right.", {"x/y": "widget"})
    assert displayed == [
        ({"text/plain": "**Right.**", "text/markdown": "**Right.**"}, True),
        ({"text/plain": "Right.", "text/markdown": "**Right.**", "x/y": "widget"}, True),
    ]
    assert capsys.readouterr().out == ""


def test_ipython_is_not_imported_to_find_out():
    script = (
        "import sys; from amp_lab.course.judging.show import show; show('x'); print('IPython' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "x\nFalse\n"
