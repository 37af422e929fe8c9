"""The command line: what it prints, its exit status, what it imports; and JupyterLab as it starts it."""

import contextlib
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from click.testing import CliRunner

from amp_lab import __version__, cli
from amp_lab.course import catalog, cells, progress, server, workspace

REPOSITORY = Path(__file__).parents[1]
PAGE = "00_start_here.ipynb"
SOURCE = '''# %%
def double(x):
    """Double it."""
    ### BEGIN SOLUTION
    return x * 2
    ### END SOLUTION


# %%
check("0.1", double)
'''


def exercise(name):
    return catalog.Exercise(
        id=name,
        title=f"Title of {name}",
        minutes=1,
        function="double",
        hints=("the idea × 2", "which call", "nearly:\n    return x" + " * 1" * 40),
        diagnoses={},
        why="because " * 40 + "of this",
    )


def lesson(slug, *exercises):
    return catalog.Lesson(slug, f"Title of {slug}", 1, "easy", "nothing", exercises)


def notebook(name):
    return {
        "cells": [
            {
                "id": f"stub-{name}-1",
                "cell_type": "code",
                "source": "raise NotImplementedError",
                "outputs": [],
            },
            {"id": f"check-{name}", "cell_type": "code", "source": "check", "outputs": []},
        ],
        "metadata": {},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A course of two lessons, in the catalog and on the disk."""
    lessons = (lesson("00_start_here", exercise("0.1"), exercise("0.2")), lesson("03_loops", exercise("3.1")))
    monkeypatch.setattr(catalog, "lessons", lambda: lessons)
    monkeypatch.setenv("AMP_LAB_COURSE", str(tmp_path))
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "solutions").mkdir()
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "solutions" / "00_start_here.py").write_text(SOURCE)
    (tmp_path / "notebooks" / PAGE).write_bytes(cells.dump(notebook("0-1")))
    (tmp_path / "notebooks" / "03_loops.ipynb").write_bytes(cells.dump(notebook("3-1")))
    return tmp_path


def run(*arguments, answer=None):
    return CliRunner().invoke(cli.main, arguments, input=answer, prog_name="amp-lab", catch_exceptions=False)


def test_help_names_every_command():
    text = run("--help").output
    for name, command in cli.main.commands.items():
        assert re.search(rf"^  {name} +{re.escape(command.get_short_help_str())}$", text, re.MULTILINE)
        assert run(name, "-h").exit_code == 0
    assert "..." not in text.partition("Commands:")[2], "a description is too long for its line"
    assert run("--version").output == f"amp-lab, version {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hint", "0.3"], r"no exercise '0.3'; did you mean 0\.[12] or 0\.[12]"),
        (["hint", "nothing"], r"no exercise 'nothing'; there are 0.1, 0.2, 3.1"),
        (["hint", "0.1", "4"], "4 is not in the range 1<=x<=3"),
        (["hint", "0.1", "two"], "'two' is not a valid integer"),
        (["hint"], "Missing argument 'ID'"),
        (["solution", "0.9"], "no exercise '0.9'"),
        (["reset", "--yes", "0.9"], "no exercise '0.9'"),
        (["reset", "--yes", "9"], "no lesson '9'"),
        (["reset", "--yes", "9.ipynb"], "no lesson '9'"),
        (["reset", "--yes", "00.py"], "no lesson '00.py'"),
        (["reset", "--yes", "03_lops"], "no lesson '03_lops'; did you mean 03_loops"),
        (["reset", "0.1"], "there is no terminal to ask you on: add --yes"),
        (["lab", "9"], "no lesson '9'"),
        (["lab", "00", "03"], "unexpected extra argument"),
        (["lab", "--port", "70000"], "70000 is not in the range"),
        (["laab"], r"there is no command 'laab'; did you mean lab\?"),
        (["progres"], r"there is no command 'progres'; did you mean progress"),
        (["xyzzy"], r"there is no command 'xyzzy'; there are lab, .*doctor"),
        (["--wrong"], "No such option"),
        (["update", "03_lops"], "no lesson '03_lops'; did you mean 03_loops"),
    ],
)
def test_what_nobody_knows_is_status_2(root, arguments, message):
    done = run(*arguments)
    assert re.search(message, done.output), done.output
    assert done.exit_code == 2
    assert not (root / "work").exists()


# --- hint and solution --------------------------------------------------------------------------------------


def test_hints(root):
    first = run("hint", "0.1")
    assert (
        first.output == "0.1 Title of 0.1: hint 1 of 3\n\nthe idea × 2\n\nStill stuck? amp-lab hint 0.1 2\n"
    )
    assert first.exit_code == 0
    assert run("hint", "0.1", "1").output == first.output
    assert "which call\n\nStill stuck? amp-lab hint 0.1 3\n" in run("hint", "0.1", "2").output
    last = run("hint", "0.1", "3").output
    assert "nearly:\n    return x" + " * 1" * 40 + "\n" in last, "code must not be broken into lines"
    assert last.endswith("Still stuck? amp-lab solution 0.1\n")


def test_a_solution(root):
    done = run("solution", "0.1")
    code = 'def double(x):\n    """Double it."""\n    return x * 2\n'
    assert done.output.startswith(
        f"0.1 Title of 0.1: a solution\n\n{code}\nWhy it is right\n\nbecause because"
    )
    assert max(map(len, done.output.split("\n"))) <= 100
    assert done.output.rstrip().endswith("of this")
    assert done.exit_code == 0


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, r"cannot read .*00_start_here\.py: .*No such file"),
        (SOURCE.replace("### END", "### end"), r"00_start_here\.py:6: unknown marker"),
        (SOURCE.replace("0.1", "0.2"), r"has no exercise '0\.1'; it has 0\.2"),
        (SOURCE.replace("Double", "\udcff"), None),
    ],
)
def test_a_damaged_source(root, source, message):
    path = root / "solutions" / "00_start_here.py"
    path.write_text(source, errors="surrogateescape") if source else path.unlink()
    done = run("solution", "0.1")
    assert re.search(f"^Error: .*{message}", done.output) if message else "return x * 2" in done.output
    assert done.exit_code == (1 if message else 0)


def test_without_the_checkout_hints_are_there_and_the_rest_says_what_it_needs(root, tmp_path, monkeypatch):
    monkeypatch.delenv("AMP_LAB_COURSE")
    monkeypatch.setattr(
        workspace, "__file__", str(tmp_path / "lib/site-packages/amp_lab/course/workspace.py")
    )
    assert run("hint", "0.1").exit_code == 0
    for arguments in (["solution", "0.1"], ["reset", "--yes", "0.1"], ["lab"], ["progress"], ["update"]):
        done = run(*arguments)
        assert done.exit_code == 1
        assert re.fullmatch(r"Error: this needs the course's checkout.* set AMP_LAB_COURSE=.*\n", done.output)


# --- reset --------------------------------------------------------------------------------------------------


@pytest.fixture
def page(root):
    workspace.copy_blanks(root)
    path = root / "work" / PAGE
    path.write_text(path.read_text().replace("NotImplementedError", "SystemExit"))
    return path


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("00", "Lesson 00 (Title of 00_start_here)"),
        ("0", "Lesson 00"),
        (PAGE, "Lesson 00"),
        ("0.1", "Exercise 0.1"),
    ],
)
def test_reset_says_where_the_work_is(root, page, name, what):
    before = page.read_bytes()
    done = run("reset", name, "--yes")
    assert done.exit_code == 0
    assert done.output.startswith(what)
    (backup,) = (root / "work" / "backups").iterdir()
    assert f"Your work is kept in {backup}.\n" in done.output
    assert backup.read_bytes() == before
    assert "NotImplementedError" in page.read_text()


@pytest.mark.parametrize(("answer", "status"), [("y\n", 0), ("n\n", 1), ("\n", 1), ("", 1)])
def test_reset_asks(root, page, answer, status, monkeypatch):
    monkeypatch.setattr(cli.asking, "_has_terminal", lambda: True)
    done = run("reset", "0.1", answer=answer)
    assert "press Ctrl+S there first" in done.output
    assert (
        f"Make exercise 0.1 blank again, and keep what is there in {root / 'work' / 'backups'}?"
        in done.output
    )
    assert ("Nothing was changed." in done.output) == (answer in ("n\n", "\n"))
    assert done.exit_code == status
    assert ("SystemExit" in page.read_text()) == bool(status)
    assert (root / "work" / "backups").exists() != bool(status)


def test_reset_without_a_copy(root):
    done = run("reset", "03", "--yes")
    assert (
        done.output
        == f"There was no copy of lesson 03 yet; now there is: {root / 'work' / '03_loops.ipynb'}\n"
    )
    assert done.exit_code == 0


@pytest.mark.parametrize(("name", "left"), [("0.1", {"0.2"}), ("00", set())])
def test_reset_opens_exercises_again_and_says_so(root, page, name, left):
    for solved in ("0.1", "0.2"):
        progress.add(root, solved)
    done = run("reset", name, "--yes")
    opened = "0.1" if left else "0.1, 0.2"
    assert done.output.endswith(f"For `amp-lab progress` open again: {opened}.\n")
    assert progress.done(root).keys() == left
    assert "open again" not in run("reset", name, "--yes").output


def test_reset_of_a_damaged_copy(root, page):
    page.write_text("{")
    done = run("reset", "0.1", "--yes")
    assert done.exit_code == 1
    assert re.fullmatch(r"Error: cannot find one exercise in .*`amp-lab reset 00` .*\n", done.output)


# --- lab ----------------------------------------------------------------------------------------------------


@pytest.fixture
def started(monkeypatch):
    """What `amp-lab lab` would have become: a list of (program, arguments, environment)."""
    calls = []
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
    return calls


def test_lab_copies_and_starts(root, started):
    done = run("lab")
    work = root / "work"
    assert done.output == (
        f"Copied 00_start_here, 03_loops to {work}.\nWork in these copies: they are never overwritten.\n"
        "Starting JupyterLab; Ctrl+C stops it.\n"
    )
    ((program, arguments, _),) = started
    assert program == arguments[0] == sys.executable
    assert f"--ServerApp.root_dir={work}" in arguments
    assert "--ServerApp.ip=127.0.0.1" in arguments
    assert f"--LabApp.default_url=/lab/tree/{PAGE}" in arguments
    assert not [each for each in arguments if "token" in each or "password" in each or ".port" in each]
    assert "--no-browser" not in arguments
    assert run("lab").output.startswith(f"Your pages are in {work}, as you left them.\n")
    (work / "03_loops.ipynb").unlink()
    assert run("lab").output.startswith(f"Copied 03_loops to {work}; the rest is as you left it.\n")


def test_lab_says_which_lessons_changed_and_leaves_them(root, started, page):
    before = page.read_bytes()
    assert "update" not in run("lab").output
    for name in (PAGE, "03_loops.ipynb"):
        (root / "notebooks" / name).write_bytes(cells.dump({**notebook("0-1"), "metadata": {"new": True}}))
    said = run("lab").output
    assert "The course has a new text of lessons 00, 03; your copy has the old one." in said
    assert "`amp-lab update 00 03` brings it and keeps your work." in said
    assert page.read_bytes() == before
    assert len(started) == 2


def test_lab_says_once_that_a_lesson_is_gone(root, started):
    old = root / "notebooks" / "02_old.ipynb"
    old.write_bytes(cells.dump(notebook("0-1")))
    run("lab")
    old.unlink()
    assert (
        "The course has no 02_old.ipynb any more, or under another name: your copy stays in"
        in run("lab").output
    )
    assert "02_old" not in run("lab").output
    assert (root / "work" / "02_old.ipynb").exists()


def test_lab_starts_over_a_damaged_copy(root, started, page):
    page.write_bytes(b"{")
    assert run("lab").exit_code == 0
    assert started


def test_lab_at_a_lesson_with_arguments_of_jupyters(root, started):
    run("lab", "--port", "9000", "3", "--no-browser", "--", "--debug", "--", "extra")
    run("lab", "--", "--debug")
    (_, first, _), (_, second, _) = started
    assert first[-5:] == ["--no-browser", "--ServerApp.port=9000", "--debug", "--", "extra"]
    assert "--LabApp.default_url=/lab/tree/03_loops.ipynb" in first
    assert second[-1] == "--debug"
    assert f"--LabApp.default_url=/lab/tree/{PAGE}" in second


def test_a_kernel_in_another_folder_finds_the_same_course(root, started, monkeypatch):
    monkeypatch.chdir(root.parent)
    monkeypatch.setenv("AMP_LAB_COURSE", root.name)
    run("lab", "03_loops.ipynb")
    monkeypatch.delenv("AMP_LAB_COURSE")
    monkeypatch.setattr(workspace, "checkout", lambda: root)
    run("lab")
    (_, _, named), (_, _, unnamed) = started
    assert named["AMP_LAB_COURSE"] == str(root)
    assert "AMP_LAB_COURSE" not in unnamed


def test_root_is_allowed_only_to_root(monkeypatch):
    for user in (0, 1000):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert ("--allow-root" in server.command(Path("work"), PAGE)) == (user == 0)


def test_the_users_own_jupyter_configuration_is_kept():
    own = {"JUPYTER_CONFIG_PATH": "/mine", "HOME": "/home/me"}
    made = server.environment(own)
    ours, mine = made["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert (Path(ours) / "labconfig" / "default_setting_overrides.json").is_file()
    assert mine == "/mine"
    assert made["HOME"] == "/home/me"
    assert own == {"JUPYTER_CONFIG_PATH": "/mine", "HOME": "/home/me"}
    assert server.environment({})["JUPYTER_CONFIG_PATH"] == ours


def test_threads_wait_without_spinning_unless_the_user_decided():
    assert server.environment({})["OMP_WAIT_POLICY"] == "passive"
    assert server.environment({"OMP_WAIT_POLICY": "active"})["OMP_WAIT_POLICY"] == "active"


def test_a_terminal_in_jupyterlab_finds_amp_lab():
    home = str(Path(sys.executable).parent)
    assert server.environment({"PATH": "/usr/bin"})["PATH"] == os.pathsep.join([home, "/usr/bin"])
    assert server.environment({})["PATH"] == home


def test_lab_without_jupyterlab(root, started, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = run("lab")
    assert done.output == f"Error: {sys.executable} has no JupyterLab: run `make lab` in {root}\n"
    assert done.exit_code == 1
    assert not started


def test_lab_without_the_lessons_page(root, started):
    (root / "notebooks" / "03_loops.ipynb").unlink()
    done = run("lab", "03")
    assert done.output == f"Error: {root / 'notebooks'} has no 03_loops.ipynb: get the checkout again\n"
    assert done.exit_code == 1
    assert not started


# --- as a process -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["hint", "0.1"],
        ["solution", "0.1"],
        ["progress"],
        ["reset", "00", "--yes"],
        ["reset", "0.1", "--yes"],
        ["update"],
        ["update", "00"],
    ],
    ids=lambda each: " ".join(each),
)
def test_nothing_heavy_is_imported(root, page, arguments):
    (root / "notebooks" / PAGE).write_bytes(cells.dump({**notebook("0-1"), "metadata": {"new": True}}))
    script = (
        "import sys; from amp_lab.cli import main\n"
        f"main({arguments}, prog_name='amp-lab', standalone_mode=False)\n"
        "print('imported:', *sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    imported = set(done.stdout.rpartition("imported:")[2].split())
    assert "amp_lab.course.catalog" in imported
    assert "amp_lab.course.health" not in imported
    assert not imported & {
        "torch",
        "numpy",
        "nbformat",
        "jupyter_core",
        "jupyterlab",
        "IPython",
        "matplotlib",
        "rich",
        "asyncio",
        "importlib.metadata",
        "amp_lab.course.exercise",
        "amp_lab.device",
    }
    assert len(imported) < 200, "each module costs about a millisecond"


def test_a_terminal_without_our_letters(root):
    done = subprocess.run(
        [sys.executable, "-m", "amp_lab", "solution", "0.1"],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def ask(url, token=None):
    """Return the status and the JSON of a request to a running server."""
    request = urllib.request.Request(url, headers={"Authorization": f"token {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, None


def wait_for(folder, process):
    """Return what the server says of itself, as soon as it answers."""
    for _ in range(300):
        for path in folder.glob("jpserver-*.json"):
            # This file is there, perhaps half of it, a moment before the port is open.
            with contextlib.suppress(ValueError, ConnectionError):
                here = json.loads(path.read_text())
                socket.create_connection(("127.0.0.1", here["port"])).close()
                return here
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    raise AssertionError("no server within 30 s")


def start_lab(port, env):
    return subprocess.Popen(
        [sys.executable, "-m", "amp_lab", "lab", "--no-browser", "--port", str(port)],
        cwd=REPOSITORY,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.kernel
def test_jupyterlab_really_starts(root, tmp_path_factory):
    names = ("HOME", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")
    folders = {name: tmp_path_factory.mktemp(name) for name in names}
    # A user's kernel of the same name for another Python, and a wish to see it first.
    rival = folders["JUPYTER_DATA_DIR"] / "kernels" / "python3" / "kernel.json"
    rival.parent.mkdir(parents=True)
    rival.write_text(
        '{"argv": ["/usr/bin/python3", "{connection_file}"], "display_name": "Rival", "language": "python"}'
    )
    env = {
        **os.environ,
        **{name: str(path) for name, path in folders.items()},
        "JUPYTER_PREFER_ENV_PATH": "0",
    }
    with socket.create_server(("127.0.0.1", 0)) as other, start_lab(other.getsockname()[1], env) as process:
        try:
            here = wait_for(folders["JUPYTER_RUNTIME_DIR"], process)
            url, token = f"http://127.0.0.1:{here['port']}", here["token"]
            assert here["pid"] == process.pid, "the server did not take the place of amp-lab"
            assert here["port"] != other.getsockname()[1], "this port was taken"
            assert len(token) >= 32
            assert ask(f"{url}/api/contents")[0] == 403
            status, contents = ask(f"{url}/api/contents", token)
            assert status == 200
            assert PAGE in [each["name"] for each in contents["content"]]
            kernels = ask(f"{url}/api/kernelspecs", token)[1]
            assert kernels["default"] == "python3"
            # jupyter_client reads `python` as the interpreter that it runs in itself.
            assert kernels["kernelspecs"]["python3"]["spec"]["argv"][:2] == ["python", "-m"]
            news = ask(f"{url}/lab/api/settings/@jupyterlab/apputils-extension:notification", token)[1]
            defaults = {name: each["default"] for name, each in news["schema"]["properties"].items()}
            assert defaults["fetchNews"] == "false"
            assert defaults["checkForUpdates"] is False
            widgets = ask(f"{url}/lab/api/settings/@jupyter-widgets/jupyterlab-manager:plugin", token)[1]
            # Without it a page that is opened again shows "Loading widget..." where a widget was.
            assert widgets["schema"]["properties"]["saveState"]["default"] is True
            process.send_signal(signal.SIGINT)
            output = process.communicate(timeout=15)[0]
        finally:
            process.kill()
    assert process.returncode == 0, output
    assert f"{url}/lab/tree/{PAGE}?token={token}" in output
    assert "Traceback" not in output
    written = {path.name for path in folders["JUPYTER_CONFIG_DIR"].rglob("*")} - {
        "migrated"
    }  # Jupyter's own mark
    assert not written, "something was written into the user's settings"
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
