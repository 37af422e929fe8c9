"""Models, inputs and losses that keep, change or break things: an x-ray leaves all as it was, and can be repeated."""

import copy
import gc
import threading
import weakref

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.testing._internal.two_tensor import TwoTensor

from amp_lab.autocast.xray import xray
from tests.autocast.hostile import (
    BF16,
    FP16,
    FP32,
    Model,
    both_modes,
    healthy,
    look,
    row,
    shown,
    table_or_refusal,
)
from tests.autocast.traces import Traces, leaves_no_trace

pytestmark = pytest.mark.long  # `make quick` leaves it to `make test`


@pytest.fixture(autouse=True)
def _as_before():
    """What a failing test leaves behind must not make the next one fail."""
    yield
    torch.set_default_dtype(FP32)
    torch.set_grad_enabled(True)
    torch.set_anomaly_enabled(False)
    torch.set_autocast_enabled("cpu", False)
    torch.set_autocast_dtype("cpu", BF16)
    torch.set_autocast_cache_enabled(True)


# What a model changes


@both_modes
def test_inputs_changed_in_place(mode):
    found = look(lambda model, x: model.fc(x.mul_(2).relu_()), mode=mode)
    assert healthy(found).ops[0].name == "mul_"


@both_modes
def test_parameters_changed_in_place(mode):
    def forward(model, x):
        with torch.no_grad():
            model.fc.weight.clamp_(-0.01, 0.01)
            model.fc.bias.data.zero_()
        return model.fc(x)

    healthy(look(forward, mode=mode))


@both_modes
def test_parameters_replaced(mode):
    def forward(model, x):
        model.fc.weight = nn.Parameter(torch.ones(8, 8))
        return model.fc(x)

    found = look(forward, mode=mode)
    assert found.error is None
    assert row(found, "linear").outputs[0].dtype == FP16


@both_modes
def test_buffers_changed_and_replaced(mode):
    class Counting(nn.BatchNorm1d):
        def forward(self, x):
            self.running_mean = self.running_mean + 1
            self.running_var.mul_(3)
            return super().forward(x)

    model = nn.Sequential(
        nn.Linear(8, 8), Counting(8), nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    )
    found = healthy(look(model, torch.randn(4, 8), mode=mode))
    assert row(found, "batch_norm").outputs[0].dtype == FP16


@both_modes
def test_outputs_kept_between_calls(mode):
    """Left in the model, a tensor of the x-ray would break the next training step."""

    def forward(model, x):
        h = model.fc(x)
        model.last = h if model.last is None else h + model.last
        return model.last

    model = Model(forward, last=None)
    healthy(look(model, mode=mode))
    assert model.last is None
    x = torch.randn(4, 8)
    assert model(x).equal(model.fc(x))


@both_modes
def test_outputs_kept_in_a_list_or_a_dict(mode):
    def forward(model, x):
        model.kept.append(model.fc(x))
        model.by_name["h"] = model.kept[-1]
        return torch.stack(model.kept).sum()

    model = Model(forward, kept=[], by_name={})
    healthy(look(model, mode=mode))
    assert (model.kept, model.by_name) == ([], {})


@both_modes
def test_plain_attributes_changed(mode):
    def forward(model, x):
        model.steps += 1
        return model.fc(x) / model.steps

    healthy(look(Model(forward, steps=0), mode=mode))


@both_modes
def test_training_and_requires_grad_changed(mode):
    def forward(model, x):
        model.eval()
        model.fc.bias.requires_grad_(False)
        return model.fc(x)

    assert look(forward, mode=mode).error is None


@both_modes
def test_modules_added_in_forward(mode):
    def forward(model, x):
        model.added = nn.Linear(8, 8)
        return model.added(model.fc(x))

    found = look(forward, mode=mode)
    assert found.error is None
    assert [name for name, *_ in shown(found)].count("linear") == 2


STATES = {
    "seed": lambda: torch.manual_seed(7),
    "random numbers": lambda: torch.rand(3),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "gradients": lambda: torch.set_grad_enabled(False),
    "autocast": lambda: torch.set_autocast_enabled("cpu", False),
    "autocast's dtype": lambda: torch.set_autocast_dtype("cpu", BF16),
    "autocast's cache": lambda: torch.set_autocast_cache_enabled(False),
    "a region that never ends": lambda: torch.autocast("cpu", BF16).__enter__(),
    "anomaly detection": lambda: torch.autograd.set_detect_anomaly(True),
}


@both_modes
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("change", STATES.values(), ids=STATES)
def test_pytorchs_state_changed(change, mode):
    def forward(model, x):
        h = model.fc(x)
        change()
        return h * 2

    found = look(forward, mode=mode)
    assert shown(found)[0] == ("linear", FP16)


@both_modes
def test_a_generator_of_its_own(mode):
    dice = torch.Generator().manual_seed(3)
    before = dice.get_state()
    model = Model(lambda model, x, dice: model.fc(x) + torch.rand(8, generator=dice))
    healthy(look(model, torch.randn(4, 8), dice, mode=mode))
    assert dice.get_state().equal(before)


# Inputs


