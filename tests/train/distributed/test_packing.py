"""What is sent to another process keeps its place: tracebacks and reports name a cell, and show its lines."""

import linecache
import pickle
import subprocess
import sys
import traceback

import torch

from amp_lab.train.distributed.packing import packed
from amp_lab.train.distributed.workers import run_ranks

# What a kernel does, without the kernel.
NOTEBOOK = '''
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in (  # a report's line; a traceback; where a message comes from
    """from amp_lab.train.distributed.workers import run_ranks
import amp_lab, torch
from torch.nn.parallel import DistributedDataParallel""",
    """def watched(rank):
    model = DistributedDataParallel(torch.nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with amp_lab.watch(model, optimizer) as seen:
        for _ in range(4):
            model(torch.ones(3, 2)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    return str(seen.report())""",
    "print(run_ranks(watched)[0].value)",
    """def fails(rank):
    class Odd:
        def __call__(self, x):
            return (lambda: x.no_such_thing)()
    return Odd()(rank)""",
    "print(run_ranks(fails, 1)[0].traceback)",
    """def explained(rank):
    try:
        torch.ones(2, 2).half() @ torch.ones(2, 2)
    except RuntimeError as error:
        return str(amp_lab.explain(error))""",
    "print(run_ranks(explained, 1)[0].value)",
):
    shell.run_cell(cell, store_history=True)
'''


def test_a_notebooks_function_is_known_by_its_cell():
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, timeout=120, check=True
    )
    assert "Cell In[2], line 6, in watched: model(torch.ones(3, 2)).sum().backward()" in done.stdout, done
    innermost = ['  File "Cell In[4]", line 4, in <lambda>', "    return (lambda: x.no_such_thing)()"]
    lines = done.stdout.splitlines()
    assert lines[lines.index(innermost[0]) + 1] == innermost[1], done
    assert "Where: Cell In[6], line 3" in done.stdout, done
    assert "dynamic" not in done.stdout


def here():
    """Return the innermost line of the stack but one, as a traceback shows it."""
    frame = traceback.extract_stack()[-2]
    return frame.filename, frame.lineno, frame.line


def test_a_file_keeps_its_name_and_code_without_one_its_lines(monkeypatch):
    text = "def calls(ask):\n    return ask()\n"
    monkeypatch.setitem(linecache.cache, "<no file>", (len(text), None, text.splitlines(True), "<no file>"))
    made: dict[str, object] = {}
    exec(compile(text, "<no file>", "exec"), made)

    def calls(ask):
        return ask()  # of this file

    def both(rank, first, second):
        return first(here), second(here)

    (outcome,) = run_ranks(both, 1, calls, made["calls"])
    first, second = outcome.value
    assert first[0] == __file__
    assert first[2] == "return ask()  # of this file"
    assert second == ("<no file>", 2, "return ask()")


def test_a_new_process_imports_no_more_than_it_needs():
    """What amp_lab.autocast and amp_lab.watch bring takes as long as all the rest of a start."""
    (outcome,) = run_ranks(lambda rank: sorted(name for name in sys.modules if name.startswith("amp_lab")), 1)
    assert "amp_lab.train.distributed.in_worker" in outcome.value
    assert "amp_lab.autocast" not in outcome.value
    assert len(outcome.value) < 30


def test_values_come_out_as_they_went_in():
    assert pickle.loads(packed({"a": [1, torch.ones(2).tolist()], 2: None})) == {
        "a": [1, [1.0, 1.0]],
        2: None,
    }
    factor = 3
    sent = packed((lambda x: x * factor, int, None))
    times, kind, nothing = pickle.loads(sent)
    assert (times(2), kind, nothing) == (6, int, None)
