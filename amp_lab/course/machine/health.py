"""What `amp-lab doctor` looks at: one function a question, each returns findings and changes nothing.

A finding is "ok", a "note" (worth knowing, nothing is broken) or a "problem" with what to do about it. Nothing here
may depend on what it examines: packages are looked up, not imported, and PyTorch is tried in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from amp_lab.course import catalog
from amp_lab.course.learner import disk as disk_files
from amp_lab.course.learner import updating, workspace
from amp_lab.course.machine import server

if TYPE_CHECKING:
    from packaging.requirements import Requirement

OLDEST, NEWEST = (3, 11), (3, 14)  # as in tools/setup.sh
MODULES = ("jupyterlab", "ipykernel", "ipywidgets", "nbval")
_SET_UP = "run `make lab` in the checkout"
_LETTERS = "×−–—’✓"
_FEW_BYTES = 200e6
_LIMIT_S = 120.0  # the first import after an installation compiles everything
_ASK_TORCH = (
    "import json, torch; from amp_lab import describe_device; report = describe_device(); "
    "print(json.dumps([torch.__version__, report.device, report.name]))"
)
_ASK_KERNEL = (
    "import json; from jupyter_client.kernelspec import KernelSpecManager; "
    "spec = KernelSpecManager().get_kernel_spec('python3'); "
    "print(json.dumps([spec.argv[0], spec.resource_dir]))"
)


class Finding(NamedTuple):
    """One thing that was looked at: `said` is what was seen, `advice` what to do about it."""

    kind: Literal["ok", "note", "problem"]
    what: str
    said: str
    advice: str = ""


def examine(root: Path | None) -> Iterator[Finding]:
    """Ask everything; `root` is the course's checkout, None if only the helpers are installed."""
    yield python(sys.version_info[:3])
    yield environment(root)
    yield from packages(root)
    yield jupyter()
    yield kernel()
    yield pytorch()
    if root is not None:
        for question in (writable, disk, course, copies, records, left_behind):
            yield from _asked(question, root)
    yield time_limits()
    yield letters(sys.stdout.encoding)


def _asked(question: Callable[[Path], Finding | Iterator[Finding]], root: Path) -> Iterator[Finding]:
    """Put a question about the checkout; that the system refuses even to look is an answer, too."""
    try:
        answer = question(root)
        yield from (answer,) if isinstance(answer, Finding) else answer
    except OSError as error:
        yield Finding("problem", question.__name__, *disk_files.in_words(error))


def python(version: Sequence[int]) -> Finding:
    """Can this Python run the course?"""
    text = ".".join(map(str, version))
    if tuple(version[:2]) < OLDEST:
        return Finding(
            "problem", "Python", f"{text} is too old", "install Python 3.11 to 3.14, then run `make lab`"
        )
    if tuple(version[:2]) > NEWEST:
        return Finding("note", "Python", f"{text} is newer than 3.14, the last that was tried")
    return Finding("ok", "Python", text)


def environment(root: Path | None) -> Finding:
    """Which environment is this, and is it the checkout's own?"""
    if root is None:
        return Finding(
            "note",
            "environment",
            f"{sys.prefix}, with the helpers of AMP Lab alone. The commands lab, check, progress, solution, reset and "
            "update need the course's checkout: run `make lab` there, or set AMP_LAB_COURSE=/path/to/the/checkout",
        )
    own = root / ".venv"
    if os.path.realpath(sys.prefix) == os.path.realpath(own):
        return Finding("ok", "environment", str(own))
    return Finding(
        "note",
        "environment",
        f"{sys.prefix} is not the checkout's own ({own}); good if you mean it so, as with conda. "
        "Otherwise run .venv/bin/amp-lab in the checkout",
    )


# --- packages -----------------------------------------------------------------------------------------------


def packages(root: Path | None) -> Iterator[Finding]:
    """Is all that AMP Lab needs installed, and all that this needs in turn, in versions that fit?"""
    again = f"run `make lab` in {root}" if root else "run `pip install --upgrade amp-lab`"
    if importlib.util.find_spec("packaging") is None:
        yield Finding("problem", "packages", "packaging is missing", again)
        return
    try:
        wrong, found = _unmet(_needed(root))
        pins = _pins(root) if root else {}
    except (OSError, ValueError, KeyError) as error:
        yield Finding("problem", "packages", f"cannot read what is needed: {error}", "get the checkout again")
        return
    for sentence in wrong:
        yield Finding("problem", "packages", sentence, again)
    others = [
        f"{name} {found[name]} (not {pin})" for name, pin in pins.items() if found.get(name, pin) != pin
    ]
    if others and not wrong:
        shown = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        tested = (
            "other versions than the tested ones in requirements.lock, though in the range that should work"
        )
        yield Finding("note", "packages", f"{tested}: {shown}")
    elif not wrong:
        tested = ", as tested" if root else ""
        yield Finding("ok", "packages", f"{len(found)} are there{tested}")


