"""find_overflow: each cause, beside a batch that nearly has it; what it tries; what it puts back; what it refuses."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from amp_lab.watching.overflow import find_overflow
from amp_lab.watching.replaying.autocast_off import autocast_off
from amp_lab.watching.replaying.explaining import explain
from amp_lab.watching.replaying.ids import CAUSES
from amp_lab.watching.replaying.records import Replay
from amp_lab.watching.replaying.scales import tried

SAMPLES = 16


def net(**settings):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3), **settings)


def data():
    torch.manual_seed(1)
    return torch.randn(SAMPLES, 4), torch.arange(SAMPLES) % 3


def find(loss_fn=F.cross_entropy, *, model=None, x=None, y=None, more=(), **settings):
    images, labels = data()
    batch = (images if x is None else x, *more, labels if y is None else y)
    return find_overflow(net() if model is None else model, loss_fn, batch, device_type="cuda", **settings)


def large_weights(size):
    model = net()
    nn.init.constant_(model[2].weight, size)
    return model


def tiny():
    """A layer whose results FP16 makes 0, and FP32 does not."""
    layer = nn.Linear(4, 3, bias=False)
    nn.init.constant_(layer.weight, 1e-5)
    return nn.Sequential(layer, Times(1e-5))


class Times(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


class HandNorm(nn.Module):
    def __init__(self, eps=1e-3):
        super().__init__()
        self.first, self.last, self.eps = nn.Linear(4, 8), nn.Linear(8, 3), eps

    def forward(self, x):
        h = self.first(x)
        variance = (h * h).mean(-1, keepdim=True)
        return self.last(h * torch.rsqrt(variance + self.eps))


class Attention(nn.Module):
    def __init__(self, additive=False, grow=1.0):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.out = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.additive, self.grow = additive, grow

    def forward(self, x, mask):
        scores = (self.query(x) * self.grow) @ self.key(x).T
        scores = scores + mask.to(scores.dtype) if self.additive else scores.masked_fill(mask, float("-inf"))
        return self.out(torch.softmax(scores, -1) @ x)


def causal():
    return torch.ones(SAMPLES, SAMPLES, dtype=torch.bool).triu(1)


def with_a_row_masked(mask):
    mask[3] = True
    return mask


def halves_divided(eps):
    def loss(output, _):
        h = (output * 0).half()
        return (h / (h.abs().amax(-1, keepdim=True) + eps)).float().mean()

    return loss


def spoiled(tensor, value=float("nan")):
    tensor = tensor.clone()
    tensor[3, 1] = value
    return tensor


def with_infinite_weight():
    model = net()
    with torch.no_grad():
        model[0].weight[1, 1] = float("inf")
    return model


def log_behind_where(offset):
    keep = (torch.arange(SAMPLES * 3).view(SAMPLES, 3) % 3 > 0).float()

    def loss(output, _):
        return torch.where(keep > 0, torch.log((output.float() ** 2 + 1) * keep + offset), 0.0).mean()

    return loss


FAULTS = {  # cause, what has it, phase, operator, module, whether a scale cures
    "scale": (
        "scale-too-large",
        lambda: find(lambda o, y: F.cross_entropy(o, y) * 50),
        "backward",
        "to",
        "",
        True,
    ),
    "backward": (
        "backward-overflow",
        lambda: find(lambda o, y: (o.float() * 1e6).sum()),
        "backward",
        "to",
        "",
        True,
    ),
    "linear": (
        "forward-overflow",
        lambda: find(model=large_weights(1e4), x=data()[0] * 50),
        "forward",
        "linear",
        "2",
        False,
    ),
    "scores": (
        "forward-overflow",
        lambda: find(model=Attention(grow=3e4), x=data()[0] * 8, more=(causal(),)),
        "forward",
        "mul",
        "",
        False,
    ),
    "autocast's cast": ("cast-overflow", lambda: find(x=data()[0] * 1e6), "forward", "linear", "0", False),
    "own cast": (
        "cast-overflow",
        lambda: find(lambda o, y: F.cross_entropy((o.float() * 1e6).half(), y)),
        "forward",
        "to",
        "",
        False,
    ),
    "hidden": (
        "hidden-overflow",
        lambda: find(model=HandNorm(), x=data()[0] * 1000),
        "forward",
        "mul",
        "",
        False,
    ),
    "mask": (
        "mask-overflow",
        lambda: find(model=Attention(), more=(with_a_row_masked(causal()),)),
        "forward",
        "softmax",
        "",
        False,
    ),
    "mask that is added": (
        "mask-overflow",
        lambda: find(model=Attention(True), more=(with_a_row_masked(causal()) * -1e9,)),
        "forward",
        "softmax",
        "",
        False,
    ),
    "data": ("nan-in-data", lambda: find(x=spoiled(data()[0])), "forward", "linear", "0", False),
    "targets": (
        "nan-in-targets",
        lambda: find(F.mse_loss, y=spoiled(torch.zeros(SAMPLES, 3))),
        "forward",
        "mse_loss",
        "",
        False,
    ),
    "weights": (
        "nan-in-weights",
        lambda: find(model=with_infinite_weight()),
        "forward",
        "linear",
        "0",
        False,
    ),
    "where and log": ("nan-derivative", lambda: find(log_behind_where(0.0)), "backward", "log", "", False),
    "sqrt": (
        "nan-derivative",
        lambda: find(lambda o, y: torch.sqrt((o - o.detach()) ** 2).mean()),
        "backward",
        "sqrt",
        "",
        False,
    ),
    "labels": ("no-labels", lambda: find(y=torch.full((SAMPLES,), -100)), "forward", "nll_loss", "", False),
    "empty": (
        "no-labels",
        lambda: find(lambda o, y: F.cross_entropy(o, y) + o[o > 1e9].mean()),
        "forward",
        "mean",
        "",
        False,
    ),
    "eps": ("eps-lost", lambda: find(halves_divided(1e-8)), "forward", "div", "", False),
    "log": ("pole", lambda: find(lambda o, y: torch.log(F.relu(o)).mean()), "forward", "log", "", False),
    "exp in FP32, after an overflow in FP16": (
        "fp32-overflow",
        lambda: find(lambda o, y: torch.exp(o * 100).mean(), model=large_weights(1e4), x=data()[0] * 50),
        "forward",
        "exp",
        "",
        False,
    ),
    "a sum in the code's own FP16": (
        "forward-overflow",
        lambda: find(
            lambda o, y: F.cross_entropy(o, y) + (o.half() * 0 + 4e3).flatten().sum(dtype=torch.float16)
        ),
        "forward",
        "sum",
        "",
        False,
    ),
    "root of what FP16 made 0": (
        "nan-derivative",
        lambda: find(lambda o, y: torch.sqrt(o.abs()).float().mean(), model=tiny()),
        "backward",
        "sqrt",
        "",
        False,
    ),
    "exp": (
        "fp32-overflow",
        lambda: find(lambda o, y: torch.exp(o * 1000).mean()),
        "forward",
        "exp",
        "",
        False,
    ),
}

HEALTHY = {
    "plain": lambda: find(),
    "large, but not too large": lambda: find(model=large_weights(200.0), x=data()[0] * 8),
    "large data": lambda: find(x=data()[0] * 1e3, scales=(1.0,)),
    "hand-written norm": lambda: find(model=HandNorm(), x=data()[0] * 10),
    "causal mask": lambda: find(model=Attention(), more=(causal(),)),
    "mask that is added, and cast to -inf": lambda: find(model=Attention(True), more=(causal() * -1e9,)),
    "-inf in the batch": lambda: find(
        model=Attention(True), more=(torch.zeros(SAMPLES, SAMPLES).masked_fill(causal(), float("-inf")),)
    ),
    "some labels ignored": lambda: find(y=torch.where(torch.arange(SAMPLES) > 3, -100, 1)),
    "log, with a constant": lambda: find(lambda o, y: torch.log(F.relu(o) + 1e-3).mean(), scales=(1.0,)),
    "where, argument kept away": lambda: find(log_behind_where(0.1)),
    "eps that FP16 holds": lambda: find(halves_divided(1e-3), scales=(1.0,)),
    "infinity clamped": lambda: find(
        lambda o, y: (o.float() * 1e8).half().clamp(-1, 1).float().mean() + o.float().mean()
    ),
    "infinity under where": lambda: find(
        lambda o, y: torch.where(o.float().abs() < 1e9, o.float(), (o.float() * 1e8).half().float()).mean()
    ),
    "in BF16": lambda: find(x=data()[0] * 1e6, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_cause(name):
    cause, make, phase, op, module, cures = FAULTS[name]
    report = make()
    assert (report.cause, report.phase, report.op, report.module) == (cause, phase, op, module), str(report)
    assert report.cures == cures
    assert not report.ok
    if cures:
        assert any(each.scale == report.scale and each.finite for each in report.replays)
        assert any(each.scale == 2 * report.scale and not each.finite for each in report.replays)


@pytest.mark.parametrize("name", HEALTHY)
def test_near_misses_are_silent(name):
    report = HEALTHY[name]()
    assert report.cause == "none", str(report)
    assert report.ok
    assert report.first is None
    assert not report.cures


def test_every_cause_is_planted_here():
    assert {each[0] for each in FAULTS.values()} | {"none"} == set(CAUSES)


def test_true_size_is_that_of_exact_arithmetic():
    model, x = large_weights(1e4), data()[0] * 50
    report = find(model=model, x=x)
    with torch.no_grad():
        h = F.relu(model[0](x.half().float()).half())  # what goes into the layer
        exact = F.linear(h.double(), model[2].weight.half().double(), model[2].bias.half().double())
    assert report.true_size == pytest.approx(exact.abs().max().item(), rel=2e-3)
    assert report.limit == 65504.0
    assert report.first.inputs[0].size < 65504 < report.true_size


def test_the_largest_scale_that_cures_is_found_by_trying_all():
    def loss(output, target):
        return F.cross_entropy(output, target) * 50

    found = find(loss)
    finite = [2.0**k for k in range(9, 17) if find(loss, scales=(2.0**k,)).ok]
    assert found.scale == max(finite)


class TestScales:
    """`tried`, with a batch that is finite up to a limit."""

    @staticmethod
    def at(limit, loss=1.0):
        ran = []

        def run(scale):
            ran.append(scale)
            return Replay(scale, loss, () if scale <= limit else ("w",), 1)

        return run, ran

    @pytest.mark.parametrize("limit", [2.0**k for k in range(-24, 17)])
    @pytest.mark.parametrize("scales", [(2.0**16,), (2.0**16, 2.0**8, 1.0, 2.0**-8)])
    def test_finds_every_limit(self, limit, scales):
        run, ran = self.at(limit)
        assert tried(run, scales).cure == limit
        assert len(ran) == len(set(ran)) <= 10

    def test_stops_where_it_is_known(self):
        run, ran = self.at(2.0**20)
        assert tried(run, (1.0, 2.0**16)).cure == 2.0**16
        assert ran == [2.0**16]

    def test_a_loss_that_is_not_finite_is_not_tried_again(self):
        run, ran = self.at(0.0, float("inf"))
        found = tried(run, (2.0**16, 1.0))
        assert found.cure is None
        assert ran == [2.0**16]

    def test_no_cure(self):
        run, _ = self.at(2.0**-25)
        assert tried(run, (2.0**16, 1.0)).cure is None

    def test_smallest_scale_that_was_asked_for(self):
        run, ran = self.at(2.0**-10)
        assert tried(run, (1.0,), smallest=2.0**-4).cure is None
        assert min(ran) == 2.0**-4

    def test_scales_that_are_no_powers_of_two(self):
        run, _ = self.at(100.0)
        assert tried(run, (1000.0, 3.0)).cure == 64.0
        run, _ = self.at(3.5)
        assert tried(run, (1000.0, 3.0)).cure == 2.0


class Noisy(nn.Module):
    """Draws random numbers, has buffers, and changes itself."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
        self.register_buffer("seen", torch.zeros(()))
        self.calls, self.kept = 0, torch.zeros(2)

    def forward(self, x):
        self.calls += 1
        self.seen += 1
        self.kept.add_(1)
        self.eval() if self.calls > 1000 else self.train()
        random.random(), np.random.rand()
        return self.layers(x * 1.0)


