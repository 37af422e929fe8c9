"""Models that do more than compute forward: they compile, switch modes, transform, take steps, or start threads."""

import copy
import logging
import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.optim.optimizer import _global_optimizer_pre_hooks

from amp_lab.autocast.xray import xray
from amp_lab.scaling.dynamic import DynamicLossScaler
from tests.autocast.hostile import Model, both_modes, look, row, shown

FP16, FP32 = torch.float16, torch.float32
# What PyTorch's compiler and its transforms import warns.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit")


def all_modes(test):
    return pytest.mark.parametrize("mode", ["auto", "fake", "value"])(test)


def kernels(found):
    return [(op.name, op.dtype, op.casts, op.kernels, op.outputs) for op in found.ops]


# Compiled functions: recording one killed the process


def _act(x):
    return F.gelu(x) * 2


@all_modes
def test_a_compiled_function_is_run_as_it_is_written(mode):
    compiled = torch.compile(_act)
    found = look(lambda model, x: compiled(model.fc(x)), mode=mode)
    assert found.error is None
    assert shown(found) == [("linear", FP16), ("gelu", FP16), ("mul", FP16)]
    assert kernels(found) == kernels(look(lambda model, x: _act(model.fc(x)), mode=mode))
    assert any("torch.compile" in note for note in found.notes)
    assert {op.source.function for op in found.ops if op.name in ("gelu", "mul")} == {"_act"}


@all_modes
def test_a_compiled_function_as_an_attribute_or_a_loss(mode):
    attribute = look(Model(lambda model, x: model.act(model.fc(x)), act=torch.compile(F.gelu)), mode=mode)
    assert shown(attribute) == [("linear", FP16), ("gelu", FP16)]
    loss = xray(
        nn.Linear(8, 8), torch.randn(4, 8), loss=torch.compile(lambda out: out.float().mean()), mode=mode
    )
    assert (loss.error, shown(loss)[-1]) == (None, ("mean", FP32))


def test_the_compiler_is_as_before():
    counted = []

    def backend(graph, inputs):
        counted.append(graph)
        return graph.forward

    compiled = torch.compile(lambda x: x * 2, backend=backend)
    assert xray(compiled_caller(compiled), torch.randn(3)).error is None
    assert counted == []
    compiled(torch.randn(3))
    assert len(counted) == 1


def compiled_caller(compiled):
    return lambda x: compiled(x)


@both_modes
@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_operators_that_call_functions_are_one_row(mode):
    def attention(model, x):
        return flex_attention(*[model.fc(x).view(1, 1, 4, 8)] * 3)

    with torch.no_grad():
        attention(Model(attention), torch.randn(4, 8))  # the first time, PyTorch registers kernels for it
    whole = look(attention, mode=mode)  # newer versions of PyTorch refuse
    assert whole.error is None or "torch.no_grad()" in whole.explanation.advice
    with torch.no_grad():
        found = look(attention, mode=mode)
    assert (found.error, row(found, "flex_attention").outputs[0].dtype) == (None, FP16)
    assert any(note.startswith("flex_attention") for note in found.notes)
    assert not any("torch.compile" in note for note in found.notes)  # PyTorch's own
    branches = look(
        lambda model, x: torch.cond(x.sum() < 1e9, model.fc, lambda x: model.fc(x) * 2, (x,)),
        mode=mode,
        backward=False,
    )
    assert (branches.error, row(branches, "cond").outputs[0].dtype) == (None, FP16)


# Modes and transforms under which casts come another way


@both_modes
def test_casts_are_the_same_in_inference_mode(mode):
    model, x = nn.Sequential(nn.Linear(8, 8), nn.Softmax(-1)), torch.randn(4, 8)
    with torch.no_grad():
        expected = xray(model, x, mode=mode)
    with torch.inference_mode():
        found = xray(model, x, mode=mode)
    assert [cast.dtype for op in found.ops for cast in op.casts] == [FP16] * 3
    assert [op.casts for op in found.ops] == [op.casts for op in expected.ops]
    assert [(op.name, op.dtype, op.reason) for op in found.ops if not op.view] == [
        (op.name, op.dtype, op.reason) for op in expected.ops if not op.view
    ]


