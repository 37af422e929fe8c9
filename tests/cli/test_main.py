"""The command line as a whole: its help, what nobody knows, what it imports."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from amp_lab import __version__, cli
from amp_lab.course import catalog
from amp_lab.course.learner import workspace
from amp_lab.course.pages import cells
from tests.cli.running import run
from tests.cli.start_here import PAGE, notebook

REPOSITORY = Path(__file__).parents[2]


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


def test_without_the_checkout_hints_are_there_and_the_rest_says_what_it_needs(root, tmp_path, monkeypatch):
    monkeypatch.delenv("AMP_LAB_COURSE")
    monkeypatch.setattr(
        workspace, "__file__", str(tmp_path / "lib/site-packages/amp_lab/course/learner/workspace.py")
    )
    assert run("hint", "0.1").exit_code == 0
    for arguments in (["solution", "0.1"], ["reset", "--yes", "0.1"], ["lab"], ["progress"], ["update"]):
        done = run(*arguments)
        assert done.exit_code == 1
        assert re.fullmatch(r"Error: this needs the course's checkout.* set AMP_LAB_COURSE=.*\n", done.output)


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
    assert "amp_lab.course.machine.health" not in imported
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
        "amp_lab.course.judging.exercise",
        "amp_lab.device",
    }
    assert len(imported) < 200, "each module costs about a millisecond"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has it")
@pytest.mark.parametrize("arguments", [["progress"], ["--help"], ["hint", "0.1"]])
def test_a_full_disk_below_the_output_is_one_line(arguments):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "amp_lab", *arguments],
            cwd=REPOSITORY,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.stderr == "Error: No space left on device; free some space and try again\n"
    assert done.returncode == 1


def test_nobody_reads_on(root):
    script = f"{sys.executable} -m amp_lab progress | true"
    done = subprocess.run(["bash", "-c", script], cwd=REPOSITORY, capture_output=True, text=True)
    assert done.stderr == ""


def test_stopped_it_says_so_in_one_line(root, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(catalog, "exercises", stop)
    done = run("progress")
    assert (done.output, done.exit_code) == ("Stopped.\n", 130)


def test_stopped_at_a_question(root, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("amp_lab.cli.asking._has_terminal", lambda: True)
    monkeypatch.setattr("click.termui.visible_prompt_func", stop)
    with pytest.raises(SystemExit) as end:
        cli.main(["reset", "00"], prog_name="amp-lab")
    assert end.value.code == 130
    assert capsys.readouterr().err.endswith("Stopped.\n")
