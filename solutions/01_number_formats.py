# %% [markdown]
# # 01 · Number formats
#
# | | |
# |---|---|
# | **Time** | 60 minutes |
# | **Difficulty** | medium |
# | **You need** | [lesson 00](00_start_here.ipynb); bit operations on integers (`>>`, `&`). No GPU: all machines round alike. |
#
# **After this page you can**
#
# - read a floating-point number from its bits, and say what each of its three fields is for;
# - say what FP16, BF16, TF32 and FP8 keep of FP32, and what each gives up;
# - predict what a cast makes of a number: a neighbour, infinity or zero;
# - name the dtype of a sum before you run it.

# %%
import math
import tempfile

import matplotlib.pyplot as plt
import torch

from amp_lab import formats
from amp_lab.course import check, hint, quiz, solution
from amp_lab.device.gpu_kinds import GpuFacts, gpu_kinds
from amp_lab.formats import BF16, FP8_E4M3, FP8_E5M2, FP16, FP32, TF32, FormatLimits
from amp_lab.view.bits import bit_layout
from amp_lab.view.number_line import number_line, range_and_precision, spacing
from amp_lab.view.widgets import float_explorer

# %% [markdown]
# ## Ten types?
#
# Notes on AMP often begin: *PyTorch has ten types of tensor.* **Guess first:** is that still true?

# %% tags=["nbval-ignore-output"] reason="every version of PyTorch adds dtypes"
classes = [name for name in dir(torch) if name.endswith("Tensor") and name != "Tensor"]
dtypes = {each for each in vars(torch).values() if isinstance(each, torch.dtype)}
print(f"{len(classes)} classes:", *classes)
print(f"{len(dtypes)} dtypes, such as torch.float8_e4m3fn, which has no class")

# %% [markdown]
# Ten *classes*, yes. They are names from the time when a class stood for a dtype and a device at once (on a GPU it is
# `torch.cuda.HalfTensor`). What grew is the list of **dtypes**. Today every tensor is a plain `torch.Tensor` that knows its dtype:

# %%
x = torch.tensor([0.5, 2.5])
print(type(x), x.dtype, "(the default)")
print(type(x.half()), x.half().dtype)

# %% [markdown]
# (The next cell prints nothing. As in lesson 00, cells of `assert` hold the page to what it says; you need not read them.)

# %%
assert len(classes) == 10
assert len(dtypes) > 2 * len(classes)
assert torch.float8_e4m3fn in dtypes
assert not hasattr(torch, "Float8_e4m3fnTensor")
assert torch.get_default_dtype() == x.dtype == torch.FloatTensor.dtype

# %% [markdown]
# ## Three fields
#
# **Guess first:** which of these three does FP16 hold exactly?

# %%
for number in (6.5, 0.1, 2049.0):
    print(f"{number:7} is stored as", torch.tensor(number, dtype=torch.float16).item())

# %% [markdown]
# Why these? Take 6.5 apart. `view` shows the same 16 bits as an integer; shifts and masks cut out the three fields.

# %%
pattern = torch.tensor(6.5, dtype=torch.float16).view(torch.int16).item()
sign, power, places = pattern >> 15 & 1, pattern >> 10 & 31, pattern & 1023
print(f"{pattern:016b}  =  {sign:b} {power:05b} {places:010b}")
print("sign      0: positive")
print(f"exponent  {power} - 15 = {power - 15}")
print(f"fraction  {places} / 1024 = {places / 1024}")
value = (1 + places / 1024) * 2 ** (power - 15)
print(f"number    (1 + {places / 1024}) × 2^{power - 15} = {value}")