@both_modes
def test_an_inference_block_inside_a_model(mode):
    def forward(model, x):
        with torch.inference_mode():
            target = model.fc(x)
        return model.fc(x) - target.clone()

    found = look(forward, mode=mode)
    assert found.error is None
    linear = [op for op in found.ops if op.name == "linear" and op.phase == "forward"]
    assert [(op.dtype, len(op.casts)) for op in linear] == [(FP16, 3), (FP16, 3)]


@both_modes
@pytest.mark.parametrize(
    ("transform", "name", "casts"),
    [
        (lambda fc, x: torch.func.grad(lambda w: (x @ w).sum())(torch.ones(8, 8)), "matmul", 2),
        (lambda fc, x: torch.func.jvp(fc, (x,), (torch.ones_like(x),))[0], "addmm", 3),
        (lambda fc, x: torch.vmap(lambda row: row @ torch.ones(8, 8))(x), "matmul", 2),
    ],
    ids=["grad", "jvp", "vmap"],
)
def test_casts_are_seen_under_transforms(transform, name, casts, mode):
    transform(nn.Linear(8, 8), torch.randn(4, 8))  # the first time, PyTorch registers kernels for it
    found = look(lambda model, x: transform(model.fc, x), mode=mode)
    assert found.error is None
    op = row(found, name)
    assert ([cast.dtype for cast in op.casts], op.dtype, op.outputs[0].dtype) == ([FP16] * casts, FP16, FP16)
    assert not found.warnings
    assert not any("same_storage" in op.name for op in found.ops)


# Training steps


class _Step:
    """A training step of a small model, as a function of its input."""

    def __init__(self, scaler):
        self.model, self.scaler = nn.Linear(8, 8), scaler
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-2)

    def __call__(self, x):
        self.optimizer.zero_grad()
        loss = self.model(x).sum()
        if self.scaler is None:
            loss.backward()
            self.optimizer.step()
        else:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def state(self):
        parts = [self.model, self.optimizer, *([] if self.scaler is None else [self.scaler])]
        gradients = [each.grad for each in self.model.parameters()]
        return copy.deepcopy(([part.state_dict() for part in parts], gradients))


_SCALERS = {
    "none": lambda: None,
    "PyTorch's": lambda: torch.amp.GradScaler("cpu", init_scale=4.0),
    "amp_lab's": lambda: DynamicLossScaler(init_scale=4.0),
}


@all_modes
@pytest.mark.parametrize("steps", [0, 1])
@pytest.mark.parametrize("scaler", _SCALERS.values(), ids=_SCALERS)
def test_a_training_step_ends_before_it_changes_anything(scaler, steps, mode):
    step, x = _Step(scaler()), torch.randn(4, 8)
    twin = copy.deepcopy(step)
    twin.optimizer.param_groups[0]["params"] = list(twin.model.parameters())
    for _ in range(steps):
        step(x)
        twin(x)
    before = step.state()
    found = xray(step, x, mode=mode)
    torch.testing.assert_close(step.state(), before, rtol=0, atol=0)
    assert "training step" in found.error
    assert (found.explanation.id, "loss=" in found.explanation.advice) == ("xray-training-step", True)
    assert {"linear", "sum"} <= {op.name for op in found.ops}
    assert any(op.phase == "backward" for op in found.ops)
    step(x)
    twin(x)
    torch.testing.assert_close(step.state(), twin.state(), rtol=0, atol=0)


@both_modes
def test_a_loss_that_is_scaled_leaves_the_scaler_alone(mode):
    scaler, model, x = torch.amp.GradScaler("cpu"), nn.Linear(8, 8), torch.randn(4, 8)
    found = xray(model, x, loss=lambda out: scaler.scale(out.float().mean()), mode=mode)
    assert found.error is None
    assert scaler._scale is None
    scaler.scale(model(x).sum()).backward()
    assert model.weight.grad.isfinite().all()


