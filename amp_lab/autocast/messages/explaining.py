"""Choose what to say about an error, or about several that hang together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from amp_lab.autocast.messages.catalog import ALL
from amp_lab.autocast.messages.explanation import AMP_LAB, UNKNOWN, Explanation, shortened
from amp_lab.autocast.messages.known import Filled, find
from amp_lab.autocast.messages.pasted import Raised
from amp_lab.autocast.messages.unrelated import NOT_PRECISION
from amp_lab.autocast.messages.users_code import innermost, is_amp_labs
from amp_lab.autocast.records import Source

_MOST: Final = 30  # tracebacks of a text that are looked at
_OTHER: Final = 200  # letters of another error's message that are shown


def best(told: Sequence[Raised]) -> Explanation:
    """Explain the first error that is known, else the one that reached the top, which stands first."""
    told = told[:_MOST]
    explained = [_explained(each) for each in told]
    if _is_amp_labs_own(told[0]):  # it says what its cause means
        return explained[0]
    chosen = min(range(len(told)), key=lambda at: (_rank(explained[at]), at))
    return replace(explained[chosen], also=_also(told, chosen))


def _of_amp_lab(raised: Raised) -> Explanation:
    """Explain an error of amp_lab's own: its message says what is wrong, and what to do."""
    name, _, text = raised.message.partition(": ")
    sentences = _SENTENCE.split(text.strip("'\""), maxsplit=1)
    wrong, advice = sentences if len(sentences) == 2 else text.strip("'\"").partition(": ")[::2]
    happened = f"amp_lab raised {name}: {wrong.rstrip('.')}." if wrong else f"amp_lab raised {name}."
    return Explanation(AMP_LAB, raised.message, happened, _sentence(advice), innermost(raised.passed))


def _sentence(words: str) -> str:
    """Write words as a sentence: with a capital letter, and an end."""
    return f"{words[:1].upper()}{words[1:]}{'' if words[-1:] in '.?!' else '.'}"


_SENTENCE: Final = re.compile(r"(?<=[.?!])\s+(?=[A-Z])")


def _rank(explanation: Explanation) -> int:
    return 2 if not explanation.known else 1 if explanation.id == AMP_LAB else 0


def _explained(raised: Raised) -> Explanation:
    message, passed = raised.message, raised.passed
    filled = find(message, ALL, passed)
    unrelated = filled is None or filled.known.id == NOT_PRECISION
    if _is_amp_labs_own(raised) or (unrelated and _refused_by_amp_lab(passed)):
        return _of_amp_lab(raised)
    where = innermost(passed)
    own = innermost(passed, installed=False)
    called = own if own != where else None
    if filled is None:
        warned = message.partition(":")[0].endswith("Warning")
        return Explanation(UNKNOWN, message, *(_NO_WARNING if warned else _NO_ERROR), where, called)
    if filled.known.in_linear and _maybe_in_linear(passed):
        filled = filled._replace(happened=f"{filled.happened} {filled.known.in_linear}")
    explanation = Explanation(
        filled.known.id, message, filled.happened, filled.advice, where, called, filled.dtypes
    )
    return _of_custom_backward(explanation, filled) if _in_custom_backward(filled, passed) else explanation


_NO_ERROR: Final = (
    "This is none of the errors of mixed precision that amp_lab knows.",
    "Run the step again without mixed precision: autocast(..., enabled=False) and GradScaler(..., enabled=False). If "
    "it fails there, too, the cause is another one, and the message below says what PyTorch knows.",
)
_NO_WARNING: Final = (
    "This is a warning, and none of those about mixed precision that amp_lab knows.",
    "A warning by itself stops nothing. The message below says what it is about.",
)


def _is_amp_labs_own(raised: Raised) -> bool:
    """Whether the class of an error is one of amp_lab's."""
    return raised.module.split(".")[0] == "amp_lab"


def _refused_by_amp_lab(passed: Sequence[Source]) -> bool:
    """Whether a `raise` of amp_lab's own made an error of Python's: what its kernels ask of PyTorch is PyTorch's."""
    return bool(passed) and is_amp_labs(passed[-1].file) and _RAISE.match(passed[-1].text) is not None


_RAISE: Final = re.compile(r"raise [A-Z]\w*\(")


def _also(told: Sequence[Raised], chosen: int) -> str:
    """Say which other error there was: what the chosen one led to, or what was there before it."""
    if chosen > 0:
        top = _briefly(told[0])
        if told[chosen].how == "inside" or not told[chosen].how:
            return f"It was reported as {top}" if told[chosen].how else ""
        if told[chosen].how == "cause":
            return f"It was raised again as {top}"
        return f"While it was handled, another error was raised: {top}"
    if len(told) == 1 or not told[1].how:
        return ""
    other = _briefly(told[1])
    return {
        "cause": f"It was raised from another error: {other}",
        "context": f"It was raised while another error was handled: {other}",
        "inside": f"It holds another error: {other}",
    }[told[1].how]


def _briefly(raised: Raised) -> str:
    where = innermost(raised.passed)
    place = f" ({where.file}, line {where.line})" if where else ""
    return f"{shortened(raised.message, _OTHER)}{place}"


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
