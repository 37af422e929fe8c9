"""What the page of lesson 09 says beyond what its cells show."""

import inspect
import math
import statistics
from types import SimpleNamespace

import pytest
import torch
from matplotlib import pyplot as plt
from torch import nn
from torch.nn import functional as F

from amp_lab.autocast.emulate import tensor_cores
from amp_lab.course.lessons.l09.comparing import draw_runs, table
from amp_lab.course.lessons.l09.machines import MACHINES
from amp_lab.course.lessons.l09.reviewed import TRAINER
from amp_lab.train.data import digits
from amp_lab.train.models import digit_classifier
from amp_lab.train.trainer import Trainer
from amp_lab.train.training import loop
from amp_lab.train.training.history import EpochRecord, History, StepRecord

BAD = 3  # the batch with a NaN, of these
BATCHES = 8


@pytest.fixture(autouse=True)
def as_on_the_page():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with tensor_cores():
        yield
    torch.set_num_threads(threads)


def batches(bad=None):
    images, labels = digits(64 * BATCHES)
    images = images.clone()
    if bad is not None:
        images[64 * bad, 20] = math.nan
    return list(zip(images.split(64), labels.split(64), strict=True))


def their_trainer(*changes, criterion=F.cross_entropy):
    """The class under review without the two lines that end it at once; and the numbers of the steps it makes."""
    code = TRAINER
    for old, new in (
        ("train_sampler.set_epoch(epoch)", "pass"),
        ("torch.distributed.barrier()", "pass"),
        *changes,
    ):
        assert old in code
        code = code.replace(old, new)
    names = {"torch": torch}
    exec(code, names)
    model, made, seen = digit_classifier(), [], []

    def counted(output, target):
        seen.append(1)
        return criterion(output, target)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    optimizer.register_step_post_hook(lambda *_: made.append(len(seen) - 1))
    args = SimpleNamespace(device="cpu", use_amp=True, epochs=1)
    return names["Trainer"](args, model, counted, optimizer), made


ZEROED = ("self.model.train()", "self.model.train(); self.optimizer.zero_grad()")


def test_the_class_makes_no_step_after_its_first_overflow():
    """An overflow in the fourth batch: its loss is 2^20 times as large as the others."""
    calls = []

    def criterion(output, target):
        calls.append(1)
        return F.cross_entropy(output, target) * (2.0**20 if len(calls) == BAD + 1 else 1.0)

    trainer, made = their_trainer(criterion=criterion)
    trainer.train(batches())
    assert made == list(range(BAD))
    calls.clear()
    trainer, made = their_trainer(ZEROED, criterion=criterion)
    trainer.train(batches())
    assert made[: BAD + 1] == [*range(BAD), BAD + 1]


def test_the_class_makes_no_step_after_a_nan_and_says_nothing(capsys):
    trainer, made = their_trainer()
    trainer.train(batches(BAD))
    assert made == list(range(BAD))
    assert capsys.readouterr() == ("", "")


def test_the_class_never_looks_at_its_dev_loader_and_returns_nothing():
    class Unread:
        def __iter__(self):
            raise AssertionError("the dev loader was read")

    trainer, _ = their_trainer()
    assert trainer.train(batches(), dev_loader=Unread()) is None
    assert TRAINER.count("dev_loader") == 1  # in the signature


def amp_labs_trainer(**settings):
    model = digit_classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    settings = {"precision": "fp16", "device": "cpu", "progress": False, **settings}
    return Trainer(model, F.cross_entropy, optimizer, **settings)


def test_a_loss_that_is_not_finite_is_counted_or_ends_the_run_in_peace():
    skips = amp_labs_trainer(on_nonfinite="skip")
    history = skips.fit(batches(BAD))
    assert [bool(each) for each in history.skipped] == [number == BAD for number in range(BATCHES)]
    stops = amp_labs_trainer(on_nonfinite="stop")
    stops.fit(batches(BAD))
    assert stops.stopped
    weights = [each.model.state_dict()["last.weight"] for each in (skips, stops)]
    assert all(each.isfinite().all() for each in weights)
    assert not torch.equal(*weights)  # one went on


