"""The dtype of weights, of what is computed, and of what is added up over steps."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import labelled, regression

SECTION = "Model and dtype set-up"


@wrong("fp16-weights", "model.half() and a GradScaler", raises="Attempting to unscale FP16 gradients")
def half_weights_with_a_scaler(watch):
    net = nn.Linear(6, 3).half()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x.half()), labels)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong(
    "fp16-weights", "FP16 weights do not move: the update is swallowed", shows=lambda weight: weight == 1.0
)
def update_swallowed(watch):
    net = nn.Linear(1, 1, bias=False).half()
    nn.init.ones_(net.weight)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    with watch(net, opt):
        for _ in range(30):
            opt.zero_grad()
            loss = net(torch.ones(4, 1).half()).float().mean()
            loss.backward()
            opt.step()
    return net.weight.item()


@wrong(
    "optimizer-eps-is-zero",
    "Adam with FP16 weights: its eps of 1e-8 is 0 there",
    shows=lambda finite: not finite,
)
def adam_with_half_weights(watch):
    net = nn.Linear(6, 8).half()
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    with watch(net, opt):
        for x, _ in regression():
            opt.zero_grad()
            loss = 1e-4 * torch.relu(net(x.half())).float().mean()
            loss.backward()
            opt.step()
    return all(p.isfinite().all().item() for p in net.parameters())


@wrong(
    "bf16-weights", "BF16 weights do not move at a usual learning rate", shows=lambda weight: weight == 1.0
)
def bfloat16_weights_do_not_move(watch):
    net = nn.Linear(1, 1, bias=False).bfloat16()
    nn.init.ones_(net.weight)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    with watch(net, opt):
        for _ in range(12):
            opt.zero_grad()
            loss = net(torch.ones(4, 1).bfloat16()).float().mean()
            loss.backward()
            opt.step()
    return net.weight.item()


@wrong("scaler-with-bf16", "BF16 autocast with a GradScaler")
def bfloat16_with_a_scaler(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.AdamW(net.parameters())
    scaler = GradScaler("cpu")
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong("bf16-weights", "model.bfloat16() with a GradScaler")
def bfloat16_weights_with_a_scaler(watch):
    net = nn.Linear(6, 3).bfloat16()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            loss = F.cross_entropy(net(x.bfloat16()), labels)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong(
    "fp16-without-scaler",
    "FP16 autocast without a scaler: small gradients become zero",
    shows=lambda zeros: zeros > 0.5,
)
def float16_without_a_scaler(watch):
    net = nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, opt):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = 1e-7 * F.mse_loss(net(x), y)
            loss.backward()
            opt.step()
    return (net[0].weight.grad == 0).float().mean().item()


@wrong("scaler-unused", "FP16 autocast, a scaler was made, and nobody uses it")
def scaler_made_and_forgotten(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.Adam(net.parameters())
    scaler = GradScaler("cpu")
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            loss.backward()
            opt.step()


@wrong(
    "fp16-weights",
    "BatchNorm in FP16: its running variance overflows",
    shows=lambda var: var == float("inf"),
)
def half_batch_norm(watch):
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).half()
    with torch.no_grad():
        net[0].weight.mul_(1000)
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    with watch(net, opt):
        for x, y in regression(20):
            opt.zero_grad()
            loss = F.mse_loss(net(x.half()).float(), y)
            loss.backward()
            opt.step()
    return net[1].running_var.max().item()


@wrong("accumulator-in-16-bits", "the epoch's loss is added up in FP16", shows=lambda total: total < 600)
def loss_added_up_in_half(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    total = torch.zeros((), dtype=torch.float16)
    x, labels = labelled(1)[0]
    with watch(net, opt, scaler):
        for _ in range(12):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            total += loss.detach()
    return total.item()


@wrong("accumulator-in-16-bits", "right answers are counted in BF16", shows=lambda counted: counted != 972)
def counted_in_bfloat16(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    correct = torch.zeros((), dtype=torch.bfloat16)
    with watch(net, opt):
        for x, y in regression(12, size=81):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.bfloat16):
                out = net(x)
                loss = F.mse_loss(out, y)
            loss.backward()
            opt.step()
            correct += ((out > -1e9).to(torch.bfloat16)).sum()
    return correct.item()


@wrong("average-in-half", "EMA in FP16: it does not follow", shows=lambda average: average == 0.5)
def average_in_half(watch):
    net = nn.Linear(1, 1, bias=False)
    nn.init.constant_(net.weight, 0.75)
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    ema = copy.deepcopy(net).half()
    nn.init.constant_(ema.weight, 0.5)
    with watch(net, opt):
        for x, y in regression(20, inputs=1):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(net(x), y)
            loss.backward()
            opt.step()
            with torch.no_grad():
                for slow, fast in zip(ema.parameters(), net.parameters(), strict=True):
                    slow.mul_(0.9995).add_(fast, alpha=0.0005)
    return ema.weight.item()


@wrong("integers-in-16-bits", "item numbers above 2,048 are given as FP16", shows=lambda numbers: numbers < 8)
def numbers_of_items_in_half(watch):
    table, head = nn.Embedding(5000, 4), nn.Linear(4, 1)
    net = nn.ModuleList([table, head])
    opt = torch.optim.Adam(net.parameters())
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for _, y in regression():
            items = torch.arange(4001, 4009).half()
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(head(table(items.long())), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return len(items.unique())


@wrong("loss-in-16-bits", "the loss is computed in FP16, outside the region")
def loss_outside_the_region(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    scaler = GradScaler("cpu", init_scale=1.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                out = net(x)
            loss = ((out - y.half()) ** 2).mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong(
    "loss-overflows",
    "the loss is computed in FP16, outside the region, and overflows",
    shows=lambda skips: skips == 4,
)
def loss_outside_the_region_overflows(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression(4):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                out = net(600 * x)
            loss = F.mse_loss(out, (600 * y).half())
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return round(10 - torch.tensor(scaler.get_scale()).log2().item())
