"""Every call at a wrong time, and every wrong argument: an error that names the call and says what to do."""

import copy
import json
import pickle

import numpy as np
import pytest
import torch

from amp_lab.scaling import CallOrderError, DynamicLossScaler, StaticLossScaler
from tests.scaling.loops import BOTH, backward, iterate, parameters
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
    refused(lambda: scaler.unscale_(optimizer), "unscale_: unscale_ was called before")


def test_unscale_after_step(scaler, optimizer):
    backward(scaler, optimizer)
    scaler.step(optimizer)
    refused(lambda: scaler.unscale_(optimizer), "unscale_: step was called before")


def test_step_twice(scaler, optimizer):
    backward(scaler, optimizer)
    scaler.step(optimizer)
    refused(lambda: scaler.step(optimizer), "step: step was called before")


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
    refused(lambda: scaler.step(optimizer), "step: no parameter of this optimizer has a gradient")


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
    ("args", "kwargs"), [((), {"closure": None}), ((), {"closure": lambda: 1}), ((lambda: 1,), {})]
)
def test_closures(scaler, optimizer, args, kwargs):
    backward(scaler, optimizer)
    with pytest.raises(RuntimeError, match="step with a closure"):
        scaler.step(optimizer, *args, **kwargs)
    assert scaler.step(optimizer) is None, "a refused call counts as none"


def test_an_optimizer_that_takes_the_scaler(scaler):
    optimizer = OldFusedSGD(parameters(), lr=0.1)
    backward(scaler, optimizer)
    with pytest.raises(TypeError, match=r"OldFusedSGD\.step takes a grad_scaler"):
        scaler.step(optimizer)


@pytest.mark.parametrize("call", ["step", "unscale_"])
def test_not_an_optimizer(scaler, call):
    loss = torch.ones((), requires_grad=True)
    scaler.scale(loss).backward()
    with pytest.raises(TypeError, match=rf"{call}\(Tensor\): the argument is an optimizer"):
        getattr(scaler, call)(loss)


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
def test_outputs_that_cannot_be_scaled(scaler, outputs, words):
    with pytest.raises(TypeError, match=f"scale: .*{words}"):
        scaler.scale(outputs)


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
        ({"init_scale": "cuda"}, TypeError, "init_scale='cuda'"),
        ({"growth_factor": 1.0}, ValueError, "StaticLossScaler"),
        ({"growth_factor": 0.5}, ValueError, "growth_factor=0.5: .* 1 or more"),
        ({"backoff_factor": 1.0}, ValueError, "StaticLossScaler"),
        ({"backoff_factor": 2.0}, ValueError, "backoff_factor=2.0: .* at most 1"),
        ({"backoff_factor": 0.0}, ValueError, "backoff_factor=0.0"),
        ({"growth_interval": 0}, ValueError, "growth_interval=0"),
        ({"growth_interval": 2.0}, TypeError, "growth_interval=2.0"),
        ({"growth_interval": True}, TypeError, "growth_interval=True"),
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


def test_numbers_of_other_kinds():
    scaler = DynamicLossScaler(np.float32(8), np.float64(4), growth_interval=np.int64(5))
    state = json.loads(json.dumps(scaler.state_dict()))
    assert state["scale"] == 8.0
    assert [type(value) for value in scaler.state_dict().values()] == [float, float, float, int, int]


@pytest.mark.parametrize(
    ("setter", "value"),
    [
        ("set_growth_factor", 0.9),
        ("set_backoff_factor", 1.1),
        ("set_growth_interval", 0),
    ],
)
def test_setters(setter, value):
    scaler = DynamicLossScaler()
    with pytest.raises(ValueError, match=setter[4:]):
        getattr(scaler, setter)(value)
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
    with pytest.raises(KeyError, match=r"_growth_tracker.*missing"):
        scaler.load_state_dict({key: GOOD[key] for key in GOOD if key != "_growth_tracker"})
    for key, value in {
        "scale": -1.0,
        "growth_factor": 0.5,
        "growth_interval": -1,
        "_growth_tracker": -1,
    }.items():
        with pytest.raises(ValueError, match=f"{key}="):
            scaler.load_state_dict(GOOD | {key: value})
    assert scaler.get_scale() == 2.0**16, "a refused state has left something"


def test_a_state_that_changes_is_not_static():
    with pytest.raises(ValueError, match="load it into a DynamicLossScaler"):
        StaticLossScaler(1.0).load_state_dict(GOOD)
    with pytest.raises(ValueError, match="below min_scale"):
        DynamicLossScaler(min_scale=16.0).load_state_dict(GOOD)


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
    return torch.cat([p.detach() for group in optimizer.param_groups for p in group["params"]])
