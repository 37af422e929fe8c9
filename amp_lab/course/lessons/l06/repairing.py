"""Exercise 6.2: a block whose norm overflows and whose product runs in FP32, repaired."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import nn

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l06 import scenes
from amp_lab.course.lessons.l06.scenes import Region, Scene, Seen, given, must_be_unchanged, named, where

_HALF, _BRAIN, _SINGLE = torch.float16, torch.bfloat16, torch.float32
_WIDTH = 16
# How far an output may be off, in parts of the sum of the sizes of what is added up: a few roundings of that dtype.
_OFF: dict[Region, float] = {_HALF: 4 * 2.0**-11, _BRAIN: 4 * 2.0**-8, None: 32 * 2.0**-24}
_GRADIENT_OFF: dict[Region, float] = {_HALF: 0.02, _BRAIN: 0.1, None: 1e-4}
_CUTS = ("clamp", "clip", "hardtanh", "minimum", "maximum", "nan_to_num", "where")
_CASTS = ("float", "double", "to", "type")


class Case(NamedTuple):
    """One run. `sizes` are the sizes of the rows of `x`, in turn."""

    region: Region
    dtype: torch.dtype
    sizes: tuple[float, ...]
    shape: tuple[int, ...]

    def x(self) -> torch.Tensor:
        """Make the input, which needs a gradient. Rows are given to 3 digits, so that FP16 holds them well."""
        draw = torch.Generator().manual_seed(len(self.shape) + len(self.sizes))
        x = torch.rand(*self.shape, _WIDTH, generator=draw) * 2 - 1
        rows = x.flatten(0, -2)
        rows *= torch.tensor([self.sizes[i % len(self.sizes)] for i in range(len(rows))]).unsqueeze(1)
        return x.to(self.dtype).requires_grad_()


_PLAIN, _LARGE = (3.0, 1.0, 20.0), (300.0, 2.0, 6000.0, 900.0)
CASES = (
    Case(_HALF, _HALF, _PLAIN, (5,)),
    Case(_HALF, _SINGLE, _PLAIN, (7,)),
    Case(_BRAIN, _SINGLE, _PLAIN, (5,)),
    Case(None, _SINGLE, _PLAIN, (6,)),
    Case(_HALF, _HALF, _LARGE, (4,)),
    Case(_HALF, _SINGLE, _LARGE, (2, 3)),
    Case(_BRAIN, _SINGLE, _LARGE, (2, 2, 3)),
    Case(None, _SINGLE, _LARGE, (5,)),
    Case(_HALF, _HALF, (0.0, 5.0), (4,)),
)


class Right(NamedTuple):
    """The right output in FP64, with how far one may be off, and what the output of a lost row would be."""

    output: torch.Tensor
    near: torch.Tensor
    lost: torch.Tensor


@checker("6.2")
@scenes.as_on_cuda
def block(ask: Ask) -> None:
    """Run the block in regions and outside of them: watch its product, then judge output and gradients."""
    for case in CASES:
        made = _made(ask)
        if case is CASES[0]:
            ask.returned = False  # a block that is made is not yet written: the stub comes as far as this
        leaf = case.x()
        x = given(leaf)
        ask.call = f"`Block({_WIDTH})` {where(case.region)} (x is {describe(leaf)})"
        scene = Scene(case.region)
        try:
            got = scene.run(ask, _forward, made, x)
        except Contained:
            _recognise_mixture(ask.call, scene.seen, case.region)
            raise
        must_be_unchanged(ask.call, x, leaf)
        _judge_parameters(ask.call, made)
        if got is None:
            raise Mistake("returned-none", call=ask.call, got=None, want="a tensor")
        _judge_product(ask.call, scene.seen, case.region)
        _judge_output(ask.call, got, made, leaf, case, scene.seen)
        if all(case.sizes):
            _judge_gradients(ask, got, made, leaf, case)


def _forward(module: Any, x: torch.Tensor) -> Any:
    return module(x)


def _made(ask: Ask) -> nn.Module:
    """Make a block, and give it weights of ours."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(62)
        got = ask(_WIDTH)
    if not isinstance(got, nn.Module):
        raise Mistake("no-module", call=ask.call, got=describe(got))
    _judge_parameters(ask.call, got)
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, own in got.named_parameters():
            if name == "gain":
                own.copy_(torch.rand(own.shape, generator=draw) + 0.5)
            elif name in _SHAPES:
                own.copy_(torch.randn(own.shape, generator=draw) / 2)
    return got


_SHAPES = {"gain": (_WIDTH,), "weight": (_WIDTH, _WIDTH), "bias": (_WIDTH,)}


def _judge_parameters(call: str, module: nn.Module) -> None:
    parameters = dict(module.named_parameters())
    for name, shape in _SHAPES.items():
        own = parameters.get(name)
        want = f"an FP32 parameter of shape {shape}"
        if own is None:
            raise Mistake("parameters-changed", call=call, name=name, got="no parameter", want=want)
        if own.dtype in (_HALF, _BRAIN):
            raise Mistake("half-parameters", call=call, name=name, got=f"`{own.dtype}`", want=f"`{_SINGLE}`")
        if own.dtype != _SINGLE or tuple(own.shape) != shape or not own.requires_grad:
            seen = f"of {own.dtype} and shape {tuple(own.shape)}, with `requires_grad={own.requires_grad}`"
            raise Mistake("parameters-changed", call=call, name=name, got=seen, want=want)


