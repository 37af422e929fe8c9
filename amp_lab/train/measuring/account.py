"""Where the memory of a training step goes: the numbers, as text, as HTML, and as a figure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from typing import Any, Final

import torch

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.train.measuring.ledger import Birth
from amp_lab.train.measuring.units import in_bytes

CATEGORIES: Final = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer_state": "optimizer state",
    "activations": "activations",
    "cached_casts": "casts of weights",
    "buffers": "buffers",
    "inputs": "inputs",
    "outputs": "outputs",
}


@dataclass(frozen=True)
class Moments:
    """Bytes at moments of a step, with the optimizer's state and without workspaces of kernels.

    `after_forward`: the loss is there, the autocast region is over. `after_backward`: gradients are there, activations
    are gone. `peak`: the most after any operator in between, which was `peak_operator`.
    """

    after_forward: int
    after_backward: int
    peak: int
    peak_operator: str


@dataclass(frozen=True)
class MemoryAccount:
    """The memory of one training step by category, in bytes; each storage counts once, in one category.

    Attributes:
        what: in which precision the step was run.
        weights: the parameters, trained or not.
        gradients: `.grad` after backward, of all parameters, and of inputs that ask for one.
        optimizer_state: what the optimizer keeps from step to step, from the first step on.
        activations: made in forward and alive after it, for backward. Parameters, casts of weights and inputs are none;
            FP32 copies that autocast makes for softmax, norms and losses are.
        cached_casts: 16-bit copies of weights that backward needs, and keeps until it has used them.
        buffers: of modules, after forward, such as BatchNorm's averages; other tensors that modules hold, or that were
            there before.
        inputs: the batch.
        outputs: the model's result and the loss, where backward does not need them: a loop's variables keep them.
        casts_freed: 16-bit copies of weights that only autocast's cache keeps; they end with the region, and are not
            part of `total`.
        moments: bytes in all at moments of a step.
        activation_rows: the activations one by one, the largest first.
    """

    what: str
    weights: int
    gradients: int
    optimizer_state: int
    activations: int
    cached_casts: int
    buffers: int
    inputs: int
    outputs: int
    casts_freed: int
    moments: Moments
    activation_rows: tuple[Birth, ...]

    @property
    def categories(self) -> dict[str, int]:
        """The bytes of each category by its name in words."""
        return {name: getattr(self, attribute) for attribute, name in CATEGORIES.items()}

    @property
    def total(self) -> int:
        """The sum of all categories. A step needs less at once: gradients come while activations go. See `peak`."""
        return sum(self.categories.values())

    @property
    def after_forward(self) -> int:
        return self.moments.after_forward

    @property
    def after_backward(self) -> int:
        return self.moments.after_backward

    @property
    def peak(self) -> int:
        return self.moments.peak

    @property
    def activations_by_dtype(self) -> dict[torch.dtype, int]:
        """The bytes of activations in each dtype, the largest share first."""
        shares: Counter[torch.dtype] = Counter()
        for row in self.activation_rows:
            shares[row.dtype] += row.bytes
        return dict(shares.most_common())

    def __str__(self) -> str:
        lines = [f"Memory of a training step in {self.what}"]
        lines += [f"  {name:18}{in_bytes(size):>12}  {note}".rstrip() for name, size, note in self._rows()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th scope="row" style="text-align: left">{escape(name)}</th>'
            f'<td style="text-align: right">{in_bytes(size)}</td>'
            f'<td style="text-align: left">{escape(note)}</td></tr>'
            for name, size, note in self._rows()
        )
        return f"<table><caption>Memory of a training step in {escape(self.what)}</caption>{rows}</table>"

    def _rows(self) -> list[tuple[str, int, str]]:
        """Return name, bytes and a note, line by line."""
        shares = self.activations_by_dtype.items()
        notes = {
            "activations": ", ".join(
                f"{in_bytes(size)} in {dtype_in_words(dtype)}" for dtype, size in shares
            ),
            "casts of weights": f"and {in_bytes(self.casts_freed)} that end with the region"
            if self.casts_freed
            else "",
        }
        return [
            *((name, size, notes.get(name, "")) for name, size in self.categories.items()),
            ("sum", self.total, "never all at once"),
            ("after forward", self.after_forward, ""),
            ("after backward", self.after_backward, ""),
            ("peak", self.peak, f"after {self.moments.peak_operator}, between operators"),
        ]

    def plot(self) -> Any:
        """Return a figure with one bar."""
        return plot_accounts({self.what: self})


def plot_accounts(accounts: Mapping[str, MemoryAccount], title: str | None = None) -> Any:
    """Return a figure with one bar for each account, stacked by category, in MiB; the keys are their names."""
    from amp_lab.view.memory_bars import memory_bars  # matplotlib takes a second to import

    if not isinstance(accounts, Mapping) or not all(
        isinstance(each, MemoryAccount) for each in accounts.values()
    ):
        raise TypeError(
            'plot_accounts draws a dict of accounts by name, such as {"FP32": memory_account(...)}'
        )
    return memory_bars({name: account.categories for name, account in accounts.items()}, title)
