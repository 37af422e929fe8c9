"""Exercise 7.3: one step from several micro-batches, clipped."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.lessons.l07.scenes import DEVICE, Bench, Loss, Scene
from amp_lab.course.lessons.l07.trials import Trial, expect_loss, looks_like, play
from amp_lab.course.lessons.l07.verdicts import expect_no_graph, expect_step

Batches = list[tuple[torch.Tensor, torch.Tensor]]
_TIGHT, _WIDE = 0.5, 1000.0
_NO_LIMIT = 1e30
_RTOL = 0.02  # each micro-batch is rounded by itself
SCENES = (
    (Scene("cco", examples=6), (2, 2, 2), _WIDE),
    (Scene("ccocnci", examples=6), (2, 2, 2), _TIGHT),
    (Scene("ccc", examples=6, seed=1), (3, 2, 1), _WIDE),
    # What a step leaves in `.grad` is half as large as what the next one adds.
    (Scene("ccc", scale=2.0, examples=4), (2, 2), _WIDE),
    (Scene("cco", examples=7, seed=2), (1, 5, 1), _TIGHT),
    (Scene("clclc", examples=6, seed=3), (4, 2), _TIGHT),
    (Scene("occ", examples=5), (5,), _TIGHT),
    (Scene("ccoc", examples=9, ours=True, interval=2), (4, 4, 1), _TIGHT),
    (Scene("ccc", scale=2.0**18, size=2.0**-12), (1, 2, 3), _TIGHT * 2.0**-12),
    (Scene("ccl", optimizer="fused SGD", examples=8), (1, 1, 1, 1, 2, 2), _TIGHT),
    (Scene("cc", stale=500.0), (2, 4), _WIDE),
    (Scene("cc", stale=torch.inf), (2, 4), _WIDE),
)


class AccumulatingBench(Bench):
    """A bench whose learner gets the batch in pieces of these sizes."""

    def __init__(self, scene: Scene, sizes: tuple[int, ...], max_norm: float) -> None:
        super().__init__(scene)
        self.sizes, self.max_norm = sizes, max_norm

    def arguments(self, step: int) -> tuple[Any, ...]:
        """Return what the learner's function is called with in a step."""
        *start, inputs, targets = super().arguments(step)
        if self.scene.plan[step] == "l":
            targets[-1] += 1e6  # the gradients of the last micro-batch overflow, and no others
        ends = [sum(self.sizes[:number]) for number in range(len(self.sizes) + 1)]
        pieces = [(inputs[first:last], targets[first:last]) for first, last in pairwise(ends)]
        return (*start, pieces, self.max_norm)


Share = Callable[[torch.Tensor, int, Batches], torch.Tensor]


def _by_examples(loss: torch.Tensor, number: int, batches: Batches) -> torch.Tensor:
    return loss * (len(batches[number][0]) / sum(len(each) for each, _ in batches))


def _by_batches(loss: torch.Tensor, number: int, batches: Batches) -> torch.Tensor:
    return loss / len(batches)


def _whole(loss: torch.Tensor, number: int, batches: Batches) -> torch.Tensor:
    return loss


def _by_first(loss: torch.Tensor, number: int, batches: Batches) -> torch.Tensor:
    """Divide by as many as there would be if all were as large as the first."""
    return loss / (sum(len(each) for each, _ in batches) / len(batches[0][0]))


def _over_all(loss: torch.Tensor, number: int, batches: Batches) -> torch.Tensor:
    """Divide by the number of examples."""
    return loss / sum(len(each) for each, _ in batches)


def step_with(
    share: Share = _by_examples,
    *,
    clip: bool = True,
    unscale: bool = True,
    clip_each: bool = False,
    last: bool = False,
    first: bool = False,
) -> Callable[..., torch.Tensor]:
    """Return the right step, but for what is given."""

    def step(
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: Any,
        loss_function: Loss,
        micro_batches: Batches,
        max_norm: float,
    ) -> torch.Tensor:
        optimizer.zero_grad()
        losses = []
        for number, (inputs, targets) in enumerate(micro_batches[:1] if first else micro_batches):
            if last:
                optimizer.zero_grad()
            with torch.autocast(DEVICE.type, torch.float16):
                loss = share(loss_function(model(inputs), targets), number, micro_batches)
            scaler.scale(loss).backward()
            losses.append(loss.detach())
            if clip_each:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        if unscale:
            scaler.unscale_(optimizer)
        if clip and not clip_each:
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        scaler.step(optimizer)
        scaler.update()
        return torch.stack(losses).sum()

    return step


_SHARES = (
    ("counts-batches", _by_batches),
    ("counts-batches", _by_first),
    ("not-divided", _whole),
    ("divides-by-all", _over_all),
)
_MISCONCEPTIONS = (
    ("last-only", step_with(last=True)),
    ("last-only", step_with(_by_batches, last=True)),
    ("last-only", step_with(_whole, last=True)),
    ("first-only", step_with(first=True)),
    ("first-only", step_with(_by_batches, first=True)),
    ("first-only", step_with(_whole, first=True)),
    *((name, step_with(share)) for name, share in _SHARES),
    *(("clips-scaled-sum", step_with(share, unscale=False)) for share in (_by_examples, _by_batches, _whole)),
    *(("clips-each", step_with(share, clip_each=True)) for share in (_by_examples, _by_batches, _whole)),
    ("never-clips", step_with(clip=False)),
)


