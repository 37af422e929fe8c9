"""What the table of formats does not say: notes on the machine, and what cannot be run on it."""

from collections.abc import Iterator

from amp_lab.device.facts import DeviceFacts
from amp_lab.device.gpu_kinds import is_small_turing
from amp_lab.device.kernels import has_kernels
from amp_lab.device.support import FormatSupport


def notes(facts: DeviceFacts) -> tuple[str, ...]:
    """A GPU that cannot be used, other devices, and PyTorch's own warnings."""
    return (*_missing_gpu(facts), *_this_device(facts), *facts.warnings)


def _missing_gpu(facts: DeviceFacts) -> Iterator[str]:
    built, seen = facts.torch, facts.nvidia_seen
    if any(name != "cpu" for name in facts.present):
        return
    if built.cuda or built.rocm:
        target = f"CUDA {built.cuda}" if built.cuda else f"ROCm {built.rocm}"
        yield f"This PyTorch is built for {target}, but no usable GPU was found."
        if facts.cuda_visible_devices is not None:
            yield f"CUDA_VISIBLE_DEVICES is {facts.cuda_visible_devices!r}: it may hide GPUs from PyTorch."
        if built.cuda and seen:
            yield f"But {seen} is there: is the driver new enough? nvidia-smi shows which CUDA it supports."
    elif built.mps:
        yield "This PyTorch is built with MPS, but no usable Apple GPU was found."
    elif seen and None not in (built.cuda, built.rocm, built.mps):
        yield f"A GPU seems present ({seen}) but this PyTorch is a CPU build: install a CUDA build to use it."


def _this_device(facts: DeviceFacts) -> Iterator[str]:
    gpu = facts.gpu
    if gpu and not has_kernels(gpu):
        yield (
            f"This PyTorch has no kernels for compute capability {gpu.capability_text} (it has them for "
            f"{', '.join(gpu.built_for or ())}): operations on this GPU fail. Install a build that covers it."
        )
    if gpu and is_small_turing(gpu):
        yield (
            "This GPU reports the compute capability of a T4 but has no Tensor Cores. Slow FP16 products and "
            "NaN in FP16 convolutions have been reported from such GPUs: check results and measure."
        )
    others = [name for name in facts.present if name not in (facts.device, "cpu")]
    if others:
        yield f"Also here: {', '.join(others)}."
    if gpu is None and facts.amp.autocast_dtypes and facts.amp.grad_scaler:
        yield "torch.autocast and GradScaler do their work on a CPU too; only the speed needs hardware."


def not_run_here(facts: DeviceFacts, formats: tuple[FormatSupport, ...]) -> tuple[str, ...]:
    """Which parts of a course on AMP this machine cannot show, each by name and with its reason."""
    if facts.gpu and not has_kernels(facts.gpu):
        return (f"Everything on {facts.name}: this PyTorch has no kernels for it.",)
    return (*_tensor_core_speed(facts, formats), *_cuda_only(facts))


def _tensor_core_speed(facts: DeviceFacts, formats: tuple[FormatSupport, ...]) -> Iterator[str]:
    """Unknown support of an NVIDIA GPU is no reason to skip: running it will tell."""
    gpu = facts.gpu
    run = ("tensor cores", "unknown") if gpu and gpu.vendor == "nvidia" else ()
    missing = [entry.format for entry in formats if entry.kind not in run and entry.format != "FP32"]
    if gpu is None:
        why = "this device is a CPU"
    elif gpu.vendor != "nvidia":
        why = f"{facts.name} is not an NVIDIA GPU"
    elif len(missing) == len(formats) - 1:
        why = f"{facts.name} (compute capability {gpu.capability_text}) has no Tensor Cores"
    else:
        why = f"{facts.name}'s Tensor Cores (compute capability {gpu.capability_text}) are for other formats"
    if missing:
        yield f"The speed of Tensor Cores (units for matrix products) in {', '.join(missing)}: {why}."


def _cuda_only(facts: DeviceFacts) -> Iterator[str]:
    gpu, here = facts.gpu, f"this device is {facts.device}"
    if gpu is None or gpu.vendor == "apple":
        yield f"How much GPU memory is used: {here}, and torch.cuda counts the memory of CUDA devices."
        yield f"Where a program waits for the GPU: {here}, and torch.cuda.set_sync_debug_mode watches CUDA."
        yield f"Several GPUs at work over NCCL: {here}; the same scripts run on CPUs, over gloo."
    elif facts.torch.nccl is False:  # unknown is no reason to skip: running it will tell
        yield "Several GPUs at work over NCCL: this PyTorch was built without it."
    elif gpu.count == 1:
        yield "Several GPUs at work over NCCL: there is one GPU here."
