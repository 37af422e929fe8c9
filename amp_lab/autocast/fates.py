"""What autocast does with the floating-point arguments of an operator: its *cast policy*, one of six fates."""

from enum import Enum


class Fate(Enum):
    """How autocast treats an operator. The value is its name in words."""

    LOWER = "lower precision"  # arguments are cast to autocast's dtype
    FP32 = "FP32"  # arguments in 16 bits are cast to FP32
    FP32_UNLESS = "FP32 unless a dtype is passed"  # the result is FP32, unless the call names a dtype
    WIDEST = "widest input"  # arguments are cast to the widest dtype among them
    REFUSED = "refused"  # an error
    FOLLOWS = "follows its inputs"  # autocast has no rule for it: nothing is cast
