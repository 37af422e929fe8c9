"""What is claimed of the reviewed code in exercise 9.5; each is proved or disproved by running it (in the tests)."""

from __future__ import annotations

from typing import NamedTuple


class Claim(NamedTuple):
    """A sentence about the code, whether it is true, and why."""

    words: str
    true: bool


CLAIMS = {
    "A": Claim(
        "Nothing ever sets the gradients to zero: what one step leaves in them is there in the next.", True
    ),
    "B": Claim(
        "`scaler.update()` is called too often: it belongs to the end of an epoch.",
        False,
    ),
    "C": Claim(
        "In one process, without a process group, a sampler does not help: the first batch ends with an error.",
        True,
    ),
    "D": Claim(
        "The barrier is needed: without it, DDP would average gradients of ranks that are not ready.", False
    ),
    "E": Claim("With the default `train_sampler=None`, training ends before its first batch.", True),
    "F": Claim(
        "`set_epoch` does nothing: a `DistributedSampler` shuffles anew in each epoch by itself.", False
    ),
    "G": Claim(
        "No checkpoint can hold the scaler's state: outside of `train` nobody gets at it.",
        True,
    ),
    "H": Claim("`backward()` belongs into the autocast region, in which the forward pass ran.", False),
    "I": Claim("How good the model is on data that it is not trained on is never computed.", True),
    "J": Claim("With `use_amp=False` a scaler is missing: small FP32 gradients become zero.", False),
    "K": Claim("The worker ends with an `UnboundLocalError` before the model is wrapped.", True),
    "L": Claim("A second run on the same machine cannot start while the first one is at work.", True),
    "M": Claim("`model.train()` in each step forgets what batch norm has learnt of its inputs.", False),
    "N": Claim("One scaler per process is wrong: the ranks' scales drift apart.", False),
}
TRUE = frozenset(letter for letter, claim in CLAIMS.items() if claim.true)


def claim_list() -> str:
    """Return the claims as a Markdown list, each with its letter."""
    return "\n".join(f"- **{letter}.** {claim.words}" for letter, claim in CLAIMS.items())
