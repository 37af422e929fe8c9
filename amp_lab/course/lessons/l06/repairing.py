"""Exercise 6.2: a block whose norm overflows and whose product runs in FP32, repaired."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.lessons.l06 import scenes
from amp_lab.course.lessons.l06.drawing import CASES, SHAPES, WIDTH, Case, Leaves, Right, parameters, right
from amp_lab.course.lessons.l06.scenes import NAMES, Scene, given, must_be_unchanged, named, number, where
from amp_lab.course.lessons.l06.seeing import CASTS, Product, Region, Seen

_HALF, _BRAIN, _SINGLE = torch.float16, torch.bfloat16, torch.float32
_GRADIENT_OFF: dict[Region, float] = {_HALF: 0.02, _BRAIN: 0.1, None: 1e-4}
_CUTS = ("clamp", "clamp_min", "clamp_max", "clip", "hardtanh", "minimum", "maximum", "nan_to_num", "where")
_LARGEST_HALF = 65504.0
_SMALL_ROW = 0.1  # from here on, the 1e-6 under the root can be seen


@checker("6.2")
@scenes.as_on_cuda
def block(ask: Ask) -> None:
    """Run the block in regions and outside of them: watch its product, then judge output and gradients."""
    for case in CASES:
        made = _made(ask)
        if case is CASES[0]:
            ask.returned = False  # a block that is made is not yet written: the stub comes as far as this
        leaf = case.x()
        got = _run(ask, made, leaf, case)
        if case.learns and all(case.sizes):
            _judge_gradients(ask, got, made, leaf, case)
        if case is CASES[1]:
            _run_with_other_parameters(ask, made, leaf, case)


def _run(ask: Ask, made: nn.Module, leaf: torch.Tensor, case: Case) -> Any:
    """Run the block once, judge all but the gradients, and return the output."""
    x = given(leaf, transposed=len(case.shape) > 1)
    quietly = "" if case.learns else ", under `torch.no_grad()`"
    ask.call = f"`Block({WIDTH})` {where(case.region)}{quietly} (x is {describe(leaf)})"
    before = dict(made.named_parameters())
    values = {name: each.detach().clone() for name, each in before.items()}
    scene = Scene(case.region, recorded=case.learns)
    try:
        got = scene.run(ask, _forward, made, x)
    except Contained:
        _recognise_mixture(ask.call, scene.seen, case.region)
        raise
    must_be_unchanged(ask.call, x, leaf)
    _judge_parameters(ask.call, made)
    _judge_same_parameters(ask.call, made, before, values)
    if got is None:
        raise Mistake("returned-none", call=ask.call, got=None, want="a tensor")
    _judge_product(ask.call, scene.seen, case, leaf.numel() * WIDTH)
    _judge_output(ask.call, got, made, leaf, case, scene.seen)
    return got


def _forward(module: Any, x: torch.Tensor) -> Any:
    return module(x)


def _made(ask: Ask) -> nn.Module:
    """Make a block, and give it weights of ours."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(62)
        got = ask(WIDTH)
    if not isinstance(got, nn.Module):
        raise Mistake("no-module", call=ask.call, got=describe(got))
    _judge_parameters(ask.call, got)
    _give_parameters(got, parameters())
    return got


def _give_parameters(module: nn.Module, values: Leaves) -> None:
    with torch.no_grad():
        for name, own in module.named_parameters():
            if name in values:
                own.copy_(values[name])


def _run_with_other_parameters(ask: Ask, made: nn.Module, leaf: torch.Tensor, case: Case) -> None:
    """Run the same block after its parameters changed in place, as an optimizer changes them."""
    _give_parameters(made, parameters(5))
    try:
        _run(ask, made, leaf, case)
    except Mistake as mistake:
        if mistake.diagnosis in ("wrong-output", "clamps"):
            shown = {key: mistake.observed[key] for key in ("call", "got", "want")}
            raise Mistake("stale-copy", **shown) from None
        raise


