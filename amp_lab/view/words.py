"""Words in a terminal: names from somebody's code on one line, and how wide they are there."""

import unicodedata


def name_in_words(name: str) -> str:
    """Write a name in one line, with what is no visible character as Python writes it: "\\n", "\\x1b"."""
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in name)


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes: two for a wide character, none for an accent on the last."""
    return sum(_columns_of(each) for each in text)


def _columns_of(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
