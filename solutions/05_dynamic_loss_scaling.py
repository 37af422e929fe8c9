# %% [markdown]
# # 05 · Dynamic loss scaling
#
# | | |
# |---|---|
# | **Time** | 75 minutes |
# | **Difficulty** | medium |
# | **You need** | [lesson 04](04_static_loss_scaling.ipynb); classes in Python. No GPU: scales, skips and overflows are the same on every machine. |
#
# **After this page you can**
#
# - say when a dynamic scaler halves its scale, when it doubles it, and what each costs;
# - find an overflow among a model's gradients without being fooled;
# - build a scaler that does in every bit what `torch.amp.GradScaler` does, and save it in a checkpoint;
# - read a run's scale like a pulse: what is healthy, and what is not.

# %%
import copy
import json
import math

import matplotlib.pyplot as plt
import torch
from torch import nn

from amp_lab import DynamicLossScaler
from amp_lab.autocast import emulate
from amp_lab.course import check, hint, quiz, solution
from amp_lab.course.lessons.l05.given import ForgetfulScaler
from amp_lab.scaling import LossScaleTooSmall, ScaleRule, ScaleState, simulate
from amp_lab.train.data import digits
from amp_lab.view.plots import COLOURS
from amp_lab.view.scale_history import scale_history
from amp_lab.view.scaler_simulator import scaler_simulator

# %% [markdown]
# As in the last two lessons, FP16 products on a CPU are computed as a Tensor Core would ideally do it, in FP32 and rounded
# once, because few CPUs do it fast themselves. What you write stays plain PyTorch.

# %% tags=["nbval-ignore-output"] reason="describes the machine that runs it"
print(emulate.tensor_cores().start())
torch.set_num_threads(1)  # so small a network is quickest on one thread
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## A scale that fits today
#
# In lesson 04 you looked at the gradients once and picked a scale. But gradients are not made once. Here is a small network
# that learns to read digits, in FP32 first, with nothing in danger. It writes down the size of the largest gradient of every
# step.

# %%
images, labels = (tensor.to(device) for tensor in digits(512))


def set_up():
    torch.manual_seed(0)  # the same start for every run
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    return model, torch.optim.SGD(model.named_parameters(), lr=0.5)


def batches(steps=1000):
    order = torch.Generator().manual_seed(1)  # the same batches for every run
    for _ in range(steps):
        picked = torch.randint(512, (64,), generator=order).to(device)
        yield images[picked], labels[picked]


# %%
model, optimizer = set_up()
peaks, losses_fp32 = [], []
for x, y in batches():
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    largest = max(parameter.grad.abs().max() for parameter in model.parameters())
    peaks.append(largest.item())
    losses_fp32.append(loss.item())
    optimizer.step()

# %% [markdown]
# A scale that is a power of two suits a step as long as scale × largest gradient stays in FP16's range. **Guess first:** you
# pick the largest scale that suits the first step. Of the 999 steps that follow, how many does it suit? And what becomes of the
# largest scale that a step can bear as training goes on: does it stay, rise or fall, and by how much?

# %% tags=["nbval-ignore-output"] reason="the last digits of gradients depend on the processor"
bears = [math.floor(math.log2(65504 / peak)) for peak in peaks]  # as powers of two
first, typical_last = bears[0], sorted(bears[-100:])[50]
suited = [bear >= first for bear in bears[1:]]
print(f"the first step bears 2^{first}; it suits {sum(suited)} of the 999 others")
print(f"the last one that it does not suit is step {999 - suited[::-1].index(False)}")
print(f"the last hundred bear 2^{typical_last} (median)")
print(f"loss: {losses_fp32[0]:.2f} at first, {losses_fp32[-1]:.4f} at last")

# %%
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
axes.plot(bears, color=COLOURS["blue"], linewidth=1, drawstyle="steps-mid")
axes.axhline(first, color=COLOURS["orange"], linestyle="--")
axes.text(999, first - 1, "what the first step bears", ha="right")
axes.set(xlabel="training step", ylabel="largest scale, as a power of 2")
axes.set_title("The largest loss scale that each step can bear")
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
assert 500 < sum(suited) < 990
assert 2 <= typical_last - first <= 5
assert max(bears) - min(bears) >= 6
assert max(losses_fp32[-100:]) < 0.1 * losses_fp32[0]
assert min(bears[:100]) < first

