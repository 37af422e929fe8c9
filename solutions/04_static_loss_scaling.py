# %% [markdown]
# # 04 · Static loss scaling
#
# | | |
# |---|---|
# | **Time** | 80 minutes |
# | **Difficulty** | medium |
# | **You need** | [lesson 03](03_mixed_precision_by_hand.ipynb). No GPU: gradients vanish in FP16 on every machine alike. |
#
# **After this page you can**
#
# - say where in a backward pass FP16 loses gradients, and why one multiplication brings them back;
# - find the window of scales that neither underflow nor overflow, and pick one with room to spare;
# - clip and accumulate gradients while they are scaled, without a wrong step size.

# %%
import math
import textwrap

import matplotlib.pyplot as plt
import torch
from torch import nn

from amp_lab import StaticLossScaler, gradient_report, watch, xray
from amp_lab.autocast import emulate
from amp_lab.course import check, hint, quiz, solution
from amp_lab.train.data import noisy_digits
from amp_lab.train.models import denoiser
from amp_lab.view.gradients import gradient_histogram
from amp_lab.view.loss_scale import loss_scale_explorer
from amp_lab.view.plots import loss_curves

# %% [markdown]
# As in lesson 03, FP16 products on a CPU are computed as a Tensor Core would ideally do it, in FP32 and rounded once, because
# few CPUs do it fast themselves. What you write stays plain PyTorch.

# %% tags=["nbval-ignore-output"] reason="describes the machine that runs it"
print(emulate.tensor_cores().start())
torch.set_num_threads(1)  # so small a network is quickest on one thread
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## Only what is on the way
#
# You know this network from lesson 03: a small *denoiser* gets noisy pictures of digits and shall return clean ones. Its error
# is the mean square of what it gets wrong, over all pixels, and its loss is the error times a factor. At a factor of 0.1 FP16
# lost 40 % of the gradients on their way back, and it did no harm. This lesson takes 0.001, and trains. (With gradients that
# small, SGD takes a large learning rate.)

# %%
noisy, clean = (tensor.to(device) for tensor in noisy_digits())
figure, axes = plt.subplots(2, 8, figsize=(8, 2.2), layout="constrained")
for row, (name, pictures) in zip(axes, {"noisy": noisy, "clean": clean}.items()):
    for each, picture in zip(row, pictures):
        each.imshow(picture[0].cpu(), cmap="gray_r", vmin=0, vmax=1)
        each.set(xticks=[], yticks=[])
    row[0].set_ylabel(name)
plt.show()


# %%
def train(precision, scale=1.0, steps=30):
    model = denoiser().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=100, momentum=0.9)
    scaler, errors = StaticLossScaler(scale), []
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast(device, torch.float16, enabled=precision == "FP16"):
            error = nn.functional.mse_loss(model(noisy), clean)
        scaler.scale(1e-3 * error).backward()
        scaler.step(optimizer)
        scaler.update()
        errors.append(error.item())
    return errors, model, scaler


# %% [markdown]
# `StaticLossScaler` is what this lesson takes apart; with a scale of 1 it does nothing that would help. In lesson 03, at this
# factor, a model that was FP16 throughout had no gradient left. Here, as in `torch.amp`, the weights are FP32, and so are their
# gradients and the steps: only what `autocast` computes on the way is FP16.
#
# **Guess first:** is that enough? Does it learn as well as FP32, more slowly, or not at all? (The cell trains twice, for some
# seconds.)

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
fp32, model_fp32, _ = train("FP32")
fp16, model_fp16, _ = train("FP16")
print(f"FP32: error {fp32[0]:.3f} -> {fp32[-1]:.3f}")
print(f"FP16: error {fp16[0]:.3f} -> {fp16[-1]:.3f}")
start = denoiser().to(device)  # the same weights that both runs began with
untouched = all(map(torch.equal, model_fp16.parameters(), start.parameters()))
print("FP16: all weights are what they were before the first step:", untouched)

# %% [markdown]
# Not at all: after 30 steps no weight has changed in a single bit. Nothing is infinite, nothing is NaN, nobody complained. This
# is the loop of many a tutorial: `autocast` in FP16, a plain `backward()`, a step. It is fine as long as the gradients are
# large enough.
#
# ## Where did they go?
#
# The gradients must have been too small for FP16. Look at them where they are not: in FP32. `gradient_report` counts, for every
# gradient of the weights, what FP16 would make of it. **Guess first:** how many are so small that FP16 makes them zero, that is
# 2^−25 or less: all, half of them, hardly any?

