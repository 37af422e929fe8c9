"""The rungs of the ladder: one way to train each, on models that are alike."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from amp_lab.device import DeviceFacts, explain
from amp_lab.train.measuring.compilers import why_no_compile
from amp_lab.train.precision import DTYPES, choose, lacks

_NAMES = {"fp32": "FP32", "tf32": "TF32", "fp16": "FP16 autocast", "bf16": "BF16 autocast"}
HEAD = 64  # features of one head of attention


@dataclass(frozen=True)
class Size:
    """A stack of PyTorch's encoder layers, and a batch of sequences."""

    width: int
    depth: int
    batch_size: int
    tokens: int

    @property
    def in_words(self) -> str:
        layers = "1 encoder layer" if self.depth == 1 else f"{self.depth} encoder layers"
        return f"{layers} of width {self.width:,}, batch {self.batch_size:,} × {self.tokens:,} tokens, AdamW"


@dataclass(frozen=True)
class Way:
    """One way to train. `why_not`: what it lacks here."""

    name: str
    precision: str
    fused: bool = False
    compiled: bool = False
    why_not: str = ""


def ways(facts: DeviceFacts, device: torch.device, compiled: bool | None) -> list[Way]:
    """Return all rungs, from the lowest on; the last two stand on the best precision of the device."""
    best = choose(facts)
    plain = [Way(_NAMES[each], each, why_not="" if each == "fp32" else lacks(each, facts)) for each in _NAMES]
    name = f"{_NAMES[best]} + fused AdamW"
    no_fused = "" if device.type in ("cuda", "cpu") else f"AdamW has no fused kernel on {device.type!r}"
    return [
        *plain,
        Way(name, best, fused=True, why_not=no_fused),
        Way(
            f"{name} + torch.compile",
            best,
            fused=not no_fused,
            compiled=True,
            why_not=_why_not_compiled(device, compiled),
        ),
    ]


def kind(facts: DeviceFacts, precision: str) -> str:
    """Return how a device computes in a precision, such as "tensor cores"."""
    return {entry.format.lower(): entry.kind for entry in explain(facts)}[precision]


def _why_not_compiled(device: torch.device, compiled: bool | None) -> str:
    if compiled is False or (compiled is None and device.type == "cpu"):
        return "left out, as it compiles for long: ladder(compile=True)"
    return why_no_compile(device)


def step_of(way: Way, size: Size, device: torch.device, seed: int) -> Callable[[], object]:
    """Return one training step: forward, backward and the optimizer's step, with a loss scale for FP16."""
    most = max(1, size.width // HEAD)
    heads = max(each for each in range(1, most + 1) if size.width % each == 0)
    fp32 = torch.float32  # whatever the default dtype is
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.default_generator.manual_seed(seed)
        layer = nn.TransformerEncoderLayer(
            size.width, heads, 4 * size.width, dropout=0.0, batch_first=True, norm_first=True, dtype=fp32
        )
        stack = nn.TransformerEncoder(layer, size.depth, enable_nested_tensor=False)
        tokens, target = torch.randn(2, size.batch_size, size.tokens, size.width, dtype=fp32)
    model: nn.Module = stack.to(device)
    tokens, target = tokens.to(device), target.to(device)
    # Without fused, PyTorch takes one kernel for many tensors at once on a GPU, and a loop on a CPU.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True if way.fused else None)
    # The usual first scale, 65,536, is too large for small batches: then steps would be skipped, and take less time.
    scaler = torch.amp.GradScaler(device.type, init_scale=256.0, enabled=way.precision == "fp16")
    run: nn.Module = torch.compile(model) if way.compiled else model  # type: ignore[assignment]
    dtype = DTYPES.get(way.precision)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, dtype or torch.bfloat16, enabled=dtype is not None):
            loss = nn.functional.mse_loss(run(tokens), target)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        scaler.step(optimizer)
        scaler.update()

    return step


def first_step(make: Callable[[], Callable[[], object]]) -> tuple[Callable[[], object] | None, str]:
    """Make what makes a step, and the first one; return it, or None and why that failed, in a line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's advice, such as to switch TF32 on
            step = make()
            step()
        return step, ""
    except (RuntimeError, ValueError, NotImplementedError, ImportError) as error:
        text = str(error).strip() or type(error).__name__
        return None, f"{type(error).__name__}: {text.splitlines()[0][:100]}"
