"""A report as plain data, for logs and for other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from amp_lab.autocast.messages.users_code import readable
from amp_lab.autocast.records import Source
from amp_lab.watching.report import summary
from amp_lab.watching.words import in_words, shortened

if TYPE_CHECKING:
    from amp_lab.watching.report.diagnosis import Diagnosis
    from amp_lab.watching.report.report import Report

VERSION = 1  # of this layout


def as_dict(report: Report) -> dict[str, Any]:
    """Return a report as dicts, lists, texts, numbers, truth values and None, ready for `json.dumps`."""
    return {
        "version": VERSION,
        "torch": str(torch.__version__),
        "ok": report.ok,
        "worst": report.worst.name if report.worst is not None else None,
        "verdict": summary.verdict(report),
        "facts": [*summary.facts(report), *summary.remarks(report)],
        "steps": report.run.steps,
        "skipped": list(report.run.skips),
        "scales": [[step, _number(scale)] for step, scale in report.run.scales],
        "diagnoses": [diagnosis_dict(each) for each in report.diagnoses],
        "failed": [{"rule": rule, "error": error} for rule, error in report.failed],
        "ended": report.ended,
    }


def diagnosis_dict(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis as plain data."""
    fix = diagnosis.fix
    return {
        "id": diagnosis.id,
        "severity": diagnosis.severity.name,
        "title": diagnosis.title,
        "sentence": diagnosis.sentence,
        "evidence": list(diagnosis.evidence),
        "steps": list(diagnosis.steps),
        "values": {shortened(name): in_words(value) for name, value in diagnosis.finding.values.items()},
        "where": None if diagnosis.where is None else _place(diagnosis.where),
        "fix": None if fix is None else {"words": fix.words, "diff": fix.diff, "code": list(fix.code)},
        "consequences": [diagnosis_dict(each) for each in diagnosis.consequences],
    }


def _place(where: Source) -> dict[str, Any]:
    return {
        "file": readable(where.file),
        "line": where.line,
        "function": where.function,
        "text": where.text,
    }


def _number(value: float) -> float | str:
    """Return a number, or its name where JSON has none for it."""
    return value if -float("inf") < value < float("inf") else in_words(value)
