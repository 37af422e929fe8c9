"""Exercise 4.1: scale the loss, walk back, unscale the gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l04 import several
from amp_lab.course.lessons.l04.several import Seen, Tensors

_RTOL = 1e-5
Numbers = tuple[float, ...]
Shape = tuple[int, ...]
Answer = Callable[[torch.Tensor, list[torch.Tensor], float], Any]


class Story(NamedTuple):
    """One case. The loss is the sum of `upstream` × (w × x in FP16), and of `slope` × b in FP32.

    So the gradient of `w` is upstream × x, but on its way back `upstream`, times the scale, must fit into FP16. The
    numbers have few bits: each product is exact, on every machine. `.grad` holds `w_before`, `b_before` and
    `idle_before` at first; a parameter `idle`, on which the loss does not depend, exists if `idle`.
    """

    scale: float
    upstream: Numbers
    x: Numbers
    slope: Numbers
    w_before: Numbers | None = None
    b_before: Numbers | None = None
    idle: bool = False
    idle_before: Numbers | None = None
    calls: int = 1
    w_shape: Shape = (4,)
    b_shape: Shape = (2,)

    def before(self) -> Tensors:
        """Return what `.grad` holds at first."""
        held = {
            "w.grad": _tensor(self.w_before, self.w_shape),
            "b.grad": _tensor(self.b_before, self.b_shape),
        }
        return held | ({"idle.grad": _tensor(self.idle_before, ())} if self.idle else {})

    def want(self) -> Tensors:
        """Return the right gradients, computed without PyTorch's autograd."""
        of_w = tuple(u * x for u, x in zip(self.upstream, self.x, strict=True))
        new = {"w.grad": _tensor(of_w, self.w_shape), "b.grad": _tensor(self.slope, self.b_shape)}
        right: dict[str, torch.Tensor | None] = {}
        for name, old in self.before().items():
            fresh = new.get(name)
            right[name] = old if fresh is None else self.calls * fresh + (0 if old is None else old)
        return right


class _Net:
    """The parameters of a story, fresh, and its loss."""

    def __init__(self, story: Story) -> None:
        self._story, before = story, story.before()
        self.w = _parameter((1.0, -2.0, 0.5, 3.0), story.w_shape, before["w.grad"])
        self.b = _parameter((0.25, -1.0)[: len(story.slope)], story.b_shape, before["b.grad"])
        idle = {"idle.grad": _parameter((1.0,), (), before["idle.grad"])} if story.idle else {}
        self.named = {"w.grad": self.w, **idle, "b.grad": self.b}  # so that a loop meets `idle` on its way

    def loss(self) -> torch.Tensor:
        x, upstream = (
            torch.tensor(each).reshape(self._story.w_shape) for each in (self._story.x, self._story.upstream)
        )
        slope = torch.tensor(self._story.slope).reshape(self._story.b_shape)
        product = self.w.half() * x.half()
        return (product.float() * upstream).sum() + (self.b * slope).sum()

    def weights(self) -> list[float]:
        return [number for each in self.named.values() for number in each.detach().flatten().tolist()]


def _tensor(numbers: Numbers | None, shape: Shape) -> torch.Tensor | None:
    return None if numbers is None else torch.tensor(numbers).reshape(shape)


def _parameter(numbers: Numbers, shape: Shape, gradient: torch.Tensor | None) -> torch.Tensor:
    parameter = torch.nn.Parameter(torch.tensor(numbers).reshape(shape))
    parameter.grad = gradient
    return parameter


def _play(answer: Answer, story: Story) -> Tensors:
    """Return the gradients that `answer` leaves, an answer of ours that stands for a misconception."""
    net = _Net(story)
    for _ in range(story.calls):
        answer(net.loss(), list(net.named.values()), story.scale)
    return several.gradients("", net.named)


