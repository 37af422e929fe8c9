"""The step of a Trainer, right or with a fault of one's choice: what the answers to exercise 9.1 are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

Step = Callable[..., float]


class Faults(NamedTuple):
    """What a step does otherwise than the right one, in one word each."""

    share: str = (
        "samples"  # "batches": 1 / number of micro-batches, "whole": none, "all": 1 / number of samples
    )
    clip: str = "true"  # "scaled": before unscaling, "each": in the loop, "values": number by number, "never"
    zero: str = "first"  # "never", "each": in the loop, "last": after the step
    schedule: str = (
        "real"  # "always", "never", "same": only if the scale stays, "early": before the optimizer
    )
    scaler: str = "used"  # "no update", "passed by": `optimizer.step()`
    which: str = "every"  # "first", "last": one micro-batch alone


def step_with(faults: Faults = Faults()) -> Step:  # noqa: B008 - a tuple, never changed
    """Return the right step, but for its faults."""

    def step(
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: Any,
        scheduler: torch.optim.lr_scheduler.LRScheduler,
        loss_function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        window: list[tuple[torch.Tensor, torch.Tensor]],
        dtype: torch.dtype,
        max_norm: float,
    ) -> float:
        def clip() -> torch.Tensor:
            if faults.clip == "values":
                torch.nn.utils.clip_grad_value_(model.parameters(), max_norm)
            limit = max_norm if faults.clip not in ("never", "values") else torch.inf
            return torch.nn.utils.clip_grad_norm_(model.parameters(), limit)

        window = {"every": window, "first": window[:1], "last": window[-1:]}[faults.which]
        mean = 0.0
        if faults.zero == "first":
            optimizer.zero_grad()
        for inputs, targets in window:
            if faults.zero == "each":
                optimizer.zero_grad()
            with torch.autocast(inputs.device.type, dtype, enabled=dtype != torch.float32):
                loss = loss_function(model(inputs), targets) * _share(faults.share, len(inputs), window)
            if not loss.isfinite():
                raise FloatingPointError
            scaler.scale(loss).backward()
            mean += float(loss.detach())
            if faults.clip == "each":
                clip()
        if faults.clip == "scaled":
            clip()
        if faults.clip not in ("scaled", "each"):
            scaler.unscale_(optimizer)
        norm = clip() if faults.clip in ("true", "never", "values") else torch.tensor(0.0)
        if not scaler.is_enabled() and not norm.isfinite():
            raise FloatingPointError
        if faults.schedule == "early":
            scheduler.step()
        before = scaler.get_scale()
        if faults.scaler == "passed by":
            optimizer.step()
        else:
            scaler.step(optimizer)
        if faults.scaler != "no update":
            scaler.update()
        after = scaler.get_scale()
        moves = {
            "real": after >= before,
            "always": True,
            "never": False,
            "early": False,
            "same": after == before,
        }
        if moves[faults.schedule]:
            scheduler.step()
        if faults.zero == "last":
            optimizer.zero_grad()
        return mean

    return step


def _share(kind: str, samples: int, window: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    total = sum(len(inputs) for inputs, _ in window)
    return {"samples": samples / total, "batches": 1 / len(window), "whole": 1.0, "all": 1 / total}[kind]


right = step_with()