# %% tags=["nbval-ignore-output"] reason="the last digits of gradients depend on the processor"
model = denoiser().to(device)
(1e-3 * nn.functional.mse_loss(model(noisy), clean)).backward()
of_weights = gradient_report(model)
share = of_weights.at(1.0).share("zero")
print(f"FP16 would make {share:.1%} of the weights' gradients zero")

# %% [markdown]
# Hardly any! So why are *all* of them zero in the FP16 run? Because a gradient is the end of a long way. `backward` walks from
# the loss through every layer, and hands on, from one to the next, the gradient of what the layer *put out*. `amp_lab.xray`
# runs a model once under autocast, forward and backward, and lists every operator with the dtypes of what it took and gave
# (lesson 06 is about it). **Guess first:** the weights are FP32, and so are their gradients. Where on the way back does FP16
# become FP32?

# %%
for op in xray(model, noisy[:1]).ops:
    if op.phase == "backward" and op.name in ("conv2d", "relu", "to"):
        gives = " ".join(str(value.dtype) for value in op.outputs).replace("torch.", "")
        print(f"{op.module:7} backward of {op.name:7} gives {gives}")

# %% [markdown]
# At the very end, one weight at a time: `to` is the way back through the cast that autocast made of that weight. All that
# travels from layer to layer is FP16 (the first of what each `conv2d` gives; the others are for its weight and bias). So these
# gradients, too, must fit into FP16. Ask PyTorch to keep them:

# %%
model.zero_grad()
outputs, x = {}, noisy
for name, layer in model.named_children():
    x = layer(x)
    if isinstance(layer, nn.Conv2d):
        x.retain_grad()
        outputs[f"output of {name}"] = x
(1e-3 * nn.functional.mse_loss(x, clean)).backward()
on_the_way = {name: output.grad for name, output in outputs.items()}
gradient_histogram(gradient_report(on_the_way), title="Gradients on their way back")
plt.show()

# %%
report = gradient_report(on_the_way)
assert fp16[-1] > 0.9 * fp16[0]
assert untouched
assert fp32[-1] < 0.5 * fp32[0]
assert of_weights.at(1.0).share("zero") < 0.1
assert report.at(1.0).share("zero") == 1

# %% [markdown]
# **What you saw.** Every one of them is at most 2^−25: all become zero. (The exact zeros, which are not shown, are ReLUs that
# are off.) The error is a mean over 115,000 pixels; so of the gradient, each pixel gets a 115,000th part, and hands it back to
# the layer before. The gradient of a *weight* is a sum over all pixels, and would be large enough. But a sum of zeros is zero.
#
# That is **underflow**, and it is not rounding. Rounding costs the last digits of every number; underflow costs small numbers
# whole, and everything behind them in the chain. FP32 weights cannot help: what never arrives cannot be added. And a look at
# the weights' gradients alone would have told you that all is well.
#
# ## One multiplication
#
# The backward pass is *linear* in the loss: 1,000 times the loss makes 1,000 times every gradient, on the way and at its end.
# So multiply the loss before `backward`, and divide the gradients after it, in FP32, before anybody uses them. The forward pass
# notices nothing. That is loss scaling, all of it.
#
# **Guess first:** take a scale of 1,024. How many of the gradients on the way does FP16 still make zero?

# %% tags=["nbval-ignore-output"] reason="the last digits of gradients depend on the processor"
for scale in (1.0, 16.0, 1024.0):
    print(f"scale {scale:5.0f}: {report.at(scale).share('zero'):6.1%} become zero")

# %%
assert report.at(1024.0).share("zero") < 0.2 < report.at(16.0).share("zero") < 0.9

# %% [markdown]
# And does dividing afterwards give back what was there? **Guess first:** FP32 numbers are multiplied by 1,000 and then divided
# by 1,000. How many come back exactly? And with 1,024 in place of 1,000?

