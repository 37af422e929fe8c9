"""Lesson 00 as a learner meets it: open it, run it, answer wrongly, read why, correct it."""

import json
from pathlib import Path

import pytest

from tests.browser.lab import (
    browser_page,
    cell_with,
    chromium,
    fresh_course,
    picture,
    rewrite,
    run_all,
    run_cell,
    running_lab,
    show,
    shown,
)

pytestmark = pytest.mark.browser

STUB = "def tensor_bytes(shape, dtype):\n    return {}\n"


def test_a_first_visit(tmp_path: Path) -> None:
    chromium()
    course = fresh_course(tmp_path)
    with running_lab(course) as address, browser_page(address) as page:
        picture(page, "00-opened")
        run_all(page)
        stub, check = cell_with(page, "def tensor_bytes"), cell_with(page, 'check("0.1"')
        assert "not attempted yet" in (message := shown(check, "not attempted"))
        assert "Traceback" not in message
        picture(page, "00-open-exercise")
        show(cell_with(page, "loss_curves(losses"), "00-figure")
        after = cell_with(page, "torch.cuda.amp.GradScaler()")
        after.scroll_into_view_if_needed()
        assert after.locator(".jp-OutputArea-child").count() == 0, "Run All went on after an open exercise"

        rewrite(page, stub, STUB.format("8 * math.prod(shape) * dtype.itemsize"))
        run_cell(page, stub)
        run_cell(page, check)
        assert "returned 96; the right answer is 12" in (message := shown(check, "96"))
        assert "That counts bits" in message
        picture(page, "00-wrong")

        rewrite(page, stub, STUB.format("math.prod(shape) * dtype.itemsize"))
        run_cell(page, stub)
        run_cell(page, check)
        assert "✓ Exercise 0.1" in shown(check, "correct")
        picture(page, "00-right")

        run_all(page)
        assert "is deprecated" in shown(after, "deprecated")
        picture(page, "00-done")
        assert page.locator('[data-mime-type="application/vnd.jupyter.stderr"]').count() == 0
        page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")

    copy = json.loads((course / "work" / "00_start_here.ipynb").read_text(encoding="utf-8"))
    assert any(
        "return math.prod(shape) * dtype.itemsize" in "".join(cell["source"]) for cell in copy["cells"]
    )
