"""Exercise 1.3: round FP32 to BF16 on the bits."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from amp_lab.course.judging import expect
from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.describe import describe, exact
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake, Region, Trial
from amp_lab.course.judging.guard import Contained

Cases = tuple[tuple[torch.Tensor], ...]
Read = Callable[[str, Any, torch.Tensor], torch.Tensor]
_FULL_SWEEP_S = 2.0
_BATCH = 1024
_LARGEST, _SMALLEST_NORMAL = 0x7F7F0000, 0x00800000
_UPPER = ~0xFFFF


class _Watch(TorchFunctionMode):
    """Notes the calls that take or give a tensor of dtype BF16."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(isinstance(each, torch.Tensor) and each.dtype == torch.bfloat16 for each in (*args, result)):
            self.seen.append(func.__name__)
        return result


def _from_patterns(*patterns: int) -> torch.Tensor:
    return torch.tensor(patterns).to(torch.int32).view(torch.float32)


def _singles(*patterns: int) -> Cases:
    """Make a tensor of one element for each pattern, so that a slip is shown on the number that it happens to."""
    return tuple((_from_patterns(pattern),) for pattern in patterns)


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int32)


def _value(bits: torch.Tensor) -> torch.Tensor:
    return bits.to(torch.int32).view(torch.float32)


