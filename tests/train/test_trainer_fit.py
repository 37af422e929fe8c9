"""`fit`: history, Ctrl+C, going on, what is put back, evaluation, checkpoints."""

import math
import warnings

import pytest
import torch
from torch import nn

import amp_lab
from amp_lab.train.checkpoint import CheckpointError, Checkpoints
from amp_lab.train.metrics import accuracy
from amp_lab.train.trainer import Trainer
from amp_lab.train.training.errors import OutOfMemory
from amp_lab.train.training.history import EpochRecord, History, StepRecord
from tests.train.small_runs import (
    DATA,
    INPUTS,
    TARGETS,
    make_loader,
    make_model,
    make_trainer,
    same_bits,
    weights,
)


def trained(epochs, *, calls=1, precision="fp32", **settings):
    """Return a Trainer with dropout, shuffling and momentum after `epochs`, done in so many calls of fit."""
    model = make_model(dropout=0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    trainer = make_trainer(model, optimizer, precision=precision, seed=3, **settings)
    loader = make_loader(shuffle=True)
    for call in range(calls):  # as a notebook's cell that is run again with more epochs
        trainer.fit(loader, make_loader(), epochs=epochs * (call + 1) // calls)
    return trainer


def test_six_lines():
    model = make_model()
    trainer = Trainer(model, nn.CrossEntropyLoss(), torch.optim.AdamW(model.parameters(), 0.05))
    history = trainer.fit(make_loader(shuffle=True), make_loader(), epochs=20)
    assert len(history.epochs) == 20
    assert history.epochs[-1].dev_loss < 0.5 * history.epochs[0].dev_loss
    assert history is trainer.history


def test_the_same_seed_the_same_run():
    one, other = trained(2), trained(2)
    assert one.history == other.history
    assert same_bits(weights(one.model), weights(other.model))


def test_history_survives_repeated_calls():
    once, twice = trained(4), trained(4, calls=2)
    assert [each.step for each in twice.history.steps] == list(range(24))
    assert [each.epoch for each in twice.history.epochs] == [0, 1, 2, 3]
    assert once.history == twice.history
    assert same_bits(weights(once.model), weights(twice.model))


def test_a_run_that_is_done_says_so():
    trainer = trained(2)
    with pytest.warns(UserWarning, match=r"nothing to train: 2 epochs are done, and fit\(epochs=2\) counts"):
        assert trainer.fit(make_loader(), epochs=2) is trainer.history


class Interrupted(torch.utils.data.Dataset):
    """Ctrl+C while a batch is read, once."""

    def __init__(self, at):
        self.at, self.reads = at, 0

    def __len__(self):
        return len(DATA)

    def __getitem__(self, index):
        self.reads += 1
        if self.reads == self.at:
            raise KeyboardInterrupt
        return DATA[index]


@pytest.mark.parametrize("accumulate", [1, 4])
def test_ctrl_c_and_on_without_a_checkpoint(accumulate):
    """In the second epoch, on the way to its third batch."""
    calls = {"left": 9}

    def loss_fn(outputs, target):
        calls["left"] -= 1
        if calls["left"] == 0:
            raise KeyboardInterrupt
        return nn.functional.cross_entropy(outputs, target)

    settings = {"accumulate": accumulate, "precision": "fp16", "clip_norm": 1.0, "seed": 1}
    trainer, undisturbed = make_trainer(loss_fn=loss_fn, **settings), make_trainer(**settings)
    loader = make_loader(shuffle=True)
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.fit(loader, epochs=3)
    done = trainer.step
    assert f"{done} steps are done, and trainer.history has them. Call fit again" in caught.value.__notes__[0]
    assert len(trainer.history) == done > 0
    trainer.fit(loader, epochs=3)
    undisturbed.fit(make_loader(shuffle=True), epochs=3)
    assert trainer.history == undisturbed.history
    assert same_bits(weights(trainer.model), weights(undisturbed.model))


def test_ctrl_c_between_unscaling_and_the_step_leaves_a_scaler_that_works():
    trainer = make_trainer(precision="fp16", clip_norm=1.0)
    step, trainer.optimizer.step = trainer.optimizer.step, None

    def interrupted(*_, **__):
        trainer.optimizer.step = step
        raise KeyboardInterrupt

    trainer.optimizer.step = interrupted
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(make_loader())
    trainer.fit(make_loader())
    undisturbed = make_trainer(precision="fp16", clip_norm=1.0)
    undisturbed.fit(make_loader())
    assert trainer.history == undisturbed.history


def test_ctrl_c_with_checkpoints(tmp_path):
    trainer = make_trainer(checkpoints=Checkpoints(tmp_path, every=2), seed=0)
    loader = torch.utils.data.DataLoader(Interrupted(at=23 + 13), batch_size=4)
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.fit(loader, epochs=2)
    assert trainer.step == 9
    assert (
        "step-0000000008.pt was saved last: go on from there with fit(..., resume=True)"
        in caught.value.__notes__[0]
    )

    again = make_trainer(make_model(seed=9), checkpoints=Checkpoints(tmp_path, every=2))
    again.fit(make_loader(), epochs=2, resume=True)
    undisturbed = make_trainer(seed=0)
    undisturbed.fit(make_loader(), epochs=2)
    assert again.history == undisturbed.history
    assert same_bits(weights(again.model), weights(undisturbed.model))


@pytest.mark.parametrize("every", [None, 1, 2])
@pytest.mark.parametrize("accumulate", [1, 4])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_resume_is_exact(tmp_path, precision, accumulate, every):
    """Stopped in the second epoch; with dropout, shuffling, skipped steps, and a scheduler that counts steps."""

    def make(**settings):
        model = make_model(dropout=0.5)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        scaler = (
            torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=4)
            if precision == "fp16"
            else None
        )
        settings = {"precision": precision, "accumulate": accumulate, "scaler": scaler, **settings}
        return make_trainer(model, optimizer, scheduler=scheduler, seed=3, **settings)

    undisturbed = make()
    undisturbed.fit(make_loader(shuffle=True), make_loader(), epochs=3)
    stop_at = 3 if accumulate == 4 else 8
    first = make(
        checkpoints=Checkpoints(tmp_path, every=every),
        callback=lambda record: first.stop() if first.step == stop_at else None,
    )
    first.fit(make_loader(shuffle=True), make_loader(), epochs=3)
    assert (first.stopped, first.step) == ("trainer.stop() was called", stop_at)

    torch.manual_seed(99)
    second = make(checkpoints=Checkpoints(tmp_path, every=every))
    second.fit(make_loader(shuffle=True, seed=1), make_loader(), epochs=3, resume=True)
    assert second.history == undisturbed.history
    assert same_bits(weights(second.model), weights(undisturbed.model))
    assert second.scaler.state_dict() == undisturbed.scaler.state_dict()
    assert second.scheduler.state_dict() == undisturbed.scheduler.state_dict()


def test_resume_in_an_empty_folder_begins(tmp_path):
    """So that the same script starts a run and goes on with it."""
    trainer = make_trainer(checkpoints=Checkpoints(tmp_path / "new"))
    assert len(trainer.fit(make_loader(), resume=True)) == 6


def test_another_runs_folder_is_refused(tmp_path):
    make_trainer(checkpoints=Checkpoints(tmp_path)).fit(make_loader())
    with pytest.raises(CheckpointError, match="another run has saved its checkpoints in this folder"):
        make_trainer(checkpoints=Checkpoints(tmp_path)).fit(make_loader())


def test_save_and_load(tmp_path):
    trainer, other = make_trainer(), make_trainer(make_model(seed=4))
    trainer.fit(make_loader())
    trainer.save(tmp_path / "run.pt")
    other.load(tmp_path / "run.pt")
    assert same_bits(weights(trainer.model), weights(other.model))
    assert (other.history, other.step, other.epoch) == (trainer.history, 6, 1)
    third = make_trainer(make_model(seed=5))
    third.fit(make_loader(), epochs=2, resume=tmp_path / "run.pt")
    trainer.fit(make_loader(), epochs=2)
    assert same_bits(weights(trainer.model), weights(third.model))


def switches():
    backends = torch.backends
    return (
        backends.cuda.matmul.fp32_precision,
        backends.cudnn.conv.fp32_precision,
        backends.cudnn.rnn.fp32_precision,
        backends.mkldnn.matmul.fp32_precision,
        backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
    )


@pytest.fixture
def switches_kept():
    yield
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cuda.matmul.fp32_precision = "none"
    torch.backends.cudnn.conv.fp32_precision = torch.backends.cudnn.rnn.fp32_precision = "tf32"
    torch.backends.mkldnn.matmul.fp32_precision = "none"


@pytest.mark.usefixtures("switches_kept")
@pytest.mark.parametrize("matmul", ["highest", "high", "medium"])
@pytest.mark.parametrize("fails", [False, True])
def test_fp32_is_fp32_meanwhile_and_all_is_put_back(matmul, fails):
    torch.set_float32_matmul_precision(matmul)
    before, seen = switches(), []

    def callback(record):
        seen.append(switches())
        if fails:
            raise ZeroDivisionError

    trainer = make_trainer(callback=callback)
    with torch.no_grad():
        if fails:
            with pytest.raises(ZeroDivisionError):
                trainer.fit(make_loader())
        else:
            trainer.fit(make_loader())
        assert not torch.is_grad_enabled()
    # The old names and the new ones say the same: none of them raises when it is read.
    assert seen[0] == ("ieee", "ieee", "ieee", "ieee", False, "highest")
    assert switches() == before


@pytest.mark.usefixtures("switches_kept")
def test_tf32_on_both_names():
    from amp_lab.train.training.precision import fp32_products

    before = switches()
    with fp32_products("tf32"):
        assert switches() == ("tf32", "tf32", "tf32", before[3], True, "high")
        assert torch.backends.cuda.matmul.allow_tf32
    assert switches() == before


@pytest.mark.usefixtures("switches_kept")
def test_switches_of_the_new_names_alone_do_not_raise():
    """After `fp32_precision` alone, PyTorch refuses to say `allow_tf32`: that must not stop a run."""
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    make_trainer().fit(make_loader())
    assert torch.backends.cuda.matmul.fp32_precision == "tf32"


def modes(model):
    return [part.training for part in model.modules()]


def test_modes_are_put_back():
    seen = []
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3))
    model.register_forward_hook(lambda *_: seen.append(tuple(modes(model))))
    model[1].eval()  # frozen, as one does for a small batch
    before = modes(model)
    make_trainer(model).fit(make_loader(), make_loader(batch_size=23))
    assert modes(model) == before
    assert set(seen[:-1]) == {(True, True, False, True, True)}
    assert set(seen[-1]) == {False}

    seen.clear()
    model.eval()  # as from_pretrained gives it: then it is trained as a whole
    make_trainer(model).fit(make_loader())
    assert set(seen[-1]) == {True}
    assert set(modes(model)) == {False}


