# %% [markdown]
# # 00 · Start here
#
# | | |
# |---|---|
# | **Time** | 20 minutes |
# | **Difficulty** | easy |
# | **You need** | plain PyTorch: a model, a loss, an optimizer, a training loop. No GPU. |
#
# **After this page you can**
#
# - say in one sentence what *automatic mixed precision* (AMP) is, and why `model.half()` is no substitute for it;
# - tell what your own machine will show you of it, and what it leaves out;
# - solve an exercise of this course, get a hint, look at a solution, start over.
#
# Run a cell with **Shift + Enter** and go from top to bottom. Where it says **Guess first**, do: you will remember it longer.

# %%
import math
import warnings

import matplotlib.pyplot as plt
import torch
from torch import nn

from amp_lab import describe_device
from amp_lab.course import check, hint, quiz, solution
from amp_lab.train.data import digits
from amp_lab.view.plots import loss_curves

# %% [markdown]
# ## What is AMP?
#
# Floating-point numbers in PyTorch normally take 32 bits: `torch.float32`, *FP32*. There are two kinds with 16 bits: FP16
# (`torch.float16`) and BF16 (`torch.bfloat16`). They need half the space, and hardware made for them computes with them
# several times faster; lesson 08 will measure that. What do they cost?

# %%
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    info = torch.finfo(dtype)
    print(f"{dtype}: largest {info.max:.6g}, next number after 1: 1 + {info.eps:.2g}")

# %% [markdown]
# FP16 does not reach far: anything much larger than 65,504 becomes infinity. BF16 reaches as far as FP32, but is coarser still.
#
# - **Mixed precision** means: 16 bits where they do no harm, 32 bits where they would.
# - **Automatic** means: PyTorch chooses, operation by operation, inside a `torch.autocast` region that you put around the
#   forward pass.
# - FP16 needs one thing more, a `GradScaler`. It multiplies the loss by a large number, so that small gradients survive in
#   FP16, divides the gradients by it again before the optimizer steps, and skips the step if one has become infinite. BF16
#   reaches far enough to do without.
#
# This course takes both apart until nothing about them is magic.

# %% [markdown]
# ## What can this machine do?
#
# **Guess first:** without a GPU, which of these work: FP16 tensors, `autocast`, `GradScaler`?

# %%
a = torch.ones(2, 2)
with torch.autocast("cpu", torch.float16):
    product = a @ a
scaler = torch.amp.GradScaler("cpu")
print("FP16 tensors:", a.half() + a.half())
print("autocast:    ", product.dtype)
print("GradScaler:  ", scaler.scale(torch.tensor(1.0)), "is a loss of 1, scaled")

# %% [markdown]
# All three, on every machine: those lines ran on the CPU. What needs the right hardware is the *speed*. So everything that
# this course teaches about numbers, casts and training loops happens for real where you are. And this is your machine:

# %% tags=["nbval-ignore-output"] reason="describes the machine that runs it"
report = describe_device()
report

# %% [markdown]
# You need not understand every line today; lessons 01 and 08 come back to them. For now look at the rows FP16 and BF16:
#
# | if the column *Support* says | then here this format is |
# |---|---|
# | *tensor cores* or *matrix units* | fast: the hardware has units that multiply whole matrices of it |
# | *vector units* | computed by the ordinary units, about as fast as FP32 |
# | *slow* or *emulated* | right, but slower than FP32 |
# | *none* or *unknown* | not usable, or nobody could be asked |
#
# The course has the same pages for every machine. This much of it yours cannot show:

# %% tags=["nbval-ignore-output"] reason="describes the machine that runs it"
for sentence in report.not_run_here() or ("Nothing: it can show all of it.",):
    print("-", sentence)

# %% [markdown]
# ## The whole story in one picture
#
# One small network learns to read handwritten digits, three times, from the same start:
#
# - **FP32**: everything in 32 bits, as always;
# - **naive FP16**: `model.half()`, so that weights, gradients and updates all have 16 bits;
# - **AMP**: FP32 weights, `autocast` and a `GradScaler`.

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
# **Guess first:** all three take 2,500 steps over the same 128 digits. Two of them end at the same loss. Which two? And does
# the other one blow up to NaN, learn nothing at all, or learn for a while and then get stuck?
#
# (The next cell trains for some ten seconds.)