def state(model):
    tensors = {name: each.clone() for name, each in model.state_dict().items()}
    gradients = [each.grad for each in model.parameters()]
    modes = [each.training for each in model.modules()]
    return tensors, gradients, modes, (model.calls, model.kept.clone())


@pytest.mark.parametrize("factor", [1.0, 1e6])
@pytest.mark.parametrize("closure", [False, True])
def test_everything_is_put_back(factor, closure):
    model = Noisy().eval()
    x, y = data()
    x = x * factor
    x_before = x.clone()
    for each in model.parameters():
        each.grad = torch.full_like(each, 7.0)
    fired = []
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(lambda _: fired.append(1))
    before, kept = state(model), [each.grad for each in model.parameters()]
    numbers = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()

    def loss():
        with torch.autocast("cpu", torch.float16):
            return F.cross_entropy(model(x), y)

    report = find_overflow(model, loss) if closure else find_overflow(model, F.cross_entropy, (x, y))
    assert report.ok == (factor == 1.0)
    after = state(model)
    assert all(torch.equal(after[0][name], each) for name, each in before[0].items())
    assert all(each is other for each, other in zip(after[1], kept, strict=True))
    assert all((each == 7.0).all() for each in after[1])
    assert after[2] == before[2]
    assert after[3][0] == before[3][0]
    assert torch.equal(after[3][1], before[3][1])
    assert torch.equal(numbers[0], torch.get_rng_state())
    assert numbers[1] == random.getstate()
    assert (numbers[2] == np.random.get_state()[1]).all()
    assert torch.equal(x, x_before)
    assert not fired
    assert not torch.is_autocast_enabled("cpu")
    assert torch.is_grad_enabled()
    loss().backward()  # the hooks are there again
    assert len(fired) == len(list(model.parameters()))


