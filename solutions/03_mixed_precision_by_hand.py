# %% [markdown]
# # 03 · Mixed precision by hand
#
# | | |
# |---|---|
# | **Time** | 60 minutes |
# | **Difficulty** | medium |
# | **You need** | [lesson 02](02_fp16_failures.ipynb). No GPU. |
#
# **After this page you can**
#
# - name the three techniques that make training in FP16 work, and what each of them cures;
# - multiply matrices as a Tensor Core does, and say where real hardware does a little less;
# - keep FP32 master weights by hand, and say where `torch.amp` keeps them;
# - measure how much of a real gradient FP16 loses.

# %%
import copy
import math

import matplotlib.pyplot as plt
import torch
from torch import nn

from amp_lab import xray
from amp_lab.autocast import emulate
from amp_lab.course import check, hint, quiz, solution
from amp_lab.train.data import digits, noisy_digits
from amp_lab.train.models import denoiser
from amp_lab.view.errors import error_growth
from amp_lab.view.gradients import gradient_histogram
from amp_lab.view.plots import loss_curves
from amp_lab.watching.gradients import gradient_report

# %% [markdown]
# This page multiplies in FP16 a great deal, and most CPUs have no fast way to do that: no *kernel*, as code for a single
# operation is called. The next cell switches on a stand-in that computes such products as a GPU would in its **Tensor Cores**,
# the units that multiply small matrices (part 1 shows how), at the speed of FP32. What it does on your machine it says itself:

# %% tags=["nbval-ignore-output"] reason="describes the machine that runs it"
arithmetic = emulate.tensor_cores().start()
print(arithmetic)
torch.set_num_threads(1)  # so small networks are quickest on one thread
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## Three techniques
#
# In 2018 Paulius Micikevicius and others trained many kinds of networks with weights, activations and gradients in FP16, and
# got what FP32 gets, without touching a hyperparameter ([Mixed Precision Training](https://arxiv.org/abs/1710.03740)). They
# added three things to plain FP16:
#
# | technique | what goes wrong without it | here |
# |---|---|---|
# | **FP32 accumulation**: products of FP16 numbers are added up in FP32 | long sums stand still | part 1 |
# | **FP32 master weights**: the optimizer steps on an FP32 copy | small steps round away | part 2 |
# | **Loss scaling**: gradients are computed of a larger loss | small gradients become zero | part 3, lessons 04 and 05 |
#
# You will build the first two, and measure what the third one is for. `torch.amp` does all three for you; after this page you
# know what it does.

# %% [markdown]
# ## 1. FP32 accumulation
#
# Every number in a matrix product is a long sum of products. Lesson 02 showed that a running sum in FP16 comes to a stop. How
# much does that cost a matrix product? Take products of random numbers from 0 to 1, and add them up in three ways: in FP16
# throughout; in FP32, rounded to FP16 at the end; and in between, with sixteen at a time in FP32, where each such sum is
# rounded to FP16 before it joins the others.

# %%
torch.manual_seed(0)
lengths = [4**n for n in range(1, 8)]
a, b = torch.rand(2, 16, lengths[-1]).half()  # 16 pairs of long vectors
exact = (a.double() * b.double()).cumsum(1)

total, running = torch.zeros(16).half(), []
for x, y in zip(a.t(), b.t()):
    total = total + x * y  # product and sum are FP16
    running.append(total)
in_fp16 = torch.stack(running, dim=1)
in_fp32 = (a.float() * b.float()).cumsum(1).half()  # FP32, rounded at the end

# %%
tiles = (a.float() * b.float()).view(16, -1, 16).sum(dim=2).half()
total, running = torch.zeros(16).half(), []
for tile in tiles.t():
    total = total + tile
    running += 16 * [total]
in_tiles = torch.stack(running, dim=1)

# %% [markdown]
# **Guess first:** when 16,384 products are added up in FP16 throughout, is the sum wrong by 0.05 %, by 1 %, or by half?

