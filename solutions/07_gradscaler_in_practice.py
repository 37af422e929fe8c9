# %% [markdown]
# # 07 · GradScaler in practice
#
# | | |
# |---|---|
# | **Time** | 195 minutes |
# | **Difficulty** | medium |
# | **You need** | lessons [05](05_dynamic_loss_scaling.ipynb) and [06](06_autocast.ipynb). No GPU: what goes wrong in a loop goes wrong on a CPU, too. |
#
# **After this page you can**
#
# - write an AMP training loop, and say of each line what breaks without it;
# - clip, accumulate, share a scaler between optimizers, schedule, penalise gradients, save and resume, all under a loss scale;
# - let `amp_lab.watch` look at a loop that trains badly, and read what it says;
# - start from a symptom (NaN, a loss that stands still, a scale that sinks) and get to the cause in a few tests;
# - find the operator in which an overflow begins, and tell whether a smaller scale can cure it.

# %%
import contextlib
import copy
import math
import tempfile
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from IPython.display import Markdown
from torch import nn
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab import ScaleCollapsed, find_overflow, watch
from amp_lab.autocast import emulate
from amp_lab.course import check, hint, quiz, solution
from amp_lab.course.lessons.l07 import faulty
from amp_lab.course.lessons.l07.logs import draw_logs, fault_list, log_table
from amp_lab.course.lessons.l07.tree import draw_tree
from amp_lab.train.data import digits
from amp_lab.view.few_colours import few_colours
from amp_lab.view.plots import COLOURS
from amp_lab.watching.logs.diagnosing import diagnose

# %% tags=["nbval-ignore-output"] reason="describes the machine that runs it"
print(emulate.tensor_cores().start())
torch.set_num_threads(1)  # so small a network is quickest on one thread
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## The loop, line by line
#
# Here is the whole loop, with everything that the last lessons have built, on the digits of lesson 05. It is kept as text,
# since you are about to break it. The scaler starts at 2^24, far too high: so the first steps overflow, as sooner or later one
# does in every long run.

# %%
LOOP = """
for x, y in batches():
    opt.zero_grad()
    with torch.autocast(device, torch.float16):
        loss = F.cross_entropy(net(x), y)
    amp.scale(loss).backward()
    amp.unscale_(opt)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    amp.step(opt)
    amp.update()
    losses.append(loss.item())
"""

# %%
images, labels = (tensor.to(device) for tensor in digits(512))


def batches(steps=100):
    order = torch.Generator().manual_seed(1)  # the same batches for every run
    for _ in range(steps):
        picked = torch.randint(512, (64,), generator=order).to(device)
        yield images[picked], labels[picked]


def set_up(lr=0.5, init_scale=2.0**24, optimizer=torch.optim.SGD):
    torch.manual_seed(0)  # the same start for every run
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    opt = optimizer(net.parameters(), lr=lr)
    return net, opt, torch.amp.GradScaler(device, init_scale=init_scale)


# %% [markdown]
# Now break it in eight ways: without `zero_grad`, `autocast`, `scale`, `unscale_`, `step` or `update`; with `opt.step()` in
# place of `amp.step(opt)`; with the clipping before `unscale_`. **Guess first:** how many of the eight does PyTorch refuse, and
# how many reach the same loss as the right loop?

# %%
unscale, clip = "amp.unscale_(opt)", "nn.utils.clip_grad_norm_(net.parameters(), 1.0)"
BROKEN = {
    "the loop as it stands": ("", ""),
    "no zero_grad": ("opt.zero_grad()", "pass"),
    "no autocast": ("with torch.autocast(device, torch.float16)", "if True"),
    "no scale": ("amp.scale(loss)", "loss"),
    "no unscale_": (unscale, "pass"),
    "clip before unscale_": (f"{unscale}\n    {clip}", f"{clip}\n    {unscale}"),
    "no step": ("amp.step(opt)", "pass"),
    "opt.step()": ("amp.step(opt)", "opt.step()"),
    "no update": ("amp.update()", "pass"),
}


# %%
def outcome(broken):
    net, opt, amp = set_up()
    names = {**globals(), "net": net, "opt": opt, "amp": amp, "losses": []}
    try:
        exec(LOOP.replace(*broken), names)
    except (RuntimeError, AssertionError) as error:
        return f"refused: {str(error)[:40]}...", math.nan, amp
    return "", names["losses"][-1], amp


# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor, the messages on PyTorch"
found = {name: outcome(broken) for name, broken in BROKEN.items()}
print(f"{'':23}last loss   last scale")
for name, (refused, last, amp) in found.items():
    print(f"{name:23}{last:9.3f}   {amp.get_scale():10.3g}   {refused}")

# %%
last = {name: each[1] for name, each in found.items()}
right = last.pop("the loop as it stands")
refused = {name for name, each in found.items() if each[0]}
same = {name for name, loss in last.items() if abs(loss - right) < 0.2 * right}
assert refused == {"no scale", "no update"}
assert same == {"no autocast"}
assert math.isnan(last["opt.step()"])
assert found["no zero_grad"][2].get_scale() < 1e-10

# %% [markdown]
# **What you saw.** Two are refused. One reaches the same loss: without autocast everything is FP32, so nothing needs a scale,
# and nothing is faster for it. The other five run to the end without a word. Four of them have learnt nothing (ln 10 = 2.30 is
# what guessing gives), and one has NaN.
#
# That is the trouble with AMP: most mistakes are silent, and a flat loss looks the same whatever is behind it. So each line,
# and what it is for:
#
# | line | what it is for | without it |
# |---|---|---|
# | `opt.zero_grad()` | throws the gradients of the last step away, infinite ones above all | after one overflow, every step is skipped |
# | `with torch.autocast(...)` | FP16 where it is safe (lesson 06); ends before `backward()` | everything FP32 |
# | `amp.scale(loss).backward()` | gradients times the scale, out of FP16's underflow (lesson 04) | refused in a new run; once something has been scaled, silent |
# | `amp.unscale_(opt)` | the true gradients, for whoever looks at them before the step | clipping sees gradients times the scale |
# | `clip_grad_norm_(...)` | what you want to do with true gradients | |
# | `amp.step(opt)` | steps, unless a gradient is infinite or NaN | no step, or one with infinities |
# | `amp.update()` | halves or doubles the scale; begins the next iteration | refused in the next iteration |
#
# ## A doctor for loops
#
# `amp_lab.watch` looks at a loop while it runs. The loop stays as it is: put it in a `with`, and ask for a report. It notes the
# calls (which region, which scale, what clipping saw, which step was skipped) and hardly any of your model's numbers, and it
# changes nothing. (But it stops a run whose scale has sunk to nothing: patient 1.) Here is the loop that clips before it
# unscales. **Guess first:** the true norm is about a third. Which norm does clipping see: about a third, some hundreds, or
# hundreds of thousands?

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
net, opt, amp = set_up()
with watch(net, opt, amp) as seen:
    for x, y in batches():
        opt.zero_grad()
        with torch.autocast(device, torch.float16):
            loss = F.cross_entropy(net(x), y)
        amp.scale(loss).backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        amp.step(opt)
        amp.update()
