"""A call of the scaler is missing, is made twice, or is made in the wrong place."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import labelled, regression

SECTION = "Call order of GradScaler"


@wrong("update-missing", "update() missing", raises="step\\(\\) has already been called")
def never_updated(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)


@wrong(
    "update-missing", "update() missing, with unscale_", raises="unscale_\\(\\) is being called after step"
)
def never_updated_with_unscale(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.Adam(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)


@wrong(
    "continue-before-update",
    "continue between unscale_ and update",
    raises="unscale_\\(\\) has already been called",
)
def a_large_batch_is_left_out(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=4.0)
    with watch(net, opt, scaler):
        for x, y in regression(large=(2,)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            if norm > 100:
                continue
            scaler.step(opt)
            scaler.update()


@wrong("step-twice", "scaler.step twice", raises="step\\(\\) has already been called")
def stepped_twice(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.step(opt)
            scaler.update()


@wrong("unscale-twice", "unscale_ twice", raises="unscale_\\(\\) has already been called")
def unscaled_twice_in_a_step(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)

    def grad_norm():
        scaler.unscale_(opt)
        return torch.nn.utils.get_total_norm([p.grad for p in net.parameters()])

    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            grad_norm()
            scaler.step(opt)
            scaler.update()


@wrong(
    "unscale-each-micro-batch",
    "unscale_ for each micro-batch",
    raises="unscale_\\(\\) has already been called",
)
def unscaled_in_every_micro_batch(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    accumulate = 4
    with watch(net, opt, scaler):
        for i, (x, y) in enumerate(regression(8)):
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y) / accumulate
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            if (i + 1) % accumulate == 0:
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()


@wrong("step-without-scale", "step without scale()", raises="_scale is None")
def never_scaled(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            loss.backward()
            scaler.step(opt)
            scaler.update()


@wrong(
    "unscaled-by-hand", "p.grad divided by the scale by hand, and then scaler.step", shows=lambda m: m < 1e-2
)
def divided_by_hand(watch):
    net = nn.Linear(6, 1)
    before = net.weight.detach().clone()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            for p in net.parameters():
                p.grad.div_(scaler.get_scale())
            torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
            scaler.step(opt)
            scaler.update()
    return (net.weight - before).norm().item()


@wrong("unscaled-by-hand", "gradients multiplied by 1/scale by hand, Adam, no clipping")
def multiplied_by_hand(watch):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optim = torch.optim.Adam(model.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=2048.0)
    with watch(model, optim, scaler):
        for x, labels in labelled():
            optim.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(model(x), labels)
            scaler.scale(loss).backward()
            inv_scale = 1.0 / scaler.get_scale()
            for group in optim.param_groups:
                for param in group["params"]:
                    if param.grad is not None:
                        param.grad = param.grad * inv_scale
            scaler.step(optim)
            scaler.update()


@wrong(
    "scaled-loss-unused",
    "backward on the unscaled loss: what scale() returned is dropped",
    shows=lambda m: m < 1e-2,
)
def scaled_loss_dropped(watch):
    net = nn.Linear(6, 1)
    before = net.weight.detach().clone()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss)
            loss.backward()
            scaler.step(opt)
            scaler.update()
    return (net.weight - before).norm().item()


@wrong("scaled-loss-unused", "backward on the unscaled loss, the scaled one is only logged")
def scaled_loss_only_logged(watch):
    class Learner:
        def __init__(self):
            self.net = nn.Linear(6, 3)
            self.opt = torch.optim.AdamW(self.net.parameters())
            self.scaler = GradScaler("cpu")
            self.log = []

        def one(self, x, labels):
            self.opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(self.net(x), labels)
            scaled = self.scaler.scale(loss)
            self.log.append(scaled.item())
            loss.backward()
            self.scaler.step(self.opt)
            self.scaler.update()

    learner = Learner()
    with watch(learner.net, learner.opt, learner.scaler):
        for x, labels in labelled():
            learner.one(x, labels)


@wrong("optimizer-step-instead", "optimizer.step() in place of scaler.step", shows=lambda moved: moved > 1e2)
def raw_step(watch):
    net = nn.Linear(6, 1)
    before = net.weight.detach().clone()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression(1):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            opt.step()
    return (net.weight - before).norm().item()


@wrong("optimizer-step-instead", "optimizer.step(), then update()", raises="No inf checks were recorded")
def raw_step_and_update(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            opt.step()
            scaler.update()


@wrong("optimizer-step-as-well", "optimizer.step() next to scaler.step")
def both_steps(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, labels in labelled():
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            scaler.step(opt)
            opt.step()
            scaler.update()
            opt.zero_grad()


@wrong("optimizer-step-instead", "unscale_, and then optimizer.step(): an overflow is not left out")
def raw_step_after_unscale(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
            scaler.update()


@wrong("update-before-step", "update() before step()", raises="unscale_\\(\\) is being called after step")
def updated_too_early(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            scaler.update()
            scaler.step(opt)


@wrong("two-scalers", "scaled by one scaler, stepped with another", raises="_scale is None")
def two_scalers_mixed_up(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler_g, scaler_d = GradScaler("cpu", init_scale=1024.0), GradScaler("cpu", init_scale=512.0)
    with watch(net, opt, scaler_g):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler_g.scale(loss).backward()
            scaler_d.step(opt)
            scaler_d.update()


@wrong("scaler-pickled", "deepcopy of the scaler in mid-iteration", raises="beginning of an iteration")
def copied_in_mid_iteration(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            snapshot = copy.deepcopy(scaler)
            scaler.step(opt)
            scaler.update()
            assert snapshot
