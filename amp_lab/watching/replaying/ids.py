"""The causes that an explanation may name, each with a title."""

from typing import Final

CAUSES: Final = {
    "none": "nothing overflows",
    "scale-too-large": "the loss scale is too large for this batch",
    "backward-overflow": "gradients leave 16 bits in the backward pass, whatever the scale",
    "forward-overflow": "a result leaves its format in the forward pass",
    "cast-overflow": "numbers are too large for the cast to 16 bits",
    "hidden-overflow": "an infinity vanishes inside the model, and a wrong result goes on",
    "mask-overflow": "a mask leaves nothing for a softmax",
    "nan-in-data": "the batch has numbers that are not finite",
    "nan-in-targets": "the targets have numbers that are not finite",
    "nan-in-weights": "weights are not finite",
    "nan-derivative": "a derivative is not finite, though the loss is",
    "no-labels": "the loss is a mean over nothing",
    "eps-lost": "a small constant becomes 0 in 16 bits",
    "pole": "a function is asked where it has no finite value",
    "fp32-overflow": "the numbers are too large for FP32, too",
}
