"""find_overflow inside of other things: threads, no_grad, forward passes that write into weights."""

import threading

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_lab.watching.overflow import find_overflow

SAMPLES = 6


def data():
    torch.manual_seed(1)
    return torch.randn(SAMPLES, 4), torch.arange(SAMPLES) % 3


class Clamped(nn.Linear):
    """Writes into its own weight, as critics of some GANs do."""

    def forward(self, x):
        with torch.no_grad():
            self.weight.mul_(0.5).clamp_(-0.1, 0.1)
        return super().forward(x)


class Shortened(nn.Sequential):
    """Writes into an embedding: those that are too long are shortened."""

    def __init__(self):
        super().__init__(nn.Embedding(9, 4, max_norm=0.5), nn.Linear(4, 3))

    def forward(self, x):
        return super().forward(x.argmax(1))


@pytest.mark.parametrize("factor", [0.1, 1e6])
@pytest.mark.parametrize("kind", [lambda: Clamped(4, 3), Shortened])
def test_weights_that_the_forward_pass_writes_into_are_put_back(kind, factor):
    torch.manual_seed(0)
    model = kind()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    report = find_overflow(model, lambda out, y: F.cross_entropy(out, y) * factor, data(), device_type="cuda")
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert report.ok == (factor < 1)
    assert (
        len({each.loss for each in report.replays if not each.fp32}) == 1
    )  # each began with the same weights


def test_weights_are_put_back_after_an_error():
    class Broken(Clamped):
        def forward(self, x):
            super().forward(x)
            raise KeyboardInterrupt

    model = Broken(4, 3)
    before = model.weight.clone()
    with pytest.raises(KeyboardInterrupt):
        find_overflow(model, F.cross_entropy, data())
    assert torch.equal(model.weight, before)


@pytest.mark.parametrize("around", [torch.no_grad, torch.inference_mode])
def test_gradients_are_looked_at_though_they_are_switched_off_around(around):
    model, batch = nn.Linear(4, 3), data()

    def loss(out, y):
        return F.cross_entropy(out, y) * 50

    expected = find_overflow(model, loss, batch)
    with around():
        report = find_overflow(model, loss, batch)
        assert not torch.is_grad_enabled()
    assert report.cause == expected.cause == "scale-too-large"
    assert report.scale == expected.scale


def test_two_threads_get_the_answers_that_one_gets():
    x, y = data()
    models = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3)) for _ in range(4)]
    for at, model in enumerate(models):
        nn.init.constant_(model[at % 2].weight, 5e4)
        nn.init.constant_(model[0].bias, 3.0)

    def answers():
        found = [find_overflow(each, F.cross_entropy, (x.abs() + 1, y)) for each in models]
        return [(each.cause, each.op, each.module) for each in found]

    alone, together = answers(), []
    threads = [threading.Thread(target=lambda: together.append(answers())) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert [module for _, _, module in alone] == ["0", "1", "0", "1"]
    assert together == [alone] * 3


@pytest.mark.parametrize("scale", [2.0**200, 2.0**-140])
def test_scales_that_fp32_does_not_hold_are_refused(scale):
    with pytest.raises(ValueError, match="a number of FP32"):
        find_overflow(nn.Linear(4, 3), F.cross_entropy, data(), scales=(2.0**16, scale))


def test_without_gradients_nothing_is_said_of_them():
    model = nn.Linear(4, 3).requires_grad_(False)
    report = find_overflow(model, F.cross_entropy, data())
    assert report.ok
    assert "there are no gradients" in report.sentence