# %% [markdown]
# **What you saw.** Both ways of being wrong in one run. Many of the early steps bear less than the first one did: with its
# scale they overflow. Later the loss falls, the gradients with it, and the same scale leaves more and more of FP16's range
# unused, which is where small gradients die. A scale that is always right has to *move*. Nobody wants to watch it for days. So
# let it move itself.
#
# ## Two rules
#
# How would you find the largest scale that still works, if all that you can see is whether a step has overflowed? Try, fall,
# step back, try again:
#
# - **On overflow**: skip this step (the weights stay as they are), and multiply the scale by the *backoff factor*, ½.
# - **After N clean steps in a row**: multiply it by the *growth factor*, 2. A *clean* step is one without overflow, and N is
#   called the *growth interval*.
#
# That is all that "dynamic" means. Start much too high on purpose, with 2^24. **Guess first:** how many steps are lost before
# the first one counts?


# %%
def one_step(model, optimizer, scaler, x, y):
    with torch.autocast(device, torch.float16):
        loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


# %% tags=["nbval-ignore-output"] reason="which steps overflow depends on the processor"
model, optimizer = set_up()
scaler = DynamicLossScaler(init_scale=2.0**24, growth_interval=20)
for x, y in batches(7):
    one_step(model, optimizer, scaler, x, y)
    outcome = "skipped" if scaler.last.skipped else "counts"
    overflowed = ", ".join(each.name for each in scaler.last.overflowed)
    print(f"scale 2^{math.log2(scaler.last.scale):.0f}: {outcome:8} {overflowed}")

# %%
skipped = scaler.history.skipped
assert skipped[0]
assert not skipped[-1]
assert 2 <= sum(skipped) <= 6

# %% [markdown]
# **What you saw.** A handful: each halves the scale, and each halving costs one batch and nothing else. That is why starting
# too high is harmless, and why PyTorch's scaler starts at 2^16 and not at 1: down it goes one factor of two a *step*, up only
# one factor of two for N clean steps.
#
# (`scaler.last` is an extra of `amp_lab.DynamicLossScaler`, which otherwise does what PyTorch's scaler does. It can tell the
# parameters' names because the optimizer was given `model.named_parameters()`. `print(scaler.last)` tells more: how many
# entries are infinite, and how many NaN, which is what comes of ∞ − ∞ and 0 × ∞ further back in the network.)
#
# ## Is it finite?
#
# All of it hangs on one question: does any gradient hold an infinity or a NaN? A single number that answers for many would be
# handy: their sum, their norm, their maximum. **Guess first:** these FP32 gradients are all finite. Which of the three are,
# too?

# %%
gradient = torch.tensor([3e38, 3e38, -1.0])
print("sum:    ", gradient.sum().item())
print("norm:   ", gradient.norm().item())
print("maximum:", gradient.max().item())

# %% [markdown]
# A sum and a norm can be infinite although nothing in them is. And the maximum here is finite, but it would have been, too,
# with −inf in the place of −1. Whoever asks a shortcut must know what it leaves out. Ask every entry: that is one pass over the
# gradients, which unscaling makes anyway.
#
# Two more things turn up among real gradients: a parameter that had no part in this step has none, `.grad` is `None`; and a
# table of embeddings may have a *sparse* one, which stores only the rows that were looked up:

# %%
embedding = nn.Embedding(1000, 2, sparse=True)
embedding(torch.tensor([7, 7, 42])).sum().backward()
print(embedding.weight.grad.layout, tuple(embedding.weight.grad.shape))
print("rows that are stored:", embedding.weight.grad._indices().tolist()[0])

# %%
assert gradient.isfinite().all()
assert not gradient.sum().isfinite()
assert not gradient.norm().isfinite()
assert torch.tensor([3e38, 3e38, -math.inf]).max().isfinite()

