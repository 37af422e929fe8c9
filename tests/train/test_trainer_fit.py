"""`fit`: history, Ctrl+C, going on, what is put back, evaluation, checkpoints."""

import copy
import math
import pickle
import random
import time
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import amp_lab
from amp_lab.train.checkpoint import CheckpointError, Checkpoints, load_checkpoint, save_checkpoint
from amp_lab.train.metrics import accuracy
from amp_lab.train.saving import random_states
from amp_lab.train.trainer import EpochRecord, History, OutOfMemory, StepRecord, Trainer
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


def test_the_seed_is_set_for_all_three_generators():
    drawn = []

    def draw(_):
        drawn.append((torch.rand(()).item(), np.random.rand(), random.random()))

    for before in (1, 2):
        torch.manual_seed(before)
        np.random.seed(before)
        random.seed(before)
        make_trainer(seed=3, callback=draw).fit(make_loader())
    assert drawn[:7] == drawn[7:]


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
    assert all(each.grad is None for each in trainer.model.parameters())
    trainer.fit(loader, epochs=3)
    undisturbed.fit(make_loader(shuffle=True), epochs=3)
    assert trainer.history == undisturbed.history
    assert same_bits(weights(trainer.model), weights(undisturbed.model))


def test_stopped_and_on_in_the_same_process():
    settings = {"accumulate": 2, "seed": 1}
    trainer, undisturbed = make_trainer(**settings), make_trainer(**settings)
    trainer.callback = lambda _: trainer.stop() if trainer.step == 2 else None
    loader = make_loader(shuffle=True)
    trainer.fit(loader, epochs=2)
    assert trainer.step == 2
    trainer.fit(loader, epochs=2)
    undisturbed.fit(make_loader(shuffle=True), epochs=2)
    assert trainer.history == undisturbed.history
    assert same_bits(weights(trainer.model), weights(undisturbed.model))


def test_a_request_to_stop_that_comes_before_the_first_step_is_not_lost(tmp_path):
    trainer, saved = make_trainer(checkpoints=tmp_path), make_trainer()
    trainer.stop("SIGTERM has come")
    trainer.fit(make_loader(), epochs=2)
    assert (trainer.stopped, trainer.step) == ("SIGTERM has come", 0)
    trainer.fit(make_loader(), epochs=1)
    assert (trainer.stopped, trainer.epoch) == (None, 1), "it was for one call of fit"
    load = trainer.checkpoints.load
    trainer.checkpoints.load = lambda: trainer.stop() or load()
    trainer.fit(make_loader(), epochs=2, resume=True)
    assert (trainer.stopped, trainer.epoch) == ("trainer.stop() was called", 1)
    trainer.callback = lambda record: trainer.epoch == 2 and trainer.stop()
    trainer.fit(make_loader(), epochs=2)
    assert (trainer.stopped, trainer.epoch) == (None, 2), "all was done"
    with pytest.raises(ValueError, match="epochs=0"):
        saved.stop() or saved.fit(make_loader(), epochs=0)
    saved.fit(make_loader())
    assert saved.step == 0, "a call that was refused is none"


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
    assert first.checkpoints.newest.name == f"step-{stop_at:010d}.pt"

    torch.manual_seed(99)
    second = make(checkpoints=Checkpoints(tmp_path, every=every))
    second.fit(make_loader(shuffle=True, seed=1), make_loader(), epochs=3, resume=True)
    assert second.history == undisturbed.history
    assert same_bits(weights(second.model), weights(undisturbed.model))
    assert second.scaler.state_dict() == undisturbed.scaler.state_dict()
    assert second.scheduler.state_dict() == undisturbed.scheduler.state_dict()


class NoisyDev(torch.utils.data.Dataset):
    """Draws from a generator of its own."""

    def __init__(self):
        self.generator = torch.Generator().manual_seed(2)

    def __len__(self):
        return len(DATA)

    def __getitem__(self, index):
        inputs, target = DATA[index]
        return inputs + torch.randn(6, generator=self.generator), target


def test_resume_puts_back_the_generator_of_the_dev_set(tmp_path):
    def fit(trainer, epochs, **settings):
        return trainer.fit(
            make_loader(), torch.utils.data.DataLoader(NoisyDev(), 8), epochs=epochs, **settings
        )

    undisturbed = fit(make_trainer(), 3)
    fit(make_trainer(checkpoints=Checkpoints(tmp_path)), 2)
    assert fit(make_trainer(checkpoints=Checkpoints(tmp_path)), 3, resume=True) == undisturbed


def test_the_number_of_the_epoch_counts_on_over_calls():
    """A DistributedSampler shuffles by it."""
    seen, sampler = [], torch.utils.data.SequentialSampler(DATA)
    sampler.set_epoch = seen.append
    trainer, loader = make_trainer(), torch.utils.data.DataLoader(DATA, 8, sampler=sampler)
    trainer.fit(loader, epochs=1)
    trainer.fit(loader, epochs=3)
    assert seen == [0, 1, 2]


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
    from amp_lab.train.precision import fp32_products

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


