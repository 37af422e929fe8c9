"""The report that `describe_device` returns."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from amp_lab.device import layout, remarks
from amp_lab.device.facts import DeviceFacts
from amp_lab.device.support import FormatSupport


@dataclass(frozen=True, repr=False)
class DeviceReport:
    """What one device can do: `facts` as asked, `formats` as explained. Print it or show it in a notebook."""

    facts: DeviceFacts
    formats: tuple[FormatSupport, ...]

    @property
    def device(self) -> str:
        """The device as PyTorch names it, for example "cuda:0"."""
        return self.facts.device

    @property
    def name(self) -> str:
        """The model of the GPU, or of the CPU where the device is a CPU."""
        return self.facts.name

    def support(self, number_format: str) -> FormatSupport:
        """The entry for "FP32", "TF32", "FP16", "BF16" or "FP8"; KeyError for any other name."""
        return {entry.format: entry for entry in self.formats}[number_format]

    def notes(self) -> tuple[str, ...]:
        """What the tables do not say: a GPU that cannot be used, other devices, PyTorch's own warnings."""
        return remarks.notes(self.facts)

    def not_run_here(self) -> tuple[str, ...]:
        """Which parts of a course on AMP this machine cannot show, each by name and with its reason."""
        return remarks.not_run_here(self.facts, self.formats)

    def as_dict(self) -> dict[str, Any]:
        """Everything as dicts, lists, strings, numbers, booleans and None, ready for `json.dump`."""
        formats = {entry.format: {"kind": entry.kind, "meaning": entry.meaning} for entry in self.formats}
        report = {
            "device": self.device,
            "name": self.name,
            "formats": formats,
            "notes": self.notes(),
            "not_run_here": self.not_run_here(),
            "facts": asdict(self.facts),
        }
        plain: dict[str, Any] = json.loads(json.dumps(report))  # tuples become lists
        return plain

    def __repr__(self) -> str:
        return f"<DeviceReport {self.device}: {self.name}>"

    def __str__(self) -> str:
        return layout.as_text(self.facts, self.formats, self.notes())

    def _repr_html_(self) -> str:
        return layout.as_html(self.facts, self.formats, self.notes())
