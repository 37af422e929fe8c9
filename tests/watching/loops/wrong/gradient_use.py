"""What is done with gradients between backward and step."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import labelled, regression

SECTION = "Using gradients between backward and step"


@wrong("penalty-of-scaled", "gradient penalty with scaled gradients", shows=lambda norms: norms[0] > 50)
def penalty_of_scaled_gradients(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    norms = []
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            grads = torch.autograd.grad(scaler.scale(loss), list(net.parameters()), create_graph=True)
            norm = torch.stack([g.pow(2).sum() for g in grads]).sum().sqrt()
            norms.append(norm.item())
            with autocast("cpu", dtype=torch.float16):
                loss = loss + 1e-3 * norm
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return norms


@wrong(
    "gradients-read-scaled", "the gradient norm is logged before unscale_", shows=lambda norms: norms[0] > 100
)
def norm_logged_before_unscaling(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    norms = []
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            norm = sum(p.grad.norm().item() ** 2 for p in net.parameters()) ** 0.5
            norms.append(norm)
            scaler.step(opt)
            scaler.update()
    return norms


@wrong("gradients-read-scaled", "get_total_norm is logged before unscale_")
def total_norm_logged_before_unscaling(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    history = []
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            history.append(nn.utils.get_total_norm([p.grad for p in net.parameters()]).item())
            scaler.step(opt)
            scaler.update()
    return history


@wrong("gradients-read-scaled", "a hook of a parameter sees scaled gradients")
def hook_sees_scaled_gradients(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    largest = []
    net.weight.register_hook(lambda grad: largest.append(grad.abs().max().item()))
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return largest


@wrong("clipped-by-hand", "gradients are clamped by hand before unscale_", shows=lambda moved: moved < 1e-2)
def clamped_by_hand_too_early(watch):
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
                p.grad.clamp_(-0.1, 0.1)
            scaler.step(opt)
            scaler.update()
    return (net.weight - before).norm().item()


@wrong("added-by-hand", "weight decay is added to scaled gradients by hand")
def weight_decay_added_to_scaled_gradients(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            for p in net.parameters():
                p.grad.add_(p.detach(), alpha=0.01)
            scaler.step(opt)
            scaler.update()


@wrong(
    "anomaly-with-scaler", "detect_anomaly raises on a normal overflow of the scale", raises="returned nan"
)
def anomaly_mode_with_a_scaler(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=2.0**24)
    with watch(net, opt, scaler), torch.autograd.detect_anomaly():
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong(
    "activation-overflows",
    "an overflow poisons BatchNorm's statistics though its step is skipped",
    shows=lambda var: var != var,
)
def statistics_poisoned(watch):
    net = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 1))
    with torch.no_grad():
        net[0].weight.mul_(30)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=256.0)
    data = regression()
    data[2][0].mul_(1e4)
    with watch(net, opt, scaler):
        for x, y in data:
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return net[1].running_var[0].item()


@wrong(
    "loss-not-finite",
    "clipped gradients that are inf, without a scaler: NaN weights",
    shows=lambda finite: not finite,
)
def clipped_infinite_gradients(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, opt):
        for x, y in regression():
            x = x * 1e20
            opt.zero_grad()
            loss = F.mse_loss(net(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
    return net.weight.isfinite().all().item()