@both_modes
def test_inputs_that_require_grad(mode):
    x = torch.randn(4, 8, requires_grad=True)
    x.grad = torch.ones(4, 8)
    healthy(look(lambda model, x: model.fc(x), x, mode=mode))


@both_modes
def test_inputs_with_a_graph_of_their_own(mode):
    first = nn.Linear(8, 8)
    x = first(torch.randn(4, 8)).tanh()
    healthy(look(lambda model, x: model.fc(x), x, mode=mode))
    assert first.weight.grad is None
    x.sum().backward()
    assert first.weight.grad is not None


@both_modes
def test_inputs_that_are_parameters_of_the_model(mode):
    model = Model(lambda model, weight: model.fc(weight))
    healthy(look(model, model.fc.weight, mode=mode))


@both_modes
def test_the_same_tensor_twice_and_views_of_it(mode):
    x = torch.randn(4, 8)

    def forward(model, a, b, c):
        a.zero_()
        return model.fc(b) + c

    found = healthy(look(Model(forward), x, x, x[:1], mode=mode))
    assert row(found, "add").outputs[0].dtype == FP32


@both_modes
def test_views_of_inputs_come_out(mode):
    found = look(lambda model, x: (x[0], x.t(), x), mode=mode)
    assert found.error is None
    assert shown(found) == []


@both_modes
def test_tensors_that_share_memory_in_the_model(mode):
    model = nn.Linear(8, 8)
    model.register_buffer("half_of_it", model.weight.detach()[:4])
    found = healthy(look(model, torch.randn(4, 8), mode=mode))
    assert shown(found) == [("linear", FP16)]


class Named(torch.Tensor):
    """A subclass that adds nothing."""


@both_modes
def test_a_subclass_of_tensor(mode):
    x = torch.randn(4, 8).as_subclass(Named)
    found = healthy(look(lambda model, x: model.fc(x), x, mode=mode))
    assert row(found, "linear").outputs[0].dtype == FP16


@both_modes
def test_a_parameter_of_a_subclass(mode):
    class Special(nn.Parameter):
        pass

    model = nn.Linear(8, 8)
    model.weight = Special(torch.randn(8, 8))
    found = healthy(look(model, torch.randn(4, 8), mode=mode))
    assert row(found, "linear").outputs[0].dtype == FP16


@both_modes
def test_a_wrapping_subclass_is_a_table_or_a_clear_error(mode):
    x = TwoTensor(torch.randn(4, 8), torch.randn(4, 8))
    found = table_or_refusal(lambda model, x: model.fc(x), x, mode=mode)
    if isinstance(found, str):
        assert "TwoTensor" in found
    else:
        assert found.error or row(found, "linear").outputs[0].dtype == FP16


@both_modes
def test_frozen_parameters_have_no_backward_pass(mode):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).requires_grad_(False)
    model[1].bias.requires_grad_(True)
    found = look(model, torch.randn(4, 8), mode=mode)
    assert found.error is None
    assert {op.forward for op in found.ops if op.phase == "backward" and op.name == "linear"} == {
        [op.number for op in found.ops if op.name == "linear"][1]
    }
    nothing = look(model.requires_grad_(False), torch.randn(4, 8), mode=mode)
    assert nothing.error is None
    assert shown(nothing, "backward") == []


def test_ids_beyond_the_table():
    model = Model(lambda model, ids: model.fc(model.table(ids)), table=nn.Embedding(10, 8))
    found = look(model, torch.tensor([3, 10**12]), mode="value")
    assert found.ops[-1].name == "embedding"
    assert "out of range" in str(found.error)


@both_modes
def test_giant_ids_in_16_bits_are_warned_of(mode):
    """FP16 knows no integers beyond 2,048 but every other, every fourth …"""
    model = Model(lambda model, x: model.fc(x) + torch.arange(5000)[:, None].half())
    found = healthy(look(model, torch.randn(5000, 8), mode=mode))
    assert row(found, "add").outputs[0].dtype == FP16
    assert any("whole numbers" in remark.sentence for remark in found.warnings)


def test_a_giant_input_that_is_fake_takes_no_memory():
    with FakeTensorMode():
        giant = torch.empty(10**9, 8)
    try:
        found = xray(Model(lambda model, x: model.fc(x)), giant, mode="fake")
    except (TypeError, ValueError) as refusal:
        assert "Fake" in str(refusal)  # noqa: PT017
    else:
        assert row(found, "linear").outputs[0].shape == (10**9, 8)


@both_modes
def test_a_model_on_the_meta_device_is_a_table_or_a_clear_error(mode):
    found = table_or_refusal(nn.Linear(8, 8, device="meta"), torch.randn(4, 8, device="meta"), mode=mode)
    if isinstance(found, str):
        assert "meta" in found
    else:
        assert row(found, "linear").outputs[0].dtype == FP16


# Losses

BAD_LOSSES = {
    "fails": (lambda output: 1 / 0, "division by zero"),
    "is no scalar": (lambda output: output, "scalar"),
    "is a number": (lambda output: 3.0, "tensor"),
    "is None": (lambda output: None, "tensor"),
    "is cut off": (lambda output: output.detach().sum(), "require"),
    "misses a dtype": (lambda output: output.float() @ output.t().half().double(), "dtype"),
    "is refused": (
        lambda output: F.binary_cross_entropy(output.sigmoid(), torch.ones(4, 8)),
        "unsafe to autocast",
    ),
}


