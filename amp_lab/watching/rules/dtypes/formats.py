"""Which format needs a loss scaler, and what nested regions and FP64 make of it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.watching.counting.wording import share_in_words
from amp_lab.watching.recording.events import (
    Backward,
    GradientsChanged,
    Noticed,
    RegionEntered,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.regions.autocasting import (
    entered,
    half_or_none,
    is_on,
    one_a_step,
    place,
    ran_in,
    scaler_asked,
    scaler_used,
    trained,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import steps_of
from amp_lab.watching.words import counted, in_words, read


@rule("scaler-with-bf16", Severity.NOTE, title="a loss scaler beside BF16")
def scaler_with_bf16(run: Run) -> Iterator[Finding]:
    """Losses are scaled, though the region is BF16.

    BF16 has FP32's range of exponents: a gradient that is not 0 in FP32 is not 0 in BF16. A scaler has nothing to
    keep, and costs a look at all gradients in each step.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.bfloat16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.bfloat16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()

    Right, with a scaler that is switched off:
        scaler = GradScaler(device_type, enabled=False)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    scaled = scaler_used(run)
    dtypes = {dtype for each in trained(run) if (dtype := ran_in(each))}
    dtypes |= {each.dtype for each in entered(run).values() if is_on(each) and each.grad}
    if scaled is None or dtypes != {torch.bfloat16}:
        return
    forwards = [each for each in trained(run) if ran_in(each)]
    if not forwards:
        return
    region = next((each for each in run.of(RegionEntered) if is_on(each) and each.grad), None)
    yield Finding(
        f"The scaler multiplied losses by {in_words(scaled.scale)}, but autocast ran in BF16"
        f"{_by_default(region)}, which has FP32's range and needs no loss scale.",
        (*([region] if region and region.where else []), forwards[0], scaled),
        {"dtype of autocast": torch.bfloat16},
        Fix(
            scaled,
            say="Leave the scaler out, or make it with enabled=False; the calls may stay."
            + (" If FP16 was meant, say dtype=torch.float16." if _by_default(region) else ""),
        ),
    )


def _by_default(region: RegionEntered | None) -> str:
    """Say so where nobody asked for BF16: it is what autocast on a CPU takes."""
    if region is None or region.where is None or region.device_type != "cpu":
        return ""
    call = re.search(r"autocast\(([^()]*)\)", region.where.text)
    return " (its default on a CPU)" if call and "," not in call[1] and "dtype" not in call[1] else ""


@rule(
    "fp16-without-scaler",
    Severity.RISK,
    title="FP16 without a loss scale",
    explains=("gradients-underflow",),
)
def fp16_without_scaler(run: Run) -> Iterator[Finding]:
    """The forward pass runs in FP16, and backward() begins with a loss that is not scaled.

    Gradients below 2^-25 (2.98e-8) are 0 in FP16, those below 2^-14 lose digits. Parts of the network stop to learn,
    in silence. Multiply the loss (a scaler does), or use BF16, which has FP32's range.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        loss.backward()
        optimizer.step()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, with a scale by hand:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(model(x), y)
        (loss * 1024).backward()
        for p in model.parameters():
            p.grad /= 1024
        optimizer.step()
    """
    if scaler_used(run) is not None or scaler_asked(run) or any(run.of(GradientsChanged)):
        return
    steps = set(steps_of(each for each in trained(run) if ran_in(each) == torch.float16))
    bare = [each for each in run.of(Backward) if each.step in steps and _unscaled(each)]
    if not bare:
        return
    zeros = _zeros(run)
    switched_off = " (the scaler is switched off)" if bare[0].scaled_by is not None else ""
    yield Finding(
        f"The forward pass ran in FP16 and the loss was not scaled{switched_off}, in "
        f"{counted(len(steps_of(bare)), 'step')}: gradients below 3e-8 become 0"
        + (f" ({zeros} of the gradients looked at in step {bare[0].step:,} were 0)." if zeros else "."),
        one_a_step(bare),
        {"gradients that were 0": zeros, "smallest FP16 number": 2.0**-24},
        Fix(
            bare[0],
            say="Scale the loss with torch.amp.GradScaler (scale, step, update), or use dtype=torch.bfloat16.",
        ),
    )


