# %% [markdown]
# # 09 · A Trainer
#
# | | |
# |---|---|
# | **Time** | 140 minutes |
# | **Difficulty** | medium |
# | **You need** | lessons [05](05_dynamic_loss_scaling.ipynb), [06](06_autocast.ipynb) and [07](07_gradscaler_in_practice.ipynb). No GPU: whether a run can be resumed does not depend on who multiplies. |
#
# **After this page you can**
#
# - review a training class, and show by running it what is wrong with it;
# - write the step that holds for FP32, FP16 and BF16, and read the one of `amp_lab.Trainer`;
# - evaluate without a number that FP16 has spoilt;
# - save a run so that a killed process loses nothing, and prove that the resumed run is the same in every bit;
# - say whether two precisions train equally well: with the noise measured, not guessed.

# %%
import contextlib
import inspect
import math
import os
import random
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from IPython.display import Markdown
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

# %%
from amp_lab import Trainer, watch
from amp_lab.autocast import emulate
from amp_lab.course import check, hint, quiz, solution
from amp_lab.course.lessons.l09.claims import claim_list
from amp_lab.course.lessons.l09.comparing import dev_losses, draw_runs, table
from amp_lab.course.lessons.l09.machines import MACHINES
from amp_lab.course.lessons.l09.reviewed import LAUNCH, TRAINER
from amp_lab.train.checkpoint import Checkpoints
from amp_lab.train.data import ALPHABET, characters, digits
from amp_lab.train.metrics import accuracy
from amp_lab.train.models import character_model, digit_classifier
from amp_lab.train.training import loop
from amp_lab.train.training.errors import NonFiniteLoss
from amp_lab.view.plots import COLOURS

# %% [markdown]
# As in the lessons before, FP16 and BF16 products on a CPU are computed as a Tensor Core would ideally do it.

# %% tags=["nbval-ignore-output"] reason="describes the machine that runs it"
print(emulate.tensor_cores().start())
torch.set_num_threads(1)  # so small a network is quickest on one thread
device = "cuda" if torch.cuda.is_available() else "cpu"

# %% [markdown]
# ## A Trainer to review
#
# Sooner or later a loop becomes a class. Here is one as it is found in notes and tutorials: mixed precision, several GPUs, some
# thirty lines.

# %%
print(TRAINER)

# %% [markdown]
# **Guess first:** you call `trainer.train(loader)` with the digits, on one machine, in one process. What happens first: an
# error, a loss that falls, or a loss that stands still?
#
# `their_trainer` makes a Trainer of this class. Given pairs of old and new words, it replaces them in the code first.

# %%
images, labels = (tensor.to(device) for tensor in digits())
order = torch.Generator().manual_seed(0)
train_set = TensorDataset(images[:1440], labels[:1440])
loader = DataLoader(train_set, 64, shuffle=True, generator=order)


# %%
def their_trainer(*changes, criterion=F.cross_entropy, lr=0.5, amp=True, epochs=1):
    code = TRAINER
    for old, new in changes:
        assert old in code
        code = code.replace(old, new)
    names = {"torch": torch}
    exec(code, names)
    args = SimpleNamespace(device=device, use_amp=amp, epochs=epochs)
    model = digit_classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return names["Trainer"](args, model, criterion, optimizer)


# %% tags=["nbval-ignore-output"] reason="the messages belong to the installed PyTorch"
no_sampler = ("train_sampler.set_epoch(epoch)", "pass")
raised = []
for changes in ((), (no_sampler,)):
    try:
        their_trainer(*changes).train(loader)
    except (AttributeError, ValueError) as error:
        raised.append(error)
        print(f"{type(error).__name__}: {str(error)[:70]}")

# %%
assert [type(each) for each in raised] == [AttributeError, ValueError]
assert "process group" in str(raised[1])

# %% [markdown]
# **What you saw.** Two errors, one behind the other. `train_sampler` is for several processes: a `DistributedSampler` deals the
# samples out to them. `train_sampler=None` is the default, and the default cannot be used. With that line gone, `barrier()`, at
# which processes wait for each other, asks for a process group, and a single process has none.
#
# On several GPUs, each has a process (a *rank*) with its own part of the data, and `DistributedDataParallel` (DDP, lesson 10)
# averages the gradients of all ranks while `backward()` runs. For that they wait for each other anyway. So the barrier is no
# use there either: it buys one more wait in every step.
#
# Those faults are kind: they speak. With both lines gone, it trains:

# %%
no_barrier = ("torch.distributed.barrier()", "pass")


def losses_of(*changes, **settings):
    losses = []

    def criterion(logits, label):
        loss = F.cross_entropy(logits, label)
        losses.append(loss.item())
        return loss

    order.manual_seed(0)  # the same batches for every run
    changes = (no_sampler, no_barrier, *changes)
    their_trainer(*changes, criterion=criterion, epochs=3, **settings).train(loader)
    return losses


# %% [markdown]
# Nothing in it calls `zero_grad`, so the gradients of all steps are added up. **Guess first:** which run does that hurt more,
# the one with `use_amp=True` or the one without?

# %%
zeroed = ("self.model.train()", "self.model.train(); self.optimizer.zero_grad()")
found = {
    "with zero_grad": losses_of(zeroed),
    "as it is, AMP": losses_of(),
    "as it is, FP32": losses_of(amp=False),
}
figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
looks = (("-", "green"), ("--", "blue"), ("-", "orange"))
for (name, losses), (line, colour) in zip(found.items(), looks, strict=True):
    axes.plot(losses, line, label=name, color=COLOURS[colour], linewidth=1.5)
