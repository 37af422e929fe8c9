"""The learner's workspace: what is copied, what is reset, and that no work is ever lost."""

import errno
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from amp_lab.course.learner import workspace
from amp_lab.course.learner.workspace import WorkspaceError, copy_blanks, reset_exercise, reset_lesson
from amp_lab.course.pages import cells

PAGE = "00_start_here.ipynb"
MINE = "Meine Lösung: 2⁻²⁴ ≈ 6 × 10⁻⁸ 🎉\n"


def code(name, source):
    return {
        "id": name,
        "cell_type": "code",
        "metadata": {},
        "execution_count": None,
        "outputs": [],
        "source": source.splitlines(keepends=True),
    }


def blank(lesson):
    return {
        "cells": [
            {"id": f"m{lesson}", "cell_type": "markdown", "metadata": {}, "source": [f"# Lesson {lesson} ×"]},
            code(f"stub-{lesson}-1-1", "def f():\n    raise NotImplementedError"),
            code(f"check-{lesson}-1", f'check("{lesson}.1", f)'),
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


@pytest.fixture
def root(tmp_path):
    """A small checkout with two lessons."""
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "solutions").mkdir()
    (tmp_path / "notebooks").mkdir()
    for lesson, name in enumerate((PAGE, "01_formats.ipynb")):
        (tmp_path / "notebooks" / name).write_bytes(cells.dump(blank(lesson)))
    return tmp_path


@pytest.fixture
def page(root):
    """The learner's copy of lesson 00, solved."""
    copy_blanks(root)
    path = root / "work" / PAGE
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["cells"][0]["source"] = [MINE]
    notebook["cells"][1]["source"] = ["def f():\n", "    return 1"]
    path.write_bytes(cells.dump(notebook))
    return path


def origins(root):
    return json.loads((root / "work" / ".amp-lab" / "origin.json").read_text())


def backups(root):
    return sorted((root / "work" / "backups").glob("*"))


def kept(root):
    return [path.read_bytes() for path in backups(root)]


def no_parts_left(root):
    return not [path for path in (root / "work").rglob("*") if path.name.endswith(".part")]


# --- the checkout -------------------------------------------------------------------------------------------


def test_the_checkout_around_the_package(monkeypatch):
    monkeypatch.delenv("AMP_LAB_COURSE", raising=False)
    assert workspace.checkout() == Path(__file__).resolve().parents[3]


def test_a_checkout_named_in_the_environment(root, monkeypatch):
    monkeypatch.setenv("AMP_LAB_COURSE", str(root))
    assert workspace.checkout() == root
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("AMP_LAB_COURSE", root.name)
    assert workspace.checkout() == root
    monkeypatch.setenv("HOME", str(root.parent))
    monkeypatch.setenv("AMP_LAB_COURSE", f"~/{root.name}")
    assert workspace.checkout() == root


@pytest.mark.parametrize("missing", workspace.PARTS_OF_A_CHECKOUT)
def test_a_folder_that_is_no_checkout(root, missing, monkeypatch):
    (root / missing).rename(root / "elsewhere")
    monkeypatch.setenv("AMP_LAB_COURSE", str(root))
    with pytest.raises(WorkspaceError, match=f"there is no {re.escape(missing)} in that folder: set it to"):
        workspace.checkout()


def test_an_installed_package_asks_for_the_checkout(tmp_path, monkeypatch):
    monkeypatch.delenv("AMP_LAB_COURSE", raising=False)
    monkeypatch.setattr(
        workspace, "__file__", str(tmp_path / "site-packages/amp_lab/course/learner/workspace.py")
    )
    with pytest.raises(WorkspaceError, match=r"only the helpers .* set AMP_LAB_COURSE="):
        workspace.checkout()


# --- copies -------------------------------------------------------------------------------------------------


def test_copies_are_made_once(root):
    assert copy_blanks(root) == ((PAGE, "01_formats.ipynb"), ())
    for name in (PAGE, "01_formats.ipynb"):
        data = (root / "notebooks" / name).read_bytes()
        assert (root / "work" / name).read_bytes() == data
        assert origins(root)[name] == hashlib.sha256(data).hexdigest()
    assert copy_blanks(root) == ((), (PAGE, "01_formats.ipynb"))
    assert no_parts_left(root)


def test_work_is_never_overwritten(root, page):
    before = page.read_bytes()
    (root / "notebooks" / PAGE).write_bytes(b"a new edition of the blank")
    was = origins(root)
    copy_blanks(root)
    assert page.read_bytes() == before
    assert origins(root) == was, "the copy still comes from the old blank"


def test_a_renamed_copy_is_left_alone(root, page):
    before = page.read_bytes()
    page.rename(page.with_name("mine.ipynb"))
    assert copy_blanks(root).made == (PAGE,)
    assert page.with_name("mine.ipynb").read_bytes() == before


@pytest.mark.parametrize("kind", ["folder", "dangling link", "link to a file"])
def test_whatever_has_the_name_is_left_alone(root, kind):
    path = root / "work" / PAGE
    path.parent.mkdir()
    if kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(root / ("pyproject.toml" if kind == "link to a file" else "nowhere"))
    assert copy_blanks(root) == (("01_formats.ipynb",), (PAGE,))
    assert path.is_dir() if kind == "folder" else path.is_symlink()
    assert not (root / "nowhere").exists()
    assert (root / "pyproject.toml").read_bytes() == b""


def test_a_file_that_appears_in_between_is_left_alone(root, monkeypatch):
    def and_then_somebody_saves(existing, path):
        if path.name == PAGE:
            path.write_text(MINE)
        return link(existing, path)

    link = os.link
    monkeypatch.setattr(os, "link", and_then_somebody_saves)
    assert copy_blanks(root) == (("01_formats.ipynb",), (PAGE,))
    assert (root / "work" / PAGE).read_text() == MINE
    assert PAGE not in origins(root)
    assert no_parts_left(root)


def test_no_lessons(root):
    for path in (root / "notebooks").iterdir():
        path.unlink()
    with pytest.raises(WorkspaceError, match="there are no lessons in"):
        copy_blanks(root)


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff\xff", b'["somebody else\'s"]', b'{"a": 1}', b"[" * 100_000], ids=range(6)
)
def test_a_damaged_record_is_kept_aside(root, data):
    state = root / "work" / ".amp-lab"
    state.mkdir(parents=True)
    (state / "origin.json").write_bytes(data)
    copy_blanks(root)
    assert set(origins(root)) == {PAGE, "01_formats.ipynb"}
    (aside,) = state.glob("origin_*.json")
    assert re.fullmatch(r"origin_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d\.json", aside.name)
    assert aside.read_bytes() == data