def _backward(
    *,
    loss: Callable[[torch.Tensor, float], torch.Tensor] = lambda loss, scale: loss * scale,
    after: Callable[[torch.Tensor, float], torch.Tensor] = lambda grad, scale: grad / scale,
) -> Answer:
    """Return a backward pass that makes `loss` of the loss first, and `after` of each gradient at the end."""

    def answer(given: torch.Tensor, parameters: list[torch.Tensor], scale: float) -> None:
        loss(given, scale).backward()  # type: ignore[no-untyped-call]
        for each in parameters:
            if each.grad is not None:
                each.grad = after(each.grad, scale)

    return answer


def _as_it_is(value: torch.Tensor, scale: float) -> torch.Tensor:
    return value


def _half_scale(scale: float) -> torch.Tensor:
    return torch.tensor(scale).half()


def _always(fixed: float) -> Answer:
    """Return what takes a scale of its own instead of the one that it is given."""
    return _backward(loss=lambda loss, scale: loss * fixed, after=lambda grad, scale: grad / fixed)


def _clears(loss: torch.Tensor, parameters: list[torch.Tensor], scale: float) -> None:
    for each in parameters:
        each.grad = None
    _backward()(loss, parameters, scale)


def _keeps(combine: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]) -> Answer:
    """Return an answer that makes of each old gradient and of the fresh one, scaled, what `combine` does."""

    def answer(loss: torch.Tensor, parameters: list[torch.Tensor], scale: float) -> None:
        before = [None if each.grad is None else each.grad.clone() for each in parameters]
        for each in parameters:
            each.grad = None
        (loss * scale).backward()  # type: ignore[no-untyped-call]
        for each, old in zip(parameters, before, strict=True):
            if each.grad is not None:
                each.grad = each.grad / scale if old is None else combine(old, each.grad, scale)

    return answer


def _first_only(loss: torch.Tensor, parameters: list[torch.Tensor], scale: float) -> None:
    (loss * scale).backward()  # type: ignore[no-untyped-call]
    if parameters[0].grad is not None:
        parameters[0].grad /= scale


def _leaves_hooks(loss: torch.Tensor, parameters: list[torch.Tensor], scale: float) -> None:
    for each in parameters:
        each.register_hook(lambda grad: grad / scale)  # type: ignore[no-untyped-call]
    (loss * scale).backward()  # type: ignore[no-untyped-call]


class _Region(NamedTuple):
    """Stories that show the same ideas; the next region counts only when this one is right."""

    stories: tuple[Story, ...]
    misconceptions: tuple[tuple[str, Answer], ...]
    unknown: str = "wrong-gradient"


_SCALE_IGNORED = tuple(("scale-ignored", _always(2.0**k)) for k in range(1, 25))
_UP = (1.5 * 2**-26, -(2.0**-27), 2.0**-12, 3 * 2.0**-28)
_X = (1024.0, 512.0, 1.0, 256.0)
_SLOPE = (0.25, -3 * 2.0**-10)
_W_BEFORE, _B_BEFORE = (3 * 2.0**-16, -(2.0**-17), 2.0**-10, 5 * 2.0**-18), (-0.75, 2.0**-7)

_PLAIN = _Region(
    (
        # A scale that FP16 itself does not hold comes first, then one that it does.
        Story(2.0**16, _UP, _X, _SLOPE),
        Story(2.0**10, (2.0**-27, 3 * 2.0**-26, -(2.0**-13), 0.0), (64.0, -32.0, 2.0, 1.0), (0.5, 0.125)),
    ),
    (
        ("not-scaled", _backward(loss=_as_it_is, after=_as_it_is)),
        ("only-unscales", _backward(loss=_as_it_is)),
        ("scales-the-gradients", _backward(loss=_as_it_is, after=torch.mul)),
        ("not-unscaled", _backward(after=_as_it_is)),
        ("divides-the-loss", _backward(loss=torch.div, after=torch.mul)),
        ("divides-the-loss", _backward(loss=torch.div, after=_as_it_is)),
        ("divides-the-loss", _backward(loss=torch.div)),
        ("scales-twice", _backward(after=torch.mul)),
        ("unscales-twice", _backward(after=lambda grad, scale: grad / scale / scale)),
        ("first-only", _first_only),
        ("whole-numbers", _backward(after=torch.floor_divide)),
        ("scale-in-half", _backward(loss=lambda loss, scale: loss.half() * scale)),
        ("scale-in-half", _backward(after=lambda grad, scale: grad / _half_scale(scale))),
        ("scale-in-half", _backward(loss=lambda loss, scale: loss * _half_scale(scale))),
        (
            "scale-in-half",
            _backward(
                loss=lambda loss, scale: loss * _half_scale(scale),
                after=lambda grad, scale: grad / _half_scale(scale),
            ),
        ),
        *_SCALE_IGNORED,
    ),
)
_ADDED = _Region(
    (
        Story(2.0**10, _UP, _X, _SLOPE, _W_BEFORE, _B_BEFORE),
        Story(2.0**12, _UP, _X, _SLOPE, None, _B_BEFORE),
    ),
    (
        ("clears", _clears),
        ("old-unscaled", _backward()),
        ("old-in-place", _keeps(lambda old, fresh, scale: old + fresh)),
        ("old-in-place", _keeps(lambda old, fresh, scale: fresh + fresh / scale)),
        ("old-in-place", _keeps(lambda old, fresh, scale: 2 * fresh / scale)),
        ("old-in-place", _keeps(lambda old, fresh, scale: 2 * (old + fresh) / scale)),
        ("old-in-place", _keeps(lambda old, fresh, scale: old + fresh + (old + fresh) / scale)),
        ("old-twice", _keeps(lambda old, fresh, scale: old + (old + fresh) / scale)),
        ("old-twice", _keeps(lambda old, fresh, scale: 2 * old + fresh / scale)),
        ("old-scaled", _keeps(lambda old, fresh, scale: old * scale + fresh / scale)),
    ),
)
_AGAIN = _Region(
    (Story(2.0**10, _UP, _X, _SLOPE, calls=2), Story(2.0**16, _UP, _X, _SLOPE, calls=3)),
    (("hooks-left", _leaves_hooks),),
)
_SMALL = _Region(
    (
        # Unscaled, these are nothing that FP16 holds: too small for it, or between two of its numbers.
        Story(2.0**16, (2.0**-30, 3 * 2.0**-29, 5 * 2.0**-27, 2.0**-26), (1.0, -1.0, 1.0, 2.5), (1e-9, 3e-6)),
        Story(2.0**14, (2.0**-28, 2.0**-27, 7 * 2.0**-27, 2.0**-26), (1.0, -1.0, 0.5, 1.5), (-1e-8, 3e-7)),
    ),
    (
        ("unscales-in-half", _backward(after=lambda grad, scale: (grad.half() / scale).float())),
        ("unscales-in-half", _backward(after=lambda grad, scale: (grad / scale).half().float())),
        ("unscales-in-half", _backward(after=lambda grad, scale: (grad.half() * (1 / scale)).float())),
        *_SCALE_IGNORED,
    ),
)
_GIVEN = _Region(
    (
        # Only the scale that is given fits: with the usual ones all of these are lost, or infinite.
        Story(
            2.0**24, (2.0**-42, -(2.0**-43), 2.0**-44, 2.0**-45), (1024.0, 512.0, 64.0, 256.0), (0.5, 3e-6)
        ),
        Story(2.0**-6, (2.0**14, -(2.0**15), 3 * 2.0**13, 2.0**14), (1.0, 0.5, 0.25, 2.0), (3.0, 0.7)),
    ),
    _SCALE_IGNORED,
)
_OTHERS = _Region(
    (
        Story(
            1000.0, (2.0**-26, -(2.0**-27), 2.0**-13, 3 * 2.0**-27), (1024.0, 512.0, 1.0, 256.0), (0.1, -0.3)
        ),
        Story(1.0, (0.5, -0.25, 2.0, 1.0), (1.0, 2.0, 0.5, 4.0), (3.0, 0.7), (1.0, 1.0, 1.0, 0.5)),
        Story(0.125, (8.0, -16.0, 2.0, 1.0), (1.0, 2.0, 0.5, 4.0), (3.0, 0.7)),
        Story(2.0**10, _UP, _X, (0.25,), _W_BEFORE, (-0.75,), w_shape=(2, 2), b_shape=()),
    ),
    _SCALE_IGNORED,
)
_IDLE = _Region(
    (
        Story(2.0**10, _UP, _X, _SLOPE, idle=True),
        Story(2.0**12, _UP, _X, _SLOPE, _W_BEFORE, idle=True, idle_before=(0.5,)),
    ),
    (("idle-lost", _keeps(lambda old, fresh, scale: old + fresh / scale)),),
    unknown="idle-stops",
)


