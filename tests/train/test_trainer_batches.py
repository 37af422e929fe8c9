"""Every kind of batch and loader, optimizers and loss functions of every kind."""

import collections
import dataclasses

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, IterableDataset

from amp_lab.train.metrics import accuracy
from amp_lab.train.training.batches import in_fp32, samples_in, to_device
from amp_lab.train.training.history import StepRecord
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

Pair = collections.namedtuple("Pair", "inputs target")


class Stream(IterableDataset):
    """Samples one after the other; nobody knows how many."""

    def __iter__(self):
        return iter(DATA)


class Named(nn.Module):
    """Takes its inputs by name, and returns the loss itself if it is given labels."""

    def __init__(self):
        super().__init__()
        self.net = make_model()

    def forward(self, inputs, labels):
        logits = self.net(inputs)
        return {"logits": logits, "loss": nn.functional.cross_entropy(logits, labels)}


def plain():
    trainer = make_trainer(metrics={"accuracy": accuracy})
    trainer.fit(make_loader(), make_loader(), epochs=2)
    return trainer


LOADERS = {
    "list of batches": list(make_loader()),
    "lists": [list(batch) for batch in make_loader()],
    "named tuples": [Pair(*batch) for batch in make_loader()],
    "stream without a length": DataLoader(Stream(), batch_size=4),
}


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_loaders(loader):
    trainer, expected = make_trainer(metrics={"accuracy": accuracy}), plain()
    history = trainer.fit(loader, loader, epochs=2)
    assert same_bits(weights(trainer.model), weights(expected.model))
    assert history == expected.history


def test_a_generator_for_one_epoch():
    trainer = make_trainer()
    assert len(trainer.fit(batch for batch in make_loader())) == 6


def test_mappings_and_the_models_own_loss():
    model, expected = Named(), plain()
    batches = [{"inputs": x, "labels": y} for x, y in make_loader()]
    seen = []
    trainer = make_trainer(
        model,
        metrics={
            "accuracy": lambda outputs, batch: (
                seen.append(batch.keys()) or accuracy(outputs["logits"], batch["labels"])
            )
        },
        loss_fn=lambda outputs, batch: nn.functional.cross_entropy(outputs["logits"], batch["labels"]),
    )
    history = trainer.fit(batches, batches, epochs=2)
    assert same_bits(weights(model.net), weights(expected.model))
    assert history == expected.history
    assert set(map(tuple, seen)) == {("inputs", "labels")}

    own = Named()
    trainer = make_trainer(own)
    trainer.loss_fn = None
    trainer.fit(batches, batches, epochs=2)
    assert same_bits(weights(own.net), weights(expected.model))


def test_several_inputs():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = make_model()

        def forward(self, one, other):
            return self.net(one + other)

    model = Sum()
    make_trainer(model).fit([(x / 2, x / 2, y) for x, y in make_loader()], epochs=2)
    assert same_bits(weights(model.net), weights(plain().model))


class Scaled(nn.Module):
    """A loss with a weight of its own, and a buffer."""

    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(()))
        self.register_buffer("classes", torch.ones(3))

    def forward(self, outputs, target):
        return nn.functional.cross_entropy(outputs * self.factor, target, self.classes)


def test_a_loss_with_weights_is_trained_saved_and_put_back():
    model, loss_fn = make_model(), Scaled()
    optimizer = torch.optim.SGD([*model.parameters(), *loss_fn.parameters()], lr=0.1)
    loss_fn.eval()
    trainer = make_trainer(model, optimizer, loss_fn)
    trainer.fit(make_loader(), make_loader())
    assert loss_fn.factor != 1
    assert not loss_fn.training
    other = Scaled()
    again = make_trainer(model, torch.optim.SGD([*model.parameters(), *other.parameters()], lr=0.1), other)
    again.load_state_dict(trainer.state_dict())
    assert torch.equal(other.factor, loss_fn.factor)


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (torch.optim.AdamW, {"fused": True}),
        (torch.optim.SGD, {"fused": True, "lr": 0.01}),
        (torch.optim.Adam, {"foreach": False}),
        (torch.optim.Adagrad, {}),
    ],
)
@pytest.mark.parametrize("clip_norm", [None, 1.0])
def test_optimizers_skip_and_step_with_a_scaler(optimizer, settings, clip_norm):
    model = make_model()
    trainer = make_trainer(
        model,
        optimizer(model.parameters(), **settings),
        precision="fp16",
        clip_norm=clip_norm,
        scaler=torch.amp.GradScaler("cpu", init_scale=2.0**24),
    )
    before = weights(model)
    seen = []
    trainer.callback = lambda record: (
        seen.append(same_bits(before, weights(model))) if isinstance(record, StepRecord) else None
    )
    skipped = trainer.fit(make_loader(), epochs=3).skipped
    assert skipped[0]
    assert not skipped[-1]
    first = skipped.index(False)
    assert seen[: first + 1] == [True] * first + [False]


