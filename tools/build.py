"""Make the course's notebooks from their sources.

    solutions/NN_slug.py  ->  notebooks/NN_slug.ipynb   what a learner gets: exercises blank, never executed
                          ->  solutions/NN_slug.ipynb   the same lesson with its solutions, executed

A blank is made from its source alone, so `--check` can compare it byte for byte. An executed notebook holds
figures, which differ between machines: it records a digest of everything its outputs depend on, and is run
again when that changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from amp_lab.course import source
from amp_lab.course.source import Cell, SourceError

Notebook = dict[str, Any]

ROOT = Path(__file__).resolve().parent.parent
CELL_TIMEOUT_S = 120
LARGEST_BYTES = 500_000
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

_SOURCE_NAME = re.compile(r"\d\d_[a-z0-9_]+")
# How CPython writes an object without a repr of its own, and a bare address as Linux hands them out.
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}|\b0x7f[0-9a-f]{10}\b")


class BuildError(Exception):
    """A lesson cannot be built; the message names it and says what to do."""


# --- From source to notebook ---


def sources(root: Path) -> dict[str, Path]:
    """Return the lesson sources of a checkout by slug, in course order; it is an error if there are none."""
    found = {path.stem: path for path in sorted((root / "solutions").glob("*.py"))}
    for slug, path in found.items():
        if not _SOURCE_NAME.fullmatch(slug):
            raise BuildError(f"{_short(path, root)}: not a lesson's name; call it solutions/NN_slug.py")
    if not found:
        raise BuildError(f"no lesson source in {root / 'solutions'}; each is called NN_slug.py")
    return found


def blank_notebook(text: str, path: str | Path) -> Notebook:
    """Return the learner's notebook of a lesson: stubs in place of solutions, no outputs, no counts."""
    return _notebook(source.cells(source.blank(text, path)), _cell_ids(text, path), {})


def solved_notebook(text: str, path: str | Path, digest: str) -> Notebook:
    """Return the notebook of a lesson with its solutions, not yet executed. Cells have the blank's ids."""
    solved = source.cells(source.solved(text, path))
    return _notebook(solved, _cell_ids(text, path), {"amp_lab": {"digest": digest}})


def dump(notebook: Notebook) -> bytes:
    """Return a notebook's file, written as nbformat writes it."""
    return (json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n").encode()


def digest_of(root: Path, path: Path) -> str:
    """Return a digest of what a lesson's outputs depend on: its source, amp_lab and the locked packages."""
    lock = root / "requirements.lock"
    if not lock.is_file():
        raise BuildError(f"{lock} is missing; restore it with git")
    package = (
        each for each in (root / "amp_lab").rglob("*") if each.is_file() and not _made_by_tools(each, root)
    )
    whole = hashlib.sha256()
    for each in (path, lock, *sorted(package)):
        content = hashlib.sha256(each.read_bytes()).hexdigest()
        whole.update(f"{_short(each, root)} {content}\n".encode())
    return whole.hexdigest()


def _made_by_tools(path: Path, root: Path) -> bool:
    return any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(root).parts)


