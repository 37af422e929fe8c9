"""Every rule's docstring: its wrong loops get this one root cause, its right loops nothing at all."""

import warnings

import pytest
import torch

from amp_lab.watching import rules
from amp_lab.watching.rules.rule import RULES
from tests.watching.docs import Loop, all_loops, loops_of, watched

assert rules  # which fills RULES
LOOPS = list(all_loops())
HERE = [loop for loop in LOOPS if loop.runs_here and not loop.is_of_ranks]  # the others: test_docs_ranks.py


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_shows_a_wrong_loop_and_a_right_one(rule):
    kinds = {loop.which for loop in LOOPS if loop.rule == rule and loop.code.strip()}
    assert kinds == {"Wrong", "Right"}


@pytest.mark.parametrize("loop", [loop for loop in HERE if loop.which == "Wrong"], ids=lambda loop: loop.name)
def test_a_wrong_loop_gets_this_root_cause_and_no_other(loop: Loop):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some mistakes PyTorch warns of
        seen = watched(loop)
    assert [each.id for each in seen.report.diagnoses] == [loop.rule], seen.report
    (diagnosis,) = seen.report.diagnoses
    assert diagnosis.where is not None
    assert diagnosis.where.file == loop.file
    assert 1 <= diagnosis.where.line <= len(loop.program.splitlines())
    assert diagnosis.where.text.strip()
    assert diagnosis.where.text.strip() in loop.program
    str(seen.report)


@pytest.mark.parametrize("loop", [loop for loop in HERE if loop.which == "Right"], ids=lambda loop: loop.name)
def test_a_right_loop_gets_nothing(loop: Loop):
    seen = watched(loop)
    assert seen.error is None
    assert not list(seen.report.all), seen.report


def test_the_harness_reads_headings_blocks_and_settings():
    docstring = """What.

    Wrong:
        loss.backward()

        for x, y in batches:
            pass
    Wrong, twice:
        optimizer.step()
    And so on.

    Right:
        optimizer.zero_grad()
    """
    loops = loops_of("a-rule", docstring)
    assert [(loop.which, loop.name) for loop in loops] == [
        ("Wrong", "a-rule Wrong"),
        ("Wrong", "a-rule Wrong, twice"),
        ("Right", "a-rule Right"),
    ]
    assert loops[0].program == "loss.backward()\n\nfor x, y in batches:\n    pass\n"
    assert loops[1].program == "for x, y in batches:\n    optimizer.step()\n"
