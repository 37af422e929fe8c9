"""What an x-ray shows, in words: dtypes, sizes, shapes, casts, places in the code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch

from amp_lab.autocast.records import Cast, Op, Source, Value

DTYPES: Final = {
    torch.float16: "FP16",
    torch.bfloat16: "BF16",
    torch.float32: "FP32",
    torch.float64: "FP64",
    torch.float8_e4m3fn: "FP8 E4M3",
    torch.float8_e5m2: "FP8 E5M2",
}
_UNITS: Final = ("kB", "MB", "GB", "TB")
_SPACE: Final = "\N{NO-BREAK SPACE}"  # a line must not end between a number and its unit


def dtype_in_words(dtype: torch.dtype | None) -> str:
    """Write a dtype as people call it: "FP16", "int64"; "–" for none."""
    return "–" if dtype is None else DTYPES.get(dtype, str(dtype).removeprefix("torch."))


def bytes_in_words(size: int) -> str:
    """Write a size: "640 B", "24.6 kB", "1.31 MB", in powers of 1,000."""
    value, unit = float(size), "B"
    for larger in _UNITS:
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{size if unit == 'B' else f'{value:#.3g}'.rstrip('.')}{_SPACE}{unit}"


def shape_in_words(shape: Iterable[int]) -> str:
    """Write a shape: "2×8×64"; "scalar" for a tensor without dimensions."""
    return "×".join(map(str, shape)) or "scalar"


def dtypes_of(values: Iterable[Value]) -> str:
    """Write the dtypes of tensors, each once, in order: "FP32, FP16"; "–" where there is none."""
    return ", ".join(dict.fromkeys(dtype_in_words(each.dtype) for each in values)) or "–"


def outputs_in_words(values: tuple[Value, ...]) -> str:
    """Write what an operator gave: dtype and shape of its first result, and how many more there are."""
    if not values:
        return "–"
    first = values[0]
    more = f" and {len(values) - 1} more" if len(values) > 1 else ""
    return f"{dtype_in_words(first.dtype)} {shape_in_words(first.shape)}{more}"


def arrow(cast: Cast) -> str:
    """Write from which dtype to which a cast goes: "FP32→FP16"."""
    return f"{dtype_in_words(cast.value.dtype)}→{dtype_in_words(cast.dtype)}"


def casts_in_words(casts: Iterable[Cast]) -> str:
    """Write casts by direction, with the bytes that they copied: "3 × FP32→FP16 24.6 kB, 1 cached"."""
    casts = tuple(casts)
    return "; ".join(
        _same_way(way, [each for each in casts if arrow(each) == way])
        for way in dict.fromkeys(map(arrow, casts))
    )


def _same_way(way: str, casts: list[Cast]) -> str:
    cached = sum(not each.copied for each in casts)
    times = f"{len(casts)} × " if len(casts) > 1 else ""
    if cached == len(casts):
        return f"{times}{way} cached"
    size = bytes_in_words(sum(each.copied for each in casts))
    return f"{times}{way} {size}" + (f", {cached} cached" if cached else "")


def place_in_words(source: Source | None) -> str:
    """Write a line of the user's code, short: "model.py:12"."""
    return f"{source.file.replace(chr(92), '/').rpartition('/')[2]}:{source.line}" if source else ""


def place_in_table(source: Source | None) -> str:
    """Write a line of the user's code, shorter: of a notebook's cell only its number, "[5]:12"."""
    return place_in_words(source).removeprefix("Cell In")


def op_in_words(op: Op) -> str:
    """Name an operator in a sentence: "linear (#4 in layers.0.linear1, model.py:12)"."""
    place = place_in_words(op.source)
    where = f" in {op.module}" if op.module else ""
    return f"{op.name} (#{op.number}{where}{', ' + place if place else ''})"


def given_in_words(op: Op) -> str:
    """Say what an operator was given, and where: "was given FP16, FP32, where autocast is off"."""
    if op.phase != "forward":
        where = f" in the {op.phase} pass"
    else:
        where = ", where autocast is off" if op.region is None else ""
    return f"was given {dtypes_of(op.inputs)}{where}"


def counted(number: int, what: str) -> str:
    """Write a number with its noun: "1 cast", "1,200 casts"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
