"""Logs as strangers have them: loops that really train, with other habits, and files in the shapes of other tools."""

import csv
import io
import json
import math

import torch

from tests.watching.logged_runs import one_thread

TRAINER = {"step": "step", "loss": "loss", "norm": "grad_norm", "lr": "learning_rate"}
SLASHES = {
    "step": "global_step",
    "loss": "Loss/train",
    "scale": "scaler/scale",
    "norm": "train/grad_norm",
    "lr": "lr",
}
SHORT = {"step": "it", "loss": "train_loss", "scale": "amp_scale", "norm": "gnorm"}


def train(
    steps=160, *, seed=0, lr=1e-2, poisoned=(), huge_from=None, dtype=torch.float16, scaled=True, **scaler
):
    """Train a small regression; `poisoned` steps have a NaN in their data, from `huge_from` on outputs overflow.

    Not `scaled`: no GradScaler, so each step is taken. `scaler`: what GradScaler is made with.
    """
    with torch.random.fork_rng(devices=[]), one_thread():
        torch.manual_seed(seed)
        inputs = torch.randn(256, 16)
        targets = (inputs @ torch.randn(16, 1)).tanh() + 0.05 * torch.randn(256, 1)
        model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled, **{"growth_interval": 60, **scaler})
        rows = []
        for step in range(steps):
            chosen = torch.randint(0, 256, (32,))
            batch = inputs[chosen].clone()
            if step in poisoned:
                batch[0, 0] = math.nan
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
                outputs = model(batch)
                if huge_from is not None and step >= huge_from:
                    outputs = (1e6 * outputs.float()).half()
                loss = (outputs.float() - targets[chosen]).square().mean()
            scale = scaler.get_scale()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            norm = torch.stack([each.grad.norm() for each in model.parameters()]).norm()
            scaler.step(optimizer)
            scaler.update()
            rows.append(
                {"step": step, "loss": float(loss.detach()), "scale": scale, "norm": float(norm), "lr": lr}
            )
        return rows


def renamed(rows, names):
    return [{new: row[old] for old, new in names.items() if old in row} for row in rows]


def table(rows, separator=",", point=".", quoting=csv.QUOTE_MINIMAL):
    """Write rows of any keys as one table, with empty cells where a row lacks one."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=separator, quoting=quoting)
    writer.writerow(names)
    writer.writerows([str(row.get(name, "")).replace(".", point) for name in names] for row in rows)
    return file.getvalue()


def tensorboard(rows, kind):
    return table(
        [{"Wall time": 1.7e9 + row["step"], "Step": row["step"], "Value": row[kind]} for row in rows]
    )


def lightning(rows):
    """Losses, rates and validation lie in rows of their own."""
    written = []
    for row in rows:
        at = {"epoch": row["step"] // 40, "step": row["step"]}
        written.append({**at, "lr-SGD": row["lr"]})
        written.append({**at, "train_loss_step": row["loss"], "amp_scale": row["scale"]})
        if row["step"] % 40 == 39:
            written.append({**at, "val_loss": row["loss"], "train_loss_epoch": row["loss"]})
    return table(written)


def trainer_state(rows):
    """What transformers' Trainer saves: a loss that is not finite becomes 0 (logging_nan_inf_filter)."""
    history = renamed(rows, TRAINER)
    for row in history:
        row["loss"] = row["loss"] if math.isfinite(row["loss"]) else 0.0
    history.insert(
        len(history) // 2,
        {"epoch": 1.0, "eval_loss": 0.1, "eval_runtime": 1.0, "step": rows[-1]["step"] // 2},
    )
    return json.dumps(
        {
            "best_metric": None,
            "log_history": [*history, {"train_runtime": 3.0, "train_loss": 0.1, "step": 160}],
        }
    )


def json_lines(rows, said=str):
    """Write JSON lines as strict writers do: what is not finite becomes a string, or null."""
    cells = [
        {name: value if math.isfinite(value) else said(value) for name, value in row.items()} for row in rows
    ]
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in cells)