# %% [markdown]
# (Row 7 stands there twice, as it was looked up twice. Both belong to one entry of the gradient, which is their sum.)
#
# ### Exercise 5.1 · Find the overflow
#
# A scaler asks one question before every step: is there an infinity or a NaN in any gradient? Answer it. You get `parameters`
# as `model.parameters()` gives them: something that can be gone through **once**. Return a Python `bool`:
#
# - `True` if any gradient (`.grad`) holds `inf`, `-inf` or a NaN, `False` if all of them are finite, however large;
# - a parameter may have no gradient: then `.grad` is `None`. If there is no gradient at all, nothing has overflowed;
# - gradients are FP32 or FP16, dense or *sparse*: `nn.Embedding(..., sparse=True)` leaves one that stores only the rows that
#   were looked up, and one that is stored twice counts with its sum, in the gradient's own dtype. Many functions refuse those;
#   `grad.to_dense()` writes one out in full, and returns a dense one as it is;
# - leave the gradients as they are, and `.grad` the very tensor that it was.


# %%
def has_overflow(parameters):
    """Return whether any gradient of `parameters` holds an infinity or a NaN."""
    ### BEGIN SOLUTION
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if not parameter.grad.to_dense().isfinite().all():
            return True
    return False
    ### END SOLUTION


# %%
check("5.1", has_overflow)

# %%
# hint("5.1")
# solution("5.1")

# %% [markdown]
# ## The life of a scale
#
# Now the whole run, under FP16 autocast and with a growth interval of 20, very short so that you can see something happen.
# (PyTorch's default is 2,000.)
#
# **Guess first:** does the scale find its place and stay there? And of the 1,000 steps, how many are lost: about 4, 40 or 400?

# %%
model, optimizer = set_up()
scaler = DynamicLossScaler(init_scale=2.0**24, growth_interval=20)
losses = [one_step(model, optimizer, scaler, x, y) for x, y in batches()]
history = scaler.history
scale_history(history, losses, "A thousand steps with a dynamic loss scale")
plt.show()

# %% tags=["nbval-ignore-output"] reason="a step more or less is skipped, depending on the processor"
print(f"{sum(history.skipped)} of {len(history)} steps skipped")
print(f"last loss: {losses[-1]:.4f}, in FP32 {losses_fp32[-1]:.4f}")

# %%
assert 25 <= sum(history.skipped) <= 60
assert abs(losses[-1] - losses_fp32[-1]) < 0.2 * losses_fp32[-1]
assert sorted(history.scales[-100:])[50] >= 2 * sorted(history.scales[20:120])[50]
clean_runs = "".join("x" if each else "." for each in history.skipped).split("x")
assert max(map(len, clean_runs)) < 150  # it never rests

# %% [markdown]
# **What you saw.** It never rests. Every 20 clean steps it doubles, until a step overflows, and falls back: a saw, as close
# under the largest scale that works as one can be without knowing it. And as the gradients shrink, the whole saw climbs. The
# loss does not mind: FP16 ends where FP32 ends.
#
# Each tooth costs one step in about twenty, four in a hundred here. That is the price of asking. With PyTorch's interval of
# 2,000 it is one step in two thousand, and the scale follows a hundred times more slowly. Which interval would *you* take? Try
# it on the gradients of the FP32 run above: `simulate` applies the two rules to them, and counts a step as an overflow where
# scale × largest gradient rounds to infinity.

# %%
scaler_simulator(peaks, simulate, init_scale=2.0**24, growth_interval=20)

# %% [markdown]
# Four things to try:
#
# 1. Growth interval 200, then 5. How many steps are lost, and how far below the grey edge does the scale run?
# 2. Start at 2^0 with interval 200. When does the scale arrive where it should be?
# 3. Start at 2^32. What does a start that is far too high cost?
# 4. Growth factor 8 with interval 20: is bolder better?
#
# The next cells do the same in numbers: how many steps are lost, and by how much the scale could typically have been larger
# (the median over all steps).


