# %% [markdown]
# # 08 · What AMP buys
#
# | | |
# |---|---|
# | **Time** | 60 minutes |
# | **Difficulty** | medium |
# | **You need** | lessons [03](03_mixed_precision_by_hand.ipynb) and [06](06_autocast.ipynb). No GPU: memory and arithmetic are counted. Time is measured on what you have. |
#
# **After this page you can**
#
# - say which parts of a training run's memory AMP halves, which it leaves alone, and what it adds;
# - count what any model keeps for its backward pass;
# - tell from a shape and a data sheet how much faster 16 bits can make an operator, and what they never can;
# - ask of every "three times faster" what the *before* was;
# - time two ways of doing a thing so that you can trust the result.

# %%
import os
import time

import matplotlib.pyplot as plt
import torch
from torch import nn

from amp_lab.course import check, hint, quiz, solution
from amp_lab.course.lessons.l08.stored import stored_ladder
from amp_lab.train import measure
from amp_lab.train.data import characters
from amp_lab.train.models import character_model

torch.set_num_threads(1)  # small networks; and other programs disturb less
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# What does AMP buy? Study notes give a short answer: FP16 takes *half the memory* of FP32, *computing performance doubles*, and
# a Tensor Core computes *64 FP16 matrix products per clock*. None of the three is true as it stands. On this page you count and
# measure.
#
# ## Where memory goes
#
# Two networks. One is a small transformer that guesses the next character of a text, given 32 pieces of 64 characters at once.
# The other is three wide linear layers, given 8 samples at once. Each makes a training step with Adam, once in FP32 and once
# under FP16 autocast.
#
# **Guess first:** what share of its memory does each of them need under autocast? One half, as the notes say?

# %%
torch.manual_seed(0)
cross_entropy = nn.functional.cross_entropy
transformer = character_model(width=128).to(device)
texts = tuple(part.to(device) for part in characters(64, 32))
wide = [nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU()]
wide = nn.Sequential(*wide, nn.Linear(1024, 10)).to(device)
samples = torch.randn(8, 1024, device=device), torch.randint(10, (8,), device=device)


def account(model, batch, dtype):
    adam = torch.optim.Adam(model.parameters())
    kind = {"optimizer": adam, "dtype": dtype, "device_type": "cuda"}
    return measure.memory_account(model, cross_entropy, batch, **kind)


# %% [markdown]
# `memory_account` makes one forward and one backward pass, and enters each piece of memory once, under what it is there for.
# `device_type="cuda"` asks for what CUDA's autocast casts, on a CPU, too: bytes are the same on both.

# %% tags=["nbval-ignore-output"] reason="a little depends on the attention kernel"
fp32 = account(transformer, texts, None), account(wide, samples, None)
fp16 = account(transformer, texts, torch.float16), account(wide, samples, torch.float16)
names = ["transformer, FP32", "transformer, FP16", "wide, FP32", "wide, FP16"]
books = dict(zip(names, (fp32[0], fp16[0], fp32[1], fp16[1])))
figure = measure.plot_accounts(books)
figure.axes[0].set_title("What one training step keeps in memory")
plt.show()

# %% tags=["nbval-ignore-output"] reason="a little depends on the attention kernel"
parts = ["weights", "gradients", "optimizer_state", "activations", "cached_casts"]
print(f"{'MiB':16}{'transformer':>20}{'wide layers':>20}")
for part in [*parts, "inputs", "outputs", "total"]:
    row = [getattr(each, part) / 2**20 for each in books.values()]
    print(f"{part:16}{row[0]:10.2f} → {row[1]:6.2f}{row[2]:11.2f} → {row[3]:6.2f}")
for name, before, after in zip(("transformer", "wide layers"), fp32, fp16):
    print(f"{name}: {after.total / before.total:.2f} of the memory")

# %%
for before, after in zip(fp32, fp16):
    for part in ("weights", "gradients", "optimizer_state"):
        assert getattr(after, part) == getattr(before, part)
    assert after.cached_casts > 0 == before.cached_casts
