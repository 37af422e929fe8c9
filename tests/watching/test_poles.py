"""find_overflow, where an operator has no finite value in any format: why, by the operator, and what to do."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_lab.watching.overflow import find_overflow

SAMPLES = 6


def data():
    torch.manual_seed(1)
    return torch.randn(SAMPLES, 4), torch.arange(SAMPLES) % 3


def find(loss_fn=F.cross_entropy, *, model=None, x=None, y=None, device_type="cpu"):
    torch.manual_seed(0)
    inputs, labels = data()
    batch = (inputs if x is None else x, labels if y is None else y)
    return find_overflow(nn.Linear(4, 3) if model is None else model, loss_fn, batch, device_type=device_type)


def constant_before(norm):
    model = nn.Sequential(nn.Linear(4, 4), norm, nn.Linear(4, 3))
    nn.init.zeros_(model[0].weight)
    nn.init.ones_(model[0].bias)
    return model


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize("kind", [nn.LayerNorm, lambda width, eps: nn.GroupNorm(2, width, eps=eps)])
def test_a_norm_of_equal_numbers_without_an_eps(kind, device_type):
    norm = kind(4, eps=0.0)
    report = find(model=constant_before(norm), device_type=device_type)
    assert (report.cause, report.module) == ("pole", "1")
    assert "a variance of 0" in report.sentence
    assert "1e-5" in report.advice
    norm.eps = 1e-5
    assert find(model=constant_before(norm), device_type=device_type).cures  # gradients times 1 / sqrt(1e-5)


def test_a_weight_without_a_direction():
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    with torch.no_grad():
        model.parametrizations.weight.original1[1] = 0
    report = find(model=model)
    assert (report.cause, report.op) == ("pole", "weight_norm")
    assert "original0" in report.advice
    with torch.no_grad():
        model.parametrizations.weight.original1[1] = 1
        model.parametrizations.weight.original0[1] = 0  # what the advice says
    assert find(model=model).ok


def test_a_target_that_is_too_long_for_ctc():
    def loss(length, **settings):
        def of(logits, targets):
            by_step = logits.float().view(3, 2, 3).log_softmax(-1)
            lengths = torch.full((2,), 3), torch.full((2,), length)
            return 0.1 * F.ctc_loss(by_step, targets[:, :length], *lengths, **settings)

        return of

    targets = torch.ones(2, 3, dtype=torch.long)
    report = find(loss(3), y=targets)
    assert (report.cause, report.op) == ("pole", "ctc_loss")
    assert "zero_infinity=True" in report.advice
    assert find(loss(3, zero_infinity=True), y=targets).ok
    assert find(loss(2), y=targets).ok


def test_numbers_that_leave_fp64_too_are_no_pole():
    for steep in (lambda x: (x.abs() + 1e3).pow(200), lambda x: (x.abs() + 1e3).exp()):
        report = find(lambda out, y, steep=steep: steep(out.float()).mean())
        assert report.cause == "fp32-overflow", str(report)
    assert find(lambda out, y: (out.float() * 0).pow(-1).mean()).cause == "pole"


def test_an_infinity_that_the_code_writes_and_multiplies_by_0():
    def loss(out, y):
        masked = out.float().masked_fill(F.one_hot(y, 3).bool(), float("-inf")).log_softmax(1)
        return -(masked * (1 - F.one_hot(y, 3))).sum(1).mean()

    report = find(loss)
    assert (report.cause, report.op, report.phase) == ("pole", "mul", "forward")
    assert "masked_fill" in report.sentence

    def selected(out, y):
        mask = F.one_hot(y, 3).bool()
        masked = out.float().masked_fill(mask, float("-inf")).log_softmax(1)
        return -masked.masked_fill(mask, 0.0).sum(1).mean() * 0.1

    assert find(selected).ok


@pytest.mark.parametrize("device_type", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        (F.cross_entropy, torch.full((SAMPLES,), -100)),
        (nn.CrossEntropyLoss(weight=torch.tensor([0.0, 1.0, 1.0])), torch.zeros(SAMPLES, dtype=torch.long)),
        (lambda out, y: F.mse_loss(out[y > 5].float(), out[y > 5].float()), None),
        (lambda out, y: F.cross_entropy(out[y > 5], y[y > 5]), None),
        # A mean for each sample, over what only some of them have.
        (lambda out, y: (out.float() * (y > 0)[:, None]).sum(1).div((y > 0).long()).mean(), None),
    ],
)
def test_a_mean_over_nothing(loss, labels, device_type):
    report = find(loss, y=labels, device_type=device_type)
    assert report.cause == "no-labels", str(report)


@pytest.mark.parametrize("additive", [False, True])
def test_the_advice_about_masks_leaves_no_nan_in_the_gradients(additive):
    mask = torch.zeros(SAMPLES, 3, dtype=torch.bool)
    mask[2], mask[4, 1] = True, True
    empty = mask.all(-1, keepdim=True)

    def masked(out, seen):
        if additive:
            return out.float() + torch.zeros(seen.shape).masked_fill(seen, float("-inf"))
        return out.float().masked_fill(seen, float("-inf"))

    def advised(out, y):
        probabilities = masked(out, mask & ~empty).softmax(-1).masked_fill(empty, 0.0)
        return (probabilities * F.one_hot(y, 3)).sum() * 0.01

    report = find(lambda out, y: masked(out, mask).softmax(-1).sum())
    assert report.cause == "mask-overflow"
    assert "masked_fill(mask & ~empty, -inf)" in report.advice
    assert find(advised).ok


def test_a_weight_that_is_too_large_for_the_cast_is_named():
    model = nn.Linear(4, 3)
    with torch.no_grad():
        model.weight[0, 0] = 7e4
    report = find(model=model)
    assert report.cause == "cast-overflow"
    assert "weight up to 70,000" in report.sentence
    assert "learning rate" in report.advice
    x, _ = data()
    x[0, 0] = 7e4
    report = find(x=x)
    assert report.cause == "cast-overflow"
    assert "scale the inputs" in report.advice


def test_a_cosine_without_a_direction_whose_eps_fp16_loses():
    def loss(out, y):
        return F.cosine_similarity(out * 0, out).float().mean()

    report = find(loss)
    assert (report.cause, report.op) == ("eps-lost", "cosine_similarity")
    assert "1e-8" in report.sentence
    assert find(lambda out, y: F.cosine_similarity(out.float() * 0, out.float()).mean() * 1e-9).ok
    assert find(lambda out, y: F.cosine_similarity(out * 0, out, eps=1e-4).float().mean() * 1e-9).ok


@pytest.mark.filterwarnings("ignore:std")
def test_the_spread_of_one_number():
    report = find(lambda out, y: out.float()[:1].std(0).mean())
    assert (report.cause, report.op) == ("pole", "std")
    assert "correction=0" in report.advice


def test_beyond_what_acos_is_defined_for():
    report = find(lambda out, y: (out.float() * 0 + 1.0001).acos().mean())
    assert (report.cause, report.op) == ("pole", "acos")
    assert "-1 + 1e-6, 1 - 1e-6" in report.advice
    assert find(lambda out, y: (out.float() * 0 + 1.0001).clamp(-1 + 1e-6, 1 - 1e-6).acos().mean()).ok


def test_a_pole_that_the_code_makes_by_its_own_cast_is_not_said_to_be_in_fp32():
    def loss(dtype):
        return lambda out, y: F.nll_loss((out.float() * 100).to(dtype).softmax(1).log().float(), y) * 1e-3

    report = find(loss(torch.float16))
    assert (report.cause, report.op) == ("pole", "log")
    assert "the code casts to 16 bits itself" in report.sentence
    assert "in FP32, too" not in report.sentence
    assert "in FP32, too" in find(lambda out, y: (out.float() * 0).log().mean()).sentence


@pytest.mark.parametrize("place", ["targets", "data"])
def test_nan_that_only_the_gradients_show(place):
    x, _ = data()
    targets = torch.zeros(SAMPLES, 3)
    targets[1] = float("nan")

    def hidden(out, y):
        return F.mse_loss(out.float(), y, reduction="none").nan_to_num().mean() * 0.01

    def masked(out, y):
        return F.mse_loss(out.float(), y.nan_to_num()) * 0.01

    if place == "data":
        x[1] = float("nan")
        report = find(lambda out, y: out.float().nan_to_num().mean() * 0.01, x=x)
        assert (report.cause, report.phase) == ("nan-in-data", "backward")
        return
    report = find(hidden, y=targets)
    assert (report.cause, report.phase, report.op) == ("nan-in-targets", "backward", "mse_loss")
    assert find(masked, y=targets).ok
