"""The learner's workspace: `work/` in the course's checkout, with copies of the lessons to work in.

Three promises. What a learner wrote is never overwritten: a copy is made only where there is none, and a
reset or an update keeps a dated backup first. A program that is killed leaves whole files or none. Whatever
goes wrong is said in one line, as a `WorkspaceError`.

Notebooks are read and written as plain JSON: importing nbformat would take longer than all that is done here.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from amp_lab.course import catalog
from amp_lab.course.catalog import CourseError
from amp_lab.course.learner import disk
from amp_lab.course.pages import source
from amp_lab.course.pages.cells import NotANotebook, dump, parse, put_back

PARTS_OF_A_CHECKOUT = ("notebooks", "solutions", "pyproject.toml")


class WorkspaceError(CourseError):
    """The workspace cannot be used as asked; the message says why, and what to do, in one line."""


class Copies(NamedTuple):
    """What `copy_blanks` did, as names of files in `work/`: made now, or left alone as they were."""

    made: tuple[str, ...]
    kept: tuple[str, ...]


def checkout() -> Path:
    """Return the folder of the course: `$AMP_LAB_COURSE`, or the one that this package lies in.

    Raises WorkspaceError if there is none, as when only the helpers are installed.
    """
    named = os.environ.get("AMP_LAB_COURSE")
    root = os.path.abspath(os.path.expanduser(named)) if named else str(Path(__file__).resolve().parents[3])
    missing = [part for part in PARTS_OF_A_CHECKOUT if not os.path.exists(os.path.join(root, part))]
    if not missing:
        return Path(root)
    if named:
        raise WorkspaceError(
            f"AMP_LAB_COURSE is {named!r}, but there is no {missing[0]} in that folder: "
            "set it to the folder of the course's checkout"
        )
    raise WorkspaceError(
        "this needs the course's checkout, and only the helpers of AMP Lab are installed here: "
        "run `make lab` in the checkout, or set AMP_LAB_COURSE=/path/to/the/checkout"
    )


def read_text(path: Path) -> str:
    """Return the text of one of the course's files; raises WorkspaceError."""
    with _in_one_line(f"cannot read {path}"):
        return path.read_text(encoding="utf-8", errors="replace")


def solution(exercise_id: str) -> str:
    """Return the code of the course's own solution of an exercise; raises WorkspaceError."""
    path = checkout() / "solutions" / f"{catalog.lesson_of(exercise_id).slug}.py"
    try:
        return source.solution_of(read_text(path), path, exercise_id).strip()
    except (source.SourceError, LookupError) as error:
        # The error begins with the path.
        raise WorkspaceError(
            f"{error}: this is not the course's file as it was; get the checkout again"
        ) from None


def copy_blanks(root: Path) -> Copies:
    """Give the learner a copy of each lesson they have none of; what stands in `work/` is never touched.

    Remembers in `work/.amp-lab/origin.json` the SHA-256 of the blank that each copy was made from, and keeps the
    blank itself in `work/.amp-lab/blanks`: once the course has a new one, an update compares all three.
    """
    made, kept = [], []
    with _workspace(root):
        blanks = sorted((root / "notebooks").glob("*.ipynb"))
        if not blanks:
            raise WorkspaceError(f"there are no lessons in {root / 'notebooks'}: get the checkout again")
        for blank in blanks:
            if _copy(root, blank):
                made.append(blank.name)
            else:
                _catch_up(root, blank)
                kept.append(blank.name)
    return Copies(tuple(made), tuple(kept))


def course_page(root: Path, slug: str) -> bytes:
    """Return the course's blank of a lesson; raises WorkspaceError if it cannot be read."""
    return _blank(root / "notebooks" / f"{slug}.ipynb")


def look(root: Path) -> None:
    """Raise WorkspaceError if there is a `work/` into which nobody can look: a file, or a locked folder."""
    with _in_one_line("cannot look into your pages"), suppress(FileNotFoundError):
        os.listdir(root / "work")


def obstacle(root: Path, slug: str) -> str | None:
    """Say what has the name of a learner's copy without being a file, and what to do; None if nothing has."""
    path = root / "work" / f"{slug}.ipynb"
    if not os.path.lexists(path) or os.path.isfile(path):
        return None
    what = (
        "a folder"
        if os.path.isdir(path)
        else "no ordinary file"
        if os.path.exists(path)
        else "a link to nothing"
    )
    return (
        f"{path} is {what}, where your page should be: rename or remove it, then run `amp-lab lab {slug[:2]}`"
    )


def reset_lesson(root: Path, slug: str) -> Path | None:
    """Start a lesson over. Return where the learner's copy is kept, None if there was no copy."""
    blank = root / "notebooks" / f"{slug}.ipynb"
    with _workspace(root):
        if _copy(root, blank):
            return None
        _need_file(root, slug)
        data = _blank(blank)
        with _remembered(root, blank.name, data):
            return _replace_keeping(root, blank.name, data)


