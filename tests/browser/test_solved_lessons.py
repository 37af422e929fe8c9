"""Every lesson from 02 on, solved, in JupyterLab: Run All reaches the end, and all of it is drawn."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from amp_lab.course import catalog
from tests.browser.lab import (
    SHOWN_PANEL,
    browser_page,
    cell_with,
    chromium,
    fresh_course,
    open_page,
    run_all,
    running_lab,
    show,
)

pytestmark = pytest.mark.browser

# Lessons 00 and 01 have tests of their own; one server shows all others, one after the other.
LESSONS = [lesson for lesson in catalog.lessons() if lesson.number >= "02"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """JupyterLab with solved copies of the lessons in `work/`."""
    chromium()
    course = fresh_course(tmp_path_factory.mktemp("course"))
    (course / "work").mkdir()
    for lesson in LESSONS:
        name = f"{lesson.slug}.ipynb"
        (course / "work" / name).write_text(json.dumps(solved(name)), encoding="utf-8")
    with running_lab(course) as address, browser_page(address) as page:
        yield page


def solved(name: str) -> dict[str, object]:
    """Return the blank notebook with the solutions written into it, as a learner would have done."""
    blank, solution = (
        json.loads((ROOT / folder / name).read_text(encoding="utf-8"))
        for folder in ("notebooks", "solutions")
    )
    for cell, answer in zip(blank["cells"], solution["cells"], strict=True):
        cell["source"] = answer["source"]
    return dict(blank)


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda lesson: lesson.number)
def test_a_solved_page_runs_to_its_end_and_everything_is_drawn(page: Page, lesson: catalog.Lesson) -> None:
    open_page(page, f"{lesson.slug}.ipynb")
    run_all(page)
    for exercise in lesson.exercises:
        says(cell_with(page, f'check("{exercise.id}"'), f"✓ Exercise {exercise.id}")
    says(cell_with(page, f'quiz("{lesson.number}")'), "answered right")
    expect(page.locator(f'{SHOWN_PANEL} [data-mime-type="application/vnd.jupyter.error"]')).to_have_count(0)
    for number, figure in enumerate(figures(page), start=1):
        show(figure, f"{lesson.number}-figure-{number}")


@pytest.mark.parametrize(
    ("slug", "widget"),
    [
        ("04_static_loss_scaling", "loss_scale_explorer(everything"),
        ("05_dynamic_loss_scaling", "scaler_simulator(peaks"),
    ],
)
def test_a_slider_moves_the_picture_and_the_words(page: Page, slug: str, widget: str) -> None:
    open_page(page, f"{slug}.ipynb")
    cell = cell_with(page, widget)
    if not cell.locator(".noUi-handle").count():
        run_all(page)
    cell.scroll_into_view_if_needed()
    handle, picture = cell.locator(".noUi-handle").first, cell.locator(".jp-OutputArea img").first
    handle.wait_for(timeout=60_000)
    words, drawn = cell.locator(".jp-OutputArea").inner_text(), picture.get_attribute("src")
    show(cell, f"{slug[:2]}-widget")
    for _ in range(3):
        handle.press("ArrowRight")
    expect(picture).not_to_have_attribute("src", drawn or "", timeout=30_000)
    expect(cell.locator(".jp-OutputArea")).not_to_have_text(words, timeout=30_000)
    show(cell, f"{slug[:2]}-widget-moved")
    expect(page.locator(f'{SHOWN_PANEL} [data-mime-type="application/vnd.jupyter.stderr"]')).to_have_count(0)


def says(cell: Locator, words: str) -> None:
    """Wait until a cell shows `words`; JupyterLab draws again what is scrolled to, so that one look may see nothing."""
    cell.scroll_into_view_if_needed()
    expect(cell.locator(".jp-OutputArea")).to_contain_text(words, timeout=30_000)


def figures(page: Page) -> list[Locator]:
    """Return the code cells that draw."""
    return page.locator(f"{SHOWN_PANEL} .jp-CodeCell").filter(has_text="plt.show()").all()