seen.report()

# %%
assert seen.report().ids == ("clip-before-unscale",)

# %% [markdown]
# **How to read it.** One sentence says what is wrong, with the numbers that were seen. Then where, in your code; and the change
# that cures it, as a diff: lines with `+` come in, lines with `-` go out. Where no single line would do, it says in words what
# to do. What follows *from* the mistake is listed below it, so that one cause is one diagnosis.
#
# A run can have a million steps, so `watch` does not keep them all: the first 16, the last 32, and any in which something else
# happened than before, such as a skip. Those are the steps "looked at"; of the others it keeps counts, skips and scales.
#
# A healthy loop gets a line that says so:

# %% tags=["nbval-ignore-output"] reason="which steps overflow depends on the processor"
net, opt, amp = set_up()
losses = []
with watch(net, opt, amp) as seen:
    exec(LOOP)
seen.report()

# %%
assert seen.report().ok

# %% [markdown]
# A handful of skipped steps is no disease: some at the start, and now and then one where gradients are at their largest, as you
# saw in lesson 05.
#
# The rest of this page is a clinic: nine patients, seven of them loops as people really post them. Look at the symptom, guess,
# read the report, and write the loop right. If yours goes wrong, the check watches it, too, and tells you what the watcher
# says.

# %% [markdown]
# ## Patient 1: it stood still overnight
#
# *"It trained well for days. Then I raised the initial scale, and now the loss does not move at all. It is finite in every
# step!"* The colleague has forgotten `zero_grad`, and in FP32 would have noticed: gradients of all steps add up. **Guess
# first:** why did it train well, and what does one overflow change?

# %%
last_losses = []
for exponent in (16, 24):  # nothing overflows with the first
    net, opt, amp = set_up(init_scale=2.0**exponent)
    for x, y in batches(200):
        with torch.autocast(device, torch.float16):
            loss = F.cross_entropy(net(x), y)
        amp.scale(loss).backward()
        amp.step(opt)
        amp.update()
    last_losses.append(loss.item())
    print(f"scale 2^{exponent}: {amp.get_scale():.0f} at last, loss {loss:.2f}")

# %% [markdown]
# And watched. `watch` ends such a run with an exception, `ScaleCollapsed`, which is caught here:

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
net, opt, amp = set_up(init_scale=2.0**24)
try:
    with watch(net, opt, amp) as seen:
        for x, y in batches(200):
            with torch.autocast(device, torch.float16):
                loss = F.cross_entropy(net(x), y)
            amp.scale(loss).backward()
            amp.step(opt)
            amp.update()
except ScaleCollapsed as stopped:
    print(f"{type(stopped).__name__}: {str(stopped).split(',')[0]} ...")
seen.report()

# %%
assert last_losses[0] < 0.2 < 2 < last_losses[1]
assert seen.report().ids == ("zero-grad-missing",)
assert amp.get_scale() == 2.0**-25

# %% [markdown]
# **What you saw.** The scaler had hidden the mistake. `step` divides the gradients by the scale where they are; the next
# `backward()` adds gradients that are 2^16 times too large, and the next `step` divides both. What was left of the last step
# then counts 1/65,536 of the new. That is almost as good as zeroing.
#
# Until the first infinity: ∞ divided by any scale is ∞, and ∞ plus anything is ∞ or NaN. From then on every step is skipped,
# the scale is halved each time, and in the end it is 0, without one message. The loss is finite since the weights stay as they
# are. A floor for the scale would have told: `DynamicLossScaler(min_scale=1.0)` stops with a reason (lesson 05). So does
# `watch`: below 2^-24 it raises `ScaleCollapsed` with the cause, since nothing is learnt any more. (`min_scale=None`: never.)
#
# The more common form of this has a `zero_grad`, but at the end of the iteration, and in front of it: `if not norm.isfinite():
# continue`.
#
# ### Exercise 7.1 · The canonical step
#
# One training step in FP16, as it should be.
#
# - Whatever the gradients hold from before, infinities as well, must not count. The batch stays as it is.
# - Model and inputs are on the same device, whichever that is: `inputs.device.type`. Autocast is `torch.float16`; the backward
#   pass runs outside of its region.
# - A step whose gradients overflow is skipped, and the scale is adapted, once for each call.
# - Return the loss: a tensor, *detached* (not part of a graph any more), and not scaled.
#
# `scaler` is PyTorch's `GradScaler` or `amp_lab`'s `DynamicLossScaler`, here and in all exercises that follow.


