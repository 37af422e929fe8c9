"""Checkpoints of many kinds, saved and loaded rightly and wrongly, in real loops and in runs made by hand."""

import copy
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from amp_lab.watching.recording.events import Gradients, Raised, Saved, StateLoaded, StateTaken, Stepped
from amp_lab.watching.recording.later import Later
from amp_lab.watching.report import Report
from amp_lab.watching.rules.rule import Severity
from amp_lab.watching.watch import watch
from tests.watching.tapes import Tape, found
from tests.watching.training import Training, report_of, said_by

FAMILIES = ("checkpoints", "resuming")
ALL = ("model", "optimizer", "scaler")


@pytest.fixture(autouse=True)
def _pytorch_may_warn() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def states(training: Training, parts: tuple[str, ...] = ALL) -> dict[str, Any]:
    return {part: getattr(training, part).state_dict() for part in parts}


def train(training: Training) -> None:
    for _ in training.steps():
        pass


# --- saving


def test_a_dictionary_of_everything_gets_nothing(tmp_path: Path) -> None:
    def loop(training: Training) -> None:
        train(training)
        torch.save({"epoch": 1, "loss": 0.5, **states(training)}, tmp_path / "all.pt")

    assert said_by(FAMILIES, report_of(Training(), loop)) == []


def test_several_files_get_nothing(tmp_path: Path) -> None:
    def loop(training: Training) -> None:
        train(training)
        for name, state in states(training).items():
            torch.save(state, tmp_path / f"{name}.pt")

    assert said_by(FAMILIES, report_of(Training(), loop)) == []


def test_whole_objects_get_nothing(tmp_path: Path) -> None:
    def loop(training: Training) -> None:
        train(training)
        torch.save(training.model, tmp_path / "model.pt")

    assert said_by(FAMILIES, report_of(Training(), loop)) == []


def test_weights_alone_get_nothing(tmp_path: Path) -> None:
    def loop(training: Training) -> None:
        train(training)
        torch.save(training.model.state_dict(), tmp_path / "model.pt")
        half = {name: each.half() for name, each in training.model.state_dict().items()}
        torch.save(half, tmp_path / "half.pt")

    assert said_by(FAMILIES, report_of(Training(), loop)) == []


def test_a_copy_in_16_bits_beside_the_checkpoint_gets_nothing(tmp_path: Path) -> None:
    def loop(training: Training) -> None:
        train(training)
        half = {name: each.half() for name, each in training.model.state_dict().items()}
        torch.save(half, tmp_path / "half.pt")
        torch.save(states(training), tmp_path / "all.pt")

    assert said_by(FAMILIES, report_of(Training(), loop)) == []


def test_a_bf16_run_has_no_scaler_to_save(tmp_path: Path) -> None:
    training = Training(dtype=torch.bfloat16)
    training.scaler = torch.amp.GradScaler("cpu", enabled=False)

    def loop(training: Training) -> None:
        train(training)
        torch.save(states(training, ("model", "optimizer")), tmp_path / "all.pt")

    assert said_by(FAMILIES, report_of(training, loop)) == []


def test_a_scaler_left_out_is_told_with_its_scale(tmp_path: Path) -> None:
    def loop(training: Training) -> None:
        train(training)
        torch.save(states(training, ("model", "optimizer")), tmp_path / "some.pt")

    report = report_of(Training(8, (3,)), loop)
    assert said_by(FAMILIES, report) == ["scaler-not-saved"]
    assert "not at 512." in report["scaler-not-saved"].sentence


def test_a_scaler_left_out_of_several_files_is_told(tmp_path: Path) -> None:
    def loop(training: Training) -> None:
        train(training)
        for name, state in states(training, ("model", "optimizer")).items():
            torch.save(state, tmp_path / f"{name}.pt")

    assert said_by(FAMILIES, report_of(Training(), loop)) == ["scaler-not-saved"]


