"""Words in a terminal: names from somebody's code on one line, how wide they are there, sentences in lines."""

import textwrap
import unicodedata
from typing import Final

# Columns of what is printed: JupyterLab breaks longer lines itself, in the middle of a word, if its window is small.
PRINTED: Final = 92


def name_in_words(name: str) -> str:
    """Write a name in one line, with what is no visible character as Python writes it: "\\n", "\\x1b"."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in name)


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes: two for a wide character, none for an accent on the last."""
    return sum(_columns_of(each) for each in text)


def paragraph(text: str, first: str = "", then: str = "") -> str:
    """Return a text in lines of `PRINTED` columns, which begin with `first` and `then`.

    Code, paths and addresses are not broken, however long they are.
    """
    return textwrap.fill(
        text,
        PRINTED,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _columns_of(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
