"""What a Trainer refuses, each with the sentence that says what to do."""

import math
import re

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, OneCycleLR, ReduceLROnPlateau, StepLR
from torch.utils.data import DataLoader, TensorDataset

from amp_lab.scaling import DynamicLossScaler
from amp_lab.train.checkpoint import CheckpointError, Checkpoints
from amp_lab.train.trainer import Trainer

DATA = TensorDataset(torch.ones(8, 4), torch.zeros(8, 2))
LOADER = DataLoader(DATA, batch_size=4)


def trained(model=None, loss_fn=nn.functional.mse_loss, optimizer=None, **settings):
    model = nn.Linear(4, 2) if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    settings = {"precision": "fp32", "progress": False, "device": "cpu", **settings}
    return Trainer(model, loss_fn, optimizer, **settings)


def made_in_inference_mode():
    with torch.inference_mode():
        model = nn.Linear(4, 2)
    return trained(model)


def with_scheduler(make, **settings):
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return trained(model, optimizer=optimizer, scheduler=make(optimizer), **settings)


def another_optimizer():
    return trained(optimizer=torch.optim.SGD(nn.Linear(4, 2).parameters(), lr=0.1))


def lbfgs():
    model = nn.Linear(4, 2)
    return trained(model, optimizer=torch.optim.LBFGS(model.parameters()))


def fused_sgd():
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    return trained(model, optimizer=optimizer, precision="fp16")


def frozen():
    model = nn.Linear(4, 2).requires_grad_(False)
    return trained(model)


def other_scheduler():
    return trained(scheduler=StepLR(torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1), 5))


def lazy():
    return trained(nn.LazyLinear(2))


# Name: what is done, and a part of what is said.
WHEN_MADE = {
    "class of a model": (
        lambda: Trainer(nn.Linear, None, None),
        TypeError,
        "is the class Linear itself: give a model made of it",
    ),
    "function for a model": (
        lambda: trained(len, optimizer=1),
        TypeError,
        "model is an nn.Module, not a builtin",
    ),
    "class of a loss": (lambda: trained(loss_fn=nn.MSELoss), TypeError, "make one, MSELoss()"),
    "arguments swapped": (
        lambda: trained(loss_fn=torch.optim.SGD(nn.Linear(4, 2).parameters())),
        TypeError,
        "the order is Trainer(model, loss_fn, optimizer)",
    ),
    "text for a loss": (lambda: trained(loss_fn="mse"), TypeError, "returns the loss, not a str"),
    "class of an optimizer": (
        lambda: trained(optimizer=torch.optim.Adam),
        TypeError,
        "make one, torch.optim.Adam(model.parameters(), lr=...)",
    ),
    "no optimizer": (lambda: trained(optimizer="adam"), TypeError, "one of torch.optim, not a str"),
    "optimizer with a closure": (lbfgs, TypeError, "LBFGS runs the model again within a step"),
    "fused SGD with a loss scale": (
        fused_sgd,
        ValueError,
        "random memory as its momentum if the first step is skipped",
    ),
    "optimizer of another model": (
        another_optimizer,
        ValueError,
        "2 of the 2 tensors that the optimizer holds",
    ),
    "nothing trained": (frozen, ValueError, "all have requires_grad=False"),
    "lazy layers": (lazy, ValueError, "run one batch through it before"),
    "FP16 weights": (lambda: trained(nn.Linear(4, 2).half()), ValueError, "model.float()"),
    "BF16 weights": (
        lambda: trained(nn.Linear(4, 2).bfloat16()),
        ValueError,
        "the weight 'weight' is torch.bfloat16: small updates",
    ),
    "precision unknown": (
        lambda: trained(precision="fp8"),
        ValueError,
        "precision='fp8': it is one of 'fp32'",
    ),
    "precision lacking": (lambda: trained(precision="tf32"), ValueError, "TF32 is for NVIDIA GPUs from"),
    "device unknown": (
        lambda: trained(device="gpu"),
        ValueError,
        "'gpu' is not the name of a device. Here there is",
    ),
    "model without a device": (
        lambda: trained(nn.Linear(4, 2, device="meta"), device=None),
        ValueError,
        "the model lies on the meta device, without values: model.to_empty(device=...)",
    ),
    "model on meta, and a device": (
        lambda: trained(nn.Linear(4, 2, device="meta")),
        ValueError,
        "the model lies on the meta device, without values",
    ),
    "model made in inference mode": (
        made_in_inference_mode,
        ValueError,
        "the weight 'weight' was made in torch.inf",
    ),
    "clipping of sparse gradients": (
        lambda: trained(nn.Sequential(nn.Embedding(3, 2, sparse=True)), clip_norm=1.0),
        ValueError,
        "the module '0' has sparse=True, and PyTorch computes no norm of sparse gradients",
    ),
    "accumulate 0": (
        lambda: trained(accumulate=0),
        ValueError,
        "accumulate=0: how many micro-batches make a step",
    ),
    "accumulate 1.5": (lambda: trained(accumulate=1.5), ValueError, "a whole number from 1 on"),
    "clip_norm 0": (lambda: trained(clip_norm=0), ValueError, "clip_norm=0: a number above 0, or None"),
    "clip_norm nan": (lambda: trained(clip_norm=math.nan), ValueError, "clip_norm=nan"),
    "seed": (lambda: trained(seed="0"), ValueError, "Trainer(seed='0'): a seed is a whole number"),
    "metrics in a list": (
        lambda: trained(metrics=[len]),
        TypeError,
        "metrics is a dict from names to functions",
    ),
    "metric no function": (
        lambda: trained(metrics={"a": 1}),
        TypeError,
        "metrics['a'] is an int: a metric is",
    ),
    "metric called loss": (
        lambda: trained(metrics={"loss": len}),
        ValueError,
        "a metric cannot be called 'loss'",
    ),
    "policy unknown": (
        lambda: trained(on_nonfinite="ignore"),
        ValueError,
        "on_nonfinite='ignore': it is one of 'raise', 'skip', 'stop'",
    ),
    "checkpoints of another kind": (
        lambda: trained(checkpoints=3),
        TypeError,
        "checkpoints is a folder, or a Checkpoints(folder)",
    ),
    "callback": (
        lambda: trained(callback=3),
        TypeError,
        "callback is a function that takes a record, not an int",
    ),
    "scheduler's class": (lambda: trained(scheduler=StepLR), TypeError, "made with the optimizer"),
    "scheduler of another optimizer": (other_scheduler, ValueError, "the learning rate of another optimizer"),
    "scheduler_every unknown": (
        lambda: with_scheduler(lambda o: StepLR(o, 5), scheduler_every="batch"),
        ValueError,
        "scheduler_every='batch': it is 'step'",
    ),
    "scheduler_every alone": (lambda: trained(scheduler_every="step"), ValueError, "without a scheduler"),
    "plateau by steps": (
        lambda: with_scheduler(ReduceLROnPlateau, scheduler_every="step"),
        ValueError,
        "once an epoch: scheduler_every='epoch'",
    ),
    "our scaler": (
        lambda: trained(precision="fp16", scaler=DynamicLossScaler()),
        TypeError,
        "a torch.amp.GradScaler, not a DynamicLossScaler",
    ),
    "scaler without need": (
        lambda: trained(precision="bf16", scaler=torch.amp.GradScaler("cpu")),
        ValueError,
        'precision="bf16" needs no loss scale',
    ),
    "disabled scaler": (
        lambda: trained(precision="fp16", scaler=torch.amp.GradScaler("cpu", enabled=False)),
        ValueError,
        "small gradients would become 0",
    ),
}


