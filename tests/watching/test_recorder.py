"""What the recorder notes of real loops, call by call."""

import copy
import io
import pickle
from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from torch.optim import lr_scheduler

from amp_lab.scaling import DynamicLossScaler, StaticLossScaler
from amp_lab.watching.recording.events import (
    Averaged,
    Backward,
    Clipped,
    Forward,
    Gradients,
    RegionEntered,
    RegionLeft,
    Saved,
    Scaled,
    ScaleRead,
    ScalerMade,
    Scheduled,
    StateLoaded,
    StateTaken,
    Stepped,
    Unscaled,
    Updated,
    ZeroGrad,
)
from amp_lab.watching.watch import watch

X = torch.linspace(-1, 1, 32).reshape(4, 8)
NONE, ZERO, TRUE, SCALED, UNSCALED, MIXED = Gradients


def parts(kind=torch.optim.SGD, scale=1024.0, **settings):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    optimizer = kind(model.parameters(), **{"lr": 0.01, **settings})
    return model, optimizer, torch.amp.GradScaler("cpu", init_scale=scale)


def step(model, optimizer, scaler, factor=1.0):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.float16):
        loss = model(X).float().square().mean()
    scaler.scale(loss * factor).backward()
    scaler.step(optimizer)
    scaler.update()


def kinds(run):
    return [type(event).__name__ for event in run.events if type(event).__name__ != "Noticed"]


def test_a_whole_step():
    model, optimizer, scaler = parts()
    with watch(model, optimizer, scaler) as seen:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = nn.functional.mse_loss(model(X), torch.zeros(4, 4)) / 4
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
    run = seen.run
    assert kinds(run) == [
        "ZeroGrad",
        "RegionEntered",
        "Forward",
        "RegionLeft",
        "Scaled",
        "Backward",
        "Unscaled",
        "Clipped",
        "Stepped",
        "Updated",
    ]
    assert {event.step for event in run.events} == {1}
    assert run.notes == ()
    (entered,), (left,), (forward,) = (list(run.of(kind)) for kind in (RegionEntered, RegionLeft, Forward))
    assert (entered.device_type, entered.dtype, entered.enabled, entered.asked) == (
        "cpu",
        torch.float16,
        True,
        True,
    )
    assert entered.regions == ()
    assert forward.regions == (entered.region,)
    assert left.region == entered.region
    assert (forward.autocast, forward.inputs, forward.training) == (
        torch.float16,
        ((torch.float32, (4, 8)),),
        True,
    )
    assert forward.outputs == ((torch.float16, (4, 4)),)
    assert not forward.raised
    (scaled,), (backward,), (unscaled,) = (list(run.of(kind)) for kind in (Scaled, Backward, Unscaled))
    assert (scaled.divided_by, scaled.scale.value, scaled.finite.value) == (4.0, 1024.0, True)
    assert scaled.made_by == "DivBackward0"
    assert not scaled.averaged
    assert backward.losses == (scaled.result,)
    assert backward.exactly
    assert backward.scaled_by == 0
    assert (backward.before, backward.after, backward.touched) == ((NONE,), (SCALED,), (0,))
    assert (unscaled.before, unscaled.found_inf.value, unscaled.by_step) == (SCALED, False, False)
    (clipped,), (stepped,), (updated,) = (list(run.of(kind)) for kind in (Clipped, Stepped, Updated))
    assert (clipped.how, clipped.state, clipped.limit, clipped.norm.value) == (
        "norm",
        UNSCALED,
        0.5,
        norm.item(),
    )
    assert (clipped.parameters, clipped.of_all, clipped.optimizers) == (4, 4, (0,))
    assert (stepped.state, stepped.ran, stepped.skipped.value, stepped.with_gradient) == (
        UNSCALED,
        True,
        False,
        4,
    )
    assert (updated.before.value, updated.after.value) == (1024.0, 1024.0)
    assert stepped.where.text == "scaler.step(optimizer)"
    assert stepped.where.file == __file__
    assert dict(stepped.names) == {"optimizer": "optimizer", "scaler": "scaler", "model": "model"}


def test_steps_and_what_follows_them():
    model, optimizer, scaler = parts()
    schedule = lr_scheduler.StepLR(optimizer, 1)
    with watch(model, optimizer, scaler) as seen:
        for _ in range(3):
            step(model, optimizer, scaler)
            schedule.step()
    assert [event.step for event in seen.run.of(Scheduled)] == [1, 2, 3]
    assert [event.step for event in seen.run.of(ZeroGrad)] == [1, 1, 2]
    assert [event.step for event in seen.run.of(RegionEntered)] == [1, 2, 3]


