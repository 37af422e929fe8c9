"""What the exercises of lesson 03 are judged by, one module each; to import one is to register its check."""

from amp_lab.course.lessons.l03 import accumulation, masters, underflow

__all__ = ["accumulation", "masters", "underflow"]
