"""The loss scale itself: a number on the host, and tensors of it on the devices that compute with it.

After an ordinary optimizer's step the host knows whether there was an overflow, so it follows the rule and writes the
new scale to the device. A fused optimizer decides on the device, and nobody has told the host: then the device follows
the rule, with PyTorch's kernel for it, and the host catches up when somebody asks. So nothing waits that need not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from amp_lab.scaling.history import History
from amp_lab.scaling.rule import ScaleRule, ScaleState, next_scale, to_fp32

# The host catches up at the latest after so many updates that it knows nothing of: each keeps a tensor alive.
MOST_WAITING = 1_000


class Decision(NamedTuple):
    """What an update was given: whether there was an overflow (a tensor if only a device knows), and a new scale."""

    overflowed: bool | torch.Tensor
    new_scale: float | None
    rule: ScaleRule


class LossScale:
    """The scale, its rule and its history."""

    def __init__(self, state: ScaleState, rule: ScaleRule) -> None:
        self.rule = rule
        self._state = state
        self._history = History()
        # Updates that the devices have done and the host has not, oldest first.
        self._waiting: list[Decision] = []
        self._drop_tensors()

    def _drop_tensors(self) -> None:
        # The scale lives on the device of the first outputs that were scaled. It is written in place: a CUDA graph
        # that has recorded a multiplication by it sees the new one, and autograd sees that a loss was scaled by an
        # old one and refuses its backward.
        self._tensor: torch.Tensor | None = None
        self._clean_steps: torch.Tensor | None = None
        self._inverses: dict[torch.device, torch.Tensor] = {}

    @property
    def was_used(self) -> bool:
        """Whether anything was multiplied by it yet."""
        return self._tensor is not None

    @property
    def state(self) -> ScaleState:
        """The scale and the count of clean steps. Waits for the devices if they know more than the host."""
        self._catch_up()
        return self._state

    @property
    def history(self) -> History:
        """What the scale went through. Waits for the devices if they know more than the host."""
        self._catch_up()
        return self._history

    def snapshot(self) -> float | torch.Tensor:
        """Return the scale as it is now, without waiting: a number if the host knows it, else a tensor."""
        return self.on(self.home).clone() if self._waiting else self._state.scale

    @property
    def home(self) -> torch.device:
        """The device that the scale lives on."""
        assert self._tensor is not None, "the scale has no home before its first use"
        return self._tensor.device

    def on(self, device: torch.device) -> torch.Tensor:
        """Return the scale as a 0-dim FP32 tensor on a device."""
        if self._tensor is None:
            self._tensor = _filled(self._state.scale, device)
        if self._tensor.device == device:
            return self._tensor
        return self._tensor.to(device) if self._waiting else _filled(self._state.scale, device)

    def inverse_on(self, device: torch.device) -> torch.Tensor:
        """Return 1/scale, taken in FP64 and rounded to FP32 once, as a 0-dim tensor on a device."""
        if device not in self._inverses:
            self._inverses[device] = self._new_inverse(device)
        return self._inverses[device]

    def _new_inverse(self, device: torch.device) -> torch.Tensor:
        if self._waiting:
            scale = self.on(device)
            # Apple's GPUs have no FP64.
            return scale.reciprocal() if device.type == "mps" else scale.double().reciprocal().float()
        scale_is = self._state.scale
        return _filled(to_fp32(1 / scale_is) if scale_is else float("inf"), device)

    def advance(self, overflowed: bool | torch.Tensor, new_scale: float | None = None) -> None:
        """Go on to the next step.

        Args:
            overflowed: whether a gradient was infinite or NaN; a 0-dim FP32 tensor, above 0 if so, where only a device
                knows. With a `min_scale` the rule needs a bool: PyTorch's kernel knows no floor.
            new_scale: the next scale, if the rule is not to be asked.
        """
        decision = Decision(overflowed, new_scale, self.rule)
        if isinstance(overflowed, bool) and not self._waiting:
            self._follow(decision, overflowed)
            self._write()
        else:
            self._follow_on_device(decision)
            self._waiting.append(decision)
            if len(self._waiting) >= MOST_WAITING:
                self._catch_up()

    def set(self, state: ScaleState, rule: ScaleRule) -> None:
        """Go on from another state, with another rule. The history stays."""
        self._catch_up()
        self._state, self.rule = state, rule
        self._inverses.clear()
        self._write()

    def _follow(self, decision: Decision, overflowed: bool) -> None:
        self._history.add(self._state.scale, overflowed)
        before = self._state
        if decision.new_scale is None:
            self._state = next_scale(before, overflowed, decision.rule)
        else:
            self._state = ScaleState(decision.new_scale, before.clean_steps)
        if self._state.scale != before.scale:
            self._inverses.clear()

    def _write(self) -> None:
        """Tell the device what the host knows."""
        self._clean_steps = None
        if self._tensor is not None:
            self._tensor.fill_(self._state.scale)

    def _follow_on_device(self, decision: Decision) -> None:
        scale = self.on(self.home)
        if self._clean_steps is None:
            self._clean_steps = torch.full(
                (), self._state.clean_steps, dtype=torch.int32, device=scale.device
            )
        self._inverses.clear()
        if decision.new_scale is not None:
            scale.fill_(decision.new_scale)
            return
        found, rule = decision.overflowed, decision.rule
        if isinstance(found, bool):
            found = _filled(float(found), scale.device)
        torch._amp_update_scale_(
            scale, self._clean_steps, found, rule.growth_factor, rule.backoff_factor, rule.growth_interval
        )

    def _catch_up(self) -> None:
        """Let the host follow the rule through all that waits. Equal on both sides: a test holds that."""
        if not self._waiting:
            return
        on_device = [wait.overflowed for wait in self._waiting if isinstance(wait.overflowed, torch.Tensor)]
        answers = iter(torch.stack(on_device).tolist())  # one wait for all of them
        for wait in self._waiting:
            known = wait.overflowed if isinstance(wait.overflowed, bool) else next(answers) > 0
            self._follow(wait, known)
        self._waiting.clear()

    def __getstate__(self) -> dict[str, Any]:
        """Tensors stay behind: they are made again where the copy is first used."""
        self._catch_up()
        state = self.__dict__.copy()
        for name in ("_tensor", "_clean_steps", "_inverses"):
            del state[name]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._drop_tensors()


def _filled(number: float, device: torch.device) -> torch.Tensor:
    return torch.full((), number, dtype=torch.float32, device=device)