def test_without_a_scaler_a_step_ends_when_all_optimizers_were_asked():
    model, optimizer, _ = parts()
    other = nn.Linear(4, 1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    with watch([model, other], [optimizer, second]) as seen:
        for _ in range(2):
            other(model(X)).mean().backward()
            optimizer.step()
            second.step()
    assert [(event.step, event.optimizer) for event in seen.run.of(Stepped)] == [
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]


def test_an_optimizer_that_rests_is_not_waited_for():
    model, optimizer, _ = parts()
    other = nn.Linear(4, 1)
    with watch([model, other], [optimizer, torch.optim.SGD(other.parameters(), lr=0.1)]) as seen:
        for _ in range(60):
            model(X).mean().backward()
            optimizer.step()
    assert seen.run.steps > 35


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    "make", [lambda: torch.amp.GradScaler("cpu", init_scale=1024.0), lambda: DynamicLossScaler(1024.0)]
)
def test_a_skipped_step_is_told_from_found_inf(make, fused):
    model, optimizer, _ = parts(torch.optim.AdamW, fused=fused)
    scaler = make()
    with watch(model, optimizer, scaler) as seen:
        for factor in (1.0, 1e38, 1.0):
            step(model, optimizer, scaler, factor)
    steps = list(seen.run.of(Stepped))
    assert [event.skipped.value for event in steps] == [False, True, False]
    assert [event.ran for event in steps] == [True, fused, True]
    assert seen.run.skips == (2,)
    assert seen.run.scales == ((2, 512.0),)


def test_a_static_scaler_and_a_disabled_one():
    for scaler, scale, state in (
        (StaticLossScaler(64.0), 64.0, SCALED),
        (torch.amp.GradScaler("cpu", enabled=False), 1.0, TRUE),
    ):
        model, optimizer, _ = parts()
        with watch(model, optimizer, scaler) as seen:
            step(model, optimizer, scaler)
        (backward,), (stepped,) = list(seen.run.of(Backward)), list(seen.run.of(Stepped))
        assert (backward.scaled_by, backward.scale.value, backward.after) == (0, scale, (state,))
        assert (stepped.scaler, stepped.ran, stepped.scale.value) == (0, True, scale)


# -- what the gradients are


def states(events):
    return [(event.before[0], event.after[0]) for event in events]


def test_accumulation_and_mixtures():
    model, optimizer, scaler = parts(scale=4.0)

    def loss():
        return model(X).mean()

    with watch(model, optimizer, scaler) as seen:
        scaler.scale(loss()).backward()
        scaler.scale(loss()).backward()
        loss().backward()
        optimizer.zero_grad(set_to_none=False)
        loss().backward()
        model.zero_grad()
        scaler.scale(loss()).backward()
        scaler.step(optimizer)
        loss().backward()
        scaler.scale(loss()).backward()
    assert states(seen.run.of(Backward)) == [
        (NONE, SCALED),
        (SCALED, SCALED),
        (SCALED, MIXED),
        (ZERO, TRUE),
        (NONE, SCALED),
        (UNSCALED, UNSCALED),
        (UNSCALED, MIXED),
    ]
    zeroed = list(seen.run.of(ZeroGrad))
    assert [(event.by, event.set_to_none, event.before) for event in zeroed] == [
        ("optimizer", False, (MIXED,)),
        ("model", True, (TRUE,)),
    ]


