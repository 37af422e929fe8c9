"""Run what only a CUDA machine can show, and keep what came of it: `make cuda PYTHON=python3 RESULTS=dir`.

It needs no virtual environment and no network: the interpreter that runs this file runs the tests, and nbval
starts its kernels with that interpreter too. RESULTS gets one dated JSON file, rewritten after each part, so
that what is finished survives what goes wrong later. The whole run stays under 8 minutes.
"""

import argparse
import contextlib
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil

ROOT = Path(__file__).resolve().parent.parent
WHOLE_RUN_S = 450
TAIL_CHARACTERS = 20_000
# The comparisons of benchmarks/ in which a GPU has a part, in the order of their worth: each is kept when it is done.
BENCHMARKS = ("memory", "trainer", "ladder", "scaler_step", "gradient_report")
PACKAGES = ("torch", "numpy", "scikit-learn", "matplotlib", "ipywidgets", "ipykernel", "nbval", "pytest")


@dataclass(frozen=True)
class Part:
    """One command, run from the repository's root and killed after `limit_s` seconds.

    `is_pytest`: its tests are counted, and it fails if none of them was executed.
    """

    name: str
    command: tuple[str, ...]
    limit_s: float
    is_pytest: bool = True


@dataclass
class Outcome:
    """What came of a part. `fault` is empty for success; counts are None where nothing was counted."""

    name: str
    command: str
    seconds: float = 0.0
    return_code: int | None = None
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None
    fault: str = ""
    output_tail: str = field(default="", repr=False)

    def __str__(self) -> str:
        counts = (
            ""
            if self.passed is None
            else f", {self.passed} passed, {self.failed} failed, {self.skipped} skipped"
        )
        return f"{self.name}: {self.fault or 'ok'}{counts}, {self.seconds:.0f} s"


def parts(root: Path, results: Path) -> list[Part]:
    """Return the parts in the order of their worth, as the time may run out; benchmarks write to `results`."""
    # Another machine's libraries may warn where ours do not: there, results count and warnings are only shown.
    pytest = (sys.executable, "-m", "pytest", "-v", "-W", "default", "-p", "no:cacheprovider")
    strict = (
        *("--nbval", "--nbval-current-env", "--nbval-cell-timeout=120"),
        *("--nbval-sanitize-with", "tests/notebooks/sanitize.cfg"),
    )
    # The last lessons have most to do with a GPU: if the time is over early, the first ones are left out.
    solutions = sorted((str(path.relative_to(root)) for path in root.glob("solutions/*.ipynb")), reverse=True)
    benchmarks = (sys.executable, "-m", "benchmarks", *BENCHMARKS, "--results", str(results))
    return [
        Part("tests", (*pytest, "tests/cuda"), limit_s=150),
        Part("notebooks", (*pytest, *strict, *solutions), limit_s=200),
        Part("benchmarks", benchmarks, limit_s=100, is_pytest=False),
    ]


def refusal() -> str:
    """Return why this machine cannot run the CUDA parts; the empty string if it can."""
    try:
        import torch
    except ImportError as error:
        return f"{sys.executable} cannot import PyTorch ({error})"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if torch.cuda.is_available():
            return ""
    details = "".join(f"; {str(warning.message).splitlines()[0]}" for warning in said)
    return f"PyTorch {torch.__version__} sees no CUDA device{details}"


def run(part: Part, limit_s: float, root: Path) -> Outcome:
    """Run one part for at most `limit_s` seconds and judge it."""
    outcome = Outcome(part.name, shlex.join(part.command))
    if limit_s < 1:
        outcome.fault = "not run: the time for the whole run is over"
        return outcome
    # Kernels start in the notebook's folder, so they find amp_lab through the path alone.
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    with tempfile.TemporaryDirectory() as scratch:
        log, counts = Path(scratch, "log"), Path(scratch, "counts.xml")
        command = [*part.command, *([f"--junitxml={counts}"] if part.is_pytest else [])]
        start = time.monotonic()
        with log.open("wb") as file:
            child = psutil.Popen(
                command,
                cwd=root,
                # As in the lab (amp_lab/course/machine/server.py): waiting threads sleep.
                env={"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONPATH": path},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            try:
                outcome.return_code = child.wait(limit_s)
            except psutil.TimeoutExpired:
                outcome.fault = f"killed after {limit_s:.0f} s"
            finally:
                _kill(child)
        outcome.seconds = round(time.monotonic() - start, 1)
        outcome.output_tail = log.read_text(encoding="utf-8", errors="replace")[-TAIL_CHARACTERS:]
        if counts.exists():
            outcome.passed, outcome.failed, outcome.skipped = _counts(counts)
    outcome.fault = outcome.fault or _fault(part, outcome)
    return outcome


def _kill(process: psutil.Process) -> None:
    """Kill a process and all below it: Jupyter kernels lead a session of their own, a group would miss them."""
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [process, *process.children(recursive=True)]
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=10)


def _counts(junit: Path) -> tuple[int, int, int]:
    """Return passed, failed (with errors) and skipped from the file that pytest's --junitxml wrote."""
    suites = list(ElementTree.parse(junit).iter("testsuite"))
    total, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped


def _fault(part: Part, outcome: Outcome) -> str:
    if outcome.return_code != 0:
        return f"failed with return code {outcome.return_code}"
    if part.is_pytest and not (outcome.passed or outcome.failed):
        return "failed: no test was executed"
    return ""


def describe_run() -> dict[str, Any]:
    """Return what the numbers depend on: the machine, the versions and the commit (None where not known)."""
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "versions": {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES},
        "machine": _machine(),
    }


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _machine() -> dict[str, Any]:
    # The parts are worth running also on a machine that defeats this description.
    try:
        from amp_lab.device import describe_device

        return describe_device().as_dict()
    except Exception:
        print(f"this machine could not be described:\n{traceback.format_exc()}", flush=True)
        return {"error": traceback.format_exc()}


def run_all(todo: Sequence[Part], results: Path, root: Path) -> bool:
    """Run the parts, write RESULTS/cuda-<time>.json after each, and say whether all went well."""
    deadline = time.monotonic() + WHOLE_RUN_S
    report = describe_run()
    file = results / f"cuda-{report['started'].replace(':', '').replace('+0000', 'Z')}.json"
    outcomes: list[Outcome] = []
    for part in todo:
        outcome = run(part, min(part.limit_s, deadline - time.monotonic()), root)
        outcomes.append(outcome)
        complete = len(outcomes) == len(todo)
        record = {
            **report,
            "complete": complete,
            "parts": [asdict(each) for each in outcomes],
        }
        write_json(file, record)
        print(outcome, *([outcome.output_tail] if outcome.fault else []), sep="\n", flush=True)
    print(f"written: {file}")
    return "error" not in report["machine"] and not any(outcome.fault for outcome in outcomes)


def write_json(path: Path, content: object) -> None:
    """Replace a file in one step: a run killed at any moment leaves the last whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run everything; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, required=True, help="folder for the dated JSON file")
    results = parser.parse_args(arguments).results
    why_not = refusal()
    if why_not:
        print(f"nothing was run: {why_not}", file=sys.stderr)
        return 1
    results = results.resolve()
    return 0 if run_all(parts(ROOT, results), results, ROOT) else 1


if __name__ == "__main__":
    # Python put this folder first: there `cuda` would be this file, and NVIDIA's package of that name not found.
    sys.path[0] = str(ROOT)
    sys.exit(main())