axes.set(xlabel="training step", ylabel="loss")
axes.legend(frameon=False)
axes.spines[["top", "right"]].set_visible(False)
plt.show()

# %%
last = {name: sum(losses[-10:]) / 10 for name, losses in found.items()}
assert last["as it is, AMP"] < 1.2 * last["with zero_grad"]
assert last["as it is, FP32"] > 2 * last["with zero_grad"]

# %% [markdown]
# **What you saw.** In FP32 the pile of old gradients throws the weights about. With AMP the curve lies on that of the right
# loop: `scaler.step` divides what has piled up by the scale, 65,536, and the next gradients are added 65,536 times as large
# (lesson 07, patient 1). So the fault waits for the first overflow, and then no step is made any more. Whoever tried this class
# with AMP found it fine.
#
# The next one shows only when a run is resumed. The scaler is a variable of `train`, `save` cannot reach it, and with every
# call it begins at 65,536 again. Here the loss is 8 times the *sum* over the batch, so gradients are 512 times as large as
# those of a mean, and the scale has to sink first. We call `train` twice, one epoch of 23 steps each. **Guess first:** how many
# steps of the second epoch are skipped?


# %%
def large_loss(logits, label):
    return 8 * F.cross_entropy(logits, label, reduction="sum")


def skipped_in_two_calls(*changes):
    changes, made, skipped = (no_sampler, no_barrier, zeroed, *changes), [], []
    trainer = their_trainer(*changes, criterion=large_loss, lr=2e-4)
    trainer.scaler = torch.amp.GradScaler(device)
    trainer.optimizer.register_step_post_hook(lambda *_: made.append(1))
    for _ in range(2):
        made.clear()
        trainer.train(loader)
        skipped.append(len(loader) - len(made))
    return skipped


# %% tags=["nbval-ignore-output"] reason="which steps overflow depends on the processor"
kept = ("scaler = torch.amp.GradScaler(device)", "scaler = self.scaler")
forgotten, remembered = skipped_in_two_calls(), skipped_in_two_calls(kept)
print("skipped in the first call and in the second")
print("as it is:      ", *forgotten)
print("scaler is kept:", *remembered)

# %%
assert min(forgotten) >= 2
assert remembered[0] >= 2
assert remembered[1] == 0

# %% [markdown]
# Each restart loses steps, until the scale is where it had been. A run that is restarted every few hours pays that every time,
# and one whose scale had *grown* loses small gradients instead, for thousands of steps (lesson 05).
#
# And what the class does not do at all: it is given a `dev_loader` and never looks at it, it returns nothing, it cannot be
# resumed, and a NaN in the loss is nobody's business. So let us build one that does. The review goes on at the end of the page.
#
# ## One step for all precisions
#
# The class has its loop twice, with AMP and without, and whoever mends one half forgets the other. It need not: `autocast` and
# `GradScaler` take `enabled=False`. **Guess first:** with a disabled scaler, what do `scale(loss)`, `unscale_`, `step` and
# `get_scale()` do?

# %%
off = torch.amp.GradScaler(device, enabled=False)
weight = torch.ones(3, requires_grad=True)
opt = torch.optim.SGD([weight], lr=1.0)
loss = (2 * weight).sum()
print("scale(loss) is loss:", off.scale(loss) is loss, "  scale:", off.get_scale())
loss.backward()
off.unscale_(opt)
off.step(opt)
off.update()
print("weights:", weight.tolist(), "  state:", off.state_dict())

# %%
assert weight.tolist() == [-1.0] * 3
assert off.state_dict() == {}
assert off.get_scale() == 1.0

# %% [markdown]
# **What you saw.** They do nothing, and `step` calls the optimizer. One loop, three precisions. (Mind what is missing, too: a
# disabled scaler never skips, so an infinite gradient in BF16 or FP32 goes into the weights, unless somebody looks.)
#
# The other thing that a step needs to know is how large it is. With accumulation, a step is a *window* of micro-batches, and
# the last window of an epoch is often a ragged one. **Guess first:** three micro-batches of 64, 64 and 16 images. Add up the
# gradients of their mean losses, divided by 3. How far is that from the gradient of the mean over all 144?

# %%
model = digit_classifier().to(device)
parts = [(images[a:b], labels[a:b]) for a, b in ((0, 64), (64, 128), (128, 144))]


def gradient(loss):
    gradients = torch.autograd.grad(loss, model.parameters())
    return torch.cat([each.flatten() for each in gradients])


# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
losses = [F.cross_entropy(model(x), y) for x, y in parts]
thirds = gradient(sum(losses) / 3)
losses = [F.cross_entropy(model(x), y) for x, y in parts]
shares = gradient(sum(len(y) / 144 * loss for (_, y), loss in zip(parts, losses)))
true = gradient(F.cross_entropy(model(images[:144]), labels[:144]))
off_by = {
    name: ((found - true).norm() / true.norm()).item()
    for name, found in (("thirds", thirds), ("shares", shares))
}
print(f"a third each: off by {off_by['thirds']:.0%}; by share: {off_by['shares']:.1%}")

# %%
assert off_by["thirds"] > 0.05
assert off_by["shares"] < 1e-3

