"""Eight model families, small but real: what an x-ray and the emulation of CUDA's autocast must get right.

Each is a model, its inputs and a loss. The tests of this folder run them on a CPU, `tests/cuda` on a GPU; so what a
model or a loss makes in passing it makes on the device of what it was given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Family:
    """A model with something to feed it, the same numbers at each call.

    `recurrent` models go through cuDNN on a GPU, whose autocast kernel a build without CUDA cannot be asked.
    """

    name: str
    make: Callable[[], nn.Module]
    batch: Callable[[], tuple[torch.Tensor, ...]]
    loss: Callable[[Any], torch.Tensor]
    recurrent: bool = False

    def model(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            return self.make()

    def inputs(self) -> tuple[torch.Tensor, ...]:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)
            return self.batch()


def classes(output: torch.Tensor) -> torch.Tensor:
    """Cross-entropy against the classes 0, 1, 2, … in turn; `output` is (…, classes), one row a sample."""
    rows = output.flatten(0, -2)
    return F.cross_entropy(rows, torch.arange(len(rows), device=rows.device) % rows.shape[-1])


class MLP(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Linear(12, 32),
            nn.GELU(),
            nn.LayerNorm(32),
            nn.Dropout(0.1),
            nn.Linear(32, 32, bias=False),
            nn.SiLU(),
            nn.Linear(32, 5),
        )


class CNN(nn.Module):
    """Convolutions with BatchNorm, pooling, and a classifier on the mean of each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1, groups=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.classifier = nn.Linear(16, 5)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(images).flatten(1))


class ResidualBlock(nn.Module):
    """Two convolutions and a shortcut, which has a convolution of its own where the shape changes."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y)


class ResNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            ResidualBlock(4, 4, stride=1),
            ResidualBlock(4, 8, stride=2),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 5),
        )


class Encoder(nn.Module):
    """PyTorch's own transformer encoder, with a padding mask, over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.1, batch_first=True)
        last = nn.TransformerEncoderLayer(
            16, 4, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.ModuleList([layer, last])
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        padding = tokens == 0
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden, src_key_padding_mask=padding)
        kept = (~padding).unsqueeze(-1)
        return self.head((hidden * kept).sum(1) / kept.sum(1))


class Attention(nn.Module):
    """Causal self-attention: by SDPA's own flag, by a mask given to it, or written out."""

    def __init__(self, width: int, heads: int, how: str) -> None:
        super().__init__()
        self.heads, self.how = heads, how
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        if self.how == "flag":
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
            if self.how == "mask":
                mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=causal)
            else:
                scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
                scores = scores.masked_fill(~causal, torch.finfo(scores.dtype).min)
                mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, how: str) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, how)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Tokens and positions, three blocks that attend in three ways, and a head tied to the embedding."""

    def __init__(self, width: int = 16, heads: int = 4, vocabulary: int = 20, length: int = 8) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, how) for how in ("flag", "mask", "written out"))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Recurrent(nn.Module):
    """An LSTM and a GRU, one after the other, and a classifier on the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
        self.gru = nn.GRU(16, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.lstm(self.embed(tokens))
        hidden, _ = self.gru(hidden)
        return self.head(hidden[:, -1])


class UNet(nn.Module):
    """Down and up again in two ways, a transposed convolution and an interpolation, with skips between."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.down, self.bottom = self.convs(1, 4), self.convs(4, 8), self.convs(8, 8)
        self.transposed = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.up, self.last = self.convs(16, 4), self.convs(8, 4)
        self.out = nn.Conv2d(4, 1, 1)

    @staticmethod
    def convs(channels: int, out: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(channels, out, 3, padding=1), nn.GroupNorm(2, out), nn.LeakyReLU(0.1, inplace=True)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        top = self.first(x)
        middle = self.down(F.max_pool2d(top, 2))
        bottom = self.bottom(F.avg_pool2d(middle, 2))
        up = self.up(torch.cat([middle, self.transposed(bottom)], dim=1))
        up = F.interpolate(up, scale_factor=2, mode="bilinear", align_corners=False)
        return torch.sigmoid(self.out(self.last(torch.cat((top, up), dim=1))))


class GAN(nn.Module):
    """A generator and a discriminator, whose logits for real and for made-up images come out."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.Linear(6, 32),
            nn.Unflatten(1, (8, 2, 2)),
            nn.ConvTranspose2d(8, 4, 4, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.ConvTranspose2d(4, 1, 4, stride=2, padding=1),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.utils.parametrizations.spectral_norm(nn.Conv2d(1, 4, 4, stride=2, padding=1)),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Flatten(),
            nn.Linear(64, 1),
        )

    def forward(self, noise: torch.Tensor, real: torch.Tensor) -> dict[str, torch.Tensor]:
        made = self.generator(noise)
        return {
            "real": self.discriminator(real),
            "fooled": self.discriminator(made),
            "found": self.discriminator(made.detach()),
        }


def of_both_players(logits: dict[str, torch.Tensor]) -> torch.Tensor:
    """What the discriminator and the generator each try to make small, added up."""
    wanted = {"real": 1.0, "found": 0.0, "fooled": 1.0}
    each = [
        F.binary_cross_entropy_with_logits(logits[name], torch.full_like(logits[name], target))
        for name, target in wanted.items()
    ]
    return torch.stack(each).sum()


def _tokens() -> tuple[torch.Tensor, ...]:
    tokens = torch.randint(1, 20, (2, 8))
    tokens[1, 6:] = 0  # padding
    return (tokens,)


def _to_itself(made: torch.Tensor) -> torch.Tensor:
    """Mean squared error and mean absolute error against a picture of stripes."""
    stripes = (torch.arange(made.shape[-1], device=made.device) % 2).float().expand(made.shape)
    return F.mse_loss(made, stripes) + 0.1 * F.l1_loss(made, stripes)


FAMILIES = [
    Family("MLP", MLP, lambda: (torch.randn(6, 12),), classes),
    Family("CNN with BatchNorm", CNN, lambda: (torch.randn(4, 3, 8, 8),), classes),
    Family("ResNet block", ResNet, lambda: (torch.randn(4, 4, 8, 8),), classes),
    Family("transformer encoder", Encoder, _tokens, classes),
    Family("GPT block with SDPA", GPT, _tokens, classes),
    Family("LSTM and GRU", Recurrent, _tokens, classes, recurrent=True),
    Family("U-Net", UNet, lambda: (torch.randn(2, 1, 8, 8),), _to_itself),
    Family("GAN pair", GAN, lambda: (torch.randn(4, 6), torch.randn(4, 1, 8, 8)), of_both_players),
]
