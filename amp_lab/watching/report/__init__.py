"""What was found, told: root causes first, their consequences under them, as text, in a notebook, with Rich."""

from amp_lab.watching.report.diagnosing import diagnose
from amp_lab.watching.report.diagnosis import Diagnosis
from amp_lab.watching.report.report import Report
from amp_lab.watching.report.rules_table import RulesTable, rules_table

__all__ = ["Diagnosis", "Report", "RulesTable", "diagnose", "rules_table"]