# %% [markdown]
# - The **sign** is one bit.
# - The **exponent** says how large: which power of two the number starts from. It is stored with 15, the *bias*, added, so that
#   small numbers need no minus sign.
# - The **fraction** says where between that power of two and the next. The leading 1 of 1.625 is not stored: it is always there.
#
# 6.5 is a sum of few powers of two, 4 + 2 + ½, and fits. 0.1 is a sum of endlessly many, as ⅓ is in decimals; every format cuts
# it somewhere. And 2049 needs 11 binary places behind the leading 1: one more than there are.
#
# All the formats of this course have these three fields. They differ in how they share out the bits. The two kinds of FP8 are
# named after their fields: E5M2 has 5 exponent bits and 2 fraction bits (M for *mantissa*, another word for the fraction).

# %%
six = (FP32, TF32, BF16, FP16, FP8_E5M2, FP8_E4M3)
bit_layout([(each, 0.1) for each in six], "0.1 in six formats")
plt.show()

# %% [markdown]
# **What you see.** All fractions begin alike; each stops where its bits end, the last one rounded. (*ulp*, "unit in the last
# place", is what the last bit is worth: no error is over half of it.) The exponent fields all mean 2^−4; they look different
# because the bias goes with the width: 127 for 8 bits, 15 for 5 bits, 7 for 4.
#
# BF16 is the upper half of FP32: same exponent, short fraction. FP16 moves three bits from the exponent to the fraction. TF32 takes
# the exponent of one and the fraction of the other. That makes 19 bits; where a number of 19 bits lives, we will see.

# %%
assert TF32.exponent_bits == FP32.exponent_bits
assert TF32.fraction_bits == FP16.fraction_bits
assert BF16.exponent_bits == FP32.exponent_bits == FP16.exponent_bits + 3
assert BF16.fraction_bits == FP16.fraction_bits - 3
assert TF32.bits == 19
assert [each.bias for each in six] == [127, 127, 127, 15, 15, 7]
for each in six:
    assert each.fields(each.encode(0.1)).exponent - each.bias == -4

# %% [markdown]
# ## Infinity, NaN, and numbers below the smallest
#
# **Guess first:** 16 bits make 65,536 patterns. Is each of them a number of its own? (*Subnormal* is explained below.)

# %%
everything = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)
size, smallest = everything.abs(), torch.finfo(torch.float16).smallest_normal
print(f"{everything.numel():6,} patterns:")
print(f"{(size.isfinite() & (size >= smallest)).sum():6,} normal numbers")
print(f"{((size > 0) & (size < smallest)).sum():6,} subnormal numbers")
print(f"{(size == 0).sum():6,} zeros")
print(f"{size.isinf().sum():6,} infinities")
print(f"{size.isnan().sum():6,} NaN")

# %% [markdown]
# Two values of the exponent field are set apart, the lowest and the highest:
#
# | exponent field | what the pattern means |
# |---|---|
# | 1 to 30 | a **normal** number: ±1.fraction × 2^(exponent − 15) |
# | 0 | a **subnormal** number: ±0.fraction × 2^−14, without the leading 1. With fraction 0 it is **zero**; zero has a sign |
# | 31 | **infinity** (±) if the fraction is 0, otherwise **NaN**, *not a number* |
#
# Subnormals fill the hole between zero and the smallest normal number, 2^−14, with evenly spaced numbers. (That is why their
# exponent is −14, too: with −15 there would be a gap below 2^−14.) And these are the rules of the others; **guess first** what each line prints:

# %%
zero, inf, nan = (torch.tensor(x).half() for x in (0.0, math.inf, math.nan))
print("0 == -0:    ", (zero == -zero).item())
print("1 / 0:      ", (1 / zero).item(), "  1 / -0:", (1 / -zero).item())
print("inf - inf:  ", (inf - inf).item(), "  0 × inf:", (zero * inf).item())
print("NaN == NaN: ", (nan == nan).item())

# %% [markdown]
# Remember `inf - inf` and `0 × inf`. That is how *one* number that became too large in FP16 turns into a NaN somewhere else, and
# then into a NaN loss.
#
# ### Exercise 1.1 · Sixteen bits, one number
#
# Be the hardware: turn the 16 bits of an FP16 number into the number, by the table above. You get them as an `int` from 0 to
# 65535 and return a Python `float`. (*0.fraction* means ten binary places: `1000000000` stands for one half.) Which NaN you return,
# and its sign, do not matter. Any other `int` is no pattern of 16 bits: raise a `ValueError`.
#
# A call that decodes FP16 for you passes, too, but the three fields teach you more.


