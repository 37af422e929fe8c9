"""Weights, optimizer states and statistics in 16 bits: what small changes do not move."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from amp_lab.autocast.report.words import dtype_in_words
from amp_lab.watching.recording.events import Event, Forward, Raised, Stepped
from amp_lab.watching.recording.run import OptimizerFacts, Run
from amp_lab.watching.rules.notices import where_it_shows
from amp_lab.watching.rules.order import again
from amp_lab.watching.rules.regions.autocasting import (
    HALVES,
    about_dtypes,
    half_or_none,
    one_a_step,
    scaler_used,
    trained,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.rules.steps import steps_of
from amp_lab.watching.words import counted, in_words, listed, read

# torch's own optimizers keep no FP32 copy of the weights, and their averages in the dtype of the weights. Others may.
TORCHS_OWN: Final = frozenset(
    name
    for name, kind in vars(torch.optim).items()
    if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
)
# Those that divide by a root (or a maximum) plus eps, of a gradient that may be 0.
DIVIDES: Final = frozenset({"Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adamax"})
_HAS_NO_AVERAGES: Final = "SGD"
_FP16_REFUSED: Final = "unscale FP16 gradients"
FOLLOWS: Final = (
    "fp16-without-scaler",
    "half-statistics",
    "scaler-with-bf16",
    "scaler-without-autocast",
    "loss-in-16-bits",
    "fp16-loss-at-65536",
    "input-dtype",
    "loss-not-finite",
    "scale-collapse",
    "every-step-skipped",
    "eps-lost",
    "average-in-half",
)


def _of(run: Run, dtype: torch.dtype) -> Iterator[tuple[int, OptimizerFacts]]:
    """Yield the optimizers of torch's own kinds that hold parameters of a dtype, and were used in training."""
    if not trained(run) and not any(run.of(Stepped)):
        return
    for number, facts in enumerate(run.optimizers):
        if dtype in facts.dtypes and facts.kind in TORCHS_OWN:
            yield number, facts


def _is_lost(run: Run, facts: OptimizerFacts) -> bool:
    """Whether the optimizer divides by an eps that is 0 in FP16; with a scaler it does not come to that."""
    return (
        facts.kind in DIVIDES
        and torch.float16 in facts.dtypes
        and facts.eps is not None
        and bool(torch.tensor(facts.eps, dtype=torch.float16) == 0)
        and scaler_used(run) is None
    )


def _steps(run: Run, optimizer: int) -> tuple[Event, ...]:
    asked = [each for each in run.of(Stepped) if each.optimizer == optimizer]
    return one_a_step(asked) or one_a_step(list(run.of(Forward)))


def _keep_fp32(event: Event) -> Fix:
    return Fix(
        event,
        say="Keep the weights in FP32: leave out .half() and .bfloat16() (or .to(dtype)), and call the model in an "
        "autocast region, which makes the 16-bit copies.",
    )


@rule(
    "fp16-weights",
    Severity.WRONG,
    title="the optimizer updates FP16 weights",
    explains=(*FOLLOWS, "norm-in-half"),
)
def fp16_weights(run: Run) -> Iterator[Finding]:
    """The parameters themselves are FP16, and no FP32 master weights stand behind them.

    FP16 has 11 bits: near 1, numbers lie 2^-10 apart, and an update of less than half of that is lost, each time.
    The optimizer's averages are FP16 as well. A scaler refuses such gradients, because unscaling them would make the
    small ones zero again: "Attempting to unscale FP16 gradients".

    Wrong:
        model = model.half()
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right:
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    """
    refused = next((each for each in run.of(Raised) if _FP16_REFUSED in each.message), None)
    for number, facts in _of(run, torch.float16):
        if _is_lost(run, facts):
            continue
        first = _steps(run, number)[0]
        yield Finding(
            f"The scaler refused to unscale the gradients of {_whose(facts)} {in_words(facts.parameters)} parameters: "
            f"these are {_some(facts)}FP16, with no FP32 copy."
            if refused
            else f"{_whose(facts)} {in_words(facts.parameters)} parameters are {_some(facts)}FP16, with no FP32 copy: "
            f"{_swallowed(torch.float16)}{_averages(facts, torch.float16)}.",
            (first, refused) if refused else _steps(run, number),
            _values(facts, torch.float16),
            _keep_fp32(first),
            None if refused or scaler_used(run) else Severity.RISK,
        )


