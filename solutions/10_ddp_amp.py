# %% [markdown]
# # 10 · DDP + AMP
#
# | | |
# |---|---|
# | **Time** | 95 minutes |
# | **Difficulty** | hard |
# | **You need** | lessons [05](05_dynamic_loss_scaling.ipynb), [06](06_autocast.ipynb), [07](07_gradscaler_in_practice.ipynb) and [09](09_trainer.ipynb). No GPU: several processes can train together on one CPU. |
#
# **After this page you can**
#
# - say what ranks and process groups are, what DDP averages, and when;
# - show why all ranks skip a step together, and what would drive them apart;
# - write a script in mixed precision that `torchrun` starts, on one machine or on several;
# - accumulate gradients without paying for each micro-batch, count what goes over the wire, and halve it;
# - say why a run hangs, before and after it does.

# %%
import contextlib
import inspect
import math
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import torch
import torch.distributed as dist
from IPython.display import Markdown
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

# %%
from amp_lab import watch
from amp_lab.course import check, hint, quiz, solution
from amp_lab.course.lessons.l10.deadlocks import program_list
from amp_lab.train import ddp as ddp_script
from amp_lab.train.checkpoint import Checkpoints
from amp_lab.train.data import digits
from amp_lab.train.distributed.compression import compress_gradients
from amp_lab.train.distributed.payload import count_payload
from amp_lab.train.distributed.workers import run_ranks
from amp_lab.train.models import digit_classifier
from amp_lab.view.few_colours import few_colours

# %% [markdown]
# ## Two processes
#
# On several GPUs, each GPU has a process of its own. Each process has a number, its *rank*; people also call the process itself
# a rank. All run the same program, each on its own part of the data. What they have to tell each other goes through a *process
# group*: by `gloo` between CPUs, by NCCL between GPUs of NVIDIA. A script opens it with `dist.init_process_group("gloo")`; from
# then on `dist.get_rank()` says which rank this is. `destroy_process_group` closes it.
#
# In real runs `torchrun` starts the processes; that comes later. Here it is mostly `run_ranks`: it calls `function(rank)` in
# that many processes, opens the group for them, and returns the outcome of each. (The first call takes some seconds, because it
# imports PyTorch, once for all of them; then it is a fraction of a second.)
#
# `all_reduce` adds up a tensor over all ranks. **Guess first:** rank 0 has a 1 and rank 1 has a 2. What does each have
# afterwards? And both append their number to a list, `visitors`: what is in this notebook's list afterwards?

# %%
visitors = []


def hello(rank):
    visitors.append(rank)
    number = torch.tensor([rank + 1.0])
    dist.all_reduce(number)
    place = f"{dist.get_rank()} of {dist.get_world_size()}"
    return {"rank": place, "sum": number.item(), "list": visitors}


for each in run_ranks(hello, 2):
    print(each.value)
print("here:", visitors)

# %%
assert visitors == []

# %% [markdown]
# **What you saw.** Both have the sum, 3: not only rank 0. And they share nothing else. Each has a copy of the list, and that of
# the notebook is as it was. If one rank sees a NaN, the others do not know it until somebody sends something.
#
# How do they find each other? Through a *store*: one process listens at a port, and all ranks know its number. Published code
# often has one written into it, such as 12345. But a port belongs to one process: the second run on the same machine ends with
# "address already in use". Port 0 means "any that is free": the system chooses, and whoever has opened the store tells the
# others. `run_ranks` does that, and so does `torchrun --standalone`: no number stands in any script.
#
# ## What DDP averages
#
# `DistributedDataParallel` (DDP) wraps a model, and changes two things. Let each rank make another model on purpose, by another
# seed, and take half of 64 images. **Guess first:** after `backward()`, what is the gradient on rank 0: that of its own 32
# images, the sum over both ranks, or the mean?

# %%
images, labels = digits()
torch.set_num_threads(1)  # as each rank has: so numbers can be the same in every bit


def after_backward(rank):
    model = DistributedDataParallel(digit_classifier(seed=rank))
    inputs, targets = images[rank:64:2], labels[rank:64:2]
    F.cross_entropy(model(inputs), targets).backward()
    return [(each.detach(), each.grad) for each in model.parameters()]


zero, one = (each.value for each in run_ranks(after_backward, 2))

# %% [markdown]
# And beside them one process, with a model of seed 0 and the two halves one after the other, each loss divided by 2
# (accumulation, as in lesson 07).


# %%
def alone():
    model = digit_classifier(seed=0)
    for half in (slice(0, 64, 2), slice(1, 64, 2)):
        (F.cross_entropy(model(images[half]), labels[half]) / 2).backward()
    return [(each.detach(), each.grad) for each in model.parameters()]


def same_bits(these, those):
    pairs = zip(these, those, strict=True)
    return all(torch.equal(a, b) for one, two in pairs for a, b in zip(one, two))


