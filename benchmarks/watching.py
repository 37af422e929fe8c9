"""`amp_lab.watch` around a training step of a small transformer in which nothing is wrong: seconds, as a ratio.

The step is what people write: zero_grad, a region, loss, scale, backward, unscale_, clip, step, update. It is timed
alone, under `amp_lab.watch`, and under transformers' DebugUnderflowOverflow, which looks at every module's inputs,
outputs and weights for infinities: another question, the only public tool near this one. Each has a copy of the same
model. What a watch looks at more closely in its first steps is in the warm-up.

A watch around a loop is put on once: it is put on, one step is made, and then ten more are timed. As a decorator of
the function that makes one step it is put on and taken off in every one of them, and that is timed, too.

BF16 has no scaler, and FP16 has one; the first is faster on many CPUs.

Two sizes are timed: a small model of 4 layers and width 256, still far below what people train, and a tiny one, whose
step takes some 15 ms on two cores, and which shows what a watch costs in itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import amp_lab
from amp_lab.train.measure import Timings, compare
from benchmarks.finding import Finding, against

HEADS, BATCH, WORDS = 4, 8, 256
STEPS = 10  # timed together; with 60 rounds, 600 of each way
BAR = 1.05


class Size(NamedTuple):
    """How large the model is, and its batch of 8 texts."""

    width: int
    layers: int
    tokens: int


TINY, SMALL = Size(128, 2, 32), Size(256, 4, 64)
PEER = "DebugUnderflowOverflow"
DECORATED = "decorated"


def measure(quick: bool) -> list[Finding]:
    """Return the ratio of a watched step to one that is not, for FP32, BF16 and FP16; with `quick` of few steps."""
    rounds, warm_up = (2, 1) if quick else (60, 2)
    timings = _timings(None, rounds, warm_up, SMALL, others=False)
    print(f"  FP32, 4 layers of width 256, {torch.get_num_threads()} threads\n{timings}")
    found = [against(timings, "watched", "amp_lab.watch ÷ nothing, a step of the small model in FP32", BAR)]
    for name, dtype in (("FP32", None), ("BF16", torch.bfloat16), ("FP16", torch.float16)):
        timings = _timings(dtype, rounds, warm_up)
        print(f"  {name}, 2 layers of width 128, {torch.get_num_threads()} threads\n{timings}")
        found.append(against(timings, "watched", f"amp_lab.watch ÷ nothing, a tiny step in {name}", BAR))
        for way, what in ((DECORATED, "watched, as a decorator"), (PEER, PEER)):
            if way in timings.seconds:
                found.append(against(timings, way, f"{what} ÷ nothing, a tiny step in {name}"))
    return found


def _timings(
    dtype: torch.dtype | None, rounds: int, warm_up: int, size: Size = TINY, *, others: bool = True
) -> Timings:
    """Time the same step alone and watched; with `others` also as a decorator, and under the peer, if it is there."""
    alone, watched, decorated = (Loop(dtype, size) for _ in range(3))
    seen = amp_lab.watch(watched.model, watched.optimizer, watched.scaler)
    again = amp_lab.watch(decorated.model, decorated.optimizer, decorated.scaler)
    steps = {"alone": alone.step, "watched": watched.step}
    if others:
        steps[DECORATED] = again(decorated.step)
    peer = load_peer() if others else None
    if peer is not None:
        debugged = Loop(dtype, size)
        peer(debugged.model)
        steps[PEER] = debugged.step

    def prepare(way: str) -> None:
        """Let the watch be on for its own steps alone: what it replaces in PyTorch, all would pass through."""
        seen.stop()
        if way == "watched":
            seen.start()
        steps[way]()

    ways = {name: _repeated(step) for name, step in steps.items()}
    timings = compare(ways, baseline="alone", rounds=rounds, warm_up=warm_up, prepare=prepare)
    seen.stop()
    for each in (seen, again) if others else (seen,):
        if list(each.report()):
            raise AssertionError(f"nothing is wrong with the step, but the watcher says:\n{each.report()}")
    return timings


def _repeated(step: Callable[[], object]) -> Callable[[], object]:
    def steps() -> None:
        for _ in range(STEPS):
            step()

    return steps


def load_peer() -> Callable[[nn.Module], object] | None:
    """Return the class of transformers that watches a model; None, and a line that says so, if it is not installed."""
    try:
        from transformers.debug_utils import DebugUnderflowOverflow
    except ImportError as missing:
        print(f"  {PEER} is left out: {missing}. It is in the extra `bench`: pip install 'amp-lab[bench]'")
        return None
    found: Callable[[nn.Module], object] = DebugUnderflowOverflow
    return found


class Transformer(nn.Module):
    """A small causal language model of PyTorch's own encoder layers."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        width, layers, tokens = size
        layer = nn.TransformerEncoderLayer(
            width, HEADS, 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.words = nn.Embedding(WORDS, width)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, WORDS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(tokens), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return logits (batch, tokens, words) for tokens (batch, tokens)."""
        hidden = self.layers(self.words(tokens), mask=self.mask, is_causal=True)
        logits: torch.Tensor = self.head(hidden)
        return logits


class Loop:
    """A model, its optimizer and scaler, and one step of training."""

    def __init__(self, dtype: torch.dtype | None, size: Size) -> None:
        torch.manual_seed(0)
        self.model, self.dtype = Transformer(size), dtype
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        half = dtype is torch.float16
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, enabled=True) if half else None
        self.tokens = torch.randint(0, WORDS, (BATCH, size.tokens + 1))

    def step(self) -> None:
        """Train on the batch once."""
        self.optimizer.zero_grad()
        with torch.autocast("cpu", self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            logits = self.model(self.tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), self.tokens[:, 1:].flatten())
        if self.scaler is None:
            torch.autograd.backward(loss)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            return
        torch.autograd.backward(self.scaler.scale(loss))
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
