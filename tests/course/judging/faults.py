"""What learners' functions do instead of returning: source, name of the fault, words of the sentence.

Each source defines `learner`, which takes any arguments: a guard and a check can be handed the same function.
"""

from __future__ import annotations

from typing import NamedTuple


class Fault(NamedTuple):
    """One way to fail; `words` must all stand in the sentence."""

    source: str
    fault: str
    words: tuple[str, ...]


_STILL = "still running"

FAULTS: dict[str, Fault] = {
    "loop": Fault(
        """\
def learner(*args, **kwargs):
    count = 0
    while True:
        count += 1
""",
        "timeout",
        (_STILL, "in learner: `", "loop that never ends", "work that is far too much"),
    ),
    "sleep": Fault(
        """\
import time

def learner(*args, **kwargs):
    time.sleep(1000)
""",
        "timeout",
        (_STILL, "line 4, in learner: `time.sleep(1000)`"),
    ),
    "loop that catches everything": Fault(
        """\
def learner(*args, **kwargs):
    while True:
        try:
            sum([1, 2])
        except:
            pass
""",
        "timeout",
        (_STILL,),
    ),
    "sleep that catches everything": Fault(
        """\
import time

def learner(*args, **kwargs):
    while True:
        try:
            time.sleep(1000)
        except BaseException:
            pass
""",
        "timeout",
        (_STILL,),
    ),
    "finally with continue": Fault(
        """\
import time

def learner(*args, **kwargs):
    while True:
        try:
            time.sleep(1000)
        finally:
            continue
""",
        "timeout",
        (_STILL,),
    ),
    "loops in loops that catch everything": Fault(
        """\
import contextlib, time

def wait():
    while True:
        with contextlib.suppress(BaseException):
            time.sleep(1000)

def learner(*args, **kwargs):
    while True:
        try:
            while True:
                try:
                    wait()
                except BaseException as error:
                    print(error)
        except BaseException:
            pass
""",
        "timeout",
        (_STILL,),
    ),
    "loop that keeps what stops it": Fault(
        """\
import time

def learner(*args, **kwargs):
    kept = []
    try:
        time.sleep(1000)
    except BaseException as error:
        kept.append(error)
    while kept:
        pass
""",
        "timeout",
        (_STILL, "in learner: `"),
    ),
    "stopped, yet returns": Fault(
        """\
import time

def learner(*args, **kwargs):
    try:
        time.sleep(1000)
    except BaseException:
        return 4
""",
        "timeout",
        (_STILL,),
    ),
    "message without end": Fault(
        """\
class Odd(Exception):
    def __str__(self):
        while True:
            pass

def learner(*args, **kwargs):
    raise Odd
""",
        "timeout",
        (_STILL, "line 7, in learner: `raise Odd`"),
    ),
    "sys.exit": Fault(
        """\
import sys

def learner(*args, **kwargs):
    sys.exit(3)
""",
        "exit",
        ("exit()", "line 4, in learner: `sys.exit(3)`"),
    ),
    "exit": Fault(
        """\
def learner(*args, **kwargs):
    exit()
""",
        "exit",
        ("exit()", "line 2, in learner: `exit()`"),
    ),
    "quit": Fault(
        """\
def learner(*args, **kwargs):
    quit()
""",
        "exit",
        ("exit()", "line 2, in learner: `quit()`"),
    ),
    "os._exit": Fault(
        """\
import os

def learner(*args, **kwargs):
    os._exit(0)
""",
        "os-exit",
        ("os._exit()", "line 4, in learner: `os._exit(0)`"),
    ),
    "os.abort": Fault(
        """\
import os

def learner(*args, **kwargs):
    try:
        os.abort()
    except Exception:
        pass
""",
        "os-exit",
        ("os.abort()", "line 5, in learner: `os.abort()`"),
    ),
    "input": Fault(
        """\
def learner(*args, **kwargs):
    return float(input("scale? "))
""",
        "input",
        ("keyboard", 'line 2, in learner: `return float(input("scale? "))`'),
    ),
    "getpass": Fault(
        """\
import getpass

def learner(*args, **kwargs):
    return getpass.getpass()
""",
        "input",
        ("keyboard", "line 4, in learner: `return getpass.getpass()`"),
    ),
    "stdin": Fault(
        """\
import sys

def learner(*args, **kwargs):
    return [line for line in sys.stdin]
""",
        "input",
        ("keyboard", "line 4, in learner: `return [line for line in sys.stdin]`"),
    ),
    "recursion": Fault(
        """\
def learner(*args, **kwargs):
    return learner(*args, **kwargs)
""",
        "recursion",
        ("called itself", "line 2, in learner: `return learner(*args, **kwargs)`"),
    ),
    "sleep where recursion ends": Fault(
        """\
import time

def dive():
    try:
        dive()
    except RecursionError:
        time.sleep(1000)

def learner(*args, **kwargs):
    dive()
""",
        "timeout",
        (_STILL,),
    ),
    "KeyboardInterrupt": Fault(
        """\
def learner(*args, **kwargs):
    raise KeyboardInterrupt
""",
        "interrupted",
        ("KeyboardInterrupt", "line 2, in learner: `raise KeyboardInterrupt`"),
    ),
    "TypeError": Fault(
        """\
def learner(*args, **kwargs):
    shape = (2, 3)
    return 4.0 * shape
""",
        "exception",
        ("TypeError: can't multiply sequence", "line 3, in learner: `return 4.0 * shape`"),
    ),
    "error in PyTorch": Fault(
        """\
import torch

def product(a, b):
    return torch.nn.functional.linear(a, b)

def learner(*args, **kwargs):
    return product(torch.ones(2, 3), torch.ones(4, 5))
""",
        "exception",
        ("RuntimeError: ", "line 4, in product: `return torch.nn.functional.linear(a, b)`"),
    ),
    "exception that is no Exception": Fault(
        """\
class Leave(BaseException):
    pass

def learner(*args, **kwargs):
    raise Leave("done")
""",
        "exception",
        ("raised Leave: done (line 5, in learner: `raise Leave",),
    ),
    "exception without a readable message": Fault(
        """\
class Odd(Exception):
    def __str__(self):
        raise SystemExit

def learner(*args, **kwargs):
    raise Odd
""",
        "exception",
        ("raised Odd (no readable message) (line 6, in learner: `raise Odd`)",),
    ),
    "exception group": Fault(
        """\
def learner(*args, **kwargs):
    raise ExceptionGroup("two", [ValueError("first"), TypeError("second")])
""",
        "exception",
        ("ExceptionGroup: two (2 sub-exceptions); the first is ValueError: first", "line 2, in learner"),
    ),
    "long message": Fault(
        """\
def learner(*args, **kwargs):
    raise ValueError("much " * 100_000)
""",
        "exception",
        ("ValueError: much much much", "much… (line 2, in learner"),
    ),
    "leaves in a mess": Fault(
        """\
import os, random, signal, sys, warnings
import numpy as np, torch

def learner(*args, **kwargs):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    torch.set_grad_enabled(False), torch.set_default_dtype(torch.float64), torch.set_num_threads(1)
    torch.autocast("cpu", dtype=torch.float16).__enter__()
    signal.signal(signal.SIGTERM, print), signal.signal(signal.SIGINT, print)
    warnings.simplefilter("error"), sys.setrecursionlimit(700), os.chdir("/")
    sys.stdout = sys.stderr = None
    sys.exit()
""",
        "exit",
        ("line 11, in learner: `sys.exit()`",),
    ),
}