def test_a_disabled_scaler_lets_an_infinite_gradient_into_the_weights():
    weight = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.tensor([1.0, math.inf])
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    assert weight.tolist() == pytest.approx([0.9, -math.inf])


def test_a_scaler_without_a_state_and_a_state_without_a_scaler_are_told_of(tmp_path):
    amp_labs_trainer(precision="fp32").save(tmp_path / "fp32")
    amp_labs_trainer(precision="fp16").save(tmp_path / "fp16")
    with pytest.warns(UserWarning, match="scale"):
        amp_labs_trainer(precision="fp16").load(tmp_path / "fp32")
    with pytest.warns(UserWarning, match="scale"):
        amp_labs_trainer(precision="fp32").load(tmp_path / "fp16")


def test_all_nvidia_gpus_say_that_bf16_is_supported_and_three_on_the_page_emulate_it():
    kinds = {machine.name: machine.bf16 for machine in MACHINES if machine.says_bf16}
    assert (kinds["T4"], kinds["V100"], kinds["A100"]) == ("emulated", "emulated", "tensor cores")


def test_numbers_on_the_page():
    assert 300 * 64 == 19_200
    assert 19_200 * 4 > 65_504
    assert round(118 / 3) == 39  # what each of the last three images counts
    assert len(range(0, 1440, 64)) == 23
    assert math.log(96) == pytest.approx(4.6, abs=0.05)


def histories(*ends):
    """Runs of two steps and two epochs, by the dev loss at their end."""
    found = []
    for end in ends:
        history = History()
        history.steps = [StepRecord(0, step, end + step, 0.1, 1.0, None, "", 8) for step in range(2)]
        history.epochs = [EpochRecord(at, 1.0, end + 1 - at, {"accuracy": 0.5}, 1.0) for at in range(2)]
        found.append(history)
    return found


FOUND = {"fp32": histories(1.0, 2.0, 3.0), "bf16": histories(1.5, 2.0, 2.75)}


def test_the_table_has_mean_spread_and_the_distance_of_each_seed():
    _, fp32, bf16 = table(FOUND).splitlines()
    assert fp32.split() == ["FP32", "2.0000", "1.0000", "0.500"]
    spread = statistics.stdev((1.5, 2.0, 2.75))
    assert bf16.split() == ["BF16", "2.0833", f"{spread:.4f}", "0.500", "+0.5000,", "+0.0000,", "-0.2500"]


@pytest.mark.parametrize(("by", "ends"), [("epoch", [2.0, 2.0833]), ("step", [3.0, 3.0833])])
def test_the_figure_has_a_mean_for_each_precision_and_a_line_for_each_seed(by, ends):
    left, right = draw_runs(FOUND, by=by, loss="a loss").axes
    assert [float(line.get_ydata()[-1]) for line in left.get_lines()] == pytest.approx(ends, abs=1e-4)
    assert [list(line.get_xdata()) for line in left.get_lines()] == [[1, 2]] * 2
    assert left.get_ylabel() == "a loss"
    lines = [[float(each) for each in line.get_ydata()] for line in right.get_lines()]
    assert lines == [[1.0, 1.5], [2.0, 2.0], [3.0, 2.75]]
    plt.close("all")


def test_epochs_are_counted_in_all_so_six_after_four_are_two_more():
    trainer = amp_labs_trainer()
    trainer.fit(batches(), epochs=4)
    assert len(trainer.fit(batches(), epochs=6).steps) == 6 * BATCHES


def test_the_code_that_the_page_prints_fits_into_a_notebooks_line():
    for function in (loop.train_step, loop.backward, loop.clip):
        assert max(map(len, inspect.getsource(function).splitlines())) <= 104
