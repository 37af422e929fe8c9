"""What the checks of lesson 04 rest on: that their cases show what they are there to show, on every machine."""

import math
from fractions import Fraction

import pytest
import torch

from amp_lab.course.lessons.l04 import accumulating, choosing, clipping, unscaling

BACKWARD = [
    story
    for region in (
        *(unscaling._PLAIN, unscaling._ADDED, unscaling._AGAIN),
        *(unscaling._SMALL, unscaling._GIVEN, unscaling._OTHERS, unscaling._IDLE),
    )
    for story in region.stories
]
ACCUMULATED = [
    *(*accumulating._PLAIN, *accumulating._OTHERS, *accumulating._GROUPS),
    *(*accumulating._AGAIN, *accumulating._IDLE, *accumulating._DECAY, *accumulating._MOMENTUM),
]
CLIPPED = [*clipping._PLAIN, *clipping._OTHERS, *clipping._SHAPES, *clipping._ZERO, *clipping._IDLE]
CHOSEN = [case for region in choosing._REGIONS for case in region.cases]


@pytest.mark.parametrize("story", BACKWARD, ids=str)
def test_scaled_gradients_are_exact(story):
    """So the tolerance of the check forgives rounding of the answer and of nothing else."""
    net = unscaling._Net(story)
    net.w.grad = None
    (net.loss() * story.scale).backward()
    assert net.w.grad.flatten().tolist() == [
        upstream * x * story.scale for upstream, x in zip(story.upstream, story.x, strict=True)
    ]


@pytest.mark.parametrize("story", unscaling._PLAIN.stories, ids=str)
def test_without_a_scale_fp16_loses_gradients(story):
    net = unscaling._Net(story)
    net.loss().backward()
    lost = (net.w.grad == 0) & (torch.tensor(story.upstream) != 0)
    assert lost.any()
    assert (net.w.grad != 0).any(), "or a forgotten factor could not be told from a lost gradient"
    assert net.b.grad.tolist() == pytest.approx(story.slope)


@pytest.mark.parametrize("story", unscaling._PLAIN.stories, ids=str)
def test_unscaled_gradients_of_the_plain_stories_fit_into_fp16(story):
    """Where to unscale is asked later, and must not disturb the first stories."""
    for each in story.want().values():
        assert torch.equal(each.half().float(), each)
        assert (each * story.scale).half().isfinite().all()


@pytest.mark.parametrize("story", unscaling._SMALL.stories, ids=str)
def test_unscaled_gradients_of_the_small_stories_do_not(story):
    for each in story.want().values():
        assert not torch.isclose(each.half().float(), each, rtol=1e-3, atol=0.0).any()


@pytest.mark.parametrize("usual", [2.0**8, 1024.0, 2.0**12, 2.0**16])
def test_only_the_scale_that_is_given_brings_the_gradients_through(usual):
    small, large = unscaling._GIVEN.stories
    for story, lost in ((small, lambda grad: not grad.any()), (large, lambda grad: grad.isinf().all())):
        net = unscaling._Net(story)
        (net.loss() * usual).backward()
        assert lost(net.w.grad)


@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_the_right_scale_is_what_the_page_says(case):
    grads, headroom = case[0], Fraction(case[1] if len(case) > 1 else 4)
    size = headroom * max(abs(Fraction(number)) for grad in grads for number in grad.flatten().tolist())
    allowed = [k for k in range(-24, 127) if size * Fraction(2) ** k <= 65504]
    assert choosing._right(*case) == 2.0 ** allowed[-1]


@pytest.mark.parametrize("case", choosing._refused(), ids=str)
def test_no_scale_is_right_for_what_is_refused(case):
    grads, headroom = case[0], case[1] if len(case) > 1 else 4
    size = max(abs(number) for grad in grads for number in grad.flatten().tolist() if number == number)
    assert any(not grad.isfinite().all() for grad in grads) or headroom * size * 2.0**-24 > 65504


def test_the_lowest_scale_is_asked_for_on_both_sides():
    """Just small enough and just too large; with and without the headroom; nearer than a factor of two."""
    sizes = [(case[1] if len(case) > 1 else 4) * choosing._largest(case[0]) for case in CHOSEN]
    assert max(sizes) * 2.0**-24 == 65504
    too_large = [case for case in choosing._refused() if all(grad.isfinite().all() for grad in case[0])]
    sizes = [(case[1] if len(case) > 1 else 4) * choosing._largest(case[0]) for case in too_large]
    assert 65504 < min(sizes) * 2.0**-24 <= 65536
    assert any(choosing._largest(case[0]) * 2.0**-24 < 65504 for case in too_large), (
        "headroom alone is too much"
    )


@pytest.mark.parametrize("case", [*CHOSEN, *choosing._refused()], ids=str)
def test_calls_are_shown_in_full(case):
    call = choosing._in_words(*case)
    assert len(call) < 160
    assert call.count("[") == call.count("]")
    assert "float32)" not in call