# %%
ways = {"FP16 throughout": in_fp16, "FP16 after each 16": in_tiles}
ways["FP32, one rounding"] = in_fp32
at = torch.tensor(lengths) - 1
wrong = {name: ((sums - exact) / exact).abs().mean(0) for name, sums in ways.items()}
errors = {name: each[at].tolist() for name, each in wrong.items()}
errors["FP16 after each 16"][0] = math.nan  # four products make no tile
error_growth(lengths, errors, "Where a sum is rounded matters", one_rounding=2**-11)
plt.show()

# %% [markdown]
# **What you see.** By half. As soon as the sum is so large that its neighbours lie further apart than twice what is added, it
# moves no more, and whatever comes after that is lost. To round less often helps a great deal, but that error grows, too. With
# FP32 sums it does not grow at all: for any length it is that of the single rounding at the end.

# %%
assert 0.4 < errors["FP16 throughout"][-1] < 0.6
assert 1e-3 < errors["FP16 after each 16"][-1] < 5e-3
assert all(error < 2**-11 for error in errors["FP32, one rounding"])
assert errors["FP16 after each 16"][-1] > 3 * errors["FP16 after each 16"][1]

# %% [markdown]
# That is how a Tensor Core works (more in lesson 08): its operands are FP16, its products are exact, it adds them up in FP32,
# and the sum is rounded to FP16 once. FP32 is no waste there. Each operand has 11 binary digits with the leading 1, a product
# has 22, and FP32 has room for 24.
#
# So much for the ideal. Two footnotes belong to it:
#
# - A GPU may cut a long sum into pieces, one for each of its processors, and CUDA may then add up the pieces *in FP16*. A
#   switch allows it.
# - The adders inside a Tensor Core do not round to the nearest FP32 number, as IEEE 754 asks; they cut digits off. That is far
#   below FP16's last digit, but do not expect the bits of one GPU from another one, or from a CPU.
#
# The switch stands here:

# %% tags=["nbval-ignore-output"] reason="a setting of PyTorch, which somebody may have changed"
matmul = torch.backends.cuda.matmul
print("pieces may be added in FP16:", matmul.allow_fp16_reduced_precision_reduction)

# %% [markdown]
# As PyTorch comes, it is on. Mostly it does no harm. **Guess first:** here is a row whose sum is 1,000. Added in two pieces,
# each rounded to FP16, what comes out?

# %%
row = torch.tensor([60000.0, 6000.0, -60000.0, -5000.0]).half()
pieces = row.float().view(2, 2).sum(dim=1).half()
print("one FP32 sum:", row.float().sum().half().item())
print("two pieces:  ", pieces.tolist(), "together", pieces.sum().item())

# %% [markdown]
# The first piece, 66,000, is infinity in FP16, and infinity it stays. If you ever meet an infinity on a GPU that an FP32 sum
# cannot explain, set that switch to `False` and look again.

# %%
assert pieces.tolist() == [math.inf, -64992.0]
assert row.float().sum().half() == 1000
assert torch.finfo(torch.float32).eps == 2.0**-23  # 24 digits with the leading 1

# %% [markdown]
# ### Exercise 3.1 · Multiply like a Tensor Core
#
# Write the ideal. You get two FP16 matrices, `a` of shape (M, K) and `b` of shape (K, N), and return their matrix product, an
# FP16 tensor of shape (M, N):
#
# - products and sums are FP32, or wider, all the way, in whatever order you like;
# - each finished sum is rounded to FP16 once. What is too large becomes infinity, as in any cast.


# %%
def tensor_core_matmul(a, b):
    """Return the product of two FP16 matrices in FP16, added up in FP32."""
    ### BEGIN SOLUTION
    return (a.float() @ b.float()).half()
    ### END SOLUTION


# %%
check("3.1", tensor_core_matmul)

# %%
# hint("3.1")
# solution("3.1")

# %% [markdown]
# ## 2. FP32 master weights
#
# **Guess first:** a weight of 1 takes a thousand steps of −0.0001 and should end at 0.9. Two ways: it is FP16 all the time; or
# its FP32 copy takes the steps, and FP16 gets to see it rounded. Where does each end?

# %%
weight = torch.tensor(1.0, dtype=torch.float16)
copied = weight.float()
for _ in range(1000):
    weight = weight - 1e-4
    copied = copied - 1e-4
