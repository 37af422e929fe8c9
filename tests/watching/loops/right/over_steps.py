"""Schedulers, averages, validation and checkpoints."""

import copy
import io

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn

from tests.watching.loops.collection import right
from tests.watching.loops.data import labelled, regression

SECTION = "Over many steps"


@right("schedulers of each kind, per step")
def schedulers_per_step(watch):
    makers = (
        lambda opt: lr_scheduler.StepLR(opt, 2),
        lambda opt: lr_scheduler.ExponentialLR(opt, 0.9),
        lambda opt: lr_scheduler.CosineAnnealingLR(opt, 6),
        lambda opt: lr_scheduler.OneCycleLR(opt, max_lr=0.1, total_steps=6),
        lambda opt: lr_scheduler.LambdaLR(opt, lambda step: min(1.0, (step + 1) / 4)),
        lambda opt: lr_scheduler.LinearLR(opt, total_iters=4),
        lambda opt: lr_scheduler.PolynomialLR(opt, total_iters=6),
        lambda opt: lr_scheduler.CyclicLR(opt, 0.01, 0.1, step_size_up=3, cycle_momentum=False),
        lambda opt: lr_scheduler.SequentialLR(
            opt, [lr_scheduler.LinearLR(opt, total_iters=2), lr_scheduler.CosineAnnealingLR(opt, 4)], [2]
        ),
    )
    for make in makers:
        net = nn.Linear(6, 3)
        opt = torch.optim.SGD(net.parameters(), lr=0.01)
        scheduler = make(opt)
        scaler = GradScaler("cpu", init_scale=1024.0)
        with watch(net, opt, scaler, schedulers=[scheduler]):
            for x, labels in labelled(6):
                opt.zero_grad()
                with autocast("cpu", dtype=torch.float16):
                    loss = F.cross_entropy(net(x), labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
                scheduler.step()


@right("a scheduler per epoch, and steps that are skipped")
def scheduler_per_epoch(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    scheduler = lr_scheduler.MultiStepLR(opt, [1, 2], gamma=0.5)
    scaler = GradScaler("cpu", init_scale=2.0**6)
    with watch(net, opt, scaler):
        for _ in range(3):
            for x, y in regression(5, large=(1,)):
                opt.zero_grad()
                with autocast("cpu", dtype=torch.float16):
                    loss = F.mse_loss(net(x), y)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
            scheduler.step()


@right("ReduceLROnPlateau after the validation of each epoch")
def plateau(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scheduler = lr_scheduler.ReduceLROnPlateau(opt, patience=0)
    scaler = GradScaler("cpu", init_scale=1024.0)
    data = regression(6)
    with watch(net, opt, scaler):
        for _ in range(4):
            net.train()
            for x, y in data[:4]:
                opt.zero_grad()
                with autocast("cpu", dtype=torch.float16):
                    loss = F.mse_loss(net(x), y)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
            net.eval()
            with torch.no_grad(), autocast("cpu", dtype=torch.float16):
                total = sum(F.mse_loss(net(x), y).item() for x, y in data[4:])
            scheduler.step(total)


@right("a scheduler that waits while steps are skipped, told by a scale that fell")
def scheduler_waits(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    scheduler = lr_scheduler.StepLR(opt, 3)
    scaler = GradScaler("cpu", init_scale=2.0**6, growth_interval=3)
    with watch(net, opt, scaler):
        for x, y in regression(16, large=(0, 1, 9)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            scaler.step(opt)
            scaler.update()
            if scaler.get_scale() >= scale:
                scheduler.step()


@right("a warm-up by hand that counts real steps only")
def warm_up_by_hand(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    scaler = GradScaler("cpu", init_scale=2.0**6)
    step = 0
    with watch(net, opt, scaler):
        for x, y in regression(10, large=(0, 1, 2)):
            for group in opt.param_groups:
                group["lr"] = 1e-4 * min(1.0, (step + 1) / 5)
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            scaler.step(opt)
            scaler.update()
            if scaler.get_scale() >= scale:
                step += 1


@right("EMA with AveragedModel, gated by the skip, and evaluated")
def averaged(watch):
    net = nn.Linear(6, 1)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    scaler = GradScaler("cpu", init_scale=2.0**5)
    with watch(net, opt, scaler):
        for x, y in regression(10, large=(2, 3)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            scaler.step(opt)
            scaler.update()
            if scaler.get_scale() >= scale:
                ema.update_parameters(net)
        with torch.no_grad():
            ema(x)


@right("EMA by hand in FP32, swapped in for validation and out again")
def averaged_by_hand(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    average = {name: weight.detach().clone() for name, weight in net.state_dict().items()}
    data = regression(6)
    with watch(net, opt):
        for _ in range(2):
            for x, y in data:
                opt.zero_grad()
                with autocast("cpu", dtype=torch.bfloat16):
                    loss = F.mse_loss(net(x), y)
                loss.backward()
                opt.step()
                with torch.no_grad():
                    for name, weight in net.state_dict().items():
                        average[name].lerp_(weight, 0.001)
            kept = copy.deepcopy(net.state_dict())
            net.load_state_dict(average)
            with torch.no_grad(), autocast("cpu", dtype=torch.bfloat16):
                net(x)
            net.load_state_dict(kept)


@right("SWA with SWALR and update_bn")
def stochastic_weight_averaging(watch):
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    average = AveragedModel(net)
    schedule = SWALR(opt, swa_lr=0.005, anneal_epochs=2)
    scaler = GradScaler("cpu", init_scale=1024.0)
    data = regression(4)
    with watch(net, opt, scaler):
        for epoch in range(4):
            for x, y in data:
                opt.zero_grad()
                with autocast("cpu", dtype=torch.float16):
                    loss = F.mse_loss(net(x), y)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
            if epoch >= 2:
                average.update_parameters(net)
                schedule.step()
        update_bn(data, average)


@right("validation inside the epoch, and early stopping")
def validated(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 3))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    data, best, kept = labelled(8), float("inf"), None
    with watch(net, opt, scaler):
        for _ in range(3):
            net.train()
            running, seen, correct = 0.0, 0, 0
            for x, labels in data[:6]:
                opt.zero_grad(set_to_none=True)
                with autocast("cpu", dtype=torch.float16):
                    out = net(x)
                    loss = F.cross_entropy(out, labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
                running += loss.item() * len(x)
                correct += (out.argmax(dim=-1) == labels).sum().item()
                seen += len(x)
            net.eval()
            with torch.inference_mode(), autocast("cpu", dtype=torch.float16):
                total = sum(F.cross_entropy(net(x), labels).item() for x, labels in data[6:])
            if total > best:
                break
            best, kept = total, copy.deepcopy(net.state_dict())
        assert kept


@right("validation in FP32 and outside no_grad, in the middle of training")
def validated_in_float32(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    data = labelled(8)
    with watch(net, opt, scaler):
        for step, (x, labels) in enumerate(data):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            if step % 3 == 2:
                net.eval()
                accuracy = (net(data[0][0]).argmax(dim=-1) == data[0][1]).float().mean().item()
                net.train()
                assert 0 <= accuracy <= 1


@right("resumed from a checkpoint, everything saved and restored")
def resumed(watch):
    def make():
        net = nn.Linear(6, 1)
        opt = torch.optim.Adam(net.parameters(), lr=1e-3)
        return net, opt, lr_scheduler.StepLR(opt, 4), GradScaler("cpu", init_scale=2.0**6)

    def train(net, opt, scheduler, scaler):
        for x, y in regression(6, large=(1,)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        scheduler.step()

    file, names = io.BytesIO(), ("model", "optimizer", "scheduler", "scaler")
    objects = make()
    with watch(objects[0], objects[1], objects[3]):
        train(*objects)
        torch.save({name: each.state_dict() for name, each in zip(names, objects, strict=True)}, file)
    file.seek(0)
    objects = make()
    with watch(objects[0], objects[1], objects[3]):
        saved = torch.load(file, weights_only=True)
        for name, each in zip(names, objects, strict=True):
            each.load_state_dict(saved[name])
        train(*objects)


@right("fine-tuned from weights alone, saved for inference in the end")
def fine_tuned(watch):
    file = io.BytesIO()
    torch.save(nn.Linear(6, 3).state_dict(), file)
    file.seek(0)
    net = nn.Linear(6, 3)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        net.load_state_dict(torch.load(file))
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
        torch.save(net.state_dict(), io.BytesIO())


@right("a running loss of applied steps only, one of them infinite")
def running_loss_of_applied_steps(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    scaler = GradScaler("cpu", init_scale=2.0**6)
    total, applied = 0.0, 0
    with watch(net, opt, scaler):
        for x, y in regression(10, large=(2,)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            scaler.step(opt)
            scaler.update()
            if scaler.get_scale() >= scale:
                total += loss.item()
                applied += 1


@right("rewinds to the last good weights and goes on")
def rewinds(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    scaler = GradScaler("cpu", init_scale=16.0)
    with watch(net, opt, scaler):
        for epoch in range(3):
            good = [copy.deepcopy(each.state_dict()) for each in (net, opt, scaler)]
            for x, y in regression(4):
                opt.zero_grad()
                with autocast("cpu", dtype=torch.float16):
                    loss = F.mse_loss(net(x), y)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
            if epoch == 1:
                for each, state in zip((net, opt, scaler), good, strict=True):
                    each.load_state_dict(state)
