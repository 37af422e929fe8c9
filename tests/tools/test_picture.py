"""The picture in the README tells of the lessons that there are."""

import re
from pathlib import Path
from xml.etree import ElementTree

from amp_lab.course import catalog
from tools import picture

ROOT = Path(__file__).parents[2]
NUMBERS = [lesson.number for row in picture.PLAN.values() for lesson in row]


def test_the_stored_picture_is_todays():
    assert (ROOT / "course.svg").read_text(encoding="utf-8") == picture.drawing(), "run `make build`"


def test_the_plan_has_every_lesson_of_the_course_in_order():
    assert [f"{number:02}" for number in range(12)] == NUMBERS
    assert {lesson.number for lesson in catalog.lessons()} <= set(NUMBERS)


def test_exactly_the_lessons_of_the_catalogue_are_solid():
    drawn = picture.drawing()
    boxes = re.findall(r"<rect x=[^>]*>\n<text[^>]*><tspan[^>]*>(\d\d)", drawn)
    assert boxes == NUMBERS
    dashed = re.findall(r"<rect x=[^>]*stroke-dasharray[^>]*>\n<text[^>]*><tspan[^>]*>(\d\d)", drawn)
    ready = {lesson.number for lesson in catalog.lessons()}
    assert set(NUMBERS) - set(dashed) == ready
    for lesson in catalog.lessons():
        assert f"</tspan> {lesson.title}</text>" in drawn
        assert f" · {lesson.minutes} min</text>" in drawn


def test_it_is_well_formed_and_every_text_lies_inside():
    root = ElementTree.fromstring(picture.drawing())
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    texts = [each for each in root.iter() if each.tag.endswith("}text")]
    assert len(texts) > 2 * len(NUMBERS)
    for text in texts:
        assert 0 < float(text.attrib["x"]) < width
        assert 0 < float(text.attrib["y"]) < height


def test_a_row_fits_its_boxes():
    """With letters as wide as in DejaVu Sans no title or question runs out of its box; most fonts are narrower."""
    for row in picture.PLAN.values():
        for lesson in row:
            ready = {each.number: each for each in catalog.lessons()}.get(lesson.number)
            title = f"{lesson.number} {ready.title if ready else lesson.title}"
            question = lesson.question + (f" · {ready.minutes} min" if ready else "")
            assert 14 + 0.6 * 15 * len(title) < 260, title
            assert 14 + 0.55 * 12.5 * len(question) < 260, question
