# %% [markdown]
# # 02 · FP16 failures
#
# | | |
# |---|---|
# | **Time** | 85 minutes |
# | **Difficulty** | medium |
# | **You need** | [lesson 01](01_number_formats.ipynb); what softmax does. No GPU: all machines fail alike. |
#
# **After this page you can**
#
# - tell the three ways in which FP16 loses a number apart: overflow, underflow, rounding;
# - see in a line of code which of them will strike, and at which values;
# - rewrite it: a norm, a variance, a softmax, a mask, a mean;
# - find the failures that raise no error and make no NaN.

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch import nn
from torch.nn import functional as F

from amp_lab import find_overflow
from amp_lab.course import check, hint, quiz, solution
from amp_lab.formats import BF16, FP16
from amp_lab.train.data import digits
from amp_lab.view.activations import against_range
from amp_lab.view.plots import COLOURS

# %% [markdown]
# ## Does a network fit?
#
# Lesson 01 looked at numbers one by one. Here is a network full of them: it learns to read digits, all in FP32. Its pixels go
# from 0 to 255, as in an image file. (`digits` has divided them by 255. We put that back, for it is easily forgotten.)

# %%
torch.set_num_threads(1)  # so small a network is quickest on one thread
torch.manual_seed(0)
images, labels = digits(600)
pixels = 255 * images
layers = (nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU())
model = nn.Sequential(*layers, nn.Linear(128, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(100):
    optimizer.zero_grad()
    F.cross_entropy(model(pixels), labels).backward()
    optimizer.step()

# %% [markdown]
# **Guess first:** if you cast its numbers to FP16, which of these come through, which become infinite, and which zero?
#
# - pixels, outputs of the two hidden layers, logits: what one layer hands to the next;
# - the sum of the squares of a layer's 128 outputs, as a norm needs it;
# - the exponentials of the logits, and the probabilities, as softmax and cross-entropy need them.

# %%
with torch.no_grad():
    first, second, logits = model[:2](pixels), model[:4](pixels), model(pixels)
rows = {"pixels": pixels, "layer 1": first, "layer 2": second, "logits": logits}
rows["layer 1, sums of squares"] = (first * first).sum(1)
rows["exp of the logits"] = logits.exp()
rows["probabilities"] = logits.softmax(1)
against_range(rows, FP16, "A trained network in the range of FP16")
plt.show()

# %% [markdown]
# **What you see.** (A hill shows how many numbers of a row have which size, and all hills are drawn equally high. Zeros have no
# place on such an axis: half of the pixels, and half of what the hidden layers hand on. The white stripe is FP16's normal
# range.) All that the layers hand on fits, with room to spare. What does not fit exists only *inside* an operation, between its
# input and its result. The sums of squares are too large, although the norms, their roots, would fit. The exponentials leave at
# both ends, and most probabilities become zero.
#
# In larger networks it can happen to what layers hand on, too. But it begins inside of operations, and there you can do most
# about it. So we take these operations one by one.

# %%
fit = {name: FP16.round(numbers) for name, numbers in rows.items()}
for name in ("pixels", "layer 1", "layer 2", "logits"):
    assert fit[name].isfinite().all()
    assert ((fit[name] == 0) & (rows[name] != 0)).double().mean() < 0.001
assert fit["layer 1, sums of squares"].isinf().double().mean() > 0.95
assert FP16.round(rows["layer 1, sums of squares"].sqrt()).isfinite().all()
assert fit["exp of the logits"].isinf().any()
assert (fit["exp of the logits"] == 0).any()
assert (fit["probabilities"] == 0).double().mean() > 0.5
for name in ("pixels", "layer 1", "layer 2"):
    assert 0.4 < (rows[name] == 0).double().mean() < 0.6

# %% [markdown]
# ## Squares
#
# Three right-angled triangles. Their legs are in the proportion 3 to 4, so their longest sides are 5, 500 and 0.00015. **Guess
# first:** which of the three does FP16 find?

# %%
for legs in ([3.0, 4.0], [300.0, 400.0], [0.00009, 0.00012]):
    x = torch.tensor(legs).half()
    print(legs, "->", (x * x).sum().sqrt().item())

# %% [markdown]
# **What you saw.** One of three, although all six legs and all three answers are normal FP16 numbers. A square doubles the
# exponent. So what is squared has room for half as many powers of ten: from 256 on squares *overflow*, and from 0.00017 down
# they *underflow*, which means that they become zero.
#
# The infinity is the better of the two failures, for it shows. A norm of zero looks like any other number.

# %%
x = torch.tensor([255.875, 256.0, 0.00018, 0.00017]).half()
square = x * x
assert square.isinf().tolist() == [False, True, False, False]
assert (square == 0).tolist() == [False, False, False, True]

# %% [markdown]
# ### The order of operations
#
# **Guess first:** in mathematics the two lines of each pair are equal. Which of the six lines are wrong in FP16?

# %%
large, small = torch.tensor([300.0, 0.0001]).half()
many = torch.full((100,), 6000.0).half()
print("large × large ÷ 1000:            ", (large * large / 1000).item())
print("large ÷ 1000 × large:            ", (large / 1000 * large).item())
print("small × small × 1,000,000:       ", (small * small * 1_000_000).item())
print(f"small × 1000 × small × 1000:      {(small * 1000 * small * 1000).item():.4f}")
print("sum of 100 values of 6000, ÷ 100:", (many.sum() / 100).item())
print("mean of the same 100 values:     ", many.mean().item())

# %% [markdown]
# **What you saw.** The first of each pair. What counts is the *largest and the smallest number on the way*, not the result.
# Divide a large number before you multiply it, and scale a small one up before you multiply it by another small one: keep what
# is in between near 1.
#
# The last pair is another story. Both `sum` and `mean` add in FP32 inside. But `sum` must hand over 600,000 in FP16 before you
# can divide, while `mean` divides before it rounds. An operation of PyTorch often survives what the same formula, written by
# hand, does not.

# %%
assert (many.sum(dtype=torch.float32) / 100).item() == many.mean().item() == 6000
assert (large / 1000 * large).item() == 90

# %% [markdown]
# ### Exercise 2.1 · A norm that survives
#
# You get an FP16 tensor `x` of any shape, with 1 to 300 elements, all of them finite. Return its Euclidean norm, the root of
# the sum of the squares of all its elements, as a 0-dim FP32 tensor. It must be right to five digits (relative error at most
# 0.00001) for every such `x`: norms beyond 65504, elements whose squares FP16 cannot hold, elements as small as FP16 has them.
# The norm of zeros is exactly 0.


# %%
def safe_norm(x):
    """Return the Euclidean norm of all elements of the FP16 tensor `x`: 0-dim, FP32."""
    ### BEGIN SOLUTION
    wide = x.float()  # first: an FP32 square holds whatever FP16 squared can be
    return wide.square().sum().sqrt()
    ### END SOLUTION


# %%
check("2.1", safe_norm)

# %%
# hint("2.1")
# solution("2.1")

# %% [markdown]
# ## A variance by hand
#
# The values 101, 102, 102 have a variance of 2⁄9, about 0.22. Two formulas give it: the mean of the squares minus the square of
# the mean, and the mean of the squared deviations from the mean. **Guess first:** nothing here comes near 65,504. What do the
# two give in FP16?

# %%
x = torch.tensor([101.0, 102.0, 102.0]).half()
print("mean of squares - square of mean:", ((x * x).mean() - x.mean() ** 2).item())
print("mean of squared deviations:      ", ((x - x.mean()) ** 2).mean().item())

# %% [markdown]
# **What you saw.** A variance of −8; its root is NaN. This is the third kind of loss, *rounding*. Between 8,192 and 16,384 FP16
# numbers lie 8 apart, so each square is already wrong by up to 4 when the subtraction comes. The subtraction itself is exact.
# It takes away the leading digits, in which the two numbers agree, and what is left is the error. That is called
# *cancellation*.
#
# Subtract first, while the numbers are small enough to be exact, and square what is left.
#
# **Guess first:** is FP32 a cure? Three numbers around 10,000, with a variance of 2⁄3:

# %%
near = torch.tensor([9999.0, 10_000.0, 10_001.0])
by_squares = (near * near).mean() - near.mean() ** 2
by_deviations = ((near - near.mean()) ** 2).mean()
print("mean of squares - square of mean:", by_squares.item())
print(f"mean of squared deviations:       {by_deviations.item():.3f}")

# %% [markdown]
# FP32 only moves the place where it fails. The better formula needs no more digits than it has.

# %%
assert ((x * x).mean() - x.mean() ** 2).sqrt().isnan()
assert (x * x).tolist() == [10_200, 10_400, 10_400]
assert [101**2, 102**2] == [10_201, 10_404]
assert by_squares.item() < 0.1 < 0.66 < by_deviations.item() < 0.67
assert FP16.ulp([8192.0, 16383.0]).tolist() == [8, 8]

# %% [markdown]
# ## Exponentials, softmax, log
#
# **Guess first:** exp(1) is 2.7. What is the largest whole number n whose exp(n) FP16 can hold, and from which n on is exp(−n)
# zero?

# %%
for n in (11, 12, -17, -18):
    print(f"exp({n}) = {torch.tensor(float(n)).half().exp().item():.3g}")

# %% [markdown]
# From −17 to 11: there are not many logits that you can take the exponential of. Now two logits, 20 and 0. The second class has
# a probability of about 2 × 10^−9, and the logarithm of that is −20, which FP16 could hold easily. **Guess first:** which of
# these lines gets there?

# %%
x = torch.tensor([20.0, 0.0]).half()
by_hand = x.exp() / x.exp().sum()
print("by hand, then log:        ", by_hand.log().tolist())
print("softmax, then log:        ", x.softmax(0).log().tolist())
print("softmax, float, then log: ", x.softmax(0).float().log().tolist())

# %% [markdown]
# **What you saw.** None.
#
# - By hand: exp(20) is infinite, and ∞ ÷ ∞ is NaN.
# - `softmax` first subtracts the largest logit from all. In exact arithmetic that changes nothing; here it means that no
#   exponential is larger than exp(0) = 1. What is too small becomes zero, and for a probability of 2 × 10^−9 that is a fair
#   answer. It is not a fair input for a logarithm.
# - `.float()` came too late. FP32 keeps what there is; it brings nothing back. Remember this one: it looks like a repair.
#
# Would it be enough to go to FP32 in time, for the logits? FP32 has its own ends, and FP16 logits can be 131,008 apart. **Guess
# first:** from which difference on is the smaller exponential zero in FP32: about 18, 100 or 1000?

# %%
for n in (88, 89, -103, -104):
    print(f"exp({n}) = {torch.tensor(float(n)).exp().item():.1g}")

# %% [markdown]
# About 100: from 104 on. So a probability can be zero in FP32 as well, and its logarithm −∞. The logarithm has to come without
# it.

# %%
assert by_hand[0].isnan()
assert x.softmax(0).tolist() == [1, 0]
assert 1.9e-9 < 1 / (1 + math.exp(20)) < 2.2e-9 < 2**-25
assert 2 * 65504 == 131008
assert x.log_softmax(0).tolist() == [0, -20]
assert torch.tensor(89.0).exp().isinf()
assert torch.tensor([104.0, 0.0]).softmax(0).log()[1].isinf()

# %% [markdown]
# ### Exercise 2.2 · Log-softmax without infinity
#
# You get FP16 `logits` of one or more dimensions, finite, anything from −65504 to 65504, and `dim`, an `int` that may be
# negative. Return log(softmax) along `dim`: from each logit x, x − log(sum of exp of all logits along `dim`). The result is
# FP32 and of the same shape. It is finite, for every such input, and off by at most 0.00001 plus one millionth of its size.
#
# PyTorch has a function for that, which passes if you feed it rightly. Writing it yourself teaches you more: there are several
# traps.


# %%
def stable_log_softmax(logits, dim):
    """Return log(softmax(logits)) along `dim`, FP32; `logits` are FP16, of any size."""
    ### BEGIN SOLUTION
    wide = logits.float()  # before the subtraction, whose result FP16 may not hold
    shifted = wide - wide.amax(dim, keepdim=True)  # at most 0: exp cannot overflow
    return shifted - shifted.exp().sum(dim, keepdim=True).log()
    ### END SOLUTION


# %%
check("2.2", stable_log_softmax)

# %%
# hint("2.2")
# solution("2.2")

# %% [markdown]
# ## Large numbers and small steps
#
# **Guess first:** what do these three sums give?

# %%
one, many = torch.tensor([1.0, 2048.0]).half()
print("2048 + 1       =", (many + one).item())
print("(2048 + 1) + 1 =", (many + one + one).item())
print("2048 + (1 + 1) =", (many + (one + one)).item())

# %% [markdown]
# From 2,048 on FP16 has only even numbers. Each 1 by itself rounds away; two of them, added up first, count. A weight and its
# update are such a sum: one large number, one small one.
#
# ### Underflow is not rounding
#
# Notes on AMP like to say: *FP16 has rounding errors, which swallow tiny gradients.* **Guess first:** here are two candidates,
# a gradient of 0.00000001 (1e-8), and a step of 0.0001 for a weight of 1. Which gets lost, and is rounding to blame?

# %%
gradient, step = 1e-8, 1e-4
weight = torch.tensor(1.0).half()
print("gradient in FP16: ", torch.tensor(gradient).half().item())
print("step in FP16:     ", torch.tensor(step).half().item())
print("weight + step:    ", (weight + torch.tensor(step).half()).item())

# %% [markdown]
# The gradient is gone by itself, whatever stands beside it: *underflow*. The step is fine, good to three digits. Only next to
# the weight, where the gap is ten times as large, it *rounds* away.
#
# **Guess first:** two cures. One multiplies by 1,024 before the cast to FP16 and divides in FP32 afterwards. (With a *loss
# scale*, the large number by which a `GradScaler` multiplies the loss, that happens to all gradients.) The other keeps the
# weight in FP32. Which cures what?


# %%
def scaled(number):
    return torch.tensor(number * 1024).half().float() / 1024


small = torch.tensor([gradient, step]).half()
print(f"gradient, scaled:               {scaled(gradient).item():.1g}")
print(f"gradient, for an FP32 weight:   {small[0].float().item()}")
print(f"FP16 weight + scaled step:      {(weight + scaled(step).half()).item()}")
print(f"FP32 weight + step:             {(weight.float() + small[1]).item():.4f}")

# %% [markdown]
# | | scaled by 1,024 on the way | weight in FP32 |
# |---|---|---|
# | the gradient, lost by **underflow** | comes through | still 0: it was gone before |
# | the step, lost by **rounding** | still lost: it was never too small | counts |
#
# Two diseases, two cures, and neither helps with the other. AMP needs both: the FP32 weights are lesson 03, the scale is lesson
# 04.

# %%
assert torch.tensor(gradient).half() == 0
assert torch.tensor(step).half() > 0
assert 9 < FP16.ulp(1.0) / step < 11
assert abs(scaled(gradient).item() - gradient) < 1e-10
assert (weight + torch.tensor(step).half()) == weight
assert (weight.float() + torch.tensor(step).half()) > weight

# %% [markdown]
# ### And BF16?
#
# BF16 reaches as far as FP32: it holds the squares above, and the small gradient. **Guess first:** a weight starts at 1, as
# those of every LayerNorm do (it brings rows of activations to mean 0 and variance 1, and then multiplies them by its weights).
# Adam takes 100 steps of 0.001 towards 0, with the weight in FP32, in FP16, and in BF16. Where does it end?

# %%
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    weight = nn.Parameter(torch.ones(1, dtype=dtype))
    optimizer = torch.optim.Adam([weight], lr=1e-3)
    for _ in range(100):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    print(f"{dtype}: {weight.item():.3f}")

# %% [markdown]
# In BF16 it never moved. (FP16 rounds as well: each step of 0.001 becomes one of 0.00098, two of its gaps.) Was that bad luck
# with the number 1? Take all 8,192 weights of the network's first layer, of which half are below about 0.06 in size. **Guess
# first:** how many of them does a step of 0.001 move, how many a tenth of it, and a hundredth?

# %%
weights = model[0].weight.detach().flatten()
for rate in (1e-3, 1e-4, 1e-5):
    for each in (FP16, BF16):
        stored = each.round(weights)
        share = (each.round(stored - rate) != stored).double().mean()
        print(f"a step of {rate:.5f} moves {share:4.0%} of the weights in {each.name}")

# %% [markdown]
# **What you saw.** Partly it was: where weights are small, so are the gaps between them, and 0.001 moves every one. But most
# learning rates go down during training. At a tenth BF16 loses three steps of four; at a hundredth FP16 does, and BF16 nearly
# all.
#
# What counts is how large a step is beside *its* weight. **Guess first:** how small a part of its weight may a step be?

# %%
powers = torch.linspace(-14, -5, 91).tolist()
figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for each, colour, end in ((FP16, "blue", -11), (BF16, "orange", -8)):
    stored = each.round(weights)
    after = (each.round(stored * (1 - 2.0**power)) for power in powers)
    shares = [(new != stored).double().mean() for new in after]
    axes.plot(powers, shares, color=COLOURS[colour], linewidth=2)
    axes.text(end - 0.35, 0.5, each.name, color=COLOURS[colour])
for size in (1, 0.06):
    axes.axvline(place := math.log2(0.001 / size), color="#999999", linestyle=":")
    axes.text(place - 0.1, 1.07, f"0.001 for a weight of {size}", ha="right")
axes.set(xlabel="step ÷ weight, powers of two", ylabel="share of weights that move")
axes.set(title="Which steps move a weight", ylim=(-0.05, 1.2), yticks=(0, 0.5, 1))
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# **What you see.** In BF16 no step under 2^−9 of its weight (0.2 %) moves anything, and above 2^−8 every step does. Between
# them it depends on where the weight stands between its powers of two. In FP16 the same happens at an eighth of that, from
# 2^−12 to 2^−11.
#
# The dotted lines are steps of 0.001: for the weight of 1 of above, which stands where BF16 loses every step, and for a typical
# weight of this layer. A tenth of the learning rate moves both lines 3.3 to the left. Then FP16 loses the steps of the one as
# well, and BF16 those of the other; after one more tenth both formats lose both. So a larger range is no cure for lost steps,
# and a loss scale is none either. That is why mixed precision with BF16, too, keeps its weights in FP32.

# %%
for each, lost, counts in ((BF16, -9, -8), (FP16, -12, -11)):
    stored = each.round(weights)
    for sign in (1, -1):
        moved = each.round(stored * (1 + sign * 0.999 * 2.0**lost)) != stored
        assert moved.double().mean() < 0.001
        moved = each.round(stored * (1 + sign * 1.001 * 2.0**counts)) != stored
        assert moved.double().mean() > 0.99
assert weight == 1
assert (nn.LayerNorm(3).weight == 1).all()
assert BF16.round(gradient) > 0
assert BF16.round(300.0**2) < 1e5

# %%
assert weights.numel() == 8192
assert 0.05 < weights.abs().median() < 0.07
for rate, in_fp16, in_bf16 in ((1e-3, 1, 1), (1e-4, 1, 0.26), (1e-5, 0.26, 0.03)):
    for each, share in ((FP16, in_fp16), (BF16, in_bf16)):
        stored = each.round(weights)
        moved = (each.round(stored - rate) != stored).double().mean()
        assert abs(moved - share) < 0.02
assert 2.0**-9 > 0.001 > 2.0**-11 > 2.0**-12 > 0.0001
assert 2.0**-8 < 0.001 / 0.06
assert 2.0**-11 < 0.0001 / 0.06 < 2.0**-9
assert 0.00001 / 0.06 < 2.0**-12

# %% [markdown]
# ### Exercise 2.3 · The smallest step that moves a weight
#
# A weight `w` in FP16 gets an update: `w + step`, rounded to FP16 again. Below which size is every step lost? You get `w`, a
# Python `float` that FP16 holds exactly, with 1 ≤ |w| ≤ 32768; it may be negative. Return, as a Python `float`, the smallest
# *positive* number `step` for which `w + step`, added in FP16, is not `w` any more. The step itself must be an FP16 number,
# too.
#
# A formula passes, and so does a search. All FP16 numbers are only 65,536.


# %%
def smallest_effective_step(w):
    """Return the smallest positive FP16 number that moves `w`, 1 to 32768 in size."""
    ### BEGIN SOLUTION
    start = torch.tensor(w, dtype=torch.float16)
    # All positive finite FP16 numbers, in order: their patterns count up from 1.
    steps = torch.arange(1, 0x7C00, dtype=torch.int16).view(torch.float16)
    return steps[start + steps != start][0].item()
    ### END SOLUTION


# %%
check("2.3", smallest_effective_step)

# %%
# hint("2.3")
# solution("2.3")

# %% [markdown]
# ## Numbers from FP32 code
#
# Some failures come with the constants that people write into their code. One is called eps, and is there so that nobody
# divides by zero. **Guess first:** `x` is 0, in FP16. Which of these quotients are finite?

# %%
x = torch.tensor(0.0).half()
for eps in (1e-8, 1e-6, 1e-4):
    print(f"1 / (x + {eps:g}) = {(1 / (x + eps)).item():g}")

# %% [markdown]
# **What you saw.** 1e-8 is zero in FP16, and guards nothing. 1e-6 is not zero, but its inverse, a million, is too large. An eps
# must keep the *quotient* in range: in FP16 it is at least 0.000016 if what is divided is near 1. (1 ÷ 65,504 is a bit more
# than 0.000015, whose own inverse is infinite.)
#
# Adam has such an eps: 1e-8, by default. It divides each step by the root of a running mean of g², the squared gradient, plus
# eps. So its first step is the learning rate, here 0.001, against the gradient, however large or small that is; without a
# gradient there is no step. **Guess first:** four FP16 weights of 1 have the gradients 0, 0.0001, 0.001 and 1. Where are they
# after it?

# %%
for dtype in (torch.float32, torch.float16):
    weight = nn.Parameter(torch.ones(4, dtype=dtype))
    weight.grad = torch.tensor([0.0, 0.0001, 0.001, 1.0], dtype=dtype)
    torch.optim.Adam([weight], lr=0.001).step()
    print(f"{dtype}: {[round(each, 3) for each in weight.tolist()]}")

# %% [markdown]
# Three of four are destroyed in one step. The running mean of g² starts as 0.001 g², and for a gradient of 0.001 that is 10^−9:
# underflow. Then the eps should help, and it is zero, too. What remains is 0 ÷ 0 = NaN for the first weight, and a division by
# zero for the next two. With an eps of 1e-4 the NaN goes away, but the running mean stays zero: the step for 0.001 is ten times
# too long. (That for 0.0001 is right, by accident: the eps is as large as the gradient.) The cure is FP32 weights and FP32
# optimizer state, which AMP has anyway.
#
# ### Minus a billion
#
# Attention hides words that must not be looked at: before softmax, it lowers their scores by a number so large that they get no
# weight. A billion is a popular one. **Guess first:** in the second row below nothing is kept, as in a line of padding (which
# only fills a batch up). What comes of that row in FP32, what in FP16?

# %%
keep = torch.tensor([[True, True, False], [False, False, False]])
for dtype in (torch.float32, torch.float16):
    scores = torch.zeros(2, 3, dtype=dtype)
    lowered = scores + (1 - keep.to(dtype)) * -1e9
    print(lowered[1])
    print("  softmax:", lowered.softmax(1)[1].tolist())

# %% tags=["nbval-ignore-output"] reason="the words are PyTorch's, and may change with its version"
try:
    scores.masked_fill(~keep, -1e9)
except RuntimeError as error:
    refused_mask = error
print("masked_fill:", refused_mask)

# %% [markdown]
# **What you saw.** In FP16 minus a billion is −∞. A row of nothing but −∞ has no softmax: the largest is subtracted from all,
# and −∞ minus −∞ is NaN. A row in which something is kept comes out right, so the model works until the first line of padding.
# `masked_fill` refuses a number that does not fit; arithmetic, and `torch.where` as well, make −∞ of it and say nothing.

# %%
zero = torch.zeros(1).half()
assert zero + 1e-8 == 0
assert (1 / (zero + 1.6e-5)).isfinite()
assert (1 / (zero + 1.5e-5)).isinf()
assert weight[0].isnan()
assert weight[1:3].isinf().all()
assert abs(weight[3].item() - 0.999) < 0.001
row_with_something, row_of_nothing = lowered.softmax(1)
assert row_with_something.tolist() == [0.5, 0.5, 0]
assert row_of_nothing.isnan().all()

# %% [markdown]
# ### Exercise 2.4 · Masks that fit
#
# Attention hides words by making their scores so low that `softmax` gives them nothing. You get `scores`, of dtype FP16, BF16
# or FP32, each from −1000 to 1000, and `keep`, a bool tensor of the same shape: `True` means *keep*. Return new scores of the
# same dtype and shape, which `torch.softmax(…, dim=-1)` turns into weights like these:
#
# - in a row where something is kept, what is not kept weighs exactly 0, and what is kept weighs as much as if the rest were not
#   there;
# - in a row where *nothing* is kept (padding, say), your scores and the weights are finite, whatever they are.


# %%
def masked_scores(scores, keep):
    """Return `scores`, so masked that softmax over the last dim keeps only `keep`."""
    ### BEGIN SOLUTION
    lowest = torch.finfo(scores.dtype).min  # finite, and of the dtype that it goes into
    return scores.masked_fill(~keep, lowest)
    ### END SOLUTION


# %%
check("2.4", masked_scores)

# %%
# hint("2.4")
# solution("2.4")

# %% [markdown]
# ## Long sums
#
# **Guess first:** a loop adds 0.1, ten thousand times, so the sum should be 1,000. What do FP16 and BF16 come to?

# %%
totals = {}
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    total, totals[dtype] = torch.zeros((), dtype=dtype), []
    for term in torch.full((10_000,), 0.1, dtype=dtype):
        total = total + term
        totals[dtype].append(total.item())
    print(f"{dtype}: {total.item():.1f}")

# %%
figure, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
for (dtype, run), colour in zip(totals.items(), ("black", "blue", "orange")):
    axes.plot(run, color=COLOURS[colour], linewidth=2)
    axes.annotate(str(dtype), (10_000, run[-1]), (5, -3), textcoords="offset points")
axes.set(xlabel="additions", ylabel="sum", xlim=(0, 12_000), ylim=(0, 1050))
axes.set_xticks(range(0, 10_001, 2000))
axes.set_title("A sum of 0.1 and 0.1 and 0.1 …")
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %% [markdown]
# **What you see.** FP16 stops at 256, for good: there the gap is 0.25, and 0.1 is less than half of it. BF16 stops at 32. It is
# the lost step of above, with the sum in the place of the weight. (Look closely: before it stops, FP16 runs *ahead*. From 128
# on its gap is 0.125, and every 0.1 is rounded up to that.)
#
# **Guess first:** the same terms, but `terms.sum()` in place of the loop?

# %%
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    terms = torch.full((10_000,), 0.1, dtype=dtype)
    print(f"{dtype}: sum {terms.sum().item():.1f}")

# %% [markdown]
# PyTorch's `sum`, `mean` and `cumsum` add in FP32 and round once, at the end. What stalls are the sums that you keep yourself,
# from batch to batch: an epoch's loss, the number of right answers. **Guess first:** a loss is 0.7 in every batch. What is its
# mean over 100, 1,000, 5,000 and 20,000 batches, if you add it up in FP16?

# %%
loss, total, seen = torch.tensor(0.7).half(), torch.zeros(()).half(), 0
for batches in (100, 1000, 5000, 20_000):
    for _ in range(batches - seen):
        total += loss
    seen = batches
    print(f"{batches:6,} batches: mean loss {total.item() / batches:.3f}")

# %% [markdown]
# The longer the epoch, the better the loss looks. Counts do the same: one at a time they stop at 2,048, in BF16 at 256.
# `loss.item()` makes a Python float, and Python's floats have 53 bits for their digits.

# %%
assert totals[torch.float16][-1] == totals[torch.float16][3000] == 256
assert totals[torch.bfloat16][-1] == 32
assert abs(totals[torch.float32][-1] - 1000) < 1
assert totals[torch.float16][2200] > totals[torch.float32][2200]
assert FP16.ulp([128.0, 256.0]).tolist() == [0.125, 0.25]
assert BF16.ulp(32.0) == 0.25
for dtype, stop in ((torch.float16, 2048), (torch.bfloat16, 256)):
    terms = torch.full((10_000,), 0.1, dtype=dtype)
    for exact in (terms.sum(), terms.cumsum(0)[-1], 10_000 * terms.mean()):
        assert abs(exact.item() - 1000) < 4
    assert torch.tensor(float(stop), dtype=dtype) + 1 == stop
    assert torch.tensor(stop - 1.0, dtype=dtype) + 1 == stop

# %% [markdown]
# ### Exercise 2.5 · A mean over many batches
#
# A loss is logged batch by batch, in FP16. You get `batches`, an iterable of FP16 tensors of any shapes and sizes: a list, or a
# generator, which can be walked through only once. Some batch may be empty. Return the mean over all *elements* of all batches
# as a Python `float`, right to six digits (relative error at most 0.000001). If there is no element at all, raise a
# `ValueError`.


# %%
def running_mean(batches):
    """Return the mean over all elements of an iterable of FP16 tensors, as a float."""
    ### BEGIN SOLUTION
    total, count = 0.0, 0
    for batch in batches:
        total += batch.double().sum().item()
        count += batch.numel()
    if count == 0:
        raise ValueError("no batch has an element: there is no mean")
    return total / count
    ### END SOLUTION


# %%
check("2.5", running_mean)

# %%
# hint("2.5")
# solution("2.5")

# %% [markdown]
# ## In practice: five failures without an error
#
# All five are from code that somebody wrote and wondered about. None of them raises anything.
#
# **1. A normalisation by hand.** RMSNorm does without LayerNorm's mean: it divides a row by the root of its mean square.
# **Guess first:** what comes out for a row of a few hundred: infinity, NaN or something else?

# %%
x = torch.tensor([[300.0, -500.0, 800.0, 100.0]]).half()
by_hand = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)
print("by hand:   ", by_hand.tolist())
print("PyTorch:   ", [[round(each, 2) for each in F.rms_norm(x, (4,)).tolist()[0]]])

# %% [markdown]
# Zeros. The squares are infinite, and 1 ÷ √∞ is a perfectly good 0. No inf and no NaN leaves this line, so nobody who looks for
# them finds anything, and the gradient is a row of zeros as well. `F.rms_norm` and `F.layer_norm` compute in FP32 inside.
#
# **2. Attention scores.** How much one word looks at another is a product of two vectors of d numbers, the one's query q and
# the other's key k. The formula says q · k ÷ √d. **Guess first:** q and k are 40 in all of 64 places, so √d is 8. Does it
# matter when you divide?

# %%
q = k = torch.full((1, 64), 40.0).half()
print("divide the product:", (q @ k.T / 8).item())
print("divide q:          ", (q / 8 @ k.T).item())

# %% [markdown]
# The product is 102,400. Softmax makes NaN of a row with a score of +∞, and no loss scale helps: that acts on gradients, and
# this is the forward pass. Divide `q`, or use `F.scaled_dot_product_attention`.
#
# **3. Clipping by hand.** Gradients whose norm is over 1 are divided by it. **Guess first:** 9,000 FP16 gradients are 100. What
# is left of them?

# %%
gradients = torch.full((9000,), 100.0).half()
norm = (gradients * gradients).sum().sqrt()
print("norm:          ", norm.item())
print("clipped:       ", (gradients * (1 / norm))[:3].tolist())
print("PyTorch's norm:", torch.linalg.vector_norm(gradients).item())

# %% [markdown]
# The norm, 9,487 (the nearest FP16 number is 9,488), is well in range; its square is not. So all is divided by infinity: the
# network stands still, and its loss is a flat line of finite numbers. The norms in `torch.nn.utils.clip_grad_norm_` are
# computed in FP32 inside. But they are handed over in the dtype of the gradients: beyond 65,504 an FP16 norm is infinite there,
# too, and the gradients become zeros. That is one reason to clip FP32 gradients.
#
# **4. Averaged weights.** An exponential moving average (EMA) follows the weights: at each step it goes 0.001 of the way to
# them. **Guess first:** the weights are 1, the average starts at 0. After 5,000 steps it should be 0.993. And in 16 bits?

# %%
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    average, weight = torch.zeros((), dtype=dtype), torch.ones((), dtype=dtype)
    for _ in range(5000):
        average.lerp_(weight, 0.001)
    print(f"{dtype}: {average.item():.3f}")

# %% [markdown]
# It gets stuck where a thousandth of the way is no more than half a gap. Who then evaluates the averaged weights evaluates a
# network that never was. Keep averages in FP32.
#
# **5. Off by one bit.** You test FP16 code against FP64. **Guess first:** 1 + 2^−11 is the middle between 1 and the next FP16
# number, and `x` is a trifle above the middle. What becomes of it?

# %%
number = 1 + 2**-11 + 2**-40
x = torch.tensor(number, dtype=torch.float64)
print("nearest FP16 number:     ", FP16.round(x).item())
print("PyTorch, FP64 to FP16:   ", x.half().item())

# %% [markdown]
# On a CPU, PyTorch goes from FP64 to FP16 by way of FP32. There the trifle is lost, a tie is left, and the tie goes to the even
# one. It is half a gap either way, and no training will notice; a test that compares bits will. `FP16.round` of
# `amp_lab.formats` rounds once.

# %%
probe = torch.tensor([[300.0, -500.0, 800.0, 100.0]]).half().requires_grad_()
(probe * torch.rsqrt((probe * probe).mean(-1, keepdim=True) + 1e-5)).sum().backward()
assert probe.grad.count_nonzero() == 0
assert by_hand.count_nonzero() == 0
assert by_hand.isfinite().all()
assert (q @ k.T / 8).softmax(1).isnan().all()
attended = F.scaled_dot_product_attention(q[None], k[None], k[None])
assert attended.isfinite().all()
assert F.layer_norm(probe.detach(), (4,)).count_nonzero() == 4
assert F.layer_norm(probe.detach(), (4,)).abs().max() < 2

# %%
assert norm.isinf()
assert 9486 < math.sqrt(9000 * 100**2) < 9487
assert weight == 1
assert average < 0.5
parameter = nn.Parameter(torch.zeros(9000).half())
parameter.grad = gradients.clone()
assert 9480 < nn.utils.clip_grad_norm_([parameter], 1.0) < 9500
assert parameter.grad.all()
parameter.grad = 10 * gradients
assert nn.utils.clip_grad_norm_([parameter], 1.0).isinf()
assert not parameter.grad.any()
assert number - 1 > 2**-11

# %% [markdown]
# ## Let a tool look
#
# In each of these five you were told where to look. `find_overflow` looks for you: it runs a training step operator by
# operator, asks of each infinity whether the operator has made it or was handed it, and computes in FP64 what should have come
# out. Below are three networks in FP16: one begins with the norm by hand of failure 1, one with the attention of failure 2, one
# with PyTorch's norm, and all end with the same linear layer. They get two rows, one with numbers of some hundreds. **Guess
# first:** which of the three losses are finite? Which of them are right?


# %%
class RMSNormByHand(nn.Module):
    def forward(self, x):
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)


