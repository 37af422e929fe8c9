"""Clipping, accumulation, penalties, and other uses of gradients before the step."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from tests.watching.loops.collection import right
from tests.watching.loops.data import labelled, regression

SECTION = "Gradients"


@right("clipped by norm, though some are infinite")
def clipped_by_norm(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=2.0**6)
    with watch(net, opt, scaler):
        for x, y in regression(10, large=(1, 6)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()


@right("clipped by value")
def clipped_by_value(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            clip_grad_value_(net.parameters(), 0.1)
            scaler.step(opt)
            scaler.update()


@right("clipped before unscale_, with the limit multiplied by the scale")
def clipped_with_a_scaled_limit(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            clip_grad_norm_(net.parameters(), 1.0 * scaler.get_scale())
            scaler.step(opt)
            scaler.update()


@right("clipped by our own code, after unscale_")
def clipped_by_own_code(watch):
    def clip(parameters, limit):
        grads = [p.grad for p in parameters if p.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
        for g in grads:
            g.mul_(torch.clamp(limit / (norm + 1e-6), max=1.0))
        return norm

    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.Adam(net.parameters())
    scaler = GradScaler("cpu", init_scale=2.0**10)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            clip(net.parameters(), 0.5)
            scaler.step(opt)
            scaler.update()


@right("each layer clipped on its own")
def clipped_layer_by_layer(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.Adam(net.parameters())
    scaler = GradScaler("cpu", init_scale=2.0**10)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            for layer in (net[0], net[2]):
                clip_grad_norm_(layer.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()


@right("gradients logged after unscale_, with hooks that read and clamp nothing")
def logged_after_unscaling(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.Adam(net.parameters())
    scaler = GradScaler("cpu", init_scale=2.0**10)
    log = []
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            log.append({name: p.grad.norm().item() for name, p in net.named_parameters()})
            log.append(torch.nn.utils.get_total_norm([p.grad for p in net.parameters()]).item())
            scaler.step(opt)
            scaler.update()


@right("gradients logged before unscale_, divided by the scale")
def logged_divided_by_the_scale(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.Adam(net.parameters())
    scaler = GradScaler("cpu", init_scale=2.0**10)
    log = []
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            log.append((net.weight.grad / scaler.get_scale()).norm().item())
            scaler.step(opt)
            scaler.update()


@right("hooks of modules: outputs and gradients of layers are looked at in BF16")
def hooks(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    sizes = []
    net[0].register_forward_hook(lambda module, args, out: sizes.append(out.abs().max().item()))
    net[2].register_full_backward_hook(lambda module, into, out: sizes.append(out[0].abs().max().item()))
    net[0].weight.register_hook(lambda grad: grad * 0.5)
    opt = torch.optim.Adam(net.parameters())
    with watch(net, opt):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(net(x), y)
            loss.backward()
            opt.step()


@right("accumulation with a last window that is shorter, each divided by its own number")
def accumulated_with_a_short_window(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    data, window = regression(10), 4
    with watch(net, opt, scaler):
        for _ in range(2):
            for i, (x, y) in enumerate(data):
                whole = len(data) - len(data) % window
                size = window if i < whole else len(data) % window
                with autocast("cpu", dtype=torch.float16):
                    loss = F.mse_loss(net(x), y) / size
                scaler.scale(loss).backward()
                if (i + 1) % window == 0 or i + 1 == len(data):
                    scaler.unscale_(opt)
                    clip_grad_norm_(net.parameters(), 1.0)
                    scaler.step(opt)
                    scaler.update()
                    opt.zero_grad()


@right("accumulation, divided by multiplying")
def accumulated_by_multiplying(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    with watch(net, opt, scaler):
        for x, labels in labelled(3, size=16):
            opt.zero_grad()
            for part, targets in zip(x.chunk(4), labels.chunk(4), strict=True):
                with autocast("cpu", dtype=torch.float16):
                    loss = F.cross_entropy(net(part), targets)
                scaler.scale(loss * 0.25).backward()
            scaler.step(opt)
            scaler.update()


@right("accumulation in FP32: sums, divided once by the number of samples")
def accumulated_as_a_sum(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    with watch(net, opt):
        for x, labels in labelled(4, size=16):
            opt.zero_grad()
            for part, targets in zip(x.split([7, 5, 4]), labels.split([7, 5, 4]), strict=True):
                loss = F.cross_entropy(net(part), targets, reduction="sum") / len(x)
                loss.backward()
            opt.step()


@right("accumulation weighted by the number of tokens")
def accumulated_by_tokens(watch):
    vocabulary = 11
    net = nn.Sequential(nn.Embedding(vocabulary, 8), nn.Linear(8, vocabulary))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for lengths in ([16, 2, 9], [4, 12, 3], [7, 5, 8]):
            total = 2 * sum(lengths)
            for length in lengths:
                tokens = torch.randint(0, vocabulary, (2, length + 1))
                with autocast("cpu", dtype=torch.float16):
                    logits = net(tokens[:, :-1])
                    summed = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum")
                    loss = summed / total
                scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad(set_to_none=True)


@right("summed loss, gradients divided by the number of samples after unscale_")
def divided_after_unscaling(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels, reduction="sum")
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            for p in net.parameters():
                p.grad /= len(x)
            scaler.step(opt)
            scaler.update()


@right("accumulation with an overflow in the middle of a window")
def accumulated_over_an_overflow(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=2.0**6)
    with watch(net, opt, scaler):
        for i, (x, y) in enumerate(regression(12, large=(5,))):
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y) / 4
            scaler.scale(loss).backward()
            if i % 4 == 3:
                scaler.step(opt)
                scaler.update()
                opt.zero_grad()


@right("gradient penalty, with gradients divided by the scale")
def gradient_penalty(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaled = torch.autograd.grad(scaler.scale(loss), list(net.parameters()), create_graph=True)
            inverse = 1.0 / scaler.get_scale()
            grads = [g * inverse for g in scaled]
            with autocast("cpu", dtype=torch.float16):
                norm = sum(g.pow(2).sum() for g in grads).sqrt()
                loss = loss + 0.1 * norm
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("two losses with retain_graph, both scaled")
def two_losses(watch):
    body, first, second = nn.Linear(6, 8), nn.Linear(8, 1), nn.Linear(8, 1)
    net = nn.ModuleList([body, first, second])
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch([body, first, second], opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                h = torch.relu(body(x))
                one, other = F.mse_loss(first(h), y), F.l1_loss(second(h), -y)
            scaler.scale(one).backward(retain_graph=True)
            scaler.scale(other).backward()
            scaler.step(opt)
            scaler.update()


@right("many tasks, weighted by uncertainty")
def many_tasks(watch):
    class MultiTask(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(6, 8)
            self.heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(3))
            self.log_var = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            h = torch.relu(self.body(x))
            return [head(h) for head in self.heads]

    net = MultiTask()
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression(outputs=3):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                outputs = net(x)
                losses = torch.stack([F.mse_loss(o, y[:, i : i + 1]) for i, o in enumerate(outputs)])
                loss = (torch.exp(-net.log_var) * losses + net.log_var).sum()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("frozen backbone, and later all of it")
def unfrozen_later(watch):
    backbone, head = nn.Linear(6, 8), nn.Linear(8, 3)
    model = nn.Sequential(backbone, nn.ReLU(), head)
    backbone.requires_grad_(False)
    opt = torch.optim.AdamW(head.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(model, opt, scaler):
        for epoch in range(3):
            if epoch == 1:
                backbone.requires_grad_(True)
                opt.add_param_group({"params": backbone.parameters(), "lr": 1e-4})
            if epoch == 2:
                head.requires_grad_(False)
            for x, labels in labelled(3):
                opt.zero_grad()
                with autocast("cpu", dtype=torch.float16):
                    loss = F.cross_entropy(model(x), labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()


@right("SAM: two forward and backward passes in each step, FP32")
def sharpness_aware(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with watch(net, opt):
        for x, labels in labelled():
            opt.zero_grad()
            F.cross_entropy(net(x), labels).backward()
            with torch.no_grad():
                norm = torch.stack([p.grad.norm() for p in net.parameters()]).norm()
                pushes = [0.05 * p.grad / (norm + 1e-12) for p in net.parameters()]
                for p, push in zip(net.parameters(), pushes, strict=True):
                    p.add_(push)
            opt.zero_grad()
            F.cross_entropy(net(x), labels).backward()
            with torch.no_grad():
                for p, push in zip(net.parameters(), pushes, strict=True):
                    p.sub_(push)
            opt.step()


@right("a bad batch is left out before its backward pass")
def bad_batch_left_out(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)
    data = regression(8)
    data[3][0][0, 0] = float("nan")
    with watch(net, opt, scaler):
        for x, y in data:
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            if not torch.isfinite(loss):
                continue
            opt.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("a large batch is left out after unscale_, with update() and zero_grad")
def large_batch_left_out(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=4.0)
    with watch(net, opt, scaler):
        for x, y in regression(8, large=(3,)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            if clip_grad_norm_(net.parameters(), 5.0) > 100:
                scaler.update()
                continue
            scaler.step(opt)
            scaler.update()


@right("gradient noise and centralised gradients, after unscale_")
def noise_after_unscaling(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            for p in net.parameters():
                p.grad.add_(torch.randn_like(p.grad), alpha=1e-3)
                if p.grad.dim() > 1:
                    p.grad.sub_(p.grad.mean(dim=1, keepdim=True))
            scaler.step(opt)
            scaler.update()