def _judge_parameters(call: str, module: nn.Module) -> None:
    own_by_name = dict(module.named_parameters())
    for name, shape in SHAPES.items():
        own = own_by_name.get(name)
        want = f"an FP32 parameter of shape {shape}"
        if own is None:
            raise Mistake("parameters-changed", call=call, name=name, got="no parameter", want=want)
        if own.dtype in (_HALF, _BRAIN):
            raise Mistake("half-parameters", call=call, name=name, got=f"`{own.dtype}`", want=f"`{_SINGLE}`")
        if own.dtype != _SINGLE or tuple(own.shape) != shape or not own.requires_grad:
            seen = f"of {own.dtype} and shape {tuple(own.shape)}, with `requires_grad={own.requires_grad}`"
            raise Mistake("parameters-changed", call=call, name=name, got=seen, want=want)


def _judge_same_parameters(call: str, module: nn.Module, before: dict[str, Any], values: Leaves) -> None:
    after = dict(module.named_parameters())
    for name in SHAPES:
        if after[name] is not before[name]:
            got, want = "another object", "the one that it was, which an optimizer knows"
            raise Mistake("parameters-changed", call=call, name=name, got=got, want=want)
        if not torch.equal(after[name].detach(), values[name]):
            got, want = "of other numbers", "what it was"
            raise Mistake("parameters-changed", call=call, name=name, got=got, want=want)


def _judge_product(call: str, seen: Seen, case: Case, needed: int) -> None:
    """Look at the products: were the `needed` multiplications made in the region's dtype?"""
    dtype = case.region or _SINGLE
    wrong = [each for each in seen.products if set(each.dtypes) != {dtype}]
    if (
        sum(each.work for each in wrong) * 4 < needed
    ):  # a small one may help in FP32, for the mean of squares, say
        done = sum(each.work for each in seen.products if set(each.dtypes) == {dtype})
        if done < needed:
            share = f"{100 * done // needed} %" if done else "nothing"
            raise Mistake("no-product", call=call, got=share, want=NAMES[dtype])
        return
    worst = max(wrong, key=lambda each: each.work)
    dtypes = set(worst.dtypes)
    shown = {"call": call, "got": named(dtypes), "want": NAMES[dtype], "op": worst.op}
    if worst.in_place and dtypes == {_SINGLE} and not _ran_with_autocast_off(seen, worst):
        raise Mistake("in-place", **shown)
    if dtypes == {_SINGLE} and any(not each.cpu for each in seen.product_calls()):
        raise Mistake("autocast-off", **shown)
    if dtypes & {_HALF, _BRAIN}:
        raise Mistake("half-hard-coded", **shown)
    raise Mistake("product-dtype", **shown)


def _ran_with_autocast_off(seen: Seen, product: Product) -> bool:
    """Return whether autocast was off wherever a product in place was asked for: then it is off in the first place."""
    calls = [each for each in seen.product_calls() if each.name == product.op.partition(".")[0]]
    return bool(calls) and not any(each.cpu for each in calls)


def _recognise_mixture(call: str, seen: Seen, region: Region) -> None:
    """Recognise a product that died of a fixed dtype on one side of it, where no autocast brings both together."""
    last = set(seen.products[-1].dtypes) if seen.products else set()
    if region is None and last & {_HALF, _BRAIN}:
        raise Mistake("half-hard-coded", call=call, got=named(last), want="FP32") from None


def _judge_output(call: str, got: Any, module: nn.Module, leaf: torch.Tensor, case: Case, seen: Seen) -> None:
    leaves = {name: each.detach() for name, each in module.named_parameters()}
    found = right(leaf.detach(), leaves, case.region)
    dtype = NAMES[case.region or _SINGLE]
    if not isinstance(got, torch.Tensor) or got.shape != leaf.shape or not got.is_floating_point():
        want = f"a tensor of shape {tuple(leaf.shape)}"
        raise Mistake("wrong-output", call=call, got=describe(got), want=want, dtype=dtype)
    value = got.detach().double()
    off = ~((value - found.output).abs() <= found.near)
    if off.any():
        _explain_output(call, value, off, leaf.detach(), leaves, case, seen)
    if case.region is not None and scenes.without_products_rounding(got, found.output, found.size):
        raise Mistake("thrown-away", call=call, got="FP32's", want=f"{dtype}'s", dtype=dtype)


