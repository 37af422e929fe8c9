"""Errors and warnings about how a GradScaler is called."""

from __future__ import annotations

from typing import Final

from amp_lab.autocast.messages.known import Known
from amp_lab.scaling.errors import RIGHT_ORDER

_ORDER: Final = f"{RIGHT_ORDER}."

SCALER: Final = (
    Known(
        "unscale-fp16",
        r"Attempting to unscale FP16 gradients",
        "GradScaler was to unscale gradients in FP16: the parameters are in FP16, and so their gradients are.",
        "Leave out model.half(): keep the parameters in FP32, and let autocast cast what it computes with. Small steps "
        "would be lost in FP16 parameters anyway.",
    ),
    Known(
        "no-gradients",
        r"No inf checks were recorded for this optimizer",
        "No parameter of this optimizer had a gradient when scaler.step(optimizer), or unscale_, looked.",
        "See that scaler.scale(loss).backward() comes before and zero_grad() does not come between; that the "
        "parameters are not all frozen; and that the optimizer was made with the parameters that the model has now: "
        "it keeps the old ones if they were replaced after it was made.",
    ),
    Known(
        "update-without-step",
        r"No inf checks were recorded prior to update",
        "scaler.update() was called, and no optimizer had been stepped or unscaled through the scaler before it.",
        "Call scaler.step(optimizer) in place of optimizer.step(): a plain step uses gradients that are still "
        f"multiplied by the scale. {_ORDER}",
    ),
    Known(
        "step-twice",
        r"step\(\) has already been called since the last update",
        "scaler.step() was called twice for one optimizer, with no scaler.update() in between.",
        f"Call scaler.update() once in each iteration, also in one that is left early with `continue`. {_ORDER}",
    ),
    Known(
        "unscale-twice",
        r"unscale_\(\) has already been called on this optimizer since the last update",
        "scaler.unscale_() was called twice for one optimizer, with no scaler.update() in between.",
        "When gradients are accumulated, call unscale_ once, after the last backward() and before clipping. "
        f"If an iteration is left early with `continue`, call scaler.update() before. {_ORDER}",
    ),
    Known(
        "unscale-after-step",
        r"unscale_\(\) is being called after step\(\)",
        "scaler.unscale_() was called after scaler.step() of the same optimizer.",
        f"If update() was left out of the last iteration, call it there. {_ORDER}",
    ),
    Known(
        "scale-never-used",
        r"Attempted (?P<call>\w+) but _scale is None",
        "scaler.{call} was called, and the scaler has never scaled anything: no loss has been through scaler.scale().",
        "Write scaler.scale(loss).backward(), with the same scaler, in place of loss.backward().",
    ),
    Known(
        "pickled-in-iteration",
        r"A GradScaler instance may only be pickled at the beginning of an iteration",
        "A GradScaler was copied or pickled (copy.deepcopy, torch.save, a data loader's worker) after unscale_ or step "
        "and before update.",
        "Save scaler.state_dict() instead of the scaler, after scaler.update().",
    ),
    Known(
        "empty-scaler-state",
        r"The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler",
        "The state that the scaler was to load is empty: it was saved by a scaler that was disabled.",
        "Load it only if there is one: if state: scaler.load_state_dict(state). A disabled scaler is one with "
        "enabled=False, or one for CUDA on a machine without.",
    ),
    Known(
        "closure",
        r"Closure use is not currently supported if GradScaler is enabled",
        "scaler.step was given a closure.",
        "GradScaler cannot step an optimizer that evaluates the loss several times. Train with LBFGS in FP32 or BF16, "
        "without a scaler.",
    ),
    Known(
        "closure",
        r"LBFGS\.step\(\) missing 1 required positional argument: 'closure'",
        "LBFGS was stepped without a closure, the function with which it evaluates the loss several times.",
        "optimizer.step(closure), without a GradScaler: it cannot step such an optimizer. Train with LBFGS in FP32 or "
        "BF16.",
    ),
    Known(
        "scaler-arguments",
        r"GradScaler\.(?P<call>\w+)\(\) missing 1 required positional argument: '(?P<what>\w+)'",
        "scaler.{call} was called without its argument, {what}.",
        "scaler.scale(loss).backward(), scaler.unscale_(optimizer), scaler.step(optimizer), scaler.update().",
    ),
    Known(
        "scaler-arguments",
        r"'GradScaler' object (?:is not callable|has no attribute '(?P<what>\w+)')",
        "A GradScaler was used as it cannot be: as a function, or for something that it does not have.",
        "scaler.scale(loss).backward(): scale returns the loss times the scale, and backward is that tensor's. Then "
        "scaler.step(optimizer) and scaler.update().",
    ),
    Known(
        "scaler-arguments",
        r"'(?P<given>\w+)' object has no attribute 'param_groups'",
        "Something was taken for an optimizer, and is a {given}.",
        "scaler.unscale_ and scaler.step take the optimizer itself, not its parameters and not the model.",
    ),
    Known(
        "scaler-factors",
        r"The growth factor must be > 1\.0|The backoff factor must be < 1\.0",
        "GradScaler was given a factor that would not change the scale, or change it the wrong way.",
        "growth_factor is above 1 (2.0 if nothing is said), backoff_factor below 1 (0.5). For a scale that stays, take "
        "amp_lab's StaticLossScaler, or a large growth_interval.",
    ),
    Known(
        "backward-of-a-number",
        r"'(?:float|int)' object has no attribute 'backward'",
        "backward was called on a number of Python: .item() or float() has taken it out of the graph.",
        "Call it on the tensor, scaler.scale(loss).backward(), and loss.item() only for printing.",
    ),
    Known(
        "scale-no-tensor",
        r"outputs must be a Tensor or an iterable of Tensors",
        "scaler.scale was given something that is neither a tensor nor a list of tensors.",
        "Give it the loss itself, the tensor: not loss.item(), not a dict of losses.",
    ),
    Known(
        "scaler-without-cuda",
        r"GradScaler is enabled, but CUDA is not available",
        "GradScaler() is for CUDA if no device is given. There is none here, so it is disabled: it scales nothing.",
        "torch.amp.GradScaler('cpu') for a CPU, or GradScaler(device.type) for any.",
    ),
    Known(
        "scheduler-first",
        r"Detected call of `lr_scheduler\.step\(\)` before `optimizer\.step\(\)`",
        "A learning-rate scheduler was stepped before the optimizer. With a GradScaler this is also said when the "
        "first step was skipped since the scale was still too large: harmless, but the schedule is a step ahead.",
        "Step the scheduler only if the optimizer stepped: if scaler.get_scale() is smaller after update() than "
        "before, the step was skipped.",
    ),
)
