"""Weights and loss scales into models and scalers that are not made quite as they were when they were saved."""

import warnings

import pytest
import torch
from torch import nn

from amp_lab.train.checkpoint import (
    CheckpointError,
    load_checkpoint,
    load_scaler,
    load_weights,
    save_checkpoint,
)


def net(width=3):
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 1))


class Wrapped(nn.Module):
    """Named as DistributedDataParallel names its model, without the processes."""

    def __init__(self, module):
        super().__init__()
        self.module = module


def compiled(model):
    """Compiling begins at the first call, and there is none."""
    return torch.compile(model, backend="eager")


WRAPPERS = {
    "plain": lambda model: model,
    "compiled": compiled,
    "parallel": Wrapped,
    "both": lambda model: compiled(Wrapped(model)),
    "both, the other way": lambda model: Wrapped(compiled(model)),
}


@pytest.mark.parametrize("now", WRAPPERS)
@pytest.mark.parametrize("then", WRAPPERS)
def test_wrappers_do_not_matter(tmp_path, then, now):
    source, model = net(), net()
    path = save_checkpoint(tmp_path / "a.pt", WRAPPERS[then](source).state_dict())
    load_weights(WRAPPERS[now](model), load_checkpoint(path))
    for name, value in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


class Named(nn.Module):
    """A model with a part that is called `module` by right, beside one that would have its name."""

    def __init__(self):
        super().__init__()
        self.module = nn.Linear(1, 1)
        self.weight = nn.Parameter(torch.zeros(2))


def test_a_part_that_is_called_module(tmp_path):
    source, model = Named(), Named()
    load_weights(model, source.state_dict())
    assert torch.equal(model.module.weight, source.module.weight)


def test_a_part_that_is_called_module_and_is_not_here():
    """Without wrappers both names are the same: one of the two weights would be left out without a word."""
    model = nn.ParameterDict({"weight": torch.zeros(2)})
    with pytest.raises(CheckpointError, match=r"it has module\.weight"):
        load_weights(model, {"weight": torch.ones(2), "module.weight": torch.ones(2)})


class Versioned(nn.Linear):
    """Turns weights of version 1 around, as a module does whose meaning has changed."""

    _version = 2

    def _load_from_state_dict(self, state, prefix, metadata, *rest):
        if metadata.get("version", 1) < 2:
            state[f"{prefix}weight"] = -state[f"{prefix}weight"]
        super()._load_from_state_dict(state, prefix, metadata, *rest)


@pytest.mark.parametrize("then", WRAPPERS)
def test_the_version_of_a_module_goes_with_its_weights(tmp_path, then):
    source, model = nn.Sequential(Versioned(1, 1)), nn.Sequential(Versioned(1, 1))
    path = save_checkpoint(tmp_path / "a.pt", WRAPPERS[then](source).state_dict())
    load_weights(model, load_checkpoint(path))
    assert torch.equal(model[0].weight, source[0].weight)


def test_weights_of_another_model():
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    other = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1), nn.Linear(1, 1))
    with pytest.raises(CheckpointError) as caught:
        load_weights(model, other.state_dict())
    message = str(caught.value)
    assert "it lacks 1.weight, 1.bias, 1.running_mean, 1.running_var, 1.num_batches_tracked" in message
    assert "it has 3.weight, 3.bias" in message
    assert "shapes differ (saved, now): 0.weight (4, 2), (3, 2), 0.bias (4,), (3,)" in message
    assert "Build the model as it was when it was saved" in message
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_only_some_of_many_names_are_listed():
    model = nn.Sequential(*[nn.Linear(1, 1) for _ in range(9)])
    with pytest.raises(
        CheckpointError, match=r"it lacks 0\.weight, 0\.bias, 1\.weight, 1\.bias, 2\.weight and 13 more"
    ):
        load_weights(model, {})


# Loss scales


def scaler(enabled=True, scale=2.0**16):
    return torch.amp.GradScaler("cpu", enabled=enabled, init_scale=scale)


def test_a_loss_scale_goes_on():
    new = scaler()
    load_scaler(new, scaler(scale=8.0).state_dict())
    assert new.get_scale() == 8.0
    assert new.state_dict() == scaler(scale=8.0).state_dict()


def test_from_fp32_to_fp16():
    new = scaler()
    with pytest.warns(UserWarning, match="saved without loss scaling.*begins at loss scale 65536"):
        load_scaler(new, scaler(enabled=False).state_dict())
    assert new.get_scale() == 2.0**16


def test_from_fp16_to_fp32():
    new = scaler(enabled=False)
    with pytest.warns(UserWarning, match=r"saved with loss scale 8 \(FP16\).*the saved scale is not used"):
        load_scaler(new, scaler(scale=8.0).state_dict())


def test_from_fp32_to_fp32():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_scaler(scaler(enabled=False), {})
