"""Models of images: a vision transformer, with and without checkpoints, and a U-Net with four kinds of norms."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.watching.faults.collection import Case, fault, healthy

FAMILY = "vision"


class Attention(nn.Module):
    def __init__(self, d, h, scale=True):
        super().__init__()
        self.h, self.scale = h, scale
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.h, d // self.h).permute(2, 0, 3, 1, 4)
        a = q @ k.transpose(-2, -1)
        if self.scale:
            a = a * (d // self.h) ** -0.5
        return self.proj((a.softmax(-1) @ v).transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.n1 = nn.LayerNorm(d)
        self.attn = Attention(d, h)
        self.n2 = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * d, d))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class ViT(nn.Module):
    def __init__(self, checkpointed=False):
        super().__init__()
        d = 16
        self.patch = nn.Conv2d(3, d, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, d))
        self.pos = nn.Parameter(torch.randn(1, 5, d) * 0.02)
        self.blocks = nn.ModuleList([Block(d, 2) for _ in range(2)])
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, 5)
        self.checkpointed = checkpointed

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        for b in self.blocks:
            x = checkpoint(b, x, use_reentrant=False) if self.checkpointed else b(x)
        return self.head(self.norm(x)[:, 0])


def images():
    return torch.rand(4, 3, 8, 8), torch.arange(4)


@healthy("a vision transformer", device_type="cpu")
def vit_healthy():
    return Case(ViT(), F.cross_entropy, images())


@healthy("its blocks as checkpoints", device_type="cpu")
def vit_ckpt_healthy():
    return Case(ViT(True), F.cross_entropy, images())


@fault(
    "forward-overflow",
    "pixels that are not normalised leave FP16 in the first convolution",
    phase="forward",
    ops=("conv2d", "convolution", "_convolution"),
    module="patch",
    device_type="cpu",
)
def vit_pixels():
    model = ViT()
    model.patch.weight.data.fill_(20.0)
    x, y = images()
    return Case(model, F.cross_entropy, (x * 255 * 2, y))


@fault(
    "forward-overflow",
    "a large weight in the second MLP",
    phase="forward",
    ops=("linear", "addmm"),
    module="blocks.1.mlp.3",
    device_type="cpu",
)
def vit_fc2():
    model = ViT()
    model.blocks[1].mlp[3].weight.data.fill_(2e4)
    model.blocks[1].mlp[0].bias.data.fill_(3.0)
    return Case(model, F.cross_entropy, images())


@fault(
    "forward-overflow",
    "scores of attention, before they are scaled",
    phase="forward",
    ops=("matmul", "bmm", "__matmul__"),
    module="blocks.0.attn",
    device_type="cpu",
)
def vit_scores():
    model = ViT()
    model.blocks[0].attn.qkv.weight.data.mul_(800)
    return Case(model, F.cross_entropy, images())


@fault(
    "forward-overflow",
    "scores of attention, in a block that is a checkpoint",
    phase="forward",
    ops=("matmul", "bmm"),
    module="blocks.1.attn",
    device_type="cpu",
)
def vit_scores_ckpt():
    model = ViT(True)
    model.blocks[1].attn.qkv.weight.data.mul_(800)
    return Case(model, F.cross_entropy, images())


@fault(
    "nan-in-weights",
    "a weight that is NaN",
    phase="forward",
    ops=("linear", "addmm"),
    module="blocks.1.attn.proj",
    device_type="cpu",
)
def vit_nan_weight():
    model = ViT()
    model.blocks[1].attn.proj.weight.data[0, 0] = float("nan")
    return Case(model, F.cross_entropy, images())


@fault(
    "nan-in-data",
    "a pixel that is NaN",
    phase="forward",
    ops=("conv2d", "convolution"),
    module="patch",
    device_type="cpu",
)
def vit_nan_pixel():
    x, y = images()
    x[1, 0, 0, 0] = float("nan")
    return Case(ViT(), F.cross_entropy, (x, y))


@fault(
    "scale-too-large",
    "a sum of losses times 300, behind checkpoints",
    phase="backward",
    cures=True,
    device_type="cpu",
    or_cause="backward-overflow",
)
def vit_ckpt_backward():
    model = ViT(True)
    return Case(model, lambda out, y: 300 * F.cross_entropy(out.float(), y, reduction="sum"), images())


class UNet(nn.Module):
    def __init__(self, norm=None):
        super().__init__()
        self.d1 = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.down = nn.Conv2d(8, 16, 2, 2)
        self.norm = norm or nn.GroupNorm(4, 16)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.out = nn.Conv2d(16, 1, 1)

    def forward(self, x):
        a = self.d1(x)
        b = F.silu(self.norm(self.down(a)))
        return self.out(torch.cat([a, self.up(b)], 1))


class SquareNorm(nn.Module):
    def forward(self, x):
        return x / torch.sqrt((x * x).mean((1, 2, 3), keepdim=True) + 1e-5)


class PowNorm(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean((1, 2, 3), keepdim=True) + 1e-5)


def scenes():
    return torch.randn(2, 1, 8, 8), torch.randint(0, 2, (2, 1, 8, 8)).float()


def by_pixel(out, y):
    return F.binary_cross_entropy_with_logits(out.float(), y)


@healthy("a U-Net with BatchNorm and GroupNorm", device_type="cpu")
def unet_healthy():
    return Case(UNet(), by_pixel, scenes())


@healthy("a norm by hand, of small numbers", device_type="cpu")
def unet_squarenorm_healthy():
    return Case(UNet(SquareNorm()), by_pixel, scenes())


@fault(
    "forward-overflow",
    "a transposed convolution",
    phase="forward",
    ops=("conv_transpose2d", "convolution"),
    module="up",
    device_type="cpu",
)
def unet_up():
    model = UNet()
    model.up.weight.data.fill_(1e4)
    return Case(model, by_pixel, scenes())


@fault(
    "hidden-overflow",
    "the mean square of a norm written by hand",
    phase="forward",
    ops=("mul", "__mul__"),
    module="norm",
    device_type="cpu",
)
def unet_hidden_square():
    model = UNet(SquareNorm())
    model.down.weight.data.mul_(1500)
    return Case(model, by_pixel, scenes())


@fault(
    "hidden-overflow",
    "the same with pow",
    phase="forward",
    ops=("pow", "__pow__"),
    module="norm",
    device_type="cpu",
)
def unet_hidden_pow():
    model = UNet(PowNorm())
    model.down.weight.data.mul_(1500)
    return Case(model, lambda out, y: 0.05 * by_pixel(out, y), scenes())


@healthy("CUDA's policy computes pow in FP32")
def unet_pow_cuda_healthy():
    model = UNet(PowNorm())
    model.down.weight.data.mul_(1500)
    return Case(model, by_pixel, scenes())


@fault(
    "hidden-overflow",
    "the same with CUDA's policy, which computes x * x in FP16",
    phase="forward",
    ops=("mul", "__mul__"),
    module="norm",
)
def unet_hidden_square_cuda():
    model = UNet(SquareNorm())
    model.down.weight.data.mul_(1500)
    return Case(model, by_pixel, scenes())


def dice(o, y):
    p = o.sigmoid()
    return 1 - (2 * (p * y.to(p.dtype)).sum()) / (p.sum() + y.to(p.dtype).sum())


def large_scene():
    model = nn.Conv2d(1, 1, 1)
    model.bias.data.fill_(6.0)
    model.weight.data.zero_()
    return Case(model, dice, (torch.rand(1, 1, 300, 300), torch.ones(1, 1, 300, 300)))


@fault(
    "forward-overflow",
    "the Dice loss sums 90,000 pixels in FP16",
    phase="forward",
    ops=("sum",),
    device_type="cpu",
)
def dice_sum():
    return large_scene()


@healthy("CUDA's policy computes sum in FP32")
def dice_cuda_healthy():
    return large_scene()
