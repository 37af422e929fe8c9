"""After a watch everything is as it was before, by identity: PyTorch's modules and classes, and the user's objects.

What is compared is taken from here, not from the watcher's own list of what it changes.
"""

from __future__ import annotations

import copy
import inspect
import io
import sys
import threading
import types
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler, autocast
from torch.nn.modules import module as hooks_of_all_modules
from torch.optim.swa_utils import AveragedModel
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from amp_lab.scaling import DynamicLossScaler, StaticLossScaler
from amp_lab.watching.watch import ScaleCollapsed, watch

MODULES = [
    torch,
    torch.autograd,
    torch.autograd.graph,
    torch.amp,
    torch.amp.autocast_mode,
    torch.amp.grad_scaler,
    torch.cuda.amp,
    torch.cuda.amp.grad_scaler,
    torch.nn,
    torch.nn.utils,
    torch.nn.utils.clip_grad,
    torch.nn.functional,
    torch.optim,
    torch.optim.lr_scheduler,
    sys.modules["torch.optim.optimizer"],
    torch.optim.swa_utils,
    torch.serialization,
    torch.jit._recursive,
    torch.utils.checkpoint,
    hooks_of_all_modules,
    threading,
    sys.modules["builtins"],
]


def _subclasses(root: type) -> Iterator[type]:
    yield root
    for each in root.__subclasses__():
        yield from _subclasses(each)


def _classes() -> list[type]:
    roots = [
        torch.Tensor,
        nn.Parameter,
        torch.autocast,
        GradScaler,
        DynamicLossScaler,
        StaticLossScaler,
        torch.optim.Optimizer,
        torch.optim.lr_scheduler.LRScheduler,
        torch.optim.lr_scheduler.ReduceLROnPlateau,
        AveragedModel,
        threading.Thread,
    ]
    return [*{each: None for root in roots for each in _subclasses(root)}, nn.Module, nn.Linear]


class _Objects:
    """What a user has."""

    def __init__(self) -> None:
        self.net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 1))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.opt, 1)
        self.scaler = GradScaler("cpu", init_scale=1024.0)
        self.ema = AveragedModel(self.net)
        self.classes = _classes()  # kept alive: those of other tests may be collected at any moment

    def all(self) -> list[object]:
        return [*self.net.modules(), self.opt, self.scheduler, self.scaler, self.ema, *self.net.parameters()]

    def train(self, steps: int = 4) -> None:
        for _ in range(steps):
            self.opt.zero_grad()
            with autocast("cpu", dtype=torch.float16):
                loss = F.mse_loss(self.net(torch.randn(4, 6)), torch.randn(4, 1))
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.opt)
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            nn.utils.clip_grad_value_(self.net.parameters(), 1.0)
            self.scaler.step(self.opt)
            self.scaler.update()
            self.scheduler.step()
            self.ema.update_parameters(self.net)


# What training itself writes into, or PyTorch caches.
_TRAINING = {
    "_scale", "_growth_tracker", "_per_optimizer_states", "state", "_step_count", "last_epoch", "_last_lr",
    "_opt_called", "n_averaged", "_is_initial", "_warned_capturable_if_run_uncaptured",
}  # fmt: skip
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_optimizer_step_pre_hooks",
          "_optimizer_step_post_hooks", "_state_dict_hooks", "_state_dict_pre_hooks", "_forward_hooks_always_called",
          "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_optimizer_state_dict_pre_hooks",
          "_optimizer_state_dict_post_hooks", "_optimizer_load_state_dict_pre_hooks", "_forward_hooks_with_kwargs",
          "_optimizer_load_state_dict_post_hooks", "_post_accumulate_grad_hooks", "_forward_pre_hooks_with_kwargs",
          "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks",
          "_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")  # fmt: skip


