"""What rules say about the loss scale and the scaler, in runs made by hand."""

import dataclasses

import pytest
import torch

from amp_lab.watching.recording.events import (
    Backward,
    Gradients,
    Scaled,
    ScaleRead,
    ScalerMade,
    Stepped,
    Updated,
)
from amp_lab.watching.recording.later import Later
from amp_lab.watching.recording.run import ScalerFacts
from amp_lab.watching.rules.rule import RULES, Severity
from tests.watching.tapes import Tape, found

FAMILIES = ("scale", "settings", "scalers")
ABOUT_SCALE = [name for name, rule in RULES.items() if rule.look.__module__.rpartition(".")[2] in FAMILIES]


def test_the_families_have_rules() -> None:
    assert {"scale-collapse", "scale-settings", "scaler-in-loop"} <= set(ABOUT_SCALE)


def _warm_up() -> Tape:
    tape = Tape(scale=2.0**16)
    for number in range(40):
        tape.step(skip=number < 5)
    return tape


def _warm_up_of_a_sum() -> Tape:
    """A loss that is a sum over a large batch: eleven halvings."""
    tape = Tape(scale=2.0**16)
    for number in range(40):
        tape.step(skip=number < 11)
    return tape


def _short_and_all_skipped() -> Tape:
    tape = Tape(scale=2.0**16)
    for _ in range(6):
        tape.step(skip=True)
    return tape


def _overflow_after_each_growth() -> Tape:
    tape = Tape(growth_interval=20)
    for number in range(1, 400):
        tape.step(skip=number % 21 == 0)
    return tape


def _never_grows() -> Tape:
    tape = Tape(growth_interval=2000)
    for _ in range(300):
        tape.step()
    return tape


def _below_one_and_well() -> Tape:
    """Gradients so large that a scale of 1/16 is the right one."""
    tape = Tape(scale=256.0)
    for number in range(60):
        tape.step(skip=number < 12)
    return tape


def _tiny_and_skipped_a_little() -> Tape:
    """A scale below 1/256 from the beginning, and a few skips at the end."""
    tape = Tape(scale=2.0**-9).step()
    for _ in range(3):
        tape.step(skip=True)
    return tape


def _scattered() -> Tape:
    tape = Tape()
    for number in range(1, 300):
        tape.step(skip=number % 17 == 0)
    return tape


def _static_by_update() -> Tape:
    """`update(128.0)` in each step is a static scale; nothing overflows."""
    tape = Tape(scale=128.0)
    for _ in range(30):
        tape.step()
        scale = Later(float, 128.0)
        tape.events[-1] = Updated(
            number=len(tape.events), step=tape.now, scaler=0, before=scale, after=scale, given=True
        )
    return tape


def _disabled() -> Tape:
    tape = Tape(scale=1.0, dtype=torch.bfloat16, enabled=False, asked_enabled=False)
    for _ in range(30):
        tape.step()
    return tape


def _bf16() -> Tape:
    tape = Tape(scale=None, dtype=torch.bfloat16)
    for _ in range(30):
        tape.step()
    return tape


def _reads_on_a_cpu() -> Tape:
    tape = Tape(fused=True)
    for _ in range(30):
        tape.step(after=lambda: tape.note(ScaleRead, scaler=0, scale=Later(float, 1024.0)))
    return tape


def _reads_where_the_host_waits_anyway() -> Tape:
    tape = Tape(device_type="cuda")
    for _ in range(30):
        tape.step(after=lambda: tape.note(ScaleRead, scaler=0, scale=Later(float, 1024.0)))
    return tape


def _reads_in_each_tenth_step() -> Tape:
    tape = Tape(device_type="cuda", fused=True)
    for number in range(30):
        tape.step()
        if number % 10 == 0:
            tape.note(ScaleRead, scaler=0, scale=Later(float, 1024.0))
    return tape


def _one_scaler_for_each_fold() -> Tape:
    """Cross-validation: three models one after the other, each with a scaler of its own, each for some steps."""
    tape = Tape()
    for number in range(1, 4):
        tape.note(ScalerMade, scaler=number, enabled=True, kind="GradScaler")
        tape.scalers.append(tape.scalers[0])
        for _ in range(3):
            tape.step()
            place = next(i for i in range(len(tape.events) - 1, -1, -1) if isinstance(tape.events[i], Scaled))
            old = tape.events[place]
            assert isinstance(old, Scaled)
            tape.events[place] = Scaled(
                number=old.number,
                step=old.step,
                scaler=number,
                dtype=old.dtype,
                shape=(),
                scale=old.scale,
                finite=old.finite,
                result=1,
                result_dtype=old.result_dtype,
            )
    return tape


RIGHT = [
    _warm_up,
    _warm_up_of_a_sum,
    _short_and_all_skipped,
    _overflow_after_each_growth,
    _never_grows,
    _below_one_and_well,
    _tiny_and_skipped_a_little,
    _scattered,
    _static_by_update,
    _disabled,
    _bf16,
    _reads_on_a_cpu,
    _reads_where_the_host_waits_anyway,
    _reads_in_each_tenth_step,
    _one_scaler_for_each_fold,
]


