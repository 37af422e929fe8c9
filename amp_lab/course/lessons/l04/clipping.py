"""Exercise 4.3: clip gradients that are still scaled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import TENSORS
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l04 import several
from amp_lab.course.lessons.l04.several import Seen, Tensors

_RTOL = 1e-4  # torch.nn.utils.clip_grad_norm_ divides by the norm plus 1e-6
_RTOL_NORM = 1e-5
Numbers = tuple[float, ...]
Shape = tuple[int, ...]
Factor = Callable[["Story", list[float]], float]


class Story(NamedTuple):
    """One case: the gradients of `w` and `b`, unscaled, and what the answer is given; `idle` has no gradient."""

    scale: float
    max_norm: float
    w: Numbers
    b: Numbers
    idle: bool = False
    w_shape: Shape | None = None  # if not given, as many as there are numbers
    b_shape: Shape | None = None

    @property
    def norm(self) -> float:
        """The unscaled norm of all gradients."""
        return math.hypot(*self.w, *self.b)

    @property
    def factor(self) -> float:
        """What clipping multiplies by."""
        return min(1.0, self.max_norm / self.norm) if self.norm else 1.0

    def times(self, factor: float, factor_b: float | None = None) -> Tensors:
        """Return the unscaled gradients, multiplied."""
        factor_b = factor if factor_b is None else factor_b
        w, b = self.tensors(torch.float64)
        found: dict[str, torch.Tensor | None] = {"w.grad": factor * w, "b.grad": factor_b * b}
        return found | ({"idle.grad": None} if self.idle else {})

    def tensors(self, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the unscaled gradients of `w` and `b`."""
        w, b = (torch.tensor(each, dtype=dtype) for each in (self.w, self.b))
        return (
            w if self.w_shape is None else w.reshape(self.w_shape),
            b if self.b_shape is None else b.reshape(self.b_shape),
        )


def _clipped(norm: float, max_norm: float) -> float:
    return min(1.0, max_norm / norm) if norm else 1.0


def _per_parameter(story: Story) -> Tensors:
    return story.times(*(_clipped(math.hypot(*each), story.max_norm) for each in (story.w, story.b)))


def _by_value(story: Story) -> Tensors:
    limit = story.max_norm
    return {
        name: None if each is None else each.clamp(-limit, limit) for name, each in story.times(1.0).items()
    }


def _with(norm: Callable[[Story], float]) -> Callable[[Story], Tensors]:
    return lambda story: story.times(_clipped(norm(story), story.max_norm))


def _in_half(story: Story) -> Tensors:
    halves = [(each * story.scale).half() / story.scale for each in story.tensors()]
    numbers = (number for each in halves for number in each.flatten().tolist())
    factor = _clipped(math.hypot(*numbers), story.max_norm)
    rounded = {"w.grad": halves[0].float() * factor, "b.grad": halves[1].float() * factor}
    return {name: rounded.get(name) for name in story.times(1.0)}


def _sum_of_norms(story: Story) -> float:
    return math.hypot(*story.w) + math.hypot(*story.b)


def _largest(story: Story) -> float:
    return max(abs(each) for each in (*story.w, *story.b))


def _sum_of_sizes(story: Story) -> float:
    return sum(abs(each) for each in (*story.w, *story.b))


def _root_mean_square(story: Story) -> float:
    return story.norm / math.sqrt(len(story.w) + len(story.b))


def _spectral(story: Story) -> float:
    """Return the norm that takes the largest singular value of a matrix for its length."""
    return math.hypot(
        *(torch.linalg.norm(each, 2 if each.dim() == 2 else None).item() for each in story.tensors())
    )