# %%
runs = {name: set_up(name) for name in ("FP32", "naive FP16", "AMP")}
losses = {name: [one_step(*run) for _ in range(2500)] for name, run in runs.items()}
loss_curves(losses, "One network, three precisions")
plt.show()

# %% [markdown]
# **What you saw.** For a while you cannot tell the runs apart. Then naive FP16 flattens out and all but stops, while FP32 goes
# on falling. AMP, which multiplies in FP16 too, lies on top of FP32. What a page claims, a cell like the next one holds it to:
# if it says nothing, the claim holds.

# %%
assert all(math.isfinite(loss) for run in losses.values() for loss in run)
final = {name: run[-1] for name, run in losses.items()}
assert abs(final["AMP"] - final["FP32"]) < 0.05 * final["FP32"]
assert final["naive FP16"] > 2 * final["FP32"]
assert final["naive FP16"] > 0.9 * losses["naive FP16"][2000]  # all but stopped
assert final["FP32"] < 0.85 * losses["FP32"][2000]

# %% [markdown]
# ### Why did it get stuck?
#
# No loss is infinite or NaN, so nothing overflowed. Are the gradients zero, then? Take one more step in each run, and count:
# how many of the 2,410 parameters have a gradient that is not zero, and how many does the step change?

# %% tags=["nbval-ignore-output"] reason="a few parameters more or fewer move, depending on the processor"
moved = {}
for name, run in runs.items():
    parameters = list(run[0].parameters())
    before = [parameter.detach().clone() for parameter in parameters]
    one_step(*run)
    pushed = sum((new.grad != 0).sum().item() for new in parameters)
    moved[name] = sum((new != old).sum().item() for new, old in zip(parameters, before))
    print(f"{name:>10}: {pushed:,} have a gradient, {moved[name]:,} changed")

# %%
assert sum(parameter.numel() for parameter in parameters) == 2410
assert moved["naive FP16"] < 0.2 * moved["FP32"]
assert moved["AMP"] > 0.95 * moved["FP32"]

# %% [markdown]
# (Without a gradient, in every run, are mostly pixels that are blank in all 128 images, and neurons that never switch on.)
#
# The gradients are there. It is the *step* that gets lost. SGD with momentum subtracts `lr` times a running sum of the
# gradients, which it keeps in `momentum_buffer`. Look at that step for one weight of the stuck network, a typical one:

