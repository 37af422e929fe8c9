"""Keep what was measured: one JSON file per comparison, day and machine."""

from __future__ import annotations

import datetime
import json
import platform
import re
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from amp_lab import describe_device
from benchmarks.finding import Finding

FOLDER = Path(__file__).parent / "results"


def record(name: str, command: str, findings: Sequence[Finding], **more: object) -> dict[str, Any]:
    """Return findings with what they depend on: the date, the machine, the versions and the commit.

    Args:
        name: of the comparison, such as `"scaler_step"`.
        command: what to type to measure it again.
        findings: what was found.
        more: anything else that JSON can hold, by name, such as how many steps were taken.
    """
    device = describe_device()
    cpu = device.facts.cpu
    return {
        "what": name,
        "command": command,
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "device": f"{device.device}: {device.name}",
        "cpu": {"model": cpu.model, "cores": cpu.cores, "vector level": cpu.vector_level},
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **more,
        "findings": [asdict(each) | {"met": each.met} for each in findings],
    }


def write(content: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Write a record to `<folder>/<date>_<name>_<machine>.json`, make the folder if it is missing; return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    machine = re.sub(r"[^a-z0-9]+", "-", content["device"].split(": ", 1)[1].lower()).strip("-")
    path = folder / f"{content['date']}_{content['what']}_{machine}.json"
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def keep(
    name: str, command: str, findings: Sequence[Finding], *, folder: Path = FOLDER, **more: object
) -> Path:
    """Write the `record` of these arguments into `folder` and return the path."""
    return write(record(name, command, findings, **more), folder)


def _commit() -> str | None:
    """Return the commit that was measured, with "-dirty" if files had been changed; None where git does not know."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=FOLDER.parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