def _explain_output(
    call: str,
    value: torch.Tensor,
    off: torch.Tensor,
    x: torch.Tensor,
    leaves: Leaves,
    case: Case,
    seen: Seen,
) -> None:
    row = int(off.any(dim=-1).flatten().nonzero()[0])  # the first row that is wrong
    got, x = value.flatten(0, -2)[row], x.flatten(0, -2)[row]
    found = right(x, leaves, case.region)
    worst = int((got - found.output).abs().nan_to_num(nan=torch.inf).argmax())
    shown = {
        "got": number(got[worst]),
        "want": number(found.output[worst]),
        "dtype": NAMES[case.region or _SINGLE],
    }
    diagnosis = _what_went_wrong(got, x, leaves, found, seen)
    raise Mistake(diagnosis, call=call, size=number(x.abs().max()), **shown)


def _what_went_wrong(got: torch.Tensor, x: torch.Tensor, leaves: Leaves, found: Right, seen: Seen) -> str:
    lost = torch.relu(leaves["bias"].double())
    if ((got - lost).abs() <= found.near).all() and x.any():
        late = any(call.infinite for call in seen.called(*CASTS))
        return "cast-too-late" if late else "norm-overflows"
    if _is_cut(got, x, leaves, found, seen):
        return "clamps"
    if not got.isfinite().all():
        return "row-not-finite"
    return "small-row" if 0 < x.abs().max() < _SMALL_ROW else "wrong-output"


def _is_cut(got: torch.Tensor, x: torch.Tensor, leaves: Leaves, found: Right, seen: Seen) -> bool:
    """Return whether a row is what comes out if its entries, or their squares, are cut off at a bound that was used."""
    wide = x.double()
    for bound in {_LARGEST_HALF, *(abs(each) for call in seen.called(*_CUTS) for each in call.numbers)}:
        cut = right(wide.clamp(-bound, bound), leaves, _HALF).output
        squares = (wide * wide).clamp(max=bound).mean(dim=-1, keepdim=True)
        root = torch.sqrt((wide * wide).mean(dim=-1, keepdim=True) + 1e-6) * torch.rsqrt(squares + 1e-6)
        bias = leaves["bias"].double()
        scaled = torch.relu((found.inner - bias) * root + bias)
        off_by = found.near * root.clamp(min=1)
        if any(bool(((got - each).abs() <= off_by).all()) for each in (cut, scaled)):
            return bool(seen.called(*_CUTS))
    return False


def _judge_gradients(ask: Ask, got: torch.Tensor, module: Any, leaf: torch.Tensor, case: Case) -> None:
    draw = torch.Generator().manual_seed(3)
    seed = torch.rand(leaf.shape, generator=draw) - 0.5
    leaves = {"x": leaf, "gain": module.gain, "weight": module.weight, "bias": module.bias}
    if not got.requires_grad:
        raise Mistake("no-gradient", call=ask.call, name="x", got="`None`")
    ask.run(_walk_back, got, seed)
    want = right_gradients(leaves, seed)
    for name, each in leaves.items():
        grad = each.grad
        if grad is None:
            raise Mistake("no-gradient", call=ask.call, name=name, got="`None`")
        share = gradient_off(name, grad.double(), want[name], case.region)
        if not share.le(1).all():
            first = tuple(map(int, (~share.le(1)).nonzero()[0]))
            shown = {
                "got": number(grad.reshape(share.shape)[first]),
                "want": number(want[name].reshape(share.shape)[first]),
            }
            raise Mistake("wrong-gradient", call=ask.call, name=name, **shown)


def _walk_back(got: torch.Tensor, seed: torch.Tensor) -> None:
    (got.float() * seed).sum().backward()  # type: ignore[no-untyped-call]


def right_gradients(leaves: Leaves, seed: torch.Tensor) -> Leaves:
    """Return the gradients of `(output * seed).sum()` in FP64."""
    wide = {name: each.detach().double().requires_grad_() for name, each in leaves.items()}
    output = right(wide["x"], wide, None).output
    grads = torch.autograd.grad((output * seed).sum(), [*wide.values()])
    return dict(zip(wide, grads, strict=True))


def gradient_off(name: str, got: torch.Tensor, want: torch.Tensor, region: Region) -> torch.Tensor:
    """Return how far each gradient is off, in parts of what is allowed, by rows.

    Each row of `x` is judged by its own largest gradient: those of large rows are small.
    """
    got, want = (
        each.reshape(-1, each.shape[-1]) if name == "x" else each.reshape(1, -1) for each in (got, want)
    )
    largest = want.abs().amax(dim=1, keepdim=True)
    return (got - want).abs() / (_GRADIENT_OFF[region] * largest + 2.0**-24)
