"""Errors and warnings about regions of autocast, custom autograd functions and checkpoints."""

from __future__ import annotations

from typing import Final

from amp_lab.autocast.messages.known import Known

_A_DTYPE: Final = r"(?P<given>(?:half|float|double|b?float\d+|[bf]p?\d+|int\d*|long)(?:_e\dm\d\w*)?)\b"

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
        "autocast-not-called",
        r"'type' object does not support the (?:asynchronous )?context manager protocol|^AttributeError: __enter__",
        "torch.autocast itself stands in the with statement: it is a class, and makes the region when it is called.",
        "with torch.autocast('cuda', dtype=torch.float16):, or another device type.",
        in_line=r"\bwith\b.*autocast",
    ),
    Known(
        "unknown-keyword",
        r"(?P<call>autocast|GradScaler)\.__(?:init|new)__\(\) got an unexpected keyword argument '(?P<given>\w+)'",
        "{call} has no argument called {given}.",
        "torch.autocast(device_type, dtype=None, enabled=True, cache_enabled=None); torch.amp.GradScaler(device, "
        "init_scale, growth_factor, backoff_factor, growth_interval, enabled). The old names below torch.cuda.amp and "
        "torch.cpu.amp take no device.",
    ),
    Known(
        "dtype-as-text",
        r"(?:device type at start of device string: |Invalid device string: ')" + _A_DTYPE,
        "A dtype was given as text, {given!r}, and text is taken for the name of a device.",
        "x.to(torch.float16) or x.to(torch.bfloat16): a dtype is an object of PyTorch, not text.",
    ),
    Known(
        "dtype-as-text",
        r"module 'torch' has no attribute '(?P<given>fp16|fp32|fp64|bf16|float8|fp8)'",
        "PyTorch has no dtype called torch.{given}.",
        "The names are torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn and torch.float8_e5m2.",
    ),
    Known(
        "device-type",
        r"Expected one of cpu, cuda, .{0,300} device type at start of device string: (?P<given>\S{1,40})",
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
        "checkpoint itself restores autocast as it was around the block. Of amp_lab's cuda_autocast() it knows "
        "nothing: call backward() inside of it.",
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
