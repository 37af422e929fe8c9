"""tools/build.py on a small course of its own: what it writes, what it calls stale, how it fails."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import pytest
from click.testing import CliRunner

from amp_lab.course.pages import source
from tools import build, execute
from tools.notebook import blank_notebook, dump, solved_notebook

LESSON = '''\
# %% [markdown]
# # Halves
#
# Text.

# %%
import pathlib
import sys

from amp_lab.lab import check

# %% tags=["nbval-ignore-output"] reason="differs between machines"
sys.platform

# %%
def half(x):
    """Return half of `x`."""
    ### BEGIN SOLUTION
    part = x / 2
    return part
    ### END SOLUTION

# %%
check("4.1", half)

# %% [markdown]
# Text.

# %%
print(half(4), end=" ", flush=True)
sys.stdout.flush()
print(pathlib.Path.cwd().name)

# %% [markdown]
# Text.
'''

LAB = """\
def check(exercise_id, answer):
    assert answer(3) == 1.5
    print("correct:", exercise_id)
"""

SLUG = "04_halves"


@pytest.fixture
def root(tmp_path):
    """A checkout with one lesson and a package of its own; nothing is built yet."""
    root = tmp_path / "checkout"
    files = {
        f"solutions/{SLUG}.py": LESSON,
        "amp_lab/__init__.py": "",
        "amp_lab/lab.py": LAB,
        "amp_lab/words.json": "data",
        "requirements.lock": "torch==2.13.0\n",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def built(root):
    """The same checkout as if it had been built: its executed notebook has counts, but no outputs."""
    path = root / "solutions" / f"{SLUG}.py"
    solved = solved_notebook(LESSON, path, build.digest_of(root, path))
    for count, cell in enumerate((cell for cell in solved["cells"] if cell["cell_type"] == "code"), 1):
        cell["execution_count"] = count
    build.write(path.with_suffix(".ipynb"), dump(solved))
    build.write(root / "notebooks" / f"{SLUG}.ipynb", dump(blank_notebook(LESSON, path)))
    assert build.drift(root) == []
    return root


def run(root, *arguments, **environment):
    """Call the command line; returns its exit code and all it said."""
    result = CliRunner().invoke(build.main, ["--root", str(root), *arguments], env=environment)
    return result.exit_code, result.output


# --- The notebooks ---


def test_a_blank_is_a_valid_notebook_in_the_form_that_nbformat_writes():
    made = dump(blank_notebook(LESSON, "04.py"))
    node = nbformat.reads(made.decode(), as_version=4)
    nbformat.validate(node)
    assert made.decode() == nbformat.writes(node) + "\n"


def test_a_blank_holds_stubs_no_outputs_and_nothing_of_a_machine():
    notebook = blank_notebook(LESSON, "04.py")
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * 5
    assert "".join(code[2]["source"]).endswith('`x`."""\n    raise NotImplementedError')
    assert notebook["metadata"] == {
        "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def test_cells_keep_their_tag_and_its_reason_and_nothing_else():
    notebook = blank_notebook(LESSON, "04.py")
    assert [cell["metadata"] for cell in notebook["cells"] if cell["metadata"]] == [
        {"tags": ["nbval-ignore-output"], "reason": "differs between machines"}
    ]


def test_ids_are_unique_valid_and_the_same_in_both_notebooks():
    blank, solved = blank_notebook(LESSON, "04.py"), solved_notebook(LESSON, "04.py", "digest")
    ids = [cell["id"] for cell in blank["cells"]]
    assert ids == [cell["id"] for cell in solved["cells"]]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"check-4-1|stub-4-1-1|[0-9a-f]{8}-[12]", each) for each in ids)
    assert source.check_cells(blank) == {"check-4-1": "4.1"}
    assert blank["cells"][4]["source"] == ['check("4.1", half)']
    assert [index for index, each in enumerate(ids) if each == "stub-4-1-1"] == [3]


