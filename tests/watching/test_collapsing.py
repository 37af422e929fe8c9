"""A loss scale that has sunk below `min_scale` stops the loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from amp_lab.scaling import DynamicLossScaler
from amp_lab.watching.recording.events import Updated
from amp_lab.watching.recording.noting import scalers as noting_scalers
from amp_lab.watching.watch import ScaleCollapsed, Watch
from tests.watching.loops_to_replay import Loop, nan_in, times

pytestmark = pytest.mark.usefixtures("one_thread")


def test_min_scale_is_a_scale():
    loop = Loop()
    with pytest.raises(TypeError, match="min_scale"):
        loop.watch(min_scale="small")
    for value in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="above 0"):
            loop.watch(min_scale=value)


def collapsed(**settings: Any) -> tuple[Loop, Watch, ScaleCollapsed]:
    loop = Loop()
    seen = loop.watch(**settings)
    with pytest.raises(ScaleCollapsed) as raised, seen:
        loop.run(60, times(1e18))
    return loop, seen, raised.value


def test_a_scale_that_sinks_to_nothing_stops_the_loop():
    before = [each.clone() for each in Loop().model.parameters()]
    loop, seen, error = collapsed(replay=None)
    assert isinstance(error, FloatingPointError)
    assert loop.at == 35  # 2^10 / 2^35 is below 2^-24
    assert loop.scaler is not None
    assert loop.scaler.get_scale() == 2.0**-25
    for now, then in zip(loop.model.parameters(), before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0)
    for words in ("2^-25", "35 steps were all skipped", "min_scale=None", "`0.weight`", "replay="):
        assert words in str(error)
    assert "scale-collapse" in [each.id for each in seen.report().diagnoses]
    assert "ScaleCollapsed" in str(seen.report())
    assert repr(seen).startswith("Watch: off")
    assert len(list(seen.run.of(Updated))) == 35


def test_its_message_has_the_root_cause():
    _, seen, error = collapsed()
    assert seen.overflows[0].sentence in str(error)
    assert seen.overflows[0].advice in str(error)


def test_after_it_all_is_as_it_was_and_the_loop_can_go_on():
    before = Loop()
    loop, _, error = collapsed(replay=None)
    assert "Weights and optimizer are as they were" in str(error)
    assert "scaler.update(2.0**16)" in str(error)
    for now, then in zip(loop.model.parameters(), before.model.parameters(), strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0)
    assert loop.optimizer.state_dict() == before.optimizer.state_dict()
    for kind in (torch.amp.GradScaler, torch.optim.SGD, torch.Tensor, nn.Module):  # patches
        for name, value in vars(kind).items():
            assert not getattr(value, "__module__", "").startswith("amp_lab.watching"), name
    assert not loop.model._forward_hooks
    assert not loop.model._forward_pre_hooks
    assert loop.scaler is not None
    loop.scaler.update(64.0)
    with loop.watch() as seen:
        loop.run(5)
    assert loop.scaler.get_scale() == 64.0
    assert not seen.run.skips


def test_a_scaler_of_amp_labs_is_stopped_in_the_same_way():
    loop = Loop()
    loop.scaler = DynamicLossScaler(init_scale=1024.0)  # type: ignore[assignment]
    with pytest.raises(ScaleCollapsed, match="min_scale"), loop.watch(replay=None):
        loop.run(60, times(1e18))


def only_the_gpu_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whether a fused optimizer's step was skipped be a tensor, as on a GPU."""
    monkeypatch.setattr(noting_scalers, "number", lambda value: value.detach().clone().reshape(()))


def test_what_only_the_gpu_knows_ends_the_loop_a_little_later(monkeypatch):
    only_the_gpu_knows(monkeypatch)
    loop = Loop()
    loop.optimizer = torch.optim.Adam(loop.model.parameters(), fused=True)
    seen = loop.watch(replay=None)
    loop.data = loop.data * 2
    with pytest.raises(ScaleCollapsed, match="steps were all skipped"), seen:
        loop.run(100, times(1e18))
    assert 35 <= loop.at <= 35 + 32
    assert "ScaleCollapsed" in str(seen.report())


def test_what_only_the_gpu_knows_may_be_that_a_step_was_taken(monkeypatch):
    only_the_gpu_knows(monkeypatch)
    loop = Loop(scale=2.0**-22)
    loop.data = loop.data * 4
    loop.optimizer = torch.optim.Adam(loop.model.parameters(), fused=True)
    with loop.watch(replay=None):
        loop.run(100, times(torch.inf, *(step for step in range(100) if step % 10)))
    assert loop.scaler is not None
    assert loop.scaler.get_scale() == 2.0 ** (-22 - 90)


def test_another_min_scale_or_none():
    loop, _, _ = collapsed(replay=None, min_scale=1.0)
    assert loop.at == 12  # 2^-1 after 11 skips already, but 12 in a row it takes
    loop = Loop()
    with loop.watch(replay=None, min_scale=None):
        loop.run(60, times(1e18))
    assert loop.at == 60


def test_a_step_that_is_taken_in_between_counts_anew():
    loop = Loop(scale=2.0**-22)
    with loop.watch(replay=None):
        loop.run(40, nan_in(*(step for step in range(40) if step % 10)))
    assert loop.scaler is not None
    assert loop.scaler.get_scale() < 2.0**-40
