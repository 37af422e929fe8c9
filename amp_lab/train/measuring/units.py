"""Bytes and operations in words."""

from __future__ import annotations


def in_bytes(size: float) -> str:
    """Return a number of bytes as people read it: 1,536 is 1.5 KiB."""
    return _scaled(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))


def in_flops(number: float) -> str:
    """Return a number of floating-point operations: 2,500,000 is 2.5 MFLOP."""
    return _scaled(number, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))


def _scaled(number: float, step: int, units: tuple[str, ...]) -> str:
    for unit in units[:-1]:
        if abs(number) < step * (1 - 5e-4):  # what would round up to a whole step is shown in the next unit
            return f"{number:,.0f} {unit}" if unit == units[0] else f"{number:.3g} {unit}"
        number /= step
    return f"{number:,.3g} {units[-1]}"