# %%
def training_step(model, optimizer, scaler, loss_function, inputs, targets):
    """Make one training step in FP16, and return the loss: detached, not scaled."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    with torch.autocast(inputs.device.type, torch.float16):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss.detach()
    ### END SOLUTION


# %%
check("7.1", training_step)

# %%
# hint("7.1")
# solution("7.1")

# %% [markdown]
# ## Patient 2: clipped to a standstill
#
# You have met this loop above: clipping before `unscale_`. Its loss stood still. **Guess first:** with a scale of 2^10, how
# many times smaller than meant is a step? And what happens when somebody raises `max_norm` to 1,000 because "clipping was too
# strong"?


# %%
def first_update(max_norm, unscale_first, init_scale=2.0**10):
    net, opt, amp = set_up(init_scale=init_scale)
    before = net[0].weight.detach().clone()
    x, y = next(batches())
    with torch.autocast(device, torch.float16):
        loss = F.cross_entropy(net(x), y)
    amp.scale(loss).backward()
    if unscale_first:
        amp.unscale_(opt)
    saw = nn.utils.clip_grad_norm_(net.parameters(), max_norm)
    amp.step(opt)
    return saw.item(), (net[0].weight - before).norm().item()


# %%
for max_norm in (0.1, 1000.0):
    for first in (True, False):
        saw, update = first_update(max_norm, first)
        order = "unscale_, clip" if first else "clip, unscale_"
        print(f"max_norm {max_norm:6}   {order}: saw {saw:7.2f}, update {update:.2e}")

# %%
small = [first_update(0.1, first)[1] for first in (True, False)]
large = [first_update(1000.0, first)[1] for first in (True, False)]
assert 1000 < small[0] / small[1] < 1050
assert math.isclose(*large, rel_tol=1e-3)

# %% [markdown]
# **What you saw.** 1,024 times: the scale. Only the length of the step is wrong, not its direction. With a `max_norm` of 1,000
# nothing is clipped here at this scale, and both orders agree: the fault is only asleep. When the scale has doubled a few times
# it wakes up. A limit that means something else every 2,000 steps is no limit.
#
# ### Exercise 7.2 · Clip what is true
#
# The step of 7.1, with gradients clipped to a total norm of at most `max_norm`, as `nn.utils.clip_grad_norm_` does.
#
# Return the total norm of the *true* gradients before clipping, a tensor of shape `()`. If a gradient is infinite or NaN, so is
# the norm; the step is then skipped as ever, and nothing raises.


# %%
def clipped_step(model, optimizer, scaler, loss_function, inputs, targets, max_norm):
    """Make a step clipped to `max_norm`; return the norm of the true gradients."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    with torch.autocast(inputs.device.type, torch.float16):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return norm
    ### END SOLUTION


# %%
check("7.2", clipped_step)

# %%
# hint("7.2")
# solution("7.2")

# %% [markdown]
# ## Patient 3: two doctors, two mistakes
#
# *"My batch does not fit, so I accumulate gradients over four micro-batches."* The first version puts everything into the inner
# loop. **Guess first:** what is refused, and at which micro-batch?

# %% tags=["nbval-ignore-output"] reason="the message belongs to the installed PyTorch"
net, opt, amp = set_up(init_scale=2.0**16)
stream = list(batches(20))
try:
    with watch(net, opt, amp) as seen:
        for start in range(0, 20, 4):
            for x, y in stream[start : start + 4]:
                with torch.autocast(device, torch.float16):
                    loss = F.cross_entropy(net(x), y) / 4
                amp.scale(loss).backward()
                amp.unscale_(opt)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            amp.step(opt)
            amp.update()
            opt.zero_grad()
except RuntimeError as error:
    print(error)

# %% tags=["nbval-ignore-output"] reason="the message belongs to the installed PyTorch"
seen.report()

# %%
assert seen.report()["unscale-each-micro-batch"]

# %% [markdown]
# The second `unscale_` is refused, and rightly: the gradients that it would divide are a sum, of a part that is unscaled
# already and a new one that is not. `unscale_`, clipping, step and update belong to the *whole* batch: after the loop, once.
#
# The second version does that, and runs. But the epoch has 10 micro-batches and the window is 4, so the last window has two;
# and the last micro-batch of all is short. **Guess first:** how large is the last window's gradient, compared with what it
# should be?

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
sizes = [48] * 9 + [16]
net, opt, amp = set_up(init_scale=2.0**16)
pieces = list(zip(images[: sum(sizes)].split(sizes), labels[: sum(sizes)].split(sizes)))
with watch(net, opt, amp) as seen:
    for number, (x, y) in enumerate(pieces, start=1):
        with torch.autocast(device, torch.float16):
            loss = F.cross_entropy(net(x), y) / 4
        amp.scale(loss).backward()
        if number % 4 == 0 or number == len(pieces):
            amp.unscale_(opt)
            norm = nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            amp.step(opt)
            amp.update()
            opt.zero_grad()
seen.report()
# %%
assert "last-window-short" in seen.report()

# %% [markdown]
# About half: two of four parts, divided by four. And there is a second fault, which the report need not tell any more: a
# micro-batch of 16 weighs as much as one of 48, so each of its samples counts three times. Neither shows in a loss curve.
#
# The mean over a batch is the mean over its parts, each *weighted by its share of the samples*. Weight the loss, before it is
# scaled; then gradients simply add up, for any number and size of parts.
#
# ### Exercise 7.3 · One step from several micro-batches
#
# `micro_batches` is a list of pairs (inputs, targets), one or more, of any sizes. Make **one** step: the one that all samples
# as a single batch would make, up to rounding, with gradients clipped to `max_norm`. Memory is short, so never two graphs at
# once: forward and backward pass of a micro-batch, then those of the next. `loss_function` gives the mean over the samples it
# gets; `len(inputs)` says how many.
#
# Return the loss of the whole batch: detached, not scaled.


# %%
def accumulated_step(model, optimizer, scaler, loss_function, micro_batches, max_norm):
    """Make one clipped step from all micro-batches; return the loss of the batch."""
    ### BEGIN SOLUTION
    samples = sum(len(inputs) for inputs, _ in micro_batches)
    batch_loss = 0.0
    optimizer.zero_grad()
    for inputs, targets in micro_batches:
        with torch.autocast(inputs.device.type, torch.float16):
            loss = loss_function(model(inputs), targets) * (len(inputs) / samples)
        scaler.scale(loss).backward()
        batch_loss = batch_loss + loss.detach()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    return batch_loss
    ### END SOLUTION


# %%
check("7.3", accumulated_step)

# %%
# hint("7.3")
# solution("7.3")

# %% [markdown]
# ## Patient 4: one scaler, two optimizers
#
# The body of the network and its head have an optimizer each, with learning rates of their own. *"After each step comes update,
# I have read."* **Guess first:** in a step that nothing overflows in, is there any harm? And in one where the head overflows?

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
net, _, amp = set_up(init_scale=2.0**24)
head_opt = torch.optim.SGD(net[2].parameters(), lr=0.5)
body_opt = torch.optim.SGD(net[0].parameters(), lr=0.1)
with watch(net, [head_opt, body_opt], amp) as seen:
    for x, y in batches(20):
        net.zero_grad()
        with torch.autocast(device, torch.float16):
            loss = F.cross_entropy(net(x), y)
        amp.scale(loss).backward()
        amp.step(head_opt)
        amp.update()
        amp.step(body_opt)
        amp.update()
