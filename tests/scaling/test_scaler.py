"""What else a scaler does: outputs of all shapes, states, copies, what fused optimizers are handed."""

import copy
import inspect
import json
import pickle
from typing import NamedTuple

import pytest
import torch

from amp_lab.scaling import DynamicLossScaler, StaticLossScaler
from amp_lab.scaling.reference import unscale_gradients
from amp_lab.scaling.unscaling import search, unscale
from tests.scaling.loops import BOTH, backward, every, iterate, named, parameters
from tests.scaling.optimizers import FusedSGD
from tests.scaling.twins import assert_same_bits, plain

INF, NAN = float("inf"), float("nan")


def test_it_has_the_methods_of_pytorchs():
    theirs = torch.amp.GradScaler
    for name, method in inspect.getmembers(theirs, inspect.isfunction):
        if not name.startswith("_"):
            for ours in (DynamicLossScaler, StaticLossScaler):
                own = inspect.signature(getattr(ours, name)).parameters
                assert list(own) == list(inspect.signature(method).parameters), name
    assert StaticLossScaler(2.0).is_enabled()
    settings = dict(inspect.signature(theirs).parameters)
    del settings["device"], settings["enabled"]
    ours = dict(inspect.signature(DynamicLossScaler).parameters)
    del ours["min_scale"]
    assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in settings.values()]


class Outputs(NamedTuple):
    loss: torch.Tensor
    others: list


@pytest.mark.parametrize("make", BOTH)
def test_outputs(make):
    scaler, one = make(), torch.ones(2)
    scaled = scaler.scale([one, (one, [one.double()]), Outputs(one.half(), [one])])
    assert isinstance(scaled, list)
    assert isinstance(scaled[1], tuple)
    assert isinstance(scaled[2], Outputs)
    assert scaled[1][1][0].dtype == torch.float64
    assert scaled[2].loss.dtype == torch.float16
    for tensor in (scaled[0], scaled[1][0], scaled[1][1][0], scaled[2].loss, scaled[2].others[0]):
        assert (tensor == 1024).all()
    lazy = scaler.scale(one for _ in range(2))
    assert [t.tolist() for t in lazy] == [[1024.0, 1024.0]] * 2
    assert one.tolist() == [1.0, 1.0]


def test_fp16_losses():
    """A vector keeps its dtype and overflows; a 0-dim loss becomes FP32. As in PyTorch."""
    for scaler in (DynamicLossScaler(), torch.amp.GradScaler("cpu")):
        assert scaler.scale(torch.ones(1, dtype=torch.float16)).tolist() == [INF]
        scaled = scaler.scale(torch.ones((), dtype=torch.float16))
        assert (scaled.dtype, scaled.item()) == (torch.float32, 65536.0)


@pytest.mark.parametrize("make", BOTH)
@pytest.mark.parametrize("start", [1.0, INF])
def test_step_returns_what_the_optimizer_returns(make, start):
    scaler, optimizer = make(), torch.optim.SGD(parameters((1,)), lr=0.1)
    seen = []
    optimizer.step = lambda *args, **kwargs: seen.append((args, kwargs)) or 42
    backward(scaler, optimizer, start)
    result = scaler.step(optimizer, 1, more=2)
    assert (result, seen) == ((42, [((1,), {"more": 2})]) if start == 1.0 else (None, []))


@pytest.mark.parametrize("set_by_user", [None, 4.0])
@pytest.mark.parametrize("unscale_first", [False, True])
def test_what_a_fused_optimizer_is_handed(unscale_first, set_by_user):
    """The attributes are PyTorch's in number and type, and are gone afterwards."""
    handed = []
    for scaler in (torch.amp.GradScaler("cpu", init_scale=1024.0), DynamicLossScaler(1024.0)):
        optimizer = FusedSGD(parameters((2,)), lr=0.1)
        for number in (1.0, INF):
            backward(scaler, optimizer, number)
            if unscale_first:
                scaler.unscale_(optimizer)
            if set_by_user:
                optimizer.grad_scale = torch.tensor(set_by_user)
            optimizer.step = lambda optimizer=optimizer: handed.append(
                (optimizer.grad_scale, optimizer.found_inf)
            )
            scaler.step(optimizer)
            assert not hasattr(optimizer, "grad_scale")
            assert not hasattr(optimizer, "found_inf")
            scaler.update()
    theirs, ours = handed[:2], handed[2:]
    for (scale, found), (our_scale, our_found) in zip(theirs, ours, strict=True):
        assert our_found.dtype == found.dtype
        assert our_found.item() == found.item()
        if unscale_first and not set_by_user:
            assert scale is None
            assert our_scale is None
        else:
            assert our_scale.dtype == scale.dtype


