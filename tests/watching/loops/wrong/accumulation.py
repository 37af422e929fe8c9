"""Gradients of several micro-batches are added up wrongly."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import labelled, regression

SECTION = "Scale life cycle"


@wrong("not-divided", "accumulation: the loss is not divided by the number of micro-batches")
def accumulated_without_dividing(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        opt.zero_grad()
        for i, (x, y) in enumerate(regression(8), start=1):
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            if i % 4 == 0:
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()


@wrong("last-window-short", "accumulation: the last two micro-batches are divided by four")
def last_window_divided_by_too_much(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)
    data = regression(10)
    with watch(net, opt, scaler):
        for i, (x, y) in enumerate(data):
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y) / 4
            scaler.scale(loss).backward()
            if (i + 1) % 4 == 0 or i + 1 == len(data):
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()


@wrong(
    "window-left-over",
    "accumulation: two micro-batches are left over in each epoch, and go into the next one",
)
def window_left_over_at_the_end_of_the_epoch(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)
    data = regression(6)
    with watch(net, opt, scaler):
        for _ in range(3):
            for i, (x, y) in enumerate(data):
                with autocast("cpu", dtype=torch.float16):
                    loss = F.mse_loss(net(x), y) / 4
                scaler.scale(loss).backward()
                if (i + 1) % 4 == 0:
                    scaler.step(opt)
                    scaler.update()
                    opt.zero_grad()


@wrong("unequal-micro-batches", "accumulation: means over unequal numbers of tokens are averaged")
def tokens_counted_unequally(watch):
    vocabulary = 11
    net = nn.Sequential(nn.Embedding(vocabulary, 8), nn.Linear(8, vocabulary))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    lengths = [16, 2, 9, 4, 12, 3, 7, 5]
    with watch(net, opt, scaler):
        for i, length in enumerate(lengths):
            tokens = torch.randint(0, vocabulary, (2, length + 1))
            with autocast("cpu", dtype=torch.float16):
                logits = net(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()) / 4
            scaler.scale(loss).backward()
            if (i + 1) % 4 == 0:
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()


@wrong(
    "update-each-micro-batch",
    "accumulation: update() after each micro-batch mixes scales",
    raises="No inf checks",
)
def updated_in_every_micro_batch(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for i, (x, y) in enumerate(regression(8)):
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y) / 4
            scaler.scale(loss).backward()
            if (i + 1) % 4 == 0:
                scaler.step(opt)
                opt.zero_grad()
            scaler.update()


@wrong(
    "update-each-micro-batch",
    "accumulation: unscale_ and update() in each micro-batch, stepping in the fourth",
)
def unscaled_and_updated_in_every_micro_batch(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for i, (x, y) in enumerate(regression(8)):
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y) / 4
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            if (i + 1) % 4 == 0:
                scaler.step(opt)
                opt.zero_grad()
            scaler.update()


@wrong(
    "zero-grad-each-micro-batch",
    "accumulation: zero_grad in each micro-batch, so that only the last one counts",
)
def only_the_last_micro_batch_counts(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.Adam(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for i, (x, labels) in enumerate(labelled(8)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels) / 4
            scaler.scale(loss).backward()
            if (i + 1) % 4 == 0:
                scaler.step(opt)
                scaler.update()


@wrong(
    "backward-after-unscale",
    "accumulation goes on after unscale_: scaled gradients are added to unscaled ones",
)
def accumulated_after_unscaling(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)
    data = labelled(8)
    with watch(net, opt, scaler):
        for (x1, labels1), (x2, labels2) in zip(data[::2], data[1::2], strict=True):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x1), labels1) / 2
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x2), labels2) / 2
            scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
