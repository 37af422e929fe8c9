"""Execute a lesson's notebook, and judge its outputs: what only this machine would show must not be stored."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from amp_lab.course.pages import source
from tools.notebook import Notebook, dump

CELL_TIMEOUT_S = 120
LARGEST_BYTES = 500_000
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

# How CPython writes an object without a repr of its own, and a bare address as Linux hands them out.
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]{6,}|\b0x7f[0-9a-f]{10}\b")


class BuildError(Exception):
    """A lesson cannot be built; the message names it and says what to do."""


def short(path: Path, root: Path) -> str:
    """Return a path of a checkout as messages show it: `solutions/04_halves.py`."""
    return path.relative_to(root).as_posix()


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
        # ipykernel warns that it talks over TCP, and complains of a Ctrl+C: nobody can act upon either.
        extra_arguments=["--log-level=CRITICAL"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    # nbclient's stand-in for ipywidgets' Output would swallow what that captures, and sometimes wait for a reply
    # that has come. Without it a captured line is an output of its cell, as it is for nbval.
    client.widget_registry = {}
    try:
        client.execute(cleanup_kc=True, env=_environment(root))
    except Exception as error:
        if hasattr(client, "_async_cleanup_kernel_future"):
            # nbclient takes Ctrl+C over: it stops the kernel, and then fails in one of several ways.
            raise KeyboardInterrupt from None
        if isinstance(error, CellExecutionError):
            raise _failed(path, root, at, lines, f"{error.ename}: {error.evalue}") from None
        if isinstance(error, CellTimeoutError):
            raise _failed(path, root, at, lines, f"it ran for more than {CELL_TIMEOUT_S} seconds") from None
        if isinstance(error, DeadKernelError):
            raise _failed(path, root, at, lines, "the kernel died") from None
        raise
    node.metadata = notebook["metadata"]  # The kernel has put its own version of Python there.
    for index, cell in enumerate(node.cells):
        if cell.cell_type == "code":
            cell.outputs = tidy(cell.outputs)
            for fault in faults(cell.outputs, root):
                raise _failed(path, root, index, lines, fault)
    data = f"{nbformat.writes(node)}\n".encode()  # type: ignore[no-untyped-call]
    if len(data) > LARGEST_BYTES:
        sizes = [len(json.dumps(cell)) for cell in node.cells]
        index = sizes.index(max(sizes))
        raise BuildError(
            f"{short(path, root)}:{lines[index]}: the executed notebook has {len(data):,} bytes, {LARGEST_BYTES:,} "
            f"are allowed; cell {index + 1} is the largest, with {sizes[index]:,}: show less, or a smaller figure"
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
    return BuildError(f"{short(path, root)}:{lines[index]}: cell {index + 1} failed: {shown}")


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
