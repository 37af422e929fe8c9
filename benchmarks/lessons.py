"""How long each lesson runs under nbval: seconds per notebook, in a kernel of its own.

The bar is 60 seconds on two cores. It is wall-clock time with nothing else running, and hardly comparable between
machines: the one number here that is no ratio.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from benchmarks.finding import Finding

ROOT = Path(__file__).parents[1]
BAR_S = 60.0


def measure(quick: bool) -> list[Finding]:
    """Run the solution notebook of each lesson once (`quick`: of the first alone), strictly, and time it."""
    notebooks = sorted((ROOT / "solutions").glob("*.ipynb"))
    return [_time(path) for path in notebooks[: 1 if quick else None]]


def _time(notebook: Path) -> Finding:
    options = ["--nbval", "--nbval-current-env", "--nbval-cell-timeout=120", "-q", "-p", "no:cacheprovider"]
    sanitize = ["--nbval-sanitize-with", "tests/notebooks/sanitize.cfg"]
    start = time.perf_counter()
    command = [sys.executable, "-m", "pytest", *options, *sanitize, str(notebook)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(
            f"{notebook.name} fails under nbval, so its time says nothing:\n{done.stdout[-2000:]}"
        )
    return Finding(f"{notebook.stem} under nbval", time.perf_counter() - start, BAR_S, unit="s")
