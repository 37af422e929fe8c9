"""`python -m benchmarks [NAME…] [--quick]`: measure, print one line per number, keep the numbers under results/."""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

from benchmarks.results import FOLDER, keep

# In this order; each is a module here with `measure(quick: bool) -> list[Finding]`.
COMPARISONS = (
    "scaler_step",
    "emulated_fp16",
    "cast_emulation",
    "gradient_report",
    "xray",
    "watching",
    "overflow",
    "lessons",
)


def main() -> int:
    """Return 0 if every number met its bar, 1 if one did not."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(COMPARISONS)}; all by default"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rounds, to see that it runs: no numbers to quote"
    )
    parser.add_argument("--results", type=Path, default=FOLDER, help="the folder for the JSON files")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in COMPARISONS]
    if unknown:
        parser.error(f"there is no comparison {unknown[0]!r}; there are {', '.join(COMPARISONS)}")
    met = [_run(name, asked.quick, asked.results) for name in asked.names or COMPARISONS]
    return 0 if all(met) else 1


def _run(name: str, quick: bool, folder: Path) -> bool:
    module = importlib.import_module(f"benchmarks.{name}")
    print(f"\n{name}: {(module.__doc__ or '').strip().splitlines()[0]}", flush=True)
    start = time.monotonic()
    findings = module.measure(quick)
    for each in findings:
        print(" ", each)
    if not quick:
        command = f"python -m benchmarks {name}"
        print(
            "  kept in", keep(name, command, findings, folder=folder, seconds=round(time.monotonic() - start))
        )
    return all(each.met for each in findings)


if __name__ == "__main__":
    sys.exit(main())
