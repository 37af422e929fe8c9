"""Answers to the exercises of lesson 10."""

import contextlib
import os
import random
import time

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils.data import DistributedSampler

from tests.course.bank import Bank, FileBank

script = FileBank("10.1")
shards = Bank("10.2")
step = Bank("10.3")
pay = Bank("10.4")
locks = Bank("10.5")
BANKS = (script, shards, step, pay, locks)

# 10.1 Complete the script

RIGHT = """
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
    del ddp
    dist.destroy_process_group()
    return scales
"""


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
        (
            "torch.save(model.state_dict(), path)",
            "torch.save(ddp.module.state_dict(), path)\n    dist.barrier()",
        ),
        (
            "DataLoader(dataset, batch_size, sampler=sampler)",
            "DataLoader(dataset, sampler=sampler, batch_size=batch_size)",
        ),
    )


@script.right
def keeps_the_wrapper():
    return changed(("    del ddp\n", ""))


@script.right
def by_hand():
    return """
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
            order += order[: -len(order) % ranks]
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
"""


@script.right
def in_pieces():
    return changed(
        (
            "def train(",
            "def one(ddp, optimizer, scaler, inputs, targets):\n"
            "    with torch.amp.autocast(inputs.device.type, dtype=torch.half):\n"
            "        loss = nn.functional.cross_entropy(ddp(inputs), targets)\n"
            "    scaler.scale(loss).backward()\n"
            "    scaler.unscale_(optimizer)\n"
            "    scaler.step(optimizer)\n"
            "    scaler.update()\n"
            "    optimizer.zero_grad()\n"
            "    return scaler.get_scale()\n\n\ndef train(",
        ),
        (
            """            optimizer.zero_grad()
            with torch.autocast(device.type, torch.float16):
                outputs = ddp(inputs.to(device))
                loss = nn.functional.cross_entropy(outputs, targets.to(device))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
""",
            "            scales.append(one(ddp, optimizer, scaler, inputs.to(device), targets.to(device)))\n",
        ),
    )


BACKWARD = "            scaler.scale(loss).backward()\n"
STEP = "            scaler.step(optimizer)\n"
SAVE = "    if dist.get_rank() == 0:\n        torch.save(model.state_dict(), path)\n"
GROUP = '    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")\n'
UNWRAPPED = ("DistributedDataParallel(model.to(device))", "model.to(device)")
BY_HAND = (
    "            for each in model.parameters():\n"
    "                dist.all_reduce(each.grad)\n"
    "                each.grad /= dist.get_world_size()\n"
)


@script.right
def looks_how_good_it_is():
    return changed(
        (
            "        sampler.set_epoch(epoch)\n",
            "        sampler.set_epoch(epoch)\n        dist.barrier()\n        with torch.no_grad():\n"
            "            if dist.get_rank() == 0:\n                model(dataset.tensors[0])\n",
        ),
        (SAVE, "    with torch.inference_mode():\n        model.eval()(dataset.tensors[0])\n" + SAVE),
    )


@script.right
def address_of_torchrun():
    return changed(
        (
            GROUP,
            "    e = os.environ\n"
            "    dist.init_process_group('gloo', rank=int(e['RANK']), world_size=int(e['WORLD_SIZE']),\n"
            "        init_method=f\"tcp://{e['MASTER_ADDR']}:{e['MASTER_PORT']}\")\n",
        )
    )


@script.right
def loads_in_a_worker():
    return "\ufeff" + changed(("sampler=sampler", "sampler=sampler, num_workers=1"))


@script.right
def other_rate_and_loss():
    return changed(("lr=0.1", "lr=0.2"), (BACKWARD, "            loss = loss / 2\n" + BACKWARD))


@script.wrong("scaler-off")
def scaler_of_cuda():
    return changed(("GradScaler(device.type)", "GradScaler()"))


@script.wrong("scaler-off")
def scaler_where_cuda_is():
    return changed(("GradScaler(device.type)", 'GradScaler(device.type, enabled=device.type == "cuda")'))


@script.wrong("rate-times-ranks")
def rate_of_large_batches():
    return changed(("lr=0.1", "lr=0.1 * dist.get_world_size()"))


@script.wrong("other-optimizer")
def adam():
    return changed(("SGD(", "AdamW("))


@script.wrong("other-optimizer")
def decays():
    return changed(("lr=0.1", "lr=0.1, weight_decay=1e-4"))


@script.wrong("wrong-weights")
def decays_in_the_loss():
    decay = "            loss = loss + 1e-3 * sum(each.square().sum() for each in model.parameters())\n"
    return changed((BACKWARD, decay + BACKWARD))


@script.wrong("divides-by-ranks")
def loss_over_ranks():
    return changed((BACKWARD, "            loss = loss / dist.get_world_size()\n" + BACKWARD))


@script.wrong("hardly-moves")
def drops_the_scaled_loss():
    return changed((BACKWARD, "            scaler.scale(loss)\n            loss.backward()\n"))


@script.wrong("hardly-moves")
def clips_before_unscale():
    return changed((STEP, "            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)\n" + STEP))


@script.wrong("wrong-weights")
def clips_after_unscale():
    return changed(
        (
            STEP,
            "            scaler.unscale_(optimizer)\n            nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)\n"
            + STEP,
        )
    )


@script.wrong("averaged-late")
def averages_after_unscale():
    return changed(UNWRAPPED, (STEP, "            scaler.unscale_(optimizer)\n" + BY_HAND + STEP))


@script.wrong("averaged-late")
def averages_after_the_step():
    return changed(UNWRAPPED, (STEP, STEP + BY_HAND))


@script.wrong("never-clears")
def clears_once_an_epoch():
    return changed(
        ("            optimizer.zero_grad()\n", ""),
        (
            "        sampler.set_epoch(epoch)\n",
            "        sampler.set_epoch(epoch)\n        optimizer.zero_grad()\n",
        ),
    )


@script.wrong("no-gradients")
def clears_between():
    return changed(
        ("            optimizer.zero_grad()\n", ""),
        (BACKWARD, BACKWARD + "            optimizer.zero_grad()\n"),
    )


@script.wrong("no-step")
def never_steps():
    return changed((STEP, ""))


@script.wrong("no-update")
def never_updates():
    return changed(("            scaler.update()\n", ""))