def test_evaluate():
    model = make_model()
    trainer = make_trainer(model, metrics={"accuracy": accuracy, "one": lambda outputs, target: 1.0})
    batches = list(make_loader())
    random_state, before = torch.get_rng_state(), weights(model)
    values = trainer.evaluate(batches)
    outputs = model(INPUTS)
    assert values == {
        "loss": pytest.approx(nn.functional.cross_entropy(outputs, TARGETS).item(), rel=1e-6),
        "accuracy": pytest.approx((outputs.argmax(1) == TARGETS).double().mean().item(), rel=1e-6),
        "one": 1.0,
    }
    assert torch.equal(random_state, torch.get_rng_state())
    assert same_bits(before, weights(model))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_metrics_see_fp32(precision):
    seen = []
    trainer = make_trainer(precision=precision, metrics={"m": lambda o, t: seen.append(o.dtype) or 0})
    trainer.model.register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    trainer.evaluate([(INPUTS, TARGETS)])
    assert seen == [{"fp16": torch.float16, "bf16": torch.bfloat16}[precision], torch.float32]


def test_a_dev_loss_that_is_infinite_is_nan_and_no_crash():
    trainer = make_trainer(loss_fn=lambda o, t: o.mean() * 0 + (math.inf if len(t) == 4 else -math.inf))
    assert math.isnan(trainer.evaluate(make_loader())["loss"])


