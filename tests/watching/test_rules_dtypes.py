"""Weights, losses and scalers in 16 bits: mistakes in other clothes than the docstrings', and loops that look like one.

A loop is a function of `Bench`, as in test_rules_regions.py.
"""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import amp_lab
from amp_lab.scaling import DynamicLossScaler
from amp_lab.watching.recording.events import Noticed
from amp_lab.watching.recording.later import Later
from amp_lab.watching.rules import RULES, Severity
from tests.watching.autocast_state import reset_autocast
from tests.watching.test_rules_regions import BF16, FP16, Bench, ids, network, report_of, usual

ADAM = {"kind": torch.optim.AdamW, "settings": {"lr": 0.001}}


@pytest.fixture(autouse=True)
def autocast_as_it_was():
    yield
    reset_autocast()


def in_half(bench):
    """Without a region: inputs in the dtype of the weights, the loss in FP32."""
    dtype = next(bench.model.parameters()).dtype
    for x, y in bench.batches:
        bench.update(F.mse_loss(bench.model(x.to(dtype)).float(), y))


# Weights


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "NAdam", "RMSprop", "Adagrad", "Adamax", "RAdam"])
def test_an_eps_that_is_zero(kind):
    bench = Bench(network().half(), getattr(torch.optim, kind), {"lr": 0.001}, scale=None)
    report = report_of(in_half, bench)
    assert ids(report) == ["optimizer-eps-is-zero"]
    assert f"{bench.optimizer.defaults['eps']:g} is 0 in FP16" in report["optimizer-eps-is-zero"].sentence


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "NAdam", "RMSprop", "Adagrad", "Adamax"])
def test_a_gradient_of_zero_over_an_eps_of_zero(kind):
    """What the sentence says, tried."""
    weight = torch.ones(1, dtype=FP16, requires_grad=True)
    weight.grad = torch.zeros_like(weight)
    getattr(torch.optim, kind)([weight], lr=0.001).step()
    assert weight.isnan().all()


def test_an_eps_that_was_made_larger_leaves_the_weights_fp16():
    bench = Bench(network().half(), torch.optim.AdamW, {"lr": 0.001, "eps": 1e-4}, scale=None)
    report = report_of(in_half, bench)
    assert ids(report) == ["fp16-weights"]
    diagnosis = report["fp16-weights"]
    assert diagnosis.severity is Severity.RISK
    assert "averages are FP16, too" in diagnosis.sentence


@pytest.mark.parametrize("settings", [{}, ADAM])
def test_fp16_weights_and_a_scaler(settings):
    """PyTorch refuses to unscale, before anything is divided by eps."""
    report = report_of(usual, Bench(network().half(), **settings))
    assert ids(report) == ["fp16-weights"]
    assert report["fp16-weights"].severity is Severity.WRONG
    assert "refused to unscale" in report["fp16-weights"].sentence


def test_a_part_of_the_weights():
    model = network()
    model[2].half()

    def loop(bench):
        for x, y in bench.batches:
            with torch.autocast("cpu", FP16):
                loss = F.mse_loss(bench.model(x), y)
            bench.update(loss)

    report = report_of(loop, Bench(model))
    assert ids(report) == ["fp16-weights"]
    assert "in part FP16" in report["fp16-weights"].sentence


@pytest.mark.parametrize("scale", [None, 1024.0])
def test_bf16_weights(scale):
    """With a scaler, too: it is pointless, and follows from the weights."""
    report = report_of(in_half, Bench(network().bfloat16(), **ADAM, scale=scale))
    assert ids(report) == ["bf16-weights"]
    assert "averages are BF16, too" in report["bf16-weights"].sentence


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_updates_that_are_lost(dtype):
    """The number in the sentence: half of the distance between 1 and the next number."""
    smallest = torch.finfo(dtype).eps / 2
    one = torch.ones((), dtype=dtype)
    assert one + 0.99 * smallest == one
    assert one + 1.01 * smallest > one


def test_cast_in_the_middle_and_refused_by_the_scaler():
    def loop(bench):
        usual(bench)
        bench.model.half()
        usual(bench)

    report = report_of(loop)
    assert ids(report) == ["model-cast-midway"]
    assert "FP32 up to step 4 and FP16 from step 5 on" in report["model-cast-midway"].sentence
    assert "Attempting to unscale FP16 gradients" in report["model-cast-midway"].sentence


