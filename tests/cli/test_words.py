"""`amp-lab hint` and `amp-lab solution`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.running import run
from tests.cli.start_here import SOURCE

REPOSITORY = Path(__file__).parents[2]


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
