"""The peaks of GPUs, as their maker states them: dense products, without sparsity.

A peak is what the units could do if they never waited. Nobody's program reaches it; what counts is the ratio of peaks.
Where a data sheet states a number "with sparsity" only (two of four weights are zero, and skipped), half of it is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

_T: Final = 1e12
_G: Final = 1e9


@dataclass(frozen=True)
class Gpu:
    """Peaks of one GPU: FLOP/s of products in each format (None: it has no unit for it), and bytes/s of its memory.

    `fp16`, `bf16` and `tf32` are those of Tensor Cores that add up in FP32; `fp32` is that of the ordinary units.
    """

    name: str
    fp16: float
    bf16: float | None
    tf32: float | None
    fp32: float
    bandwidth: float
    source: str

    def peak(self, what: torch.dtype | str) -> float:
        """Return the FLOP/s of a dtype, or of "fp16", "bf16", "tf32", "fp32".

        Raises:
            ValueError: for another, and for one that this GPU has no unit for.
        """
        name = _NAMES.get(what, what) if isinstance(what, torch.dtype) else what
        if name not in _FORMATS:
            raise ValueError(
                f"{what!r} is none of {', '.join(_FORMATS)}, nor torch.float16, bfloat16, float32"
            )
        peak: float | None = getattr(self, str(name))
        if peak is None:
            raise ValueError(f"the {self.name} has no unit for {str(name).upper()}")
        return peak

    def ridge(self, what: torch.dtype | str) -> float:
        """Return the FLOP/byte from which on arithmetic, not memory, is what an operator waits for."""
        return self.peak(what) / self.bandwidth


_FORMATS: Final = ("fp16", "bf16", "tf32", "fp32")
_NAMES: Final = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}

GPUS: Final[dict[str, Gpu]] = {
    each.name: each
    for each in (
        Gpu(
            "V100",
            125 * _T,
            None,
            None,
            15.7 * _T,
            900 * _G,
            "NVIDIA Ampere Architecture In-Depth, table of V100 SXM2 and A100",
        ),
        Gpu("T4", 65 * _T, None, None, 8.1 * _T, 320 * _G, "NVIDIA T4 product page"),
        Gpu("A100", 312 * _T, 312 * _T, 156 * _T, 19.5 * _T, 2039 * _G, "NVIDIA A100 data sheet, 80 GB SXM"),
        Gpu(
            "L4",
            121 * _T,
            121 * _T,
            60 * _T,
            30.3 * _T,
            300 * _G,
            "NVIDIA L4 data sheet; Tensor Cores halved, there they are with sparsity",
        ),
        Gpu(
            "H100",
            989.5 * _T,
            989.5 * _T,
            494.5 * _T,
            67 * _T,
            3350 * _G,
            "NVIDIA H100 data sheet, SXM; Tensor Cores halved, there they are with sparsity",
        ),
        Gpu(
            "H200",
            989.5 * _T,
            989.5 * _T,
            494.5 * _T,
            67 * _T,
            4800 * _G,
            "NVIDIA H200 data sheet, SXM; Tensor Cores halved, there they are with sparsity",
        ),
        Gpu(
            "RTX 3090",
            71 * _T,
            71 * _T,
            35.6 * _T,
            35.6 * _T,
            936 * _G,
            "NVIDIA Ampere GA102 GPU Architecture, white paper, appendix A: FP16 with FP32 accumulate",
        ),
        Gpu(
            "RTX 4090",
            165.2 * _T,
            165.2 * _T,
            82.6 * _T,
            82.6 * _T,
            1008 * _G,
            "NVIDIA Ada GPU Architecture, white paper, appendix A: FP16 with FP32 accumulate",
        ),
    )
}


def gpu_named(name: Gpu | str) -> Gpu:
    """Return a GPU of the table by its name, or by the longer one that PyTorch gives ("NVIDIA A100-SXM4-80GB").

    Raises:
        KeyError: for one that is not in the table.
    """
    if isinstance(name, Gpu):
        return name
    words = name.replace("-", " ").split()
    for each in GPUS.values():
        asked = each.name.split()
        if any(words[start : start + len(asked)] == asked for start in range(len(words))):
            return each
    raise KeyError(
        f"no peaks of {name!r} are stated here, only of {', '.join(GPUS)}; make a Gpu(...) of your own"
    )


def attainable(flops_per_byte: float, gpu: Gpu | str, what: torch.dtype | str = "fp16") -> float:
    """Return the FLOP/s that an operator of this intensity can reach at most: the lower of arithmetic and memory.

    Source: Williams, Waterman, Patterson, "Roofline: An Insightful Visual Performance Model", CACM 52 (2009).
    """
    found = gpu_named(gpu)
    return min(found.peak(what), flops_per_byte * found.bandwidth)
