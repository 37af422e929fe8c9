# %% [markdown]
# # 06 · Autocast
#
# | | |
# |---|---|
# | **Time** | 105 minutes |
# | **Difficulty** | medium |
# | **You need** | lessons [02](02_fp16_failures.ipynb) and [04](04_static_loss_scaling.ipynb); modules in PyTorch. No GPU: you will see what CUDA does on any machine. |
#
# **After this page you can**
#
# - say, for any operator, in which dtype autocast runs it on CUDA and on a CPU, and ask PyTorch instead of a table;
# - see in which dtype every operator of your own model runs, what was cast for it, and why;
# - read autocast's error messages, and repair a model that raises them;
# - protect a fragile part with an FP32 island, and keep it protected in the backward pass.

# %%
import inspect
import textwrap
import threading

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from amp_lab import explain, xray
from amp_lab.autocast import emulate
from amp_lab.autocast.fates import Fate
from amp_lab.autocast.policy import compare, differences, policy, why
from amp_lab.course import check, hint, quiz, solution
from amp_lab.course.lessons.l06.given import BrokenBlock

# %% [markdown]
# Autocast treats an operator on CUDA and on a CPU differently, and this page teaches what it does on CUDA. The second line
# below makes `torch.autocast("cpu", ...)` cast like `torch.autocast("cuda", ...)`, for CPU tensors and until it is stopped. The
# first one you know: products in 16 bits, computed as a Tensor Core would.

# %% tags=["nbval-ignore-output"] reason="describes the machine that runs it"
print(emulate.tensor_cores().start())
print(emulate.cuda_autocast().start())
torch.set_num_threads(1)  # the models are small
torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## One region, several dtypes
#
# `with torch.autocast(device, torch.float16):` opens a *region*. Many people read it as "what is in there runs in FP16". Here
# is a product, and four things made of it. The inputs `x` and `w` are FP32. **Guess first:** which dtype has each of the five?

# %%
x = torch.randn(8, 16).to(device)
w = torch.randn(16, 16).to(device)
with torch.autocast(device, torch.float16):
    product = x @ w
    results = {
        "x @ w": product,
        "product.relu()": product.relu(),
        "product.softmax(-1)": product.softmax(-1),
        "product.mean()": product.mean(),
        "product + x": product + x,
    }
for expression, result in results.items():
    print(f"{expression:20}", result.dtype)

# %% [markdown]
# **What you saw.** The product is FP16 although both its inputs are FP32, the softmax is FP32 although its input is FP16, and
# `relu` and `mean` kept what they were given. The last one is no rule of autocast at all: of two tensors with dimensions, the
# wider dtype wins in `+`, `*` and other arithmetic, with autocast and without (lesson 01).
#
# So a region has no dtype. **Autocast is a decision per operator**, made just before it runs: some get their inputs cast to the
# region's dtype, some get them cast to FP32, and most are left alone. What it never does is change a tensor that exists:

# %%
print("x:", x.dtype, "  w:", w.dtype)
assert [result.dtype.itemsize for result in results.values()] == [2, 2, 4, 2, 4]

# %% [markdown]
# ## Six fates
#
# Who decides? A list inside PyTorch: for each operator that has a rule, what to do with its floating-point inputs. There are
# five rules, and a sixth fate for all that have none.
#
# 1. **Lower precision.** Inputs are cast to the region's dtype: products and convolutions, which Tensor Cores speed up, and
#    which bear the rounding since they add up in FP32.
# 2. **FP32.** Inputs in 16 bits are cast to FP32: what overflows or cancels easily, such as `exp`, `log`, `pow`, `layer_norm`,
#    most losses.
# 3. **FP32 unless a dtype is passed.** Sums and softmax: the result is FP32, but `dtype=torch.float16` is obeyed.
# 4. **Widest input.** A few operators with several inputs that must agree: all are cast to FP32 if one of them is FP32.
# 5. **Refused.** An error, for a loss that takes probabilities.
# 6. **Follows its inputs.** No rule: whatever comes in decides, as without autocast.
#
# FP64 is never cast, whatever the rule, and nothing is cast to it. And operators that write in place or into `out=` have no
# rule, even where their namesake has one.
#
# Below, `a` is FP16 and `b` holds the same numbers in FP32. **Guess first:** which fate has each row, and what does it print,
# for `a` and for `b`?

# %%
half = torch.float16
a = torch.rand(4, 4, device=device, dtype=half)
b = a.float()
with torch.autocast(device, torch.float16):
    for expression, in_fp16, in_fp32 in (
        ("a @ a", a @ a, b @ b),
        ("a.exp()", a.exp(), b.exp()),
        ("a.sum()", a.sum(), b.sum()),
        ("a.sum(dtype=half)", a.sum(dtype=half), b.sum(dtype=half)),
        ("torch.dot(a[0], a[1])", torch.dot(a[0], a[1]), torch.dot(b[0], b[1])),
        ("torch.dot(a[0], b[1])", torch.dot(a[0], b[1]), torch.dot(b[0], a[1])),
        ("a.sigmoid()", a.sigmoid(), b.sigmoid()),
    ):
        print(f"{expression:23}{in_fp16.dtype!s:16}{in_fp32.dtype}")

