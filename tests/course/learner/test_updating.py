"""The course is updated under copies that somebody worked in: what is told, what an update does, what survives."""

import copy as copying
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from amp_lab.course import catalog
from amp_lab.course.learner import updating, workspace
from amp_lab.course.learner.updating import News, update
from amp_lab.course.learner.workspace import (
    WorkspaceError,
    copy_blanks,
    kept_blanks,
    reset_exercise,
    reset_lesson,
)
from amp_lab.course.pages import cells
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

SLUG = "01_formats"
PAGE = f"{SLUG}.ipynb"
OTHER = "02_casts"


def lesson(slug):
    return catalog.Lesson(slug, "Title", 1, "easy", "nothing", ())


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A checkout with two lessons, copied by the learner."""
    monkeypatch.setattr(catalog, "lessons", lambda: (lesson(SLUG), lesson(OTHER)))
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "solutions").mkdir()
    (tmp_path / "notebooks").mkdir()
    publish(tmp_path, OLD)
    publish(tmp_path, page(text("a", "about casts"), stub("2-1"), check("2-1")), OTHER)
    copy_blanks(tmp_path)
    return tmp_path


def publish(root, notebook, slug=SLUG):
    (root / "notebooks" / f"{slug}.ipynb").write_bytes(cells.dump(notebook))


def save(root, notebook):
    """Write a page as JupyterLab does: in place, keys sorted, with what it adds to the metadata."""
    notebook = copying.deepcopy(notebook)
    notebook["metadata"].setdefault("language_info", {"name": "python", "version": "3.11.7"})
    (root / "work" / PAGE).write_text(
        json.dumps(notebook, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    )


def saved(root):
    return cells.parse((root / "work" / PAGE).read_bytes())


def backups(root):
    return sorted((root / "work" / "backups").glob("*"))


def changed(root):
    return [each.slug for each in updating.news(root).changed]


def solve(root, notebook=OLD):
    save(root, edited(notebook, "stub-1-1-1", ANSWER))


# --- what is told -------------------------------------------------------------------------------------------


def test_no_news_while_the_course_is_as_it_was(root):
    assert updating.news(root) == News((), (), ())
    solve(root)
    assert updating.news(root) == News((), (), ())


def test_a_lesson_that_changed_is_named_and_nothing_is_done(root):
    solve(root)
    publish(root, NEW)
    before = (root / "work" / PAGE).read_bytes()
    assert changed(root) == [SLUG]
    copy_blanks(root)
    assert changed(root) == [SLUG], "copying what is missing must not forget it"
    assert (root / "work" / PAGE).read_bytes() == before
    assert not backups(root)


def test_a_lesson_without_a_copy_or_with_a_damaged_one_is_no_news(root):
    publish(root, NEW)
    for damage in (
        lambda path: path.write_bytes(b"{"),
        lambda path: path.unlink(),
        lambda path: path.mkdir(),
    ):
        damage(root / "work" / PAGE)
        assert changed(root) == []


def test_a_lesson_that_the_course_does_not_have_any_more(root, monkeypatch):
    monkeypatch.setattr(catalog, "lessons", lambda: (lesson(SLUG),))
    (root / "notebooks" / f"{OTHER}.ipynb").unlink()
    assert updating.news(root).gone == (f"{OTHER}.ipynb",)
    workspace.forget(root, [f"{OTHER}.ipynb"])
    assert updating.news(root).gone == ()
    assert (root / "work" / f"{OTHER}.ipynb").exists()
    assert workspace.origins(root).keys() == {PAGE}


# --- an update ----------------------------------------------------------------------------------------------


def test_new_text_and_old_work(root):
    solve(root)
    before = (root / "work" / PAGE).read_bytes()
    publish(root, NEW)
    done = update(root, SLUG)
    assert sources(saved(root)) == sources(edited(NEW, "stub-1-1-1", ANSWER))
    assert done.merged.carried == ("1.1",)
    assert done.sure
    assert done.backup.read_bytes() == before
    assert changed(root) == []
    assert workspace.origins(root)[PAGE] == hashlib.sha256(cells.dump(NEW)).hexdigest()


def test_an_untouched_copy_is_the_new_blank_and_needs_no_backup(root):
    publish(root, {**NEW, "metadata": {"written": "by another program"}})
    blank = (root / "notebooks" / PAGE).read_bytes().replace(b"\n", b" \n")
    (root / "notebooks" / PAGE).write_bytes(blank)
    done = update(root, SLUG)
    assert (root / "work" / PAGE).read_bytes() == blank
    assert done.backup is None
    assert done.merged is not None
    assert not backups(root)


def test_a_copy_that_was_only_run_is_backed_up(root):
    save(
        root,
        edited(
            OLD, "demo", "x = 1\nx + 1", outputs=[{"output_type": "stream", "name": "stdout", "text": "1"}]
        ),
    )
    publish(root, NEW)
    before = (root / "work" / PAGE).read_bytes()
    assert update(root, SLUG).backup.read_bytes() == before


def test_a_second_update_changes_nothing(root):
    solve(root)
    publish(root, NEW)
    update(root, SLUG)
    before = (root / "work" / PAGE).stat()
    assert update(root, SLUG) == (None, None, True)
    assert (root / "work" / PAGE).stat() == before
    assert len(backups(root)) == 1


def test_update_after_update(root):
    solve(root)
    publish(root, NEW)
    update(root, SLUG)
    third = page(text("zero", "A new beginning."), *NEW["cells"])
    publish(root, third)
    update(root, SLUG)
    assert sources(saved(root)) == sources(edited(third, "stub-1-1-1", ANSWER))
    assert len(backups(root)) == 2
    assert len(kept_blanks(root, SLUG)) == 3


def test_overwritten_by_an_open_page_it_can_be_updated_again(root):
    """JupyterLab still shows the old page, says that the file changed on disk, and is told to overwrite it."""
    solve(root)
    publish(root, NEW)
    update(root, SLUG)
    save(root, edited(edited(OLD, "stub-1-1-1", ANSWER), "t1", "# Numbers (unsaved until now)"))
    assert changed(root) == [SLUG]
    update(root, SLUG)
    assert ids(saved(root)) == ids(NEW)
    assert source(saved(root)["cells"][0]) == "# Numbers (unsaved until now)"
    assert changed(root) == []


def test_overwritten_after_an_update_that_only_added_something(root):
    solve(root)
    publish(root, page(*OLD["cells"], text("new", "One paragraph more.")))
    update(root, SLUG)
    solve(root)
    assert changed(root) == [SLUG]
    update(root, SLUG)
    assert ids(saved(root)) == [*ids(OLD), "new"]


def test_a_change_where_only_the_learners_code_stands_is_news(root):
    """The page has as much of one blank as of the other; the record tells."""
    solve(root)
    publish(root, edited(OLD, "stub-1-1-1", source(stub("1-1", doc="Something else."))))
    assert changed(root) == [SLUG]
    assert update(root, SLUG).merged.changed == ("1.1",)
    assert changed(root) == []


def test_what_the_learner_deleted_since_is_no_news(root):
    publish(root, NEW)
    update(root, SLUG)
    save(root, page(*NEW["cells"][:1], *NEW["cells"][2:-1]))
    assert changed(root) == []


@pytest.mark.parametrize("lost", ["record", "damaged record", "blanks", "damaged blank", "both"])
def test_what_is_lost_is_found_or_done_without(root, lost):
    solve(root)
    state = root / "work" / ".amp-lab"
    if lost in ("record", "both"):
        (state / "origin.json").unlink()
    if lost == "damaged record":
        (state / "origin.json").write_bytes(b"{")
    for path in state.glob("blanks/*"):
        if lost in ("blanks", "both"):
            path.unlink()
        if lost == "damaged blank":
            path.write_bytes(b"{}")
    publish(root, NEW)
    if lost != "both":
        assert changed(root) == [SLUG]
    done = update(root, SLUG)
    assert done.sure == (lost in ("record", "damaged record"))
    written = sources(saved(root))
    assert ANSWER in written
    assert "Write a function that doubles its argument." in written
    assert [name for name in ids(saved(root)) if name in ids(NEW)] == ids(NEW)
    assert changed(root) == []


def test_without_a_record_a_page_that_has_everything_is_not_outdated(root):
    solve(root, NEW)
    publish(root, NEW)
    for path in (root / "work" / ".amp-lab").rglob("*"):
        if path.is_file():
            path.unlink()
    answered = edited(
        NEW, "stub-1-1-1", source(stub("1-1")).replace("raise NotImplementedError", "return 2 * x")
    )
    save(root, answered)
    assert changed(root) == []
    before = (root / "work" / PAGE).read_bytes()
    assert update(root, SLUG).merged is None
    assert (root / "work" / PAGE).read_bytes() == before
    assert not backups(root)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"{")])
def test_a_blank_that_was_not_kept_is_kept_while_the_course_has_it(root, damage):
    """The first version of AMP Lab kept only the record."""
    solve(root)
    for path in (root / "work" / ".amp-lab").glob("blanks/*"):
        damage(path)
    copy_blanks(root)
    publish(root, NEW)
    assert update(root, SLUG).sure


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"cells": 1}'])
def test_a_copy_that_is_no_notebook_is_left_alone(root, data):
    (root / "work" / PAGE).write_bytes(data)
    publish(root, NEW)
    with pytest.raises(
        WorkspaceError, match=r"cannot read .*01_formats.ipynb as a notebook.*`amp-lab reset 01`"
    ):
        update(root, SLUG)
    assert (root / "work" / PAGE).read_bytes() == data
    assert not backups(root)


@pytest.mark.parametrize("data", [b"", b"[]", cells.dump(page({"cell_type": "code", "source": "1"}))])
def test_a_damaged_blank_is_named(root, data):
    solve(root)
    before = (root / "work" / PAGE).read_bytes()
    (root / "notebooks" / PAGE).write_bytes(data)
    with pytest.raises(WorkspaceError, match=r"notebooks/01_formats.ipynb is not the course's file"):
        update(root, SLUG)
    assert (root / "work" / PAGE).read_bytes() == before


def test_no_copy(root):
    (root / "work" / PAGE).unlink()
    with pytest.raises(
        WorkspaceError, match=r"there is no copy of 01_formats in .*: `amp-lab lab 01` makes one"
    ):
        update(root, SLUG)


def test_a_full_disk_leaves_the_copy_and_the_record(root, monkeypatch):
    solve(root)
    publish(root, NEW)
    before, was = (root / "work" / PAGE).read_bytes(), workspace.origins(root)

    def refused(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refused)
    with pytest.raises(WorkspaceError, match="No space left"):
        update(root, SLUG)
    assert (root / "work" / PAGE).read_bytes() == before
    assert workspace.origins(root) == was
    assert not backups(root)


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from amp_lab.course.learner import updating

    steps = int(sys.argv[2])

    def or_die(call):
        def step(*args, **kwargs):
            global steps
            if steps == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            steps -= 1
            return call(*args, **kwargs)
        return step

    for name in ("fsync", "link", "unlink", "replace"):
        setattr(os, name, or_die(getattr(os, name)))
    updating.update(Path(sys.argv[1]), "01_formats")
"""


