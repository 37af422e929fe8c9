"""A transformer small enough for a lesson, and a real one: attention, residuals, LayerNorm, learned positions."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import nn
from torch.nn import functional as F

from amp_lab.train.data import ALPHABET

FP32_ON_CPU: Any = {"dtype": torch.float32, "device": "cpu"}  # whatever the defaults are


class CharacterModel(nn.Module):
    """Guesses the next character; `amp_lab.train.models.character_model` makes one, and says what it takes."""

    def __init__(self, *, width: int, layers: int, heads: int, length: int, dropout: float) -> None:
        super().__init__()
        self.length = length
        self.characters = nn.Embedding(len(ALPHABET), width, **FP32_ON_CPU)
        self.positions = nn.Embedding(length, width, **FP32_ON_CPU)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, **FP32_ON_CPU)
        self.logits = nn.Linear(width, len(ALPHABET), **FP32_ON_CPU)
        for embedding in (self.characters, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)  # as in GPT-2; nn.Embedding starts 50 times larger

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Map characters, int64 of shape `(N, T)`, to logits of shape `(N, 96, T)`.

        Raises:
            ValueError: if the text is longer than `length`.
        """
        if text.shape[-1] > self.length:
            raise ValueError(
                f"the text has {text.shape[-1]} characters, this model takes {self.length}; "
                "make it with character_model(length=...), or cut the text"
            )
        x = self.characters(text) + self.positions(torch.arange(text.shape[-1], device=text.device))
        for block in self.blocks:
            x = block(x)
        return cast(torch.Tensor, self.logits(self.norm(x)).transpose(-1, -2))


class Block(nn.Module):
    """Attention, then two linear layers; each reads a normalised copy, and its result is added (pre-norm)."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, **FP32_ON_CPU)
        self.attention = Attention(width, heads, dropout)
        self.mlp_norm = nn.LayerNorm(width, **FP32_ON_CPU)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, **FP32_ON_CPU),
            nn.GELU(),
            nn.Linear(4 * width, width, **FP32_ON_CPU),
            nn.Dropout(dropout),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        return cast(torch.Tensor, x + self.mlp(self.mlp_norm(x)))


class Attention(nn.Module):
    """Causal self-attention: each character looks at itself and those before it.

    In one kernel, which keeps no matrix of scores for backward.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, **FP32_ON_CPU)
        self.out = nn.Linear(width, width, **FP32_ON_CPU)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, characters, width = x.shape
        shape = (batch, characters, self.heads, width // self.heads)
        queries, keys, values = (part.reshape(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        return cast(torch.Tensor, self.dropout(self.out(mixed.transpose(1, 2).reshape(x.shape))))