# %% [markdown]
# In order: lower precision; FP32; FP32 unless a dtype is passed, and the same with one; widest input, twice (outside autocast,
# `dot` of an FP16 and an FP32 vector is an error); follows its inputs.
#
# The surprise for most people is the sixth fate. `mean`, `var`, `sigmoid`, `gelu`: they *sound* like things that ought to be
# done in FP32, and they stay in 16 bits if their input is. Which operators have a rule? There is a list in PyTorch's
# documentation, and copies of it, mostly old ones, in hundreds of tutorials. But PyTorch carries the list with it, and can be
# asked: every operator of the installed PyTorch that has a rule, called with made-up inputs to see what is cast. That works
# without a GPU, too: the casting code for CUDA is in every build.

# Many tutorials give these 19 names as *the* operators that run in FP16. **Guess first:** are all of them still in that list?
# And what do you miss?

# %% tags=["nbval-ignore-output"] reason="the list belongs to the installed PyTorch"
tutorial = """__matmul__ addbmm addmm addmv addr baddbmm bmm chain_matmul conv1d conv2d
conv3d conv_transpose1d conv_transpose2d conv_transpose3d linear matmul mm mv prelu"""
tutorial = tutorial.split()
compared = compare(tutorial)
compared

# %% [markdown]
# All 19 still are. But `einsum` is missing, and attention, and the cells of recurrent networks (what begins with an underscore
# or with `cudnn` is what others are made of). A list that was copied gets old; this one is asked. Here is all of it:

# %% tags=["nbval-ignore-output"] reason="the list belongs to the installed PyTorch"
cuda = policy("cuda")
cuda

# %%
assert cuda.asked > 0.9 * cuda.total
assert len(compared.lower) == len(tutorial) == 19
assert {"einsum", "scaled_dot_product_attention", "lstm_cell"} <= set(compared.missing)

# %% [markdown]
# For a single operator there is `why`:

# %% tags=["nbval-ignore-output"] reason="what was seen belongs to the installed PyTorch"
for name in ("layer_norm", "gelu", "prelu"):
    print(why(name, "cuda"))

# %% [markdown]
# ### Exercise 6.1 · Twelve fates
#
# Some tensors, and a region with CUDA's policy, as this page has it on any machine. All twelve expressions stand inside it,
# each by itself, with the tensors as they were made:
#
# ```python
# h = torch.rand(4, 4).half()    # FP16
# x = torch.rand(4, 4)           # FP32, as parameters and inputs are
# d = torch.rand(4, 4).double()  # FP64
# p, t = torch.rand(4, 4), torch.rand(4, 4)       # FP32: probabilities and targets
# mean, var = torch.zeros(4), torch.ones(4)       # FP32: BatchNorm's statistics
# weight, bias = torch.ones(4), torch.zeros(4)    # FP32: its parameters
#
# with torch.autocast("cpu", torch.float16):  # as on CUDA, since this page has switched that on
#     ...
# ```
#
# | | | | |
# |---|---|---|---|
# | **a** | `x @ x` | **g** | `h.sum(dtype=torch.float16)` |
# | **b** | `d @ d` | **h** | `h.mean()` |
# | **c** | `h + x` | **i** | `F.batch_norm(h, mean, var, weight, bias)` |
# | **d** | `torch.dot(h[0], x[0])` | **j** | `h.add_(x)` |
# | **e** | `torch.softmax(h, dim=-1)` | **k** | `h.addmm_(x, x)` |
# | **f** | `h.sum()` | **l** | `F.binary_cross_entropy(p, t)` |
#
# Return a `dict` from each letter to the dtype of what the expression returns, such as `torch.float16`, or to `"raises"` if it
# ends in an error. Decide first, then run the ones that you doubt. (The dtype of the *result* is asked. The one it is computed
# in can differ: `h.mean()` adds in FP32.)


# %%
def fates():
    """Return what CUDA's autocast makes of the expressions a to l."""
    ### BEGIN SOLUTION
    return {
        "a": torch.float16,
        "b": torch.float64,
        "c": torch.float32,
        "d": torch.float32,
        "e": torch.float32,
        "f": torch.float32,
        "g": torch.float16,
        "h": torch.float16,
        "i": torch.float16,
        "j": torch.float16,
        "k": "raises",
        "l": "raises",
    }
    ### END SOLUTION


# %%
check("6.1", fates)

# %%
# hint("6.1")
# solution("6.1")

# %% [markdown]
# ## An x-ray of a model
#
# A list says what *may* happen. What happens in a model depends on what flows into each operator. Here is a transformer block,
# written out so that nothing hides in it.


# %%
class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x):
        qkv = self.qkv(x).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))


# %%
class TransformerBlock(nn.Module):
    def __init__(self, width=64, heads=4):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        up, down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mlp = nn.Sequential(up, nn.GELU(), down)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


# %% [markdown]
# `x` comes in as FP32. **Guess first**, on paper: go through `forward` line by line. Which operators run in FP16, which in
# FP32? In which dtype is the output? (There are two traps: the division, and the two sums at the end of the lines.)

# %%
block = TransformerBlock().to(device)
tokens = torch.randn(2, 16, 64).to(device)
seen = xray(block, tokens, device_type="cuda", dtype=torch.float16)
seen.plot()
plt.show()

