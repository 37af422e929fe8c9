"""Products of every kind that is emulated, with operands whose exact result can be told."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F

Operands = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Product:
    """One operation on tensors of some shapes; `terms` is how many products one result adds up, at most.

    It grows with each operand where all are positive, so that it bounds, at the operands' magnitudes, the sum of
    the magnitudes of what it adds up.
    """

    name: str
    compute: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    terms: int

    def operands(self, draw: Callable[[tuple[int, ...]], torch.Tensor]) -> Operands:
        return tuple(draw(shape) for shape in self.shapes)


def _out(function: Callable[..., torch.Tensor], shape: tuple[int, ...]) -> Callable[..., torch.Tensor]:
    """The function writing into `out`, which is filled with what must not be seen."""

    def compute(*operands: torch.Tensor) -> torch.Tensor:
        out = torch.full(shape, float("nan"), dtype=operands[0].dtype)
        assert function(*operands, out=out) is out
        return out

    return compute


def _in_place(name: str, **scalars: float) -> Callable[..., torch.Tensor]:
    """The method that ends with an underscore, on a copy."""

    def compute(first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
        target = first.clone()
        assert getattr(target, name)(*others, **scalars) is target
        return target

    return compute


def _weights_of(convolve: Callable[..., torch.Tensor], which: int) -> Callable[..., torch.Tensor]:
    """The gradient of a convolution: of its input (0), its weight (1) or its bias (2)."""

    def compute(*operands: torch.Tensor) -> torch.Tensor:
        leaves = [operand.clone().requires_grad_() for operand in operands]
        result = convolve(*leaves)
        upstream = (torch.arange(result.numel()) % 5).reshape(result.shape).to(result.dtype)
        return torch.autograd.grad(result, leaves, upstream)[which]

    return compute


def _strided(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.conv2d(x, w, b, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2)


def _transposed(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.conv_transpose2d(x, w, b, stride=2, padding=1, output_padding=1)


_STRIDED = ((2, 4, 9, 8), (6, 2, 3, 3), (6,))
_TRANSPOSED = ((2, 4, 5, 6), (4, 3, 3, 3), (3,))

PRODUCTS = [
    Product("mm", torch.mm, ((7, 300), (300, 5)), 300),
    Product("mm of transposed", lambda a, b: torch.mm(a.T, b.T), ((300, 7), (5, 300)), 300),
    Product("mm of slices", lambda a, b: a[::2, 1::3] @ b[::3, ::2], ((8, 301), (300, 9)), 100),
    Product("mm, one element", torch.mm, ((1, 1), (1, 1)), 1),
    Product("mm out=", _out(torch.mm, (7, 5)), ((7, 300), (300, 5)), 300),
    Product("bmm", torch.bmm, ((3, 7, 100), (3, 100, 5)), 100),
    Product("bmm out=", _out(torch.bmm, (3, 7, 5)), ((3, 7, 100), (3, 100, 5)), 100),
    Product("matmul of four dimensions", torch.matmul, ((2, 3, 4, 50), (50, 6)), 50),
    Product("addmm", torch.addmm, ((7, 5), (7, 300), (300, 5)), 301),
    Product("addmm of a row", torch.addmm, ((5,), (7, 300), (300, 5)), 301),
    Product(
        "addmm, scaled",
        lambda c, a, b: torch.addmm(c, a, b, beta=0.5, alpha=3),
        ((7, 5), (7, 300), (300, 5)),
        903,
    ),
    Product("addmm out=", _out(torch.addmm, (7, 5)), ((7, 5), (7, 300), (300, 5)), 301),
    Product("addmm_", _in_place("addmm_"), ((7, 5), (7, 300), (300, 5)), 301),
    Product("addmm_, scaled", _in_place("addmm_", beta=2, alpha=0.5), ((7, 5), (7, 300), (300, 5)), 302),
    Product("baddbmm", torch.baddbmm, ((3, 7, 5), (3, 7, 100), (3, 100, 5)), 101),
    Product("baddbmm_", _in_place("baddbmm_", beta=0.25), ((3, 7, 5), (3, 7, 100), (3, 100, 5)), 101),
    Product("baddbmm out=", _out(torch.baddbmm, (3, 7, 5)), ((3, 7, 5), (3, 7, 100), (3, 100, 5)), 101),
    Product("addbmm", torch.addbmm, ((7, 5), (3, 7, 100), (3, 100, 5)), 301),
    Product("addbmm_", _in_place("addbmm_", alpha=2), ((7, 5), (3, 7, 100), (3, 100, 5)), 601),
    Product("addbmm out=", _out(torch.addbmm, (7, 5)), ((7, 5), (3, 7, 100), (3, 100, 5)), 301),
    Product("mv", torch.mv, ((7, 300), (300,)), 300),
    Product("mv out=", _out(torch.mv, (7,)), ((7, 300), (300,)), 300),
    Product("addmv", torch.addmv, ((7,), (7, 300), (300,)), 301),
    Product("addmv_", _in_place("addmv_", beta=2), ((7,), (7, 300), (300,)), 302),
    Product("addmv out=", _out(torch.addmv, (7,)), ((7,), (7, 300), (300,)), 301),
    Product("dot", torch.dot, ((300,), (300,)), 300),
    Product("dot out=", _out(torch.dot, ()), ((300,), (300,)), 300),
    Product("vdot", torch.vdot, ((300,), (300,)), 300),
    Product("linear", F.linear, ((2, 3, 300), (5, 300), (5,)), 301),
    Product("einsum", lambda a, b: torch.einsum("nik,njk->nij", a, b), ((2, 3, 90), (2, 4, 90)), 90),
    Product("conv1d", F.conv1d, ((2, 9, 30), (4, 9, 11)), 99),
    Product(
        "conv2d", lambda x, w, b: F.conv2d(x, w, b, padding="same"), ((2, 9, 8, 8), (4, 9, 3, 3), (4,)), 82
    ),
    Product("conv2d of one pixel", F.conv2d, ((1, 1, 1, 1), (1, 1, 1, 1)), 1),
    Product("conv2d, strided, dilated, grouped", _strided, _STRIDED, 19),
    Product(
        "conv2d, channels last",
        lambda x, w: F.conv2d(x.to(memory_format=torch.channels_last), w),
        ((2, 8, 6, 6), (4, 8, 3, 3)),
        72,
    ),
    Product("conv2d without a batch", F.conv2d, ((3, 6, 6), (4, 3, 3, 3)), 27),
    Product("conv2d per channel", lambda x, w: F.conv2d(x, w, groups=6), ((2, 6, 8, 8), (6, 1, 3, 3)), 9),
    Product("conv3d", F.conv3d, ((1, 3, 5, 5, 5), (2, 3, 3, 3, 3)), 81),
    Product("conv_transpose2d", _transposed, _TRANSPOSED, 37),
    Product("gradient of conv2d's input", _weights_of(_strided, 0), _STRIDED, 60),
    Product("gradient of conv2d's weight", _weights_of(_strided, 1), _STRIDED, 200),
    Product("gradient of conv2d's bias", _weights_of(_strided, 2), _STRIDED, 200),
    Product("gradient of conv_transpose2d's input", _weights_of(_transposed, 0), _TRANSPOSED, 60),
    Product("gradient of conv_transpose2d's weight", _weights_of(_transposed, 1), _TRANSPOSED, 100),
]
# Into mm and friends by autograd, too: what a linear layer sends back.
PRODUCTS += [
    Product(f"gradient of linear's {name}", _weights_of(F.linear, which), ((40, 30), (20, 30), (20,)), 40)
    for which, name in enumerate(["input", "weight", "bias"])
]
EMPTY = [
    Product("no rows", torch.mm, ((0, 3), (3, 2)), 1),
    Product("nothing to add", torch.mm, ((2, 0), (0, 3)), 1),
    Product("nothing to add to the bias", torch.addmm, ((2, 3), (2, 0), (0, 3)), 1),
    Product("empty dot", torch.dot, ((0,), (0,)), 1),
    Product("empty mv", torch.mv, ((0, 3), (3,)), 1),
    Product("no batch", torch.bmm, ((0, 2, 3), (0, 3, 2)), 1),
    Product("no image", F.conv2d, ((0, 2, 5, 5), (3, 2, 3, 3)), 1),
]