seen.report()

# %%
assert seen.report().ids == ("update-between-optimizers",)

# %% [markdown]
# **What you saw.** As long as the scale stays, no harm. When the first optimizer overflows, its `update` halves the scale, and
# the second optimizer's gradients, which were multiplied by the old one, are divided by the new one: twice too large. The same
# with growth: twice too small. And two updates in a step count two clean steps.
#
# One iteration, one `update`, after all steps. Here is the damage, for a single step, with a gradient of 1 for the body, and
# one that overflows for the head:


# %%
def body_moves(update_between):
    amp = torch.amp.GradScaler(device, init_scale=1024.0)
    head, body = (nn.Parameter(torch.zeros(1, device=device)) for _ in range(2))
    opts = [torch.optim.SGD([weight], lr=1.0) for weight in (head, body)]
    amp.scale((math.inf * head + body).sum()).backward()
    amp.step(opts[0])
    if update_between:
        amp.update()
    amp.step(opts[1])
    amp.update()
    return -body.item()


print("one update:", body_moves(False), "   update between:", body_moves(True))

# %%
assert (body_moves(False), body_moves(True)) == (1.0, 2.0)

# %% [markdown]
# ### Exercise 7.4 · Two optimizers, one scaler
#
# Make one step of two models, `outputs = head(encoder(inputs))`. Each has an optimizer of its own; the scaler is shared. Where
# the gradients of only one of them overflow, the other one makes its step, as PyTorch documents it. Return the loss: detached,
# not scaled.


# %%
def two_optimizers_step(
    encoder,
    head,
    encoder_optimizer,
    head_optimizer,
    scaler,
    loss_function,
    inputs,
    targets,
):
    """Make one step of two models that share a scaler; return the loss."""
    ### BEGIN SOLUTION
    encoder_optimizer.zero_grad()
    head_optimizer.zero_grad()
    with torch.autocast(inputs.device.type, torch.float16):
        loss = loss_function(head(encoder(inputs)), targets)
    scaler.scale(loss).backward()
    scaler.step(encoder_optimizer)
    scaler.step(head_optimizer)
    scaler.update()
    return loss.detach()
    ### END SOLUTION


# %%
check("7.4", two_optimizers_step)

# %%
# hint("7.4")
# solution("7.4")

# %% [markdown]
# (Half of the clinic is done: a good place for a break.)
#
# ## Patient 5: a schedule in a hurry
#
# A warm-up raises the learning rate over the first 10 steps. The scale starts at 2^24, so the first ones are skipped. **Guess
# first:** at what share of the full rate does the first step come that really moves the weights?

# %% tags=["nbval-ignore-output"] reason="which steps overflow depends on the processor"
net, opt, amp = set_up()
warm_up = torch.optim.lr_scheduler.LinearLR(opt, 0.1, total_iters=9)
rates = []
with warnings.catch_warnings(record=True) as warned, watch(net, opt, amp) as seen:
    for x, y in batches(30):
        opt.zero_grad()
        with torch.autocast(device, torch.float16):
            loss = F.cross_entropy(net(x), y)
        amp.scale(loss).backward()
        amp.step(opt)
        amp.update()
        rates.append(opt.param_groups[0]["lr"])
        warm_up.step()
seen.report()

# %% tags=["nbval-ignore-output"] reason="which steps overflow depends on the processor"
first = next(step for step in range(1, 31) if step not in seen.run.skips)
print(f"first real step: {first}, at {rates[first - 1] / 0.5:.0%} of the full rate")

# %% [markdown]
# **What you saw.** Most of the warm-up was over before it had begun. PyTorch has a warning for this. It was caught above; here
# is how it begins:

# %% tags=["nbval-ignore-output"] reason="the message belongs to the installed PyTorch"
print(str(warned[0].message).split(". ")[0])

# %%
assert seen.report().ids == ("scheduler-on-skip",)
assert "lr_scheduler.step()" in str(warned[0].message)
assert first >= 3

# %% [markdown]
# It comes only if the very first step was skipped, and people who have read that the first skips are normal have learnt to
# ignore it. The same goes for whatever counts *steps*: a moving average of the weights, a counter that decides when to stop, a
# log.
#
# So the loop has to know whether a step was made. `amp.step(opt)` does not say: it returns what `opt.step()` returns, which is
# `None` as well. The usual answer compares the scale before and after `update`. **Guess first:** what is wrong with `!=` here,
# in a run in which nothing overflows, with a growth interval of 4?

# %%
net, opt, _ = set_up()
amp = torch.amp.GradScaler(device, init_scale=1024.0, growth_interval=4)
called_skipped = []
for number, (x, y) in enumerate(batches(12), start=1):
    opt.zero_grad()
    with torch.autocast(device, torch.float16):
        loss = F.cross_entropy(net(x), y)
    amp.scale(loss).backward()
    was = amp.get_scale()
    amp.step(opt)
    amp.update()
    if amp.get_scale() != was:
        called_skipped.append(number)
print("steps that count as skipped:", called_skipped)

# %%
assert called_skipped == [4, 8, 12]

# %% [markdown]
# Growth changes the scale as well. Only a scale that has *fallen* tells of a skip. What about counting the calls of `opt.step`?
# **Fused** optimizers do the whole step in one kernel, and the decision is made inside it: the scaler calls `step` in any case,
# and hands it `found_inf`.


# %%
def steps_called(**settings):
    weight = nn.Parameter(torch.zeros(1, device=device))
    opt = torch.optim.SGD([weight], lr=1.0, **settings)
    calls = []
    opt.register_step_post_hook(lambda *_: calls.append(1))
    amp = torch.amp.GradScaler(device, init_scale=1024.0)
    amp.scale((math.inf * weight).sum()).backward()
    amp.step(opt)
    amp.update()
    return len(calls), weight.item(), amp.get_scale()


for name, settings in {"plain": {}, "fused": {"fused": True}}.items():
    calls, weight, scale = steps_called(**settings)
    print(f"{name}: step called {calls} times, weight {weight}, scale {scale:.0f}")

# %%
assert steps_called() == (0, 0.0, 512.0)
assert steps_called(fused=True) == (1, 0.0, 512.0)

