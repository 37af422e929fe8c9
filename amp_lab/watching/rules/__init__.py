"""What the events of a training loop mean: one small function for each mistake.

Each folder holds the rules of one family. All are imported here, so that `RULES` is complete.
"""

import importlib
import pkgutil

from amp_lab.watching.rules.rule import RULES, Finding, Fix, Rule, Severity

__all__ = ["RULES", "Finding", "Fix", "Rule", "Severity"]

for _module in sorted(each.name for each in pkgutil.walk_packages(__path__, f"{__name__}.")):
    importlib.import_module(_module)