print("rank 1 has the weights and gradients of rank 0:", same_bits(zero, one))
print("one process, one half after the other, too:    ", same_bits(zero, alone()))

# %%
assert same_bits(zero, one)
assert same_bits(zero, alone())

# %% [markdown]
# **What you saw.** The two things: when it is made, DDP sends the weights of rank 0 to all; and `backward()` leaves the *mean*
# of the ranks' gradients in every `.grad`. From the same weights and the same gradients the same optimizer makes the same step,
# so the weights are never sent again. Two ranks do, in every bit, what one process does that accumulates two halves. (One batch
# of 64 adds in another order, so its last digits differ: nobody can promise you more than that.)
#
# (The mean over *ranks* is the mean over samples only if all ranks have equally many. Where they have not, in a last batch for
# instance, `amp_lab`'s Trainer puts it right.)

# %% [markdown]
# ## When DDP averages
#
# *When* does DDP average? And what becomes of a step that overflows on one rank? A simulator shows what processes do not: who
# waits for whom. A program says what a rank does, a token for each call of a training loop, and `simulate` lets several ranks
# follow it. Times are made up: 100 MB of gradients in four exchanges, 10 GB per second between ranks, and 0.1 ms to start each
# exchange. The rules are those of DDP and of `GradScaler`, and are tested against real processes.

# %%
from amp_lab.train.ddp_simulator import (
    Backward,
    Forward,
    NoSync,
    SetGradient,
    Skip,
    Step,
    Update,
    simulate,
)

# %% [markdown]
# **Guess first:** the backward pass takes 10 ms, and to average all gradients takes 10.4 ms. How long do the two take?

# %%
timeline = simulate([Forward(ms=5), Backward(ms=10), Step(), Update()], ranks=2)
few_colours(timeline.plot())

# %%
ends = {event.kind: event.end for event in timeline.events if event.rank == 0}
print(f"from the end of forward: {ends['all-reduce'] - ends['forward']:.1f} ms")

# %% [markdown]
# **What you saw.** Not 20.4 ms. Gradients travel in *buckets* of 25 MB. (That is DDP's default, too; only its first bucket is
# smaller, 1 MB, so that the first exchange begins early.) A bucket leaves as soon as it is full: that of the last layers first,
# while the backward pass is still busy with the others. Only the rest is waited for. Each number on the lower bars is an
# all-reduce like the one in `hello`, and begins when the *last* rank is there. So a rank that is late keeps all others waiting,
# and a `barrier()` in each step, "to keep the ranks together", only adds one more wait.

# %% [markdown]
# ## Why all skip together
#
# Now three steps with loss scaling. In the second one, a gradient of rank 1 overflows, in its own backward pass. Each rank has
# a `GradScaler` of its own, and they do not talk. **Guess first:** who skips, rank 1, both, or nobody?


# %%
def overflow(rank, late=False):
    for step in range(3):
        bad = (rank, step) == (1, 1)
        yield Forward()
        yield Backward(gradients=math.inf if bad and not late else 0.1)
        if bad and late:
            yield SetGradient(math.inf)
        yield Step()
        yield Update()


timeline = simulate(overflow, ranks=2)
few_colours(timeline.plot())

# %%
print(timeline)
assert timeline.skipped == ((False, True, False),) * 2
assert timeline.scales_equal
assert timeline.weights_equal

# %% [markdown]
# **What you saw.** Both. The sign ∞ stands at the backward pass of rank 1, and at what was averaged: the mean of a number and
# infinity is infinity, so *both* find it among their gradients. Both skip (X), both halve their scale. No further message is
# needed: the all-reduce has carried it.
#
# **Guess first:** and if the infinity gets into a gradient of rank 1 *after* the averaging? (Here by `SetGradient`; in life by
# code of your own between `backward` and `step`, on one rank.)

# %%
timeline = simulate([overflow(rank, late=True) for rank in range(2)])
print(timeline)

# %%
assert timeline.skipped == ((False, False, False), (False, True, False))
assert not timeline.scales_equal
assert not timeline.weights_equal

# %% [markdown]
# **What you saw.** Rank 1 skips, rank 0 steps, and from there on they train two models, at two scales, and average their
# gradients. No error, and a loss that looks nearly right. So whatever changes gradients between `backward` and `step` must do
# the same on all ranks. Clipping does: same gradients, same norm.

# %% [markdown]
# Back to the first case, now with real processes: FP16, and a scaler in each rank. In the third of five steps the images of
# rank 1 are 60,000 times too bright, and its gradients overflow; those of rank 0 do not. **Guess first:** what do the two
# scales look like?