def test_metrics_are_fp32_where_the_loss_is_in_16_bits():
    trainer = make_trainer(
        precision="bf16", loss_fn=lambda o, t: o.mean(), metrics={"third": lambda o, t: 1 / 3}
    )
    assert trainer.evaluate([(INPUTS, TARGETS)])["third"] == pytest.approx(1 / 3, rel=1e-7)


def test_evaluation_makes_no_graph():
    seen = []
    trainer = make_trainer(metrics={"m": lambda o, t: seen.append(o.requires_grad) or 0})
    trainer.evaluate([(INPUTS, TARGETS)])
    assert seen == [False]


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
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
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


def test_a_history_of_any_records_survives_saving(tmp_path):
    """All bits of FP64 numbers; None and NaN are two things; and 100,000 steps are saved in a moment."""
    numbers = [0.1, 5e-324, -0.0, math.nan, math.inf, 2.0**-149, 1 / 3]
    rows = zip(numbers, [None, *numbers[:-1]], ["", "overflow", "loss", "", "", "", ""], strict=True)
    history, again = History(), History()
    history.steps = [StepRecord(2**40, n, x, x, x, norm, said, 3) for n, (x, norm, said) in enumerate(rows)]
    history.epochs = [EpochRecord(0, 0.1, None, {}, 1.0), EpochRecord(1, 0.1, math.nan, {"a": 1 / 3}, 2.0)]
    save_checkpoint(tmp_path / "a.pt", history.state_dict())
    again.load_state_dict(load_checkpoint(tmp_path / "a.pt"))
    assert repr((again.steps, again.epochs)) == repr((history.steps, history.epochs))
    history.steps *= 15_000
    start = time.thread_time()
    save_checkpoint(tmp_path / "b.pt", history.state_dict())
    assert time.thread_time() - start < 1.5  # 0.15 on an idle machine; as lists of numbers it took 6


def test_checkpoints_as_a_folder(tmp_path):
    for folder in (tmp_path / "a", str(tmp_path / "b")):
        trainer = make_trainer(checkpoints=folder)
        trainer.fit(make_loader(), epochs=2)
        assert [path.name for path in trainer.checkpoints.paths] == [
            "step-0000000006.pt",
            "step-0000000012.pt",
        ]


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


@pytest.mark.parametrize(
    "act", [lambda trainer: trainer.fit(make_loader()), lambda trainer: trainer.load("a.pt")]
)
def test_a_fit_in_its_own_callback_is_refused(act, tmp_path, monkeypatch):
    """Two at once would take each other's batches and steps."""
    monkeypatch.chdir(tmp_path)
    make_trainer().save("a.pt")
    trainer = make_trainer(callback=lambda record: act(trainer))
    with pytest.raises(RuntimeError, match=r"this Trainer's fit is running: let it end first"):
        trainer.fit(make_loader())
    trainer.callback = None
    assert len(trainer.fit(make_loader())) == 6


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda trainer: pickle.loads(pickle.dumps(trainer))])
def test_a_copy_that_is_made_in_a_callback_goes_on_the_same_way(copied):
    copies = []
    trainer = make_trainer(make_model(dropout=0.5), precision="fp16")
    trainer.callback = Third(trainer, copied, copies)
    undisturbed = trainer.fit(make_loader(shuffle=True))
    (twin,) = copies
    twin.callback = None
    assert len(twin.history) == 3
    random_states.restore(trainer.callback.random)
    assert twin.fit(make_loader(shuffle=True)) == undisturbed
    assert same_bits(weights(twin.model), weights(trainer.model))


class Third:
    """A callback that copies its Trainer after the third step."""

    def __init__(self, trainer, copied, copies):
        self.trainer, self.copied, self.copies = trainer, copied, copies

    def __call__(self, record):
        if getattr(record, "step", None) == 2:
            self.trainer.callback = None
            self.random = random_states.capture()
            self.copies.append(self.copied(self.trainer))
            self.trainer.callback = self


def test_a_default_device_elsewhere_is_left_alone(tmp_path):
    trainer = make_trainer(precision="fp16", accumulate=2, checkpoints=tmp_path)
    batches = [tuple(map(torch.clone, batch)) for batch in make_loader()]
    with torch.device("meta"):
        trainer.fit(batches, batches)
    other = make_trainer(precision="fp16", accumulate=2)
    assert other.fit(batches, batches) == trainer.history


def adam_w(model):
    return torch.optim.AdamW(model.parameters())


def two_groups(model):
    return torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[3].parameters()}], lr=0.1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (adam_w, "the state of SGD, and this Trainer's optimizer is AdamW"),
        (two_groups, r"parameter groups of \[4\] tensors, and this Trainer's of \[2, 2\]"),
    ],
)
def test_the_state_of_another_optimizer_is_refused_before_anything_is_loaded(make, said):
    """PyTorch would put the settings of SGD into AdamW, which then fails for want of `betas`, a step later."""
    saved = make_trainer()
    saved.fit(make_loader())
    model = make_model()
    trainer = make_trainer(model, make(model))
    before, settings = weights(model), repr(trainer.optimizer)
    with pytest.raises(ValueError, match=rf"{said}(.|\n)*load_weights"):
        trainer.load_state_dict(saved.state_dict())
    assert same_bits(weights(model), before)
    assert repr(trainer.optimizer) == settings
    assert trainer.step == 0
