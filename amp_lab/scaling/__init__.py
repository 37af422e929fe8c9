"""Loss scaling: what keeps small gradients alive in FP16.

    >>> from amp_lab.scaling import DynamicLossScaler
    >>> scaler = DynamicLossScaler(init_scale=2.0**16, growth_interval=100)
    >>> for x, y in batches:
    ...     optimizer.zero_grad()
    ...     scaler.scale(loss_function(model(x), y)).backward()
    ...     scaler.step(optimizer)
    ...     scaler.update()
    >>> print(scaler.last)
    stepped at loss scale 65,536

Where to read on: `rule.py` is the rule, and needs no tensor; `scaler.py` the order of calls, and
`optimizer_state.py` what is kept of each optimizer; `reference.py` what unscaling is, and `unscaling.py` how it is done
fast; `loss_scale.py` how host and device keep the same scale.
"""

from amp_lab.scaling.dynamic import DynamicLossScaler
from amp_lab.scaling.errors import CallOrderError, LossScaleTooSmall
from amp_lab.scaling.history import History
from amp_lab.scaling.report import Overflow, StepReport
from amp_lab.scaling.rule import ScaleRule, ScaleState, next_scale
from amp_lab.scaling.simulate import simulate
from amp_lab.scaling.static import StaticLossScaler

__all__ = [
    "CallOrderError",
    "DynamicLossScaler",
    "History",
    "LossScaleTooSmall",
    "Overflow",
    "ScaleRule",
    "ScaleState",
    "StaticLossScaler",
    "StepReport",
    "next_scale",
    "simulate",
]
