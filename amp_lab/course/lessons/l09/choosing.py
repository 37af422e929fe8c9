"""Exercise 9.2: which precision suits a machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, kind
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l09.machines import MACHINES, Machine

Choice = tuple[torch.dtype, bool]
Choose = Callable[[Machine, str], Choice]
_DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_WISHES = ("auto", *_DTYPES)
NATIVE = ("tensor cores", "matrix units")


def choose_with(
    *,
    bf16: Callable[[Machine], bool] = lambda machine: machine.bf16 in NATIVE,
    on_cpu: Callable[[Machine], bool] | None = None,
    on_mps: bool = False,
    else_on: tuple[str, ...] = ("cuda",),
    scaled: tuple[str, ...] = ("fp16",),
    listens: bool = True,
) -> Choose:
    """Return the right function, but for what is given.

    `bf16`: is it native on a GPU? `on_cpu`: the same of a CPU, `on_mps`: does it count there? `else_on`: the devices
    that get FP16 without it, `scaled`: the precisions with a scaler, `listens`: whether wishes count.
    """

    def choose(machine: Machine, wanted: str) -> Choice:
        if wanted == "auto" or not listens:
            judge = bf16 if machine.type == "cuda" else on_cpu or (lambda each: each.bf16 in NATIVE)
            takes = (on_mps or machine.type != "mps") and judge(machine)
            wanted = "bf16" if takes else "fp16" if machine.type in else_on else "fp32"
        return _DTYPES[wanted], wanted in scaled

    return choose


right = choose_with()
# What no machine of today says, or none on the page: the words count, not the names of those that are known.
_OTHERS = (
    Machine("cuda", "a GPU that nobody knows", "unknown", "unknown", True),
    Machine("cuda", "a GPU with vector units alone", "vector units", "vector units", True),
    Machine("cuda", "a GPU without BF16", "tensor cores", "none", False),
    Machine("mps", "a Mac of tomorrow", "matrix units", "matrix units", False),
)
# By machines and wishes, the nearest idea first.
_MISCONCEPTIONS = (
    ("scales-bf16", choose_with(scaled=("fp16", "bf16"))),
    ("never-scales", choose_with(scaled=())),
    ("always-scales", choose_with(scaled=("fp32", "fp16", "bf16"))),
    ("scales-the-wrong-one", choose_with(scaled=("bf16",))),
    ("believes-emulation", choose_with(bf16=lambda machine: machine.says_bf16)),
    ("believes-emulation", choose_with(bf16=lambda machine: machine.bf16 in (*NATIVE, "emulated"))),
    ("believes-emulation", choose_with(bf16=lambda machine: machine.bf16 != "none")),
    ("always-fp16", choose_with(bf16=lambda machine: False)),
    ("knows-nvidia-only", choose_with(bf16=lambda machine: machine.bf16 == "tensor cores")),
    ("vectors-are-fast", choose_with(on_cpu=lambda machine: machine.bf16 in (*NATIVE, "vector units"))),
    ("cpu-always", choose_with(on_cpu=lambda machine: True)),
    ("cpu-never", choose_with(on_cpu=lambda machine: False)),
    ("native-anywhere", choose_with(on_mps=True)),
    ("not-only-cuda", choose_with(else_on=("cuda", "mps"))),
    ("not-only-cuda", choose_with(else_on=("cuda", "cpu", "mps"))),
    ("not-only-cuda", choose_with(on_mps=True, else_on=("cuda", "cpu", "mps"))),
    ("not-only-cuda", choose_with(else_on=("cuda", "cpu"))),
    ("wish-ignored", choose_with(listens=False)),
)


@checker("9.2")
def choose_precision(ask: Ask) -> None:
    """Ask for each machine, then for wishes, then for one that nobody can grant."""
    ask.in_words = _in_words
    trials: list[tuple[Machine, str, Choice, str]] = []
    for wanted in _WISHES:
        for machine in (*MACHINES, *_OTHERS):
            got = ask(machine, wanted) if wanted != "auto" else ask(machine)
            trials.append((machine, wanted, _read(ask.call, got, right(machine, wanted)), ask.call))
    first = next((each for each in trials if each[2] != right(each[0], each[1])), None)
    if first is not None:
        machine, wanted, got, call = first
        shown = {"call": call, "got": _said(got), "want": _said(right(machine, wanted))}
        for diagnosis, choose in _MISCONCEPTIONS:
            if all(each[2] == choose(each[0], each[1]) for each in trials):
                raise Mistake(diagnosis, **shown)
        raise Mistake(_of_one(wanted, got, right(machine, wanted)), **shown)
    for word in ("half", "FP16", ""):
        ask.refuses(ValueError, MACHINES[0], word)


def _of_one(wanted: str, got: Choice, want: Choice) -> str:
    """Return the diagnosis of one choice, where no idea explains all of them."""
    if wanted == "auto":
        return "wrong-choice"
    if got[0] != want[0]:
        return "wish-ignored"
    return "never-scales" if want[1] else "always-scales"


def _in_words(machine: Machine, wanted: str = "auto") -> str:
    wish = "" if wanted == "auto" else f", {wanted!r}"
    facts = f"type {machine.type!r}, BF16: {machine.bf16}, FP16: {machine.fp16}"
    return f"`choose_precision(machine{wish})` for {machine.name} ({facts})"


def _read(call: str, got: Any, want: Choice) -> Choice:
    """Return a pair of a dtype and a truth value, or raise `Mistake` if it is anything else."""
    asked = "a pair of a `torch.dtype` and a `bool`"
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want=asked)
    pair = type(got) in (tuple, list) and len(got) == 2
    if not pair or type(got[0]) is not torch.dtype or type(got[1]) is not bool:
        advice = f"Here it would be `{_said(want)}`." if pair else "Two values behind `return` make a pair."
        raise Mistake("wrong-type", call=call, got=describe(got), kind=kind(got), want=asked, advice=advice)
    return got[0], got[1]


def _said(choice: Choice) -> str:
    return f"({choice[0]}, {choice[1]})"
