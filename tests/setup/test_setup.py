"""tools/setup.sh on machines with faults, played by a fake python3: nothing is installed, no network is used."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Plays a Python, the venv module and pip, as far as setup.sh calls them. Files beside .venv steer it: `no-ensurepip`,
# `venv-fails` and `pip-fails` (the text that is printed on failure) and `pip-is-killed`; every venv and pip call is
# noted in `calls`, what the environment tells pip in `settings`.
FAKE_PYTHON = r"""#!/bin/sh
case "$*" in
    *version_info*) echo VERSION ;;
    *"import ensurepip"*) [ ! -e no-ensurepip ] ;;
    "-m venv --clear .venv")
        echo "$0 $*" >>calls
        if [ -e venv-fails ]; then cat venv-fails >&2; exit 1; fi
        mkdir -p .venv/bin
        : >.venv/pyvenv.cfg
        cp "$0" .venv/bin/python
        printf '#!/bin/sh\necho "pip 26.0 from %s/.venv/lib/pip (python VERSION)"\n' "$(pwd -P)" >.venv/bin/pip
        chmod +x .venv/bin/pip ;;
    "-m pip install "*)
        echo "$*" >>calls
        env | grep -E '^(PYTHON|PIP_)' >settings
        if [ -e pip-is-killed ]; then kill -9 $$; fi
        if [ -e pip-fails ]; then cat pip-fails; exit 1; fi ;;
    *) echo "the fake python cannot do: $*" >&2; exit 3 ;;
esac
"""
TOOLS = "sh env cksum cat grep tail sed awk df dirname mkdir cp chmod make rm find".split()


@pytest.fixture
def checkout(tmp_path):
    """Return a checkout with a blank in its path: nothing but what setup.sh reads."""
    folder = tmp_path / "check out"
    (folder / "tools").mkdir(parents=True)
    for name in ["Makefile", "tools/setup.sh", "requirements.lock", "pyproject.toml"]:
        shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture
def bin_folder(tmp_path):
    """Return a folder that is the whole PATH: the tools that setup.sh needs, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in TOOLS:
        (folder / name).symlink_to(shutil.which(name))
    return folder


def add_python(folder, version="3.12", name="python3"):
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(FAKE_PYTHON.replace("VERSION", version))
    path.chmod(0o755)
    return path


