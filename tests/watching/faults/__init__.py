"""Planted faults: overflows and NaN whose place, direction and cure are known."""
