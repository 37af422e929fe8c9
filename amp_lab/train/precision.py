"""The precisions to train in: which one a device takes, and the switches of FP32 products."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, Final

import torch

from amp_lab.device import DeviceFacts, describe_device, explain

PRECISIONS: Final = ("fp32", "tf32", "fp16", "bf16")
DTYPES: Final = {"fp16": torch.float16, "bf16": torch.bfloat16}  # autocast's; the others have none
_NATIVE: Final = ("tensor cores", "matrix units")


def choose(facts: DeviceFacts) -> str:
    """Return the precision that "auto" means on a device.

    A GPU that computes BF16 natively: "bf16", which needs no loss scale; another CUDA GPU: "fp16". A CPU: "bf16" if it
    has units for products of BF16 matrices, else "fp32". Apple's GPU: "fp32".
    """
    bf16 = _kinds(facts)["BF16"]
    if facts.device.startswith("cuda"):
        native = bf16 in _NATIVE or (bf16 == "unknown" and facts.gpu is not None and facts.gpu.bf16_native)
        return "bf16" if native else "fp16"
    return "bf16" if facts.device == "cpu" and bf16 == "matrix units" else "fp32"


def resolved(precision: str, device: torch.device) -> str:
    """Return the precision to compute in: what is asked for, or what "auto" means on this device.

    Raises:
        ValueError: for a precision that there is not, or that this device lacks.
    """
    if precision not in (*PRECISIONS, "auto"):
        raise ValueError(
            f"precision={precision!r}: it is one of {', '.join(map(repr, PRECISIONS))} or 'auto'"
        )
    if precision == "fp32":
        return precision
    facts = describe_device(device).facts
    if precision == "auto":
        return choose(facts)
    if missing := lacks(precision, facts):
        raise ValueError(f'precision="{precision}": {missing}; here "auto" is "{choose(facts)}"')
    if precision == "bf16" and facts.gpu is not None and _kinds(facts)["BF16"] == "emulated":
        warnings.warn(f'{facts.name} emulates BF16, which is slow: take "fp16" or "auto"', stacklevel=4)
    return precision


def lacks(precision: str, facts: DeviceFacts) -> str:
    """Say what a device lacks for a precision; "" if nothing."""
    if precision == "tf32":
        kind = _kinds(facts)["TF32"]
        gpu = facts.gpu is not None and kind in ("tensor cores", "unknown") and facts.gpu.vendor == "nvidia"
        return "" if gpu else f"TF32 is for NVIDIA GPUs from compute capability 8.0; {facts.name} has none"
    dtype = str(DTYPES[precision]).removeprefix("torch.")
    if facts.amp.autocast_dtypes is not None and dtype not in facts.amp.autocast_dtypes:
        return f"torch.autocast does not take {dtype} on {facts.name}"
    if precision == "fp16" and facts.amp.grad_scaler is False:
        return f"FP16 needs a loss scale, and GradScaler does not work on {facts.name}"
    return ""


def _kinds(facts: DeviceFacts) -> dict[str, str]:
    return {entry.format: entry.kind for entry in explain(facts)}


@contextlib.contextmanager
def fp32_products(precision: str) -> Iterator[None]:
    """Let FP32 products be FP32 ("fp32") or TF32 ("tf32") in here; for other precisions, nothing changes.

    PyTorch has these switches twice: `fp32_precision`, and the older `allow_tf32` and `set_float32_matmul_precision`.
    Set through one only, the other raises "mix of the legacy and new APIs" when it is read (`torch.compile` reads
    it), so both are set here, to the same, and both are put back. A setting that is inherited from
    `torch.backends.fp32_precision` is put back as its value.
    """
    if precision not in ("fp32", "tf32"):
        yield
        return
    before = _Switches()
    before.turn("tf32" if precision == "tf32" else "ieee")
    try:
        yield
    finally:
        before.put_back()


class _Switches:
    """The switches as they are when this is made. `turn` and `put_back` write the older ones first."""

    def __init__(self) -> None:
        backends: Any = torch.backends
        self._new = (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn, backends.mkldnn.matmul)
        self._values = [each.fp32_precision for each in self._new]
        self._matmul = _asked(torch.get_float32_matmul_precision)
        self._cudnn = _asked(lambda: backends.cudnn.allow_tf32)

    def turn(self, value: str) -> None:
        # "medium", too, means TF32 on CUDA; it is the only word that the older API has where a CPU's products are BF16.
        tf32 = "medium" if self._values[3] == "bf16" else "high"
        self._set_old(tf32 if value == "tf32" else "highest", value == "tf32")
        for each in self._new[:3]:
            each.fp32_precision = value
        if value == "tf32":  # the CPU's products stay as they are
            self._new[3].fp32_precision = self._values[3]

    def put_back(self) -> None:
        # Where the older word could not be asked for, nobody has set it: it was what PyTorch begins with.
        self._set_old(self._matmul or "highest", self._cudnn)
        for each, value in zip(self._new, self._values, strict=True):
            each.fp32_precision = value

    def _set_old(self, matmul: str | None, cudnn: bool | None) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch 2.9: these will be deprecated
            if matmul is not None:
                torch.set_float32_matmul_precision(matmul)
            if cudnn is not None:
                torch.backends.cudnn.allow_tf32 = cudnn


def _asked(question: Any) -> Any:
    """Return the answer of an older switch; None where both APIs were used before, and it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return question()
        except RuntimeError:
            return None