# %%
numbers = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
for scale in (1000.0, 1024.0):
    back = (numbers * scale / scale == numbers).double().mean().item()
    print(f"scale {scale:.0f}: {back:.0%} come back exactly")

# %% [markdown]
# A power of two moves the exponent and leaves the fraction alone, so nothing is rounded, on the way there and back. With 1,000,
# two roundings are added to every gradient. It is not much. But why pay at all, and a comparison with FP32 is no longer clean.
# Loss scales are powers of two.

# %%
assert (numbers * 1024 / 1024 == numbers).all()
assert 0.9 < (numbers * 1000 / 1000 == numbers).double().mean() < 0.99

# %% [markdown]
# ### Exercise 4.1 · Scale, walk back, unscale
#
# Write the backward pass of a training step with a fixed loss scale. You get
#
# - `loss`: a 0-dim FP32 tensor. Somewhere between it and the weights the network computes in FP16, so that a plain
#   `loss.backward()` loses gradients there;
# - `parameters`: a list of FP32 parameters of any shapes, all of which require gradients. Among them are all that the loss
#   depends on, and perhaps some that it does not;
# - `scale`: a positive `float`, often a power of two, but not always.
#
# Afterwards, `.grad` of each parameter holds what it held before *plus* the gradient of `loss`, unscaled, in FP32 (to five
# digits). Where it was `None`, it counts as zero. A parameter that the loss does not depend on keeps what it had (zeros in
# place of `None` are fine). The parameters and `loss` stay as they are otherwise: the caller still prints the loss. Your
# function may be called again and again with the same parameters. Nothing need be returned.


# %%
def scaled_backward(loss, parameters, scale):
    """Add the gradient of `loss`, computed at `scale` and unscaled, to each `.grad`."""
    ### BEGIN SOLUTION
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None  # a new tensor: backward would add in place otherwise
    (loss * scale).backward()
    for parameter, old in zip(parameters, before, strict=True):
        if parameter.grad is None:  # the loss does not depend on it
            parameter.grad = old
            continue
        parameter.grad /= scale
        if old is not None:
            parameter.grad += old
    ### END SOLUTION


# %%
check("4.1", scaled_backward)

# %%
# hint("4.1")
# solution("4.1")

# %% [markdown]
# ## The window
#
# If 1,024 is good, is more better? Two things limit the scale. Too *small*, and gradients underflow; too *large*, and they
# overflow: infinity, then NaN. What lies between is the window. Move the scale, and watch the gradients of the weights *and*
# those on the way go through the range of FP16:

# %%
at_the_end = {name: weight.grad for name, weight in model.named_parameters()}
everything = gradient_report(on_the_way | at_the_end)
loss_scale_explorer(everything, scale=1.0)

# %% [markdown]
# Three things to try. (The weights' gradients are few among a million, and the largest: no bar is high enough to see them, but
# a triangle marks the largest of all.)
#
# 1. Find the smallest scale at which less than 1 % of the gradients become zero.
# 2. Find the largest at which none becomes infinite.
# 3. How many powers of two lie between? What would become of this window if all gradients were 1,000 times smaller? And if only
#    those of the weights were 1,000 times larger?


# %%
def window(report):
    """Return the exponents of the smallest and the largest scale that will do."""
    scales = [(k, report.at(2.0**k)) for k in range(60)]
    kept = [k for k, fates in scales if fates.share("zero") < 0.01]
    finite = [k for k, fates in scales if fates.overflow == 0]
    return kept[0], finite[-1]


# %% tags=["nbval-ignore-output"] reason="the last digits of gradients depend on the processor"
gradients = on_the_way | at_the_end
smaller = {name: gradient / 1000 for name, gradient in gradients.items()}
larger = {name: 1000 * gradient for name, gradient in at_the_end.items()}
windows = {"as they are": window(everything)}
windows["all 1,000 times smaller"] = window(gradient_report(smaller))
windows["weights' 1,000 times larger"] = window(gradient_report(on_the_way | larger))
for name, (low, high) in windows.items():
    print(f"{name:32} from 2^{low} to 2^{high}")

# %%
low, high = windows["as they are"]
assert 8 <= low <= 18
assert 24 <= high <= 28
assert windows["all 1,000 times smaller"] == (low + 10, high + 10)
assert windows["weights' 1,000 times larger"] == (low, high - 10)

