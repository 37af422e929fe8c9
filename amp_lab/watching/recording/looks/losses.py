"""What may be a loss, computed in 16 bits where no region was open that would have computed it in FP32."""

from __future__ import annotations

from typing import Final

import torch

from amp_lab.watching.recording.looks.calls import HALVES, Call, is_plain
from amp_lab.watching.recording.looks.judge import Judge

_POWERS: Final = frozenset("pow square mul exp log log_softmax softmax".split())
_SUMS: Final = frozenset("mean sum norm vector_norm logsumexp".split())
_GOES_ON: Final = frozenset("add sub rsub mul div rdiv neg squeeze view reshape sum mean".split())
_POWER: Final = "power outside"


class Losses(Judge):
    """Notes "half loss": the sum or mean of a power, a product or a logarithm, in 16 bits, outside of regions.

    The mean of plain outputs does no harm in 16 bits, and is not noted. Whether it is the loss, events tell.
    """

    def after(self, call: Call) -> None:
        result = call.result
        if call.backward or not isinstance(result, torch.Tensor) or not result.requires_grad:
            return
        if call.dtype not in HALVES or not is_plain(result) or torch.is_autocast_enabled(result.device.type):
            return
        if call.name in _SUMS and call.args and self.tags.of(call.args[0], _POWER):
            self.notes.add("half loss", call.line, {"call": call.name, "dtype": call.dtype})
        if call.name in _GOES_ON:
            for each in call.tensors():
                self.tags.pass_on(each, result, _POWER)
        if call.name in _POWERS:
            self.tags.put(result, _POWER, True)
