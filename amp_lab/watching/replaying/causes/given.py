"""Causes that were there before the first operator: in the data, the targets, the weights, the labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amp_lab.watching.replaying.causes.case import Case, Verdict
from amp_lab.watching.replaying.causes.words import kinds, names_in_words, row_in_words
from amp_lab.watching.replaying.records import Range, Traced

_LOSSES = ("nll_loss", "nll_loss2d", "cross_entropy", "cross_entropy_loss", "nll_loss_nd")


def nan_in_weights(case: Case) -> Verdict | None:
    """Parameters or buffers that were not finite before the batch: an earlier step went wrong.

    (Not so where none of them does harm. Running averages that the batch itself has spoiled, when the loop ran it, are
    read by a layer that is given infinity anyway, or that does not use them in training.)
    """
    if not case.weights or not case.forward_bad:
        return None
    readers = [row for row in case.flow.forward if any(_is_bad_weight(case, read) for read in row.inputs)]
    row = next((row for row in readers if _spoiled_by_weights(case, row)), None)
    if readers and row is None:
        return None
    return Verdict(
        "nan-in-weights",
        f"Not finite before this batch runs: {names_in_words(case.weights)}. An earlier step has written that. As long "
        "as they are, no loss scale gives a finite loss for a batch that reads them.",
        "Go back to a checkpoint with finite weights, and watch the steps after it: a step that was not skipped though "
        "its gradients were not finite, a learning rate that is too large, or running statistics that met an infinity.",
        "forward",
        row,
    )


def _is_bad_weight(case: Case, read: Range) -> bool:
    return read.name in case.weights and not read.finite


def _spoiled_by_weights(case: Case, row: Traced) -> bool:
    """Whether all else that an operator reads is finite, and what it makes is not."""
    others = all(read.finite for read in row.inputs if not _is_bad_weight(case, read))
    return others and not all(each.finite for each in row.outputs)


def nan_in_data(case: Case) -> Verdict | None:
    """Numbers of the batch that are not finite."""
    if not case.forward_bad:
        return None
    outside = next(_outside(case, targets=False), None)
    if not case.data and outside is None:
        return None
    row = outside or _reader(case)
    return Verdict(
        "nan-in-data",
        f"{_held(case.data, row, 'The batch')} before the model sees it.{_first_read(row)} No loss scale changes that.",
        "Look at this batch: find the samples with torch.isfinite, and mend what makes them (a division by a standard "
        "deviation of 0, a missing value, a broken file). Check it where batches are made, not in the model.",
        "forward",
        row,
    )


def nan_in_targets(case: Case) -> Verdict | None:
    """Targets that are not finite: the model's result is fine, and the loss is not."""
    if not case.forward_bad:
        return None
    outside = next(_outside(case, targets=True), None)
    if (not case.targets or case.data) and outside is None:
        return None
    row = outside or _reader(case)
    return Verdict(
        "nan-in-targets",
        f"{_held(case.targets, row, 'The targets')} before the loss compares them with the model's results."
        f"{_first_read(row)} No loss scale changes that.",
        "Look at the targets of this batch: mend or leave out those that are missing, such as by a mean over "
        "torch.isfinite(target) only.",
        "forward",
        row,
    )


def nan_behind(case: Case) -> Verdict | None:
    """Numbers of the batch that are not finite, which the loss does not show: its gradients do."""
    row = case.row
    if case.forward_bad or case.cure is not None or not case.bad_in_fp32 or row is None:
        return None
    forward = case.flow.rows.get(row.op.forward) if row.op.forward is not None else None
    # As autocast has cast it, or as the row of the forward pass read it before.
    read = (*row.inputs, *(forward.inputs if forward is not None else ()))
    outside = any(each.made_by is None and each.name is None and not each.finite for each in read)
    if not outside or not (case.targets or case.data):
        return None
    names, what, cause = (
        (case.targets, "The targets", "nan-in-targets")
        if case.targets
        else (case.data, "The batch", "nan-in-data")
    )
    return Verdict(
        cause,
        f"{_held(names, row, what)} before the model runs. The loss does not show it, but in the backward pass, "
        f"{row_in_words(row)} reads them, and gives NaN: 0 times NaN is NaN. No loss scale changes that.",
        "Take such numbers out before the model and the loss see them, not afterwards: torch.where(torch.isfinite(x), "
        "x, 0.0) on what goes in, and a mask on the loss.",
        "backward",
        row,
    )