class AttentionByHand(nn.Module):
    def forward(self, x):
        return (x @ x.T / 8).softmax(-1) @ x


# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
two_rows = torch.tensor([[300.0, -500.0, 800.0, 100.0], [3.0, 1.0, -2.0, 4.0]]).half()
reports, last = [], nn.Linear(4, 1)
for layer in (RMSNormByHand(), AttentionByHand(), nn.RMSNorm(4)):
    network = nn.Sequential(layer, last).half()

    def loss_of_a_step(network=network):
        return network(two_rows).float().mean()

    report = find_overflow(network, loss_of_a_step, scales=(1.0,))  # 1: no loss scale
    reports.append(report)
    name, loss = type(layer).__name__, loss_of_a_step().item()
    print(f"{name:16} loss {loss:6.3f}   {report.cause:16} {report.op or ''}")

# %% [markdown]
# **What you saw.** The attention gives NaN, and NaN is at least noticed. The norm by hand gives a number like any other, and it
# is not the number that PyTorch's norm gives: one of the two rows has become zeros. That is a *hidden* overflow; after
# PyTorch's norm there is nothing to report ("none"). What was found out about the first, with more under *What was seen*:

# %% tags=["nbval-ignore-output"] reason="says how long it took"
reports[0]

# %%
by_hand, scores, own = reports
assert (by_hand.cause, by_hand.op) == ("hidden-overflow", "mul")
assert (scores.cause, scores.op) == ("forward-overflow", "matmul")
assert own.ok
assert by_hand.true_size == 800**2