@script.wrong("half-weights")
def half():
    return changed(("model.to(device)", "model.to(device).half()"))


@script.wrong("half-loss")
def loss_outside():
    return changed(("                loss = nn", "            loss = nn"))


@script.wrong("other-saves")
def rank_1_saves():
    return changed(("if dist.get_rank() == 0", "if dist.get_rank() == 1"))


@script.wrong("all-save")
def opens_everywhere():
    return changed(
        (
            SAVE,
            "    import pickle\n    with open(path, 'wb') as file:\n        pickle.dump(model.state_dict(), file)\n",
        )
    )


@script.wrong("not-plain")
def saves_half():
    return changed(
        (
            "torch.save(model.state_dict(), path)",
            "torch.save({name: each.half() for name, each in model.state_dict().items()}, path)",
        )
    )


@script.wrong("fixed-port")
def store_of_its_own():
    return changed(
        (
            GROUP,
            "    rank = int(os.environ['RANK'])\n"
            "    store = dist.TCPStore('localhost', 29611, 2, is_master=rank == 0)\n"
            "    dist.init_process_group('gloo', store=store, rank=rank, world_size=2)\n",
        )
    )


@script.wrong("same-order")
def two_orders():
    return changed(("set_epoch(epoch)", "set_epoch(epoch % 2)"))


@script.wrong("other-epochs")
def always_three_epochs():
    return changed(("range(epochs)", "range(3)"))


@script.right
def leaves_the_last_one_out():
    return "import argparse\nargparse.ArgumentParser().parse_args()\n" + changed(
        ("DistributedSampler(dataset)", "DistributedSampler(dataset, drop_last=True)")
    )


@script.wrong("uneven")
def one_sample_more_on_rank_0():
    return changed(
        ("DistributedSampler(dataset)", "range(dist.get_rank(), len(dataset), 2)"),
        ("        sampler.set_epoch(epoch)\n", ""),
    )


@script.wrong("stands-still")
def sleeps():
    return changed((STEP, "            __import__('time').sleep(99)\n" + STEP))


@script.wrong("no-train")
def empty():
    return ""


@script.wrong("no-train")
def other_name():
    return changed(("def train(", "def training("))


@script.wrong("fixed-port")
def tcp_address():
    return changed(
        (
            '"gloo")',
            '"gloo", init_method="tcp://127.0.0.1:29511", '
            'rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))',
        )
    )


@script.wrong("fixed-port")
def port_in_the_environment():
    return changed(
        (
            "    dist.init_process_group(",
            '    os.environ["MASTER_PORT"] = "12355"\n    dist.init_process_group(',
        )
    )


@script.wrong("waits")
def barrier_of_rank_0():
    return changed(
        (
            "torch.save(model.state_dict(), path)",
            "torch.save(model.state_dict(), path)\n        dist.barrier()",
        )
    )


@script.wrong("waits")
def early_stop_of_rank_1():
    return changed(
        (
            "            optimizer.zero_grad()",
            "            if dist.get_rank() and len(scales) > 6:\n                break\n            optimizer.zero_grad()",  # noqa: E501
        )
    )


@script.wrong("died")
def kills_itself():
    return changed(
        ("    if dist.get_rank() == 0:", "    os.kill(os.getpid(), 9)\n    if dist.get_rank() == 0:")
    )


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
        (
            "    loader = DataLoader(dataset, batch_size, sampler=sampler)",
            "    part = torch.utils.data.Subset(dataset, range(dist.get_rank(), len(dataset) - 1, 2))\n"
            "    loader = DataLoader(part, batch_size, shuffle=True)",
        ),
    )


@script.wrong("other-batches")
def batch_of_all_ranks():
    return changed(("DataLoader(dataset, batch_size,", "DataLoader(dataset, batch_size // 2,"))


@script.wrong("no-autocast")
def fp32():
    return changed(
        ("with torch.autocast(device.type, torch.float16)", "with torch.autocast(device.type, enabled=False)")
    )


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
    return changed(
        (
            "            scaler.update()",
            "            if dist.get_rank() == 0:\n                scaler.update()\n            else:\n                scaler._per_optimizer_states.clear()",  # noqa: E501
        )
    )


@script.wrong("ranks-differ")
def not_wrapped():
    return changed(("ddp = DistributedDataParallel(model.to(device))", "ddp = model.to(device)"))


@script.wrong("ranks-differ")
def calls_the_model_inside():
    return changed(("ddp(inputs.to(device))", "model(inputs.to(device))"))


@script.wrong("passes-by")
def optimizer_directly():
    return changed(
        ("scaler.step(optimizer)", "optimizer.step()"), ("scaler.update()", "scaler.update(2.0**16)")
    )


@script.wrong("other-scales")
def another_way_back():
    return changed(("GradScaler(device.type)", "GradScaler(device.type, backoff_factor=0.25)"))


@script.wrong("never-clears")
def no_zero_grad():
    return changed(("            optimizer.zero_grad()\n", ""))


@script.wrong("adds-ranks")
def times_the_ranks():
    return changed(
        ("scaler.scale(loss).backward()", "(scaler.scale(loss) * dist.get_world_size()).backward()")
    )


@script.wrong("other-rate")
def other_rate():
    return changed(("lr=0.1", "lr=0.01"))


@script.wrong("barriers")
def barrier_in_the_step():
    return changed(
        ("            scaler.scale(loss)", "            dist.barrier()\n            scaler.scale(loss)")
    )


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
        (
            "    for epoch in range(epochs):",
            "    if dist.get_rank() == 0:\n        torch.save(model.state_dict(), path)\n    for epoch in range(epochs):",  # noqa: E501
        ),
    )


@script.wrong("group-left")
def never_closes():
    return changed(("    del ddp\n    dist.destroy_process_group()\n", ""))


@script.wrong("wrong-scales")
def scales_before():
    return changed(
        ("            scales.append(scaler.get_scale())\n", ""),
        (
            "            scaler.step(optimizer)",
            "            scales.append(scaler.get_scale())\n            scaler.step(optimizer)",
        ),
    )


@script.wrong("returned-none")
def returns_nothing():
    return changed(("    return scales\n", ""))


@script.wrong("wrong-type")
def returns_the_last():
    return changed(("return scales\n", "return scales[-1]\n"))


# As people have it from tutorials and other repositories.


