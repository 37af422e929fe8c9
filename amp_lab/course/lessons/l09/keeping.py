"""Exercise 9.3: a checkpoint that is whole at every moment, and holds everything."""

from __future__ import annotations

import contextlib
import os
import random
import re
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l09.differences import first_difference
from amp_lab.course.lessons.l09.keeping_runs import Parts, draw, make_parts, numbers_of
from amp_lab.course.lessons.l09.strangers import RAN, Hostile, says_gpu
from amp_lab.course.lessons.l09.watching_files import Watched

_ALL = ("model", "optimizer", "scheduler", "scaler")
_SETS = (_ALL, ("model", "average"), ("average",))
_FAILURES: tuple[tuple[Literal["save", "fsync", "replace"], str], ...] = (
    ("save", "when half of the file is written"),
    ("fsync", "in `os.fsync`"),
    ("replace", "in `os.replace`"),
)


@checker("9.3")
def run_file(ask: Ask) -> None:
    """Save and load; then look over the shoulder while an old file is replaced; then let things go wrong."""
    with tempfile.TemporaryDirectory(prefix="amp-lab-") as folder:
        places = _places(Path(folder))
        ask.returned = False
        for number, names in enumerate(_SETS):
            _round_trip(ask, next(places), names, first=number == 0)
        _replaced(ask, next(places))
        for fails, words in _FAILURES:
            _failing(ask, next(places), fails, words)
        _named_alike(ask, next(places), next(places))
        for saved, loaded in ((_ALL[:2], _ALL), (_ALL, _ALL[:3]), (("average",), ("model",))):
            _unlike(ask, next(places), saved, loaded)
        _from_a_gpu(ask, next(places))
        _hostile(ask, next(places))


def _places(folder: Path) -> Iterator[Path]:
    for number in range(100):
        place = folder / str(number)
        place.mkdir()
        yield place / "run.pt"


def _keeper(ask: Ask, path: Path, parts: Parts, *, first: bool = False) -> Any:
    ask.call = "`RunFile(path, parts)`"
    ask.in_words = lambda *_: ask.call
    keeper = ask(path, parts, may_change=True)
    if first:
        ask.returned = False  # its `__init__` is given
    return keeper


def _round_trip(ask: Ask, path: Path, names: tuple[str, ...], *, first: bool) -> None:
    parts = make_parts(1, names)
    keeper = _keeper(ask, path, parts, first=first)
    words = f"a run of {', '.join(names)}"
    ask.call = f"`run_file.save()` ({words})"
    drawn = _save(ask, keeper, parts)
    _expect_file(ask.call, path)
    fresh = make_parts(2, names)
    other = _keeper(ask, path, fresh)
    ask.call = f"`run_file.load()` in new objects ({words})"
    got = ask.run(_load_and_draw, other)
    found = first_difference(numbers_of(fresh), numbers_of(parts))
    if found is not None:
        raise Mistake("part-lost", call=ask.call, **found)
    found = first_difference(got, drawn)
    if found is not None:
        kind = found["place"].strip("`").partition("[")[0]
        raise Mistake(f"{kind}-random-lost", call=ask.call, **found)


def _save(ask: Ask, keeper: Any, parts: Parts) -> dict[str, Any]:
    """Save, expect that this has changed nothing, and return the random numbers that come next."""
    before = numbers_of(parts)
    want, got = ask.run(_draw_save_and_draw, keeper)
    found = first_difference(numbers_of(parts), before) or first_difference(got, want)
    if found is not None:
        raise Mistake("save-disturbs", call=ask.call, **found)
    return got  # type: ignore[no-any-return]