print("FP16 all the time:     ", weight.item())
print("FP32, rounded to FP16: ", copied.half().item())

# %% [markdown]
# **What you saw.** No single step can move the FP16 weight, but a thousand of them could. Look at what is FP16 in the second
# line: the weight that the network computes with. Its three digits are enough for that. What needs FP32 is the *memory* of many
# small steps. Hence the second technique:
#
# ```text
#   master (FP32) ── rounded ──> weight (FP16) ──> forward, backward ──> gradient (FP16)
#      ^                                                                      │
#      └───────────── − lr × gradient, in FP32 <────── to FP32 ───────────────┘
# ```
#
# The **master** is the weight that counts. The FP16 **working copy** is made from it after every step, and never the other way
# round.

# %%
assert weight == 1
assert abs(copied.half().item() - 0.9) < 2**-11

# %% [markdown]
# ### Exercise 3.2 · Masters and working copies
#
# Write a class for it, with plain gradient descent as the optimizer.
#
# - `MasterWeights(params)` takes what `model.parameters()` returns, which may be a generator: `Parameter`s of any shape, `()`
#   included, most of them FP16, some perhaps FP32 already. It keeps their masters as a list `self.masters`: one FP32 tensor for
#   each parameter, in the same order, which begins as its parameter.
# - `step(lr)` subtracts lr times the gradient from each master, in FP32 all along, and then writes each master, rounded to the
#   parameter's dtype, into its parameter. Infinity and NaN are numbers like others here: a step is skipped by somebody else
#   (lesson 05).
# - The model goes on with the `Parameter` objects that it has, so those must change; they keep their dtype and stay trainable.
# - Where `.grad` is None, there is no step this time. Gradients are only read.
# - Somebody may write into the *parameters* between two steps, to try something out, even infinity or NaN. The masters must not
#   notice, and the next step puts the parameters right. (One without a gradient may wait for the next step of its own.)


# %%
class MasterWeights:
    """FP32 masters of parameters of any dtype, and gradient descent on them."""

    def __init__(self, params):
        """Keep the parameters, and make the list `masters`."""
        ### BEGIN SOLUTION
        self.params = list(params)
        self.masters = [each.detach().clone().float() for each in self.params]
        ### END SOLUTION

    def step(self, lr):
        """Step on the masters; then write each of them, rounded, into its parameter."""
        ### BEGIN SOLUTION
        with torch.no_grad():
            for param, master in zip(self.params, self.masters):
                if param.grad is not None:
                    master -= lr * param.grad.float()
                    param.copy_(master)
        ### END SOLUTION


# %%
check("3.2", MasterWeights)

# %%
# hint("3.2")
# solution("3.2")

# %% [markdown]
# ### Does it help a real network?
#
# The network of lesson 00 learns to read 128 digits once more, three times from the same start: in FP32; as `model.half()`; and
# as `model.half()` with FP32 masters. This time the masters are in the hands of an ordinary optimizer, as people did it before
# there was `torch.amp`: it is given the masters in place of the model's parameters.

# %%
images, labels = (each.to(device) for each in digits(128))


def set_up(dtype, with_masters, lr=0.05):
    torch.manual_seed(0)  # the same start for all
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
    start = [nn.Parameter(each.detach().clone()) for each in model.parameters()]
    masters = start if with_masters else []
    model = model.to(dtype)
    optimizer = torch.optim.SGD(masters or model.parameters(), lr=lr)
    return model, images.to(dtype), masters, optimizer


# %%
def one_step(model, inputs, masters, optimizer):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    model.zero_grad()
    loss.backward()
    for weight, master in zip(model.parameters(), masters):
        master.grad = weight.grad.float()
    optimizer.step()
    with torch.no_grad():
        for weight, master in zip(model.parameters(), masters):
            weight.copy_(master)
    return loss.item()


# %% [markdown]
# **Guess first:** where does FP16 with masters end: beside FP32, beside naive FP16, or in the middle? Its products and
# gradients are as coarse as those of naive FP16.

# %%
runs = {
    "FP32": set_up(torch.float32, with_masters=False),
    "naive FP16": set_up(torch.float16, with_masters=False),
    "FP16 with FP32 masters": set_up(torch.float16, with_masters=True),
}
losses = {name: [one_step(*run) for _ in range(1500)] for name, run in runs.items()}
loss_curves(losses, "The same network, with and without a memory for small steps")
plt.show()