# What the gradients show, as a factor of the right unscaled ones or in full; `s` is the story.
_ON_GRADIENTS: tuple[tuple[str, Callable[[Story], Tensors]], ...] = (
    ("untouched", lambda s: s.times(s.scale)),
    ("not-clipped", lambda s: s.times(1.0)),
    ("clips-before-unscaling", lambda s: s.times(_clipped(s.scale * s.norm, s.max_norm))),
    ("never-unscales", lambda s: s.times(s.scale * _clipped(s.scale * s.norm, s.max_norm))),
    ("unscales-only-what-it-clips", lambda s: s.times(s.factor if s.factor < 1 else s.scale)),
    ("clips-twice", lambda s: s.times(s.factor**2)),
    ("always-max-norm", lambda s: s.times(s.max_norm / s.norm if s.norm else 1.0)),
    ("unscales-twice", lambda s: s.times(s.factor / s.scale)),
    ("unscales-twice", lambda s: s.times(_clipped(s.norm / s.scale, s.max_norm) / s.scale)),
    ("multiplies", lambda s: s.times(s.scale**2 * _clipped(s.norm * s.scale**2, s.max_norm))),
    ("max-norm-unscaled", lambda s: s.times(_clipped(s.scale * s.norm, s.max_norm / s.scale))),
    ("per-parameter", _per_parameter),
    ("by-value", _by_value),
    ("other-norm", _with(_sum_of_norms)),
    ("other-norm", _with(_largest)),
    ("other-norm", _with(_sum_of_sizes)),
    ("other-norm", _with(lambda s: s.norm**2)),
    ("other-norm", _with(lambda s: max(math.hypot(*s.w), math.hypot(*s.b)))),
    ("other-norm", _with(lambda s: math.hypot(*s.w))),
    ("other-norm", _with(lambda s: _sum_of_norms(s) / 2)),
    ("other-norm", _with(_root_mean_square)),
    ("matrix-norm", _with(_spectral)),
    ("unscales-in-half", _in_half),
)
_ON_NORM: tuple[tuple[str, Callable[[Story], float]], ...] = (
    ("returns-scaled-norm", lambda s: s.scale * s.norm),
    ("returns-norm-after", lambda s: s.factor * s.norm),
    ("returns-norm-unscaled-twice", lambda s: s.norm / s.scale),
    ("returns-factor", lambda s: s.factor),
    ("returns-factor", lambda s: s.max_norm / s.norm if s.norm else math.nan),
    ("returns-other-norm", _sum_of_norms),
    ("returns-other-norm", _largest),
    ("returns-other-norm", _sum_of_sizes),
    ("returns-other-norm", lambda s: s.norm**2),
    ("returns-other-norm", lambda s: max(math.hypot(*s.w), math.hypot(*s.b))),
    ("returns-other-norm", lambda s: math.hypot(*s.w)),
    ("returns-other-norm", lambda s: math.hypot(*s.b)),
    ("returns-other-norm", _root_mean_square),
    ("returns-other-norm", _spectral),
)
# Long gradients, that must be clipped, and short ones, that must not. Among scales, powers of two come first.
_LONG, _SHORT = ((3.0, -1.0, 2.0), (4.0, 0.5)), ((0.03, -0.01, 0.02), (0.04, 0.005))
_PLAIN = (
    Story(1024.0, 1.0, *_LONG),
    Story(1024.0, 1.0, *_SHORT),
    Story(4.0, 1.0, *_SHORT),  # short even when scaled
    Story(2.0**16, 0.5, (0.7, 0.2, -0.1), (-0.3, 0.4)),
    Story(2.0**16, 3.0, *_LONG),
    Story(2.0**16, 3.0, (1.0, -0.5, 0.25), (0.5, 2.0)),
    Story(256.0, 5.4, *_LONG),  # of norm 5.5: longer, if only by little
    Story(256.0, 5.6, *_LONG),
)
_OTHERS = (
    Story(1000.0, 1.0, *_LONG),
    Story(7.0, 1.0, *_SHORT),
    Story(2.0**24, 5.0, (3.0, 0.0, 0.0), (4.0, 0.0)),
    Story(1.0, 0.25, *_LONG),
    Story(0.125, 2.0, *_LONG),
)
_MATRIX = (3.0, -1.0, 2.0, 0.5, 1.0, -2.5)  # of rank two, so its largest singular value is not its norm
_SHAPES = (
    Story(1024.0, 1.0, _MATRIX, (4.0, 0.5), w_shape=(2, 3)),
    Story(2.0**16, 2.0, _MATRIX, (4.0,), w_shape=(2, 3), b_shape=()),
    Story(1024.0, 7.0, _MATRIX, (4.0,), w_shape=(2, 3), b_shape=()),
)
_ZERO = (Story(1024.0, 1.0, (0.0, 0.0, 0.0), (0.0, -0.0)),)
_IDLE = (
    Story(1024.0, 1.0, *_LONG, idle=True),
    Story(2.0**16, 1.0, *_SHORT, idle=True),
)


class _Net:
    """The parameters of a story after a scaled backward pass."""

    def __init__(self, story: Story) -> None:
        self.w, self.b = (torch.nn.Parameter(torch.ones_like(each)) for each in story.tensors())
        self.w.grad, self.b.grad = (each * story.scale for each in story.tensors())
        self.named = {"w.grad": self.w, "b.grad": self.b}
        if story.idle:
            self.named = {"w.grad": self.w, "idle.grad": torch.nn.Parameter(torch.ones(2)), "b.grad": self.b}


