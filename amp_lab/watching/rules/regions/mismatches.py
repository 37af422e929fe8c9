"""Errors about two dtypes that do not go together, told from what had happened before: regions and backward."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import torch

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.watching.recording.events import (
    Backward,
    Forward,
    Raised,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.regions.autocasting import (
    HALVES,
    about_dtypes,
    an,
    dtypes_of,
    entered,
    first_line,
    half_in_words,
    half_or_none,
    is_island,
    is_on,
    last_before,
    left_by,
    place,
    ran_in,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule

# A call of an operator that writes: the name of an in-place form, or nothing for out=.
_WRITES: Final = re.compile(r"\.([a-z]\w*[a-z0-9]_)\(|\bout=")


@rule("island-without-cast", Severity.WRONG, title="an FP32 part is given 16-bit tensors")
def island_without_cast(run: Run) -> Iterator[Finding]:
    """Inside `autocast(enabled=False)` nothing is cast, not even what the region around it has left in 16 bits.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            hidden = model[:2](x)
            with autocast(device_type, enabled=False):
                out = model[2](hidden)
            loss = loss_fn(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            hidden = model[:2](x)
            with autocast(device_type, enabled=False):
                out = model[2](hidden.float())
            loss = loss_fn(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    raised = about_dtypes(run)
    left = left_by(run, raised) if raised else []
    if raised and left and is_island(left[0], entered(run)):
        island = left[0]
        around = next(each for each in left + list(entered(run).values()) if is_on(each, island.device_type))
        yield Finding(
            f"In the part of {place(island)}, where autocast is off, {an(around.dtype)} tensor from the "
            f"region around it met FP32 weights: {first_line(raised)}.",
            (island, raised),
            {"autocast around it": around.dtype},
            Fix(raised, say="Call .float() on what goes into the part without autocast."),
        )


@rule("one-weight-two-dtypes", Severity.WRONG, title="the same weights in two regions of different dtype")
def one_weight_two_dtypes(run: Run) -> Iterator[Finding]:
    """A model runs in a BF16 and in an FP16 region, one inside the other.

    The 16-bit copies of weights are kept until the outermost region ends, one for each weight, in whichever dtype it
    was made first. In the inner region that copy is found and used, beside inputs of the other dtype.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            out = model(x)
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(out, y) + model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y) + model(x).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    raised = about_dtypes(run)
    left = [each for each in left_by(run, raised) if is_on(each)] if raised else []
    if (
        raised
        and {each.dtype for each in left} == set(HALVES)
        and all(_named(raised, each) for each in HALVES)
    ):
        inner, outer = left[0], next(each for each in left if each.dtype != left[0].dtype)
        yield Finding(
            f"The {dtype_in_words(inner.dtype)} region of {place(inner)} lies inside the {dtype_in_words(outer.dtype)} "
            f"region of {place(outer)}, and found {dtype_in_words(outer.dtype)} copies of the same weights: "
            f"{first_line(raised)}.",
            (outer, inner, raised),
            {"outer region": outer.dtype, "inner region": inner.dtype},
            Fix(inner, say="Use one dtype for both, or give each a region of its own, one after the other."),
        )


def _named(raised: Raised, dtype: torch.dtype) -> bool:
    """Whether a message speaks of a dtype, as C++ writes it: "Half", "c10::BFloat16"."""
    return {torch.float16: "Half", torch.bfloat16: "BFloat16"}[dtype] in raised.message


@rule("in-place-in-region", Severity.WRONG, title="an operator that writes in place is not autocast")
def in_place_in_region(run: Run) -> Iterator[Finding]:
    """In a region, an operator that writes into a given tensor was given two dtypes.

    The in-place forms (`addmm_`) and those with `out=` must keep the dtype of what they write into, so autocast
    leaves them alone, and their arguments as well.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            hidden = model[0](x)
            hidden.addmm_(x, model[0].weight)
            loss = loss_fn(model[2](hidden), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            hidden = model[0](x)
            hidden = torch.addmm(hidden, x, model[0].weight)
            loss = loss_fn(model[2](hidden), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    raised = about_dtypes(run)
    region = next(iter(left_by(run, raised)), None) if raised else None
    call = _WRITES.search(raised.where.text) if raised and raised.where else None
    if raised and region and call and is_on(region):
        name = call[1] or "An operator with out="
        yield Finding(
            f"{name} at {place(raised)} writes into a tensor that is there already, and autocast casts nothing for "
            f"such operators, in the {dtype_in_words(region.dtype)} region neither: {first_line(raised)}.",
            (region, raised),
            {"dtype of the region": region.dtype},
            Fix(
                raised,
                say="Use the form that returns a new tensor: c = torch.addmm(c, a, b) for c.addmm_(a, b).",
            ),
        )


@rule("output-outside-region", Severity.WRONG, title="a 16-bit output is used behind the region")
def output_outside_region(run: Run) -> Iterator[Finding]:
    """What comes out of a region is in 16 bits, and behind the region nobody casts it.

    Wrong:
        optimizer.zero_grad()
        optimizer_b.zero_grad()
        with autocast(device_type, torch.float16):
            hidden = model(x)
        loss = loss_fn(model_b(hidden.expand(-1, 8)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.step(optimizer_b)
        scaler.update()

    Right:
        optimizer.zero_grad()
        optimizer_b.zero_grad()
        with autocast(device_type, torch.float16):
            hidden = model(x)
            loss = loss_fn(model_b(hidden.expand(-1, 8)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.step(optimizer_b)
        scaler.update()
    """
    raised = about_dtypes(run)
    if raised is None or left_by(run, raised) or last_before(run, Backward, raised):
        return
    made = [each for each in run.of(Forward) if each.step == raised.step and not each.raised and ran_in(each)]
    made = [each for each in made if dtypes_of(each.outputs) & set(HALVES)]
    if made:
        source, dtypes = made[-1], half_in_words(dtypes_of(made[-1].outputs))
        at = place(raised) if raised.where else "The code behind the region"
        yield Finding(
            f"{at} was given the {dtypes} output of {place(source)} after its region had ended, where nothing is cast "
            f"any more: {first_line(raised)}.",
            (source, raised),
            {"dtype of the output": tuple(sorted(dtypes_of(source.outputs), key=str))},
            Fix(
                raised,
                say="Move it into the region, which casts; or call .float() on the output where the region ends.",
            ),
        )


@rule("custom-function-dtype", Severity.WRONG, title="a custom backward does not know of autocast")
def custom_function_dtype(run: Run) -> Iterator[Finding]:
    """The backward of a custom `torch.autograd.Function` raised an error about dtypes.

    Its forward ran in a region, and was cast there; its backward runs behind the region, where nothing casts, with a
    gradient in 16 bits and saved tensors in FP32. `custom_fwd` and `custom_bwd` give both the same autocast state.

    Wrong:
        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                return a @ b
            @staticmethod
            def backward(ctx, grad):
                a, b = ctx.saved_tensors
                return grad @ b.t(), a.t() @ grad
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(Product.apply(x, model[0].weight)[:, :1], y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        from torch.amp import custom_bwd, custom_fwd
        class Product(torch.autograd.Function):
            @staticmethod
            @custom_fwd(device_type="cpu")
            def forward(ctx, a, b):
                ctx.save_for_backward(a, b)
                return a @ b
            @staticmethod
            @custom_bwd(device_type="cpu")
            def backward(ctx, grad):
                a, b = ctx.saved_tensors
                return grad @ b.t(), a.t() @ grad
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(Product.apply(x, model[0].weight)[:, :1], y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    raised = about_dtypes(run)
    backward = last_before(run, Backward, raised) if raised else None
    cast = any(is_on(each) for each in entered(run).values() if raised and each.step == raised.step)
    if raised and backward and backward.raised and cast and half_or_none(backward.autocast) is None:
        yield Finding(
            f"backward() raised an error about dtypes behind the region, as it does where a custom "
            f"torch.autograd.Function computes its backward without autocast: {first_line(raised)}.",
            (backward, raised),
            {},
            Fix(
                backward,
                say='Decorate its forward with @torch.amp.custom_fwd(device_type="…"), and its backward with '
                '@torch.amp.custom_bwd(device_type="…").',
            ),
        )