# %% [markdown]
# **What you saw.** Read it from the top.
#
# - `layer_norm` is on the FP32 list, so its output is FP32. The next `linear` wants FP16 and pays for a cast.
# - The product of `q` and `k` is FP16, the division by a Python number keeps it (lesson 01), `softmax` makes it FP32 (no arrow:
#   autocast passes it `dtype=torch.float32`, and the kernel reads FP16 itself), and the product with `v` casts the
#   probabilities down again.
# - The sums `x + …` meet FP32 on the left: the *residual stream*, which runs through all layers, stays FP32 because it came in
#   as FP32. Nobody decided that; it follows its inputs.
#
# The picture has a table behind it, with the source line of every operator, what was cast for it, how many bytes the copies
# took, and the reason. Modules and the backward pass can be folded and unfolded. ("Fake mode" means that nothing was computed:
# dtypes and shapes are enough to tell all this, so that a model too large for your memory can be x-rayed as well.)

# %% tags=["nbval-ignore-output"] reason="names files and cells of this session"
seen

# %% [markdown]
# Each cast reads a tensor and writes another one: that is time and memory. **Guess first:** of the bytes that autocast wrote in
# the forward pass, which share are copies of weights and biases?

# %%
forward = [op for op in seen.ops if op.phase == "forward"]
casts = [cast for op in forward for cast in op.casts]
weights = sum(cast.copied for cast in casts if cast.value.name)
everything = sum(cast.copied for cast in casts)
print(f"{len(casts)} casts, {everything:,} bytes; {weights / everything:.0%} weights")
for op in forward:
    if op.casts:
        names = [cast.value.name or "an activation" for cast in op.casts]
        print(f"{op.module:14}{op.name:8}", *names, sep="  ")

# %% [markdown]
# With so few tokens the weights are most of it; with long inputs the activations are. (The backward pass casts, too: each
# gradient of a 16-bit copy goes back to the dtype of what was copied.) Either way: the FP32 weights stay, and a 16-bit copy
# comes beside them. That AMP halves memory is not that simple; lesson 08 counts it.
#
# ### Why BatchNorm may take FP16
#
# `layer_norm` is on the FP32 list, `batch_norm` has no rule. **Guess first:** its input comes from a convolution. In which
# dtype are its running mean and variance, and what would happen if these were FP16, as after `model.half()`?

# %%
layers = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3)
convolutions = nn.Sequential(*layers).to(device)
pictures = torch.randn(4, 1, 12, 12).to(device)
for op in xray(convolutions, pictures, backward=False).ops:  # CUDA and FP16, by default
    if op.view or op.dtype is None:  # no floating-point work
        continue
    taken = [f"{v.name or 'input'}: {v.dtype}".replace("torch.", "") for v in op.inputs]
    print(f"{op.name} gives {op.outputs[0].dtype}", *taken, sep="\n    ")

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
large = 300 * torch.randn(64, 8, 12, 12).to(device).half()
for norm in (nn.BatchNorm2d(8).to(device), nn.BatchNorm2d(8).to(device).half()):
    variances = []
    for _ in range(20):
        norm(large)
        variances.append(norm.running_var[0].item())
    first, last = variances[0], variances[-1]
    print(f"{norm.weight.dtype}: variance {first:.0f}, after 20 steps {last:.0f}")

# %% [markdown]
# The kernel is written for that mixture: it reads and writes 16 bits, and computes mean and variance in FP32 inside, 90,000
# here, which FP16 cannot hold. So nothing is lost by leaving it alone, and half the memory traffic is saved. But its statistics
# must be FP32. After `model.half()` they are not, and the running variance ends in infinity: in evaluation every output is just
# the bias. Autocast leaves parameters and buffers as they are, and that is one reason not to write `half()`.

# %%
assert norm.running_var.isinf().all()

# %% [markdown]
# ## When the dtypes do not fit
#
# Casting happens inside a region, for operators with a rule, and nowhere else. Most error messages come from the edges of that
# sentence. Below, `features` is the FP16 output of a layer. **Guess first:** which of the four attempts raise an error, and
# does one of them do something worse?

# %%
layer = nn.Linear(16, 16).to(device)
with torch.autocast(device, torch.float16):
    features = layer(x)


def outside():
    return layer(features)


def disabled():
    with torch.autocast(device, enabled=False):
        return layer(features)


def product_in_place():
    with torch.autocast(device, torch.float16):
        return features.clone().addmm_(x, w)


def sum_in_place():
    with torch.autocast(device, torch.float16):
        return features.clone().add_(70_000 * x)


# %%
errors = []
for attempt in (outside, disabled, product_in_place, sum_in_place):
    try:
        result = attempt()
        print(f"{attempt.__name__:18}{result.dtype}, {result.isinf().sum()} infinities")
    except RuntimeError as error:
        errors.append(error)
        print(f"{attempt.__name__:18}RuntimeError: {str(error)[:40]}…")

# %% [markdown]
# The first two are one and the same: outside a region (and `enabled=False` *is* outside) `layer` has FP32 weights and gets FP16
# features, and PyTorch multiplies nothing that does not match. The third has no rule, although `addmm` has one: **operators
# that write in place, or into `out=`, are left alone**, for the tensor that they write into has its dtype already. And the
# fourth is worse than an error: FP32 values over 65,504 went into an FP16 tensor.
#
# The messages differ from operator to operator, from version to version, and between CPU and CUDA, but there are few causes.
# `amp_lab.explain` knows them:

# %% tags=["nbval-ignore-output"] reason="the messages belong to the installed PyTorch, and name cells of this session"
print(errors[0])
explain(errors[0])

# %%
assert len(errors) == 3
assert (70_000 * x).abs().max() > 65504

