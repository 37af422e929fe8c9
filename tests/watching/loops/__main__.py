"""`python -m tests.watching.loops [NAME…]`: judge all loops, or those named, and print what is not as it should be."""

from __future__ import annotations

import sys
import time

import torch

from tests.watching.loops.collection import loops, watched
from tests.watching.loops.table import tables


def main() -> int:
    """Return 0 if every loop got exactly its root cause, or nothing if it is right."""
    torch.set_num_threads(1)
    names, judged, faults = sys.argv[1:], [], 0
    for loop in loops():
        if names and loop.name not in names:
            continue
        start = time.monotonic()
        outcome = watched(loop)
        judged.append((loop, outcome))
        if outcome.causes != ([loop.cause] if loop.cause else []) or (not loop.cause and outcome.findings):
            faults += 1
            print(f"{loop.train.__module__.removeprefix('tests.watching.')}.{loop.name}: {loop.mistake}")
            roots = ", ".join(outcome.causes) or "silent"
            below = [each for each in outcome.findings if each not in outcome.causes]
            print(
                f"    should be {loop.cause or 'silent'}; is {roots}"
                + f" (with {', '.join(below)})" * bool(below)
            )
        if names:
            print(*outcome.reports, sep="\n")
        elif time.monotonic() - start > 2:
            print(f"{loop.name} took {time.monotonic() - start:.1f} s")
    print(f"\n{tables(judged)}")
    return min(faults, 1)


if __name__ == "__main__":
    sys.exit(main())
