"""What the exercises of lesson 05 are judged by, one module each; to import one is to register its check."""

from amp_lab.course.lessons.l05 import building, overflow, resuming, ruling

__all__ = ["building", "overflow", "resuming", "ruling"]
