"""Whole numbers that go into 16 bits and do not fit, and casts by hand to the other 16-bit format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from amp_lab.watching.recording.looks.calls import HALVES, Call, is_plain
from amp_lab.watching.recording.looks.judge import Judge
from amp_lab.watching.recording.looks.noting import any_of, late

_CASTS: Final = frozenset("half bfloat16 to type type_as".split())
_MIXES: Final = frozenset("add sub rsub mul div where cat stack copy".split())
_PRODUCTS: Final = frozenset("matmul mm bmm linear outer einsum".split())
_SAME_NUMBERS: Final = frozenset(
    "float double to view reshape unsqueeze squeeze expand __getitem__ flatten detach clone contiguous cuda".split()
)


class Casts(Judge):
    """Notes "whole numbers" and "other half"."""

    def after(self, call: Call) -> None:
        if call.backward or call.origin != "user" or not isinstance(call.result, torch.Tensor):
            return
        counts = call.name == "arange" and all(type(each) is int for each in call.args)
        if counts or (call.name in _SAME_NUMBERS and call.args and self._whole(call.args[0])):
            self.tags.put(call.result, "whole", True)
        if call.dtype in HALVES:
            for tensor in self._narrowed(call):
                self._note_whole(call, tensor)
            self._other_half(call)

    def _whole(self, tensor: object) -> bool:
        if not isinstance(tensor, torch.Tensor):
            return False
        integers = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
        return integers or bool(self.tags.of(tensor, "whole"))

    def _narrowed(self, call: Call) -> Iterator[torch.Tensor]:
        """Yield the whole numbers that a call takes to 16 bits."""
        if call.name == "arange":
            return
        if call.name in _CASTS:
            candidates = iter(call.args[:1])
        elif call.name in _MIXES or call.name in _PRODUCTS:
            candidates = call.tensors()
        else:
            return
        for each in candidates:
            wide = isinstance(each, torch.Tensor) and each.dtype not in HALVES
            if not wide or not is_plain(each) or each.numel() == 0 or not self._whole(each):
                continue
            if each.dim() > 0 or call.name not in _MIXES:
                yield each

    def _note_whole(self, call: Call, tensor: torch.Tensor) -> None:
        with torch.no_grad():
            wide = tensor.detach().to(torch.float32)
            changed, largest = any_of(wide.to(call.dtype).float() != wide), late(wide.abs().amax())
        if changed.known and not changed.value:
            return
        self.notes.add(
            "whole numbers", (call.line, call.dtype), {"dtype": call.dtype}, changed=changed, largest=largest
        )

    def _other_half(self, call: Call) -> None:
        """Note a cast, written by hand, to a 16-bit format that is not the region's."""
        if call.name not in ("half", "bfloat16", "to", "type") or not torch.is_autocast_enabled(
            call.result.device.type
        ):
            return
        region = torch.get_autocast_dtype(call.result.device.type)
        given = call.args[0]
        if (
            region in HALVES
            and call.dtype != region
            and isinstance(given, torch.Tensor)
            and given.dtype != call.dtype
        ):
            size = given.detach().abs().amax() if given.is_floating_point() and given.numel() else None
            self.notes.add(
                "other half",
                call.line,
                {"dtype": call.dtype, "region": region},
                **({"largest": late(size)} if size is not None else {}),
            )
