"""A fix that is shown as a diff cures: the wrong loop of every rule, patched with it, is run and watched again."""

import ast
import shutil
import subprocess

import pytest
import torch

from amp_lab.watching.rules import RULES
from tests.watching import docs

LOOPS = list(docs.all_loops())
# Those of several ranks are in test_docs_ranks.py: what to do is told in words there.
OF_RANKS = {loop.rule for loop in LOOPS if loop.is_of_ranks}
WRONG = [
    loop
    for loop in LOOPS
    if loop.which == "Wrong" and "GPU" not in loop.heading and loop.rule not in OF_RANKS
]
# What is found in a loop after its fix, or raised by it, where that has a reason.
LEFT = {
    "scale-collapse Wrong": "RuntimeError: the loss scale fell below 1",  # the fix: to stop there
    "unscale-after-step Wrong": "clip-after-step",  # shows as soon as the loop runs on
}


@pytest.fixture(autouse=True)
def one_thread_and_autocast_off_again():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_autocast_enabled("cpu", False)
    for _ in range(torch.autocast_increment_nesting()):
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("loop", WRONG, ids=lambda loop: loop.name)
def test_a_diff_cures(loop, tmp_path):
    report = docs.watched(loop).report
    if loop.rule not in report:
        pytest.skip(f"found was {report.ids}: test_docs is about that")
    diagnosis = report[loop.rule]
    assert diagnosis.fix is None or diagnosis.fix.words or diagnosis.fix.diff
    if diagnosis.fix is None or not diagnosis.fix.diff:
        return
    mended = patched(loop.program, diagnosis.fix.diff, tmp_path)
    ast.parse(mended)
    if "batches" not in mended:  # no program of its own
        return
    again = docs.watched(docs.Loop(loop.rule, "Right", f"{loop.heading[:-1]}, mended:", mended))
    left = [each.id for each in again.report.all if each.id != "raised"]
    left += [f"{type(again.error).__name__}: {again.error}"] if again.error else []
    assert ", ".join(left) == LEFT.get(loop.name, ""), f"{report}\n\n{mended}\n{again.report}"


def patched(program: str, diff: str, folder) -> str:
    if shutil.which("patch") is None:
        pytest.skip("there is no program `patch`")
    (folder / "loop.py").write_text(program)
    subprocess.run(["patch", "-s", "-p0", "loop.py"], input=diff, text=True, cwd=folder, check=True)
    return (folder / "loop.py").read_text()


def test_most_rules_are_among_them():
    assert len({loop.rule for loop in WRONG}) > len(RULES.keys() - OF_RANKS) * 0.9
