"""Closer looks at a run, which see more than the calls of a loop and so are taken in some steps only."""

from amp_lab.watching.recording.looks.look import Host
from amp_lab.watching.recording.looks.looks import Looks

__all__ = ["Host", "Looks"]
