"""The numbers of a simulated rank, beside PyTorch's."""

import math

import pytest
import torch

from amp_lab.train.ddp_simulator import (
    Backward,
    Clip,
    Forward,
    ProgramError,
    SetGradient,
    Step,
    Unscale,
    Update,
    simulate,
)

INF, NAN = math.inf, math.nan
GRADIENTS = [
    [3.0, 4.0, 0.0],
    [0.3, -0.4, 0.0],
    [NAN, 1.0, 1.0],
    [-INF, 1.0, 0.0],
    [INF, NAN, 1.0],
    [NAN, INF, 0.5],
]


def norm_of(gradients, max_norm, **settings):
    """Return the norm that Clip gives, and the weights after a step of one rank."""
    norms = []

    def loop(rank):
        yield Forward()
        yield Backward(gradients=gradients)
        yield Unscale()
        norms.append((yield Clip(max_norm)))
        yield Step()
        yield Update()

    return norms, simulate(loop, 1, buckets=len(gradients), **settings).weights[0]


@pytest.mark.parametrize("max_norm", [0.25, 5.0, 100.0])
@pytest.mark.parametrize("gradients", GRADIENTS)
def test_clip_is_pytorch_s(gradients, max_norm):
    weights = [torch.nn.Parameter(torch.zeros(1)) for _ in gradients]
    for weight, gradient in zip(weights, gradients, strict=True):
        weight.grad = torch.tensor([gradient])
    norm = torch.nn.utils.clip_grad_norm_(weights, max_norm, foreach=False)
    norms, moved = norm_of(gradients, max_norm, init_scale=None)
    assert norms == pytest.approx([norm.item()], nan_ok=True)
    expected = [0.0 - weight.grad.item() for weight in weights]
    assert moved == pytest.approx(expected, nan_ok=True, rel=1e-6)


def test_clip_under_a_scale():
    assert norm_of([3.0, 4.0], 1.0, init_scale=1024.0) == ([5.0], pytest.approx((-0.6, -0.8), rel=1e-5))
    assert norm_of([3.0, 4.0], 10.0, init_scale=1024.0) == ([5.0], (-3.0, -4.0))


@pytest.mark.parametrize("gradient", [1.0, -1.0, 0.999, -0.999, 2.0**-41, 2.0**-40, 1e-7, NAN, INF, -INF])
def test_scaled_gradients_come_through_fp16(gradient):
    """2.0**-41 at a scale of 65,536 is half of FP16's smallest number, and becomes 0."""
    timeline = simulate([Forward(), Backward(gradients=gradient), Step()], 1, buckets=1)
    scaled = (torch.tensor(gradient, dtype=torch.float64) * 65536).half()
    expected = scaled.float().item() / 65536
    assert timeline.skipped == ((not math.isfinite(expected),),)
    if math.isfinite(expected):
        assert timeline.weights[0] == (-expected,)


def test_an_overflow_keeps_its_sign():
    """-1e6 on one rank and 1e6 on the other are -∞ and ∞ in FP16: their mean is NaN. With one sign it is infinite."""
    for gradients, sign in (((-1e6, 1e6), "0NaN"), ((1e6, 1e6), "0∞"), ((-1e6, -1e6), "0∞")):
        each = [[Forward(), Backward(gradients=gradient)] for gradient in gradients]
        events = simulate(each, buckets=1, init_scale=1.0).events
        assert [event.what for event in events if event.kind == "all-reduce"] == [sign] * 2


def test_without_a_scaler_gradients_keep_fp32():
    timeline = simulate(
        [Forward(), Backward(gradients=[1e6, 2.0**-100, 1 + 2.0**-30]), Step()], 1, buckets=3, init_scale=None
    )
    assert timeline.weights == ((-1e6, -(2.0**-100), -1.0),)


def test_without_a_scaler_update_is_not_needed():
    given = []

    def loop(rank):
        for _ in range(3):
            yield Forward()
            yield Backward(gradients=0.5)
            given.append((yield Unscale()))
            given.append((yield Unscale()))
            given.append((yield Step()))
        given.append((yield Update()))

    timeline = simulate(loop, 1, init_scale=None)
    assert given == [False, False, True] * 3 + [1.0]
    assert timeline.weights == ((-1.5,) * 4,)
    assert timeline.scales == ((1.0, 1.0),)


def test_a_step_throws_its_gradients_away_and_a_micro_batch_adds_to_them():
    micro = [Forward(), Backward(gradients=[1.0, 0.5])]
    settings = {"buckets": 2, "init_scale": 4.0}
    once = simulate([*micro, *micro, Step(), Update(), *micro, Step(), Update()], 1, **settings)
    assert once.weights == ((-3.0, -1.5),)
    with pytest.raises(ProgramError, match="step 1: Step comes before Backward"):
        simulate([*micro, Step(), Update(), Step()], 1, **settings)


def test_what_the_scaler_has_seen_decides():
    """An infinity after Unscale is not seen; one that is overwritten after Unscale was seen."""
    begin = [Forward(), Backward(gradients=0.5)]
    unseen = simulate([*begin, Unscale(), SetGradient(INF, bucket=1), Step(), Update()], 1, buckets=2)
    assert unseen.weights == ((-0.5, -INF),)
    assert unseen.scales == ((65536.0, 65536.0),)
    seen = simulate([*begin, SetGradient(INF), Unscale(), SetGradient(1.0), Step(), Update()], 1, buckets=2)
    assert seen.weights == ((0.0, 0.0),)
    assert seen.scales == ((65536.0, 32768.0),)


def test_the_scale_grows_and_falls():
    def loop(rank):
        for step in range(7):
            yield Forward()
            yield Backward(gradients=INF if step == 3 else 2.0**-10)
            yield Step()
            yield Update()

    (scales,) = simulate(loop, 1, init_scale=8.0, growth_interval=2).scales
    assert scales == (8, 8, 16, 16, 8, 8, 16, 16)


def test_unscale_looks_before_it_divides():
    """At a tiny scale the division itself can overflow. Neither the simulator's scaler nor PyTorch's counts that."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**-113)
    scaler.scale(torch.zeros(1))  # makes the scale
    weight.grad = torch.tensor([1e10])
    scaler.step(optimizer)
    scaler.update()
    loop = [Forward(), Backward(), SetGradient(1e10), Step(), Update()]
    timeline = simulate(loop, 1, buckets=1, init_scale=2.0**-113)
    assert timeline.weights == ((weight.item(),),) == ((-INF,),)
    assert timeline.scales == ((2.0**-113, scaler.get_scale()),) == ((2.0**-113,) * 2,)