def test_stubs_are_named_after_the_check_that_takes_them_whatever_their_order():
    cell = "# %%\n{0}:\n    ### BEGIN SOLUTION\n    pass\n    ### END SOLUTION\n"
    method = (
        "class {0}:\n    def {1}(self):\n        ### BEGIN SOLUTION\n        pass\n        ### END SOLUTION\n"
    )
    text = (
        f"# %%\n{method.format('F', 'f')}"
        + cell.format("def g()")
        + "# %%\nraise NotImplementedError\n"
        + f"# %%\n{method.format('F(F)', 'h')}"
        + '# %%\ncheck("4.1", g)\n# %%\ncheck("4.2", F)\n'
    )
    ids = [each["id"] for each in blank_notebook(text, "04.py")["cells"]]
    assert re.fullmatch(r"[0-9a-f]{8}-1", ids.pop(2))
    assert ids == ["stub-4-2-1", "stub-4-1-1", "stub-4-2-2", "check-4-1", "check-4-2"]


def test_an_id_changes_only_with_its_own_cell():
    edited = LESSON.replace("# # Halves", "# # Half of it")
    before, after = (
        [each["id"] for each in blank_notebook(text, "04.py")["cells"]] for text in (LESSON, edited)
    )
    assert before[0] != after[0]
    assert before[1:] == after[1:]


def test_a_solved_notebook_shows_the_solution_without_markers():
    text = json.dumps(solved_notebook(LESSON, "04.py", "digest"))
    assert "part = x / 2" in text
    assert "SOLUTION" not in text


# --- Outputs ---


def stream(text, name="stdout"):
    return {"output_type": "stream", "name": name, "text": text}


def shown(**data):
    return {
        "output_type": "display_data",
        "metadata": {},
        "data": {key.replace("_", "/"): each for key, each in data.items()},
    }


def test_pieces_of_a_stream_are_joined_where_they_are_neighbours():
    picture = shown(image_png="…")
    outputs = [stream("a"), stream("b"), picture, stream("c"), stream("d")]
    assert execute.tidy(outputs) == [stream("ab"), picture, stream("cd")]


def test_a_widgets_view_is_dropped_and_its_picture_kept():
    view = {execute.WIDGET_VIEW: {"model_id": "5c3d"}}
    both, alone = shown(text_plain="a slider", image_png="…"), shown()
    both["data"] |= view
    alone["data"] |= view
    assert execute.tidy([both, alone]) == [shown(text_plain="a slider", image_png="…")]


@pytest.mark.parametrize(
    ("output", "fault"),
    [
        (
            stream("UserWarning: old\n", "stderr"),
            "it writes to stderr, which a learner would see: UserWarning: old",
        ),
        (stream(["a\n", "b\n"], "stderr"), "it writes to stderr, which a learner would see: a\nb"),
        (stream("<Thing object at 0x7f12a4>"), "memory address: at 0x7f12a4"),
        (shown(text_html="<b>0x7f12a45b6c7d</b>"), "memory address: 0x7f12a45b6c7d"),
        (stream("saved as /course/main/solutions/x.pt"), "a path of this machine: /course/main"),
        (shown(text_plain=f"'{sys.prefix}/lib'"), f"a path of this machine: {sys.prefix}/"),
    ],
)
def test_what_only_this_machine_shows_is_a_fault(output, fault):
    assert any(fault in each for each in execute.faults([output], Path("/course/main")))


def test_bits_in_hexadecimal_pictures_and_addresses_on_the_web_are_no_faults(monkeypatch):
    monkeypatch.setenv("HOME", "/")
    outputs = [
        stream("https://pytorch.org/"),
        stream("1.0 is 0x3f800000, 0x3ff0000000000000; nan is 0x7fc00000"),
        shown(image_png="at 0x7f12a45b6c7d"),
    ]
    assert execute.faults(outputs, Path("/course/main")) == []


# --- Drift ---


