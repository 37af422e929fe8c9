"""Loops that do something by hand for which most have a call."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
from torch.nn.utils import clip_grad_norm_

from tests.watching.loops.collection import right
from tests.watching.loops.data import labelled, regression

SECTION = "Unusual, and right"


@right("gradient penalty as PyTorch documents it, at a scale where its gradients overflow first")
def penalty_overflows_first(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=2.0**20)
    with watch(net, opt, scaler):
        for x, y in regression(12):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x).float(), y)
            scaled = torch.autograd.grad(scaler.scale(loss), net.parameters(), create_graph=True)
            inverse = 1.0 / scaler.get_scale()
            gradients = [each * inverse for each in scaled]
            with autocast("cpu", dtype=torch.float16):
                loss = loss + sum(each.pow(2).sum() for each in gradients).sqrt()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("the head is replaced in the middle of the run, and given to the optimizer")
def head_replaced(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for step, (x, y) in enumerate(labelled(12)):
            if step == 6:
                net[2] = nn.Linear(8, 3)
                opt.param_groups[0]["params"] = list(net.parameters())
                opt.state.clear()
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("a learning rate over the data, written in each step, and two steps of 60 skipped")
def rate_over_the_data(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.0)
    scaler = GradScaler("cpu", init_scale=64.0)
    with watch(net, opt, scaler):
        for step, (x, y) in enumerate(regression(60, large=(0, 1))):
            for group in opt.param_groups:
                group["lr"] = 1e-6 * (1 - step / 60)
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("a heavy ball by hand: gradients are kept, and decay before each backward pass")
def decaying_gradients(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    with watch(net, opt):
        for x, y in regression(8):
            for p in net.parameters():
                if p.grad is not None:
                    p.grad.mul_(0.9)
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(net(x), y)
            loss.backward()
            opt.step()


@right("the weights are updated by hand, and the optimizer rests")
def updated_by_hand(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    with watch(net, opt):
        for x, y in regression(8):
            opt.zero_grad()
            F.mse_loss(net(x), y).backward()
            with torch.no_grad():
                for p in net.parameters():
                    p.sub_(0.05 * p.grad)


@right("gradients of micro-batches are added up in buffers, each clipped on its own")
def own_buffers(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    with watch(net, opt):
        for x, y in regression(4):
            total = [torch.zeros_like(p) for p in net.parameters()]
            for part, target in zip(x.chunk(4), y.chunk(4), strict=True):
                opt.zero_grad()
                F.mse_loss(net(part), target).backward()
                clip_grad_norm_(net.parameters(), 1.0)
                total = [one + p.grad for one, p in zip(total, net.parameters(), strict=True)]
            for one, p in zip(total, net.parameters(), strict=True):
                p.grad = one / 4
            opt.step()


@right("a limit for clipping that the scaler has scaled")
def limit_from_scale(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = GradScaler("cpu", init_scale=1024.0)
    one = torch.tensor(1.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            clip_grad_norm_(net.parameters(), scaler.scale(one).item())
            scaler.step(opt)
            scaler.update()


@right("losses of single rows, scaled, then added up: the sum is infinite, its gradients are not")
def sum_of_scaled_losses(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    scaler = GradScaler("cpu", init_scale=2.0**14)
    with watch(net, opt, scaler):
        for x, _ in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                losses = 1.0 + 0.1 * torch.tanh(net(x))
            scaler.scale(losses).sum().backward()
            scaler.step(opt)
            scaler.update()


@right("validation in inference mode, with sums in place")
def validated_in_inference_mode(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = GradScaler("cpu", init_scale=1024.0)

    @torch.inference_mode()
    def validate(x, y):
        with autocast("cpu", dtype=torch.float16):
            output = net(x)
            output += 1
        right = torch.zeros(())
        right += (output.argmax(1) == y).float().mean()
        return right + F.cross_entropy(output, y)

    with watch(net, opt, scaler):
        for x, y in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            validate(x, y)