# %%
def decode_half(bits):
    """Return the number whose FP16 pattern is `bits`, an int from 0 to 65535."""
    ### BEGIN SOLUTION
    if not 0 <= bits <= 0xFFFF:
        raise ValueError(f"16 bits are an int from 0 to 65535, not {bits}")
    sign = -1.0 if bits >> 15 else 1.0
    exponent = bits >> 10 & 0b11111
    fraction = (bits & 0b11_1111_1111) / 2**10
    if exponent == 31:
        return math.nan if fraction else sign * math.inf
    if exponent == 0:
        return sign * fraction * 2.0**-14
    return sign * (1 + fraction) * 2.0 ** (exponent - 15)
    ### END SOLUTION


# %%
check("1.1", decode_half)

# %%
# hint("1.1")
# solution("1.1")

# %% [markdown]
# ## Range against precision
#
# **Guess first:** BF16 has three exponent bits more than FP16. How many times as long does that make its range, counted in powers
# of ten: about 3 times, 8 times, or more?

# %%
range_and_precision(six, "Exponent bits buy range, fraction bits buy precision")
plt.show()

# %% [markdown]
# **What you see.** About 8 times: every exponent bit doubles the number of powers of two. (The *digits* on the right are those of
# the fraction with its leading 1: 11 bits make 11 × log10(2) = 3.3 decimal digits.)
#
# So BF16 has *more range and less precision* than FP16. It reaches as far as FP32, so casting to it hardly ever ends at
# infinity or zero, but it keeps two to three decimal digits where FP16 keeps three. Bits that go into one field are missing in the
# other: at equal width nobody wins both.

# %%
limits = [each.limits for each in (FP16, BF16)]
reaches = [math.log10(each.max / each.smallest_normal) for each in limits]
assert 8 < reaches[1] / reaches[0] < 9
assert round(11 * math.log10(2), 1) == 3.3

# %% [markdown]
#
# A whole format follows from the widths of its two fields. Can you write down how?
#
# ### Exercise 1.2 · The limits of a format
#
# What you know of FP16 holds for every format made by the rules of IEEE 754, the standard for such numbers. Only the two widths
# differ, and the bias, which is 2^(exponent_bits − 1) − 1. You get 2 to 8 exponent bits and 1 to 23 fraction bits; return a `FormatLimits` of four floats, all exact:
#
# - `max`: the largest finite number,
# - `smallest_normal`: the smallest positive normal number,
# - `smallest_subnormal`: the smallest positive number of all,
# - `eps`: the distance from 1 to the next larger number, 2^−fraction_bits.


# %%
def format_limits(exponent_bits, fraction_bits):
    """Return the `FormatLimits` of the IEEE-style format with these field widths."""
    ### BEGIN SOLUTION
    bias = 2 ** (exponent_bits - 1) - 1
    eps = 2.0**-fraction_bits
    smallest_normal = 2.0 ** (1 - bias)
    return FormatLimits(
        max=(2 - eps) * 2.0**bias,
        smallest_normal=smallest_normal,
        smallest_subnormal=smallest_normal * eps,
        eps=eps,
    )
    ### END SOLUTION


# %%
check("1.2", format_limits)

# %%
# hint("1.2")
# solution("1.2")

# %% [markdown]
# ## The gaps between numbers
#
# FP8 has so few numbers that you can look at them all. **Guess first:** are there more of them between 0 and 1, or between 1 and 8?

# %%
number_line([FP8_E4M3, FP8_E5M2], 0, 8, "Every number that FP8 has from 0 to 8")
plt.show()