@pytest.mark.parametrize("make", RIGHT, ids=lambda make: make.__name__)
def test_what_is_normal_gets_nothing(make) -> None:
    run = make().run()
    assert {name: found(name, run) for name in ABOUT_SCALE if found(name, run)} == {}


def test_a_scale_that_sinks_to_zero_is_told_with_what_it_means() -> None:
    tape = Tape(scale=2.0**16)
    tape.step()
    for _ in range(170):
        tape.step(skip=True)
    # In doubles the scale would go on to 2^-154; in FP32 it ends at 0.
    zero = Later(float, 0.0)
    tape.events[-1] = Updated(number=len(tape.events), step=tape.now, scaler=0, before=zero, after=zero)
    (finding,) = found("scale-collapse", tape.run())
    assert "Every step from 2 on was skipped, 170 in a row" in finding.sentence
    assert "from 65,536 to 0:" in finding.sentence
    assert "0 divided by 0" in finding.sentence


def test_a_scale_of_zero_makes_weights_nan() -> None:
    """What the sentence says about torch: it looks at gradients before it divides them."""
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum())
    scaler.update(0.0)
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert weight.isnan().all()
    assert scaler.get_scale() == 0.0


def test_a_step_taken_at_a_scale_of_zero_does_not_hide_the_collapse() -> None:
    tape = Tape(scale=2.0**-140)
    for _ in range(12):
        tape.step(skip=True)
    tape.scale = 0.0
    tape.step()
    tape.step(skip=True, finite=False)
    assert len(found("scale-collapse", tape.run())) == 1


def test_a_collapse_with_a_finite_loss_points_at_the_gradients() -> None:
    tape = Tape()
    for _ in range(40):
        tape.step(skip=True)
    (finding,) = found("scale-collapse", tape.run())
    assert "the loss was finite each time" in finding.sentence
    assert found("every-step-skipped", tape.run()) == []


def test_a_collapse_that_ended_is_none() -> None:
    tape = Tape()
    for _ in range(40):
        tape.step(skip=True)
    assert found("scale-collapse", tape.step().run()) == []


def test_a_loss_that_is_not_finite_once_is_a_risk_and_twice_is_wrong() -> None:
    tape = Tape()
    tape.step()
    tape.step(skip=True, finite=False)
    (once,) = found("loss-not-finite", tape.run())
    assert once.severity is Severity.RISK
    assert "in step 2: no loss scale can cure" in once.sentence
    tape.step(skip=True, finite=False)
    (twice,) = found("loss-not-finite", tape.run())
    assert twice.severity is Severity.WRONG
    assert "in steps 2 and 3" in twice.sentence


def test_a_loss_that_is_not_finite_is_worst_without_a_scaler() -> None:
    tape = Tape(scale=None, dtype=torch.bfloat16)
    tape.step(finite=False)
    (finding,) = found("loss-not-finite", tape.run())
    assert finding.severity is Severity.WRONG
    assert "stepped all the same" in finding.sentence


def test_every_step_skipped_tells_both_scales() -> None:
    tape = Tape(scale=2.0**16)
    for _ in range(14):
        tape.step(skip=True)
    (finding,) = found("every-step-skipped", tape.run())
    assert "Not one of 14 steps" in finding.sentence
    assert "65,536 in step 1 and at 8 in step 14" in finding.sentence


def test_a_static_scale_that_overflows_again_and_again_is_stuck() -> None:
    tape = Tape(scale=2.0**20, growth_factor=1.0, backoff_factor=1.0)
    for _ in range(5):
        tape.step(skip=True)
        tape.scale = 2.0**20
        scale = Later(float, 2.0**20)
        tape.events[-1] = Updated(number=len(tape.events), step=tape.now, scaler=0, before=scale, after=scale)
    (finding,) = found("scale-stuck", tape.run())
    assert (
        "1,048,576 overflowed in steps 1 to 5, 5 times in a row: no update made it smaller"
        in finding.sentence
    )
    assert found("scale-settings", tape.run()) == []  # both factors at 1: on purpose


@pytest.mark.parametrize(
    ("growth", "backoff", "words"),
    [
        (2.0, 1.0, "backoff factor is 1"),
        (2.0, 1.5, "backoff factor is 1.5"),
        (0.5, 0.5, "growth factor is 0.5"),
    ],
)
def test_factors_that_go_the_wrong_way(growth: float, backoff: float, words: str) -> None:
    tape = Tape(growth_factor=growth, backoff_factor=backoff).step()
    (finding,) = found("scale-settings", tape.run())
    assert words in finding.sentence


def test_growing_into_overflow_is_told_with_its_share() -> None:
    tape = Tape(growth_interval=1)
    for number in range(40):
        tape.step(skip=number % 2 == 1)
    (finding,) = found("scale-grows-too-fast", tape.run())
    assert "20 of 39 steps were skipped" in finding.sentence
    assert "after 1 good step." in finding.sentence