# %% [markdown]
# **What you see.** Beside FP32: the two curves are one. Coarse products and gradients do little harm, for their errors go to
# both sides and average out. Steps that are lost are always lost, and naive FP16 falls behind.
#
# **Guess first:** in the run with masters, take one more step. Which share of the FP16 *weights* does it change?

# %% tags=["nbval-ignore-output"] reason="a few weights more or fewer move, depending on the processor"
model, _, masters, _ = run = runs["FP16 with FP32 masters"]
before = [each.detach().clone() for each in (*model.parameters(), *masters)]
one_step(*run)
after = [*model.parameters(), *masters]
moved = [(new != old).sum().item() for new, old in zip(after, before)]
moved_weights, moved_masters = sum(moved[:4]), sum(moved[4:])
pushed = sum((each.grad != 0).sum().item() for each in masters)
entries = sum(each.numel() for each in masters)
print(f"{entries:,} weights, {pushed:,} of them with a gradient that is not zero")
print(f"{moved_masters:,} masters moved")
print(f"{moved_weights:,} FP16 weights moved, {moved_weights / entries:.0%} of all")

# %% [markdown]
# About one in six. A quarter has no gradient at all; most of these weights belong to pixels that are blank in every image, as
# in lesson 00. The other masters moved, and their FP16 weights wait until that is far enough to round to another number.
# Without a master the same steps would be lost.

# %%
final = {name: run[-1] for name, run in losses.items()}
assert abs(final["FP16 with FP32 masters"] - final["FP32"]) < 0.05 * final["FP32"]
assert final["naive FP16"] > 1.5 * final["FP32"]
assert moved_masters > 0.95 * pushed
assert 0.1 < moved_weights / moved_masters < 0.35
assert 1 / 8 < moved_weights / entries < 1 / 4.5
assert 0.65 < pushed / entries < 0.8
blank = masters[0].grad[:, (images == 0).all(0)]
assert (blank == 0).all()
assert blank.numel() > 0.5 * (entries - pushed)

# %% [markdown]
# ### Where are the masters of `torch.amp`?
#
# Notes on AMP often say: *it keeps an FP32 copy of the weights beside the FP16 ones.* **Guess first:** what dtype do weight,
# output and gradient have here?

# %%
layer = nn.Linear(64, 10).to(device)
with torch.autocast(device, torch.float16):
    output = layer(images)
output.float().sum().backward()
print("weight:  ", layer.weight.dtype)
print("output:  ", output.dtype)
print("gradient:", layer.weight.grad.dtype)

# %% [markdown]
# There is no second copy: **the FP32 parameters are the masters.** Autocast makes the FP16 working copy inside the region, when
# a layer needs it, and drops it at the end of the region. `amp_lab.xray` shows that (lesson 06 is about it): it lists the
# operators that ran, with what autocast cast for each.

# %%
for op in xray(layer, images).ops:
    for cast in op.casts:
        dtypes = f"{cast.value.dtype} -> {cast.dtype}".replace("torch.", "")
        name = cast.value.name or "input"
        print(f"{op.name}: {name:7}{dtypes}, {cast.copied:,} bytes")

# %% [markdown]
# The optimizer steps on FP32 parameters with FP32 gradients and need not know of anything. What you built above is the older
# style, `model.half()` plus masters.
#
# | bytes for each weight | weight | master | gradient | in all |
# |---|---|---|---|---|
# | FP32 | 4 | | 4 | 8 |
# | `model.half()` plus masters, as in the loop above | 2 | 4 | 2, and 4 for the optimizer | 12 |
# | `model.half()` plus masters, as in your class | 2 | 4 | 2 | 8 |
# | `torch.amp` | 4 | the same | 4 | 8, and 2 more inside the region |
#
# (Your class makes a gradient FP32 only for the moment of its step. What the optimizer remembers comes on top, the same
# everywhere.) So none of them saves memory on *weights*. What mixed precision does save, lesson 08 will measure.

