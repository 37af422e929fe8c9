"""Answers to the exercises of lesson 10."""

import contextlib
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DistributedSampler

from tests.course.bank import Bank, FileBank

script = FileBank("10.1")
shards = Bank("10.2")
step = Bank("10.3")
pay = Bank("10.4")
locks = Bank("10.5")
BANKS = (script, shards, step, pay, locks)

# 10.1 Complete the script

RIGHT = '''
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler


def train(model, dataset, device, path, epochs=3, batch_size=32):
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
    dist.destroy_process_group()
    return scales
'''


def changed(*pairs):
    """Return the right script with lines replaced; each must be there."""
    code = RIGHT
    for old, new in pairs:
        assert old in code, old
        code = code.replace(old, new)
    return code


@script.right
def as_on_the_page():
    return RIGHT


@script.right
def saves_through_the_wrapper_and_meets():
    return changed(
        ("torch.save(model.state_dict(), path)", "torch.save(ddp.module.state_dict(), path)\n    dist.barrier()"),
        ("DataLoader(dataset, batch_size, sampler=sampler)", "DataLoader(dataset, sampler=sampler, batch_size=batch_size)"),
    )


@script.right
def by_hand():
    return '''
import random
import torch
import torch.distributed as dist
from torch import nn


def train(model, dataset, device, path, epochs=3, batch_size=32):
    dist.init_process_group()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler(device.type)
    scales = []
    try:
        for epoch in range(epochs):
            order = list(range(len(dataset)))
            random.Random(epoch).shuffle(order)
            mine = order[rank::ranks]
            for start in range(0, len(mine), batch_size):
                pairs = [dataset[index] for index in mine[start : start + batch_size]]
                inputs, targets = (torch.stack(each).to(device) for each in zip(*pairs))
                model.zero_grad()
                with torch.autocast(device.type, torch.float16):
                    loss = nn.CrossEntropyLoss()(model(inputs), targets)
                scaler.scale(loss).backward()
                for each in model.parameters():
                    dist.all_reduce(each.grad)
                    each.grad /= ranks
                scaler.step(optimizer)
                scaler.update()
                scales += [scaler.get_scale()]
        if rank == 0:
            torch.save(dict(model.named_parameters()), path)
        dist.barrier()
    finally:
        dist.destroy_process_group()
    return scales
'''


@script.right
def in_pieces():
    return changed(
        ("def train(", "def one(ddp, optimizer, scaler, inputs, targets):\n"
         "    with torch.amp.autocast(inputs.device.type, dtype=torch.half):\n"
         "        loss = nn.functional.cross_entropy(ddp(inputs), targets)\n"
         "    scaler.scale(loss).backward()\n"
         "    scaler.unscale_(optimizer)\n"
         "    scaler.step(optimizer)\n"
         "    scaler.update()\n"
         "    optimizer.zero_grad()\n"
         "    return scaler.get_scale()\n\n\ndef train("),
        ("""            optimizer.zero_grad()
            with torch.autocast(device.type, torch.float16):
                outputs = ddp(inputs.to(device))
                loss = nn.functional.cross_entropy(outputs, targets.to(device))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
""", "            scales.append(one(ddp, optimizer, scaler, inputs.to(device), targets.to(device)))\n"),
    )


@script.wrong("no-train")
def other_name():
    return changed(("def train(", "def training("))


@script.wrong("fixed-port")
def tcp_address():
    return changed(('"gloo")', '"gloo", init_method="tcp://127.0.0.1:29511", '
                    'rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))'))


@script.wrong("fixed-port")
def port_in_the_environment():
    return changed(("    dist.init_process_group(", '    os.environ["MASTER_PORT"] = "12355"\n    dist.init_process_group('))


@script.wrong("waits")
def barrier_of_rank_0():
    return changed(("torch.save(model.state_dict(), path)", "torch.save(model.state_dict(), path)\n        dist.barrier()"))


@script.wrong("waits")
def early_stop_of_rank_1():
    return changed(("            optimizer.zero_grad()", "            if dist.get_rank() and len(scales) > 6:\n                break\n            optimizer.zero_grad()"))


@script.wrong("died")
def kills_itself():
    return changed(("    if dist.get_rank() == 0:", "    os.kill(os.getpid(), 9)\n    if dist.get_rank() == 0:"))


@script.wrong("never-trains")
def no_epochs():
    return changed(("for epoch in range(epochs)", "for epoch in range(0)"))


@script.wrong("same-samples")
def shuffles_on_each_rank():
    return changed(("sampler=sampler", "shuffle=True"))


@script.wrong("same-samples")
def sampler_of_one_rank():
    return changed(("DistributedSampler(dataset)", "DistributedSampler(dataset, num_replicas=2, rank=0)"))


