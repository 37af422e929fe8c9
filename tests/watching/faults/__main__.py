"""`python -m tests.watching.faults [NAME…]`: ask about all cases, or those named, and print a table and the counts."""

from __future__ import annotations

import sys
from collections import Counter

import torch

from tests.watching.faults.collection import Fault, cases
from tests.watching.faults.judging import ask


def main() -> int:
    """Return 0 if every answer is right."""
    torch.set_num_threads(1)
    counts: Counter[str] = Counter()
    print(f"{'family':19}{'case':30}{'expected':52}{'answered':66}seconds")
    for fault in cases():
        if sys.argv[1:] and fault.name not in sys.argv[1:]:
            continue
        kind = "healthy" if fault.cause == "none" else "faults"
        counts[kind] += 1
        try:
            answer = ask(fault)
        except Exception as error:
            print(f"{fault.family:19}{fault.name:30}{_expected(fault):52}{error!r:.60}")
            continue
        counts[f"{kind}, right"] += not answer.wrong
        print(f"{fault.family:19}{fault.name:30}{_expected(fault):52}{answer!s:66}{answer.seconds:.3f}")
        for each in answer.wrong:
            print(f"    WRONG: {each}")
        if sys.argv[1:]:
            print(answer.report)
    for kind in ("faults", "healthy"):
        print(f"{kind}: {counts[f'{kind}, right']} of {counts[kind]} are answered rightly")
    return int(sum(counts[f"{kind}, right"] - counts[kind] for kind in ("faults", "healthy")) != 0)


def _expected(fault: Fault) -> str:
    if fault.cause == "none":
        return "none"
    cure = "cured" if fault.cures else "not cured"
    return f"{fault.cause}, {fault.phase}, {'/'.join(fault.ops[:1])} in {fault.module!r}, {cure}"


if __name__ == "__main__":
    sys.exit(main())
