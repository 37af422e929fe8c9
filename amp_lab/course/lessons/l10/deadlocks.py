"""The programs of exercise 10.5, as they stand on the page; tests run each of them on two ranks.

All ranks run the same program, with batches of their own. Some of them never end: a rank waits for an exchange that no
other rank will ever enter.
"""

from __future__ import annotations

from typing import NamedTuple


class Program(NamedTuple):
    """A program, what is known of the ranks' batches and models, and whether a rank waits for ever."""

    setting: str
    code: str
    hangs: bool


PROGRAMS = {
    "A": Program(
        "",
        """\
for inputs, targets in batches:
    step(inputs, targets)
if rank == 0:
    torch.save(model.state_dict(), path)
    dist.barrier()
""",
        True,
    ),
    "B": Program(
        "Rank 0 has 5 batches, rank 1 has 4.",
        """\
for inputs, targets in batches:
    step(inputs, targets)
""",
        True,
    ),
    "C": Program(
        "One batch of rank 1 overflows in FP16.",
        """\
for inputs, targets in batches:
    optimizer.zero_grad()
    loss = forward(ddp, inputs, targets)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        False,
    ),
    "D": Program(
        "The loss of one batch of rank 1 is NaN.",
        """\
for inputs, targets in batches:
    optimizer.zero_grad()
    loss = forward(ddp, inputs, targets)
    if not loss.isfinite():
        continue
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
""",
        True,
    ),
    "E": Program(
        "Rank 0 has 4 batches, rank 1 has 3.",
        """\
optimizer.zero_grad()
with ddp.no_sync():
    for inputs, targets in batches[:-1]:
        forward(ddp, inputs, targets).backward()
forward(ddp, *batches[-1]).backward()
optimizer.step()
""",
        False,
    ),
    "F": Program(
        "",
        """\
for inputs, targets in batches:
    step(inputs, targets)
    if rank == 0:
        with torch.no_grad():
            print(forward(ddp.module, *dev_batch).item())
""",
        False,
    ),
    "G": Program(
        "The loss of rank 0 falls below 0.5 before that of rank 1 does.",
        """\
for inputs, targets in batches:
    loss = step(inputs, targets)
    if loss < 0.5:
        break
""",
        True,
    ),
    "H": Program(
        "The loss of rank 0 falls below 0.5 before that of rank 1 does.",
        """\
for inputs, targets in batches:
    loss = step(inputs, targets)
    total = torch.tensor(loss)
    dist.all_reduce(total)
    if total / ranks < 0.5:
        break
""",
        False,
    ),
    "I": Program(
        "One batch of rank 1 is too large for its memory: there, `step` raises an error in its forward pass.",
        """\
for inputs, targets in batches:
    try:
        step(inputs, targets)
    except RuntimeError:
        print("a batch was left out")
""",
        True,
    ),
    "J": Program(
        "",
        """\
for inputs, targets in batches:
    if rank == 0:
        time.sleep(0.2)
    step(inputs, targets)
""",
        False,
    ),
}
HANG = frozenset(letter for letter, program in PROGRAMS.items() if program.hangs)


def program_list() -> str:
    """Return the programs as Markdown, each with its letter."""
    parts = []
    for letter, program in PROGRAMS.items():
        parts.append(f"**{letter}.** {program.setting}".rstrip() + f"\n\n```python\n{program.code}```")
    return "\n\n".join(parts)