# %% [markdown]
# Why would one want that? Because of the **wait**. A GPU works through a queue, and Python runs ahead of it, until somebody
# asks for a number: `loss.item()`, `print(norm)`, `if norm > 1`. Then the host waits until the queue is empty. A CPU has no
# queue, but PyTorch's operator behind all these questions, `_local_scalar_dense`, can be counted. **Guess first:** how often
# does one step ask, plain and fused? And what do `get_scale()` and `loss.item()` add?


# %%
class Questions(TorchDispatchMode):
    """Counts how often a number is asked for."""

    asked = 0

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.asked += operator is torch.ops.aten._local_scalar_dense.default
        return operator(*args, **(kwargs or {}))


# %%
def questions(fused=False, read_scale=False, read_loss=False):
    net, _, amp = set_up(init_scale=1024.0)
    opt = torch.optim.SGD(net.parameters(), lr=0.5, fused=fused)
    x, y = next(batches())
    with Questions() as counted:
        with torch.autocast(device, torch.float16):
            loss = F.cross_entropy(net(x), y)
        amp.scale(loss).backward()
        amp.step(opt)
        amp.update()
        if read_scale:
            amp.get_scale()
        if read_loss:
            loss.item()
    return counted.asked


# %%
for settings in ({}, {"fused": True}, {"read_scale": True}, {"read_loss": True}):
    print(f"{', '.join(settings) or 'plain':12} asks {questions(**settings)}")

# %%
assert questions() == 1
assert questions(fused=True) == 0
assert questions(read_scale=True) == questions(read_loss=True) == 2

# %% [markdown]
# The plain scaler asks once for each optimizer: "was there an infinity?" must be answered before it calls `opt.step`. A fused
# optimizer does not ask at all, so the host can run ahead into the next step. Then a `get_scale()` in every iteration gives
# that away again. It is a price that most loops can pay; where they cannot, ask once in a hundred steps, and let the scheduler
# be a little ahead.
#
# ### Exercise 7.5 · A schedule that waits for real steps
#
# The step of 7.1, with a scheduler that moves on by one if, and only if, the optimizer made its step. Return whether it did, as
# a `bool`.
#
# The optimizer can be plain or fused; the scale can grow in any step; the scaler offers `scale`, `unscale_`, `step`, `update`
# and `get_scale`.


# %%
def scheduled_step(model, optimizer, scaler, scheduler, loss_function, inputs, targets):
    """Make a step; the scheduler follows if it was made. Return whether it was."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    with torch.autocast(inputs.device.type, torch.float16):
        loss = loss_function(model(inputs), targets)
    scaler.scale(loss).backward()
    scale_before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    stepped = scaler.get_scale() >= scale_before
    if stepped:
        scheduler.step()
    return stepped
    ### END SOLUTION


# %%
check("7.5", scheduled_step)

# %%
# hint("7.5")
# solution("7.5")
# %% [markdown]
# ## Patient 6: a penalty that follows the scale
#
# Some losses contain a gradient: a penalty on its norm keeps a critic or a model smooth. The gradient comes from
# `torch.autograd.grad`, with `create_graph=True`, so that one can go backward through it. *"Every backward pass needs a scaled
# loss, so I scale this one, too."* **Guess first:** what is the penalty at scale 2^4, 2^8, 2^12?


# %%
def penalty_of(init_scale):
    net, opt, amp = set_up(init_scale=init_scale)
    with watch(net, opt, amp) as seen:
        for x, y in batches(1):
            with torch.autocast(device, torch.float16):
                loss = F.cross_entropy(net(x), y)
            scaled = amp.scale(loss)
            slopes = torch.autograd.grad(scaled, net.parameters(), create_graph=True)
            with torch.autocast(device, torch.float16):
                norm = sum(slope.square().sum() for slope in slopes).sqrt()
                total = loss + 0.1 * norm
            amp.scale(total).backward()
            amp.step(opt)
            amp.update()
    return norm.item(), seen.report()


# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
for power in (4, 8, 12):
    print(f"scale 2^{power:<2}: penalty on a norm of {penalty_of(2.0**power)[0]:10.3f}")
penalty_of(2.0**8)[1]

# %%
assert penalty_of(2.0**8)[1].ids == ("penalty-of-scaled",)

# %% [markdown]
# **What you saw.** The norm is multiplied by the scale, as its gradients are. The penalty takes over the loss, and changes
# whenever the scale does. To scale that loss is right, or its gradients would underflow in FP16. But before the norm they have
# to be multiplied by 1/scale again, *by hand*: `unscale_` knows only `.grad`, and these gradients are in no `.grad`. Then
# `scale` the sum, as ever.
#
# ### Exercise 7.6 · Gradient penalty
#
# The step of 7.1 for this loss: `loss + weight * norm`, where `norm` is the Euclidean norm of the gradient of `loss` with
# respect to all parameters of the model together (they all take part). The result must not depend on the scale. Return the sum:
# detached, not scaled.


# %%
def penalty_step(model, optimizer, scaler, loss_function, inputs, targets, weight):
    """Make a step on loss + weight * (norm of its gradient); return that sum."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    parameters = list(model.parameters())
    with torch.autocast(inputs.device.type, torch.float16):
        loss = loss_function(model(inputs), targets)
    scaled_grads = torch.autograd.grad(scaler.scale(loss), parameters, create_graph=True)
    grads = [grad / scaler.get_scale() for grad in scaled_grads]
    with torch.autocast(inputs.device.type, torch.float16):
        norm = sum(grad.square().sum() for grad in grads).sqrt()
        penalised = loss + weight * norm
    scaler.scale(penalised).backward()
    scaler.step(optimizer)
    scaler.update()
    return penalised.detach()
    ### END SOLUTION


# %%
check("7.6", penalty_step)

# %%
# hint("7.6")
# solution("7.6")

# %% [markdown]
# ## Patient 7: back from the checkpoint, and different
#
# A run is stopped and resumed. Model, optimizer, scheduler: all saved, all loaded. **Guess first:** the two runs below get the
# same batches. Are their weights the same in the end? And how many steps does the resumed run lose?


# %%
def go_on(net, opt, amp, steps):
    skipped = 0
    for x, y in steps:
        opt.zero_grad()
        with torch.autocast(device, torch.float16):
            loss = F.cross_entropy(net(x), y)
        amp.scale(loss).backward()
        was = amp.get_scale()
        amp.step(opt)
        amp.update()
        skipped += amp.get_scale() < was
    return skipped


