"""Schedulers, averages, counters and logs that go on in steps which the scaler skips."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import regression

SECTION = "Scale life cycle"


@wrong(
    "scheduler-on-skip",
    "scheduler stepped although the first step was skipped",
    shows=lambda lr: lr == 0.0125,
)
def decays_in_a_skipped_step(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, gamma=0.5)
    scaler = GradScaler("cpu", init_scale=2.0**4)
    with watch(net, opt, scaler):
        for x, y in regression(3, large=(0,)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            scheduler.step()
    return opt.param_groups[0]["lr"]


@wrong("scheduler-on-skip", "OneCycleLR goes on in a skipped step in the middle, fused Adam")
def one_cycle_in_a_skipped_step(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    data = regression(10, large=(5,))
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=1e-2, total_steps=len(data) + 1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler, schedulers=[schedule]):
        for x, y in data:
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            schedule.step()


@wrong("rate-on-skip", "a warm-up by hand is used up by skipped steps", shows=lambda done: done == (8, 5))
def warm_up_by_hand_in_skipped_steps(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    scaler = GradScaler("cpu", init_scale=2.0**6)
    step, done = 0, 0
    with watch(net, opt, scaler):
        for x, y in regression(8, large=(0, 1, 2)):
            step += 1
            for group in opt.param_groups:
                group["lr"] = 0.1 * min(1.0, step / 8)
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scale = scaler.get_scale()
            scaler.step(opt)
            scaler.update()
            done += scaler.get_scale() >= scale
    return step, done


@wrong("average-on-skip", "AveragedModel is updated in skipped steps")
def averaged_in_a_skipped_step(watch):
    net = nn.Linear(6, 1)
    ema = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression(large=(2,)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            ema.update_parameters(net)


@wrong("average-on-skip", "an EMA by hand is updated in skipped steps")
def averaged_by_hand_in_skipped_steps(watch):
    class EMA:
        def __init__(self, model, decay=0.9):
            self.shadow = copy.deepcopy(model).requires_grad_(False)
            self.decay = decay

        @torch.no_grad()
        def update(self, model):
            for mine, theirs in zip(self.shadow.parameters(), model.parameters(), strict=True):
                mine.mul_(self.decay).add_(theirs, alpha=1 - self.decay)

    net = nn.Linear(6, 1)
    ema = EMA(net)
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=2.0**6)
    with watch(net, opt, scaler):
        for x, y in regression(8, large=(0, 1, 2)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            ema.update(net)


@wrong("counter-on-skip", "global_step counts skipped steps, and decides when to decay")
def global_step_counts_skipped_steps(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=2.0**6)
    global_step = 0
    with watch(net, opt, scaler):
        for x, y in regression(8, large=(0, 1, 2)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            global_step += 1
            if global_step == 4:
                opt.param_groups[0]["lr"] *= 0.1


@wrong(
    "step-result-read",
    "step() is expected to say whether it was skipped: it returns None",
    shows=lambda lr: lr == 1e-3,
)
def waits_for_what_step_returns(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: 0.9**step)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler, schedulers=[scheduler]):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            stepped = scaler.step(opt)
            scaler.update()
            if stepped:
                scheduler.step()
    return opt.param_groups[0]["lr"]


@wrong("scheduler-before-step", "the scheduler steps before the optimizer")
def scheduler_first(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=6)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler, schedulers=[scheduler]):
        for x, y in regression():
            scheduler.step()
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong(
    "sum-poisoned", "a running norm is poisoned by one skipped step", shows=lambda norm: not norm < torch.inf
)
def running_norm_becomes_infinite(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=64.0)
    running_norm = 0.0
    with watch(net, opt, scaler):
        for x, y in regression(8, large=(3,)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            norm = sum(p.grad.square().sum() for p in net.parameters()) ** 0.5
            scaler.step(opt)
            scaler.update()
            running_norm = 0.9 * running_norm + 0.1 * norm.item()
    return running_norm