# %%
def five_steps(rank):
    model = DistributedDataParallel(digit_classifier())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler, seen = torch.amp.GradScaler("cpu"), []
    for step in range(5):
        part = slice(64 * step + rank, 64 * step + 64, 2)
        ink = 60_000 if (rank, step) == (1, 2) else 1
        opt.zero_grad()
        with torch.autocast("cpu", torch.float16):
            error = F.cross_entropy(model(images[part] * ink), labels[part])
        scaler.scale(error).backward()
        scaler.step(opt)
        scaler.update()
        seen.append(scaler.get_scale())
    return seen, model.module.state_dict()


# %%
ranks = [each.value for each in run_ranks(five_steps, 2)]
for rank, (seen, _) in enumerate(ranks):
    print(f"rank {rank}: scale", *(f"{each:,.0f}" for each in seen))

# %%
(scales, weights), (other_scales, other_weights) = ranks
assert scales == other_scales == [2.0**16] * 2 + [2.0**15] * 3
assert all(torch.equal(each, other_weights[name]) for name, each in weights.items())

# %% [markdown]
# **What you saw.** One scaler per rank, no word between them, and they agree; the weights do, in every bit. No line of this
# loop knows that there are two ranks. That is AMP with DDP: the loop of lesson 07, and a wrapped model.

# %% [markdown]
# ## Which samples
#
# Each rank needs a part of its own. `DistributedSampler` shuffles the numbers of all samples and deals them out like cards. In
# an open group `DistributedSampler(dataset)` asks for rank and number of ranks by itself, and goes to the loader:
# `DataLoader(dataset, 32, sampler=…)`. Told both numbers, it can be looked at without processes. **Guess first:** 7 samples, 2
# ranks, 2 epochs. How many samples does each rank get, and does epoch 1 bring another order?


# %%
def deal(epoch, tell):
    hands = []
    for rank in range(2):
        cards = DistributedSampler(range(7), num_replicas=2, rank=rank)
        if tell:
            cards.set_epoch(epoch)
        hands.append(list(cards))
    return hands


for tell in (False, True):
    print("with set_epoch:" if tell else "without set_epoch:")
    for epoch in range(2):
        zero, one = deal(epoch, tell)
        print(f"  epoch {epoch}: rank 0 gets {zero}, rank 1 {one}")

# %%
assert deal(0, False) == deal(1, False) == deal(0, True) != deal(1, True)
for epoch in range(2):
    zero, one = deal(epoch, True)
    assert (len(zero + one), set(zero + one)) == (8, set(range(7)))

# %% [markdown]
# **What you saw.** Four each, so one of the seven is dealt twice: all ranks must make equally many steps, or one waits for a
# partner that has gone home. For training that does no harm. A *dev* loss would count a sample twice: there, deal each sample
# once, and add up sums and counts over the ranks. `amp_lab`'s Trainer does.
#
# And the order of epoch 1 is that of epoch 0, unless somebody calls `set_epoch`. No error tells of it.
#
# Two more things are random. The weights to begin with: DDP sends those of rank 0. And dropout: with the same seed on all
# ranks, all drop the same units, so seed with `seed + rank`, once the model is made. (What must *not* differ is a random split
# into training and dev set: one seed for all, or a rank trains on what another one measures with.)
#
# ## One file
#
# All ranks have the same weights, optimizer state and scale, so one of them writes, rank 0. It writes the state of the model
# inside, `ddp.module`, which can be loaded anywhere: by one process, by other wrappers, by as many ranks as you like. For DDP
# is a module around the model, and in its own `state_dict()` each name begins with `module.`. The plain model refuses that; and
# `strict=False` makes the error go away by loading *nothing*.
#
# Rank 0 writes while the others go on training: no barrier is needed. Only whoever *reads* a file must wait until it is there.
#
# ### Exercise 10.1 · Complete the script
#
# All of it together, in a file, since `torchrun` starts files. Each rank that it starts finds its place in the environment:
# `RANK` of `WORLD_SIZE`, and where the store is; `init_process_group(backend)` reads that.
#
# Complete `train`. Each rank calls it, with the same arguments. It
#
# - opens the process group ("nccl" if `device.type` is "cuda", else "gloo"), and closes it at the end. Before that, `del` the
#   wrapped model: freed after the group, it may hang (why, you will see below; the check does not ask for it);
# - deals the samples out anew in each epoch, so that each rank gets batches of its own part, `batch_size` samples each (the
#   last may have fewer);
# - trains for `epochs` epochs on `device`, where model and batches go, with SGD (`lr=0.1`) on the mean cross-entropy; the
#   forward pass and the loss stand under FP16 autocast, gradients are averaged over the ranks, and a `GradScaler(device.type)`
#   keeps them in FP16's range;
# - saves the state dict of the plain model to `path` at the end, on rank 0 alone;
# - returns the scale after each step: a list of floats.
#
# (The first line of the cell writes what stands below it into the file. So the file has its own imports.)

# %%
Path("scratch").mkdir(exist_ok=True)

