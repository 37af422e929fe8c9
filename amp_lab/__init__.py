"""AMP Lab: a course on PyTorch's automatic mixed precision, and the helpers it is taught with.

The helpers (number formats, loss scaling, an x-ray of what autocast does, a doctor for training loops, a Trainer)
are meant for your own training code, too. What `__all__` lists is imported when it is first asked for:
`import amp_lab` alone does not wait for PyTorch.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"
__all__ = [
    "DynamicLossScaler",
    "ScaleCollapsed",
    "StaticLossScaler",
    "Trainer",
    "__version__",
    "describe_device",
    "explain",
    "find_overflow",
    "formats",
    "gradient_report",
    "watch",
    "xray",
]

# A type checker reads these imports, and would take any name for granted if it saw __getattr__.
if TYPE_CHECKING:
    from amp_lab import formats
    from amp_lab.autocast.errors import explain
    from amp_lab.autocast.xray import xray
    from amp_lab.device import describe_device
    from amp_lab.scaling import DynamicLossScaler, StaticLossScaler
    from amp_lab.train.trainer import Trainer
    from amp_lab.watching.gradients import gradient_report
    from amp_lab.watching.overflow import find_overflow
    from amp_lab.watching.recording.collapsing import ScaleCollapsed
    from amp_lab.watching.watch import watch
else:
    _HOMES = {
        "DynamicLossScaler": "amp_lab.scaling",
        "ScaleCollapsed": "amp_lab.watching.recording.collapsing",
        "StaticLossScaler": "amp_lab.scaling",
        "Trainer": "amp_lab.train.trainer",
        "describe_device": "amp_lab.device",
        "explain": "amp_lab.autocast.errors",
        "find_overflow": "amp_lab.watching.overflow",
        "gradient_report": "amp_lab.watching.gradients",
        "watch": "amp_lab.watching.watch",
        "xray": "amp_lab.autocast.xray",
    }
    _SUBMODULES = {"formats"}

    def __getattr__(name: str) -> object:
        if name in _SUBMODULES:
            return importlib.import_module(f"amp_lab.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(importlib.import_module(_HOMES[name]), name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