# %% [markdown]
# **What you saw.** The window is wide, and that is the rule: FP16 has 40 powers of two, and gradients seldom need all of them.
# Gradients that shrink move it up, a few large ones lower its upper edge.
#
# Which scale to take? The larger it is, the fewer gradients are lost; so `gradient_report` recommends one near the upper edge
# (that is what the button of the explorer goes to):

# %% tags=["nbval-ignore-output"] reason="the last digits of gradients depend on the processor"
recommended = everything.recommend(headroom=4)
print(textwrap.fill(f"{recommended.scale:,.0f}: {recommended.reason}", 80))

# %% [markdown]
# For the very next step that is right. A scale that is to hold for a whole run wants more room above, and we take 2^20, the
# middle of the window. (The paper of lesson 03 used scales from 8 to 32,768, found by trying.)
#
# Now the proof: the same run as at the start, with three more scales. **Guess first** where each curve goes: 2^20, in the
# window; 4, too small; 2^32, too large. (Three times some seconds.)

# %%
runs = {"FP32": fp32, "FP16, no scale": fp16}
scalers = {}
for power in (2, 20, 32):
    name = f"scale 2^{power}"
    runs[name], _, scalers[name] = train("FP16", 2.0**power)
loss_curves(runs, "One multiplication", loss="mean squared error")
plt.show()

# %%
skipped = {name: sum(scaler.history.skipped) for name, scaler in scalers.items()}
assert abs(runs["scale 2^20"][-1] - fp32[-1]) < 0.05 * fp32[-1]
assert 1.5 * fp32[-1] < runs["scale 2^2"][-1] < 0.9 * fp32[0]
assert skipped == {"scale 2^2": 0, "scale 2^20": 0, "scale 2^32": 30}
assert runs["scale 2^32"][-1] == runs["scale 2^32"][0]

# %% [markdown]
# **What you saw.**
#
# - **2^20** lies on top of FP32: same network, same FP16 arithmetic, one multiplication.
# - **2^32** overflows in every step. A scaler that finds an infinity *skips* the step, so the weights stay as they are, and all
#   30 steps are lost. Without that, some weights would be infinite after one step, and all of them NaN soon after.
# - **2^2**, 4, is the treacherous one. It learns, so one would not look for a fault; then it stalls. Why? **Guess first:**
#   which of the three layers still get a gradient at a scale of 4?

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
model = denoiser().to(device)
with torch.autocast(device, torch.float16):
    error = nn.functional.mse_loss(model(noisy), clean)
(4 * 1e-3 * error).backward()
alive = {}
for name, weight in model.named_parameters():
    alive[name] = weight.grad.count_nonzero().item()
    print(f"{name:14} {alive[name]:3} of {weight.numel():3} gradients are not zero")

# %% [markdown]
# Only the last one, which is nearest to the loss: its own gradients are sums of large enough numbers. What it hands back to the
# layers before it becomes zero. So the network trains its last layer on features that hardly move, and gets as far as that
# goes. Half a network that learns looks much like one that learns slowly.
#
# A scale that is right today may be wrong after an hour of training. Lesson 05 lets it move.

# %%
assert all(count == 0 for name, count in alive.items() if not name.startswith("last"))
assert alive["last.weight"] > 60

# %% [markdown]
# ### Over a whole run
#
# `gradient_report` looks at one moment. But gradients shrink with the error. Here a small network learns eight examples by
# heart. Its loss has a weight of 1/32, and the scale is 1: in the first step nothing is lost. `watch` (lesson 07) takes samples
# as the run goes on. **Guess first:** the loss falls and falls. Does anything underflow, from which step on, and which layer is
# spared? (Two runs, some seconds.)


# %%
torch.manual_seed(0)
few, labels = torch.randn(8, 6).to(device), torch.arange(8).to(device) % 3


def deep():
    torch.manual_seed(1)
    hidden = [each for _ in range(5) for each in (nn.Linear(32, 32), nn.Tanh())]
    return nn.Sequential(nn.Linear(6, 32), nn.Tanh(), *hidden, nn.Linear(32, 3))