@pytest.mark.parametrize("story", clipping._SHAPES, ids=str)
def test_the_largest_singular_value_of_a_matrix_is_not_its_norm(story):
    assert clipping._spectral(story) < 0.95 * story.norm


def test_some_norms_are_near_their_limit():
    ratios = [story.norm / story.max_norm for story in clipping._PLAIN]
    assert any(1.01 < ratio < 1.1 for ratio in ratios)
    assert any(0.9 < ratio < 0.99 for ratio in ratios)


@pytest.mark.parametrize("story", CLIPPED, ids=str)
def test_clipped_gradients_are_what_pytorch_makes_of_them(story):
    parameters = [torch.nn.Parameter(torch.ones_like(each, dtype=torch.float64)) for each in story.tensors()]
    for parameter, numbers in zip(parameters, story.tensors(torch.float64), strict=True):
        parameter.grad = numbers
    norm = torch.nn.utils.clip_grad_norm_(parameters, story.max_norm)
    assert norm.item() == pytest.approx(story.norm, rel=1e-12)
    want = story.times(story.factor)
    for name, parameter in zip(("w.grad", "b.grad"), parameters, strict=True):
        assert torch.allclose(parameter.grad, want[name], rtol=clipping._RTOL / 2, atol=0.0)


def test_some_gradients_are_clipped_and_some_are_not():
    factors = [story.factor for story in clipping._PLAIN]
    assert 0 < factors.count(1.0) < len(factors)
    assert any(story.norm * story.scale < story.max_norm for story in clipping._PLAIN)


@pytest.mark.parametrize("story", ACCUMULATED, ids=str)
def test_weights_move_as_in_fp64(story):
    """The formulas in the check against autograd and PyTorch's SGD, on a network without FP16."""
    net = story.net().double()
    start = {name: each.detach().clone() for name, each in net.named_parameters()}
    x = torch.cat(story.batches()).double()
    optimizer = story.optimizer(dict(net.named_parameters()))
    for _ in range(story.calls):
        optimizer.zero_grad()
        (story.loss_size * (x @ net.weight[0] + net.bias).square().mean()).backward()
        optimizer.step()
    for name, moved in story.want().items():
        if moved is None:
            assert torch.equal(dict(net.named_parameters())[name].detach(), start[name])
        else:
            got = dict(net.named_parameters())[name].detach() - start[name]
            assert torch.allclose(got, moved, rtol=1e-9, atol=0.0)
            assert moved.abs().min() > 1e-3, "too little to be seen in an FP32 weight"
    for name, momentum in story.momenta().items() if story.momentum else ():
        got = optimizer.state[dict(net.named_parameters())[name]]["momentum_buffer"]
        assert torch.allclose(got, momentum, rtol=1e-9, atol=0.0)


def test_one_loss_overflows_at_the_usual_scale_and_not_at_its_own():
    story = accumulating._OTHERS[-1]
    for scale, fits in ((story.scale, True), (2.0**16, False)):
        net = story.net()
        (net(torch.cat(story.batches())) * scale).backward()
        assert net.weight.grad.isfinite().all().item() is fits


@pytest.mark.parametrize("story", accumulating._PLAIN[:2], ids=str)
def test_without_a_scale_the_weights_rest(story):
    net = story.net()
    (net(torch.cat(story.batches())) / story.micro_batches).backward()
    assert not net.weight.grad.any()
    assert net.bias.grad.isfinite().all()
    assert net.bias.grad.any()


@pytest.mark.parametrize("story", ACCUMULATED, ids=str)
def test_a_scaled_gradient_is_far_from_the_tolerance(story):
    """Rounding to FP16 on the way back must not spend what the check allows."""
    net, x = story.net(), torch.cat(story.batches())
    for share in (1, story.micro_batches):
        net.zero_grad()
        (net(x) * story.scale / share).backward()
        output = x.double() @ net.weight.detach()[0].double() + net.bias.detach().double()
        want = story.loss_size * 2 * (output @ x.double()) / len(x) * story.scale / share
        assert torch.allclose(net.weight.grad[0].double(), want, rtol=accumulating._RTOL / 3, atol=0.0)
        assert math.isfinite(net.weight.grad.sum().item())


@pytest.mark.parametrize("story", [*accumulating._DECAY, *accumulating._MOMENTUM], ids=str)
def test_momentum_and_weight_decay_move_the_weights_by_more_than_the_tolerance(story):
    want = story.want()
    for part in ("decay", "momentum"):
        if getattr(story, part):
            without = story._replace(**{part: 0.0}).want()
            for name, moved in want.items():
                assert (1 - without[name] / moved).abs().min() > 2 * accumulating._RTOL


def test_parameters_have_more_dimensions_than_one_and_fewer():
    for parameters in (
        [each for story in BACKWARD if not story.idle for each in unscaling._Net(story).named.values()],
        [each for story in CLIPPED for each in clipping._Net(story).named.values()],
        [each for story in ACCUMULATED for each in story.net().parameters()],
    ):
        assert {0, 2} <= {each.dim() for each in parameters}
