"""Every call at a wrong time, and every wrong argument: an error that names the call and says what to do."""

import contextlib
import copy
import json
import pickle

import numpy as np
import pytest
import torch

from amp_lab.scaling import CallOrderError, DynamicLossScaler, StaticLossScaler, simulate
from tests.scaling.loops import BOTH, backward, every, iterate, parameters
from tests.scaling.optimizers import FusedSGD, OldFusedSGD

OPTIMIZERS = [
    lambda: torch.optim.SGD(parameters(), lr=0.1),
    lambda: torch.optim.AdamW(parameters(), lr=0.1, fused=True),
]


@pytest.fixture(params=BOTH, ids=["dynamic", "static"])
def scaler(request):
    return request.param()


@pytest.fixture(params=OPTIMIZERS, ids=["SGD", "fused"])
def optimizer(request):
    return request.param()


def refused(call, *names):
    with pytest.raises(CallOrderError) as caught:
        call()
    message = str(caught.value)
    for name in names:
        assert name in message
    # Every message ends with the whole order.
    places = [message.rindex(name) for name in ("scale(loss).backward()", "unscale_(", "step(", "update()")]
    assert places == sorted(places)


@pytest.mark.parametrize("call", ["step", "unscale_"])
def test_no_loss_was_ever_scaled(scaler, optimizer, call):
    for p in optimizer.param_groups[0]["params"]:
        p.grad = torch.ones_like(p)
    refused(lambda: getattr(scaler, call)(optimizer), f"{call}: no loss was scaled")


def test_update_before_everything(scaler):
    refused(scaler.update, "update: no loss was scaled yet")
    refused(lambda: scaler.update(2.0), "update: no loss was scaled yet")


@pytest.mark.parametrize("call", ["step", "unscale_"])
def test_backward_on_the_unscaled_loss(scaler, optimizer, call):
    """PyTorch divides such gradients by a scale that they were never multiplied by, and says nothing."""
    iterate(scaler, optimizer)
    (optimizer.param_groups[0]["params"][0] * 2).sum().backward()
    refused(lambda: getattr(scaler, call)(optimizer), call, "no loss was scaled since the last update()")


def test_update_between_two_optimizers(scaler):
    """PyTorch unscales the second one by another scale, and says nothing."""
    first, second = OPTIMIZERS[0](), OPTIMIZERS[0]()
    backward(scaler, first)
    backward(scaler, second)
    scaler.step(first)
    scaler.update()
    refused(
        lambda: scaler.step(second), "no loss was scaled since the last update()", "once for all optimizers"
    )


def test_unscale_twice(scaler, optimizer):
    backward(scaler, optimizer)
    scaler.unscale_(optimizer)
    refused(
        lambda: scaler.unscale_(optimizer), "unscale_: unscale_ or step has already unscaled", "begin again"
    )


def test_unscale_after_step(scaler, optimizer):
    backward(scaler, optimizer)
    scaler.step(optimizer)
    refused(lambda: scaler.unscale_(optimizer), "unscale_: step was called before", "begin again")


def test_step_twice(scaler, optimizer):
    backward(scaler, optimizer)
    scaler.step(optimizer)
    refused(lambda: scaler.step(optimizer), "step: step was called before", "begin again")


def test_update_is_missing(scaler, optimizer):
    backward(scaler, optimizer)
    scaler.step(optimizer)
    backward(scaler, optimizer)
    refused(lambda: scaler.step(optimizer), "since the last update()")


def test_update_without_a_step(scaler, optimizer):
    backward(scaler, optimizer)
    refused(scaler.update, "update: no optimizer was stepped or unscaled")
    scaler.step(optimizer)
    scaler.update()
    refused(scaler.update, "update: no optimizer was stepped or unscaled")


def test_a_loss_scaled_by_an_old_scale(scaler, optimizer):
    """Autograd notices, as it does with PyTorch's scaler: the scale is written in place."""
    late = scaler.scale(optimizer.param_groups[0]["params"][0].sum())
    iterate(scaler, optimizer)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        late.backward()


def test_no_gradients(scaler):
    optimizer, other = OPTIMIZERS[0](), torch.ones(1, requires_grad=True)
    scaler.scale(other.sum()).backward()
    refused(lambda: scaler.step(optimizer), "step: no parameter of this optimizer had a gradient")
    before = every_weight(optimizer)
    iterate(scaler, optimizer)
    torch.testing.assert_close(every_weight(optimizer), before - 0.1)


def test_no_gradients_of_a_fused_optimizer(scaler):
    """Here PyTorch goes on, and so do we; but an update needs an optimizer with gradients."""
    optimizer, other = OPTIMIZERS[1](), torch.ones(1, requires_grad=True)
    scaler.scale(other.sum()).backward()
    assert scaler.step(optimizer) is None
    assert scaler.last.stepped
    refused(scaler.update, "update: no optimizer was stepped")


