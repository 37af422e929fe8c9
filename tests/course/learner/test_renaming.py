"""A lesson gets another file name: the learner's page comes along, and the old file stays."""

import hashlib

import pytest

from amp_lab.course import catalog
from amp_lab.course.learner import updating, workspace
from amp_lab.course.learner.renaming import bring_over, renamed
from amp_lab.course.learner.workspace import WorkspaceError, copy_blanks
from amp_lab.course.pages import cells
from tests.course.learner.test_updating import OTHER, PAGE, SLUG, lesson, publish, root, save
from tests.course.pages.sample_pages import ANSWER, NEW, OLD, check, edited, page, sources, stub, text

__all__ = ["root"]


def rename(root, monkeypatch, slug, notebook=NEW):
    """The course calls its first lesson `slug` from now on."""
    save(root, edited(OLD, "stub-1-1-1", ANSWER))
    (root / "notebooks" / PAGE).unlink()
    monkeypatch.setattr(catalog, "lessons", lambda: (lesson(slug), lesson(OTHER)))
    publish(root, notebook, slug)


@pytest.mark.parametrize("slug", ["01_number_formats", "04_formats"])
@pytest.mark.parametrize("lost", ["nothing", "record", "blanks"])
def test_the_work_is_on_the_page_with_the_new_name(root, monkeypatch, slug, lost):
    rename(root, monkeypatch, slug)
    old = (root / "work" / PAGE).read_bytes()
    for path in (root / "work" / ".amp-lab").rglob("*"):
        if path.is_file() and lost == ("record" if path.name == "origin.json" else path.parent.name):
            path.unlink()
    assert updating.news(root).renamed == renamed(root) == ((lesson(slug), PAGE),)
    assert updating.news(root).gone == ()
    (brought,) = bring_over(root)
    assert brought[:2] == (lesson(slug), PAGE)
    assert brought.merged.carried == ("1.1",)
    assert brought.sure == (lost != "blanks")
    new = cells.parse((root / "work" / f"{slug}.ipynb").read_bytes())
    assert {*sources(edited(NEW, "stub-1-1-1", ANSWER))} <= {*sources(new)}
    assert (root / "work" / PAGE).read_bytes() == old
    assert bring_over(root) == ()
    assert updating.news(root) == ((), (), ())
    digest = hashlib.sha256((root / "notebooks" / f"{slug}.ipynb").read_bytes()).hexdigest()
    assert workspace.origins(root)[f"{slug}.ipynb"] == digest
    assert PAGE not in workspace.origins(root)


def test_another_lesson_of_this_number_is_not_the_same_lesson(root, monkeypatch):
    rename(
        root,
        monkeypatch,
        "01_memory",
        page(text("m", "Memory"), stub("1-1", "bytes_of"), check("1-1", "bytes_of")),
    )
    assert renamed(root) == ()
    assert updating.news(root).gone == (PAGE,)
    copy_blanks(root)
    assert ANSWER not in (root / "work" / "01_memory.ipynb").read_text()


def test_the_learners_own_page_is_not_taken(root, monkeypatch):
    rename(root, monkeypatch, "01_number_formats")
    (root / "work" / "01_mine.ipynb").write_bytes((root / "work" / PAGE).read_bytes())
    (root / "work" / PAGE).unlink()
    assert renamed(root) == ()


def test_a_copy_with_the_new_name_is_left_alone(root, monkeypatch):
    rename(root, monkeypatch, "01_number_formats")
    (root / "work" / "01_number_formats.ipynb").write_text("mine")
    assert renamed(root) == bring_over(root) == ()
    assert (root / "work" / "01_number_formats.ipynb").read_text() == "mine"


def test_a_page_that_is_no_notebook_is_not_brought(root, monkeypatch):
    rename(root, monkeypatch, "01_number_formats")
    (root / "work" / PAGE).write_text("{")
    assert bring_over(root) == ()
    assert updating.news(root).gone == (PAGE,)


def test_a_full_disk_leaves_everything(root, monkeypatch):
    rename(root, monkeypatch, "01_number_formats")
    was = workspace.origins(root)

    def refused(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", refused)
    with pytest.raises(WorkspaceError, match="No space left"):
        bring_over(root)
    assert not (root / "work" / "01_number_formats.ipynb").exists()
    assert workspace.origins(root) == was
    assert renamed(root)
    assert SLUG not in [each.slug for each in catalog.lessons()]