def test_a_state_taken_for_another_way_of_saving_counts_as_saved(tmp_path: Path) -> None:
    def loop(training: Training) -> None:
        train(training)
        torch.save(states(training, ("model", "optimizer")), tmp_path / "some.pt")
        (tmp_path / "scaler.json").write_text(str(training.scaler.state_dict()))

    assert said_by(FAMILIES, report_of(Training(), loop)) == []


def test_an_optimizer_left_out_is_told_if_it_remembers_something(tmp_path: Path) -> None:
    def loop(training: Training) -> None:
        train(training)
        torch.save(states(training, ("model", "scaler")), tmp_path / "some.pt")

    adam = report_of(Training(kind=torch.optim.AdamW), loop)
    assert said_by(FAMILIES, adam) == ["optimizer-not-saved"]
    assert said_by(FAMILIES, report_of(Training(), loop)) == []


def test_a_state_before_update_tells_both_scales(tmp_path: Path) -> None:
    def loop(training: Training) -> None:
        for x, y in training.data:
            training.backward(x, y)
            training.scaler.step(training.optimizer)
            torch.save(states(training), tmp_path / "all.pt")
            training.scaler.update()

    report = report_of(Training(5, (3,)), loop)
    assert said_by(FAMILIES, report) == ["state-before-update"]
    sentence = report["state-before-update"].sentence
    assert "in steps 1 to 5: it holds a scale of 1,024, while the run went on at 512." in sentence


@pytest.mark.parametrize("place", ["before forward", "before unscale_", "before step"])
def test_a_state_before_the_step_is_whole(place: str) -> None:
    """Model, optimizer and scaler are those of the step before: nothing is wrong with it."""

    def loop(training: Training) -> None:
        for x, y in training.data:
            if place == "before forward":
                copy.deepcopy(states(training))
            training.backward(x, y)
            if place == "before unscale_":
                copy.deepcopy(states(training))
            training.scaler.unscale_(training.optimizer)
            if place == "before step":
                copy.deepcopy(states(training))
            training.step()

    assert said_by(FAMILIES, report_of(Training(5, (3,)), loop)) == []


@pytest.mark.parametrize("after", ["unscale_", "step"])
def test_a_copy_in_mid_iteration_is_told_from_the_order_of_calls(after: str) -> None:
    def loop(training: Training) -> None:
        for x, y in training.data:
            training.backward(x, y)
            getattr(training.scaler, after)(training.optimizer)
            copy.deepcopy(training.scaler)

    report = report_of(Training(3), loop)
    assert report.ids == ("scaler-pickled",)
    assert f"after {after}() and before update()" in report["scaler-pickled"].sentence


def test_a_copy_between_iterations_is_right() -> None:
    def loop(training: Training) -> None:
        for _ in training.steps():
            copy.deepcopy(training.scaler)

    assert said_by(FAMILIES, report_of(Training(3), loop)) == []


# --- loading


def resumed(loaded: tuple[str, ...], **settings: Any) -> Report:
    """Train, save, make everything anew, load these parts, and go on; only the second part is watched."""
    before = Training(8, (3,), **settings)
    train(before)
    kept = copy.deepcopy(states(before))

    def loop(training: Training) -> None:
        for part in loaded:
            getattr(training, part).load_state_dict(kept[part])
        train(training)

    return report_of(Training(8, **settings), loop)


@pytest.mark.parametrize("order", [ALL, ALL[::-1], ("scaler", "model", "optimizer")])
def test_everything_loaded_gets_nothing(order: tuple[str, ...]) -> None:
    assert said_by(FAMILIES, resumed(order)) == []


def test_weights_alone_are_where_fine_tuning_begins() -> None:
    assert said_by(FAMILIES, resumed(("model",))) == []


def test_a_scaler_not_restored_tells_at_which_scale_the_run_goes_on() -> None:
    report = resumed(("model", "optimizer"))
    assert said_by(FAMILIES, report) == ["scaler-not-restored"]
    each = report["scaler-not-restored"]
    assert each.severity is Severity.RISK
    assert (
        "before step 1, but no state of the scaler: the run goes on at a loss scale of 1,024."
        in each.sentence
    )


