"""What the exercises of lesson 10 are judged by, one module each; to import one is to register its check."""

from amp_lab.course.lessons.l10 import finding, paying, scripting, sharding, stepping

__all__ = ["finding", "paying", "scripting", "sharding", "stepping"]