@rule("bf16-weights", Severity.RISK, title="the optimizer updates BF16 weights", explains=FOLLOWS)
def bf16_weights(run: Run) -> Iterator[Finding]:
    """The parameters themselves are BF16, and no FP32 master weights stand behind them.

    BF16 has 8 bits: near 1, numbers lie 2^-7 apart, and an update of less than half of that is lost, each time. At a
    learning rate of 0.001 Adam moves a weight of 1 by 0.001: not at all. Optimizers that round stochastically or keep
    a correction are made for that; torch's own are not.

    Wrong:
        model = model.bfloat16()
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x.bfloat16()).float(), y)
            loss.backward()
            optimizer.step()

    Right:
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
    """
    for number, facts in _of(run, torch.bfloat16):
        steps = _steps(run, number)
        yield Finding(
            f"{_whose(facts)} {in_words(facts.parameters)} parameters are {_some(facts)}BF16, with no FP32 copy: "
            f"{_swallowed(torch.bfloat16)}{_averages(facts, torch.bfloat16)}.",
            steps,
            _values(facts, torch.bfloat16),
            _keep_fp32(steps[0]),
        )


def _whose(facts: OptimizerFacts) -> str:
    return f"{facts.kind}'s"


def _some(facts: OptimizerFacts) -> str:
    return "in part " if len(facts.dtypes) > 1 else ""


def _swallowed(dtype: torch.dtype) -> str:
    return f"an update of less than {in_words(torch.finfo(dtype).eps / 2)} of a weight is lost"


def _averages(facts: OptimizerFacts, dtype: torch.dtype) -> str:
    if facts.kind == _HAS_NO_AVERAGES:
        return ""
    return f", and the optimizer's averages are {dtype_in_words(dtype)}, too"


def _values(facts: OptimizerFacts, dtype: torch.dtype) -> dict[str, object]:
    return {"dtypes of the parameters": facts.dtypes, "smallest relative update": torch.finfo(dtype).eps / 2}


@rule("optimizer-eps-is-zero", Severity.WRONG, title="the optimizer's eps is 0 in FP16", explains=FOLLOWS)
def optimizer_eps_is_zero(run: Run) -> Iterator[Finding]:
    """Adam and its kin compute in the dtype of the weights, and their eps is below FP16's range.

    What is at most 2^-25 (2.98e-8) rounds to 0 in FP16, and eps is 1e-8. Squares of gradients below 2^-12 are 0, too.
    So a gradient of 0 is divided by 0 (NaN), and a small one becomes infinite, in the first step.

    Wrong:
        model = model.half()
        optimizer = torch.optim.Adam(model.parameters())
        for x, y in batches:
            optimizer.zero_grad()
            loss = loss_fn(model(x.half()).float(), y)
            loss.backward()
            optimizer.step()

    Right:
        optimizer = torch.optim.Adam(model.parameters())
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
    """
    for number, facts in _of(run, torch.float16):
        if _is_lost(run, facts):
            steps = _steps(run, number)
            yield Finding(
                f"{facts.kind}'s eps of {facts.eps:g} is 0 in FP16, the dtype of its parameters and averages: a "
                "gradient of 0 is divided by 0 and makes its weight NaN, and small gradients make theirs infinite.",
                steps,
                {"eps": facts.eps, "smallest FP16 number": 2.0**-24},
                _keep_fp32(steps[0]),
            )


@rule("half-statistics", Severity.RISK, title="a normalising layer keeps its statistics in 16 bits")
def half_statistics(run: Run) -> Iterator[Finding]:
    """Running mean and variance of a batch norm are FP16 or BF16.

    A variance above 65,504 is infinite in FP16, and outputs are 0 from then on. In both dtypes small changes of the
    average are lost. Autocast leaves these layers in FP32 by itself.

    Wrong:
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        model[1].to(torch.bfloat16).requires_grad_(False)
        optimizer = torch.optim.SGD([*model[0].parameters(), *model[2].parameters()], lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()

    Right:
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
    """
    for number, facts in enumerate(run.models):
        forwards = [each for each in run.of(Forward) if each.model == number and each.training and each.grad]
        if facts.half_norms and forwards:
            dtypes = listed([dtype_in_words(each) for each in HALVES if each in facts.buffers])
            yield Finding(
                f"{counted(len(facts.half_norms), 'normalising layer')} ({_named(facts.half_norms)}) "
                f"kept running statistics in {dtypes}: {_harm(facts.buffers)}.",
                one_a_step(forwards),
                {"layers": facts.half_norms, "smallest relative change": _eps(facts.buffers)},
                Fix(
                    forwards[0],
                    say="Keep normalising layers in FP32: call .float() on them.",
                ),
            )