# %%
def stopped_and_resumed(with_scaler):
    net, opt, amp = set_up()
    stream = list(batches(100))
    go_on(net, opt, amp, stream[:50])
    saved = [copy.deepcopy(each.state_dict()) for each in (net, opt, amp)]
    new_net, new_opt, new_amp = set_up()
    for each, state in zip((new_net, new_opt, new_amp)[: 2 + with_scaler], saved):
        each.load_state_dict(state)
    lost = go_on(net, opt, amp, stream[50:])
    lost_after = go_on(new_net, new_opt, new_amp, stream[50:])
    return lost, lost_after, torch.equal(net[0].weight, new_net[0].weight)


# %% tags=["nbval-ignore-output"] reason="which steps overflow depends on the processor"
for with_scaler in (False, True):
    lost, after, same = stopped_and_resumed(with_scaler)
    scaler = "with its state" if with_scaler else "without"
    print(f"{scaler:14}: {after} skipped instead of {lost}, same weights: {same}")

# %%
without, including = stopped_and_resumed(False), stopped_and_resumed(True)
assert including[2]
assert including[0] == including[1]
assert not without[2]
assert without[1] > without[0]

# %% [markdown]
# **What you saw.** Without its state the scaler starts again at its initial scale: steps are skipped that had a good scale
# before, and from there on it is another run. `watch` needs to see the loading and the first steps after it:

# %% tags=["nbval-ignore-output"] reason="which steps overflow depends on the processor"
net, opt, amp = set_up()
go_on(net, opt, amp, batches(50))
saved = [copy.deepcopy(each.state_dict()) for each in (net, opt)]
net, opt, amp = set_up()
with watch(net, opt, amp) as seen:
    net.load_state_dict(saved[0])
    opt.load_state_dict(saved[1])
    go_on(net, opt, amp, batches(20))
seen.report()

# %%
assert "scaler-not-restored" in seen.report()

# %% [markdown]
# A scaler's state is five numbers. Save it between two iterations, after `update`; and load it before the next `scale`.
#
# Two traps. A *disabled* scaler, `GradScaler(enabled=False)`, has an empty state, `{}`; an enabled one refuses to load that.
# And a file that was made to do so runs code when it is loaded without `weights_only=True`. That allows tensors and plain
# Python values only, and states are made of nothing else. It is PyTorch's default since 2.6; say it all the same.

# %%
empty = torch.amp.GradScaler(device, enabled=False).state_dict()
try:
    torch.amp.GradScaler(device).load_state_dict(empty)
except RuntimeError as error:
    print(f"{empty}: {error}")
print(torch.amp.GradScaler(device).state_dict())

# %% [markdown]
# ### Exercise 7.7 · Save and resume
#
# Fill in two methods. `save(path)` writes one file; `path` is a `pathlib.Path`. `load(path)`, called on a `Checkpoint` of *new*
# objects, in another process, brings them to where the old ones were: a run that goes on from there does in every bit what the
# old one would have done. (The models here draw no random numbers; with dropout, the generators' states would belong into the
# file as well.)
#
# - The file loads with `weights_only=True`, also where there is no GPU.
# - A run is saved many times, and saving changes nothing in it.
# - The file may come from an FP32 run, whose scaler was disabled. Then an enabled scaler keeps the state it has.