# %%
assert layer.weight.dtype == layer.weight.grad.dtype == torch.float32
assert output.dtype == torch.float16
held = [layer.weight, layer.weight.grad]
assert sum(each.nbytes for each in held) == 8 * layer.weight.numel()
held = [*model.parameters(), *masters]
held += [each.grad for each in held]
assert sum(each.nbytes for each in held) == 12 * entries

# %% [markdown]
# ## 3. Small gradients
#
# The third enemy is underflow. Another network, another task: a small *denoiser* of three convolutions takes the noise out of
# images of digits. It is common that a loss is one term among several, each with a factor in front; here the factor is 0.1.
#
# What goes backward from layer to layer are the gradients of their *outputs*, one for each pixel and channel. We compute them
# in FP32, keep them all, and ask what FP16 would make of them.

# %%
noisy, clean = (each.to(device) for each in noisy_digits())


def output_gradients(model, inputs, factor):
    """Run forward and backward; return the gradient of each layer's output."""
    outputs = {}
    for name, layer in model.named_children():
        inputs = outputs[name] = layer(inputs)
        inputs.retain_grad()
    loss = factor * nn.functional.mse_loss(inputs.float(), clean)
    loss.backward()
    return {name: output.grad for name, output in outputs.items()}


# %% [markdown]
# Some of them are exactly zero in any format: a ReLU that is off passes nothing back. **Guess first:** of all others, which
# share becomes zero in FP16: 1 %, 10 %, 40 %?

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
report = gradient_report(output_gradients(denoiser().to(device), noisy, factor=0.1))
fates = report.at(1.0)  # the gradients times 1: as they are
print(f"{fates.nonzero:,} gradients are not zero")
print(f"{fates.share('zero'):.1%} of them become zero in FP16")
print(f"{fates.share('below_smallest'):.1%} are below the smallest FP16 number, 2^-24")
gradient_histogram(report)
plt.show()

# %% [markdown]
# **What you see.** Some 40 %: everything up to 2^−25, the left part of the picture. And all the rest are subnormals, which keep
# fewer digits the smaller they are, while FP16's normal range, on the right, is empty. (“At scale 1” means: as they are. Other
# scales come at the end of this part.)
#
# Why two shares? The paper says that values below 2^−24, the smallest FP16 number, become zero. That is nearly true: those
# above half of it are rounded *up* to it, as you saw in lesson 01. So some 60 % are below the smallest number, but a third of
# those survive, with an error of up to a factor of two. When you compare numbers with the paper, compare the second; what is
# lost for good is the first.

# %%
assert 0.38 < fates.share("zero") < 0.46
assert 0.58 < fates.share("below_smallest") < 0.66
assert 0.25 < 1 - fates.zero / fates.below_smallest < 0.4
assert fates.overflow == 0
assert fates.normal == 0
half = torch.tensor([2.0**-25, 1.01 * 2.0**-25, 0.99 * 2.0**-24]).half()
assert half.tolist() == [0.0, 2.0**-24, 2.0**-24]

# %% [markdown]
# ### Exercise 3.3 · How much is lost
#
# Write the measure. You get an FP32 tensor of gradients, of any shape; all its numbers are finite. Return, as a `float`, which
# share of its *nonzero* entries FP16 turns into zero. If no entry is nonzero, or there is none at all, nothing is lost: 0.0.


# %%
def lost_fraction(grads):
    """Return the share of the nonzero entries of `grads` that are zero in FP16."""
    ### BEGIN SOLUTION
    nonzero = grads != 0
    lost = nonzero & (grads.half() == 0)
    return lost.sum().item() / max(nonzero.sum().item(), 1)
    ### END SOLUTION


# %%
check("3.3", lost_fraction)

# %%
# hint("3.3")
# solution("3.3")

# %% [markdown]
# ### Does it matter?
#
# The weights' own gradients are sums over all those numbers. So let the network itself run in FP16 and compare the gradients of
# its weights with those of FP32, for smaller and smaller factors in front of the loss. And then do one thing more: multiply the
# loss by 1,024, and divide the finished gradients by 1,024 in FP32.


