"""Exercise 6.3: a covariance in FP32, whatever the region, and for every device."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import TENSORS, describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l06 import scenes
from amp_lab.course.lessons.l06.elsewhere import is_missing_here
from amp_lab.course.lessons.l06.scenes import Scene, given, must_be_unchanged, named, number, where
from amp_lab.course.lessons.l06.seeing import Region, Seen

_HALF, _BRAIN, _SINGLE = torch.float16, torch.bfloat16, torch.float32
_NARROW = {_HALF, _BRAIN}


class Case(NamedTuple):
    """One run: features of size `spread` around `middle`; `learns` says whether `x` needs a gradient.

    If not `recorded`, it runs under `torch.no_grad()`.
    """

    region: Region
    dtype: torch.dtype
    shape: tuple[int, ...]
    spread: float
    middle: float
    learns: bool = True
    recorded: bool = True

    def x(self) -> torch.Tensor:
        """Make the input."""
        draw = torch.Generator().manual_seed(sum(self.shape))
        x = torch.randn(self.shape, generator=draw) * self.spread + self.middle
        return x.to(self.dtype).requires_grad_(self.learns)


CASES = (
    Case(_HALF, _HALF, (8, 3), 100.0, 300.0),
    Case(_HALF, _HALF, (9, 4), 3.0, 1000.0),
    Case(_HALF, _SINGLE, (7, 5), 2.0, 10.0),
    Case(_BRAIN, _SINGLE, (7, 4), 500.0, -300.0),
    Case(None, _HALF, (6, 3), 100.0, 50.0),
    Case(None, _SINGLE, (6, 4), 0.01, 0.5),
    Case(_HALF, _HALF, (2, 7, 3), 30.0, 200.0),
    Case(_HALF, _SINGLE, (2, 3, 6, 2), 300.0, 0.0),
    Case(_HALF, _SINGLE, (5, 4), 5.0, 20.0, learns=False),
    Case(_HALF, _HALF, (4, 3), 50.0, 100.0, learns=False, recorded=False),
)
_ELSEWHERE = Case(_HALF, _HALF, (8, 3), 20.0, 100.0)


@checker("6.3")
@scenes.as_on_cuda
def covariance(ask: Ask) -> None:
    """Ask in regions and outside of them, on the CPU; at last with tensors that claim to be elsewhere."""
    for case in CASES:
        # In a region the switch of CUDA's autocast is on as well: whoever turns off that one alone is known by it.
        leaf, got, seen = _run(ask, case, cuda=_HALF if case.region else None)
        _judge(ask.call, got, leaf, seen)
        if case.learns:
            _judge_gradient(ask, got, leaf)
    _try_without_cuda(ask, CASES[0])
    _try_elsewhere(ask, "cuda", "only-cpu")
    _try_elsewhere(ask, "xpu", "devices-listed")


def _run(ask: Ask, case: Case, *, cuda: Region) -> tuple[torch.Tensor, Any, Seen]:
    leaf = case.x()
    x = given(leaf, transposed=len(case.shape) > 2)
    quietly = "" if case.recorded else ", under `torch.no_grad()`"
    ask.call = f"`covariance(x)` {where(case.region)}{quietly} (x is {describe(leaf)})"
    scene = Scene(case.region, cuda=cuda, recorded=case.recorded)
    got = scene.run(ask, ask.answer, x)
    must_be_unchanged(ask.call, x, leaf)
    return leaf, got, scene.seen


def _try_without_cuda(ask: Ask, case: Case) -> None:
    """Run a case again that went well, with the switch of CUDA's autocast off: nothing else can make a difference."""
    leaf, got, seen = _run(ask, case, cuda=None)
    narrow = seen.dtypes() & _NARROW
    if narrow:
        raise Mistake("asks-for-cuda", call=ask.call, got=named(narrow))
    _judge(ask.call, got, leaf, seen)


def right(x: torch.Tensor) -> torch.Tensor:
    """Return the covariance in FP64."""
    wide = x.double()
    centred = wide - wide.mean(dim=-2, keepdim=True)
    return centred.mT @ centred / (x.shape[-2] - 1)


