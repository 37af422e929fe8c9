"""Asking about one device: which one is meant, and everything there is to know about it."""

import os
import warnings
from dataclasses import replace
from typing import Any

import torch

from amp_lab.device.asking_safely import asked
from amp_lab.device.asking_system import ask_cpu, nvidia_trace
from amp_lab.device.asking_torch import ask_amp, ask_fp32_switches, ask_gpu, ask_torch
from amp_lab.device.facts import DeviceFacts
from amp_lab.device.meaning import explain
from amp_lab.device.report import DeviceReport


def describe_device(device: str | torch.device | None = None) -> DeviceReport:
    """Describe `device`, by default the best one present (CUDA, then MPS, then CPU).

    Changes no setting, runs no model and prints nothing; what PyTorch warns about meanwhile ends up in the
    report's notes. Switches such as TF32's are read as they stand now. A question that raises is answered with
    "unknown" and a note; the report is made all the same.

    Raises TypeError for anything but a string, a torch.device or None, and ValueError for a device that is
    not here; the message says what is.
    """
    if not isinstance(device, str | torch.device | None):
        raise TypeError(f"describe_device takes a name like 'cpu', a torch.device or None, not {device!r}.")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        present = _present_devices()
        chosen = _choose(device, present, _for_users(caught))
        facts = _ask(chosen, present)
    facts = replace(facts, warnings=_for_users(caught))
    return DeviceReport(facts, explain(facts))


def _for_users(caught: list[warnings.WarningMessage]) -> tuple[str, ...]:
    """Each warning once and on one line; deprecations speak to developers and are left out."""
    deprecations = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
    texts = [" ".join(str(w.message).split()) for w in caught if not issubclass(w.category, deprecations)]
    return tuple(dict.fromkeys(texts))


def _present_devices() -> tuple[str, ...]:
    gpus = asked("whether CUDA can be used", _usable_cuda_devices) or 0
    cuda = [f"cuda:{index}" for index in range(gpus)]
    mps = ["mps"] if asked("whether MPS can be used", lambda: torch.backends.mps.is_available()) else []
    return (*cuda, *mps, "cpu")


def _usable_cuda_devices() -> int:
    cuda: Any = torch.cuda
    if not cuda.is_available():
        return 0
    try:
        cuda.init()
    except (RuntimeError, AssertionError) as error:  # a driver that is there but does not start
        warnings.warn(f"CUDA could not be started: {error}", stacklevel=2)
        return 0
    return int(cuda.device_count())


def _choose(
    device: str | torch.device | None, present: tuple[str, ...], warned: tuple[str, ...]
) -> torch.device:
    """The device asked for, with its index; ValueError, with what was warned of, if it is not here."""
    # By default "cuda" and not "cuda:0": the current GPU may be another one.
    name = present[0].partition(":")[0] if device is None else str(device)
    here = f"Here there is: {', '.join(present)}."
    try:
        chosen = torch.device(name)
    except RuntimeError:
        raise ValueError(f"{name!r} is not the name of a device. {here}") from None
    known = str(chosen) == name  # PyTorch keeps the index in 8 bits: "cuda:256" would become cuda:0
    if chosen.type == "cuda" and chosen.index is None and "cuda:0" in present:
        current = asked("which GPU is the current one", lambda: torch.cuda.current_device())
        chosen = torch.device("cuda", current or 0)
    if str(chosen) in ("cpu:0", "mps:0"):
        chosen = torch.device(chosen.type)
    if not known or str(chosen) not in present:
        said = "".join(f" Note: {text}" for text in warned)
        raise ValueError(f"There is no device {name!r} to describe on this machine. {here}{said}")
    return chosen


def _ask(device: torch.device, present: tuple[str, ...]) -> DeviceFacts:
    built, gpus = ask_torch(), sum(name.startswith("cuda") for name in present)
    return DeviceFacts(
        device=str(device),
        present=present,
        gpu=ask_gpu(device, built, gpus),
        cpu=ask_cpu(),
        torch=built,
        amp=ask_amp(device),
        fp32=ask_fp32_switches(),
        nvidia_seen=nvidia_trace(),
        cuda_visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )
