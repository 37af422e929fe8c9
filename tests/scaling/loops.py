"""Small loops for the tests: gradients that are given, and a scaler that meets them."""

import torch

from amp_lab.scaling import DynamicLossScaler, StaticLossScaler

BOTH = [lambda: DynamicLossScaler(1024.0), lambda: StaticLossScaler(1024.0)]


def parameters(*shapes, dtype=torch.float32):
    return [torch.ones(shape, dtype=dtype, requires_grad=True) for shape in shapes or [(3,), (2, 2)]]


def named(*shapes):
    return [(f"layer{i}.weight", p) for i, p in enumerate(parameters(*shapes))]


def every(optimizer):
    return [p for group in optimizer.param_groups for p in group["params"]]


def backward(scaler, optimizer, *gradients):
    """Leave scaled gradients: `gradients` before scaling, one number per parameter, None for none."""
    numbers = gradients or [1.0] * len(every(optimizer))
    optimizer.zero_grad()
    some = [
        (p * number).sum() for p, number in zip(every(optimizer), numbers, strict=True) if number is not None
    ]
    scaler.scale(sum(some)).backward()


def iterate(scaler, optimizer, *gradients):
    """Do a whole iteration and return what step returned."""
    backward(scaler, optimizer, *gradients)
    result = scaler.step(optimizer)
    scaler.update()
    return result
