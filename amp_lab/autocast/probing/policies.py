"""A device's cast policy: which operator meets which fate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.probing.op_names import foreign_name, is_overload, op_named
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

    def fate(self, op: Any) -> Fate:
        """The fate of an operator; FOLLOWS if there is no rule for it.

        Args:
            op: an overload ("softmax.int", `torch.ops.aten.softmax.int`), or a plain name as people write it
                ("softmax", "F.softmax", or a function or module: see `why`), which stands for those of its overloads
                that have a rule. Or an operator of another library ("torchvision::nms"), with its name in full.

        Raises:
            LookupError: if it has a rule, but could not be asked.
            TypeError: if `op` is nothing of that kind.
            ValueError: if PyTorch has no such operator, or its overloads meet different fates.
        """
        if (foreign := foreign_name(op, self.unasked)) is not None:
            return self._fate(foreign)
        name = op_named(op)
        found = [name] if is_overload(name) else self.overloads(name)
        fates = {self._fate(each) for each in found or [name]}
        if len(fates) > 1:
            which = ", ".join(f"{each} ({self._fate(each).value})" for each in found)
            raise ValueError(f"the overloads of {name!r} meet different fates: name one of {which}")
        return fates.pop()

    def _fate(self, op: str) -> Fate:
        if op in self.unasked:
            raise LookupError(self.why_not(op))
        return self._ops[op].fate if op in self._ops else Fate.FOLLOWS

    def overloads(self, name: Any) -> list[str]:
        """The overloads that have a rule: of a plain name all, of an overload's name that one, if it has.

        The name is written as for `fate`, and so are the errors.
        """
        if (foreign := foreign_name(name, self.unasked)) is not None:
            return [op for op in self.unasked if foreign in (op, op.partition(".")[0])]
        name = op_named(name)
        if "." in name:
            return [op for op in (*self._ops, *self.unasked) if op == name]
        known = [op for op, policy in self._ops.items() if policy.name == name]
        return known or [op for op in self.unasked if op.partition(".")[0] == name]

    def why_not(self, op: str) -> str:
        """A sentence about one of those that could not be asked."""
        return f"autocast has a rule for {op!r}, but it could not be asked: {self.unasked[op]}"

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
