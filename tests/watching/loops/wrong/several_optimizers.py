"""Two optimizers and one scaler."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import regression

SECTION = "Call order of GradScaler"


@wrong("update-between-optimizers", "two optimizers, update() between their steps")
def updated_between_two_steps(watch):
    first, second = nn.Linear(6, 1), nn.Linear(6, 1)
    opt_a = torch.optim.SGD(first.parameters(), lr=0.1)
    opt_b = torch.optim.SGD(second.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch([first, second], [opt_a, opt_b], scaler):
        for x, y in regression():
            opt_a.zero_grad()
            opt_b.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss_a = F.mse_loss(first(x), y)
                loss_b = F.mse_loss(second(x), -y)
            scaler.scale(loss_a).backward()
            scaler.scale(loss_b).backward()
            scaler.step(opt_a)
            scaler.update()
            scaler.step(opt_b)
            scaler.update()


@wrong(
    "update-between-optimizers",
    "two optimizers, update() between their steps, and the scale grows there",
    shows=lambda scales: scales[0] == 2 * scales[1],
)
def updated_between_two_steps_while_the_scale_grows(watch):
    generator, discriminator = nn.Linear(2, 6), nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 1))
    opt_g = torch.optim.Adam(generator.parameters(), lr=1e-3)
    opt_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=256.0, growth_interval=1)
    seen = watch([generator, discriminator], [opt_g, opt_d], scaler)
    seen.start()
    for x, y in regression(3):
        opt_g.zero_grad()
        opt_d.zero_grad()
        with autocast("cpu", dtype=torch.float16):
            loss_g = discriminator(generator(x[:, :2])).mean()
            loss_d = F.mse_loss(discriminator(x), y)
        scaler.scale(loss_g + loss_d).backward()
        scaled_with = scaler.get_scale()
        scaler.step(opt_g)
        scaler.update()
        unscaled_with = scaler.get_scale()
        scaler.step(opt_d)
        scaler.update()
    seen.stop()
    return unscaled_with, scaled_with


@wrong("one-optimizer-overflows", "two optimizers, one overflows again and again, the other steps")
def one_of_two_skipped(watch):
    first, second = nn.Linear(6, 1), nn.Linear(6, 1)
    opt_a = torch.optim.Adam(first.parameters(), lr=0.1)
    opt_b = torch.optim.Adam(second.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=2.0**12)
    with watch([first, second], [opt_a, opt_b], scaler):
        for x, y in regression(16, large=tuple(range(16))):
            opt_a.zero_grad()
            opt_b.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss_a = F.mse_loss(first(x), y)
                loss_b = F.mse_loss(second(x), torch.tanh(y))
            scaler.scale(loss_a).backward()
            scaler.scale(loss_b).backward()
            scaler.step(opt_a)
            scaler.step(opt_b)
            scaler.update()


@wrong("optimizer-step-instead", "two optimizers, one steps past the scaler")
def one_of_two_steps_raw(watch):
    first, second = nn.Linear(6, 1), nn.Linear(6, 1)
    opt_a = torch.optim.Adam(first.parameters(), lr=0.1)
    opt_b = torch.optim.Adam(second.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch([first, second], [opt_a, opt_b], scaler):
        for x, y in regression():
            opt_a.zero_grad()
            opt_b.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(first(x) + second(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt_a)
            opt_b.step()
            scaler.update()


@wrong("optimizer-never-stepped", "two optimizers, one is never asked to step")
def one_of_two_never_steps(watch):
    first, second = nn.Linear(6, 8), nn.Linear(8, 1)
    opt_a = torch.optim.Adam(first.parameters(), lr=0.1)
    opt_b = torch.optim.Adam(second.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch([first, second], [opt_a, opt_b], scaler):
        for x, y in regression():
            opt_a.zero_grad()
            opt_b.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(second(torch.relu(first(x))), y)
            scaler.scale(loss).backward()
            scaler.step(opt_a)
            scaler.update()
