"""What is saved, and what comes back."""

import io

import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast

from tests.watching.loops.collection import wrong
from tests.watching.loops.data import regression

SECTION = "Scale life cycle"


def _one_step(net, opt, scaler, x, y):
    opt.zero_grad()
    with autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(net(x), y)
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()


@wrong("scaler-not-saved", "the scaler is not saved")
def saved_without_the_scaler(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        for x, y in regression():
            _one_step(net, opt, scaler, x, y)
        torch.save({"model": net.state_dict(), "optimizer": opt.state_dict(), "epoch": 1}, io.BytesIO())


@wrong(
    "scaler-not-restored",
    "the scaler is not restored: it starts at 65,536 again",
    shows=lambda scale: scale >= 2.0**15,
)
def resumed_without_the_scaler(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    for x, y in regression():
        _one_step(net, opt, scaler, x, y)
    file = io.BytesIO()
    torch.save(
        {"model": net.state_dict(), "optimizer": opt.state_dict(), "scaler": scaler.state_dict()}, file
    )
    file.seek(0)

    net = nn.Linear(6, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu")
    with watch(net, opt, scaler):
        saved = torch.load(file)
        net.load_state_dict(saved["model"])
        opt.load_state_dict(saved["optimizer"])
        for x, y in regression():
            _one_step(net, opt, scaler, x, y)
    return scaler.get_scale()


@wrong(
    "load-empty-scaler", "the empty state of a disabled scaler is loaded", raises="source state dict is empty"
)
def loaded_from_a_disabled_scaler(watch):
    saved = {"scaler": GradScaler("cpu", enabled=False).state_dict()}
    net = nn.Linear(6, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu")
    with watch(net, opt, scaler):
        scaler.load_state_dict(saved["scaler"])
        for x, y in regression():
            _one_step(net, opt, scaler, x, y)


@wrong(
    "load-ignored",
    "a state is loaded into a disabled scaler, which ignores it",
    shows=lambda scale: scale == 1.0,
)
def loaded_into_a_disabled_scaler(watch):
    saved = {"scaler": GradScaler("cpu", init_scale=1024.0).state_dict()}
    net = nn.Linear(6, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", enabled=False)
    with watch(net, opt, scaler):
        scaler.load_state_dict(saved["scaler"])
        for x, y in regression():
            _one_step(net, opt, scaler, x, y)
    return scaler.get_scale()


@wrong(
    "checkpoint-in-half",
    "the checkpoint is saved in half precision",
    shows=lambda saved: saved == [1.0, 0.0, float("inf")],
)
def saved_in_half(watch):
    net = nn.Linear(3, 1, bias=False)
    opt = torch.optim.SGD(net.parameters(), lr=1e-12)
    scaler = GradScaler("cpu", init_scale=1.0)
    with watch(net, opt, scaler):
        for x, y in regression(3, inputs=3):
            _one_step(net, opt, scaler, x, y)
        with torch.no_grad():
            net.weight.copy_(torch.tensor([[1.0, 1e-8, 70000.0]]))
        small = {name: weight.half() for name, weight in net.state_dict().items()}
        torch.save(
            {"model": small, "optimizer": opt.state_dict(), "scaler": scaler.state_dict()}, io.BytesIO()
        )
    return small["weight"][0].tolist()


@wrong("state-before-update", "the scaler's state is taken before update()")
def saved_in_the_middle_of_a_step(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = GradScaler("cpu", init_scale=2.0**6)
    with watch(net, opt, scaler):
        for i, (x, y) in enumerate(regression(large=(3,))):
            opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(net(x), y)
            scaler.scale(loss).backward()
            scaler.step(opt)
            if i == 3:
                state = {"model": net.state_dict(), "opt": opt.state_dict(), "scaler": scaler.state_dict()}
                torch.save(state, io.BytesIO())
            scaler.update()


@wrong("restored-late", "the scaler is restored after the first step")
def restored_after_the_first_step(watch):
    net = nn.Linear(6, 1)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    saved = {
        "model": net.state_dict(),
        "opt": opt.state_dict(),
        "scaler": GradScaler("cpu", init_scale=2.0**6).state_dict(),
    }
    scaler = GradScaler("cpu")
    with watch(net, opt, scaler):
        net.load_state_dict(saved["model"])
        opt.load_state_dict(saved["opt"])
        for i, (x, y) in enumerate(regression()):
            _one_step(net, opt, scaler, x, y)
            if i == 0:
                scaler.load_state_dict(saved["scaler"])


@wrong("keys-not-loaded", "strict=False: the keys of a compiled model do not fit, and nothing is loaded")
def nothing_fits_the_model(watch):
    net = nn.Linear(6, 1)
    saved = {f"_orig_mod.{name}": torch.zeros_like(weight) for name, weight in net.state_dict().items()}
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    scaler = GradScaler("cpu", init_scale=1024.0)
    with watch(net, opt, scaler):
        net.load_state_dict(saved, strict=False)
        for x, y in regression():
            _one_step(net, opt, scaler, x, y)