# %%
def tried(**settings):
    found = simulate(peaks, **settings)
    room = [bear - math.log2(scale) for bear, scale in zip(bears, found.scales)]
    median, much_too_low = sorted(room)[len(room) // 2], sum(each >= 4 for each in room)
    return sum(found.skipped), median, much_too_low


start = {"init_scale": 2.0**24}
settings = {"interval 20": start | {"growth_interval": 20}}
settings["interval 200"] = start | {"growth_interval": 200}
settings["interval 5"] = start | {"growth_interval": 5}
settings["start at 2^0, interval 200"] = {"init_scale": 1.0, "growth_interval": 200}
settings["start at 2^32, interval 20"] = {"init_scale": 2.0**32, "growth_interval": 20}
bold = {"growth_interval": 20, "growth_factor": 8.0}
settings["growth factor 8, interval 20"] = start | bold

# %% tags=["nbval-ignore-output"] reason="the last digits of gradients depend on the processor"
found = {name: tried(**each) for name, each in settings.items()}
print(f"{'':29} lost   could be as many times larger   16 times or more")
for name, (lost, room, low) in found.items():
    print(f"{name:29} {lost:4}   {2.0**room:29,.0f}   {low:10} steps")

# %%
lost = {name: each[0] for name, each in found.items()}
assert lost["interval 200"] < 0.5 * lost["interval 20"] < 0.25 * lost["interval 5"]
assert lost["start at 2^0, interval 200"] == 0
assert found["start at 2^0, interval 200"][2] == 1000
assert 6 <= lost["start at 2^32, interval 20"] - lost["interval 20"] <= 10
assert lost["growth factor 8, interval 20"] > 1.5 * lost["interval 20"]

# %% [markdown]
# **What you saw.** An interval of 5 runs no nearer to the edge than 20, it only falls off more often; 200 loses almost nothing
# and lags behind. A start that is too low is the dangerous one: nothing is skipped, nothing complains, and all thousand steps
# train with a scale that is far too small, which lesson 04 saw small gradients die of. Too high costs one step for each power
# of two, once. And bold growth is paid back in skipped steps: after ×8 one halving is not enough.
#
# ### Exercise 5.2 · The next scale
#
# Write the rule itself, as a *pure* function: it takes the state after the last step and returns the state after this one, and
# changes nothing. (`amp_lab`'s scaler can have a floor, PyTorch's cannot; here there always is one.) State and settings are
# objects that nobody can change by accident:
#
# | | |
# |---|---|
# | `ScaleState(scale, clean_steps)` | the scale, and the count: how many clean steps in a row, since the last overflow or growth |
# | `ScaleRule(growth_factor, backoff_factor, growth_interval, min_scale)` | the settings; `min_scale` is the floor |
#
# - **Overflow:** the scale is multiplied by `backoff_factor`, but does not sink below `min_scale` (it never starts below); the
#   count starts again at 0.
# - **Clean step:** one more counts. With the one that makes it `growth_interval` in a row, the scale is multiplied by
#   `growth_factor`, and the count starts again at 0.
#
# Return a new `ScaleState`.


# %%
def next_scale(state, overflowed, rule):
    """Return the `ScaleState` after a step that `overflowed` or was clean."""
    ### BEGIN SOLUTION
    if overflowed:
        smaller = state.scale * rule.backoff_factor
        return ScaleState(max(smaller, rule.min_scale), clean_steps=0)
    clean_steps = state.clean_steps + 1
    if clean_steps >= rule.growth_interval:
        return ScaleState(state.scale * rule.growth_factor, clean_steps=0)
    return ScaleState(state.scale, clean_steps)
    ### END SOLUTION


# %%
check("5.2", next_scale)

# %%
# hint("5.2")
# solution("5.2")

# %% [markdown]
# ## Four calls
#
# Rules are half of a scaler. The other half is *when* what happens, for a loop wants to do things in between. Clipping must see
# the true gradients, so there must be a moment when they are unscaled and the step is not yet made. A GAN, two networks that
# train against each other, has two optimizers and one scale. Hence four calls:
#
# | call | what it does |
# |---|---|
# | `scale(loss)` | multiplies the loss, so that all gradients come out scaled |
# | `unscale_(optimizer)` | divides this optimizer's gradients by the scale, and looks for infinities and NaN meanwhile. May be left out |
# | `step(optimizer)` | unscales, if nobody has; then calls `optimizer.step()`, or does not |
# | `update()` | ends the iteration: only now may the scale change |
#
# **Guess first:** two optimizers, and the gradients of the first overflow. Is the second one skipped, too? By how much does the
# scale fall, if *both* overflow: half or a quarter?


# %%
def two_losses(first_overflows, second_overflows):
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    weights = [nn.Parameter(torch.ones(1, device=device)) for _ in range(2)]
    optimizers = [torch.optim.SGD([weight], lr=0.5) for weight in weights]
    for weight, overflows in zip(weights, (first_overflows, second_overflows)):
        scaler.scale((weight * (math.inf if overflows else 1.0)).sum()).backward()
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    return [weight.item() for weight in weights], scaler.get_scale()


for overflows in ((False, False), (True, False), (True, True)):
    weights, scale = two_losses(*overflows)
    print(f"overflow {overflows!s:15} weights {weights}   scale {scale:.0f}")

# %% [markdown]
# **What you saw.** Every optimizer is judged by its own gradients: the second one steps although the first does not. The scale
# belongs to all, and falls once however many overflowed. (Is it good that one of two networks steps alone? That is for you to
# say; PyTorch does not ask.)
#
# The order matters so much that PyTorch's scaler keeps book, and refuses what makes no sense. Five loops with a fault:
# `unscale_` twice; `step` twice; `unscale_` after `step`; `update` with neither `unscale_` nor `step` before it; a `step` and
# then no `update`. **Guess first:** which one of them does it *not* refuse?


# %%
def refuses(*calls):
    scaler = torch.amp.GradScaler(device, init_scale=1024.0)
    weight = nn.Parameter(torch.ones(1, device=device))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler.scale(weight.sum()).backward()
    try:
        for call in calls:
            call(scaler, optimizer)
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]


