"""Showing a text: as Markdown in a notebook, in print anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def show(markdown: str, plain: str = "", also: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Render Markdown in a notebook, print it anywhere else.

    `plain` are words for a terminal, if they are other ones. `also` maps MIME types to further forms of the same,
    such as a widget; a notebook takes the best that it can show.
    """
    plain = plain or markdown
    if not in_a_notebook():
        print(plain)
        return
    from IPython.display import display

    # All forms: a terminal has no use for Markdown, and a page without a kernel none for a widget.
    display({**also, "text/plain": plain, "text/markdown": markdown}, raw=True)  # type: ignore[no-untyped-call]


def in_a_notebook() -> bool:
    """Tell whether IPython runs this, in a notebook or a terminal, without importing it."""
    return "IPython" in sys.modules and sys.modules["IPython"].get_ipython() is not None