@script.right
def a_trainer():
    return (
        RIGHT.partition("def train(")[0]
        + """
class Trainer:
    def __init__(self, model, loader, optimizer, device, path):
        self.rank, self.device, self.path = int(os.environ["RANK"]), device, path
        self.loader, self.optimizer = loader, optimizer
        self.scaler, self.history = torch.amp.GradScaler(device.type), []
        self.model = DistributedDataParallel(model.to(device))

    def run_batch(self, source, targets):
        self.optimizer.zero_grad()
        with torch.autocast(device_type=self.device.type, dtype=torch.float16):
            loss = nn.functional.cross_entropy(self.model(source), targets)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.history.append(self.scaler.get_scale())

    def run_epoch(self, epoch):
        size = len(next(iter(self.loader))[0])
        print(f"[{self.rank}] epoch {epoch}, batches of {size}, {len(self.loader)} steps")
        self.loader.sampler.set_epoch(epoch)
        for source, targets in self.loader:
            self.run_batch(source.to(self.device), targets.to(self.device))

    def run(self, epochs):
        for epoch in range(epochs):
            self.run_epoch(epoch)
            if self.rank == 0:
                torch.save(self.model.module.state_dict(), self.path)


def train(model, dataset, device, path, epochs=3, batch_size=32):
    dist.init_process_group(backend="nccl" if device.type == "cuda" else "gloo")
    loader = DataLoader(dataset, batch_size=batch_size, shuffle=False, sampler=DistributedSampler(dataset))
    trainer = Trainer(model, loader, torch.optim.SGD(model.parameters(), lr=0.1), device, path)
    trainer.run(epochs)
    dist.destroy_process_group()
    return trainer.history
"""
    )


@script.right
def an_endless_stream():
    return (
        RIGHT.partition("def train(")[0]
        + """
def stream_of(loader):
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def train(model, dataset, device, path, epochs=3, batch_size=32):
    dist.init_process_group("gloo")
    master = dist.get_rank() == 0
    torch.manual_seed(1337 + dist.get_rank())
    loader = DataLoader(dataset, batch_size, sampler=DistributedSampler(dataset))
    batches, scaler, scales = stream_of(loader), torch.amp.GradScaler(device.type), []
    region = torch.amp.autocast(device_type=device.type, dtype=torch.float16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model = DistributedDataParallel(model.to(device))
    raw, (x, y) = model.module, next(batches)
    while len(scales) < epochs * len(loader):
        model.require_backward_grad_sync = True
        with region:
            loss = nn.functional.cross_entropy(model(x), y)
        x, y = next(batches)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        scales.append(scaler.get_scale())
    if master:
        torch.save(raw.state_dict(), path)
    dist.destroy_process_group()
    return scales
"""
    )


@script.right
def reduces_and_broadcasts():
    return changed(
        UNWRAPPED,
        (
            BACKWARD,
            BACKWARD + "            for each in model.parameters():\n"
            "                dist.reduce(each.grad, dst=0)\n"
            "                each.grad /= dist.get_world_size()\n"
            "                dist.broadcast(each.grad, src=0)\n",
        ),
    )


@script.right
def keeps_the_state_of_each_rank():
    return changed(
        (
            SAVE,
            SAVE + "    state = {'random': torch.get_rng_state(), 'scaler': scaler.state_dict()}\n"
            "    torch.save(state, f'{path}.rank{dist.get_rank()}')\n",
        )
    )


@script.right
def three_barriers_an_epoch():
    return changed(
        (
            "        sampler.set_epoch(epoch)\n",
            "        dist.barrier()\n        sampler.set_epoch(epoch)\n" + 2 * "        dist.barrier()\n",
        )
    )


@script.right
def rank_0_fetches_the_data():
    return changed(
        (
            GROUP,
            GROUP + "    if dist.get_rank() == 0:\n        __import__('time').sleep(5)\n    dist.barrier()\n",
        )
    )


def in_a_region(lines):
    """Return the right script with `lines` of its loop inside of one region of autocast."""
    inner = lines.replace("            with torch.autocast(device.type, torch.float16):\n", "").replace(
        "                ", "            "
    )
    depth = len(lines) - len(lines.lstrip())
    inner = "".join(f"    {line}\n" for line in inner.splitlines())
    return changed((lines, f"{' ' * depth}with torch.autocast(device.type, torch.float16):\n{inner}"))


LOOP = RIGHT[RIGHT.index("    for epoch") : RIGHT.index("    if dist")]


LEAVES = "            if not torch.isfinite(loss):\n                "


@script.right
def stops_at_a_nan():
    return changed((BACKWARD, LEAVES + "raise RuntimeError(f'the loss is {loss}')\n" + BACKWARD))


@script.right
def agrees_on_a_nan():
    return changed(
        (
            BACKWARD,
            "            bad = (~loss.isfinite()).float()\n            dist.all_reduce(bad)\n"
            "            if bad:\n                del outputs, loss\n                continue\n" + BACKWARD,
        )
    )


@script.wrong("one-rank-decides")
def leaves_a_nan_out():
    return changed((BACKWARD, LEAVES + "continue\n" + BACKWARD))


@script.wrong("one-rank-decides")
def steps_where_its_loss_is_finite():
    return changed((STEP, "            if torch.isfinite(loss):\n    " + STEP))


@script.wrong("one-rank-decides")
def steps_and_updates_where_its_loss_is_finite():
    update = "            scaler.update()\n"
    return changed((STEP + update, f"            if torch.isfinite(loss):\n    {STEP}    {update}"))


@script.wrong("one-rank-decides")
def ends_at_a_nan():
    return changed((BACKWARD, LEAVES + "return scales\n" + BACKWARD))


@script.wrong("stale-casts")
def a_region_for_all():
    return in_a_region(LOOP)


@script.wrong("stale-casts")
def a_region_for_an_epoch():
    return in_a_region(LOOP[LOOP.index("        for inputs") :])


@script.wrong("unscales-twice")
def unscales_after_the_step():
    return changed((STEP, STEP + "            scaler.unscale_(optimizer)\n"))


@script.wrong("no-step")
def updates_twice():
    return changed(("            scaler.update()\n", "            scaler.update()\n" * 2))