def edit(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


BLANK, EXECUTED, SOURCE = f"notebooks/{SLUG}.ipynb", f"solutions/{SLUG}.ipynb", f"solutions/{SLUG}.py"
STALE = f"{EXECUTED} was not run on today's source, amp_lab and requirements.lock"

# name -> (what is done to a built checkout, what must be said)
DRIFTS = {
    "blank missing": (lambda root: (root / BLANK).unlink(), [f"{BLANK} is missing"]),
    "blank edited": (lambda root: edit(root / BLANK, "Text.", "text."), [f"{BLANK} differs from {SOURCE}"]),
    "blank executed": (
        lambda root: edit(root / BLANK, '"execution_count": null', '"execution_count": 1'),
        [f"{BLANK} differs from {SOURCE}"],
    ),
    "source edited": (
        lambda root: edit(root / SOURCE, "# Text.", "# More text."),
        [f"{BLANK} differs from {SOURCE}", STALE],
    ),
    "solution edited": (lambda root: edit(root / SOURCE, "part", "whole"), [STALE]),
    "executed missing": (lambda root: (root / EXECUTED).unlink(), [f"{EXECUTED} is missing"]),
    "executed edited": (lambda root: edit(root / EXECUTED, "part", "whole"), [STALE]),
    "executed never run": (
        lambda root: edit(root / EXECUTED, '"execution_count": 3', '"execution_count": null'),
        [STALE],
    ),
    "executed torn": (
        lambda root: (root / EXECUTED).write_text((root / EXECUTED).read_text()[:500]),
        [STALE],
    ),
    "package edited": (lambda root: edit(root / "amp_lab/lab.py", "1.5", "3 / 2"), [STALE]),
    "package file added": (lambda root: (root / "amp_lab/new.py").touch(), [STALE]),
    "package data edited": (lambda root: edit(root / "amp_lab/words.json", "data", "other data"), [STALE]),
    "lock edited": (lambda root: edit(root / "requirements.lock", "2.13.0", "2.14.1"), [STALE]),
    "blank without source": (
        lambda root: (root / "notebooks/03_old.ipynb").touch(),
        ["notebooks/03_old.ipynb has no source solutions/03_old.py; delete it, or restore that"],
    ),
    "executed without source": (
        lambda root: (root / "solutions/03_old.ipynb").touch(),
        ["solutions/03_old.ipynb has no source solutions/03_old.py; delete it, or restore that"],
    ),
}


@pytest.mark.parametrize(("change", "found"), DRIFTS.values(), ids=DRIFTS)
def test_drift_is_found(built, change, found):
    change(built)
    assert build.drift(built) == found
    code, said = run(built, "--check")
    assert code == 1
    assert all(each in said for each in found)
    assert "run `make build`" in said


def test_what_tools_leave_behind_is_no_drift(built):
    for name in (
        "amp_lab/__pycache__/lab.cpython-311.pyc",
        "amp_lab/.mypy_cache/x.json",
        "notebooks/.ipynb_checkpoints/x.ipynb",
        "amp_lab/lab.py~",
        "amp_lab/.#lab.py",
        "amp_lab/4913",
    ):
        (built / name).parent.mkdir(exist_ok=True)
        (built / name).touch()
    assert run(built, "--check") == (0, "")


# --- The command line, without a kernel ---


def test_a_fault_in_one_source_leaves_the_others_built(built):
    (built / "solutions/05_torn.py").write_text("# %%\n### BEGIN SOLUTION\nx = 1\n")
    (built / BLANK).unlink()
    code, said = run(built)
    assert code == 1
    assert (built / BLANK).is_file()
    assert "solutions/05_torn.py:2: this solution block is not closed" in said
    assert not (built / "notebooks/05_torn.ipynb").exists()


def unreadable(root):
    (root / "solutions/03_locked.py").write_bytes(b"# %%\nname = '\xff'\n")


def folder(root):
    (root / "solutions/03_locked.py").mkdir()


def dangling_link(root):
    (root / "solutions/03_locked.py").symlink_to(root / "nowhere")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (unreadable, "03_locked.py: byte 13 is not UTF-8; save the file as UTF-8"),
        (folder, "03_locked.py: cannot use {root}/solutions/03_locked.py (Is a directory); see what is"),
        (dangling_link, "03_locked.py: cannot use {root}/solutions/03_locked.py (No such file or directory)"),
    ],
)
def test_a_source_that_cannot_be_read_leaves_the_others_built_and_checked(built, spoil, said):
    spoil(built)
    (built / BLANK).unlink()
    code, output = run(built, "--check")
    assert code == 1
    assert said.format(root=built) in output
    assert f"{BLANK} is missing" in output
    code, output = run(built)
    assert code == 1
    assert said.format(root=built) in output
    assert (built / BLANK).is_file()