# %% tags=["nbval-ignore-output"] reason="which weight it is, and its digits, depend on the processor"
model, _, optimizer, _, _ = runs["naive FP16"]
weights = model[0].weight.detach().flatten().float().abs()
running_sum = optimizer.state[model[0].weight]["momentum_buffer"]
steps = 3e-3 * running_sum.flatten().float().abs()
gaps = 2.0 ** (weights.log2().floor() - 10)  # from one FP16 number to the next
typical = (steps / gaps).argsort()[len(steps) // 2]  # the median
weight, step, gap = (each[typical].item() for each in (weights, steps, gaps))
rounded = torch.tensor(weight - step).half().item()
print(f"weight                           {weight:.8f}")
print(f"its neighbours in FP16 are       {gap:.8f} away")
print(f"the step                         {step:.8f}")
print(f"weight - step, rounded to FP16   {rounded:.8f}")

# %%
assert 0 < step < gap / 2
assert rounded == weight

# %% [markdown]
# A format with 16 bits has gaps between its numbers, and the step is smaller than half a gap. So `weight - step` rounds back
# to `weight`: the step is computed, taken, and lost.
#
# AMP keeps the weights in FP32, where the gaps are 8,192 times smaller, so small steps add up. That is one of its three ideas.
# Each gets a lesson of its own:
#
# | idea | what it prevents | lesson |
# |---|---|---|
# | weights stay in FP32 | steps that round away, as here | 03 |
# | the loss is scaled | gradients too small for FP16 that become zero | 04, 05 |
# | risky operations stay in FP32 | sums, exponentials and norms that become infinite | 06 |

# %%
assert torch.finfo(torch.float16).eps / torch.finfo(torch.float32).eps == 8192

# %% [markdown]
# ## How the exercises work
#
# An exercise is a function with a hole: replace `raise NotImplementedError`, run the cell, then run the check below it.
# A check looks at what your function *does* with many inputs, so every right way to write it passes.
#
# - **Run → Run All Cells** stops at the first exercise that is still open, on purpose. JupyterLab scrolls to the end of the page
#   all the same; scroll up to the coloured box. The cells below it have not run.
# - A check stops your code after 20 seconds. An endless loop, `sys.exit()` or a million lines of output do not cost you the kernel.
# - Changed your function? Run its cell again before the check: a check can only see what has been run.
#
# ### Exercise 0.1 · The bytes of a tensor
#
# How many bytes do the *values* of a tensor take? (The Python object around them takes a few more; leave those out.) You get its
# `shape`, a tuple such as `(2, 3)`, or `()` for a single number, and its `dtype`. Return an `int`; it must be right for every dtype.


# %%
def tensor_bytes(shape, dtype):
    """Return how many bytes the values of a tensor of this shape and dtype take."""
    ### BEGIN SOLUTION
    return math.prod(shape) * dtype.itemsize
    ### END SOLUTION


# %%
check("0.1", tensor_bytes)

# %% [markdown]
# **Stuck?** Delete the `# ` in front of one of these lines and run the cell. Every call of `hint` tells a little more, three hints
# in all; `hint("0.1", 2)` goes straight to the second. `solution` shows one way to write it, and why it is right.

# %%
# hint("0.1")
# solution("0.1")

# %% [markdown]
# **Starting over.** You work on your own copy in the folder `work/`; no update of the course ever writes over it. To empty this
# exercise, save the page (**Ctrl + S**), open a terminal (*File → New → Terminal*) and type `amp-lab reset 0.1`; for the whole page,
# `amp-lab reset 00`. It asks first and keeps a dated backup of what was saved. Then choose *File → Reload Notebook from Disk*; should
# JupyterLab speak of a changed file, *Revert* shows you the fresh page.
#
# **What is done?** In the same terminal `amp-lab progress` shows which exercises are done and what comes next, and
# `amp-lab check 00` runs your saved page from the top and judges it once more.
#
# **What a check cannot stop:** one long call inside compiled code, a function that calls itself for ever and catches the error that
# Python raises then, memory that runs out, a crash of Python itself. If a cell shows `[*]` for more than half a minute, choose **Kernel → Restart Kernel…** and run the page again from the top. Your text stays.

# %% [markdown]
# ## In practice: three first-day surprises
#
# **1. Most examples on the web use old names.** `torch.cuda.amp` still works, but not without a word:

# %% tags=["nbval-ignore-output"] reason="the words are PyTorch's, and may change with its version"
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.cuda.amp.GradScaler()
deprecated = [each for each in caught if each.category is FutureWarning]
print(deprecated[0].message)

# %% [markdown]
# **2. `autocast` must be told the device.** The tensor below is on the CPU. **Guess first:** which dtype does each line print?

# %%
x = torch.rand(8, 8)
for device_type in ("cpu", "cuda"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autocast(device_type, torch.float16):
            print(device_type, (x @ x).dtype)

# %% [markdown]
# The region for `"cuda"` leaves CPU tensors alone: no error, no mixed precision. (Where there is no CUDA, PyTorch warns; the cell
# hides that. Where there is, it says nothing.) `torch.autocast(x.device.type, ...)` always names the right device.
#
# **3. `GradScaler` takes more than a scale.** **Guess first:** which scale does each line print?

# %%
print(torch.amp.GradScaler(1024.0).get_scale())
print(torch.amp.GradScaler("cpu", init_scale=1024.0).get_scale())

# %% [markdown]
# The first argument is the device. So the 1,024 stands where the device belongs, PyTorch does not object, and the scale is the
# default, 65,536. Pass it by name.
#
# ## Takeaways
#
# - AMP is FP32 weights, 16-bit arithmetic where it does no harm, and, for FP16, a scaled loss. It is not `model.half()`.
# - Naive FP16 fails *quietly*: no error, no NaN, just a loss that gets stuck.
# - `autocast` and `GradScaler` work on every machine; only the speed needs hardware.
# - `check` says what it saw, `hint` helps, `amp-lab reset` starts over, and what you saved is never lost.
#
# ## Quiz
#
# Five questions, not on what you remember but on what follows from it. Pick an option, and read why it is right or not; the wrong
# ones are worth a click, too. Nothing of it is kept.

# %%
quiz("00")

# %% [markdown]
# **Further reading**
#
# - PyTorch: [Automatic Mixed Precision package - torch.amp](https://docs.pytorch.org/docs/stable/amp.html)
# - PyTorch: [Automatic Mixed Precision examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html)
# - Paulius Micikevicius et al.: [Mixed Precision Training](https://arxiv.org/abs/1710.03740), ICLR 2018