def _draw_save_and_draw(keeper: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the random numbers that would have come next without saving, and those that come next."""
    torch.manual_seed(11)
    random.seed(11)
    torch.rand(5), random.random()
    state = torch.get_rng_state(), random.getstate()
    want = draw()
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    keeper.save()
    return want, draw()


def _load_and_draw(keeper: Any) -> dict[str, Any]:
    torch.manual_seed(12)
    random.seed(12)
    keeper.load()
    return draw()


def _draw_load_and_draw(keeper: Any, drawn: list[dict[str, Any]]) -> None:
    """Add the random numbers that come next without loading, and those that come next, also after an error."""
    for load in (lambda: None, keeper.load):
        torch.manual_seed(12)
        random.seed(12)
        try:
            load()
        finally:
            drawn.append(draw())


def _named_alike(ask: Ask, path: Path, other: Path) -> None:
    """Save and load parts that have the very names under which their code keeps things in the file."""
    ask.run(_keeper(ask, path, make_parts(12, _ALL)).save)
    saved = torch.load(path, weights_only=True, map_location="cpu")
    keys = [each for each in saved if _is_a_name(each)] if isinstance(saved, dict) else []
    names = dict(zip(keys, ("average", "model", "optimizer", "scheduler", "scaler"), strict=False))
    if not names:
        return
    whole, fresh = make_parts(13, tuple(names.values())), make_parts(14, tuple(names.values()))
    parts, loaded = ({name: each[kind] for name, kind in names.items()} for each in (whole, fresh))
    try:
        ask.run(_keeper(ask, other, parts).save)
        ask.run(_load_and_draw, _keeper(ask, other, loaded))
    except Contained as contained:
        if contained.fault != "exception":
            raise
        raise Mistake("names-collide", call=_alike(names), got=f"failed: {_line(contained.error)}") from None
    found = first_difference(numbers_of(loaded), numbers_of(parts))
    if found is not None:
        got = f"gave {found['place']} as {found['got']}, not as {found['want']}"
        raise Mistake("names-collide", call=_alike(names), got=got)


def _is_a_name(key: object) -> bool:
    """Return whether a part could be called that: nobody would call one `__random__`."""
    return isinstance(key, str) and key.isidentifier() and key[0] != "_" and key not in _ALL


def _alike(names: dict[str, str]) -> str:
    return f"a run whose parts are called {', '.join(f'`{each}`' for each in names)}"


def _expect_file(call: str, path: Path) -> None:
    if not path.is_file():
        raise Mistake("no-file", call=call, got="no file")
    try:
        torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        met = re.search(r"GLOBAL (?:\w+\.)*(\w+)", str(error))
        words = f"there is a `{met[1]}` in it" if met else _line(error)
        raise Mistake("pickled-objects", call=call, got=words) from None
    _expect_no_more(call, path)


def _expect_no_more(call: str, path: Path) -> None:
    others = sorted(each.name for each in path.parent.iterdir() if each != path)
    if others:
        raise Mistake("left-over", call=call, got=f"`{others[0]}`")


def _line(error: BaseException | None) -> str:
    words = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip().partition("\n")[0]
    return f"`{textwrap.shorten(f'{type(error).__name__}: {words}', 160, placeholder=' …')}`"


def _replaced(ask: Ask, path: Path) -> None:
    """Save twice, and look at the file at each moment of the second time."""
    keeper = _keeper(ask, path, make_parts(3, _ALL))
    ask.call = "`run_file.save()`"
    ask.run(keeper.save)
    newer = _keeper(ask, path, make_parts(4, _ALL))
    old = path.read_bytes()
    ask.call = "`run_file.save()` over an older file"
    with (
        path.open("rb") as held,
        Watched(path) as watched,
    ):  # whoever has opened the old file reads it to its end
        ask.run(newer.save)
        kept = held.read()
    new = path.read_bytes() if path.is_file() else b""
    for moment in watched.moments:
        for when, content in (("before", moment.before), ("after", moment.after)):
            if content not in (old, new):
                got = "no file" if content is None else f"a file of {len(content)} bytes that is neither"
                diagnosis = "gone-for-a-while" if content is None else "half-for-a-while"
                raise Mistake(diagnosis, call=ask.call, got=got, when=f"{when} `{moment.name}`")
    if new == old:
        raise Mistake("not-written", call=ask.call, got="the old checkpoint")
    if kept != old or not watched.moved:
        raise Mistake("writes-in-place", call=ask.call, got="the old file was opened and written over")
    _expect_no_more(ask.call, path)
    last = watched.moved[-1]
    if not last.source.is_relative_to(path.absolute().parent):  # a new folder in it is on the same disk
        raise Mistake(
            "other-folder", call=ask.call, got=f"another folder than `path`, `{last.source.parent}`"
        )
    if not last.synced:
        raise Mistake("not-synced", call=ask.call, got="not on the disk")


def _failing(ask: Ask, path: Path, fails: Literal["save", "fsync", "replace"], words: str) -> None:
    """Save over an older file, and fail on the way: the old file stays, the error comes out, nothing else is left."""
    ask.run(_keeper(ask, path, make_parts(5, _ALL)).save)
    newer = _keeper(ask, path, make_parts(6, _ALL))
    old = path.read_bytes()
    ask.call = f"`run_file.save()` over an older file, with a full disk {words},"
    error: BaseException | None = None
    with Watched(path, fails) as watched:
        try:
            ask.run(newer.save)
        except Contained as contained:
            if contained.fault != "exception" or not watched.failed:
                raise
            error = contained.error
    if not watched.failed:  # their code does it in another way, which was looked at in `_replaced`
        return
    if not path.is_file() or path.read_bytes() != old:
        got = f"a file of {path.stat().st_size} bytes" if path.is_file() else "no file"
        raise Mistake("old-file-lost", call=ask.call, got=got, want=f"{len(old)} bytes")
    if not isinstance(error, OSError):
        got = "no error" if error is None else _line(error)
        raise Mistake("error-swallowed", call=ask.call, got=got)
    _expect_no_more(ask.call.rstrip(","), path)


def _unlike(ask: Ask, path: Path, saved: tuple[str, ...], loaded: tuple[str, ...]) -> None:
    """Load a file whose parts are not those of the run: an error names one of them, and nothing has changed."""
    ask.run(_keeper(ask, path, make_parts(7, saved)).save)
    parts = make_parts(8, loaded)
    before = numbers_of(parts)
    keeper = _keeper(ask, path, parts)
    drawn: list[dict[str, Any]] = []
    ask.call = f"`run_file.load()` of a file with {', '.join(saved)}, in a run of {', '.join(loaded)},"
    differ = sorted(set(saved) ^ set(loaded))
    try:
        ask.run(_draw_load_and_draw, keeper, drawn)
    except Contained as contained:
        if contained.fault != "exception" or isinstance(contained.error, NotImplementedError):
            raise
        error = contained.error
    else:
        missing = set(loaded) - set(saved)
        raise Mistake("missing-unnoticed" if missing else "extra-unnoticed", call=ask.call, got="no error")
    if not isinstance(error, KeyError) or not any(name in str(error) for name in differ):
        raise Mistake("not-named", call=ask.call, got=_line(error), want=f"`{differ[0]}`")
    found = first_difference(numbers_of(parts), before) or first_difference(drawn[1], drawn[0])
    if found is not None:
        raise Mistake("half-loaded", call=ask.call, **found)


def _from_a_gpu(ask: Ask, path: Path) -> None:
    """Load a file whose tensors, it says, were on a GPU that is not there."""
    parts, fresh = make_parts(9, ("model", "average")), make_parts(10, ("model", "average"))
    with says_gpu():
        ask.run(_keeper(ask, path, parts).save)
    keeper = _keeper(ask, path, fresh)
    ask.call = "`run_file.load()` of a file from a machine with a GPU"
    try:
        ask.run(_load_and_draw, keeper)
    except Contained as contained:
        if "CUDA" in str(contained.error):
            raise Mistake("needs-gpu", call=ask.call, got=_line(contained.error)) from None
        raise
    found = first_difference(numbers_of(fresh), numbers_of(parts))
    if found is not None:
        raise Mistake("part-lost", call=ask.call, **found)


def _hostile(ask: Ask, path: Path) -> None:
    """Load a file with an object in it that runs code as soon as it is unpickled."""
    keeper = _keeper(ask, path, make_parts(11, _ALL))
    ask.run(keeper.save)
    saved = torch.load(path, weights_only=True, map_location="cpu")
    beside = path.with_name("hostile.pt")
    torch.save([Hostile(), saved], beside)
    os.replace(beside, path)
    ask.call = "`run_file.load()` of a stranger's file"
    RAN.clear()
    with contextlib.suppress(Contained):
        ask.run(_load_and_draw, keeper)
    if RAN:
        raise Mistake("runs-code", call=ask.call, got=RAN[0])
