"""Machines that are not here, as PyTorch answers on them."""

import glob
import shutil
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU, wherever this runs."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(glob, "glob", lambda pattern: [])
    monkeypatch.setattr(shutil, "which", lambda tool: None)


@pytest.fixture
def fake_cuda(monkeypatch: pytest.MonkeyPatch):
    """PyTorch as it answers on a machine with these NVIDIA GPUs: (name, (major, minor)) each."""

    def install(*gpus: tuple[str, tuple[int, int]], built_for: tuple[str, ...] = ()) -> None:
        current = [0]

        def properties(device: torch.device) -> SimpleNamespace:
            name, (major, minor) = gpus[torch.device(device).index]
            return SimpleNamespace(
                name=name, major=major, minor=minor, total_memory=16 * 2**30, gcnArchName=""
            )

        def is_bf16_supported(including_emulation: bool = True) -> bool:
            return including_emulation or gpus[current[0]][1][0] >= 8

        @contextmanager
        def on(device: torch.device):
            previous, current[0] = current[0], device.index
            yield
            current[0] = previous

        answers = {
            "is_available": lambda: True,
            "init": lambda: None,
            "device_count": lambda: len(gpus),
            "current_device": lambda: 0,
            "get_device_properties": properties,
            "get_arch_list": lambda: list(built_for),
            "is_bf16_supported": is_bf16_supported,
            "device": on,
        }
        for name, answer in answers.items():
            monkeypatch.setattr(torch.cuda, name, answer)
        monkeypatch.setattr(torch.version, "cuda", "13.0")

    return install


@pytest.fixture
def apple_gpu(no_gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """An Apple GPU that keeps no FP8 tensors."""

    def empty(*size: int, dtype: torch.dtype, device: torch.device) -> None:
        raise TypeError(f"Trying to convert {dtype} to the {device} backend, which does not have it.")

    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "is_built", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M2")
    # torch.autocast asks in PyTorch 2.9.
    monkeypatch.setattr(torch.backends.mps, "is_macos_or_newer", lambda *_: True)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 2**33)
    monkeypatch.setattr(torch, "empty", empty)
