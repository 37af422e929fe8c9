"""Exercise 6.4: an autograd function whose backward finds the state of autocast that its forward had."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l06 import scenes
from amp_lab.course.lessons.l06.scenes import (
    NAMES,
    Scene,
    first_line,
    given,
    must_be_unchanged,
    named,
    number,
    where,
    without_products_rounding,
)
from amp_lab.course.lessons.l06.seeing import Region, Seen

_HALF, _BRAIN, _SINGLE = torch.float16, torch.bfloat16, torch.float32
_OFF: dict[Region, float] = {_HALF: 4 * 2.0**-11, _BRAIN: 4 * 2.0**-8, None: 2e-6}
_SHAPES = ((5, 3), (2, 4, 6), (2, 2, 3, 5))


class Trip:
    """Forward in one region, backward in another one or outside, with an eye on both.

    With `claims`, all tensors say that they are on a device of that type, and the regions are for that one.
    """

    def __init__(
        self,
        ask: Ask,
        gram: Any,
        forward: Region,
        shape: tuple[int, ...],
        *,
        claims: str | None = None,
        draw: int = 0,
    ) -> None:
        self._ask, self._claims = ask, claims
        generator = torch.Generator().manual_seed(sum(shape) + draw)
        self.leaf = torch.randn(shape, generator=generator).requires_grad_()
        self.x = given(self.leaf, transposed=len(shape) > 3)
        self.call = ask.call = (
            f"{_made(claims or 'cpu')}.apply(x)` {where(forward)} (x is {describe(self.leaf)})"
        )
        scene = Scene(forward, claims=claims)
        self.y = scene.run(ask, _apply, gram, self.x)
        self.ahead = scene.seen
        must_be_unchanged(self.call, self.x, self.leaf)

    def back(self, region: Region, *, cuda: Region = None) -> Seen:
        """Walk back in `region`; return what was seen, and the error in `self.error` if there was one."""
        draw = torch.Generator().manual_seed(7)
        self.seed = torch.randn(self.y.shape, generator=draw).to(self.y.dtype)
        arriving = self.seed.clone()
        self._ask.call = f"{self.call}, and backward {where(region)}"
        scene = Scene(region, cuda=cuda, claims=self._claims)
        self.error: Contained | None = None
        try:
            scene.run(self._ask, _walk_back, self.y, arriving)
        except Contained as contained:
            self.error = contained
        if not torch.equal(arriving, self.seed):
            shown = {"got": describe(arriving), "want": describe(self.seed)}
            raise Mistake("gradient-changed", call=self._ask.call, **shown)
        return scene.seen


@checker("6.4")
@scenes.as_on_cuda
def make_gram(ask: Ask) -> None:
    """Watch forward in each kind of region; then backward, which must go by its own forward."""
    gram = _class(ask, "cpu")
    for region, shape in zip((_HALF, _BRAIN, None), _SHAPES, strict=True):
        _judge_forward(Trip(ask, gram, region, shape), region)
    _try_after_the_region(ask, gram)
    for ahead, back, diagnosis in (
        (_BRAIN, None, "dtype-forgotten"),
        (None, None, "always-on"),
        (None, _HALF, "follows-the-caller"),
        (_HALF, _HALF, "casts-by-hand"),
        (_HALF, _BRAIN, "follows-the-caller"),
    ):
        for shape in _SHAPES:
            trip = Trip(ask, gram, ahead, shape)
            seen = trip.back(back)
            if trip.error is not None:
                raise trip.error
            _judge_backward(ask.call, trip, seen, ahead, diagnosis)
    _try_two_at_once(ask, gram)
    _try_elsewhere(ask)


def _class(ask: Ask, device_type: str) -> Any:
    got = ask(device_type)
    if got is None:
        raise Mistake("returned-none", call=ask.call, got=None, want="a class")
    if not (isinstance(got, type) and issubclass(got, torch.autograd.Function)):
        raise Mistake("no-class", call=ask.call, got=describe(got))
    return got


def _made(device_type: str) -> str:
    return f'`make_gram("{device_type}")'


def _apply(gram: Any, x: torch.Tensor) -> Any:
    return gram.apply(x)


def _walk_back(y: torch.Tensor, seed: torch.Tensor) -> None:
    # `y.backward(seed)`. Of that call the mode above autocast would see nothing but itself: a mode is off while PyTorch
    # runs a function that it saw. The engine below is no such function.
    torch.autograd.Variable._execution_engine.run_backward(
        (y,), (seed,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def _judge_forward(trip: Trip, region: Region) -> None:
    right = region or _SINGLE
    dtypes = trip.ahead.dtypes()
    if dtypes and dtypes != {right}:
        raise Mistake("fixed-in-forward", call=trip.call, got=named(dtypes), want=NAMES[right])
    if not dtypes:
        raise Mistake("no-product", call=trip.call, got="no matrix product")
    x = trip.leaf.detach().double()
    want = x @ x.mT
    value = expect.tensor_like(trip.call, trip.y, want.to(right)).double()
    size = x.abs() @ x.abs().mT
    off = ~((value - want).abs() <= _OFF[region] * size)
    if off.any():
        first = tuple(map(int, off.nonzero()[0]))
        raise Mistake("wrong-product", call=trip.call, got=number(value[first]), want=number(want[first]))
    if region is not None and without_products_rounding(trip.y, want, size):
        raise Mistake("thrown-away", call=trip.call, got="FP32's", want=f"{NAMES[right]}'s")


def _try_after_the_region(ask: Ask, gram: Any) -> None:
    """Walk back after an FP16 region, where a function that remembers nothing dies."""
    trip = Trip(ask, gram, _HALF, _SHAPES[0])
    seen = trip.back(None)
    if trip.error is not None:
        _explain(ask, gram, trip)
    dtypes = seen.dtypes()
    if _BRAIN in dtypes:
        # Switched on again without its dtype, autocast takes the default of the CPU.
        raise Mistake("dtype-forgotten", call=ask.call, got=named(dtypes), want="FP16", region="FP16")
    _judge_backward(ask.call, trip, seen, _HALF, "casts-by-hand")


def _explain(ask: Ask, gram: Any, trip: Trip) -> NoReturn:
    """Say which decorator is missing, or for which device both are."""
    assert trip.error is not None
    call, text = ask.call, str(trip.error.error)
    if trip.error.fault != "exception" or not isinstance(trip.error.error, (RuntimeError, AttributeError)):
        raise trip.error
    shown = {"call": call, "got": first_line(trip.error.error)}
    # What custom_fwd notes, it keeps under this name; there is no public way to ask for it.
    if "_fwd_used_autocast" in text:
        raise Mistake("bwd-alone", **shown)
    if "dtype" not in text and "scalar type" not in text:
        raise trip.error
    # Where CUDA's autocast is on in BF16, one who brings back a state for "cuda" shows it by changing that.
    again = Trip(ask, gram, _HALF, _SHAPES[0])
    calls = again.back(None, cuda=_BRAIN).product_calls()
    if calls and all(each.cuda != _BRAIN for each in calls):
        raise Mistake("wrong-device-type", **shown)
    noted = hasattr(trip.y.grad_fn, "_fwd_used_autocast")
    raise Mistake("fwd-alone" if noted else "no-decorators", **shown)


def _judge_backward(call: str, trip: Trip, seen: Seen, ahead: Region, diagnosis: str) -> None:
    right = ahead or _SINGLE
    dtypes = seen.dtypes()
    if dtypes and dtypes != {right}:
        raise Mistake(diagnosis, call=call, got=named(dtypes), want=NAMES[right], region=NAMES[right])
    _judge_gradient(call, trip, ahead, bool(dtypes))
    if not dtypes:
        raise Mistake("no-product", call=call, got="no matrix product")


def _judge_gradient(call: str, trip: Trip, ahead: Region, multiplied: bool) -> None:
    x, seed = trip.leaf.detach().double(), trip.seed.double()
    want, grad = (seed + seed.mT) @ x, trip.leaf.grad
    if grad is None or grad.shape != want.shape:
        raise Mistake("gradient-missing", call=call, got=describe(grad), want=describe(want.float()))
    size = (seed.abs() + seed.abs().mT) @ x.abs()
    near = 2 * _OFF[ahead] * size
    off = ~((grad.double() - want).abs() <= near)
    if off.any():
        first = tuple(map(int, off.nonzero()[0]))
        ideas = (2 * seed @ x, seed @ x, seed.mT @ x, 2 * seed.mT @ x)
        known = any(bool(((grad.double() - idea).abs() <= near).all()) for idea in ideas)
        diagnosis = "wrong-backward" if known else "backward-off"
        raise Mistake(diagnosis, call=call, got=number(grad[first]), want=number(want[first]))
    if multiplied and ahead is not None and without_products_rounding(grad, want, size):
        raise Mistake("thrown-away", call=call, got="FP32's", want=f"{NAMES[ahead]}'s")


def _try_two_at_once(ask: Ask, gram: Any) -> None:
    """Run forward twice, in different regions and with different numbers, before either is walked back."""
    regions: tuple[Region, ...] = (_HALF, _BRAIN, None)
    trips = [Trip(ask, gram, region, _SHAPES[0], draw=10 + i) for i, region in enumerate(regions)]
    for trip, region in zip(trips, regions, strict=True):
        seen = trip.back(None)
        ask.call += f", after {len(trips)} calls of forward"
        try:
            if trip.error is not None:
                raise Mistake(
                    "not-in-ctx",
                    call=ask.call,
                    got=f"raised {first_line(trip.error.error)}",
                    want=NAMES[region or _SINGLE],
                )
            _judge_backward(ask.call, trip, seen, region, "not-in-ctx")
        except Mistake as mistake:
            shown = {"got": mistake.observed["got"], "want": mistake.observed["want"]}
            raise Mistake("not-in-ctx", call=ask.call, **shown) from None


def _try_elsewhere(ask: Ask) -> None:
    """Ask for a function for tensors that claim to be on a device which no answer names by chance."""
    gram = _class(ask, "xpu")
    regions: tuple[tuple[Region, Region], ...] = ((_HALF, None), (None, _HALF))
    for ahead, back in regions:
        trip = Trip(ask, gram, ahead, _SHAPES[1], claims="xpu")
        seen = trip.back(back)
        want = ahead or _SINGLE
        if trip.error is not None:
            if "dtype" not in str(trip.error.error) and "scalar type" not in str(trip.error.error):
                raise trip.error
            got = f"raised {first_line(trip.error.error)}"
        elif seen.dtypes() != {want}:
            got = f"computed in {named(seen.dtypes())}"
        else:
            continue
        raise Mistake("device-type-ignored", call=ask.call, got=got, want=NAMES[want])