def reset_exercise(root: Path, slug: str, exercise_id: str) -> Path | None:
    """Put the cells of one exercise back as in the blank; returns what `reset_lesson` does.

    Raises WorkspaceError if the copy cannot be read as a notebook; `reset_lesson` can still be used then.
    """
    blank = root / "notebooks" / f"{slug}.ipynb"
    with _workspace(root):
        if _copy(root, blank):
            return None
        _need_file(root, slug)
        renewed = _with_exercise_back(root / "work" / blank.name, blank, exercise_id)
        return _replace_keeping(root, blank.name, renewed)


def rewrite(root: Path, slug: str, make: Callable[[bytes, bytes], bytes | None]) -> Path | None:
    """Replace a copy by `make(copy, blank)`, which from now on comes from that blank. Return where it is kept.

    None if nothing had to be kept: nothing changed, or the copy was a blank of the course, byte for byte. Where
    `make` returns None, the copy and the record of where it came from stay as they are.
    """
    blank = root / "notebooks" / f"{slug}.ipynb"
    with _workspace(root):
        _need_file(root, slug)
        data = _blank(blank)
        before = disk.read(root / "work" / blank.name)
        after = make(before, data)
        if after is None:
            return None
        with _remembered(root, blank.name, data):
            if after == before:
                return None
            return _replace_keeping(root, blank.name, after, needed=before not in kept_blanks(root, slug))


def make_from(root: Path, slug: str, former: str, make: Callable[[bytes, bytes], bytes]) -> None:
    """Make a copy of a lesson, `make(page, blank)`, from the page called `former` in `work/`, which stays as it is.

    Raises WorkspaceError if there is a copy already.
    """
    path = root / "work" / f"{slug}.ipynb"
    with _workspace(root):
        blank = _blank(root / "notebooks" / path.name)
        page = make(disk.read(root / "work" / former), blank)
        with _remembered(root, path.name, blank, without=former):
            _create(path, page)


def origins(root: Path) -> dict[str, str]:
    """Map the name of each copy to the SHA-256 of the blank that it was made from, as far as that can be read."""
    with suppress(OSError):
        return _read_record(root / "work" / ".amp-lab" / "origin.json") or {}
    return {}


def kept_blanks(root: Path, slug: str) -> list[bytes]:
    """Return the blanks that copies of a lesson were ever made from; one that is damaged is not among them."""
    found = []
    for path in all_kept_blanks(root, slug):
        with suppress(OSError):
            data = disk.read(path)
            if path.name == _blank_name(slug, data):
                found.append(data)
    return found


def all_kept_blanks(root: Path, slug: str = "*") -> list[Path]:
    """Return the files of the blanks that are kept, of one lesson or of all."""
    folder = _blanks(root)
    with suppress(OSError):
        return sorted(folder / name for name in os.listdir(folder) if fnmatch(name, f"{slug}-*.ipynb"))
    return []


def forget(root: Path, names: Sequence[str]) -> None:
    """Take copies out of the record, because the course has no such lessons any more; the copies stay."""
    path = root / "work" / ".amp-lab" / "origin.json"
    with _workspace(root):
        rest = {name: digest for name, digest in _origins(path).items() if name not in names}
        with _written(path, _record(rest)) as part:
            os.replace(part, path)


def _with_exercise_back(copy: Path, blank: Path, exercise_id: str) -> bytes:
    from amp_lab.course.pages import merging

    try:
        notebook = parse(disk.read(copy))
    except NotANotebook as error:
        raise WorkspaceError(
            f"cannot find one exercise in {copy} ({error}): `amp-lab reset {copy.name[:2]}` starts the whole "
            "lesson over, and keeps this file as a backup"
        ) from None
    try:
        renewed = put_back(notebook, parse(_blank(blank)), exercise_id)
        return dump(merging.without_note(renewed, exercise_id))
    except (NotANotebook, LookupError) as error:
        raise WorkspaceError(f"{blank} is not the course's file ({error}): get the checkout again") from None


# --- the disk -----------------------------------------------------------------------------------------------


@contextmanager
def _in_one_line(doing: str) -> Iterator[None]:
    """Turn what the operating system refuses into a WorkspaceError with advice."""
    try:
        yield
    except OSError as error:
        raise WorkspaceError(f"{doing}: {disk.in_words(error)}") from error


@contextmanager
def _workspace(root: Path) -> Iterator[None]:
    """Make the workspace, let one program at a time into it, and say in one line what goes wrong there."""
    state = root / "work" / ".amp-lab"
    with _in_one_line(f"cannot work in {root / 'work'}"):
        state.mkdir(parents=True, exist_ok=True)
        # What is no file, a named pipe say, refuses to be opened so, instead of waiting for a reader.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(state / "lock", flags, 0o666), "ab") as lock:
            # Some network file systems have no locks. Copies and backups are exclusive by themselves, so only
            # the record of where copies came from could then miss an entry.
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _blank(path: Path) -> bytes:
    try:
        return disk.read(path)
    except OSError as error:
        is_locked = isinstance(error, PermissionError)
        advice = disk.in_words(error).advice if is_locked else "get the checkout again"
        raise WorkspaceError(f"cannot read the course's {path} ({error.strerror}): {advice}") from None


