"""Closer looks: they leave no trace, never get into the user's way, and what they note is what happened."""

from __future__ import annotations

import copy
import gc
import math
import re
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

from amp_lab import watch
from amp_lab.watching.recording.events import Averaged, Backward, Noticed, ZeroGrad
from amp_lab.watching.recording.looks import frames, stack
from amp_lab.watching.recording.looks.mode import CallMode


def made(scale: float = 1024.0) -> tuple[nn.Module, torch.optim.Optimizer, torch.amp.GradScaler]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.01), torch.amp.GradScaler("cpu", init_scale=scale)


def train_step(model: nn.Module, optimizer: Any, scaler: Any, times: float = 1.0) -> torch.Tensor:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = times * F.mse_loss(model(torch.ones(3, 4)), torch.ones(3, 1))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    return loss


def modes() -> list[Any]:
    return list(_get_current_function_mode_stack())


def is_on() -> bool:
    return any(isinstance(each, CallMode) for each in modes())


class Counting(TorchFunctionMode):
    """A mode of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def noticed(seen: Any, what: str) -> list[Noticed]:
    return [event for event in seen.run.of(Noticed) if event.what == what]


# -- when it is on, and that it leaves no trace


def test_the_mode_is_on_in_the_first_three_steps() -> None:
    model, optimizer, scaler = made()
    on = []
    with watch(model, optimizer, scaler):
        for _ in range(6):
            train_step(model, optimizer, scaler)
            on.append(is_on())
    assert on == [True, True, True, False, False, False]
    assert modes() == []


def test_a_skipped_step_wakes_it_until_the_end_of_the_next() -> None:
    model, optimizer, scaler = made()
    on = []
    with watch(model, optimizer, scaler):
        for step in range(8):
            train_step(model, optimizer, scaler, 1e38 if step == 4 else 1.0)
            on.append(is_on())
    assert on == [True, True, True, False, True, True, False, False]


def test_nothing_stays_after_an_exception() -> None:
    model, optimizer, scaler = made()
    engine = torch.autograd._engine_run_backward
    model[0].weight.register_hook(_raise)
    with pytest.raises(ValueError, match="mine"), watch(model, optimizer, scaler):
        train_step(model, optimizer, scaler)
    assert modes() == []
    assert torch.autograd._engine_run_backward is engine


def _raise(gradient: torch.Tensor) -> None:
    raise ValueError("mine")


def test_modes_of_the_user_stay_where_they_are() -> None:
    model, optimizer, scaler = made()
    with watch(model, optimizer, scaler):
        mine = Counting()
        with mine:
            for _ in range(5):  # ours is taken off from under it
                train_step(model, optimizer, scaler)
            assert modes() == [mine]
            train_step(model, optimizer, scaler, 1e38)  # and put under it
            assert [type(each) for each in modes()] == [CallMode, Counting]
        assert [type(each) for each in modes()] == [CallMode]
    assert modes() == []
    assert "linear" in mine.calls


def test_a_default_device_stays_at_the_bottom() -> None:
    model, optimizer, scaler = made()
    with torch.device("cpu"), watch(model, optimizer, scaler):
        device = modes()[0]
        assert [type(each) for each in modes()] == [type(device), CallMode]
        for _ in range(5):
            train_step(model, optimizer, scaler)
        assert modes() == [device]
    with watch(model, optimizer, scaler):
        torch.set_default_device("cpu")
        train_step(model, optimizer, scaler)
        torch.set_default_device(None)
        assert [type(each) for each in modes()] == [CallMode]
    assert modes() == []


def test_a_mode_is_taken_out_of_the_middle() -> None:
    outer, ours, inner = Counting(), Counting(), Counting()
    with outer:
        stack.put_under(ours)
        with inner:
            assert modes() == [ours, outer, inner]
            stack.take_out(ours)
            assert modes() == [outer, inner]
        assert modes() == [outer]


def test_a_compiled_model_is_let_be() -> None:
    model, optimizer, scaler = made()
    compiled = torch.compile(model, backend="eager")
    with watch(compiled, optimizer, scaler) as seen:
        train_step(compiled, optimizer, scaler)
        assert not is_on()
    assert not noticed(seen, "overflow")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.jit.trace, on the newer versions
def test_other_machinery_sees_nothing_of_it() -> None:
    class Recorded(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names: list[str] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(str(func))
            return func(*args, **(kwargs or {}))

    def square(x: torch.Tensor) -> torch.Tensor:
        return (x.half() * x.half() + 1e-9).sum()

    def alone(x: torch.Tensor) -> list[str]:
        with Recorded() as mode:
            square(x)
        return mode.names

    def without_places(graph: Any) -> str:
        return re.sub(r"# .*", "", str(graph))

    model, optimizer, scaler = made()
    x = torch.full((3,), 300.0)
    expected, graph = alone(x), without_places(torch.jit.trace(square, x).graph)
    mapped = torch.vmap(lambda row: row.half() * row.half())(torch.ones(2, 3))
    with watch(model, optimizer, scaler) as seen:
        assert is_on()
        assert alone(x) == expected
        assert without_places(torch.jit.trace(square, x, check_trace=False).graph) == graph
        assert torch.equal(torch.vmap(lambda row: row.half() * row.half())(torch.ones(2, 3)), mapped)
    assert not seen.run.notes


def test_numbers_random_state_and_versions_are_the_same_with_it() -> None:
    def run(watched: bool) -> tuple[torch.Tensor, torch.Tensor, int]:
        model, optimizer, scaler = made()
        model.insert(1, nn.Dropout())
        seen = watch(model, optimizer, scaler)
        if watched:
            seen.start()
        for _ in range(5):
            train_step(model, optimizer, scaler)
        seen.stop()
        return model[0].weight.detach(), torch.rand(1), model[0].weight._version

    with_it, without = run(True), run(False)
    assert torch.equal(with_it[0], without[0])
    assert torch.equal(with_it[1], without[1])
    assert with_it[2] == without[2]


def test_it_keeps_no_tensor_alive() -> None:
    model, optimizer, scaler = made()

    def loop() -> weakref.ref[torch.Tensor]:
        for step in range(4):
            large = torch.ones(1000).half()
            late = large * 2
            train_step(model, optimizer, scaler, 1e38 if step == 2 else 1.0)
            ref = weakref.ref(late)
            del large, late
            gc.collect()
            assert ref() is None
        return ref

    with watch(model, optimizer, scaler):
        loop()


def test_an_error_of_a_look_never_reaches_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    from amp_lab.watching.recording.looks.overflows import Overflows

    def fails(self: Any, call: Any) -> None:
        raise ZeroDivisionError("a mistake in a look")

    monkeypatch.setattr(Overflows, "after", fails)
    model, optimizer, scaler = made()
    with watch(model, optimizer, scaler) as seen:
        for _ in range(3):
            train_step(model, optimizer, scaler)
        assert not is_on()
    assert any("a mistake in a look" in note for note in seen.run.notes)


# -- what is noted


@pytest.mark.parametrize("mixed", ["lerp_", "mul_ and add_", "foreach", "new tensors", "a difference"])
def test_averages_by_hand_in_several_styles(mixed: str) -> None:
    model, optimizer, scaler = made()
    average = [each.detach().clone() for each in model.parameters()]
    with watch(model, optimizer, scaler) as seen:
        for _ in range(2):
            train_step(model, optimizer, scaler)
            with torch.no_grad():
                average = _moved(average, list(model.parameters()), mixed)
    found = list(seen.run.of(Averaged))
    assert [event.kind for event in found] == [None, None]
    assert all(event.share == pytest.approx(0.25) for event in found)
    assert all(event.dtype == torch.float32 for event in found)


def _moved(average: list[torch.Tensor], weights: list[torch.Tensor], how: str) -> list[torch.Tensor]:
    if how == "foreach":
        torch._foreach_lerp_(average, weights, 0.25)
    for mine, theirs in zip(average, weights, strict=True):
        if how == "lerp_":
            mine.lerp_(theirs, 0.25)
        elif how == "mul_ and add_":
            mine.mul_(0.75).add_(theirs.data, alpha=0.25)
        elif how == "a difference":
            mine.add_(theirs - mine, alpha=0.25)
    if how == "new tensors":
        return [0.75 * mine + 0.25 * theirs for mine, theirs in zip(average, weights, strict=True)]
    return average


def test_what_is_no_average() -> None:
    model, optimizer, scaler = made()
    anchor = copy.deepcopy(model)
    momentum = [torch.zeros_like(each) for each in model.parameters()]
    with watch(model, optimizer, scaler) as seen:
        for _ in range(3):
            train_step(model, optimizer, scaler)
            with torch.no_grad():
                for mine, buffer, old in zip(model.parameters(), momentum, anchor.parameters(), strict=True):
                    buffer.mul_(0.9).add_(mine.grad, alpha=0.1)
                    old.copy_(mine)
                    0.01 * (mine - old).square().sum()
    assert not list(seen.run.of(Averaged))
    assert seen.report().ok


@pytest.mark.parametrize("how", ["zero_", "fill_", "mul_", "foreach"])
def test_gradients_zeroed_by_hand(how: str) -> None:
    model, optimizer, scaler = made()
    with watch(model, optimizer, scaler) as seen:
        for _ in range(5):
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(model(torch.ones(3, 4)), torch.ones(3, 1))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            if how == "foreach":
                torch._foreach_zero_(gradients)
            for each in gradients:
                if how == "zero_":
                    each.zero_()
                elif how == "fill_":
                    each.fill_(0)
                elif how == "mul_":
                    each *= 0
    zeroed = [event for event in seen.run.of(ZeroGrad) if event.by == "hand"]
    assert [event.step for event in zeroed][:3] == [1, 2, 3]
    assert len(zeroed) >= 4  # without the mode, the samples tell
    assert not seen.report().all


def test_a_sum_is_looked_at_where_the_loop_stands_around_the_function_that_steps() -> None:
    model, optimizer, scaler = made()
    total = 0.0
    with watch(model, optimizer, scaler) as seen:
        for step in range(6):
            loss = train_step(model, optimizer, scaler, math.inf if step == 2 else 1.0)
            total += loss.item()
    assert [event.values["name"] for event in noticed(seen, "sum")] == ["total"]


def test_running_names_and_loop_variables() -> None:
    program = """
