"""Explain an error that mixed precision raised: what happened, in which line, and what to do."""

from __future__ import annotations

import sys
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import TYPE_CHECKING, Final

from amp_lab.autocast.messages import mismatches as known_mismatches
from amp_lab.autocast.messages import misuses as known_misuses
from amp_lab.autocast.messages.known import Dtypes, Filled, find
from amp_lab.autocast.messages.users_code import frames, frames_in_text, innermost, source
from amp_lab.autocast.records import Source
from amp_lab.view.words import paragraph

if TYPE_CHECKING:
    from rich.console import Group

UNKNOWN: Final = "unknown"
AMP_LAB: Final = "amp-lab"
_KNOWN: Final = (*known_misuses.ALL, *known_mismatches.ALL)
_MESSAGE: Final = 500  # letters of a message that are shown


@dataclass(frozen=True)
class Explanation:
    """What is known about an error.

    Attributes:
        id: which error it is: "matmul-dtypes"; "unknown" if it is none of those that amp_lab knows; "amp-lab" if
            amp_lab raised it, whose errors say themselves what to do.
        message: what PyTorch said, with the exception's class before it.
        happened: what happened, in plain words.
        advice: what to do.
        where: the innermost line that is neither PyTorch's, nor amp_lab's, nor of Python's library, if there is one.
        called: if that line is in an installed package, the innermost line outside of packages.
        dtypes: what had which dtype: (("mat1", torch.float16), ("mat2", torch.float32)).
    """

    id: str
    message: str
    happened: str
    advice: str
    where: Source | None = None
    called: Source | None = None
    dtypes: Dtypes = ()

    @property
    def known(self) -> bool:
        """Whether it is an error that amp_lab knows."""
        return self.id != UNKNOWN

    def parts(self) -> Iterator[tuple[str, str]]:
        """Yield the parts of the explanation, each with its title."""
        yield "What happened", self.happened
        if self.where is not None:
            yield "Where", _place(self.where)
        if self.called is not None:
            yield "Called from", _place(self.called)
        if self.advice:
            yield "What to do", self.advice
        if self.message not in self.happened:
            yield "The message", textwrap.shorten(self.message, _MESSAGE, placeholder=" …")

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


def explain(error: BaseException | warnings.WarningMessage | str | None = None) -> Explanation:
    """Explain an error, or a warning, of code that uses mixed precision.

        >>> try:
        ...     model(x)
        ... except RuntimeError as error:
        ...     print(explain(error))

    An error that is not known is said to be so; nothing is guessed. What is known are errors of mismatched
    dtypes, of FP16's range, of the order of GradScaler's calls, and of autocast's arguments.

    Args:
        error: the exception; or a warning, as an exception or as `warnings.catch_warnings(record=True)` keeps it;
            or the text of a message, or of a whole traceback, copied from somewhere. None: the last
            error that reached the top, as in the notebook's cell before.

    Raises:
        TypeError: if it is something else.
        ValueError: if it is None, and there was no error.
    """
    if error is None:
        error = _last()
    if isinstance(error, str):
        return _of_text(error)
    if isinstance(error, warnings.WarningMessage):
        passed = [source(error.filename, error.lineno)]
        return _explained(f"{error.category.__name__}: {error.message}", passed)
    if isinstance(error, BaseException):
        return _of_exception(error)
    raise TypeError(
        f"explain({type(error).__name__}): give it the exception, as in `except RuntimeError as error: "
        "explain(error)`, or the text of its message"
    )


def _last() -> BaseException:
    last = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if isinstance(last, BaseException):
        return last
    raise ValueError("explain(): there was no error yet. Give it the exception, or the text of its message")


def _of_text(text: str) -> Explanation:
    passed = frames_in_text(text)
    # Below the last line of code of a traceback stands the message.
    message = text if not passed else text.strip().rsplit("\n    ", 1)[-1].partition("\n")[2] or text
    return _explained(message.strip(), passed)


def _of_exception(error: BaseException) -> Explanation:
    if type(error).__module__.split(".")[0] == "amp_lab":
        return _of_amp_lab(error)
    explained = [_explained(_message(each), frames(each.__traceback__)) for each in _chain(error)]
    known = [each for each in explained if each.known]
    if not known and _raised_by_amp_lab(error):
        return _of_amp_lab(error)
    return (known or explained)[0]


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from, or while handling."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _message(error: BaseException) -> str:
    text = str(error).strip()
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _raised_by_amp_lab(error: BaseException) -> bool:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and str(trace.tb_frame.f_globals.get("__name__")).split(".")[0] == "amp_lab"


def _of_amp_lab(error: BaseException) -> Explanation:
    where = innermost(frames(error.__traceback__))
    return Explanation(AMP_LAB, _message(error), f"amp_lab says: {_message(error)}", "", where)


def _explained(message: str, passed: Sequence[Source]) -> Explanation:
    where = innermost(passed)
    own = innermost(passed, installed=False)
    called = own if own != where else None
    filled = find(message, _KNOWN)
    if filled is None:
        return Explanation(UNKNOWN, message, _NOT_KNOWN, _TRY_WITHOUT, where, called)
    if filled.known.in_linear and _maybe_in_linear(passed):
        filled = filled._replace(happened=f"{filled.happened} {filled.known.in_linear}")
    explanation = Explanation(
        filled.known.id, message, filled.happened, filled.advice, where, called, filled.dtypes
    )
    return _of_custom_backward(explanation, filled) if _in_custom_backward(filled, passed) else explanation


_NOT_KNOWN: Final = "This is none of the errors of mixed precision that amp_lab knows."
_TRY_WITHOUT: Final = (
    "Run the step again without mixed precision: autocast(..., enabled=False) and GradScaler(..., enabled=False). If "
    "it fails there, too, the cause is another one, and the message below says what PyTorch knows."
)


def _maybe_in_linear(passed: Sequence[Source]) -> bool:
    """Whether a product may be that of a Linear layer: unless it is known where it is, and that is none."""
    in_layer = any(frame.file.replace("\\", "/").endswith("torch/nn/modules/linear.py") for frame in passed)
    return in_layer or not passed or "linear(" in passed[-1].text


def _in_custom_backward(filled: Filled, passed: Sequence[Source]) -> bool:
    """Whether two dtypes met inside the backward that somebody wrote for an autograd function."""
    engine = [at for at, frame in enumerate(passed) if frame.function == "apply" and _is_autograd(frame.file)]
    return (
        filled.known.mismatch and bool(engine) and any(f.function == "backward" for f in passed[engine[-1] :])
    )


def _is_autograd(file: str) -> bool:
    return file.replace("\\", "/").endswith("torch/autograd/function.py")


def _of_custom_backward(explanation: Explanation, filled: Filled) -> Explanation:
    return replace(
        explanation,
        id="custom-backward-dtypes",
        happened="The backward of a custom autograd function met two dtypes. Autocast is off there, so what was "
        f"saved in FP32 meets a gradient in 16 bits. {filled.happened}",
        advice="Decorate forward with @torch.amp.custom_fwd(device_type='cuda') and backward with "
        "@torch.amp.custom_bwd(device_type='cuda'), with the device type that you train on: then backward runs "
        "with the autocast that forward ran with. Or add cast_inputs=torch.float32 to custom_fwd: then both run in "
        "FP32.",
    )


def _place(line: Source) -> str:
    function = f", in {line.function}" if line.function and not line.function.startswith("<") else ""
    return f"{line.file}, line {line.line}{function}{f': {line.text}' if line.text else ''}"


def _paragraph(title: str, text: str) -> str:
    return paragraph(f"{title}: {' '.join(text.split())}", then="    ")