# %% tags=["nbval-ignore-output"] reason="says Writing the first time, Overwriting later"
# %%writefile scratch/train_ddp.py
import os

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # before there is a group (see below)
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from amp_lab.train.data import digits
from amp_lab.train.models import digit_classifier


def train(model, dataset, device, path, epochs=3, batch_size=32):
    """Train `model` on all ranks together, in FP16; return the scale of each step."""
    ### BEGIN SOLUTION
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    ddp = DistributedDataParallel(model.to(device))
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size, sampler=sampler)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler, scales = torch.amp.GradScaler(device.type), []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, targets in loader:
            optimizer.zero_grad()
            with torch.autocast(device.type, torch.float16):
                outputs = ddp(inputs.to(device))
                loss = nn.functional.cross_entropy(outputs, targets.to(device))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), path)
    del ddp
    dist.destroy_process_group()
    return scales
    ### END SOLUTION


if __name__ == "__main__":  # under torchrun, which sets these variables
    rank, here = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    device = torch.device("cpu")
    if torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        device = torch.device("cuda", here)
        torch.cuda.set_device(device)
    samples = TensorDataset(*digits())
    scales = train(digit_classifier(), samples, device, "scratch/ddp.pt")
    print(f"rank {rank} on {device}: {len(scales)} steps, scale {scales[-1]:g}")

# %%
check("10.1", "scratch/train_ddp.py")

# %%
# hint("10.1")
# solution("10.1")

# %% [markdown]
# The check runs your file in two processes of its own, on a small model. Now for real. `python -m torch.distributed.run` is
# `torchrun` by its long name; `--standalone`: one machine, a free port; `--nproc-per-node`: how many ranks. This cell starts it
# and shows what it says. It takes some seconds, most of them imports; on a busy machine, half a minute.


# %%
def short(line):
    """Take out torchrun's dates, and paths of this machine."""
    line = re.sub(r"^[WE]\d{4} .*?\] ", "", line)
    return line.replace(sys.executable, "python").replace(f"{Path.cwd()}/", "")


# %%
def launch(*command, seconds=240):
    """Start Python, show what it says as it comes, return how it ended."""
    command = [sys.executable, *command]
    to_here = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=one_thread, **to_here) as process:
        limit = threading.Timer(seconds, process.terminate)
        limit.start()
        for line in process.stdout:
            print(textwrap.fill(short(line), 90))
        if not limit.is_alive():
            print(f"stopped after {seconds} s: a rank waits, or the machine is busy")
        limit.cancel()
    return process.returncode


# %% tags=["nbval-ignore-output"] reason="the ranks speak in any order; CUDA has other digits"
script, ended = Path("scratch/train_ddp.py"), None
torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node")
if "NotImplementedError" in script.read_text():
    print("complete the script first")
else:
    ended = launch(*torchrun, "2", str(script))

# %%
assert ended in (0, None), "what was printed above says why"

# %% [markdown]
# **What you saw.** Two ranks, each with as many steps and the same scale. On a machine with two GPUs the same file has used
# them, through NCCL; with fewer it takes the CPU. More ranks are another number on the command line.
#
# Why the `del`? A group has threads of gloo, and they must end before Python does. `destroy_process_group` sees to that, if
# nobody else holds on to the group. The wrapper does. If it is freed later, when the function returns, Python waits for those
# threads and holds its lock (the GIL) meanwhile; one of them may just be waiting for that lock. Functions of
# `torch.distributed.nn.functional` do, too: they take the group as a default argument, if there is one when they are imported,
# and DDP imports them. Then nobody waits, and a thread that Python's end overtakes aborts the process. Many published scripts
# end in one of these ways, and now and then they hang, or die (`SIGABRT`), behind their last line.
#
# The rest of the page is about what comes when runs grow: data, accumulation, the wire, and ranks that wait.

# %% [markdown]
# ## The cards, once more
#
# `DistributedSampler` is short. Write it yourself once: it is ten lines, and then you know what it promises.
#
# ### Exercise 10.2 · Shard and reshuffle
#
# Return the indices of the samples that `rank` gets in this epoch: a list of ints.
#
# - The ranks share out all `samples`, in an order that is random and new in every epoch.
# - All ranks get equally many. Where the number does not divide, some samples are dealt twice: as few as possible, and none is
#   left out.
# - Ranks call this without a word to each other, and again after a restart: so the arguments decide everything. Global random
#   numbers are neither used nor changed. Another seed gives another order.


