# %% [markdown]
# # 00 · Start here
#
# | | |
# |---|---|
# | **Time** | 15 minutes |
# | **Difficulty** | easy |
# | **You need** | plain PyTorch: a model, a loss, an optimizer, a training loop. No GPU. |
#
# **After this page you can**
#
# - say in one sentence what *automatic mixed precision* (AMP) is, and what goes wrong without it;
# - read what your own machine can and cannot do with 16-bit numbers;
# - solve an exercise of this course, get a hint, look at a solution, start over.
#
# Run a cell with **Shift + Enter** and go from top to bottom.

# %%
import math

import matplotlib.pyplot as plt
import torch
from torch import nn

from amp_lab import describe_device
from amp_lab.course import check, hint, solution
from amp_lab.train.data import digits
from amp_lab.view.plots import loss_curves

# %% [markdown]
# ## What is AMP?
#
# A number in PyTorch normally takes 32 bits (`torch.float32`, *FP32*). Modern hardware computes several times faster with
# 16 bits (`torch.float16`, *FP16*, or `torch.bfloat16`, *BF16*), and 16 bits need half the space.
# But a 16-bit number is coarse, and FP16 does not reach far.
#
# - **Mixed precision** means: 16 bits where they do no harm, 32 bits where they would.
# - **Automatic** means: PyTorch chooses, operation by operation. You write two things: `torch.autocast` around the forward
#   pass, and a `GradScaler` around the backward pass.
#
# This course takes both apart until nothing about them is magic.

# %% [markdown]
# ## What can this machine do?
#
# **Guess first:** on a laptop with no GPU, which of these works: FP16 tensors, `torch.autocast`, `GradScaler`?

# %% tags=["nbval-ignore-output"] reason="describes the machine that runs it"
report = describe_device()
report

# %% [markdown]
# All three work, on every machine. What needs the right hardware is the *speed*. So everything this course teaches about
# numbers, casts, overflow and training loops happens for real on your machine. This is what it leaves out here:

# %% tags=["nbval-ignore-output"] reason="describes the machine that runs it"
for sentence in report.not_run_here() or ("Nothing: this machine can run all of it.",):
    print("-", sentence)

# %% [markdown]
# ## The whole story in one picture
#
# One small network learns to read handwritten digits, three times, from the same start:
#
# 1. **FP32**: everything in 32 bits, as always;
# 2. **naive FP16**: `model.half()`: weights, gradients, updates, everything in 16 bits;
# 3. **AMP**: FP32 weights, `torch.autocast` and a `GradScaler`.

# %%
torch.set_num_threads(1)  # so small a network is quickest on one thread
device = "cuda" if torch.cuda.is_available() else "cpu"
images, labels = (tensor.to(device) for tensor in digits(128))
print(images.shape, images.dtype, labels.dtype)


# %%
def set_up(precision):
    torch.manual_seed(0)  # the same start for all three
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(device)
    inputs = images
    if precision == "naive FP16":
        model, inputs = model.half(), images.half()
    optimizer = torch.optim.SGD(model.parameters(), lr=3e-3, momentum=0.9)
    scaler = torch.amp.GradScaler(device, enabled=precision == "AMP")
    return model, inputs, optimizer, scaler, precision


# %% [markdown]
# And one training step. With `enabled=False`, `autocast` and the scaler do nothing, so the same lines serve all three runs.


# %%
def one_step(model, inputs, optimizer, scaler, precision):
    with torch.autocast(device, torch.float16, enabled=precision == "AMP"):
        loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


# %% [markdown]
# **Guess first:** all three take 2,500 steps over the same 128 digits. Which runs end up at the same loss, and what does the
# third do: fall behind, blow up to NaN, or stop learning?

# %%
runs = {precision: set_up(precision) for precision in ("FP32", "naive FP16", "AMP")}
losses = {precision: [one_step(*run) for _ in range(2500)] for precision, run in runs.items()}
loss_curves(losses, "Naive FP16 stops learning; AMP does not")
plt.show()

# %% [markdown]
# **What you saw.** For a while you cannot tell the runs apart. Then naive FP16 flattens out and FP32 goes on falling. AMP, which
# multiplies in FP16 too, lies on top of FP32. The next cell holds this course to its word:

# %%
final = {precision: loss[-1] for precision, loss in losses.items()}
assert abs(final["AMP"] - final["FP32"]) < 0.05 * final["FP32"]
assert final["naive FP16"] > 2 * final["FP32"]

# %% [markdown]
# ### Why did it stop?
#
# Nothing overflowed and there is no NaN. Are the gradients zero, then? Take one more step in each run, and count: how many of
# the 2,410 parameters have a gradient that is not zero, and how many does the step change?

