"""Gradients are missing, lost, left over, or those of other parameters."""

import copy

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import labelled, regression

SECTION = "Call order of GradScaler"


@wrong("loss-without-graph", "no gradients at all: everything is frozen", raises="does not require grad")
def everything_frozen(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    for p in net.parameters():
        p.requires_grad = False
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong("no-gradients", "the optimizer has the frozen backbone only", raises="No inf checks were recorded")
def optimizer_of_the_frozen_part(watch):
    backbone, head = nn.Linear(6, 8), nn.Linear(8, 1)
    backbone.requires_grad_(False)
    model = nn.Sequential(backbone, nn.ReLU(), head)
    opt = torch.optim.Adam(backbone.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(model, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong(
    "no-gradients",
    "the optimizer was made for a copy of the model",
    raises="No inf checks were recorded",
)
def optimizer_of_a_copy(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    net = copy.deepcopy(net)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong("no-gradients", "the optimizer was made for a copy of the model, BF16: nothing raises")
def optimizer_of_a_copy_in_bf16(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    net = copy.deepcopy(net)
    with watch(net, opt):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(net(x), y)
            loss.backward()
            opt.step()


@wrong("zero-grad-before-step", "zero_grad() between backward and step", raises="No inf checks were recorded")
def gradients_thrown_away(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            opt.zero_grad()
            scaler.step(opt)
            scaler.update()


@wrong(
    "zero-grad-before-step",
    "zero_grad(set_to_none=False) between backward and step: AdamW only decays",
    shows=lambda ratio: abs(ratio - 0.95**6) < 1e-4,
)
def gradients_zeroed_before_the_step(watch):
    net = nn.Linear(6, 1)
    before = net.weight.detach().clone()
    opt = torch.optim.AdamW(net.parameters(), lr=0.5, weight_decay=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            net.zero_grad(set_to_none=False)
            scaler.step(opt)
            scaler.update()
    return (net.weight / before).mean().item()


@wrong("zero-grad-before-step", "zero_grad() between backward and step in FP32: no step is ever taken")
def gradients_thrown_away_in_fp32(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, opt):
        for x, labels in labelled():
            loss = F.cross_entropy(net(x), labels)
            loss.backward()
            opt.zero_grad()
            opt.step()


@wrong("zero-grad-missing", "zero_grad is forgotten: gradients of all batches so far are added up")
def gradients_never_cleared(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong("zero-grad-missing", "zero_grad is forgotten, FP32, Adam")
def gradients_never_cleared_in_fp32(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    with watch(net, opt):
        for _ in range(2):
            for x, labels in labelled():
                loss = F.cross_entropy(net(x), labels)
                loss.backward()
                opt.step()


@wrong("parameters-without-optimizer", "a part of the model is in no optimizer")
def the_head_is_in_no_optimizer(watch):
    backbone, head = nn.Linear(6, 8), nn.Linear(8, 1)
    model = nn.Sequential(backbone, nn.ReLU(), head)
    opt = torch.optim.Adam(backbone.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(model, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
