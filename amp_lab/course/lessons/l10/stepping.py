"""Exercise 10.3: one step of all ranks, with one exchange and one decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from amp_lab.course.judging.ask import Ask
from amp_lab.course.judging.exercise import NotHere, checker
from amp_lab.course.judging.expect import Mistake
from amp_lab.course.judging.guard import Contained
from amp_lab.course.judging.launched import available
from amp_lab.course.judging.staging import Report
from amp_lab.course.lessons.l10.comparing import difference, hardly_moved
from amp_lab.course.lessons.l10.scenes import RANKS, SCENES, Faults, Scene, expected, make_model
from amp_lab.course.lessons.l10.steps import Other, Step, play

NOT_HERE = "Processes cannot be started in this way on Windows. In WSL they can."
_RTOL = 1e-3  # FP16 rounds, and right steps round in different places
# The first that leads to the same numbers is told.
_MISCONCEPTIONS: tuple[tuple[str, Callable[[Scene], Faults]], ...] = (
    ("never-clears", lambda scene: Faults(clears=False)),
    ("not-divided", lambda scene: Faults(divisor=1)),
    ("divides-by-ranks", lambda scene: Faults(divisor=RANKS * scene.parts)),
    ("adds-ranks", lambda scene: Faults(divisor=scene.parts / RANKS)),
    ("last-only", lambda scene: Faults(first=scene.parts - 1)),
    ("last-only", lambda scene: Faults(first=scene.parts - 1, divisor=1)),
    ("passes-by", lambda scene: Faults(unscales=False)),
)
UNSCALED = (
    "Attempted unscale_ but _scale is None",
    "Attempted step but _scale is None",
    "Attempted update but _scale is None",
)
_ERRORS = dict.fromkeys(UNSCALED, "unscaled") | {
    "unscale_() has already been called": "unscales-twice",
    "unscale_() is being called after step()": "unscales-twice",
    "step() has already been called since the last update()": "no-update",
    "No inf checks were recorded for this optimizer": "no-gradients",
    "No inf checks were recorded prior to update": "no-checks",
}


@checker("10.3")
def ddp_step(ask: Ask) -> None:
    """Make the steps of all scenes on two ranks, then look at them one by one."""
    if not available():
        raise NotHere(NOT_HERE)
    ask.call = SCENES[0].call(0)
    try:
        reports = ask.on_ranks(play, ask.answer, filename=_file_of(ask.answer))
    except Contained as contained:
        _judge_steps(ask, ask.reports, whole=False)  # what went wrong before may be the reason
        for words, diagnosis in _ERRORS.items():
            if words in contained.message:
                raise Mistake(diagnosis, call=ask.call, got=f"`{contained.message}`") from None
        raise
    _judge_steps(ask, reports)


def _judge_steps(ask: Ask, reports: Sequence[Report], whole: bool = True) -> None:
    """Raise `Mistake` unless all steps, or those that were made, were right."""
    rows = [report.seen.get("steps", []) for report in reports]
    for index, scene in enumerate(SCENES):
        for number in range(len(scene.plan)):
            ask.call = scene.call(number)
            steps = [row[index][number] for row in rows if len(row) > index and len(row[index]) > number]
            if rows and len(steps) == len(rows):
                _judge(ask.call, scene, number, steps)
            elif not whole:
                return
            elif not steps or all(report.ended != "died" for report in reports):
                _tell_of_the_end(ask.call, reports)


def _file_of(answer: object) -> str:
    code = getattr(answer, "__code__", None)
    return "" if code is None else code.co_filename


def _tell_of_the_end(call: str, reports: Sequence[Report]) -> None:
    """Raise `Mistake`: a rank has not come back from this step."""
    seen = " and ".join(report.words for report in reports)
    raise Mistake(how_it_ended(reports), call=call, got=seen)


def how_it_ended(reports: Sequence[Report]) -> str:
    """Return the diagnosis of a launch in which not all ranks came back."""
    if any(each.ended == "died" for each in reports):
        return "died"
    return "waits" if all(each.talks for each in reports if each.ended == "waits") else "stands-still"


def _judge(call: str, scene: Scene, number: int, steps: Sequence[Step]) -> None:
    """Raise `Mistake` unless a step was right on all ranks."""
    first, second = steps
    for step in steps:
        if isinstance(step.got, Other):
            _judge_answer(call, step.got, scene.clean(number))
    scale = expected(scene)[number][1]
    _judge_exchanges(call, scene, steps)
    for step in steps:
        if step.regions and set(step.regions) != {torch.float16}:
            off = next(each for each in step.regions if each != torch.float16)
            seen = "a forward pass ran without autocast" if off is None else f"a forward pass ran in `{off}`"
            raise Mistake("no-autocast", call=call, got=seen, want="`torch.float16`")
    place = difference(first.weights, second.weights, 0.0)
    if place:
        name, one, other = place
        shown = {"got": f"`{name}` is {one} on rank 0 and {other} on rank 1", "want": "the same on all ranks"}
        raise Mistake(_why_apart(steps), call=call, **shown)
    if first.scale != second.scale:
        seen = f"the scale is {first.scale:g} on rank 0 and {second.scale:g} on rank 1"
        late = _only_by_hand(steps)
        raise Mistake(
            "averaged-late" if late else "scales-differ", call=call, got=seen, want=f"{scale:g} on all ranks"
        )
    _judge_weights(call, scene, number, first)
    if first.scale != scale:
        fell = not scene.clean(number)
        seen = f"the scale is {first.scale:g} afterwards"
        raise Mistake("scale-stays" if fell else "scale-moves", call=call, got=seen, want=f"{scale:g}")
    for rank, step in enumerate(steps):
        _judge_answer(
            f"On rank {rank}, {call}" if len({each.got for each in steps}) > 1 else call,
            step.got,
            scene.clean(number),
        )


def _why_apart(steps: Sequence[Step]) -> str:
    """Name the reason for weights that are not the same on all ranks."""
    if any(step.early for step in steps):
        return "exchanged-early"
    if _only_by_hand(steps):
        return "averaged-late"
    return "ranks-differ" if steps[0].exchanges else "no-exchange"


def _only_by_hand(steps: Sequence[Step]) -> bool:
    return all(step.by_hand and not step.exchanges for step in steps)


def _judge_exchanges(call: str, scene: Scene, steps: Sequence[Step]) -> None:
    for rank, step in enumerate(steps):
        if step.barriers:
            seen = f"rank {rank} entered {step.barriers} barrier{'s' if step.barriers > 1 else ''}"
            raise Mistake("barriers", call=call, got=seen, want="none")
        if step.exchanges + step.by_hand > 1:
            seen = f"rank {rank} exchanged its gradients {step.exchanges + step.by_hand} times"
            raise Mistake("many-exchanges", call=call, got=seen, want="once")
        if step.steps > 1:
            seen = f"the optimizer of rank {rank} made {step.steps} steps"
            raise Mistake("many-steps", call=call, got=seen, want="one")


def _judge_weights(call: str, scene: Scene, number: int, step: Step) -> None:
    right = expected(scene)[number][0]
    place = difference(step.weights, right, _RTOL)
    if place is None:
        return
    if scene.clean(number) and not step.steps:
        raise Mistake("no-step", call=call, got="`optimizer` made no step", want="one")
    name, one, other = place
    shown = {"got": f"`{name}` is {one} afterwards", "want": other}
    for diagnosis, faults in _MISCONCEPTIONS:
        wrong = expected(scene, faults(scene))[number][0]
        if difference(step.weights, wrong, _RTOL) is None:
            raise Mistake(diagnosis, call=call, **shown)
    model = {name: each.detach() for name, each in make_model(scene).named_parameters()}
    before = expected(scene)[number - 1][0] if number else model
    if scene.clean(number) and hardly_moved(step.weights, before, right):
        raise Mistake("hardly-moves", call=call, **shown)
    raise Mistake("wrong-weights" if scene.clean(number) else "moved", call=call, **shown)


def _judge_answer(call: str, got: bool | Other | None, want: bool) -> None:
    if got is None:
        raise Mistake("returned-none", call=call, got=None, want=f"a `bool`, here {want},")
    if isinstance(got, Other):
        shown = {"got": got.shown, "kind": got.kind, "want": f"a `bool`, here {want}"}
        raise Mistake("wrong-type", call=call, **shown, advice="`bool(…)` makes one.")
    if got is not want:
        raise Mistake("says-no" if want else "wrong-answer", call=call, got=got, want=want)
