"""The errors of CUDA's operators are explained as those of the CPU's."""

import warnings

import pytest
import torch

from amp_lab.autocast.errors import explain
from tests.autocast.faults import ALL, MISMATCHES, PAIRS, ones

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(
        not torch.cuda.is_available(), reason="no CUDA device: its own errors are not explained here"
    ),
]
# What everybody meets must be known. Of the rest, a GPU may say something that only a GPU says.
COMMON = {
    "linear",
    "linear without a bias",
    "@",
    "bmm",
    "addmm_",
    "attention",
    "x[index] = y",
    "scatter_",
    "LSTM",
}
ROWS = [
    pytest.param(name, a, b, id=f"{name}: {str(a)[6:]}, {str(b)[6:]}")
    for name, row in MISMATCHES.items()
    for a, b in PAIRS
    if row.only(a, b)
]


def error_of(run):
    """What this raises on CUDA tensors, None if it runs: a GPU may compute what a CPU refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            with torch.device("cuda"):
                run()
        except Exception as error:
            return error
    return None


@pytest.mark.parametrize(("name", "a", "b"), ROWS)
def test_two_dtypes_that_meet(name, a, b):
    error = error_of(lambda: MISMATCHES[name].run(a, b))
    if error is not None:
        explanation = explain(error)
        assert explanation.known or name not in COMMON, error
        assert {dtype for _, dtype in explanation.dtypes} <= {a, b}, error


@pytest.mark.parametrize(
    "name", [name for name, (id_, _) in ALL.items() if id_.startswith(("scale", "step", "un"))]
)
def test_other_faults(name):
    expected, run = ALL[name]
    error = error_of(run)
    assert error is None or explain(error).id == expected, error


def test_a_convolution_names_cuda_tensors():
    error = error_of(
        lambda: torch.nn.functional.conv2d(ones(1, 3, 5, 5, dtype=torch.float16), ones(4, 3, 3, 3))
    )
    explanation = explain(error)
    assert explanation.id == "conv-dtypes"
    assert dict(explanation.dtypes) == {"the input": torch.float16, "the weight": torch.float32}


def test_a_forgotten_device():
    weight = ones(4, 3, 3, 3)
    for run in (
        lambda: torch.nn.functional.conv2d(ones(1, 3, 5, 5), weight),
        lambda: ones(2, 4) @ weight[:, :, 0, 0],
    ):
        explanation = explain(error_of(run))
        assert explanation.id == "devices"
        assert "to(device)" in explanation.advice


def test_gradients_in_bf16():
    """Until a version of PyTorch has the kernel, the scaler fails on them."""
    model = torch.nn.Linear(3, 1, device="cuda", dtype=torch.bfloat16)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cuda")
    scaler.scale(model(torch.ones(2, 3, device="cuda", dtype=torch.bfloat16)).sum()).backward()
    error = error_of(lambda: scaler.unscale_(optimizer))
    assert error is None or explain(error).id == "unscale-not-implemented", error