# %% [markdown]
# Each image of the small micro-batch counted four times as much as one of a large one. Weighted by its share of the window, the
# sum is the gradient of the whole batch.
#
# ### Exercise 9.1 · The step of a Trainer
#
# `window` is a list of pairs (inputs, targets): the micro-batches of one step, at least one, of any sizes. Make **one** step of
# the mean loss of all samples; `loss_function` gives the mean over the samples that it gets.
#
# - One micro-batch after the other: memory is for one graph. What the gradients hold from before must not count.
# - `dtype` is `torch.float16`, `torch.bfloat16`, or `torch.float32`, which means no autocast at all. Autocast is for the device
#   of the inputs, `inputs.device.type`. `scaler` is a `GradScaler`; with BF16 and FP32 it is disabled.
# - Clip the true gradients to `max_norm`. The scheduler moves with every step that really happens, and with no other.
# - FP16 gradients that overflow while the loss is finite are the scaler's business: the step is skipped, the scale falls.
# - If the loss of any micro-batch is not finite, or if a gradient is not finite and no scaler is enabled to notice: raise
#   `FloatingPointError`, and leave weights, optimizer, scheduler and scale as they were. What is left in the gradients does not
#   matter, but the next call must work.
# - Return the mean loss of all samples: a Python float, not scaled.


# %%
def train_step(
    model, optimizer, scaler, scheduler, loss_function, window, dtype, max_norm
):  # fmt: skip
    """Make one step from all micro-batches of the window, in any precision."""
    ### BEGIN SOLUTION
    device = window[0][0].device.type
    samples = sum(len(inputs) for inputs, _ in window)
    mean_loss = 0.0
    optimizer.zero_grad()
    for inputs, targets in window:
        with torch.autocast(device, dtype, enabled=dtype != torch.float32):
            loss = loss_function(model(inputs), targets) * (len(inputs) / samples)
        if not loss.isfinite():
            raise FloatingPointError("the loss is not finite")
        scaler.scale(loss).backward()
        mean_loss += loss.item()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if not scaler.is_enabled() and not norm.isfinite():
        raise FloatingPointError("the gradients are not finite")
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    if scaler.get_scale() >= scale:
        scheduler.step()
    return mean_loss
    ### END SOLUTION


# %%
check("9.1", train_step)

# %%
# hint("9.1")
# solution("9.1")

# %% [markdown]
# ### How `amp_lab` does it
#
# This is the inner loop of `amp_lab.Trainer`: not a copy, but the code that runs. Read it as a reviewer, line by line.

# %%
print(inspect.getsource(loop.train_step))
print(inspect.getsource(loop.backward))
print(inspect.getsource(loop.clip))

# %% [markdown]
# - **A trainer, a window.** The class at the top had one micro-batch and two branches. Here a window may have any number of
#   parts, and no `if` asks for a precision, nor for the number of processes.
# - **`together` and `last`** are for several ranks (lesson 10). Each has a window of its own: the samples and losses of all are
#   counted, and gradients are exchanged with the last part alone. `put_right` corrects them where windows differ in size. In one
#   process, the window is the whole, and there is nothing to correct.
# - **`zero_grad` comes first**, so whatever the last step left behind, infinities above all, is gone.
# - **`backward`**: only the forward pass and the loss are in the region. `trainer.autocast` was made once; for FP32 it is a
#   context that does nothing. The part of the loss is its share of the samples: 9.1's.
# - **`check_gradients`**, in the first step: an optimizer made of the wrong weights would train nothing, without a word. That of
#   `trainer.ranks` is for several: while one rank has no gradient for a parameter, the others would wait for it.
# - **`loss`** is a Python number: in `mean` the CPU waits for the GPU (and for other ranks), once per step. That is the price of
#   noticing at once.
# - **Not finite?** Before anything is written. A loss that is not finite no scale can cure. A norm that is not finite is the
#   scaler's business, if there is one. `refused` raises an error, or does what else you have asked for.
# - **`clip`** unscales first. Without `clip_norm` nobody measures a norm, and nothing is spent on it. (Then nobody notices an
#   infinite gradient in BF16 or FP32 until the next loss is NaN, and the weights are spoilt: `clip_norm=math.inf` measures, and
#   never clips.)
# - **The scale has fallen**: then there was no step, and the schedule must not move. With a disabled scaler it is 1.0 on both
#   sides, so that `if` is never true.
#
# What is *not* here: the device, the records, checkpoints, the progress bar. They stand around the step, and can be read
# without it.
#
# ## One switch
#
# FP32, FP16 or BF16: what should a Trainer take if nobody says? **Guess first:** which of these machines says True to
# `torch.cuda.is_bf16_supported()`: a T4 of 2018, a V100 of 2017, an A100 of 2020?

# %%
print(f"{'':24}supported?  how it computes BF16")
for machine in MACHINES:
    if machine.type == "cuda":
        print(f"{machine.name:24}{machine.says_bf16!s:12}{machine.bf16}")

# %% [markdown]
# **What you saw.** All of them say True. (None of them sits here: the first column follows PyTorch's code, which says True as
# soon as a BF16 tensor can be made; the second is what `amp_lab.device` knows of each.) So emulation counts: BF16 tensors work,
# and are computed in FP32 units, with casts on top. Ask `torch.cuda.is_bf16_supported(including_emulation=False)`, or look at
# what the device has, as `amp-lab doctor` does.
#
# ### Exercise 9.2 · Choose a precision
#
# `Machine` says what a device is: `.type` ("cuda", "cpu", "mps"), `.name`, and how it computes in a format, `.bf16` and
# `.fp16`, in the words of lesson 00: "tensor cores", "matrix units", "vector units", "emulated", "slow", "unknown", "none". And
# `.says_bf16`, the answer of `torch.cuda.is_bf16_supported()`. (Whatever machine you sit at, you are judged on many others.)
#
# Return the pair that 9.1 needs: the dtype of the step, and whether a scaler must be enabled. `wanted` is one of
#
# - `"auto"`: on CUDA BF16 where it is native (tensor cores or matrix units; emulated is not), else FP16. On a CPU BF16 where
#   matrix units compute it, else FP32. Anything else: FP32.
# - `"fp32"`, `"fp16"`, `"bf16"`: as it is wished, whatever the machine. Any other word is a `ValueError`.


