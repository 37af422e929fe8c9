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
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import click

from amp_lab.course.pages.source import SourceError
from tools.execute import BuildError, execute, short
from tools.notebook import Notebook, blank_notebook, dump, solved_notebook

ROOT = Path(__file__).resolve().parent.parent

_SOURCE_NAME = re.compile(r"\d\d_[a-z0-9_]+")


# --- Sources ---


def sources(root: Path) -> dict[str, Path]:
    """Return the lesson sources of a checkout by slug, in course order; it is an error if there are none."""
    found = {path.stem: path for path in sorted((root / "solutions").glob("*.py"))}
    for slug, path in found.items():
        if not _SOURCE_NAME.fullmatch(slug):
            raise BuildError(f"{short(path, root)}: not a lesson's name; call it solutions/NN_slug.py")
    for one, next_one in pairwise(found):
        if one[:2] == next_one[:2]:
            raise BuildError(
                f"solutions/: {one}.py and {next_one}.py are both lesson {one[:2]}; renumber one"
            )
    if not found:
        raise BuildError(f"no lesson source in {root / 'solutions'}; each is called NN_slug.py")
    return found


def digest_of(root: Path, path: Path) -> str:
    """Return a digest of what a lesson's outputs depend on: its source, amp_lab and the locked packages."""
    lock = root / "requirements.lock"
    if not lock.is_file():
        raise BuildError(f"{lock} is missing; restore it with git")
    package = (each for each in (root / "amp_lab").rglob("*") if _belongs(each, root))
    whole = hashlib.sha256()
    for each in (path, lock, *sorted(package)):
        content = hashlib.sha256(each.read_bytes()).hexdigest()
        whole.update(f"{short(each, root)} {content}\n".encode())
    return whole.hexdigest()


def _belongs(path: Path, root: Path) -> bool:
    """Tell whether a file is code or data of amp_lab, and not what editors and checkpoints leave beside them."""
    hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
    return path.suffix in (".py", ".json") and path.is_file() and not hidden


# --- What is stale ---


def drift(root: Path, slugs: Iterable[str] | None = None) -> list[str]:
    """Name each notebook that is not what its source gives, or that has no source. Executes nothing."""
    found: list[str] = []
    known = sources(root)
    for slug in known if slugs is None else slugs:
        try:
            found += _drift_of(root, known[slug])
        except (SourceError, BuildError) as error:
            found.append(str(error))
    return found + orphans(root)


def _drift_of(root: Path, path: Path) -> Iterator[str]:
    blank, executed = _targets(root, path.stem)
    with _file_errors_named(path, root):
        text = path.read_text(encoding="utf-8-sig")
        if not blank.is_file():
            yield f"{short(blank, root)} is missing"
        elif blank.read_bytes() != dump(blank_notebook(text, short(path, root))):
            yield f"{short(blank, root)} differs from {short(path, root)}"
        if not executed.is_file():
            yield f"{short(executed, root)} is missing"
        elif not is_current(executed, solved_notebook(text, short(path, root), digest_of(root, path))):
            yield f"{short(executed, root)} was not run on today's source, amp_lab and requirements.lock"


def orphans(root: Path) -> list[str]:
    """Name each notebook that no source stands behind."""
    known = sources(root)
    notebooks = (
        path for folder in ("notebooks", "solutions") for path in sorted((root / folder).glob("*.ipynb"))
    )
    return [
        f"{short(path, root)} has no source solutions/{path.stem}.py; delete it, or restore that"
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
    blank, executed = _targets(root, slug)
    done = []
    with _file_errors_named(path, root):
        text = path.read_text(encoding="utf-8-sig")
        made = dump(blank_notebook(text, short(path, root)))
        if not blank.is_file() or blank.read_bytes() != made:
            write(blank, made)
            done.append("blank written")
        wanted = solved_notebook(text, short(path, root), digest_of(root, path))
        if force or not is_current(executed, wanted):
            start = time.monotonic()
            write(executed, execute(wanted, text, path, root))
            done.append(f"executed in {time.monotonic() - start:.0f} s")
    return ", ".join(done) or "up to date"


@contextmanager
def _file_errors_named(path: Path, root: Path) -> Iterator[None]:
    """Turn what stops a lesson's files from being read or written into a BuildError: the others go on."""
    lesson = short(path, root)
    try:
        yield
    except UnicodeDecodeError as error:
        raise BuildError(f"{lesson}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    except OSError as error:
        place = error.filename2 or error.filename or "a file"
        raise BuildError(
            f"{lesson}: cannot use {place} ({error.strerror or error}); see what is in the way"
        ) from None


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