# %%
def by_heart(scale, steps=300):
    net, scaler = deep().to(device), StaticLossScaler(scale)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    with watch(net, optimizer, scaler) as seen:
        for _ in range(steps):
            optimizer.zero_grad()
            with torch.autocast(device, torch.float16):
                loss = nn.functional.cross_entropy(net(few), labels) / 32
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return seen.underflow()


# %% tags=["nbval-ignore-output"] reason="the last digits of gradients depend on the processor"
lost = by_heart(1.0)
lost.plot()
plt.show()
print(textwrap.fill(lost.summary(), 88))

# %%
again = by_heart(4096.0)
assert 3 < min(lost.began.values()) < 200  # nothing in the first steps
assert "12" not in lost.began  # the last layer, beside the loss
assert not again.began

# %% [markdown]
# **What you saw.** A row is a module of the network, the first one on top, and each column a step that was looked at. (The
# first three, and then every 32nd; between them nothing is read.) Nothing is lost in the first steps. Then the loss falls, and
# the gradients with it: one layer after the other loses a part of its gradients, and at some steps nearly all. Only the last
# one, beside the loss, keeps its own. The scale that was right at first is too small later, and no error says so. With 4,096 in
# its place nothing begins. (The share is an estimate, from the numbers just above 2^−24: a zero does not say where it comes
# from.)

# %% [markdown]
# ### Exercise 4.2 · The largest scale that is safe
#
# Choose a loss scale from gradients that you have seen. `grads` is a list of FP32 tensors of any shapes, none of them empty:
# the *unscaled* gradients of a training step, computed in FP32. Return a Python number (`float` or `int`): the largest power of
# two, 2^k with a whole k from −24 to 126, for which
#
# > `headroom` × (the largest |gradient| of all tensors) × 2^k ≤ 65504
#
# `headroom`, a positive number, is a plain factor: with 4, gradients may grow to four times their size before one overflows.
#
# - If all gradients are zero, or the list is empty, nothing tells which scale to take: return 65536.0.
# - If a gradient is infinite or NaN, or so large that even 2^−24 is too much, no scale is right: raise a `ValueError`.
#
# (Why 126? 1 / 2^126 is the smallest normal FP32 number: beyond it, unscaling itself would underflow.)


# %%
def pick_scale(grads, headroom=4):
    """Return the largest power of two that leaves `headroom` below FP16's end."""
    ### BEGIN SOLUTION
    largest = 0.0
    for grad in grads:
        if not grad.isfinite().all():
            raise ValueError("a gradient is infinite or NaN: no scale cures that")
        largest = max(largest, grad.abs().max().item())
    if largest == 0:
        return 65536.0
    # number = m * 2**e with 0.5 <= m < 1: the power of two below is 2**(e - 1)
    _, e = math.frexp(65504 / (headroom * largest))
    exponent = min(e - 1, 126)
    if exponent < -24:
        raise ValueError(f"{largest:g} is too large a gradient for any scale")
    return 2.0**exponent
    ### END SOLUTION


# %%
check("4.2", pick_scale)

# %%
# hint("4.2")
# solution("4.2")

# %% [markdown]
# ## Clipping with a scale
#
# Whatever looks at gradients between `backward` and the step looks at *scaled* ones, unless somebody unscales them first.
# Clipping is the classic case. **Guess first:** gradients with a norm of 2.5 are clipped to a norm of 1, at a scale of 1,024,
# and unscaled afterwards. How long is the step then, compared with the right one: the same, 2.5 times too short, 1,024 times
# too short?

# %%
weight = nn.Parameter(torch.zeros(4))
slope = torch.tensor([1.5, 2.0, 0.0, 0.0])  # of norm 2.5


def gradient_at(scale):
    weight.grad = None
    ((weight * slope).sum() * scale).backward()


gradient_at(1024.0)
weight.grad /= 1024.0
norm = nn.utils.clip_grad_norm_([weight], max_norm=1.0).item()
print(f"unscale, clip: a norm of {norm:6.1f}, a step of {weight.grad.norm():.6f}")
gradient_at(1024.0)
norm = nn.utils.clip_grad_norm_([weight], max_norm=1.0).item()
weight.grad /= 1024.0
print(f"clip, unscale: a norm of {norm:6.1f}, a step of {weight.grad.norm():.6f}")