def _named(paths: tuple[str, ...]) -> str:
    return in_words(tuple(f'"{each}"' for each in paths))


def _harm(buffers: frozenset[torch.dtype]) -> str:
    if torch.float16 in buffers:
        return "a variance above 65,504 is infinite there, and the layer's outputs are 0 from then on"
    return f"a change of less than {in_words(_eps(buffers))} of a value is lost"


def _eps(buffers: frozenset[torch.dtype]) -> float:
    return max(torch.finfo(each).eps / 2 for each in HALVES if each in buffers)


@rule(
    "model-cast-midway",
    Severity.WRONG,
    title="the model was cast in the middle of the run",
    explains=(*FOLLOWS, "fp16-weights"),
)
def model_cast_midway(run: Run) -> Iterator[Finding]:
    """The weights change their dtype while they are trained.

    `model.half()` casts the parameters in place, those that the optimizer holds, too; its averages keep their dtype.
    Mostly it was meant for validation or for export: cast a copy.

    Wrong:
        for epoch in range(epochs):
            for x, y in batches:
                optimizer.zero_grad()
                with autocast(device_type, torch.bfloat16):
                    loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
            model.bfloat16()

    Wrong, for an evaluation:
        for epoch in range(epochs):
            for x, y in batches:
                optimizer.zero_grad()
                with autocast(device_type, torch.bfloat16):
                    loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
            model.bfloat16()
            with torch.no_grad():
                error = loss_fn(model(x.bfloat16()).float(), y)
            model.float()

    Right:
        for epoch in range(epochs):
            for x, y in batches:
                optimizer.zero_grad()
                with autocast(device_type, torch.bfloat16):
                    loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
            exported = copy.deepcopy(model).bfloat16()

    Right, with the weights kept:
        for epoch in range(epochs):
            for x, y in batches:
                optimizer.zero_grad()
                with autocast(device_type, torch.bfloat16):
                    loss = loss_fn(model(x), y)
                loss.backward()
                optimizer.step()
            kept = copy.deepcopy(model.state_dict())
            model.bfloat16()
            with torch.no_grad():
                error = loss_fn(model(x.bfloat16()).float(), y)
            model.float()
            model.load_state_dict(kept)
    """
    for number in range(len(run.models)):
        forwards = [each for each in trained(run) if each.model == number and each.weights_dtype]
        later = [each for each in forwards if each.weights_dtype != forwards[0].weights_dtype]
        if later and half_or_none(later[0].weights_dtype):
            ended = about_dtypes(run) or next((e for e in run.of(Raised) if _FP16_REFUSED in e.message), None)
            first, before = later[0], forwards[0].weights_dtype
            yield Finding(
                f"The weights were {dtype_in_words(before)} up to step {first.step - 1:,} and "
                f"{dtype_in_words(first.weights_dtype)} from step {first.step:,} on: somebody cast the model while it "
                f"was trained, in place, {_and_then(ended, later)}.",
                (first, *((ended,) if ended else one_a_step(later)[1:])),
                {"weights before": before, "weights after": first.weights_dtype},
                Fix(first, say="Cast a copy: copy.deepcopy(model).half(); what is trained stays FP32."),
            )
            return
    yield from _there_and_back(run)


def _there_and_back(run: Run) -> Iterator[Finding]:
    """Yield the finding for weights that were cast to 16 bits and back after they had been trained."""
    found = [
        event for event, _ in where_it_shows(run, "weights rounded", lambda _, seen: read(seen["kept"]) is False)
        if any(step.number < event.number for step in run.of(Stepped))
    ]  # fmt: skip
    if not found:
        return
    back = found[0]
    half, wide = in_words(back.values["from"]), in_words(back.values["to"])
    inside = [e for e in run.of(Forward) if e.number < back.number and e.weights_dtype == back.values["from"]]
    yield Finding(
        f"The weights were cast to {half} and back to {wide} before step {back.step:,}{again(found)}: what is trained "
        f"was rounded to {half}, and smaller changes are lost.",
        (*inside[-1:], *found),
        {"weights in between": back.values["from"]},
        Fix(
            (*inside[-1:], back)[0],
            say="Cast a copy: copy.deepcopy(model).half(); what is trained stays FP32.",
        ),
    )


def _and_then(ended: Raised | None, later: list[Forward]) -> str:
    if ended:
        return f"and then: {ended.message.strip().splitlines()[0]}"
    return f"and went on for {counted(len(steps_of(later)), 'step')}"