def _need_file(root: Path, slug: str) -> None:
    if found := obstacle(root, slug):
        raise WorkspaceError(found)


def _copy(root: Path, blank: Path) -> bool:
    """Copy a blank into `work/` unless anything has its name there; tell whether a copy was made."""
    copy = root / "work" / blank.name
    if os.path.lexists(copy):
        return False
    data = _blank(blank)
    try:
        with _remembered(root, blank.name, data):
            _create(copy, data)
    except FileExistsError:  # it appeared in between
        return False
    return True


def _replace_keeping(root: Path, name: str, data: bytes, needed: bool = True) -> Path | None:
    """Replace the learner's copy, keep it under a dated name in `work/backups` if `needed`, and return that name.

    The backup is a second name of the same file rather than another file: so whatever JupyterLab saves until
    the moment of the replacement is in it, too. A link stays a link: what it points to is kept and replaced.
    """
    copy = Path(os.path.realpath(root / "work" / name))
    folder = root / "work" / "backups"
    backup = None
    with _written(copy, data) as part:
        if needed:
            folder.mkdir(exist_ok=True)
            backup = _give_free_name(copy, folder / name)
        os.replace(part, copy)
    return backup


def _give_free_name(existing: Path, path: Path) -> Path:
    for candidate in _dated(path):
        with suppress(FileExistsError):
            _give_name(existing, candidate)
            break
    return candidate


def _dated(path: Path) -> Iterator[Path]:
    """Yield `00_start_here_2027-01-31_18-05-09.ipynb`, then with `_2`, `_3` … for more in the same second."""
    stem = f"{path.stem}_{_now()}"
    for number in itertools.count(1):
        yield path.with_name(f"{stem}{path.suffix}" if number == 1 else f"{stem}_{number}{path.suffix}")


def _now() -> str:
    return f"{datetime.now():%Y-%m-%d_%H-%M-%S}"


def _create(path: Path, data: bytes) -> None:
    """Write a new file, all or nothing; FileExistsError if anything has the name, even a dangling link."""
    with _written(path, data) as part:
        _give_name(part, path)


@contextmanager
def _written(path: Path, data: bytes) -> Iterator[Path]:
    """Write `data` into a hidden file beside `path`, wait until the disk has it, and clean up afterwards."""
    part = path.with_name(f".{path.name}.{os.urandom(4).hex()}.part")
    try:
        _write_new(part, data)
        yield part
    finally:
        part.unlink(missing_ok=True)


def _give_name(existing: Path, path: Path) -> None:
    """Give a file one more name; raises FileExistsError rather than take a name from anything."""
    try:
        os.link(existing, path)
    except FileExistsError:
        raise
    except OSError:
        # No second names on this file system, or not across two. Only here could a kill leave half a file.
        _write_new(path, disk.read(existing))


def _write_new(path: Path, data: bytes) -> None:
    with open(path, "xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink()
            raise


# --- where copies came from ---------------------------------------------------------------------------------


@contextmanager
def _remembered(root: Path, name: str, blank: bytes, without: str = "") -> Iterator[None]:
    """Write the new record, and put it in force once the copy is made: what cannot be written stops the copy."""
    path = root / "work" / ".amp-lab" / "origin.json"
    _keep_blank(root, Path(name).stem, blank)
    others = {each: digest for each, digest in _origins(path).items() if each != without}
    with _written(path, _record({**others, name: hashlib.sha256(blank).hexdigest()})) as part:
        yield
        os.replace(part, path)


def _catch_up(root: Path, blank: Path) -> None:
    """Keep the blank of a copy that was made by a version of AMP Lab that did not keep blanks, while it is there."""
    data = _blank(blank)
    if origins(root).get(blank.name) == hashlib.sha256(data).hexdigest():
        _keep_blank(root, blank.stem, data)


def _keep_blank(root: Path, slug: str, data: bytes) -> None:
    path = _blanks(root) / _blank_name(slug, data)
    path.parent.mkdir(exist_ok=True)
    if not path.is_file() or disk.read(path) != data:
        with _written(path, data) as part:
            os.replace(part, path)


def _blanks(root: Path) -> Path:
    return root / "work" / ".amp-lab" / "blanks"


def _blank_name(slug: str, data: bytes) -> str:
    return f"{slug}-{hashlib.sha256(data).hexdigest()}.ipynb"


def _record(origins: dict[str, str]) -> bytes:
    return (json.dumps(origins, indent=1) + "\n").encode()


def _origins(path: Path) -> dict[str, str]:
    """Read the record; one that is damaged, or somebody else's, is kept aside under a dated name."""
    if not os.path.lexists(path):
        return {}
    found = _read_record(path)
    if found is not None:
        return found
    os.rename(path, next(aside for aside in _dated(path) if not os.path.lexists(aside)))
    return {}


def _read_record(path: Path) -> dict[str, str] | None:
    """Return the record, or None if it is damaged or there is none; raises OSError if nobody may read it."""
    try:
        found = json.loads(disk.read(path))
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.EINVAL):  # no file at all
            return None
        raise
    if isinstance(found, dict) and all(isinstance(digest, str) for digest in found.values()):
        return found
    return None
