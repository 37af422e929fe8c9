"""One run of a model under a recorder: forward and loss in an autocast region, the backward pass after it."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from amp_lab.autocast.emulate import cuda_autocast, tensor_cores
from amp_lab.autocast.fates import Fate
from amp_lab.autocast.kernels.casts import CUDNN_RNNS
from amp_lab.autocast.policy import Policy
from amp_lab.autocast.recording.borrowing import StandIns, borrowed, gradients_kept
from amp_lab.autocast.recording.events import Listener
from amp_lab.autocast.recording.fake_results import corrected
from amp_lab.autocast.recording.places import call_model
from amp_lab.autocast.recording.recorder import Recorder
from amp_lab.autocast.recording.refusals import refusal
from amp_lab.autocast.recording.regions import regions_followed
from amp_lab.autocast.recording.rows import Row, rows
from amp_lab.autocast.recording.settings_kept import fake_errors_unlogged, random_states_kept, settings_kept
from amp_lab.autocast.recording.training_steps import TrainingStepError, training_steps_refused
from amp_lab.autocast.records import Op

Mode = Literal["fake", "value"]


@dataclass(frozen=True)
class Task:
    """What is to be run. `runs_on` is the device type of the tensors, `device_type` that of the policy."""

    model: Callable[..., Any]
    inputs: tuple[Any, ...]
    keywords: Mapping[str, Any]
    modules: Mapping[str, nn.Module]
    types: Mapping[str, str]
    loss: Callable[[Any], torch.Tensor] | None
    backward: bool
    runs_on: str
    device_type: str
    dtype: torch.dtype
    policy: Policy
    region: bool = True  # False: `model` has regions of its own
    gradient: float = 1.0  # that the backward pass starts with
    scalar: bool = False  # `model` itself returns the loss

    def fate(self, name: str) -> Fate:
        """Return what autocast does with an operator ("softmax.int") here."""
        if name in CUDNN_RNNS and self.device_type == "cuda":
            return Fate.LOWER
        try:
            return self.policy.fate(name)
        except LookupError:  # could not be asked
            return Fate.FOLLOWS


@dataclass
class Outcome:
    """What came of a run."""

    rows: tuple[Row, ...] = ()
    loss: torch.Tensor | None = None  # or what the model returned, if it is a tensor
    error: Exception | None = None
    refused: bool = False  # the error would be the same with numbers
    notes: list[str] = field(default_factory=list)

    @property
    def ops(self) -> tuple[Op, ...]:
        return tuple(row.op for row in self.rows)

    def run_fake(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator on FakeTensors, which does not look at dtypes: raise what the real one would raise."""
        error = refusal(func, args, kwargs)
        if error is not None:
            self.refused = True
            raise error
        return corrected(func, args, func(*args, **kwargs))


def run(task: Task, mode: Mode, listener: Listener | None = None) -> Outcome:
    """Run a task once, and leave everything as it was."""
    fake = FakeTensorMode(allow_non_fake_inputs=True) if mode == "fake" else None
    stand_ins = StandIns(fake)
    outcome = Outcome()
    recorder = Recorder(
        autocast_on=task.runs_on,
        names=stand_ins.names,
        paths=_paths(task.modules),
        types=task.types,
        lowered=lambda name: task.fate(name) is Fate.LOWER,
        run=outcome.run_fake if mode == "fake" else stand_ins.run_saved,
        listener=listener,
    )
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(settings_kept())
        enter(torch.compiler.set_stance("force_eager"))  # what is compiled has no operators to be seen
        enter(fake_errors_unlogged())
        enter(training_steps_refused())
        enter(random_states_kept(_gpus(task), _generators(task)))
        enter(borrowed(task.modules, stand_ins))
        inputs, keywords = stand_ins.among((task.inputs, dict(task.keywords)))
        enter(_as_on(task, mode, outcome, recorder))
        enter(recorder.watching())
        if fake is not None:
            enter(fake)
        enter(recorder)
        try:
            _forward_and_backward(task, inputs, keywords, recorder, stand_ins, outcome)
        except Exception as error:
            outcome.error = error
            outcome.refused = outcome.refused or isinstance(error, TrainingStepError)
    outcome.notes += recorder.places.notes
    outcome.notes += [_not_looked_into(name) for name in sorted(recorder.not_looked_into)]
    outcome.rows = rows(recorder.events, task.device_type, task.fate)
    return outcome