# %%
class Checkpoint:
    """Saves everything that a run needs to go on exactly, and brings it back."""

    def __init__(self, model, optimizer, scheduler, scaler):
        self.model = model
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.scaler = scaler

    def save(self, path):
        """Write the state of all four to one file."""
        ### BEGIN SOLUTION
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "scaler": self.scaler.state_dict(),
        }
        torch.save(state, path)
        ### END SOLUTION

    def load(self, path):
        """Read the file, and give all four the state in it."""
        ### BEGIN SOLUTION
        state = torch.load(path, map_location="cpu", weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.scheduler.load_state_dict(state["scheduler"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        ### END SOLUTION


# %%
check("7.7", Checkpoint)

# %%
# hint("7.7")
# solution("7.7")
# %% [markdown]
# ## Why nobody noticed: Adam
#
# All of these patients were trained with SGD. Most people use Adam, and Adam divides each gradient by a running mean of its own
# size. **Guess first:** under SGD, the first two faulty loops below take steps that are hundreds of times too small, and the
# third, which has no clipping either, runs away. Under Adam?

# %%
plain_step = {unscale: "pass", clip: "pass", "amp.step": "opt.step() #"}
OF_SCALE = {
    "right": {},
    "clip before unscale_": dict([BROKEN["clip before unscale_"]]),
    "backward of the unscaled loss": {"amp.scale(loss)": "amp.scale(loss)\n    loss"},
    "opt.step() without unscale_": plain_step | {"amp.update()": "pass"},
}


# %%
def moved(broken, optimizer, lr):
    """Return how far ten steps have moved the weights."""
    net, opt, amp = set_up(lr, 2.0**10, optimizer)
    start = net[0].weight.detach().clone()
    loop = LOOP.replace("batches()", "batches(10)")
    for old, new in broken.items():
        loop = loop.replace(old, new)
    loop = loop.replace("1.0", "0.1")  # so that there is something to clip
    exec(loop, {**globals(), "net": net, "opt": opt, "amp": amp, "losses": []})
    return (net[0].weight - start).norm().item()


# %%
distances = {
    "SGD": [moved(each, torch.optim.SGD, 1e-2) for each in OF_SCALE.values()],
    "Adam": [moved(each, torch.optim.Adam, 1e-3) for each in OF_SCALE.values()],
}
figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
for (name, found), mark, colour in zip(distances.items(), "ox", ("orange", "blue")):
    ratio = [each / found[0] for each in found]
    axes.plot(ratio, range(4), mark, color=COLOURS[colour], label=name, ms=9, mew=2)
axes.set(xscale="log", yticks=range(4), yticklabels=OF_SCALE, ylim=(3.5, -0.5))
axes.set_xlabel("distance moved in 10 steps, the right loop = 1")
axes.set_title("SGD shows a wrong scale, Adam hides it")
axes.grid(axis="x", alpha=0.3)
axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
sgd, adam = ([each / found[0] for each in found] for found in distances.values())
assert 500 < 1 / sgd[1] < 2000
assert 150 < 1 / sgd[2] < 600
assert sgd[3] > 500
assert all(0.3 < each < 3 for each in adam)

# %% [markdown]
# **What you saw.** Under Adam, all four look alike. A factor that is the same in each step cancels: it stands above *and* below
# the fraction. What does not cancel is what changes the factor: each overflow and each growth of the scale, which leave Adam's
# means in old units for many steps; clipping, which Adam sees only as a change of factor; `eps`, which was meant for gradients
# of another size; and weight decay in its old form (`Adam(weight_decay=...)`), which is added to gradients that are not in its
# units.
#
# So do not judge a loop by the size of its updates, and not by its loss alone: **judge the order of calls, and the norms that
# were seen.** That is what `watch` does.
#
# ## From symptom to cause
#
# One page to come back to. Start on the left with what you see; each question is a test that takes a minute.

# %%
few_colours(draw_tree())

# %% [markdown]
# Three of these tests come up again and again:
#
# - **Finite loss, or not?** The loss is computed before the scale touches anything. If it is infinite or NaN itself, no scale
#   can cure it: look in the forward pass, or at the data (lessons 02 and 06).
# - **Does the scale recover?** A scale that is too large falls for a few steps, and stays. One that falls and falls has another
#   cause.
# - **Which norm?** Print the gradient norm where you clip, next to the scale. If it changes by factors of two with the scale,
#   you are looking at scaled gradients.
#
# ## Patient 8: only a log is left
#
# The run is over, the code is somewhere else, and all that there is to look at is what was logged: loss, scale, gradient norm
# before clipping, learning rate, and which steps were skipped. Six runs, all really made by the loops that they are about. Go
# through one after the other: which steps were skipped, what did the scale do then, and what did the rest do meanwhile?

# %%
few_colours(draw_logs())

# %% [markdown]
# ### Exercise 7.8 · Read the log
#
# What is wrong with each? Pick from this list. Every letter fits one run at most, and two fit none.

# %%
Markdown(fault_list())

# %% [markdown]
# `print(log_table("A"))` prints the numbers of a run, `draw_logs("A")` draws it alone and larger.


# %%
def faults():
    """Return the letter of each run's fault, such as {"A": "p", "B": "q", ...}."""
    ### BEGIN SOLUTION
    return {"A": "w", "B": "q", "C": "p", "D": "u", "E": "s", "F": "t"}
    ### END SOLUTION


# %%
check("7.8", faults)

# %%
# hint("7.8")
# solution("7.8")

# %% [markdown]
# ## Patient 9: two skips in 200 batches
#
# The loop is right, and the data are nearly all the same. Two batches are not: `"m"` has large targets, `"s"` a spike in its
# inputs. **Guess first:** the scaler skips both and goes on. Would a smaller scale make both finite?
#
# `replay` computes the loss of the batch at hand once more. `watch` calls it after a skipped step, to find out why.

# %%
kinds = ["."] * 200
kinds[57], kinds[137] = "m", "s"
layers = ("", "attn", "wide norm")  # three; the last has a norm and a wide MLP
net = faulty.Patient(layers).to(device)
opt = torch.optim.SGD(net.parameters(), lr=1e-4)
amp = torch.amp.GradScaler(device, init_scale=2.0**12)


def replay():
    with torch.autocast(device, torch.float16):
        return faulty.squared_error(net(x), y)


# %%
skipped = {}
with watch(net, opt, amp, replay=replay) as seen:
    for number, kind in enumerate(kinds):
        x, y = (each.to(device) for each in faulty.batch(kind, number))
        opt.zero_grad()
        loss = replay()
        amp.scale(loss).backward()
        amp.step(opt)
        before = amp.get_scale()
        amp.update()
        if amp.get_scale() < before:
            skipped[number] = loss.isfinite().item()
print("skipped, and whether the loss was finite:", skipped)

# %%
assert skipped == {57: True, 137: False}

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
seen.report()

# %% [markdown]
# From outside both look alike: a skipped step, a halved scale. The watcher has run both batches again, which is what `replay`
# is for, and has something to say about one of them. (It counts steps from 1.) A single batch you can ask about with
# `find_overflow`. It runs it at several scales, in FP32 and operator by operator, and puts everything back.
# `device_type="cuda"` asks what CUDA would cast, on any machine.


# %% tags=["nbval-ignore-output"] reason="says how long it took"
def why(batch):
    return find_overflow(net.cpu(), faulty.squared_error, batch, device_type="cuda")


large, spike = (why(faulty.batch(kinds[number], number)) for number in skipped)
spike

# %%
for each in (large, spike):
    print(f"{each.cause:17} {each.phase:9} largest scale that cures: {each.scale}")

# %%
assert (large.cures, spike.cures) == (True, False)
assert (spike.module, spike.op) == ("layers.1.attn", "matmul")

# %% [markdown]
# The first needed a smaller scale: some skips later it would have been fine. The second is lost at every scale: queries times
# keys left FP16 in the forward pass, before any scale was multiplied in. A forward hook would have accused `layers.1.attn.out`,
# the first module that *ended* with NaN. What to change is the matmul: divide before it, not after it.
#
# **Guess again.** One example is padding, all zeros (`"p"`). The loss is finite. Are the gradients? Does FP32 help?

# %%
padding = why(faulty.batch("p", 7))
print(padding.cause, "·", padding.op, "in", padding.module, "·", padding.phase)
in_fp32 = next(each for each in padding.replays if each.fp32)
print(f"FP32: loss {in_fp32.loss:.4f}, gradients not finite: {len(in_fp32.bad)}")

# %%
assert padding.cause == "nan-derivative"
assert not padding.cures

# %% [markdown]
# A vector of length 0: the root of 0, whose derivative is 1/0, and then infinity times 0: NaN on the way back, in FP32 too. AMP
# has nothing to do with it, though it is where it was noticed. `x.norm()` has a derivative for 0; a `sqrt` by hand needs
# something added *inside* of it.
#
# ### Exercise 7.9 · Find the overflow
#
# A long run has stopped, and somebody has kept its batches. Write what finds the first that breaks. A batch *breaks* if no loss
# scale of 1 or more makes its loss and all gradients finite, in FP16 autocast. One that is only too much for a scale of 2^16
# does not: that is the scaler's daily business.


# %%
def where_it_breaks(model, loss_fn, batches):
    """Return (index, module, phase, scale) of the first batch that breaks, or None.

    batches: a list of (inputs, targets). index: counts from 0. module: the path of the
    innermost one in which, at a scale of 1, the first infinity or NaN is made. phase:
    "forward" or "backward". scale: the largest power of two, from 2^-24 up, that makes
    this batch finite; None if no scale does. The model is left as it was: weights,
    mode, gradients, hooks.
    """
    ### BEGIN SOLUTION
    for index, batch in enumerate(batches):
        report = find_overflow(model, loss_fn, batch, device_type="cuda")
        cured = report.scale is not None and report.scale >= 1
        if not report.ok and not cured:
            return index, report.module, report.phase, report.scale
    return None
    ### END SOLUTION


# %%
check("7.9", where_it_breaks)

# %%
# hint("7.9")
# solution("7.9")

# %% [markdown]
# ## In practice
#
# What else is seen in the wild. **Guess first**, where there is a question.
#
# **1. A scale of 1,024?** `GradScaler(1024.0)` reads well. Which scale does it start with?

# %%
by_position = torch.amp.GradScaler(1024.0)
print("starts at", by_position.get_scale())
print("starts at", torch.amp.GradScaler(device, init_scale=1024.0).get_scale())

# %%
assert by_position.get_scale() == 65536

# %% [markdown]
# The first argument is the *device*, and a number there means nothing. Without any argument it means CUDA, on every machine:

# %% tags=["nbval-ignore-output"] reason="another answer where there is CUDA"
with warnings.catch_warnings(record=True) as warned:
    print("enabled:", torch.amp.GradScaler().is_enabled())
print(*(str(each.message) for each in warned))

# %% [markdown]
# Where there is no CUDA, it disables itself with that warning, and FP16 trains without any scale. Write `GradScaler(device)`.
#
# **2. One bad batch.** There is a NaN in the fourth batch. The scaler skips that step; your own sum of losses does not. What
# does the epoch's mean say?

# %%
net, opt, amp = set_up(init_scale=1024.0)
total, applied, seen_losses = 0.0, 0.0, 0
for number, (x, y) in enumerate(batches(10)):
    x = x * math.nan if number == 3 else x
    opt.zero_grad()
    with torch.autocast(device, torch.float16):
        loss = F.cross_entropy(net(x), y)
    amp.scale(loss).backward()
    amp.step(opt)
    amp.update()
    total += loss.item()
    if loss.isfinite():
        applied, seen_losses = applied + loss.item(), seen_losses + 1
print(f"mean of all: {total / 10}   of the finite ones: {applied / seen_losses:.3f}")

# %%
assert math.isnan(total)
assert seen_losses == 9

# %% [markdown]
# The model survived, the log did not. Add up what was applied, and count the rest.
#
# **3. Anomaly mode.** `torch.autograd.detect_anomaly()` raises at the first NaN of a backward pass. With a scaler, is that the
# bug?

# %% tags=["nbval-ignore-output"] reason="the message belongs to the installed PyTorch"
net, opt, amp = set_up(init_scale=2.0**24)
x, y = next(batches())
with torch.autocast(device, torch.float16):
    loss = F.cross_entropy(net(x), y)
raised = None
with warnings.catch_warnings(action="ignore"), torch.autograd.detect_anomaly():
    try:
        amp.scale(loss).backward()
    except RuntimeError as error:
        raised = error
print(raised)

# %%
assert raised is not None

# %% [markdown]
# No: a healthy model, whose scale is too large for one step. Search for NaN without a scale, or with a scale of 1.
#
# **4. Right, though it looks odd.** These are fine, and no reason to worry: the first steps skipped; two `backward()` calls
# before a step, for two losses; `zero_grad` between forward and backward; `unscale_` without clipping; clipping of infinite
# gradients, which makes them NaN (the step is skipped all the same: `unscale_` has noted the infinity); one scaler for several
# optimizers. And BF16 needs no scaler at all.
#
# **5. A log of your own.** Exercise 7.8 was a log of six runs that were picked for you. `amp-lab diagnose run.csv`, in a
# terminal, or `diagnose` in a notebook, reads any: CSV, JSON lines, or the `trainer_state.json` of a Trainer. Here is what it
# says to a loop that clips before it unscales, and whose scale stays where it is. **Guess first:** what is there to see?

# %%
net, opt, amp = set_up(init_scale=2.0**16)
lines = ["loss,scale,grad_norm"]
logged = LOOP.replace(unscale, "pass").replace(clip, f"norm = {clip}")
logged += '    lines.append(f"{losses[-1]},{amp.get_scale()},{norm}")'
exec(logged, {**globals(), "losses": []})
with contextlib.chdir(tempfile.mkdtemp()):
    Path("run.csv").write_text("\n".join(lines))
    said = diagnose("run.csv")

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
print(said)

# %%
assert [each.id for each in said.findings] == ["norm-looks-scaled"]

# %% [markdown]
# It says *possible*, and not more: a log shows numbers, not calls. What else it cannot know stands at its end.
#
# **6. In your own code.** Wrap the first few hundred steps of a new training script in `watch`. If the loop raises, the
# diagnosis stands at the end of the traceback. What it costs is measured by `python -m benchmarks watching`: about a twentieth
# of a small model's step, more if it is put on and off for each step; so put it around the loop. While nothing is wrong it asks
# for no number, so a GPU need not wait for it. Give it `replay=` as well, and it names the operator where there is an infinity;
# `seen.underflow()` shows the other end, as in lesson 04.
#
# ## Takeaways
#
# - Zero, forward in the region, backward outside, unscale if you look, clip, step, update: one update for each iteration, after
#   all steps.
# - Most mistakes are silent, and Adam hides what is left of them. Judge the order of calls and the norms.
# - Everything that counts steps asks first whether there was one. A scale that has *fallen* says no.
# - Gradients between `backward()` and `unscale_` are not true. Clip, log, penalise and average the true ones.
# - The scaler belongs in the checkpoint.
#
# ## Quiz

# %%
quiz("07")

# %% [markdown]
# **Further reading**
#
# - PyTorch: [Automatic Mixed Precision examples](https://docs.pytorch.org/docs/stable/notes/amp_examples.html): clipping,
#   accumulation, penalty, several optimizers
# - PyTorch's source: [grad_scaler.py](https://github.com/pytorch/pytorch/blob/main/torch/amp/grad_scaler.py), short and
#   readable
# - PyTorch: [Performance tuning guide](https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html), on avoiding
#   synchronisation between CPU and GPU
