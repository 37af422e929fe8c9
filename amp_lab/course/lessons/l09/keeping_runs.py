"""The runs that exercise 9.3 saves and loads: small, but of several parts, with random numbers in them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

Parts = dict[str, Any]


def make_parts(seed: int, names: tuple[str, ...]) -> Parts:
    """Make the parts of a run that has trained for three steps: their numbers depend on `seed`."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # the CPU's: nobody puts a GPU's back
        model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Dropout(0.3), nn.Linear(5, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (8 + seed % 4), growth_interval=2)
        for _ in range(3):
            optimizer.zero_grad()
            scaler.scale(model(torch.randn(4, 6)).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
    whole: Parts = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": scaler,
        "average": nn.Linear(3, 3),
    }
    return {name: whole[name] for name in names}


def numbers_of(parts: Parts) -> dict[str, Any]:
    """Return copies of all that the parts hold, by name, part by part."""
    found: dict[str, Any] = {}
    for name, part in parts.items():
        found |= dict(_flat(f"{name}", part.state_dict()))
        if isinstance(part, nn.Module):
            found[f"{name}.training"] = part.training
    return found


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _flat(f"{name}[{key!r}]", each)
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _flat(f"{name}[{number}]", each)
    else:
        yield name, value.detach().clone() if isinstance(value, torch.Tensor) else value


def draw() -> dict[str, Any]:
    """Return the next random numbers of PyTorch and of Python."""
    return {"torch": torch.rand(3), "python": random.random()}