assert 0.5 < fp16[0].activations / fp32[0].activations < 0.8
assert fp16[0].total < fp32[0].total
assert fp16[1].total > fp32[1].total

# %% [markdown]
# **What you saw.** Neither halves.
#
# - **Weights, gradients and Adam's state do not change by a byte.** Autocast converts what goes into an operator. The
#   parameters stay FP32, a gradient has the dtype of its parameter, and Adam's two moments have it, too.
# - **Activations** shrink: what operators of the FP16 list keep for the backward pass is half as large.
# - **Cached casts** are new: the FP16 copies of weights that the backward pass asks for again. Each costs half of its weight.
#   (The first layer's copy goes with the region: nothing before that layer wants a gradient, so nobody asks for its weight.)
# - The rest is small: the batch, and what the model returned.
#
# So AMP gives back half of the activations and takes half of the weights. With much data per weight that is a gain. With 8
# samples for two million weights it is a loss: the wide layers need *more* than in FP32. And the activations of the transformer
# do not even halve. **Guess first:** which of them stay in FP32?

# %% tags=["nbval-ignore-output"] reason="names of operators depend on PyTorch"
for dtype, size in fp16[0].activations_by_dtype.items():
    print(f"{dtype!s:15} {size / 2**20:6.2f} MiB")
full = [row for row in fp16[0].activation_rows if row.dtype == torch.float32]
for row in full[:6]:
    where = row.module or "the model"
    print(f"{row.bytes / 2**20:6.2f} MiB  {row.operator:10} {where}")

# %%
by_dtype = fp16[0].activations_by_dtype
assert 0.2 < by_dtype[torch.float32] / fp16[0].activations < 0.4
assert sum(row.operator == "add" for row in full[:6]) == 5

# %% [markdown]
# The sums between the blocks (`x + attention(x)`), and the FP32 copy of the last layer's output that the loss works on: CUDA's
# autocast runs `layer_norm` and the loss in FP32 (lesson 06), and FP32 plus FP16 is FP32. The more of a network is products,
# the nearer its activations come to one half.
#
# (This is what PyTorch asks for. `nvidia-smi` shows more: the allocator of PyTorch keeps freed memory for later, and CUDA
# itself takes some. Ask `torch.cuda.max_memory_allocated()`, after `torch.cuda.reset_peak_memory_stats()`.)
#
# ### Who keeps what
#
# How does one count activations? Autograd calls a pair of *hooks* for each tensor that it keeps: the first when it is kept, and
# what that returns is kept in the tensor's place; the second when the backward pass wants it back.


# %%
def note(kept):
    place = "the weight" if kept.untyped_storage().data_ptr() == address else ""
    print(f"{kept.dtype!s:14} {tuple(kept.shape)!s:12} {place}")
    return kept


layer = nn.Linear(1024, 512, device=device)
address = layer.weight.untyped_storage().data_ptr()
x = torch.randn(8, 1024, device=device, requires_grad=True)
for amp in (False, True):
    print("under autocast:" if amp else "in FP32:")
    region = torch.autocast(device, torch.float16, enabled=amp)
    with region, torch.autograd.graph.saved_tensors_hooks(note, lambda kept: kept):
        layer(x).relu()

# %% [markdown]
# In FP32 the layer keeps its input and its weight. Neither is new: both were there before, so they cost nothing. (The weight
# comes turned, as a *view*: another shape, the same storage. `untyped_storage()` is the memory below a tensor, with its
# address, `data_ptr()`, and its size, `nbytes()`.) The result of `relu` is new. Under autocast the copies of input and weight
# are new as well.
#
# ### Exercise 8.1 · What forward keeps
#
# How many bytes does `model(batch)`, run once under autocast of `dtype`, *add* and keep for the backward pass? Count storages:
#
# - each storage in which a kept tensor lives counts once, with its whole size, because a view keeps all of it alive;
# - what was there before the call does not count: the storages of the model's parameters and buffers, and that of `batch`;
# - the 16-bit copies that autocast makes of weights or of the batch are new. If they are kept, they count.
#
# `dtype` is `torch.float16` or `torch.bfloat16`, or `torch.float32`, which means no autocast. `batch` is one tensor; autocast
# is for the kind of device that it is on. Take the model as it is, and leave it so: train or eval mode, dtypes. Call it once;
# there is no loss and no backward pass.
#
# A trap: when a tensor dies, its address is given to the next one. So let your hook return the tensor itself, and keep what the
# model returned until you have counted.