# %% [markdown]
# More than two thirds of them lie below 1, most of those in the dark patch next to zero. Between two powers of two they are evenly spaced, and at each power of two the gap, which is the
# *ulp*, doubles. E5M2 has the finer numbers near zero, E4M3 everywhere else. All formats look like that, only finer:

# %%
spacing([FP32, FP16, BF16], "Large numbers have large gaps")
plt.show()

# %% [markdown]
# **What you see.** On the left, gaps grow with the number. On the right, *relative to the number*, they stay the same: about a
# thousandth in FP16, half a percent in BF16. That is what "three digits" means. (The cross is where FP16 ends.)
#
# But look at FP16's left end. Among its subnormals the gap shrinks no further, and relative to ever smaller numbers it grows. Near
# zero even coarse BF16 is finer than FP16, and gradients are often there. Lesson 04 is about nothing else.

# %%
assert 0.0004 < FP16.ulp(3.0) / 3 < 0.001
assert 0.003 < BF16.ulp(3.0) / 3 < 0.008
assert FP16.ulp(1e-2) < BF16.ulp(1e-2)
assert FP16.ulp(1e-6) > BF16.ulp(1e-6)
assert FP16.ulp(1e-5) == FP16.ulp(1e-7) == 2**-24
for each in (FP8_E4M3, FP8_E5M2):
    numbers = each.decode(range(128))  # all that are not negative
    assert FP8_E5M2.ulp(0.001) < FP8_E4M3.ulp(0.001)
    assert FP8_E5M2.ulp(0.02) > FP8_E4M3.ulp(0.02)
    assert (numbers < 1).sum() > 2 / 3 * (numbers <= 8).sum()

# %% [markdown]
# ## Rounding
#
# A cast takes the nearest number. From 2048 to 4096 FP16 has only the even ones, so 2049 lies exactly in the middle of two.
# **Guess first:** which way do 2049, 2051 and 2053 go? (`FP16.encode` gives the bits of a number; `amp_lab.formats` is for your own
# code, too.)

# %%
for number in range(2048, 2055):
    half = torch.tensor(float(number)).half()
    print(number, "->", int(half), "  bits", FP16.bit_string(FP16.encode(half)))

# %% [markdown]
# Neither always up nor always down: a number in the middle goes to the neighbour whose *last bit is 0*. That is **round to
# nearest, ties to even**. So the halves go up as often as down, and long sums do not drift.
#
# **Guess first:** the largest FP16 number is 65,504, and the gap there is 32. What becomes of 65,505, of 65,519, of 65,520? And the
# smallest is 2^−24: what becomes of ¾, ½ and ¼ of it?

# %%
for number in (65504.0, 65505.0, 65519.0, 65520.0):
    print(f"{number:.0f} ->", torch.tensor(number).half().item())
smallest = 2.0**-24
for share in (0.75, 0.51, 0.5, 0.25):
    half = torch.tensor(share * smallest).half()
    print(f"{share:4} of the smallest -> {half.item() / smallest:.0f} of the smallest")

# %% [markdown]
# **What you saw.** Both ends follow the same rule.
#
# - **Overflow** begins at 65,520, the middle between 65,504 and the next number that there would be, 65,536. All below comes back.
# - **Underflow** ends at 2^−25, half the smallest number: that tie goes to 0, which is even, and so does all below. What is larger
#   is *rounded up* to the smallest number, by up to a factor of two.
#
# Many notes mix up underflow and rounding. **Rounding** costs a normal number at most half a gap, here 0.05 % of it. **Underflow** can
# cost a small number all of it. They have different cures: FP32 weights (lesson 03) and a scaled loss (lesson 04).

# %%
values = torch.logspace(-4, 4, 10001, dtype=torch.float64)
assert ((FP16.round(values) - values).abs() / values).max() < 0.0005
assert FP16.ulp(65504.0) == 32
assert FP16.round(65519.99) == 65504