def test_cast_in_the_middle_and_refused_by_adam():
    def loop(bench):
        usual_bf16(bench)
        bench.model.bfloat16()
        usual_bf16(bench)

    assert ids(report_of(loop, Bench(**ADAM, scale=None))) == ["model-cast-midway"]


def usual_bf16(bench):
    for x, y in bench.batches:
        with torch.autocast("cpu", BF16):
            loss = F.mse_loss(bench.model(x), y)
        bench.update(loss)


# Scalers


def test_the_default_on_a_cpu_is_bf16():
    def loop(bench):
        for x, y in bench.batches:
            with torch.autocast("cpu"):
                loss = F.mse_loss(bench.model(x), y)
            bench.update(loss)

    report = report_of(loop)
    assert ids(report) == ["scaler-with-bf16"]
    assert report["scaler-with-bf16"].severity is Severity.NOTE
    assert "(its default on a CPU)" in report["scaler-with-bf16"].sentence
    assert "(its default on a CPU)" not in report_of(usual_bf16)["scaler-with-bf16"].sentence


def test_a_scaler_that_is_switched_off_beside_fp16():
    bench = Bench()
    bench.scaler = torch.amp.GradScaler("cpu", enabled=False)
    report = report_of(usual, bench)
    assert ids(report) == ["fp16-without-scaler"]
    assert "(the scaler is switched off)" in report["fp16-without-scaler"].sentence


def test_a_decorated_forward_pass_without_scaler():
    def loop(bench):
        forward = torch.autocast("cpu", FP16)(bench.model)
        for x, y in bench.batches:
            bench.update(F.mse_loss(forward(x).float(), y))

    assert ids(report_of(loop, Bench(scale=None))) == ["fp16-without-scaler"]


def test_the_share_of_zeros():
    """It is told where a closer look has counted, and some were zero."""
    run = report_of(usual, Bench(scale=None)).run
    others = [each for each in run.events if not (isinstance(each, Noticed) and each.what == "zeros")]

    def said(zeros):
        looked = Noticed(number=9999, step=1, what="zeros", values={"zeros": zeros, "of": 1000})
        (finding,) = RULES["fp16-without-scaler"].look(replace(run, events=[*others, looked]))
        return finding.sentence

    assert "25.0\N{NO-BREAK SPACE}% of the gradients" in said(Later(int, 250))
    assert "of the gradients looked at" not in said(0)


def test_a_decorated_part_in_fp16_in_a_bf16_region():
    class Part(nn.Linear):
        @torch.autocast("cpu", dtype=FP16)
        def forward(self, x):
            return super().forward(x)

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), Part(8, 1))
    report = report_of(usual_bf16, Bench(model, scale=None))
    assert ids(report) == ["nested-region-dtype"]
    assert not report_of(usual_bf16, Bench(nn.Sequential(nn.Linear(8, 8), Part(8, 1)))).all


# Losses


@pytest.mark.parametrize("dtype", [FP16, BF16])
def test_a_loss_function_behind_the_region(dtype):
    def loop(bench):
        for x, y in bench.batches:
            with torch.autocast("cpu", dtype):
                out = bench.model(x)
            bench.update(F.cross_entropy(out.expand(-1, 3), (y[:, 0] > 0).long()))

    report = report_of(loop, Bench(scale=1024.0 if dtype == FP16 else None))
    assert ids(report) == ["loss-in-16-bits"]
    assert report["loss-in-16-bits"].severity is Severity.RISK


def test_a_loss_by_hand_behind_the_region():
    def loop(bench):
        for x, y in bench.batches:
            with torch.autocast("cpu", FP16):
                out = bench.model(x)
            bench.update((out - y.half()).square().sum(1).mean())

    report = report_of(loop)
    assert ids(report) == ["loss-in-16-bits"]
    assert report["loss-in-16-bits"].steps == (1, 2, 3)


