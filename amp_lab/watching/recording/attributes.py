"""Attributes of objects that may be strange."""

from __future__ import annotations

from typing import Any


def attribute(value: Any, name: str, default: Any = None) -> Any:
    """Return an attribute, or the default where there is none, or where asking for it is an error."""
    try:
        return getattr(value, name, default)
    except Exception:  # a __getattr__ that raises something of its own
        return default