# %% [markdown]
# ### Play with it
#
# Type a number below, a formula such as `2**-25`, or drag the slider. Three things to try:
#
# 1. `2049`, then `2051`: watch the last bit in FP16. Is the same number a tie in another format?
# 2. `70000`: which formats give up, and what do they make of it?
# 3. `1e-8`, a typical learning rate times a small gradient: who still knows it? And who can tell `1 + 1e-8` from 1?

# %%
float_explorer((formats.FP64, *six), value=0.1)

# %% [markdown]
# **What you saw.** 2049 is a tie in TF32, too, which has the same fraction. 70,000 is infinity in FP16 and E5M2, and 448 in E4M3, of
# which more below. FP16 and FP8 make 0 of 1e-8, although the others know it; but only FP64 can *add* it to 1.

# %%
assert TF32.round([2049.0, 2051.0]).tolist() == [2048, 2052]
assert FP16.round(70000.0) == FP8_E5M2.round(70000.0) == math.inf
assert FP8_E4M3.round(70000.0) == 448
assert [each.name for each in six if each.round(1e-8) > 0] == ["FP32", "TF32", "BF16"]
assert formats.FP64.round(1 + 1e-8) > 1
assert all(each.round(1 + 1e-8) == 1 for each in six)

# %% [markdown]
# ### Exercise 1.3 · Round to BF16 by hand
#
# BF16 is the upper half of FP32. So an FP32 number whose lower 16 bits are zero *is* a BF16 number, and rounding means to choose
# the nearer of two such neighbours:

# %%
pattern = torch.tensor(0.1).view(torch.int32).item()
below = pattern >> 16 << 16  # the lower half is cut off
for each in (pattern, below, below + 0x10000):
    number = torch.tensor(each, dtype=torch.int32).view(torch.float32)
    print(f"{each >> 16:016b} {each & 0xFFFF:016b}  {number.item():.9f}")

# %% [markdown]
# The lower half of the pattern says where between the two the number lies. Here it is above the middle, `1000000000000000`, so 0.1
# becomes the upper one. (The addition may carry into the exponent. That is right: the numbers above go on there.)
#
# You get an FP32 tensor of any shape, also a single number or empty. Return a new FP32 tensor of the same shape that holds the values
# rounded to BF16:
#
# - to the nearest, and from the middle to the *even* one, whose last kept bit is 0;
# - what rounds beyond the largest finite number becomes infinity of the same sign; infinities stay;
# - subnormals are rounded like all others, and a zero keeps its sign;
# - every NaN stays a NaN, no matter which: an exponent of all ones with any fraction but 0, be it a single 1 in the lower half.
#
# Do it by integer arithmetic: `x.view(torch.int32)` shows the same 32 bits as an integer, `.view(torch.float32)` takes them
# back. No tensor of dtype `torch.bfloat16` may turn up on the way. Leave `x` as it is.


# %%
def to_bfloat16(x):
    """Return the FP32 tensor `x` rounded to BF16's values, in FP32, same shape."""
    ### BEGIN SOLUTION
    bits = x.view(torch.int32)
    last_kept = (bits >> 16) & 1
    # More than half, or half with an odd last bit, carries into the upper 16 bits.
    rounded = (bits + 0x7FFF + last_kept) & ~0xFFFF
    return torch.where(x.isnan(), torch.nan, rounded.view(torch.float32))
    ### END SOLUTION


# %%
check("1.3", to_bfloat16)

# %%
# hint("1.3")
# solution("1.3")

# %% [markdown]
# ## Two that are different: TF32 and FP8
#
# **TF32 is not a dtype.** There is no `torch.tf32`, and no tensor has 19 bits. It is a way to multiply FP32 matrices: the
# hardware keeps 10 fraction bits of each input, multiplies, and adds up in FP32. Tensors stay FP32, memory stays the same, and
# only the products get coarser. Here is that by hand. **Guess first:** BF16 keeps 7 fraction bits, three fewer. How many
# times as large will its error be?

