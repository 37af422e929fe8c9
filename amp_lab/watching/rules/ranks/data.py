"""What must be another one on each rank: its data, its random numbers; and in each epoch: the order."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from amp_lab.watching.recording.events import Backward, Forward, Noticed
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.notices import notices
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import in_steps

_FEW = 2  # steps: in one alone it may be chance


@rule(
    "same-data-every-rank",
    Severity.RISK,
    title="every rank trains on the same data",
    explains=("same-dropout-every-rank",),
)
def same_data_every_rank(run: Run) -> Iterator[Finding]:
    """Each rank must get its own part of the data. With the same batches the average of the gradients is that of one.

    The ranks then compute what one process alone would, each of them all of it. A `DistributedSampler` gives each rank
    its part.

    Wrong:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
        for x, y in DataLoader(data, batch_size=16):
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Right:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
        sampler = DistributedSampler(data)
        for x, y in DataLoader(data, batch_size=16, sampler=sampler):
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    same = run.ranks.same(lambda record: record.inputs)
    event = _first_pass(run, same)
    if event is not None:
        yield Finding(
            f"In {in_steps(same)} all ranks were given the same batch.",
            (event,),
            {},
            Fix(
                event,
                say="Give the DataLoader a torch.utils.data.DistributedSampler (sampler=…), and leave shuffle out.",
            ),
        )


@rule("same-dropout-every-rank", Severity.RISK, title="dropout draws the same numbers on every rank")
def same_dropout_every_rank(run: Run) -> Iterator[Finding]:
    """With the same seed everywhere dropout leaves out the same units on every rank.

    Their gradients are averaged, but not over different masks: there is less of the noise that dropout is for. Seed
    with the rank after the model is made: `torch.manual_seed(seed + rank)`.

    Wrong:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(0)
        for x, y in batches:
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Right:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 1)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.manual_seed(0 + rank)
        for x, y in batches:
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    same = run.ranks.same(lambda record: record.random)
    event = _first_pass(run, same)
    if event is not None and all(each.dropout for each in run.ranks.records):
        yield Finding(
            f"In {in_steps(same)} the random numbers of all ranks were in the same state, and the model has dropout.",
            (event,),
            {},
            Fix(event, say="Call torch.manual_seed(seed + rank) when the model has been made."),
        )


def _first_pass(run: Run, same: Sequence[int]) -> Forward | None:
    """Return the first training pass in the steps in which all ranks have the same; None if these are too few."""
    passes = (each for each in run.of(Forward) if each.grad and each.step in same)
    return next(passes, None) if len(same) >= _FEW else None


@rule("no-set-epoch", Severity.RISK, title="the data come in the same order in every epoch")
def no_set_epoch(run: Run) -> Iterator[Finding]:
    """A `DistributedSampler` shuffles by its seed and its epoch, and nobody but you tells it the epoch.

    Without `sampler.set_epoch(epoch)` each epoch has the order of the first, and each rank always sees the same part.

    Wrong:
        data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
        sampler = DistributedSampler(data)
        for epoch in range(2):
            for x, y in DataLoader(data, batch_size=16, sampler=sampler):
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()

    Right:
        data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
        sampler = DistributedSampler(data)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for x, y in DataLoader(data, batch_size=16, sampler=sampler):
                loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    """
    last = max((each.number for each in run.of(Backward)), default=0)
    of_each: dict[object, list[Noticed]] = {}
    for event in notices(run, "sampler begins"):
        # One after the other by the same one, with training in between: an epoch that was only looked at is none.
        begun = of_each.setdefault(event.values["sampler"], [])
        if begun and begun[-1].values["forwards"] == event.values["forwards"]:
            begun.pop()
        begun.append(event)
    for begun in of_each.values():
        used = [each for each in begun if each.number < last]
        again = next((b for a, b in itertools.pairwise(used) if a.values["epoch"] == b.values["epoch"]), None)
        if again is not None:
            yield Finding(
                f"A DistributedSampler began two epochs as epoch {again.values['epoch']}: both have the same order.",
                (used[0], again),
                {},
                Fix(again, say="Call sampler.set_epoch(epoch) at the beginning of each epoch."),
            )
            return