def test_killed_while_updating_it_can_be_done_again(root):
    import textwrap

    step, killed = 0, True
    while killed:
        publish(root, OLD)
        (root / "work" / PAGE).unlink()
        copy_blanks(root)
        solve(root)
        work = (root / "work" / PAGE).read_bytes()
        publish(root, NEW)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(KILLED), str(root), str(step)],
            cwd=Path(__file__).parents[3],
        )
        killed = done.returncode == -signal.SIGKILL
        now = (root / "work" / PAGE).read_bytes()
        assert now == work or work in [path.read_bytes() for path in backups(root)], (
            "the learner's work is gone"
        )
        update(root, SLUG)
        assert sources(saved(root)) == sources(edited(NEW, "stub-1-1-1", ANSWER))
        assert changed(root) == []
        for path in backups(root):
            path.unlink()
        step += 1
    assert step > 4


# --- reset, and what was started ----------------------------------------------------------------------------


def test_a_reset_takes_the_note_out_of_an_updated_page(root):
    solve(root)
    new = edited(NEW, "stub-1-1-1", source(stub("1-1", doc="Something else.")))
    publish(root, new)
    update(root, SLUG)
    assert "new-stub-1-1-1" in ids(saved(root))
    reset_exercise(root, SLUG, "1.1")
    assert ids(saved(root)) == ids(new)
    assert sources(saved(root)) == sources(new)