unscale_, step = torch.amp.GradScaler.unscale_, torch.amp.GradScaler.step


def update(scaler, optimizer):
    scaler.update()


# %% tags=["nbval-ignore-output"] reason="the words are PyTorch's, and may change with its version"
refused = {"unscale_ twice": refuses(unscale_, unscale_)}
refused["step twice"] = refuses(step, step)
refused["unscale_ after step"] = refuses(step, unscale_)
refused["update alone"] = refuses(update)
refused["step, but no update"] = refuses(unscale_, step)
for name, why in refused.items():
    print(f"{name:20} {why or 'not refused'}")

# %% [markdown]
# Only the last one: that a call is missing can be seen only when the next one comes. (The second `step` would be refused.) Nor
# does it see that `step` is missing if `unscale_` was called, as by somebody who clips and then forgets it: `update` has been
# told of the gradients, and is content. And some mistakes no order of calls gives away, such as a `loss.backward()` that forgot
# its `scale`. Lesson 07 has a clinic full of them.

# %%
assert two_losses(False, False) == ([0.5, 0.5], 1024)
assert two_losses(True, False) == ([1, 0.5], 512)
assert two_losses(True, True) == ([1, 1], 512)
assert [name for name, why in refused.items() if not why] == ["step, but no update"]
assert refuses(unscale_, update) is None

# %% [markdown]
# ### Exercise 5.3 · A scaler of your own
#
# Now build it: a class that can take the place of `torch.amp.GradScaler`. A training loop calls it like this:
#
# ```python
# scaler.scale(loss).backward()
# scaler.unscale_(optimizer)   # only if somebody wants to see or clip the true gradients before the step
# scaler.step(optimizer)       # once for each optimizer
# scaler.update()              # once, at the end of the iteration
# ```
#
# - `scale(loss)` returns loss × scale as a new FP32 tensor that `backward()` can go through; `loss` stays as it is. The loss is
#   a single number, FP32 or FP16 (whose largest number is 65504, so multiply in FP32).
# - `unscale_(optimizer)` divides the gradients of *all* parameters of this optimizer by the scale, and remembers whether one of
#   them holds an infinity or a NaN. Even then it divides all of them, and leaves in place what it found: whoever looks for the
#   cause must see it. The parameters lie in `optimizer.param_groups`, a list of dicts: `group["params"]`. They are FP32; a
#   `.grad` may be `None`.
# - `step(optimizer)` unscales, unless `unscale_` did so already in this iteration. Then it calls `optimizer.step()`, unless
#   *this* optimizer's gradients overflowed. What `unscale_` found counts, even if clipping has made an infinity finite since
#   then.
# - `update()` multiplies the scale by `backoff_factor` if *any* optimizer overflowed since the last update, once, however many
#   did, and even if the `step` of the one that did was left out. Otherwise the iteration was clean, and with the one that makes
#   it `growth_interval` in a row the scale is multiplied by `growth_factor`. Nothing but `update()` changes the scale, and
#   there is no floor.
#
# The check puts your scaler and PyTorch's through the same random training runs, with one to three optimizers, and compares
# them bit by bit: scales, skipped steps, gradients, weights. (All factors are powers of two, so it does not matter how you
# divide.) A class that has a finished scaler inside is not your own.


