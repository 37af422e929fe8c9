"""The variables of a running function, read without keeping any of them alive.

Up to Python 3.12 the frame of a function keeps what `f_locals` has returned, until it is asked again: a dictionary
with all of its variables, and with it tensors that the function itself has long let go of. `locals()` returns that
same dictionary.
"""

from __future__ import annotations

import dis
import inspect
import sys
from types import CodeType, FrameType
from typing import Any, Final

_KEPT: Final = sys.version_info < (3, 13)
# Code that names one of these may have the dictionary in hand: to read would change what is in it.
_ASKS_ITSELF: Final = frozenset({"locals", "vars", "exec"})
_NOBODY_ELSE: Final = 3  # references: by the frame, by `locals_of`, and by the one that counts


def locals_of(frame: FrameType) -> dict[str, Any]:
    """Return the variables of a frame by name; none of a function that asks for its own by `locals()` or the like."""
    if not (_KEPT and frame.f_code.co_flags & inspect.CO_OPTIMIZED):
        return dict(frame.f_locals)  # of a module or a class, or of a Python that keeps nothing
    if _asks_itself(frame.f_code):
        return {}
    kept = frame.f_locals
    found = dict(kept)
    if sys.getrefcount(kept) <= _NOBODY_ELSE:  # else it is a debugger's, or the like
        kept.clear()
    return found


def _asks_itself(code: CodeType) -> bool:
    if _ASKS_ITSELF.isdisjoint(code.co_names):
        return False
    calls = (
        each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    )
    return not _ASKS_ITSELF.isdisjoint(calls)