def _judge_product(call: str, seen: Seen, region: Region) -> None:
    """Look at the products with a matrix of the weight's shape: in which dtype were they computed?"""
    square = (_WIDTH, _WIDTH)
    products = [each for each in seen.products if any(shape[-2:] == square for shape in each.shapes)]
    right = region or _SINGLE
    if not products:
        raise Mistake("no-product", call=call, got="no")
    wrong = [each for each in products if set(each.dtypes) != {right}]
    if not wrong:
        return
    dtypes = set(wrong[0].dtypes)
    shown = {"call": call, "got": named(dtypes), "want": named({right}), "op": wrong[0].op}
    if wrong[0].in_place and dtypes == {_SINGLE}:
        raise Mistake("in-place", **shown)
    if dtypes == {_SINGLE} and any(not each.cpu for each in seen.product_calls()):
        raise Mistake("autocast-off", **shown)
    if dtypes & {_HALF, _BRAIN}:
        raise Mistake("half-hard-coded", **shown)
    raise Mistake("product-dtype", **shown)


def _recognise_mixture(call: str, seen: Seen, region: Region) -> None:
    """Recognise a product that died of a fixed dtype on one side of it, where no autocast brings both together."""
    last = set(seen.products[-1].dtypes) if seen.products else set()
    if region is None and last & {_HALF, _BRAIN}:
        raise Mistake("half-hard-coded", call=call, got=named(last), want="FP32") from None


def _right(module: Any, leaf: torch.Tensor, region: Region) -> Right:
    x = leaf.detach().double()
    gain, weight, bias = (each.detach().double() for each in (module.gain, module.weight, module.bias))
    normed = x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6) * gain
    size = normed.abs() @ weight.abs() + bias.abs()
    return Right(
        torch.relu(normed @ weight + bias),
        _OFF[region] * size,
        torch.relu(bias).expand(x.shape),
    )


def _judge_output(call: str, got: Any, module: nn.Module, leaf: torch.Tensor, case: Case, seen: Seen) -> None:
    right = _right(module, leaf, case.region)
    dtype = NAMES_OF[case.region]
    if not isinstance(got, torch.Tensor) or got.shape != leaf.shape or not got.is_floating_point():
        want = f"a tensor of shape {tuple(leaf.shape)}"
        raise Mistake("wrong-output", call=call, got=describe(got), want=want, dtype=dtype)
    value = got.detach().double()
    off = ~((value - right.output).abs() <= right.near)
    if not off.any():
        return
    row = int(off.any(dim=-1).flatten().nonzero()[0])  # the first row that is wrong
    got_row, want_row, lost_row, near = (
        each.flatten(0, -2)[row] for each in (value, right.output, right.lost, right.near)
    )
    worst = int((got_row - want_row).abs().nan_to_num(nan=torch.inf).argmax())
    shown = {"call": call, "got": _number(got_row[worst]), "want": _number(want_row[worst]), "dtype": dtype}
    raise Mistake(_what_went_wrong(got_row, lost_row, near, seen), **shown)


NAMES_OF: dict[Region, str] = {_HALF: "FP16", _BRAIN: "BF16", None: "FP32"}


def _what_went_wrong(got: torch.Tensor, lost: torch.Tensor, near: torch.Tensor, seen: Seen) -> str:
    if ((got - lost).abs() <= near).all():
        late = any(call.infinite for call in seen.called(*_CASTS))
        return "cast-too-late" if late else "norm-overflows"
    if seen.called(*_CUTS):
        return "clamps"
    return "wrong-output" if got.isfinite().all() else "row-not-finite"


def _judge_gradients(ask: Ask, got: torch.Tensor, module: Any, leaf: torch.Tensor, case: Case) -> None:
    draw = torch.Generator().manual_seed(3)
    seed = torch.rand(leaf.shape, generator=draw) - 0.5
    leaves = {"x": leaf, "gain": module.gain, "weight": module.weight, "bias": module.bias}
    if not got.requires_grad:
        raise Mistake("no-gradient", call=ask.call, name="x", got="`None`")
    ask.run(_walk_back, got, seed)
    want = _right_gradients(leaves, seed)
    for name, each in leaves.items():
        grad = each.grad
        if grad is None:
            raise Mistake("no-gradient", call=ask.call, name=name, got="`None`")
        _judge_gradient(ask.call, name, grad.double(), want[name], _GRADIENT_OFF[case.region])


def _walk_back(got: torch.Tensor, seed: torch.Tensor) -> None:
    (got.float() * seed).sum().backward()  # type: ignore[no-untyped-call]


def _right_gradients(leaves: dict[str, torch.Tensor], seed: torch.Tensor) -> dict[str, torch.Tensor]:
    wide = {name: each.detach().double().requires_grad_() for name, each in leaves.items()}
    x, gain, weight, bias = wide.values()
    normed = x * torch.rsqrt((x * x).mean(dim=-1, keepdim=True) + 1e-6) * gain
    grads = torch.autograd.grad((torch.relu(normed @ weight + bias) * seed).sum(), [*wide.values()])
    return dict(zip(wide, grads, strict=True))


def _judge_gradient(call: str, name: str, got: torch.Tensor, want: torch.Tensor, off: float) -> None:
    """Judge each row by its own largest gradient: those of large rows of `x` are small."""
    rows = [each.reshape(-1, each.shape[-1]) if name == "x" else each.reshape(1, -1) for each in (got, want)]
    largest = rows[1].abs().amax(dim=1, keepdim=True)
    wrong = ~((rows[0] - rows[1]).abs() <= off * largest + 2.0**-24)
    if wrong.any():
        first = tuple(map(int, wrong.nonzero()[0]))
        raise Mistake(
            "wrong-gradient", call=call, name=name, got=_number(rows[0][first]), want=_number(rows[1][first])
        )


def _number(value: torch.Tensor) -> str:
    return f"{float(value):.6g}"