@contextlib.contextmanager
def _as_on(task: Task, mode: Mode, outcome: Outcome, recorder: Recorder) -> Iterator[None]:
    """Let autocast, on the tensors there are, do what it does on the device that is asked about."""
    torch.clear_autocast_cache()  # that of a region around the x-ray
    with contextlib.ExitStack() as stack:
        stack.callback(torch.clear_autocast_cache)
        emulated = task.runs_on == "cpu" and task.device_type == "cuda"
        if emulated:
            stack.enter_context(cuda_autocast())
            if mode == "value":
                stack.enter_context(tensor_cores())
        stack.enter_context(regions_followed(recorder.note_region, outcome.notes if emulated else None))
        if torch.is_autocast_enabled(task.runs_on):
            stack.enter_context(torch.autocast(task.runs_on, enabled=False))
        yield


def _forward_and_backward(
    task: Task, inputs: Any, keywords: Any, recorder: Recorder, stand_ins: StandIns, outcome: Outcome
) -> None:
    def forward() -> Any:
        output = task.model(*inputs, **keywords)
        if isinstance(output, types.GeneratorType):
            output = list(output)
        if task.loss is not None:
            output = task.loss(output)
        return _checked_loss(output) if task.loss is not None or task.scalar else output

    region = torch.autocast(task.runs_on, task.dtype) if task.region else contextlib.nullcontext()
    with region:
        output = call_model(forward)
    if isinstance(output, torch.Tensor):
        with recorder.paused():
            outcome.loss = output.detach()
    if not task.backward:
        return
    roots = list(differentiable(output))
    if not roots:
        outcome.notes.append(_no_backward())
        return
    roots, gradients = _scaled(roots, task.gradient, recorder, outcome)
    with gradients_kept(roots, stand_ins):
        call_model(lambda: torch.autograd.backward(roots, gradients))


def _scaled(
    roots: list[torch.Tensor], scale: float, recorder: Recorder, outcome: Outcome
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return what a backward pass starts from, and with which gradients, so that all are times `scale`.

    A result whose dtype cannot hold that number is multiplied by it, as a loss scaler does; that is an operator then.
    """
    with recorder.paused():
        gradients = [torch.full_like(root, scale) for root in roots]
        if scale == 1.0 or all(bool((each.double() == scale).all()) for each in gradients):
            return roots, gradients
        outcome.notes.append(_not_held(roots[0].dtype, scale))
        factors = [torch.full((), scale, dtype=torch.float32, device=root.device) for root in roots]
    roots = call_model(lambda: [root * factor for root, factor in zip(roots, factors, strict=True)])
    with recorder.paused():
        return roots, [torch.ones_like(root) for root in roots]


def _not_held(dtype: torch.dtype, gradient: float) -> str:
    name = str(dtype).removeprefix("torch.")
    return f"the loss is {name}, which does not hold its own gradient, the loss scale {gradient:g}, exactly"


def _checked_loss(loss: Any) -> torch.Tensor:
    if not isinstance(loss, torch.Tensor):
        raise TypeError(
            f"the loss function returns a {type(loss).__name__}: let it return a tensor, one number"
        )
    if loss.numel() != 1:
        raise ValueError(
            f"the loss function returns {tuple(loss.shape)} numbers: let it return one, a scalar"
        )
    if loss.is_complex():
        raise ValueError(
            "the loss function returns a complex number, which nothing can be minimised by: let it return a real one, "
            "such as its abs()"
        )
    return loss


def _not_looked_into(name: str) -> str:
    return f"{name} calls functions by itself: what it does is one row, and what they do is not listed"


def _no_backward() -> str:
    if not torch.is_grad_enabled():
        return "gradients are switched off (no_grad or inference_mode), so there is no backward pass"
    return "no result requires a gradient, so there is no backward pass"


def differentiable(tree: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in a model's result that a backward pass can start from."""
    if isinstance(tree, torch.Tensor):
        if tree.requires_grad:
            yield tree
    elif isinstance(tree, Mapping):
        for each in tree.values():
            yield from differentiable(each)
    elif isinstance(tree, list | tuple | set):
        for each in tree:
            yield from differentiable(each)
    elif is_dataclass(tree) and not isinstance(tree, type):
        for each in fields(tree):
            yield from differentiable(getattr(tree, each.name, None))


def _paths(modules: Mapping[str, nn.Module]) -> dict[int, str]:
    named: Sequence[tuple[str, nn.Module]] = [
        pair for root, module in modules.items() for pair in module.named_modules(prefix=root)
    ]
    return {id(module): path for path, module in named}


def _generators(task: Task) -> list[torch.Generator]:
    """Return the random number generators that the model is given, or has."""
    parts = [vars(part) for module in task.modules.values() for part in module.modules()]
    leaves = tree_leaves((task.inputs, dict(task.keywords), parts))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Generator)]


def _gpus(task: Task) -> list[int]:
    return list(range(torch.cuda.device_count())) if task.runs_on == "cuda" else []