def test_targets_that_are_expanded():
    expanded = torch.ones(3).expand(SAMPLES, 3)
    assert find(F.mse_loss, y=expanded).ok


def test_every_replay_draws_the_same_random_numbers():
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    report = find(lambda o, y: F.cross_entropy(o, y) * 50, model=model)
    losses = {each.loss for each in report.replays if not each.fp32}
    assert len(report.replays) > 3
    assert len(losses) == 1


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.weight = net(), nn.Parameter(torch.ones(4))

        def forward(self, x):
            return checkpoint(self.inner, x * self.weight, use_reentrant=reentrant)

    model, fired = Checkpointed(), []
    for each in model.parameters():
        each.register_post_accumulate_grad_hook(lambda _: fired.append(1))
        each.grad = torch.ones_like(each)
    report = find(lambda o, y: F.cross_entropy(o, y) * 50, model=model)
    assert (report.cause, report.replays[0].parameters) == ("scale-too-large", 5)
    assert not fired
    assert all((each.grad == 1).all() for each in model.parameters())


def test_autocast_off_reaches_regions_inside():
    x = torch.ones(2, 2)
    region = torch.autocast("cpu", torch.bfloat16)
    entering = torch.autocast.__enter__
    with autocast_off(), region:
        assert (x @ x).dtype == torch.float32
    assert torch.autocast.__enter__ is entering
    with region:
        assert (x @ x).dtype == torch.bfloat16