@both_modes
@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_were_there_stay(set_to_none, mode):
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    optimizer, parameters = torch.optim.SGD(model.parameters(), 0.1), list(model.parameters())
    model(x).sum().backward()
    before = [(each.grad, each.grad.clone()) for each in parameters]

    def by_hand(x):
        optimizer.zero_grad(set_to_none=set_to_none)
        for each in parameters:
            each.grad = None
        return model(x)

    assert xray(by_hand, x, mode=mode).error is None
    for each, (gradient, numbers) in zip(parameters, before, strict=True):
        assert each.grad is gradient
        assert gradient.equal(numbers)


def test_a_scaler_in_the_midst_of_a_step_goes_on():
    step, x = _Step(DynamicLossScaler(init_scale=4.0)), torch.randn(4, 8)
    step.scaler.scale(step.model(x).sum()).backward()
    step.scaler.unscale_(step.optimizer)
    assert xray(step.model, x, loss=lambda out: step.scaler.scale(out.float().sum())).error is None
    step.scaler.step(step.optimizer)  # which refuses if a backward pass has run after unscale_
    step.scaler.update()


def test_what_is_replaced_for_a_run_is_put_back():
    owners = [torch.optim.Optimizer, torch.amp.GradScaler]
    before = [dict(vars(owner)) for owner in owners]
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    xray(_Step(None), torch.randn(4, 8))
    assert [dict(vars(owner)) for owner in owners] == before
    assert not _global_optimizer_pre_hooks
    assert not logger.disabled


@both_modes
def test_another_threads_training_step_goes_on(mode):
    other = _Step(torch.amp.GradScaler("cpu", init_scale=4.0))
    weight, errors = other.model.weight.clone(), []

    def work():
        try:
            with torch.inference_mode(False), torch.enable_grad():
                other(torch.randn(4, 8))
        except Exception as error:
            errors.append(error)

    class Waits(nn.Linear):
        def forward(self, x):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
            return super().forward(x)

    assert xray(Waits(8, 8), torch.randn(4, 8), mode=mode).error is None
    assert errors == []
    assert not other.model.weight.equal(weight)


@both_modes
def test_modules_in_another_thread_are_said_to_be_missing(mode):
    def forward(model, x):
        results = []
        thread = threading.Thread(target=lambda: results.append(model.other(x.detach())))
        thread.start()
        thread.join()
        return model.fc(x) + results[0]

    found = look(Model(forward, other=nn.Linear(8, 8)), mode=mode)
    assert any("another thread" in note for note in found.notes)
    assert not any("thread" in note for note in look(lambda model, x: model.fc(x), mode=mode).notes)


# Backward rows


@both_modes
def test_the_gradient_of_one_operator_is_one_row(mode):
    """A composite operator has many nodes in autograd's graph, which run one after the other."""
    lstm = nn.LSTM(8, 8, num_layers=2)
    found = xray(lambda x: lstm(x)[0], torch.randn(5, 3, 8), mode=mode)
    backward = [op for op in found.ops if op.phase == "backward" and op.name == "lstm"]
    assert len(backward) == 1
    assert len(backward[0].kernels) > 50
    assert (backward[0].dtype, backward[0].forward) == (FP16, row(found, "lstm").number)
    casts = [op for op in found.ops if op.phase == "backward" and op.name == "to"]
    assert len(casts) == 8  # of the weights; each is a row of its own
    for op in found.ops:  # a row that is many kernels is made of rows before it only
        assert all(
            each.made_by is None or each.made_by < op.number for each in op.inputs if op not in backward
        )


@both_modes
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_statistics_that_attention_saves_do_not_count(dropout, mode):
    def forward(model, x):
        q = model.fc(x).view(1, 2, 4, 8)
        return F.scaled_dot_product_attention(q, q, q, dropout_p=dropout)

    found = look(forward, torch.randn(8, 8), mode=mode)
    assert row(found, "scaled_dot_product_attention").dtype == FP16
    backward = row(found, "scaled_dot_product_attention", "backward")
    assert backward.dtype == FP16
    assert FP32 in {each.dtype for each in backward.inputs}  # the logsumexp, or the CPU's softmax


