"""What to change where a region begins too early or ends too late."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from amp_lab.autocast.records import Source
from amp_lab.watching.recording.events import Event, RegionEntered
from amp_lab.watching.rules.rule import Fix


def after_the_region(first: Event, region: RegionEntered | None, later: Sequence[Event]) -> Fix:
    """Take a call, and the calls that come after it in the region, out of the region's block."""
    say = "End the region after the loss, and call backward() behind it: it needs no region."
    lines = _lines([first, *later])
    if region is None or not lines or not _same_block(region.where, [each.where for each in lines]):
        return Fix(first, say=say)
    texts = tuple(each.where.text.strip() for each in lines if each.where)
    return Fix(
        lines[0],
        remove=("{line}",),
        say=say,
        also=(
            *(Fix(each, remove=("{line}",)) for each in lines[1:]),
            Fix(region, insert=texts, place="after"),
        ),
    )


def _lines(events: Iterable[Event]) -> list[Event]:
    """Return the first event of each line, in the order of the lines."""
    found: dict[int, Event] = {}
    for event in events:
        if event.where:
            found.setdefault(event.where.line, event)
    return [found[line] for line in sorted(found)]


def _same_block(region: Source | None, lines: Sequence[Source | None]) -> bool:
    """Whether a region is a `with` above these lines, in the same function; a decorator or a helper is not."""
    return bool(region and region.text.lstrip().startswith(("with ", "async with "))) and all(
        each
        and region
        and (each.file, each.function) == (region.file, region.function)
        and each.line > region.line
        for each in lines
    )


def without_cache(region: RegionEntered | None, forward: Event) -> Fix:
    """Switch off the cache of 16-bit weights of a region that stays open over several steps."""
    say = "Open a region of its own for each forward pass and its loss, and let it end before backward()."
    call = call_of_autocast(region.where.text) if region and region.where else None
    if region is None or call is None or not region.enabled:
        return Fix(region or forward, say=say)
    say = (
        "Where this region must stay open, cache_enabled=False makes the copies anew in each forward pass. Better: "
        "open a region of its own for each forward pass and its loss, and let it end before backward()."
    )
    return Fix(region, remove=(call,), insert=(f"{call[:-1]}, cache_enabled=False)",), say=say)


def call_of_autocast(text: str) -> str | None:
    """Return the call in `with torch.autocast(...):`, as it is written; None if the line is none of that kind."""
    code = f"{text.strip()}\n    pass"
    try:
        block = ast.parse(code).body[0]
    except SyntaxError:
        return None
    if not isinstance(block, ast.With):
        return None
    for item in block.items:
        call = item.context_expr
        if not isinstance(call, ast.Call) or not call.args or not ast.unparse(call.func).endswith("autocast"):
            continue
        if all(each.arg != "cache_enabled" for each in call.keywords):
            return ast.get_source_segment(code, call)
    return None
