"""Compare what `find_overflow` answers with what must be answered."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch

from tests.watching.faults.collection import Fault
from tests.watching.faults.measuring import largest_scale


class Answer(NamedTuple):
    """What was answered, how long it took, and what is wrong with it, line by line."""

    report: Any
    seconds: float
    wrong: tuple[str, ...]

    def __str__(self) -> str:
        report = self.report
        cure = f"2^{torch.tensor(report.scale).log2().item():+.0f}" if report.scale else "no scale"
        return f"{report.cause}, {report.phase}, {report.op} in {report.module!r}, {cure}"


def ask(fault: Fault) -> Answer:
    """Let `find_overflow` look at the case."""
    from amp_lab.watching.overflow import find_overflow

    case = fault.case()
    start = time.perf_counter()
    report = find_overflow(case.model, case.loss_fn, case.batch, device_type=fault.device_type)
    return Answer(report, time.perf_counter() - start, tuple(_wrong(fault, report)))


def _wrong(fault: Fault, report: Any) -> list[str]:
    wrong = []
    if report.cause not in (fault.cause, fault.or_cause):
        wrong.append(f"cause {report.cause}, should be {fault.cause}")
    if report.ok != (fault.cause == "none"):
        wrong.append(f"ok is {report.ok}")
    if fault.cause == "none":
        return wrong
    if report.phase != fault.phase:
        wrong.append(f"phase {report.phase}, should be {fault.phase}")
    if fault.ops and report.op not in fault.ops:
        wrong.append(f"operator {report.op}, should be {' or '.join(fault.ops)}")
    if (fault.ops or fault.module is not None) and (report.module or "") != (fault.module or ""):
        wrong.append(f"module {report.module!r}, should be {fault.module!r}")
    if report.cures != fault.cures:
        wrong.append(f"cures {report.cures}, should be {fault.cures}")
    scale = largest_scale(fault) if fault.cures else None
    if fault.cures and report.scale != scale:
        wrong.append(f"scale {report.scale}, should be {scale}")
    return wrong