# %% [markdown]
# ### Exercise 6.2 · Repair a block
#
# This block brings each row to a root mean square of 1, multiplies it with a matrix and cuts off what is negative. In FP32 it
# is right. Under FP16 autocast it raises no error, and two things go wrong: if `x` is FP16, some outputs are just `relu(bias)`,
# as if the input had been zero; and the product, which is nearly all of the work, runs in FP32.

# %%
print(inspect.getsource(BrokenBlock))

# %% [markdown]
# Write its `forward` anew; `__init__` may stay as it is. `x` has any shape `(..., rows, width)`, need not be contiguous, and
# has entries up to ±6,000 or as small as ±0.001. It comes in FP16 or FP32 in a region, and in FP32 outside of any. This must
# hold:
#
# - inside a region the product runs in the region's dtype, FP16 or BF16, whatever dtype `x` has; outside of any it runs in FP32
#   (the check watches the kernels);
# - the output is right, as far as the product's dtype allows; so are the gradients of `x`, `gain`, `weight` and `bias`. The
#   output's dtype is up to you;
# - the three parameters stay FP32, in their place, and are used as they are at each call: no copies are kept, for an optimizer
#   changes them. Autocast, and PyTorch's other settings, are as before.


# %%
class Block(BrokenBlock):
    """`BrokenBlock`, repaired."""

    def forward(self, x):
        """Return relu(rms_norm(x) @ weight + bias), of the shape of `x`."""
        ### BEGIN SOLUTION
        wide = x.float()  # before anything is squared
        mean_square = (wide * wide).mean(dim=-1, keepdim=True)
        normed = wide * torch.rsqrt(mean_square + 1e-6) * self.gain
        return torch.relu(normed @ self.weight + self.bias)
        ### END SOLUTION


# %%
check("6.2", Block)

# %%
# hint("6.2")
# solution("6.2")

# %% [markdown]
# ## An island of FP32
#
# Some code has no rule, or the wrong one, and needs FP32: a physical formula, a distance, a loss of your own. Here is one that
# is found in much code, squared distances between points from their products. It subtracts numbers that are nearly equal, so it
# needs all the digits that it can get.


# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
def squared_distances(a, b):
    squares = (a * a).sum(-1, keepdim=True) + (b * b).sum(-1)
    return squares - 2 * (a @ b.mT)


features = features.detach()
near = features + 0.01 * torch.randn_like(features)
true = torch.cdist(features.double(), near.double()).square()
print(f"the squared distances lie between {true.min():.4f} and {true.max():.1f}")

# %% [markdown]
# `features` are FP16, as they come out of a layer. A *nested region* with `enabled=False` switches autocast off for a few
# lines. **Guess first:** the error of the distances with autocast as it is, and of three attempts to help. Which of them do?

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
with torch.autocast(device, torch.float16):
    found = {"autocast": squared_distances(features, near)}
    found["cast to FP32"] = squared_distances(features.float(), near.float())
    with torch.autocast(device, enabled=False):
        found["disabled"] = squared_distances(features, near)
        found["disabled, cast"] = squared_distances(features.float(), near.float())
for name, result in found.items():
    error = (result.double() - true).abs().max()
    print(f"{name:16}{result.dtype!s:15} largest error {error:.1e}")

# %% [markdown]
# Only both together. Casting alone does not help, for `@` is on the list: autocast takes your FP32 tensors and casts them down
# again. Nor does disabling: the points are FP16, and what has no rule follows its inputs. An FP32 *island* takes **both**,
# `enabled=False` and `.float()`.
#
# (And it takes the right device. `torch.autocast("cuda", enabled=False)` around CPU tensors disables nothing, and does not say
# so. `x.device.type` fits always.)

# %%
errors_of = {name: (result - true).abs().max().item() for name, result in found.items()}
assert errors_of["disabled, cast"] < 0.01 * min(list(errors_of.values())[:3])

# %% [markdown]
# ### Exercise 6.3 · An FP32 island
#
# Some losses need the covariance of the features in a batch: how much each one moves with each other one. Its products are
# squares of features, so they overflow in FP16, and small differences drown. It belongs in FP32, and it is a matrix product,
# which autocast would never leave there:
#
# $$\operatorname{cov}(x) = \frac{c^\top c}{n - 1}, \qquad c = x - \text{mean of the } n \text{ rows of } x$$
#
# `x` has the shape `(..., n, width)`: leading dimensions are batches, each with a covariance of its own, so `c` is `x -
# x.mean(dim=-2, keepdim=True)` and the product `c.mT @ c`. `x` is FP16 or FP32 and on *any* device. Your function is called
# inside autocast regions and outside of any.
#
# - Return an FP32 tensor of shape `(..., width, width)`, computed in FP32 throughout (the check compares with FP64).
# - Gradients must find their way back to `x`.
# - Autocast, and PyTorch's other settings, are as they were when you return; and so is `x`.


# %%
def covariance(x):
    """Return the covariance of the columns of `x`, in FP32, in any region or none."""
    ### BEGIN SOLUTION
    with torch.autocast(x.device.type, enabled=False):
        wide = x.float()
        centred = wide - wide.mean(dim=-2, keepdim=True)
        return centred.mT @ centred / (x.shape[-2] - 1)
    ### END SOLUTION


# %%
check("6.3", covariance)

# %%
# hint("6.3")
# solution("6.3")

