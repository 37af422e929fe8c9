"""Checkpoints that survive: whole or not there, complete, and without code that loading would run.

    save_checkpoint("run.pt", {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                               "scaler": scaler.state_dict(), "random": random_states.capture()})
    state = load_checkpoint("run.pt")
    load_weights(model, state["model"])

A run goes on exactly where it was, in every bit, if all that moves is in there: weights, optimizer, loss scaler,
scheduler, the place in the data (`amp_lab.train.saving.positions`) and the random states
(`amp_lab.train.saving.random_states`).
`amp_lab.Trainer` saves all of it.
"""

from amp_lab.train.saving.errors import CheckpointError
from amp_lab.train.saving.folder import Checkpoints
from amp_lab.train.saving.one import load_checkpoint, save_checkpoint
from amp_lab.train.saving.scalers import load_scaler
from amp_lab.train.saving.weights import load_weights

__all__ = [
    "CheckpointError",
    "Checkpoints",
    "load_checkpoint",
    "load_scaler",
    "load_weights",
    "save_checkpoint",
]
