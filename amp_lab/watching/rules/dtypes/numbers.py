"""Numbers that 16 bits cannot hold: results beyond the range, and plain numbers that become 0 or infinite."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import torch

from amp_lab.watching.recording.events import Backward, Noticed, Scaled
from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.notices import (
    Seen,
    at_one_line,
    finite,
    goes_back,
    in_steps,
    largest,
    noticed,
    number,
    other_lines,
    where_it_shows,
)
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import in_words

_CONSEQUENCES: Final = (
    "loss-not-finite",
    "scale-collapse",
    "every-step-skipped",
    "scale-stuck",
    "loss-in-16-bits",
    "loss-vector-in-fp16",
    "sum-poisoned",
    "counter-on-skip",
    "average-on-skip",
    "scheduler-on-skip",
    "rate-on-skip",
)
_EDGE: Final = 65000.0  # a mask has put numbers at FP16's end already
_LARGEST: Final = 65504.0
_INFINITE_FROM: Final = 65520.0  # FP16 rounds these up
_EXPONENTIALS: Final = {"exp": 11.1, "exp2": 16.0, "expm1": 11.1, "cosh": 11.8, "sinh": 11.8}
_SUMS: Final = frozenset("sum mean cumsum norm vector_norm trace prod nansum std".split())
_CASTS: Final = frozenset("half to type type_as".split())
_MASKED: Final = frozenset("add sub where masked_fill".split())


def _overflows(run: Run, kind: str) -> list[tuple[Noticed, Seen]]:
    """Return the FP16 results of a kind that were infinite though what went in was finite, and that went into "
    "a loss."""
    found = where_it_shows(
        run, "overflow", lambda event, seen: _overflowed(seen) and _kind(event, seen) == kind
    )
    return [each for each in found if goes_back(run, each[0])]


def _sums_scaled_losses(run: Run, event: Noticed) -> bool:
    """Whether what was added up are scaled losses, `scaler.scale(losses).sum()`: their derivatives do not overflow."""
    vectors = {each.step for each in run.of(Scaled) if each.shape and each.result_dtype == torch.float16} & {
        each.step for each in run.of(Backward) if each.scaled_by is not None and not each.exactly
    }
    return event.step in vectors


def _overflowed(seen: Seen) -> bool:
    return math.isinf(number(seen["came_out"])) and finite(seen["went_in"])


def _kind(event: Noticed, seen: Seen) -> str:
    call = str(event.values["call"])
    if event.values["of_gradients"]:
        return "gradients"
    if call in _MASKED and _EDGE <= largest(seen["went_in"]) <= _LARGEST:
        return "mask"
    if call in _CASTS:
        return "cast"
    if "loss" in call or call in ("cross_entropy", "binary_cross_entropy_with_logits", "kl_div"):
        return "loss"
    if event.values["squared"]:
        return "square"
    if call in _EXPONENTIALS:
        return "exponential"
    if call in _SUMS:
        return "sum"
    if call == "mul" and event.values["scalar"]:
        return "scalar"  # a loss that is multiplied by a scale of the loop's own
    return "written" if event.values["inplace"] else "activation"


def _went_in(seen: Seen) -> str:
    return in_words(largest(seen["went_in"]))


def _call(event: Noticed) -> str:
    call, module = str(event.values["call"]), event.values["module"]
    return f"{call} of a {module}" if module else call


def _found(
    found: Sequence[tuple[Noticed, Seen]], sentence: str, say: str, values: dict[str, object] | None = None
) -> Finding:
    here = at_one_line(found)
    event, seen = here[0]
    given = {"largest number that went in": largest(seen["went_in"])} if "went_in" in seen else {}
    return Finding(
        sentence, tuple(each for each, _ in here), {**given, **(values or {})}, Fix(event, say=say)
    )