@pytest.mark.parametrize("spoil", [Path.touch, lambda path: path.symlink_to("nowhere")])
def test_a_notebooks_folder_that_is_none_is_named(built, spoil):
    (built / BLANK).unlink()
    (built / "notebooks").rmdir()
    spoil(built / "notebooks")
    code, said = run(built)
    assert code == 1
    assert f"{SOURCE}: cannot use {built}/notebooks" in said


def test_a_folder_and_a_file_that_refuse_are_named(built, monkeypatch):
    """By hand, since root may read and write everything."""
    refused = PermissionError(13, "Permission denied", str(built / "amp_lab/lab.py"))
    monkeypatch.setattr(Path, "read_bytes", lambda path: (_ for _ in ()).throw(refused))
    code, said = run(built)
    assert code == 1
    assert f"{SOURCE}: cannot use {built}/amp_lab/lab.py (Permission denied); see what is in the way" in said
    assert f"cannot use {built}/amp_lab/lab.py" in run(built, "--check")[1]


def test_a_byte_order_mark_is_no_part_of_a_source(built):
    (built / SOURCE).write_text(LESSON, encoding="utf-8-sig")
    assert build.drift(built) == [STALE]


def test_two_lessons_of_one_number_are_an_error(built):
    (built / "solutions/04_wholes.py").touch()
    code, said = run(built)
    assert code == 1
    assert "04_halves.py and 04_wholes.py are both lesson 04; renumber one" in said


def test_an_unknown_lesson_is_named_and_so_are_the_known_ones(built):
    assert run(built, "04_wholes") == (1, f"Error: no lesson is called 04_wholes; there are {SLUG}\n")


def test_only_the_lessons_asked_for_are_built(built):
    (built / "solutions/05_torn.py").write_text("# %%\n### BEGIN SOLUTION\n")
    assert run(built, SLUG) == (0, f"{SLUG}: up to date\n")


def test_building_reports_a_notebook_without_source_and_leaves_it(built):
    orphan = built / "notebooks/my_notes.ipynb"
    orphan.write_text("mine")
    code, said = run(built)
    assert code == 1
    assert "notebooks/my_notes.ipynb has no source" in said
    assert orphan.read_text() == "mine"


def test_a_checkout_without_lessons_or_lock_or_with_a_misnamed_lesson_is_an_error(built):
    (built / "requirements.lock").unlink()
    assert "requirements.lock is missing; restore it" in run(built, "--check")[1]
    (built / SOURCE).rename(built / "solutions/halves.py")
    assert "solutions/halves.py: not a lesson's name; call it solutions/NN_slug.py" in run(built)[1]
    (built / "solutions/halves.py").unlink()
    code, said = run(built)
    assert code == 1
    assert "no lesson source in" in said


