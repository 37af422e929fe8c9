"""Exercise 6.5: the cross-entropy of a sigmoid, from logits, where autocast refuses it from probabilities."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import TENSORS, describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l06 import scenes
from amp_lab.course.lessons.l06.scenes import Scene, first_line, given, must_be_unchanged, where
from amp_lab.course.lessons.l06.seeing import CASTS, Call, Region, Seen

_HALF, _BRAIN, _SINGLE = torch.float16, torch.bfloat16, torch.float32
_RTOL, _ATOL = 1e-5, 2e-6
_SATURATED = 10.0  # among mild logits, probabilities do no harm that could be seen
_MEDIUM = (3.5, 4.0, 5.5, 7.0, 9.0, 10.5)
_CUTS = ("clamp", "clip", "clamp_min", "clamp_max", "nan_to_num", "minimum", "maximum")


class Case(NamedTuple):
    """One run: logits, the first of them extreme and with the wrong targets if `extreme`, and targets.

    With `sure`, all logits are large and all targets right, so that the loss is tiny. With `medium`, logits are of both
    signs and of a size that shows where a formula is replaced by its limit, and targets are right, soft and wrong.
    `scale` is what the loss is multiplied by before it is walked back.
    """

    region: Region
    dtype: torch.dtype
    shape: tuple[int, ...]
    extreme: bool
    soft: bool = False
    sure: bool = False
    medium: tuple[float, ...] = ()
    scale: float = 1024.0
    learns: bool = True

    def tensors(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Make the logits and the targets."""
        draw = torch.Generator().manual_seed(sum(self.shape) + self.extreme)
        logits = torch.rand(self.shape, generator=draw) * 6 - 3
        targets = torch.rand(self.shape, generator=draw)
        if not self.soft:
            targets = targets.round()
        if self.extreme:
            flat, wanted = logits.view(-1), targets.view(-1)
            count = min(4, flat.numel())
            flat[:count] = torch.tensor([20.0, -20.0, 18.0, 12.0])[:count]
            wanted[:count] = torch.tensor([0.0, 1.0, 1.0, 0.0])[:count]
        if self.sure:
            targets, logits = (logits > 0).float(), logits.sign() * (17 + logits.abs())
        if self.medium:
            sizes = torch.tensor(_MEDIUM).repeat_interleave(len(self.medium))
            logits = torch.cat([sizes, -sizes])
            targets = torch.tensor(self.medium).repeat(len(_MEDIUM))
            targets = torch.cat([targets, 1 - targets])
        return logits.to(self.dtype).requires_grad_(self.learns), targets


CASES = (
    Case(_HALF, _SINGLE, (6,), extreme=False),
    Case(_HALF, _HALF, (8,), extreme=True),
    Case(_HALF, _SINGLE, (8,), extreme=True),
    Case(_HALF, _HALF, (5,), extreme=False, soft=True),
    Case(_HALF, _HALF, (2, 3, 4), extreme=True, soft=True),
    Case(_HALF, _HALF, (), extreme=True),
    Case(_BRAIN, _SINGLE, (4, 3), extreme=True),
    Case(_HALF, _HALF, (8,), extreme=False, scale=64.0),
    Case(_HALF, _SINGLE, (3, 4, 2), extreme=False, sure=True),
    Case(_HALF, _SINGLE, (12,), extreme=False, medium=(1.0,)),
    Case(_HALF, _SINGLE, (24,), extreme=False, medium=(0.9, 0.0)),
    Case(_HALF, _SINGLE, (7,), extreme=False, learns=False),
)
# So many that 1/n is among FP16's subnormal numbers: a gradient that is rounded before it is scaled has lost digits.
_LARGE = Case(_HALF, _HALF, (2**17,), extreme=True)


_LOOPS = 24  # calls for 24 logits: an answer that takes one after the other would need minutes for so many


@checker("6.5")
@scenes.as_on_cuda
def loss(ask: Ask) -> None:
    """Compare the loss and its gradient with FP64, in regions with CUDA's policy."""
    calls = 0
    for case in CASES:
        seen = _run(ask, case)
        calls = max(calls, len(seen.calls))
    if calls < _LOOPS:
        _run(ask, _LARGE)


def _run(ask: Ask, case: Case) -> Seen:
    leaf, targets = case.tensors()
    transposed = len(case.shape) > 2
    logits, own = given(leaf, transposed=transposed), given(targets, transposed=transposed)
    ask.call = f"`loss(logits, targets)` {where(case.region)} (logits: {describe(leaf)})"
    scene = Scene(case.region)
    try:
        got = scene.run(ask, ask.answer, logits, own)
    except Contained as contained:
        _recognise_refused(ask.call, contained)
        raise
    must_be_unchanged(ask.call, logits, leaf)
    must_be_unchanged(ask.call, own, targets, "2")
    _judge(ask.call, got, leaf.detach(), targets, scene.seen)
    if case.learns:
        _judge_gradient(ask, got, leaf, targets, case.scale)
    return scene.seen


