"""A log file as a table: CSV, TSV, JSON lines, a list in JSON, a trainer_state.json; each also as .gz."""

from __future__ import annotations

import ast
import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from amp_lab.watching.logs.errors import LogError
from amp_lab.watching.logs.numbers import counted, number

_SEPARATORS: Final = ("\t", ";", ",", "|")
_NUMBERS_OF_PYTHON: Final = re.compile(r"(?<=[:\[,\s])(-?(?:nan|inf))(?=\s*[,}\]])")
# Bytes of text: all of it is held in memory, as cells, in some twenty times as many.
LARGEST: Final = 64 * 2**20
_DEEPEST: Final = 8  # levels of a nested record: what lies deeper is no number of a step


@dataclass
class Table:
    """Cells by row and by column; `lines[i]` is the line of row i in the file, or its number in a JSON list."""

    path: str
    rows: list[dict[str, object]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    in_lines: bool = True

    def add(self, line: int, row: Mapping[str, object]) -> None:
        self.rows.append(dict(row))
        self.lines.append(line)

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in the order in which they first appear."""
        return list(dict.fromkeys(name for row in self.rows for name in row))


def read_log(path: str | Path) -> Table:
    """Read a log.

    Raises:
        LogError: for a file that is not there, is no text, is empty, has no header, or no row.
    """
    text = _text(Path(path))
    if not text.strip():
        raise LogError(f"{path} is empty: nothing was logged, or the run has not flushed its log yet")
    table = Table(str(path))
    first = text.lstrip()[:1]
    if not (first in "[{" and _read_document(text, table)):
        if _looks_like_records(text):
            _read_records(text, table)
        else:
            _read_separated(text, table)
    if not table.rows:
        raise LogError(f"{path} has a header and no row below it: the run has not logged a step yet")
    return table


def _text(path: Path) -> str:
    if path.is_dir():
        inside = [
            each.name for each in sorted(path.iterdir()) if each.suffix in {".csv", ".tsv", ".jsonl", ".json"}
        ]
        hint = f"; name a file in it, such as {inside[0]}" if inside else "; name the log file itself"
        raise LogError(f"{path} is a folder{hint}")
    try:
        data = _bytes(path)
    except FileNotFoundError:
        raise LogError(f"there is no file {path}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise LogError(
            f"{path} is a damaged gzip file: unpack it with `gzip -dc` as far as it goes"
        ) from None
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error.strerror or error}") from None
    return _decoded(data, path)


def _bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(LARGEST + 1)
    if data[:2] == b"\x1f\x8b":
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as unpacked:
            data = unpacked.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise LogError(
            f"{path} holds more than {LARGEST >> 20} MB of text, more than is read: give a part of it, such as what "
            "`head -n 200000` writes, or every 10th row"
        )
    return data


def _decoded(data: bytes, path: Path) -> str:
    wide = data[:2] in (b"\xff\xfe", b"\xfe\xff")  # a redirect of PowerShell
    if not wide and b"\0" in data[:65536]:
        raise LogError(
            f"{path} is binary, not text: export the log as CSV or JSON lines first "
            "(TensorBoard: download the scalars as CSV)"
        )
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError:
        pass
    text = data.decode("latin-1")
    strange = sum(not (letter.isprintable() or letter.isspace()) for letter in text[:4096])
    if strange > 0.02 * min(len(text), 4096):
        raise LogError(f"{path} is binary, not text: export the log as CSV or JSON lines first")
    return text


def _read_document(text: str, table: Table) -> bool:
    """Read one JSON value for the whole file: a list of records, or Hugging Face's trainer_state.json."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return False
    records = whole.get("log_history") if isinstance(whole, dict) else whole
    if isinstance(whole, dict) and records is None:
        lists = {name: each for name, each in whole.items() if isinstance(each, list)}
        if not lists:
            return False  # one line of JSON lines
        records = _from_lists(lists)
    if not isinstance(records, list) or not any(isinstance(each, dict) for each in records):
        raise LogError(f'{table.path} is JSON, but not a list of records such as {{"step": 1, "loss": 2.5}}')
    table.in_lines = False
    for index, record in enumerate(records, 1):
        if isinstance(record, dict):
            table.add(index, _flat(record))
    return True


def _from_lists(lists: Mapping[str, list[object]]) -> list[dict[str, object]]:
    """Turn {"loss": [...], "scale": [...]} into records."""
    longest = max(map(len, lists.values()))
    return [{name: cells[i] for name, cells in lists.items() if i < len(cells)} for i in range(longest)]


def _looks_like_records(text: str) -> bool:
    """Return whether some line holds a record in braces; progress bars may stand around it."""
    return any(_record(line) is not None for _, line in zip(range(500), _lines(text), strict=False))


def _read_records(text: str, table: Table) -> None:
    others = 0
    for line_number, line in enumerate(_lines(text), 1):
        record = _record(line)
        if record is not None:
            table.add(line_number, _flat(record))
        elif "{" in line:
            others += 1
    if others:
        table.notes.append(f"{counted(others, 'line')} with a brace but no whole record left out")


def _lines(text: str) -> Iterable[str]:
    return text.replace("\r\n", "\n").split("\n")


def _record(line: str) -> dict[str, object] | None:
    """Read a record of JSON, or of Python as Hugging Face's Trainer prints it, wherever in the line it stands."""
    begin, end = line.find("{"), line.rfind("}")
    if begin < 0 or end < begin or (begin > 0 and '","' in line):
        return None
    braces = line[begin : end + 1]
    found: object = None
    try:
        found = json.loads(braces)
    except (ValueError, RecursionError):
        try:
            found = ast.literal_eval(_NUMBERS_OF_PYTHON.sub(r"'\1'", braces))
        except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            return None
    return found if isinstance(found, dict) and found else None


def _flat(record: Mapping[Any, object], prefix: str = "", depth: int = 0) -> dict[str, object]:
    """Give nested records names with a slash; lists of one number become that number."""
    flat: dict[str, object] = {}
    for key, value in record.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and depth < _DEEPEST:
            flat |= _flat(value, f"{name}/", depth + 1)
        elif isinstance(value, list) and len(value) == 1:
            flat[name] = value[0]
        else:
            flat[name] = value
    return flat


def _read_separated(text: str, table: Table) -> None:
    rows = _separated(text, table.path)
    header: list[str] = []
    ragged = 0
    for line, cells in rows:
        if not header:
            header = _header(cells, table.path)
        elif [cell.strip() for cell in cells] == header:
            continue  # written again when the run was resumed
        else:
            ragged += len(cells) != len(header)
            table.add(line, dict(zip(header, cells, strict=False)))
    if ragged:
        table.notes.append(
            f"{counted(ragged, 'row')} without exactly the header's {len(header)} cells; what is there was read from "
            "the left"
        )


def _separated(text: str, path: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows that are neither empty nor a comment, each with its line."""
    kept = [line for line in _lines(text) if line.strip() and not line.lstrip().startswith("#")]
    if not kept:
        raise LogError(f"{path} holds comments only")
    separator = max(_SEPARATORS, key=kept[0].count)
    reader = csv.reader(text.replace("\r\n", "\n").split("\n"), delimiter=separator, skipinitialspace=True)
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells) and not cells[0].startswith("#"):
                yield reader.line_num, cells
    except csv.Error as error:
        raise LogError(f"{path}, line {reader.line_num}, is not CSV: {error}") from None


def _header(cells: list[str], path: str) -> list[str]:
    names = [cell.strip() for cell in cells]
    if all(number(name) is not None or not name for name in names):
        raise LogError(
            f"{path} has no header: its first line is {', '.join(names[:4])}; "
            "put a line with the columns' names on top, such as step,loss,scale"
        )
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise LogError(f"{path} has two columns called {twice[0]!r}: give one of them another name")
    return names