@pytest.mark.parametrize("call", ["step", "unscale_"])
def test_fp16_gradients(scaler, call):
    weights, half = parameters((3,)) + parameters((2, 5), dtype=torch.float16)
    optimizer = torch.optim.SGD([weights, half], lr=0.1)
    backward(scaler, optimizer)
    before = weights.grad.clone()
    with pytest.raises(ValueError, match=r"parameter 1 of group 0, shape \(2, 5\), has an FP16 gradient"):
        getattr(scaler, call)(optimizer)
    assert torch.equal(weights.grad, before), "unscaled half of them"


@pytest.mark.parametrize(
    ("args", "kwargs"), [((), {"closure": lambda: 1}), ((lambda: 1,), {}), ((lambda: 1,), {"more": 2})]
)
def test_closures(scaler, optimizer, args, kwargs):
    backward(scaler, optimizer)
    with pytest.raises(RuntimeError, match="step with a closure"):
        scaler.step(optimizer, *args, **kwargs)
    assert scaler.step(optimizer) is None, "a refused call counts as none"


@pytest.mark.parametrize(("args", "kwargs"), [((), {"closure": None}), ((None,), {})])
def test_no_closure_is_none(scaler, optimizer, args, kwargs):
    before = every_weight(optimizer)
    backward(scaler, optimizer)
    assert scaler.step(optimizer, *args, **kwargs) is None
    assert (every_weight(optimizer) < before).all()


def test_an_optimizer_that_needs_a_closure(scaler):
    """It is refused before its gradients are divided."""
    optimizer = torch.optim.LBFGS(parameters((2,)))
    backward(scaler, optimizer)
    with pytest.raises(RuntimeError, match=r"need a closure \(LBFGS\)"):
        scaler.step(optimizer)
    assert every(optimizer)[0].grad.tolist() == [1024.0, 1024.0]


def test_wrapped_optimizers(scaler):
    """Some tools put an object in front of the optimizer, whose class has no step of its own."""
    optimizer = OPTIMIZERS[0]()
    before = every_weight(optimizer)
    iterate(scaler, Wrapped(optimizer))
    torch.testing.assert_close(every_weight(optimizer), before - 0.1)


class Wrapped:
    def __init__(self, optimizer):
        self.optimizer = optimizer

    def __getattr__(self, name):
        return getattr(self.optimizer, name)


def test_an_optimizer_that_takes_the_scaler(scaler):
    optimizer = OldFusedSGD(parameters(), lr=0.1)
    backward(scaler, optimizer)
    with pytest.raises(TypeError, match=r"OldFusedSGD\.step takes a grad_scaler"):
        scaler.step(optimizer)


@pytest.mark.parametrize("call", ["step", "unscale_", "last_for"])
@pytest.mark.parametrize("thing", [torch.ones(()), torch.nn.Linear(1, 1), None])
def test_not_an_optimizer(scaler, call, thing):
    scaler.scale(torch.ones(()))
    words = f"^{call}: the argument must be an optimizer, not a {type(thing).__name__}$"
    with pytest.raises(TypeError, match=words):
        getattr(scaler, call)(thing)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ({"loss": torch.ones(1)}, "not a dict: scale its values"),
        ("loss", "not a str"),
        (1.0, "not a float"),
        (None, "not a NoneType"),
        ([torch.ones(1), 2.0], "not a float"),
    ],
)
def test_outputs_that_cannot_be_scaled(scaler, optimizer, outputs, words):
    with pytest.raises(TypeError, match=f"scale: .*{words}"):
        scaler.scale(outputs)
    nothing_was_scaled(scaler, optimizer)


@pytest.mark.parametrize("outputs", [[], (), [[], ()], [torch.ones(1), 2.0]])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_call_of_scale_that_scales_nothing_begins_no_iteration(scaler, optimizer, outputs, is_first):
    if not is_first:
        iterate(scaler, optimizer)
    with contextlib.suppress(TypeError):
        scaler.scale(outputs)
    nothing_was_scaled(scaler, optimizer)


def test_a_refused_call_of_scale_takes_nothing_back(scaler, optimizer):
    backward(scaler, optimizer)
    with pytest.raises(TypeError):
        scaler.scale("loss")
    scaler.step(optimizer)
    assert scaler.last.stepped


def test_outputs_are_scaled_when_an_iterator_is_asked_for_them(scaler, optimizer):
    (weight, *_), lazy = every(optimizer), scaler.scale(p.sum() for p in every(optimizer))
    weight.grad = torch.ones_like(weight)
    nothing_was_scaled(scaler, optimizer)
    optimizer.zero_grad()
    next(iter(lazy)).backward()
    scaler.step(optimizer)
    torch.testing.assert_close(weight.detach(), torch.full((3,), 0.9), atol=1e-3, rtol=0)


