"""Backward passes that begin from a gradient: it may have been scaled in place of the loss."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import right
from tests.watching.loops.data import labelled, regression

SECTION = "Backward passes that begin from a gradient"


@right("two stages of a pipeline: the second one's gradient goes back through the first")
def two_stages(watch):
    first, second = nn.Linear(6, 8), nn.Linear(8, 3)
    opt = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.05)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch([first, second], opt, scaler):
        for x, y in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                hidden = torch.relu(first(x))
            handed_on = hidden.detach().requires_grad_()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(second(handed_on), y)
            scaler.scale(loss).backward()
            hidden.backward(handed_on.grad)
            scaler.step(opt)
            scaler.update()


@right("the same with torch.autograd.grad and torch.autograd.backward")
def two_stages_by_functions(watch):
    first, second = nn.Linear(6, 8), nn.Linear(8, 3)
    opt = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.05)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch([first, second], opt, scaler):
        for x, y in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                hidden = torch.relu(first(x))
            handed_on = hidden.detach().requires_grad_()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(second(handed_on), y)
            back, *own = torch.autograd.grad(scaler.scale(loss), [handed_on, *second.parameters()])
            for parameter, gradient in zip(second.parameters(), own, strict=True):
                parameter.grad = gradient
            torch.autograd.backward([hidden], [back])
            scaler.step(opt)
            scaler.update()


@right("cached gradients: a contrastive loss of a batch that is encoded in parts")
def cached_gradients(watch):
    encoder = nn.Linear(6, 8)
    opt = torch.optim.SGD(encoder.parameters(), lr=0.05)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(encoder, opt, scaler):
        for x, _ in regression():
            parts = x.split(4)
            opt.zero_grad()
            with torch.no_grad(), autocast("cpu", dtype=torch.float16):
                codes = torch.cat([encoder(part) for part in parts])
            codes = codes.float().requires_grad_()
            same = F.normalize(codes, dim=1)
            loss = F.cross_entropy(same @ same.roll(1, 0).T / 0.1, torch.arange(len(x)))
            scaler.scale(loss).backward()
            for part, gradient in zip(parts, codes.grad.split(4), strict=True):
                with autocast("cpu", dtype=torch.float16):
                    again = encoder(part)
                again.float().backward(gradient)
            scaler.step(opt)
            scaler.update()


@right("the scale goes in as the gradient that backward() begins from")
def scaled_seed(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), y)
            loss.backward(gradient=scaler.scale(torch.ones_like(loss)))
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()


@right("the gradient of the loss by hand, scaled, goes into backward()")
def loss_gradient_by_hand(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                output = net(x)
            output = output.float()
            slope = (output.detach().softmax(1) - F.one_hot(y, 3)) / len(y)
            output.backward(scaler.scale(slope))
            scaler.step(opt)
            scaler.update()


@right("many tasks: one pass through the body with a mean of the heads' gradients")
def mean_of_heads(watch):
    body, heads = nn.Linear(6, 8), nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])
    opt = torch.optim.SGD([*body.parameters(), *heads.parameters()], lr=0.05)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch([body, heads], opt, scaler):
        for x, y in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                features = torch.relu(body(x))
                cut = features.detach().requires_grad_()
                losses = [F.cross_entropy(head(cut), y) for head in heads]
            gradients = []
            for loss in losses:
                cut.grad = None
                scaler.scale(loss).backward()
                gradients.append(cut.grad)
            features.backward(0.5 * (gradients[0] + gradients[1]))
            scaler.step(opt)
            scaler.update()
