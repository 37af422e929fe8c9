"""Which column of a log is the loss, the scale, the norm: asked for by name, or told by its usual names."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Final

from amp_lab.watching.logs.errors import LogError
from amp_lab.watching.logs.numbers import counted, number
from amp_lab.watching.logs.reading import Table

KINDS: Final = ("step", "loss", "scale", "norm", "lr", "skipped")
IN_WORDS: Final = {
    "step": "step number",
    "loss": "loss",
    "scale": "loss scale",
    "norm": "gradient norm",
    "lr": "learning rate",
    "skipped": "skipped steps",
}
# Patterns for whole names in small letters, words joined by "_"; those that come first are preferred.
_USUAL: Final[Mapping[str, Sequence[str]]] = {
    "step": (
        "global_step|trainer_global_step|train_global_step|optimizer_step",
        "step|steps|_step",
        "iteration|iterations|iter|it|update|num_updates|batch|batch_idx",
    ),
    "loss": (
        "loss",
        "train_loss|training_loss|loss_train|lm_loss",
        "train_loss_step|loss_step|loss_mean|mean_loss|total_loss|avg_loss|running_loss",
        "(?!.*(val|valid|validation|eval|test|dev)(_|$)).*_loss(_step)?",
        "train_loss_epoch|loss_epoch",
    ),
    "scale": (
        "scale|loss_scale|amp_scale|grad_scale|scaler_scale|amp_loss_scale|scaler|loss_scaler|grad_scaler",
        ".*_(loss|amp|grad|scaler)_scale|.*_scaler|cur_scale|.*_cur_scale",
    ),
    "norm": (
        "norm|grad_norm|gradient_norm|gnorm|grad_norm_total|total_norm|total_grad_norm|grad_norm_before_clip",
        "grad_[0-9_]*norm(_total)?|.*_(grad|gradient)_norm|.*_gnorm|.*_grad_norm_total",
    ),
    "lr": ("lr|learning_rate|rate", "lr_.*|.*_lr|.*_learning_rate"),
    "skipped": (
        "skipped|skip|is_skipped|step_skipped|skipped_step|skipped_steps|overflow|overflowed|found_inf|"
        "num_skipped|skipped_iterations|skipped_iter|skipped_total|optimizer_step_was_skipped",
        ".*_skipped|.*_overflow|.*_found_inf",
    ),
}
_RUN: Final = "run|run_id|run_name|trial|seed|experiment"
_EMPTY: Final = frozenset({"", "none", "null", "n/a", "na", "-", "--"})
_EPOCH: Final = "epoch|train_epoch|trainer_epoch"


def find_columns(table: Table, asked: Mapping[str, str | None]) -> dict[str, str]:
    """Return the column for each kind of number that is there; `asked` names some, by kind.

    Raises:
        LogError: no column has numbers; one that was asked for is not there or has none; two fit equally well; neither
            loss nor scale nor norm is there.
    """
    numeric = [name for name in table.columns if _has_numbers(table, name)]
    if not numeric:
        raise LogError(
            f"{table.path} has no column with numbers; its columns are {_listed(table.columns)}: is it a log of a run?"
        )
    found = {kind: _asked(table, numeric, kind, name) for kind, name in asked.items() if name is not None}
    taken = set(found.values())
    free = [name for name in numeric if name not in taken]
    for kind in KINDS:
        if kind not in found:
            name = _guessed(kind, free)
            if name is not None:
                found[kind] = name
                free.remove(name)
    if not found.keys() & {"loss", "scale", "norm"}:
        raise LogError(
            f"none of the columns of {table.path} is known as a loss, a loss scale or a gradient norm: they are "
            f"{_listed(numeric)}; name them with --loss, --scale and --norm"
        )
    return found


def unread_cells(table: Table, columns: Mapping[str, str]) -> list[str]:
    """Say which columns have cells that are no numbers: those in use, and those whose name fits a kind without one."""
    notes = []
    for name in table.columns:
        kinds = [
            kind
            for kind in KINDS
            if columns.get(kind) == name
            or (kind not in columns and any(re.fullmatch(pattern, _plain(name)) for pattern in _USUAL[kind]))
        ]
        cells = [
            str(row[name]).strip()
            for row in table.rows
            if number(row.get(name, "")) is None and row.get(name)
        ]
        strange = [cell for cell in cells if cell.lower() not in _EMPTY]
        if kinds and strange:
            notes.append(
                f"{counted(len(strange), 'cell')} of the column {name!r} ({IN_WORDS[kinds[0]]}), such as "
                f"{strange[0][:40]!r}, not read: no number"
            )
    return notes


def find_run_column(table: Table) -> str | None:
    """Return the column that tells several runs apart, if one is there and has more than one value."""
    for name in table.columns:
        if re.fullmatch(_RUN, _plain(name)) and len({str(row.get(name, "")) for row in table.rows}) > 1:
            return name
    return None


def find_epoch_column(table: Table) -> str | None:
    return next((name for name in table.columns if re.fullmatch(_EPOCH, _plain(name))), None)


def _has_numbers(table: Table, name: str) -> bool:
    return any(number(row.get(name)) is not None for row in table.rows)


def _asked(table: Table, numeric: Sequence[str], kind: str, name: str) -> str:
    columns = table.columns
    same = [each for each in columns if each == name] or [
        each for each in columns if _plain(each) == _plain(name)
    ]
    if len(same) > 1:
        raise LogError(f"--{kind} {name} fits {_listed(same)}: write it exactly as in the file")
    if not same:
        near = difflib.get_close_matches(name, columns, n=3, cutoff=0.4)
        guess = f"did you mean {' or '.join(near)}?" if near else f"there are {_listed(columns)}"
        raise LogError(f"there is no column {name!r} for --{kind}; {guess}")
    if same[0] not in numeric:
        example = next((row[same[0]] for row in table.rows if row.get(same[0]) not in (None, "")), None)
        seen = "is empty" if example is None else f"has no numbers, but {str(example)[:40]!r}"
        raise LogError(f"the column {same[0]!r} for --{kind} {seen}; numbers are in {_listed(numeric)}")
    return same[0]


def _guessed(kind: str, columns: Sequence[str]) -> str | None:
    for pattern in _USUAL[kind]:
        fits = [name for name in columns if re.fullmatch(pattern, _plain(name))]
        if len(fits) > 1 and kind in {"lr", "step"}:
            return fits[0]  # groups of parameters share a schedule; any of the counters will do
        if len(fits) > 1:
            raise LogError(
                f"{len(fits)} columns could be the {IN_WORDS[kind]}: {_listed(fits)}; say which with --{kind}"
            )
        if fits:
            return fits[0]
    return None


def _plain(name: str) -> str:
    """Write a name in small letters with "_" between words, and without the run's name that wandb puts before it."""
    if name.endswith(("__MIN", "__MAX")):
        return "of_wandb"  # the ends of a range, beside the column itself
    plain = re.sub(r"[^a-z0-9]+", "_", name.rpartition(" - ")[2].lower()).strip("_")
    shorter = re.sub(r"^(train|training)_(?!loss|global)", "", plain)
    return shorter or plain


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")
