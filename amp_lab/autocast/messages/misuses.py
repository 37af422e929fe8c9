"""Errors and warnings about how autocast, GradScaler and custom autograd functions are called."""

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
        "first step was skipped since the first scale, 65,536, was too large: harmless, but the schedule is a step "
        "ahead.",
        "Step the scheduler only if the optimizer stepped: if scaler.get_scale() is smaller after update() than "
        "before, the step was skipped.",
    ),
)

REGIONS: Final = (
    Known(
        "bce-refused",
        r"binary_cross_entropy and torch\.nn\.BCELoss are unsafe to autocast",
        "Autocast refuses binary_cross_entropy, and so BCELoss: the logarithm of a probability that was rounded to "
        "FP16 is wrong, or infinite.",
        "Take the sigmoid out of the model and use BCEWithLogitsLoss. If you need the sigmoid, compute it and the "
        "loss in FP32: inside autocast(device_type, enabled=False), from logits.float(). Probabilities that are in "
        "FP16 already are not saved by .float().",
    ),
    Known(
        "two-halves",
        r"Unexpected floating ScalarType in at::autocast::prioritize",
        "An operator for which autocast takes the widest dtype (cat, stack and others) met a dtype that it does "
        "not expect: the 16-bit type that is not the region's, mostly, such as FP16 in a BF16 region.",
        "Remove the .half() or .bfloat16() that was written by hand, or give autocast that dtype.",
    ),
    Known(
        "custom-function-device",
        r"custom_(?P<which>fwd|bwd)\(\) missing 1 required keyword-only argument: 'device_type'",
        "torch.amp.custom_{which} was used without a device type. (torch.cuda.amp.custom_{which} needed none.)",
        "@torch.amp.custom_{which}(device_type='cuda'); custom_fwd and custom_bwd get the same device type.",
    ),
    Known(
        "device-type",
        r"Expected `device_type` of type `str`, got: `<class '(?P<given>[\w.]+)'>`",
        "autocast, custom_fwd or custom_bwd was given a {given} where it wants the device type as text.",
        "autocast(device.type, dtype=torch.float16): 'cuda' or 'cpu' comes first, the dtype by name.",
    ),
    Known(
        "device-type",
        r"autocast\.__init__\(\) missing 1 required positional argument: 'device_type'",
        "torch.autocast was used without a device type.",
        "torch.autocast('cuda', dtype=torch.float16), or torch.autocast(x.device.type, ...) for any device.",
    ),
    Known(
        "device-type",
        r"Expected one of cpu, cuda, .* device type at start of device string: (?P<given>\S+)",
        "There is no device type {given}.",
        "Graphics cards of NVIDIA and AMD are 'cuda', Apple's 'mps', Intel's 'xpu', the processor is 'cpu'.",
    ),
    Known(
        "device-type",
        r"(?:^|: )unsupported scalarType$",
        "autocast has no default dtype for this type of device.",
        "Use the device type that computes, such as 'cuda' or 'cpu'.",
    ),
    Known(
        "autocast-dtype",
        r"In (?P<device>\w+) autocast, but the target dtype is not supported",
        "autocast was given a dtype that it cannot compute in on {device}. It has switched itself off: every "
        "operator follows its inputs.",
        "dtype=torch.bfloat16 or dtype=torch.float16. To switch autocast off on purpose: enabled=False.",
    ),
    Known(
        "autocast-without-cuda",
        r"CUDA is not available(?: or torch_xla is imported)?\. Disabling",
        "autocast was made for CUDA, and there is none here. It has switched itself off: everything runs in FP32.",
        "torch.autocast(x.device.type, ...) follows the data. To see on a CPU what CUDA's autocast would do: "
        "amp_lab.autocast.emulate.cuda_autocast() with torch.autocast('cpu', ...).",
    ),
    Known(
        "old-name",
        r"`torch\.(?P<device>cuda|cpu)\.amp\.(?P<name>\w+)\(args\.\.\.\)` is deprecated",
        "torch.{device}.amp.{name} is an old name; it still works.",
        "torch.amp.{name}, with the device type '{device}': as the first argument of autocast and GradScaler, as "
        "device_type= of custom_fwd and custom_bwd.",
    ),
    Known(
        "old-name",
        r"torch\.(?P<name>\w*autocast\w*)\((?:dtype)?\) is deprecated\. Please use (?P<new>torch\.\w+\([^)]*\)) "
        r"instead",
        "torch.{name} is an old name; it still works.",
        "{new}",
    ),
    Known(
        "checkpoint-dtypes",
        r"Recomputed values for the following tensors have different metadata(?:.|\n)*?"
        r"saved metadata: [^\n]*?'dtype': (?P<first>[\w.]+)(?=[,}])[^\n]*\n\s*recomputed metadata: [^\n]*?'dtype': "
        r"(?!(?P=first)\b)(?P<second>[\w.]+)",
        "Activation checkpointing ran a block again in the backward pass, and a tensor came out in another dtype: "
        "{first} in the forward pass, {second} when recomputed. So autocast was not in the same state both times.",
        "Let nothing inside the block depend on what changes in between, such as a switch for autocast or its dtype. "
        "checkpoint itself restores autocast as it was around the block.",
    ),
    Known(
        "nan-in-backward",
        r"Function '(?P<function>\w+)' returned nan values in its \d+(?:st|nd|rd|th) output",
        "Anomaly detection stopped the backward pass: {function} computed NaN. With a loss scale that is too large for "
        "the moment this is normal, and GradScaler would have skipped the step.",
        "Run this step with a scale of 1: if NaN is still there, look for a derivative that is not finite, as of sqrt "
        "or log at 0. If not, switch anomaly detection off.",
    ),
    Known(
        "clip-nonfinite",
        r"The total norm of order \S+ for gradients from `parameters` is non-finite",
        "The norm of the gradients is infinite or NaN, and clipping was told to raise an error then. With a GradScaler "
        "this happens whenever the scale is too large, and the step would have been skipped.",
        "Leave error_if_nonfinite at False: after unscale_, scaler.step skips such a step by itself.",
    ),
    Known(
        "probabilities-nan",
        r"probability tensor contains either `inf`, `nan` or element < 0",
        "The probabilities to sample from hold NaN or infinity: logits have overflowed, in FP16 above 65504, or all "
        "of a row was masked.",
        "Compute them in FP32, torch.softmax(logits.float(), dim=-1), and see that the logits are finite.",
    ),
)

ALL: Final = (*SCALER, *REGIONS)