# %%
def choose_precision(machine, wanted="auto"):
    """Return the dtype of a step, and whether it needs a loss scale."""
    ### BEGIN SOLUTION
    if wanted == "auto":
        if machine.bf16 in ("tensor cores", "matrix units"):
            wanted = "bf16" if machine.type in ("cuda", "cpu") else "fp32"
        else:
            wanted = "fp16" if machine.type == "cuda" else "fp32"
    dtypes = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
    if wanted not in dtypes:
        raise ValueError(f"no such precision: {wanted!r}")
    return dtypes[wanted], wanted == "fp16"
    ### END SOLUTION


# %%
check("9.2", choose_precision)

# %%
# hint("9.2")
# solution("9.2")

# %% [markdown]
# ## Six lines
#
# With that, here is a Trainer from the user's side: a model, a loss, an optimizer, and the loaders. **Guess first:** what does
# `precision="auto"` take on the machine that you sit at?

# %% tags=["nbval-ignore-output"] reason="depends on the machine"
dev_loader = DataLoader(TensorDataset(images[1440:], labels[1440:]), batch_size=128)
train_loader = DataLoader(train_set, batch_size=64, shuffle=True)
torch.manual_seed(0)
model = digit_classifier()
opt = torch.optim.SGD(model.parameters(), lr=0.2)
trainer = Trainer(model, F.cross_entropy, opt, device=device, progress=False)
history = trainer.fit(train_loader, dev_loader, epochs=4)
print("precision:", trainer.precision)
for each in history.epochs:
    print(f"epoch {each.epoch}: train {each.train_loss:.3f}, dev {each.dev_loss:.3f}")

# %%
assert len(history.steps) == 4 * len(train_loader)
assert history.epochs[-1].dev_loss < 0.5 * history.epochs[0].train_loss

# %% [markdown]
# The precision is that of the rule in 9.2. `epochs=4` means four in all: called again with `epochs=6`, `fit` makes two more.
#
# The history is a record per step and one per epoch, and it draws itself. Here it is for FP16, with an accumulation of two, a
# clipped norm, a metric, and a scaler that starts far too high.

# %%
torch.manual_seed(0)
model = digit_classifier()
opt = torch.optim.SGD(model.parameters(), lr=0.2)
trainer = Trainer(
    model,
    F.cross_entropy,
    opt,
    precision="fp16",
    scaler=torch.amp.GradScaler(device, init_scale=2.0**24),
    accumulate=2,
    clip_norm=1.0,
    metrics={"accuracy": accuracy},
    device=device,
    progress=False,
)

# %%
history = trainer.fit(train_loader, dev_loader, epochs=10)
history.plot()
plt.show()

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
print("steps skipped:", sum(history.skipped), " scale at the end:", history.scales[-1])
print("metrics on the dev set:", history.epochs[-1].metrics)

# %%
assert history.skipped[0]
assert sum(history.skipped) < 15
assert len(history.steps) == 10 * math.ceil(len(train_loader) / 2)
assert history.epochs[-1].metrics["accuracy"] > 0.8

# %% [markdown]
# **What you saw.** Each cross is a step that was skipped, until the scale was small enough (lesson 05). The line without dots
# is the loss of each step, the dots are the dev loss at the end of each epoch, and where they part, the model does better on
# images that it has seen.
#
# What does it do where the class at the top did nothing? Three things take more than a line: a process that dies, the look at
# the dev set, and a number that is not finite.
#
# ## A process that dies
#
# Now the one that costs most. A cluster ends your job after four hours; somebody stumbles over a cable. What is lost? **Guess
# first:** which of these does a run need in order to go on as if nothing had happened: the weights, the optimizer's momentum,
# the scale, the scheduler, the number of the step, the order of the batches, the random numbers of dropout?
#
# All of them, if the numbers are to be the same; and if one is forgotten, no error says so. This script uses all of them. It is
# a text here, so that a process of its own can run it, and die.

# %%
SCRIPT = """
import os, sys, torch
from amp_lab import Trainer
from amp_lab.autocast import emulate
from amp_lab.train.checkpoint import Checkpoints
from amp_lab.train.data import digits
from amp_lab.train.models import digit_classifier

def die(record):
    if getattr(record, "step", 0) == 18:
        os.kill(os.getpid(), 9)  # no goodbye: nothing in Python can catch this

def train(folder, resume=False, callback=None):
"""

# %%
SCRIPT += """
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = digit_classifier(dropout=0.2).to(device)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    trainer = Trainer(
        model, torch.nn.functional.cross_entropy, opt, precision="fp16", device=device,
        scheduler=torch.optim.lr_scheduler.ExponentialLR(opt, 0.99), accumulate=2,
        checkpoints=Checkpoints(folder, every=5), callback=callback, progress=False)
    data = torch.utils.data.TensorDataset(*digits(1437))
    loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
    trainer.fit(loader, epochs=3, resume=resume)
    return trainer
"""