# %% [markdown]
# 1,024 times too short. Clipping saw a norm of 2,560, took it for an explosion, cut it down to 1, and unscaling did the rest.
# Nothing fails, the loss even falls, a thousand times too slowly. (With Adam you would not even see that: it divides the size
# of the gradient out again. Lesson 07.)

# %%
assert abs(weight.grad.norm().item() * 1024 - 1) < 1e-4
assert norm == 2560

# %% [markdown]
# ### Exercise 4.3 · Clip what is scaled
#
# Gradient clipping has a length in mind: if the *norm* of all gradients together (the root of the sum of the squares of all
# their entries) is larger than `max_norm`, all are multiplied by one factor that makes it `max_norm`; otherwise they stay as
# they are.
#
# You get `parameters`, a list of FP32 parameters of any shapes after a *scaled* backward pass: each `.grad` holds `scale` times
# the gradient, or is `None`. `scale` is a positive `float`, not always a power of two; `max_norm` is one, too, and is meant for
# the *unscaled* gradients. All gradients are finite; they may all be zero.
#
# Afterwards each `.grad` holds the unscaled gradient, clipped (to one part in ten thousand, so that the 1e-6 which
# `torch.nn.utils.clip_grad_norm_` adds to the norm does no harm); what was `None` stays `None` (zeros are fine), and the
# parameters stay as they are otherwise. Return the norm of the *unscaled* gradients *before* clipping, to five digits, as a
# `float` or a 0-dim tensor: it is what people log.


# %%
def clip_scaled(parameters, scale, max_norm):
    """Unscale and clip the gradients; return their unscaled norm before clipping."""
    ### BEGIN SOLUTION
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad /= scale
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm)
    ### END SOLUTION


# %%
check("4.3", clip_scaled)

# %%
# hint("4.3")
# solution("4.3")

# %% [markdown]
# ## Many small batches
#
# A batch that does not fit into memory is cut into micro-batches: several backward passes, whose gradients PyTorch adds up in
# `.grad`, and then one step. With a scale, two things must be right: what is added must be at the *same* scale, and it must be
# unscaled *once*. **Guess first:** four micro-batches, each with a gradient of 1, at a scale of 8. The loop below unscales
# after every backward. What is in `.grad` at the end, where 4 is right?

# %%
weight, scale = nn.Parameter(torch.zeros(1)), 8.0
for step in range(4):
    (weight.sum() * scale).backward()
    weight.grad /= scale  # all that has been added up, every time
    print(f"after micro-batch {step + 1}: {weight.grad.item():.4f}")

# %% [markdown]
# Not 4 but 1.14, nearly all of it from the last micro-batch; the others have been divided again and again. Nothing looks wrong
# from outside.
#
# ### Exercise 4.4 · Many small batches, one step
#
# A batch that does not fit into memory is cut into micro-batches, whose gradients are *accumulated*: several backward passes,
# one step. Do that with a loss scale. You get
#
# - `micro_batches`: a list of one or more tensors of equal shape, which is only read;
# - `model`: a module; `model(batch)` is the *mean* loss over the examples of `batch`, a 0-dim FP32 tensor. Inside, it computes
#   in FP16, so gradients are lost without the scale. Some of its parameters may get no gradient at all, and stay as they are;
# - `optimizer`: a `torch.optim.SGD` over the parameters of the model, perhaps with momentum, weight decay, and several groups
#   with learning rates of their own. Its gradients are empty when you get it;
# - `scale`: a positive `float`.
#
# Let the optimizer take *one* step, with the unscaled gradient of the mean loss over *all* examples. Afterwards the gradients
# are cleared (`None` or zeros) for the next batch; model and optimizer are as they were otherwise, learning rates and hooks
# included, and the next call, perhaps with another scale, finds them ready. How far each weight moved must be right to one
# percent; nothing need be returned.


# %%
def accumulate(micro_batches, model, optimizer, scale):
    """Take one optimizer step with the mean gradient of all micro-batches."""
    ### BEGIN SOLUTION
    for batch in micro_batches:
        loss = model(batch) / len(micro_batches)
        (loss * scale).backward()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None:
                parameter.grad /= scale
    optimizer.step()
    optimizer.zero_grad()
    ### END SOLUTION


# %%
check("4.4", accumulate)

# %%
# hint("4.4")
# solution("4.4")

