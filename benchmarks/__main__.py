"""`python -m benchmarks [NAME…] [--quick]`: measure, print all numbers in one table, keep them under results/.

With `--table`: measure nothing, print the newest numbers that are kept.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.results import FOLDER, record, write
from benchmarks.tables import newest, put_into, table

# In this order; each is a module here with `measure(quick: bool) -> list[Finding]`. It may return a pair: the findings,
# and a dictionary of what else is to be kept.
COMPARISONS = (
    "scaler_step",
    "emulated_fp16",
    "cast_emulation",
    "gradient_report",
    "xray",
    "watching",
    "overflow",
    "trainer",
    "ddp_step",
    "ddp_payload",
    "memory",
    "ladder",
    "lessons",
)


def main() -> int:
    """Return 0 if every number met its bar, 1 if one did not."""
    asked = _arguments()
    if asked.table:
        return _show(asked.results, asked.into)
    records = [_run(name, asked.quick, asked.results) for name in dict.fromkeys(asked.names or COMPARISONS)]
    few = "few rounds only, no numbers to quote:\n" if asked.quick else ""
    print(f"\n{few}{table(records)}")
    return 0 if all(each["met"] for one in records for each in one["findings"]) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(COMPARISONS)}; all by default"
    )
    parser.add_argument(
        "--quick", action="store_true", help="few rounds, to see that it runs: no numbers to quote"
    )
    parser.add_argument("--results", type=Path, default=FOLDER, help="the folder of the JSON files")
    parser.add_argument("--table", action="store_true", help="print what is kept, and measure nothing")
    parser.add_argument("--into", type=Path, metavar="FILE", help="with --table: put it into README.md")
    asked = parser.parse_args()
    unknown = [name for name in asked.names if name not in COMPARISONS]
    if unknown:
        parser.error(f"there is no comparison {unknown[0]!r}; there are {', '.join(COMPARISONS)}")
    if asked.results.exists() and not asked.results.is_dir():
        parser.error(f"--results {asked.results}: this is a file; give a folder")
    if asked.table and not asked.results.is_dir():
        parser.error(f"--results {asked.results}: there is no such folder")
    if asked.into and not asked.table:
        parser.error("--into goes with --table")
    if asked.table and (asked.names or asked.quick):
        parser.error("--table shows all that is kept; it takes no names and no --quick")
    return asked


def _show(folder: Path, into: Path | None) -> int:
    try:
        text = table(newest(folder, COMPARISONS))
        if into is None:
            print(text)
        else:
            put_into(into, text)
    except (OSError, ValueError) as error:
        print(f"python -m benchmarks --table: {error}", file=sys.stderr)
        return 2
    return 0


def _run(name: str, quick: bool, folder: Path) -> dict[str, Any]:
    """Measure one comparison, print its numbers, keep them unless `quick`; return its record."""
    module = importlib.import_module(f"benchmarks.{name}")
    print(f"\n{name}: {(module.__doc__ or '').strip().splitlines()[0]}", flush=True)
    start = time.monotonic()
    measured = module.measure(quick)
    findings, more = measured if isinstance(measured, tuple) else (measured, {})
    for each in findings:
        print(" ", each)
    seconds = round(time.monotonic() - start)
    kept = record(name, f"python -m benchmarks {name}", findings, seconds=seconds, **more)
    if not quick:
        print("  kept in", write(kept, folder))
    return kept


if __name__ == "__main__":
    sys.exit(main())