@checker("4.1")
def scaled_backward(ask: Ask) -> None:
    """Ask story by story, and look at what is in `.grad` afterwards, at the weights and at the loss."""
    for region in (_PLAIN, _ADDED, _AGAIN, _SMALL, _GIVEN, _OTHERS, _IDLE):
        trials: list[Seen] = []
        try:
            for story in region.stories:
                trials.append(_see(ask, story))
        except (Mistake, Contained) as stopped:
            _judge(trials, region)
            _recognise_idle(ask.call, story, stopped)
            raise
        _judge(trials, region)


def _judge(trials: Sequence[Seen], region: _Region) -> None:
    plays = [(diagnosis, partial(_play, answer)) for diagnosis, answer in region.misconceptions]
    several.recognise(trials, plays, _RTOL, otherwise=_recognise_untouched, unknown=region.unknown)


def _see(ask: Ask, story: Story) -> Seen:
    net = _Net(story)
    ask.in_words = lambda *args: _in_words(story)
    weights = net.weights()
    for _ in range(story.calls):
        loss = net.loss()
        before = loss.item()
        ask(loss, list(net.named.values()), story.scale, may_change=True)
        if loss.item() != before:
            raise Mistake("loss-changed", call=ask.call, got=f"{loss.item():.6g}", want=f"{before:.6g}")
    if net.weights() != weights:
        got, want = next((got, want) for got, want in zip(net.weights(), weights, strict=True) if got != want)
        raise Mistake("weights-changed", call=ask.call, got=got, want=want)
    for name, each in net.named.items():
        if not each.requires_grad:
            raise Mistake("frozen", call=ask.call, got=f"`{name[:-5]}.requires_grad = False`")
    return Seen(ask.call, story, several.gradients(ask.call, net.named), story.want())


def _in_words(story: Story) -> str:
    names = "[w, idle, b]" if story.idle else "[w, b]"
    call = f"`scaled_backward(loss, {names}, {story.scale!r})`"
    if story.calls > 1:
        return f"{call} (called {story.calls} times with the same parameters)"
    if story.b_shape == ():
        call += " (`w` is a matrix and `b` a single number)"
    return f"{call} (with gradients there already)" if story.w_before or story.b_before else call


def _recognise_untouched(trials: Sequence[Seen]) -> None:
    """Recognise an answer that left every `.grad` as it was, and perhaps returned the gradients."""
    first = trials[0]
    if all(several.near(each.got, each.story.before(), 0) for each in trials):
        raise Mistake("left-alone", **several.first_far(first, _RTOL))


def _recognise_idle(call: str, story: Story, stopped: Exception) -> None:
    """Recognise an error that only a parameter without a gradient causes."""
    raised = several.known_error(stopped) if isinstance(stopped, Contained) else None
    if raised is not None and story.idle:
        raise Mistake("idle-crashes", call=call, got=raised) from None