# %%
SCRIPT += """
if __name__ == "__main__":
    torch.set_num_threads(1)
    with emulate.tensor_cores():
        train(sys.argv[1], callback=die)
"""
folder = Path(tempfile.mkdtemp())
(folder / "run.py").write_text(SCRIPT)
command = [sys.executable, "run.py", "killed"]
ended = subprocess.run(command, cwd=folder, capture_output=True)
print("how the process ended:", ended.returncode)
names = {"__name__": "page"}
exec(SCRIPT, names)
kept = Checkpoints(folder / "killed")
print("newest checkpoint:", kept.load()["step"], "steps")

# %% [markdown]
# The process is dead, in the middle of the second epoch, at step 18; the newest checkpoint is some steps old. Now two runs: one
# that nobody disturbs, and one that goes on from the dead one's folder. The steps after the checkpoint are done once more.
# **Guess first:** with the same batches as before, and the same dropout? And how far apart are the weights at the end?

# %%
undisturbed = names["train"](folder / "undisturbed")
resumed = names["train"](folder / "killed", resume=True)
same = {
    "weights": all(
        torch.equal(weight, resumed.model.state_dict()[name])
        for name, weight in undisturbed.model.state_dict().items()
    ),
    "losses of all steps": undisturbed.history.losses == resumed.history.losses,
    "scale": undisturbed.scaler.state_dict() == resumed.scaler.state_dict(),
    "learning rates": undisturbed.history.lrs == resumed.history.lrs,
}
print(same)

# %%
assert ended.returncode == -9
assert all(same.values())
assert len(resumed.history.steps) == 36

# %% [markdown]
# **What you saw.** Not far: not at all. All 36 losses are the same, those after the checkpoint as well, so nobody who looks at
# the history can tell where the process died. That is a test for your own Trainer, too: kill, resume, compare.
#
# What does it take? To know the *place*: which batches of this epoch were taken, and the random numbers with which the epoch
# began, so that the same order is drawn again. To save at a moment when nothing is half done: after the step, after `update`,
# after the scheduler. And a file that is whole.
#
# **Guess first:** a run keeps one file, and writes it again with `torch.save(state, "last.pt")`. It dies while that line is at
# work. How many good checkpoints does it leave?


# %% tags=["nbval-ignore-output"] reason="the messages belong to the installed PyTorch"
class Dies:
    def __reduce__(self):
        raise KeyboardInterrupt  # in the midst of writing


path = folder / "last.pt"
torch.save({"step": 100}, path)
with contextlib.suppress(KeyboardInterrupt):
    torch.save({"step": 200, "then": Dies()}, path)
try:
    left = torch.load(path)
except Exception as error:
    left = type(error).__name__
print("what is left:", left)

# %%
assert left != {"step": 100}
assert isinstance(left, str)

# %% [markdown]
# **What you saw.** None: the old one is overwritten before the new one is there. And that is an exception, which is gentle; a
# power cut may lose what was written seconds ago, unless `fsync` has brought it to the disk.
#
# ### Exercise 9.3 · A file that is whole or not there
#
# `RunFile(path, parts)`: `path` is a `pathlib.Path`, `parts` a dict from names to objects with `state_dict()` and
# `load_state_dict()`: any number, any names.
#
# - `save()` writes the state of every part, and the states of the random numbers of PyTorch (of the CPU) and Python:
#   `torch.get_rng_state`, `random.getstate`. If the process dies at *any* moment, `path` still holds the old checkpoint, whole,
#   or already the new one: write beside it, in the same folder, bring it to the disk (`os.fsync`), and let it take the name in
#   one move (`os.replace`). If something fails, the error is passed on, and no half-written file is left over. Saving changes
#   nothing in the run.
# - `load()` brings all of it back. The file may come from a machine with a GPU to one without (`map_location`), and it may come
#   from a stranger, and an unpickled file can run code: `weights_only=True`. If the file lacks one of `parts`, or has one that
#   `parts` lacks, raise `KeyError` with its name in the message, before anything is changed.


# %%
class RunFile:
    """Keeps a run in one file, which is whole at every moment."""

    def __init__(self, path, parts):
        self.path, self.parts = path, parts

    def save(self):
        """Write the state of all parts, and of the random numbers."""
        ### BEGIN SOLUTION
        state = {name: part.state_dict() for name, part in self.parts.items()}
        rng = {"torch": torch.get_rng_state(), "python": random.getstate()}
        beside = self.path.with_name(self.path.name + ".tmp")
        try:
            with open(beside, "wb") as file:
                torch.save({"parts": state, "rng": rng}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self.path)
        finally:
            beside.unlink(missing_ok=True)
        ### END SOLUTION

    def load(self):
        """Bring everything back."""
        ### BEGIN SOLUTION
        saved = torch.load(self.path, map_location="cpu", weights_only=True)
        differ = saved["parts"].keys() ^ self.parts.keys()
        if differ:
            raise KeyError(f"only on one side: {sorted(differ)}")
        for name, part in self.parts.items():
            part.load_state_dict(saved["parts"][name])
        torch.set_rng_state(saved["rng"]["torch"])
        random.setstate(saved["rng"]["python"])
        ### END SOLUTION


# %%
check("9.3", RunFile)

# %%
# hint("9.3")
# solution("9.3")