# %% [markdown]
# ## In practice: five ways to lose a scale
#
# **1. and 2. Two steps that are too small.** The slope is 1 and the learning rate is 1, so the step should be 1; the scale is
# 1,024. **Guess first** how large it is in two loops. One divides the gradients by 1,024 by hand before it calls `scaler.step`.
# The other calls `scaler.scale(loss)`, and then `loss.backward()`.


# %%
def one_step(scaler, between=lambda weight: None, backward_on_scaled=True):
    weight = nn.Parameter(torch.zeros(1, device=device))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    loss = weight.sum()
    scaled = scaler.scale(loss)
    (scaled if backward_on_scaled else loss).backward()
    between(weight)
    scaler.step(optimizer)
    return -weight.item()


scaler = torch.amp.GradScaler(device, init_scale=1024.0)
print("right:          ", one_step(scaler))
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
print("unscaled twice: ", one_step(scaler, lambda weight: weight.grad.div_(1024)))
scaler = torch.amp.GradScaler(device, init_scale=1024.0)
print("never scaled:   ", one_step(scaler, backward_on_scaled=False))

# %% [markdown]
# Both are 1,024 times too small. `GradScaler.step` unscales by itself: who divides by hand before it, divides twice. Use
# `scaler.unscale_(optimizer)`, which the scaler remembers. And who walks back from the loss that was not scaled, divides what
# was never multiplied. Write it in one expression, `scaler.scale(loss).backward()`, and it cannot happen.
#
# **3. A loss that is infinite once it is scaled.** **Guess first:** a loss of 2.0 in FP16, at a scale of 65,536. Does it matter
# whether it is a single number or a vector of one?

# %%
scaler = torch.amp.GradScaler(device, init_scale=65536.0)
for shape in ((), (1,)):
    loss = torch.full(shape, 2.0, dtype=torch.float16, device=device)
    scaled = scaler.scale(loss)
    print(f"{shape!s:5} {scaled.dtype} {scaled.item()}")

# %% [markdown]
# It does. Promotion again (lesson 01): the scale is a 0-dim FP32 tensor, which makes FP32 of another 0-dim tensor and has no
# say beside a vector, and 131,072 is infinite in FP16. A loss is a single number; take it in FP32.
#
# **4. Norms that jump.** A gradient norm that is logged before unscaling is multiplied by the scale: the curve jumps whenever
# the scale does. Log after `unscale_`.
#
# **5. Watching the norm.** **Guess first:** FP16 makes 30 % of these gradients zero. By how much does their norm fall?

# %%
spread = torch.arange(-30, -10, dtype=torch.float32)  # powers of two, evenly spread
gradients = 2.0 ** spread.repeat(100)
kept = gradients.half().float()
print(f"zero: {(kept == 0).double().mean():.0%}")
print(f"norm: {gradients.norm():.6f} -> {kept.norm():.6f}")

# %% [markdown]
# Not in six digits: a norm is made by the largest. Small gradients may vanish by the thousand without moving it. **Count
# zeros**, as `gradient_report` does; a norm will not tell you.

# %%
assert (kept == 0).double().mean() > 0.25
assert abs(kept.norm() / gradients.norm() - 1) < 1e-6

# %% [markdown]
# ## Takeaways
#
# - FP16 loses gradients on their way back, not only at its end; one layer of zeros makes zeros of all behind it.
# - Backward is linear: scale the loss, and every gradient is scaled. Unscale in FP32, once, before anybody looks.
# - Powers of two cost no rounding.
# - Too small underflows, in silence. Too large overflows, and costs the step. Between them lies a window, and training moves
#   it.
# - Unscale, then clip. Accumulate at one scale, unscale the sum once.
# - Count zeros, not norms.
#
# ## Quiz
#
# Pick an answer and read what it says; the wrong ones are worth a click, too.

# %%
quiz("04")

# %% [markdown]
# **Further reading**
#
# - Paulius Micikevicius et al.: [Mixed Precision Training](https://arxiv.org/abs/1710.03740), ICLR 2018, section 3.2
# - NVIDIA: [Train With Mixed Precision](https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/index.html),
#   on choosing a scaling factor
# - PyTorch: [Automatic Mixed Precision examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html), on clipping and
#   accumulation
