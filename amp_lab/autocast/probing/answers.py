"""Answers that come from cast policies: why an operator runs as it does, where devices or a list differ."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from amp_lab.autocast.fates import Fate
from amp_lab.autocast.probing.op_names import op_named
from amp_lab.autocast.probing.policies import Policy
from amp_lab.autocast.probing.tables import Listing, Section, device_in_words, variants
from amp_lab.view.words import paragraph

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

_BECAUSE: Final = {
    Fate.LOWER: (
        "runs in lower precision: autocast casts its FP32 arguments to the region's dtype, FP16 or BF16, "
        "and does not cast the result back"
    ),
    Fate.FP32: "runs in FP32: autocast casts its 16-bit arguments to FP32, and does not cast the result back",
    Fate.FP32_UNLESS: (
        "makes FP32 of 16-bit arguments: autocast asks it for a result in FP32, unless the call itself passes a dtype"
    ),
    Fate.WIDEST: (
        "runs in the widest dtype among its arguments: where FP16 meets FP32, autocast casts to FP32; "
        "arguments of one dtype stay as they are"
    ),
    Fate.REFUSED: "is refused: autocast raises an error instead of running it",
    Fate.FOLLOWS: "has no rule of its own: autocast casts nothing for it, and it follows its inputs",
}


class _Shown(ABC):
    """Something that shows itself as a listing."""

    @abstractmethod
    def _listing(self) -> Listing: ...

    def __str__(self) -> str:
        return self._listing().text()

    def _repr_html_(self) -> str:
        return self._listing().html()

    def __rich__(self) -> Group:
        return self._listing().rich()


@dataclass(frozen=True)
class Why:
    """Why an operator runs as it does under autocast; `print` it for the sentences.

    Attributes:
        name: of the operator, as aten writes it.
        device_type: "cuda", "cpu", ...
        fates: of each of its overloads that have a rule; of its name, if none has.
        evidence: what was seen when each of them was asked.
        note: a sentence more, or nothing.
    """

    name: str
    device_type: str
    fates: Mapping[str, Fate] = field(hash=False)
    evidence: Mapping[str, Sequence[str]] = field(hash=False)
    note: str = ""

    @property
    def fate(self) -> Fate:
        """The fate.

        Raises:
            ValueError: if its overloads meet different ones.
        """
        if len(set(self.fates.values())) > 1:
            which = ", ".join(f"{op} ({fate.value})" for op, fate in self.fates.items())
            raise ValueError(f"the overloads of {self.name!r} meet different fates: {which}")
        return next(iter(self.fates.values()))

    def __str__(self) -> str:
        parts = (
            f"{said} Seen, for {telling}: {'; '.join(seen)}." if seen else said
            for said, telling, seen in self._answers()
        )
        return "\n".join(paragraph(each, then="  ") for each in parts)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return "".join(_html(*answer) for answer in self._answers())

    def __rich__(self) -> Text:
        from rich.text import Text

        return Text(" ".join(str(self).split()))

    def _answers(self) -> Iterator[tuple[str, str, Sequence[str]]]:
        """Yield for each fate what is said about it, which operator tells most, and what was seen of that one."""
        groups: dict[Fate, list[str]] = {}
        for op, fate in self.fates.items():
            groups.setdefault(fate, []).append(op)
        for fate, ops in groups.items():
            subject = " and ".join(ops) if len(groups) > 1 else self.name
            said = f"On {device_in_words(self.device_type)}, {subject} {_BECAUSE[fate]}."
            telling = max(ops, key=lambda op: len(self.evidence.get(op, ())))
            yield f"{said} {self.note}".strip(), telling, self.evidence.get(telling, ())


def _html(said: str, telling: str, seen: Sequence[str]) -> str:
    if not seen:
        return f"<p>{escape(said)}</p>"
    each = "".join(f"<li>{escape(what)}</li>" for what in seen)
    return f"<p>{escape(said)} Seen, for <code>{escape(telling)}</code>:</p><ul>{each}</ul>"


@dataclass(frozen=True)
class Differences(_Shown):
    """The operators that meet different fates on two kinds of device.

    Attributes:
        ops: per operator, its fate on the first device and on the second.
        unasked: operators that one of the two could not be asked about, which are left out.
    """

    devices: tuple[str, str]
    ops: Mapping[str, tuple[Fate, Fate]] = field(hash=False)
    unasked: tuple[str, ...] = ()

    def grouped(self) -> dict[tuple[Fate, Fate], tuple[str, ...]]:
        """The operators by their two fates."""
        order = {fate: number for number, fate in enumerate(Fate)}
        pairs = sorted(set(self.ops.values()), key=lambda pair: (order[pair[0]], order[pair[1]]))
        return {pair: tuple(op for op, fates in self.ops.items() if fates == pair) for pair in pairs}

    def _listing(self) -> Listing:
        first, second = map(device_in_words, self.devices)
        sections = [
            Section(f"{first}: {one.value} → {second}: {other.value}", "", ops)
            for (one, other), ops in self.grouped().items()
        ]
        title = f"Operators that autocast treats differently on {first} and on {second}: {len(self.ops)}"
        notes = (
            [f"Not compared, since they could not be asked: {', '.join(self.unasked)}."]
            if self.unasked
            else []
        )
        notes += [
            *variants(self.ops),
            "One that follows its inputs may be made of others that have a rule, as conv1d.padding is of conv1d.",
        ]
        return Listing(title, sections, notes)


def differences_between(one: Policy, other: Policy) -> Differences:
    """Which operators meet different fates under two policies; one without a rule follows its inputs."""
    unasked = {*one.unasked, *other.unasked}
    ops = {op: (_fate(one, op), _fate(other, op)) for op in sorted({*one, *other} - unasked)}
    return Differences(
        (one.device_type, other.device_type),
        MappingProxyType({op: pair for op, pair in ops.items() if pair[0] is not pair[1]}),
        tuple(sorted(unasked)),
    )


def _fate(policy: Policy, op: str) -> Fate:
    return policy[op].fate if op in policy else Fate.FOLLOWS


@dataclass(frozen=True)
class Comparison(_Shown):
    """A list of operators that are said to run in lower precision, beside those that do.

    Attributes:
        lower: the names on the list that do run in lower precision, as they are written there.
        others: the names on the list that do not, with their fate.
        missing: operators, by their plain names, that run in lower precision and are not on the list.
    """

    device_type: str
    lower: tuple[str, ...]
    others: Mapping[str, Fate] = field(hash=False)
    missing: tuple[str, ...]

    def _listing(self) -> Listing:
        device = device_in_words(self.device_type)
        sections = [Section("in the list, and in lower precision", "", self.lower)]
        for fate in dict.fromkeys(self.others.values()):
            names = [name for name, other in self.others.items() if other is fate]
            sections.append(Section(f"in the list, but: {fate.value}", "", names))
        sections.append(Section("in lower precision, but not in the list", "", self.missing))
        total = len(self.lower) + len(self.others)
        title = f"{len(self.lower)} of the list's {total} operators run in lower precision on {device}"
        notes = ["Names that begin with an underscore are operators that others are made of."]
        return Listing(title, sections, notes if any(name.startswith("_") for name in self.missing) else [])


def compare_with(policy: Policy, names: Iterable[Any]) -> Comparison:
    """Compare a list of operators with a policy; they are named as in `op_named`."""
    meant = {name if isinstance(name, str) else op_named(name): op_named(name) for name in names}
    fates = {name: policy.fate(op) for name, op in meant.items()}
    listed = {op.partition(".")[0] for op in meant.values()}
    lower = dict.fromkeys(policy[op].name for op in policy.by_fate().get(Fate.LOWER, ()))
    return Comparison(
        policy.device_type,
        tuple(name for name, fate in fates.items() if fate is Fate.LOWER),
        MappingProxyType({name: fate for name, fate in fates.items() if fate is not Fate.LOWER}),
        tuple(name for name in lower if name not in listed),
    )
