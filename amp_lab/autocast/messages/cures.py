"""What there is to say about dtypes that met: which they are, what they hold, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

import torch

from amp_lab.autocast.messages.dtype_spellings import device_of, dtype_of
from amp_lab.autocast.report.words import dtype_in_words

Dtypes = tuple[tuple[str, torch.dtype], ...]

_HALVES: Final = {torch.float16, torch.bfloat16}


class Seen(NamedTuple):
    """Something whose dtype a message names: the role it plays, and how the message writes the dtype."""

    role: str
    spelling: str

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype, None if the message's word is no dtype's."""
        return dtype_of(self.spelling)

    @property
    def words(self) -> str:
        """The dtype as people call it."""
        return self.spelling if self.dtype is None else dtype_in_words(self.dtype)


# Which dtypes an explanation is for.
Condition = Callable[[Sequence[Seen]], bool]


def has_whole(seen: Sequence[Seen]) -> bool:
    """Whether one of them is a type of whole numbers, or bool."""
    return any(is_whole(each.dtype) for each in seen)


def has_complex(seen: Sequence[Seen]) -> bool:
    """Whether one of them is complex."""
    return any(each.dtype is not None and each.dtype.is_complex for each in seen)


def of_bytes(size: int, *sizes: int) -> Condition:
    """Return whether one of them is a floating-point type of so many bytes."""
    return lambda seen: any(
        each.dtype is not None and each.dtype.is_floating_point and each.dtype.itemsize in {size, *sizes}
        for each in seen
    )


def is_fp16(seen: Sequence[Seen]) -> bool:
    """Whether one of them is FP16."""
    return any(each.dtype is torch.float16 for each in seen)


def no_class_index(seen: Sequence[Seen]) -> bool:
    """Whether one is a dtype of targets by mistake: whole numbers other than int64, or FP32 and FP64."""
    return any(
        each.dtype in {torch.float32, torch.float64}
        or (is_whole(each.dtype) and each.dtype is not torch.int64)
        for each in seen
    )


def lie_apart(seen: Sequence[Seen]) -> bool:
    """Whether they differ in nothing but the device."""
    return len({each.dtype for each in seen}) == 1 and len(_devices(seen)) > 1


def is_whole(dtype: torch.dtype | None) -> bool:
    """Whether a dtype is one of whole numbers, or bool."""
    return dtype is not None and not dtype.is_floating_point and not dtype.is_complex


def _devices(seen: Sequence[Seen]) -> set[str]:
    return {device for each in seen if (device := device_of(each.spelling))}


def dtypes_of(seen: Sequence[Seen]) -> Dtypes:
    """Return what has which dtype, where that is known."""
    return tuple((each.role, each.dtype) for each in seen if each.dtype is not None)


def listed(seen: Sequence[Seen]) -> str:
    """Say which is which: "mat1 is FP16 and mat2 is FP32"."""
    return _joined([f"{each.role} is {each.words}" for each in seen]) or "their dtypes differ"


def devices(seen: Sequence[Seen]) -> str:
    """Say which lies where: "the input on cuda and the weight on cpu"."""
    return _joined([f"{each.role} on {device_of(each.spelling)}" for each in seen])


def also_apart(seen: Sequence[Seen]) -> str:
    """Say that they lie on different devices, if they do, after the dtypes have been told."""
    return f" They lie on different devices, too: {devices(seen)}." if len(_devices(seen)) > 1 else ""


def limits(seen: Sequence[Seen]) -> str:
    """Say which numbers the dtypes hold, after they have been told: ", and uint8 holds whole numbers from 0 to 255"."""
    told = [_limits(each.dtype) for each in seen if each.dtype is not None and not each.dtype.is_complex]
    return f", and {_joined(told)}" if told else ""


def _limits(dtype: torch.dtype) -> str:
    name = dtype_in_words(dtype)
    if dtype is torch.bool:
        return "bool holds True and False"
    if is_whole(dtype):
        info = torch.iinfo(dtype)
        return f"{name} holds whole numbers from {info.min:,} to {info.max:,}"
    largest = torch.finfo(dtype).max
    return f"the largest number of {name} is {f'{largest:g}' if largest < 1e5 else f'about {largest:.1e}'}"


def _joined(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def cure(seen: Sequence[Seen]) -> str:
    """Return what to do when these dtypes meet in an operator that autocast has a rule for."""
    dtypes = {each.dtype for each in seen} - {None}
    if has_complex(seen):
        return (
            "Autocast leaves complex numbers alone, and they mix with nothing else in a product: make the other "
            "tensor complex, b.to(a.dtype), or split the complex one, torch.view_as_real(z)."
        )
    if has_whole(seen):
        return (
            "Autocast casts floating-point tensors only: turn whole numbers into floating-point ones yourself, with "
            ".float() (images often with .float() / 255)."
        )
    if torch.float64 in dtypes:
        return (
            "Autocast leaves FP64 alone. It mostly comes from NumPy or from a Python list of its numbers: use "
            ".float() where the tensor is made, or the model's own dtype."
        )
    if dtypes >= _HALVES:
        return (
            "Autocast uses one of the two 16-bit types, and casts the other only where it has a rule for it. "
            "Remove the .half() or .bfloat16() that was written by hand, or give the region that dtype."
        )
    return _CURE.format(low=_low([each for each in dtypes if each is not None]))


def _low(dtypes: Collection[torch.dtype]) -> str:
    """Return which of the tensors is to be cast up."""
    low = [dtype_in_words(each) for each in dtypes if each.itemsize < 4]
    return f"the {' or '.join(sorted(low))} tensor" if low else "the one in fewer bits"


_CURE: Final = (
    "Autocast brings operands to one dtype only inside its region. Is this line outside of it? Move it in, or write "
    ".float() on {low}. Is it inside? Then something keeps autocast from casting: autocast(enabled=False) "
    "around it (write .float() on what comes into that block), or an in-place or out= form, which it leaves alone "
    "(write it out of place). And leave out .half() and .bfloat16() on the model: parameters stay FP32 under autocast."
)