# %%
class LossScaler:
    """A dynamic loss scaler that does what `torch.amp.GradScaler` does."""

    def __init__(
        self,
        init_scale=65536.0,
        growth_factor=2.0,
        backoff_factor=0.5,
        growth_interval=2000,
    ):
        self.loss_scale = init_scale
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        # What else must it remember from one call to the next?
        ### BEGIN SOLUTION
        self.clean_steps = 0
        self.overflowed = {}  # optimizer -> bool, for those unscaled since update()
        ### END SOLUTION

    def scale(self, loss):
        """Return the scaled loss, in FP32."""
        ### BEGIN SOLUTION
        return loss.float() * self.loss_scale
        ### END SOLUTION

    def unscale_(self, optimizer):
        """Unscale the gradients of `optimizer` in place, and note if one overflowed."""
        ### BEGIN SOLUTION
        params = [p for group in optimizer.param_groups for p in group["params"]]
        grads = [p.grad for p in params if p.grad is not None]
        self.overflowed[optimizer] = not all(g.isfinite().all() for g in grads)
        for grad in grads:
            grad /= self.loss_scale
        ### END SOLUTION

    def step(self, optimizer):
        """Let `optimizer` make its step, unless its gradients overflowed."""
        ### BEGIN SOLUTION
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        if not self.overflowed[optimizer]:
            optimizer.step()
        ### END SOLUTION

    def update(self):
        """End the iteration: back off, grow or keep the scale."""
        ### BEGIN SOLUTION
        self.clean_steps += 1
        if any(self.overflowed.values()):
            self.loss_scale *= self.backoff_factor
            self.clean_steps = 0
        elif self.clean_steps == self.growth_interval:
            self.loss_scale *= self.growth_factor
            self.clean_steps = 0
        self.overflowed.clear()
        ### END SOLUTION


# %%
check("5.3", LossScaler)

# %%
# hint("5.3")
# solution("5.3")

# %% [markdown]
# The check has compared your scaler with PyTorch's. `amp_lab.DynamicLossScaler` passes the same comparison over a hundred
# thousand random steps, and you can read it: its rule is one function, `next_scale`; where yours has a loop, it lets PyTorch's
# fused kernel unscale all gradients at once. Here are both, on the run from above. (Solved 5.3? Put `LossScaler(2.0**24,
# growth_interval=20)` in the place of PyTorch's.)


# %%
def trained(scaler, steps=300):
    model, optimizer = set_up()
    scales = []
    for x, y in batches(steps):
        scales.append(scaler.scale(torch.tensor(1.0, device=device)).item())
        one_step(model, optimizer, scaler, x, y)
    return model, scales


def weights(model):
    return nn.utils.parameters_to_vector(model.parameters())


# %%
torchs = torch.amp.GradScaler(device, init_scale=2.0**24, growth_interval=20)
ours = DynamicLossScaler(init_scale=2.0**24, growth_interval=20)
(torchs_model, torchs_scales), (our_model, our_scales) = trained(torchs), trained(ours)
print("all scales equal: ", torchs_scales == our_scales)
print("all weights equal:", torch.equal(weights(torchs_model), weights(our_model)))

# %%
assert torchs_scales == our_scales
assert torch.equal(weights(torchs_model), weights(our_model))
assert 2.0**19 <= ours.get_scale() <= 2.0**21

# %% [markdown]
# ## After a restart
#
# A checkpoint holds the model and the optimizer. Suppose the job is killed now, after 300 steps, with the scale near 2^20.
# **Guess first:** it is resumed with a new scaler that starts at 2^24, like the first one. About how many of the next 20 steps
# are lost? And how many with the default start, 2^16?