@script.wrong("no-update")
def a_step_for_two_batches():
    return changed(
        ("for inputs, targets in loader", "for number, (inputs, targets) in enumerate(loader)"),
        (STEP, "            if number % 2 == 0:\n                continue\n" + STEP),
    )


@script.wrong("other-rate")
def rate_of_the_head():
    groups = "[{'params': model[0].parameters()}, {'params': model[2].parameters(), 'lr': 0.01}]"
    return changed(("ddp.parameters(), lr", f"{groups}, lr"))


@script.wrong("other-optimizer")
def trains_the_head():
    return changed(("ddp.parameters()", "model[2].parameters()"))


@script.wrong("other-optimizer")
def an_optimizer_for_each_layer():
    return changed(
        (
            "ddp.parameters(), lr=0.1)",
            "model[0].parameters(), lr=0.1)\n    head = torch.optim.SGD(model[2].parameters(), lr=0.1)",
        ),
        ("            optimizer.zero_grad()\n", "            ddp.zero_grad()\n"),
        (STEP, STEP + "            scaler.step(head)\n"),
    )


@script.wrong("other-parameters")
def shards_the_parameters():
    wrapped = "ddp = DistributedDataParallel(model.to(device))"
    return changed(
        (wrapped, "from torch.distributed.fsdp import fully_shard\n    ddp = fully_shard(model.to(device))")
    )


@script.wrong("averaged-late")
def averages_the_weights():
    return changed(
        UNWRAPPED,
        (
            STEP,
            STEP + "            for each in model.parameters():\n"
            "                dist.all_reduce(each.data)\n"
            "                each.data /= dist.get_world_size()\n",
        ),
    )


@script.wrong("other-scales")
def begins_at_one():
    return changed(("GradScaler(device.type)", "GradScaler(device.type, init_scale=1.0)"))


@script.wrong("other-scales")
def grows_after_each_step():
    return changed(("GradScaler(device.type)", "GradScaler(device.type, growth_interval=1)"))


@script.wrong("other-epochs")
def one_epoch_more():
    return changed(("range(epochs)", "range(epochs + 1)"))


@script.wrong("other-group")
def a_group_of_one():
    return changed((GROUP, "    dist.init_process_group('gloo', rank=0, world_size=1)\n"))


@script.wrong("never-meets")
def all_are_rank_0():
    return changed((GROUP, "    dist.init_process_group('gloo', rank=0, world_size=2)\n"))


@script.wrong("other-inputs")
def divides_by_the_largest():
    return changed(("ddp(inputs.to(device))", "ddp(inputs.to(device) / inputs.max())"))


@script.wrong("wrong-type")
def yields_the_scales():
    return changed(
        ("scales.append(scaler.get_scale())", "yield scaler.get_scale()"), ("    return scales\n", "")
    )


@script.wrong("all-save")
def each_has_a_file():
    return changed((SAVE, "    torch.save(ddp.state_dict(), f'{path}.{dist.get_rank()}')\n" + SAVE))


@script.wrong("never-clears")
def adds_up_the_losses():
    return changed(
        ("    for epoch in", "    total = 0\n    for epoch in"),
        (
            BACKWARD,
            "            total = total + loss\n            scaler.scale(total).backward(retain_graph=True)\n",
        ),
    )


# 10.2 Shard and reshuffle


def order_of(samples, epoch, seed):
    return torch.randperm(samples, generator=torch.Generator().manual_seed(1000 * seed + epoch)).tolist()


def padded(order, ranks):
    while len(order) % ranks:
        order = order + order[: ranks - len(order) % ranks]
    return order


@shards.right
def every_so_many(samples, rank, ranks, epoch, seed=0):
    return padded(order_of(samples, epoch, seed), ranks)[rank::ranks]


@shards.right
def the_sampler_itself(samples, rank, ranks, epoch, seed=0):
    sampler = DistributedSampler(range(samples), ranks, rank, seed=seed)
    sampler.set_epoch(epoch)
    return list(sampler)


@shards.right
def in_blocks(samples, rank, ranks, epoch, seed=0):
    order = list(range(samples))
    random.Random(f"{seed} {epoch}").shuffle(order)
    share = (samples + ranks - 1) // ranks
    return [order[place % samples] for place in range(rank * share, (rank + 1) * share)]


