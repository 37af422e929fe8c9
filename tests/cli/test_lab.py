"""`amp-lab lab`: what it starts; and JupyterLab as it really starts it."""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from amp_lab.course.learner import workspace
from amp_lab.course.pages import cells
from tests.cli.running import run
from tests.cli.start_here import PAGE, notebook

REPOSITORY = Path(__file__).parents[2]


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
