"""Gradients of which a part is scaled and a part is not, and iterations that were broken off: found, and left again."""

import contextlib
import copy
import itertools
import pickle

import pytest
import torch

from amp_lab.scaling import CallOrderError, DynamicLossScaler, LossScaleTooSmall
from tests.scaling.loops import BOTH, backward, every, iterate, parameters
from tests.scaling.optimizers import FusedSGD

KINDS = [torch.optim.SGD, FusedSGD]
PAIRS = list(itertools.product(KINDS, KINDS))
NAN = float("nan")


@pytest.fixture(params=BOTH, ids=["dynamic", "static"])
def scaler(request):
    return request.param()


def make(kind=torch.optim.SGD):
    return kind(parameters((2,)), lr=0.1)


def weights(optimizer):
    return torch.cat([p.detach().flatten() for p in every(optimizer)])


def fail(scaler, optimizer):
    """Call step, and let the optimizer fail."""
    good, optimizer.step = optimizer.step, lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        scaler.step(optimizer)
    optimizer.step = good


def refused(call):
    with pytest.raises(
        CallOrderError, match=r"^step: backward\(\) of a scaled loss has run after .*begin again"
    ):
        call()


# What leaves an optimizer with unscaled gradients.
UNSCALED = {
    "unscale_": lambda scaler, optimizer: scaler.unscale_(optimizer),
    "a step that failed": fail,
    "both": lambda scaler, optimizer: (scaler.unscale_(optimizer), fail(scaler, optimizer)),
}
# What leaves scaled gradients in an optimizer.
MORE = {
    "others": backward,
    "added": lambda scaler, optimizer: scaler.scale(every(optimizer)[0].sum()).backward(),
    "zeroed, others": lambda scaler, optimizer: (
        optimizer.zero_grad(set_to_none=False),
        scaler.scale(every(optimizer)[0].sum()).backward(),
    ),
    "added, clipped": lambda scaler, optimizer: (
        scaler.scale(every(optimizer)[0].sum()).backward(),
        torch.nn.utils.clip_grad_norm_(every(optimizer), 1.0),
    ),
    "among others": lambda scaler, optimizer: torch.autograd.backward(
        scaler.scale([every(optimizer)[0].sum(), (torch.ones(2, requires_grad=True).sum(),)])[0]
    ),
}


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (torch.optim.SGD, "unscale_"),
        (
            torch.optim.SGD,
            "a step that failed",
        ),  # after which a fused one, which unscales by itself, may begin anew
        (torch.optim.SGD, "both"),
        (FusedSGD, "unscale_"),
        (FusedSGD, "both"),
    ],
)
@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
def test_scaled_gradients_on_unscaled_ones(scaler, kind, how, more):
    """PyTorch makes a step that is too long by the scale, and says nothing."""
    optimizer = make(kind)
    backward(scaler, optimizer)
    UNSCALED[how](scaler, optimizer)
    more(scaler, optimizer)
    before = weights(optimizer)
    refused(lambda: scaler.step(optimizer))
    refused(lambda: scaler.step(optimizer))
    assert torch.equal(weights(optimizer), before)
    scaler.update()  # as the message says
    iterate(scaler, optimizer)
    torch.testing.assert_close(weights(optimizer), before - 0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_loss_that_was_scaled_before(scaler, kind):
    optimizer = make(kind)
    first, second = scaler.scale([every(optimizer)[0].sum(), every(optimizer)[0].sum()])
    first.backward()
    scaler.unscale_(optimizer)
    second.backward()
    refused(lambda: scaler.step(optimizer))


@pytest.mark.parametrize("kind", KINDS)
def test_unscale_before_backward(scaler, kind):
    optimizer = make(kind)
    loss = scaler.scale(every(optimizer)[0].sum())
    scaler.unscale_(optimizer)
    loss.backward()
    refused(lambda: scaler.step(optimizer))
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    torch.testing.assert_close(weights(optimizer), torch.full((2,), 0.9))


def test_a_fused_step_that_failed_is_forgotten(scaler):
    optimizer = make(FusedSGD)
    backward(scaler, optimizer)
    fail(scaler, optimizer)
    iterate(scaler, optimizer)
    torch.testing.assert_close(weights(optimizer), torch.full((2,), 0.9))


# Loops that are right, some of them unusual. Each gets a scaler and two optimizers, of which each shall make one step
# with a gradient of 1.


def both_then_both(scaler, first, second):
    for one in (first, second):
        backward(scaler, one)
        scaler.unscale_(one)
    for one in (first, second):
        torch.nn.utils.clip_grad_norm_(every(one), 100.0)
    for one in (first, second):
        scaler.step(one)
    scaler.update()


def one_after_the_other(scaler, first, second):
    """As in a GAN: the second loss also reaches the first optimizer's parameters, which have had their step."""
    backward(scaler, first)
    scaler.unscale_(first)
    scaler.step(first)
    second.zero_grad()
    scaler.scale((every(first)[0] + every(second)[0]).sum()).backward()
    scaler.unscale_(second)
    scaler.step(second)
    scaler.update()


def accumulated(scaler, first, second):
    for one in (first, second):
        one.zero_grad()
        for _ in range(4):
            scaler.scale(every(one)[0].sum() / 4).backward()
        scaler.unscale_(one)
        scaler.step(one)
    scaler.update()


def with_a_penalty(scaler, first, second):
    """A penalty needs gradients of its own, of a scaled loss; here it comes when the others are unscaled."""
    for one in (first, second):
        backward(scaler, one, 0.5)
        scaler.unscale_(one)
        (weight,) = every(one)
        (scaled,) = torch.autograd.grad(scaler.scale((weight**2).sum()), weight, create_graph=True)
        penalty = (scaled / scaler.get_scale()).square().sum()  # 4 w^2
        (penalty / 16).backward()
        scaler.step(one)
    scaler.update()


def with_gradients_put_in_place(scaler, first, second):
    """Gradients of several losses are joined by hand."""
    for one in (first, second):
        backward(scaler, one)
        scaler.unscale_(one)
        kept = every(one)[0].grad
        backward(scaler, one, 3.0)
        every(one)[0].grad = (kept + every(one)[0].grad / scaler.get_scale()) / 4
        scaler.step(one)
    scaler.update()


def step_again(scaler, first, second):
    backward(scaler, first)
    fail(scaler, first)
    backward(scaler, second)
    scaler.step(first)
    scaler.step(second)
    scaler.update()


def without_a_graph(scaler, first, second):
    for one in (first, second):
        backward(scaler, one)
        scaler.unscale_(one)
        with torch.no_grad():
            scaler.scale(every(one)[0].sum())
        scaler.step(one)
    scaler.update()


RIGHT = [
    both_then_both,
    one_after_the_other,
    accumulated,
    with_a_penalty,
    with_gradients_put_in_place,
    step_again,
    without_a_graph,
]


@pytest.mark.parametrize("kinds", PAIRS)
@pytest.mark.parametrize("loop", RIGHT)
def test_right_loops(scaler, kinds, loop):
    first, second = map(make, kinds)
    for result in (0.9, 0.8):
        if loop is with_a_penalty:  # whose gradient is 0.5 + w / 2
            result = 0.9 if result == 0.9 else 0.9 - 0.1 * (0.5 + 0.45)
        loop(scaler, first, second)
        for one in (first, second):
            torch.testing.assert_close(weights(one), torch.full((2,), result))
    assert scaler.history.skipped == [False, False]


@pytest.mark.parametrize("kinds", PAIRS)
def test_a_second_loss_that_reaches_the_first_optimizer_too_early(scaler, kinds):
    """The same GAN, wrong: the first optimizer has not made its step."""
    first, second = map(make, kinds)
    backward(scaler, first)
    scaler.unscale_(first)
    scaler.scale((every(first)[0] + every(second)[0]).sum()).backward()
    scaler.step(second)
    refused(lambda: scaler.step(first))


def interrupted_step(scaler, optimizer):
    good, optimizer.step = optimizer.step, lambda: 1 / 0
    try:
        with contextlib.suppress(ZeroDivisionError):
            scaler.step(optimizer)
    finally:
        optimizer.step = good


# Where an iteration may be broken off.
PLACES = {
    "after backward": [],
    "after unscale_": [DynamicLossScaler.unscale_],
    "in step": [interrupted_step],
    "in step after unscale_": [DynamicLossScaler.unscale_, interrupted_step],
    "after step": [DynamicLossScaler.step],
}


def whole(scaler, optimizer):
    backward(scaler, optimizer)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [1.0, NAN, None], ids=["finite", "NaN", "no gradient"])