def _unscaled(backward: Backward) -> bool:
    """Whether a loss was not made larger: neither by a scaler nor by hand (`loss * 1024`)."""
    by_hand = backward.divided_by is not None and abs(backward.divided_by) < 1
    return backward.how == "backward" and not backward.raised and not by_hand


def _zeros(run: Run) -> str:
    """Return the share of gradients that were 0, where a closer look has counted them."""
    for each in run.of(Noticed):
        zeros, of = each.values.get("zeros"), each.values.get("of")
        if each.what == "zeros" and zeros is not None and isinstance(of, int) and of:
            number = read(zeros) if hasattr(zeros, "value") else zeros  # type: ignore[arg-type]
            if isinstance(number, int | float):
                return share_in_words(int(number), of) if number else ""
    return ""


@rule(
    "nested-region-dtype",
    Severity.RISK,
    title="an FP16 region inside a BF16 one, and no loss scale",
    explains=("fp16-without-scaler", "other-half-by-hand"),
)
def nested_region_dtype(run: Run) -> Iterator[Finding]:
    """A region for BF16 around code that opens its own for FP16.

    BF16 needs no loss scale, so there is none. A model whose forward is decorated with `@torch.autocast("cuda")`, which
    is FP16 if nothing is said, makes that untrue for a part: its small gradients become 0. (A region that is made
    inside of another takes over its dtype; a decorator is made before.)

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, torch.bfloat16):
            hidden = model[:2](x)
            with autocast(device_type, torch.float16):
                out = model[2](hidden)
            loss = loss_fn(out.float(), y)
        loss.backward()
        optimizer.step()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.bfloat16):
            hidden = model[:2](x)
            with autocast(device_type, torch.bfloat16):
                out = model[2](hidden)
            loss = loss_fn(out.float(), y)
        loss.backward()
        optimizer.step()
    """
    regions = entered(run)
    inner = [
        each
        for each in regions.values()
        if is_on(each)
        and each.dtype == torch.float16
        and each.grad
        and _around(each, regions) == torch.bfloat16
    ]
    if inner and scaler_used(run) is None and any(run.of(Backward)):
        first = inner[0]
        at = place(first)
        yield Finding(
            f"{at} opens an FP16 region inside a BF16 one, in {counted(len(steps_of(inner)), 'step')}, and no loss is "
            "scaled: gradients below 3e-8 become 0 in that part.",
            one_a_step(inner),
            {"outer region": torch.bfloat16, "inner region": torch.float16},
            Fix(
                first,
                remove=("torch.float16",),
                insert=("torch.bfloat16",),
                say="Give the inner region the dtype of the outer one, or use a loss scaler.",
            ),
        )


def _around(region: RegionEntered, regions: dict[int, RegionEntered]) -> torch.dtype | None:
    """Return the dtype of the innermost region around another one, for the same kind of device."""
    outer = [regions[each] for each in region.regions if each in regions]
    on = [each.dtype for each in outer if is_on(each, region.device_type)]
    return on[-1] if on else None


@rule("fp64-in-region", Severity.NOTE, title="an FP64 model in an autocast region")
def fp64_in_region(run: Run) -> Iterator[Finding]:
    """Weights and inputs are FP64, which autocast leaves alone.

    Nothing is cast to 16 bits, and most GPUs compute FP64 32 to 64 times slower than FP32.

    Wrong:
        model = model.double()
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x.double()), y.double())
            loss.backward()
            optimizer.step()

    Right:
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
    """
    double = [number for number, each in enumerate(run.models) if each.dtypes == {torch.float64}]
    inside = [each for each in trained(run) if each.model in double and half_or_none(each.autocast)]
    if inside:
        yield Finding(
            f"The weights are FP64, which autocast leaves alone: {counted(len(inside), 'forward pass', 'es')} in the "
            f"{dtype_in_words(inside[0].autocast)} region ran in FP64.",
            one_a_step(inside),
            {"dtype of the region": inside[0].autocast},
            Fix(inside[0], say="Make model and inputs FP32 with .float(); torch.from_numpy gives FP64."),
        )