# %% [markdown]
# `amp_lab.train.checkpoint` does that, and what a longer life teaches: it keeps the last few and the best, compares a checksum
# of what it reads, falls back to the one before if the newest is broken, and refuses a folder that holds another run.
#
# ## Looking at the dev set
#
# A model that is looked at should not notice. And the numbers should be those of the model, not of FP16 or of the loader. Two
# loops as people write them: the first adds up the loss of 300 pieces of text, from outputs that autocast has made FP16. The
# second takes the mean over the batches of the digits' dev set, three of 118 images and a last one of 3. **Guess first:** the
# untrained model guesses among 96 characters, so its mean loss is somewhere near ln 96 = 4.6. What does the first loop say?

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
pieces, nexts = (tensor.to(device) for tensor in characters(64, 300))
guesser = character_model().to(device).eval()
in_fp16, in_fp32 = 0.0, 0.0
for x, y in zip(pieces.split(64), nexts.split(64), strict=True):
    with torch.inference_mode(), torch.autocast(device, torch.float16):
        output = guesser(x)
    in_fp16 += F.cross_entropy(output, y, reduction="sum")
    in_fp32 += F.cross_entropy(output.float(), y, reduction="sum").item()
print(f"added up in FP16: {in_fp16 / nexts.numel():.2f}", end=", ")
print(f"from outputs in FP32: {in_fp32 / nexts.numel():.2f}")

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
model = trainer.model.eval()
dev_images, dev_labels = images[1440:], labels[1440:]
with torch.inference_mode():
    means = [
        F.cross_entropy(model(x), y).item()
        for x, y in zip(dev_images.split(118), dev_labels.split(118), strict=True)
    ]
    true_mean = F.cross_entropy(model(dev_images), dev_labels).item()
print("mean loss of each batch:", ", ".join(f"{each:.3f}" for each in means))
print(f"mean of the four: {sum(means) / 4:.3f}   mean over all images: {true_mean:.3f}")

# %%
assert in_fp16.dtype == torch.float16
assert in_fp16.isinf()
assert 4 < in_fp32 / nexts.numel() < 5
assert abs(sum(means) / 4 - true_mean) > 0.02 * true_mean

# %% [markdown]
# **What you saw.** 19,200 losses of more than 4 on average are more than 76,800, and FP16 ends at 65,504: the dev loss is
# infinite, and nothing is wrong with the model. (In the autocast region, CUDA would have computed this loss in FP32. It does
# not know a metric of your own.) In the second loop each of the last three images counts as much as 39 others. Outputs in FP32
# before any loss or metric, sums in Python's floats, weights by samples.
#
# And the model should be as it was: dropout and batch norm back in training, but not the layers that you had frozen in
# evaluation mode by hand.
#
# ### Exercise 9.4 · Evaluate
#
# Return a dict of Python floats: `"loss"`, and each name of `metrics`, a dict from names to functions.
#
# - `loss_function(outputs, targets)` and the metrics are called with outputs in FP32, and give the mean over the samples that
#   they get: `len(inputs)` of them. The result is the mean over *all* samples.
# - The forward pass runs under autocast of `dtype` (as in 9.1: `torch.float32` means none), in evaluation mode, without a
#   graph.
# - Afterwards the model is as before: each module in the mode that it was in, also if an error comes in between.
# - `loader` gives pairs (inputs, targets). It may be a generator: it is read once. If it gives nothing: `ValueError`.


# %%
def evaluate(model, loss_function, metrics, loader, dtype):
    """Return the mean loss and the mean of each metric, in FP32."""
    ### BEGIN SOLUTION
    functions = {"loss": loss_function, **metrics}
    sums, samples = dict.fromkeys(functions, 0.0), 0
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        for inputs, targets in loader:
            on = dtype != torch.float32
            with torch.inference_mode(), torch.autocast(inputs.device.type, dtype, on):
                outputs = model(inputs)
            for name, function in functions.items():
                mean = function(outputs.float(), targets)
                sums[name] += float(mean) * len(inputs)
            samples += len(inputs)
    finally:
        for module, mode in modes.items():
            module.training = mode
    if samples == 0:
        raise ValueError("there is nothing to evaluate: the loader gives no batch")
    return {name: total / samples for name, total in sums.items()}
    ### END SOLUTION


# %%
check("9.4", evaluate)

# %%
# hint("9.4")
# solution("9.4")

# %% [markdown]
# ## A number that is not finite
#
# An overflow of *gradients* is daily business: the scaler skips the step. A *loss* that is not finite is another matter: no
# scale cures it (lesson 07). One pixel of one image of the training set is NaN. **Guess first:** with a scaler and FP16, what
# does the class at the top of this page do with it, and what does it say? An epoch has 23 steps, and the image is in the
# eleventh.

# %%
broken = images[:1440].clone()
broken[700, 20] = math.nan
broken_loader = DataLoader(TensorDataset(broken, labels[:1440]), batch_size=64)
theirs, made = their_trainer(no_sampler, no_barrier), []
theirs.optimizer.register_step_post_hook(lambda *_: made.append(1))
theirs.train(broken_loader)
print(f"{len(made)} of {len(broken_loader)} steps were made")

# %%
assert len(made) == 700 // 64

# %% [markdown]
# It skips that step and, since nothing takes the NaN out of the gradients, every step after it. And says nothing. The Trainer
# of `amp_lab`:

# %%
model = digit_classifier()
opt = torch.optim.SGD(model.parameters(), lr=0.2)
settings = {"precision": "fp16", "device": device, "progress": False}
trainer = Trainer(model, F.cross_entropy, opt, **settings)
caught = None
try:
    trainer.fit(broken_loader)
except NonFiniteLoss as error:
    caught = error

# %% tags=["nbval-ignore-output"] reason="the machine decides how a number is written"
print(caught)