def test_callback_sees_each_record():
    seen = []
    trainer = make_trainer(callback=seen.append)
    trainer.fit(make_loader(), epochs=2)
    assert [type(each) for each in seen] == ([StepRecord] * 6 + [EpochRecord]) * 2
    assert [each for each in seen if isinstance(each, StepRecord)] == trainer.history.steps


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried"
        ),
    ],
)
def test_out_of_memory_says_what_to_try(error):
    def loss_fn(outputs, target):
        raise error

    trainer = make_trainer(loss_fn=loss_fn, accumulate=2)
    with pytest.raises(OutOfMemory, match="half the batch size and accumulate=4") as caught:
        trainer.fit(make_loader())
    assert isinstance(caught.value, torch.OutOfMemoryError)
    assert str(error).splitlines()[0] in str(caught.value)


def test_progress_is_drawn_seldom_and_ends_right(capsys):
    trainer = make_trainer(progress=True)
    trainer.fit([(INPUTS[:1], TARGETS[:1])] * 200, [(INPUTS, TARGETS)], epochs=1)
    drawn = capsys.readouterr().err
    assert "epoch 1/1: 100%" in drawn
    assert "dev loss" in drawn
    assert drawn.count("\r") < 60


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_watch_finds_nothing_wrong(precision):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24) if precision == "fp16" else None
    model = make_model(dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters())
    trainer = make_trainer(
        model,
        optimizer,
        precision=precision,
        scaler=scaler,
        accumulate=2,
        clip_norm=1.0,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=24),
        scheduler_every="step",
    )
    with amp_lab.watch(trainer.model, trainer.optimizer, trainer.scaler) as seen:
        trainer.fit(make_loader(shuffle=True), make_loader(), epochs=8)
    assert seen.report().ids == ()
    assert "Nothing wrong was found" in str(seen.report())


def test_history_equality_and_state():
    trainer = trained(2, clip_norm=1.0)
    again = History()
    again.load_state_dict(trainer.history.state_dict())
    assert again == trainer.history
    again.epochs[0] = again.epochs[0]._replace(seconds=99.0)
    assert again == trainer.history
    again.steps[3] = again.steps[3]._replace(loss=math.nan)
    assert again != trainer.history
    other = History()
    other.load_state_dict(again.state_dict())
    assert other == again  # NaN and all
    assert again != "history"
    with pytest.raises(ValueError, match="not the state of a Trainer's history"):
        other.load_state_dict({"steps": {}})
    assert repr(History()) == "History: no step yet"
    assert repr(trainer.history).startswith("History: 12 steps; after 2 epochs: training loss ")


def test_no_warning_of_pytorch_with_a_scheduler_and_a_first_step_that_is_skipped():
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    trainer = make_trainer(
        model,
        optimizer,
        scheduler=scheduler,
        precision="fp16",
        scaler=torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-24),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        history = trainer.fit(make_loader())
    assert history.skipped == [True] + [False] * 5
    assert history.lrs == [0.1, 0.1, 0.05, 0.025, 0.0125, 0.00625]
