"""Errors that have nothing to do with precision, and are met beside it."""

from __future__ import annotations

from typing import Final

from amp_lab.autocast.messages.known import Known

NOT_PRECISION: Final = "not-precision"

TO_DEVICE: Final = (
    "Move both to one device: model.to(device) once, and each batch with x.to(device). A tensor that is made inside of "
    "forward needs device=x.device, and one that belongs to the model is best a buffer: register_buffer."
)

DEVICES: Final = (
    Known(
        "devices",
        r"Expected all tensors to be on the same device|Tensor for argument #\d+ '\w+' is on \w+, but expected|"
        r"Tensor on device [\w:]+ is not on the expected device|Placeholder storage has not been allocated on MPS",
        "Tensors that meet in one operator lie on different devices. That has nothing to do with mixed precision.",
        TO_DEVICE,
    ),
)


def _unrelated(subject: str, pattern: str, advice: str) -> Known:
    return Known(
        NOT_PRECISION, pattern, f"This is no error of mixed precision: it is about {subject}.", advice
    )


_READ: Final = (
    "The message below says what PyTorch or Python knows. The same line fails without mixed precision, too."
)

UNRELATED: Final = (
    _unrelated(
        "a state that does not fit the model",
        r"Error\(s\) in loading state_dict|Missing key\(s\) in state_dict",
        _READ,
    ),
    _unrelated(
        "shapes",
        r"shapes cannot be multiplied|The size of tensor a \(\d+\) must match|[Ss]izes of tensors must match|"
        r"is invalid for input of size|shape mismatch|size mismatch|Given groups=\d+|to have \d+ channels|"
        r"Expected input batch_size|The shape of the mask|normalized_shape=|[Ee]xpected \d+D|but got \d+D|"
        r"inconsistent tensor size|doesn't match the broadcast shape|Expected size for first two dimensions|"
        r"input\.size\(-1\) must be equal to input_size|multi-target not supported|Dimension out of range",
        f"Print the shapes of what meets in this line. {_READ}",
    ),
    _unrelated(
        "an index outside of its range",
        r"[Ii]ndex (?:-?\d+ is )?out of (?:range|bounds)|Target -?\d+ is out of bounds|index out of range|"
        r"[Ii]ndex -?\d+ is out of bounds",
        f"Compare the largest index with the size of what it looks up. {_READ}",
    ),
    _unrelated(
        "the arguments of a call",
        r"missing \d+ required (?:positional|keyword-only) arguments?|got an unexpected keyword argument|"
        r"positional arguments? but \d+ (?:was|were) given|got multiple values for argument|"
        r"argument '\w+' \(position \d+\) must be|received an invalid combination of arguments",
        _READ,
    ),
    _unrelated(
        "the graph that backward() goes through",
        r"Trying to backward through the graph a second time|does not require grad and does not have a grad_fn|"
        r"grad can be implicitly created only for scalar outputs|has been modified by an inplace operation|"
        r"Can't call numpy\(\) on Tensor that requires grad",
        _READ,
    ),
    _unrelated(
        "memory",
        r"out of memory|^MemoryError\b|can't allocate memory",
        "A smaller batch, or activation checkpointing. Mixed precision itself saves memory of activations, not of "
        "parameters.",
    ),
    _unrelated(
        "Python's own rules",
        r"^(?:NameError|UnboundLocalError|ImportError|ModuleNotFoundError|SyntaxError|IndentationError|"
        r"FileNotFoundError|PermissionError|ZeroDivisionError|UnicodeDecodeError|RecursionError)\b",
        _READ,
    ),
)
