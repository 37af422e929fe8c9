"""Lesson 01 as a learner meets it: a wrong answer and its correction, the float explorer, the quiz."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

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

DECODE_HALF = """def decode_half(bits):
    if not 0 <= bits <= 0xFFFF:
        raise ValueError(bits)
    sign, exponent, fraction = bits >> 15, bits >> 10 & 31, (bits & 1023) / 1024
    if exponent == 31:
        size = math.nan if fraction else math.inf
    elif exponent == 0:
        size = {subnormal}
    else:
        size = (1 + fraction) * 2.0 ** (exponent - 15)
    return -size if sign else size
"""


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chromium()
    return fresh_course(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module")
def page(course: Path) -> Iterator[Page]:
    """Lesson 01, opened and run as far as it goes."""
    with running_lab(course, "01") as address, browser_page(address) as page:
        run_all(page)
        yield page


def test_a_wrong_answer_is_told_what_is_wrong_and_a_right_one_passes(page: Page, course: Path) -> None:
    stub, check = cell_with(page, "def decode_half"), cell_with(page, 'check("1.1"')
    assert "not attempted yet" in shown(check, "not attempted")
    picture(page, "01-open-exercise")

    rewrite(page, stub, DECODE_HALF.format(subnormal="(1 + fraction) * 2.0**-15"))
    run_cell(page, stub)
    run_cell(page, check)
    message = shown(check, "not right yet")
    assert "Traceback" not in message
    assert "subnormal" in message
    assert "decode_half(" in message
    picture(page, "01-wrong")

    rewrite(page, stub, DECODE_HALF.format(subnormal="fraction * 2.0**-14"))
    run_cell(page, stub)
    run_cell(page, check)
    assert "✓ Exercise 1.1" in shown(check, "correct")
    picture(page, "01-right")
    log = (course / "work" / ".amp-lab" / "progress.jsonl").read_text(encoding="utf-8").splitlines()
    assert [(event["exercise"], event["event"]) for event in map(json.loads, log)] == [("1.1", "correct")]


def test_the_float_explorer_shows_the_bits_of_what_is_typed_slid_and_stepped_to(page: Page) -> None:
    cell = cell_with(page, "float_explorer((formats")
    run_cell(page, cell)
    row = cell.locator(".amp-lab-floats tbody").filter(has_text="FP16")
    text = cell.locator(".widget-text input")
    shows_bits(row, "0 01011 1001100110")
    show(cell, "01-explorer")

    text.fill("2049")
    text.press("Enter")
    shows_bits(row, "0 11010 0000000000")
    expect(row).to_contain_text("2048")
    show(cell, "01-explorer-typed")

    cell.get_by_role("button", name="next FP16 number").click()
    expect(text).to_have_value("2050")
    shows_bits(row, "0 11010 0000000001")

    handle = cell.locator(".noUi-handle")
    handle.press("ArrowRight")
    expect(text).not_to_have_value("2050")
    expect(row.locator('i[title="fraction"]')).not_to_have_text("0000000001")
    expect(row.locator('i[title="exponent"]')).not_to_have_text("11111")
    handle.press("End")
    expect(text).to_have_value("1000000")
    shows_bits(row, "0 11111 0000000000")
    expect(row).to_contain_text("infinity")
    show(cell, "01-explorer-slid")

    text.fill("import os")
    text.press("Enter")
    expect(cell.locator(".jp-OutputArea")).to_contain_text("import os")
    shows_bits(row, "0 11111 0000000000")
    assert page.locator('[data-mime-type="application/vnd.jupyter.stderr"]').count() == 0


def shows_bits(row: Locator, bits: str) -> None:
    """Wait until the explorer shows these bits, field by field: the text of its input changes a moment before."""
    for field, expected in zip(("sign", "exponent", "fraction"), bits.split(), strict=True):
        expect(row.locator(f'i[title="{field}"]')).to_have_text(expected)


def test_the_quiz_explains_a_wrong_pick_and_counts_a_right_one(page: Page) -> None:
    cell = cell_with(page, 'quiz("01")')
    run_cell(page, cell)
    shown(cell, "0 of 6 answered right")
    first = cell.locator(".jp-OutputArea .widget-vbox .widget-vbox").first
    first.get_by_role("button", name="a", exact=True).click()
    expect(first).to_contain_text("Not right. The upper half keeps the sign")
    show(cell, "01-quiz-wrong")
    first.get_by_role("button", name="b", exact=True).click()
    expect(first).to_contain_text("Right. More exponent bits")
    first.get_by_role("button", name="c", exact=True).click()
    expect(first).to_contain_text("Not right. They have the same number of patterns")
    shown(cell, "1 of 6 answered right")
    show(cell, "01-quiz-right")