def test_a_scaler_not_restored_is_worse_where_its_state_is_saved(tmp_path: Path) -> None:
    before = Training()
    train(before)
    kept = copy.deepcopy(states(before))

    def loop(training: Training) -> None:
        training.model.load_state_dict(kept["model"])
        training.optimizer.load_state_dict(kept["optimizer"])
        train(training)
        torch.save(states(training), tmp_path / "all.pt")

    report = report_of(Training(), loop)
    assert said_by(FAMILIES, report) == ["scaler-not-restored"]
    assert report["scaler-not-restored"].severity is Severity.WRONG


def test_a_scaler_made_after_the_load_is_another_one() -> None:
    before = Training()
    train(before)
    kept = copy.deepcopy(states(before))

    def loop(training: Training) -> None:
        for part in ALL:
            getattr(training, part).load_state_dict(kept[part])
        training.scaler = torch.amp.GradScaler("cpu", init_scale=2048.0)
        train(training)

    report = report_of(Training(), loop)
    assert said_by(FAMILIES, report) == ["scaler-not-restored"]
    assert "the scaler's state went into another scaler" in report["scaler-not-restored"].sentence


def test_a_bf16_run_has_no_scaler_to_restore() -> None:
    training = Training(dtype=torch.bfloat16)
    training.scaler = torch.amp.GradScaler("cpu", enabled=False)
    kept = copy.deepcopy(states(training, ("model", "optimizer")))

    def loop(training: Training) -> None:
        for part in kept:
            getattr(training, part).load_state_dict(kept[part])
        train(training)

    assert said_by(FAMILIES, report_of(training, loop)) == []


def test_going_back_in_the_middle_of_a_run_keeps_the_scale() -> None:
    def loop(training: Training) -> None:
        good = None
        for number, taken in enumerate(training.steps()):
            if number == 2:
                good = copy.deepcopy(states(training, ("model", "optimizer")))
            if not taken and good:
                training.model.load_state_dict(good["model"])
                training.optimizer.load_state_dict(good["optimizer"])

    assert said_by(FAMILIES, report_of(Training(8, (5,)), loop)) == []


def test_the_average_tried_in_validation_and_put_back_gets_nothing() -> None:
    def loop(training: Training) -> None:
        average = copy.deepcopy(training.model.state_dict())
        for _ in training.steps():
            own = copy.deepcopy(training.model.state_dict())
            training.model.load_state_dict(average)
            training.model.load_state_dict(own)

    assert said_by(FAMILIES, report_of(Training(4), loop)) == []


@pytest.mark.parametrize("late", ["optimizer", "scaler"])
def test_a_part_that_is_loaded_after_the_first_steps(late: str) -> None:
    before = Training(kind=torch.optim.AdamW)
    train(before)
    kept = copy.deepcopy(states(before))

    def loop(training: Training) -> None:
        for part in ALL:
            if part != late:
                getattr(training, part).load_state_dict(kept[part])
        for number, _ in enumerate(training.steps(), start=1):
            if number == 2:
                getattr(training, late).load_state_dict(kept[late])

    report = report_of(Training(kind=torch.optim.AdamW), loop)
    assert said_by(FAMILIES, report) == ["restored-late"]
    sentence = report["restored-late"].sentence
    assert f"the {late}'s state only in step 2, after 2 steps with a fresh {late}." in sentence


def test_an_empty_state_is_told_though_the_load_raised() -> None:
    def loop(training: Training) -> None:
        training.scaler.load_state_dict({})

    assert report_of(Training(), loop).ids == ("load-empty-scaler",)


def test_a_state_that_a_disabled_scaler_ignores_matters_only_for_fp16() -> None:
    for dtype, expected in ((torch.float16, ["load-ignored"]), (torch.bfloat16, [])):
        training = Training(dtype=dtype)
        kept = training.scaler.state_dict()
        training.scaler = torch.amp.GradScaler("cpu", enabled=False)

        def loop(training: Training, kept: dict[str, Any] = kept) -> None:
            training.scaler.load_state_dict(kept)
            train(training)

        report = report_of(training, loop)
        assert said_by(FAMILIES, report) == expected
        assert "fp16-without-scaler" not in report.ids  # which is what comes of it