total, mean, best, loss, i = 0.0, 0.0, 1.0, 0.0, 0
for x, (y, z) in batches:
    total += x
    mean = 0.9 * mean + 0.1 * x
    best = min(best, x + y)
    loss = x + z
    loss = loss / 4
    for w in z: i = i + 1
"""
    for code in (compile(program, "a", "exec"), _function(program)):
        assert set(frames.running_names(code)) == {"total", "mean", "i"}
        assert set(frames.loop_variables(code)) == {"x", "y", "z", "w"}


def _function(program: str) -> Any:
    names: dict[str, Any] = {}
    body = "".join(f"    {line}\n" for line in program.splitlines())
    exec(compile(f"def f(batches):\n{body}", "b", "exec"), names)
    return names["f"].__code__


def test_gradients_that_are_added_to_a_buffer_are_noticed() -> None:
    model, optimizer, scaler = made()
    kept = [torch.zeros_like(each) for each in model.parameters()]
    with watch(model, optimizer, scaler) as seen:
        train_step(model, optimizer, scaler)
        for buffer, each in zip(kept, model.parameters(), strict=True):
            buffer.add_(each.grad)
    assert [event.values["optimizer"] for event in noticed(seen, "gradients kept")] == [0]


def test_overflow_in_a_module_that_no_backward_pass_follows_is_no_finding() -> None:
    model, optimizer, scaler = made()
    with watch(model, optimizer, scaler) as seen:
        for _ in range(3):
            train_step(model, optimizer, scaler)
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
            model(torch.full((3, 4), 60000.0)) * 60000
    assert seen.report().ok


# -- right loops that could fool a look


def right_hand_made_norm(model: nn.Module, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        h = model[0](torch.ones(3, 4)) * 100
        h = h.float() * torch.rsqrt(h.float().pow(2).mean(-1, keepdim=True) + 1e-8)
        loss = F.mse_loss(model[2](h), torch.ones(3, 1))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def right_per_layer_rates(model: nn.Module, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(torch.ones(3, 4)), torch.ones(3, 1))
    scaler.scale(loss).backward()
    for depth, each in enumerate(model.parameters()):
        each.grad.mul_(0.5**depth)  # commutes with the scale
    for each in model.parameters():
        each.grad.sub_(each.grad.mean())  # and so does this
    scaler.step(optimizer)
    scaler.update()


def right_finite_test(model: nn.Module, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(torch.ones(3, 4)), torch.ones(3, 1))
    scaler.scale(loss).backward()
    norms = torch.stack([each.grad.norm() for each in model.parameters()])
    bool(torch.isfinite(norms.sum()))
    scaler.step(optimizer)
    scaler.update()


def right_attention(model: nn.Module, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        h = model[0](torch.randn(2, 5, 4))
        scores = h @ h.transpose(-2, -1) / 2.0
        scores = scores.masked_fill(torch.ones(5, 5).triu(1).bool(), float("-inf"))
        bias = torch.full((5, 5), torch.finfo(scores.dtype).min, dtype=scores.dtype).triu(1)
        h = (scores + bias).softmax(-1) @ h
        loss = F.mse_loss(model[2](h), torch.ones(2, 5, 1))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def right_labels_and_positions(model: nn.Module, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        positions = torch.arange(3000, 3003)
        waves = torch.sin(positions.float() * 0.1).half()
        mask = (positions % 2 == 0).half()
        labels = torch.tensor([[0], [1], [2048]]).half() / 2048
        loss = F.mse_loss(model(torch.ones(3, 4)) + (waves * mask)[:, None], labels)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def right_probabilities_for_people(model: nn.Module, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        logits = model(torch.ones(3, 4))
        loss = F.binary_cross_entropy_with_logits(logits, torch.ones(3, 1))
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    shown = torch.sigmoid(logits.detach()).half()
    (shown > 0.5).sum()


def right_unscaled_then_everything(model: nn.Module, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(torch.ones(3, 4)), torch.ones(3, 1))
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for each in model.parameters():
        each.grad.nan_to_num_().clamp_(-1, 1).add_(each.data, alpha=0.01)
        each.grad.norm().item()
        torch.histc(each.grad, 5)
    scaler.step(optimizer)
    scaler.update()


def right_roots_of_positive(model: nn.Module, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        h = F.normalize(model[0](torch.ones(3, 4)))
        distance = ((h - h.detach().roll(1, -1)).float().square().sum(-1) + 1e-6).sqrt()
        loss = F.mse_loss(model[2](h), torch.ones(3, 1)) + 0.01 * distance.mean()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()


def right_hooks(model: nn.Module, optimizer: Any, scaler: Any) -> None:
    handles = [each.register_hook(lambda gradient: gradient * 0.5) for each in model.parameters()]
    handles += [each.register_hook(_warn_of_nan) for each in model.parameters()]
    train_step(model, optimizer, scaler)
    for handle in handles:
        handle.remove()


def _warn_of_nan(gradient: torch.Tensor) -> None:
    assert torch.isfinite(gradient.norm())


def right_hand_made_step_and_scaler(model: nn.Module, optimizer: Any, scaler: Any) -> None:
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(torch.ones(3, 4)), torch.ones(3, 1))
    (loss * 256.0).backward()
    for each in model.parameters():
        each.grad.div_(256.0)
    if all(bool(each.grad.isfinite().all()) for each in model.parameters()):
        optimizer.step()


RIGHT = [value for name, value in list(globals().items()) if name.startswith("right_")]


@pytest.mark.parametrize("loop", RIGHT, ids=[each.__name__ for each in RIGHT])
def test_right_loops_get_nothing(loop: Any) -> None:
    model, optimizer, scaler = made()
    given = scaler if loop is not right_hand_made_step_and_scaler else None
    with watch(model, optimizer, given) as seen:
        for _ in range(5):
            loop(model, optimizer, scaler)
    assert [each.sentence for each in seen.report().all] == []
    assert not seen.run.notes


def test_weights_that_were_cast_and_back_are_noted_and_those_that_were_kept_are_not() -> None:
    for keep in (False, True):
        model, optimizer, scaler = made()
        with watch(model, optimizer, scaler) as seen:
            for _ in range(6):
                train_step(model, optimizer, scaler)
                kept = copy.deepcopy(model.state_dict())
                model.half()
                with torch.no_grad():
                    model(torch.ones(3, 4).half())
                model.float()
                if keep:
                    model.load_state_dict(kept)
        assert len(noticed(seen, "weights rounded")) == (0 if keep else 5)


def test_a_sum_of_scaled_losses_is_looked_at_three_times_and_no_more() -> None:
    model, optimizer, scaler = made()
    with watch(model, optimizer, scaler) as seen:
        for _ in range(6):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(model(torch.ones(3, 4)), torch.ones(3, 1))
            (scaler.scale(loss) + sum(each.square().sum() for each in model.parameters())).backward()
            scaler.step(optimizer)
            scaler.update()
    assert [event.unscaled_part for event in seen.run.of(Backward)] == [True] * 3 + [False] * 3
    assert "only the first 3 are looked at so closely" in str(seen.report())