# %%
assert caught.step == 700 // 64
assert caught.report.cause == "nan-in-data"
assert all(parameter.isfinite().all() for parameter in model.parameters())

# %% [markdown]
# **What you saw.** It stops before anything is written, and asks `find_overflow` about that very batch. The weights are those
# before the step. (Steps and epochs are counted from 0.) If you would rather go on: `on_nonfinite="skip"` counts such steps in
# the history, `"stop"` ends the run in peace.
#
# ## Do they train equally well?
#
# The question that all of this was for. FP32, FP16 with a scaler, BF16 without: the same model, the same data. One run of each
# gives three numbers, and they differ. **Guess first:** the dev losses at the end are 0.23, 0.25 and 0.24. What does that say
# about the precisions?
#
# Nothing, as long as nobody knows by how much two runs of the *same* precision differ. So several seeds for each: another
# start, another order of the batches. The spread over seeds is the noise.

# %%
PRECISIONS = ("fp32", "fp16", "bf16")


def loaders(data, batch_size, train_size):
    for part in (slice(None, train_size), slice(train_size, None)):
        some = TensorDataset(*(tensor[part] for tensor in data))
        training = part.start is None
        yield DataLoader(some, batch_size if training else 512, shuffle=training)


# %%
def train_once(make, data, precision, seed, *, lr, batch_size, epochs, train_size):
    torch.manual_seed(seed)
    model = make(seed=seed)
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    settings = {"precision": precision, "device": device, "progress": False}
    metrics = {"accuracy": accuracy}
    trainer = Trainer(model, F.cross_entropy, opt, metrics=metrics, **settings)
    train_loader, dev_loader = loaders(data, batch_size, train_size)
    return trainer.fit(train_loader, dev_loader, epochs=epochs)


# %%
def within_noise(found):
    """Whether each precision's mean is less than one std over seeds from FP32's."""
    last = {name: dev_losses(runs)[:, -1] for name, runs in found.items()}
    fp32 = last["fp32"]
    return all(abs(each.mean() - fp32.mean()) < fp32.std() for each in last.values())


# %% [markdown]
# On a GPU, autocast keeps softmax, layer norm and their like in FP32; on a CPU it has other lists (lesson 06). From here on
# CUDA's hold here, too, so that you see what a GPU does.

# %% tags=["nbval-ignore-output"] reason="describes the machine that runs it"
print(emulate.cuda_autocast().start())

# %% [markdown]
# First the digits, five seeds. `std` is the standard deviation over the seeds: the noise.

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
digits_found = {
    precision: [
        train_once(
            digit_classifier, digits(), precision, seed,
            lr=1e-2, batch_size=96, epochs=5, train_size=1440,
        )
        for seed in range(5)
    ]
    for precision in PRECISIONS
}  # fmt: skip
print(table(digits_found))

# %%
draw_runs(digits_found, by="epoch", loss="dev loss")
plt.show()

# %% [markdown]
# And a transformer that reads text: attention, softmax, layer norm, embeddings; three seeds. The text is the manual that Python
# has on board for `help()`.

# %% tags=["nbval-ignore-output"] reason="another Python has another manual"
pieces, nexts = characters(16, 2000)
print("".join(ALPHABET[each] for each in pieces[600:608].flatten()))

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
text_found = {
    precision: [
        train_once(
            lambda seed: character_model(layers=1, length=16, seed=seed),
            (pieces, nexts), precision, seed,
            lr=1e-2, batch_size=16, epochs=1, train_size=1600,
        )
        for seed in range(3)
    ]
    for precision in PRECISIONS
}  # fmt: skip
print(table(text_found))

# %%
draw_runs(text_found, by="step", loss="training loss per character")
plt.show()

# %%
assert within_noise(digits_found)
assert within_noise(text_found)
for found in (digits_found, text_found):
    ends = torch.stack([dev_losses(runs)[:, -1] for runs in found.values()])
    assert (ends - ends[0]).abs().max() < ends[0].max() - ends[0].min()
assert all(run.epochs[-1].metrics["accuracy"] > 0.8 for run in digits_found["bf16"])
assert dev_losses(text_found["fp16"])[:, -1].max() < 3.2  # ln 96 = 4.6 is guessing

# %% [markdown]
# **What you saw.** The curves lie on each other, and the lines on the right are flat: up and down is luck, left to right is
# precision. With the same seed, the precisions end closer to each other than the best and the worst seed do in FP32. So on
# these two tasks a difference between precisions, if there is one, is smaller than what luck does; more than that nobody can
# say from these runs, and to say it of your own task, you need your own seeds.
#
# Two things to keep. Compare seed by seed, since the seed's own luck is then in both numbers. And never compare a single run
# with a single run.
#
# ## The review
#
# Back to the class at the top, and to what starts it: the launch code that is published with it.

# %%
print(LAUNCH)

# %% [markdown]
# **Guess first:** `model` was made at the top of the script. What does `model.cuda()` do in the worker?
#
# Let us start it with one rank, on a CPU. So "gloo", by which processes talk on CPUs, stands in place of "nccl", which is for
# GPUs, and `set_device` is left out. Where the processes meet is a *port*, 12345. First we take another one, on which somebody
# listens already; then the same port, free.

# %%
with socket.socket() as other_run:  # as if another run had it
    other_run.bind(("localhost", 0))
    other_run.listen()
    port = other_run.getsockname()[1]
    worker = LAUNCH.split("\n\n")[0].replace('"nccl"', '"gloo"')
    worker = worker.replace("torch.cuda.set_device(rank)", "pass")
    worker = worker.replace("12345", str(port))
    names = {"dist": dist, "torch": torch, "model": digit_classifier()}
    exec(worker, names)
    try:
        names["worker"](0, 1)
    except RuntimeError as error:
        taken = error