# %% [markdown]
# It names the operator and the layer ("0" is the first), says what went in and what should have come out, and what to change.
# Two things in it come later: loss scales in lesson 04, `torch.autocast` in lesson 06. Here, `.float()` in front of the norm is
# all that is needed. In lesson 07 you will look for an overflow with it in earnest.
#
# ## Takeaways
#
# - Ask of every line: what are the largest and the smallest number *on the way*? Inputs and results may fit where squares,
#   exponentials and sums do not.
# - **Overflow** gives inf and later NaN, or a quiet 0 behind a division. **Underflow** makes zero of a small number.
#   **Rounding** loses a small number next to a large one.
# - A loss scale cures the underflow of gradients. FP32 weights cure lost steps. Neither does the work of the other, and BF16
#   needs FP32 weights even more.
# - Go to FP32 *before* the dangerous operation. Afterwards there is nothing left to save.
# - PyTorch's own `sum`, `mean`, `softmax` and `layer_norm` are careful inside. What you write by hand is as careful as you are.
# - 1e-8 and −1e9 are FP32 numbers. Ask `torch.finfo(x.dtype)`.
# - Keep running sums, counts, averages and optimizer state in FP32 or in Python floats.
#
# ## Quiz
#
# Pick an answer and read what it says; the wrong ones are worth a click, too.

# %%
quiz("02")

# %% [markdown]
# **Further reading**
#
# - PyTorch: [Numerical accuracy](https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html)
# - Pierre Blanchard, Desmond J. Higham, Nicholas J. Higham: [Accurately computing the log-sum-exp and softmax
#   functions](https://doi.org/10.1093/imanum/draa038), 2021
# - Nicholas J. Higham: [The Accuracy of Floating Point Summation](https://doi.org/10.1137/0914050), 1993
# - Pedram Zamirai et al.: [Revisiting BFloat16 Training](https://arxiv.org/abs/2010.06192), 2021