def test_moving():
    device = torch.device("cpu")
    packed = pack_sequence([torch.ones(2), torch.ones(1)])
    batch = {
        "a": [torch.ones(2), "text"],
        "b": (torch.ones(3), None),
        "c": Pair(torch.ones(1), 2),
        "d": packed,
    }
    moved = to_device(batch, torch.device("meta"))
    assert moved["a"][0].device.type == moved["b"][0].device.type == moved["c"].inputs.device.type == "meta"
    assert (moved["a"][1], moved["b"][1], moved["c"].target) == ("text", None, 2)
    assert type(moved["d"]) is type(packed)
    assert to_device(INPUTS, device) is INPUTS


def test_counting_samples():
    assert samples_in((INPUTS, TARGETS)) == 23
    assert samples_in({"n": 3, "x": [torch.tensor(1), TARGETS]}) == 23
    assert samples_in(("no", "tensor")) == 1


def test_outputs_in_fp32():
    half = torch.ones(2, dtype=torch.float16)
    outputs = in_fp32({"a": (half, 3), "b": [half.bfloat16()], "c": Pair(half.double(), TARGETS)})
    assert outputs["a"][0].dtype == outputs["b"][0].dtype == torch.float32
    assert (outputs["c"].inputs.dtype, outputs["c"].target.dtype) == (torch.float64, torch.int64)


def test_accuracy():
    scores = torch.tensor([[2.0, 1.0], [0.0, 5.0], [1.0, 0.0], [0.0, 1.0]])
    assert accuracy(scores, torch.tensor([0, 1, 1, 1])) == 0.75
    assert accuracy(scores.T.unsqueeze(0), torch.tensor([[0, 1, 1, 1]])) == 0.75
    with pytest.raises(ValueError, match=r"not \(4, 2\) and \(4, 1\): write a metric of your own"):
        accuracy(scores, torch.ones(4, 1))


def test_why_fused_sgd_with_momentum_is_refused():
    """PyTorch leaves its momentum as the memory was, if the first step is skipped; NaN here, which it fills in."""
    weight = nn.Parameter(torch.ones(4))
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9, fused=True)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum() * float("inf")).backward()
    torch.use_deterministic_algorithms(True)  # memory that is not initialised is filled with NaN
    try:
        scaler.step(optimizer)
    finally:
        torch.use_deterministic_algorithms(False)
    assert optimizer.state[weight]["momentum_buffer"].isnan().all()


@dataclasses.dataclass(frozen=True)
class Output:
    logits: torch.Tensor
    parts: tuple
    size: int = 3
    note: str = dataclasses.field(default="", init=False)


def test_a_metric_gets_a_dataclass_in_fp32():
    """Models of Hugging Face return such, and a metric asks for `outputs.logits`."""
    half = torch.ones(2, dtype=torch.bfloat16)
    seen = in_fp32(Output(half, (half,)))
    assert isinstance(seen, Output)
    assert seen.logits.dtype == seen.parts[0].dtype == torch.float32
    assert seen.size == 3


def test_a_packed_sequence_has_as_many_samples_as_sequences():
    packed = pack_sequence([torch.ones(5, 2), torch.ones(3, 2), torch.ones(1, 2)])
    assert samples_in((packed, torch.zeros(3))) == 3
