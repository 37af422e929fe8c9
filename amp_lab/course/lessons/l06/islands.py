"""Exercise 6.3: a covariance in FP32, whatever the region, and for every device."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch._subclasses.fake_tensor import (
    FakeTensorMode,
)  # no public way to a tensor of a device that is not here

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import TENSORS, describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l06 import scenes
from amp_lab.course.lessons.l06.scenes import Region, Scene, Seen, given, must_be_unchanged, named, where

_HALF, _BRAIN, _SINGLE = torch.float16, torch.bfloat16, torch.float32
_NARROW = {_HALF, _BRAIN}


class Case(NamedTuple):
    """One run: features of size `spread` around `middle`."""

    region: Region
    dtype: torch.dtype
    shape: tuple[int, ...]
    spread: float
    middle: float

    def x(self) -> torch.Tensor:
        """Make the input, which needs a gradient."""
        draw = torch.Generator().manual_seed(sum(self.shape))
        x = torch.randn(self.shape, generator=draw) * self.spread + self.middle
        return x.to(self.dtype).requires_grad_()


CASES = (
    Case(_HALF, _HALF, (8, 3), 100.0, 300.0),
    Case(_HALF, _HALF, (9, 4), 3.0, 1000.0),
    Case(_HALF, _SINGLE, (7, 5), 2.0, 10.0),
    Case(_BRAIN, _SINGLE, (7, 4), 500.0, -300.0),
    Case(None, _HALF, (6, 3), 100.0, 50.0),
    Case(None, _SINGLE, (6, 4), 0.01, 0.5),
    Case(_HALF, _HALF, (2, 7, 3), 30.0, 200.0),
    Case(_HALF, _SINGLE, (2, 3, 6, 2), 300.0, 0.0),
)


@checker("6.3")
@scenes.as_on_cuda
def covariance(ask: Ask) -> None:
    """Ask in regions and outside of them, on the CPU; at last with a tensor that claims to be on a GPU."""
    for case in CASES:
        leaf = case.x()
        x = given(leaf)
        ask.call = f"`covariance(x)` {where(case.region)} (x is {describe(leaf)})"
        # The switch of CUDA's autocast is on as well: whoever turns off that one alone is known by it.
        scene = Scene(case.region, cuda=_HALF)
        got, state = scene.run(ask, _called, ask.answer, x)
        must_be_unchanged(ask.call, x, leaf)
        if state != (case.region is not None):
            words = {True: "on", False: "off"}
            raise Mistake("left-off", call=ask.call, got=words[state], want=words[not state])
        _judge(ask.call, got, leaf, scene.seen)
        _judge_gradient(ask, got, leaf)
    _try_elsewhere(ask)


def _called(answer: Any, x: torch.Tensor) -> tuple[Any, bool]:
    got = answer(x)
    return got, torch.is_autocast_enabled("cpu")


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
        raise Mistake(_why_narrow(seen), call=call, got=named(narrow))
    if got.dtype in _NARROW:
        raise Mistake("cast-back", call=call, got=f"`{got.dtype}`", want=f"`{want.dtype}`")
    if got.shape != want.shape and want.dim() > 2:
        raise Mistake("batches-mixed", call=call, got=tuple(got.shape), want=tuple(want.shape))
    # Judged by the variances: what nearly cancels cannot be known better than they are.
    near = 1e-5 * float(want.diagonal(dim1=-2, dim2=-1).max())
    value = expect.tensor_like(call, got, want)
    off = ~((value.double() - want.double()).abs() <= near)
    if off.any() and _centred_in_half(seen):
        first = tuple(map(int, off.nonzero()[0]))
        shown = {"got": f"{float(value[first]):.6g}", "want": f"{float(want[first]):.6g}"}
        raise Mistake("centred-in-half", call=call, **shown)
    expect.tensor(call, got, want, atol=near)


def _why_narrow(seen: Seen) -> str:
    """Say why a product was not FP32, from what the answer asked for, and in which regions."""
    calls = seen.product_calls()
    if not calls:
        return "unprotected"
    handed_narrow = any(call.dtypes & _NARROW for call in calls)
    if not any(call.cpu for call in calls):
        return "no-cast"
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
        shown = {"got": f"{float(leaf.grad[first]):.6g}", "want": f"{float(want[first]):.6g}"}
        raise Mistake("wrong-slope", call=ask.call, **shown)


def _walk_back(got: torch.Tensor, seed: torch.Tensor) -> None:
    (got * seed).sum().backward()  # type: ignore[no-untyped-call]


def _try_elsewhere(ask: Ask) -> None:
    """Try a tensor on "cuda".

    It is a fake one: PyTorch follows shapes and dtypes, with CUDA's own autocast, and needs no GPU. A few operations do
    need CUDA's library; then nothing can be said, and nothing is.
    """
    ask.call = '`covariance(x)` in an FP16 region for "cuda" (x is an FP16 tensor on "cuda")'
    scene = Scene(None, cuda=_HALF)
    with _quiet_logs():
        try:
            got = scene.run(ask, _called_elsewhere, ask.answer)
        except Contained as contained:
            if contained.fault != "exception":
                raise
            return
    narrow = scene.seen.dtypes() & _NARROW
    if narrow:
        raise Mistake("only-cpu", call=ask.call, got=named(narrow))
    if isinstance(got, torch.Tensor) and got.device.type != "cuda":
        raise Mistake("wrong-device", call=ask.call, got=got.device.type, want="cuda")


def _called_elsewhere(answer: Any) -> Any:
    with FakeTensorMode():
        return answer(torch.empty(8, 3, dtype=_HALF, device="cuda"))


@contextmanager
def _quiet_logs() -> Iterator[None]:
    # An operation that a fake tensor cannot do is logged with its traceback, and then raised, which is all we need.
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
