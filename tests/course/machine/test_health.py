"""What `amp-lab doctor` looks at: each problem that it can find is made here, and found."""

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import types
from importlib import metadata
from pathlib import Path

import pytest

from amp_lab.course import catalog
from amp_lab.course.learner import workspace
from amp_lab.course.machine import health
from amp_lab.course.pages import cells
from tests.course.machine.one_lesson import SLUG, one_lesson
from tests.course.pages.sample_pages import NEW

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def root(tmp_path, monkeypatch):
    return one_lesson(tmp_path, monkeypatch)


def kinds(findings):
    return [finding.kind for finding in findings]


# --- Python and the environment -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ((3, 10, 9), "problem"),
        ((2, 7, 1), "problem"),
        ((3, 11, 0), "ok"),
        ((3, 14, 9), "ok"),
        ((3, 15, 0), "note"),
    ],
)
def test_python(version, kind):
    finding = health.python(version)
    assert finding.kind == kind
    assert ".".join(map(str, version)) in finding.said


def test_the_range_of_pythons_is_that_of_the_set_up():
    """tools/setup.sh decides with which Pythons `.venv` is made."""
    text = (REPOSITORY / "tools" / "setup.sh").read_text()
    accepted = re.search(r"in ([\d. |]+)\) ;;", text)[1].split(" | ")
    assert accepted[0] == ".".join(map(str, health.OLDEST))
    assert accepted[-1] == ".".join(map(str, health.NEWEST))


def test_which_environment(root, monkeypatch):
    finding = health.environment(root)
    assert finding.kind == "note"
    assert f"not the checkout's own ({root / '.venv'})" in finding.said
    monkeypatch.setattr(sys, "prefix", str(root / ".venv"))
    assert health.environment(root).kind == "ok"
    real = root / "elsewhere"
    real.mkdir()
    (root / ".venv").symlink_to(real)
    monkeypatch.setattr(sys, "prefix", str(real))
    assert health.environment(root).kind == "ok"
    assert "need the course's checkout" in health.environment(None).said


# --- packages -----------------------------------------------------------------------------------------------


def needing(root, *requirements):
    (root / "pyproject.toml").write_text(f"[project]\ndependencies = {json.dumps(requirements)}\n")
    return list(health.packages(root))


def test_a_missing_package(root):
    (finding,) = needing(root, "click", "no-such-package-as-this>=1")
    assert finding.kind == "problem"
    assert finding.said == "no-such-package-as-this is missing; AMP Lab needs it"
    assert finding.advice == f"run `make lab` in {root}"


def test_a_version_out_of_range(root):
    (finding,) = needing(root, "click>=99")
    assert finding == (
        "problem",
        "packages",
        f"click is {metadata.version('click')}; AMP Lab needs >=99",
        finding.advice,
    )