@pytest.mark.parametrize(("growth_interval", "after"), [(1, MIXED), (1000, SCALED)])
def test_parts_of_different_scales(growth_interval, after):
    model, optimizer, _ = parts()
    other = nn.Linear(8, 1)
    second = torch.optim.SGD(other.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=growth_interval)
    with watch([model, other], [optimizer, second], scaler) as seen:
        scaler.scale(model(X).mean()).backward()
        scaler.scale(other(X).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        scaler.scale(other(X).mean()).backward()
    *_, last = seen.run.of(Backward)
    assert (last.touched, last.before[1], last.after[1]) == ((1,), SCALED, after)


def test_gradients_set_to_none_and_assigned_by_hand():
    model, optimizer, scaler = parts()
    with watch(model, optimizer, scaler) as seen:
        scaler.scale(model(X).mean()).backward()
        for parameter in model.parameters():
            parameter.grad = None
        for parameter, gradient in zip(
            model.parameters(),
            torch.autograd.grad(scaler.scale(model(X).mean()), model.parameters()),
            strict=True,
        ):
            parameter.grad = gradient
        scaler.step(optimizer)
    (by_hand,) = (event for event in seen.run.of(ZeroGrad))
    assert (by_hand.by, by_hand.before, by_hand.where) == ("hand", (SCALED,), None)
    (stepped,) = seen.run.of(Stepped)
    assert stepped.state is SCALED


def test_a_loss_computed_from_a_scaled_one_and_one_scaled_twice():
    model, optimizer, scaler = parts()
    with watch(model, optimizer, scaler) as seen:
        (scaler.scale(model(X).mean()) / 8).backward()
        (scaler.scale(model(X).sum()) + scaler.scale(model(X).mean())).backward()
        scaler.scale(scaler.scale(model(X).mean()))
        model(X).mean().backward()
    first, second, third = seen.run.of(Backward)
    assert (first.scaled_by, first.exactly, first.divided_by) == (0, False, 8.0)
    assert (second.scaled_by, second.exactly) == (0, False)
    assert (third.scaled_by, third.exactly, third.averaged) == (None, True, True)
    assert [event.again for event in seen.run.of(Scaled)] == [None, None, None, None, 0]
    results = [event.result for event in seen.run.of(Scaled)]
    assert len(set(results)) == 5
    assert list(seen.run.of(Scaled))[-1].given == results[-2]


def test_lists_of_losses():
    model, optimizer, scaler = parts()
    with watch(model, optimizer, scaler) as seen:
        losses = scaler.scale([model(X).mean(), (model(X).sum(),)])
        torch.autograd.backward([losses[0], losses[1][0]])
    (backward,) = seen.run.of(Backward)
    assert backward.losses == tuple(event.result for event in seen.run.of(Scaled))
    assert backward.exactly


# -- clipping


def test_clipping_by_every_name():
    model, optimizer, _ = parts()
    with watch(model, optimizer) as seen:
        model(X).mean().backward()
        clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_norm_(list(model.parameters())[:2], 1.0, foreach=False)
        clip_grad_value_(model.parameters(), 0.1)
        clip_grad_value_(model[0].weight, 0.1, foreach=False)
        norm = get_total_norm(
            [parameter.grad for parameter in model.parameters()]
        )  # imported before the watch
        clip_grads_with_norm_(model.parameters(), 2.0, norm)
        nn.utils.get_total_norm([parameter.grad for parameter in model.parameters()])
        nn.utils.clip_grads_with_norm_(model.parameters(), 2.0, norm)
        clip_grad_norm_([], 1.0)
    found = [(event.how, event.limit, event.parameters, event.norm is None) for event in seen.run.of(Clipped)]
    assert found == [
        ("norm", 1.0, 4, False),
        ("norm", 1.0, 2, False),
        ("value", 0.1, 4, True),
        ("value", 0.1, 1, True),
        ("measured", None, 4, True),
        ("norm", 2.0, 4, False),
        ("measured", None, 4, False),
        ("norm", 2.0, 4, False),
        ("norm", 1.0, 0, False),
    ]
    assert {event.where.function for event in seen.run.of(Clipped)} == {"test_clipping_by_every_name"}


def test_clipping_that_refuses():
    model, optimizer, _ = parts()
    with watch(model, optimizer) as seen:
        model(X).mean().backward()
        model[0].weight.grad.fill_(float("inf"))
        with pytest.raises(RuntimeError, match="non-finite"):
            clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    (clipped,) = seen.run.of(Clipped)
    assert (clipped.raised, clipped.error_if_nonfinite, clipped.limit) == (True, True, 1.0)


# -- schedulers, averages, checkpoints, scalers


def test_schedulers_and_rates_by_hand():
    model, optimizer, scaler = parts()
    with watch(model, optimizer, scaler) as seen:
        chain = lr_scheduler.SequentialLR(
            optimizer, [lr_scheduler.ConstantLR(optimizer, 0.5, 2), lr_scheduler.StepLR(optimizer, 1)], [2]
        )
        plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
        step(model, optimizer, scaler)
        chain.step()
        plateau.step(1.0)
        optimizer.param_groups[0]["lr"] = 0.7
        step(model, optimizer, scaler)
    found = [(event.kind, event.before, event.after, event.with_metric) for event in seen.run.of(Scheduled)]
    assert found == [
        ("SequentialLR", (0.005,), (0.005,), False),
        ("ReduceLROnPlateau", (0.005,), (0.005,), True),
        (None, (0.005,), (0.7,), False),
    ]


def test_an_average_tells_its_share():
    model, optimizer, _ = parts()
    average = torch.optim.swa_utils.AveragedModel(
        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.99)
    )
    with watch(model, optimizer) as seen:
        average.update_parameters(model)
    (averaged,) = seen.run.of(Averaged)
    assert averaged.dtype == torch.float32
    assert averaged.share == pytest.approx(0.01)