def test_a_folder_in_place_of_the_record_is_kept_aside(root):
    state = root / "work" / ".amp-lab"
    (state / "origin.json").mkdir(parents=True)
    copy_blanks(root)
    assert set(origins(root)) == {PAGE, "01_formats.ipynb"}
    assert len(list(state.glob("origin_*.json"))) == 1


# --- reset --------------------------------------------------------------------------------------------------


def test_a_lesson_starts_over(root, page):
    before = page.read_bytes()
    backup = reset_lesson(root, "00_start_here")
    assert page.read_bytes() == (root / "notebooks" / PAGE).read_bytes()
    assert re.fullmatch(r"00_start_here_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d\.ipynb", backup.name)
    assert backup.parent == root / "work" / "backups"
    assert backup.read_bytes() == before
    page.write_text("new work")
    assert backup.read_bytes() == before, "the backup and the new copy must not be the same file"
    assert no_parts_left(root)


def test_a_reset_copy_comes_from_the_new_blank(root, page):
    (root / "notebooks" / PAGE).write_bytes(b"a new edition of the blank")
    reset_lesson(root, "00_start_here")
    assert origins(root)[PAGE] == hashlib.sha256(b"a new edition of the blank").hexdigest()


def test_an_exercise_starts_over_and_the_rest_stays(root, page):
    before = page.read_bytes()
    backup = reset_exercise(root, "00_start_here", "0.1")
    assert backup.read_bytes() == before
    notebook = cells.parse(page.read_bytes())
    assert notebook["cells"][0]["source"] == [MINE]
    assert notebook["cells"][1:] == blank(0)["cells"][1:]
    assert MINE[:-1].encode() in page.read_bytes(), "text must stay readable in the file"