# %% tags=["nbval-ignore-output"] reason="the port is another one each time"
print(f"{type(taken).__name__}: {taken}")

# %%
try:
    names["worker"](0, 1)
except UnboundLocalError as error:
    unbound = error
finally:
    dist.destroy_process_group()
print(f"{type(unbound).__name__}: {unbound}")

# %%
assert "address already in use" in str(taken).lower()
assert "model" in str(unbound)

# %% [markdown]
# **What you saw.** With the port taken, the run does not start; and the port is written into the script, so a second run on the
# machine always finds it taken. With the port free comes the next: `model = DistributedDataParallel(model, ...)` *assigns* to
# `model`, so `model` is a local name in the whole function, and `model.cuda()` asks for it before it has a value. Python says
# so; it has nothing to do with PyTorch. How to start several processes is lesson 10.
#
# ### Exercise 9.5 · The review
#
# Fourteen claims about the two pieces of code. Return the letters of those that are true. Where you are not sure, try it:
# `their_trainer` runs the class with any line changed, and a `torch.utils.data.DistributedSampler` with `num_replicas=2,
# rank=0` can be looked at in one process.

# %%
Markdown(claim_list())


# %%
def true_claims():
    """Return the letters of the claims that are true, such as {"A", "B"}."""
    ### BEGIN SOLUTION
    return {"A", "C", "E", "G", "I", "K", "L"}
    ### END SOLUTION


# %%
check("9.5", true_claims)

# %%
# hint("9.5")
# solution("9.5")

# %% [markdown]
# ## In practice
#
# **1. A checkpoint from a run in another precision.** Somebody trained in BF16, and goes on in FP16. The state of the disabled
# scaler was `{}`. What does an enabled one say to it? And the other way round?

# %% tags=["nbval-ignore-output"] reason="the messages belong to the installed PyTorch"
on = torch.amp.GradScaler(device, init_scale=512.0)
off = torch.amp.GradScaler(device, enabled=False)
try:
    on.load_state_dict(off.state_dict())
except RuntimeError as error:
    refused = str(error)
print("into an enabled one:", refused[:60], "...")
off.load_state_dict(on.state_dict())
print("into a disabled one: nothing is said; scale", off.get_scale())

# %%
assert "empty" in refused
assert off.get_scale() == 1.0

# %% [markdown]
# One is loud, the other silent, and neither is what you want: a scaler without a state begins at 65,536, which is fine, and
# somebody should say so. `amp_lab`'s Trainer does.
#
# **2. "Half the disk space".** A checkpoint of FP16 weights, made with `.half()` before saving:

# %%
weights = torch.tensor([1.0, 1e-8, 70000.0])
print(weights.half().float().tolist())

# %%
assert weights.half().tolist() == [1.0, 0.0, math.inf]

# %% [markdown]
# The FP32 weights are what training adds small steps to (lesson 03). Save them as they are. For inference, cast a copy.
#
# **3. The same in every bit, but where?** On the same machine, with the same number of threads and the same PyTorch. Another
# processor, another number of threads, another batch size add up in another order, and the last bits differ. So test your
# resume on one machine; do not expect a GPU to repeat what a CPU did.
#
# **4. A doctor for somebody else's loop.** A Trainer hides the loop. `watch` looks into any, this one as well:

# %% tags=["nbval-ignore-output"] reason="which steps overflow depends on the processor"
torch.manual_seed(0)
model = digit_classifier()
opt = torch.optim.SGD(model.parameters(), lr=0.2)
trainer = Trainer(model, F.cross_entropy, opt, clip_norm=1.0, **settings)
with watch(trainer.model, trainer.optimizer, trainer.scaler) as seen:
    trainer.fit(train_loader, epochs=2)
seen.report()

# %%
assert seen.report().ok

# %% [markdown]
# ## Takeaways
#
# - One loop for all precisions: `autocast(enabled=...)`, `GradScaler(enabled=...)`. Code that stands twice is mended once.
# - A window's step is the mean over its samples: weigh micro-batches by their share, clip after unscaling, let the scheduler
#   move only with steps that happened.
# - The scaler hides faults: with AMP, a missing `zero_grad` trains well until the first overflow.
# - Numbers about a model: outputs to FP32 first, sums in FP32 or better, weighted by samples, model left as it was.
# - A checkpoint is whole or not there, and holds everything that moves: scaler, scheduler, place in the epoch, random numbers.
#   Whether it does is a test: kill, resume, compare every bit.
# - A precision is as good as another *within the noise*, and noise is measured over seeds.
#
# ## Quiz

# %%
quiz("09")

# %% [markdown]
# **Further reading**
#
# - PyTorch: [Reproducibility](https://docs.pytorch.org/docs/stable/notes/randomness.html), on what can be the same in every
#   bit, and what cannot
# - PyTorch: [Saving and loading models](https://docs.pytorch.org/tutorials/beginner/saving_loading_models.html)
# - X. Bouthillier and others: [Accounting for variance in machine learning benchmarks](https://arxiv.org/abs/2103.03098), on
#   why one seed says little
# - PyTorch's recipe [Automatic Mixed Precision](https://docs.pytorch.org/tutorials/recipes/recipes/amp_recipe.html): the same
#   loop with `enabled=`
