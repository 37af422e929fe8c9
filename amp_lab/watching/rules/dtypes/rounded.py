"""Numbers that 16 bits round to others: whole numbers, probabilities, sums, numbers of the other 16-bit format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import torch

from amp_lab.watching.recording.run import Run
from amp_lab.watching.rules.notices import at_one_line, in_steps, number, other_lines, where_it_shows
from amp_lab.watching.rules.rule import Finding, Fix, Severity, rule
from amp_lab.watching.words import in_words

_EXACT: Final = {torch.float16: 2048, torch.bfloat16: 256}


@rule("integers-in-16-bits", Severity.WRONG, title="whole numbers rounded to others")
def integers_in_16_bits(run: Run) -> Iterator[Finding]:
    """Labels, positions or counts above 2,048 (BF16: 256) are taken to 16 bits, and become others.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            positions = torch.arange(3000, 3016).half()
            loss = loss_fn(model(x) + torch.sin(positions)[:, None], y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Wrong, mixed with BF16 numbers:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.bfloat16):
            out = model(x)
            positions = torch.arange(300, 316)[:, None]
            loss = loss_fn(torch.sin(out * 0 + positions), y)
        loss.backward()
        optimizer.step()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            positions = torch.arange(3000, 3016).float()
            labels = torch.arange(16).half()
            loss = loss_fn(model(x) + torch.sin(positions)[:, None].half() + 0 * labels[:, None], y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    found = where_it_shows(run, "whole numbers", lambda _, seen: number(seen["changed"]) == 1)
    if found:
        event, seen = found[0]
        dtype = event.values["dtype"]
        assert isinstance(dtype, torch.dtype)
        exact = _EXACT[dtype]
        yield Finding(
            f"Whole numbers up to {in_words(seen['largest'])} were taken to {in_words(dtype)}"
            f"{other_lines(found)}, which holds all of them only up to {exact:,}: {exact + 1:,} becomes {exact:,}.",
            tuple(each for each, _ in at_one_line(found)),
            {"largest": seen["largest"], "all exact up to": exact},
            Fix(
                event,
                say="Keep positions, labels and counts in integers or FP32, and cast what is computed from them, "
                "such as sines, which are small.",
            ),
        )


@rule(
    "probabilities-in-16-bits",
    Severity.RISK,
    title="probabilities rounded before a logarithm",
    explains=("loss-not-finite", "scale-collapse", "every-step-skipped", "scale-stuck", "sum-poisoned"),
)
def probabilities_in_16_bits(run: Run) -> Iterator[Finding]:
    """A loss takes the logarithm of probabilities that were rounded to 16 bits: near 0 and 1 they say nothing.

    A sigmoid in FP16 is exactly 1 from a logit of 8.3 on; then the loss is 100 whatever the logit, and without a
    gradient. A cast to FP32 afterwards brings nothing back. CUDA's autocast refuses such a loss; a CPU's does not.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            p = torch.sigmoid(model(x))
        loss = F.binary_cross_entropy(p.float(), (y > 0).float())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            logits = model(x)
            loss = F.binary_cross_entropy_with_logits(logits, (y > 0).float())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right, with probabilities in FP32:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            logits = model(x)
        loss = F.binary_cross_entropy(torch.sigmoid(logits.float()), (y > 0).float())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    found = where_it_shows(
        run,
        "probabilities",
        lambda event, _: event.values["call"] != "log",
    )
    if not found:
        return
    event = found[0][0]
    dtype, call = in_words(event.values["dtype"]), event.values["call"]
    edge = [each for each in found if 1 in (number(each[1]["zeros"]), number(each[1]["ones"]))]
    which = "0" if edge and number(edge[0][1]["zeros"]) == 1 else "1"
    seen = f", and {in_steps(edge)} some were exactly {which}" if edge else ""
    yield Finding(
        f"{call} was given probabilities that had been rounded to {dtype}{other_lines(found)}{seen}: next to 1 "
        f"they are {'0.0005' if dtype == 'FP16' else '0.004'} apart.",
        tuple(each for each, _ in at_one_line(found)),
        {"dtype": event.values["dtype"]},
        Fix(
            event,
            say="Give the logits to binary_cross_entropy_with_logits, cross_entropy or log_softmax, or take the logits "
            "to FP32 before the sigmoid.",
        ),
        Severity.WRONG if edge else None,
    )


@rule(
    "log-of-zero",
    Severity.WRONG,
    title="a logarithm of probabilities that are 0 in 16 bits",
    explains=("loss-not-finite", "scale-collapse", "every-step-skipped", "scale-stuck", "nan-derivative"),
)
def log_of_zero(run: Run) -> Iterator[Finding]:
    """log(softmax(x)) or log(1 - sigmoid(x)) by hand: what 16 bits round to 0 has a logarithm of minus infinity.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            logits = 40 * model[0](x)
            loss = -(0.01 * torch.log(logits.softmax(-1))).mean() + loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.float16):
            logits = 40 * model[0](x)
            loss = -(0.01 * F.log_softmax(logits, -1)).mean() + loss_fn(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """
    found = where_it_shows(
        run,
        "probabilities",
        lambda event, seen: event.values["call"] == "log" and number(seen["zeros"]) == 1,
    )
    if found:
        event = found[0][0]
        dtype = in_words(event.values["dtype"])
        yield Finding(
            f"log was given probabilities of which some are exactly 0 in {dtype} "
            f"{in_steps(found)}{other_lines(found)}: "
            "their logarithm is minus infinity.",
            tuple(each for each, _ in at_one_line(found)),
            {"dtype": event.values["dtype"]},
            Fix(event, say="Take log_softmax or logsigmoid of the logits, which compute it in one."),
        )


@rule("accumulator-in-16-bits", Severity.RISK, title="a sum over steps in 16 bits")
def accumulator_in_16_bits(run: Run) -> Iterator[Finding]:
    """A metric is added up over the steps in 16 bits: it stops growing when it is 2,048 (BF16: 256) times the summand.

    Wrong:
        total = torch.zeros((), dtype=torch.float16)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                loss = loss_fn(model(x), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.detach()

    Wrong, not in place:
        total = torch.zeros((), dtype=torch.bfloat16)
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.bfloat16):
                loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            total = total + loss.detach().bfloat16()

    Right:
        total = torch.zeros(())
        for x, y in batches:
            optimizer.zero_grad()
            with autocast(device_type, dtype=torch.float16):
                h = model[0](x)
                h = h + h.tanh()
                loss = loss_fn(model[2](h), y)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            total += loss.detach()
    """
    found = where_it_shows(run, "running sum", lambda *_: True)
    if found:
        event, seen = found[0]
        dtype = event.values["dtype"]
        assert isinstance(dtype, torch.dtype)
        yield Finding(
            f"A sum over the steps is kept in {in_words(dtype)}{other_lines(found)}: once it is "
            f"{_EXACT[dtype]:,} times as large as what is added, it does not grow any more.",
            tuple(each for each, _ in at_one_line(found)),
            {"sum": seen["total"], "added": seen["added"]},
            Fix(
                event, say="Add up in Python with .item(), or in a tensor of torch.float64 or torch.float32."
            ),
        )


@rule("other-half-by-hand", Severity.RISK, title="a cast to the other 16-bit format")
def other_half_by_hand(run: Run) -> Iterator[Finding]:
    """Inside a BF16 region something is cast to FP16 by hand, or the other way round.

    FP16 has not BF16's range, nor BF16 the digits of FP16; operators that take several tensors refuse the mixture or
    go to FP32.

    Wrong:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.bfloat16):
            h = model[0](x).half()
            loss = loss_fn(model[2](h), y)
        loss.backward()
        optimizer.step()

    Right:
        optimizer.zero_grad()
        with autocast(device_type, dtype=torch.bfloat16):
            h = model[0](x).to(torch.bfloat16)
            loss = loss_fn(model[2](h), y)
        loss.backward()
        optimizer.step()
    """
    found = where_it_shows(run, "other half", lambda *_: True)
    if found:
        event = found[0][0]
        dtype, region = in_words(event.values["dtype"]), in_words(event.values["region"])
        yield Finding(
            f"A tensor is cast to {dtype} by hand in an autocast region of {region}{other_lines(found)}: "
            f"{'FP16 ends at 65,504 and at 6e-8' if dtype == 'FP16' else 'BF16 has 8 significant bits, FP16 11'}.",
            tuple(each for each, _ in at_one_line(found)),
            {"cast to": event.values["dtype"], "region": event.values["region"]},
            Fix(event, say="Leave the cast out: the region casts what it has to."),
        )
