"""The denoiser, the classifier, the transformer: shapes and weights; FP16 stalls the first without a loss scale."""

import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_lab.autocast.emulate import tensor_cores
from amp_lab.train.data import characters, digits, noisy_digits
from amp_lab.train.models import character_model, denoiser, digit_classifier
from amp_lab.train.transformer import Attention, Block


def test_shapes_names_and_dtypes():
    model = denoiser()
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == {
        "first.weight": (8, 1, 3, 3),
        "first.bias": (8,),
        "middle.weight": (8, 8, 3, 3),
        "middle.bias": (8,),
        "last.weight": (1, 8, 3, 3),
        "last.bias": (1,),
    }
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert model.middle.weight.is_contiguous(memory_format=torch.channels_last)
    assert model(torch.zeros(5, 1, 8, 8)).shape == (5, 1, 8, 8)
    assert model(torch.zeros(2, 1, 6, 10)).shape == (2, 1, 6, 10)
    assert denoiser(3)(torch.zeros(1, 1, 8, 8)).shape == (1, 1, 8, 8)


def test_the_seed_decides_and_the_global_random_numbers_stay():
    state = torch.get_rng_state()
    one, same, other = denoiser(), denoiser(seed=0), denoiser(seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(7)
    later = denoiser()
    for a, b, c, d in zip(*(m.parameters() for m in (one, same, later, other)), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
        assert not torch.equal(a, d)


@pytest.mark.parametrize("width", [0, -1, 1.5, "8", True, None])
def test_what_is_no_width(width):
    with pytest.raises(ValueError, match="a whole number of at least 1"):
        denoiser(width)


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def train(*, scale: float = 1.0, dtype: torch.dtype | None = torch.float16, steps: int = 30):
    """Train as lesson 04 does; return the errors, how many steps overflowed, and the model."""
    model, (noisy, clean) = denoiser(), noisy_digits()
    optimizer = torch.optim.SGD(model.parameters(), lr=100, momentum=0.9)
    errors, overflowed = [], 0
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype or torch.float16, enabled=dtype is not None):
            error = F.mse_loss(model(noisy), clean)
        (1e-3 * error * scale).backward()
        errors.append(error.item())
        for parameter in model.parameters():
            parameter.grad /= scale
        if all(parameter.grad.isfinite().all() for parameter in model.parameters()):
            optimizer.step()
        else:
            overflowed += 1
    return errors, overflowed, model


@pytest.mark.usefixtures("one_thread")
def test_fp16_stalls_without_a_loss_scale_and_equals_fp32_with_one():
    steps = 15  # half of the lesson's, and enough to tell
    with tensor_cores(always=True):
        fp32, _, _ = train(dtype=None, steps=steps)
        unscaled, _, stalled = train(steps=2)
        small, _, _ = train(scale=4.0, steps=steps)
        right, skipped, _ = train(scale=2.0**15, steps=steps)
        _, all_skipped, same = train(scale=2.0**32, steps=1)
    start = denoiser()
    assert fp32[-1] < 0.5 * fp32[0]
    assert right[-1] == pytest.approx(fp32[-1], rel=0.05)
    assert skipped == 0
    assert 1.3 * fp32[-1] < small[-1] < 0.9 * fp32[0]
    assert all_skipped == 1
    for at_start, without_scale, overflowing in zip(
        *(m.parameters() for m in (start, stalled, same)), strict=True
    ):
        # Not one gradient is left: the loss reaches the last layer's output below 2^-25.
        assert torch.equal(without_scale, at_start)
        assert without_scale.grad.count_nonzero() == 0
        assert torch.equal(overflowing, at_start)
    assert unscaled == pytest.approx([fp32[0]] * 2, rel=1e-3)


@pytest.mark.usefixtures("one_thread")
def test_why_it_stalls():
    """In FP32: all that flows back to the last layer's output is at most 2^-25, which FP16 makes zero."""
    model, (noisy, clean) = denoiser(), noisy_digits()
    output = model(noisy)
    output.retain_grad()
    (1e-3 * F.mse_loss(output, clean)).backward()
    assert 0 < output.grad.abs().max() < 2.0**-25
    # The weights' gradients are sums over all pixels: they would fit.
    assert max(p.grad.abs().max() for p in model.parameters()) > 2.0**-12


@pytest.mark.parametrize("seed", ["x", None, 1.5, True, 2**63])
def test_what_is_no_seed(seed):
    with pytest.raises(ValueError, match="a seed is a whole number"):
        denoiser(seed=seed)


def test_numpy_numbers_are_numbers():
    assert denoiser(np.int64(3), seed=np.int64(1)).last.in_channels == 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_the_default_dtype_and_device_change_nothing(dtype):
    wanted = denoiser().state_dict()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            found = denoiser().state_dict()
    finally:
        torch.set_default_dtype(torch.float32)
    for name, weight in found.items():
        assert weight.dtype == torch.float32
        assert torch.equal(weight, wanted[name])


def test_the_classifier():
    model = digit_classifier(16, dropout=0.25, seed=3)
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == {
        "first.weight": (16, 64),
        "first.bias": (16,),
        "last.weight": (10, 16),
        "last.bias": (10,),
    }
    assert model.dropout.p == 0.25
    assert model(digits(5)[0]).shape == (5, 10)
    assert torch.equal(model.first.weight, digit_classifier(16, seed=3).first.weight)
    assert not torch.equal(model.first.weight, digit_classifier(16, seed=4).first.weight)


@pytest.mark.usefixtures("one_thread")
def test_the_classifier_learns():
    model, (images, labels) = digit_classifier(), digits()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(40):
        optimizer.zero_grad()
        F.cross_entropy(model(images[:1500]), labels[:1500]).backward()
        optimizer.step()
    assert (model(images[1500:]).argmax(1) == labels[1500:]).float().mean() > 0.85


def test_the_character_model():
    model = character_model(16, layers=1, heads=2, length=8)
    text = torch.randint(96, (3, 8), generator=torch.Generator().manual_seed(0))
    logits = model(text)
    assert (logits.shape, logits.dtype) == ((3, 96, 8), torch.float32)
    assert model(text[:, :5]).shape == (3, 96, 5)
    assert F.cross_entropy(logits, text).item() == pytest.approx(np.log(96), rel=0.1)  # it knows nothing yet
    for embedding in (model.characters, model.positions):
        assert embedding.weight.std().item() == pytest.approx(0.02, rel=0.2)
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    with pytest.raises(ValueError, match="the text has 9 characters, this model takes 8; make it with"):
        model(torch.zeros(1, 9, dtype=torch.int64))


def test_a_guess_sees_no_later_character_and_every_earlier_one():
    model = character_model(16, layers=1, heads=2, length=8)
    text = torch.randint(96, (1, 8), generator=torch.Generator().manual_seed(0))
    other = text.clone()
    other[0, 4] = (text[0, 4] + 1) % 96
    changed = (model(text) - model(other)).abs().amax(1)[0] > 1e-7
    assert changed.tolist() == [False] * 4 + [True] * 4


def test_its_attention_is_that_of_pytorch():
    attention, theirs = Attention(16, 4, 0.0), nn.MultiheadAttention(16, 4, batch_first=True)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(attention.qkv.weight)
        theirs.in_proj_bias.copy_(attention.qkv.bias)
    theirs.out_proj = attention.out
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    assert torch.allclose(attention(x), theirs(x, x, x, attn_mask=later)[0], atol=1e-6)


def test_a_block_adds_what_its_two_parts_make():
    block, x = Block(8, 2, 0.0), torch.randn(1, 3, 8)
    for last in (block.attention.out, block.mlp[2]):
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
    assert torch.equal(block(x), x)
    nn.init.ones_(block.mlp[2].bias)
    assert torch.equal(block(x), x + 1)


def test_dropout_is_in_both_parts_of_each_block():
    model = character_model(8, layers=3, heads=2, dropout=0.25)
    assert [each.p for each in model.modules() if isinstance(each, nn.Dropout)] == 6 * [0.25]


@pytest.mark.usefixtures("one_thread")
def test_the_character_model_learns_what_a_count_of_characters_does_not_know():
    model = character_model(length=32, layers=1)
    pieces, targets = characters(32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    draws = torch.Generator().manual_seed(0)
    for _ in range(100):
        picked = torch.randint(10_000, (16,), generator=draws)
        optimizer.zero_grad()
        F.cross_entropy(model(pieces[picked]), targets[picked]).backward()
        optimizer.step()
    with torch.inference_mode():
        dev = F.cross_entropy(model(pieces[-400:]), targets[-400:])
    share = pieces.flatten().bincount(minlength=96) / pieces.numel()
    entropy = -(share[share > 0] * share[share > 0].log()).sum()
    assert dev < 0.95 * entropy


@pytest.mark.parametrize("make", [denoiser, digit_classifier, character_model])
def test_making_a_model_touches_no_random_number_and_no_default(make, monkeypatch):
    monkeypatch.setattr(torch.cuda, "manual_seed_all", None)  # torch.manual_seed would call it
    state, wanted = torch.get_rng_state(), make()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            found = make()
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), state)
    for name, parameter in found.named_parameters():
        assert parameter.dtype == torch.float32
        assert torch.equal(parameter, wanted.get_parameter(name))


@pytest.mark.parametrize("name", ["width", "layers", "heads", "length"])
@pytest.mark.parametrize("value", [0, 1.5, "8", True])
def test_what_is_no_size(name, value):
    with pytest.raises(ValueError, match=re.escape(f"character_model({name}={value!r}): {name} is a whole")):
        character_model(**{name: value})


def test_heads_that_do_not_divide_the_width():
    with pytest.raises(ValueError, match="choose a multiple of 3, such as 24"):
        character_model(32, heads=3)


@pytest.mark.parametrize("make", [digit_classifier, character_model])
@pytest.mark.parametrize("value", [-0.1, 1.1, True, "x", None, float("nan")])
def test_what_is_no_share(make, value):
    with pytest.raises(ValueError, match=re.escape(f"{make.__name__}(dropout={value!r}): dropout is")):
        make(dropout=value)


@pytest.mark.parametrize("make", [digit_classifier, character_model])
def test_what_is_no_seed_of_these(make):
    with pytest.raises(ValueError, match="a seed is a whole number"):
        make(seed=None)