class TestClosures:
    def closure(self, model, x, y):
        def loss():
            with torch.autocast("cpu", torch.float16):
                return F.cross_entropy(model(x), y)

        return loss

    def test_own_region(self):
        model, (x, y) = net(), data()
        report = explain(self.closure(model, x * 1e6, y), model, scales=(2.0**10,))
        assert (report.cause, report.module) == ("cast-overflow", "0")
        assert [(each.scale, each.fp32, each.finite) for each in report.replays] == [
            (1024.0, False, False),
            (1.0, True, True),
        ]

    def test_nothing_is_traced_unless_asked(self):
        model, (x, y) = net(), data()
        report = explain(self.closure(model, x, y), [model], scales=(1.0,), hidden=False)
        assert report.ok
        assert "hidden" not in report.sentence

    def test_data_and_targets_are_told_apart(self):
        model, (x, _) = net(), data()
        bad_x, targets = spoiled(x), torch.zeros(SAMPLES, 3)
        bad_targets = spoiled(targets)
        assert explain(lambda: ((model((bad_x - 1) / 2) - targets) ** 2).mean(), model).cause == "nan-in-data"
        assert (
            explain(lambda: ((model(x) - (bad_targets - 1) / 2) ** 2).mean(), model).cause == "nan-in-targets"
        )

    def test_several_models_go_by_their_names(self):
        one, two = nn.Linear(4, 8), nn.Linear(8, 3)
        x, y = data()
        nn.init.constant_(two.weight, float("nan"))
        report = explain(lambda: F.cross_entropy(two(one(x)), y), [one, two])
        assert report.cause == "nan-in-weights"
        assert "two.weight" in report.sentence

    def test_one_that_steps(self):
        model, (x, y) = net(), data()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        before = model[0].weight.clone()

        def step():
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        with pytest.raises(ValueError, match=r"calls SGD\.step: let it return the unscaled loss"):
            explain(step, model)
        assert torch.equal(before, model[0].weight)
        assert model[0].weight.grad is None

    def test_one_that_calls_backward(self):
        model, (x, y) = net(), data()

        def closure():
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        with pytest.raises(ValueError, match="calls backward itself"):
            explain(closure, model)
        assert model[0].weight.grad is None