# %%
def activation_bytes(model, batch, dtype):
    """Return the bytes that `model(batch)` adds and keeps for backward."""
    ### BEGIN SOLUTION
    before = (*model.parameters(), *model.buffers(), batch)
    there = {each.untyped_storage().data_ptr() for each in before}
    sizes = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in there:
            sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    on = dtype != torch.float32
    with torch.autocast(batch.device.type, dtype, enabled=on), hooks:
        _result = model(batch)  # as long as this lives, so does what was kept
    return sum(sizes.values())
    ### END SOLUTION


# %%
check("8.1", activation_bytes)

# %%
# hint("8.1")
# solution("8.1")

# %% [markdown]
# ## Before the first activation
#
# A model with 7 billion parameters is to be trained with Adam under `torch.amp`. **Guess first:** how much memory is needed
# before the first activation is made? And what if the notes are right, with *FP16 weights and an FP32 master copy*?
#
# Count it on a small one, and scale up. Nothing here depends on the size.


# %%
def held(model, optimizer):
    """Return the bytes that live between two steps, per parameter."""
    mine = list(model.parameters())
    mine += [each.grad for each in mine]
    for state in optimizer.state.values():
        mine += [each for each in state.values() if each.ndim]  # no step counters
    count = sum(each.numel() for each in model.parameters())
    return sum(each.nbytes for each in mine) / count


# %%
for amp in (False, True):
    optimizer = torch.optim.Adam(wide.parameters())
    scaler = torch.amp.GradScaler(device, enabled=amp)
    for _ in range(2):
        with torch.autocast(device, torch.float16, enabled=amp):
            loss = cross_entropy(wide(samples[0]), samples[1])
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    print(f"AMP {amp}: {held(wide, optimizer):g} bytes per parameter")
    assert held(wide, optimizer) == 16

# %%
print(f"7 billion parameters: {7e9 * held(wide, optimizer) / 2**30:.0f} GiB")
wide.zero_grad()

# %% [markdown]
# **What you saw.** 16 bytes per parameter, with AMP and without. Under `torch.amp` there is no second copy of the weights: the
# FP32 parameters *are* the master weights. A separate copy belongs to the older style, `model.half()` with FP32 masters, which
# you built in lesson 03. What does each style hold?
#
# ### Exercise 8.2 · Bytes per parameter
#
# Return the bytes per parameter as a dict: `{"weights": ..., "masters": ..., "gradients": ..., "state": ...}`, each an `int`,
# and 0 for what there is not. The moment is after the backward pass and just before the optimizer's step, in a run that has
# made steps before: gradients are there, and so is the optimizer's state. The graph and autocast's copies are gone.
#
# | `regime` | |
# |---|---|
# | `"fp32"` | nothing is done |
# | `"autocast"` | the model as always, forward under FP16 autocast, with a `GradScaler` |
# | `"masters"` | `model.half()`; the optimizer steps FP32 masters. A master's gradient lives only inside of the step: leave it out. |
# | `"bf16"` | `model.bfloat16()`; the optimizer steps its parameters. No masters |
#
# | `optimizer` | what it keeps per parameter |
# |---|---|
# | `"sgd"` | nothing |
# | `"momentum"` | one number |
# | `"adam"` | two numbers (its counters of steps are one per tensor: leave them out) |
#
# A gradient has the dtype of its weight. The optimizer's state has the dtype of what it steps: of the masters, where there are
# any.