def test_resets_within_one_second_give_a_backup_each(root, page, monkeypatch):
    monkeypatch.setattr(workspace, "_now", lambda: "2027-01-31_18-05-09")
    for number in range(3):
        page.write_text(f"work {number}")
        reset_lesson(root, "00_start_here")
    names = ["00_start_here_2027-01-31_18-05-09" + end for end in (".ipynb", "_2.ipynb", "_3.ipynb")]
    assert [path.name for path in backups(root)] == names
    assert [path.read_text() for path in backups(root)] == ["work 0", "work 1", "work 2"]


@pytest.mark.parametrize("reset", [reset_lesson, lambda root, slug: reset_exercise(root, slug, "0.1")])
def test_reset_without_a_copy_makes_one(root, reset):
    assert reset(root, "00_start_here") is None
    assert (root / "work" / PAGE).read_bytes() == (root / "notebooks" / PAGE).read_bytes()
    assert origins(root).keys() == {PAGE}


def test_a_damaged_copy_can_be_reset_as_a_whole(root, page):
    page.write_bytes(b'{"cells": [')
    with pytest.raises(
        WorkspaceError, match=r"no valid JSON.*`amp-lab reset 00` starts the whole lesson over"
    ):
        reset_exercise(root, "00_start_here", "0.1")
    assert page.read_bytes() == b'{"cells": ['
    assert reset_lesson(root, "00_start_here").read_bytes() == b'{"cells": ['
    assert page.read_bytes() == (root / "notebooks" / PAGE).read_bytes()


@pytest.mark.parametrize("data", [b"{}", b'{"cells": [{}]}', cells.dump(blank(5))], ids=range(3))
def test_a_damaged_blank_is_named(root, page, data):
    before = page.read_bytes()
    (root / "notebooks" / PAGE).write_bytes(data)
    with pytest.raises(WorkspaceError, match=r"notebooks/00_start_here.ipynb is not the course's file"):
        reset_exercise(root, "00_start_here", "0.1")
    assert page.read_bytes() == before


def test_what_is_saved_during_a_reset_is_in_the_backup(root, page, monkeypatch):
    def and_just_before_somebody_saves(part, path):
        if path == page:
            page.write_text(MINE)  # in place, as JupyterLab does
        return replace(part, path)

    replace = os.replace
    monkeypatch.setattr(os, "replace", and_just_before_somebody_saves)
    assert reset_lesson(root, "00_start_here").read_text() == MINE


def test_a_linked_copy_stays_a_link(root, page, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("synced") / "page.ipynb"
    page.rename(elsewhere)
    page.symlink_to(elsewhere)
    before = elsewhere.read_bytes()
    assert reset_lesson(root, "00_start_here").read_bytes() == before
    assert page.is_symlink()
    assert elsewhere.read_bytes() == (root / "notebooks" / PAGE).read_bytes()


@pytest.mark.parametrize("kind", ["folder", "dangling link"])
def test_what_is_no_file_is_not_reset(root, kind):
    path = root / "work" / PAGE
    path.parent.mkdir()
    path.mkdir() if kind == "folder" else path.symlink_to(root / "nowhere")
    for reset in (reset_lesson, lambda root, slug: reset_exercise(root, slug, "0.1")):
        with pytest.raises(
            WorkspaceError,
            match=r"is (a folder|a link to nothing), .*: rename or remove it, then run `amp-lab lab 00`",
        ):
            reset(root, "00_start_here")
    assert path.is_dir() if kind == "folder" else path.is_symlink()
    assert not (root / "nowhere").exists()
    assert not backups(root)


# --- when the disk does not do as asked ---------------------------------------------------------------------


def refuse(monkeypatch, call, error):
    def refused(*args, **kwargs):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, call, refused)


