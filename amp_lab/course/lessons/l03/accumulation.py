"""Exercise 3.1: FP16 operands, an FP32 accumulator, one rounding.

Most operands are chosen so that every partial sum is exact in FP32, in whatever order one adds: then the right answer
is a single number, and each rounding on the way shows as another one. Real hardware, and PyTorch's own `a @ b`, may add
in any order; where that matters, one step of FP16 is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, exact
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake, Region, Trial

_WIDE = (torch.float32, torch.float64)
_ULP = 2.0**-11  # half of the largest relative step of FP16: what one rounding may cost
_SHOWN = 4
_STEPS = (0.5, 1, 1 + 2.0**-10, 2.5, 3 - 2.0**-9, 3)  # where numbers are 2 apart


class Operands(NamedTuple):
    """Two FP16 matrices, M × K and K × N."""

    a: torch.Tensor
    b: torch.Tensor


def _half(rows: Sequence[Sequence[float]] | torch.Tensor) -> torch.Tensor:
    return torch.as_tensor(rows, dtype=torch.float32).half()


def _exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).half()


def _filled(value: float) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda a, b: torch.full((a.shape[0], b.shape[1]), value, dtype=torch.float16)


def _square() -> Operands:
    return Operands(_half([[1, 2], [3, 5]]), _half([[7, 11], [13, 17]]))


def _oblong() -> Operands:
    return Operands(
        _half([[1, 2, -3], [4, 0.5, 6]]), _half([[7, -8, 9, 10], [11, 12, 1.5, 14], [2, 3, 4, 5]])
    )


def _all_digits() -> Operands:
    """Numbers that need each of FP16's fraction bits, times one."""
    return Operands(_half([[1 + 2.0**-10], [2047], [3 - 2.0**-9]]), _half([[1, 1]]))


def _ones(length: int = 4096) -> Operands:
    return Operands(torch.ones(2, length).half(), torch.ones(length, 2).half())


def _odd_partial_sums(block: int = 64, blocks: int = 31) -> Operands:
    """Rows that begin each block with 2048, 1 in their first half and with −2048, 0 in the second.

    The sum of a block is 2049, which FP16 does not have; so is, in a similar way, that of any run of blocks.
    """
    row = torch.zeros(2, blocks + 1, block)
    row[0, :blocks, 0], row[0, :blocks, 1], row[1, :blocks, 0] = 2048, 1, -2048
    flat = row.flatten()
    return Operands(_half(torch.stack((flat, -flat))), torch.ones(flat.numel(), 2).half())


def _shuffled(rows: int = 3, pairs: int = 31) -> Operands:
    """The same numbers in another order: no way to cut or to halve the row is without odd partial sums."""
    draw = torch.Generator().manual_seed(3)
    numbers = torch.tensor([2048.0, 1.0, -2048.0, 0.0]).repeat(pairs + 1)[: 4 * pairs]
    shuffled = [numbers[torch.randperm(len(numbers), generator=draw)] for _ in range(rows)]
    return Operands(_half(torch.stack(shuffled)), torch.ones(len(numbers), 1).half())


def _leaves_and_comes_back() -> Operands:
    """Partial sums that FP16 would call infinite, with a sum that it has."""
    return Operands(_half([[60000, 60000, -60000, -59000]]), torch.ones(4, 1).half())


def _far_apart(length: int = 16384) -> Operands:
    """2048 and 1 at the beginning, −2048 at the end: whoever rounds between them, anywhere, loses the 1."""
    row = torch.zeros(1, length)
    row[0, 0], row[0, 1], row[0, -1] = 2048, 1, -2048
    return Operands(_half(row), torch.ones(length, 1).half())


def _tiny_products(length: int = 4096) -> Operands:
    """Products of 2^−26, which FP16 makes zero; their sum, 2^−14, is a normal number."""
    return Operands(torch.full((2, length), 2.0**-13).half(), torch.full((length, 2), 2.0**-13).half())


def _subnormal_operands(length: int = 64) -> tuple[Operands, ...]:
    """Sums of numbers of 2^−20 and of 2^−24, times 1024; the smallest of them no division leaves as it is."""
    large = torch.full((length, 2), 1024.0).half()
    small = [torch.full((2, length), 2.0**-power).half() for power in (20, 24)]
    return tuple(Operands(*pair) for each in small for pair in ((each, large), (large.t(), each.t())))


def _between_two_numbers() -> tuple[Operands, ...]:
    """Sums of two numbers that FP16 does not have: ties to either side, and what lies nearer to one neighbour.

    There are so many that whoever leaves it to chance cannot have luck with all of them.
    """
    numbers = [(sign * base, sign * step) for base in (2048, 3002) for step in _STEPS for sign in (1, -1)]
    subnormal = [(2.0**-12, step * 2.0**-12) for step in (3, 2.5, 1.5)]  # times 2^−13
    ones = _half([[1], [1]])
    return (
        *(Operands(_half([each]), ones) for each in numbers),
        *(Operands(_half([each]), _half([[2.0**-13], [2.0**-13]])) for each in subnormal),
    )


def _too_large() -> Operands:
    return Operands(_half([[300, 300], [-300, -300], [32768, 32752], [32768, 32751]]), _half([[300], [300]]))


