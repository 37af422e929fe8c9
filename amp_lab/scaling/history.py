"""What a loss scale went through, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field

from amp_lab.scaling.rule import shown


@dataclass
class History:
    """One entry for each `update()` of a scaler, or for each step of a simulation.

    Two plain lists, easy to plot. As long as the scale stays, its entries share one number, so an entry takes 16 bytes:
    a run of a million updates keeps 16 MB. `clear()` empties both lists.

    An update counts also if the step before it was left out or failed; its entry then says "not skipped" unless
    `unscale_` had found an overflow.

    Attributes:
        scales: the loss scale with which each step was done, that is before its update changed it.
        skipped: whether an optimizer skipped the step because a gradient was infinite or NaN.
        stopped: whether the scale would have sunk below `min_scale` in the last step.
    """

    scales: list[float] = field(default_factory=list)
    skipped: list[bool] = field(default_factory=list)
    stopped: bool = False

    def __len__(self) -> int:
        return len(self.scales)

    def __repr__(self) -> str:
        if not self.scales:
            return "History: no step yet"
        lowest, highest = min(self.scales), max(self.scales)
        end = ", then stopped at min_scale" if self.stopped else ""
        return (
            f"History: {len(self):,} steps, {sum(self.skipped):,} of them skipped, "
            f"loss scale from {shown(lowest)} to {shown(highest)}{end}"
        )

    def add(self, scale: float, skipped: bool) -> None:
        """Add the entry of one step."""
        same = self.scales and self.scales[-1] == scale
        self.scales.append(self.scales[-1] if same else scale)
        self.skipped.append(skipped)
        self.stopped = False

    def clear(self) -> None:
        """Forget all entries."""
        self.scales.clear()
        self.skipped.clear()
        self.stopped = False