def test_an_initial_scale_far_too_large() -> None:
    tape = Tape(scale=2.0**40)
    for number in range(40):
        tape.step(skip=number < 26)
    (finding,) = found("init-scale-too-large", tape.run())
    assert "The first 26 steps were skipped" in finding.sentence
    assert "16,384 was the first" in finding.sentence


def test_the_scale_read_in_each_step_of_a_fused_optimizer_on_a_gpu() -> None:
    tape = Tape(device_type="cuda", fused=True)
    for _ in range(30):
        tape.step(after=lambda: tape.note(ScaleRead, scaler=0, scale=Later(float, 1024.0)))
    (finding,) = found("get-scale-each-step", tape.run())
    assert "in 30 of 30 steps" in finding.sentence


@pytest.mark.parametrize(("device", "meant"), [(1024.0, "init_scale=1024.0"), (False, "enabled=False")])
def test_a_number_as_the_device(device: object, meant: str) -> None:
    tape = Tape(scale=65536.0, device=device).step()
    (finding,) = found("scaler-device-number", tape.run())
    assert "65,536" in finding.sentence
    assert finding.fix
    assert meant in finding.fix.say


def test_a_scaler_that_disabled_itself_matters_only_for_fp16() -> None:
    for dtype, expected in ((torch.float16, 1), (torch.bfloat16, 0), (None, 0)):
        tape = Tape(scale=1.0, dtype=dtype, enabled=False, asked_enabled=True, device="cuda")
        assert len(found("scaler-disabled-itself", tape.step().run())) == expected, dtype


def test_a_scaler_disabled_on_purpose_did_not_disable_itself() -> None:
    tape = Tape(scale=1.0, enabled=False, asked_enabled=False, device="cuda")
    tape.models[0] = dataclasses.replace(tape.models[0], device_type="cpu")
    assert found("scaler-disabled-itself", tape.step().run()) == []


def test_a_scaler_that_is_never_used_matters_only_for_fp16() -> None:
    for dtype, expected in ((torch.float16, 1), (torch.bfloat16, 0)):
        tape = Tape(scale=None, dtype=dtype)
        tape.scalers = [ScalerFacts("GradScaler", True, True, "cpu", 65536.0, 2.0, 0.5, 2000, True)]
        for _ in range(4):
            tape.step()
        assert len(found("scaler-unused", tape.run())) == expected, dtype


def test_two_scalers_for_one_optimizer() -> None:
    tape = Tape()
    tape.scalers *= 2
    scaled, asked = Later(float, 1024.0), Later(float, 4096.0)
    finite, skipped = Later(bool, True), Later(bool, False)
    tape.note(
        Backward,
        how="backward",
        losses=(1,),
        loss_dtype=torch.float32,
        finite=finite,
        scaled_by=0,
        scale=scaled,
        touched=(0,),
    )
    tape.note(Stepped, optimizer=0, scaler=1, state=Gradients.SCALED, skipped=skipped, ran=True, scale=asked)
    (finding,) = found("two-scalers", tape.run())
    assert "1,024" in finding.sentence
    assert "4,096" in finding.sentence


def test_a_new_scaler_for_each_step() -> None:
    tape = Tape(scale=65536.0)
    for number in range(4):
        tape.note(ScalerMade, scaler=number, enabled=True, kind="GradScaler")
        tape.note(
            Scaled,
            scaler=number,
            dtype=torch.float32,
            shape=(),
            scale=Later(float, 65536.0),
            finite=Later(bool, True),
            result=1,
            result_dtype=torch.float32,
        )
        tape.now += 1
    (finding,) = found("scaler-in-loop", tape.run())
    assert "for each of 4 steps" in finding.sentence
    assert "65,536" in finding.sentence


def test_a_long_collapse_is_told_in_full_though_only_its_end_was_kept() -> None:
    tape = Tape(scale=2.0**16)
    for number in range(1, 201):
        tape.step(skip=number > 100)
    run = tape.run()
    kept = frozenset({*range(1, 17), *range(169, 201)})
    events = [event for event in run.events if event.step in kept]
    scales = [(step, 2.0 ** (16 - (step - 100))) for step in range(101, 201)]
    (finding,) = found(
        "scale-collapse", dataclasses.replace(run, events=events, kept_steps=kept, scales=scales)
    )
    assert (
        "Every step from 101 on was skipped, 100 in a row, and the loss scale sank from 65,536"
        in finding.sentence
    )


def test_steps_that_were_not_kept_may_have_been_taken() -> None:
    tape = Tape(scale=2.0**16)
    for _ in range(14):
        tape.step(skip=True)
    run = tape.run()
    assert len(found("every-step-skipped", run)) == 1
    assert found("every-step-skipped", dataclasses.replace(run, steps=100, skips=run.skips[:13])) == []
