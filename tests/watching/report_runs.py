"""Runs and rules made by hand, for tests of the report."""

import contextlib
import linecache
from collections.abc import Callable, Iterator

import torch

from amp_lab.autocast.records import Source
from amp_lab.watching.recording import events as seen
from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.run import ModelFacts, OptimizerFacts, Run, ScalerFacts
from amp_lab.watching.rules.rule import Finding, Rule, Severity

FILE = "/somewhere/train.py"
LOOP = """\
def train(net, opt, grad_scaler, batches):
    for x, y in batches:
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.float16):
            loss = loss_fn(net(x), y)
        grad_scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)  # as in the paper
        grad_scaler.step(opt)
        grad_scaler.update()
"""
NAMES = (("scaler", "grad_scaler"), ("optimizer", "opt"), ("model", "net"))


@contextlib.contextmanager
def file(text: str = LOOP, name: str = FILE) -> Iterator[str]:
    """Let there be a file, as far as tracebacks know."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    try:
        yield name
    finally:
        linecache.cache.pop(name, None)


def line(words: str, text: str = LOOP, name: str = FILE, function: str = "train") -> Source:
    """Return the first line with these words."""
    number, found = next((at, each) for at, each in enumerate(text.split("\n"), 1) if words in each)
    return Source(name, number, function, found.strip())


def clipped(step: int = 1, where: Source | None = None, number: int = 4, **other: object) -> seen.Clipped:
    return seen.Clipped(
        number=number + 10 * step,
        step=step,
        where=where or line("clip_grad_norm_"),
        names=NAMES,
        how="norm",
        optimizers=(0,),
        state=seen.Gradients.SCALED,
        norm=Later(float, 2937.04),
        **other,
    )


def stepped(step: int = 1, where: Source | None = None, **other: object) -> seen.Stepped:
    given = {
        "names": NAMES,
        "optimizer": 0,
        "scaler": 0,
        "state": seen.Gradients.SCALED,
        "ran": True,
        **other,
    }
    skipped = Later(bool, given.pop("skipped", False))
    return seen.Stepped(
        number=6 + 10 * step, step=step, where=where or line("step(opt)"), skipped=skipped, **given
    )


def backward(step: int = 1, finite: bool = True) -> seen.Backward:
    return seen.Backward(
        number=3 + 10 * step,
        step=step,
        where=line("backward()"),
        names=NAMES,
        how="backward",
        losses=(1,),
        loss_dtype=torch.float32,
        finite=Later(bool, finite),
        scaled_by=0,
    )


def raised(
    step: int = 1, kind: str = "RuntimeError", message: str = "", explained: str = "unknown"
) -> seen.Raised:
    return seen.Raised(
        number=9 + 10 * step,
        step=step,
        where=line("step(opt)"),
        kind=kind,
        message=message,
        explained=explained,
    )


def run(*events: seen.Event, steps: int = 200, **facts: object) -> Run:
    """Return a run of one model, one optimizer and one scaler that began at 65,536."""
    given: dict = {
        "models": [ModelFacts("Net", "cpu", frozenset({torch.float32}), frozenset(), 4, 4, 0)],
        "optimizers": [OptimizerFacts("AdamW", frozenset({torch.float32}), 4, 0, 4, False)],
        "scalers": [ScalerFacts("GradScaler", True, True, "cpu", 65536.0, 2.0, 0.5, 2000, True)],
        "schedulers": [],
        "kept_steps": frozenset(range(1, steps + 1)),
        **facts,
    }
    return Run(events=list(events), steps=steps, **given)


def rule(
    id: str,
    *findings: Finding,
    severity: Severity = Severity.WRONG,
    explains: tuple[str, ...] = (),
    doc: str = "",
) -> Rule:
    """Return a rule that finds what it is told to find."""

    def look(_: Run) -> Iterator[Finding]:
        yield from findings

    look.__doc__ = (
        doc or f"Why {id} is wrong.\n\n    Wrong:\n        step()\n\n    Right:\n        good_step()\n"
    )
    return Rule(id, severity, f"The title of {id}", look, frozenset(explains))


def failing(error: Exception) -> Rule:
    def look(_: Run) -> Iterator[Finding]:
        raise error
        yield

    return Rule("failing", Severity.WRONG, "Fails", look, frozenset())


Looker = Callable[[Run], Iterator[Finding]]