# %%
def shard(samples, rank, ranks, epoch, seed=0):
    """Return the indices of the samples that a rank gets in this epoch."""
    ### BEGIN SOLUTION
    draw = torch.Generator().manual_seed(seed + epoch)
    order = torch.randperm(samples, generator=draw).tolist()
    share = -(-samples // ranks)
    while len(order) < share * ranks:
        order += order[: share * ranks - len(order)]
    return order[rank::ranks]
    ### END SOLUTION


# %%
check("10.2", shard)

# %%
# hint("10.2")
# solution("10.2")

# %% [markdown]
# ## Micro-batches
#
# With accumulation (lesson 07), a step is several backward passes, and DDP averages in each of them. The result is right: a sum
# of means is the mean of sums. `with ddp.no_sync():` leaves the exchange out. **Guess first:** how much longer does a step of
# four micro-batches take with all four exchanges than with one? And is it enough to put `backward` alone inside `no_sync`?

# %%
micro = [Forward(), Backward(gradients=0.02)]
first_three = {
    "nothing": micro * 3,
    "both": [NoSync(*micro)] * 3,
    "backward": [micro[0], NoSync(micro[1])] * 3,
}
print("inside no_sync    all-reduces    payload       time")
for inside, three in first_three.items():
    timeline = simulate([*three, *micro, Step(), Update()])
    numbers = f"{timeline.payload / 1e6:8.0f} MB {1e3 * timeline.seconds:7.1f} ms"
    print(f"{inside:13} {timeline.all_reduces:15} {numbers}")

# %%
few_colours(simulate([*first_three["both"], *micro, Step(), Update()]).plot())

# %% [markdown]
# **What you saw.** The first three exchanges buy nothing: four times the payload, for the same gradients. They make the
# step 8.7 ms longer; the rest hides behind the backward passes, and would not on a slower network. With `no_sync` around the first
# three (in the picture), the last micro-batch, outside of it, sends the sum. But around `backward` alone it does nothing at
# all, and nobody says so: DDP decides in the *forward* pass whether this one will be exchanged. So both belong inside.
#
# What about overflow? The infinity of an early micro-batch stays in its rank's sum, and travels with it. So `step` and `update`
# stand behind the last micro-batch, once, and all ranks skip together as before. (With *all four* inside, nothing travels, and
# the ranks drift apart.)
#
# ### Exercise 10.3 · One exchange, one decision
#
# Make one FP16 step with all micro-batches of all ranks. Each rank calls this with its own list of pairs (inputs, targets),
# equally many of equal size; `loss_function(outputs, targets)` is a mean. Autocast is for `inputs.device.type`.
#
# - The gradient is that of the mean loss of all micro-batches of all ranks.
# - The ranks exchange gradients once, however many micro-batches there are.
# - Where a gradient of *any* rank is not finite: no rank moves its weights, and all scales fall.
# - Return True where the optimizer has made its step, else False.
#
# (`contextlib.nullcontext()` is a context that does nothing.)


# %%
def ddp_step(ddp, optimizer, scaler, loss_function, micro_batches):
    """Make one step; return whether the weights have moved."""
    ### BEGIN SOLUTION
    optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(micro_batches, start=1):
        last = number == len(micro_batches)
        with contextlib.nullcontext() if last else ddp.no_sync():
            with torch.autocast(inputs.device.type, torch.float16):
                loss = loss_function(ddp(inputs), targets) / len(micro_batches)
            scaler.scale(loss).backward()
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() >= scale
    ### END SOLUTION


# %%
check("10.3", ddp_step)

# %%
# hint("10.3")
# solution("10.3")

# %% [markdown]
# ## What goes over the wire
#
# "AMP halves the communication", people say: 16 bits in place of 32. `count_payload` counts the bytes that a rank hands to
# all-reduce. **Guess first:** the classifier has 4,810 weights, and in FP32 that makes 19,240 bytes a step. And under FP16
# autocast?


# %%
def sent(rank, region, hook):
    model = DistributedDataParallel(digit_classifier())
    compress_gradients(model, hook)
    with count_payload(model) as payload:
        with torch.autocast("cpu", torch.float16, enabled=region == "FP16"):
            outputs = model(images[:32])
        F.cross_entropy(outputs, labels[:32]).backward()
    return payload.bytes


settings = [("FP32", "none"), ("FP16", "none"), ("FP16", "fp16"), ("FP16", "bf16")]
found = {each: run_ranks(sent, 2, *each)[0].value for each in settings}
for (region, hook), size in found.items():
    print(f"forward in {region}, hook {hook:5} {size:7,} bytes")

# %%
assert sum(each.numel() for each in digit_classifier().parameters()) == 4810
assert found["FP32", "none"] == found["FP16", "none"] == 4 * 4810
assert found["FP16", "bf16"] == 2 * 4810
assert found["FP16", "fp16"] == 2 * 4810 + 4

# %% [markdown]
# **What you saw.** Just as many. Autocast casts copies of the weights; the weights are FP32, so are their gradients, and those
# are sent. What halves the payload is a *communication hook*, which casts each bucket before it leaves and back when it has
# arrived: a choice of its own, which a run in FP32 can make as well.
#
# PyTorch has such a hook, `fp16_compress_hook`. **Guess first:** what does it make of a gradient of 100,000 (about 1.5, times a
# scale of 65,536), and of one of 10⁻⁸, in a run without a scale?


# %%
def averaged(rank, hook, gradient):
    model = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    if hook == "plain cast":
        model.register_comm_hook(None, fp16_compress_hook)
    else:
        compress_gradients(model, hook)
    (gradient * model(torch.ones(1, 1))).backward()
    return model.module.weight.grad.item()


# %%
LARGE, SMALL, came = 100_000.0, 1e-8, {}
print(f"{'gradient':10} {LARGE:10,.0f} {SMALL:10.1e}")
for hook in ("plain cast", "fp16", "bf16"):
    for each in (LARGE, SMALL):
        came[hook, each] = run_ranks(averaged, 2, hook, each)[0].value
    print(f"{hook:10} {came[hook, LARGE]:10,.0f} {came[hook, SMALL]:10.1e}")

# %%
assert came.pop(("plain cast", LARGE)) == math.inf
assert came.pop(("plain cast", SMALL)) == 0
assert all(abs(each / gradient - 1) < 0.01 for (_, gradient), each in came.items())

# %% [markdown]
# **What you saw.** Infinity, and zero: a range problem again (lesson 02), in a place where nobody looks for one. BF16 has the
# range, and only 8 significant bits: 99,840. With the `fp16` of `amp_lab`, the ranks first agree on a power of two for each
# bucket. That is loss scaling once more (and their message is the four bytes more in the table further up).
#
# ### Exercise 10.4 · The payload of a step
#
# Return how many bytes of gradients one rank hands to all-reduce in one step of DDP. `model` is a plain module; all of it is
# used in the forward pass. `ranks` is how many processes train it; `autocast` the dtype of the region of the forward pass,
# None for none; `compression` the dtype of the hook, None for none. (What ranks agree on besides does not count.)


# %%
def payload_bytes(model, ranks, autocast=None, compression=None):
    """Return the bytes of gradients that one rank hands over in one step."""
    ### BEGIN SOLUTION
    trained = [each for each in model.parameters() if each.requires_grad]
    return sum(each.numel() * (compression or each.dtype).itemsize for each in trained)
    ### END SOLUTION


# %%
check("10.4", payload_bytes)

# %%
# hint("10.4")
# solution("10.4")

# %% [markdown]
# ## A rank that does not come
#
# All-reduce waits for all. So what if one rank decides alone? This loop has met a NaN before, and its author has added an `if`.
# Steps count from 0. **Guess first:** the loss of rank 1 is NaN in step 1 of three. What does rank 0 do in its step 1?


# %%
def careful(rank):
    for step in range(3):
        loss = yield Forward(loss=math.nan if (rank, step) == (1, 1) else 1.0)
        if math.isnan(loss):
            yield Skip()
            continue
        yield Backward(gradients=0.1)
        yield Step()
        yield Update()


timeline = simulate(careful)
few_colours(timeline.plot())

# %%
for words in (*timeline.mispaired[:1], str(timeline.deadlock).splitlines()[0]):
    print(textwrap.fill(str(words), 90))

# %%
assert timeline.deadlock.waits[1] is None
assert timeline.mispaired

# %% [markdown]
# **What you saw.** Two faults. The lesser one is the deadlock at the end: rank 0 has one step too many, and waits until the
# process of rank 1 has ended, or for the group's timeout (30 minutes with gloo, 10 with NCCL, unless you say otherwise). The
# worse one comes before, and is silent: all-reduces pair *in the order in which they come*. Rank 0 has averaged its gradients
# of step 1 with those of step 2.
#
# Real processes do the same. Where each gradient of step s is 10 to the power of s, rank 0 finds 1, and then 55, the mean of 10
# and 100: the gradient of no step. And the error comes from rank 0, which had no NaN.
#
# So every decision to leave something out is taken *together*: by numbers that all have (the gradients after the average, the
# scale), or by an all-reduce of the flag, made by all, in every step. `amp_lab`'s Trainer sends one small message in each step:
# the rank's loss and number of samples, its scale and learning rate, and whether it wants to stop.
#
# Who finds such an `if` in somebody else's loop? `watch` (lesson 07), started on every rank: the ranks tell each other through
# the store what they are doing, so it speaks even *while* they wait. Here the digits, with the same fault in the fourth step:


# %%
def watched(rank):
    model = DistributedDataParallel(digit_classifier())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    with contextlib.suppress(RuntimeError), watch(model, opt) as seen:
        for step in range(6):
            part = slice(64 * step + rank, 64 * step + 64, 2)
            error = F.cross_entropy(model(images[part]), labels[part])
            if (rank, step) == (1, 3):
                continue
            opt.zero_grad()
            error.backward()
            opt.step()
    return str(seen.report()), [each.id for each in seen.report().diagnoses]


# %% tags=["nbval-ignore-output"] reason="where a line stands depends on the notebook's kernel"
reports = [each.value for each in run_ranks(watched, 2)]
print(reports[1][0])

# %%
assert [causes for _, causes in reports] == [["one-rank-decides"]] * 2

# %% [markdown]
# (A report counts steps from 1, and lines from the top of the cell. It shows the backward pass that one rank left out; the
# `continue` stands two lines above.) Both ranks say the same. Without the report, all that you would have is the error of rank
# 0: "connection closed by peer".
#
# ### Exercise 10.5 · Find the deadlocks
#
# Ten programs. Two ranks run the same one, on batches of their own: equally many, unless something else is said. `step` makes a
# complete, correct FP16 step with DDP and returns its rank's own loss, a number; `forward` returns the loss as a tensor; `ddp`
# is the wrapped model. In which of them does a rank wait for an exchange that no other rank ever enters? (PyTorch ends that
# with an error: after its timeout, or once the other process is gone.)

# %%
Markdown(program_list())


# %%
def hanging_programs():
    """Return the set of letters of the programs in which a rank waits for ever."""
    ### BEGIN SOLUTION
    return {"A", "B", "D", "G", "I"}
    ### END SOLUTION


# %%
check("10.5", hanging_programs)

# %%
# hint("10.5")
# solution("10.5")

# %% [markdown]
# ## A script for work
#
# `amp_lab.train.ddp` is what your script becomes when it has to last: the Trainer of lesson 09, which knows of ranks, and
# around it what a launch needs. Each rank runs its function `train`. Its parts:
#
# - **`joined`** opens the group, says who is missing if somebody does not come, and closes it, however the run ends. (It keeps
#   the group until the process ends, so the wrapped model may live on, and no `del` is needed.)
# - **`check_alike`**: ranks with different data or options would train without an error. So they compare, once.
# - **Loaders**: the training set is dealt out anew in each epoch. On the dev set, `DevShard` deals without padding.
# - **The order**: the model on its device, the wrapper, the hook, and then the optimizer.
# - **`Trainer`**: one loop for one process and for many. `no_sync`, decisions taken together, rank 0's checkpoint (with the
#   random state of every rank): you know the reasons for each.
# - **`following`**: Ctrl+C stops all ranks after the same step, with a checkpoint. (torchrun adds a traceback of its own.)

# %%
source = inspect.getsource(ddp_script.train)
title = "<summary>Unfold it, now or later: <code>train</code></summary>"
Markdown(f"<details>{title}\n\n```python\n{source}```\n\n</details>")

# %% [markdown]
# Two epochs of it, undisturbed. (Without torchrun: `--spawn 2` starts the two processes by itself. This takes about 20
# seconds, longer on a busy machine, and so does the next run.)

# %%
options = "--precision fp16 --epochs 2 --every 10 --quiet --device cpu".split()
for folder in ("whole", "killed"):
    shutil.rmtree(Path("scratch", folder), ignore_errors=True)

# %% tags=["nbval-ignore-output"] reason="the last digits depend on the processor"
whole = ["-m", "amp_lab.train.ddp", *options, "--checkpoints", "scratch/whole"]
ended = launch(*whole, "--spawn", "2")

# %%
assert ended == 0, "what was printed above says why"

# %% [markdown]
# And now somebody dies. This file is the same script, but in its first life rank 1 kills itself after 18 steps: with SIGKILL,
# which nothing can catch. `--every 10` saves a checkpoint every ten steps, and `--max-restarts 1` allows torchrun to start anew
# once. **Guess first:** which ranks does it start again, at which step do they go on, and how far are the weights at the end
# from those of the undisturbed run?

# %% tags=["nbval-ignore-output"] reason="says Writing the first time, Overwriting later"
# %%writefile scratch/killed.py
import os
import signal
import sys

from torch.optim.optimizer import register_optimizer_step_post_hook

from amp_lab.train import ddp as ddp_script

made = []


def die(*_):
    made.append(1)
    if len(made) == 18:
        os.kill(os.getpid(), signal.SIGKILL)


if (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
    register_optimizer_step_post_hook(die)
sys.exit(ddp_script.main())

# %% tags=["nbval-ignore-output"] reason="processes have other numbers each time"
killed = ["scratch/killed.py", *options, "--checkpoints", "scratch/killed"]
ended = launch(*torchrun, "2", "--max-restarts", "1", *killed)

# %%
runs = [Checkpoints(Path("scratch", folder)).load() for folder in ("whole", "killed")]
weights, restarted = (each["model"] for each in runs)
same = all(torch.equal(each, restarted[name]) for name, each in weights.items())
print("steps:", *(each["step"] for each in runs), "  weights same in every bit:", same)

# %%
assert ended == 0, "what was printed above says why"
assert same
assert runs[0]["step"] == runs[1]["step"] == 46

# %% [markdown]
# **What you saw.** torchrun notices that a process is dead (exit code -9), ends the *other* one as well, which cannot go on
# alone, and starts both again. They find the checkpoint of step 10 and make the lost steps once more; and since the file holds
# everything that moves, of each rank, the end is the same in every bit. torchrun knows nothing of checkpoints. Without `resume`
# in the script, a restart is a new run.

# %% [markdown]
# ## In practice
#
# **1. Several nodes**, that is, machines. The same script; on each of two nodes of eight GPUs, one line:
#
# ```
# torchrun --nnodes=2 --nproc-per-node=8 \
#     --rdzv-backend=c10d --rdzv-endpoint=node0:29400 \
#     -m amp_lab.train.ddp --precision fp16
# ```
#
# `rdzv` is for rendezvous, the place to meet. `node0` is the name of one of them. Its torchrun hosts the store, so here a fixed
# port is right, one for each job. Ranks are numbered over both, 0 to 15; `LOCAL_RANK`, 0 to 7, is the GPU. With
# `--nnodes=1:2 --max-restarts=3`, and checkpoints in a folder that both can read, the run survives the loss of a node (not of
# `node0`): torchrun waits half a minute for another, and goes on with half the ranks, from the last checkpoint. The batch of a
# step is then half as large.
#
# **2. Without torchrun.** `torch.multiprocessing.spawn(worker, nprocs=2)` calls `worker(rank)` in two new processes, as
# `--spawn` does. Nobody sets the environment there, nobody restarts a dead rank, and you must find a free port yourself: let
# the parent open a `TCPStore` on port 0, and hand its number on.
#
# **3. Old launch code**, as it is found in lesson 09's review and elsewhere:
#
# | what stands there | what comes of it | what to write |
# |---|---|---|
# | `init_method="tcp://localhost:12345"` | the second run on the machine dies | `torchrun`, or a store on port 0 |
# | `model = DistributedDataParallel(model)`, of a global `model` | `UnboundLocalError` | another name, `ddp` |
# | one loader for all, without a sampler | every rank trains on all samples | a `DistributedSampler` in each rank |
# | no `set_epoch` | the same order in every epoch | call it before each epoch |
# | `barrier()` in each step | one more wait | nothing: the all-reduce waits |
# | all ranks save | they write one file at once | rank 0 saves `ddp.module` |
# | no `destroy_process_group` | warnings at the end, or a hang | the last call, when `ddp` is gone |
#
# **4. On GPUs.** `backend="nccl"`, one GPU for each rank, `torch.cuda.set_device(local_rank)` before anything else. An
# all-reduce of NCCL is put into the GPU's queue, and Python goes on: so a hang shows later, in the next line that asks for a
# number, such as `loss.item()`. Where Python waits then is not where the fault is. If this machine has CUDA, here is the script
# with NCCL:

# %% tags=["nbval-ignore-output"] reason="describes the machine that runs it"
gpus, ended = torch.cuda.device_count(), None
if gpus:
    ended = launch(*torchrun, str(gpus), "-m", "amp_lab.train.ddp", "--quiet")
else:
    print("no CUDA here: nothing was run with NCCL")

# %%
assert ended in (0, None), "what was printed above says why"

# %% [markdown]
# ## Takeaways
#
# - A rank is a process. Ranks share nothing but what they send, and what they send pairs by order alone.
# - DDP averages gradients in `backward`, bucket by bucket, and so spreads an overflow to all: one scaler per rank, no word
#   between them, one decision. What changes gradients after that must do the same on all ranks.
# - A sampler deals the samples, and is told the epoch; rank 0 saves the plain model; nobody needs a barrier in the step.
# - `no_sync` takes forward and backward inside, for all micro-batches but the last.
# - Under autocast gradients are FP32, and so is the payload. A communication hook halves it, and is a cast like any other.
# - No decision on one rank alone. A hang is the lesser harm.
# - `torchrun` finds ports, numbers ranks, and starts them anew; what to resume from is the script's business.
#
# ## Quiz

# %%
quiz("10")

# %% [markdown]
# **Further reading**
#
# - PyTorch: [Distributed Data Parallel](https://docs.pytorch.org/docs/stable/notes/ddp.html), on buckets and hooks from within
# - PyTorch: [torchrun](https://docs.pytorch.org/docs/stable/elastic/run.html), on rendezvous and restarts
# - PyTorch: [DDP communication hooks](https://docs.pytorch.org/docs/stable/ddp_comm_hooks.html)
# - S. Li and others: [PyTorch Distributed: experiences on accelerating data parallel
#   training](https://arxiv.org/abs/2006.15704): why buckets, and why they begin at the last layer