@both_modes
def test_statistics_of_normalising_layers_do_not_count(mode):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.LayerNorm(8))
    found = xray(model, torch.randn(4, 8), mode=mode)
    dtypes = {(op.name, op.phase): op.dtype for op in found.ops if op.name.endswith("_norm") and not op.view}
    assert dtypes == {
        ("batch_norm", "forward"): FP16,
        ("batch_norm", "backward"): FP16,
        ("layer_norm", "forward"): FP32,
        ("layer_norm", "backward"): FP32,
    }
    assert row(found, "add_").bookkeeping  # num_batches_tracked
    assert not row(found, "batch_norm").bookkeeping


def test_one_number_that_is_read_is_bookkeeping():
    found = xray(lambda x: x * x.sum().item(), torch.randn(3), mode="value")
    assert [op.name for op in found.ops if op.bookkeeping] == ["item"]


# What to do about errors that are no fault of mixed precision


class _Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x, mask):
        return self.fc(x) * mask


X = torch.randn(4, 8)
CALLS = {
    "an argument is missing": (_Masked(), (X,), {}, "xray-call", "(x, mask)"),
    "a keyword is mistyped": (_Masked(), (X,), {"msk": X}, "xray-call", "(x, mask)"),
    "a keyword is nearly one of xray's": (_Masked(), (X, X), {"device": "cuda"}, "xray-call", "device_type"),
    "a loss takes two": (nn.Linear(8, 8), (X,), {"loss": nn.CrossEntropyLoss()}, "xray-call", "criterion"),
    "a NumPy array": (nn.Linear(8, 8), (X.numpy(),), {}, "xray-no-tensor", "from_numpy"),
    "no tensor": (nn.Linear(8, 8), ((4, 8),), {}, "xray-no-tensor", "torch.randn"),
}


@both_modes
@pytest.mark.parametrize(("model", "inputs", "keywords", "name", "word"), CALLS.values(), ids=CALLS)
def test_a_wrong_call_is_told_how_to_be_right(model, inputs, keywords, name, word, mode):
    found = xray(model, *inputs, mode=mode, **keywords)
    assert found.explanation.id == name
    assert word in f"{found.explanation.happened} {found.explanation.advice}"
    assert "mixed precision" not in str(found.explanation)


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: x * x.sum().item(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.numpy(),
        lambda x: x.tolist(),
    ],
)
def test_fake_mode_says_where_the_numbers_are(forward):
    found = xray(forward, X, mode="fake")
    assert found.explanation.id == "xray-needs-numbers"
    assert 'mode="value"' in found.explanation.advice
    assert 'mode="value"' in found.mode_reason
    assert xray(forward, X).mode == "value"


def test_fake_mode_does_not_ask_for_numbers_where_they_would_not_help():
    found = xray(lambda x: x @ x, X, mode="fake")
    assert "value" not in f"{found.mode_reason} {found.explanation.advice}"


@both_modes
@pytest.mark.skipif(torch.cuda.is_available(), reason="there, these are tensors on the GPU")
@pytest.mark.parametrize(
    "forward", [lambda x: x.cuda(), lambda x: x.to("cuda"), lambda x: x + torch.zeros(8, device="cuda")]
)
def test_a_model_that_asks_for_a_gpu(forward, mode):
    found = xray(forward, X, mode=mode)
    assert (found.explanation.id, "x.device" in found.explanation.advice) == ("xray-no-gpu", True)


@both_modes
def test_an_error_of_precision_is_explained_as_one(mode):
    found = xray(nn.Linear(8, 8), torch.zeros(4, 8, dtype=torch.int64), mode=mode)
    assert found.explanation.id == "matmul-dtypes"


def test_a_wrong_shape_is_not_logged():
    """A program of its own, since pytest takes what is logged."""
    code = "import torch; from amp_lab.autocast.xray import xray; "
    code += "xray(torch.nn.Linear(8, 8), torch.randn(4, 7), mode='fake')"
    command = [sys.executable, "-W", "ignore", "-c", code]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert (ran.stdout, ran.stderr) == ("", "")


@both_modes
def test_a_complex_loss_is_refused(mode):
    found = xray(
        nn.Linear(8, 8), X, loss=lambda out: torch.complex(out.float(), out.float()).sum(), mode=mode
    )
    assert "complex" in found.error
    assert "abs()" in str(found.explanation)