# %% [markdown]
# ## `backward()`: inside or outside?
#
# Every example of PyTorch ends the region before `loss.backward()`. Is that superstition? Here both ways are measured, for two
# layers of which the second may be an island. **Guess first:** the forward pass is the same in both ways. Do the gradients
# differ, and which?


# %%
def gradients(inside, scale=1.0, island=True):
    torch.manual_seed(0)
    first, second = nn.Linear(16, 64).to(device), nn.Linear(64, 8).to(device)
    inputs = 0.1 * torch.randn(256, 16).to(device)
    with torch.autocast(device, torch.float16):
        hidden = first(inputs)
        with torch.autocast(device, torch.float16, enabled=not island):
            output = second(hidden.float() if island else hidden)
        loss = output.float().square().sum()
        if inside:
            (scale * loss).backward()
    if not inside:
        (scale * loss).backward()
    return first.weight.grad / scale, second.weight.grad / scale


# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
inside, outside = gradients(True, island=False), gradients(False, island=False)
print("without an island, equal in every bit:", all(map(torch.equal, inside, outside)))
true = gradients(inside=False)
print(f"{'with one:':12}{'scale':15}{'first layer':12}island   (errors)")
for scale in (1, 2**12, 2**16):
    for where in ("outside", "inside"):
        found = gradients(where == "inside", scale)
        pairs = zip(found, true, strict=True)
        first, island = ((grad - best).norm() / best.norm() for grad, best in pairs)
        print(f"{where:12}{scale:<15}{first.item():<12.1e}{island.item():.1e}")

# %% [markdown]
# Without an island the two ways agree, for a backward pass gets its dtypes from the forward pass. That is why the mistake goes
# unnoticed for so long. With one, backward outside gives the same FP32 gradients at every scale. Inside, the island's
# *backward* products are operators in a region, and autocast casts them down: rounded at scale 1, infinite at scales that the
# first layer still bears; and the first layer, which gets its gradient from the island, is off as well. So a scaler would have
# to go down for a layer that was in FP32 to be safe.

# %%
for scale in (1, 2**12, 2**16):
    assert all(map(torch.equal, gradients(False, scale), true))
assert not any(map(torch.equal, gradients(True), true))
assert gradients(True, 2**16)[0].isfinite().all()
assert not gradients(True, 2**16)[1].isfinite().all()

# %% [markdown]
# ## A function with a backward of its own
#
# A `torch.autograd.Function` has two halves, written by hand. `forward` runs in the region. **Guess first:** in which dtypes
# does `backward` below get `weight` and `grad`, and what does its product do?


# %%
class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        (weight,) = ctx.saved_tensors
        dtypes.append((weight.dtype, grad.dtype))
        return grad @ weight.T, None


# %%
leaf, dtypes = x.clone().requires_grad_(), []
with torch.autocast(device, torch.float16):
    sums = Product.apply(leaf, w).float().sum()
try:
    sums.backward()
except RuntimeError as error:
    mismatch = error
    print(*dtypes)
    print("RuntimeError:", error)

# %% [markdown]
# What was saved is the FP32 weight that the function was given; the gradient comes with the dtype of the output, FP16. In
# `forward` autocast had cast both. `backward` runs outside the region, and there nobody does. The cure is a pair of decorators:
# `torch.amp.custom_fwd` notes the state of autocast, and `torch.amp.custom_bwd` brings it back for the backward pass. They
# stand under `@staticmethod`, and must be told the type of the device:
#
# ```python
# @staticmethod
# @torch.amp.custom_fwd(device_type="cuda")
# def forward(ctx, x, weight): ...
# ```
#
# ### Exercise 6.4 · Your own backward
#
# Here is an autograd function with a hand-written backward, as you find it in many libraries. Its forward is fine in a region.
# Its backward runs where `loss.backward()` is called, outside, and dies: the gradient that arrives is FP16, the saved `x` is
# FP32, and no autocast is there to bring them together.
#
# ```python
# class Gram(torch.autograd.Function):
#     @staticmethod
#     def forward(ctx, x):
#         ctx.save_for_backward(x)
#         return x @ x.mT
#
#     @staticmethod
#     def backward(ctx, grad):
#         (x,) = ctx.saved_tensors
#         return (grad + grad.mT) @ x
# ```
#
# Make it safe. `make_gram(device_type)` returns the *class*, for tensors on that type of device; it is used as
# `make_gram("cuda").apply(x)`.
#
# - `x` is FP32, of any shape `(..., n, width)`.
# - Forward computes in the region's dtype, and in FP32 outside of any.
# - Backward computes in the dtype that *its own forward* had, wherever it is called: after the region, inside of it, or in a
#   region although the forward had none.
# - Both are matrix products, and what belongs to one call lives in its `ctx`: forward may be called several times before the
#   first backward. PyTorch's settings are as before.
#
# Use the two decorators. (`custom_fwd` has an option `cast_inputs`, for functions that need one fixed dtype. This one needs
# none.)


# %%
def make_gram(device_type):
    """Return the function x -> x @ x.mT, made safe for autocast on `device_type`."""
    ### BEGIN SOLUTION

    class SafeGram(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device_type)
        def forward(ctx, rows):
            ctx.save_for_backward(rows)
            return rows @ rows.mT

        @staticmethod
        @torch.amp.custom_bwd(device_type=device_type)
        def backward(ctx, gradient):
            (rows,) = ctx.saved_tensors
            return (gradient + gradient.mT) @ rows

    return SafeGram
    ### END SOLUTION