def _judge(call: str, got: Any, leaf: torch.Tensor, seen: Seen) -> None:
    want = right(leaf.detach()).float()
    if type(got) not in TENSORS:
        expect.tensor_like(call, got, want)
    narrow = seen.dtypes() & _NARROW
    if narrow:
        raise Mistake(_why_narrow(seen, narrow, leaf.dtype), call=call, got=named(narrow))
    if got.dtype in _NARROW:
        raise Mistake("cast-back", call=call, got=f"`{got.dtype}`", want=f"`{want.dtype}`")
    if got.shape != want.shape and want.dim() > 2:
        raise Mistake("batches-mixed", call=call, got=tuple(got.shape), want=tuple(want.shape))
    # Judged by the variances: what nearly cancels cannot be known better than they are.
    near = 1e-5 * float(want.diagonal(dim1=-2, dim2=-1).max())
    value = expect.tensor_like(call, got, want)
    off = ~((value.double() - want.double()).abs() <= near)
    if off.any():
        first = tuple(map(int, off.nonzero()[0]))
        shown = {"call": call, "got": number(value[first]), "want": number(want[first])}
        if _centred_in_half(seen):
            raise Mistake("centred-in-half", **shown)
        if _cancels(value, want, leaf.detach().double()):
            raise Mistake("cancels", **shown)
    expect.tensor(call, got, want, atol=near)


def _cancels(value: torch.Tensor, want: torch.Tensor, x: torch.Tensor) -> bool:
    """Return whether errors are as large as roundings of sums of `x * x`, from which no mean was taken before."""
    size = float(x.square().sum(dim=-2).max()) / (x.shape[-2] - 1)
    return bool(((value.double() - want.double()).abs() <= 8 * 2.0**-24 * size).all())


def _why_narrow(seen: Seen, narrow: set[torch.dtype], given_in: torch.dtype) -> str:
    """Say why a product was not FP32, from what the answer asked for, and in which regions."""
    calls = seen.product_calls()
    if not calls:
        return "unprotected"
    handed_narrow = any(call.dtypes & _NARROW for call in calls)
    if not any(call.cpu for call in calls):
        return "no-cast" if narrow == {given_in} else "narrowed"
    if not any(call.cuda for call in calls):
        return "only-cuda"
    return "unprotected" if handed_narrow else "not-disabled"


def _centred_in_half(seen: Seen) -> bool:
    return any(call.dtypes & _NARROW for call in seen.called("mean", "sub", "subtract", "sum", "rsub"))


def _judge_gradient(ask: Ask, got: torch.Tensor, leaf: torch.Tensor) -> None:
    if not got.requires_grad:
        raise Mistake("no-way-back", call=ask.call, got="`requires_grad=False`")
    draw = torch.Generator().manual_seed(1)
    seed = (torch.rand(got.shape, generator=draw) - 0.5) / 8
    ask.run(_walk_back, got, seed)
    if leaf.grad is None:
        raise Mistake("no-way-back", call=ask.call, got="its `.grad` is None")
    wide = leaf.detach().double().requires_grad_()
    (want,) = torch.autograd.grad((right(wide) * seed).sum(), wide)
    near = (2e-3 if leaf.dtype == _HALF else 1e-4) * want.abs().max() + 2.0**-24
    off = ~((leaf.grad.double() - want).abs() <= near)
    if off.any():
        first = tuple(map(int, off.nonzero()[0]))
        shown = {"got": number(leaf.grad[first]), "want": number(want[first])}
        raise Mistake("wrong-slope", call=ask.call, **shown)


def _walk_back(got: torch.Tensor, seed: torch.Tensor) -> None:
    (got * seed).sum().backward()  # type: ignore[no-untyped-call]


def _try_elsewhere(ask: Ask, kind: str, diagnosis: str) -> None:
    """Try a tensor that claims to be on a device of another type.

    An answer that needs the real device (it synchronizes, say) may fail here. What was seen until then is judged.
    """
    leaf = _ELSEWHERE.x()
    x = given(leaf)
    ask.call = f'`covariance(x)` in an FP16 region for "{kind}" (x is FP16, and says that it is on "{kind}")'
    scene = Scene(_HALF, claims=kind)
    error: Contained | None = None
    try:
        got = scene.run(ask, ask.answer, x)
    except Contained as contained:
        error = contained
    narrow = scene.seen.dtypes() & _NARROW
    if narrow:
        raise Mistake(diagnosis, call=ask.call, got=named(narrow), kind=kind)
    if error is not None:
        if is_missing_here(error.error):
            return
        raise error
    if scene.device is not None and scene.device.left and type(got) in TENSORS:
        raise Mistake("wrong-device", call=ask.call, got="cpu", want=kind)
    _judge(ask.call, got, leaf, scene.seen)
