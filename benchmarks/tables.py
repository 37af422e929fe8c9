"""One Markdown table of what was measured, and its place in the README."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HEAD = ("| comparison | what | number | bar | measured |", "|---|---|--:|---|---|")
# Where the table stands in a file, such as README.md.
BEGIN, END = "<!-- python -m benchmarks --table -->\n", "<!-- end of the table -->"


def newest(folder: Path, order: Sequence[str]) -> list[dict[str, Any]]:
    """Return the newest record of each comparison on each machine, in this order; what is not named comes last.

    Args:
        folder: the folder of JSON files that `benchmarks.results.write` wrote.
        order: the names of comparisons.

    Raises:
        ValueError: for a file that is damaged, or something else.
    """
    by_name: dict[tuple[str, str], dict[str, Any]] = {}
    # A name begins with its date, and the same day and machine have one file: the last one is the newest.
    for path in sorted(folder.glob("*.json")):
        content = _read(path)
        by_name[content["what"], content["device"]] = content
    last = len(order)

    def place(content: dict[str, Any]) -> tuple[int, str, str]:
        name = content["what"]
        return order.index(name) if name in order else last, name, content["device"]

    return sorted(by_name.values(), key=place)


def _read(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        list(_rows(content))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is no result of a benchmark ({reason}): move it away") from error
    return content


def table(records: Iterable[dict[str, Any]]) -> str:
    """Return all findings of these records as one Markdown table.

    A record's date and machine stand beside its first finding. That date is when the numbers were measured: code that
    is younger may have others.
    """
    return "\n".join([*HEAD, *(row for each in records for row in _rows(each))])


def _rows(content: dict[str, Any]) -> Iterable[str]:
    name, measured = f"`{content['what']}`", _measured(content)
    for each in content["findings"]:
        what = each["what"].replace("|", r"\|")
        yield f"| {name} | {what} | {_number(each)} | {_bar(each)} | {measured} |"
        name = measured = ""


def _measured(content: dict[str, Any]) -> str:
    kind, device = content["device"].split(": ", 1)
    where = f"{content['cpu']['cores']} cores of {device}" if kind == "cpu" else device
    return f"{content['date']}, {where}, PyTorch {content['torch']}"


def _number(finding: dict[str, Any]) -> str:
    number, unit = finding["number"], finding["unit"]
    spread = f" ± {finding['noise']:.3f}" if finding["noise"] else ""
    if unit == "×":
        return f"{number:.3f}{spread} ×"
    return f"{number:,.0f} {unit}" if number >= 100 else f"{number:.3g} {unit}"


def _bar(finding: dict[str, Any]) -> str:
    bar = finding["bar"]
    if bar is None:
        return ""
    if not finding["met"]:
        return f"{bar:g}, **missed**"
    return f"{bar:g}" if finding["number"] <= bar else f"{bar:g}, met within ±"


def put_into(file: Path, text: str) -> None:
    """Replace what stands between the two marks of a file.

    Raises:
        ValueError: if a mark is missing.
    """
    old = file.read_text(encoding="utf-8")
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{file} must have a line {BEGIN.strip()} and, below it, a line {END.strip()}")
    file.write_text(before + begin + text + "\n" + end + after, encoding="utf-8")
