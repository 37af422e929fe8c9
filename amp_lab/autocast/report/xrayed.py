"""An x-ray of a model: every operator that ran, and in which dtype."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import torch

from amp_lab.autocast.hurts import finding as hurts
from amp_lab.autocast.hurts.remarks import Remarks
from amp_lab.autocast.records import Op, Phase, Value
from amp_lab.autocast.report import as_json as xray_json
from amp_lab.autocast.report import html as xray_html
from amp_lab.autocast.report import summary
from amp_lab.autocast.report import text as xray_text
from amp_lab.autocast.report.module_table import ModuleTable
from amp_lab.autocast.report.rows import LIMIT, Selection, checked, checked_depth

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from amp_lab.autocast.errors import Explanation

Mode = Literal["fake", "value"]


@dataclass(frozen=True, repr=False)
class XRay:
    """What `xray` saw. Print it, leave it as the last line of a cell, `plot` it, or look into `ops`.

    `model` is the name of the model's class, `dtype` the one autocast was given. `mode` is "fake" where shapes and
    dtypes were followed without numbers, "value" where the model computed, and `mode_reason` says why: nothing,
    where the first was enough. `trainable` and `frozen` are the model's parameters, `module_types` the class of every
    module by its path. `error` is what the model raised, if it did; `ops` then end there. `notes` are sentences about
    the run.
    """

    model: str
    device_type: str
    dtype: torch.dtype
    mode: Mode
    mode_reason: str
    ops: tuple[Op, ...]
    trainable: tuple[Value, ...] = ()
    frozen: tuple[Value, ...] = ()
    error: str | None = None
    explanation: Explanation | None = None
    torch_version: str = torch.__version__
    module_types: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @cached_property
    def warnings(self) -> Remarks:
        """What hurts this model under autocast; see `amp_lab.autocast.hurts.finding`."""
        return hurts.remarks(self)

    def modules(self, depth: int | None = None) -> ModuleTable:
        """Summarise each module with all in it: operators, dtypes, casts and bytes copied, forward and backward.

        Args:
            depth: how many levels to list: 0 is the model alone, 1 has its children; None: all.

        Raises:
            TypeError: if depth is neither a whole number nor None.
            ValueError: if it is negative.
        """
        checked_depth(depth)
        found = summary.modules(self.ops, dict(self.module_types))
        return ModuleTable(each for each in found if depth is None or summary.depth(each.module) <= depth)

    def table(
        self,
        limit: int | None = LIMIT,
        phase: Phase | None = "forward",
        module: str | None = None,
        fold: bool = True,
        views: bool = False,
    ) -> str:
        """Return the operators as text, in the order in which they ran, under the modules that ran them.

        Args:
            limit: how many rows to list; None: all.
            phase: "forward", "recomputed" (by activation checkpointing) or "backward"; None: all.
            module: the path of a module, to list only what ran in it, such as "layers.0".
            fold: list neighbours that do the same once, and say how often they came.
            views: list views, too, which compute and copy nothing, and operators without floating-point numbers.

        Raises:
            TypeError: if limit is neither a whole number nor None, or module no text.
            ValueError: if limit is negative, there is no such phase, or nothing ran in that module.
        """
        selection = checked(self, Selection(phase, module, limit, fold, views))
        return "\n".join(xray_text.table_lines(self, selection))

    def plot(
        self,
        phase: Phase | Literal["both"] = "forward",
        module: str | None = None,
        depth: int | None = None,
        title: str | None = None,
    ) -> Figure:
        """Draw the modules with their operators, each in the column and colour of the dtype in which it ran.

        Args:
            phase: "forward", "recomputed" or "backward"; "both": forward, and beside each operator its gradients.
            module: draw only what ran in this module.
            depth: how many levels of modules to open; what is deeper is counted. None: as many as fit.
            title: what the picture says.

        Raises:
            TypeError: if depth is neither a whole number nor None, or module no text.
            ValueError: if depth is negative, there is no such phase, nothing ran in it or in that module.
        """
        from amp_lab.autocast.report import drawing as xray_drawing  # Matplotlib takes long to import

        return xray_drawing.draw(self, phase, module, depth, title)

    def to_json(self) -> str:
        """Return everything as JSON, which `from_json` reads: `Path("xray.json").write_text(x.to_json())`."""
        return xray_json.to_json(self)

    @staticmethod
    def from_json(text: str) -> XRay:
        """Return the x-ray that `to_json` wrote.

        Raises:
            TypeError: if it is no text.
            ValueError: if it is not JSON, not an x-ray, or one that this version of amp_lab cannot read.
        """
        return xray_json.from_json(text)

    def __repr__(self) -> str:
        return xray_text.as_text(self, Selection())

    def _repr_html_(self) -> str:
        return xray_html.as_html(self)

    def __rich__(self) -> object:
        from amp_lab.autocast.report.with_rich import as_rich

        return as_rich(self, Selection())