def test_a_mapping_and_a_tensor():
    class WithLoss(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net()

        def forward(self, x, labels):
            return {"loss": F.cross_entropy(self.net(x), labels)}

    x, y = data()
    fields = {"x": x * 1e6, "labels": y}
    assert find_overflow(WithLoss(), None, fields, device_type="cuda").cause == "cast-overflow"
    assert find_overflow(net(), lambda o: o.float().mean(), x, device_type="cuda").ok


def test_what_the_model_raises_goes_through():
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        find(x=torch.zeros(SAMPLES, 5))


WRONG = [
    (lambda: find_overflow(net, F.mse_loss, data()), TypeError, "an nn.Module, not a function"),
    (lambda: find_overflow(nn.Linear, F.mse_loss, data()), TypeError, "the class Linear itself"),
    (lambda: find_overflow(net(), 3, data()), TypeError, "loss_fn is a function"),
    (lambda: find_overflow(net()), TypeError, "give a batch"),
    (lambda: find_overflow(net(), F.mse_loss, iter([])), TypeError, r"next\(iter\(loader\)\)"),
    (lambda: find_overflow(net(), F.mse_loss, (data()[0],)), ValueError, "at the end the target"),
    (lambda: find(device="x"), TypeError, "device"),
    (lambda: find_overflow(net(), F.mse_loss, data(), device_type="tpu"), ValueError, "device_type='tpu'"),
    (lambda: find(dtype=torch.float32), ValueError, "torch.float16 and torch.bfloat16"),
    (lambda: find(dtype="half"), TypeError, "a dtype of PyTorch"),
    (lambda: find(scales=()), ValueError, "scales is empty"),
    (lambda: find(scales=(0.0,)), ValueError, "larger than 0"),
    (lambda: find(scales=("big",)), TypeError, "scales are numbers"),
    (lambda: find(lambda o, y: o), ValueError, r"the loss has 48 numbers, \(16, 3\)"),
    (lambda: find(lambda o, y: 1.0), TypeError, "the loss is a float"),
    (lambda: find(lambda o, y: y.sum()), TypeError, "torch.int64"),
    (lambda: find_overflow(net(), None, data()[0]), TypeError, "without loss_fn"),
    (lambda: explain(lambda: None, []), TypeError, "a list of them"),
    (lambda: find_overflow(net().to("meta"), F.mse_loss, data()), ValueError, "meta device"),
]


@pytest.mark.parametrize(("call", "kind", "words"), WRONG)
def test_what_is_refused(call, kind, words):
    with pytest.raises(kind, match=words):
        call()


def test_a_hidden_overflow_is_told_before_a_scale_that_is_too_large():
    class NormByHand(nn.Module):
        def forward(self, x):
            return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-5)

    torch.manual_seed(0)
    net = nn.Sequential(NormByHand(), nn.Linear(4, 1)).half()
    rows = torch.tensor([[300.0, -500.0, 800.0, 100.0], [3.0, 1.0, -2.0, 4.0]]).half()
    report = find_overflow(net, lambda: net(rows).float().mean())
    assert (report.cause, report.op, report.phase) == ("hidden-overflow", "mul", "forward")
    assert report.cures
    assert report.scale == 2.0**15  # the gradient of the bias is the scale itself
    assert any("At a loss scale of 2^16" in note for note in report.notes)
    assert "gradients are not finite" not in report.sentence
