"""What is sent to another process: functions of a notebook as what they do, with the lines in which they are written.

cloudpickle sends a function that cannot be imported there as its code. It leaves out where that code is written
("<dynamic-code>"), so that a traceback or a report of the other process could name no line. Here the code keeps its
place; and where that is no file on the disk, as with the cells of a notebook, its lines go along.
"""

from __future__ import annotations

import io
import linecache
from collections.abc import Callable
from pathlib import Path
from types import CodeType
from typing import Any

try:
    import cloudpickle
except ImportError:  # joblib, which scikit-learn brings, had a copy of its own before 1.6
    from joblib.externals import cloudpickle


def packed(value: Any) -> bytes:
    """Return a value to be sent to another process, which reads it with `pickle.loads`."""
    buffer = io.BytesIO()
    _Pickler(buffer).dump(value)
    return buffer.getvalue()


class _Pickler(cloudpickle.CloudPickler):  # type: ignore[misc]
    def reducer_override(self, obj: Any) -> Any:
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        # Not at the top of this file: to import it would take a new process longer than all else.
        from amp_lab.autocast.messages.users_code import cell_name

        build, args = self.dispatch_table[CodeType](obj)
        cell = cell_name(obj.co_filename)  # only in this process is it known: "Cell In[5]"
        is_there = cell is None and Path(obj.co_filename).exists()
        lines = [] if is_there else linecache.getlines(obj.co_filename)
        return _code, (build, args, cell or obj.co_filename, lines)


def _code(build: Callable[..., CodeType], args: tuple[Any, ...], file: str, lines: list[str]) -> CodeType:
    """Make a piece of code, and let tracebacks and reports find its lines: this runs in the other process."""
    if lines:
        linecache.cache[file] = (sum(map(len, lines)), None, lines, file)  # without a time: it never gets old
    return build(*args).replace(co_filename=file)
