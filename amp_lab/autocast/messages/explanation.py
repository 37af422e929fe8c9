"""How an error is explained, and how the explanation is shown: as text, in a notebook, on a Rich console."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Final

from amp_lab.autocast.messages.cures import Dtypes
from amp_lab.autocast.messages.unrelated import NOT_PRECISION
from amp_lab.autocast.records import Source
from amp_lab.view.words import paragraph

if TYPE_CHECKING:
    from rich.console import Group

UNKNOWN: Final = "unknown"
AMP_LAB: Final = "amp-lab"
_MESSAGE: Final = 500  # letters of a message that are shown


@dataclass(frozen=True)
class Explanation:
    """What is known about an error.

    Attributes:
        id: which error it is: "matmul-dtypes"; "unknown" if it is none of those that amp_lab knows;
            "not-precision" if it is plainly about something else; "amp-lab" if it is an error of amp_lab's own,
            which says itself what to do.
        message: what PyTorch said, with the exception's class before it.
        happened: what happened, in plain words.
        advice: what to do.
        where: the innermost line that is neither PyTorch's, nor amp_lab's, nor of Python's library, if there is one.
        called: if that line is in an installed package, the innermost line outside of packages.
        dtypes: what had which dtype: (("mat1", torch.float16), ("mat2", torch.float32)).
        also: which other error hangs together with this one: what it led to, or what was being handled.
    """

    id: str
    message: str
    happened: str
    advice: str
    where: Source | None = None
    called: Source | None = None
    dtypes: Dtypes = ()
    also: str = ""

    @property
    def known(self) -> bool:
        """Whether it is an error of mixed precision that amp_lab knows, or of amp_lab itself."""
        return self.id not in (UNKNOWN, NOT_PRECISION)

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield the parts of the explanation, each with its title."""
        yield "What happened", self.happened
        if self.where is not None:
            yield "Where", _place(self.where)
        if self.called is not None:
            yield "Called from", _place(self.called)
        if self.also:
            yield "Also", self.also
        if self.advice:
            yield "What to do", self.advice
        if self.id != AMP_LAB:  # whose messages are told above, in two parts
            yield "The message", shortened(self.message, _MESSAGE)

    def __str__(self) -> str:
        return "\n".join(_paragraph(title, text) for title, text in self.parts())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        style = "white-space: pre-wrap; overflow-wrap: anywhere"
        rows = "".join(
            f'<dt><b>{escape(title)}</b></dt><dd style="{style}">{escape(text)}</dd>'
            for title, text in self.parts()
        )
        return f"<dl>{rows}</dl>"

    def __rich__(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        return Group(*(Text.assemble((f"{title}: ", "bold"), text) for title, text in self.parts()))


def shortened(text: str, most: int) -> str:
    """Return a text on one line, cut after so many letters."""
    words = " ".join(text[: 10 * most].split())
    return words if len(words) <= most else f"{words[: most - 2].rstrip()} …"


def _place(line: Source) -> str:
    function = f", in {line.function}" if line.function and not line.function.startswith("<") else ""
    number = f", line {line.line}" if line.line else ""
    return f"{line.file}{number}{function}{f': {line.text}' if line.text else ''}"


def _paragraph(title: str, text: str) -> str:
    return paragraph(f"{title}: {' '.join(text.split())}", then="    ")
