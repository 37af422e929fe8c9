"""Gradients are clipped at the wrong moment."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import labelled, regression

SECTION = "Call order of GradScaler"


@wrong("clip-before-unscale", "clip before unscale_", shows=lambda moved: moved < 1e-2)
def clipped_too_early(watch):
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
            clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
    return (net.weight - before).norm().item()


@wrong("clip-before-unscale", "clip before unscale_, Adam, in a class")
def clipped_too_early_in_a_class(watch):
    class Trainer:
        def __init__(self, net):
            self.net = net
            self.optim = torch.optim.Adam(net.parameters(), lr=1e-3)
            self.grad_scaler = GradScaler("cpu", init_scale=4096.0)
            self.max_norm = 0.5

        def training_step(self, batch):
            x, labels = batch
            with autocast("cpu", dtype=torch.float16):
                return F.cross_entropy(self.net(x), labels)

        def optimizer_step(self):
            nn.utils.clip_grad_norm_(self.net.parameters(), self.max_norm)
            self.grad_scaler.step(self.optim)
            self.grad_scaler.update()

        def fit(self, loader):
            for batch in loader:
                self.optim.zero_grad()
                self.grad_scaler.scale(self.training_step(batch)).backward()
                self.optimizer_step()

    trainer = Trainer(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)))
    with watch(trainer.net, trainer.optim, trainer.grad_scaler):
        trainer.fit(labelled())


@wrong("clip-before-unscale", "clip before unscale_, in a decorated function called per batch")
def clipped_too_early_in_a_decorated_function(watch):
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = GradScaler("cpu", init_scale=2.0**10)

    @watch(model, optimizer, scaler)
    def train_one_batch(x, labels):
        optimizer.zero_grad(set_to_none=True)
        with autocast(device_type="cpu", dtype=torch.float16):
            logits = model(x)
            loss = F.cross_entropy(logits, labels)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    for x, labels in labelled():
        train_one_batch(x, labels)


@wrong("clip-before-unscale", "clip_grad_value_ before unscale_", shows=lambda moved: moved < 1e-2)
def clipped_by_value_too_early(watch):
    net = nn.Linear(6, 1)
    before = net.weight.detach().clone()
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            clip_grad_value_(net.parameters(), 0.1)
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
    return (net.weight - before).norm().item()


@wrong("clip-before-unscale", "clip before unscale_, which comes right after it")
def clipped_and_then_unscaled(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scaler = GradScaler("cpu", init_scale=512.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            clip_grad_norm_(net.parameters(), 1.0)
            scaler.unscale_(opt)
            scaler.step(opt)
            scaler.update()


@wrong("clip-before-unscale", "clip before unscale_, with accumulation")
def accumulated_and_clipped_too_early(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    steps = 2
    with watch(net, opt, scaler):
        for i, (x, y) in enumerate(regression(8)):
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y) / steps
            scaler.scale(loss).backward()
            if (i + 1) % steps == 0:
                clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()


@wrong("clip-half-unscaled", "two optimizers, only one is unscaled before both are clipped")
def clipped_with_one_of_two_unscaled(watch):
    encoder, head = nn.Linear(6, 8), nn.Linear(8, 1)
    opt_encoder = torch.optim.Adam(encoder.parameters(), lr=1e-3)
    opt_head = torch.optim.SGD(head.parameters(), lr=1e-2)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch([encoder, head], [opt_encoder, opt_head], scaler):
        for x, y in regression():
            opt_encoder.zero_grad()
            opt_head.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(head(torch.relu(encoder(x))), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt_encoder)
            clip_grad_norm_([*encoder.parameters(), *head.parameters()], 1.0)
            scaler.step(opt_encoder)
            scaler.step(opt_head)
            scaler.update()


@wrong("clip-after-step", "gradients are clipped when the step was made")
def clipped_too_late(watch):
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
            clip_grad_norm_(net.parameters(), 1.0)
            scaler.update()


@wrong("clip-of-nothing", "gradients are clipped before there are any")
def clipped_before_backward(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, opt):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(net(x), y)
            clip_grad_norm_(net.parameters(), 1.0)
            loss.backward()
            opt.step()


@wrong("clip-raises-on-overflow", "error_if_nonfinite raises on a normal overflow", raises="non-finite")
def clipping_raises_on_an_overflow(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu")
    with watch(net, opt, scaler):
        for x, y in regression(large=(0,)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            clip_grad_norm_(net.parameters(), 1.0, error_if_nonfinite=True)
            scaler.step(opt)
            scaler.update()
