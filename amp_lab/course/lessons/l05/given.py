"""What exercise 5.4 starts from: a scaler that cannot be saved."""

from __future__ import annotations

import torch


class ForgetfulScaler:
    """A dynamic loss scaler that does what `torch.amp.GradScaler` does, but that no checkpoint can hold.

    Takes the settings of torch's, of any value there. Gradients are FP32 and dense; `scale` gives an FP32 loss for an
    FP16 one, too, because `loss_scale` is a 0-dim FP32 tensor and no Python number.
    """

    def __init__(
        self,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        self.loss_scale = torch.tensor(init_scale, dtype=torch.float32)
        self.clean_steps = 0
        self.growth_factor = growth_factor
        self.backoff_factor = backoff_factor
        self.growth_interval = growth_interval
        self.overflowed: dict[torch.optim.Optimizer, bool] = {}

    def get_scale(self) -> float:
        """Return the scale as a number."""
        return float(self.loss_scale)

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the scaled loss."""
        return loss * self.loss_scale

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Unscale the gradients of `optimizer` in place, and note whether one of them overflowed."""
        parameters = [each for group in optimizer.param_groups for each in group["params"]]
        grads = [each.grad for each in parameters if each.grad is not None]
        self.overflowed[optimizer] = not all(grad.isfinite().all() for grad in grads)
        for grad in grads:
            grad.div_(self.loss_scale)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Let `optimizer` make its step, unless its gradients overflowed."""
        if optimizer not in self.overflowed:
            self.unscale_(optimizer)
        if not self.overflowed[optimizer]:
            optimizer.step()

    def update(self) -> None:
        """End the iteration: back off after an overflow, grow after `growth_interval` clean ones in a row."""
        overflowed, self.overflowed = any(self.overflowed.values()), {}
        self.clean_steps = 0 if overflowed else self.clean_steps + 1
        if overflowed:
            self.loss_scale = self.loss_scale * self.backoff_factor
        elif self.clean_steps >= self.growth_interval:
            self.loss_scale = self.loss_scale * self.growth_factor
            self.clean_steps = 0