def nothing_was_scaled(scaler, optimizer):
    for p in every(optimizer):
        p.grad = torch.ones_like(p)
    for call in (scaler.unscale_, scaler.step):
        refused(lambda call=call: call(optimizer), "no loss was scaled")
    assert all((p.grad == 1).all() for p in every(optimizer)), "a refused call has divided"


@pytest.mark.parametrize("new", [0.0, -1.0, float("inf"), float("nan"), 1e39, 1e-50, 10**400])
def test_new_scale_out_of_range(scaler, optimizer, new):
    backward(scaler, optimizer)
    with pytest.raises(ValueError, match="new_scale="):
        scaler.update(new)
    assert scaler.get_scale() == 1024.0


@pytest.mark.parametrize(
    "new", ["2", True, torch.ones(2), torch.ones(1, requires_grad=True)], ids=["text", "bool", "two", "grad"]
)
def test_new_scale_of_a_wrong_kind(scaler, optimizer, new):
    backward(scaler, optimizer)
    with pytest.raises(TypeError, match="new_scale"):
        scaler.update(new)


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"init_scale": 0}, ValueError, "init_scale=0"),
        ({"init_scale": -2.0}, ValueError, "init_scale=-2.0"),
        ({"init_scale": float("nan")}, ValueError, "init_scale=nan"),
        ({"init_scale": 1e39}, ValueError, "FP32 has none"),
        ({"init_scale": 1e-46}, ValueError, "FP32 has none"),
        ({"init_scale": None}, TypeError, "init_scale=None: must be a number, like 2.0$"),
        ({"init_scale": "cuda"}, TypeError, "leave out the device and the enabled of a GradScaler"),
        ({"init_scale": torch.device("cpu")}, TypeError, "leave out the device"),
        ({"init_scale": torch.ones(1)}, TypeError, r"init_scale=tensor\(\[1.\]\): must be .*\.item\(\)"),
        ({"growth_factor": 1.0}, ValueError, "StaticLossScaler"),
        ({"growth_factor": torch.ones(99)}, TypeError, "growth_factor=tensor.{,45}…: must be a number"),
        ({"growth_factor": 0.5}, ValueError, "growth_factor=0.5: .* 1 or more"),
        ({"backoff_factor": 1.0}, ValueError, "StaticLossScaler"),
        ({"backoff_factor": 2.0}, ValueError, "backoff_factor=2.0: .* at most 1"),
        ({"backoff_factor": 0.0}, ValueError, "backoff_factor=0.0"),
        ({"growth_interval": 0}, ValueError, "growth_interval=0"),
        ({"growth_interval": 2.0}, TypeError, "growth_interval=2.0"),
        ({"growth_interval": True}, TypeError, "growth_interval=True"),
        ({"growth_interval": 2**63}, ValueError, "must be at most 9,223,372,036,854,775,807"),
        ({"min_scale": 0.0}, ValueError, "min_scale=0.0"),
        ({"init_scale": 1.0, "min_scale": 2.0}, ValueError, "below min_scale=2.0"),
    ],
)
def test_settings(settings, error, words):
    with pytest.raises(error, match=words):
        DynamicLossScaler(**settings)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), 1e39])
def test_static_scale_out_of_range(scale):
    with pytest.raises(ValueError, match="scale="):
        StaticLossScaler(scale)


def test_numbers_of_more_digits_than_python_writes():
    digits = "<a whole number of thousands of digits>: must be"
    for make in (DynamicLossScaler, StaticLossScaler):
        with pytest.raises(ValueError, match=f"scale={digits} above 0 and finite"):
            make(10**5000)
    with pytest.raises(ValueError, match=f"growth_interval={digits} at most"):
        DynamicLossScaler(growth_interval=10**5000)
    with pytest.raises(TypeError, match=rf"peaks\[0\] is {digits} one number"):
        simulate([10**5000])


def test_a_static_scale_has_an_inverse():
    """1/scale is what gradients are multiplied by, so it must not be infinite in FP32."""
    least = 2.0**-128 * (1 + 2.0**-20)
    scaler, weight = StaticLossScaler(least), torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    iterate(scaler, optimizer)
    torch.testing.assert_close(weight.detach(), torch.tensor([0.9]), atol=1e-5, rtol=0)
    backward(scaler, optimizer)
    state = scaler.state_dict()
    for small in (2.0**-128, 1e-45):
        calls = {
            "scale": lambda small=small: StaticLossScaler(small),
            "new_scale": lambda small=small: scaler.update(small),
            "load_state_dict: scale": lambda small=small: scaler.load_state_dict(state | {"scale": small}),
        }
        for name, call in calls.items():
            with pytest.raises(ValueError, match=f"^{name}=.* multiplied by 1/scale"):
                call()
    with pytest.raises(ValueError, match=r"load_state_dict: scale=0\.0"):
        scaler.load_state_dict(state | {"scale": 0.0})
    assert scaler.get_scale() == pytest.approx(least)