# %%
def training_bytes_per_parameter(regime, optimizer):
    """Return bytes per parameter, by category."""
    ### BEGIN SOLUTION
    weights = 4 if regime in ("fp32", "autocast") else 2
    masters = 4 if regime == "masters" else 0
    numbers = {"sgd": 0, "momentum": 1, "adam": 2}[optimizer]
    state = numbers * (masters or weights)
    return {
        "weights": weights,
        "masters": masters,
        "gradients": weights,
        "state": state,
    }
    ### END SOLUTION


# %%
check("8.2", training_bytes_per_parameter)

# %%
# hint("8.2")
# solution("8.2")

# %% [markdown]
# With Adam three of the four regimes come to the same sum. Only pure BF16 holds half as much; it pays in the weights'
# precision: a step that is less than about 2^-9 of its weight moves nothing (lesson 02).
#
# ## What a Tensor Core does
#
# Now to time. The notes say that a Tensor Core computes "64 FP16 matrix products per clock". **Guess first:** is that too much
# or too little, and by what factor? And is it the same today?
#
# A data sheet gives a peak in FLOP/s, floating-point operations per second, and two of them, a multiplication and an addition,
# are one *fused multiply-add*. So a peak, the number of Tensor Cores and the clock tell what each core does per clock. (Cores
# and clocks are from NVIDIA's papers on these architectures.)

# %%
cores_and_clock = {"V100": (640, 1.53e9), "A100": (432, 1.41e9), "H100": (528, 1.83e9)}
per_clock = {}
for name, (cores, clock) in cores_and_clock.items():
    per_clock[name] = measure.GPUS[name].fp16 / 2 / (cores * clock)
    print(f"{name:5} {per_clock[name]:4.0f} multiply-adds per Tensor Core and clock")
print("multiply-adds in one product of two 4 × 4 matrices:", 4 * 4 * 4)

# %%
expected = {"V100": 64, "A100": 256, "H100": 512}
assert all(abs(per_clock[name] / expected[name] - 1) < 0.03 for name in expected)

# %% [markdown]
# **What you saw.** 64 fused multiply-adds, which are *one* product of two 4 × 4 matrices: the notes are wrong by a factor of
# 64. And that was Volta (the V100), and Turing after it. A Tensor Core of an A100 does four times as much per clock, one of an
#     H100 eight times.
#
# So "performance doubles"? Compare the peaks, all of them dense (data sheets like to print the double, for matrices of which
# half is zero):

# %%
print(f"{'':9}{'FP16 peak':>13}{'÷ FP32':>9}{'÷ TF32':>9}{'bandwidth':>13}")
for name, gpu in measure.GPUS.items():
    over_tf32 = f"{gpu.fp16 / gpu.tf32:9.1f}" if gpu.tf32 else f"{'no TF32':>9}"
    print(f"{name:9}{gpu.fp16 / 1e12:6.0f} TFLOP/s", end="")
    print(f"{gpu.fp16 / gpu.fp32:9.1f}{over_tf32}{gpu.bandwidth / 1e12:8.2f} TB/s")

# %%
ratios = {name: gpu.fp16 / gpu.fp32 for name, gpu in measure.GPUS.items()}
assert 7.5 < ratios["V100"] < 8.5
assert 15.5 < ratios["A100"] < 16.5
assert 1.9 < ratios["RTX 3090"] < 2.1
assert abs(measure.GPUS["A100"].fp16 / measure.GPUS["A100"].tf32 - 2) < 0.05

# %% [markdown]
# It depends on the GPU, and on what "FP32" means. Against the ordinary FP32 units, an A100's peak for FP16 is 16 times as high,
# and that of a GPU for games twice. Against TF32, FP32 numbers of which the Tensor Cores read 10 of the 23 fraction bits
# (lesson 01), it is twice as high. And which of the two is *your* FP32? That is a setting, or rather two:

# %% tags=["nbval-ignore-output"] reason="an environment variable may change it"
print("TF32 for matrix products:    ", torch.backends.cuda.matmul.allow_tf32)
print("TF32 for cuDNN convolutions: ", torch.backends.cudnn.allow_tf32)

# %%
if "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE" not in os.environ:
    assert not torch.backends.cuda.matmul.allow_tf32
assert torch.backends.cudnn.allow_tf32

# %% [markdown]
# Off for matrix products, *on* for convolutions. A convolutional network that "runs in FP32" on an A100 uses TF32, and AMP can
# gain at most 2 there; a transformer does not, and can gain more. Whoever reports a speedup must say which FP32 it is over. (To
# let products use TF32: `torch.set_float32_matmul_precision("high")`. One line, no scaler, and, by the bounds that you will see
# below, most of the gain that there is. The environment variable `TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1` does it, too: look, do
# not assume.)
#
# ## Shapes that fit
#
# Tensor Cores load their operands in pieces of 16 bytes. Rows that are no whole number of pieces need detours: old versions of
# cuBLAS did not use Tensor Cores then, today's do, but slower. **Guess first:** GPT-2 knows 50,257 tokens, so its last layer
# gives 50,257 numbers. How many does it take to make FP16 rows fit, and what do the additional ones cost?
#
# ### Exercise 8.3 · Pad to a multiple
#
# Return the smallest size that is at least `n` and whose rows fill whole pieces of 16 bytes: a row of that many numbers of
# `dtype` takes a multiple of 16 bytes. `n` is an `int` of at least 1; `dtype` is any floating-point or integer dtype of 1, 2, 4
# or 8 bytes.