def test_a_write_that_fails_leaves_nothing_behind(tmp_path):
    (tmp_path / "in_the_way").mkdir()
    with pytest.raises(OSError, match="in_the_way"):
        build.write(tmp_path / "in_the_way", b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["in_the_way"]


# --- With a kernel ---


def outputs_of(path):
    cells = json.loads(path.read_text())["cells"]
    return [[output.get("text", output.get("data")) for output in cell.get("outputs", [])] for cell in cells]


@pytest.mark.kernel
def test_building_twice_in_two_processes_gives_the_same_bytes(root, tmp_path):
    """Also: this Python is the kernel, whatever a kernelspec says; the lesson runs beside its source."""
    spec = tmp_path / "jupyter/kernels/python3/kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["false"], "display_name": "not ours", "language": "python"}))
    edit(root / SOURCE, "from amp_lab", f"assert sys.executable == {sys.executable!r}\nfrom amp_lab")
    code, said = run(root, JUPYTER_PATH=str(tmp_path / "jupyter"))
    assert code == 0, said
    assert re.fullmatch(SLUG + r": blank written, executed in \d+ s\n", said)
    first = [(root / name).read_bytes() for name in (BLANK, EXECUTED)]
    assert [each for each in outputs_of(root / EXECUTED) if each] == [
        [{"text/plain": [f"'{sys.platform}'"]}],
        [["correct: 4.1\n"]],
        [["2.0 solutions\n"]],
    ]
    nbformat.validate(nbformat.read(root / EXECUTED, as_version=4))
    assert run(root) == (0, f"{SLUG}: up to date\n")
    assert run(root, "--check") == (0, "")

    again = [sys.executable, build.__file__, "--root", str(root)]
    other = {**os.environ, "PYTHONPATH": str(build.ROOT), "PYTHONHASHSEED": "77", "FORCE": "1"}
    done = subprocess.run(again, env=other, capture_output=True, text=True, timeout=120)
    assert re.fullmatch(SLUG + r": executed in \d+ s\n", done.stdout), done.stderr
    assert [(root / name).read_bytes() for name in (BLANK, EXECUTED)] == first


@pytest.mark.kernel
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import warnings; warnings.warn('old')", "it writes to stderr, which a learner would see"),
        ("while True: pass", "it ran for more than 2 seconds"),
        ("import os; os._exit(3)", "the kernel died"),
        ("print('x' * 9000)", "cell 3 is the largest, with 9,"),
    ],
)
def test_a_lesson_that_fails_is_named_and_the_last_good_notebook_stays(built, monkeypatch, line, said):
    monkeypatch.setattr(execute, "CELL_TIMEOUT_S", 2)
    monkeypatch.setattr(execute, "LARGEST_BYTES", 9000)
    good = (built / EXECUTED).read_bytes()
    edit(built / SOURCE, "sys.platform", line)
    code, output = run(built)
    assert code == 1
    assert said in output
    assert re.search(rf"{SOURCE}:13: (cell 3 failed: |the executed notebook has)", output)
    assert len(output.splitlines()) < 10
    assert (built / EXECUTED).read_bytes() == good
    assert [path.name for path in sorted((built / "solutions").iterdir())] == [f"{SLUG}.ipynb", f"{SLUG}.py"]


@pytest.mark.kernel
def test_what_a_widget_captures_is_shown_and_no_state_of_it_kept(root):
    lines = [
        "import ipywidgets",
        "area = ipywidgets.Output()",
        "with area:",
        "    print('captured')",
        "area",
    ]
    edit(root / SOURCE, "sys.platform", "\n".join(lines))
    with (root / SOURCE).open("a") as file:
        file.write("\n# %%\nipywidgets.interact(lambda x: print('moved to', x), x=2);\n")
    code, said = run(root)
    assert code == 0, said
    assert outputs_of(root / EXECUTED)[2] == [["captured\n"], {"text/plain": ["Output()"]}]
    assert ["moved to 2\n"] in outputs_of(root / EXECUTED)[-1]
    text = (root / EXECUTED).read_text()
    assert "widget-state" not in text
    assert "model_id" not in text
    assert json.loads(text)["metadata"].keys() == {"amp_lab", "kernelspec", "language_info"}
    assert run(root, "--check") == (0, "")


@pytest.mark.kernel
def test_ctrl_c_ends_a_build_in_one_word_and_changes_nothing(built, tmp_path):
    good = (built / EXECUTED).read_bytes()
    started = tmp_path / "started"
    edit(built / SOURCE, "sys.platform", f"pathlib.Path({str(started)!r}).touch()\nwhile True: pass")
    command = [sys.executable, build.__file__, "--root", str(built)]
    environment = {**os.environ, "PYTHONPATH": str(build.ROOT)}
    building = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        deadline = time.monotonic() + 60
        while not started.exists() and building.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        building.send_signal(signal.SIGINT)
        said, complaint = building.communicate(timeout=60)
    finally:
        building.kill()
    assert started.exists()
    assert (building.returncode, said, complaint.strip()) == (1, "", "Aborted!")
    assert (built / EXECUTED).read_bytes() == good