def test_checkpoints():
    model, optimizer, scaler = parts()
    schedule = lr_scheduler.StepLR(optimizer, 1)
    everything = {"net": model, "opt": optimizer, "scaler": scaler, "lr": schedule}
    with watch(model, optimizer, scaler) as seen:
        step(model, optimizer, scaler)
        state = {name: each.state_dict() for name, each in everything.items()}
        torch.save(state, io.BytesIO())
        torch.save(
            {"model": {f"module.{key}": value.half() for key, value in state["net"].items()}}, io.BytesIO()
        )
        for name, each in everything.items():
            each.load_state_dict(state[name])
        model.load_state_dict({}, strict=False)
        scaler.get_scale()
    run = seen.run
    assert Counter(event.of for event in run.of(StateTaken)) == Counter(
        ("model", "optimizer", "scaler", "scheduler")
    )
    first, second = run.of(Saved)
    assert first.has == {"model", "optimizer", "scaler", "scheduler"}
    assert first.model_floats == {torch.float32}
    assert (second.has, second.model_prefix, second.model_floats) == ({"model"}, "module.", {torch.float16})
    loaded = list(run.of(StateLoaded))
    assert [event.of for event in loaded] == ["model", "optimizer", "scaler", "scheduler", "model"]
    assert (loaded[-1].empty, loaded[-1].missing) == (True, 4)
    assert len(list(run.of(ScaleRead))) == 1  # what state_dict reads itself is not the user's call


def test_scalers_made_in_the_loop():
    model, optimizer, _ = parts()
    with watch(model, optimizer) as seen:
        for _ in range(150):
            step(model, optimizer, torch.amp.GradScaler("cpu", init_scale=8.0))
        torch.amp.GradScaler(device="cpu", init_scale=4.0, enabled=False)
    assert seen.run.counts["ScalerMade"] == 151
    assert len(seen.run.scalers) == 100
    assert seen.run.scalers[0].asked_enabled is True
    assert max(event.scaler for event in seen.run.of(ScalerMade)) < 100


def test_a_scaler_of_another_loop_is_not_noted():
    mine, other = parts(), parts()
    with watch(*mine) as seen:
        step(*mine)
        before = kinds(seen.run)
        step(*other)
        step(*other)
    new = [kind for kind in kinds(seen.run)[len(before) :] if not kind.startswith("Region")]
    assert new == []


# -- closures, threads, errors


def test_a_closure():
    model, _, _ = parts()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    with watch(model, optimizer) as seen:
        for _ in range(2):

            def closure():
                optimizer.zero_grad()
                loss = model(X).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)
    assert [(event.step, event.closure, event.scaler) for event in seen.run.of(Stepped)] == [
        (1, True, None),
        (2, True, None),
    ]
    assert {event.step for event in seen.run.of(Backward)} == {1, 2}


def test_a_step_that_raises():
    model, optimizer, _ = parts()

    def closure():
        raise ValueError("mine")

    with watch(model, optimizer) as seen, pytest.raises(ValueError, match="mine"):
        optimizer.step(closure)
    (stepped,) = seen.run.of(Stepped)
    assert stepped.raised
    assert stepped.closure


def test_a_forward_pass_that_raises():
    model, optimizer, _ = parts()
    with watch(model, optimizer) as seen:
        with pytest.raises(RuntimeError):
            model(torch.zeros(3, 3))
        try:
            raise KeyError
        except KeyError:
            model(X)
    assert [event.raised for event in seen.run.of(Forward)] == [True, False]


def test_an_error_of_the_recorder_does_not_reach_the_loop(monkeypatch):
    model, optimizer, scaler = parts()
    from amp_lab.watching.recording.states import States

    def broken(self):
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(States, "marks", broken)
    with watch(model, optimizer, scaler) as seen:
        step(model, optimizer, scaler)
    (note,) = seen.run.notes
    assert "backward" in note
    assert "ours" in note
    assert "Stepped" in kinds(seen.run)
    assert "Backward" not in kinds(seen.run)