@script.wrong("samples-left-out")
def drops_the_rest():
    return changed(("sampler=sampler", "sampler=sampler, drop_last=True"))


@script.wrong("same-order")
def no_set_epoch():
    return changed(("        sampler.set_epoch(epoch)\n", ""))


@script.wrong("same-order")
def never_shuffles():
    return changed(("DistributedSampler(dataset)", "DistributedSampler(dataset, shuffle=False)"))


@script.wrong("same-parts")
def shuffles_its_part():
    return changed(
        ("    loader = DataLoader(dataset, batch_size, sampler=sampler)",
         "    part = torch.utils.data.Subset(dataset, range(dist.get_rank(), len(dataset), 2))\n"
         "    loader = DataLoader(part, batch_size, shuffle=True)"),
    )


@script.wrong("other-batches")
def batch_of_all_ranks():
    return changed(("DataLoader(dataset, batch_size,", "DataLoader(dataset, batch_size // 2,"))


@script.wrong("no-autocast")
def fp32():
    return changed(("with torch.autocast(device.type, torch.float16)", "with torch.autocast(device.type, enabled=False)"))


@script.wrong("no-autocast")
def the_default_of_the_cpu():
    return changed(("torch.autocast(device.type, torch.float16)", "torch.autocast(device.type)"))


@script.wrong("unscaled")
def scale_forgotten():
    return changed(("scaler.scale(loss).backward()", "loss.backward()"))


@script.wrong("no-update")
def no_scaler():
    return changed(
        ("scaler.scale(loss).backward()", "loss.backward()"),
        ("scaler.step(optimizer)", "optimizer.step()"),
        ("scaler.update()", "pass"),
    )


@script.wrong("no-update")
def update_on_rank_0():
    return changed(("            scaler.update()", "            if dist.get_rank() == 0:\n                scaler.update()\n            else:\n                scaler._per_optimizer_states.clear()"))


@script.wrong("ranks-differ")
def not_wrapped():
    return changed(("ddp = DistributedDataParallel(model.to(device))", "ddp = model.to(device)"))


@script.wrong("ranks-differ")
def calls_the_model_inside():
    return changed(("ddp(inputs.to(device))", "model(inputs.to(device))"))


@script.wrong("passes-by")
def optimizer_directly():
    return changed(("scaler.step(optimizer)", "optimizer.step()"), ("scaler.update()", "scaler.update(2.0**16)"))


@script.wrong("never-clears")
def no_zero_grad():
    return changed(("            optimizer.zero_grad()\n", ""))


@script.wrong("adds-ranks")
def times_the_ranks():
    return changed(("scaler.scale(loss).backward()", "(scaler.scale(loss) * dist.get_world_size()).backward()"))


@script.wrong("wrong-weights")
def other_rate():
    return changed(("lr=0.1", "lr=0.01"))


@script.wrong("barriers")
def barrier_in_the_step():
    return changed(("            scaler.scale(loss)", "            dist.barrier()\n            scaler.scale(loss)"))


@script.wrong("not-saved")
def saves_nothing():
    return changed(("torch.save(model.state_dict(), path)", "pass"))


@script.wrong("all-save")
def saves_everywhere():
    return changed(("if dist.get_rank() == 0", "if dist.get_rank() >= 0"))


@script.wrong("wrapped-names")
def saves_the_wrapper():
    return changed(("model.state_dict()", "ddp.state_dict()"))


@script.wrong("not-plain")
def saves_the_object():
    return changed(("model.state_dict(), path", "model, path"))


@script.wrong("not-plain")
def saves_a_checkpoint():
    return changed(("model.state_dict(), path", '{"model": model.state_dict()}, path'))


@script.wrong("saved-early")
def saves_first():
    return changed(
        ("    if dist.get_rank() == 0:\n        torch.save(model.state_dict(), path)\n", ""),
        ("    for epoch in range(epochs):", "    if dist.get_rank() == 0:\n        torch.save(model.state_dict(), path)\n    for epoch in range(epochs):"),
    )


@script.wrong("group-left")
def never_closes():
    return changed(("    dist.destroy_process_group()\n", ""))


@script.wrong("wrong-scales")
def scales_before():
    return changed(
        ("            scales.append(scaler.get_scale())\n", ""),
        ("            scaler.step(optimizer)", "            scales.append(scaler.get_scale())\n            scaler.step(optimizer)"),
    )


@script.wrong("returned-none")
def returns_nothing():
    return changed(("    return scales\n", ""))


@script.wrong("wrong-type")
def returns_the_last():
    return changed(("return scales\n", "return scales[-1]\n"))