def _snapshot(objects: _Objects) -> dict[str, object]:
    """Return every attribute by name, the hooks as lists of their functions, and the modes of this thread."""
    found: dict[str, object] = {}
    named = [(each.__name__, each) for each in MODULES]
    classes = dict.fromkeys((*objects.classes, *_classes()))
    named += [(f"{each.__module__}.{each.__qualname__}", each) for each in classes]
    named += [(f"object {number} {type(each).__name__}", each) for number, each in enumerate(objects.all())]
    for name, each in named:
        for key, value in vars(each).items():
            if key in _HOOKS and value is not None:
                found[f"{name}.{key}"] = tuple(value.items())
            elif key not in _TRAINING and not key.startswith(("__pycache", "__warningregistry__")):
                found[f"{name}.{key}"] = value
    found["function modes"] = tuple(_get_current_function_mode_stack())
    found["dispatch modes"] = tuple(_get_current_dispatch_mode_stack())
    found["autocast"] = (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"))
    found["grad"] = torch.is_grad_enabled()
    found["threading hooks"] = (
        threading.gettrace(),
        threading.getprofile(),
        sys.gettrace(),
        sys.getprofile(),
    )
    return found


def _differences(before: dict[str, object], after: dict[str, object]) -> list[str]:
    gone = [f"{key} is gone" for key in before.keys() - after.keys()]
    new = [f"{key} is new" for key in after.keys() - before.keys()]
    other = [
        f"{key} is another"
        for key in before.keys() & after.keys()
        if before[key] is not after[key]
        and not (isinstance(before[key], tuple | bool) and before[key] == after[key])
    ]
    return sorted(gone + new + other)


@pytest.fixture
def objects():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    made = _Objects()
    with warnings.catch_warnings():
        made.train(2)  # what PyTorch makes at first use is there
    yield made
    torch.set_num_threads(threads)


@pytest.fixture
def before(objects):
    return _snapshot(objects)


def _watch(objects: _Objects):
    return watch(objects.net, objects.opt, objects.scaler, schedulers=[objects.scheduler])


def test_the_snapshot_sees_what_a_watch_changes(objects, before):
    with _watch(objects):
        during = _differences(before, _snapshot(objects))
    assert len(during) > 10, during
    for what in ("GradScaler.", "autograd.", "autocast.", "hook"):
        assert any(what in each for each in during), what


def test_after_a_run(objects, before):
    with _watch(objects) as seen:
        objects.train()
    assert seen.run.steps == 4
    assert _differences(before, _snapshot(objects)) == []


def test_after_batches_that_were_run_again(objects, before):
    def replay():
        with autocast("cpu", dtype=torch.float16):
            return F.mse_loss(objects.net(torch.full((4, 6), 1e9)), torch.zeros(4, 1))

    with watch(objects.net, objects.opt, objects.scaler, replay=replay) as seen:
        during = _snapshot(objects)
        objects.net[0].weight.register_hook(lambda gradient: gradient * torch.inf)
        objects.train(1)
        assert _differences(during, _snapshot(objects)) == []
    assert seen.overflows
    assert _differences(before, _snapshot(objects)) == []


def test_after_a_scale_that_has_collapsed(objects, before):
    with torch.no_grad():
        objects.net[2].weight.mul_(torch.inf)
    seen = watch(objects.net, objects.opt, objects.scaler, schedulers=[objects.scheduler], min_scale=1.0)
    with pytest.raises(ScaleCollapsed), seen:
        objects.train(20)
    assert _differences(before, _snapshot(objects)) == []


def test_after_an_overflow(objects, before):
    with _watch(objects), torch.no_grad():
        objects.net[2].weight.mul_(1e4)
        with torch.enable_grad():
            objects.train(6)
    assert _differences(before, _snapshot(objects)) == []


def test_after_start_and_stop_and_a_report_in_between(objects, before):
    seen = _watch(objects).start()
    objects.train(2)
    seen.report()
    objects.train(2)
    seen.stop()
    seen.stop()
    assert _differences(before, _snapshot(objects)) == []


@pytest.mark.parametrize("where", ["forward", "backward", "hook", "between"])
def test_after_an_exception(objects, before, where):
    class OwnError(Exception):
        pass

    def throw(*_):
        raise OwnError

    handles = []

    def train():
        objects.train(1)
        if where == "forward":
            handles.append(objects.net[1].register_forward_hook(throw))
        elif where == "backward":
            handles.append(objects.net[0].weight.register_hook(throw))
        elif where == "hook":
            handles.append(objects.opt.register_step_pre_hook(throw))
        else:
            throw()
        objects.train(1)

    with pytest.raises(OwnError), _watch(objects):
        train()
    for each in handles:
        each.remove()
    if where == "backward":
        before = {key: each for key, each in before.items() if not key.endswith("Parameter._backward_hooks")}
    after = {key: each for key, each in _snapshot(objects).items() if key in before or where != "backward"}
    assert _differences(before, after) == []


def test_a_wrong_call_in_the_loop(objects, before):
    def train():
        objects.scaler.scale(objects.net(torch.randn(4, 6)).sum()).backward()
        objects.scaler.step(objects.opt)
        objects.scaler.step(objects.opt)

    with pytest.raises(RuntimeError, match="already been called"), _watch(objects):
        train()
    assert _differences(before, _snapshot(objects)) == []


def test_nested(objects, before):
    with _watch(objects) as outer:
        objects.train(1)
        with _watch(objects) as inner:
            objects.train(2)
        objects.train(1)
    assert (outer.run.steps, inner.run.steps) == (4, 2)
    assert _differences(before, _snapshot(objects)) == []


def test_stopped_in_the_wrong_order(objects, before):
    first, second = _watch(objects).start(), _watch(objects).start()
    objects.train(1)
    first.stop()
    objects.train(1)
    second.stop()
    assert (first.run.steps, second.run.steps) == (1, 2)
    assert _differences(before, _snapshot(objects)) == []


def test_two_models_in_turns(objects, before):
    other = _Objects()
    first, second = _watch(objects).start(), _watch(other).start()
    objects.train(1)
    other.train(2)
    second.stop()
    objects.train(1)
    first.stop()
    assert (first.run.steps, second.run.steps) == (2, 2)
    assert _differences(before, _snapshot(objects)) == []


def test_decorated(objects, before):
    @_watch(objects)
    def step():
        objects.train(1)

    step()
    step()
    assert _differences(before, _snapshot(objects)) == []


def test_a_generator_that_is_left_in_the_middle(objects, before):
    @_watch(objects)
    def steps():
        for _ in range(3):
            objects.train(1)
            yield

    going = steps()
    next(going)
    going.close()
    assert _differences(before, _snapshot(objects)) == []


def test_what_the_user_replaced_before_stays(objects):
    def own_clip(*args, **kwargs):
        return torch.zeros(())

    def own_step(self, *args, **kwargs):
        return None

    objects.scaler.step = types.MethodType(own_step, objects.scaler)
    before = _snapshot(objects)
    with _watch(objects):
        objects.train(1)
    assert _differences(before, _snapshot(objects)) == []
    assert inspect.ismethod(vars(objects.scaler)["step"])
    assert own_clip


def test_what_the_user_replaces_in_between_stays(objects):
    def own_step(closure=None):
        return None

    with _watch(objects):
        objects.train(1)
        objects.opt.step = own_step
        objects.train(1)
    assert vars(objects.opt)["step"] is own_step


# -- interrupted, refused, copied


def _interrupted_at(line: int, call) -> bool:
    """Make a call in which Ctrl-C comes before the n-th line of the watcher's; return whether it came."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if "watching" not in frame.f_code.co_filename or "tests" in frame.f_code.co_filename:
            return None
        if event == "line":
            count += 1
            if count == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return count >= line


def test_ctrl_c_while_it_stops(objects, before):
    for line in range(1, 5000, 61):
        seen = _watch(objects).start()
        came = _interrupted_at(line, seen.stop)
        seen.stop()
        assert _differences(before, _snapshot(objects)) == [], line
        if not came:
            return
    raise AssertionError("stop() has no end")


def test_ctrl_c_while_it_starts(objects, before):
    for line in range(1, 20_000, 997):
        seen = _watch(objects)
        came = _interrupted_at(line, seen.start)
        seen.stop()
        assert _differences(before, _snapshot(objects)) == [], line
        if not came:
            return


def test_a_watch_that_was_interrupted_can_be_used_again(objects, before):
    def interrupt(*_):
        raise KeyboardInterrupt

    seen = _watch(objects)
    handle = objects.net[1].register_forward_hook(interrupt)
    with pytest.raises(KeyboardInterrupt), seen:
        objects.train(1)
    handle.remove()
    with seen:
        objects.train(2)
    assert seen.run.notes == ()
    assert _differences(before, _snapshot(objects)) == []


@pytest.mark.filterwarnings("ignore")  # TorchScript is old
def test_copies_and_scripts_made_inside(objects):
    before = _snapshot(objects)
    with _watch(objects) as seen:
        objects.train(1)
        twin, file = copy.deepcopy(objects.net), io.BytesIO()
        torch.jit.script(objects.net)(torch.randn(4, 6))
        torch.save(objects.net, file)
        objects.train(1)
    assert seen.run.counts["Forward"] == 2
    assert seen.run.notes == ()
    file.seek(0)
    for each in (twin, torch.load(file, weights_only=False)):
        hooks = [value for key, value in vars(each).items() if key.startswith("_forward")]
        assert len(hooks) == 5
        assert not any(hooks)
    marks = ("__overloads__", "__slotnames__")  # TorchScript's own, and those of copying
    found = [
        each for each in _differences(before, _snapshot(objects)) if not any(map(each.__contains__, marks))
    ]
    assert found == []


def test_the_users_hooks_are_copied(objects):
    def own(*_):
        return None

    objects.net.register_forward_hook(own)
    with _watch(objects):
        twin = copy.deepcopy(objects.net)
    assert list(twin._forward_hooks.values()) == [own]


def test_the_stack_of_modes_after_a_stop_in_another_thread(objects, before):
    seen = _watch(objects).start()
    objects.train(1)
    thread = threading.Thread(target=seen.stop)
    thread.start()
    thread.join()
    torch.ones(2).add(1)  # PyTorch's next call in this thread, at which the mode leaves
    assert sys.getprofile() is None
    assert _differences(before, _snapshot(objects)) == []
