"""Models with a planted fault, and healthy ones, and what `find_overflow` should answer about each.

A case is a function that builds a model, its loss function and a batch. `@fault` says what is wrong with it, `@healthy`
that nothing is. What is expected was worked out by hand, and `measuring` looks it up in plain PyTorch.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch


class Case(NamedTuple):
    """What `find_overflow` is given. A loss function is called with the output and the last of the batch."""

    model: torch.nn.Module
    loss_fn: Callable[..., torch.Tensor]
    batch: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Fault:
    """A case, and what must be said of it.

    Attributes:
        build: makes the case; its name is the fault's.
        family: the family of models.
        cause: the id that must be answered; "none" for a healthy case.
        ops: names under which a user may know the operator where it begins; empty where there is none.
        module: the path of the module in which it begins; None: in the loss, or in nothing at all.
        phase: "forward", "backward" or None.
        cures: whether a smaller scale makes this batch finite.
        device_type: whose autocast policy.
        what: what is wrong, in a few words.
        or_cause: another id that is as true.
        given: the code writes the infinity itself, so that plain PyTorch does not show an operator that makes it.
    """

    build: Callable[[], Case] = field(repr=False)
    family: str
    cause: str
    what: str
    ops: tuple[str, ...] = ()
    module: str | None = None
    phase: str | None = None
    cures: bool = False
    device_type: str = "cuda"
    or_cause: str | None = None
    given: bool = False

    @property
    def name(self) -> str:
        return self.build.__name__

    def case(self) -> Case:
        """Build it, always with the same numbers."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return self.build()


CASES: list[Fault] = []


def fault(cause: str, what: str, **expected: Any) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a case with a fault. The family is the module's `FAMILY`."""
    return _register(cause, what, expected)


def healthy(what: str, **settings: Any) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Register a case in which nothing is wrong."""
    return _register("none", what, settings)


def _register(
    cause: str, what: str, expected: dict[str, Any]
) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    def register(build: Callable[[], Case]) -> Callable[[], Case]:
        assert all(each.name != build.__name__ for each in CASES), f"two cases are called {build.__name__}"
        CASES.append(Fault(build, build.__globals__["FAMILY"], cause, what, **expected))
        return build

    return register


def cases() -> list[Fault]:
    """Return all cases, family by family."""
    package = importlib.import_module("tests.watching.faults.families")
    for each in sorted(module.name for module in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"{package.__name__}.{each}")
    return CASES


def faults() -> list[Fault]:
    """Return the cases with a fault."""
    return [each for each in cases() if each.cause != "none"]


def healthy_cases() -> list[Fault]:
    """Return the cases in which nothing is wrong."""
    return [each for each in cases() if each.cause == "none"]