@rule("square-overflows", Severity.WRONG, title="a square beyond FP16's range", explains=_CONSEQUENCES)
def square_overflows(run: Run) -> Iterator[Finding]:
    """A variance, a norm or a penalty by hand squares FP16 numbers from 256 on: infinite.

    There need be no NaN anywhere: x * rsqrt(inf) is a row of zeros, and the loss is finite. CUDA's autocast takes pow
    to FP32, but x * x is not in its lists.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = model[0](x) + 300
            h = h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-5)
            loss = loss_fn(model[2](h), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = model[0](x) + 300
            h = F.rms_norm(h.float(), h.shape[-1:])
            loss = loss_fn(model[2](h), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    if found := _overflows(run, "square"):
        event, seen = found[0]
        yield _found(
            found,
            f"{_call(event)} squared FP16 numbers as large as {_went_in(seen)} {in_steps(found)}"
            f"{other_lines(found)}: from 256 on a square is infinite in FP16.",
            "Take F.rms_norm or F.layer_norm, or cast before the square: x = x.float().",
        )


@rule("exp-overflows", Severity.WRONG, title="an exponential beyond FP16's range", explains=_CONSEQUENCES)
def exp_overflows(run: Run) -> Iterator[Finding]:
    """A softmax or a likelihood by hand takes e^x of FP16 numbers from 11.1 on: infinite, and inf / inf is NaN.

    CUDA's autocast takes exp to FP32; a CPU's does not, nor does anything outside the region, nor exp_().

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            scores = model[0](x) + 20
            weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
            loss = loss_fn(model[2](weights), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            scores = model[0](x) + 20
            weights = scores.softmax(-1)
            loss = loss_fn(model[2](weights), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    if found := _overflows(run, "exponential"):
        event, seen = found[0]
        limit = _EXPONENTIALS[str(event.values["call"])]
        yield _found(
            found,
            f"{_call(event)} was given FP16 numbers as large as {_went_in(seen)} {in_steps(found)}"
            f"{other_lines(found)}: from {limit} on its result is infinite in FP16.",
            "Take PyTorch's whole function (softmax, log_softmax, logsumexp), which keeps its numbers in range, or "
            "cast before: x.float().exp().",
        )


@rule(
    "scores-overflow",
    Severity.WRONG,
    title="scores divided too late",
    explains=(*_CONSEQUENCES, "activation-overflows"),
)
def scores_overflow(run: Run) -> Iterator[Finding]:
    """The product of queries and keys is divided by sqrt(d) after it was rounded to FP16, whose end it reaches.

    The same numbers fit when a factor is divided first. Products up to half of FP16's largest number say nothing.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = 200 * model[0](x).tanh() + 400
            scores = (h @ h.transpose(-1, -2)) / math.sqrt(8)
            loss = loss_fn(model[2](scores.softmax(-1) @ (h / 400)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = model[0](x)
            scores = (h / math.sqrt(8)) @ h.transpose(-1, -2)
            loss = loss_fn(model[2](scores.softmax(-1) @ h), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    found = where_it_shows(
        run, "scores", lambda _, seen: finite(seen["went_in"]) and not number(seen["came_out"]) < _LARGEST / 2
    )
    found = [each for each in found if goes_back(run, each[0])]
    if not found:
        return
    worst = max(found, key=lambda each: number(each[1]["came_out"]))
    event, size = worst[0], number(worst[1]["came_out"])
    reached = (
        "was infinite" if math.isinf(size) else f"reached {in_words(size)}, more than half of FP16's range,"
    )
    done = f"{'divided' if event.values['how'] == 'div' else 'multiplied'} by {in_words(event.values['by'])}"
    finding = _found(
        [worst, *(each for each in found if each is not worst)],
        f"A product of FP16 matrices {reached} before it was {done} {in_steps(found)}: FP16 ends at 65,504.",
        "Divide a factor first, (q / math.sqrt(d)) @ k.transpose(-2, -1), or call F.scaled_dot_product_attention.",
    )
    yield Finding(
        finding.sentence,
        finding.events,
        {**finding.values, "largest product": size},
        finding.fix,
        None if math.isinf(size) else Severity.RISK,
    )


@rule("loss-overflows", Severity.WRONG, title="a loss beyond FP16's range", explains=_CONSEQUENCES)
def loss_overflows(run: Run) -> Iterator[Finding]:
    """A loss is computed in FP16 (outside the region, or on FP16 targets too), and its squares or its sum overflow.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            out = model(x) + 600
        loss = loss_fn(out, y.half())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            out = model(x) + 600
        loss = 1e-4 * loss_fn(out.float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    if found := _overflows(run, "loss"):
        event, seen = found[0]
        yield _found(
            found,
            f"{_call(event)} was computed in FP16, and was infinite {in_steps(found)}, though nothing that "
            f"went in was larger than {_went_in(seen)}: its squares or their sum passed 65,504.",
            "Compute the loss in FP32: inside the autocast region, or of out.float().",
        )


@rule("sum-overflows", Severity.WRONG, title="a sum beyond FP16's range", explains=_CONSEQUENCES)
def sum_overflows(run: Run) -> Iterator[Finding]:
    """A sum, a mean or a norm of FP16 numbers passes 65,504.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            out = model(x)
            bonus = (out * 0 + 30000).sum() * 1e-4
            loss = loss_fn(out, y) + bonus
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            out = model(x)
            bonus = (out * 0 + 30000).float().sum() * 1e-6
            loss = loss_fn(out, y) + bonus
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    if found := [each for each in _overflows(run, "sum") if not _sums_scaled_losses(run, each[0])]:
        event, seen = found[0]
        yield _found(
            found,
            f"{_call(event)} of FP16 numbers as large as {_went_in(seen)} was infinite {in_steps(found)}"
            f"{other_lines(found)}: FP16 ends at 65,504.",
            "Add up in FP32: x.float().sum(), or x.sum(dtype=torch.float32).",
        )


@rule(
    "input-overflows",
    Severity.WRONG,
    title="numbers that autocast's cast makes infinite",
    explains=(*_CONSEQUENCES, "activation-overflows"),
)
def input_overflows(run: Run) -> Iterator[Finding]:
    """FP32 numbers from 65,520 on go into a layer that autocast runs in FP16: its cast makes them infinite.

    Mostly they are data that nobody has normalised: prices, populations, times in milliseconds.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x * 1e5), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        mean, deviation = 0.0, 1e5
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model((x * 1e5 - mean) / deviation), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    Right, in BF16:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.bfloat16):
            loss = 1e-9 * loss_fn(model(x * 1e5), y)
        loss.backward()
        optimizer.step()
    """
    found = [
        each for each in where_it_shows(run, "too large to cast", lambda _, seen: _cast_made_infinite(seen))
        if goes_back(run, each[0])
    ]  # fmt: skip
    if found:
        event, seen = found[0]
        yield _found(
            found,
            f"{_call(event)} was given numbers as large as {_went_in(seen)} {in_steps(found)}{other_lines(found)}, and "
            "autocast's cast to FP16, which ends at 65,504, made them infinite: no loss scale changes that.",
            "Bring the data to numbers of about 1 before the model sees them: subtract their mean, divide by their "
            "standard deviation.",
        )


def _cast_made_infinite(seen: Seen) -> bool:
    """Whether a result was not finite, and a number that went in is, though not in FP16."""
    size = largest(seen["went_in"])
    return finite(seen["went_in"]) and size >= _INFINITE_FROM and not math.isfinite(number(seen["came_out"]))


@rule("activation-overflows", Severity.WRONG, title="activations beyond FP16's range", explains=_CONSEQUENCES)
def activation_overflows(run: Run) -> Iterator[Finding]:
    """A layer's output passes 65,504, FP16's largest number, in the forward pass: no loss scale helps.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = 200 * model[0](x).tanh() + 5000
            loss = loss_fn(model[2](h * 30), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.bfloat16):
            h = 200 * model[0](x).tanh() + 5000
            loss = 1e-9 * loss_fn(model[2](h * 30), y)
        loss.backward()
        optimizer.step()
    """
    if found := _overflows(run, "activation"):
        event, seen = found[0]
        yield _found(
            found,
            f"{_call(event)} gave infinite FP16 numbers {in_steps(found)}{other_lines(found)}, though "
            f"nothing that went in was larger than {_went_in(seen)}: FP16 ends at 65,504, and no loss scale "
            f"changes that.",
            "Compute this part in FP32 (autocast switched off around it, and x.float()), take torch.bfloat16, "
            "or keep "
            "the numbers smaller, with a norm before it.",
        )


@rule(
    "written-overflow", Severity.WRONG, title="an in-place result beyond FP16's range", explains=_CONSEQUENCES
)
def written_overflow(run: Run) -> Iterator[Finding]:
    """An in-place or out= form keeps the dtype of what it writes into: there, no autocast and no promotion helps.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = model[0](x)
            h += 70000 + torch.zeros(8)
            loss = 1e-9 * loss_fn(model[2](h), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = model[0](x)
            h = h + (70000 + torch.zeros(8))
            loss = 1e-9 * loss_fn(h.mean(-1, keepdim=True), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    if found := _overflows(run, "written"):
        event, seen = found[0]
        yield _found(
            found,
            f"{_call(event)} wrote infinite numbers into an FP16 tensor {in_steps(found)}"
            f"{other_lines(found)}: what went in was no larger than {_went_in(seen)}, but in-place and out= "
            f"forms keep "
            "the dtype of what they write into.",
            "Write the form that returns a new tensor (h = h + x), or take h to FP32 before.",
        )


@rule("cast-overflows", Severity.WRONG, title="a cast by hand beyond FP16's range", explains=_CONSEQUENCES)
def cast_overflows(run: Run) -> Iterator[Finding]:
    """Numbers from 65,520 on are cast to FP16 by hand.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            out = model(x)
            weight = (1e5 + torch.zeros(1)).half()
            loss = loss_fn(out * weight, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            out = model(x)
            weight = 1e5 + torch.zeros(1)
            loss = 1e-12 * loss_fn(out * weight, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    if found := _overflows(run, "cast"):
        event, seen = found[0]
        yield _found(
            found,
            f"{_call(event)} took numbers as large as {_went_in(seen)} to FP16 {in_steps(found)}"
            f"{other_lines(found)}, where they are infinite: FP16 ends at 65,504.",
            "Keep these numbers in FP32: autocast casts where it is safe.",
        )


@rule("norm-in-half", Severity.WRONG, title="a gradient norm beyond FP16's range")
def norm_in_half(run: Run) -> Iterator[Finding]:
    """A norm of FP16 gradients is computed by hand, in FP16: its squares overflow, and 1 / inf cuts the gradients to 0.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = sum((p.grad.half() * 9999).pow(2).sum() for p in model.parameters()).sqrt() / 9999
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            loss = loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = sum((p.grad * 9999).pow(2).sum() for p in model.parameters()).sqrt() / 9999
        scaler.step(optimizer)
        scaler.update()
    """
    found = where_it_shows(
        run, "overflow", lambda event, seen: _overflowed(seen) and _kind(event, seen) == "gradients"
    )
    if found:
        event, seen = found[0]
        yield _found(
            found,
            f"{_call(event)} of FP16 gradients as large as {_went_in(seen)} was infinite {in_steps(found)}"
            f"{other_lines(found)}: FP16 ends at 65,504, and what is divided by an infinite norm is 0.",
            "Call torch.nn.utils.clip_grad_norm_ or get_total_norm on FP32 gradients, or cast first: p.grad.float().",
        )


@rule(
    "eps-lost",
    Severity.RISK,
    title="an eps that is 0 in FP16",
    explains=(*_CONSEQUENCES, "nan-derivative", "log-of-zero"),
)
def eps_lost(run: Run) -> Iterator[Finding]:
    """An eps of 2.98e-8 or less is added to FP16 numbers, or keeps them from falling below it: there, it is 0.

    As long as no number is 0 nothing happens. With the first one, x / (0 + eps) is NaN or infinite.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = model[1](model[0](x))
            h = h / (h.norm(dim=-1, keepdim=True) + 1e-8)
            loss = loss_fn(model[2](h), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, inside a function:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = F.normalize(model[0](x) * 0)
            loss = loss_fn(model[2](h), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            h = model[1](model[0](x))
            h = h / (h.norm(dim=-1, keepdim=True) + 1e-4)
            loss = loss_fn(model[2](F.normalize(h)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    if found := where_it_shows(run, "eps", lambda *_: True):
        event = found[0][0]
        eps = event.values["eps"]
        assert isinstance(eps, float)
        zeros = [each for each in at_one_line(found) if number(each[1]["zero"]) == 1]
        seen = (
            f" There are zeros in the result {in_steps(zeros)}: whatever is divided by them is infinite or NaN."
            if zeros
            else ""
        )
        fix = Fix(
            event,
            remove=(repr(eps),),
            insert=("1e-4",),
            say="Take an eps that FP16 holds, such as 1e-4, or compute that in FP32: x.float().",
        )
        yield Finding(
            f"An eps of {eps:g} meets FP16 numbers{other_lines(found)}, where it is 0: FP16's smallest number is "
            f"6e-8.{seen}",
            tuple(each for each, _ in at_one_line(found)),
            {"eps": eps, "in FP16": 0.0},
            fix,
            Severity.WRONG if zeros else None,
        )
        return
    inside = where_it_shows(
        run, "eps inside", lambda _, seen: math.isnan(number(seen["came_out"])) and finite(seen["went_in"])
    )
    if inside:
        event = inside[0][0]
        yield Finding(
            f"{event.values['call']} gave NaN for FP16 numbers that are all finite {in_steps(inside)}: its eps, "
            f"{event.values['eps']:g}, is 0 in FP16, and a row of zeros is divided by it.",
            tuple(each for each, _ in inside),
            {"eps": event.values["eps"], "in FP16": 0.0},
            Fix(
                event,
                say=f"Give it FP32 numbers, or an eps that FP16 holds: {event.values['call']}(…, eps=1e-4).",
            ),
            Severity.WRONG,
        )


@rule(
    "mask-overflows", Severity.RISK, title="a mask beyond FP16's range", explains=(*_CONSEQUENCES, "raised")
)
def mask_overflows(run: Run) -> Iterator[Finding]:
    """A mask with -1e9, or a mask that is added twice, is -inf in FP16.

    Where a row is masked completely softmax gives NaN then. masked_fill with such a number raises an error.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            scores = model[0](x)
            scores = torch.where(scores > 0, scores, -1e9)
            loss = loss_fn(model[2](scores.softmax(-1)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, raising:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            scores = model[0](x)
            scores = scores.masked_fill(scores < 0, -1e9)
            loss = loss_fn(model[2](scores.softmax(-1)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, added twice:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            scores = model[0](x)
            mask = torch.full_like(scores, torch.finfo(scores.dtype).min)
            loss = loss_fn(model[2]((scores + mask + mask).softmax(-1)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            scores = model[0](x)
            scores = scores.masked_fill(scores < -10, torch.finfo(scores.dtype).min)
            mask = torch.zeros(8).masked_fill(torch.arange(8) > 4, -1e9)
            loss = loss_fn(model[2]((scores + mask).softmax(-1)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, with -inf by will:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            scores = model[0](x)
            scores = scores.masked_fill(torch.arange(8) > 4, float("-inf"))
            loss = loss_fn(model[2](scores.softmax(-1)), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    nan_rows = {
        event.step
        for event, seen in noticed(run, "softmax")
        if any(
            math.isnan(number(each["came_out"])) and not math.isnan(largest(each["went_in"])) for each in seen
        )
    }
    # A notice of a mask has no numbers that are read later.
    found = [(event, seen[0]) for event, seen in noticed(run, "mask")]
    if found:
        event = found[0][0]
        value, becomes = number(event.values["number"]), str(event.values["becomes"])
        steps = {each.step for each, _ in found}
        raised = bool(event.values["raised"])
        ends = "FP16 ends at 65,504"
        if raised:
            sentence = f"masked_fill was to write {value:g} into FP16 scores, which cannot hold it: {ends}."
        elif steps & nan_rows:
            sentence = (
                f"A mask of {value:g} is {becomes} in FP16{other_lines(found)}, and softmax gave NaN for a row "
                f"that is masked completely: {ends}."
            )
        else:
            sentence = (
                f"A mask of {value:g} is {becomes} in FP16{other_lines(found)}: {ends}, and softmax gives NaN "
                "for a row that is masked completely."
            )
        yield Finding(
            sentence,
            tuple(each for each, _ in at_one_line(found)),
            {"number": value, "in FP16": becomes},
            Fix(
                event,
                remove=(f"{value:g}".replace("e+0", "e").replace("e+", "e"),),
                insert=("torch.finfo(torch.float16).min",),
                say="Mask with torch.finfo(scores.dtype).min, once, or hand a boolean mask to "
                "F.scaled_dot_product_attention.",
            ),
            Severity.WRONG if raised or steps & nan_rows else None,
        )
        return
    twice = [each for each in _overflows(run, "mask") if each[0].step in nan_rows]
    if twice:
        yield _found(
            twice,
            f"Something was added to FP16 scores that stood at FP16's end already {in_steps(twice)}: they "
            "became infinite, and softmax gave NaN for a row that is masked completely.",
            "Add torch.finfo(scores.dtype).min once, or combine the masks as booleans before.",
        )
