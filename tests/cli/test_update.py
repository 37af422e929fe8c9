"""`amp-lab update`: what it says."""

import dataclasses
import re

import pytest

from amp_lab.course import catalog
from amp_lab.course.learner import workspace
from amp_lab.course.pages import cells
from tests.cli.running import run
from tests.cli.two_lessons import LESSONS, publish, save, two_lessons
from tests.course.pages.sample_pages import ANSWER, NEW, OLD, code, edited, page, source, sources, stub


@pytest.fixture
def root(tmp_path, monkeypatch):
    return two_lessons(tmp_path, monkeypatch)


@pytest.fixture
def copies(root):
    workspace.copy_blanks(root)
    save(root, edited(OLD, "stub-1-1-1", ANSWER))
    return root / "work"


def test_nothing_to_update(root, copies):
    done = run("update")
    assert done.output == f"There is nothing to update: your copies in {copies} have the newest text.\n"
    assert done.exit_code == 0
    assert run("update", "01", "1").output == "Lesson 01 has the newest text.\n"


def test_update_says_what_it_did(root, copies):
    save(root, page(code("mine", "1 + 1"), *edited(OLD, "stub-1-1-1", ANSWER)["cells"][1:]))
    new = edited(NEW, "stub-1-1-1", source(stub("1-1", doc="More.")))
    publish(root, new)
    done = run("update")
    (backup,) = (copies / "backups").iterdir()
    assert done.output == (
        f"Lesson 01 (Number formats) has its new text: {copies / '01_formats.ipynb'}\n"
        "  Your answers are in their places: 1.1.\n"
        "  Changed, look at your answer again: 1.1.\n"
        "  Kept: 1 more cell that you wrote or changed.\n"
        "  Back: 1 cell of the course that you had deleted.\n"
        f"  The page as it was is kept in {backup}.\n"
        "If JupyterLab has a page open: File, Reload Notebook from Disk. Had you not saved it? When JupyterLab says "
        "that the file has changed, choose Overwrite, then run the same command again.\n"
    )
    assert done.exit_code == 0
    assert run("update").output.startswith("There is nothing to update")


def test_only_the_lessons_asked_for(root, copies):
    for lesson in LESSONS:
        publish(root, NEW, lesson.slug)
    run("update", "02_casts.ipynb")
    assert run("update").output.startswith("Lesson 01")
    assert ANSWER in sources(cells.parse((copies / "01_formats.ipynb").read_bytes()))


def test_one_that_cannot_be_updated_does_not_stop_the_others(root, copies):
    (copies / "02_casts.ipynb").write_bytes(b"{")
    publish(root, NEW)
    done = run("update", "02", "01")
    assert re.search(r"^Error: cannot read .*02_casts.ipynb as a notebook", done.output, re.MULTILINE)
    assert "Lesson 01 (Number formats) has its new text" in done.output
    assert done.exit_code == 1


def test_a_lost_origin_is_told(root, copies):
    for path in (copies / ".amp-lab").rglob("*.*"):
        if path.is_file():
            path.unlink()
    publish(root, NEW)
    assert (
        "  Nobody knows any more which text this copy began with: all that may be yours was kept."
        in run("update").output
    )


def test_no_copies_no_newest_text(root):
    done = run("update")
    assert done.output == (
        f"There is nothing to update: no lesson is in {root / 'work'} yet; `amp-lab lab` copies them.\n"
    )
    assert done.exit_code == 0
    assert not (root / "work").exists()


@pytest.mark.parametrize("damage", ["no notebook", "folder", "dangling link"])
def test_a_page_that_cannot_be_read_is_named(root, copies, damage):
    path = copies / "02_casts.ipynb"
    path.unlink()
    if damage == "no notebook":
        path.write_bytes(b"{")
    else:
        path.mkdir() if damage == "folder" else path.symlink_to("nowhere")
    done = run("update")
    assert done.exit_code == 1
    assert str(path) in done.output
    assert ("amp-lab reset 02" if damage == "no notebook" else "rename or remove it") in done.output
    assert "newest" not in done.output
    assert run("update", "02").output == done.output


@pytest.mark.parametrize("arguments", [["update"], ["update", "02"]])
def test_the_courses_notebook_is_missing(root, copies, arguments):
    (root / "notebooks" / "02_casts.ipynb").unlink()
    done = run(*arguments)
    assert re.fullmatch(
        r"Error: cannot read the course's .*02_casts.ipynb .*: get the checkout again\n", done.output
    )
    assert done.exit_code == 1


def test_a_lesson_that_is_gone_is_told(root, copies, monkeypatch):
    monkeypatch.setattr(catalog, "lessons", lambda: LESSONS[:1])
    (root / "notebooks" / "02_casts.ipynb").unlink()
    output = run("update").output
    assert output.startswith(
        f"The course has no 02_casts.ipynb any more: your copy in {copies} stays as it is.\n"
    )


def test_an_answer_that_cannot_stand_in_its_cell(root, copies):
    """The course left the exercise alone; the learner turned its cell to raw."""
    save(root, edited(OLD, "stub-1-1-1", ANSWER, cell_type="raw"))
    publish(root, NEW)
    output = run("update").output
    assert "  Could not be put in its place, and stands above it: 1.1.\n" in output
    assert "Changed" not in output


@pytest.mark.parametrize(
    "arguments", [["update"], ["update", "01"], ["reset", "1.2", "--yes"], ["lab", "01"]]
)
def test_a_lesson_with_another_file_name(root, copies, arguments, monkeypatch):
    renamed = dataclasses.replace(LESSONS[0], slug="01_number_formats")
    monkeypatch.setattr(catalog, "lessons", lambda: (renamed, LESSONS[1]))
    monkeypatch.setattr("os.execve", lambda *_: None)
    (root / "notebooks" / "01_formats.ipynb").unlink()
    publish(root, NEW, "01_number_formats")
    told = run("progress").output
    assert "Your 01_formats.ipynb is 01_number_formats.ipynb now: amp-lab update 01 brings it over" in told
    assert re.search("^01 .* 0 of 2 done", told, re.MULTILINE)
    done = run(*arguments)
    assert done.exit_code == 0
    page = copies / "01_number_formats.ipynb"
    assert done.output.startswith(
        f"Lesson 01 (Number formats) has another file name now: {page}\n"
        "  It was made from your 01_formats.ipynb, which stays as it is.\n"
        "  Your answers are in their places: 1.1.\n"
    )
    assert "no copy" not in done.output
    assert ANSWER in sources(cells.parse(page.read_bytes()))
    assert (copies / "01_formats.ipynb").exists()
    assert "another file name" not in run(*arguments).output


def test_a_reset_on_the_old_text_says_that_there_is_a_new_one(root, copies):
    """The exercise is the new one then, and the text around it the old one."""
    publish(root, NEW)
    assert (
        "The course has a new text of lesson 01: amp-lab update 01\n" in run("reset", "1.1", "--yes").output
    )
    assert "new text" not in run("reset", "01", "--yes").output