_RULES = {
    "zero-grad-each-micro-batch": "last-only",
    "unscale-each-micro-batch": "unscales-in-loop",
    "backward-after-unscale": "unscales-in-loop",
}


def right(*arguments: Any) -> torch.Tensor:
    """Make the step of the whole batch."""
    *start, micro_batches, max_norm = arguments
    inputs, targets = (torch.cat(each) for each in zip(*micro_batches, strict=True))
    return step_with()(*start, [(inputs, targets)], max_norm)


@checker("7.3")
def accumulated_step(ask: Ask) -> None:
    """Train in one scene after the other, and look after each step."""
    for scene, sizes, max_norm in SCENES:
        words = (
            f"accumulated_step` with micro-batches of {', '.join(map(str, sizes))} and `max_norm={max_norm:g}"
        )
        make = partial(AccumulatingBench, scene, sizes, max_norm)
        play(ask, words, make, right, _judge)


def _judge(trial: Trial) -> None:
    passes = len(trial.bench.sizes)  # type: ignore[attr-defined]
    expect_step(trial, _explain, "wrong-sum", told="watcher-says", rules=_RULES, passes=passes, rtol=_RTOL)
    if trial.error:
        return
    expect_no_graph(trial)
    _expect_one_at_a_time(trial)
    _explain_loss(trial)
    expect_loss(trial, scaled="sum-scaled", attached="sum-attached", wrong="wrong-total", rtol=_RTOL)


def _expect_one_at_a_time(trial: Trial) -> None:
    """Raise `Mistake` unless each micro-batch had a forward and a backward pass before the next one."""
    sizes = sorted(trial.bench.sizes)  # type: ignore[attr-defined]
    seen = sorted(each.size for each in trial.calls if each.name == "forward")
    if seen != sizes and sum(seen) < sum(sizes):
        shown = {"got": f"{len(seen)} of {len(sizes)}", "want": "all"}
        raise Mistake("ends-early", call=trial.call, **shown)
    if seen != sizes:
        shown = {"got": ", ".join(map(str, seen)), "want": ", ".join(map(str, sizes))}
        raise Mistake("concatenates", call=trial.call, **shown)
    passes = [each.name for each in trial.calls if each.name in ("forward", "backward")]
    together = max(len(list(run)) for name, run in groupby(passes) if name == "forward")
    if together > 1:
        raise Mistake("graphs-together", call=trial.call, got=together, want=1)


def _explain(trial: Trial, observed: dict[str, Any]) -> None:
    names = [each.name for each in trial.calls]
    times = max(names.count("update"), names.count("step"))
    if times > 1:
        raise Mistake("steps-in-loop", **observed | {"steps": times})
    if names.count("unscale") > 1 or ("unscale" in names and "backward" in names[names.index("unscale") :]):
        raise Mistake("unscales-in-loop", **observed)
    if trial.error:
        return
    for diagnosis, step in _MISCONCEPTIONS:
        if looks_like(trial, step, _RTOL):
            raise Mistake(diagnosis, **observed)
    walks = [number for number, name in enumerate(names) if name == "backward"]
    if walks and "zero" in names[walks[0] : walks[-1]]:
        raise Mistake("cleared-between", **observed)
    if trial.overflows and trial.after.scale >= trial.before.scale and "update" in names:
        raise Mistake("drops-bad", **observed)
    if _right_without_limit(trial):
        raise Mistake("clips-otherwise", **observed)


def _right_without_limit(trial: Trial) -> bool:
    """Return whether the answer is right if the limit is one that nothing reaches."""
    bench = trial.bench
    sizes, limit = bench.sizes, bench.max_norm  # type: ignore[attr-defined]
    wide = partial(AccumulatingBench, bench.scene, sizes, _NO_LIMIT)
    return bool(limit < _WIDE) and trial.elsewhere(wide)


def _explain_loss(trial: Trial) -> None:
    """Recognise losses that are not those of the whole batch."""
    got = trial.got
    if not isinstance(got, torch.Tensor) or got.shape != () or got.requires_grad:
        return
    if trial.want.isclose(got.float(), rtol=_RTOL):
        return
    *_, micro_batches, _ = trial.bench.arguments(trial.number)
    bench = trial.make()
    for number in range(trial.number):
        right(*bench.arguments(number))
    with torch.no_grad(), torch.autocast(DEVICE.type, torch.float16):
        parts = torch.stack([bench.scene.loss_function(bench.net(x), y) for x, y in micro_batches])
    shares = torch.tensor([len(x) for x, _ in micro_batches], device=DEVICE) / trial.bench.scene.examples
    others = (parts[-1], parts[-1] * shares[-1], parts.sum(), parts.mean(), (parts * shares).mean())
    for number, other in enumerate(others):
        if got.float().isclose(other, rtol=_RTOL / 4):
            shown = {"got": f"{float(got):.6g}", "want": f"{float(trial.want):.6g}"}
            raise Mistake("loss-of-last" if number < 2 else "loss-summed", call=trial.call, **shown)
