"""What the events of a training loop mean: one small function for each mistake.

Every module in this folder holds rules; all are imported here, so that `RULES` is complete.
"""

import importlib
import pkgutil

from amp_lab.watching.rules.rule import RULES, Finding, Fix, Rule, Severity

__all__ = ["RULES", "Finding", "Fix", "Rule", "Severity"]

for _module in sorted(each.name for each in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")