def _recognise_refused(call: str, contained: Contained) -> None:
    if isinstance(contained.error, RuntimeError) and "unsafe to autocast" in str(contained.error):
        raise Mistake("bce-refused", call=call, got=first_line(contained.error)) from None


def right(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss in FP64."""
    return F.binary_cross_entropy_with_logits(logits.double(), targets.double())


def _judge(call: str, got: Any, logits: torch.Tensor, targets: torch.Tensor, seen: Seen) -> None:
    want = right(logits, targets)
    if type(got) in TENSORS and got.numel() == 1 and got.dtype == _SINGLE:
        value = float(got.detach())
        if not _near(value, float(want)):
            diagnosis = _idea(value, logits, targets, seen)
            if diagnosis is None and got.dim() == 0:
                diagnosis = "wrong-loss"
            if diagnosis:
                raise Mistake(diagnosis, call=call, got=f"{value:.6g}", want=f"{float(want):.6g}")
    expect.tensor(call, got, want.float(), rtol=_RTOL, atol=_ATOL)


def _near(value: float, want: float, rtol: float = _RTOL) -> bool:
    return abs(value - want) <= rtol * abs(want) + _ATOL


def _idea(value: float, logits: torch.Tensor, targets: torch.Tensor, seen: Seen) -> str | None:
    """Recognise what led to a wrong loss: by its value, then by what was called."""
    want = float(right(logits, targets))
    if logits.numel() > 1 and _near(value, want * logits.numel(), 1e-3):
        return "sum-for-mean"
    if _near(value, float(right(logits.sigmoid(), targets)), 2e-3):
        return "sigmoid-twice"
    logs = seen.called("log", "log1p", "log2", "log10")
    sigmoids = seen.called("sigmoid", "expit")
    if any(_HALF in call.dtypes for call in sigmoids):
        return "half-probabilities"
    far_off = not _near(value, want, 0.01)  # no rounding does that
    if _cuts(seen) and (far_off or _is_cut(value, logits, targets, seen)):
        return "patched"
    if not sigmoids and not any(call.smallest == 0 for call in seen.called("log")):
        halves = [call for call in seen.calls if _HALF in call.dtypes and call.name not in CASTS]
        return "half-loss" if not far_off and (halves or seen.called("half")) else None
    if logits.abs().max() < _SATURATED:
        return None
    return "patched" if logs and all(call.smallest > 0 for call in logs) else "probabilities"


def _cuts(seen: Seen) -> list[Call]:
    """Return the calls that may cut off what is extreme. `clamp(min=0)` alone does not: it is a part of the formula."""
    calls = seen.called(*_CUTS)
    return [call for call in calls if set(call.numbers) != {0.0} or call.name.startswith("nan")]


def _is_cut(value: float, logits: torch.Tensor, targets: torch.Tensor, seen: Seen) -> bool:
    bounds = {abs(each) for call in seen.called(*_CUTS) for each in call.numbers}
    return any(
        _near(value, float(right(logits.double().clamp(-bound, bound), targets)), 1e-4) for bound in bounds
    )


def _judge_gradient(
    ask: Ask, got: torch.Tensor, leaf: torch.Tensor, targets: torch.Tensor, scale: float
) -> None:
    if not got.requires_grad:
        raise Mistake("loss-cut-off", call=ask.call, got="`requires_grad=False`")
    ask.run(_walk_back, got, scale)
    if leaf.grad is None:
        raise Mistake("loss-cut-off", call=ask.call, got="a gradient that is None")
    logits = leaf.detach().double()
    want = scale * (logits.sigmoid() - targets.double()) / logits.numel()
    half = leaf.dtype == _HALF
    fp32 = scale / logits.numel() * 2.0**-23  # an FP32 sigmoid close to 1 is rounded, too
    # In FP16 the gradient may come in two parts that nearly cancel, each of them rounded.
    near = (scale / logits.numel() * 2.0**-10 + 2.0**-24 if half else 1e-4 * want.abs()) + fp32
    off = ~((leaf.grad.double() - want).abs() <= near)
    if off.any():
        first = tuple(map(int, off.nonzero()[0]))
        shown = {"got": f"{float(leaf.grad[first]):.6g}", "want": f"{float(want[first]):.6g}"}
        raise Mistake("wrong-loss-gradient", call=ask.call, scale=f"{scale:g}", **shown)


def _walk_back(got: torch.Tensor, scale: float) -> None:
    (got * scale).backward()  # type: ignore[no-untyped-call]