def test_a_fused_optimizer_gets_the_scale_on_top_of_its_own():
    scaler, optimizer = DynamicLossScaler(1024.0), FusedSGD(parameters((1,)), lr=0.1)
    backward(scaler, optimizer)
    every(optimizer)[0].grad.mul_(8)
    optimizer.grad_scale = torch.tensor(8.0)
    scaler.step(optimizer)
    torch.testing.assert_close(every(optimizer)[0].detach(), torch.tensor([0.9]))


def gradient_cases():
    generator = torch.Generator().manual_seed(0)
    for bad in (None, INF, -INF, NAN, 3e38, 1e-44):
        for where in range(3):
            some = [torch.randn(shape, generator=generator) for shape in ((4,), (), (3, 2))]
            if bad is not None:
                some[where].view(-1)[-1] = bad
            yield bad, some


@pytest.mark.parametrize("scale", [1.0, 1024.0, 3.3, 2.0**-127, 2.0**127])
def test_the_kernel_does_what_the_readable_loop_does(scale):
    verdicts = set()
    for bad, some in gradient_cases():
        optimizers = []
        for _ in range(2):
            weights = [torch.ones_like(g, requires_grad=True) for g in some]
            for weight, gradient in zip(weights, some, strict=True):
                weight.grad = gradient.clone()
            table = torch.ones(5, 2, requires_grad=True)
            torch.nn.functional.embedding(torch.tensor([1, 1, 4]), table, sparse=True).sum().backward()
            optimizers.append(torch.optim.SGD([*weights, table, torch.ones(2, requires_grad=True)], lr=0.1))
        first, second = optimizers
        scaler = StaticLossScaler(scale)
        scaler.scale(torch.ones(()))
        found = unscale(first, scaler._scale.inverse_on)
        overflowed = unscale_gradients(every(second), scaler.get_scale())
        assert bool(sum(answer.item() for answer in found.values())) is overflowed
        assert overflowed is ((bad is not None and bad in (INF, -INF)) or bad is NAN)
        verdicts.add(overflowed)
        for one, other in zip(every(first), every(second), strict=True):
            assert (one.grad is None) == (other.grad is None)
            if one.grad is not None:
                assert_same_bits(plain(one.grad), plain(other.grad), f"{bad}")
    assert verdicts == {True, False}


def test_searching_changes_nothing():
    optimizer = torch.optim.SGD(parameters((3,), (2,)), lr=0.1)
    for p, number in zip(every(optimizer), (1.5, INF), strict=True):
        p.grad = torch.full_like(p, number)
    (found,) = search(optimizer).values()
    assert found.item() == 1.0
    assert [p.grad.tolist() for p in every(optimizer)] == [[1.5] * 3, [INF] * 2]


def test_sparse_fp16_gradients_are_summed_before_they_are_judged():
    """Two finite values for one row, and a sum that FP16 cannot hold."""
    scaler = DynamicLossScaler(1.0)
    table = torch.ones(4, 1, dtype=torch.float16, requires_grad=True)
    optimizer = FusedSGD([("table", table)], lr=0.1)
    used = torch.nn.functional.embedding(torch.tensor([2, 2]), table, sparse=True)
    scaler.scale((used.float() * 40_000).sum()).backward()
    assert table.grad._values().isfinite().all()
    scaler.step(optimizer)
    assert scaler.last.skipped
    assert [tuple(one) for one in scaler.last.overflowed] == [("table", 1, 0, 1)]
    assert table.grad.is_coalesced(), "the optimizer must get the sums that were judged"
    assert table.grad._values().tolist() == [[INF]]


def test_settings_of_the_default_dtype_do_not_matter():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        for kind in (torch.optim.SGD, FusedSGD):
            scaler, optimizer = DynamicLossScaler(), kind(parameters(), lr=0.1)
            iterate(scaler, optimizer)
            iterate(scaler, optimizer, INF, 1.0)
            assert scaler.get_scale() == 2.0**15
    finally:
        torch.set_default_dtype(before)