# %%
def weight_gradient(dtype, factor, scale=1):
    model = denoiser().to(device, dtype)
    output_gradients(model, noisy.to(dtype), factor * scale)
    gradients = [each.grad.float().flatten() for each in model.parameters()]
    return torch.cat(gradients) / scale


def relative_error(got, want):
    return ((got - want).norm() / want.norm()).item()


# %% [markdown]
# **Guess first:** at the factor 0.1, with 40 % of the numbers lost, how wrong are the gradients of the weights? And at 0.001?

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
factors, plain, scaled = (1, 0.1, 0.01, 0.001), {}, {}
print("factor   error in FP16   loss × 1,024")
for factor in factors:
    want = weight_gradient(torch.float32, factor)
    plain[factor] = relative_error(weight_gradient(torch.float16, factor), want)
    rescued = weight_gradient(torch.float16, factor, scale=1024)
    scaled[factor] = relative_error(rescued, want)
    print(f"{factor:6}   {plain[factor]:13.2%}   {scaled[factor]:12.2%}")

# %% [markdown]
# **What you saw.** At 0.1 hardly at all: what is lost are the *smallest* numbers, and a sum is made of its large ones. But that
# does not last. At 0.01 a good part of the gradient is missing, at 0.001 it is zero: the network cannot learn anything, and no
# error, no infinity and no NaN tells you.
#
# The right column is **loss scaling**, the third technique. Multiplying by a power of two changes no digit; it moves the whole
# histogram to the right, away from underflow and into the empty part of the range. Everything comes back, for one
# multiplication. How to choose the number, and what to do when it was too large, is the subject of lessons 04 and 05.
#
# Would FP32 masters have helped? No: a gradient that has become zero is zero in FP32, too. As in lesson 02, these are two ways
# to lose, though many notes mix them up. What *underflows* is lost alone, whatever stands beside it, and a larger number cures
# that. What *rounds away* is lost beside something larger, and a better sum cures that.

# %%
assert plain[1] < 0.01
assert plain[0.1] < 0.02
assert plain[0.01] > 0.05
assert plain[0.001] > 0.99
assert all(error < 0.01 for error in scaled.values())

# %% [markdown]
# ## All three together
#
# | technique | by hand | in `torch.amp` |
# |---|---|---|
# | FP32 accumulation | `tensor_core_matmul` | inside the products; sums, softmax and losses go to FP32 (lesson 06) |
# | FP32 master weights | `MasterWeights` | the parameters themselves, which stay FP32 |
# | loss scaling | × 1,024, ÷ 1,024 | `GradScaler` (lessons 04, 05 and 07) |
#
# ## In practice: five ways to lose it again
#
# **1. `model.half()` with a `GradScaler`.** People who have met the scaler but not the masters try this first. **Guess first:**
# what happens?