@pytest.mark.parametrize(
    ("prefix", "strict"), [("module.", False), ("_orig_mod.", False), ("", True), ("", False)]
)
def test_keys_with_a_prefix_load_nothing(prefix: str, strict: bool) -> None:
    training = Training()
    kept = {prefix + name: each.clone() for name, each in training.model.state_dict().items()}

    def loop(training: Training) -> None:
        training.model.load_state_dict(kept, strict=strict)
        train(training)

    report = report_of(training, loop)
    assert said_by(FAMILIES, report) == (["keys-not-loaded"] if prefix else [])
    if prefix:
        assert "all 4 keys of the model were missing, and 4 others" in report["keys-not-loaded"].sentence


def test_another_head_is_what_fine_tuning_does() -> None:
    training = Training()
    kept = {
        name: each.clone() for name, each in training.model.state_dict().items() if not name.startswith("2.")
    }

    def loop(training: Training) -> None:
        training.model.load_state_dict(kept, strict=False)
        train(training)

    assert said_by(FAMILIES, report_of(training, loop)) == []


def test_weights_in_16_bits_with_their_optimizer() -> None:
    before = Training()
    train(before)
    kept = copy.deepcopy(states(before))
    kept["model"] = {name: each.half() for name, each in kept["model"].items()}

    def loop(training: Training) -> None:
        for part in ALL:
            getattr(training, part).load_state_dict(kept[part])
        train(training)

    assert said_by(FAMILIES, report_of(Training(), loop)) == ["loaded-in-half"]


def test_an_optimizer_left_on_another_device() -> None:
    tape = Tape()
    tape.note(StateLoaded, of="model", index=0)
    tape.note(StateLoaded, of="optimizer", index=0)
    no = Later(bool, False)
    tape.note(Stepped, optimizer=0, scaler=0, state=Gradients.SCALED, skipped=no, ran=True, raised=True)
    message = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
    tape.note(Raised, message=message, explained="", **{"kind": "RuntimeError"})
    (finding,) = found("optimizer-on-other-device", tape.run())
    assert "the model was moved after the load" in finding.sentence
    other = Tape().step()
    other.note(Raised, message=message, explained="", **{"kind": "RuntimeError"})
    assert found("optimizer-on-other-device", other.run()) == []


def test_what_was_never_loaded_cannot_be_on_another_device() -> None:
    tape = Tape()
    tape.note(StateLoaded, of="optimizer", index=0)
    tape.step()
    message = "Expected all tensors to be on the same device"
    tape.note(Raised, message=message, explained="", **{"kind": "RuntimeError"})
    assert found("optimizer-on-other-device", tape.run()) == []  # it had stepped


def test_a_checkpoint_in_16_bits_of_a_16_bit_model_is_what_it_is() -> None:
    tape = Tape(scale=None)
    tape.step()
    half = frozenset({torch.bfloat16})
    tape.note(Saved, has=frozenset({"model", "optimizer"}), model_floats=half)
    assert len(found("checkpoint-in-half", tape.run())) == 1
    facts = tape.models[0]
    tape.models[0] = type(facts)(facts.kind, "cpu", half, frozenset(), 4, 4, 0)
    assert found("checkpoint-in-half", tape.run()) == []


def test_a_state_that_was_only_taken_is_no_checkpoint() -> None:
    tape = Tape().step()
    for part in ("model", "optimizer"):
        tape.note(StateTaken, of=part, index=0)
    assert found("scaler-not-saved", tape.run()) == []


def test_a_watch_in_the_middle_of_a_run_asks_for_nothing_that_came_before(tmp_path: Path) -> None:
    training = Training(8)
    half, rest = training.data[:4], training.data[4:]
    training.data = half
    train(training)
    training.data = rest
    with watch(training.model, training.optimizer, training.scaler) as seen:
        train(training)
        torch.save(states(training), tmp_path / "all.pt")
    assert said_by(FAMILIES, seen.report()) == []