@both_modes
@pytest.mark.parametrize(("loss", "sentence"), BAD_LOSSES.values(), ids=BAD_LOSSES)
def test_a_loss_that_fails(loss, sentence, mode):
    found = table_or_refusal(nn.Linear(8, 8), mode=mode, loss=loss)
    if isinstance(found, str):
        assert sentence in found
    else:
        assert shown(found)[0] == ("linear", FP16)
        assert sentence in f"{found.error} {found.explanation} {found.notes}"


@both_modes
def test_a_loss_is_run_inside_the_region(mode):
    found = healthy(
        look(lambda model, x: model.fc(x), mode=mode, loss=lambda h: F.mse_loss(h, torch.ones(4, 8)))
    )
    assert shown(found)[-1] == ("mse_loss", FP32)
    assert shown(found, "backward")[0] == ("mse_loss", FP32)


def test_a_loss_that_cannot_be_called_is_refused():
    with pytest.raises(TypeError, match="loss"):
        xray(nn.Linear(8, 8), torch.randn(4, 8), loss="mse")


# The caller's own state

CALLERS = {
    "no_grad": torch.no_grad,
    "inference mode": torch.inference_mode,
    "gradients": torch.enable_grad,
    "autocast": lambda: torch.autocast("cpu", BF16),
    "no autocast": lambda: torch.autocast("cpu", enabled=False),
}


@both_modes
@pytest.mark.parametrize("block", CALLERS.values(), ids=CALLERS)
def test_inside_the_callers_blocks(block, mode):
    model, x = Model(lambda model, x: model.fc(x)), torch.randn(4, 8)
    plain = xray(model, x, mode=mode)
    with block():
        inside = leaves_no_trace(xray, model, x, mode=mode)
        differentiable = torch.is_grad_enabled()
    assert (inside.error, shown(inside)) == (None, shown(plain))
    assert shown(inside, "backward") == (shown(plain, "backward") if differentiable else [])


@both_modes
def test_the_same_table_again_and_for_a_copy(mode):
    model, x = (
        Model(lambda model, x: model.drop(model.fc(x)).exp().sum(), drop=nn.Dropout()),
        torch.randn(4, 8),
    )
    first, again = (xray(model, x, mode=mode) for _ in range(2))
    assert first.ops == again.ops == xray(copy.deepcopy(model), x.clone(), mode=mode).ops


@both_modes
def test_a_training_step_afterwards_is_the_same(mode):
    def step(look_first):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout())
        optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(4, 8)
        if look_first:
            xray(model, x, mode=mode)
        with torch.autocast("cpu", BF16):
            loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return {name: each.clone() for name, each in model.state_dict().items()}

    plain, after = step(False), step(True)
    assert all(plain[name].equal(after[name]) for name in plain)


@both_modes
def test_nothing_is_kept_alive(mode):
    model, x = Model(lambda model, x: model.fc(x)), torch.randn(4, 8)
    found = xray(model, x, mode=mode)
    gone = [weakref.ref(each) for each in (model, x, model.fc.weight)]
    del model, x
    gc.collect()
    assert [each() for each in gone] == [None] * 3
    assert found.ops


@both_modes
def test_an_xray_within_an_xray(mode):
    inner, seen = nn.Linear(8, 8), []

    def forward(model, x):
        seen.append(xray(inner, torch.randn(2, 8), mode=mode))
        return model.fc(x)

    found = look(forward, mode=mode)
    assert "xray" in str(found.error) or shown(found)[-1] == ("linear", FP16)


def test_two_at_once_in_two_threads():
    """Kernels belong to the process: either both tables are right, or one says why not."""
    models = [Model(lambda model, x: model.fc(x).softmax(-1)) for _ in range(2)]
    x, found, barrier = torch.randn(4, 8), [], threading.Barrier(2)
    traces = Traces(*models, x)

    def work(model):
        barrier.wait()
        try:
            found.append(xray(model, x, mode="fake"))
        except RuntimeError as error:
            found.append(error)

    threads = [threading.Thread(target=work, args=(model,)) for model in models]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not traces.left()
    assert len(found) == 2
    for each in found:
        assert isinstance(each, RuntimeError) or shown(each) == [("linear", FP16), ("softmax", FP32)], each


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"device_type": "gpu"}, "device_type"),
        ({"dtype": torch.float64}, "dtype"),
        ({"dtype": "float16"}, "dtype"),
        ({"mode": "real"}, "mode"),
    ],
)
def test_settings_that_do_not_exist(settings, word):
    with pytest.raises((TypeError, ValueError), match=word):
        xray(nn.Linear(8, 8), torch.randn(4, 8), **settings)


@both_modes
def test_a_wrong_number_of_inputs_is_the_models_error(mode):
    found = leaves_no_trace(xray, nn.Linear(8, 8), mode=mode)
    assert "missing 1 required positional argument" in str(found.error)