# PyTorch says that once in a process, so it cannot be expected here.
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True")
def test_gradients_that_have_gradients():
    """create_graph=True leaves gradients that autograd watches."""
    scaler = DynamicLossScaler(4.0)
    weight = torch.tensor([3.0], requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler.scale((weight**2).sum()).backward(create_graph=True)
    before = type(weight.grad.grad_fn).__name__
    scaler.step(optimizer)
    scaler.update()
    torch.testing.assert_close(weight.detach(), torch.tensor([2.4]))
    assert type(weight.grad.grad_fn).__name__ == before, "unscaling is no part of the graph"
    weight.grad = None


@pytest.mark.parametrize("kind", [torch.optim.SGD, FusedSGD])
def test_states_go_both_ways(kind):
    ours, theirs = DynamicLossScaler(16.0, 4.0, 0.25, 3), torch.amp.GradScaler("cpu", 16.0, 4.0, 0.25, 3)
    optimizer = kind(named((2,)), lr=0.1)
    numbers = [1.0, 1.0, INF, 1.0, 1.0, 1.0, 1.0]
    for number in numbers:
        for scaler in (ours, theirs):
            iterate(scaler, optimizer, number)
    saved = json.dumps(ours.state_dict())
    assert saved == json.dumps(theirs.state_dict())
    loaded, started = DynamicLossScaler(), DynamicLossScaler()
    loaded.load_state_dict(theirs.state_dict())
    iterate(started, optimizer)
    started.load_state_dict(json.loads(saved))
    back = torch.amp.GradScaler("cpu")
    back.load_state_dict(json.loads(saved))
    for number in numbers:
        for scaler in (loaded, started, back):
            iterate(scaler, optimizer, number)
    assert loaded.state_dict() == started.state_dict() == back.state_dict()


def test_a_state_is_a_copy():
    scaler = DynamicLossScaler()
    state = scaler.state_dict()
    state["scale"] = 1.0
    assert scaler.get_scale() == 2.0**16
    other = DynamicLossScaler()
    other.load_state_dict(state)
    state["scale"] = 5.0
    assert other.get_scale() == 1.0


@pytest.mark.parametrize("kind", [torch.optim.SGD, FusedSGD])
def test_going_back_to_another_scale(kind):
    scaler, optimizer = DynamicLossScaler(2.0**20), kind(named((2,)), lr=0.0)
    iterate(scaler, optimizer)
    scaler.load_state_dict(DynamicLossScaler(8.0).state_dict())
    backward(scaler, optimizer)
    assert every(optimizer)[0].grad.tolist() == [8.0, 8.0]
    scaler.unscale_(optimizer)
    assert every(optimizer)[0].grad.tolist() == [1.0, 1.0]


def test_loading_begins_an_iteration_anew():
    """After a crash in mid-iteration a checkpoint can be loaded into the same scaler."""
    scaler, optimizer = DynamicLossScaler(), torch.optim.SGD(parameters(), lr=0.1)
    state = scaler.state_dict()
    backward(scaler, optimizer)
    scaler.unscale_(optimizer)
    scaler.load_state_dict(state)
    iterate(scaler, optimizer)
    torch.testing.assert_close(every(optimizer)[0].detach(), torch.full((3,), 0.9))


@pytest.mark.parametrize("kind", [torch.optim.SGD, FusedSGD])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda scaler: pickle.loads(pickle.dumps(scaler))])
def test_copies(kind, copied):
    scaler, optimizer = DynamicLossScaler(8.0, growth_interval=3, min_scale=0.5), kind(named((2,)), lr=0.1)
    for number in (1.0, INF, 1.0):
        iterate(scaler, optimizer, number)
    twin = copied(scaler)
    assert twin.state_dict() == scaler.state_dict()
    assert twin.last is None
    for number in (1.0, 1.0, INF):
        for one in (scaler, twin):
            iterate(one, optimizer, number)
    assert twin.history == scaler.history
    assert len(twin.history) == 6
    assert twin.last.skipped
    twin.history.clear()
    assert len(scaler.history) == 6
    assert twin._scale.rule.min_scale == 0.5


def test_a_static_copy():
    twin = copy.deepcopy(StaticLossScaler(3.0))
    assert repr(twin) == "StaticLossScaler(3.0)"
    assert repr(DynamicLossScaler()) == "DynamicLossScaler: scale 65,536, 0 of 2,000 clean steps"
    fresh = StaticLossScaler(1.0)
    fresh.load_state_dict(json.loads(json.dumps(twin.state_dict())))
    assert fresh.get_scale() == 3.0


def test_a_scale_is_an_fp32_number_from_the_start():
    assert DynamicLossScaler(0.1).get_scale() == torch.tensor(0.1).item()
