"""A small model and data, and Trainers of them that print nothing."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from amp_lab.train.trainer import Trainer

INPUTS = torch.randn(23, 6, generator=torch.Generator().manual_seed(5))
TARGETS = torch.randint(0, 3, (23,), generator=torch.Generator().manual_seed(6))
DATA = TensorDataset(INPUTS, TARGETS)


def make_model(dropout=0.0, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def make_loader(batch_size=4, shuffle=False, seed=7):
    """23 samples: the last batch has another size."""
    generator = torch.Generator().manual_seed(seed) if shuffle else None
    return DataLoader(DATA, batch_size, shuffle=shuffle, generator=generator)


def make_trainer(model=None, optimizer=None, loss_fn=None, **settings):
    model = make_model() if model is None else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if optimizer is None else optimizer
    settings = {"precision": "fp32", "device": "cpu", "progress": False, **settings}
    return Trainer(model, nn.CrossEntropyLoss() if loss_fn is None else loss_fn, optimizer, **settings)


def weights(model):
    """Return a copy of all weights and buffers, by name."""
    return {name: each.detach().clone() for name, each in model.state_dict().items()}


def same_bits(one, other):
    """Tell whether two dicts of tensors are equal in every bit. (-0.0 and NaN count by their bits.)"""
    return one.keys() == other.keys() and all(
        each.dtype == other[name].dtype
        and torch.equal(each.reshape(-1).view(torch.uint8), other[name].reshape(-1).view(torch.uint8))
        for name, each in one.items()
    )
