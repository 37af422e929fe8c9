"""Where an autocast region begins and ends, and what leaves it."""

import threading

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import labelled, regression

SECTION = "Autocast region"


@wrong("island-without-cast", "autocast(enabled=False) without .float()", raises="same dtype")
def island_without_float(watch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 4), nn.Linear(4, 1)

        def forward(self, x):
            h = torch.relu(self.body(x))
            with autocast("cpu", enabled=False):
                return self.head(h)

    net = Net()
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


@wrong("output-outside-region", "what a region made is used outside it", raises="same dtype")
def features_used_outside(watch):
    backbone, head = nn.Linear(6, 4), nn.Linear(4, 1)
    opt = torch.optim.SGD([*backbone.parameters(), *head.parameters()], lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch([backbone, head], opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                features = backbone(x)
            out = head(features)
            loss = F.mse_loss(out, y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong("in-place-in-region", "addmm_ in a region: in-place operators are not autocast", raises="dtype")
def addmm_in_place(watch):
    net = nn.Linear(6, 4)
    side = nn.Parameter(torch.randn(6, 4))
    opt = torch.optim.SGD([*net.parameters(), side], lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, _ in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = net(x).addmm_(x, side).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong("input-dtype", "FP64 inputs in the region", raises="Double")
def float64_inputs(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            x = x.double()
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@wrong("other-half-in-region", "an FP16 tensor in a BF16 region", raises="prioritize")
def other_half_in_the_region(watch):
    net = nn.Linear(12, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, opt):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.bfloat16):
                both = torch.cat([x.half(), x.abs()], dim=-1)
                loss = F.mse_loss(net(both), y)
            loss.backward()
            opt.step()


@wrong(
    "region-over-steps",
    "one region over the whole loop: old weights are used",
    shows=lambda losses: len(set(losses)) == 1,
)
def one_region_over_the_loop(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=256.0)
    x, y = regression(1)[0]
    losses = []
    with watch(net, opt, scaler), autocast("cpu", dtype=torch.float16):
        for _ in range(4):
            opt.zero_grad()
            loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            losses.append(loss.item())
    return losses


@wrong("region-over-steps", "the function that trains an epoch is decorated with autocast, BF16")
def decorated_epoch(watch):
    class Trainer:
        def __init__(self):
            self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

        @autocast("cpu", dtype=torch.bfloat16)
        def epoch(self, data):
            for x, labels in data:
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(x), labels)
                loss.backward()
                self.optimizer.step()

    trainer = Trainer()
    with watch(trainer.model, trainer.optimizer):
        for _ in range(2):
            trainer.epoch(labelled())


@wrong("custom-function-dtype", "a custom autograd.Function without custom_fwd", raises="dtype")
def custom_function_without_decorators(watch):
    class MatMul(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, w):
            ctx.save_for_backward(x, w)
            return x @ w

        @staticmethod
        def backward(ctx, g):
            x, w = ctx.saved_tensors
            return g @ w.t(), x.t() @ g

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 1))

        def forward(self, x):
            return MatMul.apply(x, self.weight)

    net = Net()
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


@wrong(
    "forward-in-thread",
    "the forward pass runs in a thread, where autocast is off",
    shows=lambda dtype: dtype == torch.float32,
)
def forward_in_a_thread(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    outputs = []
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                worker = threading.Thread(target=lambda x=x: outputs.append(net(x)))
                worker.start()
                worker.join()
                loss = F.mse_loss(outputs[-1], y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return outputs[0].dtype


@wrong("wrong-device-type", "autocast('cuda') on CPU tensors", shows=lambda dtype: dtype == torch.float32)
def region_of_another_device(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, opt):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cuda", dtype=torch.bfloat16):
                out = net(x)
                loss = F.cross_entropy(out, labels)
            loss.backward()
            opt.step()
    return out.dtype


@wrong("wrong-device-type", "the old names of torch.cuda.amp on a CPU")
def old_names(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    with watch(net, opt):
        for x, labels in labelled():
            opt.zero_grad()
            with torch.cuda.amp.autocast():
                loss = F.cross_entropy(net(x), labels)
            loss.backward()
            opt.step()


@wrong("scaler-unused", "is_autocast_enabled() without argument asks for CUDA", shows=lambda used: used == 0)
def asks_for_the_wrong_device(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=1024.0)
    used = 0
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
                amp = torch.is_autocast_enabled()
            if amp:
                used += 1
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()
            else:
                loss.backward()
                opt.step()
    return used


@wrong("backward-in-region", "backward inside the region, with an FP32 island", shows=lambda lost: lost > 0)
def backward_inside_with_an_island(watch):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 8)

        def forward(self, x):
            h = torch.relu(self.body(x))
            with autocast("cpu", enabled=False):
                return self.head(h.float())

    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=2.0**16)
    with watch(net, opt, scaler):
        for x, _ in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                out = net(x)
                loss = 20 * out.pow(2).mean()
                scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
    return 16 - torch.tensor(scaler.get_scale()).log2().item()
