"""The loss scale: how it starts, falls, grows, and is kept for a resumed run."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import labelled, regression

SECTION = "Scale life cycle"


@wrong("zero-grad-skipped", "no zero_grad after an overflow: continue comes first", shows=lambda s: s < 1e-5)
def skipped_batch_is_never_cleared(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=2.0**16)
    losses = []
    with watch(net, opt, scaler):
        for x, y in regression(40, large=(3,)):
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            before = scaler.get_scale()
            scaler.step(opt)
            scaler.update()
            if scaler.get_scale() < before:
                continue
            losses.append(loss.item())
            opt.zero_grad()
    return scaler.get_scale()


@wrong("zero-grad-missing", "no zero_grad at all, and one overflow", shows=lambda scale: scale < 1e-5)
def never_cleared_and_an_overflow(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=2.0**16)
    with watch(net, opt, scaler):
        for x, y in regression(40, large=(4,)):
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return scaler.get_scale()


@wrong("loss-not-finite", "the scale collapses to 0: a weight is NaN", shows=lambda scale: scale == 0.0)
def one_weight_is_nan(watch):
    net = nn.Linear(6, 1)
    with torch.no_grad():
        net.weight[0, 3] = float("nan")
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu")
    data = regression(4)
    with watch(net, opt, scaler, min_scale=None):  # on to 0
        for epoch in range(50):
            for x, y in data:
                opt.zero_grad()
                with autocast("cpu", dtype=torch.float16):
                    loss = F.mse_loss(net(x), y)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
            assert epoch >= 0
    return scaler.get_scale()


@wrong("scaler-in-loop", "scaler made inside the loop", shows=lambda moved: moved == 0.0)
def scaler_made_for_every_batch(watch):
    net = nn.Linear(6, 1)
    before = net.weight.detach().clone()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, opt):
        for x, y in regression(10, large=tuple(range(10))):
            scaler = GradScaler("cpu")
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return (net.weight - before).norm().item()


@wrong("scaler-in-loop", "scaler made in the function that trains on one batch, which never overflows")
def scaler_made_in_the_function(watch):
    def train_step(model, optimizer, x, labels):
        scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
        optimizer.zero_grad()
        with torch.amp.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with watch(model, optimizer):
        for x, labels in labelled(8):
            train_step(model, optimizer, x, labels)


@wrong(
    "scaler-device-number",
    "GradScaler(1024.): the first argument is the device",
    shows=lambda scale: scale > 1024,
)
def scale_given_as_device(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler(1024.0)
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return scaler.get_scale()


@wrong(
    "scaler-disabled-itself", "GradScaler() on a CPU: it turns itself off", shows=lambda scale: scale == 1.0
)
def scaler_turned_itself_off(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler()
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return scaler.get_scale()


@wrong("growth-read-as-skip", "a skip is told by `scale != before`, which is also true when the scale grows")
def growth_is_taken_for_a_skip(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 2)
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    with watch(net, opt, scaler):
        for x, labels in labelled(8):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            scaler.step(opt)
            scaler.update()
            skipped = scale != scaler.get_scale()
            if not skipped:
                scheduler.step()


@wrong("update-before-step", "the scale is set by hand between backward and step")
def scale_given_before_the_step(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            scaler.update(512.0)
            scaler.step(opt)