def run(command, checkout, bin_folder, **environment):
    return subprocess.run(
        command,
        cwd=checkout,
        env={"PATH": str(bin_folder), "LC_ALL": "C", **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def set_up(checkout, bin_folder, goal="lab", **environment):
    return run(["sh", "tools/setup.sh", goal], checkout, bin_folder, **environment)


def calls(checkout):
    """Return which calls of venv and pip were made since the last question."""
    path = checkout / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return lines


def refused(done):
    """Return the one line with which a run failed."""
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("AMP Lab: ")
    return line


def test_a_fresh_checkout_gets_the_pinned_versions(checkout, bin_folder):
    add_python(bin_folder)
    done = set_up(checkout, bin_folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["Creating", "Installing"]
    venv, pip = calls(checkout)
    assert venv.endswith("python3 -m venv --clear .venv")
    assert pip.endswith("-c requirements.lock -e .")


def test_the_second_run_says_and_does_nothing(checkout, bin_folder):
    add_python(bin_folder)
    set_up(checkout, bin_folder)
    calls(checkout)
    again = set_up(checkout, bin_folder)
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")
    assert calls(checkout) == []


def test_the_tests_install_includes_the_course(checkout, bin_folder):
    add_python(bin_folder)
    set_up(checkout, bin_folder, "test")
    assert calls(checkout)[-1].endswith("-e .[dev]")
    set_up(checkout, bin_folder, "lab")
    assert calls(checkout) == []


def test_the_course_install_does_not_include_the_tests(checkout, bin_folder):
    add_python(bin_folder)
    set_up(checkout, bin_folder, "lab")
    calls(checkout)
    set_up(checkout, bin_folder, "test")
    (pip,) = calls(checkout)
    assert pip.endswith("-e .[dev]")


@pytest.mark.parametrize("changed", ["requirements.lock", "pyproject.toml"])
def test_new_pins_are_installed_into_the_same_venv(checkout, bin_folder, changed):
    add_python(bin_folder)
    set_up(checkout, bin_folder)
    calls(checkout)
    with (checkout / changed).open("a") as file:
        file.write("# new\n")
    done = set_up(checkout, bin_folder)
    assert done.returncode == 0
    (pip,) = calls(checkout)
    assert "pip install" in pip


def test_files_from_the_future_are_installed_once(checkout, bin_folder):
    add_python(bin_folder)
    for name in ["requirements.lock", "pyproject.toml"]:
        os.utime(checkout / name, (4e9, 4e9))
    set_up(checkout, bin_folder)
    calls(checkout)
    assert set_up(checkout, bin_folder).stdout == ""
    assert calls(checkout) == []


def test_a_failed_install_is_resumed_by_the_same_command(checkout, bin_folder):
    add_python(bin_folder)
    (checkout / "pip-fails").write_text("ERROR: Could not fetch URL https://x/simple/torch/: timed out\n")
    line = refused(set_up(checkout, bin_folder))
    assert "Could not fetch URL https://x/simple/torch/: timed out; check the network or proxy" in line
    assert "run the same command again" in line
    assert ".venv/install.log" in line
    calls(checkout)
    (checkout / "pip-fails").unlink()
    assert set_up(checkout, bin_folder).returncode == 0
    (pip,) = calls(checkout)
    assert "pip install" in pip


# What pip 23 printed, shortened: offline while it fetched the build backend, and when the connection broke off.
OFFLINE = """\
      WARNING: Retrying (Retry(total=0, connect=None)) after connection broken by 'NewConnectionError(...)': /simple/x/
  error: subprocess-exited-with-error
      ERROR: Could not find a version that satisfies the requirement hatchling>=1.26 (from versions: none)
      ERROR: No matching distribution found for hatchling>=1.26
      [end of output]
error: subprocess-exited-with-error
note: This error originates from a subprocess, and is likely not a problem with pip.
"""
# What it says where this version of PyTorch has no wheel, and where there is none at all.
NO_WHEEL = """\
ERROR: Cannot install torch>=2.9 because these package versions have conflicting dependencies.

The conflict is caused by:
    The user requested torch>=2.9
    The user requested (constraint) torch==2.13.0

2. remove package versions to allow pip attempt to solve the dependency conflict

ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/en/latest/topics/dependency-resolution/
"""
NO_TORCH = "ERROR: No matching distribution found for torch==2.13.0\n"
WHEELS = "PyTorch has wheels for Linux with glibc 2.28 or newer (x86-64 and ARM)"
BROKEN_OFF = """\
ERROR: Exception:
Traceback (most recent call last):
  File "urllib3/response.py", line 443, in _error_catcher
pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool(host='x', port=443): Read timed out.

"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (OFFLINE, "AMP Lab: ERROR: No matching distribution found for hatchling>=1.26; check the network"),
        (BROKEN_OFF, "AMP Lab: pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool("),
        (NO_TORCH, f"AMP Lab: {NO_TORCH.strip()}; {WHEELS}"),
        (NO_WHEEL, f"AMP Lab: {NO_WHEEL.splitlines()[0]}; {WHEELS}"),
        (
            "ERROR: a wheel is broken\n",
            "AMP Lab: ERROR: a wheel is broken; see the log for the cause, then run",
        ),
        ("", "AMP Lab: pip failed without a word (exit status 1); see the log"),
    ],
)
def test_the_line_of_pip_that_names_the_cause_is_shown(checkout, bin_folder, said, reason):
    add_python(bin_folder)
    (checkout / "pip-fails").write_text(said)
    assert refused(set_up(checkout, bin_folder)).startswith(reason)
    assert (checkout / ".venv/install.log").read_text() == said


@pytest.mark.parametrize("stage", ["venv-fails", "pip-fails"])
def test_a_full_disk(checkout, bin_folder, stage):
    add_python(bin_folder)
    (checkout / stage).write_text("ERROR: Could not install: [Errno 28] No space left on device\n")
    line = refused(set_up(checkout, bin_folder, TMPDIR="/var/tmp"))
    assert line.startswith(
        "AMP Lab: the disk is full: make room here and in /var/tmp, then run the same command again"
    )


def test_a_killed_pip(checkout, bin_folder):
    add_python(bin_folder)
    (checkout / "pip-is-killed").touch()
    done = set_up(checkout, bin_folder)
    assert done.returncode == 1
    assert "AMP Lab: pip was killed; most likely memory ran out" in done.stderr.splitlines()[-1]


def test_settings_for_another_python_are_put_aside(checkout, bin_folder):
    add_python(bin_folder)
    names = ["PYTHONHOME", "PYTHONPATH", "PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_INDEX_URL"]
    set_up(checkout, bin_folder, **dict.fromkeys(names, "/elsewhere"))
    assert (checkout / "settings").read_text() == "PIP_INDEX_URL=/elsewhere\n"


def test_a_disk_too_full_to_say_so(checkout, bin_folder):
    add_python(bin_folder)
    (checkout / "pip-fails").write_text("")
    (bin_folder / "df").unlink()
    df = bin_folder / "df"
    df.write_text("#!/bin/sh\necho header\necho '/dev/sda 1000000 999000 1000 99% /'\n")
    df.chmod(0o755)
    assert "the disk is full" in refused(set_up(checkout, bin_folder))


def test_no_python(checkout, bin_folder):
    line = refused(set_up(checkout, bin_folder))
    assert "found no python3 that runs" in line
    assert "make lab PYTHON=/path/to/python3" in line
    assert not (checkout / ".venv").exists()


def test_a_python_that_only_pretends(checkout, bin_folder):
    """pyenv puts a python3.13 on PATH that fails where that version is not selected."""
    for name in ["python3", "python3.13"]:
        shim = bin_folder / name
        shim.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
        shim.chmod(0o755)
    assert "found no python3 that runs" in refused(set_up(checkout, bin_folder))


@pytest.mark.parametrize("version", ["2.7", "3.9", "3.10", "3.15"])
def test_python_out_of_range_is_named(checkout, bin_folder, version):
    add_python(bin_folder, version)
    line = refused(set_up(checkout, bin_folder))
    assert f"Python 3.11 to 3.14 is needed, but python3 is {version}: " in line


@pytest.mark.parametrize("name", ["python3.11", "python3.12", "python3.13", "python3.14"])
def test_another_python_on_the_path_is_found(checkout, bin_folder, name):
    add_python(bin_folder, "3.9")
    add_python(bin_folder, name.removeprefix("python"), name)
    assert set_up(checkout, bin_folder).returncode == 0
    assert calls(checkout)[0] == f"{bin_folder / name} -m venv --clear .venv"


def test_python_is_chosen_by_the_caller(checkout, bin_folder, tmp_path):
    add_python(bin_folder, "3.11")
    chosen = add_python(tmp_path / "other place", "3.13")
    done = run(["make", "lab", f"PYTHON={chosen}"], checkout, bin_folder)
    assert calls(checkout)[0] == f"{chosen} -m venv --clear .venv"
    assert "(Python 3.13)" in done.stdout


def test_a_chosen_python_that_does_not_run(checkout, bin_folder):
    add_python(bin_folder)
    assert "/nowhere/python3 does not run" in refused(set_up(checkout, bin_folder, PYTHON="/nowhere/python3"))


def test_choosing_another_python_later_makes_the_venv_anew(checkout, bin_folder, tmp_path):
    add_python(bin_folder, "3.11")
    set_up(checkout, bin_folder)
    done = set_up(checkout, bin_folder, PYTHON=str(add_python(tmp_path / "other", "3.13")))
    assert done.stdout.splitlines()[0] == "Making .venv anew: it has Python 3.11."


def test_no_venv_module(checkout, bin_folder):
    add_python(bin_folder, "3.12")
    (checkout / "no-ensurepip").touch()
    line = refused(set_up(checkout, bin_folder))
    assert "sudo apt install python3-venv (or python3.12-venv)" in line
    assert not (checkout / ".venv").exists()


def test_the_python_of_the_venv_is_gone(checkout, bin_folder):
    add_python(bin_folder)
    set_up(checkout, bin_folder)
    calls(checkout)
    (checkout / ".venv/bin/python").unlink()
    done = set_up(checkout, bin_folder)
    assert done.stdout.splitlines()[0] == "Making .venv anew: its Python is gone."
    assert len(calls(checkout)) == 2


def test_a_moved_checkout(checkout, bin_folder):
    add_python(bin_folder)
    set_up(checkout, bin_folder)
    moved = checkout.rename(checkout.with_name("moved"))
    done = set_up(moved, bin_folder)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "Making .venv anew: it was moved, or never finished."


def test_a_venv_whose_making_was_cut_short(checkout, bin_folder):
    add_python(bin_folder)
    set_up(checkout, bin_folder)
    (checkout / ".venv/.ready-lab").unlink()
    (checkout / ".venv/bin/pip").unlink()
    done = set_up(checkout, bin_folder)
    assert done.returncode == 0
    assert done.stdout.splitlines()[0] == "Making .venv anew: it has no pip."


@pytest.mark.parametrize("target", ["work.txt", None])
def test_what_a_link_leads_to_is_never_emptied(checkout, bin_folder, tmp_path, target):
    add_python(bin_folder)
    elsewhere = tmp_path / "elsewhere"
    (checkout / ".venv").symlink_to(elsewhere)
    if target:
        elsewhere.mkdir()
        for name in ["pyvenv.cfg", target]:
            (elsewhere / name).touch()
    assert ".venv is a link to another folder: remove the link" in refused(set_up(checkout, bin_folder))
    assert calls(checkout) == []


def test_a_folder_that_is_no_virtual_environment_is_never_emptied(checkout, bin_folder):
    add_python(bin_folder)
    (checkout / ".venv").mkdir()
    (checkout / ".venv/work.txt").touch()
    assert ".venv is no virtual environment: move it elsewhere" in refused(set_up(checkout, bin_folder))
    assert calls(checkout) == []


def test_pip_says_where_it_stands():
    """By this setup.sh finds out that a .venv was moved."""
    assert sys.prefix != sys.base_prefix, "run the tests in a virtual environment: make test"
    said = subprocess.run([sys.executable, "-m", "pip", "--version"], capture_output=True, text=True).stdout
    assert f" {sys.prefix}/" in said


def test_arguments_for_pip_are_passed_on(checkout, bin_folder):
    add_python(bin_folder)
    run(["make", "lab", "PIP_ARGS=--index-url http://x --retries 9"], checkout, bin_folder)
    assert " --index-url http://x --retries 9 -c requirements.lock " in calls(checkout)[1]


def test_it_can_be_called_from_anywhere(checkout, bin_folder, tmp_path):
    add_python(bin_folder)
    done = run(["sh", str(checkout / "tools/setup.sh"), "lab"], tmp_path, bin_folder)
    assert done.returncode == 0
    assert (checkout / ".venv/.ready-lab").exists()


@pytest.mark.parametrize("goal", ["", "lap"])
def test_a_wrong_call(checkout, bin_folder, goal):
    assert "usage: sh tools/setup.sh lab|test" in refused(set_up(checkout, bin_folder, goal))


@pytest.mark.parametrize("target", ["lab", "quick", "test", "build", "nbval"])
def test_make_stops_after_that_line(checkout, bin_folder, target):
    done = run(["make", target], checkout, bin_folder)
    assert done.returncode == 2
    ours, makes = done.stderr.splitlines()
    assert "found no python3 that runs" in ours
    assert re.match(r"make(\[\d+\])?: \*\*\* \[", makes)  # [1]: under a `make test`
    assert done.stdout == ""


def test_make_lab_starts_the_course_with_its_arguments(checkout, bin_folder):
    add_python(bin_folder)
    set_up(checkout, bin_folder)
    door = checkout / ".venv/bin/amp-lab"
    door.write_text('#!/bin/sh\necho "amp-lab $*"\n')
    door.chmod(0o755)
    done = run(["make", "lab", "LAB_ARGS=--no-browser --port 1"], checkout, bin_folder)
    assert done.stdout.splitlines() == ["amp-lab lab --no-browser --port 1"]
    door.write_text('#!/bin/sh\necho "${PYTHONHOME-no other home}"\n')
    assert run(["make", "lab"], checkout, bin_folder, PYTHONHOME="/elsewhere").stdout == "no other home\n"


def test_a_checkout_on_windows_has_no_crlf(tmp_path):
    """As under WSL, where git may be told to write CRLF."""
    if shutil.which("git") is None:
        pytest.skip("there is no git here")
    git = ["git", "-c", "core.autocrlf=true", "-c", "core.safecrlf=false"]
    for name in [".gitattributes", "tools/setup.sh", "notebooks/00_start_here.ipynb"]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    for path in before:
        path.unlink()
    subprocess.run([*git, "checkout", "-q", "--", "."], cwd=tmp_path, check=True)
    assert {path: path.read_bytes() for path in before} == before


def test_make_alone_lists_every_target(checkout, bin_folder):
    done = run(["make"], checkout, bin_folder)
    listed = [line.split()[1] for line in done.stdout.splitlines()]
    (phony,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith(".PHONY:")]
    assert listed == phony.split()[1:]


def test_clean_keeps_what_learners_made(checkout, bin_folder):
    kept = [
        "work/00_x.ipynb",
        "work/__pycache__/a.pyc",
        "notebooks/scratch/__pycache__/b.pyc",
        "amp_lab/a.py",
    ]
    removed = [".venv/bin/python", "amp_lab/__pycache__/a.pyc", ".mypy_cache/x"]
    for name in kept + removed:
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).touch()
    assert run(["make", "clean"], checkout, bin_folder).returncode == 0
    assert [name for name in kept if not (checkout / name).exists()] == []
    assert [name for name in removed if (checkout / name).exists()] == []
