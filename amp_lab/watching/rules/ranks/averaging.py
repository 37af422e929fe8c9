"""When DDP averages gradients, and when it does not."""

from __future__ import annotations

from collections.abc import Iterator

from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.notices import notices
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import in_nearly_all, in_steps, steps_of


@rule(
    "never-averaged",
    Severity.WRONG,
    title="a step was taken with gradients that DDP had not averaged",
    explains=("replicas-drift", "ranks-skip-apart", "ranks-scale-apart"),
)
def never_averaged(run: Run) -> Iterator[Finding]:
    """Under `no_sync()` DDP averages nothing: each rank keeps the gradients of its own micro-batches.

    The last micro-batch of a step must be outside of it, forward and backward. Then DDP averages the sum of all. If
    none is, every rank takes a step of its own, and skips by itself.

    Wrong:
        for x, y in batches:
            with model.no_sync():
                for part, target in zip(x.chunk(2), y.chunk(2)):
                    loss = loss_fn(model(part), target) / 2
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Right:
        for x, y in batches:
            parts = list(zip(x.chunk(2), y.chunk(2)))
            with model.no_sync():
                for part, target in parts[:-1]:
                    loss = loss_fn(model(part), target) / 2
                    loss.backward()
            part, target = parts[-1]
            loss = loss_fn(model(part), target) / 2
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    found = notices(run, "never averaged")
    if found:
        yield Finding(
            f"Every backward pass of {in_steps(steps_of(found))} followed a forward pass in no_sync(): "
            "DDP averaged no gradients, and each rank took a step of its own.",
            tuple(found),
            {},
            Fix(
                found[0],
                say="Leave the last micro-batch of each step, its forward and its backward pass, outside of no_sync().",
            ),
        )


@rule("no-sync-backward-only", Severity.NOTE, title="no_sync() is around the backward pass only")
def no_sync_backward_only(run: Run) -> Iterator[Finding]:
    """DDP decides in the forward pass whether the backward pass averages gradients.

    Around the backward pass alone `no_sync()` does nothing: each micro-batch is averaged, and that costs the
    communication which it was to save. What is computed is right.

    Wrong:
        for x, y in batches:
            for index, (part, target) in enumerate(zip(x.chunk(2), y.chunk(2))):
                loss = loss_fn(model(part), target) / 2
                if index == 0:
                    with model.no_sync():
                        loss.backward()
                else:
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Right:
        for x, y in batches:
            for index, (part, target) in enumerate(zip(x.chunk(2), y.chunk(2))):
                if index == 0:
                    with model.no_sync():
                        loss = loss_fn(model(part), target) / 2
                        loss.backward()
                else:
                    loss = loss_fn(model(part), target) / 2
                    loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    found = notices(run, "no_sync after forward")
    if found:
        yield Finding(
            f"In {in_steps(steps_of(found))} a backward pass ran in no_sync(), but its forward pass did not: "
            "DDP averaged the gradients all the same.",
            tuple(found),
            {},
            Fix(found[0], say="Put the forward pass into no_sync(), too."),
        )


@rule("barrier-every-step", Severity.NOTE, title="a barrier in every step")
def barrier_every_step(run: Run) -> Iterator[Finding]:
    """The backward pass of DDP waits for all ranks already. A barrier makes the host wait, too, and nothing more right.

    Wrong:
        for x, y in batches:
            dist.barrier()
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    Right:
        for x, y in batches:
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    found = notices(run, "barrier")
    if found and in_nearly_all(steps_of(found), run.kept_steps):
        yield Finding(
            "Every step has a barrier; DDP makes the ranks wait for each other anyway.",
            tuple(found),
            {},
            Fix(found[0], say="Leave it out."),
        )