def _at_the_end() -> Operands:
    """Sums of 65,520, which rounds to infinity, and of 65,519 and less, which does not."""
    rows = [[32768, 32736, 16], [32768, 32736, 15], [-32768, -32736, -16], [-32768, -32736, -15]]
    return Operands(_half(rows), _half([[1], [1], [1]]))


def _saturated(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.double() @ b.double()).clamp(-65504, 65504).half()


def _coarse(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return (a.bfloat16().float() @ b.bfloat16().float()).half()


def _say(diagnosis: str) -> expect.Otherwise:
    """Return what tells any wrong trial of a region as `diagnosis`."""

    def otherwise(trials: Sequence[Trial]) -> None:
        raise Mistake(diagnosis, **expect.first_wrong(trials))

    return otherwise


_REGIONS = (
    Region(
        (_square(), _oblong()),
        (
            ("elementwise", lambda a, b: a * b),
            ("transposed", lambda a, b: a @ b.t()),
            ("swapped", lambda a, b: b @ a),
        ),
    ),
    Region(
        (_ones(),),
        (("accumulates-in-fp16", _filled(2048.0)), ("accumulates-in-bf16", _filled(256.0))),
        _say("rounds-partial-sums"),
    ),
    Region((_all_digits(),), (("through-bf16", _coarse),)),
    Region(
        (_odd_partial_sums(), _shuffled(), _leaves_and_comes_back(), _far_apart()),
        (),
        _say("rounds-partial-sums"),
    ),
    Region((_tiny_products(),), (("rounds-products", _filled(0.0)),)),
    Region(_subnormal_operands(), (), _say("loses-subnormal-operands")),
    Region(_between_two_numbers(), (), _say("rounds-otherwise")),
    Region((_too_large(), _at_the_end()), (("saturates", _saturated),)),
)


def _positive(length: int, seed: int) -> Operands:
    """Draw positive numbers of very different sizes, whose sums stay far from 65,504."""
    draw = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(size, generator=draw).exp() for size in ((3, length), (length, 2)))
    return Operands(a.half(), b.half())


def _of_both_signs(length: int, seed: int) -> Operands:
    draw = torch.Generator().manual_seed(seed)
    a, b = (torch.randn(size, generator=draw) for size in ((2, length), (length, 3)))
    return Operands(a.half(), b.half())


def steps_apart(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Count how many FP16 numbers lie from one tensor's to the other's; both are positive and may be infinite."""
    return (one.view(torch.int16).int() - other.view(torch.int16).int()).abs()


def _in_words(a: torch.Tensor, b: torch.Tensor) -> str:
    row, column = (", ".join(map(exact, each[:_SHOWN])) for each in (a[0], b[:, 0]))
    dots = ", …" if len(b) > _SHOWN else ""
    shapes = f"{tuple(a.shape)} and {tuple(b.shape)}"
    return f"`tensor_core_matmul(a, b)` with shapes {shapes}, `a[0]` = [{row}{dots}] and `b[:, 0]` = [{column}{dots}]"


def _read(call: str, got: Any, want: torch.Tensor) -> torch.Tensor:
    if type(got) is torch.Tensor and got.dtype in _WIDE and got.shape == want.shape:
        raise Mistake("not-rounded-at-all", call=call, got=f"`{got.dtype}`", want=f"`{want.dtype}`")
    return expect.tensor_like(call, got, want)


def _judge_positive(ask: Ask, operands: Operands) -> None:
    """Allow one step of FP16: the order of the sum is free, and FP32 rounds, too."""
    got, want = ask(*operands), _exact(*operands)
    got = _read(ask.call, got, want)
    if not got.isfinite().all() or (got <= 0).any():
        raise Mistake("wrong-value", call=ask.call, got=describe(got), want=describe(want))
    apart = steps_apart(got, want).flatten()
    worst = int(apart.argmax())
    if apart[worst] > 1:
        shown = {"got": exact(got.flatten()[worst]), "want": exact(want.flatten()[worst])}
        raise Mistake("rounds-often", call=ask.call, **shown, steps=int(apart[worst]))


def _judge_both_signs(ask: Ask, operands: Operands) -> None:
    a, b = operands
    got, want = ask(a, b), _exact(a, b)
    sizes = a.double().abs() @ b.double().abs()
    tolerance = len(b) * 2.0**-24 * sizes.max().item()  # what FP32 may lose, however one adds
    expect.tensor(ask.call, _read(ask.call, got, want), want, rtol=2 * _ULP, atol=tolerance)


@checker("3.1")
def tensor_core_matmul(ask: Ask) -> None:
    """Ask for sums that are exact in FP32, one idea after the other; then for sums of random numbers."""
    ask.in_words = _in_words
    cases = [case for region in _REGIONS for case in region.cases]
    ask.compare(cases, _exact, (), read=_read, otherwise=expect.region_by_region(_REGIONS))
    for length, seed in ((512, 0), (1024, 1), (4096, 2)):
        _judge_positive(ask, _positive(length, seed))
    for length in (1, 7, 513):
        _judge_both_signs(ask, _of_both_signs(length, seed=length))
