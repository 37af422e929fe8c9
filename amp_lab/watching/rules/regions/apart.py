"""Models that run apart from the loop: in another thread, or once more in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.watching.recording.events import (
    Forward,
    RegionEntered,
    RegionLeft,
)
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.regions.autocasting import (
    is_on,
    one_a_step,
    place,
    ran_in,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import steps_of
from amp_lab.watching.words import counted


@rule(
    "forward-in-thread",
    Severity.WRONG,
    title="the region does not reach the thread in which the model runs",
    explains=("scaler-without-autocast", "forward-outside-region"),
)
def forward_in_thread(run: Run) -> Iterator[Finding]:
    """A model is called in another thread, while the region is open in this one.

    Autocast's state belongs to a thread. What another thread computes is FP32, in silence.

    Wrong:
        from concurrent.futures import ThreadPoolExecutor
        optimizer.zero_grad()
        with ThreadPoolExecutor(1) as pool, autocast(device_type, torch.bfloat16):
            out = pool.submit(model, x).result()
            loss = loss_fn(out, y)
        loss.backward()
        optimizer.step()

    Right:
        from concurrent.futures import ThreadPoolExecutor
        optimizer.zero_grad()
        with ThreadPoolExecutor(1) as pool:
            out = pool.submit(autocast(device_type, torch.bfloat16)(model), x).result()
        loss = loss_fn(out.float(), y)
        loss.backward()
        optimizer.step()
    """
    lost = [(each, region) for each, region in _in_threads(run) if ran_in(each) is None]
    if lost:
        forward, region = lost[0]
        yield Finding(
            f"The model ran in another thread, in FP32, while the {dtype_in_words(region.dtype)} region of "
            f"{place(region)} was open in the first one: autocast's state belongs to a thread (seen in "
            f"{counted(len(steps_of(each for each, _ in lost)), 'step')}).",
            (region, *one_a_step([each for each, _ in lost])),
            {"dtype in the region": region.dtype, "dtype in the thread": torch.float32},
            Fix(forward, say="Enter autocast in the thread itself, or decorate the model's forward with it."),
        )


@rule("thread-loses-dtype", Severity.WRONG, title="a thread has another dtype than the region")
def thread_loses_dtype(run: Run) -> Iterator[Finding]:
    """A model runs in another thread, under autocast, but in another 16-bit dtype than the region asks for.

    `nn.DataParallel` switches autocast on in its threads, but does not hand on the dtype: a BF16 region becomes the
    default there, FP16 on a GPU, and without a scaler small gradients are lost.

    Wrong:
        from concurrent.futures import ThreadPoolExecutor
        def work(x):
            with autocast(device_type):
                return model(x)
        optimizer.zero_grad()
        with ThreadPoolExecutor(1) as pool, autocast(device_type, torch.float16):
            out = pool.submit(work, x).result()
            loss = loss_fn(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        from concurrent.futures import ThreadPoolExecutor
        def work(x):
            with autocast(device_type, torch.float16):
                return model(x)
        optimizer.zero_grad()
        with ThreadPoolExecutor(1) as pool, autocast(device_type, torch.float16):
            out = pool.submit(work, x).result()
            loss = loss_fn(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    lost = [(each, region) for each, region in _in_threads(run) if ran_in(each) not in (None, region.dtype)]
    if lost:
        forward, region = lost[0]
        yield Finding(
            f"The model ran in {dtype_in_words(ran_in(forward))} in another thread, while the region of "
            f"{place(region)} asks for {dtype_in_words(region.dtype)}, in "
            f"{counted(len(steps_of(each for each, _ in lost)), 'step')}: a thread (of nn.DataParallel, too) does not "
            "take over the dtype.",
            (region, *one_a_step([each for each, _ in lost])),
            {"dtype in the region": region.dtype, "dtype in the thread": ran_in(forward)},
            Fix(
                forward,
                say=f"Decorate the model's forward with torch.autocast(…, dtype={region.dtype}), or use "
                "DistributedDataParallel in place of DataParallel.",
            ),
        )


def _in_threads(run: Run) -> Iterator[tuple[Forward, RegionEntered]]:
    """Yield trained forward passes of other threads, with the region that was open in the first one meanwhile."""
    open_: list[RegionEntered] = []
    for event in run.events:
        if event.main and isinstance(event, RegionEntered):
            open_.append(event)
        elif event.main and isinstance(event, RegionLeft):
            open_ = [each for each in open_ if each.region != event.region]
        elif isinstance(event, Forward) and not event.main and event.grad and not event.recomputed and open_:
            region = open_[-1]
            if is_on(region, event.device_type) and event.step == region.step:
                yield event, region


@rule("recomputed-differently", Severity.WRONG, title="activations are recomputed in another dtype")
def recomputed_differently(run: Run) -> Iterator[Finding]:
    """In the backward pass a part of the model runs again, with another autocast state than in the forward pass.

    `torch.utils.checkpoint` remembers the state. A function that recomputes by hand has to do that itself: backward
    runs behind the region, in FP32, so that gradients belong to other activations than those of the forward pass.

    Wrong:
        class Again(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, *weights):
                ctx.save_for_backward(x)
                return model(x)
            @staticmethod
            def backward(ctx, grad):
                with torch.enable_grad():
                    out = model(ctx.saved_tensors[0])
                gradients = torch.autograd.grad(out, list(model.parameters()), grad.to(out.dtype))
                return (None, *gradients)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(Again.apply(x, *model.parameters()), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, torch.float16):
            loss = loss_fn(checkpoint(model, x, use_reentrant=False), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    for again in (each for each in run.of(Forward) if each.recomputed and not each.raised):
        first = _first_time(again, run)
        if first and ran_in(first) != ran_in(again):
            yield Finding(
                f"In step {again.step:,} the model ran in {_dtype_of(first)} in the forward pass, and in "
                f"{_dtype_of(again)} when it was computed again in the backward pass.",
                (first, again),
                {"forward pass": _dtype_of(first), "computed again": _dtype_of(again)},
                Fix(
                    again,
                    say="Use torch.utils.checkpoint.checkpoint(…, use_reentrant=False), or enter the same region in "
                    "backward.",
                ),
            )
            return


def _dtype_of(forward: Forward) -> str:
    return dtype_in_words(ran_in(forward) or torch.float32)


def _first_time(again: Forward, run: Run) -> Forward | None:
    """Return the forward pass that is done again: the last one of this model in the step, before."""
    before = [
        each
        for each in run.of(Forward)
        if each.step == again.step and each.number < again.number and each.model == again.model
    ]
    return next((each for each in reversed(before) if not each.recomputed), None)
