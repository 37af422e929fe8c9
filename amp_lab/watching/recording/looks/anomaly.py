"""Whether anomaly detection is on while gradients are scaled."""

from __future__ import annotations

import torch

from amp_lab.watching.recording.events import Noticed
from amp_lab.watching.recording.looks.look import Look


class Anomaly(Look):
    """Notes "anomaly", once."""

    _noted = False

    def before_backward(self) -> None:
        if self._noted or not torch.is_anomaly_enabled() or not torch.is_anomaly_check_nan_enabled():
            return
        if (scale := self.bench.scale()) is not None:
            self._noted = True
            self.bench.emit(Noticed, what="anomaly", values={"seen": [{"scale": scale}]})