@pytest.mark.parametrize("calls", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("loop", [iterate, whole])
@pytest.mark.parametrize("way_out", ["update", "load"])
def test_ways_out_of_an_iteration_that_was_broken_off(kind, number, calls, loop, way_out):
    """A cell was interrupted, and is run again: if that is an error, it names a way out, and the way leads out."""
    scaler, optimizer, other = DynamicLossScaler(), make(kind), torch.ones(1, requires_grad=True)
    backward(scaler, optimizer, number) if number else scaler.scale(other.sum()).backward()
    with contextlib.suppress(CallOrderError):  # no gradient
        for call in calls:
            call(scaler, optimizer)
    before = weights(optimizer)
    must_leave = is_refused(loop, scaler, optimizer)
    if must_leave:
        leave(scaler, way_out, has_gradients=number is not None)
        loop(scaler, optimizer)
    assert torch.equal(weights(optimizer), before - 0.1)
    if number and calls and not (kind is FusedSGD and calls == [interrupted_step]):
        assert must_leave, "the broken iteration was forgotten"


def is_refused(loop, scaler, optimizer):
    try:
        loop(scaler, optimizer)
    except CallOrderError as error:
        return "If an iteration was broken off, call scaler.update() and begin again" in str(error)
    return False


def leave(scaler, way_out, has_gradients):
    if way_out == "load":
        scaler.load_state_dict(scaler.state_dict())
    elif has_gradients:
        scaler.update()
    else:
        with pytest.raises(CallOrderError, match="no optimizer was stepped or unscaled"):
            scaler.update()


def test_the_way_out_may_be_the_end():
    scaler, optimizer = DynamicLossScaler(1.0, min_scale=1.0), make()
    backward(scaler, optimizer, NAN)
    scaler.unscale_(optimizer)
    with pytest.raises(LossScaleTooSmall):
        scaler.update()
    iterate(scaler, optimizer)


def test_the_error_can_be_sent_and_copied(scaler):
    """A process that raises it hands it to another by pickle."""
    with pytest.raises(CallOrderError) as caught:
        scaler.update()
    for twin in (pickle.loads(pickle.dumps(caught.value)), copy.copy(caught.value)):
        assert type(twin) is CallOrderError
        assert str(twin) == str(caught.value) != ""