@pytest.mark.parametrize("reset", [reset_lesson, lambda root, slug: copy_blanks(root)])
def test_a_record_that_cannot_be_written_stops_before_any_change(root, page, reset, monkeypatch):
    page.with_name("01_formats.ipynb").unlink()

    def refused(path, data):
        if path.parent.name == ".amp-lab":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        write_new(path, data)

    write_new = workspace._write_new
    before, was = page.read_bytes(), origins(root)
    monkeypatch.setattr(workspace, "_write_new", refused)
    with pytest.raises(WorkspaceError, match=r"\.amp-lab/.*: Permission denied; make the folder writable"):
        reset(root, "00_start_here")
    assert page.read_bytes() == before
    assert origins(root) == was
    assert not backups(root)
    assert not page.with_name("01_formats.ipynb").exists()


@pytest.mark.parametrize("name", ["work", "work/.amp-lab", "work/backups"])
def test_a_file_in_place_of_a_folder(root, name):
    if name != "work":
        (root / "work").mkdir()
        (root / "work" / PAGE).write_text(MINE)
    (root / name).write_text(MINE)
    with pytest.raises(WorkspaceError, match=f"{name}.*: .*rename the file$"):
        reset_lesson(root, "00_start_here")
    assert (root / name).read_text() == MINE


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (errno.ENOSPC, "No space left on device; free some space and try again"),
        (errno.EROFS, "Read-only file system; make the folder writable"),
        (errno.EACCES, "Permission denied; make the folder writable"),
        (errno.EIO, "Input/output error$"),
    ],
)
def test_a_full_or_locked_disk_is_one_clear_line(root, page, error, advice, monkeypatch):
    before = page.read_bytes()
    page.with_name("01_formats.ipynb").unlink()
    refuse(monkeypatch, "fsync", error)
    for attempt in (
        lambda: copy_blanks(root),
        lambda: reset_lesson(root, "00_start_here"),
        lambda: reset_exercise(root, "00_start_here", "0.1"),
    ):
        with pytest.raises(WorkspaceError, match=advice) as caught:
            attempt()
        assert "\n" not in str(caught.value)
    assert page.read_bytes() == before
    assert not page.with_name("01_formats.ipynb").exists()
    assert not backups(root)
    assert no_parts_left(root)


def test_a_file_in_place_of_the_workspace(root):
    (root / "work").touch()
    with pytest.raises(WorkspaceError, match=r"cannot work in .*work"):
        copy_blanks(root)


@pytest.mark.parametrize("error", [errno.EPERM, errno.EXDEV, errno.ENOTSUP])
def test_a_file_system_without_second_names(root, error, monkeypatch):
    refuse(monkeypatch, "link", error)
    (root / "work").mkdir()
    (root / "work" / "01_formats.ipynb").write_text(MINE)
    assert copy_blanks(root) == ((PAGE,), ("01_formats.ipynb",))
    page = root / "work" / PAGE
    assert page.read_bytes() == (root / "notebooks" / PAGE).read_bytes()
    page.write_text(MINE)
    assert reset_lesson(root, "00_start_here").read_text() == MINE
    refuse(monkeypatch, "fsync", errno.ENOSPC)
    page.unlink()
    with pytest.raises(WorkspaceError, match="No space left"):
        copy_blanks(root)
    assert not page.exists(), "half a notebook under the final name"


def test_a_file_system_without_locks(root, monkeypatch):
    def refused(*args):
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(workspace.fcntl, "flock", refused)
    assert copy_blanks(root).made == (PAGE, "01_formats.ipynb")


