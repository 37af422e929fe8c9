"""What the exercises of lesson 01 are judged by, one module each; to import one is to register its check."""

from amp_lab.course.lessons.l01 import decoding, limits, promotion, rounding

__all__ = ["decoding", "limits", "promotion", "rounding"]
