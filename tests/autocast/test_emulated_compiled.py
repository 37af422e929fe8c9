"""The emulations and torch.compile: it looks into neither, wherever their blocks stand and whoever compiles."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from amp_lab.autocast.emulate import cuda_autocast, tensor_cores
from amp_lab.autocast.kernels.dispatcher import replaced_kernels
from amp_lab.autocast.kernels.uncompiled import uncompiled

FP16 = torch.float16
X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).half()
torch.manual_seed(0)
LAYERS = nn.Sequential(nn.Linear(8, 8), nn.Tanh()).half()


@pytest.fixture(autouse=True)
def compiled_anew():
    torch.compiler.reset()
    yield
    torch.compiler.reset()
    assert not tensor_cores(always=True).on
    assert not cuda_autocast().on
    assert replaced_kernels("CPU") == []
    assert replaced_kernels("AutocastCPU") == []


def a_block(x):
    with tensor_cores(always=True):
        return x @ x.t()


def work_around_a_block(x):
    x = x * 2
    with tensor_cores(always=True):
        x = x @ x.t()
    return x.exp()


def a_block_in_a_block(x):
    with tensor_cores(always=True):
        x = a_block(x) @ x
    return x @ x.t()


def a_model(x):
    with tensor_cores(always=True):
        return LAYERS(x)


@tensor_cores(always=True)
def decorated(x):
    return LAYERS(x) @ x.t()


def start_and_stop(x):
    tensor_cores(always=True).start()
    product = x @ x.t()
    tensor_cores(always=True).stop()
    return product


def casts(x):
    with cuda_autocast(), torch.autocast("cpu", FP16):
        return F.softmax((x.float() @ x.float().t()) * 1.0, 1)


@cuda_autocast()
def casts_decorated(x):
    with torch.autocast("cpu", FP16):
        return F.softmax(x.float() @ x.float().t(), 1)


def both(x):
    with cuda_autocast(), tensor_cores(always=True), torch.autocast("cpu", FP16):
        return F.layer_norm(LAYERS(x.float()), (8,))


FUNCTIONS = [
    a_block,
    work_around_a_block,
    a_block_in_a_block,
    a_model,
    decorated,
    start_and_stop,
    casts,
    casts_decorated,
    both,
]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_block_in_a_compiled_function_does_as_ever_and_silently(function, backend):
    expected = function(X)
    for _ in range(2):
        torch.compiler.reset()
        compiled = torch.compile(function, backend=backend)
        for _ in range(2):
            result = compiled(X)  # a warning would be an error here
            assert result.dtype is expected.dtype
            assert torch.equal(result, expected)


def test_what_is_called_in_a_block_is_compiled_and_nothing_of_the_emulation():
    graphs = []

    def backend(graph, examples):
        graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    def called(x):
        return (x @ x.t()).exp()

    def calls(x):
        with tensor_cores(always=True):
            return called(x)

    torch.compile(calls, backend=backend)(X)
    torch.compile(a_block, backend=backend)(X)
    assert len(graphs) == 1
    assert len(graphs[0]) == 3  # t, matmul and exp, without what converts and rounds


def test_gradients_through_a_block_in_a_compiled_function():
    def loss(x):
        with tensor_cores(always=True):
            return LAYERS(x).float().square().sum()

    def gradient(function):
        LAYERS.zero_grad()
        with tensor_cores(always=True):
            function(X).backward()
        return LAYERS[0].weight.grad.clone()

    assert torch.equal(gradient(torch.compile(loss, backend="aot_eager")), gradient(loss))


@pytest.mark.parametrize("function", [a_block, casts, start_and_stop], ids=lambda function: function.__name__)
def test_with_fullgraph_it_is_an_error_with_advice(function):
    with pytest.raises(torch._dynamo.exc.Unsupported, match="put the with-block around the compiled call"):
        torch.compile(function, backend="eager", fullgraph=True)(X)


def test_the_advice_works_with_fullgraph():
    compiled = torch.compile(lambda x: x @ x.t(), backend="aot_eager", fullgraph=True)
    with tensor_cores(always=True):
        assert torch.equal(compiled(X), X @ X.t())


def test_neither_importing_nor_emulating_a_tensor_core_imports_the_compiler():
    program = (
        "import sys, torch\n"
        "from amp_lab.autocast.emulate import tensor_cores, cuda_autocast\n"
        "with tensor_cores(always=True): torch.ones(2, 2).half() @ torch.ones(2, 2).half()\n"
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize("marks", [True, False], ids=["by PyTorch's marks", "by torch.compiler.disable"])
def test_both_ways_of_keeping_the_compiler_out(marks, monkeypatch):
    if not marks:  # a PyTorch that has others
        monkeypatch.delattr(torch._C._dynamo.eval_frame, "set_code_exec_strategy")
    graphs = []

    def backend(graph, examples):
        graphs.append(graph)
        return graph.forward

    def below(x):
        return x + 1

    @uncompiled
    def kept_out(x):
        return below(x) * 2

    compiled = torch.compile(lambda x: kept_out(x), backend=backend)
    assert torch.equal(compiled(X), (X + 1) * 2)
    assert graphs == []
    with pytest.raises(torch._dynamo.exc.Unsupported, match="put the with-block around the compiled call"):
        torch.compile(lambda x: kept_out(x), backend=backend, fullgraph=True)(X)