# %%
def pad_to_multiple(n, dtype):
    """Return the smallest size >= n whose rows fill whole pieces of 16 bytes."""
    ### BEGIN SOLUTION
    multiple = 16 // dtype.itemsize
    return -(-n // multiple) * multiple
    ### END SOLUTION


# %%
check("8.3", pad_to_multiple)

# %%
# hint("8.3")
# solution("8.3")

# %% [markdown]
# What does padding cost? Arithmetic grows as the size does:

# %%
for size, padded in [(50257, 50264), (10, 16), (1000, 1000), (33, 40)]:
    print(f"{size:6} → {padded:6}: {padded / size - 1:7.2%} more arithmetic")

# %% [markdown]
# Seven more rows for 50,257 are next to nothing. (No token has the seven new numbers. They take part in the softmax, and
# training drives them down, as it does with every wrong answer.) Batch, widths, vocabulary: choose multiples of 8 when you
# design, and of 64 if it is all the same to you, since an A100 likes whole pieces of 128 bytes. Do not pad ten classes: that
# product is small. What padding gains can be measured on a GPU only; try it on yours:

# %% tags=["nbval-ignore-output"] reason="measured, and only where there is a GPU"
if device == "cuda":
    a = torch.randn(4096, 4096, device=device, dtype=torch.half)
    fitting = torch.randn(4096, 4096, device=device, dtype=torch.half)
    odd = fitting[:, :-7].contiguous()
    ways = {"4096 columns": lambda: a @ fitting, "4089 columns": lambda: a @ odd}
    print(measure.compare(ways, baseline="4096 columns", rounds=100))
else:
    print("There is no CUDA device here, so this is not measured.")

# %% [markdown]
# ## Waiting for memory
#
# A Tensor Core can only multiply what has arrived. An operator takes at least FLOPs ÷ peak seconds for its arithmetic, and at
# least bytes ÷ bandwidth seconds to read and write, and the longer of the two decides. What an operator does per byte is its
# *intensity*. **Guess first:** which of these gain from a peak that is 16 times as high: the product of two large matrices, the
# same with a batch of 8, a `relu`?

# %%
n = 4096
operators = {  # FLOPs, and how many numbers are read and written
    "product, 4096³": (2 * n**3, 3 * n**2),
    "product, batch of 8": (2 * 8 * n**2, n**2 + 2 * 8 * n),
    "relu": (n**2, 2 * n**2),
}
points = {
    f"{name}, {what.upper()}": (flops, numbers * size, what)
    for name, (flops, numbers) in operators.items()
    for what, size in (("fp32", 4), ("fp16", 2))
}
measure.roofline_figure(measure.GPUS["A100"], points, whats=("fp32", "fp16"))
plt.show()

# %%
a100 = measure.GPUS["A100"]
gain = {}
for name, (flops, numbers) in operators.items():
    seconds = {}
    for what, size in (("fp32", 4), ("fp16", 2)):
        per_byte = flops / (numbers * size)
        seconds[what] = flops / measure.attainable(per_byte, a100, what)
    gain[name] = seconds["fp32"] / seconds["fp16"]
    print(f"{name:20} at most {gain[name]:5.2f} times faster in FP16")

# %%
assert gain["product, 4096³"] > 15
assert abs(gain["relu"] - 2) < 0.01
assert abs(gain["product, batch of 8"] - 2) < 0.1

# %% [markdown]
# **What you saw.** The figure is called a *roofline*: nothing gets above the roof. Under its slope an operator waits for
# memory, under the flat part for arithmetic. The large product stands under the flat part in both formats, and gets the whole
# ratio of the peaks. `relu` waits for memory in both: in FP16 half as many bytes move, so it can be *twice* as fast, and no
# Tensor Core has a part in it. And so it is with a product of a small batch: it must read the whole weight for 8 rows.
#
# ### Exercise 8.4 · The speedup that can be
#
# An operator does `flops` floating-point operations, and in FP32 it reads and writes `bytes_fp32` bytes; both are more than 0.
# In FP16 it does the same operations on half as many bytes. Return how many times faster FP16 can be, by the roofline, as a
# `float`. `gpu` has `gpu.fp32` and `gpu.fp16`, the peaks in FLOP/s, and `gpu.bandwidth` in bytes per second.


# %%
def attainable_speedup(flops, bytes_fp32, gpu):
    """Return how many times faster FP16 can be than FP32, by the roofline."""
    ### BEGIN SOLUTION
    fp32 = max(flops / gpu.fp32, bytes_fp32 / gpu.bandwidth)
    half = max(flops / gpu.fp16, bytes_fp32 / 2 / gpu.bandwidth)
    return fp32 / half
    ### END SOLUTION


# %%
check("8.4", attainable_speedup)

# %%
# hint("8.4")
# solution("8.4")

# %% [markdown]
# And a whole training step? `count_flops` lists the operators of a forward and a backward pass, with their FLOPs and the bytes
# that they move. Give each the time that the roof allows, and add up. That is a bound and no forecast: real kernels stay below
# the roof, and to start them takes time as well. **Guess first:** how much faster can AMP make one block of the transformer
# above on an A100, at most? And one that is four times as wide? And if the products were TF32 before?


# %%
def count(model, dtype):
    kind = {"dtype": dtype, "device_type": "cuda"}
    return measure.count_flops(model, cross_entropy, texts, **kind)


def least_seconds(counts, products):
    """Return the least time on an A100; `products` is what FP32 products are."""
    seconds = 0
    for row in counts.rows:
        what = "fp16" if row.dtype == torch.float16 else products
        seconds += max(row.flops / a100.peak(what), row.bytes / a100.bandwidth)
    return seconds


# %% tags=["nbval-ignore-output"] reason="a little depends on the attention kernel"
bounds = {}
for width in (128, 512):
    model = character_model(width, layers=1).to(device)
    full, amp = count(model, None), count(model, torch.float16)
    for products in ("fp32", "tf32"):
        times = least_seconds(full, products) / least_seconds(amp, products)
        bounds[width, products] = times
        print(f"width {width}: at most {times:.1f} times as fast as {products}")
casts = sum(row.bytes for row in amp.rows if row.operator == "_to_copy")
print(f"casts move {casts / amp.bytes:.0%} of all bytes under autocast")

# %%
assert 2 < bounds[128, "fp32"] < bounds[512, "fp32"] < 12
assert all(1 < bounds[width, "tf32"] < 1.8 for width in (128, 512))
assert 0.1 < casts / amp.bytes < 0.5

# %% [markdown]
# **What you saw.** Far from 16, and the wider one may gain more, for the arithmetic of a product grows faster than its bytes.
# Over TF32 it is about one and a half, and not even 2: much of a step waits for memory, some of it stays FP32, and autocast
# adds work of its own, since a cast reads and writes, too.
#
# ## How to measure time at all
#
# Bounds are bounds; in the end one measures. It is easy to do it wrong. **Guess first:** you time the same small training step
# ten times. How far apart are the fastest and the slowest?


# %%
def step_of(width, dtype, batch=128):
    """Return a function that makes a forward and a backward pass."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))
    model, x = model.to(device), torch.randn(batch, width, device=device)

    def step():
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            loss = model(x).float().square().mean()
        loss.backward()

    return step


# %% tags=["nbval-ignore-output"] reason="measured"
step = step_of(256, torch.float32)
taken = []
for _ in range(10):
    start = time.perf_counter()
    step()
    taken.append(1e3 * (time.perf_counter() - start))
print("ms:", *(f"{each:.2f}" for each in taken))

# %% [markdown]
# The first ones are slow: memory is allocated, kernels are chosen, caches are cold. Then the machine has its moods: other
# programs, a clock that changes with the heat. And on a GPU these numbers are worth nothing at all: a CUDA operator only goes
# into a queue, and Python does not wait for it. So:
#
# 1. **Warm up**, and throw that away.
# 2. **Wait** for the GPU before you look at the clock: `torch.cuda.synchronize()`, or CUDA events.
# 3. **Many rounds, and the median**: one slow round does not move it.
# 4. **Interleave** what you compare, in random order: whoever is timed first profits or suffers from the machine's mood.
# 5. **A/A**: time the same thing twice, under two names. What lies between those two is noise, and no ratio is more certain.
#
# `compare` does all five. **Guess first:** it times two networks, with layers of 16 and of 1,024 numbers, in FP32 and with 16
# bits. Are 16 bits faster for both?

# %% tags=["nbval-ignore-output"] reason="measured"
half = torch.float16 if device == "cuda" else torch.bfloat16
found = {}
for width in (16, 1024):
    ways = {"FP32": step_of(width, torch.float32), "16 bits": step_of(width, half)}
    found[width] = measure.compare(ways, baseline="FP32", rounds=40)
    print(f"width {width}\n{found[width]}\n")

# %% [markdown]
# `FP32 (again)` is the A/A: it should be 1, and is not quite. Is the small network slower with 16 bits, where you are? It is
# nearly everywhere. Count what AMP has changed in it:

# %% tags=["nbval-ignore-output"] reason="the number of operators depends on PyTorch"
small = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10)).to(device)
few = torch.randn(128, 16, device=device), torch.randint(10, (128,), device=device)
calls, copies = {}, {}
for dtype in (torch.float32, torch.float16):
    kind = {"dtype": dtype, "device_type": "cuda"}
    rows = measure.count_flops(small, cross_entropy, few, **kind).rows
    calls[dtype] = sum(row.calls for row in rows)
    copies[dtype] = sum(row.calls for row in rows if row.operator == "_to_copy")
    print(f"{dtype!s:14} {calls[dtype]} operators, {copies[dtype]} of them casts")

# %%
assert copies[torch.float32] == 0
assert calls[torch.float16] - copies[torch.float16] == calls[torch.float32]
assert calls[torch.float16] > 1.5 * calls[torch.float32]

# %% [markdown]
# **What you saw.** A cast is an operator, and AMP nearly doubles the number of operators here. To start one takes longer than
# to compute a few numbers, so the small network spends its time on starting them, and no Tensor Core can win that back.
#
# The large one depends on where you are. A GPU with Tensor Cores should win here, and a CPU with matrix units for BF16 can. On
# a CPU without them, 16 bits are slower there, too, often by far. (That is why these lessons compute FP16 products on a CPU in
# FP32, with `emulate.tensor_cores()`: the numbers are right, the times are not a GPU's. No cell on this page times that.)
#
# ## The ladder
#
# Now climb, one rung at a time: FP32 with both TF32 switches off; TF32; FP16 and BF16 autocast; an optimizer that does its step
# in one kernel (`fused=True`); `torch.compile`, which makes one kernel of several operators that wait for memory. This is what
# your machine makes of it, which rungs it lacks, and why. (The word at the end of a line says what computes the format here.)

# %% tags=["nbval-ignore-output"] reason="measured"
here = measure.ladder(device)
print(here)

# %% tags=["nbval-ignore-output"] reason="measured"
here.plot()
plt.show()

# %% [markdown]
# On a CPU that is an honest measurement of the wrong machine: it says nothing of a GPU. If this course has a stored result from
# one, here it is, with its name and date:

# %% tags=["nbval-ignore-output"] reason="shows the newest stored result, if there is one"
stored = stored_ladder()
if stored is None:
    print("No ladder from a GPU is stored yet. On a CUDA machine, the one above is it.")
else:
    print(f"measured on {stored.device}, {stored.date}\n{stored}")
    stored.plot()
    plt.show()

# %%
rungs = {rung.name: rung for rung in here.rungs}
assert rungs["FP32"].seconds > 0
assert all(rung.seconds or rung.why_not for rung in here.rungs)
assert stored is None or stored.device_type == "cuda"

# %% [markdown]
# ## In practice
#
# **"I switched AMP on and nothing got faster."** Ask in this order. Does the GPU wait for data? (Then no arithmetic helps. Time
# the loop with one batch that is already there.) Is the network so small that starting operators is what takes the time? Larger
# batches, `torch.compile`. Is your FP32 TF32 already? Are the shapes multiples of 8? Is most of the time in operators that wait
# for memory? At most 2 there; `torch.compile` joins them.
#
# **"I switched AMP on and memory is the same."** Weights, gradients and Adam are most of it: use fewer bytes for *them* (spread
# them over several GPUs, or take another optimizer), or let activations be computed again (`torch.utils.checkpoint`). If
# activations are most of it, look which stay FP32.
#
# **What to do with the gain.** A larger batch is how half-size activations turn into speed: more rows per weight, more
# arithmetic per byte.
#
# **A speedup without its "before" is no number.** Write down the GPU, the version of PyTorch, both TF32 switches, shapes, what
# was timed (with data loading? with the optimizer?), the median and the A/A ratio.
#
# ## Takeaways
#
# - AMP halves what operators of the FP16 list keep for backward. Weights, gradients and optimizer state stay FP32: 16 bytes per
#   parameter with Adam. FP16 copies of weights come on top, so a step with little data per weight needs *more*.
# - A Tensor Core of Volta or Turing does 64 multiply-adds per clock, one 4 × 4 product; later ones do more.
# - Speed: at most the ratio of the peaks where arithmetic decides, at most 2 where memory does, often below 1 where neither
#   does.
# - Ask which FP32. TF32 is off for matrix products and on for cuDNN's convolutions.
# - Warm up, wait for the GPU, interleave, take the median, and time the same thing against itself.
#
# ## Quiz
#
# Pick an answer and read what it says; the wrong ones are worth a click, too.

# %%
quiz("08")

# %% [markdown]
# **Further reading**
#
# - NVIDIA: [Matrix Multiplication Background User's
#   Guide](https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication/index.html), on intensity,
#   alignment and tiles
# - PyTorch: [CUDA semantics](https://docs.pytorch.org/docs/stable/notes/cuda.html), on TF32, asynchronous execution and memory
# - PyTorch: [Performance Tuning Guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html)
# - Samuel Williams, Andrew Waterman, David Patterson: [Roofline: an insightful visual performance
#   model](https://doi.org/10.1145/1498765.1498785), Communications of the ACM 52 (4), 2009