def _short(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix()


def _cell_ids(text: str, path: str | Path) -> list[str]:
    """Name a check cell after its exercise and every other cell after what it says: ids outlive a rebuild."""
    checks = source.read(text, path).checks
    seen: Counter[str] = Counter()
    ids = []
    for index, cell in enumerate(source.cells(source.blank(text, path))):
        if index in checks:
            ids.append(source.check_cell_id(checks[index]))
            continue
        content = hashlib.sha256(f"{cell.kind}\n{cell.source}".encode()).hexdigest()[:8]
        seen[content] += 1
        ids.append(f"{content}-{seen[content]}")
    return ids


def _notebook(cells: Iterable[Cell], ids: Iterable[str], metadata: Mapping[str, Any]) -> Notebook:
    return {
        "cells": [_cell(cell, cell_id) for cell, cell_id in zip(cells, ids, strict=True)],
        "metadata": {
            **metadata,
            "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(cell: Cell, cell_id: str) -> dict[str, Any]:
    metadata = {"tags": list(cell.tags), "reason": cell.reason} if cell.tags else {}
    common = {"cell_type": cell.kind, "id": cell_id, "metadata": metadata}
    text = cell.source.splitlines(keepends=True)
    if cell.kind == "markdown":
        return {**common, "source": text}
    return {**common, "execution_count": None, "outputs": [], "source": text}


# --- Executing ---


def execute(notebook: Notebook, text: str, path: Path, root: Path) -> bytes:
    """Run a lesson in its folder, with this Python and this checkout's amp_lab; return the notebook's file.

    `text` and `path` are the lesson's source, for the messages. Raises BuildError if a cell fails, writes to
    stderr or shows something that only this machine would show.
    """
    # Imported here because they take seconds, and blanks and `--check` need none of them.
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    lines = [cell.first for cell in source.read(text, path).cells]
    at = 0

    def remember(cell: Any, cell_index: int) -> None:
        nonlocal at
        at = cell_index

    node = nbformat.reads(dump(notebook).decode(), as_version=4)  # type: ignore[no-untyped-call]
    client = NotebookClient(
        node,
        km=_kernel_manager(),
        timeout=CELL_TIMEOUT_S,
        record_timing=False,
        store_widget_state=False,
        on_cell_execute=remember,
        # ipykernel warns that it talks over TCP, which nobody who builds notebooks can act upon.
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute(cleanup_kc=True, env=_environment(root))
    except CellExecutionError as error:
        raise _failed(path, root, at, lines, f"{error.ename}: {error.evalue}") from None
    except CellTimeoutError:
        raise _failed(path, root, at, lines, f"it ran for more than {CELL_TIMEOUT_S} seconds") from None
    except DeadKernelError:
        raise _failed(path, root, at, lines, "the kernel died") from None
    node.metadata = notebook["metadata"]  # The kernel has put its own version of Python there.
    for index, cell in enumerate(node.cells):
        if cell.cell_type == "code":
            cell.outputs = tidy(cell.outputs)
            for fault in faults(cell.outputs, root):
                raise _failed(path, root, index, lines, fault)
    data = f"{nbformat.writes(node)}\n".encode()  # type: ignore[no-untyped-call]
    if len(data) > LARGEST_BYTES:
        raise BuildError(
            f"{_short(path, root)}: the executed notebook has {len(data):,} bytes; make figures smaller"
        )
    return data


def _environment(root: Path) -> dict[str, str]:
    python_path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    # Threads that spin while they wait for each other make a small network's steps 20 times slower as soon as
    # anything else runs on the same cores.
    return {"OMP_WAIT_POLICY": "passive", **os.environ, "PYTHONPATH": python_path}


def _kernel_manager() -> Any:
    """Return a manager of kernels of this Python, whatever kernelspec called python3 a user has installed."""
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager

    class ThisPython(KernelSpecManager):
        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            return KernelSpec(**get_kernel_dict())

    return AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisPython())


def _failed(path: Path, root: Path, index: int, lines: list[int], message: str) -> BuildError:
    shown = "\n    ".join(message.strip().splitlines()[:6])
    return BuildError(f"{_short(path, root)}:{lines[index]}: cell {index + 1} failed: {shown}")


def tidy(outputs: list[Any]) -> list[Any]:
    """Return a cell's outputs as they are stored: the same for the same results.

    A stream arrives in pieces that depend on timing: neighbours are joined. A widget's view names at random
    a model that is gone with the kernel: what stands beside it, such as a picture, is kept.
    """
    kept: list[Any] = []
    for output in outputs:
        before = kept[-1] if kept else None
        if output["output_type"] == "stream":
            if before and before["output_type"] == "stream" and before["name"] == output["name"]:
                before["text"] += output["text"]
                continue
        elif "data" in output:
            output["data"].pop(WIDGET_VIEW, None)
            if not output["data"]:
                continue
        kept.append(output)
    return kept


def faults(outputs: Iterable[Mapping[str, Any]], root: Path) -> list[str]:
    """Say what a reader on another machine must not see in a cell's outputs."""
    found = []
    for output in outputs:
        if output.get("name") == "stderr":
            text = "".join(output["text"]).strip()  # A stored notebook has a list of lines.
            found.append(f"it writes to stderr, which a learner would see: {text}")
        for text in _texts(output):
            if address := _ADDRESS.search(text):
                found.append(f"its output holds a memory address: {address[0]}")
            found += [
                f"its output holds a path of this machine: {place}" for place in _local(root) if place in text
            ]
    return found


def _texts(output: Mapping[str, Any]) -> list[str]:
    shown = [value for kind, value in output.get("data", {}).items() if not kind.startswith("image/")]
    return [str(value) for value in (output.get("text", ""), *shown)]


def _local(root: Path) -> list[str]:
    """Return how paths of this machine begin; a home directory of / (as containers have) says nothing."""
    places = {root, Path(sys.prefix), Path.home(), Path(tempfile.gettempdir())}
    return [str(root), *sorted(f"{place}/" for place in places if place != place.parent)]


# --- What is stale ---


def drift(root: Path, slugs: Iterable[str] | None = None) -> list[str]:
    """Name each notebook that is not what its source gives, or that has no source. Executes nothing."""
    found = []
    known = sources(root)
    for slug in known if slugs is None else slugs:
        path = known[slug]
        text = path.read_text(encoding="utf-8")
        blank, executed = _targets(root, slug)
        if not blank.is_file():
            found.append(f"{_short(blank, root)} is missing")
        elif blank.read_bytes() != dump(blank_notebook(text, _short(path, root))):
            found.append(f"{_short(blank, root)} differs from {_short(path, root)}")
        if not executed.is_file():
            found.append(f"{_short(executed, root)} is missing")
        elif not is_current(executed, solved_notebook(text, _short(path, root), digest_of(root, path))):
            found.append(
                f"{_short(executed, root)} was not run on today's source, amp_lab and requirements.lock"
            )
    return found + orphans(root)


def orphans(root: Path) -> list[str]:
    """Name each notebook that no source stands behind."""
    known = sources(root)
    notebooks = (
        path for folder in ("notebooks", "solutions") for path in sorted((root / folder).glob("*.ipynb"))
    )
    return [
        f"{_short(path, root)} has no source solutions/{path.stem}.py; delete it, or restore that"
        for path in notebooks
        if path.stem not in known
    ]


def is_current(executed: Path, wanted: Notebook) -> bool:
    """Tell whether a stored notebook was made by executing this one, whatever its outputs say."""
    try:
        stored = json.loads(executed.read_text(encoding="utf-8"))
        for cell in stored["cells"]:
            if cell["cell_type"] == "code":
                if cell["execution_count"] is None:
                    return False
                cell.update(execution_count=None, outputs=[])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return bool(stored == wanted)


def _targets(root: Path, slug: str) -> tuple[Path, Path]:
    return root / "notebooks" / f"{slug}.ipynb", root / "solutions" / f"{slug}.ipynb"


# --- Building ---


def build(root: Path, slug: str, *, force: bool = False) -> str:
    """Build both notebooks of a lesson, and return in words what was done.

    A notebook that cannot be built anew stays as it was. Raises SourceError and BuildError.
    """
    path = sources(root)[slug]
    text = path.read_text(encoding="utf-8")
    blank, executed = _targets(root, slug)
    done = []
    made = dump(blank_notebook(text, _short(path, root)))
    if not blank.is_file() or blank.read_bytes() != made:
        write(blank, made)
        done.append("blank written")
    wanted = solved_notebook(text, _short(path, root), digest_of(root, path))
    if force or not is_current(executed, wanted):
        start = time.monotonic()
        write(executed, execute(wanted, text, path, root))
        done.append(f"executed in {time.monotonic() - start:.0f} s")
    return ", ".join(done) or "up to date"


def write(path: Path, data: bytes) -> None:
    """Replace a file in one step, so that whoever reads it sees the old one or the new one."""
    path.parent.mkdir(exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        scratch.write_bytes(data)
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)


@click.command()
@click.argument("lessons", nargs=-1, metavar="[NN_slug]...")
@click.option(
    "--force", is_flag=True, envvar="FORCE", help="Execute also what has not changed (or set FORCE=1)."
)
@click.option(
    "--check", is_flag=True, help="Change nothing; name what is stale and exit with 1 if anything is."
)
@click.option(
    "--root", default=ROOT, type=click.Path(exists=True, file_okay=False, path_type=Path), hidden=True
)
def main(lessons: tuple[str, ...], force: bool, check: bool, root: Path) -> None:
    """Build the notebooks of the given lessons, or of all, from solutions/NN_slug.py."""
    root = root.resolve()
    try:
        known = sources(root)
        unknown = [slug for slug in lessons if slug not in known]
        if unknown:
            raise BuildError(f"no lesson is called {', '.join(unknown)}; there are {', '.join(known)}")
        problems = drift(root, lessons or None) if check else _build_all(root, lessons or tuple(known), force)
    except (SourceError, BuildError) as error:
        raise click.ClickException(str(error)) from None
    if problems:
        advice = "\nrun `make build`" if check else ""
        raise click.ClickException("\n".join(problems) + advice)


def _build_all(root: Path, slugs: Iterable[str], force: bool) -> list[str]:
    problems = []
    for slug in slugs:
        try:
            click.echo(f"{slug}: {build(root, slug, force=force)}")
        except (SourceError, BuildError) as error:
            click.echo(f"{slug}: failed")
            problems.append(str(error))
    return problems + orphans(root)


if __name__ == "__main__":
    main()
