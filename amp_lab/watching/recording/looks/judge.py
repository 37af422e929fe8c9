"""What the judges of single calls share."""

from __future__ import annotations

from amp_lab.watching.recording.looks.calls import Call
from amp_lab.watching.recording.looks.look import Bench
from amp_lab.watching.recording.looks.noting import Notes
from amp_lab.watching.recording.looks.tags import Tags


class Judge:
    """Looks at calls of PyTorch's functions by the user's code, and notes what rules may want to know.

    All judges of a look share its `tags` and `notes`. None of them reads a number of a tensor.
    """

    def __init__(self, bench: Bench, tags: Tags, notes: Notes):
        self.bench, self.tags, self.notes = bench, tags, notes

    def before(self, call: Call) -> None:
        """A function is about to be called."""

    def after(self, call: Call) -> None:
        """It has returned `call.result`."""

    def raised(self, call: Call) -> None:
        """It has raised."""