# %% tags=["nbval-ignore-output"] reason="a few parameters more or fewer move, depending on the processor"
moved = {}
for precision, run in runs.items():
    parameters = list(run[0].parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    one_step(*run)
    pushed = sum((parameter.grad != 0).sum().item() for parameter in parameters)
    moved[precision] = sum((new != old).sum().item() for new, old in zip(parameters, before, strict=True))
    print(f"{precision:>10}: gradient not zero {pushed:,}, changed {moved[precision]:,}")

# %%
assert sum(parameter.numel() for parameter in parameters) == 2410
assert moved["naive FP16"] < 0.2 * moved["FP32"]
assert moved["AMP"] > 0.95 * moved["FP32"]

# %% [markdown]
# The gradients are there. It is the *step* that gets lost. Look at one weight of the stuck network, the one whose step is
# the median:

# %% tags=["nbval-ignore-output"] reason="which weight it is, and its digits, depend on the processor"
model, _, optimizer, *_ = runs["naive FP16"]
steps = 3e-3 * optimizer.state[model[0].weight]["momentum_buffer"]
step, index = steps.abs().flatten().float().median(dim=0)
weight = model[0].weight.detach().flatten()[index].abs()
print(f"weight {weight.item():.8f}, step {step.item():.8f}")
print(f"FP16: weight - step = {(weight - step.half()).item():.8f}")
print(f"FP32: weight - step = {(weight.float() - step).item():.8f}")

# %% [markdown]
# The step is smaller than half the distance from the weight to its neighbour in FP16. So `weight - step` rounds back to
# `weight`: the step is computed, taken, and lost.

# %%
assert step > 0
assert weight - step.half() == weight
assert weight.float() - step != weight.float()

# %% [markdown]
# AMP keeps the weights in FP32, so small updates add up. That is one of its three ideas; each has a lesson of its own:
#
# | idea | what it prevents | lesson |
# |---|---|---|
# | weights stay in FP32 | updates that round away, as here | 03 |
# | the loss is scaled | gradients too small for FP16 that become zero | 04, 05 |
# | risky operations stay in FP32 | sums, exponentials and norms that overflow | 06 |

# %% [markdown]
# ## How the exercises work
#
# An exercise is a function with a hole: replace `raise NotImplementedError`, run the cell, then run the check below it.
# A check looks at what your function *does* with many inputs, so every right way to write it passes.
#
# - **Run → Run All Cells** stops at the first exercise that is still open. That is meant so: it shows you where you are.
# - Your code runs under guard: an endless loop, `sys.exit()` or a million lines of output do not cost you the kernel.
#
# ### Exercise 0.1 · The bytes of a tensor
#
# Half the bits, half the bytes. How many bytes do the *values* of a tensor take? You get its `shape` (a tuple, such as
# `(2, 3)`, or `()` for a single number) and its `dtype`, and return an `int`. It must be right for every dtype.


# %%
def tensor_bytes(shape, dtype):
    """Return how many bytes the values of a tensor of this shape and dtype take."""
    ### BEGIN SOLUTION
    return math.prod(shape) * dtype.itemsize
    ### END SOLUTION


# %%
check("0.1", tensor_bytes)

# %% [markdown]
# **Stuck?** Delete the `# ` in front of one of these lines and run the cell. Every `hint` tells a little more, three in all;
# `solution` shows one way to write it, and why it is right.

# %%
# hint("0.1")
# solution("0.1")

# %% [markdown]
# **Starting over.** You work on your own copy in the folder `work/`; no update of the course ever writes over it. In a
# terminal (*File → New → Terminal*), `amp-lab reset 0.1` empties this exercise again and `amp-lab reset 00` the whole page;
# both keep a dated backup of what you had. Then choose *File → Reload Notebook from Disk*.

# %% [markdown]
# ### What the guard cannot stop
#
# A loop inside compiled code, memory that runs out, a crash of Python itself. If a cell shows `[*]` and nothing stops it:
# **Kernel → Restart Kernel…**, then run the page again from the top. Your text is not lost.

# %% [markdown]
# ## In practice: three first-day surprises
#
# **1. Most examples on the web use old names.** `torch.cuda.amp` still works, but PyTorch asks you to leave it:

# %%
import warnings

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.cuda.amp.GradScaler()
print(any(warning.category is FutureWarning for warning in caught))

# %% [markdown]
# Write `torch.autocast("cuda")` and `torch.amp.GradScaler("cuda")`, and put the device there that your tensors are on.
#
# **2. The wrong device type is silent.** Below, the tensors are on the CPU. **Guess first:** which dtype does each line print?

# %%
a = torch.rand(8, 8)
for device_type in ("cpu", "cuda"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # without CUDA PyTorch warns; with it, it says nothing
        with torch.autocast(device_type, torch.float16):
            print(device_type, (a @ a).dtype)

# %% [markdown]
# A region for `"cuda"` leaves CPU tensors alone: no error, no mixed precision. `autocast(x.device.type)` is always right.
#
# **3. The first argument of `GradScaler` is the device, not the scale.** `GradScaler(1024.0)` looks like a scale of 1,024:

# %%
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    print("positional:", torch.amp.GradScaler(1024.0).get_scale())
print("by name:   ", torch.amp.GradScaler(device, init_scale=1024.0).get_scale())

# %% [markdown]
# ## Takeaways
#
# - AMP is FP32 weights, 16-bit arithmetic where it does no harm, and a scaled loss. It is not `model.half()`.
# - Naive FP16 fails *quietly*: no error, no NaN, just a loss that stops falling.
# - `autocast` and `GradScaler` work on every machine; only the speed needs hardware.
# - `check` says what it saw, `hint` helps, `reset` starts over; nothing you wrote is lost.
#
# **Further reading**
#
# - PyTorch documentation: *Automatic Mixed Precision package - torch.amp*; *Automatic Mixed Precision examples*
# - Paulius Micikevicius et al., *Mixed Precision Training*, ICLR 2018