# -- strange objects


class Hostile(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def __getattr__(self, name):
        if name in ("layer", "_parameters", "_modules", "_buffers"):
            return super().__getattr__(name)
        raise RuntimeError(f"hostile {name}")

    def forward(self, x):
        return self.layer(x)


def test_a_module_whose_getattr_raises():
    model = Hostile()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as seen:
        model(X).mean().backward()
        optimizer.step()
    assert seen.run.counts["Stepped"] == 1


@pytest.mark.parametrize("device", ["meta", "fake"])
def test_tensors_without_numbers(device):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode() if device == "fake" else torch.device("meta"):
        model, optimizer, _ = parts()
        with watch(model, optimizer) as seen:
            model(torch.ones(2, 8)).mean().backward()
            optimizer.step()
    assert [event.finite.value for event in seen.run.of(Backward)] == [True]
    assert seen.run.notes == ()


def test_sparse_gradients_and_tensor_subclasses():
    class Own(torch.Tensor):
        pass

    model = nn.Embedding(10, 4, sparse=True)
    optimizer, scaler = (
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.amp.GradScaler("cpu", init_scale=4.0),
    )
    with watch(model, optimizer, scaler) as seen:
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale((model(torch.tensor([1, 2])) * torch.ones(4).as_subclass(Own)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [event.skipped.value for event in seen.run.of(Stepped)] == [False, False]
    assert seen.run.notes == ()


def test_copies_and_pickles_leave_the_watch_behind():
    model, optimizer, scaler = parts()
    with watch(model, optimizer, scaler) as seen:
        step(model, optimizer, scaler)
        twin = copy.deepcopy(model)
        twin(X)
        copy.deepcopy((optimizer, scaler))
        file = io.BytesIO()
        torch.save(model, file)
        assert b"amp_lab" not in file.getvalue()
        file.seek(0)
        torch.load(file, weights_only=False)(X)
        pickle.loads(pickle.dumps(model))(X)
    assert seen.run.counts["Forward"] == 1
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert not model._forward_hooks_always_called


def test_data_parallel_and_transforms():
    model, optimizer, scaler = parts()
    both = nn.DataParallel(model)
    weights = {name: each.detach() for name, each in model.named_parameters()}

    def loss(weights, x):
        return torch.func.functional_call(model, weights, (x,)).square().mean()

    with watch(both, optimizer, scaler) as seen:
        torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, X)
        step(both, optimizer, scaler)
    assert seen.run.notes == ()
    assert seen.run.counts["Stepped"] == 1


def test_a_compiled_model():
    model, optimizer, scaler = parts()
    compiled = torch.compile(model, backend="eager")
    with watch(compiled, optimizer, scaler) as seen:
        step(compiled, optimizer, scaler)
    assert seen.run.models[0].compiled
    assert seen.run.counts["Forward"] == 1
    with watch(model, optimizer, scaler) as inner:
        step(compiled, optimizer, scaler)
    assert inner.run.counts["Stepped"] == 1
    assert inner.run.notes == ()


def test_clipping_of_gradients_without_numbers():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        model, optimizer, _ = parts()
        with watch(model, optimizer) as seen:
            model(torch.ones(2, 8)).mean().backward()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    assert [event.norm.is_unknown for event in seen.run.of(Clipped)] == [True]
    assert seen.report().ok


def test_an_autocast_that_cannot_be_hashed():
    class Own(torch.autocast):
        def __eq__(self, other):
            return self is other

    model, optimizer, _ = parts()
    with watch(model, optimizer) as seen, Own("cpu", torch.bfloat16):
        model(X)
    assert [event.asked for event in seen.run.of(RegionEntered)] == [True]
    assert seen.run.notes == ()


def test_a_region_of_another_loop_begins_no_step():
    model, optimizer, scaler = parts()
    other = nn.Linear(8, 4)
    with watch(model, optimizer, scaler) as seen:
        step(model, optimizer, scaler)
        with torch.autocast("cpu", torch.float16):
            other(X).float().mean().backward()
        assert seen.run.steps == 1
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(X).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    run = seen.run
    entered = [(event.step, event.dtype) for event in run.events if isinstance(event, RegionEntered)]
    assert entered == [(1, torch.float16), (1, torch.float16), (2, torch.bfloat16)]
    assert [event.step for event in run.events if isinstance(event, Backward)] == [1, 2]
    assert run.steps == 2