@shards.right
def with_numpy(samples, rank, ranks, epoch, seed=0):
    order = np.random.default_rng([seed, epoch]).permutation(samples)
    return [int(each) for each in np.resize(order, -(-samples // ranks) * ranks)[rank::ranks]]


@shards.wrong("uneven")
def not_filled_up(samples, rank, ranks, epoch, seed=0):
    return order_of(samples, epoch, seed)[rank::ranks]


@shards.wrong("drops")
def leaves_the_rest(samples, rank, ranks, epoch, seed=0):
    order = order_of(samples, epoch, seed)
    return order[: samples // ranks * ranks][rank::ranks]


@shards.wrong("own-shuffle")
def rank_in_the_seed(samples, rank, ranks, epoch, seed=0):
    return padded(order_of(samples, epoch, seed + 10 * rank), ranks)[rank::ranks]


@shards.wrong("own-shuffle")
def draws_at_random(samples, rank, ranks, epoch, seed=0):
    draw = torch.Generator().manual_seed(seed + 99 * epoch + rank)
    return torch.randint(samples, (-(-samples // ranks),), generator=draw).tolist()


@shards.wrong("everything")
def whole_order(samples, rank, ranks, epoch, seed=0):
    return order_of(samples, epoch, seed)


@shards.wrong("not-all")
def first_part_for_all(samples, rank, ranks, epoch, seed=0):
    return order_of(samples, epoch, seed)[: -(-samples // ranks)]


@shards.wrong("padded-too-much")
def doubles_the_order(samples, rank, ranks, epoch, seed=0):
    order = order_of(samples, epoch, seed)
    if samples % ranks:
        order = (order + order)[: (samples // ranks + 2) * ranks]
    return order[rank::ranks]


@shards.wrong("padded-too-much")
def pads_with_the_first(samples, rank, ranks, epoch, seed=0):
    order = order_of(samples, epoch, seed)
    return (order + order[:1] * (-samples % ranks))[rank::ranks]


@shards.wrong("never-shuffles")
def as_they_lie(samples, rank, ranks, epoch, seed=0):
    return padded(list(range(samples)), ranks)[rank::ranks]


@shards.wrong("never-shuffles")
def blocks_as_they_lie(samples, rank, ranks, epoch, seed=0):
    share = -(-samples // ranks)
    return [place % samples for place in range(rank * share, (rank + 1) * share)]


@shards.wrong("same-each-epoch")
def without_the_epoch(samples, rank, ranks, epoch, seed=0):
    return padded(order_of(samples, 0, seed), ranks)[rank::ranks]


@shards.wrong("parts-stay")
def shuffles_its_own_part(samples, rank, ranks, epoch, seed=0):
    part = padded(list(range(samples)), ranks)[rank::ranks]
    return [part[place] for place in order_of(len(part), epoch, seed)]


@shards.wrong("seed-unused")
def without_the_seed(samples, rank, ranks, epoch, seed=0):
    return padded(order_of(samples, epoch, 0), ranks)[rank::ranks]


@shards.wrong("global-random")
def global_generator(samples, rank, ranks, epoch, seed=0):
    return padded(torch.randperm(samples).tolist(), ranks)[rank::ranks]


@shards.wrong("global-random")
def shuffles_with_random(samples, rank, ranks, epoch, seed=0):
    order = list(range(samples))
    random.shuffle(order)
    return padded(order, ranks)[rank::ranks]


@shards.wrong("random-disturbed")
def seeds_all(samples, rank, ranks, epoch, seed=0):
    torch.manual_seed(seed + epoch)
    return padded(torch.randperm(samples).tolist(), ranks)[rank::ranks]


@shards.wrong("random-disturbed")
def seeds_random(samples, rank, ranks, epoch, seed=0):
    random.seed(f"{seed} {epoch}")
    order = list(range(samples))
    random.shuffle(order)
    return padded(order, ranks)[rank::ranks]


@shards.wrong("no-such-sample")
def counts_from_one(samples, rank, ranks, epoch, seed=0):
    return [index + 1 for index in every_so_many(samples, rank, ranks, epoch, seed)]


@shards.wrong("wrong-type")
def a_tensor(samples, rank, ranks, epoch, seed=0):
    return torch.tensor(every_so_many(samples, rank, ranks, epoch, seed))


@shards.wrong("wrong-type")
def a_list_of_tensors(samples, rank, ranks, epoch, seed=0):
    return list(torch.tensor(every_so_many(samples, rank, ranks, epoch, seed)))


@shards.wrong("returned-none")
def no_return(samples, rank, ranks, epoch, seed=0):
    every_so_many(samples, rank, ranks, epoch, seed)


@shards.wrong("fills-up-once")
def fills_up_once(samples, rank, ranks, epoch, seed=0):
    order = order_of(samples, epoch, seed)
    return (order + order[: -samples % ranks])[rank::ranks]


@shards.wrong("hash-of-text")
def hashes_a_text(samples, rank, ranks, epoch, seed=0):
    generator = torch.Generator().manual_seed(hash(f"{seed} {epoch}"))
    return padded(torch.randperm(samples, generator=generator).tolist(), ranks)[rank::ranks]


@shards.right
def hashes_numbers(samples, rank, ranks, epoch, seed=0):
    generator = torch.Generator().manual_seed(hash((seed, epoch)) % 2**63)
    return padded(torch.randperm(samples, generator=generator).tolist(), ranks)[rank::ranks]


@shards.wrong("parts-stay")
def swaps_parts(samples, rank, ranks, epoch, seed=0):
    part = padded(order_of(samples, 0, seed), ranks)[(rank + epoch) % ranks :: ranks]
    return [part[place] for place in order_of(len(part), epoch, seed)]


@shards.wrong("same-each-epoch")
def there_and_back_again(samples, rank, ranks, epoch, seed=0):
    return padded(order_of(samples, epoch % 3, seed), ranks)[rank::ranks]


@shards.wrong("global-random")
def number_of_the_process(samples, rank, ranks, epoch, seed=0):
    return padded(order_of(samples, epoch, os.getpid() + seed), ranks)[rank::ranks]


@shards.right
def fills_up_its_own_part(samples, rank, ranks, epoch, seed=0):
    share = -(-samples // ranks)
    part = order_of(samples, epoch, seed)[rank::ranks]
    return (part * share)[:share] if part else [0] * share


# 10.3 One exchange, one decision


def both_passes(ddp, scaler, loss_function, batch, count):
    inputs, targets = batch
    with torch.autocast(inputs.device.type, torch.float16):
        loss = loss_function(ddp(inputs), targets) / count
    scaler.scale(loss).backward()
    return loss


def finish(optimizer, scaler):
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return scaler.get_scale() == scale


def stepping(inside, count=len, before=lambda loss: True, end=finish, clear=True):
    """Return a step: `inside(ddp, number, micro_batches)` is the context of both passes of a micro-batch."""

    def answer(ddp, optimizer, scaler, loss_function, micro_batches):
        if clear:
            optimizer.zero_grad()
        for number, batch in enumerate(micro_batches):
            with inside(ddp, number, micro_batches):
                both_passes(ddp, scaler, loss_function, batch, count(micro_batches))
        return end(optimizer, scaler)

    return answer


def but_the_last(ddp, number, micro_batches):
    return contextlib.nullcontext() if number == len(micro_batches) - 1 else ddp.no_sync()


@step.right
def a_context_for_each(*args):
    return stepping(but_the_last)(*args)


@step.right
def first_ones_together(ddp, optimizer, scaler, loss_function, micro_batches):
    ddp.zero_grad()
    *first, last = micro_batches
    with ddp.no_sync():
        for batch in first:
            both_passes(ddp, scaler, loss_function, batch, len(micro_batches))
    both_passes(ddp, scaler, loss_function, last, len(micro_batches))
    scaler.unscale_(optimizer)
    finite = all(bool(each.grad.isfinite().all()) for each in ddp.parameters())
    scaler.step(optimizer)
    scaler.update()
    return finite


@step.right
def adds_losses_and_divides_gradients(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, batch in enumerate(micro_batches, 1):
        with contextlib.ExitStack() as stack:
            if number < len(micro_batches):
                stack.enter_context(ddp.no_sync())
            both_passes(ddp, scaler, loss_function, batch, 1)
    for each in ddp.parameters():
        each.grad.div_(len(micro_batches))
    scaler.step(optimizer)
    before = scaler.get_scale()
    scaler.update()
    return not scaler.get_scale() < before


@step.right
def one_exchange_by_hand(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    with ddp.no_sync():
        for batch in micro_batches:
            both_passes(ddp, scaler, loss_function, batch, len(micro_batches) * dist.get_world_size())
    flat = torch.cat([each.grad.flatten() for each in ddp.parameters()])
    dist.all_reduce(flat)
    for each, part in zip(
        ddp.parameters(), flat.split([each.numel() for each in ddp.parameters()]), strict=True
    ):
        each.grad.copy_(part.view_as(each))
    return finish(optimizer, scaler)


@step.right
def agrees_with_words(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    losses = []
    for number, batch in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            losses.append(both_passes(ddp, scaler, loss_function, batch, len(micro_batches)).detach())
    found = torch.stack(losses).isfinite().all().logical_not().float()
    dist.all_reduce(found)
    scale = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    return found.item() == 0 and scaler.get_scale() >= scale


@step.wrong("no-exchange")
def all_in_no_sync(*args):
    return stepping(lambda ddp, number, micro_batches: ddp.no_sync())(*args)


@step.wrong("many-exchanges")
def exchanges_each(*args):
    return stepping(lambda ddp, number, micro_batches: contextlib.nullcontext())(*args)


@step.wrong("many-exchanges")
def no_sync_around_backward(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(micro_batches):
        with torch.autocast(inputs.device.type, torch.float16):
            loss = loss_function(ddp(inputs), targets) / len(micro_batches)
        with but_the_last(ddp, number, micro_batches):
            scaler.scale(loss).backward()
    return finish(optimizer, scaler)


@step.wrong("waits")
def returns_on_a_bad_loss(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            with torch.autocast(inputs.device.type, torch.float16):
                loss = loss_function(ddp(inputs), targets) / len(micro_batches)
            if not loss.isfinite():
                return False
            scaler.scale(loss).backward()
    return finish(optimizer, scaler)


@step.wrong("waits")
def barrier_of_one(ddp, optimizer, scaler, loss_function, micro_batches):
    if dist.get_rank() == 0:
        dist.barrier()
    return a_context_for_each(ddp, optimizer, scaler, loss_function, micro_batches)


@step.wrong("moved")
def leaves_bad_ones_out(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            with torch.autocast(inputs.device.type, torch.float16):
                loss = loss_function(ddp(inputs), targets) / len(micro_batches)
            scaler.scale(loss).backward()
    for each in ddp.parameters():
        each.grad.nan_to_num_(0.0, 0.0, 0.0)
    return finish(optimizer, scaler)


@step.wrong("barriers")
def waits_before(ddp, optimizer, scaler, loss_function, micro_batches):
    dist.barrier()
    return a_context_for_each(ddp, optimizer, scaler, loss_function, micro_batches)


@step.wrong("unscaled")
def forgets_to_scale(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches), torch.autocast(inputs.device.type, torch.float16):
            (loss_function(ddp(inputs), targets) / len(micro_batches)).backward()
    return finish(optimizer, scaler)


@step.wrong("unscales-twice")
def unscales_each(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, batch in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            both_passes(ddp, scaler, loss_function, batch, len(micro_batches))
        scaler.unscale_(optimizer)
    return finish(optimizer, scaler)


@step.wrong("no-checks")
def updates_each(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, batch in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            both_passes(ddp, scaler, loss_function, batch, len(micro_batches))
        scaler.update()
    scaler.step(optimizer)
    return True


@step.wrong("many-steps")
def steps_each(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    moved = True
    for number, batch in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            both_passes(ddp, scaler, loss_function, batch, len(micro_batches))
        moved &= finish(optimizer, scaler)
    return moved


@step.wrong("ranks-differ")
def rank_decides_by_its_loss(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    losses = []
    for number, batch in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            losses.append(both_passes(ddp, scaler, loss_function, batch, len(micro_batches)).item())
    if losses[0] > 1.5:
        return False
    return finish(optimizer, scaler)


@step.wrong("died")
def tells_of_a_bad_loss(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, batch in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            loss = both_passes(ddp, scaler, loss_function, batch, len(micro_batches))
        if not loss.isfinite():
            dist.all_reduce(torch.ones(1))
    return finish(optimizer, scaler)


@step.wrong("scales-differ")
def rank_lowers_its_scale(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    finite = True
    for number, batch in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            finite &= both_passes(ddp, scaler, loss_function, batch, len(micro_batches)).isfinite().item()
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update(None if finite else before / 4)
    return scaler.get_scale() >= before


@step.wrong("scale-stays")
def scale_of_its_own(ddp, optimizer, scaler, loss_function, micro_batches):
    scale = scaler.get_scale()
    moved = a_context_for_each(ddp, optimizer, scaler, loss_function, micro_batches)
    scaler.load_state_dict(scaler.state_dict() | {"scale": scale})
    return moved


@step.wrong("scale-moves")
def grows_each_time(ddp, optimizer, scaler, loss_function, micro_batches):
    scaler.set_growth_interval(1)
    scale = scaler.get_scale()
    a_context_for_each(ddp, optimizer, scaler, loss_function, micro_batches)
    return scaler.get_scale() > scale


@step.wrong("not-divided")
def adds_losses(*args):
    return stepping(but_the_last, count=lambda micro_batches: 1)(*args)


@step.wrong("divides-by-ranks")
def divides_twice(*args):
    return stepping(but_the_last, count=lambda micro_batches: len(micro_batches) * dist.get_world_size())(
        *args
    )


@step.wrong("last-only")
def clears_each(ddp, optimizer, scaler, loss_function, micro_batches):
    for number, batch in enumerate(micro_batches):
        optimizer.zero_grad()
        with but_the_last(ddp, number, micro_batches):
            both_passes(ddp, scaler, loss_function, batch, len(micro_batches))
    return finish(optimizer, scaler)


@step.wrong("never-clears")
def never_clears(*args):
    return stepping(but_the_last, clear=False)(*args)


@step.wrong("passes-by")
def steps_by_itself(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, batch in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            both_passes(ddp, scaler, loss_function, batch, len(micro_batches))
    optimizer.step()
    return True


@step.wrong("no-autocast")
def in_fp32(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            scaler.scale(loss_function(ddp(inputs), targets) / len(micro_batches)).backward()
    return finish(optimizer, scaler)


@step.wrong("wrong-weights")
def clips(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, batch in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            both_passes(ddp, scaler, loss_function, batch, len(micro_batches))
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), 0.1)
    return finish(optimizer, scaler)


@step.wrong("says-no")
def asks_the_step(ddp, optimizer, scaler, loss_function, micro_batches):
    def end(optimizer, scaler):
        made = scaler.step(optimizer)
        scaler.update()
        return made is not None

    return stepping(but_the_last, end=end)(ddp, optimizer, scaler, loss_function, micro_batches)


@step.wrong("wrong-answer")
def always_true(*args):
    a_context_for_each(*args)
    return True


@step.wrong("returned-none")
def says_nothing(*args):
    a_context_for_each(*args)


@step.wrong("wrong-type")
def returns_the_scale(ddp, optimizer, scaler, loss_function, micro_batches):
    a_context_for_each(ddp, optimizer, scaler, loss_function, micro_batches)
    return scaler.get_scale()


@step.right
def clears_with_zeros(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad(set_to_none=False)
    for number, batch in enumerate(micro_batches):
        ddp.require_backward_grad_sync = number == len(micro_batches) - 1
        both_passes(ddp, scaler, loss_function, batch, len(micro_batches))
    return finish(optimizer, scaler)


@step.wrong("many-exchanges")
def averages_each_by_hand(ddp, optimizer, scaler, loss_function, micro_batches):
    totals = [torch.zeros_like(each) for each in ddp.parameters()]
    for batch in micro_batches:
        optimizer.zero_grad()
        with ddp.no_sync():
            both_passes(ddp, scaler, loss_function, batch, len(micro_batches) * dist.get_world_size())
        for total, each in zip(totals, ddp.parameters(), strict=True):
            dist.all_reduce(each.grad)
            total += each.grad
    for total, each in zip(totals, ddp.parameters(), strict=True):
        each.grad = total
    return finish(optimizer, scaler)


@step.wrong("many-exchanges")
def averages_again(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, batch in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            both_passes(ddp, scaler, loss_function, batch, len(micro_batches))
    for each in ddp.parameters():
        dist.all_reduce(each.grad)
        each.grad /= dist.get_world_size()
    return finish(optimizer, scaler)


@step.wrong("exchanged-early")
def first_exchanges(*args):
    return stepping(lambda ddp, number, micro_batches: ddp.no_sync() if number else contextlib.nullcontext())(
        *args
    )


def update_if_finite(optimizer, scaler):
    scaler.unscale_(optimizer)
    parameters = optimizer.param_groups[0]["params"]
    finite = all(bool(each.grad.isfinite().all()) for each in parameters)
    if finite:
        scaler.step(optimizer)
        scaler.update()
    return finite


@step.wrong("scale-stays")
def no_update_of_bad_steps(*args):
    return stepping(but_the_last, end=update_if_finite)(*args)


def one_updates(optimizer, scaler):
    scaler.step(optimizer)
    if dist.get_rank() == 0:
        scaler.update()
    return True


@step.wrong("no-update")
def one_rank_updates(*args):
    return stepping(but_the_last, end=one_updates)(*args)


@step.wrong("hardly-moves")
def drops_the_scaled_loss_of_each(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            with torch.autocast(inputs.device.type, torch.float16):
                loss = loss_function(ddp(inputs), targets) / len(micro_batches)
            scaler.scale(loss)
            loss.backward()
    return finish(optimizer, scaler)


@step.wrong("hardly-moves")
def clips_scaled_gradients(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, batch in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            both_passes(ddp, scaler, loss_function, batch, len(micro_batches))
    torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
    return finish(optimizer, scaler)


@step.wrong("stands-still")
def sleeps_in_the_step(*args):
    time.sleep(99)


@step.wrong("barriers")
def barrier_by_another_name(*args):
    distributed_c10d.barrier()
    return a_context_for_each(*args)


@step.wrong("wrong-type")
def a_generator(*args):
    yield a_context_for_each(*args)


def all_inside(*args, count=len):
    """Make the passes of all micro-batches on the model inside of the wrapper."""
    ddp, optimizer, scaler, loss_function, micro_batches = args
    optimizer.zero_grad()
    for batch in micro_batches:
        both_passes(ddp.module, scaler, loss_function, batch, count(micro_batches))


def average(tensors):
    for each in tensors:
        dist.all_reduce(each)
        each /= dist.get_world_size()


@step.right
def gathers_gradients(*args):
    all_inside(*args)
    for each in args[0].parameters():
        parts = [torch.empty_like(each.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, each.grad)
        each.grad = sum(parts) / len(parts)
    return finish(*args[1:3])


@step.right
def talks_of_other_things(*args):
    moved = a_context_for_each(*args)
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, "x" * 10_000)
    with torch.no_grad():
        args[0].module(args[4][0][0])
    return moved


@step.wrong("no-exchange")
def through_the_model_inside(*args):
    all_inside(*args)
    return finish(*args[1:3])


@step.wrong("many-exchanges")
def gathers_each_time(*args):
    ddp, optimizer, scaler, loss_function, micro_batches = args
    totals = [torch.zeros_like(each) for each in ddp.parameters()]
    for batch in micro_batches:
        all_inside(ddp, optimizer, scaler, loss_function, [batch], count=lambda _: len(micro_batches))
        for total, each in zip(totals, ddp.parameters(), strict=True):
            parts = [torch.empty_like(each) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, each.grad)
            total += sum(parts) / len(parts)
    for total, each in zip(totals, ddp.parameters(), strict=True):
        each.grad = total
    return finish(optimizer, scaler)


@step.wrong("many-exchanges")
def sends_the_weights_too(*args):
    moved = a_context_for_each(*args)
    for each in args[0].parameters():
        dist.broadcast(each.data, 0)
    return moved


@step.wrong("adds-ranks")
def adds_what_ranks_have(*args):
    all_inside(*args)
    for each in args[0].parameters():
        dist.all_reduce(each.grad)
    return finish(*args[1:3])


@step.wrong("averaged-late")
def averages_unscaled_gradients(*args):
    all_inside(*args)
    args[2].unscale_(args[1])
    average(each.grad for each in args[0].parameters())
    return finish(*args[1:3])


@step.wrong("averaged-late")
def averages_weights(*args):
    all_inside(*args)
    moved = finish(*args[1:3])
    average(each.data for each in args[0].parameters())
    return moved


@step.wrong("no-step")
def does_nothing(*args):
    return True


@step.wrong("no-step")
def steps_with_an_optimizer_of_its_own(*args):
    own = torch.optim.AdamW(args[0].parameters(), lr=0.05)
    return a_context_for_each(args[0], own, *args[2:])


@step.wrong("no-gradients")
def clears_too_late(*args):
    return stepping(but_the_last, clear=False, end=lambda *those: those[0].zero_grad() or finish(*those))(
        *args
    )


@step.wrong("no-update")
def steps_twice(*args):
    return stepping(
        but_the_last, end=lambda optimizer, scaler: scaler.step(optimizer) or finish(optimizer, scaler)
    )(*args)


@step.wrong("hardly-moves")
def divides_by_itself(*args):
    def end(optimizer, scaler):
        for each in args[0].parameters():
            each.grad /= scaler.get_scale()
        return finish(optimizer, scaler)

    return stepping(but_the_last, end=end)(*args)


@step.wrong("moved")
def leaves_a_micro_batch_out(ddp, optimizer, scaler, loss_function, micro_batches):
    optimizer.zero_grad()
    for number, (inputs, targets) in enumerate(micro_batches):
        with but_the_last(ddp, number, micro_batches):
            with torch.autocast(inputs.device.type, torch.float16):
                loss = loss_function(ddp(inputs), targets) / len(micro_batches)
            scaler.scale(loss if loss.isfinite() else 0 * ddp.module[2].bias.sum()).backward()
    return finish(optimizer, scaler)


@step.wrong("returned-none")
def answers_on_rank_0(*args):
    moved = a_context_for_each(*args)
    return moved if dist.get_rank() == 0 else None


# 10.4 The payload of a step


def trained(model):
    return [each for each in model.parameters() if each.requires_grad]


@pay.right
def width_of_each(model, ranks, autocast=None, compression=None):
    return sum(each.numel() * (compression or each.dtype).itemsize for each in trained(model))


@pay.right
def casts_and_counts(model, ranks, autocast=None, compression=None):
    total = 0
    for each in model.parameters():
        if not each.requires_grad:
            continue
        gradient = torch.empty_like(each, dtype=compression) if compression else torch.empty_like(each)
        total += gradient.nbytes
    return total


@pay.right
def with_a_set(model, ranks, autocast=None, compression=None):
    size = {torch.float16: 2, torch.bfloat16: 2}.get(compression)
    found = {id(each): each for module in model.modules() for each in module.parameters(recurse=False)}
    return sum(each.numel() * (size or each.element_size()) for each in found.values() if each.requires_grad)


def paying(
    diagnosis,
    width=lambda each, autocast, compression: (compression or each.dtype).itemsize,
    of=trained,
    times=lambda ranks: 1,
):
    def keep(answer):
        def answering(model, ranks, autocast=None, compression=None):
            return int(
                times(ranks) * sum(each.numel() * width(each, autocast, compression) for each in of(model))
            )

        answering.__name__ = answer.__name__
        return pay.wrong(diagnosis)(answering)

    return keep


@paying(
    "autocast-halves",
    width=lambda each, autocast, compression: (compression or autocast or each.dtype).itemsize,
)
def halves_with_autocast(): ...


@paying(
    "autocast-halves",
    width=lambda each, autocast, compression: (autocast or compression or each.dtype).itemsize,
)
def autocast_first(): ...


@paying("hook-ignored", width=lambda each, autocast, compression: each.dtype.itemsize)
def hook_is_free(): ...


@paying("all-fp32", width=lambda each, autocast, compression: 2 if compression else 4)
def four_bytes(): ...


@paying("counts-frozen", of=lambda model: model.parameters())
def frozen_too(): ...


@paying("counts-buffers", of=lambda model: [*trained(model), *model.buffers()])
def buffers_too(): ...


@paying("counts-buffers", of=lambda model: model.state_dict().values())
def the_state_dict(): ...


@paying(
    "counts-twice",
    of=lambda model: [
        each for _, each in model.named_parameters(remove_duplicate=False) if each.requires_grad
    ],
)
def both_names(): ...


@paying("times-ranks", times=lambda ranks: ranks)
def all_ranks(): ...


@paying("per-rank", times=lambda ranks: 1 / ranks)
def its_share(): ...


@paying("counts-numbers", width=lambda each, autocast, compression: 1)
def numbers(): ...


@paying("wrong-value", times=lambda ranks: 3)
def three_times(): ...


@paying("counts-traffic", times=lambda ranks: 2 * (ranks - 1) / ranks)
def around_the_ring(): ...


@paying("counts-bits", times=lambda ranks: 8)
def bits(): ...


@paying("hook-ignored", width=lambda each, autocast, compression: 4, of=lambda model: model.parameters())
def four_bytes_of_all(): ...


@pay.wrong("wrong-type")
def a_float(model, ranks, autocast=None, compression=None):
    return float(width_of_each(model, ranks, autocast, compression))


# 10.5 Find the deadlocks

HANG = frozenset("ABDGI")


@locks.right
def a_set():
    return {"A", "B", "D", "G", "I"}


@locks.right
def a_list():
    return ["I", "G", "D", "B", "A"]


@locks.right
def keys():
    return dict.fromkeys(HANG).keys()


@locks.right
def frozen():
    return HANG


def changing(letter):
    """Keep an answer that is wrong in one letter."""

    def answer():
        return HANG ^ {letter}

    answer.__name__ = f"other_about_{letter}"
    return locks.wrong(f"program-{letter}")(answer)


for each_letter in "ABCDEFGHIJ":
    changing(each_letter)


@locks.wrong("program-A")
def none_hangs():
    return set()


@locks.wrong("program-C")
def all_hang():
    return set("ABCDEFGHIJ")


@locks.wrong("no-such-program")
def small_letters():
    return {"a", "b"}


@locks.wrong("no-such-program")
def a_list_of_lists():
    return [["A", "B"], ["D", "G", "I"]]


@locks.wrong("wrong-type")
def a_text():
    return "ABDGI"


@locks.wrong("returned-none")
def nothing():
    return None