def no_labels(case: Case) -> Verdict | None:
    """A mean over nothing: no label counts, or a tensor is empty."""
    row = case.row
    if not case.forward_bad or row is None or case.fine_in_fp32 or not any(each.nan for each in row.outputs):
        return None
    how = _over_nothing(row)
    if how is None:
        return None
    return Verdict(
        "no-labels",
        f"In the forward pass, {row_in_words(row)} gave NaN: {how}, and 0/0 is NaN in every format. "
        "No loss scale changes that.",
        "Pass over a batch without labels, or divide by max(count, 1): loss.sum() / labels.ne(ignore_index).sum()"
        ".clamp(min=1).",
        "forward",
        row,
    )


def _over_nothing(row: Traced) -> str | None:
    name = row.op.name.rstrip("_")
    if not row.makes_it:
        return None
    if any(0 in each.shape for each in row.inputs):
        return "it is a mean over no number"
    if name in _LOSSES:
        return (
            "it is a mean over the labels that count, and all labels of this batch are ignored (ignore_index, or a "
            "weight of 0)"
        )
    nothing = all(each.zeros == each.of for each in row.inputs)
    if name in ("div", "true_divide") and nothing and all(each.of == 1 for each in row.outputs):
        return "it divides a sum of nothing by a count of 0"
    whole = len(row.op.inputs) > 1 and not row.op.inputs[1].dtype.is_floating_point
    if name in ("div", "true_divide") and whole and not any(each.infinite for each in row.outputs):
        places = sum(each.nan for each in row.outputs)
        return f"it divides sums of nothing by counts of 0, in {places:,} places"
    return None


def _held(names: Sequence[str], row: Traced | None, what: str) -> str:
    bad = [] if row is None else [each for each in row.inputs if each.made_by is None and not each.finite]
    some = (
        kinds(any(e.infinite for e in bad), any(e.nan for e in bad)) if bad else "numbers that are not finite"
    )
    where = f" ({names_in_words(names)})" if names else ""
    verb = "hold" if what.endswith("s") else "holds"
    count = sum(each.infinite + each.nan for each in bad)
    share = f", in {count:,} of {sum(each.of for each in bad):,} numbers," if bad else ""
    return f"{what}{where} {verb} {some}{share}"


def _first_read(row: Traced | None) -> str:
    return "" if row is None else f" The first to read them is {row_in_words(row)}."


def _reader(case: Case) -> Traced | None:
    """Return the first row that reads what is not finite, and what no row made."""
    for row in case.flow.forward:
        if any(read.made_by is None and not read.finite for read in row.inputs):
            return row
    return None


def _outside(case: Case, targets: bool) -> Iterator[Traced]:
    """Yield the rows that first read a tensor from outside that is not finite, if it is of the kind asked for.

    A target is what meets the model's result outside its modules. (Masks hold -inf on purpose: they do not count.)
    """
    spoiling = {each.op.number for each in case.spoiling}
    tainted: dict[int, Traced] = {}
    predicted: set[int] = set()
    for row in case.flow.forward:
        number = row.op.number
        first = row if any(map(_strange, row.inputs)) and number in spoiling else None
        first = first or next((tainted[e.made_by] for e in row.inputs if e.made_by in tainted), None)
        weighed = any(read.name in case.names for read in row.inputs)
        meets = any(read.made_by in predicted and read.made_by not in tainted for read in row.inputs)
        if weighed or any(read.made_by in predicted for read in row.inputs):
            predicted.add(number)
        if first is None:
            continue
        if weighed or meets or row is case.spoiling[-1]:
            if targets == (meets and not weighed and not row.op.module):
                yield first
            return
        tainted[number] = first


def _strange(read: Range) -> bool:
    return read.made_by is None and read.name is None and bool(read.nan or read.positive)