# %%
check("6.4", make_gram)

# %%
# hint("6.4")
# solution("6.4")
# %% [markdown]
# **Guess first:** somebody names the wrong type of device. Do the decorators complain?


# %%
def decorated(kind):
    class Decorated(Product):
        @staticmethod
        @torch.amp.custom_fwd(device_type=kind)
        def forward(ctx, x, weight):
            return Product.forward(ctx, x, weight)

        @staticmethod
        @torch.amp.custom_bwd(device_type=kind)
        def backward(ctx, grad):
            return Product.backward(ctx, grad)

    return Decorated


# %%
for device_type in (device, "xpu"):
    with torch.autocast(device, torch.float16):
        sums = decorated(device_type).apply(leaf, w).float().sum()
    try:
        sums.backward()
        print(f"{device_type:5}the backward pass is fine")
    except RuntimeError:
        print(f"{device_type:5}the product in backward fails, as without decorators")

# %% [markdown]
# They say nothing. Autocast for that other device was off in the forward pass, so it is off in the backward pass, and the
# product fails as before. (`custom_fwd(cast_inputs=torch.float32)` casts the inputs and disables autocast inside, which makes
# an island of a function.)

# %% [markdown]
# ## The cache of weights
#
# One region, and a layer that is called three times in it. **Guess first:** how often is its weight cast? And if the layer is
# frozen, with `requires_grad=False`?


# %%
class Thrice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        return self.layer(self.layer(self.layer(x)))


def copied(model):
    casts = [cast for op in xray(model, x, backward=False).ops for cast in op.casts]
    return [cast.copied for cast in casts if cast.value.name == "layer.weight"]


# %%
thrice = Thrice().to(device)
print("bytes copied, trained:", copied(thrice))
print("bytes copied, frozen: ", copied(thrice.requires_grad_(False)))

# %% [markdown]
# 512 bytes are 16 × 16 numbers of two bytes: one copy. Autocast keeps the 16-bit copy of a weight **until the outermost region
# ends**, but only for FP32 leaves that require a gradient, which is what weights in training are. Activations are never kept,
# and a frozen weight is copied at every use: if you fine-tune a few layers of a large model, the frozen weights of its products
# may as well be stored in 16 bits.
#
# Somebody wants to write the region only once and puts the whole loop into it. **Guess first:** what does the loss do?

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
torch.manual_seed(0)
model = nn.Linear(16, 4).to(device)
optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.1), []
with torch.autocast(device, torch.float16):
    for _ in range(4):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        size = model.weight.abs().sum()
        print(f"loss {losses[-1]:.6f}   sum of |weights| {size:.4f}")

# %%
assert len(set(losses)) == 1
assert model(x).square().mean() < 0.9 * losses[0]

# %% [markdown]
# A cache can be stale. The weights move, the loss does not: every forward pass uses the copies that were made in the first
# step. One region per forward pass is the rule: enter, forward, loss, leave.
#
# ## A loss that is refused
#
# One fate is left. **Guess first:** a network ends in a sigmoid, and its loss is binary cross entropy, in a region. Why might
# PyTorch refuse that on CUDA, and why not just cast the probabilities to FP32?

# %% tags=["nbval-ignore-output"] reason="the message belongs to the installed PyTorch"
logits = torch.tensor([12.0, -3.0, 0.5], device=device).half()
targets = torch.tensor([0.0, 0.0, 1.0], device=device)
with torch.autocast(device, torch.float16):
    try:
        F.binary_cross_entropy(logits.sigmoid(), targets)
    except RuntimeError as error:
        refused = str(error)
print(refused)

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
for name, p in {"FP16": logits.sigmoid(), "FP32": logits.float().sigmoid()}.items():
    loss = F.binary_cross_entropy(p.float(), targets, reduction="none")
    print(f"sigmoid in {name}: p = {p[0].item():.8f}, loss = {loss[0].item():.3f}")
with torch.autocast(device, torch.float16):
    loss = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
print(f"from the logits: loss = {loss[0].item():.3f}, {loss.dtype}")

# %% [markdown]
# A probability near 1 has no digits left in FP16: 0.999994 becomes 1, and `log(1 - p)` is minus infinity, which PyTorch cuts
# off at −100. Casting afterwards keeps the 1. Even a sigmoid in FP32 costs digits. The information is in the *logit*, where 12
# is a number like any other. So the cure is not a cast but another function: `binary_cross_entropy_with_logits`, on the FP32
# list, never makes a probability.

# %%
assert "unsafe to autocast" in refused
assert abs(loss[0].item() - 12) < 1e-4

# %% [markdown]
# ### Exercise 6.5 · A loss that autocast refuses
#
# A detector ends in one number for each box, a *logit*, and its sigmoid is the probability that something is in the box. The
# loss was `F.binary_cross_entropy(torch.sigmoid(logits), targets)`, and autocast refuses it. Write one that holds.
#
# - `logits` are FP16 or FP32, of any shape, between −20 and 20; `targets` are FP32, of the same shape, between 0 and 1.
# - Return the mean of the cross-entropy over all elements, a 0-dim FP32 tensor, right to five digits (a tiny loss to within
#   0.000002); its gradient, which arrives in the dtype of `logits`, as right as that dtype allows. The check compares both with
#   FP64.
# - It is called inside a region with CUDA's policy, with up to 200,000 logits. `loss * scale`, such as `loss * 1024`, is walked
#   back, as a scaler would do, after the region.


