""".ci/run with a fake apt-get and a fake make: nothing is installed."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAKES = {
    "make": 'echo "make $* with CI=$CI"',
    "python3": "exit 0",
    "chromium": "exit 0",
    "apt-get": 'echo "apt-get $*" >>calls; echo "E: apt speaks"; [ ! -e apt-fails ]',
}


@pytest.fixture
def machine(tmp_path):
    """Return a folder that holds a checkout and, in bin/, all commands of a machine that lacks nothing."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    (tmp_path / "bin").mkdir()
    for name in ["bash", "dirname", "mktemp", "cat", "rm"]:
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    for name, text in FAKES.items():
        path = tmp_path / "bin" / name
        path.write_text(f"#!{shutil.which('sh')}\n{text}\n")
        path.chmod(0o755)
    return tmp_path


def run(machine, **environment):
    return subprocess.run(
        [shutil.which("bash"), ".ci/run"],
        cwd=machine,
        env={"PATH": str(machine / "bin"), **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )


def apt_calls(machine):
    calls = machine / "calls"
    return calls.read_text().splitlines() if calls.exists() else []


def test_a_complete_machine_goes_straight_to_the_tests(machine):
    done = run(machine)
    assert (done.returncode, done.stdout, done.stderr) == (0, "make test with CI=true\n", "")
    assert apt_calls(machine) == []


def test_what_is_missing_is_installed_quietly(machine):
    for name in ["chromium", "python3"]:
        (machine / "bin" / name).unlink()
    done = run(machine)
    assert done.stdout.splitlines() == [
        "Installing python3 python3-venv chromium ...",
        "make test with CI=true",
    ]
    assert [call.split()[1] for call in apt_calls(machine)] == ["update", "install"]
    assert apt_calls(machine)[1].endswith(" python3 python3-venv chromium")


def test_a_named_browser_is_enough(machine):
    (machine / "bin" / "chromium").unlink()
    assert run(machine, AMP_LAB_CHROMIUM="/opt/chrome").returncode == 0
    assert apt_calls(machine) == []


def test_a_failed_installation_shows_its_log(machine):
    (machine / "bin" / "chromium").unlink()
    (machine / "apt-fails").touch()
    done = run(machine)
    assert done.returncode == 1
    assert done.stdout.splitlines()[1:] == ["E: apt speaks", "CI: apt-get could not install chromium"]


def test_failing_tests_fail_the_run(machine):
    (machine / "bin" / "make").write_text(f"#!{shutil.which('sh')}\nexit 2\n")
    assert run(machine).returncode == 2