# %%
def resumed(scaler):
    model = copy.deepcopy(our_model)  # as it was after 300 steps
    optimizer = torch.optim.SGD(model.named_parameters(), lr=0.5)
    lost = 0
    for x, y in list(batches(320))[300:]:
        scale = scaler.get_scale()
        one_step(model, optimizer, scaler, x, y)
        lost += scaler.get_scale() < scale
    return weights(model), lost


# %% tags=["nbval-ignore-output"] reason="how many steps are lost depends on the processor"
saved = json.loads(json.dumps(ours.state_dict()))  # a checkpoint, by way of a file
print("saved:", saved)
restored = DynamicLossScaler()
restored.load_state_dict(saved)
runs = {"not interrupted": ours, "a new one at 2^24": DynamicLossScaler(2.0**24)}
runs |= {"a new one at 2^16": DynamicLossScaler(), "the saved one": restored}
ends, lost = {}, {}
for name, scaler in runs.items():
    ends[name], lost[name] = resumed(scaler)
    same = torch.equal(ends[name], ends["not interrupted"])
    print(f"{name:18} {lost[name]} of 20 steps lost; as if not interrupted: {same}")

# %%
assert saved.keys() == DynamicLossScaler().state_dict().keys()
assert torch.equal(ends["the saved one"], ends["not interrupted"])
assert lost["a new one at 2^24"] >= 3 > lost["the saved one"]
assert lost["a new one at 2^16"] == 0

# %% [markdown]
# **What you saw.** Too high again costs a few steps. 2^16 loses none and is too low, the silent side: with an interval of 2,000
# the scale would need thousands of steps to come back. And neither of the two runs ends as the one that was not interrupted: no
# resume is exact without the scaler's state. It is five numbers; save them. (One of them is the count of clean steps. Forget
# it, and the next doubling comes late.)
#
# ### Exercise 5.4 · Remember across restarts
#
# A job is killed and started again. Weights and optimizer come back from the checkpoint; a new scaler would begin at 65536
# again, which may be too low, or so high that it skips steps that the old one had long learnt to avoid. `ForgetfulScaler` is a
# finished scaler, but cannot be saved. This is all that it keeps:
#
# | attribute | |
# |---|---|
# | `loss_scale` | the scale, a 0-dim FP32 tensor, as in PyTorch's own scaler |
# | `clean_steps` | clean updates in a row, an `int` |
# | `growth_factor`, `backoff_factor`, `growth_interval` | its settings: two `float`, one `int` |
# | `overflowed` | what `unscale_` found in this iteration, by optimizer; empty after `update()` |
#
# Give it the two methods. Both are called between iterations, after `update()`.
#
# - `state_dict()` returns a new `dict` of *plain numbers*, each an `int` or a `float` under a name of your choice. It must
#   survive `json.loads(json.dumps(state))`, and must not change when the scaler goes on.
# - `load_state_dict(state)` makes this scaler go on exactly as the saved one would have gone on, whatever it was made with and
#   has done before. It leaves `state` as it is: another scaler may load the same one.


# %%
class ResumableScaler(ForgetfulScaler):
    """A scaler that a checkpoint can hold."""

    def state_dict(self):
        """Return all that decides how this scaler goes on, as plain numbers."""
        ### BEGIN SOLUTION
        return {
            "scale": self.loss_scale.item(),
            "clean_steps": self.clean_steps,
            "growth_factor": self.growth_factor,
            "backoff_factor": self.backoff_factor,
            "growth_interval": self.growth_interval,
        }
        ### END SOLUTION

    def load_state_dict(self, state):
        """Go on as the scaler would have whose `state_dict()` this is."""
        ### BEGIN SOLUTION
        self.loss_scale.fill_(state["scale"])
        self.clean_steps = state["clean_steps"]
        self.growth_factor = state["growth_factor"]
        self.backoff_factor = state["backoff_factor"]
        self.growth_interval = state["growth_interval"]
        ### END SOLUTION


# %%
check("5.4", ResumableScaler)

# %%
# hint("5.4")
# solution("5.4")

# %% [markdown]
# ## In practice: five lives of a scale
#
# **1. "My first step is skipped! Is it a bug?"** No: it is how a dynamic scaler finds its place. A scheduler that is stepped in
# that iteration warns, since the optimizer has not been: lesson 07.
#
# **2. A loop without `zero_grad`.** Skipping leaves the gradients where they are, infinite. Suppose a loop forgets to clear
# them, or does so only after a step that counted. **Guess first:** what does the scale do, and does anything complain?