# %%
torch.manual_seed(0)
a, b = torch.randn(256, 256), torch.randn(256, 256)
exact, errors = a.double() @ b.double(), {}
for each in (FP32, TF32, FP16, BF16):
    product = (each.round(a) @ each.round(b)).float()
    errors[each] = ((product - exact).norm() / exact.norm()).item()
    print(f"{each.name}: {product.dtype}, relative error {errors[each]:.1e}")

# %% [markdown]
# About 8 times: each bit is a factor of two. And so TF32 is as coarse as FP16, with the range of FP32. Two switches decide whether a
# GPU uses it, and their defaults differ:

# %% tags=["nbval-ignore-output"] reason="somebody may have set the switches, and versions may differ"
print("matrix products:", torch.backends.cuda.matmul.fp32_precision)
print("convolutions:   ", torch.backends.cudnn.conv.fp32_precision)

# %% [markdown]
# By default TF32 is off for matrix products (`none` of the faster ways) and on for convolutions (`tf32`). So "my FP32 baseline" may
# not be FP32 (lesson 08).
#
# **FP8 is for storage.** PyTorch keeps and casts it; sums need another dtype. **Guess first:** the explorer said what becomes of numbers
# that are too large. Does PyTorch agree, and what does E4M3 make of infinity itself?

# %% tags=["nbval-ignore-output"] reason="before PyTorch 2.12, E4M3 made NaN of what is too large"
x = torch.tensor([0.1, 300.0, 448.0, 1e6, math.inf])
for dtype in (torch.float8_e5m2, torch.float8_e4m3fn):
    print(f"{dtype}: {x.to(dtype).tolist()}")
try:
    x.to(torch.float8_e4m3fn) + x.to(torch.float8_e4m3fn)
except NotImplementedError as error:
    refused_sum = error
print("a sum is refused:", refused_sum)

# %% [markdown]
# E5M2 is a small FP16: too large is infinity. E4M3 leaves the rules of IEEE 754, to reach a little further with four exponent bits.
# By the rule of exercise 1.2 its largest number would be 240. It has no infinity, and of the highest exponent only the last
# pattern is NaN; the others are numbers up to 448. So where can overflow go? In PyTorch it *saturates*: it becomes 448, infinity too.
# (PyTorch before 2.12 made it NaN. The standard allows both: say which one you mean.)

# %%
assert 7 < errors[BF16] / errors[TF32] < 9
assert 0.99 < errors[FP16] / errors[TF32] < 1.01
assert formats.Format("E4M3 by the rules", 4, 3).limits.max == 240
assert FP8_E4M3.limits.max == torch.finfo(torch.float8_e4m3fn).max == 448
assert FP8_E4M3.round(math.inf) == 448
assert FP8_E5M2.round(1e6) == math.inf
too_large = torch.tensor([465.0, 1e6, math.inf]).to(torch.float8_e4m3fn).float()
assert torch.equal(too_large, torch.full((3,), 448.0)) or too_large.isnan().all()

# %% [markdown]
# ## Who has what?
#
# These formats came with GPU generations. The table asks the same function as the report of lesson 00, for GPUs that you need not have:

# %%
compute = {"Pascal  P100": (6, 0), "Volta   V100": (7, 0), "Turing  2080 Ti": (7, 5)}
compute |= {"Ampere  A100": (8, 0), "Ada     4090": (8, 9), "Hopper  H100": (9, 0)}
columns = ("FP16", "TF32", "BF16", "FP8")
print(" " * 15, *(f"{each:>13}" for each in columns))
kinds = {}
for name, capability in compute.items():
    kinds[name] = gpu_kinds(GpuFacts("nvidia", None, None, capability=capability))
    print(f"{name:15}", *(f"{kinds[name][each]:>13}" for each in columns))

# %%
for each, first in {"FP16": 1, "TF32": 3, "BF16": 3, "FP8": 4}.items():
    has = [row[each] == "tensor cores" for row in kinds.values()]
    assert has == [False] * first + [True] * (6 - first)