# %%
def loss(logits, targets):
    """Return the mean binary cross-entropy of sigmoid(logits) and targets, in FP32."""
    ### BEGIN SOLUTION
    return F.binary_cross_entropy_with_logits(logits.float(), targets)
    ### END SOLUTION


# %%
check("6.5", loss)

# %%
# hint("6.5")
# solution("6.5")

# %% [markdown]
# ### And cross entropy?
#
# Nearly every classifier and language model ends in `F.cross_entropy`. **Guess first:** FP16 logits go in, and the loss is
# FP32. Is it as exact as if the logits had been taken to FP32 before?

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
logits = (10 * torch.randn(256, 16).to(device)).half()
labels = torch.randint(16, (256,)).to(device)
true = F.cross_entropy(logits.double(), labels, reduction="none")
with torch.autocast(device, torch.float16):
    as_it_is = F.cross_entropy(logits, labels, reduction="none")
    taken_up = F.cross_entropy(logits.float(), labels, reduction="none")
for name, losses in {"logits": as_it_is, "logits.float()": taken_up}.items():
    print(f"{name:16}{losses.dtype}, largest error {(losses - true).abs().max():.1e}")


# %%
def criterion(logits):
    return F.cross_entropy(logits, labels)


for op in xray(criterion, logits, backward=False).ops:
    print(f"{op.name:12} ran in {op.dtype}: {op.reason}")

# %% [markdown]
# `cross_entropy` has no rule; it is made of `log_softmax` and `nll_loss`, which have. But it calls `log_softmax` with a dtype,
# that of the logits, and an order is obeyed: FP32 *unless a dtype is passed*. So a loss of 40 is rounded to FP16's spacing
# there, which is 1/32: off by up to 1/64, before `nll_loss` makes it FP32. Write `F.cross_entropy(logits.float(), labels)`, as
# much code does without saying why. It costs little: a copy to FP32 is made anyway, of the log-probabilities, and this one
# takes its place.

# %%
assert as_it_is.dtype == taken_up.dtype == torch.float32
assert (as_it_is - true).abs().max() > 1e-3 > 100 * (taken_up - true).abs().max()

# %% [markdown]
# ## The other 16 bits
#
# BF16 has the range of FP32. **Guess first:** with `torch.bfloat16`, does autocast still take `softmax` and `layer_norm` to
# FP32, and does it refuse anything less?

# %%
in_bf16 = xray(block, tokens, device_type="cuda", dtype=torch.bfloat16)
same = {torch.float16: torch.bfloat16}
for here, there in zip(seen.ops, in_bf16.ops, strict=True):
    assert there.name == here.name
    assert there.dtype == same.get(here.dtype, here.dtype)
    assert there.fate == here.fate
    if there.name in ("softmax", "layer_norm") and there.phase == "forward":
        print(there.name, there.dtype)
print(f"{len(in_bf16.ops)} operators, the same fate for each")
print("binary_cross_entropy:", why("binary_cross_entropy").fate.value)

# %% [markdown]
# The fates belong to operators; the list does not look at the dtype. "Lower precision" just means BF16 now.
#
# What does differ is what 16 bits cannot hold. BF16 has fewer digits than FP16, and code that makes numbers of integers feels
# it: positions, indices, counts. **Guess first:** of the positions 0 to 4,095, how many are still different from each other in
# FP16, and how many in BF16?

# %%
positions = torch.arange(4096)
for dtype in (torch.float16, torch.bfloat16):
    print(dtype, len(positions.to(dtype).unique()))

# %% [markdown]
# In BF16 a model cannot tell token 4,000 from token 4,001. Autocast never casts integers; it is code such as
# `positions.to(x.dtype)` that does. The x-ray warns of it, as of other things that cost digits or time: losses in 16 bits,
# numbers such as 1e-8 that FP16 makes zero, matrix products left in FP32, casts back and forth.


# %%
class Rotated(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x):
        x = self.layer(x)
        positions = torch.arange(x.shape[0], device=x.device).to(x.dtype)
        return x * (0.01 * positions[:, None]).cos()


# %% tags=["nbval-ignore-output"] reason="names files and cells of this session"
many = torch.randn(4096, 16).to(device)
rotated = xray(Rotated().to(device), many, dtype=torch.bfloat16)
rotated.warnings

# %% [markdown]
# ## And on a CPU?
#
# So far `torch.autocast("cpu", ...)` cast as CUDA does, thanks to the line at the top. PyTorch's own policy for CPUs is another
# one. **Guess first:** which operators lose their protection?

# %% tags=["nbval-ignore-output"] reason="the lists belong to the installed PyTorch"
between = differences("cuda", "cpu")
lost = []
for op, (on_cuda, on_cpu) in between.ops.items():
    if on_cuda in (Fate.FP32, Fate.FP32_UNLESS) and on_cpu is Fate.FOLLOWS:
        lost.append(op)
print(f"{len(lost)} of {len(between.ops)} differences:")
print(textwrap.fill(", ".join(lost), 88))

# %%
assert {"softmax.int", "exp", "log", "sum", "layer_norm"} <= set(lost)

# %% [markdown]
# On a CPU these follow their inputs, which are in 16 bits more often than on CUDA. (What follows a dot is the variant for
# certain arguments: `softmax.int` is the everyday `softmax`. `between` alone in a cell shows all differences. Many go the other
# way: factorisations, FFTs and paddings, which CPUs do in FP32 and CUDA leaves alone.) CPUs compute in BF16 as a rule, whose
# range hides it. But if you debug a CUDA model on a laptop, you debug another model. With the emulation stopped:

