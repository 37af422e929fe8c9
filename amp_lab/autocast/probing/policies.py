"""A device's cast policy: which operator meets which fate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.probing.op_names import is_overload, op_named, overload_name
from amp_lab.autocast.probing.tables import policy_listing

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True)
class OpPolicy:
    """What autocast does to one operator.

    Attributes:
        op: the operator's overload as torch.library writes it, "softmax.int".
        name: its plain name, "softmax".
        fate: what happens to its floating-point arguments.
        evidence: what was seen when it was asked, a sentence for each question.
    """

    op: str
    name: str
    fate: Fate
    evidence: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.op}: {self.fate.value} ({'; '.join(self.evidence)})"


class Policy(Mapping[str, OpPolicy]):
    """The fate of each operator of PyTorch's that autocast has a rule for, on one kind of device.

    A mapping from an operator's overload ("softmax.int", "linear") to its `OpPolicy`. Every other operator
    follows its inputs: autocast casts nothing for it.

    Attributes:
        device_type: "cuda", "cpu", ...
        unasked: operators that have a rule, but could not be asked what it is, each with the reason.
    """

    def __init__(self, device_type: str, ops: Mapping[str, OpPolicy], unasked: Mapping[str, str]):
        self.device_type = device_type
        self.unasked = dict(unasked)
        self._ops = dict(ops)

    @property
    def asked(self) -> int:
        """How many operators said what their rule is."""
        return len(self._ops)

    @property
    def total(self) -> int:
        """How many operators have a rule."""
        return len(self._ops) + len(self.unasked)

    def __getitem__(self, op: str) -> OpPolicy:
        return self._ops[op]

    def __iter__(self) -> Iterator[str]:
        return iter(self._ops)

    def __len__(self) -> int:
        return len(self._ops)

    def fate(self, op: str | torch._ops.OpOverload) -> Fate:
        """The fate of an operator; FOLLOWS if there is no rule for it.

        Args:
            op: an overload ("softmax.int", `torch.ops.aten.softmax.int`), or a plain name ("softmax"), which
                stands for those of its overloads that have a rule.

        Raises:
            LookupError: if it has a rule, but could not be asked.
            ValueError: if PyTorch has no such operator, or its overloads meet different fates.
        """
        name = op if isinstance(op, str) else overload_name(op)
        if "::" in name and not name.startswith("aten::") and name not in self.unasked:
            return Fate.FOLLOWS  # another library's
        name = name.removeprefix("aten::")
        exact = not isinstance(op, str) or is_overload(name)
        found = [name] if exact else self.overloads(name)
        fates = {self._fate(each) for each in found or [op_named(name)]}
        if len(fates) > 1:
            which = ", ".join(f"{each} ({self._fate(each).value})" for each in found)
            raise ValueError(f"the overloads of {name!r} meet different fates: name one of {which}")
        return fates.pop()

    def _fate(self, op: str) -> Fate:
        if op in self.unasked:
            raise LookupError(
                f"autocast has a rule for {op!r}, but it could not be asked: {self.unasked[op]}"
            )
        return self._ops[op].fate if op in self._ops else Fate.FOLLOWS

    def overloads(self, name: str) -> list[str]:
        """The overloads that have a rule: of a plain name all, of an overload's name that one, if it has."""
        if "." in name:
            return [op for op in (*self._ops, *self.unasked) if op == name]
        known = [op for op, policy in self._ops.items() if policy.name == name]
        return known or [op for op in self.unasked if op.partition(".")[0] == name]

    def by_fate(self) -> dict[Fate, tuple[str, ...]]:
        """The operators that meet each fate, in alphabetical order."""
        found = {fate: tuple(sorted(op for op in self if self[op].fate is fate)) for fate in Fate}
        return {fate: ops for fate, ops in found.items() if ops}

    def __repr__(self) -> str:
        return f"<cast policy of {self.device_type!r}: asked {self.asked} of {self.total} operators>"

    def __str__(self) -> str:
        return policy_listing(self).text()

    def _repr_html_(self) -> str:
        return policy_listing(self).html()

    def __rich__(self) -> Group:
        return policy_listing(self).rich()