# %% tags=["nbval-ignore-output"] reason="the words are PyTorch's, and may change with its version"
half_model = nn.Linear(64, 10).to(device).half()
optimizer = torch.optim.SGD(half_model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(device)
scaler.scale(half_model(images.half()).float().mean()).backward()
try:
    scaler.step(optimizer)
except ValueError as error:
    refused = error
print("ValueError:", refused)

# %% [markdown]
# The scaler divides gradients by the scale, and in FP16 that would bring the underflow back. It wants FP32 gradients, so FP32
# parameters: leave the model as it is and use autocast.
#
# **2. Small batches added up in FP16.** To spare memory, a large batch goes through in pieces, and `.grad` adds up what they
# give. Under `model.half()` it is FP16. **Guess first:** a thousand pieces give a weight these gradients: the first one 1, all
# others 0.0004. What is their sum?

# %%
summed = {}
for dtype in (torch.float32, torch.float16):
    weight = nn.Parameter(torch.ones((), dtype=dtype))
    for piece in range(1000):
        (weight * (1.0 if piece == 0 else 0.0004)).backward()
    summed[dtype] = weight.grad.item()
    print(f"{dtype}: {summed[dtype]:.3f}")

# %% [markdown]
# The 999 are lost beside the one. FP32 masters come too late for that, and a loss scale changes nothing: it makes all of them
# larger. Add up in FP32, piece by piece; with `torch.amp`, `.grad` is FP32 anyway.
#
# **3. BatchNorm in FP16.** `model.half()` takes its running statistics along. **Guess first:** the inputs have a standard
# deviation of 300, which is harmless in FP16, and after training steps the outputs have 1, as they should. What does the layer
# put out after `eval()`?

# %%
torch.manual_seed(0)
x = (300 * torch.randn(256, 4)).to(device).half()
norm = nn.BatchNorm1d(4).to(device).half()
for _ in range(100):
    trained = norm(x)
print(f"standard deviation in training: {trained.float().std().item():.2f}")
print("largest output in evaluation:  ", norm.eval()(x).abs().max().item())
print("running variance:", norm.running_var.tolist())

# %% [markdown]
# Nothing but zeros. The variance is 90,000 and does not fit into the FP16 statistics; one divided by infinity is zero. No NaN
# is in sight, and training, which uses the variance of its own batch, looks fine. Leave normalisation layers FP32.
#
# **4. Weights loaded behind the masters' back.** Somebody has built the FP16 model and its masters, and loads trained weights
# into the model. **Guess first:** what is the loss in the first step, and what in the second?

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
fresh = set_up(torch.float16, with_masters=True)
fresh[0].load_state_dict(runs["FP16 with FP32 masters"][0].state_dict())
behind = [one_step(*fresh) for _ in range(2)]
print("loss:", [round(each, 2) for each in behind])

# %% [markdown]
# The first step ends with a copy of the masters, which know nothing of what was loaded: the model is the untrained one again.
# Whoever loads into the model must make the masters anew, and those from FP32 weights, if there are any.
#
# **5. A checkpoint without the masters.** The model's `state_dict` holds the FP16 weights. **Guess first:** if training goes on
# from there, what has been lost?

# %% tags=["nbval-ignore-output"] reason="how many come back depends on the processor"
model, _, masters, _ = runs["FP16 with FP32 masters"]
saved = copy.deepcopy(model.state_dict())
restored = [each.float() for each in saved.values()]
came_back = sum((old == new).sum().item() for old, new in zip(masters, restored))
print(f"{came_back:,} of {entries:,} masters come back as they were")

# %% [markdown]
# All digits after the third, and with them, in the masters that moved, the steps that had not shown yet. Save the masters. With
# `torch.amp` save the model as it is, for its parameters *are* the masters; never `.half()` it on the way to the disk.

# %%
assert abs(summed[torch.float32] - 1.3996) < 2e-4
assert summed[torch.float16] == 1
assert 0.98 < trained.float().std() < 1.02
assert norm.running_var.isinf().all()
assert norm(x).abs().max() == 0
assert behind[0] < 0.3 * behind[1]
assert abs(behind[1] - losses["FP16 with FP32 masters"][0]) < 0.05
assert came_back < 0.1 * entries

# %% [markdown]
# ## Takeaways
#
# - Three techniques carry FP16: FP32 accumulation, FP32 master weights, a scaled loss. Each cures something that the others do
#   not.
# - A Tensor Core multiplies FP16 exactly, adds up in FP32 and rounds once. Real ones may add pieces in FP16, and their adders
#   cut off digits.
# - A weight may be FP16 while the network computes; the *sum of its steps* must be FP32.
# - `torch.amp` has no second copy: the FP32 parameters are the masters, and the 16-bit copies are temporary.
# - Underflow can take 40 % of a gradient's numbers, and you hardly notice, or all of them, and no error tells you. More digits
#   in the weights do not help; a larger loss does.
#
# ## Quiz
#
# Pick an answer and read what it says; the wrong ones are worth a click, too.

# %%
quiz("03")

# %% [markdown]
# **Further reading**
#
# - Paulius Micikevicius et al.: [Mixed Precision Training](https://arxiv.org/abs/1710.03740), ICLR 2018
# - PyTorch: [Numerical accuracy](https://docs.pytorch.org/docs/stable/notes/numerical_accuracy.html), with reduced-precision
#   reductions
# - Massimiliano Fasi et al.: [Numerical behavior of NVIDIA tensor cores](https://doi.org/10.7717/peerj-cs.330), 2021
# - NVIDIA: [Train With Mixed Precision](https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/index.html)