# %% [markdown]
# Tensor Cores take FP16 since Volta, BF16 and TF32 since Ampere, FP8 since Ada and Hopper. "Emulated" is worth a second look:
# `torch.cuda.is_bf16_supported()` says True on a V100 and a 2080 Ti, too, where BF16 is slow. Ask with `including_emulation=False`.
#
# ## Mixed types: who decides?
#
# **Guess first:** the first operand is FP16 each time. Which of these sums is FP16?

# %%
half, single = torch.ones(2, dtype=torch.float16), torch.ones(2)
print("FP16 + FP32       ", (half + single).dtype)
print("FP16 + 0-dim FP32 ", (half + single.sum()).dtype)
print("FP16 + 0.1        ", (half + 0.1).dtype)

# %% [markdown]
# PyTorch *promotes* in two steps.
#
# 1. **Kind.** bool < integer < floating point: the sum is of the highest kind among the operands, whoever brings it.
# 2. **Rank.** Among the operands of that kind, the first of these three groups that is there decides; the others have no say:
#     - tensors with dimensions,
#     - 0-dim tensors (a single number, as a loss is),
#     - Python numbers, which mean the default dtype.
#
# Two in the same group give the smallest dtype that holds the numbers of both.
#
# So a single FP32 tensor with dimensions makes everything after it FP32, silently, while a loss or a `0.1` changes nothing. Matrix
# products do not promote at all. They refuse, and that is the error most people meet first (lesson 06):

# %% tags=["nbval-ignore-output"] reason="the words are PyTorch's, and depend on device and version"
try:
    torch.ones(2, 2).half() @ torch.ones(2, 2)
except RuntimeError as error:
    refused_product = error
print(refused_product)

# %% [markdown]
# ### Exercise 1.4 · Who decides the dtype
#
# Two operands of different types are added. Which dtype has the sum? `()` is a 0-dim tensor, such as a loss; `(3,)` and
# `(1,)` have one dimension; a Python `float` or `int` is a plain number such as `2.0`. Guess the whole table before you run
# anything; then ask PyTorch, if you like.
#
# | row | left | right |
# |---|---|---|
# | a | FP16 tensor `(3,)` | FP32 tensor `(3,)` |
# | b | FP16 tensor `(3,)` | Python `float` |
# | c | FP16 tensor `(3,)` | BF16 tensor `(3,)` |
# | d | FP16 tensor `(3,)` | FP32 tensor `()` |
# | e | FP16 tensor `()` | FP32 tensor `(3,)` |
# | f | FP16 tensor `()` | FP32 tensor `()` |
# | g | FP16 tensor `(3,)` | FP32 tensor `(1,)` |
# | h | BF16 tensor `(3,)` | Python `int` |
# | i | INT64 tensor `(3,)` | FP16 tensor `(3,)` |
# | j | INT64 tensor `(3,)` | FP16 tensor `()` |
# | k | INT64 tensor `(3,)` | Python `float` |
# | l | FP16 tensor `()` | Python `float` |
#
# Return a dict with all twelve rows, from the letter to the dtype itself, in the form `{"a": torch.float64, "b": …}`.


# %%
def promoted():
    """Return a dict from each letter, "a" to "l", to the dtype of left + right."""
    ### BEGIN SOLUTION
    return {
        "a": torch.float32,  # same kind, both with dimensions: the wider one
        "b": torch.float16,  # a Python number brings its kind, not a width
        "c": torch.float32,  # neither holds the other: the smallest that holds both
        "d": torch.float16,  # 0-dim beside dimensions, same kind: has no say
        "e": torch.float32,
        "f": torch.float32,  # 0-dim with 0-dim: the wider one again
        "g": torch.float32,  # one element, but with a dimension: counts in full
        "h": torch.bfloat16,
        "i": torch.float16,  # floating point is the higher kind, however narrow
        "j": torch.float16,  # ... even when it is 0-dim
        "k": torch.float32,  # the higher kind, without a width: the default dtype
        "l": torch.float16,
    }
    ### END SOLUTION


# %%
check("1.4", promoted)

# %%
# hint("1.4")
# solution("1.4")