def test_a_loss_for_each_row_at_the_first_scale():
    def loop(bench):
        for x, y in bench.batches:
            with torch.autocast("cpu", FP16):
                out = bench.model(x)
            losses = bench.scaler.scale((out[:, 0] - y[:, 0].half()).abs())
            losses.sum().backward()  # of a mean, 1/16 of the scale would go back, which FP16 holds
            bench.scaler.step(bench.optimizer)
            bench.scaler.update()
            bench.optimizer.zero_grad()

    report = report_of(loop, Bench(scale=65536.0))
    assert ids(report) == ["fp16-loss-at-65536"]
    assert report["fp16-loss-at-65536"].steps == (1,)
    assert "fp16-loss-at-65536" not in report_of(loop, Bench(scale=32768.0))


@pytest.mark.parametrize("shape", [(), (4,)])
def test_the_gradient_of_a_scaled_fp16_loss(shape):
    """What the rule says: it is the scale, in the dtype of the loss."""
    for scale, finite in ((65536.0, False), (32768.0, True)):
        loss = torch.full(shape, 0.5, dtype=FP16, requires_grad=True)
        torch.amp.GradScaler("cpu", init_scale=scale).scale(loss).sum().backward()
        assert bool(loss.grad.isfinite().all()) is finite


# Right loops


def mean_of_outputs(bench):
    """A critic's loss is the mean of what it says: FP16 holds that."""
    for x, _ in bench.batches:
        with torch.autocast("cpu", FP16):
            loss = bench.model(x).mean()
        bench.update(loss)


def squares_for_the_log_only(bench):
    for x, y in bench.batches:
        with torch.autocast("cpu", FP16):
            out = bench.model(x)
            loss = F.mse_loss(out, y)
        assert (out - y.half()).square().mean().item() >= 0
        bench.update(loss)


def loss_of_outputs_in_fp32(bench):
    for x, y in bench.batches:
        with torch.autocast("cpu", FP16):
            out = bench.model(x)
        bench.update(F.mse_loss(out.float(), y))


def data_kept_in_half(bench):
    for x, y in [(x.half(), y.half()) for x, y in bench.batches]:
        with torch.autocast("cpu", FP16):
            loss = F.mse_loss(bench.model(x), y)
        bench.update(loss)


def exported_in_half(bench):
    usual(bench)
    assert copy.deepcopy(bench.model).half()
    usual(bench)


@pytest.mark.parametrize(
    "loop",
    [
        mean_of_outputs,
        squares_for_the_log_only,
        loss_of_outputs_in_fp32,
        data_kept_in_half,
        exported_in_half,
    ],
)
def test_nothing_is_said_about_right_loops(loop):
    assert [(each.id, each.sentence) for each in report_of(loop).all] == []


def test_a_frozen_base_in_half_with_adapters_in_fp32():
    class Adapted(nn.Module):
        def __init__(self):
            super().__init__()
            self.base = nn.Linear(8, 8).half().requires_grad_(False)
            self.down, self.up = nn.Linear(8, 2), nn.Linear(2, 1)

        def forward(self, x):
            return self.up(self.down(x + self.base(x)))

    assert not report_of(usual, Bench(Adapted(), **ADAM)).all


def test_fp32_masters_by_hand():
    """The model is FP16, the optimizer steps FP32 copies, and the scale is a constant."""
    model = network().half()
    masters = [each.detach().float().requires_grad_() for each in model.parameters()]
    optimizer = torch.optim.SGD(masters, lr=0.1)
    bench = Bench()
    with amp_lab.watch(model, optimizer) as seen:
        for x, y in bench.batches:
            (F.mse_loss(model(x.half()).float(), y) * 128).backward()
            for master, each in zip(masters, model.parameters(), strict=True):
                master.grad = each.grad.float() / 128
                each.grad = None
            optimizer.step()
            with torch.no_grad():
                for master, each in zip(masters, model.parameters(), strict=True):
                    each.copy_(master)
    assert not {"fp16-weights", "fp16-without-scaler", "scaler-without-autocast"} & set(ids(seen.report()))


def test_a_scaler_of_our_own():
    bench = Bench()
    bench.scaler = DynamicLossScaler(1024.0)
    assert not report_of(usual, bench).all


def test_a_constant_scale_by_hand():
    def loop(bench):
        for x, y in bench.batches:
            with torch.autocast("cpu", FP16):
                loss = F.mse_loss(bench.model(x), y)
            (loss * 256).backward()
            torch._foreach_div_([each.grad for each in bench.model.parameters()], 256)
            bench.optimizer.step()
            bench.optimizer.zero_grad()

    assert not report_of(loop, Bench(scale=None)).all
