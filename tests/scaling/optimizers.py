"""Optimizers for the tests."""

import torch


class FusedSGD(torch.optim.Optimizer):
    """An SGD that unscales and decides by itself, as fused ones do; in plain operations: sparse and FP16 ones, too."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})
        self._step_supports_amp_scaling = True

    @torch.no_grad()
    def step(self, closure=None):
        grad_scale, found_inf = self.grad_scale, self.found_inf
        if found_inf.item():
            return "did nothing"
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    gradient = p.grad if grad_scale is None else p.grad * grad_scale.reciprocal()
                    p.add_(gradient, alpha=-group["lr"])
        return "made a step"


class OldFusedSGD(FusedSGD):
    """What fused optimizers once looked like."""

    def step(self, closure=None, *, grad_scaler=None):
        raise AssertionError("must not be called")