# %% [markdown]
# ## In practice: four surprises
#
# **1. What you see printed is not what is stored.** **Guess first:** do the two lines agree?

# %%
x = torch.tensor(0.1, dtype=torch.float16)
print(x, "  x == 0.1:       ", (x == 0.1).item())
print(x.item(), "  x.item() == 0.1:", x.item() == 0.1)

# %% [markdown]
# Printing shows four places. And `x == 0.1` compares *in FP16*, to which 0.1 is rounded, too; `.item()` is a Python float with 64 bits.
# Print `.item()` when digits matter.
#
# **2. A tolerance that was made for FP32.** **Guess first:** two neighbours in FP16, 1 and the next number. Are they close? And is
# 0.000001 close to 0.000005?

# %%
one, next_one = torch.tensor([1.0, 1 + 2**-10]).half()
print("allclose:    ", torch.allclose(one, next_one))
torch.testing.assert_close(one, next_one)
torch.testing.assert_close(torch.tensor(1e-6).half(), torch.tensor(5e-6).half())
print("assert_close: no objection, twice")

# %% [markdown]
# `allclose` asks for five digits, and FP16 has three: a single rounding is too much for it. `torch.testing.assert_close` knows the
# dtype and allows for it, but to it whatever is much smaller than 0.00001 is zero. Gradients are: give it an `atol` of your own.
#
# **3. A checkpoint "saved in half, to save space".** **Guess first:** how many of these weights come back?

# %%
weights = {"w": torch.tensor([0.1, 70000.0, 1e-8, 1 + 2**-12])}
with tempfile.TemporaryFile() as file:
    torch.save({name: each.half() for name, each in weights.items()}, file)
    file.seek(0)
    back = torch.load(file, weights_only=True)["w"].float()
print("saved: ", weights["w"].tolist())
print("loaded:", back.tolist())

# %% [markdown]
# None. And the last one lost just those small steps that FP32 weights are kept for. Save the weights that the optimizer steps on as
# they are.
#
# **4. NumPy has no BF16.**

# %% tags=["nbval-ignore-output"] reason="the words are PyTorch's, and may change with its version"
try:
    torch.ones(2, dtype=torch.bfloat16).numpy()
except TypeError as error:
    refused_array = error
print("TypeError:", refused_array)
print("by way of FP32:", torch.ones(2, dtype=torch.bfloat16).float().numpy())

# %%
assert x.item() != 0.1
assert bool(x == 0.1)
assert not torch.allclose(one, next_one)
assert not (back == weights["w"]).any()

# %% [markdown]
# ## Takeaways
#
# - Sign, exponent, fraction. Exponent bits are range, fraction bits are precision; at the same width you trade one for the other.
# - BF16: FP32's range, two to three digits. FP16: three digits, but 65,520 is infinity and 2^−25 is zero.
# - The gap between neighbours grows with the number. A cast goes to the nearest one, from the middle to the even one.
# - Rounding costs a little of every number; underflow costs all of a small one.
# - TF32 is a way to multiply, not a dtype. FP8 E4M3 has no infinity and saturates.
# - Kind first, then rank: a tensor with dimensions outvotes a 0-dim tensor, which outvotes a Python number.
#
# ## Quiz
#
# Pick an answer and read what it says; the wrong ones are worth a click, too.

# %%
quiz("01")

# %% [markdown]
# **Further reading**
#
# - PyTorch: [Tensor Attributes](https://docs.pytorch.org/docs/stable/tensor_attributes.html), with the rules of type promotion
# - David Goldberg: [What Every Computer Scientist Should Know About Floating-Point Arithmetic](https://doi.org/10.1145/103162.103163), 1991
# - Dhiraj Kalamkar et al.: [A Study of BFLOAT16 for Deep Learning Training](https://arxiv.org/abs/1905.12322), 2019
# - Paulius Micikevicius et al.: [FP8 Formats for Deep Learning](https://arxiv.org/abs/2209.05433), 2022
