"""Plain loops: every optimizer, precision and way to write the four calls."""

import contextlib

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from amp_lab.scaling import DynamicLossScaler, StaticLossScaler
from tests.watching.loops.collection import right
from tests.watching.loops.data import labelled, regression

SECTION = "Plain loops"


@right("the loop of PyTorch's documentation")
def as_documented(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.001)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for _ in range(2):
            for input, target in labelled():
                opt.zero_grad()
                with torch.autocast(device_type="cpu", dtype=torch.float16):
                    output = net(input)
                    loss = F.cross_entropy(output, target)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()


@right("the first steps are skipped at 2^16")
def warm_up_skips(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu")
    with watch(net, opt, scaler):
        for x, y in regression(20):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), 30 + 10 * y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("now and then an overflow, and a scale that grows")
def grows_and_falls(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-6)
    scaler = GradScaler("cpu", init_scale=8.0, growth_interval=5)
    with watch(net, opt, scaler):
        for x, y in regression(40, large=(13, 30)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("BF16 without a scaler")
def bfloat16(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    opt = torch.optim.AdamW(net.parameters())
    with watch(net, opt):
        for x, labels in labelled():
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(net(x), labels)
            opt.zero_grad()
            loss.backward()
            opt.step()


@right("FP32, zero_grad at the end")
def float32(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    with watch(net, opt):
        for x, labels in labelled():
            loss = F.cross_entropy(net(x), labels)
            loss.backward()
            opt.step()
            opt.zero_grad()


@right("enabled=False everywhere")
def switched_off(watch):
    use_amp = False
    net = nn.Linear(6, 3)
    opt = torch.optim.Adam(net.parameters())
    scaler = GradScaler("cpu", enabled=use_amp)
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16, enabled=use_amp):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()


@right("one switch for BF16 and FP16: the scaler is on in FP16 only")
def one_switch(watch):
    for dtype in (torch.float16, torch.bfloat16):
        net = nn.Linear(6, 3)
        opt = torch.optim.Adam(net.parameters())
        scaler = GradScaler("cpu", init_scale=512.0, enabled=dtype == torch.float16)
        with watch(net, opt, scaler):
            for x, labels in labelled():
                opt.zero_grad(set_to_none=True)
                with autocast("cpu", dtype=dtype):
                    loss = F.cross_entropy(net(x), labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()


@right("no region at all in FP32 mode: nullcontext")
def null_context(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.Adam(net.parameters())
    region = contextlib.nullcontext()
    with watch(net, opt):
        for x, labels in labelled():
            opt.zero_grad()
            with region:
                loss = F.cross_entropy(net(x), labels)
            loss.backward()
            opt.step()


@right("fused AdamW, with overflows")
def fused(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    scaler = GradScaler("cpu", init_scale=2.0**8)
    with watch(net, opt, scaler):
        for x, y in regression(12, large=(3, 4)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("fused SGD, clipped by norm")
def fused_and_clipped(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2, fused=True)
    scaler = GradScaler("cpu", init_scale=2.0**10)
    with watch(net, opt, scaler):
        for x, y in regression(8):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0, foreach=True)
            scaler.step(opt)
            scaler.update()


@right("foreach optimizers of many kinds, in FP16")
def foreach_of_many_kinds(watch):
    kinds = (
        torch.optim.RMSprop,
        torch.optim.Adagrad,
        torch.optim.NAdam,
        torch.optim.Adamax,
        torch.optim.RAdam,
    )
    for kind in kinds:
        net = nn.Linear(6, 3)
        opt = kind(net.parameters(), lr=1e-3, foreach=True)
        scaler = GradScaler("cpu", init_scale=1024.0)
        with watch(net, opt, scaler):
            for x, labels in labelled(3):
                opt.zero_grad()
                with autocast("cpu", dtype=torch.float16):
                    loss = F.cross_entropy(net(x), labels)
                scaler.scale(loss).backward()
                scaler.step(opt)
                scaler.update()


@right("a learning rate that is a tensor, as capturable optimizers have")
def rate_in_a_tensor(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.Adam(net.parameters(), lr=torch.tensor(1e-3), foreach=False)
    with watch(net, opt):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(net(x), labels)
            loss.backward()
            opt.step()


@right("sparse gradients")
def sparse(watch):
    net = nn.EmbeddingBag(20, 3, sparse=True, mode="sum")
    opt = torch.optim.SparseAdam(net.parameters(), lr=1e-3)
    with watch(net, opt):
        for _ in range(6):
            opt.zero_grad()
            loss = F.cross_entropy(net(torch.randint(0, 20, (8, 4))), torch.randint(0, 3, (8,)))
            loss.backward()
            opt.step()


@right("LBFGS with a closure in FP32")
def lbfgs(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.LBFGS(net.parameters(), max_iter=5, line_search_fn="strong_wolfe")
    x, y = regression(1, size=32)[0]

    def closure():
        opt.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        return loss

    with watch(net, opt):
        for _ in range(4):
            opt.step(closure)


@right("our own dynamic scaler")
def own_scaler(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    scaler = DynamicLossScaler(init_scale=2.0**6, growth_interval=4)
    with watch(net, opt, scaler):
        for x, y in regression(14, large=(4,)):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()


@right("our own static scaler, unscaled and clipped")
def own_static_scaler(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = StaticLossScaler(512.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.unscale_(opt)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()


@right("static scaling by hand, in FP16: scaled, divided, checked, stepped")
def scaled_by_hand(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    loss_scale = 256.0
    with watch(net, opt):
        for x, y in regression():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            (loss * loss_scale).backward()
            for p in net.parameters():
                p.grad.div_(loss_scale)
            if all(p.grad.isfinite().all() for p in net.parameters()):
                opt.step()


@right("zeroed by p.grad = None, and by hand")
def zeroed_by_hand(watch):
    net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
    opt = torch.optim.SGD(net.parameters(), lr=1e-2)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for number, (x, y) in enumerate(regression(10)):
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
            for p in net.parameters():
                if number % 2:
                    p.grad = None
                else:
                    p.grad.zero_()


@right("model.zero_grad() for two models with one optimizer")
def zeroed_by_the_model(watch):
    encoder, decoder = nn.Linear(6, 4), nn.Linear(4, 6)
    opt = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    with watch([encoder, decoder], opt):
        for x, _ in regression():
            encoder.zero_grad()
            decoder.zero_grad()
            with autocast("cpu", dtype=torch.bfloat16):
                loss = F.mse_loss(decoder(encoder(x)), x)
            loss.backward()
            opt.step()


@right("start and stop, with a report in the middle")
def started_and_stopped(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.AdamW(net.parameters())
    scaler = GradScaler("cpu", init_scale=1024.0)
    seen = watch(net, opt, scaler)
    seen.start()
    for step, (x, labels) in enumerate(labelled(8)):
        opt.zero_grad()
        with autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(net(x), labels)
        scaler.scale(loss).backward()
        if step == 4 and hasattr(seen, "report"):
            assert not list(seen.report().all)
        scaler.step(opt)
        scaler.update()
    seen.stop()


@right("a decorated function that trains on one batch")
def decorated(watch):
    net = nn.Linear(6, 3)
    opt = torch.optim.AdamW(net.parameters())
    scaler = GradScaler("cpu", init_scale=1024.0)

    @watch(net, opt, scaler)
    def train(x, labels):
        with autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(net(x), labels)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        return loss.item()

    losses = [train(x, labels) for x, labels in labelled()]
    assert len(losses) == 6


@right("FP32 weights with a frozen FP16 base and adapters in FP32")
def adapters(watch):
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(6, 3).half().requires_grad_(False)
            self.down, self.up = nn.Linear(6, 2), nn.Linear(2, 3)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    net = Adapted()
    opt = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, labels in labelled():
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.cross_entropy(net(x), labels)
            scaler.scale(loss).backward()
            scaler.step(opt)
            scaler.update()
