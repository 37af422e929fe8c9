"""An exception that ended the run, and that no other rule explains."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from amp_lab.autocast.errors import AMP_LAB, UNKNOWN, Explanation, explain
from amp_lab.autocast.messages.unrelated import NOT_PRECISION
from amp_lab.watching.recording.collapsing import ScaleCollapsed
from amp_lab.watching.recording.events import Raised
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule

_SENTENCE: Final = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")


@rule("raised", Severity.WRONG, title="PyTorch stopped the loop with an error about precision")
def raised(run: Run) -> Iterator[Finding]:
    """PyTorch raised an error that has to do with mixed precision: about dtypes, or the calls of a scaler.

    What happened and what to do is what `amp_lab.explain` says of it. An error that has nothing to do with mixed
    precision is none of this rule's.

    Wrong:
        with torch.autocast(device_type, dtype=torch.bfloat16):
            output = model(x)
        predicted = output.detach().numpy()  # NumPy has no BF16

    Right:
        with torch.autocast(device_type, dtype=torch.bfloat16):
            output = model(x)
        predicted = output.detach().float().numpy()
    """
    for event in run.of(Raised):
        explanation = of(event)
        if explanation is not None:
            yield Finding(
                explanation.happened,
                (event,),
                {"error": explanation.message},
                Fix(event, say=explanation.advice) if explanation.advice else None,
            )


def of(event: Raised) -> Explanation | None:
    """Return what amp_lab knows about an exception; None if it has nothing to do with mixed precision."""
    if event.explained in ("", UNKNOWN, NOT_PRECISION) or event.kind == ScaleCollapsed.__name__:
        return None  # the watch has stopped the loop itself: other findings say why
    explanation = explain(f"{event.kind}: {event.message}")
    if explanation.known and explanation.id != AMP_LAB:
        return explanation
    # One of amp_lab's own: it says what is wrong and what to do, and of its class only the name is left here.
    wrong, *advice = _SENTENCE.split(event.message, maxsplit=1)
    happened = f"amp_lab raised {event.kind}: {wrong.rstrip('.')}."
    return Explanation(AMP_LAB, f"{event.kind}: {event.message}", happened, "".join(advice))