def _round(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(torch.float32)


def _last_kept(x: torch.Tensor) -> torch.Tensor:
    return _bits(x) >> 16 & 1


def _truncate(x: torch.Tensor) -> torch.Tensor:
    return _value(_bits(x) & _UPPER)


def _add_and_cut(x: torch.Tensor, addend: torch.Tensor | int) -> torch.Tensor:
    return _value(_bits(x).long() + addend & _UPPER)


def _halves_to_plus_infinity(x: torch.Tensor) -> torch.Tensor:
    return _add_and_cut(x, torch.where(x.signbit(), 0x7FFF, 0x8000))


def _converted(x: torch.Tensor) -> torch.Tensor:
    """Do the right arithmetic on whole numbers in place of bits: `x.int()` where `x.view(torch.int32)` is meant."""
    whole = x.int()
    return (whole + 0x7FFF + (whole >> 16 & 1)) & _UPPER


def _carry_lost(x: torch.Tensor) -> torch.Tensor:
    fraction = 0x007F0000
    return _value(_bits(x) & ~0x7FFFFF | _bits(_round(x)) & fraction)


def _saturated(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isnan(), x, _round(x).clamp(-_top(), _top()))


def _top() -> torch.Tensor:
    return _from_patterns(_LARGEST)


def _flushed(
    x: torch.Tensor, *, judged_by: Callable[[torch.Tensor], torch.Tensor], signed: bool
) -> torch.Tensor:
    zero = torch.copysign(torch.zeros(()), x) if signed else torch.zeros(())
    return torch.where(judged_by(x).abs() < _from_patterns(_SMALLEST_NORMAL), zero, _round(x))


def _kept(x: torch.Tensor, kept: int, *, rounded: bool) -> torch.Tensor:
    """Keep another number of fraction bits than BF16 does."""
    step = 1 << 23 - kept
    bits = _bits(x).long()
    half = step // 2 - 1 + (bits >> 23 - kept & 1) if rounded else 0
    return _value(bits + half & ~(step - 1))


def _recognise_kept_bits(trials: Sequence[Trial]) -> None:
    for kept, rounded in itertools.product((*range(1, 7), *range(8, 23)), (True, False)):
        if all(expect.alike(trial.got, _kept(trial.args[0], kept, rounded=rounded)) for trial in trials):
            raise Mistake("kept-bits", **expect.first_wrong(trials), kept=kept)


def _recognise_bits_as_value(trials: Sequence[Trial]) -> None:
    """Raise `Mistake` if the bits, rounded in whatever way, were converted as the integer that they look like."""
    if all(_is_near(trial.got, _bits(trial.args[0])) for trial in trials):
        raise Mistake("bits-as-value", **expect.first_wrong(trials))


def _is_near(got: torch.Tensor, bits: torch.Tensor) -> bool:
    """Tell whether a number is the integer `bits`, but for its lower half and the rounding to FP32."""
    return bool(((got.double() - bits.double()).abs() <= 2 * 0x10000).all())


def _recognise_plain(trials: Sequence[Trial]) -> None:
    _recognise_bits_as_value(trials)
    _recognise_kept_bits(trials)


def _recognise_lost_nan(trials: Sequence[Trial]) -> None:
    """Say what the first NaN that is lost became."""
    first = next((trial for trial in trials if not trial.got.isnan().all()), None)
    if first is not None:
        raise Mistake(_what_became_of_nan(first.args[0], first.got), **expect.first_wrong([first]))


def _what_became_of_nan(x: torch.Tensor, got: torch.Tensor) -> str:
    carried = _add_and_cut(x, 0x7FFF + _last_kept(x))
    if got.isinf().all() and (expect.alike(got, carried) or expect.alike(got, _truncate(x))):
        return "nan-rounded-away"
    return "nan-carried" if expect.alike(got, carried) else "nan-lost"


def _recognise_together(trials: Sequence[Trial]) -> None:
    """Say what an answer that is right for each number alone makes of many: in one row, then in other layouts."""
    number, first = next(
        (n, trial) for n, trial in enumerate(trials) if not expect.alike(trial.got, trial.want)
    )
    given, got, want = (each.flatten() for each in (*first.args, first.got, first.want))
    wrong = _wrong_places(got, want)
    values = {"number": exact(given[wrong[0]]), "got": exact(got[wrong[0]]), "want": exact(want[wrong[0]])}
    diagnosis = "not-in-this-layout" if number else "not-each-by-itself"
    raise Mistake(diagnosis, call=first.call, share=f"{len(wrong)} of {want.numel()}", **values)


def _wrong_places(got: torch.Tensor, want: torch.Tensor) -> list[int]:
    wrong = (_bits(got) != _bits(want)) & ~(got.isnan() & want.isnan())
    return wrong.nonzero().flatten().tolist()


# Plain numbers first, and none of them so large that a conversion to int32 is undefined.
_REGIONS = (
    Region(
        _singles(
            0x40490FDB, 0x3DCCCCCD, 0xC02AAAAB, 0x3FD55555, 0x47C35000, 0xBF804002, 0x3F800000, 0xC2F60000
        ),
        (
            ("unchanged", lambda x: x),
            ("truncates", _truncate),
            ("rounds-away", lambda x: _add_and_cut(x, 0xFFFF)),
            ("rounds-to-fp16", lambda x: x.half().float()),
            ("converts-the-value", lambda x: _converted(x).float()),
            ("converts-the-value", lambda x: _value(_converted(x))),
        ),
        _recognise_plain,
    ),
    Region(
        _singles(0x3F808000, 0x3F818000, 0xBF808000, 0xBF818000, 0x40028000, 0x42C78000),
        (
            ("halves-up", lambda x: _add_and_cut(x, 0x8000)),
            ("halves-up", _halves_to_plus_infinity),
            ("halves-down", lambda x: _add_and_cut(x, 0x7FFF)),
            ("halves-to-odd", lambda x: _add_and_cut(x, 0x8000 - _last_kept(x))),
        ),
    ),
    Region(
        _singles(0x3FFFFFFF, 0xBFFF8001, 0x42FF8000, 0x3DFFC000),
        (("carry-lost", _carry_lost), ("carry-lost", _truncate)),
    ),
    Region(
        _singles(0x7F7FFFFF, 0xFF7FFFFF, 0x7F7F8000, 0x7F7F7FFF, 0xFF7FC000),
        (("saturates", _saturated), ("saturates", _truncate)),
    ),
    Region(
        _singles(
            0x00010000, 0x00018000, 0x00012345, 0x0000C000, 0x007FFFFF, 0x80400001, 0x8001C000, 0x00008000
        ),
        tuple(
            (
                "flushes",
                lambda x, judged_by=judged_by, signed=signed: _flushed(x, judged_by=judged_by, signed=signed),
            )
            for judged_by in (_round, lambda x: x)
            for signed in (True, False)
        ),
    ),
    Region(
        _singles(0x00000000, 0x80000000, 0x00000001, 0x80000001),
        (("zero-sign", lambda x: _round(x).abs()),),
    ),
    Region(
        _singles(0x7F800000, 0xFF800000),
        (("infinity-to-nan", lambda x: x * torch.nan), ("saturates", _saturated)),
    ),
    Region(
        _singles(
            0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7F808000, 0x7FBFFFFF, 0x7FFFFFFF, 0xFFFFFFFF
        ),
        (),
        _recognise_lost_nan,
    ),
)


def _shapes() -> Cases:
    """Make tensors of every shape and layout, first of numbers that were asked for one by one."""
    together = torch.cat([x for region in _REGIONS for (x,) in region.cases])
    even = together[: together.numel() // 2 * 2]
    spread = torch.stack((together, torch.ones_like(together)), dim=1)[:, 0]  # every other place in memory
    return (
        (together,),
        (even.reshape(2, -1),),
        (even.reshape(2, -1).t(),),
        (even.reshape(-1, 1, 2),),
        (spread,),
        (even[:24].reshape(2, 3, 2, 2),),
        (even[:40].reshape(2, 5, 2, 2).permute(3, 0, 2, 1),),
        (even[:32].reshape(2, 2, 2, 2, 2),),
        (together[3].expand(4),),  # one place in memory for all: a stride of 0
        (together[:5, None].expand(5, 3),),
        (together[7:],),
        (together[1],),
        (together[:0],),
        (torch.empty(0, 3),),
    )


def _sweep_patterns() -> torch.Tensor:
    """Choose patterns by their halves: every sign and exponent, and lower halves that round in every way."""
    fractions = torch.tensor([0x00, 0x2A, 0x55, 0x7F])
    uppers = (torch.arange(2**9)[:, None] << 7 | fractions).flatten()
    lowers = torch.tensor([0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    # Each bit below the half by itself makes more than a half of it, and less than a half without it.
    one_bit = 1 << torch.arange(15)
    few = torch.tensor([0x3F80, 0x3F81, 0xC0FE, 0xC0FF, 0x0000, 0x8001])
    return torch.cat((_patterns(uppers, lowers), _patterns(few, torch.cat((one_bit, 0x8000 | one_bit)))))


def _patterns(uppers: torch.Tensor, lowers: torch.Tensor) -> torch.Tensor:
    return (uppers[:, None] << 16 | lowers).flatten()


def _all_uppers() -> Iterator[torch.Tensor]:
    """Cut into batches: each of the 65,536 upper halves, with a lower one that is 0, near the middle, or by chance."""
    draw = torch.Generator().manual_seed(0)
    for uppers in torch.randperm(2**16, generator=draw).reshape(-1, _BATCH):
        chance = torch.randint(2**16, uppers.shape, generator=draw)
        yield torch.cat((_patterns(uppers, torch.tensor([0, 0x7FFF, 0x8000, 0x8001])), uppers << 16 | chance))


def _sweep(ask: Ask, read: Read) -> None:
    """Ask for many numbers at once, and for more and more as long as it is quick.

    A loop over the elements is slow and may be right: it is asked for the first batch, and then for others while
    `_FULL_SWEEP_S` last.
    """
    start = time.monotonic()
    for patterns in itertools.chain((_sweep_patterns(),), _all_uppers()):
        x = patterns.to(torch.int32).view(torch.float32)
        answer, want = ask(x), _round(x)
        got = read(ask.call, answer, want)
        if not expect.alike(got, want):
            _explain(ask, read, Trial(ask.call, (x,), got, want))
        if time.monotonic() - start > _FULL_SWEEP_S:
            return


def _explain(ask: Ask, read: Read, trial: Trial) -> None:
    """Ask for the first wrong number by itself, to show it alone if it is wrong there, too."""
    first = _wrong_places(trial.got, trial.want)[0]
    alone = trial.args[0][first : first + 1]
    ask.compare([(alone,)], _round, (), read=read, otherwise=_recognise_alone)
    _recognise_together([trial])


def _recognise_alone(trials: Sequence[Trial]) -> None:
    (trial,) = trials
    if trial.want.isnan():
        _recognise_lost_nan(trials)
    shown = expect.first_wrong(trials)
    if trial.want.isinf() and expect.alike(trial.got.abs(), _top()):
        raise Mistake("saturates", **shown)
    raise Mistake("this-one-only", **shown, why=_what_the_lower_half_says(int(_bits(trial.args[0]))))


def _what_the_lower_half_says(bits: int) -> str:
    lower, last_kept = bits & 0xFFFF, bits >> 16 & 1
    if lower == 0:
        return "The lower half is zero: there is nothing to round."
    if lower == 0x8000:
        return f"The lower half is exactly a half, and the last kept bit is {last_kept}."
    return (
        f"The lower half, `0x{lower:04X}`, is {'less' if lower < 0x8000 else 'more'} than a half (`0x8000`)."
    )


def _in_words(x: torch.Tensor) -> str:
    """Show the bits of a number, too: only they tell a half and one NaN from another."""
    call = f"`to_bfloat16({describe(x)})`"
    return f"{call} (bits `0x{int(_bits(x)) & 0xFFFFFFFF:08X}`)" if x.numel() == 1 else call


@checker("1.3")
def to_bfloat16(ask: Ask) -> None:
    """Ask number by number, kind after kind, then for many at once in all shapes, and watch for BF16 tensors."""
    watch = ask.around = _Watch()
    ask.in_words = _in_words

    def read(call: str, got: Any, want: torch.Tensor) -> torch.Tensor:
        if watch.seen:
            raise Mistake("lets-pytorch-round", call=call, got=f"`{watch.seen[0]}`")
        if _is_doubled(got, want):
            raise Mistake("int64-bits", call=call, got=f"returned a tensor of shape {tuple(got.shape)}")
        return expect.tensor_like(call, got, want)

    regions = (*_REGIONS, Region(_shapes(), (), _recognise_together))
    cases = [case for region in regions for case in region.cases]
    try:
        ask.compare(cases, _round, (), read=read, otherwise=expect.region_by_region(regions))
        _sweep(ask, read)
    except Contained as contained:
        _recognise_wide_view(ask.call, contained)
        raise


def _is_doubled(got: Any, want: torch.Tensor) -> bool:
    """Tell whether each element became two in the last dimension, as by viewing 64 bits as FP32.

    The second of them is the upper half of an int64 that holds 32 bits: all zeros or all ones.
    """
    doubled = (*want.shape[:-1], 2 * want.shape[-1]) if want.dim() and want.numel() else None
    if type(got) is not torch.Tensor or got.dtype != want.dtype or tuple(got.shape) != doubled:
        return False
    upper = _bits(got.detach()[..., 1::2])
    return bool(((upper == 0) | (upper == -1)).all())


def _recognise_wide_view(call: str, contained: Contained) -> None:
    """Recognise a view of an int64 tensor of no dimension, which has no last dimension to double."""
    if type(contained.error) is RuntimeError and "to view Long as Float" in str(contained.error):
        raise Mistake("int64-bits", call=call, got=f"raised `RuntimeError: {contained.error}`") from None
