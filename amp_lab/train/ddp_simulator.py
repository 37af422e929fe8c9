"""A simulator of DDP with AMP: what several ranks do and wait for, before a process is started.

    def loop(rank):
        for step in range(3):
            yield Forward()
            yield Backward(gradients=math.inf if (rank, step) == (1, 1) else 0.1)
            yield Step()
            yield Update()

    timeline = simulate(loop, ranks=2)
    print(timeline)
    timeline.plot()

A program yields tokens, one for each call of a real training loop, and gets back what that call gives: `if (yield
Unscale()): …`. `timeline.deadlock` and `timeline.mispaired` say what would have gone wrong.
"""

from amp_lab.train.simulating.diagnoses import Deadlock, Mispairing
from amp_lab.train.simulating.events import Event
from amp_lab.train.simulating.programs import ProgramError
from amp_lab.train.simulating.running import simulate
from amp_lab.train.simulating.timeline import Timeline
from amp_lab.train.simulating.tokens import (
    AllReduce,
    Backward,
    Barrier,
    Broadcast,
    Clip,
    Evaluate,
    Forward,
    Load,
    NoSync,
    Save,
    SetGradient,
    Skip,
    Step,
    Token,
    Unscale,
    Update,
)

__all__ = [
    "AllReduce",
    "Backward",
    "Barrier",
    "Broadcast",
    "Clip",
    "Deadlock",
    "Evaluate",
    "Event",
    "Forward",
    "Load",
    "Mispairing",
    "NoSync",
    "ProgramError",
    "Save",
    "SetGradient",
    "Skip",
    "Step",
    "Timeline",
    "Token",
    "Unscale",
    "Update",
    "simulate",
]
