"""What the exercises of lesson 06 are judged by, one module each; to import one is to register its check."""

from amp_lab.course.lessons.l06 import backwards, islands, losses, repairing, telling

__all__ = ["backwards", "islands", "losses", "repairing", "telling"]