def test_what_a_package_needs_in_turn(root, monkeypatch):
    """As after `pip uninstall` of something nobody knows the name of."""

    class Fake:
        version = "1.0+cpu"
        requires = (
            'gone>=1; python_version > "3"',
            'other; extra == "x"',
            'windows-only; sys_platform == "win32"',
            "(",
        )

    real = metadata.distribution

    def distribution(name):
        if name in ("gone", "other", "no"):
            raise metadata.PackageNotFoundError(name)
        return Fake() if name == "fake" else real(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    assert [each.said for each in needing(root, "fake")] == ["gone is missing; fake needs it"]
    assert [each.said for each in needing(root, "fake[x]")] == [
        "gone is missing; fake needs it",
        "other is missing; fake needs it",
    ]


def test_another_version_than_the_tested_is_a_note(root):
    (root / "requirements.lock").write_text("# comment\nclick==8.1.0; python_version > '3'\nnot-needed==5\n")
    (finding,) = needing(root, "click>=8.1")
    assert finding.kind == "note"
    assert finding.said.endswith(f": click {metadata.version('click')} (not 8.1.0)")


def test_a_local_version_is_the_tested_one(root, monkeypatch):
    (root / "requirements.lock").write_text("torch==2.13.0\n")
    fake = types.SimpleNamespace(version="2.13.0+cu130", requires=())
    monkeypatch.setattr(metadata, "distribution", lambda name: fake)
    assert kinds(needing(root, "torch>=2.9")) == ["ok"]


@pytest.mark.parametrize("damage", ["lock gone", "no TOML", "no dependencies", "no requirement"])
def test_damaged_lists_of_packages(root, damage):
    if damage == "lock gone":
        (root / "requirements.lock").unlink()
    else:
        text = {
            "no TOML": "[",
            "no dependencies": "[project]\n",
            "no requirement": '[project]\ndependencies = ["("]\n',
        }
        (root / "pyproject.toml").write_text(text[damage])
    (finding,) = health.packages(root)
    assert finding.kind == "problem"
    assert finding.said.startswith("cannot read what is needed")


def test_without_packaging(root, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "packaging" else find(name))
    (finding,) = health.packages(root)
    assert finding.said == "packaging is missing"


def test_this_very_environment():
    assert "problem" not in kinds(health.packages(REPOSITORY))


# --- Jupyter and PyTorch ------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", health.MODULES)
def test_a_missing_part_of_jupyter(missing, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == missing else find(name))
    finding = health.jupyter()
    assert finding.kind == "problem"
    assert finding.said == f"no {missing} in {sys.executable}"


def test_no_part_of_jupyter_is_imported():
    script = "import sys; from amp_lab.course.machine import health; health.jupyter(); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert not set(done.stdout.split()) & {*health.MODULES, "IPython", "torch", "traitlets"}


def test_the_kernel_of_this_python(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    finding = health.kernel()
    assert finding == ("ok", "kernel", finding.said, "")
    assert sys.executable in finding.said


@pytest.mark.parametrize(
    ("program", "kind"), [("/usr/bin/another-python", "problem"), (sys.executable, "ok")]
)
def test_the_kernel_of_another_python(program, kind, monkeypatch, tmp_path):
    folder = tmp_path / "kernels" / "python3"
    folder.mkdir(parents=True)
    spec = {"argv": [program, "-m", "ipykernel_launcher"], "display_name": "x", "language": "python"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    finding = health.kernel()
    assert finding.kind == kind
    if kind == "problem":
        assert finding.said == f"python3 runs {program}, not {sys.executable}"
        assert str(folder / "kernel.json") in finding.advice


def torch_that(monkeypatch, tmp_path, source):
    """Put another `torch` in the way of the one installed."""
    (tmp_path / "torch.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (
            "raise ImportError('libcudart.so.13: cannot open shared object file')",
            "ImportError: libcudart.so.13: cannot",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "it died of SIGSEGV"),
        ("import time; time.sleep(60)", "no answer within 2 s"),
        ("import os; os._exit(3)", "it ended with status 3, without a word"),
        ("print('half')\nimport sys; sys.exit()", "it ended with status 0, without a word"),
    ],
)
def test_a_broken_pytorch_is_a_sentence(source, said, monkeypatch, tmp_path):
    torch_that(monkeypatch, tmp_path, source)
    finding = health.pytorch(2)
    assert finding.kind == "problem"
    assert finding.said.startswith(said)
    assert "\n" not in finding.said
    assert finding.advice


def test_a_python_that_does_not_run(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert health.pytorch().said == "/nowhere/python does not run: No such file or directory"


def test_the_process_for_pytorch_finds_this_very_package(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/mine")
    assert health._import_path() == [str(REPOSITORY), "/mine"]


def test_pytorch_as_it_is():
    import torch

    finding = health.pytorch()
    assert finding.kind == "ok"
    assert finding.said.startswith(f"{torch.__version__} on {'cuda' if torch.cuda.is_available() else 'cpu'}")


# --- the workspace ------------------------------------------------------------------------------------------


def test_a_workspace_that_is_a_file(root):
    (root / "work").rename(root / "elsewhere")
    (root / "work").touch()
    finding = health.writable(root)
    assert finding.kind == "problem"
    assert "nothing can be saved in" in finding.said


def test_a_locked_workspace(root, monkeypatch):
    def refused(dir):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    finding = health.writable(root)
    assert finding.kind == "problem"
    assert finding.said.endswith("Permission denied")


def test_no_workspace_yet(root):
    import shutil

    shutil.rmtree(root / "work")
    assert health.writable(root).kind == "ok"
    assert "amp-lab lab" in health.writable(root).said
    assert list(health.copies(root)) == []
    assert not (root / "work").exists()


@pytest.mark.parametrize(
    ("free", "kind"), [(1e6, "problem"), (199e6, "problem"), (201e6, "ok"), (1e12, "ok")]
)
def test_the_disk(free, kind, monkeypatch):
    monkeypatch.setattr(health.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=int(free)))
    assert health.disk(Path("/")).kind == kind


def test_an_outdated_copy_is_a_note(root):
    (root / "notebooks" / f"{SLUG}.ipynb").write_bytes(cells.dump(NEW))
    note, ok = health.copies(root)
    assert (note.kind, ok.kind) == ("note", "ok")
    assert "`amp-lab update 01`" in note.said


def test_a_lesson_that_is_gone_is_a_note(root, monkeypatch):
    (root / "notebooks" / f"{SLUG}.ipynb").unlink()
    monkeypatch.setattr(catalog, "lessons", lambda: ())
    (note,) = health.copies(root)
    assert note.said == f"the course does not have {SLUG}.ipynb any more; your copy stays"
    assert workspace.origins(root), "doctor forgets nothing"


def test_a_folder_in_place_of_a_copy(root):
    (root / "work" / f"{SLUG}.ipynb").unlink()
    (root / "work" / f"{SLUG}.ipynb").mkdir()
    assert kinds(health.copies(root)) == ["problem", "ok"]


@pytest.mark.parametrize(
    "name", [".amp-lab-check.0a1b2c3d.01_formats.ipynb", ".01_formats.ipynb.0a1b2c3d.part"]
)
def test_what_killed_programs_leave(root, name):
    assert list(health.left_behind(root)) == []
    (root / "work" / name).touch()
    (finding,) = health.left_behind(root)
    assert finding.kind == "note"
    assert name in finding.said


def test_what_is_read_only_is_a_problem(root, monkeypatch):
    path = root / "work" / f"{SLUG}.ipynb"
    monkeypatch.setattr(health.os, "access", lambda each, mode: each != path)
    problem, ok = health.copies(root)
    assert (problem.kind, ok.kind) == ("problem", "ok")
    assert problem.advice.endswith(f"chmod u+w {path}")


def test_the_courses_own_page_is_missing(root):
    assert kinds(health.course(root)) == ["ok"]
    (root / "notebooks" / f"{SLUG}.ipynb").unlink()
    (problem,) = health.course(root)
    assert problem.kind == "problem"
    assert problem.advice == "get the checkout again"


@pytest.mark.parametrize("name", ["origin.json", "progress.jsonl", "lock", "blanks"])
def test_a_record_that_cannot_be_read(root, name):
    assert list(health.records(root)) == []
    state = root / "work" / ".amp-lab"
    path = next((state / "blanks").iterdir()) if name == "blanks" else state / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    (problem,) = health.records(root)
    assert problem.said == f"{path}: not an ordinary file"
    assert problem.advice


def test_kept_blanks_that_cannot_be_listed(root):
    blanks = root / "work" / ".amp-lab" / "blanks"
    blanks.rename(root / "elsewhere")
    assert list(health.records(root)) == []
    blanks.touch()
    (problem,) = health.records(root)
    assert problem.said == f"{blanks}: Not a directory"


def test_a_question_that_the_system_refuses_is_a_finding(root, monkeypatch):
    def refused(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(health.shutil, "disk_usage", refused)
    (finding,) = health._asked(health.disk, root)
    assert finding == ("problem", "disk", f"{root}: Permission denied", finding.advice)
    assert "writable" in finding.advice


def test_a_page_under_its_former_name_is_a_note(root, monkeypatch):
    (root / "notebooks" / f"{SLUG}.ipynb").rename(root / "notebooks" / "01_numbers.ipynb")
    lesson = catalog.Lesson("01_numbers", "Numbers", 40, "easy", "-", ())
    monkeypatch.setattr(catalog, "lessons", lambda: (lesson,))
    (note,) = health.copies(root)
    assert note.kind == "note"
    assert note.said == f"{SLUG}.ipynb is 01_numbers.ipynb now: `amp-lab update 01` brings your work over"


# --- this system --------------------------------------------------------------------------------------------


def test_time_limits():
    assert health.time_limits().kind == ("ok" if hasattr(signal, "SIGALRM") else "note")
    assert health.time_limits(types.SimpleNamespace()).kind == "note"


@pytest.mark.parametrize(
    ("encoding", "kind"),
    [("utf-8", "ok"), ("ascii", "note"), ("latin-1", "note"), (None, "note"), ("no such", "note")],
)
def test_the_terminals_letters(encoding, kind):
    assert health.letters(encoding).kind == kind