class _Trial(NamedTuple):
    seen: Seen
    norm: float


@checker("4.3")
def clip_scaled(ask: Ask) -> None:
    """Ask story by story; look at the gradients first, and only when they are right at the norm that was returned."""
    for stories in (_PLAIN, _OTHERS, _SHAPES, _ZERO, _IDLE):
        trials: list[_Trial] = []
        try:
            for story in stories:
                trials.append(_see(ask, story))
        except (Mistake, Contained) as stopped:
            _judge(trials)
            _recognise_error(ask.call, story, stopped)
            raise
        _judge(trials)


def _see(ask: Ask, story: Story) -> _Trial:
    net = _Net(story)
    ask.in_words = lambda *args: _in_words(story)
    answer = ask(list(net.named.values()), story.scale, story.max_norm, may_change=True)
    for name, each in net.named.items():
        if not torch.equal(each.detach(), torch.ones_like(each)):
            got = f"{each.detach().flatten()[0].item():.6g}"
            raise Mistake("weights-changed", call=ask.call, place=f"`{name[:-5]}`", got=got, want="1")
        if not each.requires_grad:
            raise Mistake("frozen", call=ask.call, got=f"`{name[:-5]}.requires_grad = False`")
    found = Seen(ask.call, story, several.gradients(ask.call, net.named), story.times(story.factor))
    if answer is None and several.near(found.got, found.want, _RTOL):
        raise Mistake("returned-none", call=ask.call, got=None, want=f"the norm, here {story.norm:.6g},")
    return _Trial(found, math.nan if answer is None else _number(ask.call, answer, story.norm))


def _number(call: str, answer: Any, want: float) -> float:
    if type(answer) in TENSORS and answer.dim() == 0 and answer.is_floating_point():
        return float(answer.item())
    return expect.number(call, answer, want)


def _judge(trials: Sequence[_Trial]) -> None:
    seen = [each.seen for each in trials]
    if any(each.story.idle for each in seen):
        # All was right without such a parameter.
        several.recognise(seen, (), _RTOL, unknown="idle-stops")
    several.recognise(seen, _ON_GRADIENTS, _RTOL, otherwise=_recognise_some_wrong, unknown="wrong-gradient")
    wrong = [each for each in trials if not _is_norm(each.norm, each.seen.story.norm)]
    if not wrong:
        return
    first = wrong[0]
    shown = {"call": first.seen.call, "got": f"{first.norm:.6g}", "want": f"{first.seen.story.norm:.6g}"}
    if not first.seen.story.norm and math.isnan(first.norm):
        raise Mistake("zero-norm", call=first.seen.call, got="returned nan")
    for diagnosis, norm in _ON_NORM:
        if all(_is_norm(each.norm, norm(each.seen.story)) for each in trials):
            raise Mistake(diagnosis, **shown)
    raise Mistake("wrong-norm", **shown)


def _is_norm(got: float, want: float) -> bool:
    return math.isclose(got, want, rel_tol=_RTOL_NORM)


def _recognise_some_wrong(trials: Sequence[Seen]) -> None:
    """Recognise what only some of the stories show: NaN where all is zero, and too generous a limit."""
    wrong = [each for each in trials if not several.near(each.got, each.want, _RTOL)]
    shown = several.first_far(wrong[0], _RTOL)
    if not wrong[0].story.norm and shown["got"] == "nan":
        raise Mistake("zero-norm", call=shown["call"], got=f"made {shown['place']} nan")
    if all(several.near(each.got, each.story.times(1.0), _RTOL) for each in wrong):
        raise Mistake("not-clipped", **shown)


def _recognise_error(call: str, story: Story, stopped: Exception) -> None:
    """Recognise an error that only some gradients cause: missing ones, matrices, zeros."""
    raised = several.known_error(stopped) if isinstance(stopped, Contained) else None
    if raised is not None and (diagnosis := _fails_at(story)):
        raise Mistake(diagnosis, call=call, got=f"raised `{raised}`") from None


def _fails_at(story: Story) -> str | None:
    """Return what tells this story from those before it."""
    if story.idle:
        return "idle-crashes"
    if story.w_shape:
        return "shape-crashes"
    return None if story.norm else "zero-norm"


def _in_words(story: Story) -> str:
    names = "[w, idle, b]" if story.idle else "[w, b]"
    call = f"`clip_scaled({names}, {story.scale!r}, {story.max_norm!r})`"
    shapes = "`w` a matrix, " if story.w_shape else ""
    shapes += "`b` a single number, " if story.b_shape == () else ""
    return f"{call} ({shapes}unscaled norm {story.norm:.6g})"