# %%
small = torch.tensor([12.0], dtype=torch.float16)
emulate.cuda_autocast().stop()
with torch.autocast("cpu", torch.float16):
    own = small.exp()
emulate.cuda_autocast().start()
with torch.autocast("cpu", torch.float16):
    as_cuda = small.exp()
print("PyTorch's own CPU policy:", own)
print("CUDA's policy:           ", as_cuda)

# %% [markdown]
# ## In practice
#
# **1. "Is autocast on?"** **Guess first:** what does each line print, in a region for the CPU?

# %%
with torch.autocast("cpu", torch.float16):
    print("is_autocast_enabled():     ", torch.is_autocast_enabled())
    print('is_autocast_enabled("cpu"):', torch.is_autocast_enabled("cpu"))

# %% [markdown]
# Without an argument it asks about CUDA. Always pass the device's type.
#
# **2. Threads.** A region belongs to the thread that entered it. What another thread computes meanwhile is not in it. Put `with
# torch.autocast(...)` into the function that runs there.

# %%
with torch.autocast(device, torch.float16):
    found = []
    thread = threading.Thread(target=lambda: found.append((x @ w).dtype))
    thread.start()
    thread.join()
print("in the thread:", found[0])

# %% [markdown]
# **3. Activation checkpointing.** It throws activations away and computes them again during the backward pass, when the region
# is long over. **Guess first:** in which dtype?


# %%
class Checkpointed(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=False)


phases = {"forward": [], "recomputed": [], "backward": []}
for op in xray(Checkpointed(block), tokens).ops:
    if not op.view:
        phases[op.phase].append((op.name, op.dtype))
again = phases["recomputed"]
start = phases["forward"].index(again[0])
for (name, dtype), (_, second) in zip(phases["forward"][start:], again, strict=False):
    print(f"{name:12}{dtype!s:16}again: {second}")

# %%
assert len(again) > 10
assert again == phases["forward"][start : start + len(again)]

# %% [markdown]
# In the same ones: checkpointing notes the autocast state of the forward pass and restores it. (It stops as soon as it has what
# the backward pass needs, here before the last sum.)
#
# **4. Evaluation.** Validate in a region as well, with the dtype that you train in, else you measure another model; and with
# `torch.inference_mode()` around it. What comes out is often in 16 bits: take it to FP32 before you add losses or metrics up
# (lesson 02).
#
# **5. FP64.** Autocast leaves it alone, and NumPy makes it without asking. **Guess first:** `layer(x)` is FP16 here. At which
# line does it go wrong, the sum or the product?

# %%
offsets = torch.from_numpy(np.linspace(0, 1, 16)).to(device)
try:
    with torch.autocast(device, torch.float16):
        shifted = layer(x) + offsets
        shifted @ w
except RuntimeError as error:
    fp64 = error
print(shifted.dtype)

# %% tags=["nbval-ignore-output"] reason="the message belongs to the installed PyTorch"
explain(fp64)

# %% [markdown]
# The sum follows its inputs and is FP64, so nothing casts it for the product, which gets FP64 and FP16. `.float()` belongs
# where the tensor is made.
#
# **6. BF16 inside FP16.** Somebody gives one part of a model a region of its own, with the other 16 bits. The layer below is
# used in both. **Guess first:** does the second call run in FP16, in BF16, or in neither?

# %%
with torch.autocast(device, torch.float16):
    print(layer(x).dtype)
    with torch.autocast(device, torch.bfloat16):
        try:
            print(layer(x).dtype)
        except RuntimeError as error:
            mixed = error
            print("RuntimeError:", error)

# %% [markdown]
# In neither. The cache of weights lasts until the *outermost* region ends, and it finds copies by the tensor they were made of,
# not by dtype: an FP16 weight meets a BF16 input. Do not mix the two around shared layers (or give the inner region
# `cache_enabled=False`).

# %%
assert "BFloat16" in str(mixed)
assert "Half" in str(mixed)

# %% [markdown]
# ## Takeaways
#
# - Autocast decides operator by operator; a region has no dtype. Six fates, and most operators have the sixth: they follow
#   their inputs.
# - The list belongs to the installed PyTorch and to the device. Ask it: `policy`, `why`; and look at your own model with
#   `xray`.
# - Operators in place, with `out=`, on FP64, or outside the region are never cast. That is where dtype errors come from.
# - An island takes two things: `enabled=False` for the right device, and `.float()`.
# - Enter, forward, loss, leave. `backward()` outside, or islands lose their protection; one region per forward pass, or weights
#   go stale.
# - A cast cannot bring back what 16 bits have lost: losses take logits, and take them in FP32.
#
# ## Quiz
#
# Pick an answer and read what it says; the wrong ones are worth a click, too.

# %%
quiz("06")

# %% [markdown]
# **Further reading**
#
# - PyTorch: [Automatic Mixed Precision package - torch.amp](https://docs.pytorch.org/docs/stable/amp.html), with its lists of
#   operators
# - PyTorch: [Automatic Mixed Precision examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html), "Autocast and
#   Custom Autograd Functions"
# - PyTorch's source: [autocast_mode.h](https://github.com/pytorch/pytorch/blob/main/aten/src/ATen/autocast_mode.h), where the
#   fates are written down