def test_numbers_of_other_kinds():
    scaler = DynamicLossScaler(np.float32(8), np.float64(4), growth_interval=np.int64(5))
    state = json.loads(json.dumps(scaler.state_dict()))
    assert state["scale"] == 8.0
    assert [type(value) for value in scaler.state_dict().values()] == [float, float, float, int, int]


@pytest.mark.parametrize(
    ("setter", "value"),
    [
        ("set_growth_factor", 0.9),
        ("set_growth_factor", 1),
        ("set_backoff_factor", 1.1),
        ("set_backoff_factor", 1.0),
        ("set_growth_interval", 0),
    ],
)
def test_setters(setter, value):
    scaler = DynamicLossScaler()
    with pytest.raises(ValueError, match=setter[4:]):
        getattr(scaler, setter)(value)
    assert scaler.state_dict() == DynamicLossScaler().state_dict()
    with pytest.raises(TypeError, match="does not change; use a DynamicLossScaler"):
        getattr(StaticLossScaler(1.0), setter)(value)


GOOD = {
    "scale": 8.0,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 5,
    "_growth_tracker": 3,
}


def test_states_that_are_none():
    scaler = DynamicLossScaler()
    with pytest.raises(RuntimeError, match="load_state_dict: the state is empty"):
        scaler.load_state_dict({})
    for thing in (None, [1], "state", scaler):
        with pytest.raises(TypeError, match=f"the state must be a dict, .* not a {type(thing).__name__}"):
            scaler.load_state_dict(thing)
    with pytest.raises(KeyError, match=r"_growth_tracker.*missing"):
        scaler.load_state_dict({key: GOOD[key] for key in GOOD if key != "_growth_tracker"})
    for key, value in [
        ("scale", -1.0),
        ("growth_factor", 0.5),
        ("growth_factor", 10**5000),
        ("growth_interval", -1),
        ("_growth_tracker", -1),
        ("_growth_tracker", 2**31),
    ]:
        with pytest.raises(ValueError, match=f"{key}="):
            scaler.load_state_dict(GOOD | {key: value})
    assert scaler.get_scale() == 2.0**16, "a refused state has left something"


def test_a_state_that_changes_is_not_static():
    with pytest.raises(ValueError, match="load it into a DynamicLossScaler"):
        StaticLossScaler(1.0).load_state_dict(GOOD)
    scaler = DynamicLossScaler()
    for state in (
        StaticLossScaler(1.0).state_dict(),
        GOOD | {"growth_factor": 1.0},
        GOOD | {"backoff_factor": 1.0},
    ):
        with pytest.raises(ValueError, match="use a StaticLossScaler"):
            scaler.load_state_dict(state)
    assert scaler.state_dict() == DynamicLossScaler().state_dict()


def test_a_state_below_the_floor():
    scaler = DynamicLossScaler(min_scale=16.0)
    with pytest.raises(
        ValueError, match=r"scale=8\.0 is below min_scale=16\.0: .* made with a smaller min_scale"
    ):
        scaler.load_state_dict(GOOD)
    with pytest.raises(ValueError, match=r"scale=0\.0 is below min_scale"):
        scaler.load_state_dict(GOOD | {"scale": 0.0})
    assert scaler.get_scale() == 2.0**16


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
def test_copies_in_mid_iteration(scaler, optimizer, copied):
    backward(scaler, optimizer)
    scaler.unscale_(optimizer)
    refused(lambda: copied(scaler), "pickle or deepcopy", "after update()")


def test_a_failed_step_is_no_step(scaler):
    """As with PyTorch the call can be made again; the gradients are not unscaled twice."""
    optimizer = FusedSGD(parameters((2,)), lr=0.1)
    plain = torch.optim.SGD(parameters((2,)), lr=0.1)
    for one in (optimizer, plain):
        backward(scaler, one)
        good, one.step = one.step, lambda: 1 / 0
        with pytest.raises(ZeroDivisionError):
            scaler.step(one)
        assert not hasattr(one, "found_inf")
        assert not hasattr(one, "grad_scale")
        one.step = good
        scaler.step(one)
        torch.testing.assert_close(every_weight(one), torch.full((2,), 0.9))
    scaler.update()


def every_weight(optimizer):
    return torch.cat([p.detach().flatten() for group in optimizer.param_groups for p in group["params"]])