def _needed(root: Path | None) -> list[str]:
    """Return what AMP Lab asks for: as the checkout says, or else as the installed package says."""
    if root is None:
        return [each for each in metadata.requires("amp-lab") or () if "extra ==" not in each]
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    return [str(each) for each in project["dependencies"]]


def _pins(root: Path) -> dict[str, str]:
    lines = re.findall(
        r"^([\w.-]+)==([^\s;]+)", (root / "requirements.lock").read_text("utf-8"), re.MULTILINE
    )
    return {_canonical(name): pin for name, pin in lines}


def _unmet(needed: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Follow requirements to the end. Return a sentence for each that is not met, and what was found."""
    from packaging.requirements import Requirement

    wrong: list[str] = []
    found: dict[str, str] = {}
    queue = [(Requirement(text), "AMP Lab") for text in needed]
    seen = set()
    while queue:
        requirement, by = queue.pop()
        name = _canonical(requirement.name)
        if (key := (name, str(requirement.specifier), frozenset(requirement.extras))) in seen:
            continue
        seen.add(key)
        try:
            distribution = metadata.distribution(requirement.name)
            version = distribution.version
        except (metadata.PackageNotFoundError, KeyError, TypeError):
            wrong.append(f"{requirement.name} is missing; {by} needs it")
            continue
        # `2.13.0+cpu` is 2.13.0 for the CPU.
        found[name] = str(version).partition("+")[0]
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is {version}; {by} needs {requirement.specifier}")
        queue += [(each, name) for each in _required_by(distribution, requirement)]
    return sorted(wrong), found


def _required_by(distribution: metadata.Distribution, requirement: Requirement) -> Iterator[Requirement]:
    from packaging.requirements import InvalidRequirement, Requirement

    for text in distribution.requires or ():
        try:
            each = Requirement(text)
        except InvalidRequirement:
            continue  # of another time; pip reads it, or nobody does
        extras = requirement.extras or {""}
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in extras):
            yield each


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


# --- Jupyter and PyTorch ------------------------------------------------------------------------------------


def jupyter() -> Finding:
    """Are the parts of Jupyter there that pages need?"""
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    if missing:
        return Finding(
            "problem",
            "Jupyter",
            f"no {', '.join(missing)} in {sys.executable}",
            "run `make lab` in the checkout",
        )
    return Finding("ok", "Jupyter", ", ".join(MODULES))


def kernel() -> Finding:
    """Do the course's pages run on this very Python?"""
    answer, fault = _ask(_ASK_KERNEL, 60.0, server.environment(os.environ))
    if fault:
        return Finding("problem", "kernel", f"no kernel python3: {fault}", _SET_UP)
    program, folder = answer
    # By these names Jupyter means the Python that it runs in itself.
    if program in ("python", "python3", f"python{sys.version_info[0]}.{sys.version_info[1]}"):
        return Finding("ok", "kernel", f"python3 runs {sys.executable}")
    if os.path.abspath(program) == os.path.abspath(sys.executable):
        return Finding("ok", "kernel", f"python3 runs {program}")
    return Finding(
        "problem",
        "kernel",
        f"python3 runs {program}, not {sys.executable}",
        f"remove {Path(folder) / 'kernel.json'} or rename that folder",
    )


def pytorch(limit_s: float = _LIMIT_S) -> Finding:
    """Does PyTorch load, and what does it find here?"""
    answer, fault = _ask(_ASK_TORCH, limit_s, dict(os.environ))
    if fault:
        return Finding(
            "problem",
            "PyTorch",
            fault,
            "run `make lab` in the checkout; if that does not help, remove .venv first",
        )
    version, device, name = answer
    return Finding("ok", "PyTorch", f"{version} on {device} ({name})")


def _ask(script: str, limit_s: float, environment: Mapping[str, str]) -> tuple[Any, str]:
    """Run a script in a process of its own; return what its last line says, as JSON, or what went wrong."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", script],
            env={**environment, "PYTHONPATH": os.pathsep.join(_import_path())},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {limit_s:.0f} s"
    except OSError as error:
        return None, f"{sys.executable} does not run: {error.strerror}"
    if done.returncode < 0:
        return None, f"it died of {signal.Signals(-done.returncode).name}"
    try:
        return json.loads(done.stdout.strip().rpartition("\n")[2]), ""
    except ValueError:
        return None, done.stderr.strip().rpartition("\n")[
            2
        ] or f"it ended with status {done.returncode}, without a word"


def _import_path() -> list[str]:
    """Return what the process needs to find this very amp_lab, beside what the user set."""
    return [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]


# --- the workspace ------------------------------------------------------------------------------------------


def writable(root: Path) -> Finding:
    """Can work be saved?"""
    work = root / "work"
    folder = work if os.path.lexists(work) else root
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        advice = (
            disk_files.in_words(error).advice
            or "make the folder writable, or move the checkout to one that is"
        )
        return Finding("problem", "work/", f"nothing can be saved in {folder}: {error.strerror}", advice)
    return Finding(
        "ok", "work/", str(work) if folder == work else f"not there yet; `amp-lab lab` makes it in {root}"
    )


def disk(root: Path) -> Finding:
    """Is there room?"""
    free = shutil.disk_usage(root).free
    said = f"{free / 1e9:.1f} GB are free"
    if free < _FEW_BYTES:
        return Finding("problem", "disk", said, "make room: JupyterLab cannot save on a full disk")
    return Finding("ok", "disk", said)


def copies(root: Path) -> Iterator[Finding]:
    """Can the learner's copies be read, and have they the newest text?"""
    number = 0
    for lesson in catalog.lessons():
        path = root / "work" / f"{lesson.slug}.ipynb"
        if not os.path.lexists(path):
            continue
        number += 1
        if os.path.isfile(path) and not os.access(path, os.W_OK):
            said = f"{path} is read-only: JupyterLab cannot save your work"
            yield Finding("problem", "copies", said, f"make it writable: chmod u+w {path}")
    changed, gone, renamed = updating.news(root)
    for lesson in changed:
        said = (
            f"the course has a new text of lesson {lesson.number}: `amp-lab update {lesson.number}` brings it"
        )
        yield Finding("note", "copies", said)
    for _, said, advice in updating.damaged(root):
        yield Finding("problem", "copies", said, advice)
    for lesson, former in renamed:
        said = f"{former} is {lesson.slug}.ipynb now: `amp-lab update {lesson.number}` brings your work over"
        yield Finding("note", "copies", said)
    for name in gone:
        yield Finding("note", "copies", f"the course does not have {name} any more; your copy stays")
    if number:
        yield Finding("ok", "copies", f"{number} of {len(catalog.lessons())} lessons are in {root / 'work'}")


def course(root: Path) -> Iterator[Finding]:
    """Are the course's own pages there?"""
    lacking = updating.lacking(root)
    for _, said, advice in lacking:
        yield Finding("problem", "course", said, advice)
    if not lacking:
        yield Finding("ok", "course", f"{len(catalog.lessons())} lessons are in {root / 'notebooks'}")


def records(root: Path) -> Iterator[Finding]:
    """Can it be read what was done, and what the copies were made from?"""
    state = root / "work" / ".amp-lab"
    records = [state / name for name in ("origin.json", "progress.jsonl", "lock")]
    for path in (*records, state / "blanks", *workspace.all_kept_blanks(root)):
        try:
            os.listdir(path) if path.name == "blanks" else disk_files.read(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield Finding("problem", "records", *disk_files.in_words(error))


def left_behind(root: Path) -> Iterator[Finding]:
    """Is anything left of programs that were killed?"""
    work = root / "work"
    found = sorted(path.name for pattern in (".amp-lab-check.*", ".*.part") for path in work.glob(pattern))
    if found:
        said = f"left by a program that was killed, unless one runs now: {', '.join(found)}"
        yield Finding("note", "work/", f"{said}. They can be deleted in {work}")


# --- this terminal and system -------------------------------------------------------------------------------


def time_limits(system: Any = signal) -> Finding:
    """Can a check stop an endless loop?"""
    if hasattr(system, "SIGALRM") and hasattr(system, "setitimer"):
        return Finding("ok", "time limits", "a check can stop an endless loop")
    return Finding("note", "time limits", "none here: an endless loop in an exercise needs Kernel, Interrupt")


def letters(encoding: str | None) -> Finding:
    """Can this terminal show what commands print?"""
    try:
        _LETTERS.encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        said = f"this terminal has {encoding}: a few signs are shown as ?; PYTHONUTF8=1 may help"
        return Finding("note", "terminal", said)
    return Finding("ok", "terminal", str(encoding))
