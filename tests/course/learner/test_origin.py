"""Which blank a copy comes from: the record, where it says that a text is still missing; else the page itself."""

import itertools
import json

import pytest

from amp_lab.course.learner import updating, workspace
from amp_lab.course.pages import cells
from tests.course.learner.test_updating import PAGE, SLUG, changed, publish, root, save, saved
from tests.course.pages.sample_pages import (
    ANSWER,
    NEW,
    OLD,
    check,
    code,
    edited,
    ids,
    page,
    source,
    sources,
    stub,
    text,
)

__all__ = ["root"]

HINTED = page(*OLD["cells"][:5], code("hint", "# f doubles"), *OLD["cells"][5:])
CHANGED_STUB = source(stub("1-1", doc="Do it, but for lists, too."))
# The course changes an exercise that the learner has answered, and drops a cell in which they wrote.
SHORTER = edited(OLD, "stub-1-1-1", CHANGED_STUB)


def origin(root):
    return json.loads((root / "work" / ".amp-lab" / "origin.json").read_text())[PAGE]


def from_hinted(root):
    publish(root, HINTED)
    workspace.reset_lesson(root, SLUG)


def without_ids(notebook):
    return {
        **notebook,
        "nbformat_minor": 4,
        "cells": [{key: cell[key] for key in cell if key != "id"} for cell in notebook["cells"]],
    }


def with_new_ids(notebook):
    return page(*({**cell, "id": f"{number:08x}"} for number, cell in enumerate(notebook["cells"])))


@pytest.mark.parametrize("save_as", [lambda book: book, without_ids, with_new_ids])
@pytest.mark.parametrize("hint", ["uncommented", "deleted"])
def test_a_page_that_has_as_much_of_the_new_blank_is_still_outdated(root, save_as, hint):
    from_hinted(root)
    mine = edited(HINTED, "stub-1-1-1", ANSWER)
    if hint == "deleted":
        mine = page(*(cell for cell in mine["cells"] if cell["id"] != "hint"))
    else:
        mine = edited(mine, "hint", "f_doubles = True")
    save(root, save_as(mine))
    publish(root, SHORTER)
    assert changed(root) == [SLUG]
    done = updating.update(root, SLUG)
    assert done.merged.changed == ("1.1",)
    assert "Do it, but for lists, too." in "".join(sources(saved(root)))
    assert ANSWER in sources(saved(root))
    assert ("f_doubles = True" in sources(saved(root))) == (hint == "uncommented")
    assert changed(root) == []
    assert updating.update(root, SLUG).merged is None


def test_a_learner_who_mended_what_the_course_mended_gets_the_rest(root):
    """The page has more of today's blank than of the recorded one, and lacks what the course changed."""
    save(root, edited(edited(OLD, "stub-1-1-1", ANSWER), "t1", "# Numbers in 16 bits"))
    publish(root, edited(edited(OLD, "stub-1-1-1", CHANGED_STUB), "t1", "# Numbers in 16 bits"))
    assert changed(root) == [SLUG]
    assert updating.update(root, SLUG).merged.changed == ("1.1",)


def test_a_page_with_nothing_of_any_blank_is_what_the_record_says(root):
    save(root, page(code("own", "print('all mine')")))
    publish(root, page(text("t9", "One cell.")))
    assert changed(root) == [SLUG]
    updating.update(root, SLUG)
    assert sorted(sources(saved(root))) == ["One cell.", "print('all mine')"]


@pytest.mark.parametrize("save_as", [without_ids, with_new_ids])
def test_a_page_without_ids_and_record_is_known_by_its_texts(root, save_as):
    publish(root, NEW)
    updating.update(root, SLUG)
    save(root, save_as(edited(OLD, "stub-1-1-1", ANSWER)))
    (root / "work" / ".amp-lab" / "origin.json").unlink()
    done = updating.update(root, SLUG)
    assert done.sure
    assert sources(saved(root)) == sources(edited(NEW, "stub-1-1-1", ANSWER))


def test_the_record_is_not_touched_where_nothing_was_merged(root):
    before = origin(root)
    publish(root, SHORTER)
    newest = (root / "notebooks" / PAGE).read_bytes()
    (root / "work" / PAGE).write_bytes(newest)  # the learner copied it by hand
    (root / "work" / ".amp-lab" / "origin.json").unlink()
    assert updating.update(root, SLUG).merged is None
    assert not (root / "work" / ".amp-lab" / "origin.json").exists()
    assert before != workspace.origins(root).get(PAGE)


@pytest.mark.parametrize("save_as", [lambda book: book, without_ids])
def test_overwritten_by_the_page_of_before_it_is_outdated_again(root, save_as):
    """Nothing of what an update added is there: JupyterLab was told to overwrite."""
    mine = edited(OLD, "stub-1-1-1", ANSWER)
    save(root, mine)
    publish(root, page(*OLD["cells"], text("new", "One paragraph more.")))
    updating.update(root, SLUG)
    save(root, save_as(mine))
    assert changed(root) == [SLUG]
    third = page(*OLD["cells"], text("new", "One paragraph more."), text("newer", "And one."))
    publish(root, third)
    updating.update(root, SLUG)
    assert ids(saved(root)) == ids(third)


def test_each_way_to_lose_three_cells_and_nothing_new_is_missed(root):
    """Whatever of the cells that the course changed the learner edits or deletes: the new texts come."""
    new = page(
        text("t1", "# Numbers"),
        code("demo", "x = 2\nx + 1"),
        *OLD["cells"][2:3],
        stub("1-1", doc="New."),
        check("1-1"),
        *OLD["cells"][6:],
    )
    for ways in itertools.product(["edit", "delete", "leave"], repeat=3):
        publish(root, OLD)
        workspace.reset_lesson(root, SLUG)
        mine = edited(OLD, "stub-1-1-1", ANSWER)
        for name, way in zip(["t1", "demo", "t3"], ways, strict=True):
            if way == "edit":
                mine = edited(mine, name, f"MINE {name}")
            if way == "delete":
                mine = page(*(cell for cell in mine["cells"] if cell["id"] != name))
        save(root, mine)
        publish(root, new)
        assert changed(root) == [SLUG], ways
        updating.update(root, SLUG)
        written = "\n".join(sources(saved(root)))
        for one in new["cells"]:
            assert source(one) in written, ways
        for one in mine["cells"]:
            assert not source(one).startswith(("MINE", "def f")) or source(one) in written, ways
        assert cells.parse((root / "work" / PAGE).read_bytes()) == saved(root)