# --- other processes, and kills -----------------------------------------------------------------------------


def python(script, *args, **kwargs):
    """Start a Python process with the repository's amp_lab."""
    repository = Path(__file__).resolve().parents[3]
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, args)], cwd=repository, text=True, **kwargs
    )


def test_two_processes_at_once(root):
    for number in range(2, 30):
        (root / "notebooks" / f"{number:02d}_x.ipynb").write_bytes(cells.dump(blank(number)))
    script = """
        import json, sys
        from pathlib import Path
        from amp_lab.course.learner.workspace import copy_blanks
        print("ready", flush=True)
        sys.stdin.readline()
        print(json.dumps(copy_blanks(Path(sys.argv[1]))))
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with python(script, root, **pipes) as one, python(script, root, **pipes) as two:
        for process in (one, two):
            assert process.stdout.readline() == "ready\n"
        for process in (one, two):
            process.stdin.write("go\n")
            process.stdin.flush()
        made = [json.loads(process.communicate(timeout=30)[0])[0] for process in (one, two)]
    everything = sorted(path.name for path in (root / "notebooks").iterdir())
    assert sorted(made[0] + made[1]) == everything, "each copy is made by exactly one of them"
    assert sorted(origins(root)) == everything
    for name in everything:
        assert (root / "work" / name).read_bytes() == (root / "notebooks" / name).read_bytes()


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from amp_lab.course.learner import workspace

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
    workspace.{action}
"""


def killed_at(step, action, root):
    """Run an action that is killed before its `step`-th change on the disk; tell whether it was."""
    with python(KILLED.format(action=action), root, step) as process:
        return process.wait(timeout=30) == -signal.SIGKILL


def kills(action, root):
    """Kill an action at its first step, then at its second, and so on, until it is through."""
    step = 0
    while killed_at(step, action, root):
        step += 1
        yield step
    assert step > 3, "the steps to be killed at were not found"


def test_killed_while_copying(root):
    action = "copy_blanks(Path(sys.argv[1]))"
    for _ in kills(action, root):
        for path in (root / "work").glob("[0-9]*"):
            assert path.read_bytes() == (root / "notebooks" / path.name).read_bytes(), "half a notebook"
            path.unlink()
    assert len(list((root / "work").glob("[0-9]*"))) == 2
    assert len(origins(root)) == 2


@pytest.mark.parametrize("action", ["reset_lesson({})", "reset_exercise({}, '0.1')"])
def test_killed_while_starting_over(root, page, action):
    work = page.read_bytes()
    for _ in kills(action.format("Path(sys.argv[1]), '00_start_here'"), root):
        now = page.read_bytes()
        cells.parse(now)
        assert now == work or work in kept(root), "the learner's work is gone"
        for path in backups(root):
            path.unlink()
        page.unlink()  # rather than write in place: a backup may be the same file
        page.write_bytes(work)
    assert page.read_bytes() != work
    assert kept(root) == [work]


def test_a_course_file_that_is_locked_or_gone_has_the_advice_that_fits(root, monkeypatch):
    path = root / "notebooks" / PAGE

    def locked(each):
        raise PermissionError(errno.EACCES, "Permission denied", str(each))

    with monkeypatch.context() as patch:
        patch.setattr(workspace.disk, "read", locked)
        with pytest.raises(
            WorkspaceError, match=r"cannot read the course's .*: make this file readable .*chmod u"
        ):
            workspace.course_page(root, "00_start_here")
    path.unlink()
    with pytest.raises(WorkspaceError, match=r"cannot read the course's .*: get the checkout again$"):
        workspace.course_page(root, "00_start_here")


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_lock_that_is_no_file_is_one_line(root, page, make):
    lock = root / "work" / ".amp-lab" / "lock"
    lock.unlink()
    make(lock)
    with pytest.raises(WorkspaceError, match=r"lock: .*; .*rename"):
        reset_lesson(root, "00_start_here")