def test_a_reset_of_an_outdated_page_is_as_good_as_an_update(root):
    solve(root)
    publish(root, NEW)
    reset_lesson(root, SLUG)
    assert changed(root) == []
    assert saved(root) == NEW


def test_started_is_what_says_something_else_than_its_blank(root):
    def names():
        return [each.slug for each in updating.started(root)]

    assert names() == []
    save(root, edited(OLD, "demo", "x = 1\nx + 1", outputs=[{"output_type": "stream"}]))
    assert names() == [], "to run a page is not to work on it"
    publish(root, NEW)
    assert names() == [], "that the course changed is not the learner's work"
    solve(root)
    assert names() == [SLUG]
    (root / "work" / PAGE).write_bytes(b"{")
    assert names() == [SLUG]
    (root / "work" / PAGE).unlink()
    assert names() == []


# --- what an editor may do to a copy, and then an update ----------------------------------------------------


def in_mid_run(notebook):
    """As autosave finds it while cells run: outputs, but no counts."""
    outputs = [{"output_type": "stream", "name": "stdout", "text": ["…"]}]
    return page(
        *({**each, "outputs": outputs} if each["cell_type"] == "code" else each for each in notebook["cells"])
    )


def renamed(notebook):
    return page(*({**each, "id": f"{number:08x}"} for number, each in enumerate(notebook["cells"])))


def with_own_cells(notebook):
    return page(code("own-1", "import this"), *notebook["cells"], code("own-2", "1 + 1"))


@pytest.mark.parametrize("treat", [in_mid_run, renamed, with_own_cells])
def test_a_copy_survives_save_update_and_reset(root, treat):
    work = treat(edited(OLD, "stub-1-1-1", ANSWER))
    save(root, work)
    copy_blanks(root)
    assert sources(saved(root)) == sources(work)
    publish(root, NEW)
    update(root, SLUG)
    now = saved(root)
    assert source(next(each for each in now["cells"] if each["id"] == "stub-1-1-1")) == ANSWER
    assert [name for name in ids(now) if name in ids(NEW)] == ids(NEW)
    assert {each["id"]: each for each in now["cells"]}["check-1-1"] == check("1-1")
    reset_exercise(root, SLUG, "1.1")
    assert ANSWER not in sources(saved(root))
    reset_lesson(root, SLUG)
    assert saved(root) == NEW
    assert sum(ANSWER in sources(cells.parse(path.read_bytes())) for path in backups(root)) == 2
