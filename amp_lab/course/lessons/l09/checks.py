"""What the exercises of lesson 09 are judged by, one module each; to import one is to register its check."""

from amp_lab.course.lessons.l09 import choosing, evaluating, keeping, reviewing, stepping

__all__ = ["choosing", "evaluating", "keeping", "reviewing", "stepping"]
