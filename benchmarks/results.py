"""Keep what was measured: one JSON file per comparison, day and machine."""

from __future__ import annotations

import datetime
import json
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from amp_lab import describe_device
from benchmarks.side_by_side import Finding

FOLDER = Path(__file__).parent / "results"


def keep(
    name: str, command: str, findings: Sequence[Finding], *, folder: Path = FOLDER, **more: object
) -> Path:
    """Write findings to `<folder>/<date>_<name>_<machine>.json` and return the path.

    Args:
        name: of the comparison, such as `"scaler_step"`.
        command: what to type to measure it again.
        findings: what was found.
        folder: where to write; made if it is missing.
        more: anything else that JSON can hold, by name, such as how many steps were taken.
    """
    device = describe_device()
    cpu = device.facts.cpu
    today = datetime.date.today().isoformat()
    content = {
        "what": name,
        "command": command,
        "date": today,
        "device": f"{device.device}: {device.name}",
        "cpu": {"model": cpu.model, "cores": cpu.cores, "vector level": cpu.vector_level},
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        **more,
        "findings": [asdict(each) | {"met": each.met} for each in findings],
    }
    folder.mkdir(parents=True, exist_ok=True)
    machine = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    path = folder / f"{today}_{name}_{machine}.json"
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