@pytest.mark.parametrize(("make", "kind", "said"), WHEN_MADE.values(), ids=WHEN_MADE)
def test_when_made(make, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        make()


def test_weights_that_are_not_trained_may_be_in_16_bits():
    trained(nn.Sequential(nn.Linear(4, 4).half().requires_grad_(False), nn.Linear(4, 2)))


def half_graph(outputs, target):
    return nn.functional.mse_loss(outputs.detach(), target)


def per_sample(outputs, target):
    return nn.functional.mse_loss(outputs, target, reduction="none")


def fit(loader=LOADER, dev=None, *, epochs=1, resume=False, **settings):
    return trained(**settings).fit(loader, dev, epochs=epochs, resume=resume)


def inside(region, **settings):
    trainer = trained(**settings)
    with region:
        trainer.fit(LOADER)


class HalfUsed(nn.Module):
    """The first layer has no part in the result."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 2), nn.Linear(4, 2)

    def forward(self, inputs):
        return self.second(inputs)


def of_the_first_layer(precision):
    model = HalfUsed()
    fit(model=model, optimizer=torch.optim.SGD(model.first.parameters(), lr=0.1), precision=precision)


class OwnLoss(nn.Linear):
    def forward(self, *inputs):
        return {"logits": super().forward(inputs[0])}


WHEN_FITTED = {
    "loader of no batches": (lambda: fit([]), ValueError, "train_loader is empty"),
    "loader that drops all": (
        lambda: fit(DataLoader(DATA, batch_size=16, drop_last=True)),
        ValueError,
        "less than one batch with drop_last=True",
    ),
    "generator that is empty": (lambda: fit(iter(())), ValueError, "train_loader gave no batch"),
    "generator for epochs": (
        lambda: fit(iter(LOADER), epochs=2),
        TypeError,
        "can be read once, and there are 2 epochs",
    ),
    "dev generator for epochs": (lambda: fit(dev=iter(()), epochs=2), TypeError, "dev_loader is "),
    "empty dev set": (lambda: fit(dev=iter(())), ValueError, "dev_loader gave no sample"),
    "data set": (lambda: fit(DATA), TypeError, "wrap it, DataLoader(train_loader, batch_size=32)"),
    "tensor": (lambda: fit(torch.ones(8, 4)), TypeError, "train_loader gives batches when iterated"),
    "number": (lambda: fit(3), TypeError, "it is an int"),
    "batches without target": (
        lambda: fit([torch.ones(4, 4)]),
        TypeError,
        "a batch is one tensor, without a target",
    ),
    "batches of one": (
        lambda: fit([(torch.ones(4, 4),)]),
        ValueError,
        "a batch has 1 parts; it needs the inputs and",
    ),
    "batch of no samples": (
        lambda: fit([(torch.ones(0, 4), torch.ones(0, 2))]),
        ValueError,
        "a batch has no samples: its first tensor is of shape (0, 4)",
    ),
    "batches of text": (lambda: fit(["ab"]), TypeError, "a batch is a str; the loader must give tuples"),
    "epochs 0": (lambda: fit(epochs=0), ValueError, "epochs=0: how many epochs in all"),
    "epochs 2.5": (lambda: fit(epochs=2.5), ValueError, "epochs=2.5: how many epochs in all"),
    "resume from nowhere": (
        lambda: fit(resume=True),
        ValueError,
        "resume=True needs a folder to resume from",
    ),
    "loss of many numbers": (
        lambda: fit(loss_fn=per_sample),
        ValueError,
        "of shape (4, 2); the loss must be one number",
    ),
    "loss a float": (lambda: fit(loss_fn=lambda o, t: 1.0), TypeError, "loss_fn returned a float"),
    "loss None": (lambda: fit(loss_fn=lambda o, t: None), TypeError, "loss_fn returned None"),
    "loss a whole number": (
        lambda: fit(loss_fn=lambda o, t: torch.tensor(1)),
        TypeError,
        "the loss is torch.int64",
    ),
    "loss without a graph": (lambda: fit(loss_fn=half_graph), ValueError, "is there a .detach()"),
    "model without a loss": (
        lambda: fit(model=OwnLoss(4, 2), loss_fn=None),
        TypeError,
        "as .loss or ['loss']",
    ),
    "metric of many numbers": (
        lambda: fit(dev=LOADER, metrics={"each": lambda o, t: o}),
        ValueError,
        "the metric 'each' returned a tensor of shape (4, 2)",
    ),
    "inference mode": (lambda: inside(torch.inference_mode()), RuntimeError, "in torch.inference_mode()"),
    "autocast region": (
        lambda: inside(torch.autocast("cpu", torch.bfloat16)),
        RuntimeError,
        "in an autocast region, which keeps cast weights",
    ),
    "no gradient": (
        lambda: of_the_first_layer("fp32"),
        ValueError,
        "no parameter of the optimizer got a gradient",
    ),
    "no gradient, scaled": (
        lambda: of_the_first_layer("fp16"),
        ValueError,
        "no parameter of the optimizer got a grad",
    ),
    "resume of a number": (
        lambda: fit(resume=1),
        TypeError,
        "resume is True, False or the path of a checkpoint",
    ),
    "resume of nothing": (lambda: fit(resume=None), TypeError, "or the path of a checkpoint, not None"),
    "a metric without a result": (
        lambda: fit(dev=LOADER, metrics={"mean": lambda outputs, target: None}),
        TypeError,
        "the metric 'mean' returned a NoneType; it must return one number",
    ),
    "a loss with more": (
        lambda: fit(loss_fn=lambda outputs, target: (outputs.mean(), 3)),
        TypeError,
        "loss_fn returned a tuple; it must return the loss alone",
    ),
    "the best by a dev loss, without a dev set": (
        lambda: fit(checkpoints=Checkpoints("runs", best="loss")),
        CheckpointError,
        "best='min loss': no value of this name is measured, only nothing. Give fit a dev_loader",
    ),
    "epochs or steps": (
        lambda: with_scheduler(lambda o: CosineAnnealingLR(o, T_max=5)).fit(LOADER, epochs=5),
        ValueError,
        'CosineAnnealingLR has T_max=5: are these epochs? Say Trainer(..., scheduler_every="epoch")',
    ),
    "plateau without a dev set": (
        lambda: with_scheduler(ReduceLROnPlateau).fit(LOADER),
        ValueError,
        "looks at the dev loss: give fit a dev_loader",
    ),
    "one cycle too short": (
        lambda: with_scheduler(lambda o: OneCycleLR(o, 0.1, total_steps=3), scheduler_every="step").fit(
            LOADER, epochs=2
        ),
        ValueError,
        "make it with total_steps=4",
    ),
    "window that is a batch": (
        lambda: trained().train_step([torch.ones(4, 4), torch.zeros(4, 2)]),
        TypeError,
        "write train_step([batch])",
    ),
    "window of nothing": (lambda: trained().train_step([]), TypeError, "not a list without any"),
    "state of something else": (
        lambda: trained().load_state_dict({"model": {}}),
        ValueError,
        "it has no 'loss_fn'",
    ),
}


@pytest.mark.parametrize(("call", "kind", "said"), WHEN_FITTED.values(), ids=WHEN_FITTED)
def test_when_fitted(call, kind, said):
    with pytest.raises(kind, match=re.escape(said)):
        call()


def test_nothing_has_moved_when_it_refuses():
    model = nn.Linear(4, 2)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    with pytest.raises(ValueError, match="one number"):
        fit(model=model, loss_fn=per_sample)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())
