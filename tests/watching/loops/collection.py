"""Training loops with and without a mistake, and what the watcher should say about each.

A loop is a function of `watch`, which it uses as anybody uses `amp_lab.watch`. `@wrong` says which root cause it has,
`@right` that it has none.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

Train = Callable[[Any], Any]
T = TypeVar("T", bound=Train)


@dataclass(frozen=True)
class Loop:
    """A training loop.

    Attributes:
        train: the function; its name is the loop's.
        section: which part of the table it belongs to.
        cause: the id of its root cause; None for a right loop.
        mistake: what is wrong, in a few words; or what the right loop shows.
        raises: a part of the message of the exception with which it ends, whoever watches.
        shows: given what `train` returned, whether the mistake is seen in the numbers; None where nothing is returned.
    """

    train: Train = field(repr=False)
    section: str
    cause: str | None
    mistake: str
    raises: str | None = None
    shows: Callable[[Any], bool] | None = None

    @property
    def name(self) -> str:
        return self.train.__name__


@dataclass(frozen=True)
class Outcome:
    """What a loop returned, the exception with which it ended, and the reports of its watchers, in order."""

    result: Any
    error: Exception | None
    reports: list[Any]

    @property
    def causes(self) -> list[str]:
        """The ids of all root causes."""
        return [each.id for report in self.reports for each in report.diagnoses]

    @property
    def findings(self) -> list[str]:
        """The ids of all findings, root causes and consequences."""
        return [each.id for report in self.reports for each in report.all]


LOOPS: list[Loop] = []


def wrong(
    cause: str,
    mistake: str,
    *,
    raises: str | None = None,
    shows: Callable[[Any], bool] | None = None,
) -> Callable[[T], T]:
    """Register a loop with a mistake. The section is the module's `SECTION`."""
    return _register(cause, mistake, raises, shows)


def right(what: str) -> Callable[[T], T]:
    """Register a loop that is right."""
    return _register(None, what, None, None)


def _register(
    cause: str | None, mistake: str, raises: str | None, shows: Callable[[Any], bool] | None
) -> Callable[[T], T]:
    def register(train: T) -> T:
        assert all(each.name != train.__name__ for each in LOOPS), f"two loops are called {train.__name__}"
        section = train.__globals__["SECTION"]
        LOOPS.append(Loop(train, section, cause, mistake, raises, shows))
        return train

    return register


def loops() -> list[Loop]:
    """Return all loops, in the order of their modules."""
    for folder in ("wrong", "right"):
        for module in sorted(_modules(folder)):
            importlib.import_module(module)
    return LOOPS


def _modules(folder: str) -> Iterator[str]:
    package = importlib.import_module(f"tests.watching.loops.{folder}")
    return (f"{package.__name__}.{each.name}" for each in pkgutil.iter_modules(package.__path__))


def unwatched(loop: Loop) -> Outcome:
    """Train without a watcher: what `watch` returns does nothing."""
    return _train(loop, lambda *_, **__: _Nobody(), [])


def watched(loop: Loop) -> Outcome:
    """Train under `amp_lab.watch`."""
    from amp_lab.watching.watch import watch

    watchers: list[Any] = []

    def remembered(*args: Any, **kwargs: Any) -> Any:
        watchers.append(watch(*args, **kwargs))
        return watchers[-1]

    return _train(loop, remembered, watchers)


def _train(loop: Loop, watch: Callable[..., Any], watchers: list[Any]) -> Outcome:
    result, error = None, None
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        if loop.cause is not None:
            warnings.simplefilter("ignore")  # PyTorch warns of some mistakes
        torch.default_generator.manual_seed(0)
        try:
            result = loop.train(watch)
        except Exception as raised:
            error = raised
        return Outcome(result, error, [each.report() for each in watchers])


class _Nobody(nullcontext[None]):
    """What can be used like a watch, and watches nothing."""

    def __call__(self, function: T) -> T:
        return function

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""