# %%
def sinking(scaler, steps):
    model, optimizer = set_up()
    for step, (x, y) in enumerate(batches(steps)):
        with torch.autocast(device, torch.float16):
            loss = nn.functional.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        # no zero_grad: what is infinite or NaN stays so, whatever is added
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}: loss {loss:.1f}, scale {scaler.get_scale():g}")


sinking(torch.amp.GradScaler(device, init_scale=2.0**24), 200)

# %% [markdown]
# Halved in every step, down to zero, without a word; the loss stays finite and where it was, for no step was ever made. A NaN
# in the data or in a weight looks the same from here: *no* scale can cure it. Where PyTorch goes on, a floor can stop and say
# why:

# %% tags=["nbval-ignore-output"] reason="which parameters overflow depends on the processor"
try:
    sinking(DynamicLossScaler(init_scale=2.0**24, min_scale=1.0), 50)
except LossScaleTooSmall as error:
    stopped = error
print(f"{type(stopped).__name__}: {stopped}")

# %% [markdown]
# **3. A scaler made inside the loop.** Each iteration then starts at 2^16 again. If that overflows, nothing is ever learnt, and
# if not, the scale never moves. Make it once, beside the optimizer.
#
# **4. "Was this step skipped?"** **Guess first:** which of these tells you: what `step` returns, or that the scale has changed?

# %%
weight = nn.Parameter(torch.ones(1, device=device))
optimizer = torch.optim.SGD([weight], lr=0.1)
scaler = DynamicLossScaler(init_scale=1024.0, growth_interval=1)
for slope in (1.0, math.inf):
    before = scaler.get_scale()
    optimizer.zero_grad()
    scaler.scale((slope * weight).sum()).backward()
    returned = scaler.step(optimizer)
    scaler.update()
    print(f"a gradient of {slope}: step returned {returned}, ", end="")
    print(f"the scale went {before:.0f} -> {scaler.get_scale():.0f};", scaler.last)

# %% [markdown]
# Neither. `step` returns what `optimizer.step()` returned, which for most is `None` as well; and the scale changes when it
# *grows*, too. With PyTorch's scaler, ask whether it has become *smaller* (which it cannot at 0). `DynamicLossScaler` keeps a
# record: `scaler.last.skipped`. (Counting calls of `optimizer.step` does not work with optimizers made with `fused=True`: they
# are called in any case, and skip inside.)
#
# **5. Everything that moves with a step.** Learning-rate schedules, moving averages of weights, counters of steps, running
# means of the loss: on a skipped step they go on, although nothing was learnt, and one `inf` poisons a running mean for ever.
# Let them wait for a step that counts.

# %%
assert scaler.get_scale() == 1024
assert returned is None
assert scaler.history.skipped == [False, True]
assert "min_scale" in str(stopped)

# %% [markdown]
# ## Takeaways
#
# - Overflow: skip, halve. N clean steps in a row: double. So the scale stays just under the edge, wherever the gradients take
#   it.
# - A start that is too high costs one step per power of two; one that is too low costs small gradients, in silence.
# - An overflow is one infinity or NaN in any gradient. Look at every entry; sums, norms and maxima can lie.
# - Each optimizer is skipped for its own gradients only; the scale changes once, in `update()`.
# - The scaler belongs in the checkpoint: scale, count of clean steps, and its three settings.
# - A scale that only sinks is a message: something is infinite at *every* scale.
#
# ## Quiz
#
# Pick an answer and read what it says; the wrong ones are worth a click, too.

# %%
quiz("05")

# %% [markdown]
# **Further reading**
#
# - PyTorch: [Automatic Mixed Precision package - torch.amp](https://docs.pytorch.org/docs/stable/amp.html), with the section on
#   gradient scaling
# - PyTorch: [Automatic Mixed Precision examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html), for several
#   optimizers, accumulation and penalties
# - NVIDIA: [Train With Mixed Precision](https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/index.html),
#   on choosing a scaling factor
# - Paulius Micikevicius et al.: [Mixed Precision Training](https://arxiv.org/abs/1710.03740), ICLR 2018
