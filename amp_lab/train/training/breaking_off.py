"""What a Trainer does when a step is broken off: by Ctrl+C, by too little memory, by an error in your code."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from amp_lab.train.training.errors import OutOfMemory

if TYPE_CHECKING:
    from amp_lab.train.trainer import Trainer

# What is no OutOfMemoryError, and means the same: of the CPU, of CUDA itself, of its libraries.
_NO_MEMORY = re.compile(
    r"DefaultCPUAllocator: .*(memory|allocate)|CUDA error: out of memory|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED",
    re.DOTALL,
)


def end_turn(trainer: Trainer) -> None:
    """Make the next step begin afresh: without these gradients, and with a scaler that knows of no unscaling."""
    trainer.optimizer.zero_grad(set_to_none=True)
    # It has not scaled anything yet; or the GPU answers nothing any more, and its first error is the one to be told.
    with contextlib.suppress(AssertionError, RuntimeError):
        trainer.scaler.update(trainer.scaler.get_scale())


@contextlib.contextmanager
def explained(trainer: Trainer) -> Iterator[None]:
    """Add to Ctrl+C a note that says how to go on, and say of too little memory what to try.

    Raises:
        OutOfMemory: in place of PyTorch's own error.
        RankFailed: in place of an error of the connection, if another rank has left.
    """
    try:
        with _own_errors(trainer):
            yield
    except BaseException as error:
        trainer.ranks.leaving(error)
        raise


@contextlib.contextmanager
def _own_errors(trainer: Trainer) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt as error:
        error.add_note(_how_to_go_on(trainer))
        raise
    except RuntimeError as error:
        if _is_out_of_memory(error):
            traceback.clear_frames(error.__traceback__)  # their activations would live as long as the error
            raise OutOfMemory(f"{str(error).splitlines()[0]}\n{_what_to_try(trainer)}") from error
        trainer.ranks.explain(error)
        raise


def _how_to_go_on(trainer: Trainer) -> str:
    done = f"{trainer.step:,} steps are done, and trainer.history has them."
    if trainer.checkpoints is None or not trainer.checkpoints.paths:
        return (
            f"{done} Call fit again to go on (the weights may hold a part of the step that was broken off)."
        )
    newest = trainer.checkpoints.newest
    return (
        f"{done} {newest} was saved last: go on from there with fit(..., resume=True), in a new process, too."
    )


def _is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or _NO_MEMORY.search(str(error)) is not None


def _what_to_try(trainer: Trainer) -> str:
    tries = [
        f"half the batch size and accumulate={2 * trainer.accumulate}: the same step, with half the activations",
        "torch.utils.checkpoint in the model: activations are computed again in place of kept",
    ]
    if trainer.precision in ("fp32", "tf32"):
        tries.append('precision="bf16" or "fp16": activations take half the space')
    tries.append("an optimizer with a smaller state: SGD with momentum has half of Adam's")
    listed = "".join(f"\n- {each}" for each in tries)
    return (
        f"No memory is left on {trainer.device} for step {trainer.step:,}. Weights are as they were before it, "
        f"unless the optimizer itself ran out. Try, in this order:{listed}"
    )
